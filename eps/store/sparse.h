/* eps/store/sparse.h - for the store's own files: sparse pieces (proto/model/sparse.h), their places and their elements.
 *
 * All is done by the caller's thread, row by row. What is read of a source is read anew in each pass. */
#ifndef EPS_STORE_SPARSE_H
#define EPS_STORE_SPARSE_H

#include "eps/store/store_code.h"

/* Where a sparse piece's elements belong; in the segment of weights, which workers map read-only. */
struct sparse_places {
    uint64_t rows, columns, n;
    uint32_t *starts; /* (rows + 1) */
    uint16_t *places; /* (n) the column of each */
};

struct sparse_places store_places(const struct store *store, uint32_t unit, const struct model_piece *piece);

static inline uint64_t sparse_places_used(const struct sparse_places *p)
{
    return p->starts[p->rows];
}

/* Chooses as many elements of the piece as it begins with: those of the largest scores, whatever their sign; among equal ones
 * the first. 0 or the source's -errno. */
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

/* -EINVAL: starts that do not ascend to at most n, and at least 1, or columns of a row that do not ascend within it. */
int sparse_places_check(const struct sparse_places *places);

#endif
