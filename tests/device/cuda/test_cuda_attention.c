/* Attention's kernels on the simulated device: every path, whatever the order of threads and blocks.
 *
 * That tensors may have any shape is tests/device/test_attention.c's, over all devices. Here are the shapes that begin and end
 * where these kernels' tiles do, and the kernels that were chosen. */
#include "device/cuda/kernels/kernels.h"
#include "proto/plan/backend.h"
#include "tests/kit/device/operation.h"
#include "tests/kit/device/reference.h"
#include "tests/kit/test.h"
#include "tests/sim/cudasim.h"

#include <math.h>
#include <string.h>

SUITE_LABELS(kernels)

/* Tensor cores: head widths of 64 and 128, in tiles of 128 queries and 64 keys (32 with dropout) forward, of 64 and 64
 * backward. Else tiles of 64 and 64, and of 64 columns of a head. */
static const struct shape {
    enum number_type type;
    size_t n_rows, n_tokens, n_heads, width;
    float p;
    size_t skew; /* elements that arrays begin behind a multiple of 16 bytes */
} shapes[] = {
    {NUMBER_BF16, 1, 1, 1, 64, 0, 0},     {NUMBER_BF16, 2, 3, 2, 128, 0.5f, 0},  {NUMBER_BF16, 1, 130, 1, 64, 0, 0},
    {NUMBER_BF16, 1, 65, 1, 128, 0, 0},   {NUMBER_BF16, 1, 35, 1, 128, 0.2f, 0}, {NUMBER_BF16, 1, 66, 1, 64, 0.1f, 0},
    {NUMBER_BF16, 2, 5, 2, 256, 0, 0},    {NUMBER_BF16, 1, 5, 1, 64, 0, 1},      {NUMBER_BF16, 1, 66, 2, 16, 0.2f, 0},
    {NUMBER_FP32, 1, 1, 1, 1, 0, 0},      {NUMBER_FP32, 2, 7, 3, 15, 0.3f, 0},   {NUMBER_FP32, 1, 66, 1, 17, 0, 1},
    {NUMBER_FP32, 1, 64, 1, 64, 0.1f, 0}, {NUMBER_FP32, 1, 3, 1, 257, 0, 0},
};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

static const struct random_key key = {{11, 22}};
enum { FIRST_ROW = 5, RUNS = 3 };

/* A shape's arrays on the device, and what the reference makes of them. */
struct attention {
    const struct shape *shape;
    struct cuda_queue queue;
    struct device_attention op;
    size_t n_out, n_qkv, n_sum;
    void *qkv, *dy; /* the host's */
    struct reference_attention reference;
    double *out, *sum, *gradient;
    void *allocations[16];
    unsigned n_allocations;
};

/* n elements, of the host's or NaNs, on the device. */
static void *put(struct attention *t, const void *host, size_t n, size_t element)
{
    const size_t skew = t->shape->skew * element;
    void **at = &t->allocations[t->n_allocations++];

    ck_assert_int_eq(cudaMalloc(at, skew + n * element), cudaSuccess);
    char *to = (char *)*at + skew;
    if (host)
        ck_assert_int_eq(cudaMemcpyAsync(to, host, n * element, cudaMemcpyHostToDevice, t->queue.stream), cudaSuccess);
    else
        ck_assert_int_eq(cudaMemsetAsync(to, 0xff, n * element, t->queue.stream), cudaSuccess);
    ck_assert_int_eq(cudaStreamSynchronize(t->queue.stream), cudaSuccess);
    return to;
}

static void *take(const struct attention *t, const void *device, enum number_type type, size_t n)
{
    void *host = operation_room(type, n);

    ck_assert_int_eq(cudaMemcpyAsync(host, device, n * number_bytes(type), cudaMemcpyDeviceToHost, t->queue.stream),
                     cudaSuccess);
    ck_assert_int_eq(cudaStreamSynchronize(t->queue.stream), cudaSuccess);
    return host;
}

