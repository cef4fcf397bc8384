/* Fenced commit in a real daemon: its worker is one of our own, which contributes what the test wants. */
#include "tests/run.h"

#include "proto/process.h"
#include "tests/driver.h"
#include "tests/processes.h"

#include <check.h>
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

/* What is not finite in step 1. Of two: that below the topmost, which comes right behind it; being
 * of the lower unit, it is judged first however late the optimizer thread wakes. */
enum fault { IN_FIRST_CONTRIBUTION, IN_LAST_CONTRIBUTION, IN_LOSS, NOWHERE, IN_FIRST_OF_TWO };

/* A worker without a device: asks for weights visit by visit, upwards, then again downwards, and contributes a pattern,
 * to the end of each step, whatever becomes of it. */
struct puppet {
    uv_loop_t loop;
    struct session *session;
    struct message assign;
    struct model model;
    struct segment inbox;
    enum fault fault;
    bool busy, backward, has_next;
    struct message share, next;
    uint32_t visit;
    uint32_t n_slots; /* with the daemon */
};

static float pattern(uint32_t visit, uint64_t i)
{
    return 1e-3f * (float)((int)((i * 7 + visit * 13) % 11) - 5);
}

static void ask_weights(struct puppet *p)
{
    struct message m = {.kind = MESSAGE_PULL};

    m.pull.version = p->share.share.step;
    m.pull.unit = p->model.visits[p->visit];
    session_send(p->session, &m);
}

static void fill_slot(struct puppet *p, uint32_t index, uint32_t visit)
{
    const struct model_unit *unit = &p->model.units[p->model.visits[visit]];
    float *slot = (float *)((char *)p->inbox.base + index * model_slot_bytes(&p->model, NUMBER_FP32));

    for (uint64_t i = 0; i < unit->n; i++)
        slot[i] = ldexpf(pattern(visit, i), (int)p->share.share.step); /* no step's norm is another's */
    if (p->share.share.step == 1 && p->fault == IN_FIRST_CONTRIBUTION && visit == p->model.n_visits - 1)
        slot[unit->n / 2] = NAN;
    if (p->share.share.step == 1 && p->fault == IN_FIRST_OF_TWO && visit == p->model.n_visits - 2)
        slot[unit->n / 2] = NAN;
    if (p->share.share.step == 1 && p->fault == IN_LAST_CONTRIBUTION && visit == 0)
        slot[unit->n - 1] = INFINITY;
}

static void announce_slot(struct puppet *p, uint32_t index, uint32_t visit)
{
    struct message m = {.kind = MESSAGE_CONTRIBUTION};

    m.contribution.step = p->share.share.step;
    m.contribution.visit = visit;
    m.contribution.slot = index;
    session_send(p->session, &m);
}

static void contribute(struct puppet *p)
{
    const bool two = p->share.share.step == 1 && p->fault == IN_FIRST_OF_TWO && p->visit == p->model.n_visits - 1;

    p->n_slots = two ? 2 : 1;
    if (two)
        fill_slot(p, 2, p->visit - 1);
    fill_slot(p, 1, p->visit);
    if (two)
        announce_slot(p, 2, p->visit - 1);
    announce_slot(p, 1, p->visit);
}

static void begin_step(struct puppet *p, const struct message *share)
{
    p->busy = true;
    p->backward = false;
    p->share = *share;
    p->visit = 0;
    ask_weights(p);
}

static void turn(struct puppet *p)
{
    const bool faulty = p->share.share.step == 1 && p->fault == IN_LOSS;
    const struct message m = {.kind = MESSAGE_LOSS,
                              .loss = {.step = p->share.share.step, .sum = faulty ? 0 : 64, .finite = !faulty}};

    p->backward = true;
    session_send(p->session, &m);
    ask_weights(p);
}

static void on_weights(struct puppet *p)
{
    if (p->backward) {
        contribute(p);
    } else if (p->visit + 1 < p->model.n_visits) {
        p->visit++;
        ask_weights(p);
    } else {
        turn(p);
    }
}

