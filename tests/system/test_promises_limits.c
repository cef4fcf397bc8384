/* A host that has less than is asked for, and budgets that are none: refused in a sentence before anything is touched,
 * or kept. Real processes; what the system allows is told them by tests/kit/preload/limits.c, or really limited. */
#include "tests/kit/command.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

SUITE_LABELS(release)

enum { MIB = 1 << 20 };

static const char *config, *files[1];

static void setup(void)
{
    processes_setup();
    config = strdup(processes_config("limits.json", 6, 4, 256, 64)); /* 4.8 million parameters: 55 MiB */
    files[0] = strdup(processes_text("limits.txt", 1024));
    ck_assert_int_eq(mkdir(processes_path("proc"), 0700) || mkdir(processes_path("proc/self"), 0700), 0);
    ck_assert_int_eq(mkdir(processes_path("sys"), 0700) || mkdir(processes_path("sys/fs"), 0700), 0);
    ck_assert_int_eq(mkdir(processes_path("sys/fs/cgroup"), 0700), 0);
    processes_write("proc/self/cgroup", "0::/\n", 5);
    processes_write("sys/fs/cgroup/memory.current", "0\n", 2);
}

SUITE_TIMEOUT(240)
SUITE_FIXTURE_ONCE(setup, processes_remove)

static struct eps_train_options options_to(const char *out)
{
    struct eps_train_options options = processes_options(config, files, processes_path(out));

    options.steps = 2;
    options.batch = 4;
    options.seq = 64;
    options.device_mem = 256 * MIB;
    return options;
}

/* ---- the host's memory ------------------------------------------------------------------------------------------- */

struct seen {
    uint64_t most; /* bytes that both processes have ever had together */
    unsigned n_steps;
};

static void on_step(void *user, const struct eps_step *step)
{
    (void)step;
    ((struct seen *)user)->n_steps++;
}

/* After the checkpoint. What the worker maps of the daemon's is not counted twice, and files can be read again. */
static void on_memory(void *user, const struct eps_memory *side)
{
    const pid_t daemon = processes_find("epsd"), worker = processes_find("eps-worker");

    (void)side;
    ck_assert(daemon && worker);
    ((struct seen *)user)->most = processes_status_bytes(daemon, "VmHWM") - processes_status_bytes(daemon, "RssFile") +
                                  processes_status_bytes(worker, "VmHWM") - processes_status_bytes(worker, "RssFile") -
                                  processes_status_bytes(worker, "RssShmem");
}

static int train_within(uint64_t limit, const struct eps_train_options *options, struct seen *seen,
                        struct eps_error *error)
{
    const struct eps_train_events events = {.on_step = on_step, .on_memory = on_memory};
    char text[32];

    snprintf(text, sizeof text, "%" PRIu64 "\n", limit);
    processes_write("sys/fs/cgroup/memory.max", text, strlen(text));
    *seen = (struct seen){0};
    setenv("LIMITS_ROOT", processes_path("."), 1);
    setenv("LD_PRELOAD", BIN_DIR "/liblimits.so", 1);
    const int rc = eps_train(options, &events, seen, error);
    unsetenv("LD_PRELOAD");
    unsetenv("LIMITS_ROOT");
    return rc;
}

/* The group's limit is not enforced here, so that what would have been killed can be seen: nothing. */
TEST(a_group_s_limit_is_kept_or_refused)
{
    struct eps_train_options options = options_to("group");
    unsigned refused = 0, kept = 0;
    struct eps_error error;
    struct seen seen;
    char out[32];

    for (uint64_t limit = 24 * MIB; limit < 400 * MIB; limit += limit / 2) {
        snprintf(out, sizeof out, "group-%" PRIu64, limit / MIB);
        options.out = processes_path(out);
        if (train_within(limit, &options, &seen, &error)) {
            ck_assert_msg(strstr(error.text, "of host memory (") != NULL, "%s", error.text);
            ck_assert_msg(strstr(error.text, " are free; ") != NULL, "%s", error.text);
            ck_assert_uint_eq(seen.n_steps, 0);
            ck_assert_msg(kept == 0, "%" PRIu64 " refused after less was enough: %s", limit, error.text);
            refused++;
        } else {
            ck_assert_uint_eq(seen.n_steps, 2);
            ck_assert_msg(seen.most <= limit, "%" PRIu64 " bytes in memory, the limit is %" PRIu64, seen.most, limit);
            kept++;
        }
    }
    ck_assert_uint_gt(refused, 2);
    ck_assert_uint_gt(kept, 2);
}

/* 8 bytes a parameter instead of 12: what a refusal names as a way out is one. */
TEST(what_a_refusal_names_works)
{
    struct eps_train_options options = options_to("remedy");
    struct eps_error error;
    struct seen seen;

    options.device_mem = 16 * MIB;
    ck_assert_int_eq(train_within(92 * MIB, &options, &seen, &error), -ENOMEM);
    ck_assert_msg(strstr(error.text, "; --moments bf16 would take ") != NULL, "%s", error.text);
    options.moments = EPS_BF16;
    ck_assert_msg(train_within(92 * MIB, &options, &seen, &error) == 0, "%s", error.text);
    ck_assert_uint_le(seen.most, 92 * MIB);
}

