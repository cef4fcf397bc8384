/* device/cpu/kernels/conv2d_tile.kernel.c - one tile of a convolution's results, on one thread.
 *
 * After Dukhan, "The Indirect Convolution Algorithm", arXiv:1907.02129: a product like any other (tile.kernel.c), but
 * its rows are not packed. The block finds each row's terms by a pointer for each tap, to a pixel of the source or,
 * beyond its edges, to zeros. So nothing is copied kernel-height times kernel-width times, and blocks are full wherever
 * an image's lines end. A block is 12 x 2 vectors with AVX-512: two terms at a time, as each row's pointer is then
 * loaded for four multiplications.
 *
 * A sum is one chain per step, from 0; a step is some taps with all their terms, or some terms of one tap. Steps depend
 * on the taps and the depth alone. */
#include "device/cpu/kernels/conv2d.h"
#include "device/cpu/kernels/panel.h"

enum {
    ROWS = VECTOR == 16 ? 12 : 4, /* of a block */
    COLUMN_VECTORS = 2,
    COLUMNS = COLUMN_VECTORS * VECTOR,
    TERMS = PANEL_TERMS * PLAN_CPU_PRODUCT_DEPTH, /* of a step, at most */
    TAPS = 16,                                    /* of a step, at most */
    ALL_ROWS = PLAN_CPU_PRODUCT_HEIGHT,           /* of a tile */
};
/* Where scratch holds what, in floats. */
enum {
    SUMS = 0,
    RIGHT = SUMS + PLAN_CPU_PRODUCT_HEIGHT * PLAN_CPU_PRODUCT_WIDTH,
    POINTERS = RIGHT + COLUMNS * PLAN_CPU_PRODUCT_DEPTH,
    COPIES = POINTERS + TAPS * ALL_ROWS * (int)(sizeof(void *) / sizeof(float)),
    END = COPIES + ALL_ROWS * TERMS / 2 * (int)sizeof(value) / (int)sizeof(float),
};
_Static_assert(END * sizeof(float) <= PLAN_CPU_PRODUCT_SCRATCH, "scratch suffices with every instruction set");

static const value zeros[TERMS + 1]; /* a pair's second may be the one behind the last */

/* Part of the sum: taps tap .. tap+n_taps-1, terms from .. from+depth-1 of each. */
struct step {
    size_t tap, n_taps, from, depth;
};

static size_t elements_of(const struct step *step)
{
    return (step->depth + PANEL_TERMS - 1) / PANEL_TERMS; /* of a panel, per tap */
}

/* The step behind this one; n_taps 0: there is none. */
static struct step step_after(const struct cpu_conv *conv, const struct step *last)
{
    const size_t even = (conv->depth + PANEL_TERMS - 1) / PANEL_TERMS * PANEL_TERMS;
    const size_t room = conv->depth % PANEL_TERMS ? TERMS / 2 : TERMS; /* those that must be copied need room */
    struct step step = *last;

    if (even <= room) {
        const size_t most = size_smaller(TAPS, room / even), n = size_pieces(conv->n_taps, most);
        step.tap += step.n_taps;
        step.n_taps = size_smaller(n ? size_pieces(conv->n_taps, n) : 0, conv->n_taps - step.tap);
        step.depth = conv->depth;
        return step;
    }
    step.from += step.depth;
    if (step.from == conv->depth || step.n_taps == 0)
        step.tap += step.n_taps, step.from = 0;
    step.n_taps = step.tap < conv->n_taps;
    step.depth = size_smaller(cpu_product_step(conv->depth, room / PLAN_CPU_PRODUCT_DEPTH), conv->depth - step.from);
    return step;
}

#if defined(KERNEL_BF16) && defined(__AVX512BF16__)
typedef value left; /* of the left factor, as it is multiplied */

/* The element in all lanes. */
VECTOR_INLINE vec left_all(const left *x)
{
    int32_t bits;

    memcpy(&bits, x, sizeof bits);
    return (vec)_mm512_set1_epi32(bits);
}
#else
typedef float left;

VECTOR_INLINE vec left_all(const left *x)
{
    return vec_all(*x);
}
#endif

