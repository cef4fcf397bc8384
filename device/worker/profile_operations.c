/* Attention, convolutions and norms. */
#include "device/worker/profile_measure.h"

#include <math.h>

enum {
    HOST_HEAD = 64, /* typical head width and tokens of a row, for attention */
    DEVICE_HEAD = 128,
    HOST_TOKENS = 512,
    DEVICE_TOKENS = 2048,
    DEVICE_ROWS = 4,
};

/* Uses the arena for qkv, out and its gradient, qkv's gradient, workspace, log-sum-exp, a bias. */
struct attention {
    size_t n_rows, n_tokens, head, width;
};

static struct attention attention_shape(const struct measured *b)
{
    if (b->of_host)
        return (struct attention){1, HOST_TOKENS, HOST_HEAD, b->width};
    return (struct attention){DEVICE_ROWS, DEVICE_TOKENS, DEVICE_HEAD, b->width};
}

static size_t heads_of(const struct attention *a)
{
    return a->width / a->head;
}

/* Elements of one array of the output's size. */
static size_t attention_elements(const struct attention *a)
{
    return a->n_rows * a->n_tokens * a->width;
}

enum { ATTENTION_ARRAYS = 8 };

/* Enough for every path. */
static size_t scratch_bytes(const struct measured *b, const struct attention *a)
{
    const size_t n_heads = heads_of(a);
    const struct plan_attention_sizes sizes = {
        .n_rows = a->n_rows, .n_tokens = a->n_tokens, .n_heads = n_heads, .n_kv_heads = n_heads, .width = a->width};
    const uint64_t own = plan_backend_find(b->ops->name)->scratch_bytes(&sizes, b->n_threads);
    struct plan_attention_scratch scratch;

    plan_attention_lay_out(&scratch, b->way, &sizes);
    return scratch.way != PLAN_ATTENTION_OWN && scratch.bytes > own ? scratch.bytes : own;
}

static size_t sums_bytes(const struct attention *a)
{
    return a->n_rows * a->n_tokens * heads_of(a) * sizeof(float);
}

static size_t attention_bytes(const struct measured *b)
{
    const struct attention shape = attention_shape(b), *a = &shape;

    return ATTENTION_ARRAYS * attention_elements(a) * number_bytes(b->type) + scratch_bytes(b, a) + sums_bytes(a) +
           heads_of(a) * sizeof(float);
}

/* The same shape on each path: with dropout; or with a bias by distance and a window, of which tensor cores take either. */
static struct device_attention attention_of(const struct measured *b)
{
    const struct attention a = attention_shape(b);
    const size_t n = attention_elements(&a) * number_bytes(b->type);
    char *const scratch = b->arena + ATTENTION_ARRAYS * n, *const sums = scratch + scratch_bytes(b, &a);
    struct device_attention op = {.n_rows = a.n_rows,
                                  .n_tokens = a.n_tokens,
                                  .n_heads = heads_of(&a),
                                  .width = a.width,
                                  .scale = 1 / sqrtf((float)a.head),
                                  .qkv = b->arena,
                                  .out_gradient = b->arena + 3 * n,
                                  .out = b->arena + 4 * n,
                                  .qkv_gradient = b->arena + 5 * n,
                                  .scratch = scratch,
                                  .log_sum_exp = (float *)sums};

    if (b->path == ATTENTION_DRAWING)
        op.dropout.p = 0.1f;
    if (b->path == ATTENTION_PLAIN && a.head == DEVICE_HEAD && b->type != NUMBER_FP32)
        op.bias = (float *)(sums + sums_bytes(&a)), op.buckets.n = 1, op.window = a.n_tokens - 1;
    return op;
}

static void attend(const struct measured *b)
{
    const struct device_attention op = attention_of(b);

    b->ops->attention(b->dev, &op);
}

static void attend_backward(const struct measured *b)
{
    const struct device_attention op = attention_of(b);

    b->ops->attention_backward(b->dev, &op);
}

/* Forward runs first, as backward reads its output. */
static int measure_path(struct profile *out, struct measured *b, enum attention_path path)
{
    const struct attention a = attention_shape(b);
    const double each = (double)attention_elements(&a) * (double)a.n_tokens;
    int rc = 0;

    b->path = path;
    out->attention_flops[PROFILE_FORWARD][path][b->type] = 2 * each / measure_time(b, attend, &rc);
    if (!rc)
        out->attention_flops[PROFILE_BACKWARD][path][b->type] = 5 * each / measure_time(b, attend_backward, &rc);
    return rc;
}

/* The paths that the device has for this type, cuDNN last: once it is prepared, it takes the shape. */
static int measure_attention(struct profile *out, struct measured *b)
{
    int rc = measure_path(out, b, ATTENTION_PLAIN);

    if (rc || b->of_host || b->type == NUMBER_FP32)
        return rc;
    rc = measure_path(out, b, ATTENTION_TENSOR);
    if (!rc)
        rc = measure_path(out, b, ATTENTION_DRAWING);
    if (rc || b->way == PLAN_ATTENTION_OWN)
        return rc;
    b->path = ATTENTION_LIBRARY;
    const struct device_attention op = attention_of(b);
    char told[DEVICE_TOLD];
    b->ops->prepare_attention(b->dev, &op, &b->way, 1, told);
    return measure_path(out, b, ATTENTION_LIBRARY);
}

/* Without the launches, unless these are most of it. */
static double computing(double seconds, double launches)
{
    return seconds > 2 * launches ? seconds - launches : seconds;
}

/* ---- convolutions: of 3 x 3 at stride 1, in the middle of a residual net ---- */

