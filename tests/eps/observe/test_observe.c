/* What a live daemon tells of its units, its workers and the last steps, in the middle of a run. */
#include "tests/kit/driver.h"
#include "tests/kit/processes.h"
#include "tests/kit/puppet.h"
#include "tests/kit/test.h"

#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <string.h>

enum { LAYERS = 3, STEPS = 3 };

struct seen {
    double losses[STEPS];
    uint64_t tokens[STEPS];
    uint32_t n_workers, n_looks;
    uint64_t up_bytes, down_bytes, n_parameters;
};

static void on_worker(void *user, const struct eps_worker *worker)
{
    static const char *const phases[] = {"idle", "forward", "backward"};
    struct seen *seen = user;
    bool is_known = false;

    for (int i = 0; i < COUNT(phases); i++)
        is_known |= strcmp(worker->phase, phases[i]) == 0;
    ck_assert_msg(is_known, "%s", worker->phase);
    ck_assert_str_eq(worker->device, "cpu");
    ck_assert_uint_gt(worker->budget, worker->current);
    ck_assert_uint_gt(worker->current, 0);
    ck_assert_uint_ge(worker->microbatch, 1);
    if (worker->n_visits > 0)
        ck_assert_uint_lt(worker->visit, worker->n_visits);
    seen->down_bytes = worker->down_bytes;
    seen->up_bytes = worker->up_bytes;
    seen->n_workers++;
}

/* In the middle of a run both sides have what was planned for them, to the byte. */
static void on_memory(void *user, const struct eps_memory *side)
{
    unsigned *n_sides = user;

    ck_assert_uint_gt(side->planned, 0);
    for (size_t i = 0; i < side->n_rows; i++)
        ck_assert_msg(side->rows[i].current == side->rows[i].planned, "%s: %" PRIu64 ", not %" PRIu64,
                      side->rows[i].category, side->rows[i].current, side->rows[i].planned);
    ck_assert_uint_eq(side->current, side->planned);
    ++*n_sides;
}

static void on_step(void *user, const struct eps_step *step)
{
    struct seen *seen = user;
    struct eps_observer *observer;
    const struct eps_unit *units;
    struct eps_recent recent;
    unsigned n_sides = 0;
    size_t n;

    seen->losses[step->step - 1] = step->loss;
    seen->tokens[step->step - 1] = step->tokens;
    ck_assert_int_eq(eps_observer_open(&observer, "lab", NULL, NULL, NULL), 0);
    ck_assert_int_eq(eps_observer_units(observer, &units, &n, NULL), 0);
    ck_assert_uint_eq(n, LAYERS + 3); /* wte, wpe, blocks, ln_f */
    for (size_t i = 0; i < n; i++) {
        ck_assert_uint_ge(units[i].version, step->step - 1);
        ck_assert_uint_le(units[i].version, step->step + 1);
        ck_assert_uint_le(units[i].version, units[0].version + 1);
        ck_assert_uint_le(units[i].state, EPS_UNIT_UPDATING);
    }
    seen->n_workers = 0;
    ck_assert_int_eq(eps_observer_workers(observer, on_worker, seen, NULL), 0);
    ck_assert_uint_eq(seen->n_workers, 1);
    ck_assert_int_eq(eps_observer_recent(observer, &recent, NULL), 0);
    ck_assert_uint_ge(recent.step, step->step); /* the next may be covered already */
    ck_assert_uint_ge(recent.n_losses, step->step);
    for (uint64_t i = 0; i < step->step; i++)
        ck_assert_float_eq(recent.losses[i], (float)seen->losses[i]);
    if (recent.step == step->step) {
        ck_assert_uint_eq(recent.tokens, step->tokens);
        ck_assert_double_eq(recent.lr, step->lr);
    }
    ck_assert(isnan(recent.step_ms) == (recent.n_losses < 2));
    if (recent.n_losses > 1)
        ck_assert(recent.tokens_per_s > 0);
    ck_assert_int_eq(eps_observer_mem(observer, false, on_memory, &n_sides, NULL), 0);
    ck_assert_uint_eq(n_sides, 2);
    eps_observer_close(observer);
    seen->n_looks++;
}

