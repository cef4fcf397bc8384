/* Training on several hosts, as daemons under mpirun on this machine: real programs, real files. What they make equals
 * what one daemon makes of the same parts, byte for byte. */
#include "tests/kit/command.h"
#include "tests/kit/driver.h"
#include "tests/kit/outputs.h"
#include "tests/kit/processes.h"
#include "tests/kit/puppet.h"
#include "tests/kit/test.h"

#include "proto/model/checkpoint.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

SUITE_LABELS(long, slow)
SUITE_TIMEOUT(180)

static bool has_mpirun(void)
{
    return access(BIN_DIR "/eps-mpi.so", F_OK) == 0 && system("command -v mpirun >/dev/null 2>&1") == 0;
}
SUITE_SKIP_UNLESS(has_mpirun(),
                  "Open MPI is not installed: apt-get install libopenmpi-dev openmpi-bin, and build again")

/* Of the families that only tests have. */
#define LAYERED(family, blocks, more)                                                                                  \
    "{\"model_type\": \"" family "\", \"num_hidden_layers\": " #blocks ", \"num_attention_heads\": 4, "                \
    "\"num_key_value_heads\": 2, \"hidden_size\": 32, \"intermediate_size\": 40, \"max_position_embeddings\": 32, "    \
    "\"vocab_size\": 256" more "}"

#define LAYERED_T5                                                                                                     \
    "{\"model_type\": \"t5\", \"d_model\": 32, \"d_kv\": 8, \"d_ff\": 64, \"num_heads\": 4, \"num_layers\": 2, "       \
    "\"vocab_size\": 256, \"dropout_rate\": 0.1, \"feed_forward_proj\": \"relu\", "                                    \
    "\"relative_attention_num_buckets\": 8, \"relative_attention_max_distance\": 16, \"decoder_start_token_id\": 0, "  \
    "\"pad_token_id\": 0, \"eos_token_id\": 1}"

static void setup(void)
{
    processes_setup();
    processes_know_families();
    processes_config_with("model.json", 3, 4, 64, 32, "\"attn_pdrop\": 0.1, \"resid_pdrop\": 0.1");
    processes_put_text("chunked.json", LAYERED("chunked", 3, ""));
    processes_put_text("shifted.json", LAYERED("shifted", 2, ""));
    processes_put_text("crossing.json", LAYERED("crossing", 3, ", \"context_length\": 5"));
    processes_put_text("part_norm.json", LAYERED("part_norm", 2, ""));
    processes_text("text.txt", 16000);
    processes_config_with("relu.json", 3, 4, 64, 32, "\"activation_function\": \"relu\"");
    processes_put_text("t5.json", LAYERED_T5);
    processes_text("few.txt", 400);
    expect("for i in $(seq 24); do printf '{\"source\": \"%s and one\", \"target\": \"is %s\"}\\n' $i $((i + 1)); done "
           ">sums.jsonl",
           0);
}
SUITE_FIXTURE(setup, processes_remove)

#define RUN_OF(model) " --model " model " --data text.txt --seq 32 --microbatch 2 --seed 7 --deterministic"
#define RUN           RUN_OF("model.json")

/* Three matrices of which norms of gradients are remembered. An epoch of 12 rows is 2 steps of 8. */
#define SAMPLED_OF(model, data)                                                                                        \
    " --model " model " --data " data " --microbatch 2 --seed 7 --deterministic --schedule constant "                  \
    "--approximate wta=0.3"
#define SAMPLED SAMPLED_OF("relu.json", "few.txt --seq 32")

enum { MOST = 4, MOST_WORKERS = 2 };

/* Of hosts that mpirun started: host h listens at hosts, or hosts-h. */
struct team {
    pid_t mpirun, workers[MOST][MOST_WORKERS];
};

static const char *name_of(uint32_t host)
{
    static char names[MOST][24];

    snprintf(names[host], sizeof *names, host ? "hosts-%u" : "hosts", host);
    return names[host];
}

static struct team start_with(uint32_t n_hosts, uint32_t n_workers, const char *options)
{
    struct team team = {0};
    char line[600];

