/* How products are handed to cuBLASLt: what is fused with them, and what is done where it refuses. That they are right
 * for all shapes is tested with every backend's. */
#include "tests/kit/device/simulated.h"
#include "tests/kit/test.h"

#include <errno.h>
#include <math.h>
#include <string.h>

SUITE_LABELS(cuda)

/* Elements of the arena at which things lie: a, b, bias, pre, c. */
enum { A = 0, B = 1 << 16, BIAS = 2 << 16, PRE = 3 << 16, C = 4 << 16 };

static struct device *dev;
static enum number_type type;

static void *at(size_t element)
{
    return device_element(type, simulated.ops->arena(dev), element);
}

/* n elements at `to`: (i * step) mod 7, less 3, halved; exact in both types, and so are sums of a few hundred
 * products. */
static float value(size_t i, size_t step)
{
    return (float)(i * step % 7) / 2 - 1.5f;
}

static void fill(size_t to, size_t n, size_t step)
{
    union {
        float fp32[512];
        uint16_t bf16[512];
    } x;

    ck_assert_uint_le(n, 512);
    for (size_t i = 0; i < n; i++) {
        if (type == NUMBER_BF16)
            x.bf16[i] = number_to_bf16(value(i, step));
        else
            x.fp32[i] = value(i, step);
    }
    simulated.ops->upload(dev, at(to), &x, n * number_bytes(type));
    ck_assert_int_eq(simulated.ops->sync(dev), 0);
}

static float element(size_t i)
{
    uint16_t bf16;
    float fp32;

    if (type == NUMBER_BF16) {
        simulated.ops->download(dev, &bf16, at(i), sizeof bf16);
        simulated.ops->sync(dev);
        return number_from_bf16(bf16);
    }
    simulated.ops->download(dev, &fp32, at(i), sizeof fp32);
    simulated.ops->sync(dev);
    return fp32;
}

static void set_up(enum number_type of)
{
    type = of;
    dev = simulated_open(type, CUDASIM_STREAMS_AS_ISSUED);
}

/* (m, k) by (k, n); `odd`: nothing lies where 16 bytes would. */
static struct device_matmul product(size_t m, size_t n, size_t k, bool odd)
{
    fill(A + odd, m * k, 3);
    fill(B + odd, k * n, 5);
    fill(BIAS + odd, n, 2);
    fill(PRE + odd, m * n, 1);
    return (struct device_matmul){.m = m,
                                  .n = n,
                                  .k = k,
                                  .a = at(A + odd),
                                  .b = at(B + odd),
                                  .bias = at(BIAS + odd),
                                  .pre = at(PRE + odd),
                                  .c = at(C + odd),
                                  .a_stride = k,
                                  .b_stride = n,
                                  .c_stride = n};
}

static float sum(const struct device_matmul *op, size_t i, size_t j)
{
    float s = 0;

    for (size_t l = 0; l < op->k; l++)
        s += value(i * op->k + l, 3) * value(l * op->n + j, 5);
    return s;
}

/* Launches of our own kernels that the product took. */
static unsigned long launches(const struct device_matmul *op)
{
    const unsigned long before = simulated.count().launches;

    simulated.ops->matmul(dev, op);
    ck_assert_int_eq(simulated.ops->sync(dev), 0);
    return simulated.count().launches - before;
}

static const struct {
    enum number_type type;
    enum device_epilogue epilogue;
    enum model_activation activation;
    bool odd;
    unsigned long launches;
} fused[] = {
    {NUMBER_BF16, DEVICE_NO_EPILOGUE, MODEL_RELU, false, 0},
    {NUMBER_BF16, DEVICE_BIAS, MODEL_RELU, false, 0},
    {NUMBER_BF16, DEVICE_BIAS, MODEL_RELU, true, 0},
    {NUMBER_FP32, DEVICE_BIAS, MODEL_RELU, false, 0},
    {NUMBER_BF16, DEVICE_BIAS_ACTIVATION, MODEL_GELU_NEW, false, 1},
    {NUMBER_BF16, DEVICE_ACTIVATION_GRADIENT, MODEL_GELU_NEW, false, 1},
    {NUMBER_FP32, DEVICE_ACTIVATION_GRADIENT, MODEL_GELU_NEW, false, 1},
};
enum { N_FUSED = sizeof fused / sizeof *fused };

SUITE_FIXTURE(simulated_load, NULL)

