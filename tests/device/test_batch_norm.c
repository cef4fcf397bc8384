/* Batch normalisation over a part: moments of rows, their join, and what is made of the statistics. */
#include "tests/kit/device/operation.h"
#include "tests/kit/test.h"

#include <math.h>
#include <string.h>

SUITE_LABELS(on_cuda_release)

/* One of everything; rows of one element; columns that end inside a vector, a pack and a tile, and more of them than
 * the CPU sums at a time; more elements than a tile has, and more in all than the CPU has tiles to sum; more rows than
 * a thread of a CUDA device joins at once. A mean far from 0 must not cost digits of the deviation. */
static const struct shape {
    size_t n_rows, n_elements, n;
    float shift; /* of x and of means */
} shapes[] = {
    {1, 1, 1, 0},    {1, 1, 33, 0},  {3, 1, 5, -20},  {1, 7, 1, 0},        {4, 50, 33, 0},
    {2, 300, 8, 0},  {5, 9, 768, 0}, {1, 1, 768, 0},  {2, 1000, 16, 1000}, {3, 70, 40, -100},
    {1, 600, 72, 3}, {40, 2, 24, 0}, {5, 900, 3, 10}, {2, 3, 1100, 0},
};
enum { N_CASES = COUNT(shapes) * NUMBER_TYPES };

struct batch_norm {
    struct call_test test;
    const struct shape *s;
};

static const struct shape *shape_of(const struct call_test *test)
{
    return ((const struct batch_norm *)test)->s;
}

/* Case i of N_CASES. */
static struct batch_norm make(enum call_kind kind, int i)
{
    return (struct batch_norm){.test = {.type = (enum number_type)(i % NUMBER_TYPES), .call.kind = kind},
                               .s = &shapes[i / NUMBER_TYPES]};
}

/* n numbers from here on += shift. */
static void shift(enum number_type type, void *x, size_t n, float by)
{
    for (size_t i = 0; i < n; i++)
        operation_set(type, x, i, operation_get(type, x, i) + by);
}

static void make_positive(float *x, size_t n, float factor)
{
    for (size_t i = 0; i < n; i++)
        x[i] = fabsf(x[i]) * factor;
}

static void shift_x(struct call_test *test)
{
    const struct call_array *x = call_find(test, "x");

    shift(test->type, call_get(x), x->n, shape_of(test)->shift);
}

SUITE_FIXTURE(mirror_forget, NULL)

/* ---- moments of rows ---- */

/* Of sums in double, a few roundings of each term; of sums in fp32 in a fixed order, sqrt(n) more. Backward, the mean
 * is itself rounded to fp32: relative to the deviation that costs |shift| more. */
static double near_rows(const struct call_test *test, const char *output)
{
    const struct shape *s = shape_of(test);

    if (strcmp(output, "x_gradient") == 0)
        return (4 + fabs((double)s->shift)) * 0x1p-23;
    return (4 + (backend_get()->cuda ? sqrt((double)s->n_elements) : 0)) * 0x1p-24;
}

static struct batch_norm make_rows(enum call_kind kind, int i)
{
    struct batch_norm t = make(kind, i);

    t.test.call.row_moments =
        (struct device_row_moments){.n_rows = t.s->n_rows, .n_elements = t.s->n_elements, .n = t.s->n};
    t.test.near = near_rows;
    t.test.prepare = shift_x;
    return t;
}

TEST_EACH(moments_of_rows_are_the_formula, N_CASES)
{
    struct batch_norm t = make_rows(CALL_row_moments, _i);

    call_check(&t.test);
}

static void run_moments(struct mirror *at, struct call *call, const struct call_test *test)
{
    (void)test;
    at->ops->row_moments(at->dev, &call->row_moments);
}

/* dx written, or added to what is there. */
TEST_EACH(the_gradient_of_moments_is_the_formula, 2 * N_CASES)
{
    struct batch_norm t = make_rows(CALL_row_moments_backward, _i / 2);

    t.test.before = run_moments;
    t.test.call.row_moments.accumulate = _i % 2;
    call_check(&t.test);
}

