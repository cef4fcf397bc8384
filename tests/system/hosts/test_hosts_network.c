/* Training on two hosts that only a network joins: real programs in two network namespaces, each with a hostname, a
 * cable and a run directory of its own. mpirun starts the second daemon as it does by ssh, and Open MPI's transports
 * for networks carry the rest. */
#include "tests/kit/command.h"
#include "tests/kit/outputs.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

SUITE_LABELS(long, slow)
SUITE_TIMEOUT(180)

/* Run as root of a user namespace, in namespaces of its own: makes the other host, where `there COMMAND` runs. Open
 * MPI's UCX looks into /sys for devices, and takes those that carry. */
static const char cable[] =
    "set -e\n"
    "hostname host-0\n"
    "unshare -mnu sleep 1000 & other=$!\n"
    "trap 'kill $(jobs -p) 2>/dev/null' EXIT\n"
    "until [ \"$(readlink /proc/$other/ns/uts)\" != \"$(readlink /proc/self/ns/uts)\" ]; do :; done\n"
    "there() { nsenter -t $other -m -n -u --wd=\"$PWD\" \"$@\"; }\n"
    "there hostname host-1\n"
    "mount -t sysfs sysfs /sys\n"
    "there mount -t sysfs sysfs /sys\n"
    "ip link set lo up\n"
    "there ip link set lo up\n"
    "ip link add eth0 type veth peer name eth0 netns $other\n"
    "ip addr add 10.77.0.1/24 dev eth0\n"
    "there ip addr add 10.77.0.2/24 dev eth0\n"
    "ip link set eth0 up\n"
    "there ip link set eth0 up\n"
    "until [ \"$(cat /sys/class/net/eth0/operstate)\" = up ] &&\n"
    "    [ \"$(there cat /sys/class/net/eth0/operstate)\" = up ]; do :; done\n";

/* A daemon and a worker on each, mpirun's options in $TRANSPORT; Open MPI leaves memory behind. `agent ADDRESS COMMAND`
 * takes the place of ssh. */
static const char hosts[] =
    "echo '#!/bin/sh' >agent\n"
    "echo shift >>agent\n"
    "echo \"exec nsenter -t $other -m -n -u --wd=$PWD env XDG_RUNTIME_DIR=$PWD/there sh -c \\\"\\$*\\\"\" >>agent\n"
    "chmod +x agent\n"
    "mkdir -m 700 there\n"
    "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_hwloc_base_binding_policy=none\n"
    "ASAN_OPTIONS=detect_leaks=0 mpirun $TRANSPORT --mca plm_rsh_agent $PWD/agent -H 10.77.0.1:1,10.77.0.2:1 -n "
    "2 " BIN_DIR "/epsd --mpi\\\n"
    "    --listen lab >mpirun.log 2>&1 & mpirun=$!\n"
    "await() { until grep -q \"$1\" \"$2\" 2>/dev/null; do kill -0 $mpirun; sleep 0.02; done; }\n"
    "await '/lab, pid' mpirun.log\n"
    "await '/lab-1, pid' mpirun.log\n"
    "eps-worker --connect lab --device cpu --device-mem 32MiB 2>worker-0.log &\n"
    "./agent there exec " BIN_DIR "/eps-worker --connect lab-1 --device cpu --device-mem 32MiB 2>worker-1.log &\n"
    "await attached worker-0.log\n"
    "await attached worker-1.log\n";

static int run(const char *script)
{
    processes_put_text("network.sh", script);
    return system(print("cd %s && PATH=" BIN_DIR ":$PATH timeout 120 unshare -rmnu bash network.sh >out 2>err",
                        processes_directory()));
}

static void setup(void)
{
    processes_setup();
    processes_config_with("model.json", 3, 4, 64, 32, "\"attn_pdrop\": 0.1, \"resid_pdrop\": 0.1");
    processes_text("text.txt", 16000);
}
SUITE_FIXTURE(setup, processes_remove)

static bool can_join(void)
{
    FILE *shell = popen("timeout 20 unshare -rmnu bash 2>/dev/null", "w");

    if (!shell)
        return false;
    fputs(cable, shell);
    return pclose(shell) == 0 && access(BIN_DIR "/eps-mpi.so", F_OK) == 0 &&
           system("command -v mpirun >/dev/null 2>&1") == 0;
}
SUITE_SKIP_UNLESS(can_join(), "Open MPI is not installed, or no network namespaces with a cable are allowed here")

#define RUN                                                                                                            \
    " --model model.json --data text.txt --seq 32 --microbatch 2 --seed 7 --deterministic --batch 4 --parts 2"         \
    " --optimizer adamw"

static void train_alone(const char *steps)
{
    expect(print("eps train" RUN " %s --device cpu --device-mem 32MiB --out one", steps), 0);
}

