/* device/cpu/kernels/cut.h - how threads share results of m x n: in tiles. */
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

/* The tiles of a group's result, and of all groups'. */
struct cut {
    size_t m, n, height, width, n_across, of_group, all;
};

static inline struct cut cut_into(size_t m, size_t n, size_t n_groups, const struct device *dev)
{
    struct cut cut = {.m = m, .n = n};

    if (m * n == 0)
        return cut;
    cut_tiles(&cut.height, &cut.width, m, n, dev->n_threads);
    cut.n_across = size_pieces(n, cut.width);
    cut.of_group = size_pieces(m, cut.height) * cut.n_across;
    cut.all = n_groups * cut.of_group;
    return cut;
}

/* Tile i of all: of group i / of_group. */
static inline struct cpu_tile cut_tile(const struct cut *cut, size_t i)
{
    const size_t row = i % cut->of_group / cut->n_across * cut->height, column = i % cut->n_across * cut->width;

    return (struct cpu_tile){row, column, size_smaller(cut->height, cut->m - row),
                             size_smaller(cut->width, cut->n - column)};
}

/* The calling thread's, for a tile. */
static inline float *cut_scratch(const struct device *dev)
{
    return (float *)dev->products + cpu_thread() * (PLAN_CPU_PRODUCT_SCRATCH / sizeof(float));
}

#endif
