/* Reads tokenizer.json and refuses what is not supported. */
#include "client/text/tokenizer/tokenizer_internal.h"

#include "proto/model/file/model_files.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

const char *tokenizer_type(const json_t *object)
{
    const char *type = json_string_value(json_object_get(object, "type"));
    return type ? type : "of no type";
}

bool tokenizer_is_nothing(const json_t *value)
{
    return !value || json_is_null(value) || json_is_false(value) ||
           (json_is_string(value) && !json_string_length(value)) ||
           (json_is_number(value) && json_number_value(value) == 0);
}

int tokenizer_refuse(struct error *err, const char *part, const char *type)
{
    return error_set(err, -EINVAL,
                     "its %s is %.40s, which is not supported: tokenise elsewhere, and give ids as .bin or .npy", part,
                     type);
}

int tokenizer_read_part(struct client_tokenizer *t, const json_t *part, const char *name, const char *key,
                        int (*read_step)(struct client_tokenizer *t, const json_t *step, struct error *err),
                        struct error *err)
{
    const json_t *step;
    size_t i;
    int rc = 0;

    if (!part || json_is_null(part))
        return 0;
    if (strcmp(tokenizer_type(part), "Sequence") != 0)
        return read_step(t, part, err);
    json_array_foreach(json_object_get(part, key), i, step)
    {
        rc = i == TOKENIZER_MAX_PARTS
                 ? error_set(err, -EINVAL, "its %s has more than %d steps", name, TOKENIZER_MAX_PARTS)
             : strcmp(tokenizer_type(step), "Sequence") != 0
                 ? read_step(t, step, err)
                 : error_set(err, -EINVAL, "its %s is a Sequence in a Sequence, which is not supported", name);
        if (rc)
            break;
    }
    return rc;
}

int tokenizer_read_pattern(struct tokenizer_pattern **out, const char **text, const json_t *pattern, struct error *err)
{
    const char *regex = json_string_value(json_object_get(pattern, "Regex"));

    *text = json_string_value(json_object_get(pattern, "String"));
    if (regex)
        return tokenizer_pattern_open(out, regex, err);
    if (!*text || !**text)
        return error_set(err, -EINVAL, "a pattern of it is neither a text nor a regular expression");
    return tokenizer_pattern_open_text(out, *text, err);
}

bool tokenizer_is_character(const char *text)
{
    unsigned length = 0;

    if (text && *text)
        tokenizer_character(text, &length);
    return length > 0 && !text[length];
}

/* What the package tokenizers takes: add_prefix_space, in old files, must go with the scheme. */
int tokenizer_read_metaspace(struct tokenizer_metaspace *out, const json_t *step, const char *part, struct error *err)
{
    const json_t *given = json_object_get(step, "prepend_scheme");
    const char *scheme = given ? json_string_value(given) : "always";

    *out = (struct tokenizer_metaspace){.mark = json_string_value(json_object_get(step, "replacement")),
                                        .always = scheme && strcmp(scheme, "always") == 0,
                                        .never = scheme && strcmp(scheme, "never") == 0};
    if (!tokenizer_is_character(out->mark))
        return error_set(err, -EINVAL, "its %s Metaspace has no replacement of one character", part);
    if (!out->always && !out->never && (!scheme || strcmp(scheme, "first") != 0))
        return error_set(err, -EINVAL,
                         "its %s Metaspace has the prepend_scheme %.20s: it must be always, first or never", part,
                         scheme ? scheme : "of no name");
    if (json_is_false(json_object_get(step, "add_prefix_space")) && !out->never)
        return error_set(err, -EINVAL,
                         "its %s Metaspace has add_prefix_space false and not the prepend_scheme never, which Hugging "
                         "Face's tokenizers refuses: add that",
                         part);
    return 0;
}

/* Refuses options that give other tokens. */
static int file_check_options(const json_t *model, const char *const *unsupported, struct error *err)
{
    for (; *unsupported; unsupported++) {
        if (!tokenizer_is_nothing(json_object_get(model, *unsupported)))
            return error_set(
                err, -EINVAL,
                "its model has %s, which is not supported: tokenise elsewhere, and give ids as .bin or .npy",
                *unsupported);
    }
    return 0;
}

