/* Reads tokenizer files and refuses what is not supported. */
#include "client/text/tokenizer_internal.h"

#include "client/text/side.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const char remedy[] =
    "only byte-level BPE as GPT-2's is supported: tokenise elsewhere, and give ids as .bin or .npy";

static const char *type_of(const json_t *object)
{
    const char *type = json_string_value(json_object_get(object, "type"));
    return type ? type : "of no type";
}

static bool is_nothing(const json_t *value)
{
    return !value || json_is_null(value) || json_is_false(value) ||
           (json_is_string(value) && !json_string_length(value)) ||
           (json_is_number(value) && json_number_value(value) == 0);
}

/* Checks a ByteLevel step: bytes become letters, and no space is put in front. */
static int check_byte_level(const json_t *step, bool splits, struct error *err)
{
    const json_t *use_regex = json_object_get(step, "use_regex");

    if (strcmp(type_of(step), "ByteLevel") != 0)
        return error_set(err, -EINVAL, "its pre-tokenizer is %.40s: %s", type_of(step), remedy);
    if (!json_is_false(json_object_get(step, "add_prefix_space")))
        return error_set(err, -EINVAL, "its pre-tokenizer puts a blank in front (add_prefix_space): %s", remedy);
    if (json_is_false(use_regex) == splits)
        return error_set(err, -EINVAL, "its pre-tokenizer splits %s: %s", splits ? "nowhere" : "twice", remedy);
    return 0;
}

static int read_split(const char **pattern, const json_t *step, struct error *err)
{
    const json_t *regex = json_object_get(json_object_get(step, "pattern"), "Regex");
    const char *behavior = json_string_value(json_object_get(step, "behavior"));

    if (strcmp(type_of(step), "Split") != 0)
        return error_set(err, -EINVAL, "its pre-tokenizer is %.40s: %s", type_of(step), remedy);
    if (!json_is_string(regex) || !behavior || strcmp(behavior, "Isolated") != 0 ||
        !is_nothing(json_object_get(step, "invert")))
        return error_set(err, -EINVAL, "its pre-tokenizer does not split by a pattern alone: %s", remedy);
    *pattern = json_string_value(regex);
    return 0;
}

static int read_pattern(char **out, const json_t *step, struct error *err)
{
    const json_t *steps = json_object_get(step, "pretokenizers");
    const char *pattern = tokenizer_gpt2_pattern;
    int rc;

    if (strcmp(type_of(step), "Sequence") == 0 && json_array_size(steps) == 2) {
        rc = read_split(&pattern, json_array_get(steps, 0), err);
        if (!rc)
            rc = check_byte_level(json_array_get(steps, 1), false, err);
    } else {
        rc = check_byte_level(json_array_size(steps) == 1 ? json_array_get(steps, 0) : step, true, err);
    }
    if (rc)
        return rc;
    *out = strdup(pattern);
    return *out ? 0 : error_set(err, -ENOMEM, "out of memory");
}

/* Refuses options that give other tokens than byte merges would. */
static int check_model(const json_t *root, const json_t *model, struct error *err)
{
    static const char *const unsupported[] = {"dropout", "continuing_subword_prefix", "end_of_word_suffix",
                                              "byte_fallback"};
    const json_t *normalizer = json_object_get(root, "normalizer"), *type = json_object_get(model, "type");

    if (!is_nothing(normalizer))
        return error_set(err, -EINVAL, "its normalizer is %.40s: %s", type_of(normalizer), remedy);
    if (type ? strcmp(type_of(model), "BPE") != 0 : !json_object_get(model, "merges"))
        return error_set(err, -EINVAL, "its model is %.40s: %s", type_of(model), remedy);
    for (size_t i = 0; i < sizeof unsupported / sizeof *unsupported; i++) {
        if (!is_nothing(json_object_get(model, unsupported[i])))
            return error_set(err, -EINVAL, "its model has %s: %s", unsupported[i], remedy);
    }
    return 0;
}

/* Reads added_tokens as {"text": id, ...}, owned. */
static int read_added(json_t **out, const json_t *list, struct error *err)
{
    size_t i;
    json_t *token;

    *out = json_object();
    if (!*out)
        return error_set(err, -ENOMEM, "out of memory");
    if (list && !json_is_array(list))
        return error_set(err, -EINVAL, "its added_tokens are not a list");
    json_array_foreach(list, i, token)
    {
        const char *text = json_string_value(json_object_get(token, "content"));
        if (!text || json_object_get(*out, text))
            return error_set(err, -EINVAL, "added token %zu has no content of its own", i);
        if (json_object_set(*out, text, json_object_get(token, "id")))
            return error_set(err, -EINVAL, "added token %zu has no id", i);
    }
    return 0;
}

static int load_root(struct client_tokenizer *t, char **pattern, json_t *root, uint32_t vocabulary, struct error *err)
{
    json_t *model = json_object_get(root, "model"), *vocab = json_object_get(model, "vocab"), *added = NULL;
    int rc = check_model(root, model, err);

    if (!rc)
        rc = read_pattern(pattern, json_object_get(root, "pre_tokenizer"), err);
    if (!rc)
        rc = read_added(&added, json_object_get(root, "added_tokens"), err);
    if (!rc)
        rc = tokenizer_build(t, vocab, json_object_get(model, "merges"), added, vocabulary, err);
    if (!rc)
        rc = tokenizer_added_open(t, json_object_get(root, "added_tokens"), err);
    if (!rc && json_is_true(json_object_get(model, "ignore_merges")))
        t->whole = json_incref(vocab);
    json_decref(added);
    return rc;
}

