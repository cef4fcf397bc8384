/* Products: rates, and the fastest of the algorithms that a library proposes. */
#include "device/worker/profile_measure.h"

#include "device/worker/profile.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

enum { WARM_MS = 1000 /* so long a GPU works before it is timed: its clocks fall under load */ };

/* Uses the arena for weights, the largest number of rows, and their results. */
static void profile_products_multiply(const struct measured *b)
{
    const size_t value = number_bytes(b->type), weights = (size_t)b->width * b->width * value;
    const size_t rows = (size_t)profile_rows[PROFILE_ROWS - 1] * b->width * value;
    const struct device_matmul op = {.m = b->rows,
                                     .n = b->width,
                                     .k = b->width,
                                     .a = b->arena + weights,
                                     .a_stride = b->width,
                                     .b = b->arena,
                                     .b_stride = b->width,
                                     .c = b->arena + weights + rows,
                                     .c_stride = b->width};

    b->ops->matmul(b->dev, &op);
}

/* Matrices of a class, one after another; each dimension is 4,096 or the number of rows. */
static struct device_matmul profile_products_product_of(const struct measured *b, enum products_kind kind, size_t rows)
{
    const size_t width = b->width, most = (size_t)products_rows[PRODUCTS_ROWS - 1] * width * number_bytes(b->type);
    const bool over_rows = kind == PRODUCTS_WEIGHTS;

    return (struct device_matmul){.transpose_a = over_rows,
                                  .transpose_b = kind == PRODUCTS_BACKWARD,
                                  .m = over_rows ? width : rows,
                                  .n = width,
                                  .k = over_rows ? rows : width,
                                  .a = b->arena,
                                  .a_stride = width,
                                  .b = b->arena + most,
                                  .b_stride = width,
                                  .c = b->arena + 2 * most,
                                  .c_stride = width,
                                  .wide = over_rows,
                                  .over_rows = over_rows};
}

static void multiply_so(const struct measured *b)
{
    b->ops->matmul(b->dev, &b->product);
}

/* Chooses among the proposals for b->product. */
static int choose_algorithm(struct products *out, struct measured *b, int class)
{
    struct products_candidates candidates;
    double best = INFINITY;
    int rc = 0;

    b->ops->propose(b->dev, &b->product, &candidates);
    for (unsigned i = 0; !rc && i < candidates.n; i++) {
        struct products one = {.version = candidates.version};
        one.of[class] = candidates.of[i];
        if (b->ops->choose(b->dev, &one, NULL))
            continue;
        const double seconds = measure_time(b, multiply_so, &rc);
        if (!rc && seconds < best * 0.99)
            best = seconds, out->version = candidates.version, out->of[class] = candidates.of[i];
    }
    return rc;
}

int measure_choose(struct products *out, struct measured *b, enum number_type type, struct error *err)
{
    const size_t most = (size_t)products_rows[PRODUCTS_ROWS - 1] * b->width, value = number_bytes(type);
    const size_t result = (size_t)b->width * b->width * sizeof(float);
    int rc = measure_open(b, type, 2 * most * value + result, err);

    if (rc)
        return rc;
    rc = measure_fill(b, 2 * most);
    b->product = profile_products_product_of(b, PRODUCTS_FORWARD, products_rows[PRODUCTS_ROWS - 1]);
    if (!rc)
        measure_round(b, multiply_so, WARM_MS / 1e3, &rc);
    for (int kind = 0; !rc && kind < PRODUCTS_KINDS; kind++)
        for (uint32_t i = 0; !rc && i < PRODUCTS_ROWS; i++) {
            b->product = profile_products_product_of(b, (enum products_kind)kind, products_rows[i]);
            rc = choose_algorithm(out, b, products_class(type, (enum products_kind)kind, i));
        }
    if (rc)
        b->ops->fault(b->dev, err);
    measure_close(b);
    return rc;
}

int device_profile_products(struct products *out, const struct device_ops *ops, unsigned index, double (*clock)(void),
                            struct error *err)
{
    struct measured b;
    int rc = measure_begin(&b, ops, index, 1, clock, err);

    *out = (struct products){0};
    for (int type = 0; !rc && type < PROFILE_TYPES; type++)
        rc = measure_choose(out, &b, (enum number_type)type, err);
    measure_end(&b);
    return rc;
}

/* Of one width, of each number of rows. */
static int measure_width(double flops[PROFILE_ROWS], struct measured *b, uint32_t width)
{
    const uint32_t usual = b->width;
    int rc = 0;

    b->width = width;
    for (int i = 0; !rc && i < PROFILE_ROWS; i++) {
        b->rows = profile_rows[i];
        flops[i] = 2.0 * b->rows * width * width / measure_time(b, profile_products_multiply, &rc);
    }
    b->width = usual;
    return rc;
}

int measure_products(struct profile *out, struct measured *b)
{
    int rc = measure_fill(b, ((size_t)profile_rows[PROFILE_ROWS - 1] + b->width) * b->width);

    b->rows = profile_rows[PROFILE_ROWS - 1];
    if (!rc && !b->of_host)
        measure_round(b, profile_products_multiply, WARM_MS / 1e3, &rc);
    if (!rc)
        rc = measure_width(out->matmul_flops[b->type], b, b->width);
    for (int i = 0; !rc && !b->of_host && i < PROFILE_NARROW; i++)
        rc = measure_width(out->narrow_flops[i][b->type], b, profile_narrow[i]);
    return rc;
}

size_t measure_products_bytes(const struct measured *b, enum number_type type)
{
    return (2 * (size_t)profile_rows[PROFILE_ROWS - 1] + b->width) * b->width * number_bytes(type);
}
