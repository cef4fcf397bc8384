/* eps up: a daemon and its workers by one command; also on several hosts, as mpirun starts it on each. */
#include "client/eps.h"
#include "tests/kit/command.h"
#include "tests/kit/outputs.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

SUITE_LABELS(long)
SUITE_TIMEOUT(120)

static void setup(void)
{
    processes_setup();
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); /* whoever eps up leaves is then found */
    processes_config("model.json", 2, 4, 64, 32);
    processes_text("text.txt", 16000);
}
SUITE_FIXTURE(setup, processes_remove)

#define RUN    " --model model.json --data text.txt --seq 32 --steps 3 --batch 8 --parts 2 --seed 7 --deterministic"
#define WORKER " --device cpu --device-mem 64MiB"

static pid_t start(const char *line)
{
    const pid_t up = processes_start(
        "/bin/sh",
        (const char *const[]){"-c", print("export PATH=" BIN_DIR ":$PATH; exec >up.out 2>up.err; %s", line), NULL},
        NULL);

    processes_await_text("up.out", "is up");
    return up;
}

/* It trains the bits of a run of its own, and all end. */
static void train_and_stop(pid_t up)
{
    expect("eps train --connect lab" RUN " --out up", 0);
    expect("eps train" RUN WORKER " --out own", 0);
    outputs_check_same_latest("own", "up");
    expect("eps stop lab", 0);
    ck_assert_int_eq(processes_wait(up), 0);
    ck_assert(processes_nobody());
}

TEST(one_command_is_a_daemon_with_workers_until_it_is_stopped)
{
    const pid_t up = start("NOTIFY_SOCKET=/nowhere exec eps up lab --workers 2" WORKER); /* which a service has */

    expect_file("up.out", "/eps/lab is up, with 2 workers: eps train --connect ");
    expect("eps status lab", 0, "2 workers");
    train_and_stop(up);
}

TEST(a_worker_that_is_killed_comes_again_and_one_that_is_drained_does_not)
{
    const pid_t up = start("exec eps up lab" WORKER);

    kill(processes_find("eps-worker"), SIGKILL);
    processes_await_text("up.err",
                         "eps up: worker process 1 of 1 was killed by signal 9 (Killed): another one starts in 1 s");
    processes_await_text("up.err", "worker 2 attached");
    expect("eps drain 2 lab", 0);
    processes_await_text("up.err", "worker 2 (cpu) gone: released");
    expect("eps train --connect lab --wait 0.5" RUN " --out none", 1, "the daemon lab has no worker after 0.5 s");
    expect("eps stop lab", 0);
    ck_assert_int_eq(processes_wait(up), 0);
    ck_assert_uint_eq(processes_count("up.err", "starts in"), 1);
    ck_assert_uint_eq(processes_count("up.err", "worker 3 attached"), 0);
}

/* One that does not end by itself. */
static pid_t start_run(const char *options)
{
    return processes_start("/bin/sh",
                           (const char *const[]){"-c",
                                                 print("exec " BIN_DIR "/eps train --connect lab" RUN
                                                       " --steps 100000 --save-every 100000 --out up%s 2>&1 >train.log",
                                                       options),
                                                 NULL},
                           NULL);
}

/* Its daemon saves at the first signal, as a run's own does. A terminal's Ctrl-C goes to all processes of the group:
 * only eps up is to hear it. */
TEST_EACH(a_signal_saves_and_ends_all, 2)
{
    const pid_t up = start(_i ? "exec setsid eps up lab" WORKER : "exec eps up lab" WORKER);
    const pid_t run = start_run("");

    processes_await_text("up/metrics.jsonl", "\"step\": 2,");
    ck_assert_int_eq(_i ? kill(-up, SIGINT) : kill(up, SIGTERM), 0);
    ck_assert_int_eq(processes_wait(up), 0);
    processes_wait(run);
    ck_assert(processes_nobody());
    expect("eps verify up", 0, "step-");
}

TEST(nobody_is_left_when_it_is_killed)
{
    kill(start("exec eps up lab --workers 2" WORKER), SIGKILL);
    processes_await_nobody();
}

static void note_up(void *user, const char *address, uint32_t n_workers)
{
    (void)address, (void)n_workers;
    *(bool *)user = true;
}

static int ask_up(void *user)
{
    return *(const bool *)user;
}

static const struct refusal refusals[] = {
    {"eps up", 2, "eps up: the daemon's NAME is missing", NULL},
    {"eps up lab --workers 0", 2, "eps up: --workers '0': a whole number from 1 to 64 is needed", NULL},
    {"eps up lab --workers 65", 2, "eps up: --workers '65': a whole number from 1 to 64 is needed", NULL},
    {"eps up lab --device gpu", 2, "eps up: device gpu: it is auto, cpu, cuda, cuda:N", NULL},
    {"eps up lab --device cuda:1 --workers 2", 2, "eps up: device cuda:1 is one device, and 2 workers need one each",
     NULL},
};

TEST_EACH(misuse_is_one_sentence, COUNT(refusals))
{
    expect_refusal(&refusals[_i]);
}

/* Of a program of one's own, whose number no command line has checked. */
TEST(the_library_starts_no_more_workers_either)
{
    const struct eps_up_options options = {.name = "lab", .workers = EPS_UP_WORKERS + 1};
    struct eps_error error;

    ck_assert_int_eq(eps_up(&options, NULL, NULL, &error), -EDOM);
    ck_assert_str_eq(error.text, "workers 65: from 1 to 64");
}

