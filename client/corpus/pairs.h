/* client/corpus/pairs.h - one text, or two, as a row of tokens: with the tokenizer's own special tokens around them, cut
 * to the row's length.
 *
 * Texts that are too long are cut at their ends as transformers cuts them with truncation=True ("longest_first"): the
 * longer of the two first, until both have half of the room. */
#ifndef CLIENT_CORPUS_PAIRS_H
#define CLIENT_CORPUS_PAIRS_H

#include "client/text/tokenizer.h"
#include "proto/base/error.h"

#include <stdbool.h>
#include <stdint.h>

struct client_pairs {
    uint32_t ids[2][CLIENT_PAIR_MOST], n[2]; /* around a single text */
    bool has_pair;
    struct client_pair pair;
};

/* Copies what the tokenizer puts around texts. -EINVAL if that are more than a few tokens. */
int client_pairs_init(struct client_pairs *out, const struct client_tokenizer *tokenizer, struct error *err);

/* Tokens of the texts, before the tokenizer's own are added. */
struct client_texts {
    uint32_t n[2];
    bool paired; /* there is a second text, maybe empty; only if has_pair */
};

/* Tokens that the tokenizer adds. A row must be longer. */
uint32_t client_pairs_added(const struct client_pairs *pairs, bool paired);

/* What is left of the texts in a row of at most seq tokens. */
struct client_texts client_pairs_cut(const struct client_pairs *pairs, struct client_texts texts, uint32_t seq);

/* Writes the row into ids (seq); tokens (2): the texts' beginnings, as many as client_pairs_cut leaves. *second: the
 * first token of segment 1, or the row's length. Returns the row's length. */
uint32_t client_pairs_write(uint32_t *ids, uint32_t *second, const struct client_pairs *pairs,
                            struct client_texts texts, const uint32_t *const tokens[2], uint32_t seq);

#endif