    snprintf(line, sizeof line,
             "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1 "
             "OMPI_MCA_hwloc_base_binding_policy=none ASAN_OPTIONS=detect_leaks=0 exec mpirun %s -n %u %s/epsd --mpi "
             "--listen hosts >mpirun.log 2>&1 </dev/null",
             options, n_hosts, processes_programs());
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); /* ranks that mpirun leaves */
    team.mpirun = processes_start("/bin/sh", (const char *const[]){"-c", line, NULL}, NULL);
    for (uint32_t h = 0; h < n_hosts; h++) {
        processes_await_workers(name_of(h), 0);
        const char *const worker[] = {"--connect", name_of(h), "--device-mem", "64MiB", NULL};
        for (uint32_t k = 0; k < n_workers; k++)
            team.workers[h][k] = processes_start("eps-worker", worker, NULL);
    }
    for (uint32_t h = 0; h < n_hosts; h++)
        processes_await_workers(name_of(h), n_workers);
    return team;
}

static struct team start(uint32_t n_hosts, uint32_t n_workers)
{
    return start_with(n_hosts, n_workers, "");
}

/* All end when host 0 is told to. */
static void stop(const struct team *team)
{
    expect("eps stop hosts", 0);
    ck_assert_int_eq(processes_wait(team->mpirun), 0);
    processes_await_nobody();
}

static void train(const char *connect, const char *options, const char *out)
{
    char line[600];

    snprintf(line, sizeof line, "eps train%s %s --out %s", connect, options, out);
    expect(line, 0);
}

static void attach(const char *host)
{
    processes_start("eps-worker", (const char *const[]){"--connect", host, "--device-mem", "64MiB", NULL}, NULL);
    processes_await_workers(host, 1);
}

/* Losses and norms, as they are printed, and the weights and moments. */
static void check_same(const char *out, const char *other)
{
    char line[300];

    snprintf(line, sizeof line,
             "for r in %s %s; do grep -oE '\"(step|loss|grad_norm)\": [^,}]*' $r/metrics.jsonl >$r.losses; done; "
             "test -s %s.losses && cmp %s.losses %s.losses",
             out, other, out, out, other);
    expect(line, 0);
    outputs_check_same_latest(out, other);
}

/* Of hosts that have so many workers each, one job after another. */
static const struct {
    uint32_t n_hosts, n_workers;
    const char *jobs[6];
} settings[] = {
    {3,
     2,
     {RUN " --steps 4 --batch 10 --parts 5 --optimizer adamw --precision bf16 --save-every 1", /* uneven shares */
      RUN_OF("part_norm.json") " --steps 4 --batch 18 --parts 6 --optimizer adamw --precision bf16",
      SAMPLED " --steps 6 --batch 10 --parts 5 --optimizer adamw --precision bf16 --grad-dtype bf16",
      SAMPLED_OF("t5.json", "sums.jsonl --seq 64 --source-seq 24") " --steps 6 --batch 10 --parts 5"}},
    {4, 1, {RUN " --steps 4 --batch 8 --parts 4 --optimizer adama --clip-update 0.5"}},
    {3,
     1,
     {RUN " --steps 4 --batch 6 --parts 3 --optimizer adamw --clip-norm 1 --precision bf16 --freeze h.0.*",
      RUN " --steps 4 --batch 6 --parts 3 --optimizer adamw --freeze 'h.*.c_*.weight' wpe.* --base int8",
      SAMPLED " --steps 6 --batch 6 --parts 3 --optimizer adamw --clip-norm 0.5", /* fenced */
      RUN " --steps 4 --batch 6 --parts 3 --optimizer sgd --weight-decay 0.1 --precision bf16 --moments bf16"}},
    {2,
     2,
     {RUN_OF("chunked.json") " --steps 4 --batch 8 --parts 4 --optimizer adamw --freeze layers.1.mlp.[12].*",
      RUN_OF("shifted.json") " --steps 4 --batch 8 --parts 4 --optimizer adamw",
      RUN " --steps 4 --batch 8 --parts 4 --optimizer sgd --nesterov --weight-decay 0.1"}},
    {2,
     1,
     {RUN " --steps 4 --batch 8 --parts 4 --optimizer adamw --freeze h.0.mlp.* wte.* --freeze-until 2",
      RUN_OF("crossing.json") " --steps 4 --batch 8 --parts 4 --optimizer adama",
      SAMPLED " --steps 7 --batch 8 --parts 4 --optimizer adama --save-every 1", /* of several epochs */
      SAMPLED " --steps 6 --batch 8 --parts 4 --freeze h.0.* wte.* --freeze-until 3"}},
};

