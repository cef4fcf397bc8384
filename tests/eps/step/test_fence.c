/* Fenced commit in a real daemon, whose worker contributes what the test wants. */
#include "tests/kit/command.h"
#include "tests/kit/driver.h"
#include "tests/kit/inprocess/plain.h"
#include "tests/kit/inprocess/store_fixture.h"
#include "tests/kit/outputs.h"
#include "tests/kit/processes.h"
#include "tests/kit/puppet.h"
#include "tests/kit/test.h"

#include "eps/step/fence.h"
#include "proto/model/file/checkpoint.h"
#include "proto/wire/training_text.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Until the optimizer thread has a contribution, or none any more, as the daemon knows. */
static void await_fold(const char *name, bool wanted)
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
    } while (any != wanted);
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
                    g += puppet_pattern(v, i);
            sum += (double)g * g;
        }
    model_free(&model);
    return ldexp(sqrt(sum), step);
}

/* A daemon and its worker: a puppet, if the daemon has no workers of its own. */
static void begin(uint32_t n_workers, enum puppet_fault fault)
{
    processes_daemon("lab", n_workers, NULL);
    if (n_workers > 0)
        return;
    puppet_start("lab", fault);
    puppet_await("lab");
}

SUITE_TIMEOUT(60)
SUITE_FIXTURE(processes_setup, processes_remove)

/* The worker goes on with the skipped step, and is given back its slots; the next step is as if it had not been. */
TEST_RANGE(a_step_that_is_not_finite_leaves_weights_and_moments_bit_for_bit, PUPPET_IN_FIRST_CONTRIBUTION,
           PUPPET_NOWHERE + 1)
{
    const enum puppet_fault fault = (enum puppet_fault)_i;
    const struct driver_options options = {.fenced = true, .out = outputs_make("out")};
    struct driver driver;

    begin(0, fault);
    driver_open(&driver, "lab", &options);
    driver_save(&driver, 1);
    ck_assert(!driver.last_done.done.skipped);
    ck_assert_double_eq_tol(driver.last_done.done.grad_norm, expected_norm(0), 1e-12 * expected_norm(0));
    driver_save(&driver, 2);
    ck_assert(driver.last_done.done.skipped == (fault != PUPPET_NOWHERE));
    ck_assert(isnan(driver.last_done.done.grad_norm) == (fault != PUPPET_NOWHERE));
    ck_assert(isnan(driver.last_done.done.loss) == (fault != PUPPET_NOWHERE)); /* whether it is told before the fault */
    ck_assert_uint_eq(driver.n_saved, 2);
    for (int i = 0; i < 2; i++) {
        const char *file = i ? CHECKPOINT_MOMENTS : CHECKPOINT_WEIGHTS;
        const bool same = system(print("cmp -s out/step-1/%s out/step-2/%s", file, file)) == 0;
        ck_assert_msg(same == (fault != PUPPET_NOWHERE), "%s", file);
    }
    driver_train(&driver, 4);
    ck_assert(!driver.last_done.done.skipped);
    ck_assert_double_eq(driver.last_done.done.loss, 1); /* 64 nats over 64 tokens */
    ck_assert_double_eq_tol(driver.last_done.done.grad_norm, expected_norm(3), 1e-12 * expected_norm(3));
    driver_close(&driver);
}

/* PyTorch's GradScaler: 2,000 steps double it, one that overflows halves it, and the count begins anew. */
TEST(a_scale_grows_after_2000_clean_steps_and_falls_at_once)
{
    struct loss_scale scale = {.value = 65536};
    struct fence fence = {.scale = &scale};

    for (unsigned i = 1; i < 2000; i++)
        ck_assert(fence_commit(&fence, 65536, 0) == 0x1p-16f && scale.value == 65536 && scale.n_clean == i);
    ck_assert(fence_commit(&fence, 65536, 0.25) == (float)(0.25 / (1 + 1e-6) / 65536) && fence.norm == 1);
    ck_assert(scale.value == 131072 && scale.n_clean == 0);
    ck_assert(fence_commit(&fence, 131072, 0) == 0x1p-17f && scale.n_clean == 1);
    fence_skip(&fence, 7);
    ck_assert(scale.value == 65536 && scale.n_clean == 0 && fence.skipped && fence.n_past == 8);
    scale.value = 0; /* none */
    fence_skip(&fence, 8);
    ck_assert(fence_commit(&fence, 3, 0) == 1 && fence.norm == 3 && scale.value == 0 && scale.n_clean == 0);
}

