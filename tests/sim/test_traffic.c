/* Bytes that kernels near memory's limit move: what their warps ask for, in whole sectors, against the least that reads
 * and writes each element once (proto/operation/call.h). The ratios stated here must not rise. No cache is taken into
 * account, so what comes from one is stated apart: what all rows share, and rows that are read again. */
#include "device/cuda/kernels/kernels.h"
#include "proto/operation/call.h"
#include "tests/kit/test.h"
#include "tests/sim/access/traffic.h"
#include "tests/sim/cudasim.h"

#include <string.h>

SUITE_LABELS(cuda)

#define OK(call) ck_assert_int_eq(call, cudaSuccess)

enum { ROOM = 1 << 20 /* bytes of each array */ };

static const float given[1];
static const double frequencies[64] = {1};

#define GIVEN     (void *)(uintptr_t)given
#define HEADS     .m = 32, .n = 128, .n_heads = 8, .stride = 1536
#define HELD      .m = 32, .n = 4096
#define LONG      .m = 8, .n = 20480
#define SHORT     .m = 128, .n = 256
#define ADD       .n_rows = 4, .n_tokens = 8, .n = 4096, .dropout.p = 0.1f
#define ADD_SHORT .n_rows = 4, .n_tokens = 32, .n = 256, .dropout.p = 0.1f
#define SLOPE     .m = 256, .n = 1024, .c_stride = 1024, .epilogue = DEVICE_ACTIVATION_GRADIENT, .activation = MODEL_GELU
#define LOSS      .m = 4, .n = 8000, .logits_stride = 8000, .start = true, .scale = 1
#define DELTA     .n_heads = 2, .n_key_heads = 1, .key_width = 128, .value_width = 128
#define IMAGE     .n_rows = 2, .height = 8, .width = 8, .n = 64, .window = {.height = 2, .width = 2, .stride = 2}

/* In bf16. most: bytes moved of all but what rows share, relative to the least. Beyond 1.02: rows that are read again
 * (of a long row backward also its sums, in memory); sums in fp32 of 8 columns, two packs, each of which takes whole
 * sectors; of a product its result, which the kernel behind it reads; for the few rows here, numbers of a row that each
 * of its warps reads, and a block's line of sums; of a short convolution the tokens that each tap reads again, from
 * the cache where there is one; and of the gated delta rule queries and keys, which each strip of values reads for each of
 * a chunk's products, and backward what goes from launch to launch; of a choice of 8 experts the scores, which each
 * of the 8 reads again, and the sum. */
