/* What is trained is a bit of each stored token: labels are made when a row is read, and the checksum covers them.
 * Which kind the lines are is settled by the first line of some file (client_documents_ask); a line of another kind is
 * refused, never trained on as something else. */
#include "client/corpus/documents.h"

#include "client/data/data_file.h"
#include "client/corpus/keys.h"
#include "client/corpus/layouts.h"
#include "client/text/conversation.h"
#include "proto/base/wide.h"
#include "proto/plan/memory/data.h"
#include "proto/wire/message.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <unistd.h>
#include <xxhash.h>

/* ---- Are they documents? ---- */

enum { SEEN = 1 }; /* ends a loop over lines */

struct asking {
    bool (*is)(void *user, const json_t *line);
    void *user;
    bool found;
};

static int see_line(void *user, const char *line, size_t n, uint64_t number, struct error *err)
{
    struct asking *a = user;

    (void)number, (void)err;
    if (client_data_is_blank(line, n))
        return 0;
    json_error_t why;
    json_t *object = wide_read(line, n, JSON_ALLOW_NUL, &why);
    a->found = a->is(a->user, object);
    json_decref(object);
    return SEEN;
}

int client_documents_ask(bool *out, struct client_data *data, bool (*is)(void *user, const json_t *line), void *user,
                         const struct client_watch *watch, struct error *err)
{
    const struct client_data_rules rules = {.watch = watch};
    struct client_data_pass pass = {.data = data, .rules = &rules, .end = CLIENT_NO_TOKEN};
    struct asking asking = {.is = is, .user = user};
    int rc = 0;

    for (size_t i = 0; !rc && !asking.found && i < data->n_files; i++) {
        struct client_data_file *file = &data->files[i];
        if (!client_data_is_a_text(file))
            continue;
        rc = client_data_unpack(&pass, file, err);
        if (!rc && file->kind == CLIENT_DATA_LINES)
            rc = client_data_each_line(&pass, file, see_line, &asking, err);
        rc = rc == SEEN ? 0 : rc;
    }
    *out = asking.found;
    return rc;
}

/* ---- Reading ---- */

struct reading {
    struct client_corpus *documents;
    struct client_conversations *conversations;
    struct client_keys *keys;
    struct client_data_pass pass;
    XXH3_state_t *hash;
    struct client_data_file *file;
    uint32_t file_number, line;
    struct client_tokenizer *tokenizer;
    int (*take)(struct reading *r, json_t *object, struct error *err);
    const struct client_documents_rules *rules;
};

/* n[0] counts the tokens before the first that is trained, and at least one, as nothing predicts the first. */
static int add_document(void *user, const uint32_t *ids, size_t n, struct error *err)
{
    struct reading *r = user;
    struct client_example document = {.label = PLAN_NO_LABEL, .file = r->file_number, .line = r->line};
    const uint32_t n_tokens = (uint32_t)n;

    if (n > INT32_MAX)
        return error_set(err, -E2BIG, "more than %d tokens", INT32_MAX);
    for (document.n[0] = 1; document.n[0] < n && !(ids[document.n[0]] & CLIENT_TOKEN_TRAINED);)
        document.n[0]++;
    document.n[1] = n_tokens - document.n[0];
    XXH3_64bits_update(r->hash, &n_tokens, sizeof n_tokens);
    XXH3_64bits_update(r->hash, ids, n * sizeof *ids);
    return client_corpus_add(r->documents, document, ids, r->file, err);
}

static int tell_line(const struct reading *r, const struct client_documents_line *line, struct error *err)
{
    return r->rules->on_line ? r->rules->on_line(r->rules->user, line, err) : 0;
}

