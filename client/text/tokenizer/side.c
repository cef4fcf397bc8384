/* Tokens that a model's other files add to those of tokenizer.json: tokenizer_config.json, special_tokens_map.json and
 * added_tokens.json.
 *
 * Files say the same thing in several places, and not always the same: so the order of transformers 5 holds, in which
 * later words replace earlier ones of the same token. First tokenizer.json's list; then added_tokens_decoder by number,
 * or without one added_tokens.json and special_tokens_map.json; then tokens with a name, such as eos_token, those that
 * the tokenizer's class gives a name included; then extra ones. Numbers in these files only give the order: a token has
 * the id of its text in the vocabulary, or the next free one.
 *
 * Many of transformers' classes take the vocabulary of tokenizer.json and nothing else: there added_tokens_decoder, if
 * there is one, replaces tokenizer.json's list. A text with a token of the list alone is refused. */
#include "client/text/tokenizer/side.h"

#include "proto/base/json.h"
#include "proto/model/file/model_files.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* ---- Tokens ---- */

struct numbered {
    json_int_t number;
    size_t at;
    json_t *token; /* owned */
};

struct reading {
    const struct tokenizer_class *class;
    json_t *config, *map, *more; /* the files, owned; NULL: there is none */
    json_t *named;       /* {"bos_token": token or null, ...}: the seven names, then others, such as image_token */
    json_t *extra;       /* [token, ...] */
    json_t *any, *early; /* {"text": true}: see index_names */
    json_t *tokens;      /* {"text": token, ...} in the order in which they get their ids */
    struct error *err;
};

struct list {
    struct numbered *tokens; /* (n) */
    size_t n, cap;
};

static int side_no_memory(const struct reading *r)
{
    return error_memory(r->err);
}

static int side_refuse(const struct reading *r, const char *file, const char *what)
{
    return error_set(r->err, -EINVAL, "%s: its %.60s is no token, a text or {\"content\": \"...\"}, or no list of them",
                     file, what);
}

static bool side_flag(const json_t *token, const char *key)
{
    return json_is_true(json_object_get(token, key));
}

static const char *side_text_of(const json_t *token)
{
    return json_string_value(json_object_get(token, "content"));
}

/* A token of a file with all its flags, owned. special: it is, whatever the file says. NULL: it is none, or there is no
 * memory. */
static json_t *side_token_of(const json_t *value, bool special)
{
    const json_t *content = json_is_string(value) ? value : json_object_get(value, "content"),
                 *normalized = json_object_get(value, "normalized");

    special = special || json_is_string(value) || side_flag(value, "special");
    if (!json_is_string(content))
        return NULL;
    return json_pack("{s:O, s:b, s:b, s:b, s:b, s:b}", "content", content, "lstrip", side_flag(value, "lstrip"),
                     "rstrip", side_flag(value, "rstrip"), "single_word", side_flag(value, "single_word"), "normalized",
                     json_is_boolean(normalized) ? json_is_true(normalized) : !special, "special", special);
}

/* The token replaces an earlier one of its text, in whose place it stands; one that was special stays so, as in Hugging
 * Face's tokenizers. Takes ownership. */
static int side_put(const struct reading *r, json_t *token)
{
    const char *text = side_text_of(token);
    int rc = token ? 0 : -ENOMEM;

    if (!rc && side_flag(json_object_get(r->tokens, text), "special"))
        rc = json_object_set_new(token, "special", json_true());
    if (!rc && *text)
        rc = json_object_set(r->tokens, text, token);
    json_decref(token);
    return rc ? side_no_memory(r) : 0;
}

/* ---- What each file says ---- */

static int side_name_token(const struct reading *r, const char *key, const json_t *value, bool special,
                           const char *file)
{
    json_t *token = json_is_null(value) ? json_null() : side_token_of(value, special);

    if (!token)
        return side_refuse(r, file, key);
    return json_object_set_new(r->named, key, token) ? side_no_memory(r) : 0;
}

/* The keys of a file that name a token; add_bos_token is a switch. */
static int read_named(const struct reading *r, const json_t *file, bool special, const char *file_name)
{
    const char *key;
    json_t *value;
    int rc = 0;

    json_object_foreach((json_t *)(uintptr_t)file, key, value)
    {
        const size_t n = strlen(key);
        const bool known = json_object_get(r->named, key) != NULL, ends = n > 6 && strcmp(key + n - 6, "_token") == 0;
        if (!rc && (known || (ends && (json_is_string(value) || side_text_of(value)))))
            rc = side_name_token(r, key, value, special, file_name);
    }
    return rc;
}

