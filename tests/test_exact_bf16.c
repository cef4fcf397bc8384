/* One step's gradient in bf16 against PyTorch in float64, and PyTorch's own bf16. */
#include "tests/fixture_step.h"
#include "tests/run.h"

#include <check.h>

/* Rows of a part, of a microbatch: the whole minibatch at once, and row by row in eight parts. */
static const uint32_t cuts[][2] = {{8, 8}, {4, 3}, {1, 1}};
enum { N_CUTS = sizeof cuts / sizeof *cuts };

/* Each tensor is no farther from float64 than PyTorch's bf16, whose activations, like ours, are rounded wherever they are
 * written; a quarter for how roundings fall. The gradient of a key bias, which is 0 but for rounding, is below what
 * PyTorch's comes to. The loss has nothing but roundings of 2^-9 of activations behind it, many and of either sign: 1e-3
 * of it. */
START_TEST(a_gradient_in_bf16_is_as_near_as_pytorchs)
{
    const struct fixture_limits limits = {.singles = 1.25, .keys = 2e-4};
    struct fixture_step step;

    fixture_step_open(&step, "half", NUMBER_BF16);
    const struct fixture_set set = fixture_gradient(&step.fixture);
    const double loss = fixture_step_run(&step, cuts[_i][0], cuts[_i][1]);
    ck_assert_double_eq_tol(loss, fixture_loss(&set, 0), 1e-3 * fixture_loss(&set, 0));
    ck_assert_uint_eq(fixture_compare(&set, &limits, fixture_step_find, &step), 0);
    fixture_step_close(&step);
}
END_TEST

int main(void)
{
    TCase *tcase = tcase_create("bf16");

    tcase_add_loop_test(tcase, a_gradient_in_bf16_is_as_near_as_pytorchs, 0, N_CUTS);
    return run_tests(tcase);
}