static int documents_take_object(struct reading *r, json_t *object, struct error *err)
{
    const enum client_layout layout = client_layout_of(object);
    json_t *conversation;
    int rc = 0;

    switch (layout) {
    case CLIENT_LAYOUT_CONVERSATION:
        conversation = client_layout_conversation(&rc, object, err);
        if (!rc)
            rc = client_conversation_encode(r->conversations, conversation, add_document, r, err);
        json_decref(conversation);
        return rc;
    case CLIENT_LAYOUT_PROMPT:
    case CLIENT_LAYOUT_TEXT: /* a completion without a prompt */
        return client_conversation_encode_text(r->conversations, json_object_get(object, "prompt"),
                                               json_object_get(object,
                                                               layout == CLIENT_LAYOUT_TEXT ? "text" : "completion"),
                                               add_document, r, err);
    case CLIENT_LAYOUT_PREFERENCE:
        return error_set(err, -EINVAL,
                         "it is a preference, and other data of this run are not: train on preferences alone");
    case CLIENT_LAYOUT_TARGET:
        return error_set(
            err, -EINVAL,
            "it has a \"source\" and a \"target\", which are for encoder-decoders: for this model name them "
            "\"prompt\" and \"completion\"");
    case CLIENT_LAYOUT_NONE:
        break;
    }
    return error_set(
        err, -EINVAL,
        "no object with \"messages\", \"conversations\", \"instruction\", \"prompt\" and \"completion\", or "
        "\"text\"");
}

/* Both of its texts, each one document: only its completion is scored, whatever came before. */
static int take_preference(struct reading *r, json_t *object, struct error *err)
{
    const size_t before = r->documents->n;
    int rc = client_layout_of(object) == CLIENT_LAYOUT_PREFERENCE
                 ? 0
                 : error_set(err, -EINVAL, "it has no \"chosen\" and \"rejected\", and other lines are preferences");

    for (int i = 0; !rc && i < 2; i++) {
        json_t *choice = client_layout_choice(&rc, object, i == 0, err);
        if (!rc && (rc = documents_take_object(r, choice, err)) == -EINVAL)
            error_prefix(err, i ? "rejected" : "chosen");
        json_decref(choice);
        if (!rc && r->documents->n != before + 1 + (size_t)i)
            rc = error_set(err, -EINVAL,
                           "its %s messages make several rows, as the chat template changes earlier answers: give one "
                           "answer",
                           i ? "rejected" : "chosen");
    }
    return rc;
}

int client_documents_encode(struct client_tokens *tokens, struct client_tokenizer *tokenizer, const char *text,
                            size_t n_bytes, struct error *err)
{
    size_t used;
    int rc = client_tokenizer_lead(tokens, tokenizer, err);
    if (!rc)
        rc = client_tokenizer_encode(tokens, &used, tokenizer, text, n_bytes, true, err);
    return rc ? rc : client_tokenizer_trail(tokens, tokenizer, client_tokenizer_end(tokenizer), err);
}

/* A source and its target; or a prompt and its completion. */
static int take_target(struct reading *r, json_t *object, struct error *err)
{
    const enum client_layout layout = client_layout_of(object);
    const bool prompts = layout == CLIENT_LAYOUT_PROMPT;
    const json_t *source = json_object_get(object, prompts ? "prompt" : "source"),
                 *target = client_layout_target(object);
    struct client_tokens tokens = {0};
    int rc = 0;

    if (!prompts && layout != CLIENT_LAYOUT_TARGET)
        return error_set(err, -EINVAL, "no object with \"source\" and \"target\", both texts");
    if (json_string_length(source) == 0 || json_string_length(target) == 0)
        return error_set(err, -EINVAL, "its %s is empty", json_string_length(source) ? "target" : "source");
    rc = client_documents_encode(&tokens, r->tokenizer, json_string_value(source), json_string_length(source), err);
    const size_t n_source = tokens.n;
    if (!rc)
        rc = client_documents_encode(&tokens, r->tokenizer, json_string_value(target), json_string_length(target), err);
    if (!rc && (n_source == 0 || tokens.n == n_source))
        rc = error_set(err, -EINVAL, "its %s is no token", n_source ? "target" : "source");
    for (size_t i = n_source; !rc && i < tokens.n; i++)
        tokens.ids[i] |= CLIENT_TOKEN_TRAINED;
    if (!rc)
        rc = add_document(r, tokens.ids, tokens.n, err);
    free(tokens.ids);
    return rc;
}

