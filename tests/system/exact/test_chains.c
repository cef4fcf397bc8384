/* Layers' inputs that are derived again, elementwise, train the bits of those that are stored. */
#include "tests/kit/device/backend.h"
#include "tests/kit/fixtures/exact.h"
#include "tests/kit/test.h"

SUITE_LABELS(slow, on_cuda_release)

/* Chains of up to three values, from a norm, or a norm and a pool, on; of two in the middle; without a shortcut, and
 * with a norm of its own. What is frozen, and what convolutions read as means. */
static const struct {
    const char *fixture;
    struct inprocess_options how;
} cases[] = {
    {"resnet_basic", {.n_parts = 2, .microbatch = 2}},
    {"resnet_basic", {.n_parts = 1, .microbatch = 3, .n_weight_buffers = 1}},
    {"resnet_basic", {.n_parts = 4, .microbatch = 1, .n_workers = 3, .deterministic = true, .adamw = true}},
    {"resnet_basic", {.n_parts = 2, .microbatch = 4, .fenced = true, .adamw = true, .freeze = "*layer3*"}},
    {"resnet_basic", {.n_parts = 2, .microbatch = 4, .sgd = true, .momentum = 0.9, .n_weight_buffers = 3}},
    {"resnet_bottleneck", {.n_parts = 2, .microbatch = 2}},
    {"resnet_bottleneck", {.n_parts = 1, .microbatch = 5, .freeze = "*conv1.weight"}},
    {"means_bottleneck", {.n_parts = 2, .microbatch = 1}},
};
enum { N_STEPS = 3 };

TEST_EACH(chains_change_no_bit, COUNT(cases) * COMMON_TYPES)
{
    struct inprocess_options how = cases[_i / COMMON_TYPES].how;
    const char *const fixture = cases[_i / COMMON_TYPES].fixture;
    struct exact exact;

    how.precision = (enum number_type)(_i % COMMON_TYPES);
    exact_train(&exact, fixture, &how, N_STEPS);
    const uint64_t expected = exact_digest(&exact, exact_weights(&exact));
    const uint64_t stash = exact.ip->workers[0].worker.plan.bytes[LEDGER_STASH];
    exact_close(&exact);
    how.derives = true;
    exact_train(&exact, fixture, &how, N_STEPS);
    ck_assert_uint_eq(exact_digest(&exact, exact_weights(&exact)), expected);
    ck_assert_uint_lt(exact.ip->workers[0].worker.plan.bytes[LEDGER_STASH], stash);
    exact_close(&exact);
}
