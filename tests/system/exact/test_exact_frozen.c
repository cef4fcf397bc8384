/* Training with frozen tensors: PyTorch's with requires_grad=False, and the bits of training all of them. */
#include "proto/plan/search.h"
#include "tests/kit/device/backend.h"
#include "tests/kit/fixtures/exact.h"
#include "tests/kit/test.h"

#include <stdlib.h>
#include <string.h>

SUITE_LABELS(single, on_cuda_release)

/* The tied table; all but biases; all below the topmost block; the last norm; all but that norm; where blocks differ,
 * all of one kind, and others in whole and in part; where they are of several layers, single ones and all up to the
 * midst of a block. */
static const char *const fixtures[] = {"frozen_wte",       "frozen_weights",     "frozen_blocks",   "frozen_norm",
                                       "frozen_body",      "frozen_alternating", "frozen_chunked",  "frozen_experts",
                                       "frozen_part_norm", "frozen_crossing",    "frozen_pictures", "frozen_t5",
                                       "frozen_pixels",    "frozen_dynamic_conv"};

static const char *freeze_of(const char *fixture)
{
    static char patterns[MODEL_FREEZE_BYTES];
    struct fixture f;

    fixture_open_model(&f, fixture);
    snprintf(patterns, sizeof patterns, "%s", json_string_value(json_object_get(f.reference, "freeze")));
    fixture_close(&f);
    return patterns;
}

/* Frozen tensors in a form of their own. */
static const struct {
    const char *fixture;
    enum form base;
} bases[] = {{"base_bf16", FORM_BF16}, {"base_int8", FORM_INT8}, {"base_nf4", FORM_NF4}};

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

/* One worker with one part, or two workers with one each. A norm over the part is PyTorch's with one part alone: so
 * models that have it are at even places. */
TEST_EACH(all_steps_are_pytorchs, backend_get()->simulated ? 0 : COUNT(fixtures))
{
    const uint32_t n = 1 + (uint32_t)_i % 2;

    exact_check_training(fixtures[_i], &(struct inprocess_options){.freeze = freeze_of(fixtures[_i]),
                                                                   .n_parts = n,
                                                                   .n_workers = n,
                                                                   .microbatch = 4,
                                                                   .adamw = true});
}

/* In one part, and in four of two workers. */
TEST_EACH(all_steps_of_sgd_are_pytorchs, backend_get()->simulated ? 0 : 2)
{
    exact_check_training("sgd_frozen", &(struct inprocess_options){.freeze = freeze_of("sgd_frozen"),
                                                                   .n_parts = _i ? 4 : 1,
                                                                   .n_workers = 1 + (uint32_t)_i,
                                                                   .microbatch = 2});
}

/* Over the weights that bitsandbytes decodes. */
TEST_EACH(all_steps_over_a_base_are_pytorchs, backend_get()->simulated ? 0 : COUNT(bases))
{
    const uint32_t n = 1 + (uint32_t)_i % 2;

    exact_check_training(bases[_i].fixture, &(struct inprocess_options){.freeze = freeze_of(bases[_i].fixture),
                                                                        .base = bases[_i].base,
                                                                        .n_parts = n,
                                                                        .n_workers = n,
                                                                        .microbatch = 4,
                                                                        .adamw = true});
}

TEST_EACH(gradients_over_a_base_are_pytorchs, COUNT(bases))
{
    exact_check_gradient(bases[_i].fixture, &(struct inprocess_options){.freeze = freeze_of(bases[_i].fixture),
                                                                        .base = bases[_i].base,
                                                                        .n_parts = 1,
                                                                        .microbatch = 3});
}

/* Against the roomiest: the smallest budget, which has a stash on the host; some resident units, kept activations, or a
 * whole head; more weight buffers. On the simulated device each base is in one of the types. */