/* ---- Two files of text, side by side ---- */

/* The sources are tokenised first. */
struct sides {
    struct reading *r;
    int fd;              /* tokens of the sources */
    uint64_t *ends;      /* (n) where each source ends in it; owned */
    size_t n, cap, seen; /* seen: targets */
    struct client_tokens tokens;
};

/* A line without what ends it. */
static size_t line_bytes(const char *line, size_t n)
{
    while (n > 0 && (line[n - 1] == '\n' || line[n - 1] == '\r'))
        n--;
    return n;
}

/* Tokens of one line; none, if it is blank. */
static int encode_line(struct sides *s, const char *line, size_t n, struct error *err)
{
    n = line_bytes(line, n);
    s->tokens.n = 0;
    return client_data_is_blank(line, n) ? 0 : client_documents_encode(&s->tokens, s->r->tokenizer, line, n, err);
}

static int in_line(int rc, const struct client_data_file *file, uint64_t number, struct error *err)
{
    char where[64];

    if (rc == -EINVAL || rc == -E2BIG) {
        snprintf(where, sizeof where, "line %" PRIu64, number);
        error_prefix(err, where);
        error_prefix(err, file->path);
    }
    return rc;
}

/* The first file is read once as a whole before the second one begins: tokens wait on disk, their ends in memory. */
static int on_source(void *user, const char *line, size_t n, uint64_t number, struct error *err)
{
    struct sides *s = user;
    const uint64_t begin = s->n > 0 ? s->ends[s->n - 1] : 0;
    int rc = encode_line(s, line, n, err);

    if (!rc && s->n == s->cap) {
        const size_t cap = s->cap ? 2 * s->cap : 1024;
        uint64_t *ends = realloc(s->ends, cap * sizeof *ends);
        if (!ends)
            return error_memory(err);
        s->ends = ends, s->cap = cap;
    }
    if (!rc && s->tokens.n > 0)
        rc = client_data_write(s->fd, s->r->file, s->tokens.ids, s->tokens.n * sizeof *s->tokens.ids,
                               begin * sizeof *s->tokens.ids, err);
    if (!rc)
        s->ends[s->n++] = begin + s->tokens.n;
    return in_line(rc, s->r->file, number, err);
}

static int documents_on_target(void *user, const char *line, size_t n, uint64_t number, struct error *err)
{
    struct sides *s = user;
    struct reading *r = s->r;
    const size_t k = s->seen++;
    const uint64_t begin = k > 0 && k < s->n ? s->ends[k - 1] : 0, end = k < s->n ? s->ends[k] : 0;
    struct client_tokens both = {0};
    int rc = encode_line(s, line, n, err);

    if (rc || (begin == end && s->tokens.n == 0))
        return in_line(rc, r->file, number, err);
    r->line = number < UINT32_MAX ? (uint32_t)number : UINT32_MAX;
    if (k >= s->n || begin == end || s->tokens.n == 0)
        rc = error_set(err, -EINVAL, "a %s without a %s", s->tokens.n ? "target" : "source",
                       s->tokens.n ? "source" : "target");
    both.ids = rc ? NULL : malloc((end - begin + s->tokens.n) * sizeof *both.ids);
    if (!rc && !both.ids)
        rc = error_memory(err);
    if (!rc)
        rc = client_data_reread(s->fd, both.ids, begin, end - begin, err);
    for (size_t i = 0; !rc && i < s->tokens.n; i++)
        both.ids[end - begin + i] = s->tokens.ids[i] | CLIENT_TOKEN_TRAINED;
    if (!rc)
        rc = add_document(r, both.ids, end - begin + s->tokens.n, err);
    if (!rc)
        rc = tell_line(r,
                       &(struct client_documents_line){.target = line,
                                                       .n_target = line_bytes(line, n),
                                                       .documents = r->documents,
                                                       .first = r->documents->n - 1},
                       err);
    free(both.ids);
    r->documents->n_lines++;
    return in_line(rc, r->file, number, err);
}