/* Tokens without a name, a list, or, with one, an object. special: of special_tokens_map.json; its additional ones are
 * known late, as the class's names are: after added_tokens.json has been read. */
static int read_extra(const struct reading *r, const json_t *list, bool special, const char *file, const char *what)
{
    const char *key;
    json_t *value;
    size_t i;
    const bool late = special && strcmp(what, "additional_special_tokens") == 0;
    int rc = json_is_array(list) || json_is_object(list) ? 0 : side_refuse(r, file, what);

    json_object_foreach((json_t *)(uintptr_t)list, key, value)
    {
        rc = rc ? rc : side_name_token(r, key, value, special, file);
    }
    json_array_foreach(list, i, value)
    {
        json_t *token = rc ? NULL : side_token_of(value, special);
        if (!rc && !token)
            rc = side_refuse(r, file, what);
        if (!rc && (json_object_set_new(token, "late", json_boolean(late)) || json_array_append_new(r->extra, token)))
            rc = side_no_memory(r);
    }
    return rc;
}

static const json_t *extra_of(const json_t *file, const char **key)
{
    static const char *const keys[] = {"extra_special_tokens", "additional_special_tokens"};

    for (int i = 0; i < 2; i++) {
        const json_t *list = json_object_get(file, *key = keys[i]);
        if (list && !json_is_null(list) && (!json_is_array(list) || json_array_size(list) > 0) &&
            (!json_is_object(list) || json_object_size(list) > 0))
            return list;
    }
    return NULL;
}

/* The names of a file, and its extra tokens, if no file before it has any. */
static int side_read_names(const struct reading *r, const json_t *file, bool special, const char *file_name)
{
    const char *key = "";
    const json_t *extra = json_array_size(r->extra) == 0 ? extra_of(file, &key) : NULL;
    int rc = read_named(r, file, special, file_name);

    return rc || !extra ? rc : read_extra(r, extra, special, file_name, key);
}

/* First of all, so that a file's word replaces the class's. "late" as it is not known yet when lists are read. */
static int read_class(const struct reading *r)
{
    int rc = 0;

    for (int i = 0; !rc && i < TOKENIZER_NAMES; i++) {
        const char *text = r->class ? r->class->named[i] : NULL;
        rc = json_object_set_new(r->named, tokenizer_names[i],
                                 text ? json_pack("{s:s, s:b, s:b}", "content", text, "special", true, "late", true)
                                      : json_null());
    }
    return rc ? side_no_memory(r) : 0;
}

/* ---- Numbered tokens ---- */

/* Takes ownership; NULL: no memory. */
static int add_numbered(struct list *list, const struct reading *r, json_int_t number, json_t *token)
{
    if (token && list->n == list->cap) {
        struct numbered *larger = realloc(list->tokens, (2 * list->cap + 64) * sizeof *larger);
        if (larger)
            list->tokens = larger, list->cap = 2 * list->cap + 64;
    }
    if (!token || list->n == list->cap) {
        json_decref(token);
        return side_no_memory(r);
    }
    list->tokens[list->n] = (struct numbered){number, list->n, token};
    list->n++;
    return 0;
}

static int side_by_number(const void *a, const void *b)
{
    const struct numbered *x = a, *y = b;

    if (x->number != y->number)
        return x->number < y->number ? -1 : 1;
    return x->at < y->at ? -1 : x->at > y->at;
}

static bool is_one_of_seven(const char *name)
{
    for (int i = 0; i < TOKENIZER_NAMES; i++)
        if (strcmp(tokenizer_names[i], name) == 0)
            return true;
    return false;
}

/* Fills in r->any, the texts that have a name, and r->early, the texts that lists find special: of the seven names and
 * the extra tokens, if they are known when lists are read. */
static int index_names(struct reading *r)
{
    const char *key;
    json_t *token;
    size_t i;
    int rc = 0;

    r->any = json_object(), r->early = json_object();
    if (!r->any || !r->early)
        return side_no_memory(r);
    json_object_foreach(r->named, key, token)
    {
        if (!json_is_object(token))
            continue;
        rc = rc || json_object_set_new(r->any, side_text_of(token), json_true());
        if (!rc && is_one_of_seven(key) && !side_flag(token, "late"))
            rc = json_object_set_new(r->early, side_text_of(token), json_true());
    }
    json_array_foreach(r->extra, i, token)
    {
        if (!rc && !side_flag(token, "late"))
            rc = json_object_set_new(r->early, side_text_of(token), json_true());
    }
    return rc ? side_no_memory(r) : 0;
}