/* Each row in a call of its own: a microbatch changes no bit. */
TEST_EACH(moments_of_a_row_alone_are_as_among_others, N_CASES)
{
    struct batch_norm all = make_rows(CALL_row_moments, _i), alone = all;
    const struct shape *s = all.s;
    const size_t row_bytes = s->n_elements * s->n * number_bytes(all.test.type);

    alone.test.call.row_moments.n_rows = 1;
    call_make(&all.test);
    call_once(&all.test);
    for (size_t row = 0; row<s->n_rows; row += s->n_rows> 5 ? 13 : 1) {
        call_make(&alone.test);
        memcpy(call_get(call_find(&alone.test, "x")), (const char *)all.test.host.row_moments.x + row * row_bytes,
               row_bytes);
        call_once(&alone.test);
        ck_assert_mem_eq(alone.test.host.row_moments.moments, all.test.host.row_moments.moments + 2 * row * s->n,
                         2 * s->n * sizeof(float));
    }
}

/* A deviation of 1 about a mean of 2^12 or 2^20, in fp32: the mean is right to its last place, and the squares are
 * right as well as those about 0, also where the mean is rounded by a 32nd of the deviation. */
TEST_EACH(a_mean_far_from_zero_costs_no_digits, 2)
{
    const struct shape far = {3, 200, 40, _i ? 0x1p20f : 0x1p12f};
    struct batch_norm t = make_rows(CALL_row_moments, 0);
    const double *expected[CALL_ARRAYS];

    t.s = &far;
    t.test.call.row_moments =
        (struct device_row_moments){.n_rows = far.n_rows, .n_elements = far.n_elements, .n = far.n};
    call_make(&t.test);
    call_expect(&t.test, expected);
    call_once(&t.test);
    const double *want = expected[call_find(&t.test, "moments") - t.test.work.arrays];
    for (size_t i = 0; i < 2 * far.n_rows * far.n; i++)
        ck_assert_double_eq_tol((double)t.test.host.row_moments.moments[i], want[i],
                                want[i] * (i / far.n % 2 ? 18 : 1.02) * 0x1p-24);
}

/* ---- their join ---- */

/* Sums in double on every device. Backward a few roundings, and that of the mean as above. */
static double near_join(const struct call_test *test, const char *output)
{
    return strcmp(output, "statistics") == 0 ? 0x1.01p-24 : (6 + fabs((double)shape_of(test)->shift)) * 0x1p-23;
}

static void draw_moments(struct call_test *test)
{
    const struct shape *s = shape_of(test);
    float *moments = call_get(call_find(test, "moments"));

    for (size_t row = 0; row < s->n_rows; row++, moments += 2 * s->n) {
        shift(NUMBER_FP32, moments, s->n, s->shift);
        make_positive(moments + s->n, s->n, (float)s->n_elements);
    }
}

static struct batch_norm make_join(enum call_kind kind, int i)
{
    struct batch_norm t = make(kind, i);

    t.test.call.join_moments = (struct device_join_moments){.n_rows = t.s->n_rows,
                                                            .n_elements = t.s->n_elements,
                                                            .n = t.s->n,
                                                            .epsilon = 1e-2f};
    t.test.near = near_join;
    t.test.prepare = draw_moments;
    t.test.is_elementwise = true;
    return t;
}

TEST_EACH(their_join_is_the_formula, N_CASES)
{
    struct batch_norm t = make_join(CALL_join_moments, _i);

    call_check(&t.test);
}

static void run_join(struct mirror *at, struct call *call, const struct call_test *test)
{
    (void)test;
    at->ops->join_moments(at->dev, &call->join_moments);
}

TEST_EACH(the_gradient_of_their_join_is_the_formula, N_CASES)
{
    struct batch_norm t = make_join(CALL_join_moments_backward, _i);

    t.test.before = run_join;
    call_check(&t.test);
}

/* ---- normalisation ---- */

/* A few roundings. A row's sums are the CPU's in double, of products in fp32, others' in fp32, in any fixed order; each
 * row is then added with one rounding. */
static double near_norm(const struct call_test *test, const char *output)
{
    const struct shape *s = shape_of(test);
    const double sums =
        sqrt((double)s->n_rows) * (backend_get()->cuda ? sqrt((double)s->n_elements) * 0x1p-23 : 0x1.01p-24);

    if (strcmp(output, "y") == 0 || strcmp(output, "x_gradient") == 0)
        return 3 * 0x1p-23;
    return strcmp(output, "bias_gradient") == 0 ? sums : sums + 4 * 0x1p-23;
}

