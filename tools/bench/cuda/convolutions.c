/* ResNet-50's convolutions at 64 images of 224 x 224 and their gradients, through cuDNN, if the backend uses it, and by
 * our own kernels. Prints milliseconds and TFLOP/s of each, and milliseconds of all of them as often as the net has
 * them, for the shapes of tools/bench/peer_convolutions.py; the distance between the two results, and the number of
 * values in which two runs through cuDNN differ. */
#include "tools/bench/cuda/bench.h"

#include <math.h>
#include <string.h>

enum { IMAGES = 64, SMALL_IMAGES = 17 };

/* Size of x, channels in and out, window, stride; how many the net has. */
static const struct shape {
    uint32_t size, n_in, n_out, window, stride, n;
} shapes[] = {
    {224, 3, 64, 7, 2, 1},     {56, 64, 64, 1, 1, 1},    {56, 64, 64, 3, 1, 3},    {56, 64, 256, 1, 1, 4},
    {56, 256, 64, 1, 1, 2},    {56, 256, 128, 1, 1, 1},  {56, 128, 128, 3, 2, 1},  {28, 128, 512, 1, 1, 4},
    {56, 256, 512, 1, 2, 1},   {28, 512, 128, 1, 1, 3},  {28, 128, 128, 3, 1, 3},  {28, 512, 256, 1, 1, 1},
    {28, 256, 256, 3, 2, 1},   {14, 256, 1024, 1, 1, 6}, {28, 512, 1024, 1, 2, 1}, {14, 1024, 256, 1, 1, 5},
    {14, 256, 256, 3, 1, 5},   {14, 1024, 512, 1, 1, 1}, {14, 512, 512, 3, 2, 1},  {7, 512, 2048, 1, 1, 3},
    {14, 1024, 2048, 1, 2, 1}, {7, 2048, 512, 1, 1, 2},  {7, 512, 512, 3, 1, 2},
};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

enum kind { FORWARD, INPUT, WEIGHTS, KINDS };
static const char *const kinds[KINDS] = {"forward", "input", "weights"};

static void convolutions_forward(struct bench *b, void *context)
{
    b->ops->conv2d(b->dev, context);
}

static void input(struct bench *b, void *context)
{
    b->ops->conv2d_input_gradient(b->dev, context);
}

static void weights(struct bench *b, void *context)
{
    b->ops->conv2d_weight_gradient(b->dev, context);
}

static bench_run *const runs[KINDS] = {convolutions_forward, input, weights};

static struct device_conv2d convolutions_make(struct bench *b, const struct shape *s, enum kind kind)
{
    struct device_conv2d op = {.n_rows = b->small ? SMALL_IMAGES : IMAGES,
                               .height = b->small ? 4 : s->size,
                               .width = b->small ? 4 : s->size,
                               .n_in = b->small && s->n_in > 8 ? 8 : s->n_in,
                               .n_out = b->small ? 8 : s->n_out,
                               .n_groups = 1,
                               .window = {s->window, s->window, s->stride, s->window / 2}};
    const size_t x = op.n_rows * op.height * op.width * op.n_in, y = device_conv2d_pixels(&op) * op.n_out;
    const size_t weight = op.n_out * device_conv2d_taps(&op);

    if (kind != INPUT)
        op.x = bench_values(b, x);
    else
        op.x_gradient = bench_values(b, x);
    if (kind == WEIGHTS)
        op.weight_gradient = bench_floats(b, weight);
    else
        op.weight = bench_values(b, weight);
    if (kind == FORWARD)
        op.y = bench_values(b, y);
    else
        op.y_gradient = bench_values(b, y);
    return op;
}

struct result {
    void *at;
    size_t n;
    enum number_type type;
};

