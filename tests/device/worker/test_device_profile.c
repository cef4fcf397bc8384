/* What a profile is measured on: a device that looks at its operands, and computes nothing. */
#include "device/cpu/cpu.h"
#include "device/worker/profile.h"
#include "tests/kit/test.h"
#include "device/find.h"

#include <math.h>
#include <string.h>

enum { LOOKED = 4096 };

static unsigned n_products, n_attentions;

static double number_at(const struct device *dev, const void *at, size_t i)
{
    return dev->type == NUMBER_BF16 ? (double)number_from_bf16(((const uint16_t *)at)[i]) : ((const float *)at)[i];
}

/* Mean 0 and deviation 1, each to six deviations of their own: 1/64, and about as much for the other. */
static void check_random(const struct device *dev, const void *at)
{
    double sum = 0, squares = 0;

    for (size_t i = 0; i < LOOKED; i++) {
        const double x = number_at(dev, at, i);
        sum += x, squares += x * x;
    }
    ck_assert_double_eq_tol(sum / LOOKED, 0, 6.0 / 64);
    ck_assert_double_eq_tol(sqrt(squares / LOOKED), 1, 6.0 / 64);
}

static void matmul(struct device *dev, const struct device_matmul *op)
{
    n_products++;
    check_random(dev, op->a);
    check_random(dev, op->b);
}

static void attention(struct device *dev, const struct device_attention *op)
{
    n_attentions++;
    check_random(dev, op->qkv);
}

static void attention_backward(struct device *dev, const struct device_attention *op)
{
    n_attentions++;
    check_random(dev, op->qkv);
    check_random(dev, op->out_gradient);
}

TEST(products_and_attention_are_timed_on_random_numbers)
{
    struct device_ops ops = device_cpu;
    struct error err = {""};
    struct profile p;

    memset(&p, 0xff, sizeof p); /* what is measured, and what is not */
    ops.matmul = matmul, ops.attention = attention, ops.attention_backward = attention_backward;
    ck_assert_msg(device_profile(&p, &ops, 0, 1, &err) == 0, "%s", err.text);
    ck_assert_double_eq(p.host_bytes_per_s, 0);
    ck_assert_uint_gt(n_products, NUMBER_TYPES * PROFILE_ROWS);
    ck_assert_uint_gt(n_attentions, NUMBER_TYPES * PROFILE_DIRECTIONS);
}
