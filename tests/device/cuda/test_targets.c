/* Every operation of the CUDA backend has room on every device that its kernels are compiled for: shared memory of a
 * block, and registers, where nvcc has said how many a kernel takes (build/cuda-kernels.txt). */
#include "proto/operation/call.h"
#include "tests/kit/device/simulated.h"
#include "tests/kit/test.h"

#include <unistd.h>

SUITE_LABELS(cuda)

static const char *const targets[] = {"sm_80", "sm_86", "sm_89", "sm_90", "sm_100"};
enum { N_TARGETS = COUNT(targets), ROOM = 1 << 19 /* of each array */, SKEW = 4 /* bytes, which no pack fits */ };

#define ROWS  .m = 6, .n = 768
#define THIN  .m = 6, .n = 33
#define BATCH .n_rows = 2, .n_tokens = 3, .n = 768
#define LEAN  .n_rows = 2, .n_tokens = 3, .n = 33
#define DELTA .n_rows = 2, .n_tokens = 70, .n_heads = 2, .n_key_heads = 1
#define PART  .n_rows = 2, .n_elements = 3, .n = 768
#define BIT   .n_rows = 2, .n_elements = 3, .n = 33

static const double frequencies[8];
static const float bias[1];

/* Attention comes in each width of heads besides. */
static const struct call calls[] = {
    {CALL_matmul, .matmul = {ROWS, .k = 8, .a_stride = 8, .b_stride = 768, .c_stride = 768,
                             .epilogue = DEVICE_BIAS_ACTIVATION, .activation = MODEL_GELU}},
    {CALL_matmul, .matmul = {ROWS, .k = 8, .a_stride = 8, .b_stride = 768, .c_stride = 768,
                             .epilogue = DEVICE_ACTIVATION_GRADIENT, .activation = MODEL_GELU}},
    {CALL_activate, .activate = {.n = 768, .activation = MODEL_GELU}},
    {CALL_activate_backward, .activate_backward = {.n = 768, .activation = MODEL_GELU}},
    {CALL_add, .add = {.n = 768}},
    {CALL_add, .add = {.n = 33}},
    {CALL_reduce_rows, .reduce_rows = {ROWS, .stride = 768}},
    {CALL_reduce_rows, .reduce_rows = {THIN, .stride = 33}},
    {CALL_row_norms, .row_norms = {ROWS, .stride = 768}},
    {CALL_row_norms, .row_norms = {THIN, .stride = 33, .multiply = true}},
    {CALL_weigh_scores, .weigh_scores = {.n_rows = 2, .n_tokens = 40, .stride = 40}},
    {CALL_choose_rows, .choose_rows = {.n_rows = 1, .n_tokens = 40, .n_chosen = 12}},
    {CALL_gather_rows, .gather_rows = {.n_rows = 3, .n = 768, .stride = 768, .m = 2, .weights = bias}},
    {CALL_gather_rows, .gather_rows = {.n_rows = 3, .n = 33, .stride = 33, .m = 2}},
    {CALL_compress, .compress = {.n_rows = 2, .n = 100, .bits = 8}},
    {CALL_expand, .expand = {.n_rows = 2, .n = 100, .bits = 4}},
    {CALL_round_values, .round_values = {.n_rows = 2, .n = 100, .bits = 8}},
    {CALL_round_half, .round_half = {.n = 8, .type = NUMBER_BF16}},
    {CALL_round_half, .round_half = {.n = 8, .type = NUMBER_FP16}},
    {CALL_norm, .norm = {ROWS, .bias = calls}},
    {CALL_norm, .norm = {THIN, .bias = calls}},
    {CALL_norm_backward,
     .norm = {ROWS, .accumulate = true, .weight_gradient = (void *)calls, .bias_gradient = (void *)calls}},
    {CALL_norm_backward,
     .norm = {THIN, .accumulate = true, .weight_gradient = (void *)calls, .bias_gradient = (void *)calls}},
    {CALL_row_moments, .row_moments = {PART}},
    {CALL_row_moments, .row_moments = {BIT}},
    {CALL_row_moments_backward, .row_moments = {PART, .accumulate = true}},
    {CALL_row_moments_backward, .row_moments = {BIT, .accumulate = true}},
    {CALL_join_moments, .join_moments = {PART}},
    {CALL_join_moments_backward, .join_moments = {PART}},
    {CALL_batch_norm, .batch_norm = {PART}},
    {CALL_batch_norm, .batch_norm = {BIT}},
    {CALL_batch_norm_backward,
     .batch_norm = {PART, .accumulate = true, .weight_gradient = (void *)calls, .bias_gradient = (void *)calls}},
    {CALL_batch_norm_backward,
     .batch_norm = {BIT, .accumulate = true, .weight_gradient = (void *)calls, .bias_gradient = (void *)calls}},
    {CALL_running_statistics, .running_statistics = {.n = 768}},
    {CALL_running_gradient, .running_gradient = {.n = 33}},
    {CALL_rope, .rope = {.n_rows = 1,
                         .n_tokens = 3,
                         .n_heads = 2,
                         .head_width = 32,
                         .n_rotated = 16,
                         .frequencies = frequencies,
                         .stride = 64}},
    {CALL_sinusoid, .sinusoid = {BATCH}},
    {CALL_regroup, .regroup = {6, 2, 3, 32, NULL, NULL}},
    {CALL_regroup, .regroup = {6, 2, 3, 7, NULL, NULL}},
    {CALL_glu, .glu = {ROWS, .stride = 768, .activation = MODEL_SILU}},
    {CALL_glu_backward, .glu = {THIN, .stride = 33, .gradient_stride = 33, .activation = MODEL_SILU}},
    {CALL_split, .split = {6, 2, 32, 64, .x = NULL}},
    {CALL_join, .split = {6, 2, 7, 5, .x = NULL}},
    {CALL_head_gate, .head_gate = {6, 2, 32, .x = NULL}},
    {CALL_head_gate, .head_gate = {6, 2, 7, .x = NULL}},
    {CALL_head_gate_backward, .head_gate = {6, 2, 32, .x = NULL}},
    {CALL_head_gate_backward, .head_gate = {6, 2, 7, .x = NULL}},
    {CALL_xielu, .xielu = {.n = 768, .beta = 0.5f, .bound = -1e-6f}},
    {CALL_xielu, .xielu = {.n = 33, .beta = 0.5f, .bound = -1e-6f}},
    {CALL_xielu_backward, .xielu = {.n = 768, .of_positive = (void *)calls, .of_negative = (void *)calls}},
    {CALL_xielu_backward, .xielu = {.n = 33, .of_positive = (void *)calls, .of_negative = (void *)calls}},
    {CALL_dynamic_conv, .dynamic_conv = {BATCH, .n_heads = 4, .n_taps = 3, .n_before = 1}},
    {CALL_dynamic_conv, .dynamic_conv = {LEAN, .n_heads = 3, .n_taps = 31, .n_before = 30, .dropout.p = 0.1f}},
    {CALL_dynamic_conv_backward, .dynamic_conv = {BATCH, .n_heads = 4, .n_taps = 3, .n_before = 1}},
    {CALL_dynamic_conv_backward, .dynamic_conv = {LEAN, .n_heads = 3, .n_taps = 31, .n_before = 30}},
    {CALL_short_conv, .short_conv = {BATCH, .n_taps = 4, .silu = true}},
    {CALL_short_conv, .short_conv = {LEAN, .n_taps = 3, .gated = true}},
    {CALL_short_conv_backward, .short_conv = {BATCH, .n_taps = 4, .silu = true, .weight_gradient = (void *)calls,
                                              .bias_gradient = (void *)calls}},
    {CALL_short_conv_backward, .short_conv = {LEAN, .n_taps = 3, .gated = true, .weight_gradient = (void *)calls}},
    {CALL_short_conv_cached, .short_conv = {BATCH, .n_taps = 8, .gated = true}},
    {CALL_gated_delta, .gated_delta = {DELTA, .key_width = 128, .value_width = 128}},
    {CALL_gated_delta, .gated_delta = {DELTA, .key_width = 256, .value_width = 33}},
    {CALL_gated_delta_backward, .gated_delta = {DELTA, .key_width = 128, .value_width = 128,
                                                .a_log_gradient = (void *)calls, .dt_bias_gradient = (void *)calls}},
    {CALL_gated_delta_backward, .gated_delta = {DELTA, .key_width = 256, .value_width = 33}},
    {CALL_gated_delta_cached, .gated_delta = {DELTA, .key_width = 128, .value_width = 128}},
    {CALL_gated_delta_cached, .gated_delta = {DELTA, .key_width = 256, .value_width = 33}},
    {CALL_route, .route = {.m = 64, .n_experts = 128, .n_chosen = 8}},
    {CALL_route_backward, .route = {.m = 64, .n_experts = 128, .n_chosen = 8}},
    {CALL_experts, .experts = {.m = 64, .n = 96, .inner = 80, .n_experts = 4, .n_chosen = 2}},
    {CALL_experts_backward,
     .experts = {.m = 64, .n = 96, .inner = 80, .n_experts = 4, .n_chosen = 2, .gate_gradient = (void *)calls}},
    {CALL_dropout_add, .dropout_add = {BATCH}},
    {CALL_dropout_add, .dropout_add = {BATCH, .dropout.p = 0.1f}},
    {CALL_dropout_add, .dropout_add = {LEAN, .dropout.p = 0.1f}},
    {CALL_position, .position = {BATCH}},
    {CALL_position_backward, .position = {LEAN}},
    {CALL_pixels, .pixels = {.m = 6, .n = 3}},
    {CALL_embed, .embed = {ROWS, .n_table = 2}},
    {CALL_embed_backward, .embed = {.m = 2048, .n = 8, .n_table = 50257}},
    {CALL_soft_cap, .soft_cap = {.n = 768, .cap = 30}},
    {CALL_soft_cap, .soft_cap = {.n = 33, .cap = 30}},
    {CALL_log_sum_exp, .log_sum_exp = {ROWS, .logits_stride = 768, .start = true}},
    {CALL_log_sum_exp, .log_sum_exp = {THIN, .logits_stride = 33, .start = true}},
    {CALL_log_sum_exp, .log_sum_exp = {ROWS, .logits_stride = 768, .start = true, .bias = bias}},
    {CALL_log_sum_exp, .log_sum_exp = {THIN, .logits_stride = 33, .start = true, .bias = bias}},
    {CALL_loss, .loss = {.m = 6}},
    {CALL_cross_entropy_gradient, .cross_entropy_gradient = {ROWS, .logits_stride = 768}},
    {CALL_cross_entropy_gradient, .cross_entropy_gradient = {THIN, .logits_stride = 33}},
    {CALL_cross_entropy_gradient, .cross_entropy_gradient = {ROWS, .logits_stride = 768, .bias = bias}},
    {CALL_cross_entropy_gradient, .cross_entropy_gradient = {THIN, .logits_stride = 33, .bias = bias}},
    {CALL_cross_entropy_gradient, .cross_entropy_gradient = {THIN, .logits_stride = 33, .scales = bias}},
    {CALL_preference, .preference = {.n_pairs = 3, .n_tokens = 40}},
    {CALL_squared_error, .squared_error = {.m = 6, .logits_stride = 64, .bias = bias}},
    {CALL_squared_error_gradient, .squared_error = {.m = 6, .logits_stride = 64, .bias = bias}},
};

