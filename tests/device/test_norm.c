/* Normalisation of rows, by mean and deviation and by the root mean square. */
#include "tests/kit/device/operation.h"
#include "tests/kit/test.h"

#include <math.h>
#include <string.h>

SUITE_LABELS(on_cuda_release)

/* Rows of one vector or pack and of none that is whole; more rows than a CUDA device has groups of lanes; rows that its
 * groups hold, and its blocks, element by element and in packs, and rows too long for that, which they read again. Rows
 * of several heads, with others' columns after them. */
static const struct shape {
    size_t m, n;
    float shift; /* of x: a mean far from 0 must not cost digits of the deviation */
    size_t n_heads, gap;
} shapes[] = {
    {1, 3, 0, 1, 0},     {1, 16, 0, 1, 0},    {5, 7, 0, 1, 0},    {33, 100, 10, 1, 0}, {140, 264, -5, 1, 0},
    {2, 1000, -5, 1, 0}, {5, 2560, 0, 1, 0},  {3, 1111, 0, 1, 0}, {2, 2056, -3, 1, 0}, {2, 16400, 0, 1, 0},
    {7, 5, 0, 3, 0},     {9, 128, 0, 4, 256}, {3, 64, 2, 2, 3},   {40, 24, 0, 1, 8},   {70, 64, 1, 8, 64},
    {5, 80, 0, 3, 16},   {6, 256, 0, 2, 0},   {2, 1048, 0, 2, 0},
};
/* Each with a weight, with 1 + weight, and without. */
enum { KINDS = 2 * 3, N_CASES = COUNT(shapes) * NUMBER_TYPES * KINDS };

struct norm {
    struct call_test test;
    float shift;
};

static void shift(struct call_test *test)
{
    const struct call_array *x = call_find(test, "x");

    for (size_t i = 0; i < x->n; i++)
        operation_set(test->type, call_get(x), i,
                      operation_get(test->type, call_get(x), i) + ((const struct norm *)test)->shift);
}

/* A few roundings of values up to 4, of a mean that is itself rounded to fp32: relative to the deviation that costs
 * |shift| more. Sums over rows are the CPU's in double, rounded once; others' in fp32, in any fixed order. */
static double near(const struct call_test *test, const char *output)
{
    const struct device_norm *op = &test->call.norm;
    const double moved = op->kind == DEVICE_RMS_NORM ? 0 : fabs((double)((const struct norm *)test)->shift);
    const double sums = backend_get()->cuda ? sqrt((double)op->m) * 0x1p-23 : 0x1.01p-24,
                 values = (4 + moved) * 0x1p-23;

    if (test->call.kind == CALL_norm)
        return values;
    return strcmp(output, "bias_gradient") == 0     ? sums
           : strcmp(output, "weight_gradient") == 0 ? sums + 2 * values
                                                    : 2 * values;
}

/* Case i of N_CASES. */
static struct norm make(int i, bool biased)
{
    const struct shape *s = &shapes[i / KINDS / NUMBER_TYPES];
    const struct device_norm op = {.kind = (enum device_norm_kind)(i % 2),
                                   .offset = i % KINDS / 2 == 1,
                                   .bare = i % KINDS / 2 == 2,
                                   .m = s->m,
                                   .n = s->n,
                                   .n_heads = s->n_heads,
                                   .stride = s->gap ? s->n_heads * s->n + s->gap : 0,
                                   .epsilon = 1e-5f,
                                   .bias = biased ? call_given : NULL};

    return (struct norm){.test = {.type = (enum number_type)(i / KINDS % NUMBER_TYPES),
                                  .call = {.kind = CALL_norm, .norm = op},
                                  .near = near,
                                  .prepare = shift},
                         .shift = s->shift};
}

SUITE_FIXTURE(mirror_forget, NULL)

/* The simulated device, which is slow, takes one of so many ways of each case; other kinds, types and shapes take
 * others. */
static bool has_turn(int i, int n_ways)
{
    const int nth = i / n_ways, kind = nth % KINDS, type = nth / KINDS % NUMBER_TYPES;

    return !backend_get()->simulated || (kind + type + nth / KINDS / NUMBER_TYPES) % n_ways == i % n_ways;
}

TEST_EACH_IF(norm_is_the_formula, 2 * N_CASES, has_turn(_i, 2))
{
    struct norm t = make(_i / 2, _i % 2);

    call_check(&t.test);
}