TEST_EACH(hosts_train_the_bits_of_one, COUNT(settings))
{
    const struct team team = start(settings[_i].n_hosts, settings[_i].n_workers);

    for (int i = 0; settings[_i].jobs[i]; i++) {
        char one[16], several[16];
        snprintf(one, sizeof one, "one-%d", i), snprintf(several, sizeof several, "several-%d", i);
        train("", settings[_i].jobs[i], one);
        train(" --connect hosts", settings[_i].jobs[i], several);
        check_same(one, several);
    }
    stop(&team);
}

/* Each host needs one: the sentences name the daemon that has none. */
TEST(a_run_waits_for_a_worker_on_every_host)
{
    const struct team team = start(2, 0);
    const char *const line[] = {
        "-c", print("exec %s/eps train" RUN " --steps 1 --batch 4 --connect hosts --out run >said", BIN_DIR), NULL};

    processes_worker("hosts", "64MiB", NULL);
    processes_await_workers("hosts", 1);
    expect("eps train" RUN " --steps 1 --batch 4 --connect hosts --out none --wait 0", 1, "hosts-1 has no worker",
           "eps-worker --connect hosts-1");
    const pid_t run = processes_start("/bin/sh", line, NULL);
    processes_await_text("said", "waiting for a worker to attach to the daemon hosts-1");
    processes_worker("hosts-1", "64MiB", NULL);
    ck_assert_int_eq(processes_wait(run), 0);
    stop(&team);
}

/* Those of both hosts, as host 0 was told. */
TEST(a_step_has_as_many_parts_as_there_are_workers)
{
    const struct team team = start(2, 2);

    expect("until eps status hosts --json | grep -q '\"workers_elsewhere\": 2'; do :; done", 0);
    expect("eps status hosts", 0, "2 workers and 2 on other hosts, pid ");
    expect("eps status hosts-1", 0, "2 workers, pid ");
    expect("eps train --connect hosts" RUN " --steps 2 --batch 8 --out several", 0, "in 4 parts");
    kill(team.workers[1][0], SIGTERM);
    expect("until eps status hosts --json | grep -q '\"workers_elsewhere\": 1'; do :; done", 0);
    stop(&team);
}

/* Also one job after another, with other sizes, of the same daemons. */
TEST(a_run_of_three_hosts_resumes_on_two_and_on_one)
{
    struct team team = start(3, 1);

    train("", RUN " --steps 6 --batch 8 --parts 4 --save-every 2 --keep 0", "one");
    train(" --connect hosts", RUN " --steps 2 --batch 6 --parts 3", "other");
    train(" --connect hosts", RUN " --steps 6 --batch 8 --parts 4 --save-every 2 --keep 0", "three");
    check_same("one", "three");
    stop(&team);
    outputs_check_same("one/step-2", "three/step-2", "model.safetensors");
    outputs_check_same("one/step-2", "three/step-2", "optimizer.safetensors");
    team = start(2, 1);
    train(" --connect hosts", "--resume three/step-2", "two");
    outputs_check_same_latest("one", "two");
    stop(&team);
    train("", "--resume three/step-4", "alone");
    outputs_check_same_latest("one", "alone");
}

