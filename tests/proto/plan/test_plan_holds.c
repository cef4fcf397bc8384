/* eps plan and eps train are asked the same: where the one says yes the other trains, and a byte below both say no. */
#include "proto/base/process.h"
#include "proto/plan/host.h"
#include "tests/kit/command.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

SUITE_LABELS(release)

static void setup(void)
{
    processes_setup();
    setenv("XDG_CACHE_HOME", processes_path("cache"), 1); /* no profile of this machine */
    processes_config("tiny.json", 3, 2, 32, 32);
    processes_text("tiny.txt", 20000);
}

SUITE_TIMEOUT(120)
SUITE_FIXTURE(setup, processes_remove)

static uint64_t number(const char *question, const char *options)
{
    expect(print("eps plan --model tiny.json %s %s", options, question), 0);
    char *text = processes_read(processes_path("out"));
    const uint64_t number = strtoull(text, NULL, 10);
    free(text);
    return number;
}

static uint64_t host_bytes(const char *options)
{
    processes_eps("plan --json --model tiny.json %s", options);
    json_t *plan = processes_answer(processes_path("out"));
    const json_int_t bytes = json_integer_value(json_object_get(json_object_get(plan, "host"), "peak"));
    json_decref(plan);
    return (uint64_t)bytes;
}

/* Both end with this status. */
static void __attribute__((format(printf, 2, 3))) both(int status, const char *format, ...)
{
    static int n_runs;
    char options[512];
    va_list args;

    va_start(args, format);
    vsnprintf(options, sizeof options, format, args);
    va_end(args);
    ck_assert_msg(processes_eps("plan --model tiny.json %s", options) == status, "eps plan %s", options);
    ck_assert_msg(processes_eps("train --model tiny.json --data tiny.txt --steps 1 --save-every 0 --out run-%d %s",
                                n_runs++, options) == status,
                  "eps train %s", options);
}

static const char *const settings[] = {
    "--parts 1",
    "--parts 4 --workers 2 --optimizer adamw --commit fenced",
    "--parts 2 --precision bf16 --moments bf16 --grad-dtype bf16",
};
enum { N_SETTINGS = sizeof settings / sizeof *settings };

/* The last has a buffer for files that fp32 does without: its host has as much more. */
static uint64_t room(int setting, uint64_t bytes)
{
    return bytes + (setting == N_SETTINGS - 1 ? PLAN_HOST_RUN_BYTES : 0);
}

TEST_EACH(the_smallest_device_trains_and_a_byte_less_is_refused, N_SETTINGS)
{
    char options[128];
    snprintf(options, sizeof options, "%s --batch 8", settings[_i]);
    const uint64_t least = number("--minimum", options);

    both(0, "%s --device-mem %" PRIu64, options, least);
    both(1, "%s --device-mem %" PRIu64, options, least - 1);
}

TEST_EACH(the_smallest_host_trains_and_a_byte_less_is_refused, N_SETTINGS)
{
    char options[128];
    snprintf(options, sizeof options, "%s --batch 8 --device-mem 64MiB", settings[_i]);
    const uint64_t bytes = host_bytes(options);

    both(0, "%s --host-mem %" PRIu64, options, bytes);
    both(1, "%s --host-mem %" PRIu64, options, bytes - 1);
}

/* A stash on the host would be the faster, as on a device this small, and the host has not the room for it. */
TEST_EACH(the_largest_batch_trains_and_a_row_more_in_each_part_is_refused, N_SETTINGS)
{
    static const unsigned parts[] = {1, 4, 2};
    char options[128];
    snprintf(options, sizeof options, "%s --device-mem 5MiB --host-mem %" PRIu64, settings[_i], room(_i, 1210000));
    const uint64_t rows = number("--find-batch", options);

    both(0, "%s --batch %" PRIu64, options, rows);
    both(1, "%s --batch %" PRIu64, options, rows + parts[_i]);
}

TEST_EACH(the_deepest_model_trains_and_a_layer_more_is_refused, N_SETTINGS)
{
    char options[128];
    snprintf(options, sizeof options, "%s --batch 8 --device-mem 5MiB --host-mem %" PRIu64, settings[_i],
             room(_i, 1650000));
    const uint64_t layers = number("--find-depth", options);

    processes_config("tiny.json", (uint32_t)layers, 2, 32, 32);
    both(0, "%s", options);
    processes_config("tiny.json", (uint32_t)layers + 1, 2, 32, 32);
    both(1, "%s", options);
}

