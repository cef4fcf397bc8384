/* eps plan and eps train are asked the same: where the one says yes the other trains, and a byte below both say no. */
#include "proto/base/process.h"
#include "proto/plan/memory/files.h"
#include "proto/plan/memory/room.h"
#include "tests/kit/command.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* Without replay, which takes only room that is left. */
static uint64_t host_bytes(const char *options)
{
    processes_eps("plan --json --model tiny.json %s", options);
    json_t *plan = processes_answer(processes_path("out"));
    const json_t *host = json_object_get(plan, "host");
    const json_t *replay = json_object_get(json_object_get(host, "categories"), "replay");
    const json_int_t bytes =
        json_integer_value(json_object_get(host, "peak")) - json_integer_value(json_object_get(replay, "peak"));
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
    ck_assert_msg(processes_eps("train --model tiny.json --data tiny.txt --steps 1 --save-every 0 -v --out run-%d %s",
                                n_runs++, options) == status,
                  "eps train %s", options);
}

#define PLAIN "--parts 1 --batch 8"
#define PARTS "--parts 4 --workers 2 --optimizer adamw --commit fenced"
#define BF16  "--parts 2 --precision bf16 --moments bf16 --grad-dtype bf16"

static const char *const smallest[] = {PLAIN, PARTS " --batch 8"};

TEST_EACH(the_smallest_device_trains_and_a_byte_less_is_refused, COUNT(smallest))
{
    const uint64_t least = number("--minimum", smallest[_i]);

    both(0, "%s --device-mem %" PRIu64, smallest[_i], least);
    both(1, "%s --device-mem %" PRIu64, smallest[_i], least - 1);
}

static const char *const hosts[] = {PARTS " --batch 8 --device-mem 64MiB", BF16 " --batch 8 --device-mem 64MiB"};

TEST_EACH(the_smallest_host_trains_and_a_byte_less_is_refused, COUNT(hosts))
{
    const uint64_t bytes = host_bytes(hosts[_i]);

    both(0, "%s --host-mem %" PRIu64, hosts[_i], bytes);
    both(1, "%s --host-mem %" PRIu64, hosts[_i], bytes - 1);
}

/* A stash on the host would be the faster, as on a device this small, and the host has not the room for it; which has
 * what a buffer for files takes that fp32 does without. */
TEST(the_largest_batch_trains_and_a_row_more_in_each_part_is_refused)
{
    const char *options = print(BF16 " --device-mem 5MiB --host-mem %d", 1210000 + PLAN_HOST_RUN_BYTES);
    const uint64_t rows = number("--find-batch", options);

    both(0, "%s --batch %" PRIu64, options, rows);
    both(1, "%s --batch %" PRIu64, options, rows + 2);
}

TEST(the_deepest_model_trains_and_a_layer_more_is_refused)
{
    const char *options = PLAIN " --device-mem 5MiB --host-mem 1650000";
    const uint32_t layers = (uint32_t)number("--find-depth", options);

    processes_config("tiny.json", layers, 2, 32, 32);
    both(0, "%s", options);
    processes_config("tiny.json", layers + 1, 2, 32, 32);
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
    both(1, "%s", options);
    expect_file("err", print("; %s would take ", advice));
    processes_eps("plan --model tiny.json %s", options);
    expect_file("err", print("; %s would take ", advice));
    both(0, "%s %s", options, advice);
}

/* The room is that of other options, which are found from what is asked for. */
static const struct {
    const char *asked, *fits, *advice;
} cheapest[] = {
    {"--batch 8 --parts 4 --workers 4", "--batch 8 --parts 4 --workers 2", "--workers 2 --parts 4"},
    {"--batch 12 --parts 6 --optimizer adamw", "--batch 12 --parts 1", "--parts 1 --batch 12"},
};

TEST_EACH(a_refusal_names_the_fewer_workers_or_parts_that_fit, COUNT(cheapest))
{
    both_advise(cheapest[_i].advice,
                print("%s --device-mem 64MiB --host-mem %" PRIu64, cheapest[_i].asked, host_bytes(cheapest[_i].fits)));
}

TEST(a_refusal_names_the_narrower_numbers_that_fit)
{
    both_advise("--precision bf16",
                print("--batch 8 --device-mem %" PRIu64, number("--minimum", "--batch 8 --precision bf16")));
}

/* A device too small for the stash, on a host that has room for the stash and for the smallest device alone: less
 * device memory is then taken than is allowed. A megabyte below that the stash is of some layers. A megabyte below what
 * that takes both refuse, and the sentence says what is the least. */
TEST_IF(beside_a_stash_on_the_host_a_device_takes_what_is_left, !SANITIZED) /* which wants to be preloaded first */
{
    const char *asked = "--batch 400 --device-mem 5MiB";
    const uint64_t device = number("--minimum", "--batch 400");
    const uint64_t host = host_bytes(print("--batch 400 --device-mem %" PRIu64, device));
    const uint64_t of_some =
        host_bytes(print("--batch 400 --device-mem %" PRIu64 " --host-mem %" PRIu64, device, host - (1 << 20)));
    const uint64_t more = host + device + plan_host_slack(host + device, 1),
                   enough = of_some + device + plan_host_slack(of_some + device, 1);
    char bytes[PROCESS_BYTES_TEXT];

    expect("mkdir -p proc/self sys/fs/cgroup; echo 0::/ >proc/self/cgroup; echo 0 >sys/fs/cgroup/memory.current", 0);
    setenv("LIMITS_ROOT", processes_path("."), 1);
    setenv("LD_PRELOAD", BIN_DIR "/liblimits.so", 1);
    for (uint64_t i = 0; i < 2; i++) {
        processes_put_text("sys/fs/cgroup/memory.max", print("%" PRIu64 "\n", more - (i << 20)));
        both(0, "%s", asked);
        expect_file("out",
                    i ? "activation checkpoints: 4 of 5 layers, on the host" : "activation checkpoints: on the host");
    }
    processes_put_text("sys/fs/cgroup/memory.max", print("%" PRIu64 "\n", enough - (1 << 20)));
    both(1, "%s", asked);
    expect_file("err", print("this job needs %s of host memory (", process_format_bytes(bytes, enough)));
    unsetenv("LD_PRELOAD");
    unsetenv("LIMITS_ROOT");
}
