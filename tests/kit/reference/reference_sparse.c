#include "tests/kit/reference/reference_sparse.h"

#include <stdbool.h>

/* The place of element i in the matrix. False: no row has it, or its row has no place for it. */
static bool find(size_t *at, const struct device_sparse *op, size_t i)
{
    size_t row = 0;

    while (row < op->rows && i >= op->starts[row + 1])
        row++;
    if (row == op->rows)
        return false;
    size_t skipped = i - op->starts[row];
    for (size_t column = 0; column < op->columns; column++)
        if (op->places[row * ((op->columns + 31) / 32) + column / 32] >> column % 32 & 1 && skipped-- == 0) {
            *at = row * op->columns + column;
            return true;
        }
    return false;
}

void reference_scatter(const struct device_sparse *op)
{
    double *y = op->y;
    size_t at;

    for (size_t i = 0; i < op->rows * op->columns; i++)
        y[i] = 0;
    for (size_t i = 0; i < op->n; i++)
        if (find(&at, op, i))
            y[at] = ((const double *)op->x)[i];
}

void reference_gather(const struct device_sparse *op)
{
    size_t at;

    for (size_t i = 0; i < op->n; i++)
        ((double *)op->y)[i] = find(&at, op, i) ? ((const double *)op->x)[at] : 0;
}
