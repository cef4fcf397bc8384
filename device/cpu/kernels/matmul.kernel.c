/* device/cpu/kernels/matmul.kernel.c - matrix products: tiles of the result, each computed by one thread
 * (tile.kernel.c).
 *
 * Each thread packs the parts of a and b that its tile needs. That takes 9 to 16 % of the time at width 768, but no
 * thread waits for another, which may have lost its core on a busy machine. */
#include "device/cpu/kernels/cut.h"

#include <assert.h>

static void matmul_multiply(struct device *dev, const struct device_matmul *op)
{
    if (op->m == 1 && !op->transpose_a) { /* packing b would not pay, as it is used once */
        dev->kernels->single(dev, op);
        return;
    }
    const struct cut cut = cut_into(op->m, op->n, 1, dev);
#pragma omp parallel for num_threads(cpu_threads(dev, op->m * op->n * op->k / CPU_TERMS)) schedule(dynamic)
    for (size_t i = 0; i < cut.all; i++) {
        const struct cpu_tile tile = cut_tile(&cut, i);
        float *scratch = cut_scratch(dev);

        device_count(dev->done);
        dev->kernels->tile(op, &tile, scratch);
        dev->kernels->finish(op, &tile, scratch, PLAN_CPU_PRODUCT_WIDTH);
    }
}

/* The sums of columns are a pass of their own: in the tiles' order they would depend on the tiles. */
void KERNEL_NAME(cpu_matmul)(struct device *dev, const struct device_matmul *op)
{
    assert(op->k > 0 && (op->beta == 0 || op->beta == 1));
    assert(op->epilogue == DEVICE_NO_EPILOGUE || (op->beta == 0 && op->factor == 0));
    matmul_multiply(dev, op);
    const struct device_reduce_rows columns = {op->bias_gradient, op->c, op->m, op->n, op->c_stride};
    if (columns.sum)
        KERNEL_NAME(cpu_reduce_rows)(dev, &columns);
}
