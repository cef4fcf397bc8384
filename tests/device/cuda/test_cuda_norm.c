/* What is particular to the CUDA kernels of norms and of sums over rows: a warp or many a row, rows that are held and rows
 * that are read again, sums in lines of the scratch. */
#include "tests/kit/device/kernels.h"
#include "tests/kit/device/reference.h"
#include "tests/kit/test.h"

#include <math.h>

SUITE_LABELS(kernels)

/* A thread holds 4 packs of a row, or, backward, 16 elements; a block has 512 threads at most. */
static const struct shape {
    size_t m, n;
    float shift; /* of x */
} shapes[] = {
    {1, 8, 0},      /* one pack */
    {3, 7, 0},      /* no whole pack */
    {140, 264, 10}, /* more rows than blocks; two warps, the second with one pack of fp32, or with none */
    {5, 2560, 0},   /* several warps, all whole */
    {3, 1111, 0},   /* several, element by element */
    {2, 2056, -3},  /* element by element, longer than is held */
    {2, 16400, 0},  /* the same in packs */
};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

static const float epsilon = 1e-5f;

enum { Y, X, WEIGHT, BIAS, STATISTICS, DY, WEIGHT_GRADIENT, BIAS_GRADIENT };

/* Both directions: backward over y. */
static struct device_norm norm_of(struct world *w, const struct shape *s)
{
    return (struct device_norm){.m = s->m,
                                .n = s->n,
                                .epsilon = epsilon,
                                .x = at(w, X),
                                .weight = at(w, WEIGHT),
                                .bias = at(w, BIAS),
                                .y = at(w, Y),
                                .statistics = at(w, STATISTICS),
                                .x_gradient = at(w, Y),
                                .weight_gradient = at(w, WEIGHT_GRADIENT),
                                .bias_gradient = at(w, BIAS_GRADIENT)};
}

static cudaError_t run_norm(struct world *w, const void *context)
{
    const struct device_norm op = norm_of(w, context);

    return cuda_norm(&w->q, &op);
}

static struct world norm_world(const struct shape *s, enum number_type type)
{
    struct world w = world_of(type);
    void *x;

    add_values(&w, Y, type, s->m * s->n, true);
    x = add_values(&w, X, type, s->m * s->n, false);
    for (size_t i = 0; i < s->m * s->n; i++)
        operation_set(type, x, i, operation_get(type, x, i) + s->shift);
    add_values(&w, WEIGHT, type, s->n, false), add_values(&w, BIAS, type, s->n, false);
    add_values(&w, STATISTICS, NUMBER_FP32, 2 * s->m, true);
    add_values(&w, DY, type, s->m * s->n, false);
    add_values(&w, WEIGHT_GRADIENT, NUMBER_FP32, s->n, true);
    add_values(&w, BIAS_GRADIENT, NUMBER_FP32, s->n, true);
    return w;
}

static double *widen(const struct world *w, int array, size_t n)
{
    return operation_widen(w->q.type, w->arrays[array].host, n);
}

/* Half a unit in the last place of a value, where there is one; and of fp32, `roundings` of the largest. */
static void check_near(const struct world *w, int array, const double *want, size_t n, double roundings, bool wide)
{
    const enum number_type type = wide ? NUMBER_FP32 : w->q.type;
    double largest = 0;

    for (size_t i = 0; i < n; i++)
        largest = fmax(largest, fabs(want[i]));
    for (size_t i = 0; i < n; i++) {
        const double got = (double)operation_get(type, w->arrays[array].host, i);
        const double near = roundings * 0x1p-24 * largest + (type == NUMBER_BF16 ? 0x1.02p-8 * fabs(want[i]) : 0);
        if (!(fabs(got - want[i]) <= near))
            ck_abort_msg("array %d [%zu] is %.9g, not %.9g: off by %.3g", array, i, got, want[i],
                         fabs(got - want[i]) / near);
    }
}

TEST_EACH(norm_holds_rows_or_reads_them_again, NUMBER_TYPES *N_SHAPES)
{
    const struct shape *s = &shapes[_i / NUMBER_TYPES];
    struct world w = norm_world(s, (enum number_type)(_i % NUMBER_TYPES));
    double *want = operation_zeros(s->m * s->n), *x = widen(&w, X, s->m * s->n);
    double *weight = widen(&w, WEIGHT, s->n), *bias = widen(&w, BIAS, s->n);

    reference_norm(want, x, weight, bias, s->m, s->n, (double)epsilon);
    run_orders(&w, run_norm, s);
    check_near(&w, Y, want, s->m * s->n, 4 + 2 * fabs((double)s->shift), false);
    free(want), free(x), free(weight), free(bias), free_world(&w);
}