/* In their second epoch and later, with norms of gradients. */
TEST(a_sampled_run_goes_on_from_one_host_on_several_and_back)
{
    struct team team = start(3, 1);
    const char *const job = SAMPLED " --steps 9 --batch 8 --parts 4 --save-every 3 --keep 0";

    expect(print("eps train%s --out one", job), 0, "norms of gradients are remembered for 3 matrices: ");
    expect(print("eps train --connect hosts%s --out three", job), 0,
           "norms of gradients are remembered for 3 matrices: ");
    check_same("one", "three");
    train(" --connect hosts", "--resume one/step-3", "there");
    outputs_check_same_latest("one", "there");
    stop(&team);
    team = start(2, 1);
    train(" --connect hosts", "--resume three/step-6", "two");
    outputs_check_same_latest("one", "two");
    stop(&team);
    train("", "--resume three/step-3", "back");
    outputs_check_same_latest("one", "back");
}

/* An adapter's matrices have nothing that is worth remembering. */
TEST(hosts_train_adapters_by_sampled_gradients_as_one)
{
    const struct team team = start(2, 1);
    const char *const job = " --model base/latest --data few.txt --seq 32 --microbatch 2 --seed 7 --deterministic "
                            "--lora rank=4,targets=c_attn,c_proj --approximate wta=0.3 --steps 6 --batch 8 --parts 4";

    train("", RUN_OF("relu.json") " --steps 2 --batch 4", "base");
    train("", job, "one");
    train(" --connect hosts", job, "several");
    check_same("one", "several");
    stop(&team);
}

/* While a run goes on: in the background, with all that it says in the file train. */
static pid_t train_aside(const char *line)
{
    char all[600];

    snprintf(all, sizeof all, "%s >train 2>&1", line);
    return processes_start("/bin/sh", (const char *const[]){"-c", all, NULL}, NULL);
}

/* The daemon of a host, as it says in the log. */
static pid_t find_daemon(const char *name)
{
    char *log = processes_read("mpirun.log"), key[40];

    snprintf(key, sizeof key, "/%s, pid ", name);
    const char *at = strstr(log, key);
    ck_assert_msg(at != NULL, "no %s in %s", key, log);
    const pid_t pid = (pid_t)atoi(at + strlen(key));
    free(log);
    return pid;
}

static int await_end(pid_t pid)
{
    int status = -1;

    for (int i = 0; i < 24 && status < 0; i++)
        status = processes_wait(pid);
    return status;
}

/* It has no other, so the client waits for one. */
TEST(a_worker_of_another_host_is_left_out)
{
    const struct team team = start(2, 0);

    puppet_start("hosts-1", PUPPET_REFUSES);
    train("", RUN " --steps 4 --batch 8 --parts 4 --save-every 4", "one");
    attach("hosts");
    processes_await_workers("hosts-1", 1);
    const pid_t run = train_aside("exec " BIN_DIR "/eps train --connect hosts" RUN
                                  " --steps 4 --batch 8 --parts 4 --save-every 4 --out several");
    processes_await_text("train", "(cpu of host 1 on stage) is left out: no arena");
    processes_await_text("train", "host 1: no worker is left that can do this job: worker ");
    processes_await_text("train", "; waiting for another worker to attach");
    processes_start("eps-worker", (const char *const[]){"--connect", "hosts-1", "--device-mem", "64MiB", NULL}, NULL);
    ck_assert_int_eq(await_end(run), 0);
    check_same("one", "several");
    stop(&team);
}

/* By hand: host 0 owns both tables and half of the blocks; host 1 the others, and has a copy of the tables. Each has 3
 * slots, since it has one part, and a second buffer of all but the slots. The blocks are many, so that tables count. */
