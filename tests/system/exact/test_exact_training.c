/* Twenty steps, ten of families that only tests have, against PyTorch in float64: AdamW in 1, 2 and 8 parts, AdamA with
 * as many microbatches, SGD in 1 and 4, clipped norms, steps that drop blocks. */
#include "tests/kit/device/backend.h"
#include "tests/kit/fixtures/exact.h"
#include "tests/kit/test.h"

SUITE_LABELS(single, slow, on_cuda_release)

/* AdamA in one part is AdamW (test_exact_same). Clipped as by clip_grad_norm_. */
static const struct {
    const char *fixture;
    uint32_t n_parts, microbatch;
    bool adamw, fenced;
} runs[] = {
    {"a", 1, 4, true, false},
    {"a", 2, 4, true, false},
    {"a", 8, 1, true, false},
    {"a", 2, 1, false, false},
    {"b", 1, 3, true, false},
    {"b", 8, 2, true, false},
    {"b", 2, 4, false, false},
    {"clip", 1, 1, true, true},
    {"clip", 2, 1, true, true},
    {"drop", 1, 3, true, false},
    {"drop", 2, 4, true, false},
    {"drop", 1, 5, true, true},
    {"drop", 2, 1, false, false},
    {"drop", 8, 2, false, false},
    {"widths", 1, 3, true, false},
    {"widths", 2, 4, false, false},
    {"guests", 1, 3, true, false},
    {"guests", 2, 4, false, false},
    {"alternating", 1, 3, true, false},
    {"alternating", 2, 4, false, false},
    {"chunked", 1, 3, true, false},
    {"chunked", 2, 4, false, false},
    {"experts", 1, 8, true, false},
    {"experts", 2, 1, false, false},
    {"pixels", 1, 4, true, false},
    {"pixels", 2, 3, false, false},
    {"wide_resnet", 1, 3, true, false},
    {"wide_resnet", 2, 3, false, false},
    {"resnet_basic", 1, 8, true, false},
    {"resnet_basic", 2, 1, false, false},
    {"resnet_bottleneck", 1, 5, true, false},
    {"resnet_bottleneck", 2, 2, false, false},
    {"pooled_wide", 1, 3, true, false},
    {"pooled_wide", 2, 3, false, false},
    {"means_bottleneck", 2, 2, false, false},
    {"ghost_wide", 1, 2, true, false},
    {"ghost_wide", 2, 4, false, false},
    {"ghost_bottleneck", 1, 8, true, false},
    {"ghost_bottleneck", 2, 4, false, false},
    {"sparse_wide", 1, 3, true, false},
    {"sparse_wide", 2, 3, false, false},
    {"sparse_conv", 1, 3, true, false},
    {"sparse_conv", 2, 4, false, false},
    {"crossing", 1, 3, true, false},
    {"crossing", 2, 4, false, false},
    {"t5", 1, 3, true, false},
    {"t5", 2, 4, false, false},
    {"t5_gated", 1, 8, true, false},
    {"t5_gated", 2, 1, false, false},
    {"dynamic_conv", 1, 3, true, false},
    {"dynamic_conv", 2, 4, false, false},
    {"dynamic_conv_gated", 1, 8, true, false},
    {"dynamic_conv_gated", 2, 1, false, false},
    {"drop_t5", 1, 3, true, false},
    {"drop_t5", 1, 5, true, true},
    {"drop_t5", 2, 4, false, false},
    {"drop_dynamic_conv", 1, 3, true, false},
    {"drop_dynamic_conv", 2, 1, false, false},
    {"order_alternating", 1, 3, true, false},
    {"order_alternating", 2, 4, false, false},
    {"order_dynamic_conv", 1, 5, true, true},
    {"order_dynamic_conv", 2, 1, false, false},
    {"part_norm", 1, 3, true, false},
    {"part_norm", 2, 1, false, false},
    {"pictures", 1, 3, true, false},
    {"pictures", 2, 1, false, false},
    {"sgd", 1, 8, false, false},
    {"sgd", 4, 1, false, false},
    {"sgd", 4, 2, false, true},
    {"sgd_nesterov", 1, 3, false, false},
    {"sgd_nesterov", 4, 2, false, false},
    {"sgd_plain", 1, 5, false, false},
    {"sgd_plain", 4, 1, false, false},
    {"sgd_clip", 4, 2, false, true},
    {"b", 8, 1, false, false},
};

/* The simulated device leaves out what is the optimizer's, on the host. Under a sanitizer the last alone: of AdamA, in
 * the most parts and microbatches. */
TEST_RANGE(all_steps_are_pytorchs, SANITIZED && !backend_get()->simulated ? COUNT(runs) - 1 : 0,
           backend_get()->simulated ? 1 : COUNT(runs))
{
    exact_check_training(runs[_i].fixture, &(struct inprocess_options){.n_parts = runs[_i].n_parts,
                                                                       .microbatch = runs[_i].microbatch,
                                                                       .adamw = runs[_i].adamw,
                                                                       .fenced = runs[_i].fenced});
}
