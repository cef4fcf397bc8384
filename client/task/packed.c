/* A place is a document in an epoch: one of weight 2 has two, and the packing knows places alone. Rows to train on are
 * packed as soon as the data are read, since their number decides the run's steps, and --pack takes whole weights only,
 * since the packing serves every epoch. Held-out rows follow with the division, which says how many documents are
 * evaluated. Steps ask for their tokens one after the other, so the sum of rows goes on from the last answer. */
#include "client/task/packed.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

/* Places in an epoch. A document has as many as its share's weight. */
static int packed_count_places(uint32_t *out, const struct client_packed_options *o, struct error *err)
{
    uint64_t n = o->n_shares > 0 ? 0 : o->subset->n;

    for (size_t i = 0; i < o->n_shares; i++) {
        const struct client_share *share = &o->shares[i];
        if (share->weight < 1 || share->weight != floor(share->weight))
            return error_set(
                err, -EINVAL,
                "--pack takes a file a whole number of times in each epoch, not %g: give whole weights, or "
                "leave out --pack",
                share->weight);
        n += client_share_rows(share);
    }
    if (n > UINT32_MAX / 2)
        return error_set(err, -EINVAL, "an epoch of %" PRIu64 " conversations is too long: give lower weights", n);
    *out = (uint32_t)n;
    return 0;
}

static void packed_list_places(struct client_packed *p, const struct client_packed_options *o)
{
    const struct client_share all = {.n = o->subset->n, .weight = 1};
    const struct client_share *shares = o->n_shares > 0 ? o->shares : &all;
    uint32_t n = 0;

    for (size_t s = 0; s < (o->n_shares > 0 ? o->n_shares : 1); s++)
        for (uint32_t i = 0; i < client_share_rows(&shares[s]); i++)
            p->list[n++] = o->subset->list[shares[s].first + i % shares[s].n];
    assert(n == p->n);
}

int client_packed_init(struct client_packed *out, const struct client_packed_options *o, struct error *err)
{
    *out = (struct client_packed){.documents = o->documents, .seq = o->seq};
    int rc = packed_count_places(&out->n, o, err);
    if (rc)
        return rc;
    assert(out->n > 0);
    uint32_t *lengths = calloc(out->n, sizeof *lengths);
    out->list = calloc(out->n, sizeof *out->list);
    if (lengths && out->list) {
        packed_list_places(out, o);
        for (uint32_t i = 0; i < out->n; i++)
            lengths[i] = client_documents_length(o->documents, out->list[i], o->seq);
        rc = client_packing_init(&out->packing, lengths, out->n, o->seq, o->order, o->seed, err);
    } else {
        rc = error_memory(err);
    }
    free(lengths);
    return rc;
}

void client_packed_free(struct client_packed *packed)
{
    client_packing_free(&packed->packing);
    free(packed->list);
    *packed = (struct client_packed){0};
}

int client_packed_get(const struct client_packed *p, const struct client_row_fields *row, uint32_t *work, uint32_t k,
                      struct error *err)
{
    uint32_t *positions = row->at[PLAN_FIELD_POSITIONS];
    const uint32_t *places;
    uint32_t n, at = 0;
    int rc = 0;

    client_packing_get(&places, &n, &p->packing, k);
    for (uint32_t i = 0; !rc && i < n; i++) {
        const uint32_t document = p->list[places[i]];
        const uint32_t length = client_documents_length(p->documents, document, p->seq);
        assert(at + length <= row->n_tokens);
        rc = client_documents_get(p->documents, row, at, work, document, p->seq, err);
        for (uint32_t t = 0; t < length; t++)
            positions[at + t] = t;
        at += length;
    }
    return rc;
}

uint64_t client_packed_tokens(const struct client_packed *p)
{
    return client_packing_tokens(&p->packing, p->packing.n_rows);
}

static uint32_t tokens_at(const struct client_packed *p, uint64_t k)
{
    return p->packing.tokens[client_packing_row(&p->packing, k)];
}

uint64_t client_packed_tokens_before(struct client_packed *p, uint64_t n)
{
    const uint64_t from = p->counted.n_rows, distance = n > from ? n - from : from - n;

    if (distance > p->packing.n_rows) {
        p->counted.n_rows = n;
        p->counted.n_tokens = client_packing_tokens(&p->packing, n);
    }
    for (; p->counted.n_rows < n; p->counted.n_rows++)
        p->counted.n_tokens += tokens_at(p, p->counted.n_rows);
    for (; p->counted.n_rows > n; p->counted.n_rows--)
        p->counted.n_tokens -= tokens_at(p, p->counted.n_rows - 1);
    return p->counted.n_tokens;
}

/* ---- The order ---- */

static const struct client_packing *packed_packing_of(const struct client_source *source, enum client_part part)
{
    return &((const struct client_packed_rows *)source)->packed[part].packing;
}

