/* Writes our tokenizers as files for Hugging Face's tokenizers and transformers. A byte model's tokenizer gives each
 * byte's letter the byte's value as id and has no merges. A learned tokenizer has the merges learned from a text. */
#include "client/text/tokenizer/tokenizer_internal.h"
#include "client/text/words.h"
#include "proto/base/dump.h"
#include "proto/model/file/model_files.h"

#include <stdlib.h>
#include <string.h>

static const char end_text[] = "<|endoftext|>";

static json_t *byte_vocabulary(void)
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

/* In the form that tokenizers writes. In a decoder add_prefix_space has no effect and is true. */
static json_t *byte_level(bool prefix)
{
    return json_pack("{ss, sb, sb, sb}", "type", "ByteLevel", "add_prefix_space", prefix, "trim_offsets", 1,
                     "use_regex", 1);
}

/* Adds an object to side; takes ownership, also on failure. */
static int write_add(json_t *side, const char *name, json_t *object, struct error *err)
{
    char *text = object ? dump_json(NULL, object, &dump_indented) : NULL;
    const int rc = text ? json_object_set_new(side, name, json_string(text)) : -1;

    free(text);
    json_decref(object);
    return rc ? error_memory(err) : 0;
}

/* Takes ownership of vocab, merges and added. Each is NULL if there was no memory for it. */
static int add_files(json_t *side, json_t *vocab, json_t *merges, json_t *added, uint32_t n_positions,
                     struct error *err)
{
    const bool ends = json_array_size(added) > 0;
    json_t *tokenizer =
        json_pack("{ss, sn, sn, so, sn, so, sn, so, s{ss, sn, sn, sn, sn, sb, sb, sb, so, so}}", "version", "1.0",
                  "truncation", "padding", "added_tokens", added, "normalizer", "pre_tokenizer", byte_level(false),
                  "post_processor", "decoder", byte_level(true), "model", "type", "BPE", "dropout", "unk_token",
                  "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", 0, "byte_fallback", 0, "ignore_merges",
                  0, "vocab", vocab, "merges", merges);
    json_t *config = json_pack("{ss, sI, sb, ss*, ss*}", "tokenizer_class", "PreTrainedTokenizerFast",
                               "model_max_length", (json_int_t)n_positions, "clean_up_tokenization_spaces", 0,
                               "bos_token", ends ? end_text : NULL, "eos_token", ends ? end_text : NULL);
    json_t *before = json_pack("{s:O*}", "tokenizer_config.json", json_object_get(side, "tokenizer_config.json"));
    int rc = write_add(side, "tokenizer.json", tokenizer, err);

    if (rc)
        json_decref(config);
    else
        rc = write_add(side, "tokenizer_config.json", config, err);
    if (!rc) /* the model's chat templates may have been there */
        rc = model_files_keep_templates(side, before, err);
    json_decref(before);
    return rc;
}

int client_tokenizer_add_bytes(json_t *side, uint32_t n_positions, struct error *err)
{
    return add_files(side, byte_vocabulary(), json_array(), json_array(), n_positions, err);
}

/* Adds a merge: its text in letters to texts and vocab, its halves to merges. */
static int write_add_merge(char **texts, json_t *vocab, json_t *merges, const struct client_token_merge *merge)
{
    const char *left = texts[merge->left], *right = texts[merge->right];
    const size_t n_left = strlen(left), n_right = strlen(right);
    char *joined = malloc(n_left + n_right + 2);

    if (!joined)
        return -1;
    memcpy(joined, left, n_left);
    joined[n_left] = ' ';
    memcpy(joined + n_left + 1, right, n_right + 1);
    int rc = json_array_append_new(merges, json_string(joined));
    memmove(joined + n_left, right, n_right + 1);
    if (texts[merge->id]) { /* other halves gave the same token before */
        free(joined);
        return rc;
    }
    texts[merge->id] = joined;
    return rc ? rc : json_object_set_new(vocab, joined, json_integer(merge->id));
}

int client_tokenizer_add_learned(json_t *side, const struct client_token_merge *merges, size_t n, uint32_t n_positions,
                                 struct error *err)
{
    char **texts = calloc(CLIENT_TOKENIZER_LEARNED + n, sizeof *texts);
    json_t *vocab = json_object(), *pairs = json_array();
    uint32_t ids[256];
    int rc = texts && vocab && pairs ? 0 : -1;

    client_tokenizer_order(ids);
    for (unsigned byte = 0; !rc && byte < 256; byte++) {
        char letter[3] = "";
        tokenizer_letter(letter, byte);
        texts[ids[byte]] = strdup(letter);
        rc = texts[ids[byte]] ? json_object_set_new(vocab, letter, json_integer(ids[byte])) : -1;
    }
    if (!rc)
        rc = json_object_set_new(vocab, end_text, json_integer(CLIENT_TOKENIZER_END));
    for (size_t i = 0; !rc && i < n; i++)
        rc = write_add_merge(texts, vocab, pairs, &merges[i]);
    for (size_t i = 0; texts && i < CLIENT_TOKENIZER_LEARNED + n; i++)
        free(texts[i]);
    free(texts);
    if (rc) {
        json_decref(vocab);
        json_decref(pairs);
        return error_memory(err);
    }
    json_t *end = json_pack("{si, ss, sb, sb, sb, sb, sb}", "id", CLIENT_TOKENIZER_END, "content", end_text,
                            "single_word", 0, "lstrip", 0, "rstrip", 0, "normalized", 0, "special", 1);
    return add_files(side, vocab, pairs, json_pack("[o]", end), n_positions, err);
}

void client_tokenizer_order(uint32_t ids[256])
{
    uint32_t next = 0;

    for (unsigned pass = 0; pass < 2; pass++) {
        for (unsigned byte = 0; byte < 256; byte++) {
            char letter[3] = "";
            const unsigned n = tokenizer_letter(letter, byte);
            const bool moved = n == 2 && (uint8_t)letter[0] >= 0xC4; /* U+0100 and above */
            if (moved == (pass == 1))
                ids[byte] = next++;
        }
    }
}

bool tokenizer_is_bytes(const struct client_tokenizer *t)
{
    if (!t->byte_level || t->n_tokens != 256 || t->n_merges > 0 || t->added[0].n > 0 || t->added[1].n > 0 ||
        t->normal.n > 0 || t->lead.n > 0)
        return false;
    for (uint32_t i = 0; i < 256; i++) {
        if (t->bytes[i] != i)
            return false;
    }
    return true;
}