TEST_EACH(what_the_library_does_as_we_would_is_fused, N_FUSED)
{
    set_up(fused[_i].type);
    struct device_matmul op = product(4, 8, 16, fused[_i].odd);
    op.epilogue = fused[_i].epilogue;
    op.activation = fused[_i].activation;
    ck_assert_uint_eq(launches(&op), fused[_i].launches);
    simulated_close(dev);
}

/* With a bias, which a kernel of ours adds, now and ever after. */
static void expect_bias_apart(void)
{
    struct device_matmul op = product(3, 5, 7, false);

    op.epilogue = DEVICE_BIAS;
    for (int again = 0; again < 2; again++) {
        ck_assert_uint_eq(launches(&op), 1);
        for (size_t i = 0; i < op.m * op.n; i++)
            ck_assert_float_eq(element(C + i), sum(&op, i / op.n, i % op.n) + value(i % op.n, 2));
    }
}

/* Without the library's bias: ours, once for every call of this shape. */
TEST(what_the_library_refuses_to_fuse_is_done_after_the_product)
{
    set_up(NUMBER_FP32);
    simulated.fail_call("cublasLtMatmulAlgoGetHeuristic", 0, cudaErrorNotSupported);
    simulated.no_algorithm(1); /* in parts */
    expect_bias_apart();
    simulated_close(dev);
}

/* The same where it says nothing against it, and knows no algorithm, in one part or in several. */
TEST(what_the_library_has_no_algorithm_to_fuse_is_done_after_the_product)
{
    set_up(NUMBER_FP32);
    simulated.no_algorithm(2);
    expect_bias_apart();
    simulated_close(dev);
}

/* Fused, and for good; not where there is one for sums in one part. */
TEST(a_product_without_an_algorithm_in_one_part_is_computed_in_ordered_parts)
{
    set_up(NUMBER_BF16);
    struct device_matmul op = product(3, 5, 7, false);
    const unsigned long before = simulated.count().products_in_parts;

    op.epilogue = DEVICE_BIAS;
    simulated.no_algorithm(1);
    for (unsigned long again = 1; again <= 2; again++) {
        ck_assert_uint_eq(launches(&op), 0);
        ck_assert_uint_eq(simulated.count().products_in_parts, before + again);
        ck_assert_float_eq(element(C + 7), number_from_bf16(number_to_bf16(sum(&op, 1, 2) + value(2, 2))));
    }
    op.epilogue = DEVICE_NO_EPILOGUE;
    ck_assert_uint_eq(launches(&op), 0);
    ck_assert_uint_eq(simulated.count().products_in_parts, before + 2);
    simulated_close(dev);
}

/* Refused, or without an algorithm. */
TEST_EACH(a_product_that_the_library_has_not_is_named, 2)
{
    struct error err = {""};

    set_up(NUMBER_BF16);
    struct device_matmul op = product(3, 5, 7, false);
    if (!_i)
        simulated.fail_call("cublasLtMatmulAlgoGetHeuristic", 0, cudaErrorNotSupported);
    simulated.no_algorithm(_i ? 2 : 1);
    simulated.ops->matmul(dev, &op);
    ck_assert_int_eq(simulated.ops->sync(dev), -EIO);
    ck_assert_int_eq(simulated.ops->fault(dev, &err), -EIO);
    ck_assert_msg(strstr(err.text, "cuBLASLt 120000 has no algorithm") &&
                      strstr(err.text, "the product of (3, 7) and (7, 5) in bf16 (another version of it may, or "
                                       "--precision fp32, or --device cpu)"),
                  "%s", err.text);
    simulated_close(dev);
}

/* 135 shapes, of which 128 are remembered, and some that are not any more. */
TEST(more_shapes_than_are_remembered_take_no_more_memory)
{
    enum { MOST = 135 };
    set_up(NUMBER_FP32);
    struct device_matmul op = product(2, 3, MOST, false);
    const unsigned long before = simulated.count().allocations;
    for (size_t i = 0; i < MOST + 3; i++) {
        op.k = op.a_stride = i % MOST + 1;
        simulated.ops->matmul(dev, &op);
        if (i == 0 || i >= MOST)
            ck_assert_float_eq(element(C + 4), sum(&op, 1, 1));
    }
    ck_assert_uint_eq(simulated.count().allocations, before);
    simulated_close(dev);
}
