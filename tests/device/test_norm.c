/* Normalisation of rows, by mean and deviation and by the root mean square, against the plain one in double. */
#include "tests/kit/device/operation.h"
#include "tests/kit/device/reference.h"
#include "tests/kit/test.h"

#include <math.h>
#include <string.h>

SUITE_LABELS(on_cuda_release)

/* Rows of one vector or pack and of none that is whole; more rows than a CUDA device has blocks; rows that its blocks hold,
 * element by element and in packs, and rows too long for that, which they read again. */
static const struct shape {
    size_t m, n;
    float shift; /* of x: a mean far from 0 must not cost digits of the deviation */
} shapes[] = {
    {1, 3, 0},     {1, 16, 0},   {5, 7, 0},    {33, 100, 10}, {140, 264, -5},
    {2, 1000, -5}, {5, 2560, 0}, {3, 1111, 0}, {2, 2056, -3}, {2, 16400, 0},
};
enum { N_SHAPES = COUNT(shapes), KINDS = 2, N_CASES = N_SHAPES * NUMBER_TYPES * KINDS };

struct norm {
    struct shape shape;
    enum number_type type;
    enum device_norm_kind kind;
    size_t n_x;
    void *x, *weight, *bias, *dy;
    struct reference_norm reference;
    bool accumulate, frozen; /* frozen: nobody asks for the gradients of weight and bias */
};

static const float epsilon = 1e-5f;

/* Case i of N_CASES; with or without a bias. */
static void set_up(struct norm *t, int i, bool biased)
{
    const struct shape *s = &shapes[i / KINDS / NUMBER_TYPES];
    const enum number_type type = (enum number_type)(i / KINDS % NUMBER_TYPES);
    const size_t n_x = s->m * s->n;

    *t = (struct norm){.shape = *s, .type = type, .kind = (enum device_norm_kind)(i % KINDS), .n_x = n_x};
    t->x = operation_values(type, n_x, 1), t->dy = operation_values(type, n_x, 2);
    t->weight = operation_values(type, s->n, 3), t->bias = biased ? operation_values(type, s->n, 4) : NULL;
    for (size_t j = 0; j < n_x; j++)
        operation_set(type, t->x, j, operation_get(type, t->x, j) + s->shift);
    t->reference = (struct reference_norm){.rms = t->kind == DEVICE_RMS_NORM,
                                           .m = s->m,
                                           .n = s->n,
                                           .epsilon = (double)epsilon,
                                           .x = operation_widen(type, t->x, n_x),
                                           .weight = operation_widen(type, t->weight, s->n),
                                           .bias = biased ? operation_widen(type, t->bias, s->n) : NULL};
}

static struct device_norm run_forward(struct mirror *at, void *y, float *statistics, const struct norm *t)
{
    const struct device_norm op = {.kind = t->kind,
                                   .m = t->shape.m,
                                   .n = t->shape.n,
                                   .epsilon = epsilon,
                                   .x = mirror_of(at, t->x),
                                   .weight = mirror_of(at, t->weight),
                                   .bias = mirror_of(at, t->bias),
                                   .y = y,
                                   .statistics = statistics};

    at->ops->norm(at->dev, &op);
    return op;
}

static void run_norm(struct mirror *at, void *const out[], const void *context)
{
    const struct norm *t = context;

    run_forward(at, out[0], out[1] ? out[1] : mirror_scratch(at, 2 * t->shape.m * sizeof(float)), t);
}

/* A few roundings of values up to 4, of a mean that is itself rounded to fp32: relative to the deviation that costs
 * |shift| more. */
static double tolerance(const struct norm *t)
{
    return (4 + (t->reference.rms ? 0 : fabs((double)t->shape.shift))) * 0x1p-23;
}

SUITE_FIXTURE(mirror_forget, NULL)

TEST_EACH(norm_is_the_formula, 2 * N_CASES)
{
    struct norm t;

    set_up(&t, _i / 2, _i % 2);
    double *y = operation_zeros(t.n_x);
    reference_norm(y, &t.reference);
    operation_check(&(struct operation){.type = t.type,
                                        .run = run_norm,
                                        .context = &t,
                                        .parts = {{"y", t.n_x, y, tolerance(&t), .type = OPERATION_VALUES}}});
}

/* out: dx, and if somebody asks the gradients of weight and bias; statistics from a forward pass of the same device. */
static void run_backward(struct mirror *at, void *const out[], const void *context)
{
    const struct norm *t = context;
    float *statistics = mirror_scratch(at, 2 * t->shape.m * sizeof(float));
    struct device_norm op = run_forward(at, mirror_scratch(at, t->n_x * number_bytes(t->type)), statistics, t);

    op.x_gradient = out[0];
    op.weight_gradient = t->frozen ? NULL : out[1], op.bias_gradient = t->frozen || !t->bias ? NULL : out[2];
    op.accumulate = t->accumulate;
    op.y_gradient = t->accumulate ? mirror_of(at, t->dy) : out[0];
    at->ops->norm_backward(at->dev, &op);
}