static void check_run(const char *transport, const char *rest)
{
    char script[4096];

    ck_assert_int_lt(snprintf(script, sizeof script, "%sTRANSPORT='%s'\n%s%s", cable, transport, hosts, rest),
                     sizeof script);
    if (run(script))
        expect("cat err mpirun.log >&2; false", 0); /* shows them */
}

static const char *const transports[] = {
    "--mca pml ob1 --mca btl tcp,self",
    "--mca pml ucx --mca opal_common_ucx_tls any --mca opal_common_ucx_devices any -x UCX_TLS=tcp,self",
};

/* Weights and contributions of each step go over the cable: both ways more than the weights' 4 bytes a parameter. */
TEST_EACH(two_hosts_train_over_a_network, COUNT(transports))
{
    train_alone("--steps 8");
    check_run(transports[_i], "eps train --connect lab" RUN " --steps 8 --out several\n"
                              "eps stop lab\n"
                              "wait $mpirun\n"
                              "cat /sys/class/net/eth0/statistics/rx_bytes /sys/class/net/eth0/statistics/tx_bytes "
                              ">bytes\n");
    outputs_check_same_latest("one", "several");
    expect_file("mpirun.log", "epsd host 0 (host-0): listening at ", "epsd host 1 (host-1): listening at ");
    expect_absent("mpirun.log", "epsd: ");
    FILE *file = fopen(processes_path("bytes"), "r");
    unsigned long long in = 0, out = 0;
    ck_assert_int_eq(fscanf(file, "%llu %llu", &in, &out), 2);
    fclose(file);
    ck_assert_uint_gt(in, 8 * 168512ull * 4);
    ck_assert_uint_gt(out, 8 * 168512ull * 4);
}

/* Until tcp tries again; no step is done meanwhile, and then all go on. */
TEST(a_network_that_fails_for_a_while_changes_no_bit)
{
    train_alone("--steps 60 --save-every 60");
    check_run(transports[0],
              "eps train --connect lab" RUN " --steps 60 --save-every 60 --out several >train 2>&1 & train=$!\n"
              "await '\"step\": 3,' several/metrics.jsonl\n"
              "ip link set eth0 down\n"
              "wc -l <several/metrics.jsonl >steps\n"
              "until there ss -tni | grep -q 'backoff:'; do kill -0 $train; sleep 0.02; done\n"
              "wc -l <several/metrics.jsonl >>steps\n"
              "ip link set eth0 up\n"
              "wait $train\n"
              "eps stop lab\n"
              "wait $mpirun\n");
    outputs_check_same_latest("one", "several");
    FILE *file = fopen(processes_path("steps"), "r");
    unsigned at_first = 0, at_last = 0;
    ck_assert_int_eq(fscanf(file, "%u %u", &at_first, &at_last), 2);
    fclose(file);
    ck_assert_uint_le(at_last, at_first + 2); /* what had arrived */
    ck_assert_uint_lt(at_last, 60);
}

TEST(a_host_that_is_killed_across_the_network_ends_the_run)
{
    check_run(transports[0],
              "eps train --connect lab" RUN " --steps 4000 --save-every 2 --out several >train 2>&1 & train=$!\n"
              "await 'saved several/step-2' train\n"
              "kill -9 $(grep -o '/lab-1, pid [0-9]*' mpirun.log | grep -o '[0-9]*$')\n"
              "wait $train && false || [ $? = 1 ]\n"
              "wait $mpirun && false || [ $? = 137 ]\n");
    expect_file("train", "eps train --resume several continues from step ");
    expect_file("mpirun.log", "process rank 1", "on node 10.77.0.2");
}

/* With mpirun's options of the manual page, but shorter times. */
TEST(a_network_that_fails_for_good_ends_the_run_on_both_hosts)
{
    check_run("--mca pml ob1 --mca btl tcp,self --mca oob_tcp_keepalive_time 1 --mca oob_tcp_keepalive_intvl 1 --mca "
              "oob_tcp_keepalive_probes 2",
              "eps train --connect lab" RUN " --steps 4000 --save-every 2 --out several >train 2>&1 & train=$!\n"
              "await 'saved several/step-2' train\n"
              "ip link set eth0 down\n"
              "wait $train && false || [ $? = 1 ]\n"
              "wait $mpirun && false || [ $? != 0 ]\n"
              "daemon=$(grep -o '/lab-1, pid [0-9]*' mpirun.log | grep -o '[0-9]*$')\n"
              "while grep -q '^State:.[^Z]' /proc/$daemon/status 2>/dev/null; do sleep 0.02; done\n");
    expect_file("train", "eps train --resume several continues from step ");
    expect_file("mpirun.log", "lost communication with a remote daemon");
}
