/* client/text/tokenizer.h - text into tokens and back: byte-level BPE, as GPT-2's.
 *
 * A pattern cuts text into words; a word's bytes are joined pair by pair, the pair first that the merges name first.
 * Every byte is a token, so every text has tokens, and joining tokens' bytes gives the text back.
 * Read from a model's side files: tokenizer.json of Hugging Face's tokenizers (model BPE, pre-tokenizer ByteLevel, or
 * Split by a regular expression and ByteLevel), or GPT-2's own vocab.json and merges.txt. Without either, a model of
 * a vocabulary of 256 is one of bytes: a byte is a token.
 *
 * Added tokens, special ones among them, are tokens wherever their text stands, as Hugging Face's tokenizers has it: in
 * data and in prompts. Text that must not end another's has to be without them.
 *
 * Sources: BPE - Sennrich, Haddow, Birch, arXiv:1508.07909. Bytes - Radford et al. 2019, section 2.2. */
#ifndef CLIENT_TEXT_TOKENIZER_H
#define CLIENT_TEXT_TOKENIZER_H

#include "proto/base/error.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct client_tokenizer; /* for one thread at a time */

enum { CLIENT_TOKENIZER_MAX_WORD = 16 << 20 }; /* bytes that the pattern leaves in one piece */

#define CLIENT_NO_TOKEN UINT32_MAX

/* The tokenizer in a model's side files (client/model/side.h; may be NULL); *out is NULL, with 0, if there is none and the
 * vocabulary is not 256. vocabulary is the model's: token ids must be below it, and may be fewer. -EINVAL with a
 * sentence that names the file and what is not supported or wrong, -ENOMEM. */
int client_tokenizer_open(struct client_tokenizer **out, const json_t *side, uint32_t vocabulary, struct error *err);
void client_tokenizer_close(struct client_tokenizer *tokenizer); /* NULL is safe */

/* A byte is a token: there is nothing to do. */
bool client_tokenizer_is_bytes(const struct client_tokenizer *tokenizer);

/* Adds to a model's side files those of a tokenizer of bytes: tokenizer.json and tokenizer_config.json. -ENOMEM. */
int client_tokenizer_add_bytes(json_t *side, uint32_t n_positions, struct error *err);

/* A learned tokenizer's ids: bytes in GPT-2's order, its <|endoftext|>, then the tokens of merges. */
enum { CLIENT_TOKENIZER_END = 256, CLIENT_TOKENIZER_LEARNED };

void client_tokenizer_order(uint32_t ids[256]); /* of the bytes */

struct client_merge;

/* The same two files for n merges (client/text/words.h) in that numbering, none of whose halves comes after it. -ENOMEM. */
int client_tokenizer_add_learned(json_t *side, const struct client_merge *merges, size_t n, uint32_t n_positions,
                                 struct error *err);

struct client_tokens {
    uint32_t *ids; /* (n), owned: free */
    size_t n, cap;
};

/* Appends ids. -ENOMEM. */
int client_tokens_add(struct client_tokens *out, const uint32_t *ids, size_t n, struct error *err);

/* Appends the tokens of text (n bytes) to *out, which may begin zeroed. last: nothing follows, and all is used; else the
 * words that more text could change are left, *used says from where: call again with them and what follows. -EINVAL:
 * not UTF-8 (for a model of bytes anything goes), or a word longer than the limit; -ENOMEM. */
int client_tokenizer_encode(struct client_tokens *out, size_t *used, struct client_tokenizer *tokenizer,
                            const char *text, size_t n, bool last, struct error *err);

/* The same for bytes that are one word whatever they are, such as half a character. */
int client_tokenizer_encode_word(struct client_tokens *out, struct client_tokenizer *tokenizer, const char *bytes,
                                 size_t n, struct error *err);

/* The bytes of a token (*n of them, not terminated), borrowed from the tokenizer: a character may lie across several
 * tokens. NULL if there is no token of this id. */
const char *client_tokenizer_decode(const struct client_tokenizer *tokenizer, uint32_t id, size_t *n);

/* The token that ends a text: what generation_config.json, tokenizer_config.json or special_tokens_map.json name, else
 * <|endoftext|>; CLIENT_NO_TOKEN if there is none. */
uint32_t client_tokenizer_end(const struct client_tokenizer *tokenizer);

#endif