TEST(a_host_has_its_own_units_and_a_few_slots_for_others)
{
    enum { WIDTH = 64, BLOCK = 12 * WIDTH * WIDTH + 13 * WIDTH, TABLES = (256 + 32) * WIDTH, NORM = 2 * WIDTH };
    static const double own[] = {TABLES + 30 * BLOCK, TABLES + 30 * BLOCK + NORM};
    const struct team team = start(2, 1);

    processes_config_with("deep.json", 60, 4, WIDTH, 32, "");
    const pid_t run =
        train_aside("exec " BIN_DIR "/eps train --connect hosts --model deep.json --data text.txt --seq 32 "
                    "--steps 100000 --batch 4 --parts 2 --save-every 0 --out several");
    processes_await_text("several/metrics.jsonl", "\"step\": 3,");
    for (uint32_t h = 0; h < 2; h++) {
        char line[64];
        snprintf(line, sizeof line, "eps mem %s --json", name_of(h));
        json_t *memory = expect_json(line, 0);
        ck_assert_double_eq(json_number_at(memory, "host.categories.weights.current"), 4 * (own[h] + 3 * BLOCK));
        ck_assert_double_eq(json_number_at(memory, "host.categories.replay.current"), 4 * own[h]);
        ck_assert_double_eq(json_number_at(memory, "host.current"), json_number_at(memory, "host.planned"));
        json_decref(memory);
    }
    expect("eps stop hosts 1", 0);
    ck_assert_int_eq(await_end(run), 1);
    stop(&team);
}

/* By hand, of 3 blocks with one such matrix each: host 0 has one, host 1 two. Of each, 2 bytes for each token of the data and
 * of a minibatch of 8 rows of 32, and 8; and the entries of two minibatches. In checkpoints they are whole. */
TEST(a_host_remembers_the_norms_of_its_own_units)
{
    enum { TOKENS = 8 * 32, DATA = 400 };
    static const double n_maps[] = {1, 2};
    const struct team team = start(2, 1);

    const pid_t run = train_aside("exec " BIN_DIR "/eps train --connect hosts" SAMPLED
                                  " --steps 100000 --batch 8 --parts 2 --save-every 0 --out several");
    processes_await_text("several/metrics.jsonl", "\"step\": 3,");
    for (uint32_t h = 0; h < 2; h++) {
        json_t *memory = expect_json(print("eps mem %s --json", name_of(h)), 0);
        ck_assert_double_eq(json_number_at(memory, "host.categories.norms.current"),
                            n_maps[h] * (2 * (DATA + TOKENS) + 8) + 2 * 4 * TOKENS);
        ck_assert_double_eq(json_number_at(memory, "host.current"), json_number_at(memory, "host.planned"));
        json_decref(memory);
    }
    expect("eps stop hosts 1", 0);
    ck_assert_int_eq(await_end(run), 1);
    stop(&team);
}

/* In the middle of a step, in which another host's worker computes all that it had: by the norms that the step found. */
TEST(a_worker_that_is_lost_changes_no_norms)
{
    const struct team team = start(2, 2);
    const char *const job = SAMPLED " --steps 24 --batch 8 --parts 4 --save-every 8";

    const pid_t run = train_aside(print("exec " BIN_DIR "/eps train --connect hosts%s --out several", job));
    processes_await_text("several/metrics.jsonl", "\"step\": 4,");
    kill(team.workers[1][0], SIGKILL);
    processes_await_text("several/metrics.jsonl", "\"step\": 9,");
    kill(team.workers[0][1], SIGKILL);
    ck_assert_int_eq(await_end(run), 0);
    expect_file("train", "(cpu of host 1) was lost after");
    train("", job, "one");
    check_same("one", "several");
    stop(&team);
}

static bool waits_or_has_given_up(void *context)
{
    (void)context;
    return processes_count("train", "attach one within ") + processes_count("train", "was given up") > 0;
}

enum { CAN_PRELOAD = !SANITIZED }; /* sanitizers want to be preloaded first */

/* Host 0 has the client and says what host 1 waits for: until a worker comes, or the job is stopped. If that step cannot be
 * given up at once, the client waits for 50 s, which are skipped. */