/* Sums over rows are the CPU's in double, rounded once; others' in fp32, in any fixed order. */
TEST_EACH(norm_backward_is_the_formula, 3 * N_CASES)
{
    struct norm t;

    set_up(&t, _i / 3, _i / 3 % KINDS == DEVICE_LAYER_NORM);
    t.accumulate = _i % 3 == 1, t.frozen = _i % 3 == 2;
    const size_t n = t.shape.n;
    const double sums = backend_get()->cuda ? sqrt((double)t.shape.m) * 0x1p-23 : 0x1.01p-24, near = 2 * tolerance(&t);
    const void *held = operation_values(t.type, t.n_x, t.accumulate ? 6 : 2); /* dx may be dy, if not */
    const float *held_sums = operation_values(NUMBER_FP32, 2 * n, 7);
    struct reference_norm_gradient want = {operation_zeros(t.n_x), operation_zeros(n), operation_zeros(n)};
    reference_norm_backward(&want, operation_widen(t.type, t.dy, t.n_x), &t.reference);
    for (size_t i = 0; i < t.n_x && t.accumulate; i++)
        want.x[i] += (double)operation_get(t.type, held, i);
    for (size_t j = 0; j < n; j++)
        want.weight[j] += (double)held_sums[j], want.bias[j] += (double)held_sums[n + j];
    operation_check(&(struct operation){
        .type = t.type,
        .run = run_backward,
        .context = &t,
        .parts = {{"dx", t.n_x, want.x, near, held, OPERATION_VALUES},
                  {"weight_gradient", t.frozen ? 0 : n, want.weight, near + sums, held_sums, OPERATION_FP32},
                  {"bias_gradient", t.frozen || !t.bias ? 0 : n, want.bias, sums, held_sums + n, OPERATION_FP32}}});
}

/* Out of the middle of the minibatch, so that it lies elsewhere. */
TEST_EACH(a_row_alone_is_as_among_others, N_CASES)
{
    struct norm t;

    set_up(&t, _i, true);
    struct operation operation = {.type = t.type, .run = run_norm, .context = &t};
    const size_t row = t.shape.m / 2, n = t.shape.n;
    void *all = operation_room(t.type, t.n_x), *alone = operation_room(t.type, n);
    operation.parts[0].n = t.n_x;
    operation_run(&operation, (void *[OPERATION_PARTS]){all});
    t.x = device_element(t.type, t.x, row * n);
    t.shape.m = 1, operation.parts[0].n = n;
    operation_run(&operation, (void *[OPERATION_PARTS]){alone});
    ck_assert_mem_eq(alone, device_element(t.type, all, row * n), n * number_bytes(t.type));
}

/* By hand. 1 and 3: mean 2, variance 1. 1 and 7: mean square 25. */
TEST_EACH(two_numbers_are_normalised_as_by_hand, 2)
{
    static const struct {
        enum device_norm_kind kind;
        float x[2], bias[2];
        double y[2], statistics[2];
    } cases[] = {{DEVICE_LAYER_NORM, {1, 3}, {0, 10}, {-1, 11}, {2, 1}},
                 {DEVICE_RMS_NORM, {1, 7}, {0, 0}, {0.2, 1.4}, {0, 0.2}}};
    struct norm t = {.shape = {1, 2, 0}, .kind = cases[_i].kind};

    t.x = operation_room(NUMBER_FP32, 2), t.weight = operation_room(NUMBER_FP32, 2);
    t.bias = operation_room(NUMBER_FP32, 2);
    memcpy(t.x, cases[_i].x, sizeof cases->x), memcpy(t.bias, cases[_i].bias, sizeof cases->bias);
    memcpy(t.weight, (const float[]){1, 1}, sizeof cases->x);
    operation_check(
        &(struct operation){.run = run_norm,
                            .context = &t,
                            .parts = {{"y", 2, cases[_i].y, 1e-5, .type = OPERATION_FP32},
                                      {"statistics", 2, cases[_i].statistics, 1e-5, .type = OPERATION_FP32}}});
}

static void run_statistics(struct mirror *at, void *const out[], const void *context)
{
    const struct norm *t = context;

    run_forward(at, mirror_scratch(at, t->n_x * sizeof(float)), out[0], t);
}

/* A mean of 4096 and a deviation of 1, exact in fp32, whose mean is not: it is right to its last place. */
TEST(a_mean_far_from_zero_costs_no_digits)
{
    struct norm t = {.shape = {1, 2560, 4096}, .n_x = 2560};
    float *x = t.x = operation_values(NUMBER_FP32, t.n_x, 1), *statistics = operation_room(NUMBER_FP32, 2);
    double mean = 0, variance = 0;

    t.weight = t.bias = operation_values(NUMBER_FP32, t.n_x, 2);
    for (size_t i = 0; i < t.n_x; i++)
        x[i] += 4096, mean += (double)x[i] / (double)t.n_x;
    for (size_t i = 0; i < t.n_x; i++)
        variance += ((double)x[i] - mean) * ((double)x[i] - mean) / (double)t.n_x;
    operation_run(&(struct operation){.run = run_statistics, .context = &t, .parts = {{.n = 2}}},
                  (void *[]){statistics});
    ck_assert_double_eq_tol((double)statistics[0], mean, 4096 * 0x1.02p-24);
    ck_assert_double_eq_tol((double)statistics[1], 1 / sqrt(variance + (double)epsilon), 4 * 0x1p-24);
}
