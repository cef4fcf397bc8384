/* What calls say of themselves, by hand; and tables whose operations are calls. */
#include "proto/operation/call.h"
#include "tests/kit/device/extents.h"
#include "tests/kit/test.h"

#include <math.h>
#include <string.h>

static const struct call_device fp32 = {&plan_cuda, NUMBER_FP32, 1, PLAN_ATTENTION_OWN, true, 0},
                                bf16 = {&plan_cuda, NUMBER_BF16, 1, PLAN_ATTENTION_OWN, true, 0};

static const char given[1]; /* an array that is there */

static const struct {
    struct call call;
    enum call_rate rate;
    double operations;
    size_t rows;
} computing[] = {
    {{CALL_matmul, .matmul = {.m = 3, .n = 5, .k = 7}}, CALL_RATE_PRODUCT, 210, 3},
    {{CALL_matmul, .matmul = {.m = 3, .n = 5, .k = 7, .over_rows = true}}, CALL_RATE_PRODUCT, 210, 7},
    /* 8 queries, of which each sees 2 of its row's 4 keys, on average; all of them; 1.5 of the last two. */
    {{CALL_attention, .attention = {2, 4, .n_heads = 3, .width = 6}}, CALL_RATE_ATTENTION, 384, 0},
    {{CALL_attention, .attention = {2, 4, .n_heads = 3, .width = 6, .full = true}}, CALL_RATE_ATTENTION, 768, 0},
    {{CALL_attention, .attention = {2, 4, .n_heads = 3, .width = 6, .window = 2}}, CALL_RATE_ATTENTION, 288, 0},
    {{CALL_attention, .attention = {2, 4, .n_heads = 3, .width = 6, .window = 9}}, CALL_RATE_ATTENTION, 384, 0},
    {{CALL_attention_backward, .attention = {2, 4, .n_heads = 3, .width = 6}}, CALL_RATE_ATTENTION_BACKWARD, 960, 0},
    /* 8 queries, of which each sees the 5 keys that another array has for its row. */
    {{CALL_attention, .attention = {2, 4, .n_heads = 3, .width = 6, .full = true, .kv = given, .n_keys = 5}},
     CALL_RATE_ATTENTION,
     4 * 8 * 5 * 6,
     0},
    {{CALL_attention_backward, .attention = {2, 4, .n_heads = 3, .width = 6, .full = true, .kv = given, .n_keys = 5}},
     CALL_RATE_ATTENTION_BACKWARD,
     10 * 8 * 5 * 6,
     0},
    /* 2 queries that see 4 keys and 5, of which a window leaves 4 each; 4 from the first on, which see 1 to 4, or 2 at
     * most. */
    {{CALL_attention_cached, .attention_cached = {3, 2, .n_heads = 3, .width = 6, .n_positions = 8}},
     CALL_RATE_ATTENTION,
     4 * (4 + 5) * 6,
     0},
    {{CALL_attention_cached, .attention_cached = {3, 2, .n_heads = 3, .width = 6, .n_positions = 8, .window = 4}},
     CALL_RATE_ATTENTION,
     4 * (4 + 4) * 6,
     0},
    {{CALL_attention_cached, .attention_cached = {0, 4, .n_heads = 3, .width = 6, .n_positions = 8}},
     CALL_RATE_ATTENTION,
     4 * (1 + 2 + 3 + 4) * 6,
     0},
    {{CALL_attention_cached, .attention_cached = {0, 4, .n_heads = 3, .width = 6, .n_positions = 8, .window = 2}},
     CALL_RATE_ATTENTION,
     4 * (1 + 2 + 2 + 2) * 6,
     0},
    {{CALL_attention_cached, .attention_cached = {2, 3, .n_heads = 3, .width = 6, .n_positions = 8, .window = 2}},
     CALL_RATE_ATTENTION,
     4 * (2 + 2 + 2) * 6,
     0},
    {{CALL_norm, .norm = {.m = 3, .n = 5}}, CALL_RATE_NONE, 0, 0},
    /* 2 images of 3 x 2 results: 5 channels, each of 3 x 3 taps of 4 of the 8 channels. */
    {{CALL_conv2d, .conv2d = {2, 5, 4, .n_in = 8, .n_out = 10, .n_groups = 2, .window = {3, 3, 2, 1}}},
     CALL_RATE_CONV2D,
     2 * 12 * 10 * 36,
     12},
    {{CALL_conv2d_weight_gradient, .conv2d = {2, 5, 4, .n_in = 8, .n_out = 10, .n_groups = 2, .window = {3, 3, 2, 1}}},
     CALL_RATE_CONV2D,
     2 * 12 * 10 * 36,
     12},
};

