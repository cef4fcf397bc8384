/* transformers removes tokens one by one from the longer text; cut_pair is where that ends. Equal texts lose theirs
 * first from the first one, as in the tokenizers library. Rows are cut and written from the same numbers, so no token
 * of a text is read that is not written. */
#include "client/corpus/pairs.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

int client_pairs_init(struct client_pairs *out, const struct client_tokenizer *tokenizer, struct error *err)
{
    const struct client_pair *pair = client_tokenizer_pair(tokenizer);
    size_t n[2];
    const uint32_t *around[2] = {client_tokenizer_begins(tokenizer, &n[0]), client_tokenizer_ends(tokenizer, &n[1])};

    *out = (struct client_pairs){.has_pair = pair != NULL};
    if (pair)
        out->pair = *pair;
    for (int side = 0; side < 2; side++) {
        if (n[side] > CLIENT_PAIR_MOST)
            return error_set(err, -EINVAL, "tokenizer.json: its post-processor puts %zu tokens %s a text, more than %d",
                             n[side], side ? "after" : "before", CLIENT_PAIR_MOST);
        out->n[side] = (uint32_t)n[side];
        for (size_t i = 0; i < n[side]; i++)
            out->ids[side][i] = around[side][i];
    }
    return 0;
}

uint32_t client_pairs_added(const struct client_pairs *pairs, bool paired)
{
    return paired ? pairs->pair.n[0] + pairs->pair.n[1] + pairs->pair.n[2] : pairs->n[0] + pairs->n[1];
}

/* Cuts two texts to the room. The shorter one is kept whole while it leaves the other at least as much; else each has
 * half of the room, and the longer one, or of equal ones the second, the odd token. */
static void cut_pair(uint32_t n[2], uint32_t room)
{
    const unsigned shorter = n[0] > n[1], longer = 1 - shorter;

    if (n[0] <= room && n[1] <= room - n[0])
        return;
    if (n[shorter] <= room / 2) {
        n[longer] = room - n[shorter];
        return;
    }
    n[shorter] = room / 2;
    n[longer] = room - room / 2;
}

struct client_texts client_pairs_cut(const struct client_pairs *pairs, struct client_texts texts, uint32_t seq)
{
    const uint32_t added = client_pairs_added(pairs, texts.paired), room = seq - added;

    assert(seq > added);
    if (texts.paired)
        cut_pair(texts.n, room);
    else if (texts.n[0] > room)
        texts.n[0] = room;
    return texts;
}

static uint32_t *pairs_append(uint32_t *out, const uint32_t *ids, uint32_t n)
{
    if (n > 0) /* ids of an empty text may be NULL */
        memcpy(out, ids, n * sizeof *ids);
    return out + n;
}

uint32_t client_pairs_write(uint32_t *ids, uint32_t *second, const struct client_pairs *pairs,
                            struct client_texts texts, const uint32_t *const tokens[2], uint32_t seq)
{
    const struct client_texts left = client_pairs_cut(pairs, texts, seq);
    const struct client_pair *pair = &pairs->pair;
    uint32_t *at =
        pairs_append(ids, texts.paired ? pair->ids[0] : pairs->ids[0], texts.paired ? pair->n[0] : pairs->n[0]);

    at = pairs_append(at, tokens[0], left.n[0]);
    const uint32_t first = (uint32_t)(at - ids);
    at = pairs_append(at, texts.paired ? pair->ids[1] : pairs->ids[1], texts.paired ? pair->n[1] : pairs->n[1]);
    if (texts.paired) {
        at = pairs_append(at, tokens[1], left.n[1]);
        at = pairs_append(at, pair->ids[2], pair->n[2]);
    }
    *second = texts.paired && pair->has_second ? first + pair->n_first : (uint32_t)(at - ids);
    return (uint32_t)(at - ids);
}
