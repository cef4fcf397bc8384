/* How the daemon plans for its workers: real processes, a client that takes their word apart (tests/kit/driver.h). */
#include "tests/kit/test.h"

#include "eps/job/job.h"
#include "proto/base/process.h"
#include "proto/plan/search.h"
#include "tests/kit/command.h"
#include "tests/kit/driver.h"
#include "tests/kit/processes.h"
#include "tests/kit/inprocess/stage.h"
#include "tests/proto/wire/session_of.h"

#include <errno.h>
#include <inttypes.h>
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
                                         .goal.seq = DRIVER_SEQ,
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

static void start_worker(uint64_t budget)
{
    const char *const argv[] = {"--connect", "lab", "--device-mem", print("%" PRIu64, budget), NULL};

    processes_start("eps-worker", argv, NULL);
}

/* A daemon, and a worker for each budget up to the first 0. */
static void begin(const uint64_t budgets[3])
{
    uint32_t n = 0;

    processes_daemon("lab", 0, NULL);
    for (; budgets[n]; n++)
        start_worker(budgets[n]);
    processes_await_workers("lab", n);
}

SUITE_TIMEOUT(60)
SUITE_FIXTURE(processes_setup, processes_remove)

/* As proto/plan/fit.h answers it: a microbatch that no budget holds is refused, before anything is loaded, with what
 * would do. If one budget holds it, its worker computes all; left to choose, all run the smallest that one of them
 * has. */
TEST_EACH(a_budget_that_lacks_a_byte_decides, 2)
{
    const struct driver_options asked[] = {{.n_parts = 2, .microbatch = 2}, {.n_parts = 2}};
    const uint64_t lacking = bytes_of(2, 2) - 1;
    struct driver driver;
    struct error err = {""};

    begin((uint64_t[3]){_i ? 64 << 20 : lacking, lacking});
    if (_i == 0) {
        ck_assert_int_eq(driver_try(&driver, "lab", &asked[0], &err), -ENOSPC);
        driver_leave(&driver);
        ck_assert_holds(err.text, print("(%" PRIu64 " bytes)", lacking + 1));
    }
    for (int i = !_i; i < 2; i++) {
        driver_open(&driver, "lab", &asked[i]);
        ck_assert_uint_eq(driver.opened_with.job_opened.n_workers, 1 + (uint32_t)i);
        ck_assert_uint_eq(driver.opened_with.job_opened.choice.microbatch, 2 - (uint32_t)i);
        driver_train(&driver, 2);
        driver_close(&driver);
    }
}

/* A worker by its word alone, attached. */
static void pretend_at(struct stage *st, struct side *side, const char *device, const char *host)
{
    struct message hello = worker_hello;
    char directory[200];

    stage_begin(st);
    rmdir(st->directory); /* the daemon has its own */
    snprintf(hello.hello.device, sizeof hello.hello.device, "%s", device);
    snprintf(hello.hello.host, sizeof hello.hello.host, "%s", host);
    ck_assert_int_eq(session_directory(directory, sizeof directory, "lab", NULL), 0);
    ck_assert_int_eq(session_connect(&side->s, &st->loop, directory, &hello, &side_events, side, NULL), 0);
    stage_run_until(st, &side->n_opened, 1);
}

static void pretend(struct stage *st, struct side *side, const char *device)
{
    pretend_at(st, side, device, worker_hello.hello.host);
}

/* CPUs of two machines may have other instructions, and so round otherwise. */
TEST(a_worker_whose_results_audits_cannot_compare_is_refused_by_name)
{
    const struct driver_options options = {.n_parts = 2, .audit_every = 1};
    struct side side = {0};
    struct driver driver;
    struct stage st;
    struct error err = {""};

    begin((uint64_t[3]){64 << 20});
    pretend_at(&st, &side, "cpu", "elsewhere");
    ck_assert_int_eq(driver_try(&driver, "lab", &options, &err), -EINVAL);
    ck_assert_holds(err.text, "--audit requires workers of one kind of device, CPUs of one machine");
    driver_leave(&driver);
    session_close(side.s);
    stage_run_until(&st, &side.n_closed, 1);
    stage_end(&st);
}

/* The driver asks for the same bits each time. */
TEST(a_worker_that_does_not_go_with_the_others_is_refused_by_name)
{
    const struct driver_options options = {.n_parts = 2};
    struct side side = {0};
    struct driver driver;
    struct stage st;
    struct error err = {""};

    begin((uint64_t[3]){64 << 20});
    pretend(&st, &side, "cuda:1");
    ck_assert_int_eq(driver_try(&driver, "lab", &options, &err), -EINVAL);
    ck_assert_holds(err.text, "--deterministic requires workers of one kind", "cuda:1");
    driver_leave(&driver);
    session_close(side.s);
    stage_run_until(&st, &side.n_closed, 1);
    stage_end(&st);
}

