/* client/text/tokenizer_internal.h - a tokenizer's parts: tokens by id, merges, the pattern, and working memory; and
 * the words that one is learned from. */
#ifndef CLIENT_TEXT_TOKENIZER_INTERNAL_H
#define CLIENT_TEXT_TOKENIZER_INTERNAL_H

#include "client/text/tokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

struct tokenizer_token {
    char *text; /* (n) bytes, in the tokenizer's block; NULL: this id has no token */
    size_t n;
};

/* left and right merge into id; lower ranks merge first. */
struct tokenizer_merge {
    uint32_t left, right, rank, id; /* rank UINT32_MAX: an empty slot of the table */
};

/* A text that is a token wherever it occurs; lstrip and rstrip absorb the whitespace before and after it. */
struct tokenizer_added {
    char *text; /* (n), owned */
    size_t n;
    uint32_t id;
    bool lstrip, rstrip;
};

struct tokenizer_set {
    struct tokenizer_added *tokens; /* (n), longest first */
    size_t n, longest;              /* longest: bytes of the longest one */
    bool begins[256];               /* a token begins with this byte */
    bool lstrip;                    /* at least one has lstrip */
};

/* Cache of words and their tokens, indexed by the word's hash; a new word replaces the old one. Most words of a text
 * are short and frequent: 2^15 entries (1.8 MB) serve 9 of 10. */
struct tokenizer_word {
    uint8_t n_bytes, n_ids; /* n_bytes 0: empty */
    uint8_t bytes[22];
    uint32_t ids[8];
};

enum { TOKENIZER_CACHE_BITS = 15 };

/* Working memory for merging one word: its tokens as a linked list, and a heap of the pairs that can merge. */
struct tokenizer_work {
    uint32_t *ids, *next, *prev; /* (cap) */
    struct tokenizer_pair {
        uint64_t order; /* rank << 32 | position of the left token */
        uint32_t id;    /* the merged token */
    } * heap;           /* (3 * cap) */
    size_t cap, n_heap;
};

struct client_tokenizer {
    bool is_bytes;
    struct tokenizer_token *tokens; /* (n_tokens), by id */
    uint32_t n_tokens;
    char *block;         /* bytes of all tokens */
    uint32_t bytes[256]; /* the token of each byte */
    uint32_t end;
    struct tokenizer_set added[2];  /* matched as they are; matched after normalisation, which is the identity here */
    struct tokenizer_merge *merges; /* (merge_mask + 1) */
    size_t merge_mask, n_merges;
    json_t *whole; /* vocabulary to look up whole words in before any merge (ignore_merges), or NULL */
    pcre2_code *pattern;
    pcre2_match_data *match;
    struct tokenizer_word *cache; /* (1 << TOKENIZER_CACHE_BITS) */
    struct tokenizer_work work;
};

/* Fills in everything but the compiled pattern from tokenizer.json (n bytes). *pattern is the text of its expression,
 * owned. Errors as client_tokenizer_open. */
int tokenizer_load_json(struct client_tokenizer *t, char **pattern, const char *text, size_t n, uint32_t vocabulary,
                        struct error *err);
int tokenizer_load_gpt2(struct client_tokenizer *t, char **pattern, const json_t *side, uint32_t vocabulary,
                        struct error *err);

/* Builds tokens and merges from a vocabulary {"token": id, ...} and merges ["a b", ...] or [["a", "b"], ...], both in
 * GPT-2's byte letters, and added tokens {"text": id, ...} as plain text. */
int tokenizer_build(struct client_tokenizer *t, json_t *vocabulary, json_t *merges, json_t *added, uint32_t n_ids,
                    struct error *err);

/* The letter that stands for a byte, as UTF-8, not terminated: GPT-2's table, which has no whitespace. Returns its
 * length, 1 or 2. */
unsigned tokenizer_letter(char out[3], unsigned byte);

/* Added tokens from tokenizer.json's list; their ids were checked. -EINVAL, -ENOMEM. */
int tokenizer_added_open(struct client_tokenizer *t, const json_t *list, struct error *err);
void tokenizer_added_close(struct client_tokenizer *t);

/* As client_tokenizer_encode, for whole characters. */
int tokenizer_encode_text(struct client_tokens *out, size_t *used, struct client_tokenizer *t, const char *text,
                          size_t n, bool last, struct error *err);

/* True if each byte is the token of its value and nothing merges: text is then its own tokens. */
bool tokenizer_is_bytes(const struct client_tokenizer *t);

/* GPT-2's regular expression. */
extern const char tokenizer_gpt2_pattern[];

/* Compiles an expression written for Oniguruma or Rust; refuses what has no equivalent in PCRE2. -EINVAL. */
int tokenizer_split_open(struct client_tokenizer *t, const char *pattern, struct error *err);

/* Sets *end to the end of the word that begins at `at` (< n), a character boundary in text (n bytes of UTF-8). Returns
 * 1; 0 if last is false and the end depends on what follows; -EINVAL. */
int tokenizer_split(const struct client_tokenizer *t, const char *text, size_t n, size_t at, bool last, size_t *end,
                    struct error *err);

/* Makes an empty table for n merges. */
int tokenizer_merges_init(struct client_tokenizer *t, size_t n, struct error *err);
void tokenizer_merges_add(struct client_tokenizer *t, const struct tokenizer_merge *merge);

/* The merge of the two tokens, or NULL. */
const struct tokenizer_merge *tokenizer_find_merge(const struct client_tokenizer *t, uint32_t left, uint32_t right);

/* Words with their counts: learn.c counts them, merges.c merges them. */
struct word {
    size_t at;     /* offset of its first byte in `bytes` */
    uint32_t n;    /* bytes; while merging, tokens */
    int64_t count; /* occurrences */
};

struct client_words {
    struct client_tokenizer *splitter; /* a tokenizer that has only its pattern */
    struct word *words;                /* (n, cap) */
    size_t n, cap;
    uint32_t *table; /* (mask + 1): 1 + the word's index, by the hash of its bytes; 0: empty */
    size_t mask;
    uint8_t *bytes; /* (n_bytes, cap_bytes) bytes of all words */
    size_t n_bytes, cap_bytes;
};

#endif