/* Stores of several types, and optimizers. */
static const struct {
    struct store_options store;
    double clip_norm; /* 0: none */
} scaled[] = {
    {{.precision = NUMBER_FP16}, 0},
    {{.precision = NUMBER_FP16}, 0.25},
    {{.precision = NUMBER_FP16, .moments = NUMBER_BF16, .sums = NUMBER_BF16}, 0.25},
    {{.precision = NUMBER_FP16, .no_master = true}, 0},
    {{.precision = NUMBER_FP16, .clip_update = 0.5}, 0},
    {{.precision = NUMBER_FP16, .sgd = true, .momentum = 0.9}, 0},
    {{.precision = NUMBER_FP16, .sgd = true, .nesterov = true, .momentum = 0.9}, 0.25},
};

static void open_scaled(struct store_fixture *f, int i)
{
    struct store_options options = scaled[i].store;

    options.train = options.fenced = true;
    store_fixture_open_as(f, store_fixture_small, true, &options);
    ck_assert_int_eq(store_draw(&f->store, 5), 0);
}

/* Two parts' contributions of a loss times `scale`, and the step's end. Returns the gradient's norm. */
static double commit_scaled(struct store_fixture *f, int i, double scale, uint64_t step)
{
    struct hyper hp = {.lr = 1e-2, .weight_decay = 0.1};
    struct loss_scale loss_scale = {.value = scale};
    double squares = 0;
    float *g = plain_zeros(f->model.largest_unit, sizeof *g);

    hp.sgd = scaled[i].store.sgd, hp.nesterov = scaled[i].store.nesterov, hp.momentum = scaled[i].store.momentum;
    if (!hp.sgd)
        hp.beta1 = 0.9, hp.beta2 = 0.99, hp.epsilon = 1e-8;
    for (uint32_t u = 0; u < f->model.n_units; u++) {
        for (uint32_t part = 0; part < 2; part++) {
            for (uint64_t k = 0; k < f->model.units[u].n; k++)
                g[k] = (float)scale * plain_number(k, 100 * step + 10 * u + part);
            store_fixture_fold(f, u, &(struct store_given){.g = g, .first = part == 0, .part = part}, STORE_FOLD_HOLD,
                               &hp);
        }
        squares += store_sum_squares(&f->store, u);
    }
    struct fence fence = {.scale = &loss_scale};
    hp.grad_scale = fence_commit(&fence, sqrt(squares), scaled[i].clip_norm);
    for (uint32_t u = 0; u < f->model.n_units; u++)
        ck_assert_int_eq(store_update(&f->store, u, STORE_FOLD_HOLD, &hp), 0);
    free(g);
    return fence.norm;
}

/* The scale is a power of two, so it changes exponents alone, and nothing is left of it: weights, moments and the norm
 * are the same bits. */
TEST_EACH(the_update_of_a_scaled_loss_is_that_of_the_loss, COUNT(scaled))
{
    struct store_fixture drawn, plain, other;

    open_scaled(&drawn, _i);
    for (int exponent = 1; exponent <= 24; exponent += 23) {
        open_scaled(&plain, _i);
        open_scaled(&other, _i);
        for (uint64_t step = 1; step <= 3; step++)
            ck_assert_double_eq(commit_scaled(&plain, _i, 1, step),
                                commit_scaled(&other, _i, ldexp(1, exponent), step));
        store_fixture_same_stores(&plain, &other);
        struct store_values before = store_fixture_values(&drawn, 0), after = store_fixture_values(&plain, 0);
        ck_assert_mem_ne(before.w, after.w, drawn.model.units[0].n * sizeof *before.w);
        store_values_free(&before), store_values_free(&after);
        store_fixture_close(&plain);
        store_fixture_close(&other);
    }
    store_fixture_close(&drawn);
}

