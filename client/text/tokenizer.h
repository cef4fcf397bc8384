/* client/text/tokenizer.h - text into tokens and back, as Hugging Face's tokenizers do it.
 *
 * A tokenizer is read from a model's side files: tokenizer.json, or GPT-2's vocab.json and merges.txt. It changes the
 * text (normal forms, lower case), cuts it into words by patterns, and makes tokens of each word: by BPE over bytes
 * (GPT-2, Llama 3, Qwen), by BPE over characters with bytes for those it does not know (Llama 2, Mistral, Gemma), by
 * WordPiece (BERT), or by Unigram (T5). What tokenizer.json has beyond that is refused by name. A model with a
 * vocabulary of 256 and no such files is a byte model: each byte is a token.
 *
 * Tokens and switches that only the other files have (tokenizer_config.json, special_tokens_map.json,
 * added_tokens.json) count as in transformers 5. Where it would make another tokenizer of them than tokenizer.json's,
 * they are refused by name.
 *
 * Added tokens, special ones included, are recognised wherever their text occurs, in data and in prompts, as in Hugging
 * Face's tokenizers. Text from an untrusted source is not filtered: remove them first.
 *
 * Sources: BPE - Sennrich, Haddow, Birch, arXiv:1508.07909. Bytes - Radford et al. 2019, section 2.2. */
#ifndef CLIENT_TEXT_TOKENIZER_H
#define CLIENT_TEXT_TOKENIZER_H

#include "proto/base/watch.h"
#include "client/text/utf8.h"
#include "proto/base/error.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct client_tokenizer; /* used by one thread at a time */

enum { CLIENT_TOKENIZER_MAX_WORD = 16 << 20 }; /* bytes: the longest word that a pattern may leave */

#define CLIENT_NO_TOKEN UINT32_MAX

/* Reads the tokenizer in a model's side files (proto/model/file/model_files.h; may be NULL). *out is NULL, with 0, if there
 * is none and the vocabulary is not 256. model_type: config.json's, by which transformers takes a class of tokenizers
 * where tokenizer_config.json names none; NULL: not known. vocabulary is the model's; the id of every token but added
 * ones must be below it. -EINVAL with a sentence that names the file and the fault; -ENOMEM. */
int client_tokenizer_open(struct client_tokenizer **out, const json_t *side, const char *model_type,
                          uint32_t vocabulary, struct error *err);

/* For a model without a tokenizer: -EINVAL with the way out if its side files have one of a kind that is not read, a
 * tokenizer.model or vocab.txt; else 0. */
int client_tokenizer_refuse_unread(const json_t *side, struct error *err);

/* client_tokenizer_open for what cannot do without one: user, as in "conversations need". -EINVAL too if there is
 * none. */
int client_tokenizer_require(struct client_tokenizer **out, const json_t *side, const char *model_type,
                             uint32_t vocabulary, const char *user, struct error *err);
void client_tokenizer_close(struct client_tokenizer *tokenizer); /* NULL is safe */

/* Makes a tokenizer for another thread that shares everything but working memory with this one; close it first.
 * -ENOMEM. */
int client_tokenizer_share(struct client_tokenizer **out, const struct client_tokenizer *tokenizer, struct error *err);

/* The watch is asked while a pattern works long on a text; its error ends the call that encodes. Borrowed; NULL, as at
 * first: never asked. */
void client_tokenizer_watch(struct client_tokenizer *tokenizer, const struct client_watch *watch);

/* True for a byte model: each byte is its own token. */
bool client_tokenizer_is_bytes(const struct client_tokenizer *tokenizer);

/* Adds a byte tokenizer to a model's side files: tokenizer.json and tokenizer_config.json. -ENOMEM. */
int client_tokenizer_add_bytes(json_t *side, uint32_t n_positions, struct error *err);

/* Ids of a learned tokenizer: bytes in GPT-2's order, <|endoftext|>, then one token for each merge. */
enum { CLIENT_TOKENIZER_END = 256, CLIENT_TOKENIZER_LEARNED };

void client_tokenizer_order(uint32_t ids[256]); /* ids of the bytes */

struct client_token_merge;

/* Adds tokenizer.json and tokenizer_config.json for n merges (client/corpus/learn.h) with these ids; a merge must follow
 * the merges of its halves. -ENOMEM. */
int client_tokenizer_add_learned(json_t *side, const struct client_token_merge *merges, size_t n, uint32_t n_positions,
                                 struct error *err);