static void run_forward(struct mirror *at, struct call *call, const struct call_test *test)
{
    struct device_norm op = call->norm;

    op.y = mirror_scratch(at, op.m * device_norm_stride(&op) * number_bytes(test->type));
    at->ops->norm(at->dev, &op);
}

/* dx in the place of dy, or added to what is there; or nobody asks for the gradients of weight and bias. */
TEST_EACH_IF(norm_backward_is_the_formula, 3 * N_CASES, has_turn(_i, 3))
{
    struct norm t = make(_i / 3, false);
    struct device_norm *op = &t.test.call.norm;

    t.test.call.kind = CALL_norm_backward;
    t.test.before = run_forward;
    op->accumulate = _i % 3 == 1;
    if (!op->accumulate)
        t.test.onto[0].written = "x_gradient", t.test.onto[0].read = "y_gradient";
    if (_i % 3 != 2 && !op->bare)
        op->weight_gradient = (void *)call_given;
    if (_i % 3 != 2 && op->kind == DEVICE_LAYER_NORM)
        op->bias_gradient = (void *)call_given;
    call_check(&t.test);
}

/* Out of the middle of the minibatch, so that it lies elsewhere. */
TEST_EACH(a_row_alone_is_as_among_others, N_CASES)
{
    struct norm all = make(_i, true), alone = all;
    const struct device_norm *op = &all.test.call.norm;
    const size_t row = op->m / 2 * device_norm_stride(op), bytes = number_bytes(all.test.type);
    const size_t row_bytes = op->n * device_norm_heads(op) * bytes;

    alone.test.call.norm.m = 1;
    call_make(&all.test), call_make(&alone.test);
    memcpy(call_get(call_find(&alone.test, "x")), (char *)call_get(call_find(&all.test, "x")) + row * bytes, row_bytes);
    call_once(&all.test), call_once(&alone.test);
    ck_assert_mem_eq(alone.test.host.norm.y, (char *)all.test.host.norm.y + row * bytes, row_bytes);
}

/* A mean of 4096 and a deviation of 1, exact in fp32, whose mean is not: it is right to its last place. */
TEST(a_mean_far_from_zero_costs_no_digits)
{
    struct norm t = make(6 * NUMBER_TYPES * KINDS, true);
    const double *expected[CALL_ARRAYS];

    t.shift = 4096;
    call_make(&t.test);
    call_expect(&t.test, expected);
    call_once(&t.test);
    const double *want = expected[call_find(&t.test, "statistics") - t.test.work.arrays];
    const float *statistics = t.test.host.norm.statistics + 2;
    ck_assert_double_eq_tol((double)statistics[0], want[2], 4096 * 0x1.02p-24);
    ck_assert_double_eq_tol((double)statistics[1], want[3], 4 * 0x1p-24);
}

/* ---- with the residual addition before it ---- */

/* Where the sum and y are stored forward. */
enum way { SUM_APART, SUM_OVER_BRANCH, NO_SUM, NO_SUM_Y_OVER_BRANCH, WAYS };

/* A norm of a sum, or its gradients, in one call or in two. */
struct summed {
    struct norm of;
    enum way way;
    bool in_one;
    const void *x, *h, *weight, *bias, *dy; /* host */
};

/* Without dropout; with it; with a scale besides. Rows are some of the minibatch's. */
static struct summed make_summed(int i, int nth)
{
    struct summed t = {.of = make(i, nth % 2 == 0)};
    struct device_norm *op = &t.of.test.call.norm;
    const size_t n = op->m * op->n, n_rows = op->m % 3 == 0 ? 3 : 1;
    const enum number_type type = t.of.test.type;

    op->add = (struct device_dropout_add){.n_rows = n_rows,
                                          .n_tokens = op->m / n_rows,
                                          .n = op->n,
                                          .dropout = {.p = nth % 3 ? 0.3f : 0,
                                                      .scale = nth % 3 == 2 ? 0.5f : 0,
                                                      .key = {{3, 4}},
                                                      .first_row = (UINT64_C(1) << 33) + 9}};
    t.x = operation_values(type, n, 1), t.h = operation_values(type, n, 2), t.dy = operation_values(type, n, 3);
    t.weight = operation_values(type, op->n, 4), t.bias = operation_values(type, op->n, 5);
    return t;
}