/* A puppet's contributions overflow in its second step. */
TEST(a_job_in_fp16_goes_on_with_half_the_scale)
{
    const struct driver_options options = {.fenced = true, .fp16 = true};
    struct driver driver;

    begin(0, PUPPET_IN_FIRST_CONTRIBUTION);
    driver_open(&driver, "lab", &options);
    driver_train(&driver, 1);
    ck_assert(!driver.last_done.done.skipped && driver.last_done.done.loss_scale == 65536);
    ck_assert_double_eq_tol(driver.last_done.done.grad_norm, ldexp(expected_norm(0), -16),
                            ldexp(1e-12, -16) * expected_norm(0));
    driver_train(&driver, 2);
    ck_assert(driver.last_done.done.skipped && driver.last_done.done.loss_scale == 65536);
    driver_train(&driver, 3);
    ck_assert(!driver.last_done.done.skipped && driver.last_done.done.loss_scale == 32768);
    ck_assert_double_eq_tol(driver.last_done.done.grad_norm, ldexp(expected_norm(2), -15),
                            ldexp(1e-12, -15) * expected_norm(2));
    driver_close(&driver);
}

/* Asked for while the step is open, and partly folded, that halves it: the checkpoint is then of the version behind
 * it. */
TEST(a_checkpoint_has_the_scale_of_its_own_version)
{
    const struct driver_options options = {.fenced = true,
                                           .fp16 = true,
                                           .vocabulary = 6 * 8192, /* units of 4 MiB take long */
                                           .out = outputs_make("out"),
                                           .side = "{\"options\": {}}"};
    struct driver driver;

    begin(0, PUPPET_IN_LAST_CONTRIBUTION);
    driver_open(&driver, "lab", &options);
    driver_train(&driver, 1);
    driver_begin(&driver);
    await_fold("lab", true);
    driver_ask_save(&driver, MESSAGE_NO_STEP);
    driver_await_saves(&driver, 1);
    driver_await_done(&driver, 2);
    ck_assert(driver.last_done.done.skipped);
    const bool behind = driver.saved[0] == 2;
    json_t *training = json_load_file(print("out/step-%u/training.json", behind ? 2 : 1), 0, NULL),
           *scale = json_object_get(json_object_get(training, "options"), "loss_scale");
    ck_assert_double_eq(json_number_value(json_object_get(scale, "value")), behind ? 32768 : 65536);
    ck_assert_int_eq(json_integer_value(json_object_get(scale, "clean_steps")), behind ? 0 : 1);
    json_decref(training);
    driver_close(&driver);
}

/* Its moments have had fewer updates than steps were done. More than those they cannot have had. */
TEST(a_run_in_which_a_step_was_skipped_resumes)
{
    const char *from = "out/step-2";
    const struct driver_options begun = {.fenced = true, .out = outputs_make("out")},
                                fenced = {.fenced = true, .resume = from, .step = 2},
                                earlier = {.fenced = true, .resume = from, .step = 0};
    struct error err = {""};
    struct driver driver;

    begin(0, PUPPET_IN_LOSS);
    driver_open(&driver, "lab", &begun);
    driver_save(&driver, 2);
    ck_assert(driver.last_done.done.skipped);
    driver_close(&driver);
    ck_assert_int_eq(driver_try(&driver, "lab", &earlier, &err), -EINVAL);
    ck_assert_holds(err.text, "1 updates", "step 0");
    driver_leave(&driver);
    driver_open(&driver, "lab", &fenced);
    driver_train(&driver, 3);
    ck_assert(!driver.last_done.done.skipped);
    driver_close(&driver);
}

/* The optimizer thread has the second of two contributions when the first ends the step. Were its end not heard of,
 * the slice would stay with that thread for ever: no step would end any more. */
TEST(a_step_is_skipped_while_other_contributions_are_folded)
{
    const struct driver_options options = {.fenced = true, .vocabulary = 6 * 8192}; /* units of 4 MiB take long */
    struct driver driver;

    begin(0, PUPPET_IN_FIRST_OF_TWO);
    driver_open(&driver, "lab", &options);
    driver_train(&driver, 2);
    ck_assert(driver.last_done.done.skipped);
    await_fold("lab", false); /* before the next step is open */
    driver_train(&driver, 3);
    ck_assert(!driver.last_done.done.skipped);
    ck_assert_double_gt(driver.last_done.done.grad_norm, 0);
    driver_close(&driver);
}