static void set_up(struct attention *t, const struct shape *s)
{
    const size_t n_out = s->n_rows * s->n_tokens * s->width, n_sum = s->n_rows * s->n_heads * s->n_tokens;
    double *factors = operation_zeros(n_sum * s->n_tokens);

    *t = (struct attention){.shape = s, .n_out = n_out, .n_qkv = 3 * n_out, .n_sum = n_sum};
    t->queue = (struct cuda_queue){.type = s->type, .n_processors = 2};
    ck_assert_int_eq(cudaStreamCreateWithFlags(&t->queue.stream, cudaStreamNonBlocking), cudaSuccess);
    t->qkv = operation_values(s->type, t->n_qkv, 1), t->dy = operation_values(s->type, n_out, 2);
    t->out = operation_zeros(n_out), t->sum = operation_zeros(n_sum), t->gradient = operation_zeros(t->n_qkv);
    for (size_t i = 0; i < n_sum * s->n_tokens; i++) {
        const size_t row = s->n_heads * s->n_tokens * s->n_tokens;
        factors[i] = reference_dropout(s->p, key, FIRST_ROW + i / row, i % row);
    }
    t->reference =
        (struct reference_attention){s->n_rows, s->n_tokens, s->n_heads, s->width, (double)0.3f, factors, NULL};
    reference_attention(t->out, t->sum, operation_widen(s->type, t->qkv, t->n_qkv), &t->reference);
    t->op = (struct device_attention){
        .n_rows = s->n_rows,
        .n_tokens = s->n_tokens,
        .n_heads = s->n_heads,
        .width = s->width,
        .scale = 0.3f,
        .qkv = put(t, t->qkv, t->n_qkv, number_bytes(s->type)),
        .out = put(t, NULL, n_out, number_bytes(s->type)),
        .log_sum_exp = put(t, NULL, n_sum, sizeof(float)),
        .out_gradient = put(t, t->dy, n_out, number_bytes(s->type)),
        .qkv_gradient = put(t, NULL, t->n_qkv, number_bytes(s->type)),
        .scratch =
            put(t, NULL,
                plan_cuda.scratch_bytes(s->n_rows, s->n_tokens, s->n_heads, s->n_heads, s->width, 1) / sizeof(float),
                sizeof(float)),
        .dropout = {s->p, key, FIRST_ROW},
    };
}

static void tear_down(struct attention *t)
{
    for (unsigned i = 0; i < t->n_allocations; i++)
        ck_assert_int_eq(cudaFree(t->allocations[i]), cudaSuccess);
    ck_assert_int_eq(cudaStreamDestroy(t->queue.stream), cudaSuccess);
    cudasim_finish();
}

/* Each is within `near` of the largest, and a bf16's own rounding. */
static void check_near(const char *name, enum number_type type, const void *got, const double *want, size_t n,
                       double near)
{
    double largest = 0;

    for (size_t i = 0; i < n; i++)
        largest = fmax(largest, fabs(want[i]));
    for (size_t i = 0; i < n; i++) {
        const double x = (double)operation_get(type, got, i),
                     rounding = type == NUMBER_BF16 ? 0x1p-8 * fabs(want[i]) : 0;
        if (!(fabs(x - want[i]) <= near * largest + rounding)) /* an assertion is slow */
            ck_abort_msg("%s[%zu] is %.9g, not %.9g: off by %.3g of the largest", name, i, x, want[i],
                         fabs(x - want[i]) / largest);
    }
}

/* fp32: sums of a hundred terms, and scores whose own rounding the exponential passes on. bf16: probabilities and
 * gradients of scores are rounded for the tensor cores, each by up to 2^-9 of itself. */
static double near(const struct attention *t)
{
    return t->shape->type == NUMBER_BF16 ? 2 * 0x1p-9 : 60 * 0x1p-24;
}

/* Forward, then backward from its results. */
static void run(struct attention *t, void *results[RUNS])
{
    ck_assert_int_eq(cuda_attention(&t->queue, &t->op), cudaSuccess);
    ck_assert_int_eq(cuda_attention_backward(&t->queue, &t->op), cudaSuccess);
    results[0] = take(t, t->op.out, t->shape->type, t->n_out);
    results[1] = take(t, t->op.log_sum_exp, NUMBER_FP32, t->n_sum);
    results[2] = take(t, t->op.qkv_gradient, t->shape->type, t->n_qkv);
}

SUITE_FIXTURE(mirror_forget, NULL)

