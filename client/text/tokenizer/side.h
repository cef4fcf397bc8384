/* client/text/tokenizer/side.h - what a model's other files say of its tokenizer, besides tokenizer.json. */
#ifndef CLIENT_TEXT_TOKENIZER_SIDE_H
#define CLIENT_TEXT_TOKENIZER_SIDE_H

#include "client/text/tokenizer.h"
#include "proto/base/error.h"

#include <jansson.h>
#include <stdbool.h>

/* The names of tokens, "bos_token" and so on. */
enum {
    TOKENIZER_BOS,
    TOKENIZER_EOS,
    TOKENIZER_UNK,
    TOKENIZER_SEP,
    TOKENIZER_PAD,
    TOKENIZER_CLS,
    TOKENIZER_MASK,
    TOKENIZER_NAMES
};
extern const char *const tokenizer_names[TOKENIZER_NAMES];

/* A class of transformers that makes its tokenizer anew from the vocabulary. */
struct tokenizer_class {
    const char *name;
    const char *named[TOKENIZER_NAMES];
    bool plain;     /* its named tokens take no white space, whatever the files say */
    bool plain_own; /* the same of those names that no file gives */
    bool around;    /* its cls_token precedes each text, its sep_token follows; without the former its eos_token does */
    bool ends;      /* its bos_token precedes each text, its eos_token follows */
    bool unknown;   /* its unk_token stands for what is unknown */
    bool bert;      /* it has BERT's normalizer: do_lower_case and tokenize_chinese_chars unless they are given */
    bool letters;   /* it has ByteLevel, without add_prefix_space unless that is given */
};

/* The class that AutoTokenizer takes: by tokenizer_config.json (may be NULL), and by config.json's model_type (NULL: it
 * is not known). NULL: one that takes tokenizer.json as it is. byte_level: tokenizer.json's pre-tokenizer is. */
const struct tokenizer_class *tokenizer_class_of(const json_t *config, const char *model_type, bool byte_level);
const struct tokenizer_class *tokenizer_class_gpt2(void);

struct tokenizer_side {
    /* Added tokens in tokenizer.json's form, with their ids: [{"content": "<pad>", "id": 32000, "special": true, ...}].
     * One with "refused" is in tokenizer.json alone, and unknown to transformers. Owned. */
    json_t *tokens;
    json_t *ids;   /* {"<pad>": 32000, ...}; owned */
    json_t *named; /* {"eos_token": token or null, ...}: the seven names, also those that the class gives; owned */
    const struct tokenizer_class *class; /* of transformers; NULL: it takes tokenizer.json as it is */
    bool splits; /* special tokens that a text spells are split like other text: split_special_tokens */
};

/* list: tokenizer.json's added tokens; vocab: {"text": id, ...} of its model. All are borrowed; side and class may be
 * NULL. -EINVAL with a sentence that names the file; -ENOMEM. Undo, also on failure:
 * tokenizer_side_free. */
int tokenizer_side_read(struct tokenizer_side *out, const json_t *side, const struct tokenizer_class *class,
                        const json_t *list, const json_t *vocab, struct error *err);

/* client_tokenizer_names of a class, which may be NULL. */
int tokenizer_side_names(json_t *out, const json_t *side, const struct tokenizer_class *class, struct error *err);

void tokenizer_side_free(struct tokenizer_side *side);

/* Refuses a switch of tokenizer_config.json (config; may be NULL) by which the class (may be NULL) builds another
 * tokenizer than root, tokenizer.json as JSON. -EINVAL. */
int tokenizer_side_check(const struct tokenizer_class *class, const json_t *config, const json_t *root,
                         struct error *err);

/* The id of the token with a name, such as eos_token; CLIENT_NO_TOKEN if there is none. */
uint32_t tokenizer_side_id(const struct tokenizer_side *side, const char *name);

/* Refuses a name by which its class makes another tokenizer than root, which puts ends (n_ends) before and after a
 * text. -EINVAL. */
int tokenizer_side_check_names(const struct tokenizer_side *side, const json_t *root, const uint32_t *const ends[2],
                               const size_t n_ends[2], struct error *err);

#endif