/* n terms (elements of the panel) of all rows; rows, columns (vectors) and n are constants wherever this is inlined. */
VECTOR_INLINE void multiply_terms(vec sum[ROWS][COLUMN_VECTORS], const size_t rows, const size_t columns,
                                  const size_t n, const left *const *x, size_t p, const float *right)
{
    vec b[2][COLUMN_VECTORS];

#pragma GCC unroll 2
    for (size_t i = 0; i < n; i++)
#pragma GCC unroll 2
        for (size_t v = 0; v < columns; v++)
            b[i][v] = vec_load(right + (i * columns + v) * VECTOR);
#pragma GCC unroll 12
    for (size_t r = 0; r < rows; r++) {
        const left *const from = x[r] + p;
#pragma GCC unroll 2
        for (size_t i = 0; i < n; i++) {
            const vec a = left_all(from + i * PANEL_TERMS);
#pragma GCC unroll 2
            for (size_t v = 0; v < columns; v++)
                sum[r][v] = panel_multiply_add(a, b[i][v], sum[r][v]);
        }
    }
}

/* n elements of a tap; returns the next tap's right factor. */
VECTOR_INLINE const float *multiply_tap(vec sum[ROWS][COLUMN_VECTORS], const size_t rows, const size_t columns,
                                        const left *const *x, size_t n, const float *right)
{
    size_t p = 0;

    for (; p + 2 <= n; p += 2, right += 2 * columns * VECTOR)
        multiply_terms(sum, rows, columns, 2, x, p * PANEL_TERMS, right);
    if (p < n) {
        multiply_terms(sum, rows, columns, 1, x, p * PANEL_TERMS, right);
        right += columns * VECTOR;
    }
    return right;
}

/* The same of values. Those that are not multiplied as they are, are widened a vector of each row's at a time: each by
 * itself would take longer than its products. */
VECTOR_INLINE const float *multiply_values(vec sum[ROWS][COLUMN_VECTORS], const size_t rows, const size_t columns,
                                           const value *const *x, size_t n, const float *right)
{
#if !defined(KERNEL_FP16) && (!defined(KERNEL_BF16) || defined(__AVX512BF16__))
    return multiply_tap(sum, rows, columns, x, n, right);
#else
    float wide[ROWS][VECTOR];
    const float *of_row[ROWS];

    for (size_t r = 0; r < rows; r++)
        of_row[r] = wide[r];
    for (size_t p = 0; p < n; p += VECTOR) {
        const size_t here = size_smaller(VECTOR, n - p);

#pragma GCC unroll 12
        for (size_t r = 0; r < rows; r++)
            vec_store(wide[r], value_load_n(x[r] + p, here));
        right = multiply_tap(sum, rows, columns, of_row, here, right);
    }
    return right;
#endif
}

/* sums (rows, columns), rows `stride` apart, = or += (add) the step's; x: (taps, ALL_ROWS) pointers; n: elements of
 * each tap. */
VECTOR_INLINE void block_of(const size_t rows, const size_t columns, float *sums, size_t stride, bool add,
                            const value *const *x, size_t n_taps, size_t n, const float *right)
{
    vec sum[ROWS][COLUMN_VECTORS] = {{{0}}};

    for (size_t t = 0; t < n_taps; t++, x += ALL_ROWS)
        right = multiply_values(sum, rows, columns, x, n, right);
    panel_put(rows, columns, sums, stride, add, sum);
}

/* Each size of block is compiled by itself, so that its sums stay in registers. */
static void block(size_t rows, size_t columns, float *sums, size_t stride, bool add, const value *const *x,
                  size_t n_taps, size_t n, const float *right)
{
    switch (rows * 2 + columns) {
#define BLOCK(n_rows)                                                                                                  \
    case n_rows * 2 + 1:                                                                                               \
        block_of(n_rows, 1, sums, stride, add, x, n_taps, n, right);                                                   \
        break;                                                                                                         \
    case n_rows * 2 + 2:                                                                                               \
        block_of(n_rows, 2, sums, stride, add, x, n_taps, n, right);                                                   \
        break
        BLOCK(1);
        BLOCK(2);
        BLOCK(3);
        BLOCK(4);
#if defined(__AVX512F__)
        BLOCK(5);
        BLOCK(6);
        BLOCK(7);
        BLOCK(8);
        BLOCK(9);
        BLOCK(10);
        BLOCK(11);
        BLOCK(12);
#endif
#undef BLOCK
    }
}

/* A tile's rows are divided evenly among as few blocks as hold them. */
static size_t blocks_of(size_t m)
{
    return (m + ROWS - 1) / ROWS;
}

static size_t block_start(size_t m, size_t i)
{
    return m * i / blocks_of(m);
}

/* The pointers of a tile's m places: (taps, ALL_ROWS). */
static void find_rows(const value **x, const struct cpu_conv *conv, const struct cpu_conv_places *places, size_t m,
                      const struct step *step)
{
    for (size_t t = 0; t < step->n_taps; t++)
        conv_point((const void **)(x + t * ALL_ROWS), conv, places, m, &conv->taps[step->tap + t], step->from,
                   sizeof **x, zeros);
}

