/* device/cpu/kernels/rows.kernel.c - zeroing, rounding, activations, sums over rows, table look-ups, and the epilogues
 * of a product's tiles. */
#include "device/cpu/cpu.h"
#include "device/cpu/kernels/math.h"
#include "device/cpu/kernels/value.h"

#include <assert.h>

enum { COLUMNS = 128 }; /* columns that one thread sums at once: its sums in double stay in the first-level cache */

void KERNEL_NAME(cpu_zero)(struct device *dev, const struct device_zero *op)
{
    enum { PIECE = 1 << 18 };
    const size_t bytes = op->bytes;

#pragma omp parallel for num_threads(dev->n_threads) if (bytes > PIECE)
    for (size_t i = 0; i < bytes; i += PIECE)
        memset((char *)op->x + i, 0, size_smaller(PIECE, bytes - i));
}

enum { ROUNDED = 1024 }; /* numbers at a time */

/* Copies through the stack, as `to` may overlap `from`. */
static void round_some(char *to, const char *from, size_t n, enum number_type type)
{
    float wide[ROUNDED];
    uint16_t narrow[ROUNDED];

    memcpy(wide, from, n * sizeof *wide);
    for (size_t i = 0; i < n; i++)
        narrow[i] = number_to_half(type, wide[i]);
    memcpy(to, narrow, n * sizeof *narrow);
}

/* Results take half the bytes of their source. So each round may be as long as all rounds before it: it overwrites only
 * what has been read. */
void KERNEL_NAME(cpu_round_half)(struct device *dev, const struct device_round_half *op)
{
    for (size_t at = 0, here; at < op->n; at += here) {
        here = size_smaller(op->n - at, at > ROUNDED ? at : ROUNDED);
#pragma omp parallel for num_threads(dev->n_threads) if (here > ROUNDED)
        for (size_t i = 0; i < here; i += ROUNDED)
            round_some((char *)(op->to + at + i), (const char *)(op->from + at + i), size_smaller(here - i, ROUNDED),
                       op->type);
    }
}

void KERNEL_NAME(cpu_add)(struct device *dev, const struct device_add *op)
{
    enum { PIECE = 1 << 14 };
    float *const sum = op->sum;
    const float *const x = op->x;
    const size_t n = op->n;

#pragma omp parallel for num_threads(cpu_threads(dev, n)) schedule(static)
    for (size_t first = 0; first < n; first += PIECE)
        for (size_t j = first; j < n && j < first + PIECE; j += VECTOR)
            vec_store_n(sum + j, vec_load_n(sum + j, n - j, 0) + vec_load_n(x + j, n - j, 0), n - j);
}

/* sum (n) += the m rows of x at a stride. Summed in double from the first row to the last. */
static void sum_rows(float *sum, const value *x, size_t stride, size_t m, size_t n)
{
    double total[COLUMNS + VECTOR] = {0};

    assert(n <= COLUMNS);
    for (size_t i = 0; i < m; i++) {
        const value *row = x + i * stride;
        for (size_t j = 0; j < n; j += VECTOR)
            vec_add_double(total + j, value_load_n(row + j, n - j));
    }
    for (size_t j = 0; j < n; j++)
        sum[j] = (float)((double)sum[j] + total[j]);
}

void KERNEL_NAME(cpu_reduce_rows)(struct device *dev, const struct device_reduce_rows *op)
{
#pragma omp parallel for num_threads(cpu_threads(dev, op->m * op->n)) schedule(static)
    for (size_t j = 0; j < op->n; j += COLUMNS)
        sum_rows(op->sum + j, (const value *)op->x + j, op->stride, op->m, size_smaller(COLUMNS, op->n - j));
}

/* Up to VECTOR of n elements of a table, from element `at` on. */
VECTOR_INLINE vec table_load(const void *table, size_t at, size_t n, bool narrow)
{
#ifndef KERNEL_BF16 /* else it has the values' type */
    float wide[VECTOR] = {0};

    for (size_t i = 0; narrow && i < n && i < VECTOR; i++)
        wide[i] = number_from_bf16(((const uint16_t *)table)[at + i]);
    if (narrow)
        return vec_load(wide);
#endif
    (void)narrow;
    return value_load_n((const value *)table + at, n);
}

/* y += n elements of a table * scale */
static void add_row(value *y, const void *table, size_t at, size_t n, float scale, bool narrow)
{
    for (size_t i = 0; i < n; i += VECTOR)
        value_store_n(y + i, value_load_n(y + i, n - i) + table_load(table, at + i, n - i, narrow) * scale, n - i);
}

static void scale_row(value *y, const void *table, size_t at, size_t n, float scale, bool narrow)
{
    for (size_t i = 0; i < n; i += VECTOR)
        value_store_n(y + i, table_load(table, at + i, n - i, narrow) * scale, n - i);
}

/* In fp32, whatever the values' type. */
static void add_to_sums(float *sum, const value *x, size_t n, float scale)
{
    for (size_t i = 0; i < n; i += VECTOR)
        vec_store_n(sum + i, vec_load_n(sum + i, n - i, 0) + value_load_n(x + i, n - i) * scale, n - i);
}

