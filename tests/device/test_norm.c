/* Layer normalisation against the plain one in double. */
#include "tests/kit/device/operation.h"
#include "tests/kit/device/reference.h"
#include "tests/kit/test.h"

#include <math.h>
#include <string.h>

SUITE_LABELS(on_cuda)

static const struct shape {
    size_t m, n;
    float shift; /* of x: a mean far from 0 must not cost digits of the deviation */
} shapes[] = {{1, 3, 0}, {1, 16, 0}, {5, 7, 0}, {33, 100, 10}, {64, 384, 0}, {300, 130, -5}, {2, 1000, 0}};
enum { N_SHAPES = sizeof shapes / sizeof *shapes, WAYS = NUMBER_TYPES * 2 };

struct norm {
    struct shape shape;
    enum number_type type;
    size_t n_x;
    void *x, *weight, *bias, *dy;
    double *y;
    struct reference_norm_gradient gradient;
    bool accumulate;
};

static const float epsilon = 1e-5f;

static void set_up(struct norm *t, const struct shape *s, enum number_type type)
{
    const size_t n_x = s->m * s->n;
    double *x, *weight, *bias, *dy;

    *t = (struct norm){.shape = *s, .type = type, .n_x = n_x};
    t->x = operation_values(type, n_x, 1), t->dy = operation_values(type, n_x, 2);
    t->weight = operation_values(type, s->n, 3), t->bias = operation_values(type, s->n, 4);
    for (size_t i = 0; i < n_x; i++)
        operation_set(type, t->x, i, operation_get(type, t->x, i) + s->shift);
    x = operation_widen(type, t->x, n_x), dy = operation_widen(type, t->dy, n_x);
    weight = operation_widen(type, t->weight, s->n), bias = operation_widen(type, t->bias, s->n);
    t->y = operation_zeros(n_x);
    t->gradient = (struct reference_norm_gradient){operation_zeros(n_x), operation_zeros(s->n), operation_zeros(s->n)};
    reference_norm(t->y, x, weight, bias, s->m, s->n, (double)epsilon);
    reference_norm_backward(&t->gradient, dy, x, weight, s->m, s->n, (double)epsilon);
}

static struct device_norm run_forward(struct mirror *at, void *y, const struct norm *t)
{
    const struct device_norm op = {.m = t->shape.m,
                                   .n = t->shape.n,
                                   .epsilon = epsilon,
                                   .x = mirror_of(at, t->x),
                                   .weight = mirror_of(at, t->weight),
                                   .bias = mirror_of(at, t->bias),
                                   .y = y,
                                   .statistics = mirror_scratch(at, 2 * t->shape.m * sizeof(float))};

    at->ops->norm(at->dev, &op);
    return op;
}

static void run_norm(struct mirror *at, void *const out[], const void *context)
{
    run_forward(at, out[0], context);
}

/* A few roundings of values up to 4, of a mean that is itself rounded to fp32: relative to the deviation that costs
 * |shift| more. */
static double tolerance(const struct shape *s)
{
    return (4 + fabs((double)s->shift)) * 0x1p-23;
}

static bool suits(const struct shape *s)
{
    return backend_suits(10 * (double)(s->m * s->n));
}

SUITE_FIXTURE(mirror_forget, NULL)

TEST_EACH(norm_is_the_formula, NUMBER_TYPES *N_SHAPES)
{
    struct norm t;

    if (!suits(&shapes[_i / NUMBER_TYPES]))
        return;
    set_up(&t, &shapes[_i / NUMBER_TYPES], (enum number_type)(_i % NUMBER_TYPES));
    operation_check(&(struct operation){.type = t.type,
                                        .run = run_norm,
                                        .context = &t,
                                        .parts = {{"y", t.n_x, t.y, tolerance(&t.shape), .type = OPERATION_VALUES}}});
}