TEST_EACH(a_call_says_how_much_it_computes, COUNT(computing))
{
    struct call call = computing[_i].call;
    struct call_work work;

    call_describe(&work, &call, &fp32);
    ck_assert_int_eq(work.rate, computing[_i].rate);
    ck_assert_double_eq(work.operations, computing[_i].operations);
    ck_assert_uint_eq(work.rows, computing[_i].rows);
}

/* On 132 multiprocessors, in bf16, by hand. Full rows: 2 tiles of queries of 12 heads are 24 blocks, a round that 132
 * would fit; of 300 heads 600, five rounds. Causal rows: 8 tiles of 12 heads are 96, of which the longest has 16 / 9 of
 * a mean one's keys; of 64 heads 512, and none waits. Of gradients there are 4 and 16 tiles of queries and of keys: 48,
 * 1,200 and 192 blocks, in shares of 3 and 4 of 7. */
static const struct {
    bool full;
    size_t n_tokens, n_heads;
    double forward, backward;
} idle[] = {
    {true, 256, 12, 132 / 24.0, 132 / 48.0},
    {true, 256, 300, 5 * 132 / 600.0, 10 * 132 / 1200.0},
    {false, 1024, 12, 16 / 9.0 * 132 / 96, 32 / 17.0 * 132 / 192},
    {false, 1024, 64, 1, 1},
};

TEST_EACH(attention_lasts_as_long_as_its_last_blocks, COUNT(idle))
{
    const struct call_device known = {&plan_cuda, NUMBER_BF16, 1, PLAN_ATTENTION_OWN, false, 132};
    struct call call = {CALL_attention, .attention = {.n_rows = 1,
                                                      .n_tokens = idle[_i].n_tokens,
                                                      .n_heads = idle[_i].n_heads,
                                                      .width = 64 * idle[_i].n_heads,
                                                      .full = idle[_i].full,
                                                      .scale = 1}};
    struct call_work work;

    for (int backward = 0; backward < 2; backward++) {
        const double by_hand = backward ? idle[_i].backward : idle[_i].forward;
        call.kind = backward ? CALL_attention_backward : CALL_attention;
        call_describe(&work, &call, &known);
        ck_assert_double_eq_tol(work.by_path[ATTENTION_TENSOR], work.operations, 1e-9 * work.operations);
        ck_assert_double_eq_tol(work.lasting[ATTENTION_TENSOR] / work.operations, by_hand, 1e-9);
        call_describe(&work, &call, &bf16);
        ck_assert_double_eq_tol(work.lasting[ATTENTION_TENSOR], work.operations, 1e-9 * work.operations);
    }
}

/* 35 images are two blocks and three by themselves. The library adds weights' gradients to a copy, and those of inputs
 * where they are added; not to three channels. It has neither biases nor gradients of groups, nor fp32; images of 50
 * bytes begin anywhere. */
static const struct {
    enum call_kind kind;
    struct device_conv2d conv;
    enum conv2d_path path;
    size_t n_launches;
} convolving[] = {
#define CONV(rows, size, in, groups, ...)                                                                              \
    {                                                                                                                  \
        .n_rows = rows, .height = size, .width = size, .n_in = in, .n_out = 8, .n_groups = groups,                     \
        .window = {3, 3, 1, 1}, ##__VA_ARGS__                                                                          \
    }
    {CALL_conv2d, CONV(35, 4, 8, 1), CONV2D_LIBRARY, 5},
    {CALL_conv2d, CONV(32, 4, 3, 1), CONV2D_LIBRARY, 2},
    {CALL_conv2d, CONV(2, 4, 8, 2), CONV2D_LIBRARY, 2},
    {CALL_conv2d, CONV(2, 4, 8, 1, .bias = given), CONV2D_OWN, 1},
    {CALL_conv2d, CONV(2, 5, 1, 1), CONV2D_OWN, 1},
    {CALL_conv2d_input_gradient, CONV(35, 4, 8, 1), CONV2D_LIBRARY, 5},
    {CALL_conv2d_input_gradient, CONV(35, 4, 8, 1, .accumulate = true), CONV2D_LIBRARY, 10},
    {CALL_conv2d_input_gradient, CONV(35, 4, 8, 2), CONV2D_OWN, 1},
    {CALL_conv2d_input_gradient, CONV(2, 4, 3, 1), CONV2D_LIBRARY, 2},
    {CALL_conv2d_input_gradient, CONV(2, 4, 3, 1, .accumulate = true), CONV2D_OWN, 1},
    {CALL_conv2d_weight_gradient, CONV(35, 4, 8, 1), CONV2D_LIBRARY, 10},
    {CALL_conv2d_weight_gradient, CONV(35, 4, 3, 1), CONV2D_OWN, 1},
};