/* The table's row of an id; n_table: it has none. */
static size_t table_row(const struct device_embed *op, uint32_t id)
{
    return id >= op->first && id - op->first < op->n_table ? id - op->first : op->n_table;
}

void KERNEL_NAME(cpu_embed)(struct device *dev, const struct device_embed *op)
{
    const float scale = device_embed_scale(op);

#pragma omp parallel for num_threads(cpu_threads(dev, op->m * op->n)) schedule(static)
    for (size_t i = 0; i < op->m; i++) {
        const size_t row = table_row(op, op->ids[i]);
        if (row == op->n_table)
            continue;
        value *to = (value *)op->y + i * op->n;
        if (op->accumulate)
            add_row(to, op->table, row * op->n, op->n, scale, op->narrow);
        else if (scale != 1 || op->narrow)
            scale_row(to, op->table, row * op->n, op->n, scale, op->narrow);
        else
            memcpy(to, (const value *)op->table + row * op->n, op->n * sizeof *to);
    }
}

/* Threads share the columns, so that every row of the table gets its additions in order of i. */
void KERNEL_NAME(cpu_embed_backward)(struct device *dev, const struct device_embed *op)
{
    const value *dy = op->y_gradient;
    const float scale = device_embed_scale(op);

#pragma omp parallel for num_threads(cpu_threads(dev, op->m * op->n)) schedule(static)
    for (size_t j = 0; j < op->n; j += COLUMNS)
        for (size_t i = 0; i < op->m; i++) {
            const size_t row = table_row(op, op->ids[i]);
            if (row < op->n_table)
                add_to_sums(op->table_gradient + row * op->n + j, dy + i * op->n + j, size_smaller(COLUMNS, op->n - j),
                            scale);
        }
}

void KERNEL_NAME(cpu_position)(struct device *dev, const struct device_position *op)
{
    const size_t m = op->n_rows * op->n_tokens;

#pragma omp parallel for num_threads(cpu_threads(dev, m * op->n)) schedule(static)
    for (size_t i = 0; i < m; i++)
        add_row((value *)op->y + i * op->n, op->table, i % op->n_tokens * op->n, op->n, 1, op->narrow);
}

/* Each position's row is summed by one thread, over the rows of the minibatch in their order. */
void KERNEL_NAME(cpu_position_backward)(struct device *dev, const struct device_position *op)
{
    const value *dy = op->y_gradient;
    const size_t n = op->n;

#pragma omp parallel for num_threads(cpu_threads(dev, op->n_rows * op->n_tokens * n)) schedule(static)
    for (size_t t = 0; t < op->n_tokens; t++)
        for (size_t j = 0; j < n; j += COLUMNS)
            sum_rows(op->table_gradient + t * n + j, dy + t * n + j, op->n_tokens * n, op->n_rows,
                     size_smaller(COLUMNS, n - j));
}

/* Inlined once per epilogue and activation, which are then constants. */
VECTOR_INLINE vec follow(enum device_epilogue epilogue, enum model_activation activation, vec x, const value *bias,
                         value *pre, size_t j, size_t left)
{
    switch (epilogue) {
    case DEVICE_NO_EPILOGUE:
        break;
    case DEVICE_BIAS:
        return x + value_load_n(bias + j, left);
    case DEVICE_BIAS_ACTIVATION:
        x = value_as_stored(x + value_load_n(bias + j, left));
        value_store_n(pre + j, x, left);
        return math_activation(activation, x);
    case DEVICE_ACTIVATION_GRADIENT:
        return x * math_activation_gradient(activation, value_load_n(pre + j, left));
    }
    return x;
}

VECTOR_INLINE void finish_rows(const struct device_matmul *op, const struct cpu_tile *tile, const float *sums,
                               size_t stride, enum device_epilogue epilogue, enum model_activation activation)
{
    const value *bias = op->bias ? (const value *)op->bias + tile->column : NULL;
    const float factor = op->factor != 0 ? op->factor : 1;

    for (size_t i = 0; i < tile->m; i++) {
        const size_t offset = (tile->row + i) * op->c_stride + tile->column;
        value *c = (value *)op->c + offset, *pre = op->pre ? (value *)op->pre + offset : NULL;
        for (size_t j = 0; j < tile->n; j += VECTOR) {
            const size_t left = size_smaller(VECTOR, tile->n - j);
            vec x = factor * vec_load_n(sums + i * stride + j, left, 0);
            if (op->beta != 0)
                x += value_load_n(c + j, left);
            value_store_n(c + j, follow(epilogue, activation, x, bias, pre, j, left), left);
        }
    }
}

/* For a c in fp32. */
static void finish_wide(const struct device_matmul *op, const struct cpu_tile *tile, const float *sums, size_t stride)
{
    const float factor = op->factor != 0 ? op->factor : 1;

    for (size_t i = 0; i < tile->m; i++) {
        float *c = (float *)op->c + (tile->row + i) * op->c_stride + tile->column;
        for (size_t j = 0; j < tile->n; j += VECTOR) {
            const size_t left = size_smaller(VECTOR, tile->n - j);
            vec x = factor * vec_load_n(sums + i * stride + j, left, 0);
            if (op->beta != 0)
                x += vec_load_n(c + j, left, 0);
            vec_store_n(c + j, x, left);
        }
    }
}

