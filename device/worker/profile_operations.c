/* Convolutions and norms, beside attention (profile_attention.c). */
#include "device/worker/profile_measure.h"

/* ---- convolutions: of 3 x 3 at stride 1, in the middle of a residual net ---- */

static struct device_conv2d profile_operations_convolution_of(const struct measured *b)
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
    const struct device_conv2d op = profile_operations_convolution_of(b);

    return 2 * op.n_rows * op.height * op.width * op.n_in * number_bytes(b->type) +
           op.n_out * device_conv2d_taps(&op) * sizeof(float);
}

static void profile_operations_convolve(const struct measured *b)
{
    void (*const kinds[CONV2D_KINDS])(struct device *, const struct device_conv2d *) = {b->ops->conv2d,
                                                                                        b->ops->conv2d_input_gradient,
                                                                                        b->ops->conv2d_weight_gradient};
    const struct device_conv2d op = profile_operations_convolution_of(b);

    kinds[b->conv2d](b->dev, &op);
}

/* Prepared for the library where it is the path. */
static int measure_convolutions(struct profile *out, struct measured *b, enum conv2d_path path)
{
    int rc = measure_fill(b, convolution_bytes(b) / number_bytes(b->type));

    for (int kind = 0; !rc && kind < CONV2D_KINDS; kind++) {
        b->conv2d = (enum conv2d_kind)kind;
        const struct device_conv2d op = profile_operations_convolution_of(b);
        char told[DEVICE_TOLD];
        if (path == CONV2D_LIBRARY)
            b->ops->prepare_conv2d(b->dev, &op, 1, b->convolution, told);
        const double seconds = measure_time(b, profile_operations_convolve, &rc);
        const double launches = (double)conv2d_launches(&op, b->conv2d, path) * b->call_s;
        const double flops = 2 * (double)device_conv2d_pixels(&op) * (double)op.n_out * (double)device_conv2d_taps(&op);
        out->conv2d_flops[kind][path][b->type] = flops / measure_computing(seconds, launches);
    }
    return rc;
}

/* ---- norms: rows as wide as products, of x, y or its gradient, x's gradient; then what is as wide as one row ----- */

/* Each array is larger than any cache. */
static size_t norm_rows(const struct measured *b)
{
    return ((size_t)32 << 20) / number_bytes(b->type) / b->width;
}

static struct device_norm profile_operations_norm_of(const struct measured *b)
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

static void profile_operations_norm(const struct measured *b)
{
    const struct device_norm op = profile_operations_norm_of(b);

    b->ops->norm(b->dev, &op);
}

static void profile_operations_norm_backward(const struct measured *b)
{
    const struct device_norm op = profile_operations_norm_of(b);

    b->ops->norm_backward(b->dev, &op);
}

/* What they move of x and y, of y's gradient, x and its gradient, is nearly all. */
static int measure_norms(struct profile *out, struct measured *b)
{
    const double rows = (double)norm_rows(b) * b->width * (double)number_bytes(b->type);
    int rc = measure_fill(b, norm_bytes(b) / number_bytes(b->type));

    if (!rc)
        out->norm_bytes_per_s[PROFILE_FORWARD] =
            2 * rows / measure_computing(measure_time(b, profile_operations_norm, &rc), b->call_s);
    if (!rc)
        out->norm_bytes_per_s[PROFILE_BACKWARD] =
            3 * rows / measure_computing(measure_time(b, profile_operations_norm_backward, &rc), b->call_s);
    return rc;
}

/* ---- */

size_t measure_operations_bytes(const struct measured *b, enum number_type type)
{
    struct measured typed = *b;
    size_t most;

    typed.type = type;
    most = measure_attention_bytes(&typed);
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