static void on_start(void *user, const struct eps_train_options *resolved, uint64_t n_parameters)
{
    (void)resolved;
    ((struct seen *)user)->n_parameters = n_parameters;
}

SUITE_FIXTURE_ONCE(processes_setup, processes_remove)

TEST(a_run_shows_its_units_workers_and_losses)
{
    const char *files[] = {processes_text("text", 8192)};
    struct eps_train_options options =
        processes_options(processes_config("config.json", LAYERS, 2, 32, 32), files, processes_path("run-1"));
    const struct eps_train_events events = {.on_start = on_start, .on_step = on_step};
    struct seen seen = {0};
    struct eps_error error;

    processes_daemon("lab", 1, NULL);
    options.connect = "lab";
    options.steps = STEPS;
    options.batch = 4;
    options.seq = 32;
    options.save_every = 0;
    ck_assert_msg(eps_train(&options, &events, &seen, &error) == 0, "%s", error.text);
    ck_assert_uint_eq(seen.n_looks, STEPS);
    /* Each step takes every parameter down at least once, and its contribution up; a tied one twice. */
    ck_assert_uint_ge(seen.down_bytes, STEPS * seen.n_parameters * 4);
    ck_assert_uint_ge(seen.up_bytes, STEPS * seen.n_parameters * 4);
    ck_assert_uint_le(seen.up_bytes, STEPS * seen.n_parameters * 8);
}

static void on_puppet(void *user, const struct eps_worker *worker)
{
    ck_assert_str_eq(worker->device, "cuda");
    ck_assert_str_eq(worker->model, "a puppet");
    ck_assert_uint_eq(worker->budget, (uint64_t)4 << 30);
    ++*(unsigned *)user;
}

TEST(a_worker_is_shown_as_it_named_its_device)
{
    struct eps_observer *observer;
    unsigned n = 0;

    processes_daemon("lab", 0, NULL);
    puppet_start("lab", PUPPET_BESIDE);
    puppet_await("lab");
    ck_assert_int_eq(eps_observer_open(&observer, "lab", NULL, NULL, NULL), 0);
    ck_assert_int_eq(eps_observer_workers(observer, on_puppet, &n, NULL), 0);
    ck_assert_uint_eq(n, 1);
    eps_observer_close(observer);
}

/* Whoever does not read what ends its session is attached for a second more. */
TEST(a_worker_that_was_refused_is_not_shown)
{
    struct client_link viewer, refused;
    struct message m;

    processes_daemon("lab", 1, NULL);
    driver_look(&viewer, "lab");
    driver_attach(&refused, "lab", ROLE_WORKER);
    do
        driver_status(&viewer, &m);
    while (m.status_reply.n_workers < 2);
    client_link_send(&refused, &(struct message){.kind = MESSAGE_CLOSE}); /* which no worker sends */
    do
        driver_status(&viewer, &m);
    while (m.status_reply.n_workers > 1);
    client_link_send(&viewer, &(struct message){.kind = MESSAGE_MEMORY});
    client_link_send(&viewer, &(struct message){.kind = MESSAGE_WORKERS});
    for (unsigned i = 0; i < 2; i++) { /* the host, the other worker */
        driver_next(&viewer, &m);
        ck_assert_str_eq(message_name(m.kind), "MEMORY_REPLY");
        ck_assert(m.memory_reply.last == (i == 1));
    }
    driver_next(&viewer, &m);
    ck_assert_str_eq(message_name(m.kind), "WORKERS_REPLY");
    ck_assert(m.workers_reply.last);
    driver_status(&viewer, &m); /* and no more */
    client_link_free(&refused);
    client_link_free(&viewer);
}