VECTOR_INLINE void finish_activation(const struct device_matmul *op, const struct cpu_tile *tile, const float *sums,
                                     size_t stride, enum model_activation activation)
{
    if (op->epilogue == DEVICE_BIAS_ACTIVATION)
        finish_rows(op, tile, sums, stride, DEVICE_BIAS_ACTIVATION, activation);
    else
        finish_rows(op, tile, sums, stride, DEVICE_ACTIVATION_GRADIENT, activation);
}

void KERNEL_NAME(cpu_finish)(const struct device_matmul *op, const struct cpu_tile *tile, const float *sums,
                             size_t stride)
{
    if (op->wide) {
        finish_wide(op, tile, sums, stride);
        return;
    }
    if (op->epilogue == DEVICE_NO_EPILOGUE) {
        finish_rows(op, tile, sums, stride, DEVICE_NO_EPILOGUE, MODEL_RELU);
        return;
    }
    if (op->epilogue == DEVICE_BIAS) {
        finish_rows(op, tile, sums, stride, DEVICE_BIAS, MODEL_RELU);
        return;
    }
    assert(op->activation <= MODEL_GELU_QUICK);
    switch (op->activation) {
    case MODEL_GELU_NEW:
        finish_activation(op, tile, sums, stride, MODEL_GELU_NEW);
        break;
    case MODEL_GELU:
        finish_activation(op, tile, sums, stride, MODEL_GELU);
        break;
    case MODEL_RELU:
        finish_activation(op, tile, sums, stride, MODEL_RELU);
        break;
    case MODEL_SILU:
        finish_activation(op, tile, sums, stride, MODEL_SILU);
        break;
    case MODEL_TANH:
        finish_activation(op, tile, sums, stride, MODEL_TANH);
        break;
    case MODEL_SIGMOID:
        finish_activation(op, tile, sums, stride, MODEL_SIGMOID);
        break;
    case MODEL_RELU2:
        finish_activation(op, tile, sums, stride, MODEL_RELU2);
        break;
    case MODEL_GELU_QUICK:
        finish_activation(op, tile, sums, stride, MODEL_GELU_QUICK);
        break;
    }
}

/* y = act(x), or y *= act'(x) if `slope`. Inlined once per activation and slope, which are then constants. */
VECTOR_INLINE void activate_piece(enum model_activation activation, bool slope, value *y, const value *x, size_t n)
{
    for (size_t i = 0; i < n; i += VECTOR) {
        const vec at = value_load_n(x + i, n - i);
        const vec result = slope ? value_load_n(y + i, n - i) * math_activation_gradient(activation, at)
                                 : math_activation(activation, at);
        value_store_n(y + i, result, n - i);
    }
}

VECTOR_INLINE void activate_any(enum model_activation activation, bool slope, value *y, const value *x, size_t n)
{
    switch (activation) {
    case MODEL_GELU_NEW:
        activate_piece(MODEL_GELU_NEW, slope, y, x, n);
        break;
    case MODEL_GELU:
        activate_piece(MODEL_GELU, slope, y, x, n);
        break;
    case MODEL_RELU:
        activate_piece(MODEL_RELU, slope, y, x, n);
        break;
    case MODEL_SILU:
        activate_piece(MODEL_SILU, slope, y, x, n);
        break;
    case MODEL_TANH:
        activate_piece(MODEL_TANH, slope, y, x, n);
        break;
    case MODEL_SIGMOID:
        activate_piece(MODEL_SIGMOID, slope, y, x, n);
        break;
    case MODEL_RELU2:
        activate_piece(MODEL_RELU2, slope, y, x, n);
        break;
    case MODEL_GELU_QUICK:
        activate_piece(MODEL_GELU_QUICK, slope, y, x, n);
        break;
    }
}

enum { PIECE = 1 << 14 };

void KERNEL_NAME(cpu_activate)(struct device *dev, const struct device_activate *op)
{
    assert(op->activation <= MODEL_GELU_QUICK);
#pragma omp parallel for num_threads(cpu_threads(dev, op->n)) schedule(static)
    for (size_t i = 0; i < op->n; i += PIECE)
        activate_any(op->activation, false, (value *)op->y + i, (const value *)op->x + i,
                     size_smaller(PIECE, op->n - i));
}

void KERNEL_NAME(cpu_activate_backward)(struct device *dev, const struct device_activate *op)
{
    assert(op->activation <= MODEL_GELU_QUICK);
#pragma omp parallel for num_threads(cpu_threads(dev, op->n)) schedule(static)
    for (size_t i = 0; i < op->n; i += PIECE)
        activate_any(op->activation, true, (value *)op->gradient + i, (const value *)op->x + i,
                     size_smaller(PIECE, op->n - i));
}
