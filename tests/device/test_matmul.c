/* Products against the plain one in double, and the activations that follow them against libm's. */
#include "tests/kit/device/operation.h"
#include "tests/kit/device/reference.h"
#include "tests/kit/test.h"

#include <math.h>

SUITE_LABELS(long, slow, on_cuda_release)

/* m, n, k and how far strides exceed widths: single rows, short and long, odd sizes, tiles that end anywhere; several
 * tiles, and k over several of the depths at which sums are stored. The last ones are for devices that are fast. */
static const struct shape {
    size_t m, n, k, gap;
} shapes[] = {
    {1, 1, 1, 0},     {1, 7, 5, 3},     {3, 1, 9, 1},      {17, 33, 65, 5},     {64, 64, 64, 0},
    {65, 515, 7, 1},  {16, 24, 40, 8},  {130, 257, 31, 2}, {520, 140, 40, 0},   {96, 120, 2048, 8},
    {700, 600, 3, 0}, {1, 391, 774, 3}, {1, 192, 3072, 0}, {512, 1024, 640, 0}, {777, 1000, 513, 8},
};
enum {
    N_SHAPES = sizeof shapes / sizeof *shapes,
    N_SMALL = 7, /* what an activation follows does not depend on the shape */
    N_TRANSPOSITIONS = 4,
    N_ACTIVATIONS = MODEL_SILU + 1,
};

struct product {
    const struct shape *shape;
    enum number_type type;
    struct device_matmul op; /* all but c, and pre where it is written, on the host */
    size_t n_c;              /* elements of c, gaps included */
    double *ab;              /* (m, n) */
};

static void set_up(struct product *t, const struct shape *s, enum number_type type, bool ta, bool tb)
{
    const size_t a_rows = ta ? s->k : s->m, b_rows = tb ? s->n : s->k;
    const size_t a_width = ta ? s->m : s->k, b_width = tb ? s->k : s->n;
    const size_t a_stride = a_width + s->gap, b_stride = b_width + s->gap;
    void *a = operation_values(type, a_rows * a_stride, 1), *b = operation_values(type, b_rows * b_stride, 2);
    double *dense_a = operation_zeros(a_rows * a_width), *dense_b = operation_zeros(b_rows * b_width);

    for (size_t i = 0; i < a_rows * a_width; i++)
        dense_a[i] = (double)operation_get(type, a, i / a_width * a_stride + i % a_width);
    for (size_t i = 0; i < b_rows * b_width; i++)
        dense_b[i] = (double)operation_get(type, b, i / b_width * b_stride + i % b_width);
    *t = (struct product){.shape = s,
                          .type = type,
                          .op = {.transpose_a = ta,
                                 .transpose_b = tb,
                                 .m = s->m,
                                 .n = s->n,
                                 .k = s->k,
                                 .a = a,
                                 .b = b,
                                 .a_stride = a_stride,
                                 .b_stride = b_stride,
                                 .c_stride = s->n + s->gap},
                          .n_c = s->m * (s->n + s->gap),
                          .ab = operation_zeros(s->m * s->n)};
    reference_matmul(t->ab, dense_a, ta, dense_b, tb, (const size_t[3]){s->m, s->n, s->k});
}

static void run_matmul(struct mirror *at, void *const out[], const void *context)
{
    const struct product *t = context;
    struct device_matmul op = t->op;

    op.a = mirror_of(at, op.a), op.b = mirror_of(at, op.b);
    op.bias = mirror_of(at, op.bias), op.pre = mirror_of(at, op.pre);
    op.c = out[0];
    if (op.epilogue == DEVICE_BIAS_ACTIVATION)
        op.pre = out[1];
    at->ops->matmul(at->dev, &op);
}

/* What c is to be: `dense` with gaps, which keep what they held; added to what it held where beta is 1. */
static double *with_gaps(const struct product *t, const double *dense, enum number_type type, const void *held)
{
    double *c = operation_widen(type, held, t->n_c);

    for (size_t i = 0; i < t->op.m * t->op.n; i++) {
        double *to = c + i / t->op.n * t->op.c_stride + i % t->op.n;
        *to = dense[i] + (double)t->op.beta * *to;
    }
    return c;
}

/* k products of unit deviation, each rounded once: an error of sqrt(k) 2^-24 or less against a largest sum of a few
 * sqrt(k); four times that for the chance extremes of many sums. A matrix unit drops bits where fp32 would round: twice
 * as much. */
static double tolerance(const struct product *t)
{
    const bool drops = backend_get()->cuda && t->type == NUMBER_BF16;

    return (4 * 0x1p-24 * sqrt((double)t->op.k) + 0x1p-23) * (drops ? 2 : 1);
}

static bool suits(const struct shape *s)
{
    return backend_suits((double)(s->m * s->n * s->k));
}

static void check(const struct product *t)
{
    const enum number_type type = t->op.wide ? NUMBER_FP32 : t->type;
    const void *held = operation_values(type, t->n_c, 3);

    operation_check(&(struct operation){.type = t->type,
                                        .run = run_matmul,
                                        .context = t,
                                        .parts = {{"c", t->n_c, with_gaps(t, t->ab, type, held), tolerance(t), held,
                                                   t->op.wide ? OPERATION_FP32 : OPERATION_VALUES}}});
}

SUITE_FIXTURE(mirror_forget, NULL)

