/* device/cpu/kernels/conv2d_tile.kernel.c - one tile of a convolution's results, on one thread.
 *
 * After Dukhan, "The Indirect Convolution Algorithm", arXiv:1907.02129: a product like any other (tile.kernel.c), but its
 * rows are not packed. The block finds each row's terms by a pointer for each tap, to a pixel of the source or, beyond its
 * edges, to zeros. So nothing is copied kernel-height times kernel-width times, and blocks are full wherever an image's
 * lines end. A block is 12 x 2 vectors with AVX-512: two terms at a time, as each row's pointer is then loaded for four
 * multiplications.
 *
 * A sum is one chain per step, from 0; a step is some taps with all their terms, or some terms of one tap. Steps depend on
 * the taps and the depth alone. */
#include "device/cpu/kernels/conv2d.h"
#include "device/cpu/kernels/panel.h"

enum {
    ROWS = VECTOR == 16 ? 12 : 4, /* of a block */
    COLUMN_VECTORS = 2,
    COLUMNS = COLUMN_VECTORS * VECTOR,
    BLOCKS = (PLAN_CPU_PRODUCT_HEIGHT + ROWS - 1) / ROWS,
    TERMS = PANEL_TERMS * PLAN_CPU_PRODUCT_DEPTH, /* of a step, at most */
    TAPS = 16,                                    /* of a step, at most */
};
/* Where scratch holds what, in floats. */
enum {
    SUMS = 0,
    RIGHT = SUMS + PLAN_CPU_PRODUCT_HEIGHT * PLAN_CPU_PRODUCT_WIDTH,
    POINTERS = RIGHT + COLUMNS * PLAN_CPU_PRODUCT_DEPTH,
    COPIES = POINTERS + BLOCKS * TAPS * ROWS * (int)(sizeof(void *) / sizeof(float)),
    END = COPIES + BLOCKS * ROWS * TERMS / 2 * (int)sizeof(value) / (int)sizeof(float),
};
_Static_assert(END * sizeof(float) <= PLAN_CPU_PRODUCT_SCRATCH, "scratch suffices with every instruction set");
_Static_assert((int)ROWS <= (int)CONV_SLACK, "the last block's rows have places");

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

/* sums (rows, columns) = or += (add) the step's; x: (taps, ROWS) pointers; n: elements of each tap. */
VECTOR_INLINE void block_of(const size_t rows, const size_t columns, float *sums, bool add, const value *const *x,
                            size_t n_taps, size_t n, const float *right)
{
    vec sum[ROWS][COLUMN_VECTORS] = {{{0}}};

    for (size_t t = 0; t < n_taps; t++, x += ROWS)
        right = multiply_values(sum, rows, columns, x, n, right);
#pragma GCC unroll 12
    for (size_t r = 0; r < rows; r++)
#pragma GCC unroll 2
        for (size_t v = 0; v < columns; v++) {
            float *to = sums + r * PLAN_CPU_PRODUCT_WIDTH + v * VECTOR;
            vec_store(to, add ? vec_load(to) + sum[r][v] : sum[r][v]);
        }
}

static void block(size_t rows, size_t columns, float *sums, bool add, const value *const *x, size_t n_taps, size_t n,
                  const float *right)
{
    switch (rows * 2 + columns) {
#define BLOCK(n_rows)                                                                                                  \
    case n_rows * 2 + 1:                                                                                               \
        block_of(n_rows, 1, sums, add, x, n_taps, n, right);                                                           \
        break;                                                                                                         \
    case n_rows * 2 + 2:                                                                                               \
        block_of(n_rows, 2, sums, add, x, n_taps, n, right);                                                           \
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

/* Terms of an odd number: each row's, with a zero behind, as a pair's second half must be no neighbour's. */
static void copy_terms(const value **x, value *copies, const struct step *step)
{
    const size_t even = elements_of(step) * PANEL_TERMS;

    for (size_t i = 0; i < step->n_taps * ROWS; i++, copies += even) {
        memcpy(copies, x[i], step->depth * sizeof *copies);
        copies[step->depth] = zeros[0];
        x[i] = copies;
    }
}

/* The pointers of a block from place `start` on: (taps, ROWS). */
static void find_rows(const value **x, const struct cpu_conv *conv, const struct cpu_conv_places *places, size_t start,
                      const struct step *step)
{
    for (size_t t = 0; t < step->n_taps; t++, x += ROWS) {
        ptrdiff_t at[ROWS];

        conv_find_source(at, conv, places, start, ROWS, &conv->taps[step->tap + t]);
        for (size_t r = 0; r < ROWS; r++)
            x[r] = at[r] < 0 ? zeros : (const value *)conv->source + at[r] + step->from;
    }
}

static void find_all_rows(float *scratch, const struct cpu_conv *conv, const struct cpu_conv_places *places, size_t m,
                          const struct step *step)
{
    const value **x = (const value **)(void *)(scratch + POINTERS);
    value *copies = (value *)(void *)(scratch + COPIES);

    for (size_t i = 0; i < blocks_of(m); i++, x += TAPS * ROWS, copies += ROWS * TERMS / 2) {
        find_rows(x, conv, places, block_start(m, i), step);
        if (step->depth % PANEL_TERMS > 0)
            copy_terms(x, copies, step);
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

void KERNEL_NAME(cpu_conv_tile)(const struct cpu_conv *conv, size_t group, const struct cpu_tile *tile, float *scratch)
{
    float *const sums = scratch + SUMS, *const right = scratch + RIGHT;
    const value *const *const x = (const value *const *)(void *)(scratch + POINTERS);
    struct cpu_conv_places places;
    struct step step = {0};
    bool add = false;

    conv_find_places(&places, conv, group, tile->row, tile->m);
    for (step = step_after(conv, &step); step.n_taps > 0; step = step_after(conv, &step), add = true) {
        find_all_rows(scratch, conv, &places, tile->m, &step);
        for (size_t j = 0; j < tile->n; j += COLUMNS) {
            const size_t columns = tile->n - j <= VECTOR ? 1 : COLUMN_VECTORS;

            pack_right(right, conv, group, tile->column + j, columns, &step);
            for (size_t i = 0; i < blocks_of(tile->m); i++) {
                const size_t start = block_start(tile->m, i);
                block(block_start(tile->m, i + 1) - start, columns, sums + start * PLAN_CPU_PRODUCT_WIDTH + j, add,
                      x + i * TAPS * ROWS, step.n_taps, elements_of(&step), right);
            }
        }
    }
    for (size_t i = 0; i < tile->m && !add; i++) /* no tap meets these pixels */
        memset(sums + i * PLAN_CPU_PRODUCT_WIDTH, 0, tile->n * sizeof *sums);
}