static const struct {
    const char *name;
    struct call call;
    double most;
} stated[] = {
    {"norm, heads", {CALL_norm, .norm = {HEADS, .kind = DEVICE_RMS_NORM}}, 1},
    {"norm, held rows", {CALL_norm, .norm = {HELD, .bias = GIVEN}}, 1.01},
    {"norm, long rows", {CALL_norm, .norm = {LONG, .bias = GIVEN}}, 2.01},
    {"norm of a sum, held rows",
     {CALL_norm, .norm = {HELD, .bias = GIVEN, .add = {ADD, .h = GIVEN, .y = GIVEN}}},
     1.01},
    {"norm of a sum, which is not stored", {CALL_norm, .norm = {HELD, .bias = GIVEN, .add = {ADD, .h = GIVEN}}}, 1.01},
    {"norm of a sum, short rows", {CALL_norm, .norm = {SHORT, .add = {ADD_SHORT, .h = GIVEN, .y = GIVEN}}}, 1.01},
    {"norm backward, heads", {CALL_norm_backward, .norm = {HEADS, .weight_gradient = GIVEN}}, 1.02},
    {"norm backward, held rows",
     {CALL_norm_backward, .norm = {HELD, .accumulate = true, .weight_gradient = GIVEN, .bias_gradient = GIVEN}},
     1.19},
    {"norm backward with a sum's branch, held rows",
     {CALL_norm_backward,
      .norm = {HELD, .accumulate = true, .weight_gradient = GIVEN, .bias_gradient = GIVEN, .add = {ADD, .y = GIVEN}}},
     1.19},
    {"norm backward with a sum's branch, short rows",
     {CALL_norm_backward, .norm = {SHORT, .weight_gradient = GIVEN, .add = {ADD_SHORT, .y = GIVEN}}},
     1.19},
    {"norm backward, long rows",
     {CALL_norm_backward, .norm = {LONG, .accumulate = true, .weight_gradient = GIVEN, .bias_gradient = GIVEN}},
     4.71},
    {"dropout add", {CALL_dropout_add, .dropout_add = {4, 16, 1024, .x = GIVEN, .dropout.p = 0.1f}}, 1},
    {"dropout", {CALL_dropout_add, .dropout_add = {4, 16, 1024, .dropout.p = 0.1f}}, 1},
    {"activate", {CALL_activate, .activate = {1 << 16, MODEL_GELU}}, 1},
    {"activate backward", {CALL_activate_backward, .activate = {1 << 16, MODEL_GELU}}, 1},
    {"a product's slope", {CALL_matmul, .matmul = {SLOPE}}, 1.5},
    {"a product's slope, and the bias's gradient", {CALL_matmul, .matmul = {SLOPE, .bias_gradient = GIVEN}}, 1.55},
    {"glu", {CALL_glu, .glu = {16, 4096, MODEL_SILU, .stride = 8192}}, 1},
    {"glu backward", {CALL_glu_backward, .glu = {16, 4096, MODEL_SILU, .stride = 8192, .gradient_stride = 8192}}, 1},
    {"split", {CALL_split, .split = {16, 16, 128, 512}}, 1},
    {"join", {CALL_join, .split = {16, 16, 128, 512}}, 1},
    {"heads' gates", {CALL_head_gate, .head_gate = {16, 32, 128}}, 1.03},
    {"heads' gates backward", {CALL_head_gate_backward, .head_gate = {16, 32, 128}}, 1.04},
    {"xielu", {CALL_xielu, .xielu = {.n = 1 << 16, .beta = 0.5f, .bound = -1e-6f}}, 1},
    {"xielu backward",
     {CALL_xielu_backward,
      .xielu = {.n = 1 << 16, .beta = 0.5f, .bound = -1e-6f, .of_positive = GIVEN, .of_negative = GIVEN}},
     1.05},
    {"short convolution", {CALL_short_conv, .short_conv = {2, 32, 1024, .n_taps = 3}}, 1.96},
    {"short convolution, gated", {CALL_short_conv, .short_conv = {2, 32, 1024, .n_taps = 3, .gated = true}}, 1.96},
    {"short convolution backward",
     {CALL_short_conv_backward,
      .short_conv = {2, 32, 1024, .n_taps = 3, .gated = true, .weight_gradient = GIVEN, .bias_gradient = GIVEN}},
     6},
    {"short convolution, cached", {CALL_short_conv_cached, .short_conv = {1, 32, 1024, .n_taps = 3, .gated = true}}, 1},
    {"gated delta rule", {CALL_gated_delta, .gated_delta = {DELTA, .n_rows = 1, .n_tokens = 128}}, 3.05},
    {"gated delta rule backward",
     {CALL_gated_delta_backward,
      .gated_delta = {DELTA, .n_rows = 1, .n_tokens = 128, .a_log_gradient = GIVEN, .dt_bias_gradient = GIVEN}},
     8.83},
    {"gated delta rule, cached",
     {CALL_gated_delta_cached, .gated_delta = {DELTA, .n_rows = 1, .n_tokens = 4, .first = 1}},
     1.19},
    {"choice of experts", {CALL_route, .route = {.m = 64, .n_experts = 128, .n_chosen = 8}}, 7.61},
    {"choice of experts backward", {CALL_route_backward, .route = {.m = 64, .n_experts = 128, .n_chosen = 8}}, 1.58},
    {"add", {CALL_add, .add = {.n = 1 << 16}}, 1},
    {"reduce rows", {CALL_reduce_rows, .reduce_rows = {.m = 256, .n = 1024, .stride = 1024}}, 1.07},
    {"rope",
     {CALL_rope,
      .rope = {2, 16, 8, 128, .n_rotated = 128, .frequencies = frequencies, .positions = GIVEN, .stride = 1536}},
     1.02},
    {"rope, interleaved",
     {CALL_rope,
      .rope = {2, 16, 8, 128, .n_rotated = 128, .frequencies = frequencies, .stride = 1536, .interleaved = true}},
     1.02},
    {"embed", {CALL_embed, .embed = {.m = 64, .n = 1024, .n_table = 64}}, 1.02},
    {"embed backward", {CALL_embed_backward, .embed = {.m = 64, .n = 1024, .n_table = 1}}, 1.28},
    {"position", {CALL_position, .position = {.n_rows = 8, .n_tokens = 16, .n = 1024}}, 1},
    {"position backward", {CALL_position_backward, .position = {.n_rows = 8, .n_tokens = 16, .n = 1024}}, 1.34},
    {"log-sum-exp", {CALL_log_sum_exp, .log_sum_exp = {LOSS}}, 1.01},
    {"log-sum-exp of capped logits", {CALL_log_sum_exp, .log_sum_exp = {LOSS, .cap = 30}}, 1.01},
    {"cross entropy's gradient", {CALL_cross_entropy_gradient, .log_sum_exp = {LOSS}}, 1.05},
    {"gradient of capped logits", {CALL_cross_entropy_gradient, .log_sum_exp = {LOSS, .cap = 30}}, 1.05},
    {"soft cap", {CALL_soft_cap, .soft_cap = {.n = 1 << 16, .cap = 30}}, 1},
    {"row moments", {CALL_row_moments, .row_moments = {2, 1024, 64}}, 2},
    {"row moments backward", {CALL_row_moments_backward, .row_moments = {2, 1024, 64}}, 1.10},
    {"join moments", {CALL_join_moments, .join_moments = {64, 1024, 256}}, 1.50},
    {"batch norm", {CALL_batch_norm, .batch_norm = {4, 1024, 64}}, 1.07},
    {"batch norm backward",
     {CALL_batch_norm_backward, .batch_norm = {4, 1024, 64, .weight_gradient = GIVEN, .bias_gradient = GIVEN}},
     1.05},
    {"max pool", {CALL_max_pool, .max_pool = {IMAGE}}, 1},
    {"average pool", {CALL_average_pool, .max_pool = {IMAGE}}, 1},
    {"average pool backward", {CALL_average_pool_backward, .max_pool = {IMAGE}}, 1.21},
    {"row norms", {CALL_row_norms, .row_norms = {.m = 64, .n = 4096, .stride = 4096}}, 1.01},
    {"gather rows", {CALL_gather_rows, .gather_rows = {.n_rows = 64, .n = 4096, .stride = 4096, .m = 32}}, 1.01},
    {"expand", {CALL_expand, .expand = {.n_rows = 16, .n = 4096, .bits = 8}}, 1.16},
    {"decode", {CALL_decode, .decode = {FORM_NF4, 64, 1024, .scales = GIVEN}}, 1.03},
};