/* A mean of 4096 and a deviation of 1, exact in fp32, whose mean is not: it is right to its last place. */
TEST(a_mean_far_from_zero_costs_no_digits)
{
    const struct shape s = {.m = 1, .n = 2560};
    struct world w = norm_world(&s, NUMBER_FP32);
    float *x = w.arrays[X].host, *statistics = w.arrays[STATISTICS].host;
    double mean = 0, variance = 0;

    for (size_t i = 0; i < s.n; i++)
        x[i] += 4096, mean += (double)x[i] / (double)s.n;
    for (size_t i = 0; i < s.n; i++)
        variance += ((double)x[i] - mean) * ((double)x[i] - mean) / (double)s.n;
    run_once(&w, run_norm, &s);
    ck_assert_double_eq_tol((double)statistics[0], mean, 4096 * 0x1.02p-24);
    ck_assert_double_eq_tol((double)statistics[1], 1 / sqrt(variance + (double)epsilon), 4 * 0x1p-24);
    free_world(&w);
}

struct backward {
    struct shape shape;
    bool accumulate;
};

/* Over dy if not accumulating. */
static cudaError_t run_backward(struct world *w, const void *context)
{
    const struct backward *b = context;
    const struct shape *s = &b->shape;
    cudaError_t rc = run_norm(w, s);

    if (rc == cudaSuccess && !b->accumulate)
        rc = cudaMemcpyAsync(at(w, Y), at(w, DY), w->arrays[Y].bytes, cudaMemcpyDeviceToDevice, w->q.stream);
    if (rc != cudaSuccess)
        return rc;
    struct device_norm op = norm_of(w, s);
    op.accumulate = b->accumulate;
    op.y_gradient = b->accumulate ? at(w, DY) : at(w, Y);
    return cuda_norm_backward(&w->q, &op);
}

/* Accumulates onto what the norm gave. */
static void add_initial(struct reference_norm_gradient *want, const struct world *w, const struct backward *b)
{
    const float *weight = w->arrays[WEIGHT_GRADIENT].host, *bias = w->arrays[BIAS_GRADIENT].host;

    for (size_t j = 0; j < b->shape.n; j++)
        want->weight[j] += (double)weight[j], want->bias[j] += (double)bias[j];
}

TEST_EACH(norm_backward_holds_rows_or_reads_them_again, 2 * NUMBER_TYPES * N_SHAPES)
{
    const struct backward b = {shapes[_i / 2 / NUMBER_TYPES], _i % 2};
    const struct shape *s = &b.shape;
    struct world w = norm_world(s, (enum number_type)(_i / 2 % NUMBER_TYPES));
    double *x = widen(&w, X, s->m * s->n), *dy = widen(&w, DY, s->m * s->n), *weight = widen(&w, WEIGHT, s->n);
    struct reference_norm_gradient want = {operation_zeros(s->m * s->n), operation_zeros(s->n), operation_zeros(s->n)};
    const double roundings = 8 + 4 * fabs((double)s->shift);

    reference_norm_backward(&want, dy, x, weight, s->m, s->n, (double)epsilon);
    add_initial(&want, &w, &b);
    if (b.accumulate) {
        run_once(&w, run_norm, s);
        for (size_t i = 0; i < s->m * s->n; i++)
            want.x[i] += (double)operation_get(w.q.type, w.arrays[Y].host, i);
    }
    run_orders(&w, run_backward, &b);
    check_near(&w, Y, want.x, s->m * s->n, roundings, false);
    check_near(&w, WEIGHT_GRADIENT, want.weight, s->n, roundings, true);
    check_near(&w, BIAS_GRADIENT, want.bias, s->n, roundings, true);
    free(x), free(dy), free(weight), free(want.x), free(want.weight), free(want.bias), free_world(&w);
}

enum { AHEAD_ROWS = 6, AHEAD_BLOCKS = PROCESSORS /* a row fills one */ };

/* What a row gives is written where the block's next row of dy lies, which so must have been read. Nobody else calls it
 * like this. */
