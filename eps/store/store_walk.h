/* eps/store/store_walk.h - for the store's own files: a walk over the elements of a unit that are trained. */
#ifndef EPS_STORE_STORE_WALK_H
#define EPS_STORE_STORE_WALK_H

#include "proto/model/model.h"
#include "proto/model/norms.h"

#include <assert.h>

/* A walk over a slice, run by run: a run lies in one trained piece, so it decays or does not, and has one count of
 * updates. All passes over a slice use it, the first touch too, so that the same thread works on the same pages each
 * time. */
struct walk {
    const struct model *model;
    const struct model_unit *unit;
    uint32_t piece;
    uint64_t next, end; /* elements from the unit's start */
};

struct run {
    uint64_t at; /* elements from the unit's start */
    uint64_t n;
    uint32_t piece; /* index in the model */
    bool decays;
    bool averages; /* its steps are those of running statistics */
};

static inline struct run run_of(const struct model *model, uint32_t piece, uint64_t at, uint64_t n)
{
    const struct model_tensor *tensor = &model->tensors[model->pieces[piece].tensor];

    return (struct run){at, n, piece, tensor->decays || tensor->averages, tensor->averages};
}

static inline struct walk walk_slice(const struct model *model, uint32_t unit, uint32_t slice)
{
    const struct model_unit *u = &model->units[unit];
    const struct model_slice s = model_slice_of(u, slice);

    assert(!s.is_norms);
    return (struct walk){.model = model, .unit = u, .next = s.first, .end = s.first + s.n};
}

static inline bool next_run(struct walk *walk, struct run *run)
{
    for (; walk->next < walk->end; walk->piece++) {
        assert(walk->piece < walk->unit->n_pieces);
        const uint32_t piece = walk->unit->first_piece + walk->piece;
        const struct model_piece *p = &walk->model->pieces[piece];
        const uint64_t piece_end = p->offset + p->n, end = piece_end < walk->end ? piece_end : walk->end;
        if (walk->model->tensors[p->tensor].frozen || walk->next >= piece_end)
            continue;
        *run = run_of(walk->model, piece, walk->next, end - walk->next);
        walk->next = end;
        return true;
    }
    return false;
}

static inline bool store_is_tied(const struct model *model, uint32_t unit)
{
    return model->units[unit].n_visits > 1;
}

#endif
