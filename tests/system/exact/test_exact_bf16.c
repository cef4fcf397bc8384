/* One step's gradient and 20 steps in bf16 against PyTorch in float64, and PyTorch's own bf16. */
#include "tests/kit/device/backend.h"
#include "tests/kit/fixtures/exact.h"
#include "tests/kit/test.h"

SUITE_LABELS(single, on_cuda_release, on_cudnn)

/* Each tensor is no farther from float64 than PyTorch's bf16, whose activations, like ours, are rounded wherever they are
 * written; a quarter for how roundings fall. The gradient of a key bias, which is 0 but for rounding, is below what
 * PyTorch's comes to. The loss has nothing but roundings of 2^-9 of activations behind it, many and of either sign: 1e-3
 * of it. Of 8 rows: the whole minibatch at once, in two parts, and row by row in eight. */
TEST_EACH(a_gradient_in_bf16_is_as_near_as_pytorchs, 3)
{
    static const uint32_t cuts[][2] = {{1, 8}, {2, 3}, {8, 1}}; /* parts, rows of a microbatch */
    const struct inprocess_options how = {.n_parts = cuts[_i][0], .microbatch = cuts[_i][1], .precision = NUMBER_BF16};
    const struct fixture_limits limits = {.singles = 1.25, .keys = 2e-4};
    struct exact exact;

    exact_open(&exact, "half", &how);
    const struct fixture_set set = fixture_gradient(&exact.fixture);
    ck_assert_double_eq_tol(exact_gradient(&exact), fixture_loss(&set, 0), 1e-3 * fixture_loss(&set, 0));
    ck_assert_uint_eq(fixture_compare(&set, &limits, exact_find, &exact), 0);
    exact_close(&exact);
}

/* By AdamW of an fp32 master, which PyTorch has beside a model in bf16. Adam's first step goes by the sign alone: what has
 * a first gradient within rounding of 0 is left out. Of PyTorch's own two attentions one is 1.5 times as far from float64
 * as the other at the worst tensor of half of all models, hence 2. */
TEST_IF(twenty_steps_in_bf16_are_as_near_as_pytorchs, !backend_get()->simulated && !SANITIZED)
{
    const struct inprocess_options how = {.n_parts = 1, .microbatch = 4, .adamw = true, .precision = NUMBER_BF16};
    struct exact exact;

    exact_open(&exact, "half", &how);
    const struct fixture_set set = fixture_run(&exact.fixture, "adamw", 1);
    for (uint32_t step = 0; step < exact.fixture.n_steps; step++)
        ck_assert_double_eq_tol(exact_step(&exact, step), fixture_loss(&set, step), 5e-3);
    const struct fixture_limits limits = {.singles = 2, .keys = exact_farthest_key(&exact)};
    exact.segment = exact_weights(&exact);
    ck_assert_uint_eq(fixture_compare(&set, &limits, exact_find, &exact), 0);
    exact_close(&exact);
}
