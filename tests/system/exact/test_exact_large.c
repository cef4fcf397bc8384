/* GPT-2's own width and vocabulary, 50,257 x 768 tied, two blocks, against PyTorch: one step's gradient and six steps.
 * The embedding is cut into several units here, and contributions travel in slices. */
#include "tests/kit/fixtures/exact.h"
#include "tests/kit/test.h"

SUITE_LABELS(release, slow)

/* Of 8 rows. test_exact_training has more cuts, and more steps. */
TEST(a_large_gradient_is_pytorchs)
{
    exact_check_gradient("c", &(struct inprocess_options){.n_parts = 2, .microbatch = 1});
}

TEST(six_large_steps_are_pytorchs)
{
    exact_check_training("c", &(struct inprocess_options){.n_parts = 1, .microbatch = 8, .adamw = true});
}