TEST_EACH(no_budget_changes_a_bit_over_a_base, COUNT(bases) * COMMON_TYPES)
{
    if (backend_get()->simulated && _i % COMMON_TYPES != _i / COMMON_TYPES % COMMON_TYPES)
        TEST_SKIP("too slow here, or of another device: other tests have it");
    const char *fixture = bases[_i / COMMON_TYPES].fixture;
    struct inprocess_options how = {.freeze = freeze_of(fixture),
                                    .base = bases[_i / COMMON_TYPES].base,
                                    .precision = (enum number_type)(_i % COMMON_TYPES),
                                    .budget = (uint64_t)1 << 30,
                                    .n_parts = 2,
                                    .microbatch = 2,
                                    .adamw = true};
    struct exact roomy, other;
    struct plan least;
    const uint32_t n_steps = backend_get()->simulated ? 1 : 3;

    exact_train(&roomy, fixture, &how, n_steps);
    const struct plan *most = &roomy.ip->workers[0].worker.plan;
    ck_assert_uint_gt(most->n_resident, 0);
    plan_smallest(&least, &roomy.ip->model, &most->setting, &(struct plan_wish){.microbatch = 2});
    const uint64_t smallest = plan_total(&least), largest = plan_total(most);
    for (uint64_t i = 0; i < (backend_get()->simulated ? 1 : 6); i++) {
        how.budget = smallest + i * (largest - smallest) / 6;
        how.n_weight_buffers = 1 + (uint32_t)i % 3;
        exact_train(&other, fixture, &how, n_steps);
        ck_assert_uint_eq(exact_digest(&roomy, exact_weights(&roomy)), exact_digest(&other, exact_weights(&other)));
        exact_close(&other);
    }
    exact_close(&roomy);
}

/* The same bits of a tensor in these segments. */
static void check_same(struct exact *a, const float *in_a, struct exact *b, const float *in_b,
                       const struct model_tensor *t)
{
    a->segment = in_a, b->segment = in_b;
    ck_assert_msg(memcmp(exact_find(a, t->name, t->n), exact_find(b, t->name, t->n), t->n * sizeof *a->tensor) == 0,
                  "%s", t->name);
}

/* One part or two workers; microbatches; recomputed, or by a planner that has room to keep everything. The simulated
 * device takes the first way alone, of every third fixture. */
static const struct inprocess_options ways[] = {
    {.n_parts = 1, .microbatch = 4},
    {.n_parts = 2, .microbatch = 3, .precision = NUMBER_BF16},
    {.n_parts = 2, .microbatch = 4, .budget = (uint64_t)1 << 30},
    {.n_parts = 1, .microbatch = 3, .budget = (uint64_t)1 << 30, .precision = NUMBER_BF16},
};

static int count_ways(void)
{
    return backend_get()->simulated ? 1 : COUNT(ways);
}

static int count_fixtures(void)
{
    return backend_get()->simulated ? COUNT(fixtures) / 3 : COUNT(fixtures);
}

/* In one step the same weights give the same gradient, whatever else is trained. */
TEST_EACH(a_trained_tensor_has_the_gradient_and_the_update_of_training_all, count_ways() * count_fixtures())
{
    const char *fixture = fixtures[_i / count_ways() * (COUNT(fixtures) / count_fixtures())];
    struct inprocess_options how = ways[_i % count_ways()];
    struct exact all, some;

    how.n_workers = how.n_parts, how.adamw = how.deterministic = true;
    exact_open(&all, fixture, &how);
    how.freeze = freeze_of(fixture);
    exact_open(&some, fixture, &how);
    exact_gradient(&all), exact_gradient(&some);
    const struct model *model = &some.ip->model;
    const bool keeps = how.budget && model->lowest_trained <= model->n_block_layers; /* else no block has a backward */
    ck_assert_int_eq(some.ip->workers[0].worker.plan.choice.keeping[0].n_kept > 0, keeps);
    const float *one = exact_weights(&all), *other = exact_weights(&some);
    for (const struct model_tensor *t = model->tensors; t < model->tensors + model->n_tensors; t++)
        if (!t->frozen) {
            check_same(&all, all.gradient, &some, some.gradient, t);
            check_same(&all, one, &some, other, t);
        }
    check_frozen(&some);
    exact_close(&all), exact_close(&some);
}

/* The smallest budget: boundaries on the host, one buffer; against the roomiest, over several steps. */
TEST_EACH(no_budget_changes_a_bit, backend_get()->simulated ? 0 : COUNT(fixtures))
{
    struct inprocess_options how = {.freeze = freeze_of(fixtures[_i]), .n_parts = 2, .microbatch = 2, .adamw = true};
    struct exact roomy, small;
    struct plan least;

    exact_train(&roomy, fixtures[_i], &how, 3);
    plan_smallest(&least, &roomy.ip->model, &roomy.ip->workers[0].worker.plan.setting,
                  &(struct plan_wish){.microbatch = 2});
    how.budget = plan_total(&least);
    exact_train(&small, fixtures[_i], &how, 3);
    ck_assert(small.ip->workers[0].worker.plan.choice.host_stash);
    ck_assert_uint_eq(exact_digest(&roomy, exact_weights(&roomy)), exact_digest(&small, exact_weights(&small)));
    check_frozen(&small);
    exact_close(&roomy), exact_close(&small);
}
