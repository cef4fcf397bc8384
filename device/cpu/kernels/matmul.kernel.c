/* device/cpu/kernels/matmul.kernel.c - matrix products: tiles of the result, each computed by one thread
 * (tile.kernel.c).
 *
 * Each thread packs the parts of a and b that its tile needs. That takes 9 to 16 % of the time at width 768, but no
 * thread waits for another, which may have lost its core on a busy machine. */
#include "device/cpu/cpu.h"

#include <assert.h>

enum {
    SMALLEST_HEIGHT = 32,
    SMALLEST_WIDTH = 64,
    COLUMN_UNIT = 32, /* tiles consist of whole panels */
};

/* Equal tiles, as large as possible; but at least two for each thread, and the same number for each. */
static void cut_tiles(size_t *height, size_t *width, size_t m, size_t n, size_t n_threads)
{
    size_t n_down = size_pieces(m, PLAN_CPU_PRODUCT_HEIGHT), n_across = size_pieces(n, PLAN_CPU_PRODUCT_WIDTH);

    while (n_threads > 1 && (n_down * n_across < 2 * n_threads ||
                             (n_down * n_across % n_threads != 0 && n_down * n_across < 8 * n_threads))) {
        if (m / n_down >= 2 * SMALLEST_HEIGHT)
            n_down++;
        else if (n / n_across >= 2 * SMALLEST_WIDTH)
            n_across++;
        else
            break;
    }
    *height = size_pieces(m, n_down);
    *width = size_pieces(size_pieces(n, n_across), COLUMN_UNIT) * COLUMN_UNIT;
}

void KERNEL_NAME(cpu_matmul)(struct device *dev, const struct device_matmul *op)
{
    size_t height, width, n_down, n_across;

    assert(op->k > 0 && (op->beta == 0 || op->beta == 1));
    assert(op->epilogue == DEVICE_NO_EPILOGUE || (op->beta == 0 && op->factor == 0));
    if (op->m == 1 && !op->transpose_a) { /* packing b would not pay, as it is used once */
        dev->kernels->single(dev, op);
        return;
    }
    cut_tiles(&height, &width, op->m, op->n, dev->n_threads);
    n_down = size_pieces(op->m, height), n_across = size_pieces(op->n, width);
#pragma omp parallel for num_threads(dev->n_threads) schedule(dynamic)
    for (size_t i = 0; i < n_down * n_across; i++) {
        const size_t row = i / n_across * height, column = i % n_across * width;
        const struct cpu_tile tile = {row, column, size_smaller(height, op->m - row),
                                      size_smaller(width, op->n - column)};
        float *scratch = (float *)dev->products + cpu_thread() * (PLAN_CPU_PRODUCT_SCRATCH / sizeof(float));

        device_count(dev->done);
        dev->kernels->tile(op, &tile, scratch);
        dev->kernels->finish(op, &tile, scratch, PLAN_CPU_PRODUCT_WIDTH);
    }
}