/* Terms of an odd number: each row's, with a zero behind, as a pair's second half must be no neighbour's. */
static void copy_terms(const value **x, value *copies, size_t m, const struct step *step)
{
    const size_t even = elements_of(step) * PANEL_TERMS;

    for (size_t t = 0; t < step->n_taps; t++, x += ALL_ROWS)
        for (size_t p = 0; p < m; p++, copies += even) {
            memcpy(copies, x[p], step->depth * sizeof *copies);
            copies[step->depth] = zeros[0];
            x[p] = copies;
        }
}

/* The matrices of the step's taps: columns (vectors) from `column` on. */
static void pack_right(float *right, const struct cpu_conv *conv, size_t group, size_t column, size_t columns,
                       const struct step *step)
{
    for (size_t t = step->tap; t < step->tap + step->n_taps; t++, right += elements_of(step) * columns * VECTOR) {
        const value *matrix = (const value *)conv->weight + group * conv->group_weights + conv->taps[t].at;
        const struct panel_source source = {conv->by_depth ? matrix + step->from * conv->apart + column
                                                           : matrix + column * conv->apart + step->from,
                                            conv->apart, !conv->by_depth, conv->columns - column, step->depth};

        if (columns == 1)
            panel_fill(right, 1, &source);
        else
            panel_fill(right, COLUMN_VECTORS, &source);
    }
}

/* ---- results ---- */

/* Elements of the results at which m places of the grid begin. */
static void find_results(size_t *at, const struct cpu_conv *conv, size_t first, size_t m)
{
    const struct cpu_conv_results *const out = &conv->results;

    for (size_t p = 0; p < m;) {
        const struct cpu_conv_line line = conv_line(conv, first + p, m - p);
        const size_t y = line.image * out->height + out->y + line.i * out->step, x = out->x + line.j * out->step;
        const size_t begin = (y * out->width + x) * out->channels, next = out->step * out->channels;

        for (size_t k = 0; k < line.n; k++)
            at[p + k] = begin + k * next;
        p += line.n;
    }
}

/* n channels of a pixel. */
static void put_row(const struct cpu_conv_results *out, size_t at, size_t channel, const float *sums, size_t n)
{
    value *const to = (value *)out->to + at + channel;

    for (size_t j = 0; j < n; j += VECTOR) {
        const size_t rest = n - j;
        vec x = vec_load_n(sums + j, rest, 0);

        if (out->bias)
            x += value_load_n((const value *)out->bias + channel + j, rest);
        if (out->accumulate)
            x += value_load_n(to + j, rest);
        value_store_n(to + j, x, rest);
    }
}

/* The last step's blocks are put where they belong at once, while they are near: so writing results and multiplying go
 * on side by side. */
void KERNEL_NAME(cpu_conv_tile)(const struct cpu_conv *conv, size_t group, const struct cpu_tile *tile, float *scratch)
{
    float *const sums = scratch + SUMS, *const right = scratch + RIGHT;
    const value **const x = (const value **)(void *)(scratch + POINTERS);
    const size_t stride = size_pieces(tile->n, COLUMNS) * COLUMNS, first = group * conv->columns + tile->column;
    struct cpu_conv_places places;
    size_t at[ALL_ROWS];
    struct step step = {0}, next = step_after(conv, &step);

    conv_find_places(&places, conv, group, tile->row, tile->m);
    find_results(at, conv, tile->row, tile->m);
    for (bool add = false; !add || next.n_taps > 0; add = true) { /* once at least: no tap may meet these pixels */
        step = next, next = step_after(conv, &step);
        find_rows(x, conv, &places, tile->m, &step);
        if (step.depth % PANEL_TERMS > 0)
            copy_terms(x, (value *)(void *)(scratch + COPIES), tile->m, &step);
        for (size_t j = 0; j < tile->n; j += COLUMNS) {
            const size_t columns = tile->n - j <= VECTOR ? 1 : COLUMN_VECTORS;

            pack_right(right, conv, group, tile->column + j, columns, &step);
            for (size_t i = 0; i < blocks_of(tile->m); i++) {
                const size_t start = block_start(tile->m, i), end = block_start(tile->m, i + 1);
                float *const to = sums + start * stride + j;
                block(end - start, columns, to, stride, add, x + start, step.n_taps, elements_of(&step), right);
                for (size_t p = start; p < end && next.n_taps == 0; p++)
                    put_row(&conv->results, at[p], first + j, to + (p - start) * stride,
                            size_smaller(COLUMNS, tile->n - j));
            }
        }
    }
}
