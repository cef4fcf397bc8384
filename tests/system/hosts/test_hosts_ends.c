/* Several hosts of which one lacks workers, dies, is stopped, refuses, or meets numbers that are not finite: real
 * programs, real files. */
#include "tests/kit/command.h"
#include "tests/kit/driver.h"
#include "tests/kit/outputs.h"
#include "tests/kit/processes.h"
#include "tests/kit/puppet.h"
#include "tests/kit/test.h"
#include "tests/system/hosts/team.h"

#include "proto/model/file/checkpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

SUITE_LABELS(long, slow)
SUITE_TIMEOUT(180)
SUITE_SKIP_UNLESS(team_has_mpirun(), TEAM_NEEDS)
SUITE_FIXTURE(team_setup, processes_remove)

static bool waits_or_has_given_up(void *context)
{
    (void)context;
    return processes_count("train", "attach one within ") + processes_count("train", "was given up") > 0;
}

enum { CAN_PRELOAD = !SANITIZED }; /* sanitizers want to be preloaded first */

/* Host 0 has the client and says what host 1 waits for: until a worker comes, or the job is stopped. If that step
 * cannot be given up at once, the client waits for 50 s, which are skipped. */
TEST_EACH(a_host_without_workers_is_told_of_by_host_0, CAN_PRELOAD ? 2 : 1)
{
    const struct team team = team_start(2, 1);
    const bool is_stopped = _i;

    const pid_t run =
        team_train_aside(print("%s exec " BIN_DIR "/eps train --connect hosts" RUN
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
        team_attach("hosts-1");
    }
    ck_assert_int_eq(team_await_end(run), is_stopped);
    if (is_stopped) {
        expect_file("train", "waited for a worker and was given up");
    } else {
        team_train("", RUN " --steps 40 --batch 4 --parts 2 --save-every 40", "one");
        team_check_same("one", "several");
    }
    team_stop(&team);
}

/* mpirun ends the others. The client waits for the next ones, and goes on from the checkpoint, on any number of
 * hosts. */
static const char *const lost[] = {RUN, SAMPLED};

TEST_EACH(a_host_that_is_killed_ends_the_job_and_the_run_goes_on_elsewhere, COUNT(lost))
{
    const struct team team =
        team_start_with(3, 1, "--mca odls_base_sigkill_timeout 4"); /* they tell after a third of it */
    char machine[65] = "";

    team_train("", print("%s --steps 80 --batch 6 --parts 3 --save-every 80", lost[_i]), "one");
    const pid_t run =
        team_train_aside(print("exec " BIN_DIR "/eps train --connect hosts%s --steps 80 --batch 6 --parts 3 "
                               "--save-every 2 --out several --restarts 3",
                               lost[_i]));
    processes_await_text("train", "saved several/step-2");
    const pid_t killed = team_daemon("hosts-1");
    gethostname(machine, sizeof machine);
    expect(print("grep -o '/dev/shm/[^ ]*segment[^ ]*' /proc/%d/maps | sort -u >segments; true", (int)killed), 0);
    kill(killed, SIGKILL);
    processes_await_text("train", print("host 1 (%s, pid %d) ", machine, (int)killed));
    ck_assert_int_ne(team_await_end(team.mpirun), 0);
    expect_file("mpirun.log", "process rank 1");
    expect("for segment in $(cat segments); do test ! -e $segment || exit 1; done", 0);
    for (uint32_t h = 0; h < 3; h++)
        kill(team.workers[h][0], SIGTERM);
    const struct team next = team_start(2, 1);
    ck_assert_int_eq(team_await_end(run), 0);
    outputs_check_same_latest("one", "several");
    team_stop(&next);
}

/* A launcher that lets the others go on: they notice the silence, which is too long for a test to wait for; but each
 * daemon that ends says so to the others. */
TEST(a_host_that_is_stopped_ends_the_job_and_the_daemons)
{
    const struct team team = team_start(2, 1);
    const pid_t run = team_train_aside("exec " BIN_DIR "/eps train --connect hosts" RUN
                                       " --steps 4000 --batch 4 --parts 2 --save-every 2 --out several");

    processes_await_text("train", "saved several/step-2");
    kill(team_daemon("hosts-1"), SIGTERM);
    ck_assert_int_eq(team_await_end(run), 1);
    expect_file("train", "the daemon was stopped by SIGTERM", "eps train --resume several continues from step ");
    ck_assert_int_eq(team_await_end(team.mpirun), 0);
    processes_await_nobody();
}

/* By the launcher, all hosts at about the same time, or one alone. Where it gives them time, host 0's client saves
 * first, as with one host. */
static const struct {
    const char *grace; /* seconds; mpirun waits as long before it sends a signal */
    const char *first, *second;
} terms[] = {{"20", "hosts-1", "hosts"}, {"20", "hosts-1", NULL}, {"4", NULL, NULL}};

TEST_EACH(hosts_that_the_launcher_stops_save_first, COUNT(terms))
{
    const struct team team = team_start_with(2, 1, print("--mca odls_base_sigkill_timeout %s", terms[_i].grace));
    const pid_t run = team_train_aside("exec " BIN_DIR "/eps train --connect hosts" RUN
                                       " --steps 4000 --batch 4 --parts 2 --save-every 3000 --out several");

    processes_await_text("train", "step 1/4000");
    kill(terms[_i].first ? team_daemon(terms[_i].first) : team.mpirun, SIGTERM);
    if (terms[_i].second)
        kill(team_daemon(terms[_i].second), SIGTERM);
    ck_assert_int_eq(team_await_end(run), 1);
    expect_file("train", "the daemon was stopped: the run ended after ", "; saved in several/step-");
    outputs_check_whole("several", outputs_latest("several"));
    if (terms[_i].first) /* else mpirun hands nothing on any more */
        expect_file("mpirun.log", terms[_i].second
                                      ? "by SIGTERM to all hosts: the launcher was stopped itself; the run has "
                                      : "by SIGTERM to some of its hosts; the run has ");
    ck_assert_int_eq(team_await_end(team.mpirun) == 0, terms[_i].first != NULL);
    processes_await_nobody();
}

/* Only host 0 has the client, which saves; at another host, the steps since the last save would be lost. */
TEST(a_job_on_several_hosts_is_stopped_at_host_0)
{
    const struct team team = team_start(2, 1);
    const pid_t run = team_train_aside("exec " BIN_DIR "/eps train --connect hosts" RUN
                                       " --steps 4000 --batch 4 --parts 2 --save-every 3000 --out several");

    processes_await_text("train", "step 1/4000");
    expect_sentence("eps stop hosts-1", 1, "host 1 of a daemon on 2 hosts", "host 0");
    expect_sentence("eps stop hosts-1 1", 1, "host 1 of a daemon on 2 hosts", "host 0");
    expect("eps stop hosts 1", 0);
    ck_assert_int_eq(team_await_end(run), 1);
    expect_file("train", "the job was stopped: the run ended after ", "; saved in several/step-");
    team_stop(&team);
}

/* They share mpirun's terminal. */
TEST(each_line_of_the_log_names_its_host)
{
    const struct team team = team_start(2, 1);
    char machine[65] = "";

    gethostname(machine, sizeof machine - 1);
    team_train(" --connect hosts", RUN " --batch 4 --parts 2 --steps 2", "a");
    team_stop(&team);
    for (uint32_t h = 0; h < 2; h++)
        expect_file("mpirun.log", print("epsd host %u (%s): listening at ", h, machine),
                    print("epsd host %u (%s): job ended after 2 steps: closed\n", h, machine));
    expect(print("grep -vE '^epsd host [01] \\(%s\\): ' mpirun.log", machine), 1);
}

static void never(void *user, const struct eps_weights *weights)
{
    (void)user, (void)weights;
    abort();
}

/* At their first look: no host has all of them. */
TEST(weights_of_several_hosts_are_not_shown)
{
    static const char *const data[] = {"text.txt"};
    const struct team team = team_start(2, 1);
    struct eps_train_options o = processes_options("model.json", data, "shown");

    o.connect = "hosts", o.device = NULL, o.device_mem = 0, o.workers = 0, o.seq = 32, o.batch = 4, o.parts = 2,
    o.steps = 2;
    o.on_weights = never, o.weights_every = 1;
    ck_assert_int_eq(processes_train_with(&o, NULL, NULL), -EINVAL);
    expect_file("said",
                "no host has all of this job's weights, so they cannot be looked at: save a checkpoint instead");
    team_train(" --connect hosts", RUN " --batch 4 --parts 2 --steps 2", "b");
    team_stop(&team);
}

TEST(what_several_hosts_cannot_do_is_refused)
{
    const struct team team = team_start(2, 1);

    expect_sentence("eps train --connect hosts" RUN " --batch 4 --parts 1 --steps 1 --out a", 1, "2 hosts",
                    "--parts 2");
    expect_sentence("eps train --connect hosts" RUN " --batch 4 --parts 2 --steps 1 --drop-layers 0.5 --out a", 1,
                    "on several hosts no layers are dropped", "--drop-layers");
    expect_sentence("eps train --connect hosts" RUN " --batch 4 --parts 2 --steps 1 --audit 1 --out a", 1,
                    "--audit is for one host");
    expect_sentence("eps train --connect hosts-1" RUN " --batch 4 --parts 2 --steps 1 --out a", 1,
                    "host 1 of a daemon on 2 hosts", "host 0");
    expect_sentence("epsd --mpi --listen x", 1, "mpirun or srun");
    expect_sentence("epsd --mpi --private --listen x", 2, "--mpi and --private: ");
    team_train(" --connect hosts", RUN " --batch 4 --parts 2 --steps 2", "b");
    team_stop(&team);
}

/* Found on host 1, told by host 0; the next job begins on both. */
TEST(a_job_that_cannot_begin_on_one_host_begins_on_none)
{
    const struct team team = team_start(2, 1);

    kill(team.workers[1][0], SIGTERM);
    processes_await_text("mpirun.log", "(cpu) gone");
    const pid_t small = processes_worker("hosts-1", "64KiB", NULL);
    processes_await_workers("hosts-1", 1);
    expect_sentence("eps train --connect hosts" RUN " --batch 4 --parts 2 --steps 2 --out a", 1,
                    "host 1: this model needs at least ");
    kill(small, SIGTERM);
    ck_assert_int_eq(processes_wait(small), 0);
    team_attach("hosts-1");
    team_train(" --connect hosts", RUN " --batch 4 --parts 2 --steps 2", "b");
    team_stop(&team);
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
    const struct team team = team_start(2, 0);
    const pid_t puppet = puppet_start("hosts", faults[_i].fault);
    struct driver driver;
    struct message m = {0};

    puppet_await("hosts");
    team_attach("hosts-1");
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
    team_attach("hosts");
    await_on_both(faults[_i].why);
    team_train(" --connect hosts", RUN " --batch 4 --parts 2 --steps 2", "b");
    team_stop(&team);
}

/* The same of a worker of either host, with a fenced commit. */
static const struct {
    uint32_t host;
    enum puppet_fault fault;
} skips[] = {
    {1, PUPPET_IN_LOSS},
    {1, PUPPET_IN_FIRST_CONTRIBUTION}, /* of a unit of host 0 */
    {0, PUPPET_IN_FIRST_OF_TWO},       /* of host 1 */
};

TEST_EACH(a_fenced_step_that_is_not_finite_leaves_no_trace_on_any_host, COUNT(skips))
{
    const struct driver_options options = {
        .fenced = true, .adamw = true, .n_parts = 2, .clip_norm = 1, .out = outputs_make("several")};
    const struct team team = team_start(2, 0);
    struct driver driver;

    for (uint32_t h = 0; h < 2; h++) {
        if (h != skips[_i].host) {
            team_attach(team_host(h));
            continue;
        }
        puppet_start(team_host(h), skips[_i].fault);
        puppet_await(team_host(h));
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
    await_on_both("step 2 skipped: its loss or gradient is not finite");
    team_stop(&team);
}

/* --check-memory: the owner of a unit finds what has changed of it, and names it; nothing is saved of it. */
static void flip_weights(pid_t daemon)
{
    const int memory = open(print("/proc/%d/mem", (int)daemon), O_RDWR | O_CLOEXEC);
    char *const maps = processes_read(print("/proc/%d/maps", (int)daemon));
    unsigned n = 0;

    ck_assert_int_ge(memory, 0);
    for (char *line = strtok(maps, "\n"), *rest; line; line = strtok(NULL, "\n")) {
        const uint64_t begin = strtoull(line, &rest, 16), end = strtoull(rest + 1, &rest, 16);
        if (!strstr(rest, "eps-weights") || strncmp(rest, " rw", 3) != 0)
            continue;
        for (uint64_t i = 0; i < 64; i++, n++) {
            const off_t at = (off_t)(begin + (end - begin) / 64 / 4 * 4 * i);
            uint32_t word;
            ck_assert_int_eq(pread(memory, &word, 4, at), 4);
            word ^= UINT32_C(1) << i % 23; /* of the fraction: all stays finite */
            ck_assert_int_eq(pwrite(memory, &word, 4, at), 4);
        }
    }
    ck_assert_uint_gt(n, 0);
    free(maps);
    close(memory);
}

TEST_EACH(a_host_whose_memory_changes_names_it_and_the_run_ends, 4)
{
    const char *options = print("%s --steps 300 --batch 8 --parts 4 --check-memory --save-every 100 --keep 0%s", RUN,
                                _i / 2 ? " --clip-norm 1" : "");
    const struct team team = team_start(2, 1);

    const pid_t run = team_train_aside(print("exec " BIN_DIR "/eps train --connect hosts%s --out several", options));
    processes_await_text("several/metrics.jsonl", "\"step\": 5,");
    flip_weights(team_daemon(_i % 2 ? "hosts-1" : "hosts"));
    ck_assert_int_eq(team_await_end(run), 1);
    expect_file("train", "host memory is damaged: ");
    expect_file("train", " are not as they were written; go on from the last checkpoint");
    team_stop(&team);
}

static const char *const checked[] = {"", "--optimizer adama",
                                      "--clip-norm 1 --precision bf16 --sums bf16 --freeze h.0.*"};

TEST_EACH(hosts_that_check_memory_train_the_bits_of_one, COUNT(checked))
{
    const char *options = print("%s --steps 4 --batch 8 --parts 4 --check-memory --save-every 2 %s", RUN, checked[_i]);
    const struct team team = team_start(2, 1);

    team_train("", options, "one");
    team_train(" --connect hosts", options, "several");
    team_check_same("one", "several");
    team_stop(&team);
}
