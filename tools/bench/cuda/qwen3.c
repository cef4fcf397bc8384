/* Attention of a block of Qwen3-8B over 4,096 tokens: 32 heads of 128 that share 8 heads of keys and values, a norm of
 * each head of queries and keys, rotary positions, causal attention; forward and backward.
 *
 * Tells how fast attention is, how long the block's other operations take, whether a second run gives the same bits,
 * and how far its results are from those of attention whose keys are repeated for each head that shares them: another
 * kernel, or cuDNN. Source of the shape: config.json of Qwen/Qwen3-8B. */
#include "proto/operation/attention_path.h"
#include "tools/bench/cuda/bench.h"

#include <math.h>
#include <string.h>

enum { HEAD = 128, PAIRS = HEAD / 2 };

struct block {
    size_t m, n_kv_heads, head_width;
    size_t columns; /* of qkv: heads of queries, of keys, of values */
    double frequencies[PAIRS];
    void *projected, *qkv;  /* (m, columns): before norms and positions; after */
    void *weight;           /* (head_width): of both norms */
    float *statistics;      /* (m, heads of queries and keys, 2) */
    float *weight_gradient; /* (head_width) */
    struct device_attention op;
};

static struct block qwen3_make(struct bench *b)
{
    const size_t n_rows = b->small ? 1 : 2, n_tokens = b->small ? 32 : 4096, n_heads = b->small ? 4 : 32;
    struct block k = {.m = n_rows * n_tokens,
                      .n_kv_heads = n_heads / (b->small ? 2 : 4),
                      .head_width = b->small ? 32 : HEAD};
    const size_t width = n_heads * k.head_width;
    struct plan_attention_scratch scratch;

    k.columns = width + 2 * k.n_kv_heads * k.head_width;
    for (size_t i = 0; i < k.head_width / 2; i++)
        k.frequencies[i] = pow(1e6, -2 * (double)i / (double)k.head_width);
    k.projected = bench_values(b, k.m * k.columns);
    k.qkv = bench_values(b, k.m * k.columns);
    k.weight = bench_values(b, k.head_width);
    k.statistics = bench_floats(b, 2 * k.m * (n_heads + k.n_kv_heads));
    k.weight_gradient = bench_floats(b, k.head_width);
    plan_attention_lay_out(&scratch, b->attention,
                           &(struct plan_attention_sizes){.n_rows = n_rows,
                                                          .n_tokens = n_tokens,
                                                          .n_heads = n_heads,
                                                          .n_kv_heads = k.n_kv_heads,
                                                          .width = width});
    k.op = (struct device_attention){.n_rows = n_rows,
                                     .n_tokens = n_tokens,
                                     .n_heads = n_heads,
                                     .width = width,
                                     .n_kv_heads = k.n_kv_heads,
                                     .scale = 1 / sqrtf((float)k.head_width),
                                     .qkv = k.qkv,
                                     .out = bench_values(b, k.m * width),
                                     .log_sum_exp = bench_floats(b, k.m * n_heads),
                                     .out_gradient = bench_values(b, k.m * width),
                                     .qkv_gradient = bench_values(b, k.m * k.columns),
                                     .scratch = bench_take(b, scratch.bytes)};
    return k;
}

/* The norm of queries' heads, or of keys'. */
static struct device_norm qwen3_norm_of(const struct block *k, bool of_keys)
{
    const size_t at = of_keys ? k->op.width : 0, statistic = of_keys ? 2 * k->m * k->op.n_heads : 0;
    uint16_t *gradient = (uint16_t *)k->op.qkv_gradient + at;

    return (struct device_norm){.kind = DEVICE_RMS_NORM,
                                .m = k->m,
                                .n = k->head_width,
                                .n_heads = of_keys ? k->n_kv_heads : k->op.n_heads,
                                .stride = k->columns,
                                .epsilon = 1e-6f,
                                .x = (const uint16_t *)k->projected + at,
                                .weight = k->weight,
                                .y = (uint16_t *)k->qkv + at,
                                .statistics = k->statistics + statistic,
                                .y_gradient = gradient,
                                .x_gradient = gradient,
                                .weight_gradient = k->weight_gradient};
}