TEST_EACH(attention_is_the_formula_in_any_order_of_threads, N_SHAPES)
{
    struct attention t;
    void *first[RUNS], *again[RUNS];

    set_up(&t, &shapes[_i]);
    cudasim_order(CUDASIM_STREAMS_AS_ISSUED, CUDASIM_THREADS_FORWARD, 0);
    run(&t, first);
    check_near("out", t.shape->type, first[0], t.out, t.n_out, near(&t));
    check_near("log_sum_exp", NUMBER_FP32, first[1], t.sum, t.n_sum, 60 * 0x1p-24);
    /* of the output as it was rounded */
    t.reference.out = operation_widen(t.shape->type, first[0], t.n_out);
    reference_attention_backward(t.gradient, operation_widen(t.shape->type, t.dy, t.n_out),
                                 operation_widen(t.shape->type, t.qkv, t.n_qkv), &t.reference);
    check_near("gradient of qkv", t.shape->type, first[2], t.gradient, t.n_qkv, near(&t));
    for (enum cudasim_threads order = CUDASIM_THREADS_BACKWARD; order <= CUDASIM_THREADS_RANDOM; order++) {
        cudasim_order(CUDASIM_STREAMS_AS_ISSUED, order, 7);
        run(&t, again);
        ck_assert_mem_eq(again[0], first[0], t.n_out * number_bytes(t.shape->type));
        ck_assert_mem_eq(again[1], first[1], t.n_sum * sizeof(float));
        ck_assert_mem_eq(again[2], first[2], t.n_qkv * number_bytes(t.shape->type));
    }
    tear_down(&t);
}

/* Positions kept room for, tokens before, tokens at once. Chunks are of 128 positions, blocks have 1 query or 4. */
static const struct cached_shape {
    enum number_type type;
    size_t n_positions, first, n, n_heads, width, skew;
} cached_shapes[] = {
    {NUMBER_BF16, 1, 0, 1, 1, 1, 0},      {NUMBER_BF16, 140, 0, 131, 1, 64, 0}, {NUMBER_BF16, 300, 257, 6, 2, 48, 0},
    {NUMBER_BF16, 129, 126, 2, 1, 24, 1}, {NUMBER_FP32, 130, 128, 1, 2, 16, 0}, {NUMBER_FP32, 140, 125, 7, 3, 9, 0},
    {NUMBER_FP32, 9, 4, 5, 1, 600, 1},
};
enum { N_CACHED_SHAPES = sizeof cached_shapes / sizeof *cached_shapes };

/* The last tokens' outputs, those before having come `each` at a time, and of the last `each_last` at a time. */
static void *attend_cached(struct attention *t, const struct cached_shape *s, size_t each, size_t each_last)
{
    const size_t bytes = number_bytes(s->type),
                 cache_bytes = plan_cuda.cache_bytes(s->type, s->n_positions, s->n_heads, s->width);
    char *out = put(t, NULL, (s->first + s->n) * s->width, bytes);
    struct device_attention_cached op = {.n_heads = s->n_heads,
                                         .width = s->width,
                                         .n_positions = s->n_positions,
                                         .scale = 0.3f,
                                         .cache = put(t, NULL, cache_bytes / bytes, bytes)};

    for (; op.first < s->first + s->n; op.first += op.n_tokens) {
        const size_t left = (op.first < s->first ? s->first : s->first + s->n) - op.first;
        const size_t at_once = op.first < s->first ? each : each_last;
        op.n_tokens = left < at_once ? left : at_once;
        op.qkv = (const char *)t->op.qkv + op.first * 3 * s->width * bytes;
        op.out = out + op.first * s->width * bytes;
        ck_assert_int_eq(cuda_attention_cached(&t->queue, &op), cudaSuccess);
    }
    return take(t, out + s->first * s->width * bytes, s->type, s->n * s->width);
}

/* Split over blocks or not, and however tokens were cut into calls. */
TEST_EACH(cached_attention_is_the_formula_in_the_same_bits_always, N_CACHED_SHAPES)
{
    const struct cached_shape *s = &cached_shapes[_i];
    const struct shape whole = {s->type, 1, s->first + s->n, s->n_heads, s->width, 0, s->skew};
    struct attention t;

    set_up(&t, &whole);
    t.queue.scratch = put(&t, NULL, PLAN_CUDA_SCRATCH_BYTES / sizeof(float), sizeof(float));
    cudasim_order(CUDASIM_STREAMS_AS_ISSUED, CUDASIM_THREADS_FORWARD, 0);
    const void *first = attend_cached(&t, s, whole.n_tokens, s->n);
    /* values are not rounded on their way: fp32's tolerance, then a bf16's own */
    check_near("out", s->type, first, t.out + s->first * s->width, s->n * s->width, 60 * 0x1p-24);
    cudasim_order(CUDASIM_STREAMS_AS_ISSUED, CUDASIM_THREADS_RANDOM, 7);
    t.queue.n_processors = 1000;
    ck_assert_mem_eq(attend_cached(&t, s, 50, s->n), first, s->n * s->width * number_bytes(s->type));
    ck_assert_mem_eq(attend_cached(&t, s, 63, 1), first, s->n * s->width * number_bytes(s->type));
    tear_down(&t);
}
