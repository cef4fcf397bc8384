/* device/cpu/kernels/single.kernel.c - products of a single row: c (1, n) = a (1, k) b, as each generated token needs.
 *
 * Every weight is read once and used once, so memory sets the pace, and b is read in long runs on all threads. An
 * untransposed b, (k, n), is cut into blocks of columns, of which four rows are read at a time: the sums stay in the
 * first-level cache, and are loaded and stored once per four rows. A transposed b, (n, k), is read with one row per
 * lane of a vector. Sums follow the order of tile.kernel.c and have the same bits. */
#include "device/cpu/cpu.h"
#include "device/cpu/kernels/panel.h"

enum {
    COLUMNS =
        192, /* of a block: 768 bytes of each row in fp32; GPT-2's widths share out evenly among 2, 4 or more threads */
    ROWS = 4,
};

/* sum (n) += a (rows) b (rows, n); rows is a constant wherever this is inlined. */
VECTOR_INLINE void add_rows(float *sum, const value *a, const value *b, size_t stride, size_t n, const size_t rows)
{
    for (size_t j = 0; j < n; j += VECTOR) {
        vec x = vec_load(sum + j);

#pragma GCC unroll 4
        for (size_t r = 0; r < rows; r += PANEL_TERMS) {
            const float element = panel_element(a + r, rows - r);
            x = panel_multiply_add(panel_all(&element), panel_load_n(b + r * stride + j, stride, rows - r, n - j), x);
        }
        vec_store(sum + j, x);
    }
}

/* total (n) = or += (add) the sums over `depth` of k. */
static void multiply_columns(float *total, bool add, const value *a, const value *b, size_t stride, size_t n,
                             size_t depth)
{
    float sum[COLUMNS] = {0};
    size_t p = 0;

    for (; p + ROWS <= depth; p += ROWS)
        add_rows(sum, a + p, b + p * stride, stride, n, ROWS);
    for (; p + PANEL_TERMS <= depth; p += PANEL_TERMS)
        add_rows(sum, a + p, b + p * stride, stride, n, PANEL_TERMS);
    if (p < depth)
        add_rows(sum, a + p, b + p * stride, stride, n, 1);
    for (size_t j = 0; j < n; j += VECTOR)
        vec_store(total + j, add ? vec_load(total + j) + vec_load(sum + j) : vec_load(sum + j));
}

/* A vector of sums over `depth` of k: of a and rows of b transposed. */
VECTOR_INLINE vec multiply_lanes(const value *a, const value *const *lanes, size_t from, size_t depth)
{
    const size_t end = from + depth;
    vec sum = {0};
    size_t p = from;

    for (; p + 4 * PANEL_TERMS <= end; p += 4 * PANEL_TERMS) {
        vec row[4];
        panel_four(row, lanes, p);
#pragma GCC unroll 4
        for (size_t r = 0; r < 4; r++) {
            const float element = panel_element(a + p + r * PANEL_TERMS, PANEL_TERMS);
            sum = panel_multiply_add(panel_all(&element), row[r], sum);
        }
    }
    for (; p < end; p += PANEL_TERMS) {
        const float element = panel_element(a + p, end - p);
        sum = panel_multiply_add(panel_all(&element), panel_one(lanes, p, end - p), sum);
    }
    return sum;
}

static void multiply_transposed(float *total, const struct device_matmul *op, size_t column, size_t n, size_t step)
{
    for (size_t j = 0; j < n; j += VECTOR) {
        const value *lanes[VECTOR];

        panel_lanes(lanes, (const value *)op->b + (column + j) * op->b_stride, op->b_stride, n - j);
        for (size_t from = 0; from < op->k; from += step) {
            const vec sum = multiply_lanes(op->a, lanes, from, size_smaller(step, op->k - from));
            vec_store(total + j, from > 0 ? vec_load(total + j) + sum : sum);
        }
    }
}

void KERNEL_NAME(cpu_single)(struct device *dev, const struct device_matmul *op)
{
#pragma omp parallel for num_threads(cpu_threads(dev, op->n * op->k / 2)) schedule(dynamic)
    for (size_t column = 0; column < op->n; column += COLUMNS) {
        const struct cpu_tile tile = {0, column, 1, size_smaller(COLUMNS, op->n - column)};
        const size_t step = cpu_product_step(op->k, PANEL_TERMS);
        float total[COLUMNS];

        if (op->transpose_b)
            multiply_transposed(total, op, column, tile.n, step);
        for (size_t from = 0; !op->transpose_b && from < op->k; from += step)
            multiply_columns(total, from > 0, (const value *)op->a + from,
                             (const value *)op->b + from * op->b_stride + column, op->b_stride, tile.n,
                             size_smaller(step, op->k - from));
        dev->kernels->finish(op, &tile, total, COLUMNS);
    }
}