static cudaError_t run_over_the_next(struct world *w, const void *context)
{
    const struct shape *s = context;
    struct device_norm op = norm_of(w, s);
    uint16_t *dy = at(w, DY);
    cudaError_t rc = run_norm(w, s);

    op.m = AHEAD_ROWS, op.y_gradient = dy;
    if (rc == cudaSuccess)
        rc = cuda_norm_backward(&w->q, &op);
    op.x_gradient = dy + AHEAD_BLOCKS * s->n;
    if (rc == cudaSuccess)
        rc = cuda_norm_backward(&w->q, &op);
    return rc;
}

TEST(the_next_row_is_on_its_way_before_this_one_is_written)
{
    const struct shape s = {.m = AHEAD_ROWS + AHEAD_BLOCKS, .n = 8192};
    struct world w = norm_world(&s, NUMBER_BF16);
    const uint16_t *apart = w.arrays[Y].host, *over = (uint16_t *)w.arrays[DY].host + AHEAD_BLOCKS * s.n;
    unsigned n_late = 0;

    w.arrays[DY].comes_back = true;
    run_once(&w, run_over_the_next, &s);
    for (size_t i = 0; i < AHEAD_ROWS; i++)
        n_late += memcmp(apart + i * s.n, over + i * s.n, s.n * sizeof *over) != 0;
    ck_assert_uint_eq(n_late, 0);
    free_world(&w);
}

/* ---- sums over rows ---- */

static const struct shape sums[] = {{1, 1, 0}, {9, 8, 0}, {1000, 24, 0}, {77, 520, 0}, {300, 33, 0}, {40, 700, 0}};
enum { N_SUMS = sizeof sums / sizeof *sums };

static cudaError_t run_reduce(struct world *w, const void *context)
{
    const struct shape *s = context;

    return cuda_reduce_rows(&w->q, at(w, 0), at(w, 1), s->m, s->n);
}

/* As if in double: half a unit in the last place, also where large values cancel. */
TEST_EACH(sums_over_rows_lose_nothing_on_the_way, NUMBER_TYPES *N_SUMS)
{
    const struct shape *s = &sums[_i / NUMBER_TYPES];
    const enum number_type type = (enum number_type)(_i % NUMBER_TYPES);
    struct world w = world_of(type);
    float *sum = add_values(&w, 0, NUMBER_FP32, s->n, true);
    void *x = add_values(&w, 1, type, s->m * s->n, false);
    double *want = operation_widen(NUMBER_FP32, sum, s->n);

    for (size_t i = 0; i + 1 < s->m; i += 2) /* 2^20 in one row, less 2^20 in the next */
        for (size_t j = 0; j < s->n; j++) {
            operation_set(type, x, i * s->n + j, operation_get(type, x, i * s->n + j) + 0x1p20f);
            operation_set(type, x, (i + 1) * s->n + j, operation_get(type, x, (i + 1) * s->n + j) - 0x1p20f);
        }
    for (size_t i = 0; i < s->m * s->n; i++)
        want[i % s->n] += get(&w, 1, i);
    run_orders(&w, run_reduce, s);
    for (size_t j = 0; j < s->n; j++)
        ck_assert_double_eq_tol((double)sum[j], want[j], fabs(want[j]) * 0x1.01p-24 + 0x1p-40);
    free(want), free_world(&w);
}

static cudaError_t run_position_backward(struct world *w, const void *context)
{
    const struct shape *s = context;
    const struct device_position op = {
        .n_rows = 11, .n_tokens = s->m, .n = s->n, .y_gradient = at(w, 1), .table_gradient = at(w, 0)};

    return cuda_position_backward(&w->q, &op);
}

TEST_EACH(positions_are_summed_over_rows, 2 * NUMBER_TYPES)
{
    const struct shape s = {.m = 5, .n = 24 - (size_t)_i / 2}; /* whole packs; single elements */
    const enum number_type type = (enum number_type)(_i % NUMBER_TYPES);
    struct world w = world_of(type);
    float *sum = add_values(&w, 0, NUMBER_FP32, s.m * s.n, true);
    double *want = operation_widen(NUMBER_FP32, sum, s.m * s.n);

    add_values(&w, 1, type, 11 * s.m * s.n, false);
    for (size_t i = 0; i < 11 * s.m * s.n; i++)
        want[i % (s.m * s.n)] += get(&w, 1, i);
    run_orders(&w, run_position_backward, &s);
    for (size_t j = 0; j < s.m * s.n; j++)
        ck_assert_double_eq_tol((double)sum[j], want[j], fabs(want[j]) * 0x1.01p-24 + 0x1p-40);
    free(want), free_world(&w);
}