TEST_EACH(a_convolution_says_what_computes_it, COUNT(convolving))
{
    struct call call = {.kind = convolving[_i].kind, .conv2d = convolving[_i].conv};
    struct call_device without = bf16;
    struct call_work work;

    call_describe(&work, &call, &bf16);
    ck_assert_int_eq(work.conv2d_path, convolving[_i].path);
    ck_assert_uint_eq(work.n_launches, convolving[_i].n_launches);
    without.has_conv2d = false;
    call_describe(&work, &call, &without);
    ck_assert_int_eq(work.conv2d_path, CONV2D_OWN);
    ck_assert_uint_eq(work.n_launches, 1);
    call_describe(&work, &call, &fp32);
    ck_assert_int_eq(work.conv2d_path, CONV2D_OWN);
}

/* Of 3 rows: the root of 5 x 7. */
TEST(a_product_has_a_width)
{
    struct call call = {CALL_matmul, .matmul = {.m = 3, .n = 5, .k = 7}};
    struct call_work work;

    call_describe(&work, &call, &bf16);
    ck_assert_double_eq_tol(call_width(&work), sqrt(35), 1e-12);
    call.matmul = (struct device_matmul){.m = 5, .n = 7, .k = 3, .over_rows = true};
    call_describe(&work, &call, &bf16);
    ck_assert_double_eq_tol(call_width(&work), sqrt(35), 1e-12);
}

/* 24 choices of 4 experts are 6 rows each. CUDA's kernels fill half of a tile's 64 rows' time, in fp32. */
TEST(experts_are_products_of_an_experts_rows_and_width)
{
    struct call call = {CALL_experts, .experts = {.m = 12, .n = 5, .inner = 7, .n_experts = 4, .n_chosen = 2}};
    struct call_device on = bf16;
    struct call_work work;

    on.backend = &plan_cpu;
    call_describe(&work, &call, &on);
    ck_assert_uint_eq(work.rows, 6);
    ck_assert_double_eq_tol(work.operations, 2 * 3 * 24 * 35, 1e-9);
    ck_assert_double_eq_tol(call_width(&work), sqrt(35), 1e-12);
    ck_assert(!work.in_fp32 && work.filled == 1);
    on.backend = &plan_cuda;
    call_describe(&work, &call, &on);
    ck_assert_double_eq_tol(call_width(&work), sqrt(35), 1e-12);
    ck_assert(work.in_fp32 && work.filled == 0.5 * 6 / 64);
}