static int read_unknown(struct client_tokenizer *t, const json_t *model, struct error *err)
{
    const char *text = json_string_value(json_object_get(model, "unk_token"));
    const json_t *id = text ? json_object_get(json_object_get(model, "vocab"), text) : NULL;

    t->unknown = CLIENT_NO_TOKEN;
    if (text && !json_is_integer(id))
        return error_set(err, -EINVAL, "its unk_token %.60s is not in its vocabulary", text);
    if (text)
        t->unknown = (uint32_t)json_integer_value(id);
    return 0;
}

static int read_bpe(struct client_tokenizer *t, const json_t *model, struct error *err)
{
    static const char *const unsupported[] = {"dropout", "continuing_subword_prefix", "end_of_word_suffix", NULL};
    const bool falls_back = json_is_true(json_object_get(model, "byte_fallback"));

    t->takes_whole = json_is_true(json_object_get(model, "ignore_merges"));
    t->fuses = json_is_true(json_object_get(model, "fuse_unk"));
    t->no_bytes = !t->byte_level && !falls_back;
    if (t->byte_level && falls_back)
        return error_set(err, -EINVAL, "its model has byte_fallback, and its pre-tokenizer is ByteLevel");
    return file_check_options(model, unsupported, err);
}

/* Defaults are those of Hugging Face's tokenizers. */
static int read_word_piece(struct client_tokenizer *t, const json_t *model, struct error *err)
{
    const char *prefix = json_string_value(json_object_get(model, "continuing_subword_prefix"));
    const json_t *most = json_object_get(model, "max_input_chars_per_word");

    t->word_piece = t->no_bytes = true;
    t->continuing = strdup(prefix ? prefix : "##");
    t->most_characters =
        json_is_integer(most) && json_integer_value(most) >= 0 ? (size_t)json_integer_value(most) : 100;
    if (!t->continuing)
        return error_memory(err);
    if (t->byte_level)
        return error_set(err, -EINVAL, "its model is WordPiece, and its pre-tokenizer is ByteLevel");
    if (t->most_characters > 1000)
        return error_set(err, -EINVAL, "its max_input_chars_per_word is above 1000");
    return t->unknown == CLIENT_NO_TOKEN ? error_set(err, -EINVAL, "its unk_token is not in its vocabulary") : 0;
}

/* *vocabulary: tokens as {"text": id, ...}, owned, also after a failure. */
static int file_read_model(struct client_tokenizer *t, const json_t *model, json_t **vocabulary, struct error *err)
{
    const json_t *type = json_object_get(model, "type");
    int rc = 0;

    if (strcmp(tokenizer_type(model), "Unigram") == 0)
        return tokenizer_read_unigram(t, model, vocabulary, err);
    *vocabulary = json_incref(json_object_get(model, "vocab"));
    rc = read_unknown(t, model, err);

    if (rc)
        return rc;
    if (type ? strcmp(tokenizer_type(model), "BPE") == 0 : json_object_get(model, "merges") != NULL)
        return read_bpe(t, model, err);
    if (strcmp(tokenizer_type(model), "WordPiece") == 0)
        return read_word_piece(t, model, err);
    return tokenizer_refuse(err, "model", tokenizer_type(model));
}

static int check_added(const json_t *list, struct error *err)
{
    json_t *seen = json_object(), *token;
    size_t i;
    int rc = list && !json_is_array(list) ? error_set(err, -EINVAL, "its added_tokens are not a list") : 0;

    json_array_foreach(list, i, token)
    {
        const json_t *id = json_object_get(token, "id");
        const char *text = json_string_value(json_object_get(token, "content"));
        if (rc)
            break;
        if (!text || json_object_get(seen, text))
            rc = error_set(err, -EINVAL, "added token %zu has no content of its own", i);
        else if (!json_is_integer(id) || json_integer_value(id) < 0)
            rc = error_set(err, -EINVAL, "added token %zu has no id", i);
        else if (json_object_set_new(seen, text, json_true()))
            rc = error_memory(err);
    }
    json_decref(seen);
    return rc;
}

