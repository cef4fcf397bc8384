/* Training with frozen tensors: PyTorch's with requires_grad=False, and the bits of training all of them. */
#include "tests/kit/device/backend.h"
#include "tests/kit/exact.h"
#include "tests/kit/test.h"

#include <stdlib.h>
#include <string.h>

SUITE_LABELS(single, on_cuda_release)

/* The tied table; all but biases; all below the topmost block; the last norm; all but that norm. */
static const char *const fixtures[] = {"frozen_wte", "frozen_weights", "frozen_blocks", "frozen_norm", "frozen_body"};

static const char *freeze_of(const char *fixture)
{
    static char patterns[MODEL_FREEZE_BYTES];
    struct fixture f;

    fixture_open(&f, fixture);
    snprintf(patterns, sizeof patterns, "%s", json_string_value(json_object_get(f.reference, "freeze")));
    fixture_close(&f);
    return patterns;
}

/* As they were drawn: in bf16, rounded to it once. */
static void check_frozen(struct exact *exact)
{
    const struct model *model = &exact->ip->model;
    float *drawn = calloc(model->largest_unit, sizeof *drawn);
    uint32_t n_frozen = 0;

    exact->segment = exact_weights(exact);
    for (const struct model_tensor *t = model->tensors; t < model->tensors + model->n_tensors; t++) {
        if (!t->frozen)
            continue;
        fixture_draw(drawn, &exact->fixture, t->name);
        for (uint64_t i = 0; exact->masters && i < t->n; i++)
            drawn[i] = number_from_bf16(number_to_bf16(drawn[i]));
        ck_assert_mem_eq(exact_find(exact, t->name, t->n), drawn, t->n * sizeof *drawn);
        n_frozen++;
    }
    ck_assert_uint_gt(n_frozen, 0);
    free(drawn);
}

/* One worker with one part; two workers with one each. */
TEST_EACH(twenty_steps_are_pytorchs, backend_get()->simulated ? 1 : 2 * COUNT(fixtures))
{
    const char *fixture = fixtures[_i % COUNT(fixtures)];
    const uint32_t n = _i < COUNT(fixtures) ? 1 : 2;
    const struct inprocess_options how = {
        .freeze = freeze_of(fixture), .n_parts = n, .n_workers = n, .microbatch = 4, .adamw = true};

    exact_check_training(fixture, &how);
}

/* Weights and gradient after one step. */
struct trained {
    struct exact exact;
    float *gradient;
};

static void train(struct trained *t, const char *fixture, const struct inprocess_options *how, uint32_t n_steps)
{
    exact_open(&t->exact, fixture, how);
    t->gradient = calloc(t->exact.ip->model.segment_n, sizeof *t->gradient);
    t->exact.ip->gradient = t->gradient;
    const struct hyper hyper = exact_hyper(&t->exact);
    for (uint32_t step = 0; step < n_steps; step++)
        exact_step(&t->exact, step, &hyper);
}

static void finish(struct trained *t)
{
    free(t->gradient);
    exact_close(&t->exact);
}

/* Of a tensor, a copy; owned. */
static float *copy(struct trained *t, const float *segment, const struct model_tensor *tensor)
{
    float *values = malloc(tensor->n * sizeof *values);

    ck_assert_ptr_nonnull(values);
    t->exact.segment = segment;
    memcpy(values, exact_find(&t->exact, tensor->name, tensor->n), tensor->n * sizeof *values);
    return values;
}

static void check_same(struct trained *a, const float *in_a, struct trained *b, const float *in_b,
                       const struct model_tensor *tensor)
{
    float *x = copy(a, in_a, tensor), *y = copy(b, in_b, tensor);

    ck_assert_msg(memcmp(x, y, tensor->n * sizeof *x) == 0, "%s", tensor->name);
    free(x), free(y);
}

static int count_ways(void)
{
    return backend_get()->simulated ? 2 : 16; /* there fp32 alone */
}

/* In one step the same weights give the same gradient, whatever else is trained. Precision; a part at once or in
 * microbatches; recomputed, or by a planner that has room to keep everything; one worker or two. */
TEST_EACH(a_trained_tensor_has_the_gradient_and_the_update_of_training_all, count_ways() * COUNT(fixtures))
{
    const char *fixture = fixtures[_i / count_ways()];
    const int way = _i % count_ways();
    const uint32_t n_parts = way & 1 ? 2 : 1;
    struct inprocess_options how = {.n_parts = n_parts,
                                    .n_workers = n_parts,
                                    .adamw = true,
                                    .deterministic = true,
                                    .precision = way & 2 ? NUMBER_BF16 : NUMBER_FP32,
                                    .microbatch = way & 4 ? 3 : 4,
                                    .budget = way & 8 ? (uint64_t)1 << 30 : 0};
    struct trained all, some;

    train(&all, fixture, &how, 1);
    how.freeze = freeze_of(fixture);
    train(&some, fixture, &how, 1);
    const struct model *model = &some.exact.ip->model;
    const bool keeps = way & 8 && model->lowest_trained <= model->config.n_layers; /* else no block has a backward */
    ck_assert_int_eq(some.exact.ip->workers[0].worker.plan.choice.n_kept > 0, keeps);
    const float *one = exact_weights(&all.exact), *other = exact_weights(&some.exact);
    for (const struct model_tensor *t = model->tensors; t < model->tensors + model->n_tensors; t++)
        if (!t->frozen) {
            check_same(&all, all.gradient, &some, some.gradient, t);
            check_same(&all, one, &some, other, t);
        }
    check_frozen(&some.exact);
    finish(&all), finish(&some);
}

/* The smallest budget: boundaries on the host, one buffer; against the roomiest, over several steps. */
TEST_EACH(no_budget_changes_a_bit, backend_get()->simulated ? 0 : COUNT(fixtures))
{
    struct inprocess_options how = {.freeze = freeze_of(fixtures[_i]), .n_parts = 2, .microbatch = 2, .adamw = true};
    struct trained roomy, small;

    train(&roomy, fixtures[_i], &how, 3);
    how.n_weight_buffers = 1;
    how.budget = plan_total(&roomy.exact.ip->workers[0].worker.plan);
    for (uint64_t less = how.budget / 2; less > 64; less /= 2) {
        struct inprocess_options tried = how;
        struct inprocess *ip;
        tried.config = roomy.exact.ip->options.config;
        tried.batch = roomy.exact.fixture.batch, tried.seq = roomy.exact.fixture.seq;
        tried.budget -= less;
        if (inprocess_open(&ip, &tried, NULL) == 0) {
            how.budget = tried.budget;
            inprocess_close(ip);
        }
    }
    train(&small, fixtures[_i], &how, 3);
    ck_assert(small.exact.ip->workers[0].worker.plan.choice.host_stash);
    ck_assert_uint_eq(exact_digest(&roomy.exact, exact_weights(&roomy.exact)),
                      exact_digest(&small.exact, exact_weights(&small.exact)));
    check_frozen(&small.exact);
    finish(&roomy), finish(&small);
}
