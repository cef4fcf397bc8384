/* Attention forward and backward: through cuDNN, if the backend has found it and it has a deterministic method, and by
 * our own kernel. Prints milliseconds, for the shapes of tools/bench/peer_attention.py. With both, also prints the
 * distance between their results, and the number of values in which two runs through cuDNN differ.
 *
 * And as families train it, by whatever the backend chooses for each shape. */
#include "tools/bench/cuda/bench.h"

#include <math.h>
#include <string.h>

enum { WIDTH = 2048, TOKENS = 16384 };

/* Full or causal, with a window or 0. */
struct shape {
    const char *name;
    size_t n_rows, n_tokens, n_heads, head_width, n_kv_heads, window;
    bool full;
    float dropout;
    enum { SELF, BIASED, CROSS } keys; /* of the same array, with T5's bias too; or of another array */
};

static const struct device_buckets one_way = {32, false, {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10,
                                                          11, 12, 13, 14, 15, 16, 19, 21, 24, 27, 31,
                                                          35, 40, 46, 52, 59, 67, 77, 87, 99, 113}},
                                   both_ways = {32, true, {0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23, 32, 46, 64, 91}};

static void attention_forward(struct bench *b, void *context)
{
    b->ops->attention(b->dev, context);
}

static void backward(struct bench *b, void *context)
{
    b->ops->attention_backward(b->dev, context);
}

static struct device_attention attention_make(struct bench *b, const struct shape *s)
{
    const size_t m = s->n_rows * s->n_tokens, width = s->n_heads * s->head_width;
    const size_t columns = width + 2 * s->n_kv_heads * s->head_width;
    const size_t of_keys = s->keys == CROSS ? columns - width : 0, of_queries = columns - of_keys;
    const struct device_buckets *buckets = s->full ? &both_ways : &one_way;
    struct plan_attention_scratch scratch;

    plan_attention_lay_out(&scratch, b->attention,
                           &(struct plan_attention_sizes){.n_rows = s->n_rows,
                                                          .n_tokens = s->n_tokens,
                                                          .n_heads = s->n_heads,
                                                          .n_kv_heads = s->n_kv_heads,
                                                          .width = width});
    const size_t sums = plan_cuda_bias_scratch(s->n_rows, s->n_tokens, s->n_heads, buckets->n);
    struct device_attention op = {.n_rows = s->n_rows,
                                  .n_tokens = s->n_tokens,
                                  .n_heads = s->n_heads,
                                  .width = width,
                                  .n_kv_heads = s->n_kv_heads,
                                  .window = s->window,
                                  .full = s->full,
                                  .dropout.p = s->dropout,
                                  .scale = 1 / sqrtf((float)s->head_width),
                                  .qkv = bench_values(b, m * of_queries),
                                  .out = bench_values(b, m * width),
                                  .log_sum_exp = bench_floats(b, m * s->n_heads),
                                  .out_gradient = bench_values(b, m * width),
                                  .qkv_gradient = bench_values(b, m * of_queries),
                                  .scratch = bench_take(b, scratch.bytes + (s->keys == BIASED ? sums : 0))};
    if (s->keys == BIASED)
        op.buckets = *buckets, op.bias = bench_floats(b, buckets->n * s->n_heads),
        op.bias_gradient = bench_floats(b, buckets->n * s->n_heads);
    if (s->keys == CROSS)
        op.n_keys = s->n_tokens, op.kv = bench_values(b, m * of_keys), op.kv_gradient = bench_values(b, m * of_keys);
    return op;
}

/* Counts two products forward, five backward, over half of the scores. */
static void attention_tell(const char *kind, const char *what, const struct device_attention *op, double ms,
                           int products)
{
    const double scores = (double)op->n_rows * (double)op->n_tokens * (double)op->n_tokens / 2;

    printf("%s-%s-%zu-%zu|%.4f|%.0f TFLOP/s\n", kind, what, op->width / op->n_heads, op->n_tokens, ms,
           2 * products * scores * (double)op->width / ms * 1e-9);
    fflush(stdout);
}

