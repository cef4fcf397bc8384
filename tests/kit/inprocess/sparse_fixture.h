/* tests/kit/inprocess/sparse_fixture.h - a small GPT-2 whose blocks' eight matrices are sparse, and its store, for the
 * tests of eps/store/sparse.c and eps/store/rewire.c. */
#ifndef TESTS_KIT_INPROCESS_SPARSE_FIXTURE_H
#define TESTS_KIT_INPROCESS_SPARSE_FIXTURE_H

#include "eps/store/sparse.h"
#include "tests/kit/inprocess/store_fixture.h"

#include <math.h>

enum { SPARSE_FIXTURE_EVERY = 5, SPARSE_FIXTURE_SEED = 3, SPARSE_FIXTURE_FORMS = 5, SPARSE_FIXTURE_MOST_PIECES = 16 };

extern const struct sparse sparse_fixture_usual; /* 0.3 stay, a tenth of these moves */
/* Types of weights and moments, and optimizers, whose elements are in other arrays each time. */
extern const struct store_options sparse_fixture_forms[SPARSE_FIXTURE_FORMS];

/* A fresh sparse store; the dense one, drawn; a sparse one of the dense one's weights. Closed by
 * store_fixture_close. */
void sparse_fixture_open(struct store_fixture *f, const struct sparse *sparse, const struct store_options *options);
void sparse_fixture_open_dense(struct store_fixture *f);
void sparse_fixture_open_given(struct store_fixture *f, const struct store_fixture *dense,
                               const struct store_options *options);

/* Elements that are there get weights around the threshold, of both signs, and moments; of odd seeds smaller ones. */
void sparse_fixture_scatter(struct store_fixture *f, uint64_t seed);

/* store_load_places, with the memory that it needs. */
int sparse_fixture_load_places(struct store_fixture *to, const struct file *moments, struct error *err);
/* `to` as a checkpoint of `from` has it. */
void sparse_fixture_reload(struct store_fixture *to, const struct store_fixture *from);

/* Of one sparse piece, all elements in their places; NAN where there is none. */
struct sparse_elements {
    uint64_t n_dense, n;
    float *w, *m, *v;
};

static inline bool sparse_has(const struct sparse_elements *e, uint64_t i)
{
    return !isnan(e->w[i]);
}

/* All sparse pieces, copied. */
struct sparse_snapshot {
    int n;
    uint32_t unit[SPARSE_FIXTURE_MOST_PIECES];
    const struct model_piece *piece[SPARSE_FIXTURE_MOST_PIECES];
    struct sparse_elements of[SPARSE_FIXTURE_MOST_PIECES];
    uint64_t n_elements;
};
struct sparse_snapshot sparse_snapshot_take(const struct store_fixture *f);
void sparse_snapshot_free(struct sparse_snapshot *s);

#endif