TEST_EACH(a_host_without_workers_is_told_of_by_host_0, CAN_PRELOAD ? 2 : 1)
{
    const struct team team = start(2, 1);
    const bool is_stopped = _i;

    const pid_t run = train_aside(print("%s exec " BIN_DIR "/eps train --connect hosts" RUN
                                        " --steps 40 --batch 4 --parts 2 --save-every 40 --out several",
                                        is_stopped ? "SKIP_WAITS=skip LD_PRELOAD=" BIN_DIR "/libjump_clock.so" : ""));
    processes_await_text("several/metrics.jsonl", "\"step\": 3,");
    kill(team.workers[1][0], SIGKILL);
    processes_await_text("train", "(cpu of host 1) was lost after");
    expect_file("train", "killed; the step waits for another worker to attach");
    processes_await_state("hosts", "waiting for a worker");
    if (is_stopped) {
        const pid_t stop = processes_start("eps", (const char *const[]){"stop", "hosts", "1", NULL}, NULL);
        ck_assert(processes_until(waits_or_has_given_up, NULL));
        processes_put_text("skip", "");
        ck_assert_int_eq(processes_wait(stop), 0);
    } else {
        attach("hosts-1");
    }
    ck_assert_int_eq(await_end(run), is_stopped);
    if (is_stopped) {
        expect_file("train", "waited for a worker and was given up");
    } else {
        train("", RUN " --steps 40 --batch 4 --parts 2 --save-every 40", "one");
        check_same("one", "several");
    }
    stop(&team);
}

/* mpirun ends the others. The client waits for the next ones, and goes on from the checkpoint, on any number of hosts. */
static const char *const lost[] = {RUN, SAMPLED};

TEST_EACH(a_host_that_is_killed_ends_the_job_and_the_run_goes_on_elsewhere, COUNT(lost))
{
    const struct team team = start_with(3, 1, "--mca odls_base_sigkill_timeout 4"); /* they tell after a third of it */
    char machine[65] = "";

    train("", print("%s --steps 80 --batch 6 --parts 3 --save-every 80", lost[_i]), "one");
    const pid_t run = train_aside(print("exec " BIN_DIR "/eps train --connect hosts%s --steps 80 --batch 6 --parts 3 "
                                        "--save-every 2 --out several --restarts 3",
                                        lost[_i]));
    processes_await_text("train", "saved several/step-2");
    const pid_t killed = find_daemon("hosts-1");
    gethostname(machine, sizeof machine);
    expect(print("grep -o '/dev/shm/[^ ]*segment[^ ]*' /proc/%d/maps | sort -u >segments; true", (int)killed), 0);
    kill(killed, SIGKILL);
    processes_await_text("train", print("host 1 (%s, pid %d) ", machine, (int)killed));
    ck_assert_int_ne(await_end(team.mpirun), 0);
    expect_file("mpirun.log", "process rank 1");
    expect("for segment in $(cat segments); do test ! -e $segment || exit 1; done", 0);
    for (uint32_t h = 0; h < 3; h++)
        kill(team.workers[h][0], SIGTERM);
    const struct team next = start(2, 1);
    ck_assert_int_eq(await_end(run), 0);
    outputs_check_same_latest("one", "several");
    stop(&next);
}

/* A launcher that lets the others go on: they notice the silence, which is too long for a test to wait for; but each
 * daemon that ends says so to the others. */
TEST(a_host_that_is_stopped_ends_the_job_and_the_daemons)
{
    const struct team team = start(2, 1);
    const pid_t run = train_aside("exec " BIN_DIR "/eps train --connect hosts" RUN
                                  " --steps 4000 --batch 4 --parts 2 --save-every 2 --out several");

    processes_await_text("train", "saved several/step-2");
    kill(find_daemon("hosts-1"), SIGTERM);
    ck_assert_int_eq(await_end(run), 1);
    expect_file("train", "the daemon was stopped by SIGTERM", "eps train --resume several continues from step ");
    ck_assert_int_eq(await_end(team.mpirun), 0);
    processes_await_nobody();
}

/* By the launcher, all hosts at about the same time, or one alone. Where it gives them time, host 0's client saves first,
 * as with one host. */
static const struct {
    const char *grace; /* seconds; mpirun waits as long before it sends a signal */
    const char *first, *second;
} terms[] = {{"20", "hosts-1", "hosts"}, {"20", "hosts-1", NULL}, {"4", NULL, NULL}};

