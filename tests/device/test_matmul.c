/* Products, and what follows them. */
#include "tests/kit/device/operation.h"
#include "tests/kit/test.h"

#include <math.h>
#include <string.h>

SUITE_LABELS(long, slow, on_cuda_release)

/* m, n, k and how far strides exceed widths: single rows, short and long, odd sizes, tiles that end anywhere; several
 * tiles, and k over several of the depths at which sums are stored. The last ones are for devices that are fast. */
static const struct shape {
    size_t m, n, k, gap;
} shapes[] = {
    {1, 1, 1, 0},     {1, 7, 5, 3},     {3, 1, 9, 1},      {17, 33, 65, 5},     {64, 64, 64, 0},
    {65, 515, 7, 1},  {16, 24, 40, 8},  {130, 257, 31, 2}, {520, 140, 40, 0},   {40, 72, 768, 8},
    {400, 390, 3, 0}, {1, 391, 774, 3}, {1, 192, 3072, 0}, {512, 1024, 640, 0}, {777, 1000, 513, 8},
};
enum {
    N_SMALL = 7, /* what an activation follows does not depend on the shape */
    N_TRANSPOSITIONS = 4,
    N_ACTIVATIONS = MODEL_ACTIVATIONS,
    N_ODD = 60
};

/* k products of unit deviation, each rounded once: an error of sqrt(k) 2^-24 or less against a largest sum of a few
 * sqrt(k); four times that for the chance extremes of many sums. A matrix unit drops bits where fp32 would round: twice
 * as much. An activation is that of pre as it is stored: half a unit of its type's last place off, with a slope of up
 * to 1.13. A slope is itself good to 3 units in the last place of 1; a CUDA device's product is stored, and so rounded,
 * before it is multiplied by one. One in 16 bits that is added to what is there is rounded before by the library, too
 * (cuda/matmul.c). */
static double near(const struct call_test *test, const char *output)
{
    const struct device_matmul *op = &test->call.matmul;
    const bool is_half = test->type != NUMBER_FP32, cuda = backend_get()->cuda;
    const double rounding = test->type == NUMBER_BF16 ? 0x1p-8 : is_half ? 0x1p-11 : 0;
    const double product = (4 * 0x1p-24 * sqrt((double)op->k) + 0x1p-23) * (cuda && is_half ? 2 : 1);

    const double slope = op->activation == MODEL_RELU2 ? 2 : 1.13; /* that of a square is twice its root, of itself */

    if (op->epilogue == DEVICE_BIAS_ACTIVATION && strcmp(output, "c") == 0)
        return slope * product + 0x1p-22 + slope * rounding;
    if (op->epilogue == DEVICE_ACTIVATION_GRADIENT)
        return 2 * product + 3 * 0x1p-23 + (cuda ? 1.13 * rounding : 0);
    if (cuda && !backend_get()->simulated && is_half && !op->wide && op->beta != 0)
        return product + rounding;
    return product;
}

static struct call_test product(const struct shape *s, int type, bool ta, bool tb)
{
    return (struct call_test){.type = (enum number_type)type,
                              .call = {.kind = CALL_matmul,
                                       .matmul = {.transpose_a = ta,
                                                  .transpose_b = tb,
                                                  .m = s->m,
                                                  .n = s->n,
                                                  .k = s->k,
                                                  .a_stride = (ta ? s->m : s->k) + s->gap,
                                                  .b_stride = (tb ? s->k : s->n) + s->gap,
                                                  .c_stride = s->n + s->gap}},
                              .near = near};
}

/* Long rows are for the CPU's kernels, and for real products: the simulated ones are plain loops. */
static bool suits(const struct shape *s)
{
    return backend_suits((double)(s->m * s->n * s->k) * (backend_get()->simulated ? 4 : 1));
}

/* Large products are checked in fewer ways: the reference computes them on one core. */
static bool is_large(const struct shape *s)
{
    return s->m * s->n * s->k > 100000000;
}