static void draw_statistics(struct call_test *test)
{
    const struct shape *s = shape_of(test);
    float *statistics = call_get(call_find(test, "statistics"));

    shift_x(test);
    shift(NUMBER_FP32, statistics, s->n, s->shift);
    make_positive(statistics + s->n, s->n, 1);
}

static struct batch_norm make_norm(enum call_kind kind, int i)
{
    struct batch_norm t = make(kind, i);

    t.test.call.batch_norm =
        (struct device_batch_norm){.n_rows = t.s->n_rows, .n_elements = t.s->n_elements, .n = t.s->n};
    t.test.near = near_norm;
    t.test.prepare = draw_statistics;
    t.test.is_elementwise = kind == CALL_batch_norm;
    return t;
}

TEST_EACH(batch_norm_is_the_formula, N_CASES)
{
    struct batch_norm t = make_norm(CALL_batch_norm, _i);

    call_check(&t.test);
}

/* dx in the place of dy, added to what is there, or beside it; with the gradients of weight and bias, with one of them,
 * or with neither. */
TEST_EACH(batch_norm_backward_is_the_formula, 4 * N_CASES)
{
    struct batch_norm t = make_norm(CALL_batch_norm_backward, _i / 4);
    struct device_batch_norm *op = &t.test.call.batch_norm;
    const int way = _i % 4;

    op->accumulate = way == 1;
    if (way == 0)
        t.test.onto[0].written = "x_gradient", t.test.onto[0].read = "y_gradient";
    if (way <= 2)
        op->weight_gradient = (void *)call_given;
    if (way <= 1)
        op->bias_gradient = (void *)call_given;
    call_check(&t.test);
}

/* The next of all's rows into a call with as many: what is read, and before the first call also what is added to. */
static void take_rows(struct call_test *some, const struct call_test *all, size_t first)
{
    const struct device_batch_norm *op = &all->host.batch_norm;
    const size_t bytes = op->n_elements * op->n * number_bytes(all->type);

    for (unsigned i = 0; i < some->work.n_arrays; i++) {
        struct call_array *to = &some->work.arrays[i];
        const struct call_array *from = call_find(all, to->name);
        const bool of_rows = from->n == op->n_rows * op->n_elements * op->n;
        if (of_rows)
            memcpy(call_get(to), (const char *)call_get(from) + first * bytes, some->host.batch_norm.n_rows * bytes);
        else if (first == 0)
            memcpy(call_get(to), call_get(from), from->n * call_type_bytes(from->type, all->type));
    }
}

/* Gradients of all rows by one call, and by two, the first of some: x's, and those that rows are added to. */
static void check_rows_apart(struct batch_norm *all, size_t some)
{
    const struct shape *s = all->s;
    const size_t values = s->n_elements * s->n;
    struct device_batch_norm *op = &all->test.call.batch_norm;
    struct batch_norm part;

    op->weight_gradient = op->bias_gradient = op->lost = (void *)call_given;
    part = *all;
    part.test.call.batch_norm.n_rows = some;
    call_make(&all->test);
    memset(all->test.host.batch_norm.lost, 0, 2 * s->n * sizeof(float));
    call_make(&part.test);
    take_rows(&part.test, &all->test, 0);
    struct call_test whole = all->test;
    call_once(&whole);
    for (size_t first = 0; first < s->n_rows; first = some, some = s->n_rows) {
        struct device_batch_norm *now = &part.test.host.batch_norm;
        float *const sums[] = {now->weight_gradient, now->bias_gradient, now->statistics_gradient, now->lost};
        if (first) {
            part.test.call.batch_norm.n_rows = s->n_rows - first;
            call_make(&part.test);
            take_rows(&part.test, &all->test, first);
            now->weight_gradient = sums[0], now->bias_gradient = sums[1];
            now->statistics_gradient = sums[2], now->lost = sums[3];
        }
        call_once(&part.test);
        ck_assert_mem_eq(now->x_gradient,
                         (const char *)whole.host.batch_norm.x_gradient + first * values * number_bytes(all->test.type),
                         now->n_rows * values * number_bytes(all->test.type));
    }
    const struct device_batch_norm *once = &whole.host.batch_norm, *twice = &part.test.host.batch_norm;
    ck_assert_mem_eq(twice->weight_gradient, once->weight_gradient, s->n * sizeof(float));
    ck_assert_mem_eq(twice->bias_gradient, once->bias_gradient, s->n * sizeof(float));
    ck_assert_mem_eq(twice->statistics_gradient, once->statistics_gradient, 2 * s->n * sizeof(float));
    ck_assert_mem_eq(twice->lost, once->lost, 2 * s->n * sizeof(float));
}