/* The call, its arrays side by side. */
static void run(struct device *dev, enum number_type type, struct call call, size_t skew)
{
    char *const arena = simulated.ops->arena(dev);
    struct call_work work;

    call_describe(&work, &call, &(struct call_device){&plan_cuda, type, 1, PLAN_ATTENTION_OWN, false, 0});
    for (unsigned i = 0; i < work.n_arrays; i++)
        call_set(&work.arrays[i], arena + i * ROOM + (work.arrays[i].type == CALL_VALUES ? skew : 0));
    call_run(simulated.ops, dev, &call);
}

static void attend(struct device *dev, enum number_type type, size_t n_heads, size_t head_width, size_t window, float p)
{
    const size_t width = n_heads * head_width;
    struct call call = {.kind = CALL_attention,
                        .attention = {.n_rows = 1,
                                      .n_tokens = 5,
                                      .n_heads = n_heads,
                                      .width = width,
                                      .window = window,
                                      .dropout.p = p}};

    run(dev, type, call, 0);
    call.kind = CALL_attention_backward;
    run(dev, type, call, 0);
    call.attention.full = true, call.attention.kv = calls, call.attention.n_keys = 3, call.attention.window = 0;
    run(dev, type, call, 0);
    call.kind = CALL_attention;
    run(dev, type, call, 0);
    call = (struct call){
        .kind = CALL_attention_cached,
        .attention_cached = {.n_tokens = 3, .n_heads = n_heads, .width = width, .window = window, .n_positions = 8}};
    run(dev, type, call, 0);
    call.attention_cached.bias = bias, call.attention_cached.buckets.n = 1;
    run(dev, type, call, 0);
}