SUITE_FIXTURE(mirror_forget, NULL)

/* A factor with every other pair of beta and transpositions. */
TEST_EACH(matmul_is_the_product, COUNT(shapes) * NUMBER_TYPES * N_TRANSPOSITIONS)
{
    const int way = _i % (N_TRANSPOSITIONS * NUMBER_TYPES), type = way / N_TRANSPOSITIONS;
    const struct shape *s = &shapes[_i / (N_TRANSPOSITIONS * NUMBER_TYPES)];

    for (int wide = 0; suits(s) && wide < (type == NUMBER_BF16 ? 2 : 1); wide++)
        for (int beta = 0; beta < 2; beta++) {
            struct call_test test = product(s, type, way & 1, way & 2);
            const bool scales = __builtin_parity((unsigned)(way ^ wide ^ beta));
            test.call.matmul.wide = wide, test.call.matmul.beta = (float)beta;
            test.call.matmul.factor = scales ? 1.75f : 0;
            if (!is_large(s) || !scales)
                call_check(&test);
        }
}

/* With the second matrix transposed in every other shape: weights are (in, out) in some families and (out, in) in
 * others. */
static void check_epilogue(const struct shape *s, int type, enum device_epilogue epilogue, int activation)
{
    const bool swapped = ((s - shapes) % 2 != 0) != (epilogue == DEVICE_ACTIVATION_GRADIENT);
    struct call_test test = product(s, type, false, swapped);

    test.call.matmul.epilogue = epilogue;
    test.call.matmul.activation = (enum model_activation)activation;
    if (suits(s))
        call_check(&test);
}

TEST_EACH(matmul_adds_the_bias, COUNT(shapes) * NUMBER_TYPES)
{
    check_epilogue(&shapes[_i / NUMBER_TYPES], _i % NUMBER_TYPES, DEVICE_BIAS, 0);
}

/* What it stores before, and by the slope of what was. Each activation with every other shape. */
TEST_EACH_IF(matmul_activates_and_multiplies_by_the_slope, 2 * N_SMALL * NUMBER_TYPES * N_ACTIVATIONS,
             (_i / 2 / N_ACTIVATIONS / NUMBER_TYPES + _i / 2 % N_ACTIVATIONS) % 2 == 0)
{
    const int i = _i / 2;

    check_epilogue(&shapes[i / N_ACTIVATIONS / NUMBER_TYPES], i / N_ACTIVATIONS % NUMBER_TYPES,
                   _i % 2 ? DEVICE_BIAS_ACTIVATION : DEVICE_ACTIVATION_GRADIENT, i % N_ACTIVATIONS);
}

/* A product with a slope, whose columns are summed by it, or by a call behind it. */
struct sloped {
    struct call_test test;
    bool in_one;
};

/* out: the product, its columns' sums. */
static void run_sloped(struct mirror *at, void *const out[], const void *context)
{
    const struct sloped *s = context;
    struct device_matmul op = s->test.host.matmul;

    op.a = mirror_of(at, op.a), op.b = mirror_of(at, op.b), op.pre = mirror_of(at, op.pre), op.c = out[0];
    op.bias_gradient = s->in_one ? out[1] : NULL;
    at->ops->matmul(at->dev, &op);
    if (!s->in_one)
        at->ops->reduce_rows(at->dev, &(struct device_reduce_rows){out[1], op.c, op.m, op.n, op.c_stride});
}