/* Each line of the first file is the source of the same line of the second one. */
static int read_side_by_side(struct reading *r, struct client_data_file files[2], struct error *err)
{
    struct sides s = {.r = r, .fd = client_data_nameless("tokens", err)};
    const size_t before = r->documents->n;
    int rc = s.fd < 0 ? s.fd : 0;

    r->file = &files[0];
    if (!rc)
        rc = client_data_each_line(&r->pass, &files[0], on_source, &s, err);
    r->file = &files[1];
    if (!rc)
        rc = client_data_each_line(&r->pass, &files[1], documents_on_target, &s, err);
    if (!rc && s.seen < s.n)
        rc = error_set(err, -EINVAL, "%s: it has %zu lines, and %s, of which it has the targets, %zu", files[1].path,
                       s.seen, files[0].path, s.n);
    if (!rc && r->documents->n == before)
        rc = error_set(err, -EINVAL, "%s: nothing in it", files[0].path);
    r->file_number += 2;
    free(s.ends);
    free(s.tokens.ids);
    if (s.fd >= 0)
        close(s.fd);
    return rc;
}

/* ---- Files ---- */

static int documents_on_line(void *user, const char *line, size_t n, uint64_t number, struct error *err)
{
    struct reading *r = user;
    json_error_t why;

    if (client_data_is_blank(line, n))
        return 0;
    r->line = number < UINT32_MAX ? (uint32_t)number : UINT32_MAX;
    json_t *object = wide_read(line, n, JSON_ALLOW_NUL, &why);
    const size_t before = r->documents->n;
    int rc = json_is_object(object)
                 ? r->take(r, object, err)
                 : error_set(err, -EINVAL, "no JSON object (%.100s)", object ? "another value" : why.text);
    if (!rc) {
        const json_t *target = client_layout_target(object);
        rc = tell_line(r,
                       &(struct client_documents_line){.object = object,
                                                       .target = json_string_value(target),
                                                       .n_target = json_string_length(target),
                                                       .documents = r->documents,
                                                       .first = before},
                       err);
    }
    if (!rc)
        client_keys_count(&r->file->unread, r->keys, object, number);
    json_decref(object);
    r->documents->n_lines++;
    return in_line(rc, r->file, number, err);
}

/* A weight changes which rows a run has, so the checksum covers it. */
static int documents_read_file(struct reading *r, struct client_data_file *file, struct error *err)
{
    const size_t before = r->documents->n;
    int rc = client_data_unpack(&r->pass, file, err);

    if (file->weight != 1)
        XXH3_64bits_update(r->hash, &file->weight, sizeof file->weight);
    r->file = file;
    if (!rc && file->kind != CLIENT_DATA_LINES)
        rc = error_set(
            err, -EINVAL,
            "%s: it has no lines of JSON, and another file has conversations, which are rows of their own: give "
            "its texts as .jsonl, each as {\"text\": \"...\"}",
            file->path);
    if (!rc)
        rc = client_data_each_line(&r->pass, file, documents_on_line, r, err);
    if (!rc && r->documents->n == before)
        rc = error_set(err, -EINVAL, "%s: nothing in it", file->path);
    r->file_number++;
    return rc;
}