/* Values are of 2 bytes, all else of 4. */
static const struct {
    struct call call;
    size_t read, written;
} moving[] = {
    {{CALL_norm, .norm = {.m = 3, .n = 5}}, 2 * (15 + 5), 2 * 15 + 4 * 6},
    {{CALL_norm, .norm = {.m = 3, .n = 5, .bias = given}}, 2 * (15 + 5 + 5), 2 * 15 + 4 * 6},
    {{CALL_norm_backward, .norm = {.m = 3, .n = 5, .accumulate = true}}, 2 * (3 * 15 + 5) + 4 * 6, 2 * 15},
    /* Of a sum both operands are read instead of it, and it is written where it is wanted; the gradient of its
     * branch. */
    {{CALL_norm, .norm = {.m = 3, .n = 5, .add.h = given}}, 2 * (2 * 15 + 5), 2 * 15 + 4 * 6},
    {{CALL_norm, .norm = {.m = 3, .n = 5, .add = {.h = given, .y = (void *)given}}}, 2 * (2 * 15 + 5), 2 * 30 + 4 * 6},
    {{CALL_norm_backward, .norm = {.m = 3, .n = 5, .add.y = (void *)given}}, 2 * (2 * 15 + 5) + 4 * 6, 2 * 30},
    /* 2 rows of 3 elements: 30 values; their moments are 20 numbers, of which backward reads the means. */
    {{CALL_row_moments, .row_moments = {.n_rows = 2, .n_elements = 3, .n = 5}}, 2 * 30, 4 * 20},
    {{CALL_row_moments_backward, .row_moments = {.n_rows = 2, .n_elements = 3, .n = 5, .accumulate = true}},
     2 * (30 + 30) + 4 * (10 + 20),
     2 * 30},
    {{CALL_join_moments, .join_moments = {.n_rows = 2, .n_elements = 3, .n = 5}}, 4 * 20, 4 * 10},
    {{CALL_join_moments_backward, .join_moments = {.n_rows = 2, .n_elements = 3, .n = 5}}, 4 * (10 + 2 * 10), 4 * 20},
    {{CALL_batch_norm, .batch_norm = {2, 3, 5}}, 2 * (30 + 2 * 5) + 4 * 10, 2 * 30},
    {{CALL_running_statistics, .running_statistics = {.n = 5}}, 2 * 2 * 5, 4 * 10},
    {{CALL_running_gradient, .running_gradient = {.n = 5, .mean_gradient = (void *)given}}, 4 * 15, 4 * 5},
    {{CALL_batch_norm_backward, .batch_norm = {2, 3, 5, .weight_gradient = (void *)given}},
     2 * (2 * 30 + 5) + 4 * (10 + 5 + 10),
     2 * 30 + 4 * (5 + 10)},
    {{CALL_matmul, .matmul = {.m = 3, .n = 5, .k = 7, .a_stride = 8, .b_stride = 9, .c_stride = 10}},
     2 * (21 + 35),
     2 * 15},
    {{CALL_matmul, .matmul = {.m = 3, .n = 5, .k = 7, .wide = true, .beta = 1}}, 2 * (21 + 35) + 4 * 15, 4 * 15},
    {{CALL_matmul, .matmul = {.m = 3,
                              .n = 5,
                              .k = 7,
                              .a_stride = 7,
                              .b_stride = 5,
                              .c_stride = 5,
                              .epilogue = DEVICE_ACTIVATION_GRADIENT,
                              .bias_gradient = (void *)given}},
     2 * (21 + 35 + 15) + 4 * 5,
     2 * 15 + 4 * 5},
    /* 4 of the 8 columns of a head, of which there are 2 in each of 6 tokens. */
    {{CALL_rope, .rope = {.n_rows = 2, .n_tokens = 3, .n_heads = 2, .head_width = 8, .n_rotated = 4, .stride = 40}},
     2 * 48,
     2 * 48},
    /* 12 values of each of 8 queries, their output and gradients; 6 of keys and 6 of values of each of 10 keys; 4 sums
     * of each query. */
    {{CALL_attention, .attention = {2, 4, 4, 12, .n_kv_heads = 2, .full = true, .kv = given, .n_keys = 5}},
     2 * (96 + 120),
     2 * 96 + 4 * 32},
    {{CALL_attention_backward, .attention = {2, 4, 4, 12, .n_kv_heads = 2, .full = true, .kv = given, .n_keys = 5}},
     2 * (96 + 120 + 96 + 96) + 4 * 32,
     2 * (96 + 120)},
    /* 12 values of queries, and 6 of keys and 6 of values, of each of 2 tokens; the keys and values of 5. */
    {{CALL_attention_cached, .attention_cached = {3, 2, .n_heads = 4, .n_kv_heads = 2, .width = 12, .n_positions = 8}},
     2 * (2 * 24 + 5 * 12),
     2 * (2 * 12 + 2 * 12)},
    /* The same, but each head has its own keys; and a bias for each of 3 buckets and 4 heads. */
    {{CALL_attention_cached,
      .attention_cached = {3, 2, 4, 12, .n_positions = 8, .bias = (void *)given, .buckets.n = 3}},
     2 * (2 * 36 + 5 * 24) + 4 * 12,
     2 * (2 * 12 + 2 * 24)},
    /* Positions 2 to 4: a window of 2 leaves out the first two. */
    {{CALL_attention_cached, .attention_cached = {3, 2, .n_heads = 2, .width = 12, .n_positions = 8, .window = 2}},
     2 * (2 * 36 + 3 * 24),
     2 * (2 * 12 + 2 * 24)},
    /* 5 rows of 2 queries and gates of 3 columns, and 4 more. */
    {{CALL_split, .split = {.m = 5, .n_heads = 2, .n = 3, .n_rest = 4}}, 2 * 80, 2 * 80},
    {{CALL_join, .split = {.m = 5, .n_heads = 2, .n = 3, .n_rest = 4}}, 2 * 80, 2 * 80},
    /* 5 rows of 3 heads of 4 columns, a gate each. */
    {{CALL_head_gate, .head_gate = {.m = 5, .n_heads = 3, .n = 4}}, 2 * (60 + 15), 2 * 60},
    {{CALL_head_gate_backward, .head_gate = {.m = 5, .n_heads = 3, .n = 4}}, 2 * (60 + 15 + 60), 2 * (60 + 15)},
    /* 6 elements of 8 columns, 2 heads of 3 taps. */
    {{CALL_dynamic_conv,
      .dynamic_conv = {.n_rows = 2, .n_tokens = 3, .n = 8, .n_heads = 2, .n_taps = 3, .lengths = (const void *)given}},
     2 * (48 + 36) + 4 * 2,
     2 * 48},
    {{CALL_dynamic_conv_backward, .dynamic_conv = {.n_rows = 2, .n_tokens = 3, .n = 8, .n_heads = 2, .n_taps = 3}},
     2 * (48 + 36 + 48),
     2 * (48 + 36)},
    /* 6 tokens of 3 channels and 4 taps; backward, of three factors each, sums of weights overwritten and of a bias. */
    {{CALL_short_conv, .short_conv = {.n_rows = 2, .n_tokens = 3, .n = 3, .n_taps = 4, .positions = (void *)given}},
     2 * (18 + 12) + 4 * 6,
     2 * 18},
    {{CALL_short_conv_backward, .short_conv = {.n_rows = 2,
                                               .n_tokens = 3,
                                               .n = 3,
                                               .n_taps = 4,
                                               .gated = true,
                                               .bias = given,
                                               .weight_gradient = (void *)given,
                                               .bias_gradient = (void *)given}},
     2 * (54 + 12 + 3 + 18) + 4 * 3,
     2 * 54 + 4 * (12 + 3)},
    {{CALL_short_conv_cached, .short_conv = {.n_rows = 1, .n_tokens = 2, .n = 3, .n_taps = 4, .gated = true}},
     2 * (18 + 12 + 18),
     2 * (6 + 18)},
    /* 130 tokens of 14 columns, 2 heads of 4 by 3; two states of each, that is before tokens 64 and 128. */
    {{CALL_gated_delta, .gated_delta = {.n_rows = 1,
                                        .n_tokens = 130,
                                        .n_heads = 2,
                                        .n_key_heads = 1,
                                        .key_width = 4,
                                        .value_width = 3,
                                        .positions = (void *)given}},
     2 * (130 * (14 + 4) + 4) + 4 * 130,
     2 * 130 * 6 + 4 * 2 * 24},
    {{CALL_gated_delta_backward, .gated_delta = {.n_rows = 1,
                                                 .n_tokens = 130,
                                                 .n_heads = 2,
                                                 .n_key_heads = 1,
                                                 .key_width = 4,
                                                 .value_width = 3,
                                                 .a_log_gradient = (void *)given,
                                                 .dt_bias_gradient = (void *)given}},
     2 * (130 * (14 + 4 + 6) + 4) + 4 * (2 * 24 + 4),
     2 * 130 * (14 + 4) + 4 * 4},
    {{CALL_gated_delta_cached,
      .gated_delta = {.n_rows = 1, .n_tokens = 2, .n_heads = 2, .n_key_heads = 1, .key_width = 4, .value_width = 3}},
     2 * (2 * (14 + 4) + 4) + 4 * 24,
     2 * 12 + 4 * 24},
    /* 2 tokens of 4 experts, each with 2 of them; 3 tokens of 4 columns, 3 experts of 5, all of which are read. */
    {{CALL_route, .route = {.m = 2, .n_experts = 4, .n_chosen = 2}}, 2 * 8, 4 * 4 + 4 * 4},
    {{CALL_route_backward, .route = {.m = 2, .n_experts = 4, .n_chosen = 2}}, 2 * 8 + 3 * 4 * 4, 2 * 8},
    {{CALL_experts, .experts = {.m = 3, .n = 4, .inner = 5, .n_experts = 3, .n_chosen = 2}},
     2 * 12 + 2 * 4 * 6 + 3 * 2 * 60,
     2 * 12},
    {{CALL_experts_backward,
      .experts =
          {.m = 3, .n = 4, .inner = 5, .n_experts = 3, .n_chosen = 2, .gate_gradient = (void *)given, .beta = 1}},
     2 * (12 + 12) + 2 * 4 * 6 + 3 * 2 * 60 + 4 * 60,
     2 * 12 + 4 * 6 + 4 * 60},
    /* 2 images of 5 x 5 pixels and 3 channels, of which 3 x 3 are read; 4 channels of 3 x 3. */
    {{CALL_conv2d, .conv2d = {2, 5, 5, .n_in = 3, .n_out = 4, .n_groups = 1, .window = {1, 1, 2, 0}}},
     2 * (2 * 9 * 3 + 12),
     2 * 2 * 9 * 4},
    {{CALL_conv2d_input_gradient,
      .conv2d = {2, 5, 5, .n_in = 3, .n_out = 4, .n_groups = 1, .window = {1, 1, 2, 0}, .accumulate = true}},
     2 * (2 * 9 * 4 + 12 + 2 * 25 * 3),
     2 * 2 * 25 * 3},
    /* Windows of 2 begin at -1 and 2: they read lines 0, 2 and 3. */
    {{CALL_conv2d_weight_gradient,
      .conv2d = {2, 4, 4, .n_in = 3, .n_out = 4, .n_groups = 1, .window = {2, 2, 3, 1}, .beta = 1}},
     2 * (2 * 9 * 3 + 2 * 4 * 4) + 4 * 48,
     4 * 48},
    /* 2 images of 4 x 4 pixels and 3 channels, of which 2 x 2 results read 3 x 3 pixels. */
    {{CALL_max_pool, .max_pool = {2, 4, 4, .n = 3, .window = {2, 2, 3, 1}}}, 2 * 2 * 9 * 3, 2 * 2 * 4 * 3},
    {{CALL_max_pool_backward, .max_pool = {2, 4, 4, .n = 3, .window = {2, 2, 3, 1}}},
     2 * 2 * (9 + 4) * 3,
     2 * 2 * 16 * 3},
    {{CALL_average_pool_backward, .max_pool = {2, 4, 4, .n = 3, .window = {2, 2, 3, 1}, .accumulate = true}},
     2 * 2 * (4 + 16) * 3,
     2 * 2 * 16 * 3},
    /* Of 5 x 5 windows of 3 x 3, the upper tap lies in the 5 x 5 pixels for 4 x 5: 3 x 3 blocks. */
    {{CALL_sum_blocks, .sum_blocks = {2, 5, 5, .n = 3, .side = 2, .window = {3, 3, 1, 1}, .down = 0, .across = 1}},
     2 * 2 * 20 * 3,
     2 * 2 * 9 * 3},
    {{CALL_scatter, .scatter = {.rows = 3, .columns = 10, .n = 7}}, 2 * 7 + 4 * 4 + 4 * 3, 2 * 30},
    {{CALL_gather, .gather = {.rows = 3, .columns = 10, .n = 7}}, 4 * 7 + 4 * 4 + 4 * 3, 4 * 7},
    {{CALL_scatter, .scatter = {.rows = 3, .columns = 10, .n = 7, .wide = true}}, 4 * 7 + 4 * 4 + 4 * 3, 4 * 30},
    {{CALL_embed, .embed = {.m = 3, .n = 5, .n_table = 100}}, 4 * 3 + 2 * 15, 2 * 15},
    {{CALL_embed_backward, .embed = {.m = 7, .n = 5, .n_table = 2}}, 4 * 7 + 2 * 35 + 4 * 10, 4 * 10},
    {{CALL_cross_entropy_gradient, .cross_entropy_gradient = {.m = 3, .n = 5, .logits_stride = 8}},
     4 * (3 + 9 + 15),
     2 * 15},
    {{CALL_xielu, .xielu = {.n = 7}}, 2 * (7 + 2), 2 * 7},
    {{CALL_xielu_backward, .xielu = {.n = 7}}, 2 * (14 + 2), 2 * 7},
    {{CALL_add, .add = {.n = 0}}, 0, 0},
    {{CALL_reduce_rows, .reduce_rows = {.m = 0, .n = 5, .stride = 5}}, 4 * 5, 4 * 5},
    {{CALL_row_norms, .row_norms = {.m = 3, .n = 5, .stride = 8}}, 2 * 15, 4 * 3},
    /* 2 rows of 2 blocks: 64 or 32 bytes and a scale each, in whole 16 bytes. */
    {{CALL_compress, .compress = {.n_rows = 2, .n = 100, .bits = 8}}, 2 * 200, 2 * 144},
    {{CALL_expand, .expand = {.n_rows = 2, .n = 100, .bits = 4}}, 2 * 80, 2 * 200},
    {{CALL_round_values, .round_values = {.n_rows = 2, .n = 100, .bits = 4}}, 2 * 200, 2 * 200},
    {{CALL_row_norms, .row_norms = {.m = 3, .n = 5, .stride = 8, .multiply = true}}, 2 * 15 + 4 * 3, 4 * 3},
    {{CALL_weigh_scores, .weigh_scores = {.n_rows = 2, .n_tokens = 5, .stride = 9}}, 2 * 10 + 4 * 10, 4 * 10},
    {{CALL_choose_rows, .choose_rows = {.n_rows = 2, .n_tokens = 10, .n_chosen = 3}}, 4 * 20, 8 * 6},
    /* 2 rows of 8 are read, however many there are. */
    {{CALL_gather_rows, .gather_rows = {.n_rows = 8, .n = 5, .stride = 5, .m = 2}}, 2 * 10 + 4 * 2, 2 * 10},
};

