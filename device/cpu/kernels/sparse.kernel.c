/* device/cpu/kernels/sparse.kernel.c - sparse weights into their places, and gradients from there. Threads share rows. */
#include "device/cpu/cpu.h"
#include "device/cpu/kernels/value.h"

#include <string.h>

enum { PIECE = 16384 }; /* elements of a dense matrix for which threads pay */

struct range {
    size_t first, end;
};

static struct range elements_of(const struct device_sparse *op, size_t row)
{
    return (struct range){size_smaller(op->starts[row], op->n), size_smaller(op->starts[row + 1], op->n)};
}

void KERNEL_NAME(cpu_scatter)(struct device *dev, const struct device_sparse *op)
{
    const value *const x = op->x;

#pragma omp parallel for num_threads(dev->n_threads) schedule(static) if (op->rows * op->columns > PIECE)
    for (size_t row = 0; row < op->rows; row++) {
        const struct range of = elements_of(op, row);
        value *const y = (value *)op->y + row * op->columns;
        memset(y, 0, op->columns * sizeof *y);
        for (size_t i = of.first; i < of.end; i++)
            if (op->places[i] < op->columns)
                y[op->places[i]] = x[i];
    }
}

void KERNEL_NAME(cpu_gather)(struct device *dev, const struct device_sparse *op)
{
    const size_t end = size_smaller(op->starts[op->rows], op->n);
    float *const y = op->y;

#pragma omp parallel for num_threads(dev->n_threads) schedule(static) if (op->rows * op->columns > PIECE)
    for (size_t row = 0; row < op->rows; row++) {
        const struct range of = elements_of(op, row);
        const float *const x = (const float *)op->x + row * op->columns;
        for (size_t i = of.first; i < of.end; i++)
            y[i] = op->places[i] < op->columns ? x[op->places[i]] : 0;
    }
    memset(y + end, 0, (op->n - end) * sizeof *y);
}
