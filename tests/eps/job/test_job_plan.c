/* How the daemon plans for its workers: real processes, a client that takes their word apart (tests/kit/driver.h). */
#include "tests/kit/test.h"

#include "proto/base/process.h"
#include "proto/plan/search.h"
#include "tests/kit/driver.h"
#include "tests/kit/processes.h"
#include "tests/kit/stage.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* The fewest bytes with which a worker can do this share of the driver's job in microbatches of so many rows. */
static uint64_t bytes_of(uint32_t n_workers, uint32_t microbatch)
{
    const uint32_t n_cores = (uint32_t)sysconf(_SC_NPROCESSORS_ONLN);
    const struct plan_setting setting = {.backend = plan_backend_find("cpu"),
                                         .share_rows = DRIVER_BATCH / n_workers,
                                         .part_rows = DRIVER_BATCH / n_workers,
                                         .seq = DRIVER_SEQ,
                                         .n_threads = n_cores > n_workers ? n_cores / n_workers : 1};
    const struct plan_wish wish = {.microbatch = microbatch};
    struct model_config config;
    struct model model;
    struct plan plan;
    struct error err = {""};

    ck_assert_int_eq(model_config_parse(&config, driver_config, strlen(driver_config), &err), 0);
    ck_assert_int_eq(model_init(&model, &config, &err), 0);
    plan_smallest(&plan, &model, &setting, &wish);
    model_free(&model);
    return plan_total(&plan);
}

static pid_t start_worker(const char *name, uint64_t budget)
{
    char text[32];
    const char *const argv[] = {"--connect", name, "--device-mem", text, NULL};

    snprintf(text, sizeof text, "%" PRIu64, budget);
    return processes_start("eps-worker", argv, NULL);
}

SUITE_TIMEOUT(60)
SUITE_FIXTURE_ONCE(processes_setup, processes_remove)

TEST(all_workers_run_the_smallest_microbatch_that_one_of_them_has)
{
    const struct driver_options options = {.n_parts = 2};
    const pid_t daemon = processes_daemon("lab", 0, NULL);
    const pid_t ample = start_worker("lab", 64 << 20), tight = start_worker("lab", bytes_of(2, 2) - 1);
    struct driver driver;

    processes_await_workers("lab", 2);
    driver_open(&driver, "lab", &options);
    ck_assert_uint_eq(driver.opened_with.job_opened.n_workers, 2);
    ck_assert_uint_eq(driver.opened_with.job_opened.choice.microbatch, 1);
    driver_train(&driver, 2);
    driver_close(&driver);
    kill(ample, SIGKILL);
    kill(tight, SIGKILL);
    kill(daemon, SIGKILL);
}

/* The sentence says what would do. */
TEST(a_budget_that_does_not_hold_the_asked_microbatch_is_refused_before_anything_is_loaded)
{
    const struct driver_options options = {.n_parts = 1, .microbatch = 4};
    const pid_t daemon = processes_daemon("desk", 0, NULL);
    const pid_t worker = start_worker("desk", bytes_of(1, 4) - 1);
    struct driver driver;
    struct error err = {""};
    char need[32];

    processes_await_workers("desk", 1);
    ck_assert_int_eq(driver_try(&driver, "desk", &options, &err), -ENOSPC);
    driver_leave(&driver);
    snprintf(need, sizeof need, "(%" PRIu64 " bytes)", bytes_of(1, 4));
    ck_assert_msg(strstr(err.text, need) != NULL, "%s", err.text);
    kill(worker, SIGKILL);
    kill(daemon, SIGKILL);
}

/* A worker by its word alone, attached. */
static void pretend(struct stage *st, struct side *side, const char *name, const char *device)
{
    struct message hello = worker_hello;
    char directory[200];

    stage_begin(st);
    rmdir(st->directory); /* the daemon has its own */
    snprintf(hello.hello.device, sizeof hello.hello.device, "%s", device);
    ck_assert_int_eq(session_directory(directory, sizeof directory, name, NULL), 0);
    ck_assert_int_eq(session_connect(&side->s, &st->loop, directory, &hello, &side_events, side, NULL), 0);
    stage_run_until(st, &side->n_opened, 1);
}

static const struct {
    const char *device, *sentence;
    int code;
} strangers[] = {
    {"cuda:1", "--deterministic requires workers of one kind", -EINVAL},
    {"abacus:1", "has a device 'abacus:1', which this daemon does not know", -ENODEV},
};

/* The driver asks for the same bits each time. */
TEST_EACH(a_worker_that_does_not_go_with_the_others_is_refused_by_name, 2)
{
    const struct driver_options options = {.n_parts = 2};
    const pid_t daemon = processes_daemon("mixed", 0, NULL), worker = start_worker("mixed", 64 << 20);
    struct side side = {0};
    struct driver driver;
    struct stage st;
    struct error err = {""};

    processes_await_workers("mixed", 1);
    pretend(&st, &side, "mixed", strangers[_i].device);
    ck_assert_int_eq(driver_try(&driver, "mixed", &options, &err), strangers[_i].code);
    ck_assert_msg(strstr(err.text, strangers[_i].sentence) && strstr(err.text, strangers[_i].device), "%s", err.text);
    driver_leave(&driver);
    session_close(side.s);
    stage_run_until(&st, &side.n_closed, 1);
    stage_end(&st);
    kill(worker, SIGKILL);
    kill(daemon, SIGKILL);
}

static uint32_t count_threads(const char *name)
{
    struct client_link viewer;
    struct message status;

    driver_look(&viewer, name);
    driver_status(&viewer, &status);
    client_link_free(&viewer);
    return status.status_reply.n_threads;
}

/* A worker on the daemon's own cores takes turns with it; one with a device does not. */
TEST(the_optimizer_leaves_cores_to_a_worker_with_a_device)
{
    const pid_t daemon = processes_daemon("cores", 0, NULL), worker = start_worker("cores", 64 << 20);
    const uint32_t n_cores = (uint32_t)sysconf(_SC_NPROCESSORS_ONLN), most = n_cores > 2 ? n_cores - 2 : 1;
    const uint32_t before = count_threads("cores"), left = before < most ? before : most;
    struct side side = {0};
    struct stage st;

    processes_await_workers("cores", 1);
    ck_assert_uint_ge(before, 1);
    ck_assert_uint_eq(count_threads("cores"), before);
    pretend(&st, &side, "cores", "cuda:0");
    ck_assert_uint_eq(count_threads("cores"), left);
    session_close(side.s);
    stage_run_until(&st, &side.n_closed, 1);
    ck_assert_uint_eq(count_threads("cores"), left);
    stage_end(&st);
    kill(worker, SIGKILL);
    kill(daemon, SIGKILL);
}