/* Whatever the client is; what goes is trained, several parts of it fenced, too. */
TEST(what_a_job_cannot_be_is_refused_by_the_daemon)
{
    static const struct {
        struct driver_options options;
        const char *why;
    } cases[] = {{{.sgd = true, .momentum = 1}, "--momentum 1: it is below 1"},
                 {{.sgd = true, .nesterov = true}, "with --nesterov above 0"},
                 {{.sgd = true, .momentum = 0.9, .clip_update = 1}, "--clip-update 1 "},
                 {{.sgd = true, .momentum = 0.9, .clip_norm = 1, .n_parts = 2}, NULL},
                 {{.no_master = true}, "weights in fp32 are their own master"},
                 {{.bf16_sums = true}, "sums are of a fenced commit alone"},
                 {{.only_looks = true, .bf16 = true, .no_master = true}, "a master, and sums, are of training alone"},
                 {{.only_looks = true, .fenced = true, .bf16_sums = true}, "a master, and sums, are of training"},
                 {{.bf16 = true, .no_master = true, .fenced = true, .bf16_sums = true}, NULL}};

    begin((uint64_t[3]){64 << 20});
    for (int i = 0; i < COUNT(cases); i++) {
        struct driver driver;
        struct error err = {""};
        if (!cases[i].why) {
            driver_open(&driver, "lab", &cases[i].options);
            driver_train(&driver, 2);
            driver_close(&driver);
            continue;
        }
        ck_assert_int_eq(driver_try(&driver, "lab", &cases[i].options, &err), -EINVAL);
        driver_leave(&driver);
        ck_assert_holds(err.text, cases[i].why);
    }
}

/* ---- a seat ----------------------------------------------------------------------------------------------------- */

enum { LONG = 1024 };

/* A job of which nothing is allocated, of a wide model, with a seat that had nothing yet, and a worker that is to have
 * it. */
struct vacancy {
    struct peers peers;
    struct job job;
    struct peer worker;
    uint64_t available;
    struct plan plan;
};

static void vacate(struct vacancy *v)
{
    static const char text[] = "{\"model_type\": \"gpt2\", \"n_layer\": 4, \"n_head\": 64, \"n_embd\": 8192, "
                               "\"n_positions\": 1024, \"vocab_size\": 256}";
    struct model_config config;
    struct error err = {""};

    *v = (struct vacancy){.available = process_available_bytes(), .peers.shares_workers = true};
    ck_assert_int_eq(model_config_parse(&config, text, strlen(text), &err), 0);
    ck_assert_int_eq(model_init(&v->job.model, &config, &err), 0);
    v->worker = (struct peer){.role = ROLE_WORKER,
                              .session = session_of(geteuid()),
                              .backend = plan_backend_find("cpu"),
                              .budget = UINT64_MAX,
                              .profile = *profile_default("cpu")};
    v->job.peers = &v->peers;
    v->job.request.job.goal = (struct plan_goal){.batch = 1 << 20, .n_parts = 1 << 20, .seq = LONG};
    v->job.host_setting = (struct plan_host_setting){.goal = *job_goal(&v->job), .n_workers = 1};
    v->job.microbatch = v->job.n_seats = v->job.n_ranges = 1;
    v->job.backend = v->worker.backend;
    v->job.seats[0] = (struct job_seat){.job = &v->job};
}

static int plan_seat(struct vacancy *v, uint32_t n)
{
    struct error err = {""};

    return job_plan_seat(&v->plan, &v->job.seats[0], &v->worker, n, &err);
}

/* The fewest bytes for so many rows, wherever they are. */
static uint64_t least_of(const struct vacancy *v, uint32_t n)
{
    struct plan_setting setting = {.backend = v->worker.backend, .goal = *job_goal(&v->job)};
    uint64_t least = UINT64_MAX;

    plan_share(&setting, 1, sysconf(_SC_NPROCESSORS_ONLN));
    setting.share_rows = n;
    for (int no_stash = 0; no_stash < 2; no_stash++) {
        const struct plan_wish wish = {.microbatch = 1, .no_host_stash = no_stash};
        struct plan plan;
        plan_smallest(&plan, &v->job.model, &setting, &wish);
        const uint64_t bytes = plan_total(&plan) + plan.host_stash_bytes;
        least = bytes < least ? bytes : least;
    }
    return least;
}

/* An arena and a stash that are a fifth more than what is free, together: refused, unless the worker gives back three
 * quarters first. A plan that it had once is no memory. */
TEST(free_memory_is_counted_once)
{
    struct vacancy v;
    uint32_t n = 1;

    vacate(&v);
    while (least_of(&v, n) < v.available / 5 * 6)
        n += 1 + n / 16;
    ck_assert_int_eq(plan_seat(&v, n), -ENOSPC);
    memset(&v.worker.plan, 0, sizeof v.worker.plan);
    v.worker.plan.arena_bytes = v.available / 4 * 3;
    v.worker.state = PEER_IDLE;
    ck_assert_int_eq(plan_seat(&v, n), -ENOSPC);
    v.worker.state = PEER_ASSIGNED;
    ck_assert_int_eq(plan_seat(&v, n), 0);
    ck_assert_uint_lt(plan_total(&v.plan) + v.plan.host_stash_bytes, v.available / 4 * 7);
    model_free(&v.job.model);
}

static uint32_t count_threads(void)
{
    struct client_link viewer;
    struct message status;

    driver_look(&viewer, "lab");
    driver_status(&viewer, &status);
    client_link_free(&viewer);
    return status.status_reply.n_threads;
}

/* A worker on the daemon's own cores takes turns with it; one with a device does not. */
TEST(the_optimizer_leaves_cores_to_a_worker_with_a_device)
{
    const uint32_t n_cores = (uint32_t)sysconf(_SC_NPROCESSORS_ONLN), most = n_cores > 2 ? n_cores - 2 : 1;
    struct side side = {0};
    struct stage st;

    begin((uint64_t[3]){0});
    const uint32_t before = count_threads(), left = before < most ? before : most;
    start_worker(64 << 20);
    processes_await_workers("lab", 1);
    ck_assert_uint_ge(before, 1);
    ck_assert_uint_eq(count_threads(), before);
    pretend(&st, &side, "cuda:0");
    ck_assert_uint_eq(count_threads(), left);
    session_close(side.s);
    stage_run_until(&st, &side.n_closed, 1);
    ck_assert_uint_eq(count_threads(), left);
    stage_end(&st);
}