/* Queries and keys side by side. */
static struct device_rope rope_of(const struct block *k, bool backward)
{
    return (struct device_rope){.n_rows = k->op.n_rows,
                                .n_tokens = k->op.n_tokens,
                                .n_heads = k->op.n_heads + k->n_kv_heads,
                                .head_width = k->head_width,
                                .n_rotated = k->head_width,
                                .frequencies = k->frequencies,
                                .x = backward ? k->op.qkv_gradient : k->qkv,
                                .stride = k->columns,
                                .inverse = backward};
}

static void qwen3_attention(struct bench *b, void *context)
{
    b->ops->attention(b->dev, &((struct block *)context)->op);
}

static void qwen3_attention_backward(struct bench *b, void *context)
{
    b->ops->attention_backward(b->dev, &((struct block *)context)->op);
}

static void qwen3_forward(struct bench *b, void *context)
{
    const struct device_norm queries = qwen3_norm_of(context, false), keys = qwen3_norm_of(context, true);
    const struct device_rope rope = rope_of(context, false);

    b->ops->norm(b->dev, &queries);
    b->ops->norm(b->dev, &keys);
    b->ops->rope(b->dev, &rope);
    qwen3_attention(b, context);
}

static void qwen3_backward(struct bench *b, void *context)
{
    const struct device_norm queries = qwen3_norm_of(context, false), keys = qwen3_norm_of(context, true);
    const struct device_rope rope = rope_of(context, true);

    qwen3_attention_backward(b, context);
    b->ops->rope(b->dev, &rope);
    b->ops->norm_backward(b->dev, &queries);
    b->ops->norm_backward(b->dev, &keys);
}

/* Of attention 2 products forward, 5 backward, over half of the scores; the whole of it in milliseconds. */
static void qwen3_measure(struct bench *b, struct block *k, const char *what, bench_run *whole, bench_run *alone,
                          int products, const char *told)
{
    const double scores = (double)k->m * (double)k->op.n_tokens / 2, flop = 2 * scores * (double)k->op.width;
    bench_run *const runs[] = {alone, whole};
    double ms[2];

    bench_times(b, ms, runs, k, 2);
    printf("grouped-%s|%.1f|TFLOP/s of attention in %.4f ms, with norms of heads and rope %.4f ms; %s\n", what,
           products * flop / ms[0] * 1e-9, ms[0], ms[1], told);
    fflush(stdout);
}

struct results {
    uint16_t *out, *gradient;
};

/* Of attention alone, where NaN was before. */
static struct results qwen3_run_once(struct bench *b, const struct device_attention *op, size_t m, size_t columns)
{
    const size_t out_bytes = m * op->width * sizeof(uint16_t), gradient_bytes = m * columns * sizeof(uint16_t);

    must(cudaMemsetAsync(op->out, 0xff, out_bytes, b->stream));
    must(cudaMemsetAsync(op->qkv_gradient, 0xff, gradient_bytes, b->stream));
    must(cudaStreamSynchronize(b->stream));
    b->ops->attention(b->dev, op);
    b->ops->attention_backward(b->dev, op);
    return (struct results){bench_read_back(b, op->out, out_bytes),
                            bench_read_back(b, op->qkv_gradient, gradient_bytes)};
}

static void qwen3_free_results(struct results *r)
{
    free(r->out);
    free(r->gradient);
}

/* qkv (m, columns) with a copy of keys and values for each head. */
static void repeat_keys(uint16_t *to, const uint16_t *from, const struct block *k)
{
    const size_t width = k->op.width, kv = k->n_kv_heads * k->head_width, group = k->op.n_heads / k->n_kv_heads;

    for (size_t row = 0; row < k->m; row++, from += k->columns, to += 3 * width) {
        memcpy(to, from, width * sizeof *to);
        for (size_t part = 0; part < 2; part++)
            for (size_t head = 0; head < k->op.n_heads; head++)
                memcpy(to + (1 + part) * width + head * k->head_width,
                       from + width + part * kv + head / group * k->head_width, k->head_width * sizeof *to);
    }
}