TEST_EACH(hosts_that_the_launcher_stops_save_first, COUNT(terms))
{
    const struct team team = start_with(2, 1, print("--mca odls_base_sigkill_timeout %s", terms[_i].grace));
    const pid_t run = train_aside("exec " BIN_DIR "/eps train --connect hosts" RUN
                                  " --steps 4000 --batch 4 --parts 2 --save-every 3000 --out several");

    processes_await_text("train", "step 1/4000");
    kill(terms[_i].first ? find_daemon(terms[_i].first) : team.mpirun, SIGTERM);
    if (terms[_i].second)
        kill(find_daemon(terms[_i].second), SIGTERM);
    ck_assert_int_eq(await_end(run), 1);
    expect_file("train", "the daemon was stopped: the run ended after ", "; saved in several/step-");
    outputs_check_whole("several", outputs_latest("several"));
    if (terms[_i].first) /* else mpirun hands nothing on any more */
        expect_file("mpirun.log", terms[_i].second
                                      ? "by SIGTERM to all hosts: the launcher was stopped itself; the run has "
                                      : "by SIGTERM to some of its hosts; the run has ");
    ck_assert_int_eq(await_end(team.mpirun) == 0, terms[_i].first != NULL);
    processes_await_nobody();
}

/* Only host 0 has the client, which saves; at another host, the steps since the last save would be lost. */
TEST(a_job_on_several_hosts_is_stopped_at_host_0)
{
    const struct team team = start(2, 1);
    const pid_t run = train_aside("exec " BIN_DIR "/eps train --connect hosts" RUN
                                  " --steps 4000 --batch 4 --parts 2 --save-every 3000 --out several");

    processes_await_text("train", "step 1/4000");
    expect_sentence("eps stop hosts-1", 1, "host 1 of a daemon on 2 hosts", "host 0");
    expect_sentence("eps stop hosts-1 1", 1, "host 1 of a daemon on 2 hosts", "host 0");
    expect("eps stop hosts 1", 0);
    ck_assert_int_eq(await_end(run), 1);
    expect_file("train", "the job was stopped: the run ended after ", "; saved in several/step-");
    stop(&team);
}

/* They share mpirun's terminal. */
TEST(each_line_of_the_log_names_its_host)
{
    const struct team team = start(2, 1);
    char machine[65] = "";

    gethostname(machine, sizeof machine - 1);
    train(" --connect hosts", RUN " --batch 4 --parts 2 --steps 2", "a");
    stop(&team);
    for (uint32_t h = 0; h < 2; h++)
        expect_file("mpirun.log", print("epsd host %u (%s): listening at ", h, machine),
                    print("epsd host %u (%s): job ended after 2 steps: closed\n", h, machine));
    expect(print("grep -vE '^epsd host [01] \\(%s\\): ' mpirun.log", machine), 1);
}

TEST(what_several_hosts_cannot_do_is_refused)
{
    const struct team team = start(2, 1);

    expect_sentence("eps train --connect hosts" RUN " --batch 4 --parts 1 --steps 1 --out a", 1, "2 hosts",
                    "--parts 2");
    expect_sentence("eps train --connect hosts" RUN " --batch 4 --parts 2 --steps 1 --drop-layers 0.5 --out a", 1,
                    "on several hosts no layers are dropped", "--drop-layers");
    expect_sentence("eps train --connect hosts-1" RUN " --batch 4 --parts 2 --steps 1 --out a", 1,
                    "host 1 of a daemon on 2 hosts", "host 0");
    expect_sentence("epsd --mpi --listen x", 1, "mpirun or srun");
    expect_sentence("epsd --mpi --private --listen x", 2, "--mpi and --private: ");
    train(" --connect hosts", RUN " --batch 4 --parts 2 --steps 2", "b");
    stop(&team);
}

/* Found on host 1, told by host 0; the next job begins on both. */
TEST(a_job_that_cannot_begin_on_one_host_begins_on_none)
{
    const struct team team = start(2, 1);

    kill(team.workers[1][0], SIGTERM);
    processes_await_text("mpirun.log", "(cpu) gone");
    const pid_t small = processes_worker("hosts-1", "64KiB", NULL);
    processes_await_workers("hosts-1", 1);
    expect_sentence("eps train --connect hosts" RUN " --batch 4 --parts 2 --steps 2 --out a", 1,
                    "host 1: this model needs at least ");
    kill(small, SIGTERM);
    ck_assert_int_eq(processes_wait(small), 0);
    attach("hosts-1");
    train(" --connect hosts", RUN " --batch 4 --parts 2 --steps 2", "b");
    stop(&team);
}

