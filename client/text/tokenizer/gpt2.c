/* Reads GPT-2's files: vocab.json and merges.txt, with added_tokens.json and tokenizer_config.json. */
#include "client/text/tokenizer/tokenizer_internal.h"

#include "proto/model/file/model_files.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Reads a JSON object among the side files; owned; NULL if the file is absent. */
static int gpt2_read_object(json_t **out, const json_t *side, const char *name, struct error *err)
{
    json_error_t where;
    size_t n;
    const char *text = model_files_find(side, name, &n);

    *out = text ? json_loadb(text, n, JSON_REJECT_DUPLICATES, &where) : NULL;
    if (text && !*out) /* a number of 90 bits: model_files_json */
        *out = json_loadb(text, n, JSON_REJECT_DUPLICATES | JSON_DECODE_INT_AS_REAL, NULL);
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
static int check_class(const json_t *config, const char *model_type, struct error *err)
{
    const struct tokenizer_class *class = tokenizer_class_of(config, model_type, true);
    const char *name = class ? class->name : json_string_value(json_object_get(config, "tokenizer_class"));

    if (name && class != tokenizer_class_gpt2())
        return error_set(err, -EINVAL,
                         "tokenizer_config.json: the tokenizer is a %.40s, which is read from tokenizer.json alone",
                         name);
    if (json_is_true(json_object_get(config, "add_prefix_space")))
        return error_set(err, -EINVAL,
                         "tokenizer_config.json: add_prefix_space is not supported without tokenizer.json");
    return 0;
}

/* The tokens that add_bos_token and add_eos_token put before and after each text. */
static int gpt2_read_ends(struct client_tokenizer *t, const json_t *config, const struct tokenizer_side *side,
                          struct error *err)
{
    static const char *const names[] = {"bos_token", "eos_token"}, *const switches[] = {"add_bos_token",
                                                                                        "add_eos_token"};
    int rc = 0;

    for (unsigned i = 0; !rc && i < 2; i++) {
        const uint32_t id = tokenizer_side_id(side, names[i]);
        if (json_is_true(json_object_get(config, switches[i])) && id != CLIENT_NO_TOKEN)
            rc = tokenizer_add_end(t, i, id, err);
    }
    return rc;
}

int tokenizer_load_gpt2(struct client_tokenizer *t, const json_t *side, const char *model_type, uint32_t vocabulary,
                        struct error *err)
{
    json_t *vocab = NULL, *config = NULL, *merges = NULL;
    struct tokenizer_side more = {0};
    size_t n;
    const char *text = model_files_find(side, "merges.txt", &n);
    int rc = gpt2_read_object(&vocab, side, "vocab.json", err);

    if (!rc && (!vocab || !text))
        rc = error_set(err, -EINVAL, "%s is there, but %s is missing", vocab ? "vocab.json" : "merges.txt",
                       vocab ? "merges.txt" : "vocab.json");
    if (!rc)
        rc = gpt2_read_object(&config, side, "tokenizer_config.json", err);
    if (!rc)
        rc = check_class(config, model_type, err);
    if (!rc) {
        merges = read_merges(text, n);
        t->unknown = CLIENT_NO_TOKEN;
        rc = merges ? tokenizer_gpt2_steps(t, err) : error_memory(err);
    }
    if (!rc) {
        t->class = tokenizer_class_gpt2();
        rc = tokenizer_side_read(&more, side, t->class, NULL, vocab, err);
    }
    if (!rc && (rc = tokenizer_build(t, vocab, merges, more.ids, vocabulary, err)) != 0)
        error_prefix(err, "vocab.json and merges.txt");
    if (!rc)
        rc = tokenizer_added_open(t, &more, err);
    if (!rc && (rc = gpt2_read_ends(t, config, &more, err)) != 0)
        error_prefix(err, "tokenizer_config.json");
    tokenizer_side_free(&more);
    json_decref(vocab);
    json_decref(config);
    json_decref(merges);
    return rc;
}