int tokenizer_load_json(struct client_tokenizer *t, char **pattern, const char *text, size_t n, uint32_t vocabulary,
                        struct error *err)
{
    json_error_t where;
    json_t *root = json_loadb(text, n, JSON_REJECT_DUPLICATES, &where);
    int rc = root ? load_root(t, pattern, root, vocabulary, err)
                  : error_set(err, -EINVAL, "line %d: %s", where.line, where.text);

    if (rc)
        error_prefix(err, "tokenizer.json");
    json_decref(root);
    return rc;
}

/* Reads a JSON object among the side files; owned; NULL if the file is absent. */
static int read_object(json_t **out, const json_t *side, const char *name, struct error *err)
{
    json_error_t where;
    size_t n;
    const char *text = client_side_find(side, name, &n);

    *out = text ? json_loadb(text, n, JSON_REJECT_DUPLICATES, &where) : NULL;
    if (!text || json_is_object(*out))
        return 0;
    return *out ? error_set(err, -EINVAL, "%s: not a JSON object", name)
                : error_set(err, -EINVAL, "%s: line %d: %s", name, where.line, where.text);
}

/* Lines of merges.txt as an array, owned, without "#version: ..." at the top and empty lines; NULL: no memory. */
static json_t *read_merges(const char *text, size_t n)
{
    json_t *merges = json_array();
    const char *end = text + n;

    for (const char *line = text, *next; merges && line < end; line = next) {
        const char *stop = memchr(line, '\n', (size_t)(end - line));
        next = stop ? stop + 1 : end;
        if (!stop)
            stop = end;
        if (stop > line && stop[-1] == '\r')
            stop--;
        const bool version = line == text && stop - line >= 8 && memcmp(line, "#version", 8) == 0;
        if (stop > line && !version && json_array_append_new(merges, json_stringn(line, (size_t)(stop - line)))) {
            json_decref(merges);
            return NULL;
        }
    }
    return merges;
}

/* Refuses other tokenizers that use the same file names with another meaning. */
static int check_class(const json_t *config, struct error *err)
{
    const char *name = json_string_value(json_object_get(config, "tokenizer_class"));

    if (name && strcmp(name, "GPT2Tokenizer") != 0 && strcmp(name, "GPT2TokenizerFast") != 0)
        return error_set(err, -EINVAL, "tokenizer_config.json: the tokenizer is a %.40s: %s", name, remedy);
    if (json_is_true(json_object_get(config, "add_prefix_space")))
        return error_set(err, -EINVAL, "tokenizer_config.json: add_prefix_space is not supported: %s", remedy);
    return 0;
}

/* Opens GPT-2's added tokens: its one special token, which is in the vocabulary, and those of added_tokens.json. */
static int open_added(struct client_tokenizer *t, const json_t *vocab, json_t *added, struct error *err)
{
    static const char end[] = "<|endoftext|>";
    json_t *list = json_array(), *id = json_object_get(vocab, end);
    const char *text;
    int rc = 0;

    if (id && !json_object_get(added, end))
        rc = json_array_append_new(list, json_pack("{sssO}", "content", end, "id", id));
    json_object_foreach(added, text, id)
    {
        rc = rc || json_array_append_new(list, json_pack("{sssO}", "content", text, "id", id));
    }
    rc = rc || !list ? error_set(err, -ENOMEM, "out of memory") : tokenizer_added_open(t, list, err);
    json_decref(list);
    return rc;
}

int tokenizer_load_gpt2(struct client_tokenizer *t, char **pattern, const json_t *side, uint32_t vocabulary,
                        struct error *err)
{
    json_t *vocab = NULL, *added = NULL, *config = NULL, *merges = NULL;
    size_t n;
    const char *text = client_side_find(side, "merges.txt", &n);
    int rc = read_object(&vocab, side, "vocab.json", err);

    if (!rc && (!vocab || !text))
        rc = error_set(err, -EINVAL, "%s is there, but %s is missing", vocab ? "vocab.json" : "merges.txt",
                       vocab ? "merges.txt" : "vocab.json");
    if (!rc)
        rc = read_object(&added, side, "added_tokens.json", err);
    if (!rc)
        rc = read_object(&config, side, "tokenizer_config.json", err);
    if (!rc)
        rc = check_class(config, err);
    if (!rc) {
        merges = read_merges(text, n);
        *pattern = strdup(tokenizer_gpt2_pattern);
        if (!merges || !*pattern)
            rc = error_set(err, -ENOMEM, "out of memory");
    }
    if (!rc && (rc = tokenizer_build(t, vocab, merges, added, vocabulary, err)) != 0)
        error_prefix(err, "vocab.json and merges.txt");
    if (!rc)
        rc = open_added(t, vocab, added, err);
    json_decref(vocab);
    json_decref(added);
    json_decref(config);
    json_decref(merges);
    return rc;
}