/* The other way: gradients of keys and values are sums over the heads that share them. */
static void sum_keys(uint16_t *to, const uint16_t *from, const struct block *k)
{
    const size_t width = k->op.width, kv = k->n_kv_heads * k->head_width, group = k->op.n_heads / k->n_kv_heads;

    for (size_t row = 0; row < k->m; row++, from += 3 * width, to += k->columns) {
        memcpy(to, from, width * sizeof *to);
        for (size_t i = 0; i < 2 * kv; i++) {
            const size_t head = i % kv / k->head_width * group, column = i % k->head_width;
            const uint16_t *at = from + (1 + i / kv) * width + head * k->head_width + column;
            float sum = 0;
            for (size_t n = 0; n < group; n++)
                sum += number_from_bf16(at[n * k->head_width]);
            to[width + i] = number_to_bf16(sum);
        }
    }
}

/* Results of attention with repeated keys, in the shape of k's; the caller frees them. */
static struct results run_repeated(struct bench *b, const struct block *k)
{
    const size_t n = k->m * 3 * k->op.width;
    uint16_t *grouped = bench_read_back(b, k->qkv, k->m * k->columns * sizeof *grouped);
    uint16_t *repeated = malloc(n * sizeof *repeated);
    struct device_attention op = k->op;
    struct plan_attention_scratch scratch;
    char told[DEVICE_TOLD];

    if (!repeated) {
        fprintf(stderr, "bench_cuda: out of memory\n");
        exit(1);
    }
    op.n_kv_heads = op.n_heads;
    const struct plan_attention_sizes sizes = attention_sizes(&op);
    plan_attention_lay_out(&scratch, b->attention, &sizes);
    void *qkv = bench_take(b, n * sizeof *repeated);
    op.qkv = qkv, op.qkv_gradient = bench_take(b, n * sizeof *repeated);
    op.out = bench_take(b, k->m * op.width * sizeof *repeated), op.scratch = bench_take(b, scratch.bytes);
    repeat_keys(repeated, grouped, k);
    b->ops->upload(b->dev, qkv, repeated, n * sizeof *repeated);
    b->ops->sync(b->dev); /* attention is on another queue */
    b->ops->prepare_attention(b->dev, &op, &b->attention, 1, told);
    fprintf(stderr, "with repeated keys: %s\n", told);
    struct results r = qwen3_run_once(b, &op, k->m, 3 * op.width);
    sum_keys(grouped, r.gradient, k);
    free(repeated), free(r.gradient);
    r.gradient = grouped;
    return r;
}

void bench_qwen3(struct bench *b)
{
    struct block k = qwen3_make(b);
    const size_t n_out = k.m * k.op.width, n_gradient = k.m * k.columns;
    char told[DEVICE_TOLD];

    b->ops->prepare_attention(b->dev, &k.op, &b->attention, 1, told);
    qwen3_measure(b, &k, "forward", qwen3_forward, qwen3_attention, 2, told);
    qwen3_measure(b, &k, "backward", qwen3_backward, qwen3_attention_backward, 5, told);
    struct results first = qwen3_run_once(b, &k.op, k.m, k.columns), again = qwen3_run_once(b, &k.op, k.m, k.columns);
    struct results repeated = run_repeated(b, &k);
    printf("repeat-grouped|%zu|values are others in a second run\n",
           bench_count_other(first.out, again.out, n_out, sizeof(uint16_t)) +
               bench_count_other(first.gradient, again.gradient, n_gradient, sizeof(uint16_t)));
    printf("agreement-grouped-forward|%.5f|apart are results with shared keys and with repeated ones\n",
           bench_apart(NUMBER_BF16, first.out, repeated.out, n_out));
    printf("agreement-grouped-backward|%.5f|apart are their gradients\n",
           bench_apart(NUMBER_BF16, first.gradient, repeated.gradient, n_gradient));
    qwen3_free_results(&first), qwen3_free_results(&again), qwen3_free_results(&repeated);
}
