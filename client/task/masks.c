/* The tokenizer is closed once it has told which ids are special: rows are drawn from a table, for the whole run. One
 * quad of words decides all of a token: whether it is chosen, what becomes of it, and by which other one it is
 * replaced. So no draw depends on another token's, and the lowest draw of a row is drawn again, not remembered. Random
 * tokens are those of the tokenizer, not of the vocabulary, whose last rows may be there for alignment and stand for no
 * text. */
#include "client/task/masks.h"

#include "client/text/tokenizer.h"
#include "proto/wire/message.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

int client_masks_open(struct client_masks *out, const json_t *side, const char *model_type, uint32_t vocabulary,
                      struct error *err)
{
    struct client_tokenizer *tokenizer;
    int rc = client_tokenizer_open(&tokenizer, side, model_type, vocabulary, err);

    *out = (struct client_masks){.mask = CLIENT_NO_TOKEN};
    if (tokenizer)
        out->mask = client_tokenizer_mask(tokenizer), out->n_ids = client_tokenizer_n_ids(tokenizer);
    if (!rc && !tokenizer)
        rc = client_tokenizer_refuse_unread(side, err);
    if (!rc && out->mask == CLIENT_NO_TOKEN)
        rc =
            error_set(err, -EINVAL,
                      "the model predicts masked tokens, and %s: put the tokenizer.json and tokenizer_config.json that "
                      "belong to the model beside its config.json",
                      tokenizer && !client_tokenizer_is_bytes(tokenizer)
                          ? "its tokenizer has no mask token, such as [MASK] or <mask>"
                          : "it has no tokenizer to name the mask token");
    if (!rc)
        rc = client_tokenizer_check(tokenizer, out->mask, err);
    out->special = rc ? NULL : calloc(vocabulary, sizeof *out->special);
    if (!rc && !out->special)
        rc = error_memory(err);
    for (uint32_t id = 0; !rc && id < out->n_ids; id++)
        out->special[id] = id == out->mask || client_tokenizer_is_special(tokenizer, id);
    client_tokenizer_close(tokenizer);
    if (rc)
        *out = (struct client_masks){0};
    return rc;
}

void client_masks_close(struct client_masks *masks)
{
    free(masks->special);
    *masks = (struct client_masks){0};
}

int client_masks_check(double fraction, struct error *err)
{
    return fraction > 0 && fraction < 1
               ? 0
               : error_set(err, -EDOM, "--mask-fraction %g is not above 0 and below 1", fraction);
}

void client_masks_set(struct client_masks *masks, double fraction, uint64_t seed)
{
    assert(fraction > 0 && fraction < 1);
    masks->threshold = (uint32_t)(fraction * 0x1p32);
    for (unsigned unit = 0; unit < 2; unit++)
        masks->keys[unit] = random_site_key(seed, 0, unit, RANDOM_MASKS);
}

/* word (4): the draw of token i. */
static void masks_choose(const struct client_masks *masks, uint32_t *ids, uint32_t *labels, uint32_t i,
                         const uint32_t *word)
{
    const uint32_t to_mask = (uint32_t)(0.8 * 0x1p32), to_random = (uint32_t)(0.9 * 0x1p32);

    labels[i] = ids[i];
    if (word[1] < to_mask)
        ids[i] = masks->mask;
    else if (word[1] < to_random)
        ids[i] = (uint32_t)((uint64_t)word[2] * masks->n_ids >> 32);
}

void client_masks_draw(const struct client_masks *masks, uint32_t *ids, uint32_t *labels, uint32_t first, uint32_t n,
                       bool evaluates, uint64_t row)
{
    const struct random_key key = masks->keys[evaluates];
    uint32_t word[4], lowest = UINT32_MAX, at = n;
    bool any = false;

    for (uint32_t i = 0; i < n; i++) {
        labels[i] = PLAN_NO_LABEL;
        if (i < first || masks->special[ids[i]])
            continue;
        random_quad(word, key, row, i);
        if (at == n || word[0] < lowest)
            lowest = word[0], at = i;
        if (word[0] >= masks->threshold)
            continue;
        masks_choose(masks, ids, labels, i, word);
        any = true;
    }
    if (any || at == n)
        return;
    random_quad(word, key, row, at);
    masks_choose(masks, ids, labels, at, word);
}