/* Of addresses the system really gives no more than this: every allocation of every process and library may fail. */
TEST(where_addresses_run_out_it_says_so_and_ends)
{
    unsigned refused = 0;

    for (unsigned kib = 40 << 10; kib < 1500 << 10; kib += kib / 2) {
        char command[1200];
        snprintf(
            command, sizeof command,
            "cd %s && ulimit -v %u && exec timeout 60 %s/eps train --model %s --data %s --out address-%u --steps 1 "
            "--batch 4 --seq 64 --device-mem 64MiB >out 2>err",
            processes_path("."), kib, BIN_DIR, config, files[0], kib);
        const int status = system(command);
        char *said = processes_read(processes_path("err"));
        ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) < 2, "%u KiB of addresses: status %x, %s", kib, status,
                      said);
        ck_assert_msg(WEXITSTATUS(status) == 0 || strncmp(said, "eps train: ", 11) == 0, "%u KiB of addresses: %s", kib,
                      said);
        refused += WEXITSTATUS(status) == 1;
        free(said);
    }
    ck_assert_uint_gt(refused, 1);
}

/* ---- locked memory ----------------------------------------------------------------------------------------------- */

/* The errors that mlock(2) has for a limit: none allowed, more than it, and not now. */
TEST_EACH(pages_that_may_not_be_locked_are_mentioned_once_and_refused_on_request, 3)
{
    static const int errors[] = {EPERM, ENOMEM, EAGAIN};
    const char *const daemon[] = {"--listen", "lock", NULL};
    const char *const worker[] = {"--connect", "lock", "--device-mem", "64MiB", NULL};
    struct eps_train_options options = options_to("lock-0");
    struct eps_error error;
    char number[12], log[300], out[32];

    snprintf(number, sizeof number, "%d", errors[_i]);
    snprintf(log, sizeof log, "%s", processes_path("lock.log"));
    unlink(log);
    setenv("LIMITS_LOCK", number, 1);
    setenv("LD_PRELOAD", BIN_DIR "/liblimits.so", 1);
    const pid_t pids[] = {processes_start("epsd", daemon, log), processes_start("eps-worker", worker, NULL)};
    unsetenv("LD_PRELOAD");
    processes_await_workers("lock", 1);
    options.connect = "lock";
    options.device_mem = 0;
    options.require_pinned = true;
    ck_assert_int_eq(eps_train(&options, NULL, NULL, &error), -EPERM);
    ck_assert_msg(strstr(error.text, " KiB must be locked in memory (--require-pinned), and `ulimit -l` is ") != NULL,
                  "%s", error.text);
    ck_assert_uint_gt(strtoull(error.text, NULL, 10), 55 << 10); /* KiB of weights and moments alone */
    ck_assert_uint_lt(processes_status_bytes(pids[0], "RssAnon") + processes_status_bytes(pids[0], "RssShmem"),
                      4 * MIB);
    ck_assert_uint_lt(processes_status_bytes(pids[0], "VmHWM"), 30 * MIB); /* nothing large was touched */
    options.require_pinned = false;
    for (int i = 0; i < 2; i++) {
        snprintf(out, sizeof out, "lock-%d-%d", _i, i);
        options.out = processes_path(out);
        ck_assert_msg(eps_train(&options, NULL, NULL, &error) == 0, "%s", error.text);
    }
    ck_assert_uint_eq(processes_count(log, "does not allow locking pages (ulimit -l)"), 1);
    ck_assert_int_eq(eps_stop("lock", NULL), 0);
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(processes_wait(pids[i]), 0);
}

/* ---- budgets ----------------------------------------------------------------------------------------------------- */

TEST(a_budget_that_is_none_is_a_sentence)
{
    static const struct {
        const char *command;
        int status;
        const char *says;
    } budgets[] = {
        {"plan --device-mem 0", 2, "--device-mem: '0' is less than a byte"},
        {"plan --device-mem 1", 1, "--device-mem is 0.0 MiB (1 bytes)"},
        {"plan --host-mem 1", 1, "1 B"},
        {"plan --host-mem 9223372036854775809", 2, "is more than any machine has"}, /* 2^63 + 1 */
        {"train --out no --device-mem 18446744073709551616", 2, "is more than any machine has"},
        {"train --out no --device-mem 1", 1, "--device-mem is 0.0 MiB (1 bytes)"},
        {"train --out no --host-mem 1", 1, "1 B"},
    };

    for (size_t i = 0; i < sizeof budgets / sizeof *budgets; i++)
        expect_sentence(print("eps %s --model limits.json --batch 2 --seq 16%s", budgets[i].command,
                              *budgets[i].command == 't' ? " --data limits.txt --steps 1" : ""),
                        budgets[i].status, budgets[i].says);
    /* More than this device has: no more is taken than the model needs. */
    expect("eps train --model limits.json --data limits.txt --steps 1 --batch 2 --seq 16 --device-mem 1000TiB "
           "--host-mem 1000TiB --out vast",
           0);
}