/* out: dx, the weight's gradient, the bias's; statistics from a forward pass of the same device. */
static void run_backward(struct mirror *at, void *const out[], const void *context)
{
    const struct norm *t = context;
    struct device_norm op = run_forward(at, mirror_scratch(at, t->n_x * number_bytes(t->type)), t);

    op.x_gradient = out[0], op.weight_gradient = out[1], op.bias_gradient = out[2];
    op.accumulate = t->accumulate;
    op.y_gradient = t->accumulate ? mirror_of(at, t->dy) : out[0];
    at->ops->norm_backward(at->dev, &op);
}

TEST_EACH(norm_backward_is_the_formula, WAYS *N_SHAPES)
{
    const struct shape *s = &shapes[_i / WAYS];
    /* Sums over rows: the CPU's in double, rounded once; others' in fp32, in any fixed order. */
    const double sums = backend_get()->cuda ? sqrt((double)s->m) * 0x1p-23 : 0x1.01p-24;
    const double near = 2 * tolerance(s);
    struct norm t;

    if (!suits(s))
        return;
    set_up(&t, s, (enum number_type)(_i % WAYS / 2));
    t.accumulate = _i % 2;
    const void *held = operation_values(t.type, t.n_x, t.accumulate ? 6 : 2); /* dx may be dy, if not */
    const float *held_sums = operation_values(NUMBER_FP32, 2 * s->n, 7);
    for (size_t i = 0; i < t.n_x && t.accumulate; i++)
        t.gradient.x[i] += (double)operation_get(t.type, held, i);
    for (size_t j = 0; j < s->n; j++) {
        t.gradient.weight[j] += (double)held_sums[j];
        t.gradient.bias[j] += (double)held_sums[s->n + j];
    }
    operation_check(&(
        struct operation){.type = t.type,
                          .run = run_backward,
                          .context = &t,
                          .parts = {{"dx", t.n_x, t.gradient.x, near, held, OPERATION_VALUES},
                                    {"weight_gradient", s->n, t.gradient.weight, near, held_sums, OPERATION_FP32},
                                    {"bias_gradient", s->n, t.gradient.bias, sums, held_sums + s->n, OPERATION_FP32}}});
}

/* Out of the middle of the minibatch, so that it lies elsewhere. */
TEST_EACH(a_row_alone_is_as_among_others, NUMBER_TYPES *N_SHAPES)
{
    const struct shape *s = &shapes[_i / NUMBER_TYPES];
    const size_t row = s->m / 2;
    struct norm t;
    struct operation operation = {.run = run_norm, .context = &t};

    if (!suits(s))
        return;
    set_up(&t, s, operation.type = (enum number_type)(_i % NUMBER_TYPES));
    void *all = operation_room(t.type, t.n_x), *alone = operation_room(t.type, s->n);
    operation.parts[0].n = t.n_x;
    operation_run(&operation, &all);
    t.x = device_element(t.type, t.x, row * s->n);
    t.shape.m = 1, operation.parts[0].n = s->n;
    operation_run(&operation, &alone);
    ck_assert_mem_eq(alone, device_element(t.type, all, row * s->n), s->n * number_bytes(t.type));
}

static void run_pair(struct mirror *at, void *const out[], const void *context)
{
    const float *x = mirror_of(at, context);
    const struct device_norm op = {
        .m = 1, .n = 2, .x = x, .weight = x + 2, .bias = x + 4, .y = out[0], .statistics = out[1]};

    at->ops->norm(at->dev, &op);
}

/* By hand: mean 2, variance 1. */
TEST(norm_of_one_and_three_is_minus_one_and_one)
{
    float *const x = operation_room(NUMBER_FP32, 6); /* and weight, and bias */

    memcpy(x, (const float[]){1, 3, 1, 1, 0, 10}, 6 * sizeof *x);
    operation_check(&(struct operation){.run = run_pair,
                                        .context = x,
                                        .parts = {{.name = "y", .n = 2, .expected = (const double[]){-1, 11}},
                                                  {"statistics", 2, (const double[]){2, 1}, .type = OPERATION_FP32}}});
}