TEST_EACH(matmul_is_the_product, N_SHAPES *NUMBER_TYPES *N_TRANSPOSITIONS)
{
    const int way = _i % (N_TRANSPOSITIONS * NUMBER_TYPES);
    const struct shape *s = &shapes[_i / (N_TRANSPOSITIONS * NUMBER_TYPES)];
    const enum number_type type = (enum number_type)(way / N_TRANSPOSITIONS);
    struct product t;

    if (!suits(s))
        return;
    set_up(&t, s, type, way & 1, way & 2);
    for (int wide = 0; wide < (type == NUMBER_BF16 ? 2 : 1); wide++)
        for (int beta = 0; beta < 2; beta++) {
            t.op.wide = wide, t.op.beta = (float)beta;
            check(&t);
        }
}

/* Weights are (in, out) in some families and (out, in) in others: epilogues meet both, every other shape the second. */
static bool is_swapped(const struct shape *s)
{
    return (s - shapes) % 2 != 0;
}

static void add_bias(struct product *t)
{
    const void *bias = t->op.bias = operation_values(t->type, t->op.n, 4);

    for (size_t i = 0; i < t->op.m * t->op.n; i++)
        t->ab[i] += (double)operation_get(t->type, bias, i % t->op.n);
}

TEST_EACH(matmul_adds_the_bias, N_SHAPES *NUMBER_TYPES)
{
    const struct shape *s = &shapes[_i / NUMBER_TYPES];
    struct product t;

    if (!suits(s))
        return;
    set_up(&t, s, (enum number_type)(_i % NUMBER_TYPES), false, is_swapped(s));
    add_bias(&t);
    t.op.epilogue = DEVICE_BIAS;
    check(&t);
}

/* The activation is that of pre as it is stored: half a unit of bf16's last place off, with a slope of up to 1.13. */
TEST_EACH(matmul_activates_what_it_stores_before, N_SMALL *NUMBER_TYPES *N_ACTIVATIONS)
{
    const struct shape *s = &shapes[_i / N_ACTIVATIONS / NUMBER_TYPES];
    struct product t;

    if (!suits(s))
        return;
    set_up(&t, s, (enum number_type)(_i / N_ACTIVATIONS % NUMBER_TYPES), false, is_swapped(s));
    add_bias(&t);
    t.op.epilogue = DEVICE_BIAS_ACTIVATION;
    t.op.activation = (enum model_activation)(_i % N_ACTIVATIONS);
    const void *held = operation_values(t.type, t.n_c, 3), *held_pre = operation_values(t.type, t.n_c, 5);
    const double *pre = with_gaps(&t, t.ab, t.type, held_pre);
    const double near = 1.13 * tolerance(&t) + 0x1p-22 + (t.type == NUMBER_BF16 ? 1.13 * 0x1p-8 : 0);
    for (size_t i = 0; i < s->m * s->n; i++)
        t.ab[i] = reference_activation(t.op.activation, t.ab[i]);
    const double *c = with_gaps(&t, t.ab, t.type, held);
    operation_check(&(struct operation){.type = t.type,
                                        .run = run_matmul,
                                        .context = &t,
                                        .parts = {{"c", t.n_c, c, near, held, OPERATION_VALUES},
                                                  {"pre", t.n_c, pre, tolerance(&t), held_pre, OPERATION_VALUES}}});
}

TEST_EACH(matmul_multiplies_by_the_slope, N_SMALL *NUMBER_TYPES *N_ACTIVATIONS)
{
    const struct shape *s = &shapes[_i / N_ACTIVATIONS / NUMBER_TYPES];
    struct product t;

    if (!suits(s))
        return;
    set_up(&t, s, (enum number_type)(_i / N_ACTIVATIONS % NUMBER_TYPES), false, !is_swapped(s));
    t.op.epilogue = DEVICE_ACTIVATION_GRADIENT;
    t.op.activation = (enum model_activation)(_i % N_ACTIVATIONS);
    t.op.pre = operation_values(t.type, t.n_c, 5);
    for (size_t i = 0; i < s->m * s->n; i++) {
        const double pre = (double)operation_get(t.type, t.op.pre, i / s->n * t.op.c_stride + i % s->n);
        t.ab[i] *= reference_activation_gradient(t.op.activation, pre);
    }
    const void *held = operation_values(t.type, t.n_c, 3);
    /* Products times a slope that is itself good to 3 units in the last place of 1. A CUDA device's product is stored, and
     * so rounded, before it is multiplied. */
    const bool twice = backend_get()->cuda && t.type == NUMBER_BF16;
    const double near = 2 * tolerance(&t) + 3 * 0x1p-23 + (twice ? 1.13 * 0x1p-8 : 0);
    operation_check(
        &(struct operation){.type = t.type,
                            .run = run_matmul,
                            .context = &t,
                            .parts = {{"c", t.n_c, with_gaps(&t, t.ab, t.type, held), near, held, OPERATION_VALUES}}});
}

/* What tells a loss that is not finite relies on it. */
TEST_EACH(activations_pass_nan_on, NUMBER_TYPES *N_ACTIVATIONS)
{
    static const struct shape one = {1, 1, 1, 0};
    const enum number_type type = (enum number_type)(_i % NUMBER_TYPES);
    struct product t;
    void *const c = operation_room(type, 1), *const pre = operation_room(type, 1);

    set_up(&t, &one, type, false, false);
    operation_set(type, (void *)(uintptr_t)t.op.a, 0, NAN);
    add_bias(&t);
    t.op.epilogue = DEVICE_BIAS_ACTIVATION;
    t.op.activation = (enum model_activation)(_i / NUMBER_TYPES);
    operation_run(&(struct operation){.type = type, .run = run_matmul, .context = &t, .parts = {{.n = 1}, {.n = 1}}},
                  (void *[]){c, pre});
    ck_assert(isnan(operation_get(type, c, 0)) && isnan(operation_get(type, pre, 0)));
}
