/* device/cpu/kernels/matmul.kernel.c - matrix products: tiles of the result, each computed by one thread
 * (tile.kernel.c).
 *
 * Each thread packs the parts of a and b that its tile needs. That takes 9 to 16 % of the time at width 768, but no
 * thread waits for another, which may have lost its core on a busy machine. */
#include "device/cpu/kernels/cut.h"

#include <assert.h>

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
