/* device/cpu/kernels/conv2d_weights.kernel.c - one tile of the gradient of a convolution's weights, on one thread.
 *
 * A product over pixels (tile.kernel.c): of y's gradient, transposed, and of the pixels of x that each tap meets, which are
 * packed as they lie. Every image is summed by itself, in steps that depend on its size alone, and then added; so images
 * may be divided among calls. */
#include "device/cpu/kernels/block.h"
#include "device/cpu/kernels/conv2d.h"

/* Where scratch holds what, in floats. */
enum {
    SUMS = 0,
    RIGHT = SUMS + PLAN_CPU_PRODUCT_HEIGHT * PLAN_CPU_PRODUCT_WIDTH,
    LEFT = RIGHT + COLUMNS * PLAN_CPU_PRODUCT_DEPTH,
    END = LEFT + BLOCKS * LEFT_PANEL,
};
_Static_assert(END * sizeof(float) <= PLAN_CPU_PRODUCT_SCRATCH, "scratch suffices with every instruction set");
_Static_assert(PANEL_TERMS *PLAN_CPU_PRODUCT_DEPTH <= CONV_PIXELS, "a step's pixels have places");

static const value zeros[COLUMNS];

/* Adjacent columns of one tap. */
struct run {
    const struct cpu_conv_tap *tap;
    size_t channel, lane, n;
};

/* The runs of columns column .. column+n-1. */
static size_t find_runs(struct run runs[COLUMNS], const struct cpu_conv *conv, size_t column, size_t n)
{
    size_t n_runs = 0;

    for (size_t lane = 0; lane < n; n_runs++) {
        const size_t channel = (column + lane) % conv->depth;
        runs[n_runs] = (struct run){&conv->taps[(column + lane) / conv->depth], channel, lane,
                                    size_smaller(conv->depth - channel, n - lane)};
        lane += runs[n_runs].n;
    }
    return n_runs;
}

/* A vector of one run, of each pixel. */
VECTOR_INLINE void pack_vector(float *right, const value *source, const ptrdiff_t *at, size_t n_pixels, size_t n)
{
    for (size_t p = 0; p < n_pixels; p += PANEL_TERMS, right += COLUMNS) {
        const ptrdiff_t first = at[p], second = at[p + PANEL_TERMS - 1];

        vec_store_n(right, panel_join_n(first < 0 ? zeros : source + first, second < 0 ? zeros : source + second, n),
                    n);
    }
}

/* A panel of columns: the pixels that each of their taps meets. */
static void pack_right(float *right, const struct cpu_conv *conv, const struct cpu_conv_places *places, size_t n_pixels,
                       size_t column, size_t n)
{
    struct run runs[COLUMNS];
    const size_t n_runs = find_runs(runs, conv, column, n);

    for (const struct run *run = runs; run < runs + n_runs; run++) {
        ptrdiff_t at[CONV_PIXELS + 1];

        conv_find_source(at, conv, places, 0, n_pixels, run->tap);
        at[n_pixels] = -1; /* the second of the last pair */
        for (size_t v = 0; v < run->n; v += VECTOR) {
            const value *const source = (const value *)conv->source + run->channel + v;
            float *const to = right + run->lane + v;

            if (run->n - v >= VECTOR)
                pack_vector(to, source, at, n_pixels, VECTOR);
            else
                pack_vector(to, source, at, n_pixels, run->n - v);
        }
    }
}

/* y's gradient (pixels, channels) from one pixel and channel on: the tile's rows. */
static void pack_left(float *left, const value *gradient, const struct cpu_conv *conv, size_t m, size_t rest,
                      size_t depth)
{
    for (size_t i = 0; i < blocks_of(m); i++, left += LEFT_PANEL) {
        const size_t start = block_start(m, i);
        const struct panel_source source = {gradient + start, conv->n_groups * conv->columns, false, rest - start,
                                            depth};

        panel_fill(left, ROW_VECTORS, &source);
    }
}

void KERNEL_NAME(cpu_conv_weights)(const struct cpu_conv *conv, const void *gradient, size_t group,
                                   const struct cpu_tile *tile, float *scratch)
{
    float *const sums = scratch + SUMS, *const right = scratch + RIGHT, *const left = scratch + LEFT;
    const size_t pixels = conv->down * conv->across, step = cpu_product_step(pixels, PANEL_TERMS);
    const value *const dy = (const value *)gradient + group * conv->columns + tile->row;
    struct cpu_conv_places places;

    for (size_t first = 0; first < conv->n_rows * pixels;) {
        const size_t depth = size_smaller(step, pixels - first % pixels);

        conv_find_places(&places, conv, group, first, depth);
        pack_left(left, dy + first * conv->n_groups * conv->columns, conv, tile->m, conv->columns - tile->row, depth);
        for (size_t j = 0; j < tile->n; j += COLUMNS) {
            pack_right(right, conv, &places, depth, tile->column + j, size_smaller(COLUMNS, tile->n - j));
            for (size_t i = 0; i < blocks_of(tile->m); i++) {
                const size_t start = block_start(tile->m, i);
                block(block_start(tile->m, i + 1) - start, sums + start * PLAN_CPU_PRODUCT_WIDTH + j, true,
                      left + i * LEFT_PANEL, right, depth);
            }
        }
        first += depth;
    }
}