struct seen {
    pid_t pid;
    bool has_memory, forward; /* in the job; in its forward pass */
};

static void see(void *user, const struct eps_worker *worker)
{
    struct seen *seen = user;

    if ((pid_t)worker->pid == seen->pid) {
        seen->has_memory = worker->microbatch > 0;
        seen->forward = strcmp(worker->phase, "forward") == 0;
    }
}

static void look_at(struct seen *seen)
{
    struct eps_error error;
    struct eps_observer *look;

    *seen = (struct seen){.pid = seen->pid};
    ck_assert_int_eq(eps_observer_open(&look, "lab", NULL, NULL, &error), 0);
    ck_assert_int_eq(eps_observer_workers(look, see, seen, &error), 0);
    eps_observer_close(look);
}

static bool has_memory(void *user)
{
    struct seen *seen = user;

    look_at(seen);
    return seen->has_memory;
}

static bool is_forward(struct seen *seen)
{
    look_at(seen);
    return seen->forward;
}

static bool has_workers(void *n)
{
    return processes_workers("lab") == *(uint32_t *)n;
}

static void bury(pid_t pid, uint32_t n_left)
{
    ck_assert_int_eq(kill(pid, SIGKILL), 0);
    ck_assert(processes_until(has_workers, &n_left));
}

/* The first worker's loss is finite, and it dies; those of the next two are not, so the step is skipped. The third is
 * no more at fault than the second, and when it dies, it gets no part: the second has the next step, dies in it, and
 * the fourth ends it. */
TEST(a_part_that_is_not_finite_twice_leaves_no_worker_behind)
{
    const struct driver_options options = {.fenced = true};
    struct seen second = {0};
    struct error err = {""};
    struct driver driver;

    begin(0, PUPPET_DIES);
    second.pid = puppet_start("lab", PUPPET_IN_LOSS);
    processes_await_workers("lab", 2);
    const pid_t third = puppet_start("lab", PUPPET_IN_LOSS);
    processes_await_workers("lab", 3);
    driver_open(&driver, "lab", &options);
    driver_train(&driver, 2);
    ck_assert(driver.last_done.done.skipped);
    bury(third, 1);
    ck_assert(processes_until(has_memory, &second));
    ck_assert_int_eq(kill(second.pid, SIGSTOP), 0);
    driver_begin(&driver);
    while (!is_forward(&second))
        ck_assert_int_eq(client_link_pause(&driver.link, 10, &err), 0);
    bury(second.pid, 0);
    processes_start("eps-worker", (const char *const[]){"--connect", "lab", "--device-mem", "256MiB", NULL}, NULL);
    driver_await_done(&driver, 3);
    ck_assert(!driver.last_done.done.skipped);
    driver_close(&driver);
}

/* The update of so many rows outlasts the opening of the next step. */
TEST(what_is_told_of_a_step_is_its_own_when_the_next_is_open)
{
    const struct driver_options options = {.fenced = true, .vocabulary = 50000};
    struct driver driver;

    begin(1, PUPPET_NOWHERE);
    driver_open(&driver, "lab", &options);
    for (uint64_t step = 1; step <= 3; step++) {
        driver_await_covered(&driver, step - 1);
        driver_begin(&driver);
        driver_await_done(&driver, step - 1);
        ck_assert(step == 1 || driver.last_done.done.grad_norm > 0); /* false for NaN */
    }
    driver_await_done(&driver, 3);
    driver_close(&driver);
}

TEST(parts_that_adama_would_square_are_refused)
{
    const struct driver_options refused[] = {{.fenced = true, .n_parts = 2}, {.clip_norm = 1, .n_parts = 2}},
                                summed = {.clip_norm = 1, .n_parts = 2, .adamw = true};
    struct driver driver;
    struct error err = {""};

    begin(2, PUPPET_NOWHERE);
    for (int i = 0; i < COUNT(refused); i++) {
        ck_assert_int_lt(driver_try(&driver, "lab", &refused[i], &err), 0);
        ck_assert_holds(err.text, "choose --optimizer adamw");
        driver_leave(&driver);
    }
    driver_open(&driver, "lab", &summed);
    driver_train(&driver, 2);
    ck_assert_double_gt(driver.last_done.done.grad_norm, 0);
    driver_close(&driver);
}