static void next_visit(struct puppet *p)
{
    if (--p->n_slots > 0)
        return;
    p->busy = p->visit > 0;
    if (p->busy) {
        p->visit--;
        ask_weights(p);
    } else if (p->has_next) {
        p->has_next = false;
        begin_step(p, &p->next);
    }
}

static void take_assignment(struct puppet *p, const struct message *m, const int *fds)
{
    struct message reply = {.kind = MESSAGE_ASSIGNED};
    struct error err = {""};

    if (model_init(&p->model, &m->assign.config, &err) ||
        segment_attach(&p->inbox, fds[1], 3 * model_slot_bytes(&p->model, NUMBER_FP32), SEGMENT_READ_WRITE, &err))
        _exit(1);
    for (uint32_t u = 0; u < p->model.n_units; u++)
        if (p->model.units[u].n_slices != 1)
            _exit(1);
    session_send(p->session, &reply);
}

static void on_message(struct session *s, const struct message *m, const int *fds, unsigned n_fds)
{
    struct puppet *p = session_data(s);

    (void)n_fds;
    if (m->kind == MESSAGE_ASSIGN) {
        take_assignment(p, m, fds);
    } else if (m->kind == MESSAGE_SHARE && p->busy) {
        p->has_next = true;
        p->next = *m;
    } else if (m->kind == MESSAGE_SHARE) {
        begin_step(p, m);
    } else if (m->kind == MESSAGE_WEIGHTS) {
        on_weights(p);
    } else if (m->kind == MESSAGE_FREE) {
        next_visit(p);
    } else if (m->kind == MESSAGE_RELEASE) { /* in the middle of a step too */
        p->busy = p->has_next = false;
        session_send(s, m);
    }
}

static void on_open(struct session *s, const struct message *welcome)
{
    (void)s, (void)welcome;
}

static void on_closed(struct session *s, const char *reason)
{
    (void)s, (void)reason;
    _exit(0);
}

static void play(const char *name, enum fault fault)
{
    static const struct session_events events = {on_open, on_message, on_closed};
    struct puppet *p = calloc(1, sizeof *p);
    struct message hello = {
        .kind = MESSAGE_HELLO,
        .hello = {.role = ROLE_WORKER, .pid = (uint32_t)getpid(), .device = "cpu", .budget = 1 << 30, .nonce = 77}};
    char directory[300];
    struct error err = {""};

    p->fault = fault;
    if (uv_loop_init(&p->loop) || session_directory(directory, sizeof directory, name, &err) ||
        session_connect(&p->session, &p->loop, directory, &hello, &events, p, &err))
        _exit(1);
    uv_run(&p->loop, UV_RUN_DEFAULT);
    _exit(1);
}

/* Before any session of this process. */
static pid_t start_puppet(const char *name, enum fault fault)
{
    const pid_t parent = getpid(), pid = fork();

    ck_assert_int_ge(pid, 0);
    if (pid > 0)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() == parent)
        play(name, fault);
    _exit(1);
}

static void await_worker(const char *name)
{
    struct client_link viewer;
    struct message status;

    driver_look(&viewer, name);
    do
        driver_status(&viewer, &status);
    while (!status.status_reply.n_workers);
    client_link_free(&viewer);
}

/* Until the optimizer thread has no contribution any more, as the daemon knows. */
static void await_no_fold(const char *name)
{
    struct client_link viewer;
    struct message m;
    bool any;

    driver_look(&viewer, name);
    do {
        client_link_send(&viewer, &(struct message){.kind = MESSAGE_UNITS});
        driver_next(&viewer, &m);
        any = false;
        for (uint32_t u = 0; u < m.units_reply.n; u++)
            any |= (m.units_reply.units[u] & ~UNIT_AHEAD) == UNIT_FOLDING;
    } while (any);
    client_link_free(&viewer);
}