/* Waits until both hosts have said it: mpirun hands their lines on when it can. */
static void await_on_both(const char *line)
{
    processes_await_count("mpirun.log", line, 2);
}

/* What a worker of host 0 has of step 2, for its part of the units of both. */
static const struct {
    enum puppet_fault fault;
    const char *why;
} faults[] = {
    {PUPPET_IN_LOSS, "the loss of step 2 is not finite"},
    {PUPPET_IN_FIRST_CONTRIBUTION, "the gradient of step 2 is not finite"},
};

TEST_EACH(numbers_that_are_not_finite_end_the_job_on_all_hosts, COUNT(faults))
{
    const struct team team = start(2, 0);
    const pid_t puppet = puppet_start("hosts", faults[_i].fault);
    struct driver driver;
    struct message m = {0};

    puppet_await("hosts");
    attach("hosts-1");
    driver_open(&driver, "hosts", &(struct driver_options){.n_parts = 2, .adamw = true});
    driver_train(&driver, 1);
    driver_begin(&driver);
    while (m.kind != MESSAGE_FAILED)
        driver_next(&driver.link, &m);
    ck_assert_int_eq(m.failed.code, -EDOM);
    ck_assert_holds(m.failed.error.text, faults[_i].why);
    driver_leave(&driver);
    kill(puppet, SIGKILL);
    processes_await_text("mpirun.log", "gone: killed");
    attach("hosts");
    await_on_both(faults[_i].why);
    train(" --connect hosts", RUN " --batch 4 --parts 2 --steps 2", "b");
    stop(&team);
}

/* The same of a worker of either host, with a fenced commit. */
static const struct {
    uint32_t host;
    enum puppet_fault fault;
    const char *why;
} skips[] = {
    {1, PUPPET_IN_LOSS, "step 2 skipped: its loss is not finite"},
    {1, PUPPET_IN_FIRST_CONTRIBUTION, "step 2 skipped: its gradient is not finite"}, /* of a unit of host 0 */
    {0, PUPPET_IN_FIRST_OF_TWO, "step 2 skipped: its gradient is not finite"},       /* of host 1 */
};

TEST_EACH(a_fenced_step_that_is_not_finite_leaves_no_trace_on_any_host, COUNT(skips))
{
    const struct driver_options options = {
        .fenced = true, .adamw = true, .n_parts = 2, .clip_norm = 1, .out = outputs_make("several")};
    const struct team team = start(2, 0);
    struct driver driver;

    for (uint32_t h = 0; h < 2; h++) {
        if (h != skips[_i].host) {
            attach(name_of(h));
            continue;
        }
        puppet_start(name_of(h), skips[_i].fault);
        puppet_await(name_of(h));
    }
    driver_open(&driver, "hosts", &options);
    driver_save(&driver, 1);
    ck_assert(!driver.last_done.done.skipped);
    ck_assert_double_gt(driver.last_done.done.grad_norm, 0);
    driver_save(&driver, 2);
    ck_assert(driver.last_done.done.skipped);
    ck_assert(isnan(driver.last_done.done.grad_norm));
    ck_assert_uint_eq(driver.n_saved, 2);
    outputs_check_same("several/step-1", "several/step-2", CHECKPOINT_WEIGHTS);
    outputs_check_same("several/step-1", "several/step-2", CHECKPOINT_MOMENTS);
    driver_save(&driver, 4);
    ck_assert(!driver.last_done.done.skipped);
    ck_assert_double_gt(driver.last_done.done.grad_norm, 0);
    ck_assert_int_ne(system("cmp -s several/step-2/" CHECKPOINT_WEIGHTS " several/step-4/" CHECKPOINT_WEIGHTS), 0);
    driver_close(&driver);
    await_on_both(skips[_i].why);
    stop(&team);
}
