/* device/cpu/matmul.c - matrix products: tiles of the result, each computed by one thread (tile.kernel.c).
 *
 * Each thread packs what its tile needs of a and b for itself: 2 to 4 % of the time, and no thread waits for another,
 * which on a busy machine may have lost its core. */
#include "device/cpu/cpu.h"

#include <assert.h>

enum {
    SMALLEST_EDGE = 64,
    ENOUGH_TILES = 4, /* to keep threads busy */
    EDGE_UNIT = 32,   /* tiles are whole panels, and begin at a cache line */
};

/* Edges are halved, the longer one first: tiles are even, and share out evenly among 2, 4 or more threads. */
static void cut_tiles(size_t *height, size_t *width, size_t m, size_t n)
{
    size_t n_tiles = 1;

    *height = m, *width = n;
    while (*height > PLAN_CPU_PRODUCT_EDGE || *width > PLAN_CPU_PRODUCT_EDGE || n_tiles < ENOUGH_TILES) {
        size_t *edge = *height >= *width ? height : width;
        if (*edge < 2 * SMALLEST_EDGE)
            break;
        *edge = (*edge + 1) / 2;
        n_tiles *= 2;
    }
    *height = (*height + EDGE_UNIT - 1) / EDGE_UNIT * EDGE_UNIT;
    *width = (*width + EDGE_UNIT - 1) / EDGE_UNIT * EDGE_UNIT;
}

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

void cpu_matmul(struct device *dev, const struct device_matmul *op)
{
    size_t height, width, n_down, n_across;

    assert(op->k > 0 && (op->beta == 0 || (op->beta == 1 && op->epilogue == DEVICE_NO_EPILOGUE)));
    if (op->m == 1 && !op->transpose_a && !op->transpose_b) { /* no packing of a matrix that is used once */
        dev->kernels->single->multiply(dev, op);
        return;
    }
    cut_tiles(&height, &width, op->m, op->n);
    n_down = (op->m + height - 1) / height, n_across = (op->n + width - 1) / width;
#pragma omp parallel for num_threads(dev->n_threads) schedule(dynamic)
    for (size_t i = 0; i < n_down * n_across; i++) {
        const size_t row = i / n_across * height, column = i % n_across * width;
        const struct cpu_tile tile = {row, column, smaller(height, op->m - row), smaller(width, op->n - column)};
        float *scratch = (float *)dev->products + cpu_thread() * (PLAN_CPU_PRODUCT_SCRATCH / sizeof(float));

        dev->kernels->tile->multiply(op, &tile, scratch);
        dev->kernels->rows->finish(op, &tile, scratch, PLAN_CPU_PRODUCT_EDGE);
    }
}
