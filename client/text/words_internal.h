/* client/text/words_internal.h - words with their counts: words.c counts them, merges.c merges them. */
#ifndef CLIENT_TEXT_WORDS_INTERNAL_H
#define CLIENT_TEXT_WORDS_INTERNAL_H

#include "client/text/tokenizer/characters/pattern.h"

#include <stddef.h>
#include <stdint.h>

struct word {
    size_t at;     /* offset of its first byte in `bytes` */
    uint32_t n;    /* bytes; while merging, tokens */
    int64_t count; /* occurrences */
};

struct client_words {
    struct tokenizer_pattern *pattern; /* cuts text into words */
    struct tokenizer_matcher matcher;
    struct word *words; /* (n, cap) */
    size_t n, cap;
    uint32_t *table; /* (mask + 1): 1 + the word's index, by the hash of its bytes; 0: empty */
    size_t mask;
    uint8_t *bytes; /* (n_bytes, cap_bytes) bytes of all words */
    size_t n_bytes, cap_bytes;
};

#endif