/* Of all units' sums over their visits, in double, by the pattern. Powers of two change nothing but the exponent. */
static double expected_norm(int step)
{
    struct model_config config;
    struct model model;
    struct error err = {""};
    double sum = 0;

    ck_assert_int_eq(model_config_parse(&config, driver_config, strlen(driver_config), &err), 0);
    ck_assert_int_eq(model_init(&model, &config, &err), 0);
    for (uint32_t u = 0; u < model.n_units; u++)
        for (uint64_t i = 0; i < model.units[u].n; i++) {
            float g = 0;
            for (uint32_t v = 0; v < model.n_visits; v++)
                if (model.visits[v] == u)
                    g += pattern(v, i);
            sum += (double)g * g;
        }
    model_free(&model);
    return ldexp(sqrt(sum), step);
}

static void check_same(const char *out, const char *file, bool same)
{
    char command[1200];
    const int n = snprintf(command, sizeof command, "cmp -s '%s/step-1/%s' '%s/step-2/%s'", out, file, out, file);

    ck_assert_int_lt(n, (int)sizeof command);
    ck_assert_msg((system(command) == 0) == same, "%s of step 1 and step 2", file);
}

static const char *make_out(const char *name)
{
    const char *out = processes_path(name);

    ck_assert_int_eq(mkdir(out, 0777), 0);
    return out;
}

/* The worker goes on with the skipped step, and is given back its slots; the next step is as if it had not been. */
START_TEST(a_step_that_is_not_finite_leaves_weights_and_moments_bit_for_bit)
{
    const enum fault fault = (enum fault)_i;
    char name[24], out_name[24];
    struct driver driver;

    snprintf(name, sizeof name, "skip%d", _i);
    snprintf(out_name, sizeof out_name, "out%d", _i);
    const char *out = make_out(out_name);
    const struct driver_options options = {.fenced = true, .out = out};
    const pid_t daemon = processes_daemon(name, 0, NULL), worker = start_puppet(name, fault);

    await_worker(name);
    driver_open(&driver, name, &options);
    driver_train(&driver, 1);
    ck_assert(!driver.last_done.done.skipped);
    ck_assert_double_eq_tol(driver.last_done.done.grad_norm, expected_norm(0), 1e-12 * expected_norm(0));
    driver_ask_save(&driver, 1);
    driver_await_saves(&driver, 1);
    driver_train(&driver, 2);
    ck_assert(driver.last_done.done.skipped == (fault != NOWHERE));
    ck_assert(isnan(driver.last_done.done.grad_norm) == (fault != NOWHERE));
    ck_assert(isnan(driver.last_done.done.loss) == (fault == IN_LOSS));
    driver_ask_save(&driver, 2);
    driver_await_saves(&driver, 2);
    ck_assert_uint_eq(driver.n_saved, 2);
    check_same(out, "model.safetensors", fault != NOWHERE);
    check_same(out, "optimizer.safetensors", fault != NOWHERE);
    driver_train(&driver, 4);
    ck_assert(!driver.last_done.done.skipped);
    ck_assert_double_eq(driver.last_done.done.loss, 1); /* 64 nats over 64 tokens */
    ck_assert_double_eq_tol(driver.last_done.done.grad_norm, expected_norm(3), 1e-12 * expected_norm(3));
    driver_close(&driver);
    kill(worker, SIGKILL);
    kill(daemon, SIGKILL);
}
END_TEST

/* Its moments have had fewer updates than steps were done, which only a fenced run can have. */
START_TEST(a_run_in_which_a_step_was_skipped_resumes)
{
    const char *out = make_out("resumed");
    char from[1100];
    const int n = snprintf(from, sizeof from, "%s/step-2", out);
    const struct driver_options begun = {.fenced = true, .out = out},
                                fenced = {.fenced = true, .resume = from, .step = 2},
                                eager = {.resume = from, .step = 2};
    const pid_t daemon = processes_daemon("resumed", 0, NULL), worker = start_puppet("resumed", IN_LOSS);
    struct error err = {""};
    struct driver driver;

    ck_assert_int_lt(n, (int)sizeof from);
    await_worker("resumed");
    driver_open(&driver, "resumed", &begun);
    driver_train(&driver, 2);
    ck_assert(driver.last_done.done.skipped);
    driver_ask_save(&driver, 2);
    driver_await_saves(&driver, 1);
    driver_close(&driver);
    ck_assert_int_eq(driver_try(&driver, "resumed", &eager, &err), -EINVAL);
    ck_assert_msg(strstr(err.text, "have had 1 updates, and the checkpoint is of step 2") != NULL, "%s", err.text);
    driver_leave(&driver);
    driver_open(&driver, "resumed", &fenced);
    driver_train(&driver, 3);
    ck_assert(!driver.last_done.done.skipped);
    driver_close(&driver);
    kill(worker, SIGKILL);
    kill(daemon, SIGKILL);
}
END_TEST