SUITE_FIXTURE(simulated_load, NULL)

TEST_EACH(every_operation_has_room, N_TARGETS *NUMBER_TYPES)
{
    static const char table[] = BIN_DIR "/../cuda-kernels.txt";
    static const size_t head_widths[] = {16, 64, 128, 17, 256};
    const enum number_type type = (enum number_type)(_i / N_TARGETS);
    struct device *dev = simulated_open(type, CUDASIM_STREAMS_AS_ISSUED);
    struct error err = {""};

    simulated.target(targets[_i % N_TARGETS], access(table, R_OK) == 0 ? table : NULL);
    for (int i = 0; i < COUNT(head_widths); i++) {
        for (size_t window = 0; window <= 2; window += 2) {
            attend(dev, type, 1, head_widths[i], window, 0);
            attend(dev, type, 2, head_widths[i], window, 0.1f);
        }
    }
    for (int i = 0; i < COUNT(calls); i++)
        for (size_t skew = 0; skew <= SKEW; skew += SKEW)
            run(dev, type, calls[i], skew);
    ck_assert_msg(simulated.ops->finish(dev, DEVICE_COMPUTE, 0) == 0 || simulated.ops->fault(dev, &err) == 0, "%s: %s",
                  targets[_i % N_TARGETS], err.text);
    simulated.lose(cudaErrorLaunchFailure); /* nothing need run */
    simulated.ops->close(dev);
}
