/* One step's gradient and 20 steps in 16 bits against PyTorch in float64, and PyTorch's own bf16 and fp16. */
#include "tests/kit/device/backend.h"
#include "tests/kit/fixtures/exact.h"
#include "tests/kit/test.h"

#include <math.h>

SUITE_LABELS(single, on_cuda_release, on_cudnn)

/* In fp16 with a scale of the loss, which the commit takes out again, as PyTorch's has. */
static const struct {
    const char *fixture;
    enum number_type type;
    double loss, course; /* of a loss; of those of 20 steps: in fp16 half a unit of what PyTorch gives */
} halves[] = {{"half", NUMBER_BF16, 1e-3, 5e-3}, {"half_fp16", NUMBER_FP16, 1.25e-4, 0x1p-9}};

/* Each tensor is no farther from float64 than PyTorch's type, whose activations, like ours, are rounded wherever they
 * are written; a quarter for how roundings fall. The gradient of a key bias, which is 0 but for rounding, is below what
 * PyTorch's comes to. The loss has nothing but roundings of 2^-9 of activations behind it, many and of either sign:
 * 1e-3 of it; in fp16, of which 2^-12 are the roundings, an eighth of that. Of 8 rows: the whole minibatch at once, in
 * two parts, and row by row in eight. */
TEST_EACH(a_gradient_in_16_bits_is_as_near_as_pytorchs, 3 * COUNT(halves))
{
    static const uint32_t cuts[][2] = {{1, 8}, {2, 3}, {8, 1}}; /* parts, rows of a microbatch */
    const bool is_scaled = halves[_i / 3].type == NUMBER_FP16;
    const struct inprocess_options how = {.n_parts = cuts[_i % 3][0],
                                          .microbatch = cuts[_i % 3][1],
                                          .adamw = is_scaled,
                                          .fenced = is_scaled,
                                          .precision = halves[_i / 3].type};
    const struct fixture_limits limits = {.singles = 1.25, .keys = 2e-4};
    struct exact exact;

    exact_open(&exact, halves[_i / 3].fixture, &how);
    const struct fixture_set set = fixture_gradient(&exact.fixture);
    ck_assert_double_eq_tol(exact_gradient(&exact), fixture_loss(&set, 0), halves[_i / 3].loss * fixture_loss(&set, 0));
    ck_assert_uint_eq(fixture_compare(&set, &limits, exact_find, &exact), 0);
    exact_close(&exact);
}

/* By AdamW of an fp32 master, which PyTorch has beside a model in 16 bits. Adam's first step goes by the sign alone:
 * what has a first gradient within rounding of 0 is left out. Of PyTorch's own two attentions one is 1.5 times as far
 * from float64 as the other at the worst tensor of half of all models, hence 2. */
TEST_EACH(twenty_steps_in_16_bits_are_as_near_as_pytorchs, !backend_get()->simulated && !SANITIZED ? COUNT(halves) : 0)
{
    const struct inprocess_options how = {.n_parts = 1,
                                          .microbatch = 4,
                                          .adamw = true,
                                          .fenced = halves[_i].type == NUMBER_FP16,
                                          .precision = halves[_i].type};
    struct exact exact;

    exact_open(&exact, halves[_i].fixture, &how);
    const struct fixture_set set = fixture_run(&exact.fixture, "adamw", 1);
    for (uint32_t step = 0; step < exact.fixture.n_steps; step++)
        ck_assert_double_eq_tol(exact_step(&exact, step), fixture_loss(&set, step), halves[_i].course);
    const struct fixture_limits limits = {.singles = 2, .keys = exact_farthest_key(&exact)};
    exact.segment = exact_weights(&exact);
    ck_assert_uint_eq(fixture_compare(&set, &limits, exact_find, &exact), 0);
    exact_close(&exact);
}

/* Residual nets by SGD with Nesterov's momentum. Weights and running statistics have fp32 masters; momentum is kept in
 * fp32, or in 16 bits, as PyTorch's is there. */
static const struct {
    const char *fixture;
    enum number_type type, momentum;
    uint32_t microbatch;
} nets[] = {
    {"half_wide", NUMBER_BF16, NUMBER_FP32, 3},
    {"half_wide", NUMBER_BF16, NUMBER_BF16, 8},
    {"half_basic", NUMBER_BF16, NUMBER_FP32, 8},
    {"half_basic", NUMBER_BF16, NUMBER_BF16, 1},
    {"half_bottleneck", NUMBER_BF16, NUMBER_FP32, 2},
    {"half_bottleneck", NUMBER_BF16, NUMBER_BF16, 5},
    {"half_fp16_wide", NUMBER_FP16, NUMBER_FP32, 8},
    {"half_fp16_wide", NUMBER_FP16, NUMBER_BF16, 3},
    {"half_fp16_basic", NUMBER_FP16, NUMBER_FP32, 1},
    {"half_fp16_basic", NUMBER_FP16, NUMBER_BF16, 8},
    {"half_fp16_bottleneck", NUMBER_FP16, NUMBER_FP32, 5},
    {"half_fp16_bottleneck", NUMBER_FP16, NUMBER_BF16, 2},
};

/* Each tensor, and the farthest loss of twenty, are at most twice as far from float64 as those of PyTorch's type. */
TEST_EACH(twenty_steps_of_nets_in_16_bits_are_as_near_as_pytorchs,
          !backend_get()->simulated && !SANITIZED ? COUNT(nets) : 0)
{
    const struct inprocess_options how = {.n_parts = 1,
                                          .microbatch = nets[_i].microbatch,
                                          .fenced = nets[_i].type == NUMBER_FP16,
                                          .precision = nets[_i].type,
                                          .moments = nets[_i].momentum};
    const char *const optimizer = nets[_i].momentum == NUMBER_FP32 ? "sgd" : "sgd_bf16";
    const struct fixture_limits limits = {.singles = 2};
    double ours = 0, pytorchs = 0;
    struct exact exact;

    exact_open(&exact, nets[_i].fixture, &how);
    const struct fixture_set set = fixture_run(&exact.fixture, optimizer, 1);
    for (uint32_t step = 0; step < exact.fixture.n_steps; step++) {
        ours = fmax(ours, fabs(exact_step(&exact, step) - fixture_loss(&set, step)));
        pytorchs = fmax(pytorchs, fixture_loss_distance(&set, step));
    }
    ck_assert_double_le(ours, 2 * pytorchs);
    exact.segment = exact_weights(&exact);
    ck_assert_uint_eq(fixture_compare(&set, &limits, exact_find, &exact), 0);
    exact_close(&exact);
}