TEST_EACH(a_call_says_how_much_it_moves, COUNT(moving))
{
    struct call call = moving[_i].call;
    struct call_work work;
    size_t read = 0, written = 0;

    call_describe(&work, &call, &bf16);
    for (unsigned i = 0; i < work.n_arrays; i++) {
        const size_t bytes = work.arrays[i].touched * call_type_bytes(work.arrays[i].type, NUMBER_BF16);
        read += work.arrays[i].use & CALL_READ ? bytes : 0;
        written += work.arrays[i].use & CALL_WRITTEN ? bytes : 0;
    }
    ck_assert_uint_eq(read, moving[_i].read);
    ck_assert_uint_eq(written, moving[_i].written);
}

TEST(no_rows_reach_nowhere)
{
    struct call call = {CALL_reduce_rows, .reduce_rows = {.n = 5, .stride = 7}};
    struct call_work work;

    call_describe(&work, &call, &fp32);
    ck_assert_uint_eq(work.arrays[1].n, 0);
}

static struct call caught;
static unsigned n_caught;

static void on_call(struct device *dev, struct call *call)
{
    (void)dev;
    caught = *call;
    n_caught++;
}
CALL_TABLE(on_call)

#define ANOTHER(name, type) +1
enum { KINDS = 0 DEVICE_CALLS(ANOTHER) };