static struct device_conv2d convolution_of(const struct measured *b)
{
    const size_t n = b->of_host ? 64 : 256, size = b->of_host ? 16 : 28;
    struct device_conv2d op = {.n_rows = b->of_host ? 8 : 64,
                               .height = size,
                               .width = size,
                               .n_in = n,
                               .n_out = n,
                               .n_groups = 1,
                               .window = {3, 3, 1, 1}};
    const size_t image = op.n_rows * size * size * n * number_bytes(b->type);
    char *const x = b->arena, *const y = x + image, *const weight = y + image;

    switch (b->conv2d) {
    case CONV2D_FORWARD:
        op.x = x, op.weight = weight, op.y = y;
        break;
    case CONV2D_INPUT:
        op.x_gradient = x, op.weight = weight, op.y_gradient = y;
        break;
    case CONV2D_WEIGHTS:
        op.x = x, op.weight_gradient = (float *)(void *)weight, op.y_gradient = y;
        break;
    case CONV2D_KINDS:
        break;
    }
    return op;
}

static size_t convolution_bytes(const struct measured *b)
{
    const struct device_conv2d op = convolution_of(b);

    return 2 * op.n_rows * op.height * op.width * op.n_in * number_bytes(b->type) +
           op.n_out * device_conv2d_taps(&op) * sizeof(float);
}

static void convolve(const struct measured *b)
{
    void (*const kinds[CONV2D_KINDS])(struct device *, const struct device_conv2d *) = {b->ops->conv2d,
                                                                                        b->ops->conv2d_input_gradient,
                                                                                        b->ops->conv2d_weight_gradient};
    const struct device_conv2d op = convolution_of(b);

    kinds[b->conv2d](b->dev, &op);
}

/* Prepared for the library where it is the path. */
static int measure_convolutions(struct profile *out, struct measured *b, enum conv2d_path path)
{
    int rc = measure_fill(b, convolution_bytes(b) / number_bytes(b->type));

    for (int kind = 0; !rc && kind < CONV2D_KINDS; kind++) {
        b->conv2d = (enum conv2d_kind)kind;
        const struct device_conv2d op = convolution_of(b);
        char told[DEVICE_TOLD];
        if (path == CONV2D_LIBRARY)
            b->ops->prepare_conv2d(b->dev, &op, 1, b->convolution, told);
        const double seconds = measure_time(b, convolve, &rc);
        const double launches = (double)conv2d_launches(&op, b->conv2d, path) * b->call_s;
        const double flops = 2 * (double)device_conv2d_pixels(&op) * (double)op.n_out * (double)device_conv2d_taps(&op);
        out->conv2d_flops[kind][path][b->type] = flops / computing(seconds, launches);
    }
    return rc;
}

/* ---- norms: rows as wide as products, of x, of y or its gradient, of x's gradient; then what is as wide as one row ---- */

/* Each array is larger than any cache. */
static size_t norm_rows(const struct measured *b)
{
    return ((size_t)32 << 20) / number_bytes(b->type) / b->width;
}

static struct device_norm norm_of(const struct measured *b)
{
    const size_t value = number_bytes(b->type), rows = norm_rows(b) * b->width * value;
    char *const x = b->arena, *const y = x + rows, *const x_gradient = y + rows, *const weight = x_gradient + rows;
    float *const statistics = (float *)(void *)(weight + b->width * value);

    return (struct device_norm){.kind = DEVICE_RMS_NORM,
                                .m = norm_rows(b),
                                .n = b->width,
                                .epsilon = 1e-6f,
                                .x = x,
                                .weight = weight,
                                .y = y,
                                .statistics = statistics,
                                .y_gradient = y,
                                .x_gradient = x_gradient,
                                .weight_gradient = statistics + 2 * norm_rows(b)};
}

static size_t norm_bytes(const struct measured *b)
{
    return (3 * norm_rows(b) + 1) * b->width * number_bytes(b->type) + (2 * norm_rows(b) + b->width) * sizeof(float);
}

static void norm(const struct measured *b)
{
    const struct device_norm op = norm_of(b);

    b->ops->norm(b->dev, &op);
}

static void norm_backward(const struct measured *b)
{
    const struct device_norm op = norm_of(b);

    b->ops->norm_backward(b->dev, &op);
}

/* What they move of x and y, of y's gradient, x and its gradient, is nearly all. */
static int measure_norms(struct profile *out, struct measured *b)
{
    const double rows = (double)norm_rows(b) * b->width * (double)number_bytes(b->type);
    int rc = measure_fill(b, norm_bytes(b) / number_bytes(b->type));

    if (!rc)
        out->norm_bytes_per_s[PROFILE_FORWARD] = 2 * rows / computing(measure_time(b, norm, &rc), b->call_s);
    if (!rc)
        out->norm_bytes_per_s[PROFILE_BACKWARD] = 3 * rows / computing(measure_time(b, norm_backward, &rc), b->call_s);
    return rc;
}

/* ---- */

size_t measure_operations_bytes(const struct measured *b, enum number_type type)
{
    struct measured typed = *b;
    size_t most;

    typed.type = type;
    most = attention_bytes(&typed);
    most = convolution_bytes(&typed) > most ? convolution_bytes(&typed) : most;
    return norm_bytes(&typed) > most ? norm_bytes(&typed) : most;
}

/* Norms in the type that is used most: a CPU's are of fp32. */
int measure_operations(struct profile *out, struct measured *b)
{
    const bool has_library = b->type == NUMBER_BF16 && b->convolution != 0;
    int rc = measure_attention(out, b);

    if (!rc)
        rc = measure_convolutions(out, b, CONV2D_OWN);
    if (!rc && has_library)
        rc = measure_convolutions(out, b, CONV2D_LIBRARY);
    if (!rc && b->type == (b->of_host ? NUMBER_FP32 : NUMBER_BF16))
        rc = measure_norms(out, b);
    return rc;
}
