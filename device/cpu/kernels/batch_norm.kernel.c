/* device/cpu/kernels/batch_norm.kernel.c - batch normalisation over a part: moments of rows, their join, normalisation.
 *
 * Everything is per column. Threads share tiles of at most TALL rows by COLUMNS columns: what a tile needs of each
 * column stays in registers or in the first-level cache. Sums are in double, from the first row to the last. */
#include "device/cpu/cpu.h"
#include "device/cpu/kernels/value.h"

#include <assert.h>
#include <math.h>

enum { COLUMNS = 64, TALL = 64 };

static size_t width_from(size_t column, size_t n)
{
    return size_smaller(COLUMNS, n - column);
}

/* ---- moments of rows ---- */

/* Deviations are taken from the mean as it is rounded to fp32, and its rounding is then made good in the sum:
 * sum (x - near)^2 = sum (x - mean)^2 + n_elements (mean - near)^2. */
static void moments_of_row(const struct device_row_moments *op, size_t row, size_t column)
{
    const size_t n = op->n, width = width_from(column, n);
    const value *x = (const value *)op->x + row * op->n_elements * n + column;
    float *moments = op->moments + 2 * row * n + column, near[COLUMNS] = {0};
    double sum[COLUMNS] = {0}, squares[COLUMNS] = {0};

    for (size_t i = 0; i < op->n_elements; i++)
        for (size_t j = 0; j < width; j += VECTOR)
            vec_add_double(sum + j, value_load_n(x + i * n + j, width - j));
    for (size_t j = 0; j < width; j++)
        near[j] = (float)(sum[j] / (double)op->n_elements);
    for (size_t i = 0; i < op->n_elements; i++)
        for (size_t j = 0; j < width; j += VECTOR) {
            const vec d = value_load_n(x + i * n + j, width - j) - vec_load(near + j);
            vec_add_double(squares + j, d * d);
        }
    for (size_t j = 0; j < width; j++) {
        const double off = sum[j] / (double)op->n_elements - (double)near[j];
        moments[j] = near[j];
        moments[n + j] = (float)fmax(squares[j] - (double)op->n_elements * off * off, 0);
    }
}

void KERNEL_NAME(cpu_row_moments)(struct device *dev, const struct device_row_moments *op)
{
#pragma omp parallel for num_threads(cpu_threads(dev, op->n_rows * op->n_elements * op->n)) schedule(static) collapse(2)
    for (size_t row = 0; row < op->n_rows; row++)
        for (size_t j = 0; j < op->n; j += COLUMNS)
            moments_of_row(op, row, j);
}

/* Adds the gradient that flows through the moments to a row's elements from `first` on. */
static void moments_backward(const struct device_row_moments *op, size_t row, size_t first, size_t column)
{
    const size_t n = op->n, width = width_from(column, n), tall = size_smaller(TALL, op->n_elements - first);
    const size_t at = (row * op->n_elements + first) * n + column;
    const float *mean = op->moments + 2 * row * n + column, *gradient = op->moments_gradient + 2 * row * n + column;

    for (size_t j = 0; j < width; j += VECTOR) {
        const size_t left = width - j;
        const vec middle = vec_load_n(mean + j, left, 0), slope = 2 * vec_load_n(gradient + n + j, left, 0),
                  share = vec_load_n(gradient + j, left, 0) / (float)op->n_elements;

        for (size_t i = 0; i < tall; i++) {
            value *to = (value *)op->x_gradient + at + i * n + j;
            vec g = (value_load_n((const value *)op->x + at + i * n + j, left) - middle) * slope + share;

            if (op->accumulate)
                g += value_load_n(to, left);
            value_store_n(to, g, left);
        }
    }
}

void KERNEL_NAME(cpu_row_moments_backward)(struct device *dev, const struct device_row_moments *op)
{
#pragma omp parallel for num_threads(cpu_threads(dev, op->n_rows * op->n_elements * op->n)) schedule(static) collapse(3)
    for (size_t row = 0; row < op->n_rows; row++)
        for (size_t i = 0; i < op->n_elements; i += TALL)
            for (size_t j = 0; j < op->n; j += COLUMNS)
                moments_backward(op, row, i, j);
}