/* out: y, the statistics, the sum. */
static void run_summed(struct mirror *at, void *const out[], const void *context)
{
    const struct summed *t = context;
    struct device_norm op = t->of.test.call.norm;

    op.weight = op.bare ? NULL : mirror_of(at, t->weight), op.bias = op.bias ? mirror_of(at, t->bias) : NULL;
    op.y = out[0], op.statistics = out[1];
    op.add.x = mirror_of(at, t->x);
    op.add.h = t->way == SUM_OVER_BRANCH ? out[2] : t->way == NO_SUM_Y_OVER_BRANCH ? out[0] : mirror_of(at, t->h);
    op.add.y = t->way <= SUM_OVER_BRANCH ? out[2] : NULL;
    if (!t->in_one) {
        struct device_dropout_add add = op.add;
        if (!add.y)
            add.y = mirror_scratch(at, op.m * op.n * number_bytes(t->of.test.type));
        at->ops->dropout_add(at->dev, &add);
        op.x = add.y, op.add.h = NULL;
    }
    at->ops->norm(at->dev, &op);
}

static bool is_summed(int i)
{
    return shapes[i / KINDS / NUMBER_TYPES].n_heads == 1 && shapes[i / KINDS / NUMBER_TYPES].gap == 0;
}

/* In each place that the sum may have: the bits do not tell whether one pass or two computed them. */
TEST_EACH_IF(the_norm_of_a_sum_is_that_of_the_sum_as_stored, WAYS *N_CASES, has_turn(_i, WAYS) && is_summed(_i / WAYS))
{
    struct summed apart = make_summed(_i / WAYS, _i), in_one;
    const struct device_norm *op = &apart.of.test.call.norm;

    apart.way = (enum way)(_i % WAYS);
    in_one = apart;
    in_one.in_one = true;
    struct operation one = {.type = apart.of.test.type,
                            .run = run_summed,
                            .context = &apart,
                            .parts = {{"y", op->m * op->n, .initial = apart.h},
                                      {"statistics", 2 * op->m, .type = CALL_FP32},
                                      {"sum", apart.way <= SUM_OVER_BRANCH ? op->m * op->n : 0, .initial = apart.h}}};
    struct operation other = one;
    other.context = &in_one;
    operation_check_alike(&one, &other);
}

/* out: the gradients of the sum, of its branch, of weight and bias. */
static void run_summed_backward(struct mirror *at, void *const out[], const void *context)
{
    const struct summed *t = context;
    struct device_norm op = t->of.test.call.norm;
    const size_t bytes = op.m * op.n * number_bytes(t->of.test.type);

    op.weight = op.bare ? NULL : mirror_of(at, t->weight), op.bias = NULL;
    op.x = mirror_of(at, t->x), op.y = mirror_scratch(at, bytes);
    op.statistics = mirror_scratch(at, 2 * op.m * sizeof *op.statistics);
    at->ops->norm(at->dev, &op);
    op.x_gradient = out[0];
    op.y_gradient = op.accumulate ? mirror_of(at, t->dy) : out[0];
    op.weight_gradient = op.bare ? NULL : out[2], op.bias_gradient = out[3];
    op.add.y = t->in_one ? out[1] : NULL;
    at->ops->norm_backward(at->dev, &op);
    if (t->in_one)
        return;
    op.add.y = out[1], op.add.h = out[0];
    at->ops->dropout_add(at->dev, &op.add);
}

/* In dy's place, or added to what is there. */
TEST_EACH_IF(the_gradient_of_a_sum_s_branch_is_that_of_the_sum_as_stored, 2 * N_CASES,
             has_turn(_i, 2) && is_summed(_i / 2))
{
    struct summed apart = make_summed(_i / 2, _i), in_one;
    struct device_norm *op = &apart.of.test.call.norm;

    op->accumulate = _i % 2;
    in_one = apart;
    in_one.in_one = true;
    struct operation one = {
        .type = apart.of.test.type,
        .run = run_summed_backward,
        .context = &apart,
        .parts = {{"gradient", op->m * op->n, .initial = apart.dy},
                  {"branch's", op->m * op->n},
                  {"weight's", op->n, .type = CALL_FP32, .initial = operation_values(NUMBER_FP32, op->n, 6)},
                  {"bias's", op->n, .type = CALL_FP32, .initial = operation_values(NUMBER_FP32, op->n, 7)}}};
    struct operation other = one;
    other.context = &in_one;
    operation_check_alike(&one, &other);
}