/* What the files say of added tokens. A byte model has no token to spare for them, whatever transformers wrote
 * there. */
static int file_read_side(struct tokenizer_side *out, const struct client_tokenizer *t, const json_t *root,
                          const json_t *vocab, const json_t *side, uint32_t vocabulary, struct error *err)
{
    const json_t *list = json_object_get(root, "added_tokens"),
                 *merges = json_object_get(json_object_get(root, "model"), "merges");
    const bool bytes = t->byte_level && vocabulary == 256 && json_object_size(vocab) == 256 &&
                       json_array_size(merges) == 0 && json_array_size(list) == 0;
    int rc = check_added(list, err);

    return rc ? rc : tokenizer_side_read(out, bytes ? NULL : side, bytes ? NULL : t->class, list, vocab, err);
}

static int file_find_class(struct client_tokenizer *t, const json_t *root, const json_t *side, const char *model_type,
                           struct error *err)
{
    json_t *config = model_files_json(side, "tokenizer_config.json");

    t->class = tokenizer_class_of(config, model_type, t->byte_level);
    const int rc = tokenizer_side_check(t->class, config, root, err);
    tokenizer_take_scores(t, !t->class);
    t->tidies = tokenizer_tidy_is_asked(config, !t->word_piece && !t->unigram);
    json_decref(config);
    return rc;
}

/* In this order: what the pre-tokenizer says of bytes decides about model and decoder; added tokens go by the class,
 * and the ends of a text by all tokens. */
static int load_root(struct client_tokenizer *t, json_t *root, const json_t *side, const char *model_type,
                     uint32_t vocabulary, struct error *err)
{
    json_t *model = json_object_get(root, "model"), *vocab = NULL;
    struct tokenizer_side more = {0};
    int rc = tokenizer_read_normalizer(t, json_object_get(root, "normalizer"), err);

    if (!rc)
        rc = tokenizer_read_steps(t, json_object_get(root, "pre_tokenizer"), err);
    if (!rc)
        rc = file_read_model(t, model, &vocab, err);
    if (!rc)
        rc = tokenizer_read_decoder(t, json_object_get(root, "decoder"), err);
    if (!rc)
        rc = file_find_class(t, root, side, model_type, err);
    if (!rc)
        rc = file_read_side(&more, t, root, vocab, side, vocabulary, err);
    if (!rc)
        rc = tokenizer_build(t, vocab, json_object_get(model, "merges"), more.ids, vocabulary, err);
    if (!rc)
        rc = tokenizer_added_open(t, &more, err);
    if (!rc)
        rc = tokenizer_read_ends(t, json_object_get(root, "post_processor"), err);
    if (!rc)
        rc = tokenizer_side_check_names(&more, root, (const uint32_t *const *)t->ends, t->n_ends, err);
    tokenizer_side_free(&more);
    json_decref(vocab);
    return rc;
}

/* A sentence about another of the model's files, or about a text, which an added token is, too. */
static bool names_a_file(const struct error *err)
{
    static const char *const files[] = {"tokenizer.json: ", "tokenizer_config.json: ", "special_tokens_map.json: ",
                                        "added_tokens.json: "};

    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        if (strncmp(err->text, files[i], strlen(files[i])) == 0)
            return true;
    return false;
}

int tokenizer_load_json(struct client_tokenizer *t, const json_t *side, const char *model_type, const char *text,
                        size_t n, uint32_t vocabulary, struct error *err)
{
    json_error_t where;
    json_t *root = json_loadb(text, n, JSON_REJECT_DUPLICATES, &where);
    int rc = root ? load_root(t, root, side, model_type, vocabulary, err)
                  : error_set(err, -EINVAL, "line %d: %s", where.line, where.text);

    if (rc && err && !names_a_file(err))
        error_prefix(err, "tokenizer.json");
    json_decref(root);
    return rc;
}

