/* client/text/words.h - the words of a text, and the tokens that byte-pair encoding makes of them.
 *
 * GPT-2's pattern cuts the text into words. Each word is a list of tokens, at first its bytes. The pair of neighbours
 * that occurs most often becomes a token wherever it occurs, and so on, until there are as many tokens as asked for or
 * no pair is left that occurs twice. Of equally frequent pairs, the one with the lower ids is merged first.
 *
 * Source: Sennrich, Haddow, Birch, arXiv:1508.07909, algorithm 1. Hugging Face's BpeTrainer with min_frequency 2 gives
 * the same merges in the same order. */
#ifndef CLIENT_TEXT_WORDS_H
#define CLIENT_TEXT_WORDS_H

#include "client/daemon/watch.h"
#include "proto/base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct client_words;

/* -ENOMEM. Undo: client_words_close, which takes NULL. */
int client_words_open(struct client_words **out, struct error *err);
void client_words_close(struct client_words *words);

/* Counts the words of text (n bytes of UTF-8, whole characters). last: no text follows; otherwise the words that
 * following text could change are left for the next call, and *used is where they begin. -EINVAL, -ENOMEM. */
int client_words_count(struct client_words *words, size_t *used, const char *text, size_t n, bool last,
                       struct error *err);

/* Token left followed by token right becomes token id. */
struct client_merge {
    uint32_t left, right, id;
};

/* bytes (256) gives the token of each byte, ids below first. New tokens are numbered from first on, below n_tokens; a
 * merge whose bytes another merge has made already gets that one's id. *out (*n) is owned: free. Once. -ENOMEM, or what
 * the watch (NULL: none) says. */
int client_words_merge(struct client_merge **out, size_t *n, struct client_words *words, const uint32_t bytes[256],
                       uint32_t first, uint32_t n_tokens, const struct client_watch *watch, struct error *err);

#endif
