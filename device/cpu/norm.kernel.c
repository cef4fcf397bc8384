/* device/cpu/norm.kernel.c - layer normalisation, row by row. Ba, Kiros & Hinton, arXiv:1607.06450.
 *
 * Means and variances are summed in double: a row is in the first-level cache, so this costs nothing next to memory. */
#include "device/cpu/cpu.h"
#include "device/cpu/value.h"

#include <math.h>

struct row {
    const value *x, *weight;
    size_t n;
    float mean, inverse; /* of the deviation */
};

struct sums {
    float *weight_gradient, *bias_gradient; /* of some columns */
    const float *statistics;
    size_t m, n;
};

enum { COLUMNS = 128 }; /* columns that one thread sums at once: the sums stay in the first-level cache */

static double row_mean(const value *x, size_t n)
{
    vec_double low = {0}, high = {0};

    for (size_t j = 0; j < n; j += VECTOR) {
        vec element = value_load_n(x + j, n - j);
        low += vec_widen(vec_low(element));
        high += vec_widen(vec_high(element));
    }
    return vec_double_sum(low + high) / (double)n;
}

static double row_variance(const value *x, size_t n, double mean)
{
    vec_double low = {0}, high = {0};
    size_t j = 0;

    for (; j + VECTOR <= n; j += VECTOR) {
        vec element = value_load(x + j);
        vec_double a = vec_widen(vec_low(element)) - mean, b = vec_widen(vec_high(element)) - mean;
        low += a * a;
        high += b * b;
    }
    double sum = vec_double_sum(low + high);
    for (; j < n; j++)
        sum += ((double)value_widen(x[j]) - mean) * ((double)value_widen(x[j]) - mean);
    return sum / (double)n;
}

static void forward(struct device *dev, void *to, float *statistics, const void *from, const void *scale,
                    const void *shift_by, size_t m, size_t n, float epsilon)
{
    const value *x = from, *weight = scale, *bias = shift_by;
    value *y = to;

#pragma omp parallel for num_threads(dev->n_threads) schedule(static) if (m > 1)
    for (size_t i = 0; i < m; i++) {
        const value *row = x + i * n;
        const double mean = row_mean(row, n);
        const float inverse = (float)(1 / sqrt(row_variance(row, n, mean) + (double)epsilon)), shift = (float)mean;

        statistics[2 * i] = shift;
        statistics[2 * i + 1] = inverse;
        for (size_t j = 0; j < n; j += VECTOR) {
            vec z = (value_load_n(row + j, n - j) - shift) * inverse;
            value_store_n(y + i * n + j, z * value_load_n(weight + j, n - j) + value_load_n(bias + j, n - j), n - j);
        }
    }
}

/* With z = (x - mean) * inverse and g = dy * weight: dx = inverse * (g - mean(g) - z * mean(g z)). */
static void row_backward(const struct row *row, value *dx, bool accumulate, const value *dy)
{
    vec_double sum = {0}, product = {0};
    const size_t n = row->n;

    for (size_t j = 0; j < n; j += VECTOR) {
        /* weight is 0 beyond the end, so g is too */
        vec g = value_load_n(dy + j, n - j) * value_load_n(row->weight + j, n - j);
        vec gz = g * ((value_load_n(row->x + j, n - j) - row->mean) * row->inverse);
        sum += vec_widen(vec_low(g)) + vec_widen(vec_high(g));
        product += vec_widen(vec_low(gz)) + vec_widen(vec_high(gz));
    }
    const float mean_g = (float)(vec_double_sum(sum) / (double)n),
                mean_gz = (float)(vec_double_sum(product) / (double)n);

    for (size_t j = 0; j < n; j += VECTOR) {
        vec g = value_load_n(dy + j, n - j) * value_load_n(row->weight + j, n - j);
        vec z = (value_load_n(row->x + j, n - j) - row->mean) * row->inverse;
        vec gradient = row->inverse * (g - mean_g - z * mean_gz);
        if (accumulate)
            gradient += value_load_n(dx + j, n - j);
        value_store_n(dx + j, gradient, n - j);
    }
}

/* total (2 * VECTOR / 2 doubles of one vector of columns) += x. */
VECTOR_INLINE void add_double(double *total, vec x)
{
    vec_double low, high;

    memcpy(&low, total, sizeof low);
    memcpy(&high, total + VECTOR / 2, sizeof high);
    low += vec_widen(vec_low(x));
    high += vec_widen(vec_high(x));
    memcpy(total, &low, sizeof low);
    memcpy(total + VECTOR / 2, &high, sizeof high);
}

/* Sums over the rows, in double and in order, of dy and dy z for some columns: those of dy[0 .. width-1]. */
static void columns_backward(const struct sums *sums, const value *dy, const value *x, size_t width)
{
    double bias[COLUMNS] = {0}, weight[COLUMNS] = {0};

    for (size_t i = 0; i < sums->m; i++) {
        const float mean = sums->statistics[2 * i], inverse = sums->statistics[2 * i + 1];
        for (size_t j = 0; j < width; j += VECTOR) {
            vec g = value_load_n(dy + i * sums->n + j, width - j);
            vec z = (value_load_n(x + i * sums->n + j, width - j) - mean) * inverse;
            add_double(bias + j, g);
            add_double(weight + j, g * z);
        }
    }
    for (size_t j = 0; j < width; j++) {
        sums->bias_gradient[j] = (float)((double)sums->bias_gradient[j] + bias[j]);
        sums->weight_gradient[j] = (float)((double)sums->weight_gradient[j] + weight[j]);
    }
}

static void backward(struct device *dev, void *to, bool accumulate, float *weight_gradient, float *bias_gradient,
                     const void *from, const void *input, const float *statistics, const void *weight, size_t m,
                     size_t n)
{
    const value *dy = from, *x = input;
    value *dx = to;

    /* First, since dx may be dy. */
#pragma omp parallel for num_threads(dev->n_threads) schedule(static)
    for (size_t j = 0; j < n; j += COLUMNS) {
        const struct sums sums = {weight_gradient + j, bias_gradient + j, statistics, m, n};
        columns_backward(&sums, dy + j, x + j, n - j < COLUMNS ? n - j : COLUMNS);
    }
#pragma omp parallel for num_threads(dev->n_threads) schedule(static)
    for (size_t i = 0; i < m; i++) {
        const struct row row = {x + i * n, weight, n, statistics[2 * i], statistics[2 * i + 1]};
        row_backward(&row, dx + i * n, accumulate, dy + i * n);
    }
}

const struct cpu_norm_kernels KERNEL_NAME(cpu_norm) = {.forward = forward, .backward = backward};
