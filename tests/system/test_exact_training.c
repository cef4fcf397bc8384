/* Twenty steps against PyTorch in float64: AdamW in 1, 2 and 8 parts, AdamA with as many microbatches. */
#include "tests/kit/device/backend.h"
#include "tests/kit/exact.h"
#include "tests/kit/test.h"

#include <math.h>

SUITE_LABELS(single, slow, on_cuda_release)

static const struct {
    const char *fixture;
    uint32_t n_parts, microbatch;
    bool adamw;
} runs[] = {
    {"a", 1, 4, true},  {"a", 2, 4, true},   {"a", 8, 1, true},  {"a", 1, 8, false},
    {"a", 2, 1, false}, {"a", 8, 1, false},  {"b", 1, 3, true},  {"b", 2, 8, true},
    {"b", 8, 2, true},  {"b", 1, 16, false}, {"b", 2, 4, false}, {"b", 8, 1, false},
};

/* The simulated device leaves out what is the optimizer's, on the host. */
static bool simulated(void)
{
    return backend_get()->simulated;
}

enum { N_STEPS = SANITIZED ? 4 : 20 };

/* Under a sanitizer the last alone: of AdamA, in the most parts and microbatches. */
static int first_run(void)
{
    return SANITIZED && !simulated() ? COUNT(runs) - 1 : 0;
}

TEST_RANGE(twenty_steps_are_pytorchs, first_run(), simulated() ? 1 : COUNT(runs))
{
    const struct inprocess_options how = {.n_parts = runs[_i].n_parts,
                                          .microbatch = runs[_i].microbatch,
                                          .adamw = runs[_i].adamw};

    exact_check_training(runs[_i].fixture, &how);
}

/* By clip_grad_norm_, before which PyTorch has the norm: the same as a sum in double of fp32 contributions, whose own
 * rounding is 1e-6 of it. */
TEST_RANGE(twenty_clipped_steps_are_pytorchs, 1, simulated() ? 1 : SANITIZED ? 2 : 3)
{
    struct fixture fixture;
    struct inprocess_options how = {.n_parts = (uint32_t)_i, .microbatch = 1, .adamw = true, .fenced = true};
    struct exact exact;
    unsigned n_clipped = 0;

    fixture_open(&fixture, "clip");
    how.clip_norm = json_number_value(json_object_get(fixture.reference, "clip_norm"));
    exact_check_training("clip", &how);

    exact_open(&exact, "clip", &how);
    const struct hyper hyper = exact_hyper(&exact);
    const json_t *norms = json_object_get(fixture.reference, "norms");
    ck_assert_uint_eq(json_array_size(norms), fixture.n_steps);
    for (uint32_t step = 0; step < fixture.n_steps; step++) {
        const double norm = json_number_value(json_array_get(norms, step));
        exact_step(&exact, step, &hyper);
        ck_assert_double_eq_tol(exact.ip->norm, norm, 1e-5 * norm);
        n_clipped += norm > how.clip_norm;
    }
    ck_assert_uint_gt(n_clipped, 3); /* and some are not: */
    ck_assert_uint_lt(n_clipped, fixture.n_steps - 3);
    exact_close(&exact);
    fixture_close(&fixture);
}

static void train_as(struct exact *exact, const struct inprocess_options *how, uint32_t n_steps)
{
    exact_open(exact, "a", how);
    const struct hyper hyper = exact_hyper(exact);
    for (uint32_t step = 0; step < n_steps; step++)
        exact_step(exact, step, &hyper);
}

static void train(struct exact *exact, bool adamw, uint32_t n_parts, uint32_t n_steps)
{
    const struct inprocess_options how = {.n_parts = n_parts, .microbatch = 1, .adamw = adamw};

    train_as(exact, &how, n_steps);
}

/* AdamW in 1 and 4 parts, AdamA in one. */
TEST_EACH(a_fenced_commit_is_the_eager_one_bit_for_bit, simulated() ? 0 : 3)
{
    const struct inprocess_options eager = {.n_parts = _i == 1 ? 4 : 1, .microbatch = 1, .adamw = _i < 2};
    struct inprocess_options fenced = eager;
    struct exact one, other;

    fenced.fenced = true;
    train_as(&one, &eager, N_STEPS);
    train_as(&other, &fenced, N_STEPS);
    ck_assert_uint_eq(exact_digest(&one, exact_weights(&one)), exact_digest(&other, exact_weights(&other)));
    ck_assert_uint_eq(exact_digest(&one, one.ip->store.m), exact_digest(&other, other.ip->store.m));
    ck_assert_uint_eq(exact_digest(&one, one.ip->store.v), exact_digest(&other, other.ip->store.v));
    exact_close(&one);
    exact_close(&other);
}

TEST_IF(adama_in_one_part_is_adamw_bit_for_bit, !simulated())
{
    struct exact adama, adamw;

    train(&adama, false, 1, N_STEPS);
    train(&adamw, true, 1, N_STEPS);
    ck_assert_uint_eq(exact_digest(&adama, exact_weights(&adama)), exact_digest(&adamw, exact_weights(&adamw)));
    ck_assert_uint_eq(exact_digest(&adama, adama.ip->store.m), exact_digest(&adamw, adamw.ip->store.m));
    ck_assert_uint_eq(exact_digest(&adama, adama.ip->store.v), exact_digest(&adamw, adamw.ip->store.v));
    exact_close(&adama);
    exact_close(&adamw);
}

/* m collects the parts' gradients, whose sum is AdamW's: equal but for the order of rounding (8 additions of 6e-8).
 * v collects squares of parts: by Cauchy-Schwarz AdamW's is at most P times AdamA's. */
TEST_IF(adamas_m_is_adamws_and_its_v_at_least_an_eighth, !simulated())
{
    struct exact adama, adamw;
    double apart = 0, norm = 0;

    train(&adama, false, 8, 1);
    train(&adamw, true, 8, 1);
    const struct model *model = &adama.ip->model;
    for (uint32_t u = 0; u < model->n_units; u++) {
        for (uint64_t i = 0; i < model->units[u].n; i++) {
            const uint64_t at = model->units[u].offset + i;
            const double a = adama.ip->store.m[at], w = adamw.ip->store.m[at];
            apart += (a - w) * (a - w);
            norm += w * w;
            ck_assert_double_le(adamw.ip->store.v[at], 8 * 1.00001 * adama.ip->store.v[at] + 1e-30);
        }
    }
    ck_assert_double_gt(norm, 0);
    ck_assert_double_le(sqrt(apart / norm), 5e-7);
    exact_close(&adama);
    exact_close(&adamw);
}
