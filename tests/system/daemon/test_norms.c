/* The norms of gradients that a daemon remembers of the tokens of the training data, with real workers: what a step
 * finds of them, what a checkpoint has, and that neither workers, their loss nor a stop in between changes a bit.
 *
 * The client is the kit's driver, which sees what workers see: the segment with minibatches. */
#include "proto/model/file/checkpoint.h"
#include "proto/model/file/safetensors.h"
#include "proto/operation/call/sample.h"
#include "proto/plan/memory/data.h"
#include "tests/kit/command.h"
#include "tests/kit/driver.h"
#include "tests/kit/outputs.h"
#include "tests/kit/processes.h"
#include "tests/kit/puppet.h"
#include "tests/kit/test.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

SUITE_TIMEOUT(120)
SUITE_FIXTURE(processes_setup, processes_remove)

enum { MAPS = 2, TOKENS = DRIVER_BATCH * DRIVER_SEQ, ENTRIES = 150 };

/* Other tokens in each step, some of them again, and out of order; every eleventh is padding. */
static uint32_t entry(uint64_t step, uint32_t token)
{
    return token % 11 == 3 ? PLAN_NO_ENTRY : (uint32_t)((token * 7 + step * 29) % ENTRIES);
}

static const struct driver_options remembering = {.out = "run", .entries = ENTRIES, .entry = entry, .n_parts = 2};

static pid_t start(uint32_t n_workers)
{
    const pid_t daemon = processes_daemon("lab", 0, NULL);

    for (uint32_t i = 0; i < n_workers; i++)
        processes_worker("lab", "32MiB", NULL);
    processes_await_workers("lab", n_workers);
    return daemon;
}

static void stop(pid_t daemon)
{
    kill(daemon, SIGTERM);
    ck_assert_int_eq(processes_wait(daemon), 0);
}

/* What the workers of the last step that used the step's buffer found, of a map. */
static const uint16_t *found_in(const struct driver *driver, uint64_t step, uint32_t map)
{
    const struct plan_goal goal = {.batch = DRIVER_BATCH, .seq = DRIVER_SEQ, .entries = ENTRIES};
    const char *base = driver->data.base;

    return (const uint16_t *)(const void *)(base + plan_data_of(&goal, 0).bytes) + (step % 2 * MAPS + map) * TOKENS;
}

/* A checkpoint's entries. */
static void read_norms(float out[MAPS][ENTRIES], uint64_t step)
{
    struct safetensors file;
    struct error err = {""};
    const int fd = open(print("run/step-%ju/" CHECKPOINT_MOMENTS, (uintmax_t)step), O_RDONLY | O_CLOEXEC);

    ck_assert_int_ge(fd, 0);
    ck_assert_msg(safetensors_open(&file, fd, &err) == 0, "%s", err.text);
    for (int map = 0; map < MAPS; map++) {
        const struct safetensors_entry *e =
            safetensors_find(&file, print("norms.transformer.h.%d.mlp.c_proj.weight", map));
        ck_assert(e && e->type == SAFETENSORS_BF16 && e->n_dims == 1 && e->n == ENTRIES);
        ck_assert_int_eq(safetensors_read(out[map], e, 0, ENTRIES, &err), 0);
    }
    safetensors_close(&file);
    close(fd);
}

/* Saved after each step, so what a step finds is what the checkpoint of the step before has of its tokens; and its own
 * checkpoint has other numbers of those, and the same of all others. */
TEST_EACH(a_step_finds_what_the_checkpoint_before_it_has, 2)
{
    static float before[MAPS][ENTRIES], after[MAPS][ENTRIES];
    struct driver_options options = remembering;
    const pid_t daemon = start(2);
    struct driver driver;

    memset(before, 0, sizeof before);
    ck_assert_int_eq(mkdir("run", 0777), 0);
    options.fenced = options.adamw = _i == 1;
    driver_open(&driver, "lab", &options);
    ck_assert_uint_eq(driver.opened_with.job_opened.entries, ENTRIES);
    for (uint64_t step = 0; step < 5; step++) {
        bool used[ENTRIES] = {false};
        uint32_t n_changed = 0;
        driver_save(&driver, step + 1);
        read_norms(after, step + 1);
        for (uint32_t map = 0; map < MAPS; map++)
            for (uint32_t t = 0; t < TOKENS; t++) {
                const uint32_t e = entry(step, t);
                const uint16_t found = found_in(&driver, step, map)[t];
                ck_assert_uint_eq(found, e == PLAN_NO_ENTRY ? SAMPLE_PADDING : number_to_bf16(before[map][e]));
                if (e == PLAN_NO_ENTRY)
                    continue;
                used[e] = true;
                ck_assert(after[map][e] > 0);
                n_changed += after[map][e] != before[map][e];
            }
        for (uint32_t map = 0; map < MAPS; map++)
            for (uint32_t e = 0; e < ENTRIES; e++)
                ck_assert(used[e] || after[map][e] == before[map][e]);
        ck_assert_uint_gt(n_changed, MAPS * TOKENS * 3 / 4); /* some may be the same in bf16 */
        memcpy(before, after, sizeof before);
    }
    driver_close(&driver);
    stop(daemon);
}

