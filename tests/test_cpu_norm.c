/* Layer normalisation against the plain one in double. */
#include "tests/operation.h"
#include "tests/reference.h"
#include "tests/run.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

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
    float *statistics;
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
    t->statistics = operation_values(NUMBER_FP32, 2 * s->m, 5);
    for (size_t i = 0; i < n_x; i++)
        operation_set(type, t->x, i, operation_get(type, t->x, i) + s->shift);
    x = operation_widen(type, t->x, n_x), dy = operation_widen(type, t->dy, n_x);
    weight = operation_widen(type, t->weight, s->n), bias = operation_widen(type, t->bias, s->n);
    t->y = operation_zeros(n_x);
    t->gradient = (struct reference_norm_gradient){operation_zeros(n_x), operation_zeros(s->n), operation_zeros(s->n)};
    reference_norm(t->y, x, weight, bias, s->m, s->n, (double)epsilon);
    reference_norm_backward(&t->gradient, dy, x, weight, s->m, s->n, (double)epsilon);
    free(x), free(dy), free(weight), free(bias);
}

static void tear_down(struct norm *t)
{
    free(t->x), free(t->dy), free(t->weight), free(t->bias), free(t->statistics);
    free(t->y), free(t->gradient.x), free(t->gradient.weight), free(t->gradient.bias);
}

static void run_norm(struct device *dev, void *const out[], const void *context)
{
    const struct norm *t = context;
    device_cpu.norm(dev, out[0], t->statistics, t->x, t->weight, t->bias, t->shape.m, t->shape.n, epsilon);
}

/* A few roundings of values up to 4, of a mean that is itself rounded to fp32: relative to the deviation that costs
 * |shift| more. */
static double tolerance(const struct shape *s)
{
    return (4 + fabs((double)s->shift)) * 0x1p-23;
}

START_TEST(norm_is_the_formula)
{
    struct norm t;

    set_up(&t, &shapes[_i / NUMBER_TYPES], (enum number_type)(_i % NUMBER_TYPES));
    operation_check(&(struct operation){.type = t.type,
                                        .run = run_norm,
                                        .context = &t,
                                        .parts = {{"y", t.n_x, t.y, tolerance(&t.shape), NULL, false}}});
    tear_down(&t);
}
END_TEST

/* out: dx, the weight's gradient, the bias's; statistics from a forward pass of the same device. */
static void run_backward(struct device *dev, void *const out[], const void *context)
{
    const struct norm *t = context;
    void *y = operation_room(t->type, t->n_x), *dy = t->dy;

    run_norm(dev, &y, t);
    free(y);
    if (!t->accumulate) { /* dx may be dy */
        memcpy(out[0], t->dy, t->n_x * number_bytes(t->type));
        dy = out[0];
    }
    device_cpu.norm_backward(dev, out[0], t->accumulate, out[1], out[2], dy, t->x, t->statistics, t->weight, t->shape.m,
                             t->shape.n);
}

START_TEST(norm_backward_is_the_formula)
{
    const struct shape *s = &shapes[_i / WAYS];
    const double near = 2 * tolerance(s);
    struct norm t;
    void *held;
    float *held_sums;

    set_up(&t, s, (enum number_type)(_i % WAYS / 2));
    t.accumulate = _i % 2;
    held = operation_values(t.type, t.n_x, 6), held_sums = operation_values(NUMBER_FP32, 2 * s->n, 7);
    for (size_t i = 0; i < t.n_x && t.accumulate; i++)
        t.gradient.x[i] += (double)operation_get(t.type, held, i);
    for (size_t j = 0; j < s->n; j++) {
        t.gradient.weight[j] += (double)held_sums[j];
        t.gradient.bias[j] += (double)held_sums[s->n + j];
    }
    operation_check(
        &(struct operation){.type = t.type,
                            .run = run_backward,
                            .context = &t,
                            .parts = {{"dx", t.n_x, t.gradient.x, near, held, false},
                                      {"weight_gradient", s->n, t.gradient.weight, near, held_sums, true},
                                      {"bias_gradient", s->n, t.gradient.bias, 0x1.01p-24, held_sums + s->n, true}}});
    free(held), free(held_sums);
    tear_down(&t);
}
END_TEST

/* By hand: mean 2, variance 1. */
START_TEST(norm_of_one_and_three_is_minus_one_and_one)
{
    const float x[2] = {1, 3}, weight[2] = {1, 1}, bias[2] = {0, 10};
    float y[2], statistics[2];
    struct device *dev = operation_open(NUMBER_FP32, 1);

    device_cpu.norm(dev, y, statistics, x, weight, bias, 1, 2, 0);
    ck_assert_float_eq(y[0], -1);
    ck_assert_float_eq(y[1], 11);
    ck_assert_float_eq(statistics[0], 2);
    ck_assert_float_eq(statistics[1], 1);
    device_cpu.close(dev);
}
END_TEST

int main(void)
{
    TCase *tcase = tcase_create("norm");

    tcase_add_loop_test(tcase, norm_is_the_formula, 0, NUMBER_TYPES * N_SHAPES);
    tcase_add_loop_test(tcase, norm_backward_is_the_formula, 0, WAYS * N_SHAPES);
    tcase_add_test(tcase, norm_of_one_and_three_is_minus_one_and_one);
    return run_tests(tcase);
}