/* tokenizer_config.json's {"32000": {"content": "<pad>", ...}, ...} */
static int read_decoder(struct list *out, const struct reading *r, const json_t *decoder)
{
    static const char file[] = "tokenizer_config.json", what[] = "added_tokens_decoder";
    const char *key;
    json_t *value;
    int rc = json_is_object(decoder) ? 0 : side_refuse(r, file, what);

    json_object_foreach((json_t *)(uintptr_t)decoder, key, value)
    {
        char *end;
        const json_int_t number = strtoll(key, &end, 10);
        if (rc)
            break;
        rc = *end || !*key || !json_is_object(value) || !side_text_of(value)
                 ? side_refuse(r, file, what)
                 : add_numbered(out, r, number, side_token_of(value, side_flag(r->any, side_text_of(value))));
    }
    return rc;
}

/* added_tokens.json, {"<pad>": 32000, ...}, and tokenizer.json's own list. */
static int read_lists(struct list *out, const struct reading *r, const json_t *list)
{
    const char *text;
    json_t *value;
    size_t i;
    int rc = 0;

    json_object_foreach(r->more, text, value)
    {
        if (rc)
            break;
        const bool early = side_flag(r->early, text);
        rc = json_is_integer(value)
                 ? add_numbered(out, r, json_integer_value(value),
                                json_pack("{s:s, s:b, s:b}", "content", text, "special",
                                          early || side_flag(r->any, text), "normalized", !early))
                 : error_set(r->err, -EINVAL, "added_tokens.json: its token %.60s has no number", text);
    }
    json_array_foreach(list, i, value)
    {
        const char *content = side_text_of(value);
        if (!rc)
            rc = add_numbered(out, r, json_integer_value(json_object_get(value, "id")),
                              side_token_of(value, side_flag(r->any, content)));
    }
    return rc;
}

/* Later tokens of the same number replace earlier ones. */
static int put_numbered(struct reading *r, const json_t *list)
{
    const json_t *decoder = json_object_get(r->config, "added_tokens_decoder");
    struct list all = {0};
    int rc = index_names(r);

    if (!rc)
        rc = decoder ? read_decoder(&all, r, decoder) : read_lists(&all, r, list);

    if (!rc && all.n > 1)
        qsort(all.tokens, all.n, sizeof *all.tokens, side_by_number);
    for (size_t i = 0; i < all.n; i++) {
        const bool replaced = i + 1 < all.n && all.tokens[i + 1].number == all.tokens[i].number;
        if (!rc && !replaced)
            rc = side_put(r, json_incref(all.tokens[i].token));
        json_decref(all.tokens[i].token);
    }
    free(all.tokens);
    return rc;
}

/* ---- All of them, in their order ---- */

/* refused: tokens that no other file has named are marked, and a text that has one is refused. */
static int put_list(const struct reading *r, const json_t *list, bool refused)
{
    json_t *value;
    size_t i;
    int rc = 0;

    json_array_foreach(list, i, value)
    {
        json_t *token = NULL;
        if (rc || (refused && json_object_get(r->tokens, side_text_of(value))))
            continue;
        token = side_token_of(value, false);
        if (token && refused)
            json_put(&token, "refused", json_true());
        rc = side_put(r, token);
    }
    return rc;
}

/* plain: in place of what the files say of it. known: tokens that need no other word. */
static int side_put_name(const struct reading *r, const json_t *token, bool plain, const json_t *known)
{
    const json_t *text = json_object_get(token, "content");
    const bool left_out = plain && !r->class->plain && !side_flag(token, "late");

    if (!text || left_out || json_object_get(known, json_string_value(text)))
        return 0;
    return side_put(r, side_token_of(plain ? text : token, true));
}

static int put_names(const struct reading *r, bool plain)
{
    json_t *known = plain ? json_object() : json_copy_whole(r->tokens), *token;
    int rc = known ? 0 : side_no_memory(r);
    const char *key;
    size_t i;

    json_object_foreach(r->named, key, token)
    {
        rc = rc ? rc : side_put_name(r, token, plain, known);
    }
    json_array_foreach(r->extra, i, token)
    {
        rc = rc ? rc : side_put_name(r, token, plain, known);
    }
    json_decref(known);
    return rc;
}