/* A worker on its own; two; two of which one is killed in the middle; one daemon after the other. */
enum { ALONE, TWO, KILLED, RESUMED, WAYS };

static void train(int way)
{
    pid_t workers[2], daemon = processes_daemon("lab", 0, NULL);
    const uint32_t n = way == ALONE ? 1 : 2;
    struct driver_options options = remembering;
    struct driver driver;

    for (uint32_t i = 0; i < n; i++)
        workers[i] = processes_worker("lab", "32MiB", NULL);
    processes_await_workers("lab", n);
    options.microbatch = 1;
    driver_open(&driver, "lab", &options);
    driver_save(&driver, 3);
    if (way == RESUMED) {
        driver_close(&driver);
        stop(daemon);
        daemon = start(n);
        options.resume = "run/step-3", options.step = 3;
        driver_open(&driver, "lab", &options);
    }
    driver_begin(&driver);
    if (way == KILLED)
        kill(workers[1], SIGKILL);
    driver_await_done(&driver, 4);
    driver_save(&driver, 9);
    driver_close(&driver);
    stop(daemon);
}

TEST(neither_workers_nor_their_loss_nor_a_stop_changes_a_bit)
{
    for (int way = 0; way < WAYS; way++) {
        expect("rm -rf run && mkdir run", 0);
        train(way);
        expect(print("mv run/step-9 way-%d", way), 0);
        if (way != ALONE)
            expect(print("cmp way-0/optimizer.safetensors way-%d/optimizer.safetensors && "
                         "cmp way-0/model.safetensors way-%d/model.safetensors",
                         way, way),
                   0);
    }
}

static uint32_t entry_beyond(uint64_t step, uint32_t token)
{
    return step == 1 && token == 9 ? ENTRIES : entry(step, token);
}

/* It costs the client its job, and the daemon nothing. */
TEST(an_entry_that_the_data_have_not_ends_the_job)
{
    struct driver_options options = remembering;
    const pid_t daemon = start(1);
    struct driver driver;
    struct message m;

    ck_assert_int_eq(mkdir("run", 0777), 0);
    options.entry = entry_beyond;
    driver_open(&driver, "lab", &options);
    driver_train(&driver, 1);
    driver_begin(&driver);
    driver_next(&driver.link, &m);
    ck_assert_str_eq(message_name(m.kind), "FAILED");
    ck_assert_str_eq(m.failed.error.text, "step 2 has token 150 of the training data, which have 150");
    driver_leave(&driver);
    options.entry = entry;
    driver_open(&driver, "lab", &options);
    driver_train(&driver, 1);
    driver_close(&driver);
    stop(daemon);
}

static uint32_t same_entry(uint64_t step, uint32_t token)
{
    return entry(step * 0, token);
}

/* The step before still folds its last contributions, which outlast messages, when the next one is opened: what is
 * pulled of that one comes with the norms of its tokens. */
TEST(a_step_that_is_opened_ahead_finds_them_too)
{
    enum { N_STEPS = 16 };
    const struct driver_options options = {.entries = ENTRIES, .entry = same_entry, .vocabulary = 8000};
    const pid_t daemon = processes_daemon("lab", 0, NULL), puppet = puppet_start("lab", PUPPET_FINDS_NORMS);
    struct driver driver;

    puppet_await("lab");
    driver_open(&driver, "lab", &options);
    while (driver.done < N_STEPS) {
        if (driver.opened < N_STEPS && driver.arrived == driver.opened)
            driver_begin(&driver);
        driver_turn(&driver);
        ck_assert_msg(driver.n_lost == 0, "the worker found other norms");
    }
    ck_assert_uint_eq(driver.arrived, N_STEPS);
    driver_close(&driver);
    kill(daemon, SIGTERM);
    ck_assert_int_eq(processes_wait(puppet), 0);
    ck_assert_int_eq(processes_wait(daemon), 0);
}
