/* Fresh weights, drawn. */
#include "eps/store/checks.h"
#include "eps/store/sparse.h"
#include "eps/store/store.h"
#include "eps/store/store_code.h"
#include "eps/store/team.h"
#include "proto/base/random.h"
#include "proto/model/draw.h"

#include <errno.h>

/* A piece to be drawn, for the threads. */
struct draw {
    struct store *store;
    uint32_t unit;
    const struct model_piece *piece;
    struct random_key key;
};

/* Zeroes those of a tensor's elements first .. first+n-1 that are in its zero row (model_zero_row). */
static void store_draw_clear_padding(float *drawn, const struct model *model, uint32_t tensor, uint64_t first, size_t n)
{
    const uint64_t row = model_zero_row(model, tensor), width = model->tensors[tensor].shape[1];

    if (row == MODEL_NO_ROW)
        return;
    for (uint64_t at = row * width < first ? first : row * width; at < (row + 1) * width && at < first + n; at++)
        drawn[at - first] = 0;
}

/* A store_source. */
static int draw_run(void *context, uint64_t first, size_t n, float *drawn)
{
    const struct draw *d = context;
    const struct model_piece *piece = d->piece;
    const struct model_tensor *tensor = &d->store->model->tensors[piece->tensor];
    const uint64_t at = piece->first_row * tensor->shape[1] + first;
    const int rc = pieces_note(d->store->options.pieces);

    if (rc != 0)
        return rc;
    model_draw(drawn, tensor, d->key, piece->tensor, at, n);
    store_draw_clear_padding(drawn, d->store->model, piece->tensor, at, n);
    return 0;
}

/* Fails only if the pieces are abandoned, which the caller finds out by itself. */
static void draw_range(void *data, size_t begin, size_t n)
{
    struct draw *d = data;

    store_code(d->store, d->unit, d->piece, begin, n, &(struct store_source){draw_run, d});
}

void store_draw_piece(struct store *store, uint64_t seed, uint32_t unit, const struct model_piece *piece)
{
    struct draw draw = {.store = store,
                        .unit = unit,
                        .piece = piece,
                        .key = random_site_key(seed, 0, 0, RANDOM_WEIGHTS)};

    if (piece->dense > 0) /* fails as draw_range does */
        store_draw_sparse(store, seed, unit, piece, &(struct store_source){draw_run, &draw});
    else
        team_run(piece->n, draw_range, &draw);
}

int store_draw(struct store *store, uint64_t seed)
{
    const struct model *model = store->model;

    for (uint32_t u = 0; u < model->n_units; u++)
        for (uint32_t i = 0; store_keeps(store, u) && i < model->units[u].n_pieces; i++)
            store_draw_piece(store, seed, u, &model->pieces[model->units[u].first_piece + i]);
    checks_renew(store);
    return pieces_are_abandoned(store->options.pieces) ? -ECANCELED : 0;
}