struct client_tokens {
    uint32_t *ids; /* (n), owned: free */
    size_t n, cap;
};

/* Makes room for n more ids. -ENOMEM. */
int client_tokens_reserve(struct client_tokens *out, size_t n, struct error *err);

/* Appends ids. -ENOMEM. */
int client_tokens_add(struct client_tokens *out, const uint32_t *ids, size_t n, struct error *err);

/* Appends the tokens of text (n bytes) to *out, which may begin zeroed. last: the text ends here and all of it is used.
 * Otherwise the text goes on, and *used is where the next call's bytes begin: pass those that are left again with what
 * follows. Words that more text could change are left, or kept by the tokenizer until the next call. After an error the
 * next call begins a new text, and *used is a place at or before the fault. -EINVAL: invalid UTF-8 (a byte model takes
 * any bytes), a token outside the model's table, or a word over the limit; -ENOMEM; the watch's error. */
int client_tokenizer_encode(struct client_tokens *out, size_t *used, struct client_tokenizer *tokenizer,
                            const char *text, size_t n, bool last, struct error *err);

/* Appends the tokens of arbitrary bytes, taken as one word, such as part of a character. Errors as
 * client_tokenizer_encode. */
int client_tokenizer_encode_word(struct client_tokens *out, struct client_tokenizer *tokenizer, const char *bytes,
                                 size_t n, struct error *err);

/* ---- A text of several hands ----
 *
 * Most of a conversation's text is a template's, whose special tokens count. What users wrote is plain: it may spell a
 * special token, and stays text (tokenizers' encode_special_tokens). A token counts as special only if none of its
 * bytes is plain. */
struct client_place {
    size_t at; /* the byte, below n; of an end the byte after, above 0 */
    bool end;  /* the token is that of the byte before `at` */
};

struct client_marked {
    const char *text; /* (n) UTF-8, whole; borrowed, as are both lists */
    size_t n;
    const size_t *plain; /* (n_plain) in pairs, ascending: where plain text begins and where it ends */
    size_t n_plain;
    const struct client_place *places; /* (n_places) by ascending bytes whose tokens are asked for */
    size_t n_places;
};

/* Appends the tokens of the text, and sets tokens[i] (n_places, from the caller) to the index in *out of the token that
 * place i is in, as char_to_token of transformers; of a byte that no token has, to the next one. What a tokenizer puts
 * before a text belongs to its first byte, and a character in several tokens begins with the first and ends with the
 * last of them. Errors as client_tokenizer_encode. */
int client_tokenizer_encode_marked(struct client_tokens *out, size_t *tokens, struct client_tokenizer *tokenizer,
                                   const struct client_marked *marked, struct error *err);

/* Special tokens that plain text spelled in the last call of client_tokenizer_encode_marked. */
size_t client_tokenizer_n_spelled(const struct client_tokenizer *tokenizer);

/* ---- A tokenizer's state between two calls ----
 *
 * Later tokens depend on this state and on the bytes of later calls, and on nothing else. So if two tokenizers that
 * share everything but working memory have used the bytes of a text up to the same place, and have the same state, both
 * go on to the same tokens, wherever each of them began. */

/* Sets *out, which may begin zeroed, to t's state, as bytes to compare. -ENOMEM. */
int client_tokenizer_save(struct client_text *out, const struct client_tokenizer *t, struct error *err);

/* The next call goes on where `kept` was saved. -ENOMEM. */
int client_tokenizer_restore(struct client_tokenizer *t, const struct client_text *kept, struct error *err);

/* The next call begins a new text. */
void client_tokenizer_restart(struct client_tokenizer *t);

/* The ids that the post-processor puts before and after each text (*n, borrowed, maybe NULL), such as <|begin_of_text|>
 * of Llama 3, [CLS] and [SEP] of BERT. client_tokenizer_encode does not add them. */
const uint32_t *client_tokenizer_begins(const struct client_tokenizer *tokenizer, size_t *n);
const uint32_t *client_tokenizer_ends(const struct client_tokenizer *tokenizer, size_t *n);

/* The next text comes behind client_tokenizer_begins: if it spells all of these tokens itself, as its first bytes, they
 * are not made again. client_tokenizer_lead appends them, too. -ENOMEM. */
void client_tokenizer_led(struct client_tokenizer *tokenizer);
int client_tokenizer_lead(struct client_tokens *out, struct client_tokenizer *tokenizer, struct error *err);