/* ---- their join ---- */

/* In double from moments in fp32: rows' means differ by little, and their squares would lose that. */
static void join(const struct device_join_moments *op, size_t column)
{
    const size_t n = op->n, width = width_from(column, n);
    const float *moments = op->moments + column;
    const double n_rows = (double)op->n_rows, n_elements = (double)op->n_elements;
    double mean[COLUMNS] = {0}, squares[COLUMNS] = {0};

    for (size_t row = 0; row < op->n_rows; row++)
        for (size_t j = 0; j < width; j++)
            mean[j] += (double)moments[2 * row * n + j];
    for (size_t j = 0; j < width; j++)
        mean[j] /= n_rows;
    for (size_t row = 0; row < op->n_rows; row++)
        for (size_t j = 0; j < width; j++) {
            const double d = (double)moments[2 * row * n + j] - mean[j];
            squares[j] += (double)moments[(2 * row + 1) * n + j] + n_elements * d * d;
        }
    for (size_t j = 0; j < width; j++) {
        op->statistics[column + j] = (float)mean[j];
        op->statistics[n + column + j] = (float)(1 / sqrt(squares[j] / (n_rows * n_elements) + (double)op->epsilon));
    }
}

void KERNEL_NAME(cpu_join_moments)(struct device *dev, const struct device_join_moments *op)
{
    assert(op->n_rows > 0 && op->n_elements > 0);
#pragma omp parallel for num_threads(cpu_threads(dev, op->n_rows * op->n)) schedule(static)
    for (size_t j = 0; j < op->n; j += COLUMNS)
        join(op, j);
}

/* With r = 1/deviation, the variance's gradient is -r^3 / 2 times that of r. It reaches a row's mean, whose derivative
 * is 2 (row's mean - mean) / n_rows, and its squared deviations, whose derivative is 1 / (n_rows n_elements). */
static void join_backward(const struct device_join_moments *op, size_t first, size_t column)
{
    const size_t n = op->n, width = width_from(column, n), tall = size_smaller(TALL, op->n_rows - first);
    const float *statistics = op->statistics + column, *gradient = op->statistics_gradient + column;

    for (size_t j = 0; j < width; j += VECTOR) {
        const size_t left = width - j;
        const vec mean = vec_load_n(statistics + j, left, 0), r = vec_load_n(statistics + n + j, left, 0);
        const vec share = vec_load_n(gradient + j, left, 0) / (float)op->n_rows;
        const vec slope = -(r * r * r) * vec_load_n(gradient + n + j, left, 0) / (float)op->n_rows;

        for (size_t row = first; row < first + tall; row++) {
            const size_t at = 2 * row * n + column + j;

            vec_store_n(op->moments_gradient + at, (vec_load_n(op->moments + at, left, 0) - mean) * slope + share,
                        left);
            vec_store_n(op->moments_gradient + n + at, slope / (float)(2 * op->n_elements), left);
        }
    }
}

void KERNEL_NAME(cpu_join_moments_backward)(struct device *dev, const struct device_join_moments *op)
{
#pragma omp parallel for num_threads(cpu_threads(dev, op->n_rows * op->n)) schedule(static) collapse(2)
    for (size_t row = 0; row < op->n_rows; row += TALL)
        for (size_t j = 0; j < op->n; j += COLUMNS)
            join_backward(op, row, j);
}

/* ---- normalisation ---- */

