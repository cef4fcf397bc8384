/* device/cpu/kernels/norm.kernel.c - layer and root-mean-square normalisation, row by row.
 *
 * Means and variances are summed in double: a row is in the first-level cache, so this costs nothing next to memory. */
#include "device/cpu/cpu.h"
#include "device/cpu/kernels/dropout.h"

#include <math.h>

struct row {
    const value *x, *weight;
    size_t n;
    float mean, inverse; /* inverse: 1 / deviation */
    bool centred;        /* the deviation is about the mean; RMS norm's is about 0 */
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

/* Of the n elements from j on. Where offset, or without a weight, 1 beyond the end of the row. */
VECTOR_INLINE vec load_factor(const value *weight, size_t j, size_t n, bool offset)
{
    if (!weight)
        return vec_all(1);
    const vec w = value_load_n(weight + j, n);
    return offset ? 1 + w : w;
}

/* biased and offset are constants: with a bias, each element is one multiplication and one fused multiply-add. */
VECTOR_INLINE void scale_row(value *y, const value *x, float mean, float inverse, const value *weight,
                             const value *bias, size_t n, bool biased, bool offset)
{
    for (size_t j = 0; j < n; j += VECTOR) {
        const vec z = (value_load_n(x + j, n - j) - mean) * inverse, w = load_factor(weight, j, n - j, offset);
        value_store_n(y + j, biased ? z * w + value_load_n(bias + j, n - j) : z * w, n - j);
    }
}

/* Head i of all rows' heads, from the first value of an array. */
static size_t head_at(const struct device_norm *op, size_t i)
{
    const size_t n_heads = device_norm_heads(op);

    return i / n_heads * device_norm_stride(op) + i % n_heads * op->n;
}

static void scale(value *y, const value *x, float mean, float inverse, const struct device_norm *op)
{
    if (op->bias && op->offset)
        scale_row(y, x, mean, inverse, op->weight, op->bias, op->n, true, true);
    else if (op->bias)
        scale_row(y, x, mean, inverse, op->weight, op->bias, op->n, true, false);
    else if (op->offset)
        scale_row(y, x, mean, inverse, op->weight, NULL, op->n, false, true);
    else
        scale_row(y, x, mean, inverse, op->weight, NULL, op->n, false, false);
}

/* Row i of the sum, of rows that lie `at` elements on: where it is wanted, else in y's place. */
static const value *add_before(const struct device_norm *op, size_t i, size_t at)
{
    value *const sum = (value *)(op->add.y ? op->add.y : op->y) + at;

    dropout_add_row(&op->add, i, sum, (const value *)op->add.x + at, (const value *)op->add.h + at);
    return sum;
}

void KERNEL_NAME(cpu_norm)(struct device *dev, const struct device_norm *op)
{
    const value *x = op->x;
    value *y = op->y;
    const size_t m = op->m * device_norm_heads(op), n = op->n;

#pragma omp parallel for num_threads(cpu_threads(dev, m * op->n)) schedule(static)
    for (size_t i = 0; i < m; i++) {
        const size_t at = head_at(op, i);
        const value *row = op->add.h ? add_before(op, i, at) : x + at;
        value *to = y + at;
        const double mean = op->kind == DEVICE_LAYER_NORM ? row_mean(row, n) : 0;
        const float inverse = (float)(1 / sqrt(row_variance(row, n, mean) + (double)op->epsilon)), shift = (float)mean;

        op->statistics[2 * i] = shift;
        op->statistics[2 * i + 1] = inverse;
        scale(to, row, shift, inverse, op);
    }
}

/* With z = (x - mean) * inverse and g = dy * factor: dx = inverse * (g - mean(g) - z * mean(g z)); without mean(g) if
 * not centred. offset is a constant. */
VECTOR_INLINE void row_backward(const struct row *row, value *dx, bool accumulate, const value *dy, bool offset)
{
    vec_double sum = {0}, product = {0};
    const size_t n = row->n;

    for (size_t j = 0; j < n; j += VECTOR) {
        /* dy is 0 beyond the end, so g is too */
        vec g = value_load_n(dy + j, n - j) * load_factor(row->weight, j, n - j, offset);
        vec gz = g * ((value_load_n(row->x + j, n - j) - row->mean) * row->inverse);
        sum += vec_widen(vec_low(g)) + vec_widen(vec_high(g));
        product += vec_widen(vec_low(gz)) + vec_widen(vec_high(gz));
    }
    const float mean_g = row->centred ? (float)(vec_double_sum(sum) / (double)n) : 0,
                mean_gz = (float)(vec_double_sum(product) / (double)n);

    for (size_t j = 0; j < n; j += VECTOR) {
        vec g = value_load_n(dy + j, n - j) * load_factor(row->weight, j, n - j, offset);
        vec z = (value_load_n(row->x + j, n - j) - row->mean) * row->inverse;
        vec gradient = row->inverse * (g - mean_g - z * mean_gz);
        if (accumulate)
            gradient += value_load_n(dx + j, n - j);
        value_store_n(dx + j, gradient, n - j);
    }
}

/* Sums over the rows and heads, in double and in order, of dy and dy z for the columns from `first` on. */
static void columns_backward(const struct device_norm *op, size_t first, size_t width)
{
    const size_t n_heads = device_norm_heads(op), stride = device_norm_stride(op);
    double bias[COLUMNS] = {0}, weight[COLUMNS] = {0};

    for (size_t i = 0; i < op->m; i++)
        for (size_t head = 0; head < n_heads; head++) {
            const float *of = op->statistics + 2 * (i * n_heads + head);
            const size_t at = i * stride + head * op->n + first;

            for (size_t j = 0; j < width; j += VECTOR) {
                vec g = value_load_n((const value *)op->y_gradient + at + j, width - j);
                vec z = (value_load_n((const value *)op->x + at + j, width - j) - of[0]) * of[1];
                vec_add_double(bias + j, g);
                vec_add_double(weight + j, g * z);
            }
        }
    for (size_t j = 0; j < width && op->bias_gradient; j++)
        op->bias_gradient[first + j] = (float)((double)op->bias_gradient[first + j] + bias[j]);
    for (size_t j = 0; j < width && op->weight_gradient; j++)
        op->weight_gradient[first + j] = (float)((double)op->weight_gradient[first + j] + weight[j]);
}

void KERNEL_NAME(cpu_norm_backward)(struct device *dev, const struct device_norm *op)
{
    const value *dy = op->y_gradient, *x = op->x;
    value *dx = op->x_gradient;
    const size_t n = op->n, of_thread = (n / dev->n_threads + VECTOR - 1) / VECTOR * VECTOR;
    const size_t width = size_smaller(COLUMNS, of_thread > VECTOR ? of_thread : VECTOR);

    /* before dx is written, which may be dy */
#pragma omp parallel for num_threads(cpu_threads(dev, device_norm_heads(op) * op->m * op->n)) schedule(static)
    for (size_t j = 0; j < (op->weight_gradient || op->bias_gradient ? n : 0); j += width)
        columns_backward(op, j, size_smaller(width, n - j));
#pragma omp parallel for num_threads(cpu_threads(dev, device_norm_heads(op) * op->m * op->n)) schedule(static)
    for (size_t i = 0; i < op->m * device_norm_heads(op); i++) {
        const size_t at = head_at(op, i);
        const struct row row = {.x = x + at,
                                .weight = op->weight,
                                .n = n,
                                .mean = op->statistics[2 * i],
                                .inverse = op->statistics[2 * i + 1],
                                .centred = op->kind == DEVICE_LAYER_NORM};
        if (op->offset)
            row_backward(&row, dx + at, op->accumulate, dy + at, true);
        else
            row_backward(&row, dx + at, op->accumulate, dy + at, false);
        if (op->add.y)
            dropout_add_row(&op->add, i, (value *)op->add.y + at, NULL, dx + at);
    }
}