/* The optimizer thread has the second of two contributions when the first ends the step. Were its end not heard of,
 * the slice would stay with that thread for ever: no step would end any more. */
START_TEST(a_step_is_skipped_while_other_contributions_are_folded)
{
    const struct driver_options options = {.fenced = true, .vocabulary = 6 * 8192}; /* units of 4 MiB take long */
    const pid_t daemon = processes_daemon("two", 0, NULL), worker = start_puppet("two", IN_FIRST_OF_TWO);
    struct driver driver;

    await_worker("two");
    driver_open(&driver, "two", &options);
    driver_train(&driver, 2);
    ck_assert(driver.last_done.done.skipped);
    await_no_fold("two"); /* before the next step is open */
    driver_train(&driver, 3);
    ck_assert(!driver.last_done.done.skipped);
    ck_assert_double_gt(driver.last_done.done.grad_norm, 0);
    driver_close(&driver);
    kill(worker, SIGKILL);
    kill(daemon, SIGKILL);
}
END_TEST

/* The update of so many rows outlasts the opening of the next step. */
START_TEST(what_is_told_of_a_step_is_its_own_when_the_next_is_open)
{
    const struct driver_options options = {.fenced = true, .vocabulary = 50000};
    const pid_t daemon = processes_daemon("own", 1, NULL);
    struct driver driver;

    driver_open(&driver, "own", &options);
    for (uint64_t step = 1; step <= 3; step++) {
        driver_await_covered(&driver, step - 1);
        driver_begin(&driver);
        driver_await_done(&driver, step - 1);
        ck_assert(step == 1 || driver.last_done.done.grad_norm > 0); /* false for NaN */
    }
    driver_await_done(&driver, 3);
    driver_close(&driver);
    kill(daemon, SIGKILL);
}
END_TEST

START_TEST(parts_that_adama_would_square_are_refused)
{
    const struct driver_options fenced = {.fenced = true, .n_parts = 2}, clipped = {.clip_norm = 1, .n_parts = 2},
                                summed = {.clip_norm = 1, .n_parts = 2, .adamw = true};
    const pid_t daemon = processes_daemon("parts", 2, NULL);
    struct driver driver;
    struct error err = {""};

    ck_assert_int_lt(driver_try(&driver, "parts", &fenced, &err), 0);
    ck_assert_msg(strstr(err.text, "choose --optimizer adamw") != NULL, "%s", err.text);
    driver_leave(&driver);
    ck_assert_int_lt(driver_try(&driver, "parts", &clipped, &err), 0);
    driver_leave(&driver);
    driver_open(&driver, "parts", &summed);
    driver_train(&driver, 2);
    ck_assert_double_gt(driver.last_done.done.grad_norm, 0);
    driver_close(&driver);
    kill(daemon, SIGKILL);
}
END_TEST

int main(void)
{
    TCase *cases = tcase_create("fence");

    tcase_add_unchecked_fixture(cases, processes_setup, processes_remove);
    tcase_set_timeout(cases, 60);
    tcase_add_loop_test(cases, a_step_that_is_not_finite_leaves_weights_and_moments_bit_for_bit, IN_FIRST_CONTRIBUTION,
                        NOWHERE + 1);
    tcase_add_test(cases, a_run_in_which_a_step_was_skipped_resumes);
    tcase_add_test(cases, a_step_is_skipped_while_other_contributions_are_folded);
    tcase_add_test(cases, what_is_told_of_a_step_is_its_own_when_the_next_is_open);
    tcase_add_test(cases, parts_that_adama_would_square_are_refused);
    return run_tests(cases);
}
