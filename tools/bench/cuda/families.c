/* Attention as families train it, forward and backward: whatever the backend chooses for each shape. Prints milliseconds,
 * and TFLOP/s of the pairs of query and key that are seen: 2 products forward, 5 backward. */
#include "tools/bench/cuda/bench.h"

#include <math.h>

static const struct shape {
    const char *name;
    size_t n_rows, n_tokens, n_heads, head_width, n_kv_heads, window;
    bool full;
    float dropout;
} shapes[] = {
    {"gpt2", 16, 1024, 16, 64, 16, 0, false, 0},
    {"gpt2-dropout", 16, 1024, 16, 64, 16, 0, false, 0.1f},
    {"llama3-8b", 4, 4096, 32, 128, 8, 0, false, 0},
    {"llama3-8b-long", 1, 16384, 32, 128, 8, 0, false, 0},
    {"mistral-7b", 2, 8192, 32, 128, 8, 4096, false, 0},
    {"gemma3-27b-local", 4, 4096, 32, 128, 16, 1024, false, 0},
    {"gemma-7b", 4, 4096, 16, 256, 16, 0, false, 0},
    {"bert-large", 32, 512, 16, 64, 16, 0, true, 0},
    {"bert-large-dropout", 32, 512, 16, 64, 16, 0, true, 0.1f},
};

static void forward(struct bench *b, void *context)
{
    b->ops->attention(b->dev, context);
}

static void backward(struct bench *b, void *context)
{
    b->ops->attention_backward(b->dev, context);
}

static struct device_attention make(struct bench *b, const struct shape *s)
{
    const size_t m = s->n_rows * s->n_tokens, width = s->n_heads * s->head_width;
    const size_t columns = width + 2 * s->n_kv_heads * s->head_width;
    struct plan_attention_scratch scratch;

    plan_attention_lay_out(&scratch, b->attention, s->n_rows, s->n_tokens, s->n_heads, width);
    return (struct device_attention){.n_rows = s->n_rows,
                                     .n_tokens = s->n_tokens,
                                     .n_heads = s->n_heads,
                                     .width = width,
                                     .n_kv_heads = s->n_kv_heads,
                                     .window = s->window,
                                     .full = s->full,
                                     .dropout.p = s->dropout,
                                     .scale = 1 / sqrtf((float)s->head_width),
                                     .qkv = bench_values(b, m * columns),
                                     .out = bench_values(b, m * width),
                                     .log_sum_exp = bench_floats(b, m * s->n_heads),
                                     .out_gradient = bench_values(b, m * width),
                                     .qkv_gradient = bench_values(b, m * columns),
                                     .scratch = bench_take(b, scratch.bytes)};
}

/* Pairs of query and key that are seen, of one head. */
static double pairs(const struct device_attention *op)
{
    const double n = (double)op->n_tokens, window = op->window && op->window < op->n_tokens ? (double)op->window : n;

    return (double)op->n_rows * (op->full ? n * n : n * window - window * window / 2);
}

void bench_families(struct bench *b)
{
    static bench_run *const runs[] = {forward, backward};

    for (const struct shape *s = shapes; s < shapes + sizeof shapes / sizeof *shapes; s++) {
        struct shape shape = *s;
        char *mark = b->next, told[DEVICE_TOLD];
        double ms[2];

        if (b->small)
            shape.n_rows = 1, shape.n_tokens = 32, shape.n_heads = 2,
            shape.n_kv_heads = s->n_kv_heads < s->n_heads ? 1 : 2;
        struct device_attention op = make(b, &shape);
        const double flop = 2 * pairs(&op) * (double)op.width;
        b->ops->prepare_attention(b->dev, &op, b->attention, told);
        bench_times(b, ms, runs, &op, 2);
        printf("family-%s|%.4f|ms forward, %.0f TFLOP/s; backward %.4f ms, %.0f TFLOP/s; %s\n", s->name, ms[0],
               2 * flop / ms[0] * 1e-9, ms[1], 5 * flop / ms[1] * 1e-9, told);
        fflush(stdout);
        bench_release(b, mark);
    }
}
