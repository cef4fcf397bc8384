/* device/cpu/kernels/xielu.kernel.c - an activation with two trained numbers (proto/operation/call/xielu.h).
 *
 * Gradients of the two numbers are sums over all elements: in double, by parts that depend on the number of elements
 * alone, so threads change no bit. */
#include "device/cpu/cpu.h"
#include "device/cpu/kernels/math.h"
#include "device/cpu/kernels/value.h"

#include <math.h>

enum { PARTS = 256, LEAST = 1 << 12 }; /* the most parts; the fewest elements of one */

/* The two factors: of squares, and of exponentials. */
struct factors {
    float square, exponential, beta, bound;
};

static double softplus(double x)
{
    return x > 20 ? x : log1p(exp(x));
}

static struct factors factors_of(const struct device_xielu *op)
{
    const double positive = (double)value_widen(*(const value *)op->positive),
                 negative = (double)value_widen(*(const value *)op->negative);

    return (struct factors){.square = (float)softplus(positive),
                            .exponential = (float)((double)op->beta + softplus(negative)),
                            .beta = op->beta,
                            .bound = op->bound};
}

/* e^x - 1 - x for x <= 0: near 0 its series, whose first term left out is 5e-8 of the first one at -1. */
VECTOR_INLINE vec exponential_rest(vec x)
{
    vec p = x * (1 / 3628800.0f) + 1 / 362880.0f;

    p = p * x + 1 / 40320.0f;
    p = p * x + 1 / 5040.0f;
    p = p * x + 1 / 720.0f;
    p = p * x + 1 / 120.0f;
    p = p * x + 1 / 24.0f;
    p = p * x + 1 / 6.0f;
    p = p * x + 0.5f;
    return vec_select(x > -1, p * x * x, math_exp(x) - 1 - x);
}

static void forward_part(const struct factors *of, value *y, const value *x, size_t n)
{
    for (size_t i = 0; i < n; i += VECTOR) {
        const vec at = value_load_n(x + i, n - i), low = vec_min(vec_all(of->bound), at);
        const vec term =
            vec_select(at > 0, of->square * at * at, of->exponential * (exponential_rest(low) + (low - at)));
        value_store_n(y + i, term + of->beta * at, n - i);
    }
}

/* sums: of dy x^2 above 0, and of dy (expm1(min(x, bound)) - x) elsewhere. */
static void backward_part(const struct factors *of, value *dx, const value *dy, const value *x, size_t n,
                          double sums[2])
{
    double squares[VECTOR] = {0}, exponentials[VECTOR] = {0};

    for (size_t i = 0; i < n; i += VECTOR) {
        const vec at = value_load_n(x + i, n - i), d = value_load_n(dy + i, n - i); /* 0 beyond the end */
        const vec low = vec_min(vec_all(of->bound), at), rest = exponential_rest(low);
        const vec below = vec_select(at < of->bound, rest + at, vec_all(-1)); /* slope of expm1(min(x, bound)) - x */
        const vec slope = vec_select(at > 0, 2 * of->square * at, of->exponential * below);

        vec_add_double(squares, vec_select(at > 0, d * at * at, (vec){0}));
        vec_add_double(exponentials, vec_select(at > 0, (vec){0}, d * (rest + (low - at))));
        value_store_n(dx + i, d * (slope + of->beta), n - i);
    }
    for (size_t i = 0; i < VECTOR; i++)
        sums[0] += squares[i], sums[1] += exponentials[i];
}

static size_t part_of(size_t n)
{
    const size_t part = ((n + PARTS - 1) / PARTS + VECTOR - 1) / VECTOR * VECTOR;

    return part > LEAST ? part : LEAST;
}

void KERNEL_NAME(cpu_xielu)(struct device *dev, const struct device_xielu *op)
{
    const struct factors of = factors_of(op);
    const size_t part = part_of(op->n);

#pragma omp parallel for num_threads(cpu_threads(dev, op->n)) schedule(static)
    for (size_t i = 0; i < op->n; i += part)
        forward_part(&of, (value *)op->y + i, (const value *)op->x + i, size_smaller(part, op->n - i));
}

/* The derivative of softplus. */
static double sigmoid_of(const void *alpha)
{
    return 1 / (1 + exp(-(double)value_widen(*(const value *)alpha)));
}

void KERNEL_NAME(cpu_xielu_backward)(struct device *dev, const struct device_xielu *op)
{
    const struct factors of = factors_of(op);
    const size_t part = part_of(op->n);
    double sums[PARTS][2] = {{0}}, all[2] = {0};

#pragma omp parallel for num_threads(cpu_threads(dev, op->n)) schedule(static)
    for (size_t i = 0; i < op->n; i += part)
        backward_part(&of, (value *)op->x_gradient + i, (const value *)op->y_gradient + i, (const value *)op->x + i,
                      size_smaller(part, op->n - i), sums[i / part]);
    for (size_t i = 0; i < PARTS; i++)
        all[0] += sums[i][0], all[1] += sums[i][1];
    if (op->of_positive)
        *op->of_positive += (float)(all[0] * sigmoid_of(op->positive));
    if (op->of_negative)
        *op->of_negative += (float)(all[1] * sigmoid_of(op->negative));
}