struct results {
    uint16_t *out, *gradient;
};

/* Takes the results and leaves NaN in their place, so that the next computation must write all of them. */
static struct results take_results(struct bench *b, const struct device_attention *op)
{
    const size_t n = op->n_rows * op->n_tokens * op->width;
    const struct results taken = {bench_read_back(b, op->out, n * sizeof(uint16_t)),
                                  bench_read_back(b, op->qkv_gradient, 3 * n * sizeof(uint16_t))};

    must(cudaMemsetAsync(op->out, 0xff, n * sizeof(uint16_t), b->stream));
    must(cudaMemsetAsync(op->qkv_gradient, 0xff, 3 * n * sizeof(uint16_t), b->stream));
    must(cudaStreamSynchronize(b->stream));
    return taken;
}

/* Compares two methods; each rounds its intermediates to bf16 at places of its own. */
static void attention_compare(const struct device_attention *op, const struct results *own, const struct results *other)
{
    const size_t n = op->n_rows * op->n_tokens * op->width;
    const size_t head = op->width / op->n_heads;

    printf("agreement-forward-%zu-%zu|%.5f|apart are our kernel's and cuDNN's results\n", head, op->n_tokens,
           bench_apart(NUMBER_BF16, own->out, other->out, n));
    printf("agreement-backward-%zu-%zu|%.5f|apart are gradients of theirs\n", head, op->n_tokens,
           bench_apart(NUMBER_BF16, own->gradient, other->gradient, 3 * n));
    fflush(stdout);
}

static void attention_free_results(struct results *r)
{
    free(r->out);
    free(r->gradient);
}

/* Leaves out backward if it is not of this kind. */
static void attention_measure(struct bench *b, struct device_attention *op, const char *kind, bool has_backward)
{
    bench_run *const runs[] = {attention_forward, backward};
    double ms[2];

    bench_times(b, ms, runs, op, 2);
    attention_tell(kind, "forward", op, ms[0], 2);
    if (has_backward)
        attention_tell(kind, "backward", op, ms[1], 5);
}

static struct results attention_run_once(struct bench *b, struct device_attention *op)
{
    attention_forward(b, op);
    backward(b, op);
    return take_results(b, op);
}

/* Measures cuDNN, if the backend uses it. *out is its results, which the caller frees, with the number of values that a
 * second run gives differently. */
static bool measure_cudnn(struct bench *b, struct device_attention *op, struct results *out)
{
    const size_t n = op->n_rows * op->n_tokens * op->width;
    char told[DEVICE_TOLD];

    b->ops->prepare_attention(b->dev, op, &b->attention, 1, told);
    fprintf(stderr, "%s\n", told);
    if (!strstr(told, ": cuDNN "))
        return false;
    attention_measure(b, op, "cudnn", strstr(told, " and backward") != NULL);
    struct results again = take_results(b, op);
    *out = attention_run_once(b, op);
    printf("repeat-%zu-%zu|%zu|values are others in a second run through cuDNN\n", op->width / op->n_heads,
           op->n_tokens,
           bench_count_other(out->out, again.out, n, 2) + bench_count_other(out->gradient, again.gradient, 3 * n, 2));
    attention_free_results(&again);
    return true;
}

void bench_attention(struct bench *b)
{
    struct cuda_dnn *dnn = b->dev->dnn; /* without it the backend uses its own kernels */

    for (size_t head_width = 64; head_width <= 128; head_width *= 2)
        for (size_t n_tokens = 1024; n_tokens <= 8192; n_tokens *= 2) {
            const size_t n_heads = b->small ? 2 : WIDTH / head_width;
            const struct shape shape = {.n_rows = b->small ? 1 : TOKENS / n_tokens,
                                        .n_tokens = b->small ? 32 : n_tokens,
                                        .n_heads = n_heads,
                                        .head_width = head_width,
                                        .n_kv_heads = n_heads};
            char *mark = b->next;
            struct device_attention op = attention_make(b, &shape);
            struct results through = {.out = NULL}, own = {.out = NULL};
            const bool is_there = measure_cudnn(b, &op, &through);
            b->dev->dnn = NULL;
            attention_measure(b, &op, "own", true);
            if (is_there)
                own = take_results(b, &op);
            b->dev->dnn = dnn;
            if (is_there)
                attention_compare(&op, &own, &through);
            attention_free_results(&through), attention_free_results(&own);
            bench_release(b, mark);
            if (b->small)
                break;
        }
}

