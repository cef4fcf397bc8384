/* Attention forward and backward: through cuDNN, where the backend found it, and by our own kernel. Milliseconds; the
 * same shapes as tools/bench/peer_attention.py. */
#include "tools/bench/cuda/bench.h"

#include "plan/backend.h"

#include <math.h>

enum { WIDTH = 2048, TOKENS = 16384 };

static void forward(struct bench *b, void *context)
{
    b->ops->attention(b->dev, context);
}

static void backward(struct bench *b, void *context)
{
    b->ops->attention_backward(b->dev, context);
}

static struct device_attention make(struct bench *b, size_t n_rows, size_t n_tokens, size_t head_width, size_t width)
{
    const size_t m = n_rows * n_tokens, n_heads = width / head_width;

    return (struct device_attention){.n_rows = n_rows,
                                     .n_tokens = n_tokens,
                                     .n_heads = n_heads,
                                     .width = width,
                                     .scale = 1 / sqrtf((float)head_width),
                                     .qkv = bench_values(b, 3 * m * width),
                                     .out = bench_values(b, m * width),
                                     .log_sum_exp = bench_floats(b, m * n_heads),
                                     .out_gradient = bench_values(b, m * width),
                                     .qkv_gradient = bench_values(b, 3 * m * width),
                                     .scratch =
                                         bench_take(b, plan_cuda.scratch_bytes(n_rows, n_tokens, n_heads, width, 1))};
}

/* Two products forward, five backward, over half of the scores. */
static void tell(const char *kind, const char *what, const struct device_attention *op, double ms, int products)
{
    const double scores = (double)op->n_rows * (double)op->n_tokens * (double)op->n_tokens / 2;

    printf("%s-%s-%zu-%zu|%.4f|%.0f TFLOP/s\n", kind, what, op->width / op->n_heads, op->n_tokens, ms,
           2 * products * scores * (double)op->width / ms * 1e-9);
    fflush(stdout);
}

static void measure(struct bench *b, struct device_attention *op, const char *kind)
{
    bench_run *const runs[] = {forward, backward};
    double ms[2];

    bench_times(b, ms, runs, op, 2);
    tell(kind, "forward", op, ms[0], 2);
    tell(kind, "backward", op, ms[1], 5);
}

void bench_attention(struct bench *b)
{
    struct cuda_dnn *dnn = b->dev->dnn; /* without it the backend takes its own kernels */

    for (size_t head_width = 64; head_width <= 128; head_width *= 2)
        for (size_t n_tokens = 1024; n_tokens <= 8192; n_tokens *= 2) {
            const size_t tokens = b->small ? 32 : n_tokens, width = b->small ? 2 * head_width : WIDTH;
            char *mark = b->next;
            struct device_attention op = make(b, b->small ? 1 : TOKENS / n_tokens, tokens, head_width, width);
            if (dnn)
                measure(b, &op, "cudnn");
            b->dev->dnn = NULL;
            measure(b, &op, "own");
            b->dev->dnn = dnn;
            bench_release(b, mark);
            if (b->small)
                break;
        }
}
