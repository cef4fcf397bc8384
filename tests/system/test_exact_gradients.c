/* One step's gradient against PyTorch in float64, however the minibatch is cut. */
#include "tests/kit/device/backend.h"
#include "tests/kit/exact.h"
#include "tests/kit/test.h"

SUITE_LABELS(single, on_cuda_release)

/* b has 16 rows, a 8. The first ones are enough for a device that is simulated and for a sanitizer. */
static const struct {
    const char *fixture;
    uint32_t n_parts, microbatch;
    bool adamw;
} cuts[] = {
    {"a", 1, 8, true}, {"b", 1, 5, false}, {"a", 8, 1, false}, {"a", 1, 1, true},  {"a", 1, 3, false},
    {"a", 2, 4, true}, {"a", 2, 2, false}, {"a", 8, 1, true},  {"b", 1, 16, true}, {"b", 2, 8, false},
    {"b", 2, 1, true}, {"b", 8, 2, true},  {"b", 8, 1, false},
};

TEST_EACH(a_gradient_is_pytorchs, backend_get()->simulated ? 2 : SANITIZED ? 3 : COUNT(cuts))
{
    const struct inprocess_options how = {.n_parts = cuts[_i].n_parts,
                                          .microbatch = cuts[_i].microbatch,
                                          .adamw = cuts[_i].adamw,
                                          .n_threads = 2};

    exact_check_gradient(cuts[_i].fixture, &how);
}
