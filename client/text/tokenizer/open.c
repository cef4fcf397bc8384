/* Once it is open, a tokenizer changes in nothing but `work`: so client_tokenizer_share copies the struct, and threads
 * need no lock. The token that ends a text is settled last (find_meanings), as generation_config.json may name any. */
#include "client/text/tokenizer/tokenizer_internal.h"

#include "client/text/utf8.h"
#include "proto/model/file/model_files.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Opens a byte model's tokenizer: each byte is a token, and nothing merges. */
static int open_bytes(struct client_tokenizer *t, struct error *err)
{
    t->is_bytes = true;
    t->tokens = calloc(256, sizeof *t->tokens);
    t->block = malloc(256);
    if (!t->tokens || !t->block)
        return error_memory(err);
    for (uint32_t i = 0; i < 256; i++) {
        t->block[i] = (char)i;
        t->tokens[i] = (struct tokenizer_token){.text = &t->block[i], .n = 1};
        t->bytes[i] = i;
    }
    t->n_tokens = t->n_table = 256;
    t->byte_level = true;
    return 0;
}

/* eos_token_id of generation_config.json: a number, or a list whose first element counts. */
static uint32_t end_by_id(const struct client_tokenizer *t, const json_t *generation)
{
    const json_t *id = json_object_get(generation, "eos_token_id");

    if (json_is_array(id))
        id = json_array_get(id, 0);
    if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) >= t->n_tokens)
        return CLIENT_NO_TOKEN;
    return t->tokens[json_integer_value(id)].text ? (uint32_t)json_integer_value(id) : CLIENT_NO_TOKEN;
}

/* Searched by text: added tokens are not in the map. */
static uint32_t find_token(const struct client_tokenizer *t, const char *text)
{
    const size_t n = text ? strlen(text) : 0;

    for (uint32_t i = 0; n > 0 && i < t->n_tokens; i++) {
        if (t->tokens[i].text && t->tokens[i].n == n && memcmp(t->tokens[i].text, text, n) == 0)
            return i;
    }
    return CLIENT_NO_TOKEN;
}

static uint32_t special_token(const struct client_tokenizer *t, const char *text)
{
    const uint32_t id = find_token(t, text);

    return id != CLIENT_NO_TOKEN && t->tokens[id].special ? id : CLIENT_NO_TOKEN;
}

/* The token that ends a text is generation_config.json's, else the one with that name; the mask is the one with that
 * name. A byte model has no token to spare for them. */
static void find_meanings(struct client_tokenizer *t, const json_t *side)
{
    json_t *generation = model_files_json(side, "generation_config.json");
    const uint32_t end = end_by_id(t, generation);

    json_decref(generation);
    if (t->is_bytes) {
        t->end = t->mask = CLIENT_NO_TOKEN;
        return;
    }
    if (end != CLIENT_NO_TOKEN)
        t->end = end;
    if (t->end == CLIENT_NO_TOKEN)
        t->end = find_token(t, "<|endoftext|>");
    if (t->mask == CLIENT_NO_TOKEN)
        t->mask = special_token(t, "[MASK]");
    if (t->mask == CLIENT_NO_TOKEN)
        t->mask = special_token(t, "<mask>");
}

static int open_load(struct client_tokenizer *t, const json_t *side, const char *model_type, uint32_t vocabulary,
                     struct error *err)
{
    size_t n;
    const char *text = model_files_find(side, "tokenizer.json", &n);
    int rc = tokenizer_work_init(&t->work, err);

    if (rc)
        return rc;
    return text ? tokenizer_load_json(t, side, model_type, text, n, vocabulary, err)
                : tokenizer_load_gpt2(t, side, model_type, vocabulary, err);
}

/* Without any file there is none, but for a byte model, which needs none. */
int client_tokenizer_open(struct client_tokenizer **out, const json_t *side, const char *model_type,
                          uint32_t vocabulary, struct error *err)
{
    size_t n;
    const bool any = model_files_find(side, "tokenizer.json", &n) || model_files_find(side, "vocab.json", &n) ||
                     model_files_find(side, "merges.txt", &n);

    *out = NULL;
    if (!any && vocabulary != 256)
        return 0;
    struct client_tokenizer *t = calloc(1, sizeof *t);
    if (!t)
        return error_memory(err);
    int rc = any ? open_load(t, side, model_type, vocabulary, err) : open_bytes(t, err);
    if (rc) {
        client_tokenizer_close(t);
        return rc;
    }
    t->is_bytes = tokenizer_is_bytes(t);
    find_meanings(t, side);
    *out = t;
    return 0;
}

int client_tokenizer_refuse_unread(const json_t *side, struct error *err)
{
    static const char *const names[] = {"tokenizer.model", "vocab.txt"};

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (json_object_get(side, names[i]))
            return error_set(
                err, -EINVAL,
                "the model's tokenizer is a %s, which is not read here: make a tokenizer.json of it, with DIR for "
                "the model's directory: python3 -c 'from transformers import AutoTokenizer as T; "
                "T.from_pretrained(\"DIR\").save_pretrained(\"DIR\")'",
                names[i]);
    return 0;
}

int client_tokenizer_require(struct client_tokenizer **out, const json_t *side, const char *model_type,
                             uint32_t vocabulary, const char *user, struct error *err)
{
    int rc = client_tokenizer_open(out, side, model_type, vocabulary, err);

    if (!rc && !*out)
        rc = client_tokenizer_refuse_unread(side, err);
    return rc || *out ? rc : error_set(err, -EINVAL, "it has no tokenizer.json, which %s", user);
}