/* A file of JSON, or two of text. *i: the number of the last one that was read. */
static int read_targets(struct reading *r, struct client_data *data, size_t *i, struct error *err)
{
    struct client_data_file *files = &data->files[*i];
    const bool has_next = *i + 1 < data->n_files;
    int rc = client_data_unpack(&r->pass, &files[0], err);

    if (!rc && has_next)
        rc = client_data_unpack(&r->pass, &files[1], err);
    if (rc || files[0].kind != CLIENT_DATA_TEXT)
        return rc ? rc : documents_read_file(r, &files[0], err);
    if (!has_next || files[1].kind != CLIENT_DATA_TEXT)
        return error_set(err, -EINVAL,
                         "%s: a text alone: give two, of sources and of their targets line by line, or .jsonl with "
                         "{\"source\": \"...\", \"target\": \"...\"} in each line",
                         files[0].path);
    ++*i;
    return read_side_by_side(r, files, err);
}

int client_documents_read(struct client_corpus *out, struct client_data *data,
                          const struct client_documents_rules *rules, struct error *err)
{
    const struct client_data_rules watched = {.watch = rules->watch};
    XXH3_state_t *hash = XXH3_createState();
    struct reading r = {.documents = out,
                        .pass = {.data = data, .rules = &watched, .hash = hash, .end = CLIENT_NO_TOKEN},
                        .hash = hash,
                        .tokenizer = rules->tokenizer,
                        .rules = rules,
                        .take = rules->pairs     ? take_preference
                                : rules->targets ? take_target
                                                 : documents_take_object};
    int rc = hash ? client_conversations_open(&r.conversations, rules->tokenizer, rules->side, rules->chat_template,
                                              rules->train_on, err)
                  : error_memory(err);

    *out = (struct client_corpus){.fd = -1};
    if (!rc)
        rc = client_keys_open(&r.keys, rules->side, err);
    if (!rc && rules->pairs)
        client_conversations_by_prefixes(r.conversations);
    if (!rc && rules->parses)
        client_conversations_parse(r.conversations);
    if (!rc && !rules->weighted)
        rc = client_data_refuse_weights(data, err);
    if (!rc) {
        XXH3_64bits_reset(hash);
        rc = client_corpus_init(out, err);
    }
    client_tokenizer_watch(rules->tokenizer, rules->watch);
    for (size_t i = 0; !rc && i < data->n_files; i++)
        rc = rules->targets ? read_targets(&r, data, &i, err) : documents_read_file(&r, &data->files[i], err);
    client_tokenizer_watch(rules->tokenizer, NULL);
    if (!rc)
        out->hash = XXH3_64bits_digest(hash), out->n_spelled = client_conversations_n_spelled(r.conversations);
    XXH3_freeState(hash);
    client_keys_close(r.keys);
    client_conversations_close(r.conversations);
    return rc;
}

/* ---- A document ---- */

uint32_t client_documents_length(const struct client_corpus *documents, size_t k, uint32_t seq)
{
    const uint32_t n = client_document_inputs(&documents->list[k]);

    return n < seq ? n : seq;
}

enum eps_fate client_documents_fate(const struct client_corpus *documents, size_t k, uint32_t seq,
                                    enum eps_long long_rows)
{
    const struct client_example *document = &documents->list[k];
    const bool fits = client_document_inputs(document) <= seq;

    if (!fits && long_rows == EPS_LONG_DROP)
        return EPS_DROPPED;
    return document->n[1] == 0 || document->n[0] > seq ? EPS_UNANSWERED : fits ? EPS_KEPT : EPS_CUT;
}

int client_documents_refuse(const struct client_corpus *documents, const struct client_data *data, size_t k,
                            uint32_t seq, struct error *err)
{
    const struct client_example *document = &documents->list[k];

    return error_set(err, -EINVAL,
                     "%s: line %" PRIu32 ": %" PRIu32 " tokens are more than --seq %" PRIu32
                     ": give a larger --seq, or --long cut or drop",
                     data->files[document->file].path, document->line, client_document_inputs(document), seq);
}

uint32_t client_documents_longest(const struct client_corpus *documents)
{
    uint32_t longest = 0;

    for (size_t i = 0; i < documents->n; i++)
        if (client_document_inputs(&documents->list[i]) > longest)
            longest = client_document_inputs(&documents->list[i]);
    return longest;
}
