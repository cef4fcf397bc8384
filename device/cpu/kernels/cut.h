/* device/cpu/kernels/cut.h - how threads share a result of m x n: in tiles. */
#ifndef DEVICE_CPU_KERNELS_CUT_H
#define DEVICE_CPU_KERNELS_CUT_H

#include "device/cpu/cpu.h"

enum {
    CUT_SMALLEST_HEIGHT = 32,
    CUT_SMALLEST_WIDTH = 64,
    CUT_COLUMN_UNIT = 32, /* tiles consist of whole panels */
};

/* Equal tiles, as large as possible; but at least two for each thread, and the same number for each. */
static inline void cut_tiles(size_t *height, size_t *width, size_t m, size_t n, size_t n_threads)
{
    size_t n_down = size_pieces(m, PLAN_CPU_PRODUCT_HEIGHT), n_across = size_pieces(n, PLAN_CPU_PRODUCT_WIDTH);

    while (n_threads > 1 && (n_down * n_across < 2 * n_threads ||
                             (n_down * n_across % n_threads != 0 && n_down * n_across < 8 * n_threads))) {
        if (m / n_down >= 2 * CUT_SMALLEST_HEIGHT)
            n_down++;
        else if (n / n_across >= 2 * CUT_SMALLEST_WIDTH)
            n_across++;
        else
            break;
    }
    *height = size_pieces(m, n_down);
    *width = size_pieces(size_pieces(n, n_across), CUT_COLUMN_UNIT) * CUT_COLUMN_UNIT;
}

#endif
