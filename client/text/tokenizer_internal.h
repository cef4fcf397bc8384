/* client/text/tokenizer_internal.h - a tokenizer's parts: tokens by id, merges, the pattern, and room to work in. */
#ifndef CLIENT_TEXT_TOKENIZER_INTERNAL_H
#define CLIENT_TEXT_TOKENIZER_INTERNAL_H

#define PCRE2_CODE_UNIT_WIDTH 8
#include "client/text/tokenizer.h"

#include <pcre2.h>

struct tokenizer_token {
    char *text; /* (n) bytes, in the tokenizer's block; NULL: there is no token of this id */
    size_t n;
};

/* left and right become id; lower ranks go first. */
struct tokenizer_merge {
    uint32_t left, right, rank, id; /* rank UINT32_MAX: an empty place of the table */
};

/* A text that is a token wherever it stands, and whether it takes the blanks beside it along. */
struct tokenizer_added {
    char *text; /* (n), owned */
    size_t n;
    uint32_t id;
    bool lstrip, rstrip;
};

struct tokenizer_set {
    struct tokenizer_added *tokens; /* (n), longest first */
    size_t n, longest;              /* longest: bytes */
    bool begins[256];               /* one of them, with this byte */
    bool lstrip;                    /* any of them */
};

/* A word and its tokens, found again by the word's hash; one replaces another. Most words of a text are short and
 * frequent: a table of 2^15 such entries (1.8 MB) answers for 9 of 10. */
struct tokenizer_word {
    uint8_t n_bytes, n_ids; /* 0 bytes: none */
    uint8_t bytes[22];
    uint32_t ids[8];
};

enum { TOKENIZER_CACHE_BITS = 15 };

/* What one word is joined in: its tokens as a list, and the pairs that may be joined as a heap. */
struct tokenizer_work {
    uint32_t *ids, *next, *prev; /* (cap) */
    struct tokenizer_pair {
        uint64_t order; /* rank << 32 | place of the left one */
        uint32_t id;    /* that it becomes */
    } * heap;           /* (3 * cap) */
    size_t cap, n_heap;
};

struct client_tokenizer {
    bool is_bytes;
    struct tokenizer_token *tokens; /* (n_tokens), by id */
    uint32_t n_tokens;
    char *block;         /* of all tokens' bytes */
    uint32_t bytes[256]; /* the token of each byte */
    uint32_t end;
    struct tokenizer_set added[2];  /* matched as they are; matched after normalising, which changes nothing here */
    struct tokenizer_merge *merges; /* (merge_mask + 1) */
    size_t merge_mask, n_merges;
    json_t *whole; /* vocabulary of the words that are taken whole whatever the merges say (ignore_merges), or NULL */
    pcre2_code *pattern;
    pcre2_match_data *match;
    struct tokenizer_word *cache; /* (1 << TOKENIZER_CACHE_BITS) */
    struct tokenizer_work work;
};

/* Fills in everything but pattern, from side files. As client_tokenizer_open; *pattern is the text of the expression
 * that splits, owned. */
int tokenizer_load_json(struct client_tokenizer *t, char **pattern, const char *text, size_t n, uint32_t vocabulary,
                        struct error *err);
int tokenizer_load_gpt2(struct client_tokenizer *t, char **pattern, const json_t *side, uint32_t vocabulary,
                        struct error *err);

/* Tokens by id and merges, from a vocabulary {"token": id, ...} and merges ["a b", ...] or [["a", "b"], ...], both in
 * the letters that stand for bytes, and added tokens {"text": id, ...} in letters of their own. */
int tokenizer_build(struct client_tokenizer *t, json_t *vocabulary, json_t *merges, json_t *added, uint32_t n_ids,
                    struct error *err);

/* The letter that stands for a byte, as UTF-8, not terminated: GPT-2's table, in which no byte is a blank. Returns its
 * length, 1 or 2. */
unsigned tokenizer_letter(char out[3], unsigned byte);

/* Added tokens, from a list as tokenizer.json has it; their ids have been checked. -EINVAL, -ENOMEM. */
int tokenizer_added_open(struct client_tokenizer *t, const json_t *list, struct error *err);
void tokenizer_added_close(struct client_tokenizer *t);

/* As client_tokenizer_encode, of whole characters. */
int tokenizer_encode_text(struct client_tokens *out, size_t *used, struct client_tokenizer *t, const char *text,
                          size_t n, bool last, struct error *err);

/* Each byte is a token of its value, and nothing is ever joined: what is read as text is its tokens. */
bool tokenizer_is_bytes(const struct client_tokenizer *t);

/* GPT-2's pattern. */
extern const char tokenizer_gpt2_pattern[];

/* Compiles an expression as Oniguruma or Rust write it, as far as it means the same here. -EINVAL. */
int tokenizer_split_open(struct client_tokenizer *t, const char *pattern, struct error *err);

/* The end of the word that begins at `at` (< n), a character's beginning in text (n bytes of UTF-8): *end. 1 if there is
 * one, 0 if it cannot be known without what follows; then last is false. -EINVAL. */
int tokenizer_split(const struct client_tokenizer *t, const char *text, size_t n, size_t at, bool last, size_t *end,
                    struct error *err);

/* An empty table for n merges; and one more of them. */
int tokenizer_merges_init(struct client_tokenizer *t, size_t n, struct error *err);
void tokenizer_merges_add(struct client_tokenizer *t, const struct tokenizer_merge *merge);

/* NULL, or the merge of the two. */
const struct tokenizer_merge *tokenizer_find_merge(const struct client_tokenizer *t, uint32_t left, uint32_t right);

#endif
