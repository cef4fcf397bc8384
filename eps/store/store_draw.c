/* Fresh weights, drawn; and frozen ones, copied to their units' other buffers. */
#include "eps/store/store.h"
#include "eps/store/team.h"
#include "proto/base/random.h"

#include <errno.h>

/* Elements drawn as one of the store's pieces: few, since drawing an element takes longer than moving its bytes. */
enum { DRAWN = 64 << 10 };

/* A piece to be drawn, for the threads. */
struct draw {
    struct store *store;
    uint32_t unit;
    const struct model_piece *piece;
    struct random_key key;
};

/* Of elements first .. first+n-1 of a tensor, zeroes those in its zero row (model_zero_row). */
static void clear_padding(float *drawn, const struct model *model, uint32_t tensor, uint64_t first, size_t n)
{
    const uint64_t row = model_zero_row(model, tensor), width = model->tensors[tensor].shape[1];

    if (row == MODEL_NO_ROW)
        return;
    for (uint64_t at = row * width < first ? first : row * width; at < (row + 1) * width && at < first + n; at++)
        drawn[at - first] = 0;
}

static void draw_range(void *data, size_t begin, size_t n)
{
    const struct draw *d = data;
    const struct model_piece *piece = d->piece;
    const struct model_tensor *tensor = &d->store->model->tensors[piece->tensor];
    float drawn[1024];

    for (size_t at = begin, now; at < begin + n; at += now) {
        if ((at - begin) % DRAWN == 0 && pieces_note(d->store->options.pieces) != 0)
            return;
        now = begin + n - at < sizeof drawn / sizeof *drawn ? begin + n - at : sizeof drawn / sizeof *drawn;
        const struct parameters p = store_parameters(d->store, d->unit, piece->offset + at, now, 0);
        if (tensor->init == MODEL_INIT_NORMAL)
            random_normal(drawn, d->key, piece->tensor, piece->first_row * tensor->shape[1] + at, now);
        for (size_t i = 0; i < now; i++)
            drawn[i] = tensor->init == MODEL_INIT_NORMAL ? drawn[i] * tensor->deviation
                                                         : (tensor->init == MODEL_INIT_ONE ? 1 : 0);
        clear_padding(drawn, d->store->model, piece->tensor, piece->first_row * tensor->shape[1] + at, now);
        optimizer_write(&p, drawn, NULL, NULL);
    }
}

void store_draw_piece(struct store *store, uint64_t seed, uint32_t unit, const struct model_piece *piece)
{
    struct draw draw = {.store = store,
                        .unit = unit,
                        .piece = piece,
                        .key = random_site_key(seed, 0, 0, RANDOM_WEIGHTS)};

    team_run(piece->n, draw_range, &draw);
}

int store_draw(struct store *store, uint64_t seed)
{
    const struct model *model = store->model;

    for (uint32_t u = 0; u < model->n_units; u++)
        for (uint32_t i = 0; store_keeps(store, u) && i < model->units[u].n_pieces; i++)
            store_draw_piece(store, seed, u, &model->pieces[model->units[u].first_piece + i]);
    store_copy_frozen(store);
    return pieces_are_abandoned(store->options.pieces) ? -ECANCELED : 0;
}

/* A run of elements to be copied, for the threads. */
struct copy {
    struct pieces *pieces;
    char *to;
    const char *from;
    size_t size;
};

static void copy_range(void *data, size_t begin, size_t n)
{
    const struct copy *c = data;

    pieces_copy(c->pieces, c->to + begin * c->size, c->from + begin * c->size, n * c->size);
}

/* The first frozen weight of a unit in one of its buffers. */
static char *find_frozen(const struct store *store, uint32_t unit, uint32_t buffer)
{
    return (char *)store->weights.base + store_weights_at(store, &store->own, unit, buffer) +
           store->model->units[unit].n_trained * number_bytes(store->options.precision);
}

void store_copy_frozen(struct store *store)
{
    for (uint32_t u = 0; store->current && u < store->model->n_units; u++) {
        const struct model_unit *unit = &store->model->units[u];
        const uint32_t buffer = store_buffer(store, u, false);
        if (unit->n_trained == 0 || !store_keeps(store, u))
            continue;
        struct copy copy = {.pieces = store->options.pieces,
                            .to = find_frozen(store, u, !buffer),
                            .from = find_frozen(store, u, buffer),
                            .size = number_bytes(store->options.precision)};
        team_run(unit->n - unit->n_trained, copy_range, &copy);
    }
}