static struct result result_of(const struct device_conv2d *op, enum kind kind)
{
    if (kind == FORWARD)
        return (struct result){op->y, device_conv2d_pixels(op) * op->n_out, NUMBER_BF16};
    if (kind == INPUT)
        return (struct result){op->x_gradient, op->n_rows * op->height * op->width * op->n_in, NUMBER_BF16};
    return (struct result){op->weight_gradient, op->n_out * device_conv2d_taps(op), NUMBER_FP32};
}

/* Runs it once where NaN was before, and reads the result back; the caller frees it. */
static void *convolutions_run_once(struct bench *b, struct device_conv2d *op, enum kind kind)
{
    const struct result r = result_of(op, kind);
    const size_t bytes = r.n * number_bytes(r.type);

    must(cudaMemsetAsync(r.at, 0xff, bytes, b->stream));
    must(cudaStreamSynchronize(b->stream));
    runs[kind](b, op);
    return bench_read_back(b, r.at, bytes);
}

static void convolutions_name_of(char out[64], const struct shape *s, enum kind kind)
{
    snprintf(out, 64, "%s-%u-%u-%u-%u-%u", kinds[kind], s->size, s->n_in, s->n_out, s->window, s->stride);
}

static double convolutions_measure(struct bench *b, struct device_conv2d *op, const char *by, const char *name,
                                   enum kind kind)
{
    const double flop = 2 * (double)device_conv2d_pixels(op) * (double)op->n_out * (double)device_conv2d_taps(op);
    double ms;

    bench_times(b, &ms, &runs[kind], op, 1);
    printf("%s-%s|%.4f|%.0f TFLOP/s\n", by, name, ms, flop / ms * 1e-9);
    fflush(stdout);
    return ms;
}

/* Adds what the net's take to theirs and ours. */
static void convolutions_compare(struct bench *b, const struct shape *s, enum kind kind, double *theirs, double *ours)
{
    struct cuda_dnn *dnn = b->dev->dnn; /* without it the backend uses its own kernels */
    struct device_conv2d op = convolutions_make(b, s, kind);
    const struct result r = result_of(&op, kind);
    char name[64], told[DEVICE_TOLD];
    void *first = NULL, *second = NULL;

    convolutions_name_of(name, s, kind);
    b->ops->prepare_conv2d(b->dev, &op, 1, b->convolution, told);
    if (strstr(told, "computes 1 of 1")) {
        first = convolutions_run_once(b, &op, kind), second = convolutions_run_once(b, &op, kind);
        printf("repeat-%s|%zu|values are others in a second run through cuDNN\n", name,
               bench_count_other(first, second, r.n, number_bytes(r.type)));
        *theirs += s->n * convolutions_measure(b, &op, "cudnn", name, kind);
    } else {
        fprintf(stderr, "%s: %s\n", name, told);
    }
    b->dev->dnn = NULL;
    const double own = convolutions_measure(b, &op, "own", name, kind);
    *ours += s->n * own;
    if (first) {
        free(second);
        second = convolutions_run_once(b, &op, kind);
        printf("agreement-%s|%.5f|apart are our kernel's and cuDNN's results\n", name,
               bench_apart(r.type, first, second, r.n));
    } else {
        *theirs += s->n * own;
    }
    b->dev->dnn = dnn;
    free(first), free(second);
}

void bench_convolutions(struct bench *b)
{
    double theirs[KINDS] = {0}, ours[KINDS] = {0};

    b->round_ms = 8; /* there are many */
    for (size_t i = 0; i < N_SHAPES; i++)
        for (int kind = 0; kind < KINDS; kind++) {
            char *mark = b->next;
            if (i > 0 || kind != INPUT) /* the first one's input is the image */
                convolutions_compare(b, &shapes[i], (enum kind)kind, &theirs[kind], &ours[kind]);
            bench_release(b, mark);
        }
    for (int kind = 0; kind < KINDS; kind++)
        printf("net-%s|%.3f|ms of all of ResNet-50's, by our own kernels %.3f ms\n", kinds[kind], theirs[kind],
               ours[kind]);
    fflush(stdout);
}