/* As whoever starts it may: the command does not, and a program of one's own sees at least that all have ended. */
TEST(children_that_are_ignored_are_seen_to_end)
{
    const pid_t up = start("exec env --ignore-signal=CHLD eps up lab" WORKER);

    expect("eps stop lab", 0);
    ck_assert_int_eq(processes_wait(up), 0);
    const pid_t program = fork();
    ck_assert_int_ge(program, 0);
    if (program == 0) {
        const struct eps_up_options options = {.name = "lab", .workers = 1, .device = "cpu", .programs = BIN_DIR};
        bool is_up = false;
        struct eps_error error;
        signal(SIGCHLD, SIG_IGN);
        const int rc =
            eps_up(&options, &(const struct eps_up_events){.on_up = note_up, .should_stop = ask_up}, &is_up, &error);
        _exit(rc == -EIO && strstr(error.text, "the daemon (epsd) ended, and its status is not known") ? 0 : 1);
    }
    ck_assert_int_eq(processes_wait(program), 0);
    ck_assert(processes_nobody());
}

/* They say it themselves; all end. */
TEST(what_epsd_or_eps_worker_refuses_ends_it)
{
    expect("eps up lab -- --queue x", 2, "epsd: --queue x: a number of jobs",
           "eps up: the daemon (epsd) ended with status 2");
    expect("eps up lab --device cuda:99 || exit 3", 3, "eps up: worker process 1 of 1 ended with status ",
           "before all were up: its line");
    ck_assert(processes_nobody());
}

#define MPI                                                                                                            \
    "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1 "            \
    "OMPI_MCA_hwloc_base_binding_policy=none ASAN_OPTIONS=detect_leaks=0; "

static bool has_mpirun(void)
{
    return access(BIN_DIR "/eps-mpi.so", F_OK) == 0 && system("command -v mpirun >/dev/null 2>&1") == 0;
}

/* Host 1's workers find their own daemon, at lab-1. */
TEST(mpirun_starts_it_on_each_host)
{
    if (!has_mpirun())
        TEST_SKIP("there is no mpirun");
    processes_put_text("hosts", "localhost slots=2\n");
    const pid_t up = start(MPI "exec mpirun --hostfile hosts " BIN_DIR "/eps up lab" WORKER " -- --mpi");

    processes_await_text("up.out", "/eps/lab-1 is up, with 1 worker: ");
    processes_await_text("up.out", "/eps/lab is up, with 1 worker: ");
    train_and_stop(up);
}

/* Slurm and systemd may send SIGTERM to all processes of a job. Steps are slow here, so that eps up passes the signal
 * on while the run has not saved yet. */
TEST_EACH(a_signal_to_every_process_saves, 2)
{
    if (_i && !has_mpirun())
        TEST_SKIP("there is no mpirun");
    processes_put_text("hosts", "localhost slots=2\n");
    const pid_t up = start(_i ? MPI "exec mpirun --hostfile hosts --mca odls_base_sigkill_timeout 60 " BIN_DIR
                                    "/eps up lab" WORKER " -- --mpi"
                              : "exec eps up lab" WORKER);
    const pid_t run = start_run(" --batch 512");

    processes_await_text("up/metrics.jsonl", "\"step\": 2,");
    expect("pids=$(sed -n 's/.*, pid //p' up.err); " /* daemons and workers */
           "kill -TERM $pids $(for p in $pids; do sed -n 's/^PPid:.//p' /proc/$p/status; done | sort -u)",
           0);
    ck_assert_int_eq(processes_wait(up), 0);
    processes_wait(run);
    ck_assert(processes_nobody());
    ck_assert_uint_eq(processes_count("up.err", "leaves"), 0);
    expect("eps verify up", 0, "step-");
}

/* The daemon may be ending when eps up passes the signal on. */
TEST(a_signal_to_every_process_ends_an_idle_daemon_well)
{
    for (int i = 0; i < 8; i++) {
        expect("rm -f up.out up.err", 0); /* of the one before */
        const pid_t up = start("exec eps up lab" WORKER);
        expect(print("kill -TERM %d $(sed -n 's/.*, pid //p' up.err)", (int)up), 0);
        ck_assert_int_eq(processes_wait(up), 0);
    }
}

/* The script in epsd(1), with this model, this text and two hosts; srun is mpirun. It saves when Slurm says that its
 * time is over, and goes on when it is submitted again. */
TEST(the_manuals_batch_script_trains_on)
{
    static const char submit[] = MPI "PATH=" BIN_DIR ":$PWD:$PATH exec bash ./job >job.log 2>&1";

    if (!has_mpirun())
        TEST_SKIP("there is no mpirun");
    processes_put_text("srun", "#!/bin/sh\nshift\nexec mpirun -n 2 \"$@\"\n");
    expect("chmod +x srun; sed -n '/^#!.bin.bash/,/^exit/p' " TESTS_DIR "/../tools/man/epsd.1 | sed -e 's/^unset.*//' "
           "-e 's/--workers 8/" WORKER "/' "
           "-e 's/--model .* --parts 16/" RUN " --steps 40/' >job; grep -q ^srun job && grep -q -- '--seq 32' job",
           0);
    const pid_t first = processes_start("/bin/sh", (const char *const[]){"-c", submit, NULL}, NULL);
    processes_await_text("runs/big/metrics.jsonl", "\"step\": 3,");
    kill(first, SIGTERM);
    ck_assert_int_eq(processes_wait(first), 1); /* that of eps train, not that of the signal */
    processes_await_nobody();
    ck_assert_uint_eq(processes_count("runs/big/metrics.jsonl", "\"step\": 40,"), 0);
    expect(submit, 0);
    expect("eps train" RUN " --steps 40" WORKER " --out own", 0);
    outputs_check_same_latest("own", "runs/big");
}