/* Behind the whole text that came after the two: appends client_tokenizer_ends, unless it is a single token that the
 * text spells itself as its last one; then end, unless that is the last token already. end: client_tokenizer_end, the
 * last of client_tokenizer_ends, or CLIENT_NO_TOKEN for none. -EINVAL: the model's table lacks it; -ENOMEM. */
int client_tokenizer_trail(struct client_tokens *out, const struct client_tokenizer *tokenizer, uint32_t end,
                           struct error *err);

/* Two texts in one row, as the tokenizer's post-processor joins them: [CLS] A [SEP] B [SEP] of BERT,
 * <s> A </s></s> B </s> of RoBERTa. */
enum { CLIENT_PAIR_MOST = 4 }; /* tokens in one place */
struct client_pair {
    uint32_t ids[3][CLIENT_PAIR_MOST], n[3]; /* before the first text, between the two, after the second */
    bool has_second;                         /* the second text is in segment 1, as BERT's; else all is in segment 0 */
    uint32_t n_first;                        /* tokens between the texts that precede segment 1 */
};

/* Borrowed. NULL: the tokenizer does not join two texts, or not in this form. */
const struct client_pair *client_tokenizer_pair(const struct client_tokenizer *tokenizer);

/* Bytes of a token (*n, not terminated), borrowed from the tokenizer: those of the text for byte-level tokens, else as
 * in the vocabulary. A character may span several tokens. NULL if the id has no token. */
const char *client_tokenizer_decode(const struct client_tokenizer *tokenizer, uint32_t id, size_t *n);

/* ---- A decoder: tokens into text as they come ---- */

struct client_decoder;

/* The tokenizer is borrowed until close. -ENOMEM. */
int client_decoder_open(struct client_decoder **out, const struct client_tokenizer *tokenizer, struct error *err);
void client_decoder_close(struct client_decoder *decoder); /* NULL is safe */

/* Sets *text (*n bytes of valid UTF-8, maybe none) to what these tokens add to the text, borrowed until the next call.
 * Bytes that only begin a character, and runs of tokens that are single bytes, are kept until they end; blanks, where
 * clean_up_tokenization_spaces may take them. special: added tokens that are special give their text; otherwise
 * nothing. last: no more tokens will come. All texts together are what transformers makes of all tokens. -ENOMEM. */
int client_decoder_push(struct client_decoder *decoder, const char **text, size_t *n, const uint32_t *ids, size_t n_ids,
                        bool special, bool last, struct error *err);

/* Tokens before the text, which are no part of it: whether a token begins with a blank may depend on them. -ENOMEM. */
int client_decoder_skip(struct client_decoder *decoder, const uint32_t *ids, size_t n_ids, struct error *err);

/* Adds the tokens with a name that the tokenizer's side files give, {"bos_token": "<s>", ...}, as transformers'
 * templates see them: also those of the tokenizer's class. -EINVAL with a sentence that names the file; -ENOMEM. */
int client_tokenizer_names(json_t *out, const struct client_tokenizer *tokenizer, const json_t *side,
                           struct error *err);

/* The token that ends a text: named by generation_config.json, tokenizer_config.json or special_tokens_map.json, else
 * <|endoftext|>; CLIENT_NO_TOKEN if there is none. */
uint32_t client_tokenizer_end(const struct client_tokenizer *tokenizer);

/* The token that hides another one from a model that predicts it: mask_token of tokenizer_config.json or
 * special_tokens_map.json, else the special token [MASK] or <mask>, which the published files of BERT and RoBERTa leave
 * unnamed; CLIENT_NO_TOKEN if there is none. */
uint32_t client_tokenizer_mask(const struct client_tokenizer *tokenizer);

/* All ids of texts are below this, and below the model's vocabulary. */
uint32_t client_tokenizer_n_ids(const struct client_tokenizer *tokenizer);

/* Added tokens may have ids outside the model's table, such as a padding token of 32000 where the vocabulary is 32000.
 * A text that has one cannot be encoded: -EINVAL, with a sentence that names the token. This is for tokens that the
 * caller adds, client_tokenizer_end and client_tokenizer_mask. */
int client_tokenizer_check(const struct client_tokenizer *tokenizer, uint32_t id, struct error *err);

/* True for an added token that tokenizer.json calls special. */
bool client_tokenizer_is_special(const struct client_tokenizer *tokenizer, uint32_t id);

#endif