/* A microbatch changes no bit of a gradient. */
TEST_EACH(gradients_of_rows_in_two_calls_are_those_of_one, N_CASES)
{
    struct batch_norm t = make_norm(CALL_batch_norm_backward, _i);

    if (t.s->n_rows > 1)
        check_rows_apart(&t, 1);
}

/* Nor do more rows than a device has room for the sums of at once. */
TEST(nor_do_more_rows_than_fit_at_once)
{
    static const struct shape many = {260, 1, 4100, 0};
    struct batch_norm t = make_norm(CALL_batch_norm_backward, 0);

    t.s = &many;
    t.test.call.batch_norm =
        (struct device_batch_norm){.n_rows = many.n_rows, .n_elements = many.n_elements, .n = many.n};
    check_rows_apart(&t, 3);
}

/* The statistics' gradient, with what its rounding lost, is a sum in double: 2^13 rows of one element change the sum's
 * last places thousands of times. Those of the mean are sums of numbers that are exact in fp32. */
TEST(what_rounding_lost_is_kept)
{
    static const struct shape tall = {1 << 13, 1, 3, 0};
    struct batch_norm t = make_norm(CALL_batch_norm_backward, 0);
    struct device_batch_norm *const op = &t.test.call.batch_norm;

    t.s = &tall;
    *op = (struct device_batch_norm){.n_rows = tall.n_rows, .n_elements = 1, .n = tall.n, .lost = (void *)call_given};
    call_make(&t.test);
    const struct device_batch_norm *host = &t.test.host.batch_norm;
    memset(host->lost, 0, 2 * tall.n * sizeof(float));
    double sums[3] = {0};
    for (size_t j = 0; j < tall.n; j++) {
        const double slope = -(double)((const float *)host->weight)[j] * (double)host->statistics[tall.n + j];
        for (size_t i = 0; i < tall.n_rows; i++)
            sums[j] += (double)((const float *)host->y_gradient)[i * tall.n + j] * slope;
        sums[j] += (double)host->statistics_gradient[j];
    }
    call_once(&t.test);
    for (size_t j = 0; j < tall.n; j++)
        ck_assert_double_eq_tol((double)host->statistics_gradient[j] + (double)host->lost[j], sums[j],
                                0x1p-36 * fabs(sums[j]));
}

/* ---- running statistics ---- */

/* 1/r^2 doubles what is wrong with r. */
static double near_running(const struct call_test *test, const char *output)
{
    (void)test, (void)output;
    return 4 * 0x1p-23;
}

static void draw_variance(struct call_test *test)
{
    const struct call_array *variance = call_find(test, "variance");
    void *at = call_get(variance);

    for (size_t j = 0; j < variance->n; j++)
        operation_set(test->type, at, j, fabsf(operation_get(test->type, at, j)));
}

TEST_EACH(running_statistics_are_normalised_with, N_CASES)
{
    struct batch_norm t = make(CALL_running_statistics, _i);

    t.test.call.running_statistics = (struct device_running){.n = t.s->n, .epsilon = 1e-5f};
    t.test.near = near_running;
    t.test.prepare = draw_variance;
    call_check(&t.test);
}

static void draw_observed(struct call_test *test)
{
    const struct shape *s = shape_of(test);

    make_positive((float *)call_get(call_find(test, "statistics")) + s->n, s->n, 1);
}

/* Of both, of one, of the other. */
TEST_EACH(running_statistics_observe_a_parts, 3 * N_CASES)
{
    struct batch_norm t = make(CALL_running_gradient, _i / 3);

    t.test.call.running_gradient =
        (struct device_running){.n = t.s->n, .epsilon = 1e-5f, .scale = -0.25f, .correction = 1.125f};
    if (_i % 3 < 2)
        t.test.call.running_gradient.mean_gradient = (void *)call_given;
    if (_i % 3 != 1)
        t.test.call.running_gradient.variance_gradient = (void *)call_given;
    t.test.near = near_running;
    t.test.prepare = draw_observed;
    call_check(&t.test);
}