/* One multiplication for each element: weight and deviation are one factor. */
static void normalise(const struct device_batch_norm *op, size_t first, size_t column)
{
    const size_t n = op->n, m = op->n_rows * op->n_elements;
    const size_t width = width_from(column, n), tall = size_smaller(TALL, m - first);
    const float *statistics = op->statistics + column;

    for (size_t j = 0; j < width; j += VECTOR) {
        const size_t left = width - j;
        const vec mean = vec_load_n(statistics + j, left, 0),
                  factor = vec_load_n(statistics + n + j, left, 0) *
                           value_load_n((const value *)op->weight + column + j, left),
                  bias = value_load_n((const value *)op->bias + column + j, left);

        for (size_t i = first; i < first + tall; i++) {
            const size_t at = i * n + column + j;
            const vec x = value_load_n((const value *)op->x + at, left);

            value_store_n((value *)op->y + at, (x - mean) * factor + bias, left);
        }
    }
}

void KERNEL_NAME(cpu_batch_norm)(struct device *dev, const struct device_batch_norm *op)
{
    const size_t m = op->n_rows * op->n_elements;

#pragma omp parallel for num_threads(cpu_threads(dev, m * op->n)) schedule(static) collapse(2)
    for (size_t i = 0; i < m; i += TALL)
        for (size_t j = 0; j < op->n; j += COLUMNS)
            normalise(op, i, j);
}

/* A tile's sums of g = y_gradient and of g (x - mean), from which all four gradients of columns follow. */
struct sums {
    double g[COLUMNS], product[COLUMNS];
};

/* The elements of a row are summed in at most RUNS equal runs, so that threads share them where there are few columns;
 * the runs' sums, in the products' scratch, are then added in order. LINES of them fit there. */
enum { RUNS = 16, LINES = 1024 };
_Static_assert(LINES * sizeof(struct sums) <= PLAN_CPU_PRODUCT_SCRATCH, "the sums fit one thread's scratch");

/* Each y_gradient is read before x_gradient is written, which may be in its place. */
static void normalise_backward(const struct device_batch_norm *op, struct sums *sums, size_t first, size_t elements,
                               size_t column)
{
    const size_t n = op->n, width = width_from(column, n);
    float mean[COLUMNS] = {0}, factor[COLUMNS] = {0};

    *sums = (struct sums){{0}, {0}};
    for (size_t j = 0; j < width; j++) {
        mean[j] = op->statistics[column + j];
        factor[j] = op->statistics[n + column + j] * value_widen(((const value *)op->weight)[column + j]);
    }
    for (size_t i = first; i < first + elements; i++)
        for (size_t j = 0; j < width; j += VECTOR) {
            const size_t at = i * n + column + j, left = width - j;
            const vec g = value_load_n((const value *)op->y_gradient + at, left);
            const vec d = value_load_n((const value *)op->x + at, left) - vec_load(mean + j);
            value *to = (value *)op->x_gradient + at;
            vec gradient = g * vec_load(factor + j);

            vec_add_double(sums->g + j, g);
            vec_add_double(sums->product + j, g * d);
            if (op->accumulate)
                gradient += value_load_n(to, left);
            value_store_n(to, gradient, left);
        }
}

/* to (n or NULL) += factor (n) * x (n), in double, rounded once. */
static void add_scaled(float *to, const double *x, const double *factor, size_t n)
{
    for (size_t j = 0; to && j < n; j++)
        to[j] = (float)((double)to[j] + factor[j] * x[j]);
}

/* The same, where `to` and lost (n each) are one sum. */
static void add_kept(float *to, float *lost, const double *x, const double *factor, size_t n)
{
    for (size_t j = 0; j < n; j++) {
        const double sum = (double)to[j] + (double)lost[j] + factor[j] * x[j];
        to[j] = (float)sum;
        lost[j] = (float)(sum - (double)to[j]);
    }
}

static float *from_column(float *to, size_t column)
{
    return to ? to + column : NULL;
}

