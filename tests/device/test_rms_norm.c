/* Root-mean-square normalisation against the formula in double, and what a norm does without a bias or without those who
 * ask for the gradients of its weights. */
#include "tests/kit/device/operation.h"
#include "tests/kit/test.h"

#include <math.h>

SUITE_LABELS(on_cuda)

static const struct shape {
    size_t m, n;
    float shift; /* of x: a mean far from 0 is no deviation from anything */
} shapes[] = {{1, 3, 0}, {5, 7, 0}, {33, 100, 10}, {64, 384, 0}, {3, 1000, -5}, {2, 4104, 0}};
enum { N_SHAPES = sizeof shapes / sizeof *shapes, N_CASES = N_SHAPES * NUMBER_TYPES };

static const float epsilon = 1e-5f;

struct norm {
    const struct shape *shape;
    enum number_type type;
    size_t n_x;
    void *x, *weight, *bias, *dy;
    bool accumulate, frozen; /* frozen: nobody asks for the weight's gradient */
};

static void set_up(struct norm *t, int i)
{
    const struct shape *s = &shapes[i / NUMBER_TYPES];

    *t = (struct norm){.shape = s, .type = (enum number_type)(i % NUMBER_TYPES), .n_x = s->m * s->n};
    t->x = operation_values(t->type, t->n_x, 1), t->dy = operation_values(t->type, t->n_x, 2);
    t->weight = operation_values(t->type, s->n, 3);
    for (size_t j = 0; j < t->n_x; j++)
        operation_set(t->type, t->x, j, operation_get(t->type, t->x, j) + s->shift);
}

static struct device_norm norm_of(struct mirror *at, const struct norm *t, void *y)
{
    return (struct device_norm){.kind = DEVICE_RMS_NORM,
                                .m = t->shape->m,
                                .n = t->shape->n,
                                .epsilon = epsilon,
                                .x = mirror_of(at, t->x),
                                .weight = mirror_of(at, t->weight),
                                .bias = mirror_of(at, t->bias),
                                .y = y,
                                .statistics = mirror_scratch(at, 2 * t->shape->m * sizeof(float))};
}

static void run_forward(struct mirror *at, void *const out[], const void *context)
{
    const struct device_norm op = norm_of(at, context, out[0]);

    at->ops->norm(at->dev, &op);
}

/* out: dx, and the weight's gradient if somebody asks; statistics from a forward pass of the same device. */
static void run_backward(struct mirror *at, void *const out[], const void *context)
{
    const struct norm *t = context;
    struct device_norm op = norm_of(at, t, mirror_scratch(at, t->n_x * number_bytes(t->type)));

    at->ops->norm(at->dev, &op);
    op.x_gradient = out[0];
    op.weight_gradient = t->frozen ? NULL : out[1];
    op.accumulate = t->accumulate;
    op.y_gradient = t->accumulate ? mirror_of(at, t->dy) : out[0];
    at->ops->norm_backward(at->dev, &op);
}

/* 1/sqrt(mean square + epsilon) of row i. */
static double inverse_of(const double *x, size_t n)
{
    double square = 0;

    for (size_t j = 0; j < n; j++)
        square += x[j] * x[j] / (double)n;
    return 1 / sqrt(square + (double)epsilon);
}

SUITE_FIXTURE(mirror_forget, NULL)

/* A few roundings of values up to 4; with and without a bias. */
TEST_EACH(rms_norm_is_the_formula, 2 * N_CASES)
{
    struct norm t;

    set_up(&t, _i / 2);
    const size_t n = t.shape->n;
    t.bias = _i % 2 ? operation_values(t.type, n, 4) : NULL;
    double *want = operation_zeros(t.n_x), *x = operation_widen(t.type, t.x, t.n_x);
    for (size_t i = 0; i < t.n_x; i++)
        want[i] = x[i] * inverse_of(x + i / n * n, n) * (double)operation_get(t.type, t.weight, i % n) +
                  (t.bias ? (double)operation_get(t.type, t.bias, i % n) : 0);
    operation_check(&(struct operation){.type = t.type,
                                        .run = run_forward,
                                        .context = &t,
                                        .parts = {{"y", t.n_x, want, 4 * 0x1p-23, NULL, OPERATION_VALUES}}});
}

/* With r the inverse: the slope of x_j r by x_k is r (j = k) - x_j x_k r^3 / n. The bounds are test_norm.c's. */
TEST_EACH(rms_norm_backward_is_the_formula, 4 * N_CASES)
{
    struct norm t;

    set_up(&t, _i / 4);
    t.accumulate = _i % 2, t.frozen = _i / 2 % 2;
    const size_t n = t.shape->n;
    const void *held = operation_values(t.type, t.n_x, t.accumulate ? 6 : 2); /* dx may be dy, if not */
    const float *held_sums = operation_values(NUMBER_FP32, n, 7);
    const double sums = backend_get()->cuda ? sqrt((double)t.shape->m) * 0x1p-23 : 0x1.01p-24;
    double *x = operation_widen(t.type, t.x, t.n_x), *dy = operation_widen(t.type, t.dy, t.n_x);
    double *dx = t.accumulate ? operation_widen(t.type, held, t.n_x) : operation_zeros(t.n_x);
    double *weight = operation_widen(NUMBER_FP32, held_sums, n);
    for (size_t i = 0; i < t.shape->m; i++) {
        const double *row = x + i * n, r = inverse_of(row, n);
        double across = 0;
        for (size_t j = 0; j < n; j++)
            across += dy[i * n + j] * (double)operation_get(t.type, t.weight, j) * row[j];
        for (size_t k = 0; k < n; k++) {
            const double g = dy[i * n + k] * (double)operation_get(t.type, t.weight, k);
            dx[i * n + k] += r * g - across * row[k] * r * r * r / (double)n;
            weight[k] += dy[i * n + k] * row[k] * r;
        }
    }
    operation_check(&(struct operation){.type = t.type,
                                        .run = run_backward,
                                        .context = &t,
                                        .parts = {{"x_gradient", t.n_x, dx, 8 * 0x1p-23, held, OPERATION_VALUES},
                                                  {"weight_gradient", t.frozen ? 0 : n, weight, 2 * sums + 4 * 0x1p-23,
                                                   held_sums, OPERATION_FP32}}});
}

/* By hand: the mean square of 1 and 7 is 25. */
TEST(rms_norm_of_one_and_seven_is_a_fifth_of_them)
{
    static const struct shape s = {1, 2, 0};
    struct norm t = {.shape = &s,
                     .n_x = 2,
                     .x = operation_room(NUMBER_FP32, 2),
                     .weight = operation_room(NUMBER_FP32, 2)};

    for (size_t i = 0; i < 2; i++) {
        operation_set(NUMBER_FP32, t.x, i, i ? 7 : 1);
        operation_set(NUMBER_FP32, t.weight, i, 1);
    }
    operation_check(&(
        struct operation){.run = run_forward,
                          .context = &t,
                          .parts = {{.name = "y", .n = 2, .expected = (const double[]){0.2, 1.4}, .tolerance = 1e-6}}});
}