static int read_all_names(const struct reading *r)
{
    int rc = read_class(r);

    if (!rc)
        rc = side_read_names(r, r->config, false, "tokenizer_config.json");
    if (!rc && !json_object_get(r->config, "added_tokens_decoder"))
        rc = side_read_names(r, r->map, true, "special_tokens_map.json");
    return rc;
}

/* The order of the head, line by line: each may replace what those before it have put. */
static int side_read_all(struct reading *r, const json_t *list)
{
    int rc = read_all_names(r);

    if (!rc && !r->class)
        rc = put_list(r, list, false);
    if (!rc)
        rc = put_numbered(r, list);
    if (!rc)
        rc = put_names(r, false);
    if (!rc && r->class && (r->class->plain || r->class->plain_own))
        rc = put_names(r, true);
    return rc || !r->class ? rc : put_list(r, list, true);
}

/* Gives each token the id of its text in the vocabulary, or the next one, as the package does, whatever a file says. */
static int side_number_tokens(struct tokenizer_side *out, const struct reading *r, const json_t *vocab)
{
    json_int_t next = (json_int_t)json_object_size(vocab);
    const char *text;
    json_t *token;
    int rc = 0;

    json_object_foreach(r->tokens, text, token)
    {
        const json_t *known = json_object_get(vocab, text);
        const json_int_t id = json_is_integer(known) ? json_integer_value(known) : next;
        next = id >= next ? id + 1 : next;
        rc = rc || json_object_set_new(token, "id", json_integer(id)) ||
             json_object_set_new(out->ids, text, json_integer(id)) || json_array_append(out->tokens, token);
    }
    return rc ? side_no_memory(r) : 0;
}

/* Frees what was read of the files, also after a failure; *out is the caller's. */
static int side_read_side(struct tokenizer_side *out, struct reading *r, const json_t *list, const json_t *vocab)
{
    int rc;

    *out = (struct tokenizer_side){.tokens = json_array(), .ids = json_object(), .named = json_object()};
    r->named = out->named, r->extra = json_array(), r->tokens = json_object();
    rc = out->tokens && out->ids && r->named && r->extra && r->tokens ? side_read_all(r, list) : side_no_memory(r);
    if (!rc)
        rc = side_number_tokens(out, r, vocab);
    out->class = r->class;
    out->splits = side_flag(r->config, "split_special_tokens");
    json_decref(r->extra);
    json_decref(r->any);
    json_decref(r->early);
    json_decref(r->tokens);
    json_decref(r->config);
    json_decref(r->map);
    json_decref(r->more);
    return rc;
}

static struct reading side_open_files(const json_t *side, struct error *err)
{
    return (struct reading){.config = model_files_json(side, "tokenizer_config.json"),
                            .map = model_files_json(side, "special_tokens_map.json"),
                            .more = model_files_json(side, "added_tokens.json"),
                            .err = err};
}

int tokenizer_side_read(struct tokenizer_side *out, const json_t *side, const struct tokenizer_class *class,
                        const json_t *list, const json_t *vocab, struct error *err)
{
    struct reading r = side_open_files(side, err);

    r.class = class;
    return side_read_side(out, &r, list, vocab);
}

void tokenizer_side_free(struct tokenizer_side *side)
{
    json_decref(side->tokens);
    json_decref(side->ids);
    json_decref(side->named);
    *side = (struct tokenizer_side){0};
}

uint32_t tokenizer_side_id(const struct tokenizer_side *side, const char *name)
{
    const char *text = side_text_of(json_object_get(side->named, name));
    const json_t *id = text ? json_object_get(side->ids, text) : NULL;

    return id ? (uint32_t)json_integer_value(id) : CLIENT_NO_TOKEN;
}

int tokenizer_side_names(json_t *out, const json_t *side, const struct tokenizer_class *class, struct error *err)
{
    struct reading r = side_open_files(side, err);
    const char *key;
    json_t *token;

    r.class = class;
    r.named = json_object(), r.extra = json_array();
    int rc = r.named && r.extra ? read_all_names(&r) : side_no_memory(&r);
    json_object_foreach(r.named, key, token)
    {
        if (!rc && json_is_object(token) && json_object_set(out, key, json_object_get(token, "content")))
            rc = side_no_memory(&r);
    }
    json_decref(r.named);
    json_decref(r.extra);
    json_decref(r.config);
    json_decref(r.map);
    json_decref(r.more);
    return rc;
}
