/* Layers in segments, whose inputs are computed again, train the bits of those whose inputs are all there. */
#include "proto/plan/memory/segments.h"
#include "tests/kit/device/backend.h"
#include "tests/kit/fixtures/exact.h"
#include "tests/kit/test.h"

SUITE_LABELS(single, slow)

/* Blocks that steps leave out, or run in another order; sums to which several layers add; two kinds of block; values
 * that all layers of a decoder read, or norms over parts; inputs of several sizes; what is frozen, adapted or
 * sparse. */
static const struct {
    const char *fixture;
    struct inprocess_options how;
} cases[] = {
    {"b", {.n_parts = 2, .microbatch = 2}},
    {"b", {.n_parts = 4, .microbatch = 1, .n_workers = 3, .deterministic = true, .n_weight_buffers = 1}},
    {"b", {.n_parts = 2, .microbatch = 2, .n_weight_buffers = 3, .fenced = true, .adamw = true}},
    {"sgd", {.n_parts = 2, .microbatch = 2, .replay = true}},
    {"drop", {.n_parts = 2, .microbatch = 2}},
    {"drop_t5", {.n_parts = 2, .microbatch = 3, .n_weight_buffers = 1}},
    {"drop_dynamic_conv", {.n_parts = 2, .microbatch = 2}},
    {"order_alternating", {.n_parts = 2, .microbatch = 2}},
    {"order_dynamic_conv", {.n_parts = 2, .microbatch = 3, .adamw = true}},
    {"alternating", {.n_parts = 2, .microbatch = 2}},
    {"chunked", {.n_parts = 2, .microbatch = 2, .n_weight_buffers = 3}},
    {"experts", {.n_parts = 2, .microbatch = 2}},
    {"crossing", {.n_parts = 2, .microbatch = 2, .n_weight_buffers = 1}},
    {"part_norm", {.n_parts = 2, .microbatch = 2}},
    {"t5", {.n_parts = 2, .microbatch = 2}},
    {"dynamic_conv_gated", {.n_parts = 2, .microbatch = 2}},
    {"pictures", {.n_parts = 2, .microbatch = 1}},
    {"wide_resnet", {.n_parts = 2, .microbatch = 2}},
    {"resnet_basic", {.n_parts = 2, .microbatch = 1, .n_weight_buffers = 1}},
    {"resnet_bottleneck", {.n_parts = 2, .microbatch = 2}},
    {"pooled_wide", {.n_parts = 2, .microbatch = 2}},
    {"ghost_wide", {.n_parts = 2, .microbatch = 2, .fenced = true, .adamw = true}},
    {"sparse_wide", {.n_parts = 2, .microbatch = 2}},
    {"frozen_blocks", {.n_parts = 2, .microbatch = 2}},
    {"frozen_t5", {.n_parts = 2, .microbatch = 2}},
    {"lora_gpt2", {.n_parts = 2, .microbatch = 2}},
    {"lora_gpt2_nf4", {.n_parts = 2, .microbatch = 2, .base = FORM_NF4, .n_weight_buffers = 1}},
};
enum { N_STEPS = 3 };

/* Visits that a step computes again. */
static uint32_t count_again(const struct device_worker *worker)
{
    uint32_t n = 0;

    for (uint32_t s = 0; s <= worker->plan.choice.n_cuts; s++)
        n += plan_again_of(&worker->plan.choice, &worker->model, s).n;
    return n;
}

TEST_EACH(segments_change_no_bit, COUNT(cases) * COMMON_TYPES)
{
    struct inprocess_options how = cases[_i / COMMON_TYPES].how;
    const char *const fixture = cases[_i / COMMON_TYPES].fixture;
    struct exact exact;
    uint32_t before = 0;

    how.precision = (enum number_type)(_i % COMMON_TYPES);
    exact_train(&exact, fixture, &how, N_STEPS);
    const uint64_t expected = exact_digest(&exact, exact_weights(&exact));
    const uint64_t bytes = exact.ip->workers[0].worker.plan.bytes[LEDGER_STASH];
    exact_close(&exact);
    for (how.saved_eighths = 4; how.saved_eighths <= 8; how.saved_eighths += 4) {
        exact_train(&exact, fixture, &how, N_STEPS);
        const struct device_worker *worker = &exact.ip->workers[0].worker;
        ck_assert_uint_eq(exact_digest(&exact, exact_weights(&exact)), expected);
        ck_assert_uint_lt(worker->plan.bytes[LEDGER_STASH], bytes);
        ck_assert_uint_ge(count_again(worker), before);
        before = count_again(worker);
        exact_close(&exact);
    }
    ck_assert_uint_gt(before, 0);
}
