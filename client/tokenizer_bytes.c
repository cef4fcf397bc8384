/* The tokenizer of a model of bytes, as files that Hugging Face's tokenizers and transformers read: byte-level BPE
 * without a merge, in which a byte's letter has the byte's value as its id. */
#include "client/side.h"
#include "client/tokenizer_internal.h"

#include <errno.h>
#include <stdlib.h>

static json_t *vocabulary(void)
{
    json_t *vocab = json_object();
    char letter[3];
    int rc = vocab ? 0 : -1;

    for (unsigned byte = 0; !rc && byte < 256; byte++)
        rc = json_object_setn_new(vocab, letter, tokenizer_letter(letter, byte), json_integer((json_int_t)byte));
    if (!rc)
        return vocab;
    json_decref(vocab);
    return NULL;
}

/* As tokenizers writes it; of a decoder, add_prefix_space means nothing and is true. */
static json_t *byte_level(bool prefix)
{
    return json_pack("{ss, sb, sb, sb}", "type", "ByteLevel", "add_prefix_space", prefix, "trim_offsets", 1,
                     "use_regex", 1);
}

/* Gives the object up. */
static int add(json_t *side, const char *name, json_t *object, struct error *err)
{
    char *text = object ? json_dumps(object, JSON_INDENT(2)) : NULL;
    const int rc = text ? json_object_set_new(side, name, json_string(text)) : -1;

    free(text);
    json_decref(object);
    return rc ? error_set(err, -ENOMEM, "out of memory") : 0;
}

int client_tokenizer_add_bytes(json_t *side, uint32_t n_positions, struct error *err)
{
    json_t *tokenizer =
        json_pack("{ss, sn, sn, s[], sn, so, sn, so, s{ss, sn, sn, sn, sn, sb, sb, sb, so, s[]}}", "version", "1.0",
                  "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer", byte_level(false),
                  "post_processor", "decoder", byte_level(true), "model", "type", "BPE", "dropout", "unk_token",
                  "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", 0, "byte_fallback", 0, "ignore_merges",
                  0, "vocab", vocabulary(), "merges");
    json_t *config = json_pack("{ss, sI, sb}", "tokenizer_class", "PreTrainedTokenizerFast", "model_max_length",
                               (json_int_t)n_positions, "clean_up_tokenization_spaces", 0);
    int rc = add(side, "tokenizer.json", tokenizer, err);

    if (rc) {
        json_decref(config);
        return rc;
    }
    return add(side, "tokenizer_config.json", config, err);
}

bool tokenizer_is_bytes(const struct client_tokenizer *t)
{
    if (t->n_tokens != 256 || t->n_merges > 0 || t->added[0].n > 0 || t->added[1].n > 0)
        return false;
    for (uint32_t i = 0; i < 256; i++) {
        if (t->bytes[i] != i)
            return false;
    }
    return true;
}
