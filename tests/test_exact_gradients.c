/* One step's gradient against PyTorch in float64, however the minibatch is cut. */
#include "tests/exact.h"

#include <check.h>
#include <stdlib.h>

/* Within 1e-5 of a tensor's norm, and at most twice as far as PyTorch's own fp32. The gradient of a key bias is
 * rounding alone, 1e-8 in PyTorch with gradients of order 1; ten times that is the bound. */
static const struct fixture_limits limits = {.relative = 1e-5, .singles = 2, .keys = 1e-7};

/* b has 16 rows, the others 8. */
static const struct {
    const char *fixture;
    uint32_t n_parts, microbatch;
    bool adamw;
} cuts[] = {
    {"a", 1, 8, true}, {"a", 1, 1, true},  {"a", 1, 2, false}, {"a", 2, 4, true},  {"a", 2, 2, false},
    {"a", 8, 1, true}, {"a", 8, 1, false}, {"b", 1, 16, true}, {"b", 1, 4, false}, {"b", 2, 8, false},
    {"b", 2, 1, true}, {"b", 8, 2, true},  {"b", 8, 1, false},
};

START_TEST(a_gradient_is_pytorchs)
{
    const struct inprocess_options how = {.n_parts = cuts[_i].n_parts,
                                          .microbatch = cuts[_i].microbatch,
                                          .adamw = cuts[_i].adamw,
                                          .n_threads = 2};
    struct exact exact;
    struct fixture_set set;
    float *gradient;

    exact_open(&exact, cuts[_i].fixture, &how);
    gradient = calloc(exact.ip->model.segment_n, sizeof *gradient);
    ck_assert_ptr_nonnull(gradient);
    exact.ip->gradient = gradient;
    set = fixture_gradient(&exact.fixture);

    const struct eps_hyper hyper = exact_hyper(&exact);
    const double loss = exact_step(&exact, 0, &hyper);
    ck_assert_double_eq_tol(loss, fixture_loss(&set, 0), 1e-6 * fixture_loss(&set, 0)); /* fp32 rounding of a mean */
    exact.segment = gradient;
    ck_assert_uint_eq(fixture_compare(&set, &limits, exact_find, &exact), 0);
    exact_close(&exact);
    free(gradient);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("exact gradients");
    TCase *tcase = tcase_create("cuts");
    SRunner *runner = srunner_create(suite);
    int n_failed;

    suite_add_tcase(suite, tcase);
    tcase_add_loop_test(tcase, a_gradient_is_pytorchs, 0, (int)(sizeof cuts / sizeof *cuts));
    srunner_run_all(runner, CK_NORMAL);
    n_failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return n_failed != 0;
}
