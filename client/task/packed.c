#include "client/task/packed.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

/* Places in an epoch. A document has as many as its share's weight. */
static int count_places(uint32_t *out, const struct client_packed_options *o, struct error *err)
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

static void list_places(struct client_packed *p, const struct client_packed_options *o)
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
    int rc = count_places(&out->n, o, err);
    if (rc)
        return rc;
    assert(out->n > 0);
    uint32_t *lengths = calloc(out->n, sizeof *lengths);
    out->list = calloc(out->n, sizeof *out->list);
    if (lengths && out->list) {
        list_places(out, o);
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
    uint32_t *positions = row->at[CLIENT_FIELD_POSITIONS];
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
