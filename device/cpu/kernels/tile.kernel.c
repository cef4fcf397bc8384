/* device/cpu/kernels/tile.kernel.c - one tile of a matrix product, on one thread.
 *
 * After Goto & van de Geijn, "Anatomy of high-performance matrix multiplication" (2008), and Van Zee & van de Geijn,
 * "BLIS" (2015). For each step of k (cpu_product_step), a's rows are packed into panels of ROWS, which stay in the
 * second-level cache, and b's columns into one panel of COLUMNS, which stays in the first while every block of rows
 * uses it (block.h).
 *
 * Sums lie in scratch until the tile is done. So blocks are always whole vectors, c is touched once, and only one
 * function depends on its type and on the epilogue. An element's sum is one chain of multiplications and additions per
 * step of k, from 0; the chains are added in order, for any block, tile or thread. */
#include "device/cpu/kernels/block.h"

enum {
    TOGETHER = 4, /* blocks whose panels are filled together where a row of a has their elements side by side */
    AHEAD = 8,    /* such rows are prefetched */
};
/* Where scratch holds what, in floats. */
enum {
    SUMS = 0,
    RIGHT = SUMS + PLAN_CPU_PRODUCT_HEIGHT * PLAN_CPU_PRODUCT_WIDTH,
    LEFT = RIGHT + COLUMNS * PLAN_CPU_PRODUCT_DEPTH,
    END = LEFT + BLOCKS * LEFT_PANEL,
};
_Static_assert(END * sizeof(float) <= PLAN_CPU_PRODUCT_SCRATCH, "scratch suffices with every instruction set");
_Static_assert(PLAN_CPU_PRODUCT_SCRATCH % 4096 == 0, "and is whole pages");
_Static_assert(PLAN_CPU_PRODUCT_WIDTH % COLUMNS == 0, "a tile's sums are whole panels");

/* op(a)'s rows from `row` to its end; op(b)'s columns from `column` to its end. A panel takes the first of them. */
static struct panel_source left_source(const struct device_matmul *op, size_t row, size_t from, size_t depth)
{
    const value *a = op->a;

    return (struct panel_source){a + (op->transpose_a ? from * op->a_stride + row : row * op->a_stride + from),
                                 op->a_stride, !op->transpose_a, op->m - row, depth};
}

static struct panel_source right_source(const struct device_matmul *op, size_t column, size_t from, size_t depth)
{
    const value *b = op->b;

    return (struct panel_source){b + (op->transpose_b ? column * op->b_stride + from : from * op->b_stride + column),
                                 op->b_stride, op->transpose_b, op->n - column, depth};
}

/* Panels of a transposed a, n blocks from `first`: one of its rows fills a step of each. Filled together, as each cache
 * line of the row would otherwise be read once per block. */
static void pack_left_along(float *left, const struct device_matmul *op, const struct cpu_tile *tile, size_t first,
                            size_t n, size_t from, size_t depth)
{
    const value *x = (const value *)op->a + from * op->a_stride + tile->row;
    const size_t end = op->m - tile->row;

    for (size_t p = 0; p < depth; p += PANEL_TERMS, x += PANEL_TERMS * op->a_stride, left += ROW_LANES)
        for (size_t i = first; i < first + n; i++) {
            const size_t start = block_start(tile->m, i);
            for (size_t t = AHEAD; t < AHEAD + PANEL_TERMS && p + t < depth; t++)
                __builtin_prefetch(x + t * op->a_stride + start);
            panel_step(left + i * LEFT_PANEL, ROW_VECTORS, x + start, op->a_stride, depth - p, end - start);
        }
}

/* All of the tile's rows. */
static void pack_left(float *left, const struct device_matmul *op, const struct cpu_tile *tile, size_t from,
                      size_t depth)
{
    const size_t n_blocks = blocks_of(tile->m);

    if (op->transpose_a) {
        for (size_t i = 0; i < n_blocks; i += TOGETHER)
            pack_left_along(left, op, tile, i, size_smaller(TOGETHER, n_blocks - i), from, depth);
        return;
    }
    for (size_t i = 0; i < n_blocks; i++) {
        const struct panel_source source = left_source(op, tile->row + block_start(tile->m, i), from, depth);
        panel_fill(left + i * LEFT_PANEL, ROW_VECTORS, &source);
    }
}

/* All of the tile's rows and one panel of columns; prefetches the next panel. */
static void multiply_panel(float *sums, bool add, const float *left, const float *right, size_t m, size_t depth,
                           const struct panel_source *next)
{
    const size_t n_blocks = blocks_of(m);

    for (size_t i = 0; i < n_blocks; i++) {
        const size_t start = block_start(m, i), rows = block_start(m, i + 1) - start;

        panel_fetch(next, COLUMNS, i, n_blocks);
        block(rows, sums + start * PLAN_CPU_PRODUCT_WIDTH, add, left + i * LEFT_PANEL, ROW_LANES, right, depth);
    }
}

void KERNEL_NAME(cpu_tile)(const struct device_matmul *op, const struct cpu_tile *tile, float *scratch)
{
    float *left = scratch + LEFT, *right = scratch + RIGHT, *sums = scratch + SUMS;
    const size_t step = cpu_product_step(op->k, PANEL_TERMS);

    for (size_t from = 0; from < op->k; from += step) {
        const size_t depth = size_smaller(step, op->k - from);
        struct panel_source source = right_source(op, tile->column, from, depth);

        pack_left(left, op, tile, from, depth);
        for (size_t j = 0; j < tile->n; j += COLUMNS) {
            panel_fill(right, COLUMN_VECTORS, &source);
            source = right_source(op, size_smaller(tile->column + j + COLUMNS, op->n), from, depth);
            multiply_panel(sums + j, from > 0, left, right, tile->m, depth, &source);
        }
    }
}
