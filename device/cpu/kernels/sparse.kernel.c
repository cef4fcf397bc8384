/* device/cpu/kernels/sparse.kernel.c - sparse weights into their places, and gradients from there. Threads share
 * rows. */
#include "device/cpu/cpu.h"
#include "device/cpu/kernels/value.h"

#include <string.h>

enum { BITS = 32 /* of a word of places */ };

struct range {
    size_t first, end;
};

static struct range elements_of(const struct device_sparse *op, size_t row)
{
    return (struct range){size_smaller(op->starts[row], op->n), size_smaller(op->starts[row + 1], op->n)};
}

/* Places of a row from column `first` on, a multiple of BITS; as many as the row has. */
static uint32_t places_of(const struct device_sparse *op, size_t row, size_t first)
{
    const uint32_t all = op->places[row * device_sparse_words(op->columns) + first / BITS];

    return op->columns - first < BITS ? all & ((1u << (op->columns - first)) - 1) : all;
}

static void put(const struct device_sparse *op, size_t at, size_t i)
{
    if (op->wide)
        ((float *)op->y)[at] = ((const float *)op->x)[i];
    else
        ((value *)op->y)[at] = ((const value *)op->x)[i];
}

void KERNEL_NAME(cpu_scatter)(struct device *dev, const struct device_sparse *op)
{
    const size_t size = op->wide ? sizeof(float) : sizeof(value);

#pragma omp parallel for num_threads(cpu_threads(dev, op->rows * op->columns)) schedule(static)
    for (size_t row = 0; row < op->rows; row++) {
        const struct range of = elements_of(op, row);
        size_t i = of.first;
        memset((char *)op->y + row * op->columns * size, 0, op->columns * size);
        for (size_t first = 0; first < op->columns; first += BITS)
            for (uint32_t left = places_of(op, row, first); left != 0 && i < of.end; left &= left - 1)
                put(op, row * op->columns + first + (size_t)__builtin_ctz(left), i++);
    }
}

void KERNEL_NAME(cpu_gather)(struct device *dev, const struct device_sparse *op)
{
    const size_t end = size_smaller(op->starts[op->rows], op->n);
    float *const y = op->y;

#pragma omp parallel for num_threads(cpu_threads(dev, op->rows * op->columns)) schedule(static)
    for (size_t row = 0; row < op->rows; row++) {
        const struct range of = elements_of(op, row);
        const float *const x = (const float *)op->x + row * op->columns;
        size_t i = of.first;
        for (size_t first = 0; first < op->columns; first += BITS)
            for (uint32_t left = places_of(op, row, first); left != 0 && i < of.end; left &= left - 1)
                y[i++] = x[first + (size_t)__builtin_ctz(left)];
        for (; i < of.end; i++)
            y[i] = 0;
    }
    memset(y + end, 0, (op->n - end) * sizeof *y);
}