const struct client_packed *client_packed_of(const struct client_source *source)
{
    assert(source->ops->order == &client_packed_order);
    return &((const struct client_packed_rows *)source)->packed[CLIENT_TRAIN];
}

int client_packed_settle(struct client_source *source, const struct client_source_rules *rules, struct error *err)
{
    struct client_packed_rows *p = (struct client_packed_rows *)source;
    const struct client_listed *l = &p->rows;

    if (l->subsets[CLIENT_TRAIN].n == 0)
        return 0;
    return client_packed_init(&p->packed[CLIENT_TRAIN],
                              &(struct client_packed_options){.documents = &l->corpus[CLIENT_TRAIN],
                                                              .subset = &l->subsets[CLIENT_TRAIN],
                                                              .shares = l->shares,
                                                              .n_shares = l->n_shares,
                                                              .seq = l->seq,
                                                              .order = rules->order ? rules->order : EPS_SHUFFLED,
                                                              .seed = rules->seed},
                              err);
}

static void packed_init(struct client_source *source)
{
    client_listed_order.init(source);
}

/* Chooses the held-out documents that are evaluated as a list of them would, and packs these. Both are settled here:
 * which documents fill the rows depends on which are evaluated. */
static int packed_divide(struct client_source *source, const struct client_division *d, struct error *err)
{
    struct client_packed_rows *p = (struct client_packed_rows *)source;
    const struct client_listed *l = &p->rows;
    const struct client_division held_out = {.seq = d->seq, .eval_tokens = d->eval_tokens};
    struct client_subset evaluated;
    int rc = client_listed_order.divide(source, &held_out, err);

    if (rc)
        return rc;
    rc = client_subset_init(&evaluated, l->subsets[CLIENT_HELD_OUT].lengths, l->n_held_out, err);
    for (; !rc && evaluated.n < l->n_held_out; evaluated.n++)
        evaluated.list[evaluated.n] = (uint32_t)client_listed_order.pick_held_out(source, evaluated.n).id;
    if (!rc)
        rc = client_packed_init(
            &p->packed[CLIENT_HELD_OUT],
            &(struct client_packed_options){.documents = &l->corpus[client_listed_data(source, CLIENT_HELD_OUT)],
                                            .subset = &evaluated,
                                            .seq = l->seq,
                                            .order = EPS_SHUFFLED,
                                            .seed = d->seed},
            err);
    client_subset_free(&evaluated);
    return rc;
}

static uint64_t packed_n_rows(const struct client_source *source, enum client_part part)
{
    return packed_packing_of(source, part)->n_rows;
}

static uint64_t packed_n_entries(const struct client_source *source)
{
    return client_listed_order.n_entries(source);
}

static uint64_t packed_tokens(struct client_source *source, uint64_t step, uint64_t n_before)
{
    (void)step;
    return client_packed_tokens_before(&((struct client_packed_rows *)source)->packed[CLIENT_TRAIN], n_before);
}

static uint32_t packed_pick(struct client_sample *out, struct client_source *source, uint64_t step, uint64_t n_before)
{
    (void)step;
    for (uint32_t i = 0; i < source->batch; i++)
        out[i] =
            (struct client_sample){.id = client_packing_row(packed_packing_of(source, CLIENT_TRAIN), n_before + i)};
    return source->batch;
}

static struct client_sample packed_pick_held_out(const struct client_source *source, uint64_t k)
{
    (void)source;
    return (struct client_sample){.id = k};
}

static uint64_t packed_progress(const struct client_source *source, uint64_t n)
{
    uint64_t n_tokens = 0;

    for (uint64_t k = 0; k < n; k++)
        n_tokens += packed_packing_of(source, CLIENT_HELD_OUT)->tokens[k];
    return n_tokens;
}

static uint32_t packed_length(const struct client_source *source, enum client_part part,
                              const struct client_sample *samples, uint32_t n)
{
    uint32_t longest = 1;

    for (uint32_t i = 0; i < n; i++) {
        const uint32_t own = packed_packing_of(source, part)->tokens[samples[i].id];
        longest = own > longest ? own : longest;
    }
    return client_batches_length(longest, source->seq);
}

static void packed_close_order(struct client_source *source)
{
    struct client_packed_rows *p = (struct client_packed_rows *)source;

    for (enum client_part part = CLIENT_TRAIN; part <= CLIENT_HELD_OUT; part++)
        client_packed_free(&p->packed[part]);
    client_listed_order.close(source);
}

const struct client_order client_packed_order = {
    .init = packed_init,
    .divide = packed_divide,
    .n_rows = packed_n_rows,
    .n_entries = packed_n_entries,
    .tokens = packed_tokens,
    .pick = packed_pick,
    .pick_held_out = packed_pick_held_out,
    .progress = packed_progress,
    .length = packed_length,
    .close = packed_close_order,
};
