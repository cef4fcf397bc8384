/* A piece's room is decided when the model is divided into units, before any place is known. So plan, store, device and
 * files have the same n, and when places change later no array changes its size. */
#include "proto/model/sparse.h"

#include "proto/model/model_internal.h"
#include "proto/operation/call/sparse.h"

#include <errno.h>

/* The room of a piece of so many elements, if it is sparse; else all of them. */
static uint64_t sparse_room_of(const struct model *m, uint64_t n)
{
    const uint64_t begins = sparse_begins(m->sparse.keep, n);
    const double room = m->sparse.room * (double)begins;

    return room < (double)begins ? begins : room < (double)n ? (uint64_t)room : n;
}

/* Blocks' layers have a unit each. */
static bool is_in_block(const struct model *m, uint32_t unit)
{
    const uint32_t first = m->visits[m->layers[m->first_block].first_visit];

    return unit >= first && unit - first < m->n_block_layers;
}

static bool can_be_sparse(const struct model *m, uint32_t unit, const struct model_piece *piece)
{
    const struct model_tensor *t = &m->tensors[piece->tensor];

    return t->n_dims == 2 && !t->frozen && !t->adapts && t->n_stacked == 0 && is_in_block(m, unit) &&
           t->n <= UINT32_MAX && (!model_is_filter(t) || (t->height * t->width > 1 && !t->over_tokens));
}

void model_size_piece(struct model *m, uint32_t unit, struct model_piece *piece)
{
    const uint64_t n = piece->n_rows * m->tensors[piece->tensor].shape[1];
    const bool is_sparse = m->sparse.keep > 0 && can_be_sparse(m, unit, piece) && sparse_room_of(m, n) < n;

    piece->dense = is_sparse ? n : 0;
    piece->n = is_sparse ? sparse_room_of(m, n) : n;
}

void model_sparsify(struct model *m, const struct sparse *sparse)
{
    for (uint32_t u = 0; u < m->n_units; u++)
        if (m->units[u].n_decoded > 0)
            return;
    if (!(sparse->keep > 0 && sparse->keep < 1))
        return;
    m->sparse = *sparse;
    model_divide(m, (struct model_base){FORM_VALUES, FORM_VALUES});
}

int model_check_sparse(const struct model *m, const struct sparse *sparse, struct error *err)
{
    if (sparse->keep == 0)
        return 0;
    if (!(sparse->keep >= SPARSE_LEAST && sparse->keep < 1))
        return error_set(err, -EINVAL, "sparse weights that keep %g of all: at least %g and below 1 is possible",
                         sparse->keep, SPARSE_LEAST);
    if (!(sparse->room >= 1 && sparse->room <= SPARSE_MOST_ROOM))
        return error_set(err, -EINVAL,
                         "sparse weights with room for %g times what they begin with: 1 to %g is possible",
                         sparse->room, SPARSE_MOST_ROOM);
    if (!(sparse->moved > 0 && sparse->moved < 1))
        return error_set(err, -EINVAL, "sparse weights of which %g move: above 0 and below 1 is possible",
                         sparse->moved);
    if (m->n_sparse > 0)
        return 0;
    return error_set(
        err, -EINVAL,
        "no matrix of this model can be sparse: sparse weights are those of blocks that are trained, without "
        "--base and --lora, and with up to 2^32 elements");
}

uint64_t model_places_words(const struct model_piece *piece)
{
    return piece->n_rows * device_sparse_words(piece->dense / piece->n_rows);
}

uint64_t model_places_at(const struct model_piece *piece)
{
    return form_aligned((piece->n_rows + 1) * sizeof(uint32_t));
}

uint64_t model_places_bytes(const struct model_piece *piece)
{
    return model_places_at(piece) + form_aligned(model_places_words(piece) * sizeof(uint32_t));
}
