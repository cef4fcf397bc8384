/* client/text/words.h - learns the merges of a tokenizer from words, by byte-pair encoding.
 *
 * GPT-2's pattern cuts the text into words. Each word starts as a list of bytes. The most frequent pair of neighbours
 * becomes a token wherever it occurs; this repeats until the vocabulary is full or no pair occurs twice. Of equally
 * frequent pairs, the one with the lower ids merges first.
 *
 * Source: Sennrich, Haddow, Birch, arXiv:1508.07909, algorithm 1. Hugging Face's BpeTrainer with min_frequency 2 gives
 * the same merges in the same order. */
#ifndef CLIENT_TEXT_WORDS_H
#define CLIENT_TEXT_WORDS_H

#include "proto/base/watch.h"
#include "proto/base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Words with their counts. */
struct client_words;

/* -ENOMEM. Undo: client_words_close, which takes NULL. */
int client_words_open(struct client_words **out, struct error *err);
void client_words_close(struct client_words *words);

/* Counts the words of text (n bytes of UTF-8, whole characters). last: no text follows. Otherwise words that more text
 * could change are left for the next call, and *used is where they begin. -EINVAL, -ENOMEM. */
int client_words_count(struct client_words *words, size_t *used, const char *text, size_t n, bool last,
                       struct error *err);

/* Token left followed by token right becomes token id. */
struct client_token_merge {
    uint32_t left, right, id;
};

/* Learns merges; call it once. bytes (256) gives each byte's token id, all below first. New ids run from first to
 * n_tokens - 1. A merge that gives the same bytes as an earlier one gets its id. *out (*n) is owned: free. -ENOMEM, or
 * the watch's error (NULL: no watch). */
int client_words_merge(struct client_token_merge **out, size_t *n, struct client_words *words,
                       const uint32_t bytes[256], uint32_t first, uint32_t n_tokens, const struct client_watch *watch,
                       struct error *err);

#endif