static cudaError_t run(const struct cuda_queue *q, const struct call *call)
{
#define RUN(name, type)                                                                                                \
    case CALL_##name:                                                                                                  \
        return cuda_##name(q, &call->name);

    switch ((int)call->kind) {
        CUDA_LAUNCHERS(RUN)
        RUN(embed, device_embed)
    case CALL_matmul: /* what the product's library leaves to us */
        return cuda_activation_gradient(q, call->matmul.c, call->matmul.pre, call->matmul.c_stride, call->matmul.m,
                                        call->matmul.n, call->matmul.activation, call->matmul.bias_gradient);
    case CALL_attention_backward:
        return cuda_attention_backward(q, &call->attention_backward);
    case CALL_position:
        return cuda_position(q, &call->position, 0, call->position.n_tokens);
    }
#undef RUN
    return cudaErrorInvalidValue;
}

/* What a block has read stays in its first-level cache. */
static bool rows_share(const struct call_array *array)
{
    static const char *const names[] = {"weight", "bias", "positive", "negative"};
    bool share = false;

    for (int i = 0; i < COUNT(names); i++)
        share |= strcmp(array->name, names[i]) == 0;
    return share;
}

/* Sets the arrays, which are zeros, apart; those that lie in one place share it. Returns how many there are. */
static unsigned lay_out(struct cudasim_array arrays[], struct call_work *work, struct call *call, char *memory)
{
    unsigned n = 0;

    call_describe(work, call, &(struct call_device){.backend = &plan_cuda, .type = NUMBER_BF16, .n_threads = 1});
    for (unsigned i = 0; i < work->n_arrays; i++)
        call_set(&work->arrays[i], NULL);
    for (unsigned i = 0; i < work->n_arrays; i++)
        if (!call_get(&work->arrays[i])) {
            ck_assert_uint_le(work->arrays[i].n * call_type_bytes(work->arrays[i].type, NUMBER_BF16), ROOM);
            arrays[n] = (struct cudasim_array){memory + n * ROOM, ROOM, 0};
            call_set(&work->arrays[i], arrays[n++].at);
        }
    return n;
}