/* The stash is most of it then, and no narrower moments would help. */
TEST(a_batch_for_which_the_host_is_too_small_is_what_the_remedy_names)
{
    both(1, "--batch 400 --device-mem 5MiB --host-mem 1310000");
    expect_file("err", "choose a smaller --batch or --seq");
}

/* Both refuse with this advice, and with it both say yes. */
static void both_advise(const char *advice, const char *options)
{
    char said_so[96];
    snprintf(said_so, sizeof said_so, "; %s would take ", advice);

    both(1, "%s", options);
    expect_file("err", said_so);
    processes_eps("plan --model tiny.json %s", options);
    expect_file("err", said_so);
    both(0, "%s %s", options, advice);
}

/* The room is that of other options, which are found from what is asked for. */
static const struct {
    const char *asked, *fits, *advice;
} cheapest[] = {
    {"--batch 8 --parts 4 --workers 4", "--batch 8 --parts 4 --workers 2", "--workers 2 --parts 4"},
    {"--batch 8 --parts 4 --workers 4", "--batch 8 --parts 4 --workers 1", "--workers 1 --parts 4"},
    {"--batch 12 --parts 6 --optimizer adamw", "--batch 12 --parts 1", "--parts 1 --batch 12"},
};

TEST_EACH(a_refusal_names_the_fewer_workers_or_parts_that_fit, COUNT(cheapest))
{
    char options[160];
    snprintf(options, sizeof options, "%s --device-mem 64MiB --host-mem %" PRIu64, cheapest[_i].asked,
             host_bytes(cheapest[_i].fits));

    both_advise(cheapest[_i].advice, options);
}

TEST(a_refusal_names_the_narrower_numbers_that_fit)
{
    char options[160];
    snprintf(options, sizeof options, "--batch 8 --device-mem %" PRIu64,
             number("--minimum", "--batch 8 --precision bf16"));

    both_advise("--precision bf16", options);
}

/* A device too small for the stash, on a host that has room for the stash and for the smallest device alone: less device
 * memory is then taken than is allowed. A megabyte below that both refuse, and the sentence says what is the least. */
TEST(beside_a_stash_on_the_host_a_device_takes_what_is_left)
{
    const char *asked = "--batch 400 --device-mem 5MiB";
    const uint64_t device = number("--minimum", "--batch 400");
    char options[128], limit[32];

    if (SANITIZED) /* which wants to be preloaded first */
        return;
    snprintf(options, sizeof options, "--batch 400 --device-mem %" PRIu64, device);
    const uint64_t all = host_bytes(options) + device, enough = all + plan_host_slack(all, 1);
    char bytes[PROCESS_BYTES_TEXT], need[64];
    snprintf(need, sizeof need, "this job needs %s of host memory (", process_format_bytes(bytes, enough));
    ck_assert_int_eq(mkdir(processes_path("proc"), 0700) || mkdir(processes_path("proc/self"), 0700) ||
                         mkdir(processes_path("sys"), 0700) || mkdir(processes_path("sys/fs"), 0700) ||
                         mkdir(processes_path("sys/fs/cgroup"), 0700),
                     0);
    processes_write("proc/self/cgroup", "0::/\n", 5);
    processes_write("sys/fs/cgroup/memory.current", "0\n", 2);
    setenv("LIMITS_ROOT", processes_path("."), 1);
    setenv("LD_PRELOAD", BIN_DIR "/liblimits.so", 1);
    for (int fits = 0; fits < 2; fits++) {
        snprintf(limit, sizeof limit, "%" PRIu64 "\n", fits ? enough : enough - (1 << 20));
        processes_write("sys/fs/cgroup/memory.max", limit, strlen(limit));
        both(fits ? 0 : 1, "%s", asked);
        char *said = processes_read(processes_path("err"));
        ck_assert_msg(fits || strstr(said, need) != NULL, "%s is not in: %s", need, said);
        free(said);
    }
    unsetenv("LD_PRELOAD");
    unsetenv("LIMITS_ROOT");
}