/* ---- The post-processor: tokens before and after a text ---- */

/* The token is counted before it is checked, so that it is freed. */
int tokenizer_add_end(struct client_tokenizer *t, unsigned side, uint32_t id, struct error *err)
{
    uint32_t *larger;

    if (t->n_ends[side] == TOKENIZER_MAX_ENDS)
        return error_set(err, -EINVAL, "its post-processor adds more than %d tokens %s a text", TOKENIZER_MAX_ENDS,
                         side ? "after" : "before");
    larger = realloc(t->ends[side], (t->n_ends[side] + 1) * sizeof *larger);
    if (!larger)
        return error_memory(err);
    t->ends[side] = larger;
    larger[t->n_ends[side]++] = id;
    const int rc = client_tokenizer_check(t, id, err);
    if (rc)
        error_prefix(err, "a token is added to each text");
    return rc;
}

static int add_end(struct client_tokenizer *t, unsigned side, const json_t *id, struct error *err)
{
    const json_int_t number = json_is_integer(id) ? json_integer_value(id) : -1;

    if (number < 0 || number >= t->n_tokens || !t->tokens[number].text)
        return error_set(err, -EINVAL, "its post-processor adds the token %" JSON_INTEGER_FORMAT ", which it has not",
                         number);
    return tokenizer_add_end(t, side, (uint32_t)number, err);
}

/* {"single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}], "special_tokens": {"<s>": {"ids": [1]}}} */
static int file_read_template(struct client_tokenizer *t, const json_t *step, struct error *err)
{
    const json_t *specials = json_object_get(step, "special_tokens"), *piece, *id;
    unsigned side = 0;
    size_t i, k;

    json_array_foreach(json_object_get(step, "single"), i, piece)
    {
        const json_t *special = json_object_get(piece, "SpecialToken");
        const char *name = json_string_value(json_object_get(special, "id"));
        const json_t *ids = json_object_get(name ? json_object_get(specials, name) : NULL, "ids");
        if (!special) {
            const char *sequence = json_string_value(json_object_get(json_object_get(piece, "Sequence"), "id"));
            if (side++ > 0 || !sequence || strcmp(sequence, "A") != 0)
                return error_set(err, -EINVAL, "its post-processor's template does not hold the text once");
            continue;
        }
        if (json_array_size(ids) == 0)
            return error_set(err, -EINVAL, "its post-processor's template names the token %.60s, which it has not",
                             name ? name : "");
        json_array_foreach(ids, k, id)
        {
            int rc = add_end(t, side, id, err);
            if (rc)
                return rc;
        }
    }
    return side == 1 ? 0 : error_set(err, -EINVAL, "its post-processor's template does not hold the text once");
}

/* Of several post-processors one alone may add tokens. */
static int read_end(struct client_tokenizer *t, const json_t *step, struct error *err)
{
    const char *type = tokenizer_type(step);

    if (strcmp(type, "ByteLevel") == 0) /* is about offsets */
        return 0;
    if (t->n_ends[0] + t->n_ends[1] > 0)
        return error_set(err, -EINVAL, "its post-processor has %.40s behind another, which is not supported", type);
    const bool is_template = strcmp(type, "TemplateProcessing") == 0;
    if (!is_template && strcmp(type, "BertProcessing") != 0 && strcmp(type, "RobertaProcessing") != 0)
        return tokenizer_refuse(err, "post-processor", type);
    tokenizer_read_pair(t, step);
    if (is_template)
        return file_read_template(t, step, err);
    int rc = add_end(t, 0, json_array_get(json_object_get(step, "cls"), 1), err);
    return rc ? rc : add_end(t, 1, json_array_get(json_object_get(step, "sep"), 1), err);
}

int tokenizer_read_ends(struct client_tokenizer *t, const json_t *post_processor, struct error *err)
{
    return tokenizer_read_part(t, post_processor, "post-processor", "processors", read_end, err);
}
