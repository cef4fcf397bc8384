/* device/cpu/kernels/conv2d_weights.kernel.c - one tile of the gradient of a convolution's weights, on one thread.
 *
 * A product over pixels (tile.kernel.c): of y's gradient, transposed, and of the pixels of x that each tap meets, which
 * are packed as they lie. Every image is summed by itself, in steps that depend on its size alone, and then added; so
 * images may be divided among calls. */
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

/* A vector of one run, of each pixel: n channels from `channel` on. */
VECTOR_INLINE void pack_vector(float *right, const value *const *at, size_t channel, size_t n_pixels, size_t n)
{
    for (size_t p = 0; p < n_pixels; p += PANEL_TERMS, right += COLUMNS)
        vec_store_n(right, panel_join_n(at[p] + channel, at[p + PANEL_TERMS - 1] + channel, n), n);
}

/* A panel of columns: the pixels that each of their taps meets. */
static void pack_right(float *right, const struct cpu_conv *conv, const struct cpu_conv_places *places, size_t n_pixels,
                       size_t column, size_t n)
{
    struct run runs[COLUMNS];
    const size_t n_runs = find_runs(runs, conv, column, n);

    for (const struct run *run = runs; run < runs + n_runs; run++) {
        const value *at[CONV_PIXELS + 1];

        conv_point((const void **)at, conv, places, n_pixels, run->tap, run->channel, sizeof **at, zeros);
        at[n_pixels] = zeros; /* the second of the last pair */
        for (size_t v = 0; v < run->n; v += VECTOR) {
            float *const to = right + run->lane + v;

            if (run->n - v >= VECTOR)
                pack_vector(to, at, v, n_pixels, VECTOR);
            else
                pack_vector(to, at, v, n_pixels, run->n - v);
        }
    }
}

/* ---- pixels as they lie ---- */

/* What lies as it is multiplied need not be packed: that took a sixth of the time of 32 channels, and a quarter of 3.
 * Of more channels than these, pixels would crowd a part of the cache. */
enum { LIES = PANEL_TERMS == 1 && sizeof(value) == sizeof(float), MOST_CHANNELS = 256 };

/* True if each vector of a panel is a part of one pixel of x. */
static bool points_right(const struct cpu_conv *conv)
{
    return LIES && conv->depth % VECTOR == 0 && conv->n_groups * conv->depth <= MOST_CHANNELS;
}

/* True if few panels are multiplied by what would be packed of y's gradient. */
static bool points_left(const struct cpu_conv *conv, const struct cpu_tile *tile)
{
    return LIES && tile->n <= 2 * (size_t)COLUMNS && conv->n_groups * conv->columns <= MOST_CHANNELS;
}

/* The vectors of a panel, of each pixel. */
struct pointers {
    const float *at[COLUMN_VECTORS][CONV_PIXELS];
};

static void find_right(struct pointers *out, const struct cpu_conv *conv, const struct cpu_conv_places *places,
                       size_t n_pixels, size_t column)
{
    for (size_t v = 0; v < COLUMN_VECTORS; v++, column += VECTOR) {
        const size_t tap = column / conv->depth;

        /* beyond the last tap sums are of whatever it is, and nobody reads them */
        conv_point((const void **)out->at[v], conv, places, n_pixels, &conv->taps[size_smaller(tap, conv->n_taps - 1)],
                   column % conv->depth, sizeof(float), zeros);
    }
}

/* As block_of, with the right factor where it lies. */
VECTOR_INLINE void pointed_of(const size_t rows, float *sums, const float *left, size_t stride,
                              const struct pointers *right, size_t depth)
{
    vec sum[ROWS][COLUMN_VECTORS] = {{{0}}};

    for (size_t p = 0; p < depth; p++, left += stride) {
        const float *const b[COLUMN_VECTORS] = {right->at[0][p], right->at[1][p]};

        block_add(rows, sum, left, b);
    }
    panel_put(rows, COLUMN_VECTORS, sums, PLAN_CPU_PRODUCT_WIDTH, true, sum);
}

static void pointed(size_t rows, float *sums, const float *left, size_t stride, const struct pointers *right,
                    size_t depth)
{
    switch (rows) {
#define POINTED(n)                                                                                                     \
    case n:                                                                                                            \
        pointed_of(n, sums, left, stride, right, depth);                                                               \
        break
        BLOCK_EACH(POINTED);
#undef POINTED
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
    float *const sums = scratch + SUMS, *const right = scratch + RIGHT, *const packed = scratch + LEFT;
    const size_t pixels = conv->down * conv->across, step = cpu_product_step(pixels, PANEL_TERMS);
    const size_t channels = conv->n_groups * conv->columns;
    const bool right_lies = points_right(conv), left_lies = points_left(conv, tile);
    const value *const dy = (const value *)gradient + group * conv->columns + tile->row;
    struct cpu_conv_places places;
    struct pointers pointers;

    for (size_t first = 0; first < conv->n_rows * pixels;) {
        const size_t depth = size_smaller(step, pixels - first % pixels);

        conv_find_places(&places, conv, group, first, depth);
        if (!left_lies)
            pack_left(packed, dy + first * channels, conv, tile->m, conv->columns - tile->row, depth);
        for (size_t j = 0; j < tile->n; j += COLUMNS) {
            if (right_lies)
                find_right(&pointers, conv, &places, depth, tile->column + j);
            else
                pack_right(right, conv, &places, depth, tile->column + j, size_smaller(COLUMNS, tile->n - j));
            for (size_t i = 0; i < blocks_of(tile->m); i++) {
                const size_t start = block_start(tile->m, i), n = block_start(tile->m, i + 1) - start;
                const void *const lying = dy + first * channels + start;
                const float *const left = left_lies ? lying : packed + i * LEFT_PANEL;
                const size_t stride = left_lies ? channels : ROW_LANES;
                float *const to = sums + start * PLAN_CPU_PRODUCT_WIDTH + j;
                if (right_lies)
                    pointed(n, to, left, stride, &pointers, depth);
                else
                    block(n, to, true, left, stride, right, depth);
            }
        }
        first += depth;
    }
}
