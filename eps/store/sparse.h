/* eps/store/sparse.h - for the store's own files: sparse pieces (proto/model/sparse.h), their places and their
 * elements.
 *
 * All is done by the caller's thread, row by row. What is read of a source is read anew in each pass. */
#ifndef EPS_STORE_SPARSE_H
#define EPS_STORE_SPARSE_H

#include "eps/store/store_code.h"

#include <string.h>

/* Where a sparse piece's elements belong; in the segment of weights, which workers map read-only. */
struct sparse_places {
    uint64_t rows, columns, words, n;
    uint32_t *starts; /* (rows + 1) */
    uint32_t *places; /* (rows, words) a bit for each column; those beyond the columns are 0 */
};

struct sparse_places store_places(const struct store *store, uint32_t unit, const struct model_piece *piece);

static inline uint64_t sparse_places_used(const struct sparse_places *p)
{
    return p->starts[p->rows];
}

/* The first column from `column` on that has an element in this row; if none has, all columns. */
static inline uint64_t sparse_next(const struct sparse_places *p, uint64_t row, uint64_t column)
{
    uint32_t mask = UINT32_MAX << column % 32;

    for (uint64_t word = column / 32; word < p->words; word++, mask = UINT32_MAX) {
        const uint32_t bits = p->places[row * p->words + word] & mask;
        if (bits)
            return 32 * word + (uint64_t)__builtin_ctz(bits);
    }
    return p->columns;
}

/* Adds an element, or takes one away. */
static inline void sparse_flip(const struct sparse_places *p, uint64_t row, uint64_t column)
{
    p->places[row * p->words + column / 32] ^= UINT32_C(1) << column % 32;
}

/* Magnitudes of finite numbers order as these. */
static inline uint32_t sparse_pattern(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof bits);
    return bits & INT32_MAX;
}

/* The least pattern that is among the `n` largest, and how many of that one are. */
struct sparse_least {
    uint32_t pattern;
    uint64_t n_equal;
};

/* Called for each pattern; and what calls it for all patterns `of` something, the same each time: 0 or -errno. */
typedef void sparse_visitor(void *context, uint64_t at, uint32_t pattern);
typedef int sparse_visit(const void *of, sparse_visitor *visitor, void *context);

/* n: from 1, no more than there are. Visits all of them three times, for a digit each, and needs no memory. 0 or
 * -errno. */
int sparse_find_least(struct sparse_least *out, sparse_visit *visit, const void *of, uint64_t n);

/* Chooses as many elements of the piece as it begins with: those of the largest scores, whatever their sign; among
 * equal ones the first. 0 or the source's -errno. */
int store_choose_places(const struct store *store, uint32_t unit, const struct model_piece *piece,
                        const struct store_source *scores);

/* Reads the elements from a source of the dense piece. Free ones become 0. 0 or -errno of the source. */
int store_fill_places(const struct store *store, uint32_t unit, const struct model_piece *piece,
                      const struct store_source *values);

/* Draws places, and then elements as those of the dense piece. */
int store_draw_sparse(const struct store *store, uint64_t seed, uint32_t unit, const struct model_piece *piece,
                      const struct store_source *values);

/* Rows first .. first+n-1 of the dense piece, as fp32, as files have them: those of a filter by channel first. */
void store_read_rows(const struct store *store, uint32_t unit, const struct model_piece *piece, uint64_t first,
                     uint64_t n, float *out);

/* Sets the starts of places. -EINVAL: there is no place, or more than n, or one beyond the columns. */
int sparse_places_count(const struct sparse_places *places);

#endif