/* sums (n_rows, n_runs, n_tiles): of the tile's columns, from the rows' first run on. */
static void put_sums(const struct device_batch_norm *op, const struct sums *sums, size_t n_rows, size_t n_runs,
                     size_t n_tiles, size_t column)
{
    const size_t n = op->n, width = width_from(column, n);
    const size_t lost_n = op->lost ? n : COLUMNS;
    double one[COLUMNS], r[COLUMNS], weight[COLUMNS], slope[COLUMNS];
    float dropped[2 * COLUMNS] = {0}, *const lost = op->lost ? op->lost + column : dropped;

    for (size_t j = 0; j < width; j++) {
        one[j] = 1;
        r[j] = (double)op->statistics[n + column + j];
        weight[j] = (double)value_widen(((const value *)op->weight)[column + j]);
        slope[j] = -weight[j] * r[j];
    }
    for (size_t row = 0; row < n_rows; row++, sums += n_runs * n_tiles) {
        struct sums all = *sums;

        for (size_t i = 1; i < n_runs; i++)
            for (size_t j = 0; j < width; j++) {
                all.g[j] += sums[i * n_tiles].g[j];
                all.product[j] += sums[i * n_tiles].product[j];
            }
        add_scaled(from_column(op->weight_gradient, column), all.product, r, width);
        add_scaled(from_column(op->bias_gradient, column), all.g, one, width);
        add_kept(op->statistics_gradient + column, lost, all.g, slope, width);
        add_kept(op->statistics_gradient + n + column, lost + lost_n, all.product, weight, width);
    }
}

void KERNEL_NAME(cpu_batch_norm_backward)(struct device *dev, const struct device_batch_norm *op)
{
    struct sums *const sums = dev->products;
    const size_t n_elements = op->n_elements, even = size_pieces(n_elements, RUNS), run = even > TALL ? even : TALL,
                 n_runs = size_pieces(n_elements, run);

    for (size_t first = 0; first < op->n; first += LINES / RUNS * COLUMNS) {
        const size_t n_tiles = size_smaller(LINES / RUNS, size_pieces(op->n - first, COLUMNS)),
                     n_fit = LINES / (n_runs * n_tiles);

        for (size_t row = 0; row < op->n_rows; row += n_fit) {
            const size_t n_rows = size_smaller(n_fit, op->n_rows - row);

#pragma omp parallel for num_threads(cpu_threads(dev, n_rows *n_elements * op->n)) schedule(static) collapse(3)
            for (size_t k = 0; k < n_rows; k++)
                for (size_t i = 0; i < n_runs; i++)
                    for (size_t j = 0; j < n_tiles; j++)
                        normalise_backward(op, &sums[(k * n_runs + i) * n_tiles + j], (row + k) * n_elements + i * run,
                                           size_smaller(run, n_elements - i * run), first + j * COLUMNS);
#pragma omp parallel for num_threads(cpu_threads(dev, n_rows *n_runs * op->n)) schedule(static)
            for (size_t j = 0; j < n_tiles; j++)
                put_sums(op, sums + j, n_rows, n_runs, n_tiles, first + j * COLUMNS);
        }
    }
}

/* ---- running statistics ---- */

void KERNEL_NAME(cpu_running_statistics)(struct device *dev, const struct device_running *op)
{
    float variance[VECTOR];

    (void)dev;
    for (size_t j = 0; j < op->n; j += VECTOR) {
        const size_t width = size_smaller(VECTOR, op->n - j);
        vec_store_n(op->statistics + j, value_load_n((const value *)op->mean + j, width), width);
        vec_store(variance, value_load_n((const value *)op->variance + j, width));
        for (size_t i = 0; i < width; i++)
            op->statistics[op->n + j + i] = (float)(1 / sqrt((double)variance[i] + (double)op->epsilon));
    }
}

void KERNEL_NAME(cpu_running_gradient)(struct device *dev, const struct device_running *op)
{
    (void)dev;
    for (size_t j = 0; j < op->n; j++) {
        const double r = (double)op->statistics[op->n + j], variance = fmax(1 / (r * r) - (double)op->epsilon, 0);
        if (op->mean_gradient)
            op->mean_gradient[j] += op->scale * op->statistics[j];
        if (op->variance_gradient)
            op->variance_gradient[j] += (float)(variance * (double)op->scale * (double)op->correction);
    }
}