/* Others read meanwhile, and one of them leaves before it is answered. */
TEST(who_asks_for_pages_many_times_is_answered_as_often)
{
    enum { N_ASKED = 100 };
    const struct message ask = {.kind = MESSAGE_MEMORY, .memory = {.pages = true}};
    struct client_link viewer, hasty;
    struct message m;

    processes_daemon("lab", 1, NULL);
    driver_look(&viewer, "lab");
    driver_look(&hasty, "lab");
    for (int i = 0; i < 2 * N_ASKED; i++)
        client_link_send(i < N_ASKED ? &hasty : &viewer, &ask);
    client_link_send(&hasty, &(struct message){.kind = MESSAGE_STATUS});
    do /* until all of its questions have been heard */
        driver_next(&hasty, &m);
    while (m.kind != MESSAGE_STATUS_REPLY);
    client_link_free(&hasty);
    for (unsigned i = 0; i < 2 * N_ASKED; i++) {
        driver_next(&viewer, &m);
        ck_assert_str_eq(message_name(m.kind), "MEMORY_REPLY");
        ck_assert(m.memory_reply.last == (i % 2 == 1));
        ck_assert(m.memory_reply.pages.known);
        ck_assert_uint_gt(m.memory_reply.pages.resident, 0);
    }
    driver_status(&viewer, &m); /* and no more often */
    client_link_free(&viewer);
}

/* Without a job there are no units, and no steps. */
TEST(a_page_past_the_last_unit_is_empty_and_padding_is_not_counted)
{
    const struct message ask = {.kind = MESSAGE_UNITS, .units = {.first = UINT32_MAX}};
    const struct eps_unit *units;
    struct eps_recent recent;
    struct eps_observer *observer;
    struct driver driver;
    struct client_link viewer;
    struct message m;
    size_t n = 1;

    processes_daemon("lab", 1, NULL);
    ck_assert_int_eq(eps_observer_open(&observer, "lab", NULL, NULL, NULL), 0);
    ck_assert_int_eq(eps_observer_units(observer, &units, &n, NULL), 0);
    ck_assert_uint_eq(n, 0);
    ck_assert_int_eq(eps_observer_recent(observer, &recent, NULL), 0);
    ck_assert_uint_eq(recent.n_losses, 0);
    ck_assert(isnan(recent.tokens_per_s) && isnan(recent.lr));
    eps_observer_close(observer);

    driver_open(&driver, "lab", &(struct driver_options){0});
    driver_train(&driver, 2);
    ck_assert_int_eq(eps_observer_open(&observer, "lab", NULL, NULL, NULL), 0);
    ck_assert_int_eq(eps_observer_recent(observer, &recent, NULL), 0);
    ck_assert_uint_eq(recent.tokens, 2 * (DRIVER_BATCH * DRIVER_SEQ - DRIVER_PADDING)); /* as the client counts */
    eps_observer_close(observer);
    driver_look(&viewer, "lab");
    client_link_send(&viewer, &ask);
    driver_next(&viewer, &m);
    ck_assert_str_eq(message_name(m.kind), "UNITS_REPLY");
    ck_assert_uint_eq(m.units_reply.n, 0);
    ck_assert_uint_gt(m.units_reply.n_units, 0);
    client_link_free(&viewer);
    driver_close(&driver);
}

/* The large vocabulary's folds outlast the worker that has sent all. */
TEST(a_job_without_workers_waits_for_one_once_a_step_is_open_that_needs_it)
{
    pid_t worker;
    struct driver driver;
    struct client_link viewer;
    struct message m;

    processes_daemon("lab", 1, &worker);
    driver_open(&driver, "lab", &(struct driver_options){.vocabulary = 20000});
    driver_look(&viewer, "lab");
    driver_begin(&driver);
    while (driver.arrived < 1 && driver.covered < 1)
        driver_turn(&driver);
    ck_assert_int_eq(kill(worker, SIGTERM), 0);
    while (!driver.n_lost)
        driver_turn(&driver);
    driver_status(&viewer, &m);
    ck_assert(!m.status_reply.waits);
    driver_await_done(&driver, 1);
    driver_status(&driver.link, &m);
    ck_assert(!m.status_reply.waits);
    driver_begin(&driver);
    driver_status(&driver.link, &m); /* behind OPEN_STEP */
    ck_assert(m.status_reply.waits);
    client_link_free(&viewer);
    driver_close(&driver);
}