/* ---- families ---- */

static const struct shape families[] = {
    {"gpt2", 16, 1024, 16, 64, 16, 0, false, 0, SELF},
    {"gpt2-dropout", 16, 1024, 16, 64, 16, 0, false, 0.1f, SELF},
    {"llama3-8b", 4, 4096, 32, 128, 8, 0, false, 0, SELF},
    {"llama3-8b-long", 1, 16384, 32, 128, 8, 0, false, 0, SELF},
    {"mistral-7b", 2, 8192, 32, 128, 8, 4096, false, 0, SELF},
    {"gemma3-27b-local", 4, 4096, 32, 128, 16, 1024, false, 0, SELF},
    {"gemma-7b", 4, 4096, 16, 256, 16, 0, false, 0, SELF},
    {"gemma3-4b-local", 4, 4096, 8, 256, 4, 1024, false, 0, SELF},
    {"heads-of-80", 4, 4096, 32, 80, 32, 0, false, 0, SELF},
    {"heads-of-96", 4, 4096, 32, 96, 8, 0, false, 0, SELF},
    {"bert-large", 32, 512, 16, 64, 16, 0, true, 0, SELF},
    {"bert-large-dropout", 32, 512, 16, 64, 16, 0, true, 0.1f, SELF},
    {"t5-large-encoder", 32, 512, 16, 64, 16, 0, true, 0, BIASED},
    {"t5-large-encoder-dropout", 32, 512, 16, 64, 16, 0, true, 0.1f, BIASED},
    {"t5-large-decoder", 32, 512, 16, 64, 16, 0, false, 0, BIASED},
    {"t5-large-cross", 32, 512, 16, 64, 16, 0, true, 0, CROSS},
    {"t5-3b-encoder", 16, 512, 32, 128, 32, 0, true, 0, BIASED},
};

/* Pairs of query and key that are seen, of one head. */
static double pairs(const struct device_attention *op)
{
    const double n = (double)op->n_tokens, window = op->window && op->window < op->n_tokens ? (double)op->window : n;

    return (double)op->n_rows * (op->full ? n * n : n * window - window * window / 2);
}

/* Prints milliseconds, and TFLOP/s of the pairs that are seen: 2 products forward, 5 backward. */
void bench_families(struct bench *b)
{
    bench_run *const runs[] = {attention_forward, backward};

    for (const struct shape *s = families; s < families + sizeof families / sizeof *families; s++) {
        struct shape shape = *s;
        char *mark = b->next, told[DEVICE_TOLD];
        double ms[2];

        if (b->small)
            shape.n_rows = 1, shape.n_tokens = 32, shape.n_heads = 2,
            shape.n_kv_heads = s->n_kv_heads < s->n_heads ? 1 : 2;
        struct device_attention op = attention_make(b, &shape);
        const double flop = 2 * pairs(&op) * (double)op.width;
        b->ops->prepare_attention(b->dev, &op, &b->attention, 1, told);
        bench_times(b, ms, runs, &op, 2);
        printf("family-%s|%.4f|ms forward, %.0f TFLOP/s; backward %.4f ms, %.0f TFLOP/s; %s\n", s->name, ms[0],
               2 * flop / ms[0] * 1e-9, ms[1], 5 * flop / ms[1] * 1e-9, told);
        fflush(stdout);
        bench_release(b, mark);
    }
}
