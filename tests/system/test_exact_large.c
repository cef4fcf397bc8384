/* GPT-2's own width and vocabulary, 50,257 x 768 tied, two blocks, against PyTorch: one step's gradient and 20 steps.
 * The embedding is cut into several units here, and contributions travel in slices. Skipped under a sanitizer, which
 * looks at the same code at smaller sizes in test_exact_gradients and test_exact_training. */
#include "tests/kit/exact.h"
#include "tests/kit/run.h"

#include <check.h>

/* A minibatch of 8 rows. */
static const struct cut {
    uint32_t n_parts, microbatch;
    bool adamw;
} gradients[] = {{1, 8, true}, {2, 2, true}, {8, 1, false}},
  runs[] = {{1, 8, true}, {8, 1, false}}; /* a minute each on two cores; test_exact_training has more cuts */

static struct inprocess_options options_of(const struct cut *cut)
{
    return (struct inprocess_options){.n_parts = cut->n_parts,
                                      .microbatch = cut->microbatch,
                                      .adamw = cut->adamw,
                                      .n_threads = 2};
}

START_TEST(a_large_gradient_is_pytorchs)
{
    const struct inprocess_options how = options_of(&gradients[_i]);

    exact_check_gradient("c", &how);
}
END_TEST

START_TEST(twenty_large_steps_are_pytorchs)
{
    const struct inprocess_options how = options_of(&runs[_i]);

    exact_check_training("c", &how);
}
END_TEST

int main(void)
{
    if (SANITIZED)
        return 77;
    TCase *tcase = tcase_create("large");

    tcase_add_loop_test(tcase, a_large_gradient_is_pytorchs, 0, (int)(sizeof gradients / sizeof *gradients));
    tcase_add_loop_test(tcase, twenty_large_steps_are_pytorchs, 0, (int)(sizeof runs / sizeof *runs));
    return run_tests(tcase);
}
