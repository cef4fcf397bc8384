/* GPT-2's own width and vocabulary, 50,257 x 768 tied, two blocks, against PyTorch: one step's gradient and 20 steps.
 * The embedding is cut into several units here, and contributions travel in slices. */
#include "tests/kit/exact.h"
#include "tests/kit/test.h"

SUITE_LABELS(release, slow)

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

TEST_EACH(a_large_gradient_is_pytorchs, COUNT(gradients))
{
    const struct inprocess_options how = options_of(&gradients[_i]);

    exact_check_gradient("c", &how);
}

TEST_EACH(twenty_large_steps_are_pytorchs, COUNT(runs))
{
    const struct inprocess_options how = options_of(&runs[_i]);

    exact_check_training("c", &how);
}