static double least_of(const struct call_work *work)
{
    double least = 0;

    for (unsigned i = 0; i < work->n_arrays; i++) {
        const struct call_array *a = &work->arrays[i];
        const int times = !!(a->use & CALL_READ) + !!(a->use & CALL_WRITTEN);
        least += rows_share(a) ? 0 : (double)(a->touched * call_type_bytes(a->type, NUMBER_BF16)) * times;
    }
    return least;
}

static double moved_by(const struct call_work *work, const struct cudasim_array arrays[], unsigned n)
{
    double moved = 0;

    for (unsigned i = 0; i < n; i++) {
        bool shared = false;
        for (unsigned j = 0; j < work->n_arrays; j++)
            shared |= call_get(&work->arrays[j]) == arrays[i].at && rows_share(&work->arrays[j]);
        moved += shared ? 0 : (double)arrays[i].moved;
    }
    return moved;
}

/* A call's arrays, once it has run. */
struct counted {
    struct call call;
    struct cudasim_array arrays[CALL_ARRAYS + 1];
    unsigned n;
    struct call_work work;
};

/* On a device of one processor, so that what each block has of its own counts for little. */
static void count(struct counted *out, const struct call *call)
{
    struct cuda_queue q = {.type = NUMBER_BF16, .n_processors = 1};
    char *memory;

    out->call = *call;
    OK(cudaStreamCreateWithFlags(&q.stream, cudaStreamNonBlocking));
    OK(cudaMalloc((void **)&memory, CALL_ARRAYS * ROOM));
    OK(cudaMalloc(&q.scratch, PLAN_CUDA_SCRATCH_BYTES));
    OK(cudaMemsetAsync(memory, 0, CALL_ARRAYS * ROOM, q.stream));
    out->n = lay_out(out->arrays, &out->work, &out->call, memory);
    out->arrays[out->n++] = (struct cudasim_array){q.scratch, PLAN_CUDA_SCRATCH_BYTES, 0};
    OK(cudaStreamSynchronize(q.stream));
    cudasim_count_arrays(out->arrays, out->n);
    OK(run(&q, &out->call));
    OK(cudaStreamSynchronize(q.stream));
    cudasim_count_arrays(NULL, 0);
    OK(cudaStreamDestroy(q.stream));
    OK(cudaFree(memory));
    OK(cudaFree(q.scratch));
}

TEST_EACH(no_kernel_moves_more_than_is_stated, COUNT(stated))
{
    struct counted c;

    count(&c, &stated[_i].call);
    const double least = least_of(&c.work), ratio = moved_by(&c.work, c.arrays, c.n) / least;
    ck_assert_msg(ratio >= 1 && ratio <= stated[_i].most, "%s: %.4f times the %.0f bytes that it must move, not %.2f",
                  stated[_i].name, ratio, least, stated[_i].most);
}

/* Of attention's backward, the kernel of delta alone reads the output. */
TEST(attention_reads_its_output_once_backward)
{
    const struct call call = {
        CALL_attention_backward,
        .attention = {.n_rows = 1, .n_tokens = 32, .n_heads = 2, .width = 256, .n_kv_heads = 1, .scale = 0.1f}};
    struct counted c;
    unsigned found = 0;

    count(&c, &call);
    for (unsigned i = 0; i < c.work.n_arrays; i++)
        for (unsigned j = 0; j < c.n && strcmp(c.work.arrays[i].name, "out") == 0; j++)
            if (call_get(&c.work.arrays[i]) == c.arrays[j].at) {
                found++;
                ck_assert_uint_eq(c.arrays[j].moved, 32 * 256 * sizeof(uint16_t));
            }
    ck_assert_uint_eq(found, 1);
}