int client_tokenizer_names(json_t *out, const struct client_tokenizer *t, const json_t *side, struct error *err)
{
    return tokenizer_side_names(out, side, t->class, err);
}

int client_tokenizer_share(struct client_tokenizer **out, const struct client_tokenizer *t, struct error *err)
{
    struct client_tokenizer *other = malloc(sizeof *other);

    *out = NULL;
    if (!other)
        return error_memory(err);
    *other = *t;
    other->shared = true;
    int rc = tokenizer_work_init(&other->work, err);
    if (rc)
        client_tokenizer_close(other);
    else
        *out = other;
    return rc;
}

void client_tokenizer_close(struct client_tokenizer *t)
{
    if (!t)
        return;
    tokenizer_work_free(&t->work);
    if (!t->shared) {
        free(t->tokens);
        free(t->block);
        free(t->map.places);
        free(t->merges);
        free(t->joined);
        free(t->continuing);
        free(t->scores);
        tokenizer_added_close(&t->added[0]);
        tokenizer_added_close(&t->added[1]);
        tokenizer_changes_free(&t->normal);
        tokenizer_changes_free(&t->lead);
        tokenizer_steps_free(t);
        tokenizer_decoding_free(t);
        free(t->ends[0]);
        free(t->ends[1]);
    }
    free(t);
}

bool client_tokenizer_is_bytes(const struct client_tokenizer *t)
{
    return t->is_bytes;
}

static int encode_bytes(struct client_tokens *out, const char *text, size_t n, struct error *err)
{
    const int rc = client_tokens_reserve(out, n, err);

    for (size_t i = 0; !rc && i < n; i++)
        out->ids[out->n++] = (uint8_t)text[i];
    return rc;
}

/* Bytes that are no text are refused at the latest with the last piece: the end of one may be half a character. */
int client_tokenizer_encode(struct client_tokens *out, size_t *used, struct client_tokenizer *t, const char *text,
                            size_t n, bool last, struct error *err)
{
    const uint8_t *bytes = (const uint8_t *)text;

    *used = t->is_bytes ? n : 0;
    if (t->is_bytes)
        return encode_bytes(out, text, n, err);
    const size_t whole = client_utf8_whole(bytes, n);
    if (whole < n && (last || client_utf8_character(bytes + whole, n - whole) < 0)) {
        tokenizer_forget(&t->work);
        return error_set(err, -EINVAL, "not UTF-8 text at byte %zu (0x%02X)", whole, bytes[whole]);
    }
    tokenizer_work_allow(&t->work, whole);
    return tokenizer_encode_text(out, used, t, text, whole, last, err);
}

uint32_t client_tokenizer_end(const struct client_tokenizer *t)
{
    return t->end;
}

uint32_t client_tokenizer_mask(const struct client_tokenizer *t)
{
    return t->mask;
}

uint32_t client_tokenizer_n_ids(const struct client_tokenizer *t)
{
    return t->n_tokens < t->n_table ? t->n_tokens : t->n_table;
}

int client_tokenizer_check(const struct client_tokenizer *t, uint32_t id, struct error *err)
{
    const struct tokenizer_token *token = &t->tokens[id];

    if (id < t->n_table)
        return 0;
    return error_set(err, -EINVAL,
                     "the token %.*s has the id %" PRIu32 ", outside the model's table of %" PRIu32
                     " tokens: leave it out, or give a model whose table has it",
                     token->n > 60 ? 60 : (int)token->n, token->text, id, t->n_table);
}

bool client_tokenizer_is_special(const struct client_tokenizer *t, uint32_t id)
{
    return t->tokens[id].special;
}

const uint32_t *client_tokenizer_begins(const struct client_tokenizer *t, size_t *n)
{
    *n = t->n_ends[0];
    return t->ends[0];
}

size_t client_tokenizer_n_spelled(const struct client_tokenizer *t)
{
    return t->work.n_spelled;
}

void client_tokenizer_led(struct client_tokenizer *t)
{
    t->work.led = t->n_ends[0] > 0;
    t->work.final = CLIENT_NO_TOKEN;
}

int client_tokenizer_lead(struct client_tokens *out, struct client_tokenizer *t, struct error *err)
{
    client_tokenizer_led(t);
    return client_tokens_add(out, t->ends[0], t->n_ends[0], err);
}

/* A text that spells its end itself gets no second one. */
int client_tokenizer_trail(struct client_tokens *out, const struct client_tokenizer *t, uint32_t end, struct error *err)
{
    uint32_t last = t->work.final;
    int rc = 0;

    if (t->n_ends[1] > 0 && (t->n_ends[1] > 1 || last != t->ends[1][0])) {
        last = t->ends[1][t->n_ends[1] - 1];
        rc = client_tokens_add(out, t->ends[1], t->n_ends[1], err);
    }
    if (rc || end == CLIENT_NO_TOKEN || last == end)
        return rc;
    rc = client_tokenizer_check(t, end, err);
    return rc ? rc : client_tokens_add(out, &end, 1, err);
}

const uint32_t *client_tokenizer_ends(const struct client_tokenizer *t, size_t *n)
{
    *n = t->n_ends[1];
    return t->ends[1];
}