/* The bits do not tell whether one pass or two computed them. */
TEST_EACH(the_gradient_of_a_bias_is_that_of_what_the_product_stores, COUNT(shapes) * NUMBER_TYPES)
{
    const struct shape *s = &shapes[_i / NUMBER_TYPES];
    struct sloped apart = {.test = product(s, _i % NUMBER_TYPES, false, true)}, in_one;
    struct device_matmul *op = &apart.test.call.matmul;

    if (!suits(s))
        TEST_SKIP("too slow here, or of another device: other tests have it");
    op->epilogue = DEVICE_ACTIVATION_GRADIENT, op->activation = (enum model_activation)(_i % N_ACTIVATIONS);
    call_make(&apart.test);
    in_one = apart;
    in_one.in_one = true;
    const struct operation one = {.type = apart.test.type,
                                  .run = run_sloped,
                                  .context = &apart,
                                  .parts = {{"c", call_find(&apart.test, "c")->n},
                                            {"sums", op->n, .type = CALL_FP32,
                                             .initial = operation_values(NUMBER_FP32, op->n, 9)}}};
    struct operation other = one;
    other.context = &in_one;
    operation_check_alike(&one, &other);
}

static uint32_t drawn_below(uint32_t *state, uint32_t n)
{
    *state = *state * 1664525 + 1013904223;
    return (*state >> 8) % n;
}

/* Rows first .. first+n-1 of a product. */
static void take_rows(struct call_test *part, const struct call_test *whole, size_t first, size_t n)
{
    struct device_matmul *op = &part->host.matmul;

    *part = *whole;
    op->m = part->call.matmul.m = n;
    op->a = device_element(whole->type, op->a, first * (op->transpose_a ? 1 : op->a_stride));
}

/* Around the edges of blocks, panels and steps: 1 to 70, and now and then past a step of k in either type, or of more
 * rows than a tile. However the rows are cut, each has the same bits. */
TEST_EACH(odd_products_are_right_and_their_bits_depend_on_no_cut, backend_get()->cuda ? 0 : N_ODD *NUMBER_TYPES)
{
    const int i = _i / NUMBER_TYPES, type = _i % NUMBER_TYPES;
    uint32_t state = (uint32_t)i + 1;
    const struct shape s = {i % 8 == 0 ? 1 : 1 + drawn_below(&state, 70) + (i % 10 == 3 ? 400 : 0),
                            1 + drawn_below(&state, 70), 1 + drawn_below(&state, 70) + (i % 5 == 4 ? 500 : 0), 3};
    const size_t cuts[] = {1, s.m / 2};
    struct call_test whole = product(&s, type, i & 1, i & 2), part;
    struct device_matmul *op = &whole.call.matmul;

    op->wide = i & 4, op->beta = op->wide && i % 3 == 0;
    op->epilogue = !op->wide && i % 3 == 1 ? DEVICE_BIAS : DEVICE_NO_EPILOGUE;
    call_check(&whole);
    const void *held = whole.host.matmul.c;
    const size_t row = op->c_stride * (op->wide ? sizeof(float) : number_bytes(whole.type));
    struct call_test all = whole;
    call_once(&all);
    for (int k = 0; k < 2 && s.m > 1; k++)
        for (int half = 0; half < 2; half++) {
            const size_t first = half ? cuts[k] : 0, n = half ? s.m - cuts[k] : cuts[k];
            take_rows(&part, &whole, first, n);
            part.host.matmul.c = (char *)(uintptr_t)held + first * row;
            call_once(&part);
            ck_assert_mem_eq(part.host.matmul.c, (char *)all.host.matmul.c + first * row,
                             (n - 1) * row + row - 3 * row / op->c_stride);
        }
}

/* What tells a loss that is not finite relies on it. */
TEST_EACH(activations_pass_nan_on, COMMON_TYPES *N_ACTIVATIONS)
{
    static const struct shape one = {1, 1, 1, 0};
    struct call_test test = product(&one, _i % COMMON_TYPES, false, false);
    struct device_matmul *op = &test.host.matmul;

    test.call.matmul.epilogue = DEVICE_BIAS_ACTIVATION;
    test.call.matmul.activation = (enum model_activation)(_i / COMMON_TYPES);
    call_make(&test);
    operation_set(test.type, (void *)(uintptr_t)op->a, 0, NAN);
    call_once(&test);
    ck_assert(isnan(operation_get(test.type, op->c, 0)) && isnan(operation_get(test.type, op->pre, 0)));
}