TEST_EACH(each_operation_of_a_table_is_caught_as_itself, KINDS)
{
    const struct call call = {.kind = (enum call_kind)_i};
    struct device_ops table = {.name = "caught"};

    call_intercept(&table);
    ck_assert_str_eq(table.name, "caught");
    call_run(&table, NULL, &call);
    ck_assert_uint_eq(n_caught, 1);
    ck_assert_int_eq(caught.kind, _i);
}

TEST(a_call_keeps_its_arguments)
{
    struct device_ops table;
    float x[1];

    call_intercept(&table);
    table.soft_cap(NULL, &(struct device_soft_cap){x, 1, 30});
    ck_assert(caught.soft_cap.x == x && caught.soft_cap.n == 1 && caught.soft_cap.cap == 30);
}

/* This file's, and that of extents.c, which runs on the CPU what it is given. */
TEST(two_tables_give_their_calls_to_two_hooks)
{
    struct extents extents;
    struct device_ops table;
    struct device *dev;

    extents_begin(&extents);
    ck_assert_int_eq(device_extents.open(&dev, 0, NUMBER_FP32, 4096, 1, NULL), 0);
    call_intercept(&table);
    const struct device_zero op = {device_extents.arena(dev), 64};
    table.zero(dev, &op);
    ck_assert(n_caught == 1 && extents.high_water == 0);
    device_extents.zero(dev, &op);
    ck_assert(n_caught == 1 && extents.high_water == 64);
    device_extents.close(dev);
}
