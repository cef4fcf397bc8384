/* device/cpu/single.kernel.c - products of a single row: c (1, n) = a (1, k) b, as each token that is generated needs.
 *
 * Every weight is read once and used once, so memory sets the pace and all there is to do is to read b in long runs, on
 * all threads. b as it stands, (k, n), is cut into blocks of columns, of which four rows are read at a time: the sums
 * stay in the first-level cache, and are loaded and stored once in four. b transposed, (n, k), is read row by row. */
#include "device/cpu/cpu.h"
#include "device/cpu/vector.h"

enum {
    COLUMNS = 192, /* of a block: 768 bytes of each row; GPT-2's widths share out evenly among 2, 4 or more threads */
    ROWS = 4,
    DOTS = 64,        /* rows of b transposed, of a block */
    ENOUGH = 1 << 15, /* weights: less is done before a second thread is awake */
    LANES = 4,        /* vectors of sums that a dot product is spread over: the multipliers never wait */
};

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* sum (n) += a (rows) b (rows, n); rows is a constant wherever this is inlined. */
VECTOR_INLINE void add_rows(float *sum, const float *a, const float *b, size_t stride, size_t n, const size_t rows)
{
    for (size_t j = 0; j < n; j += VECTOR) {
        const size_t left = n - j;
        vec x = vec_load_n(b + j, left, 0) * a[0];

#pragma GCC unroll 4
        for (size_t r = 1; r < rows; r++)
            x += vec_load_n(b + r * stride + j, left, 0) * a[r];
        vec_store(sum + j, vec_load(sum + j) + x);
    }
}

static void multiply_columns(const struct device_matmul *op, size_t column, size_t n)
{
    const float *a = op->a, *b = (const float *)op->b + column;
    float sum[COLUMNS] = {0};
    size_t p = 0;

    for (; p + ROWS <= op->k; p += ROWS)
        add_rows(sum, a + p, b + p * op->b_stride, op->b_stride, n, ROWS);
    for (; p < op->k; p++)
        add_rows(sum, a + p, b + p * op->b_stride, op->b_stride, n, 1);
    memcpy((float *)op->c + column, sum, n * sizeof *sum);
}

static float dot(const float *a, const float *b, size_t n)
{
    vec sum[LANES] = {{0}};
    size_t j = 0;

    for (; j + LANES * VECTOR <= n; j += LANES * VECTOR)
#pragma GCC unroll 4
        for (size_t lane = 0; lane < LANES; lane++)
            sum[lane] += vec_load(a + j + lane * VECTOR) * vec_load(b + j + lane * VECTOR);
    for (; j < n; j += VECTOR)
        sum[0] += vec_load_n(a + j, n - j, 0) * vec_load_n(b + j, n - j, 0);
    return (float)vec_sum((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

static void multiply(struct device *dev, const struct device_matmul *op)
{
    const size_t each = op->transpose_b ? DOTS : COLUMNS;

#pragma omp parallel for num_threads(dev->n_threads) schedule(dynamic) if (op->n * op->k > ENOUGH)
    for (size_t column = 0; column < op->n; column += each) {
        const size_t n = smaller(each, op->n - column);

        if (op->transpose_b)
            for (size_t i = column; i < column + n; i++)
                ((float *)op->c)[i] = dot(op->a, (const float *)op->b + i * op->b_stride, op->k);
        else
            multiply_columns(op, column, n);
        dev->kernels->rows->epilogue(op, 0, column, 1, n);
    }
}

const struct cpu_single_kernels KERNEL_NAME(cpu_single) = {.multiply = multiply};
