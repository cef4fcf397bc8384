/* eps_data: rows as a model sees them, without a model's weights or a daemon. They come from the source that training
 * has, which reads the files: so what a task learns from a line is what is shown of it. */
#include "client/ask/data_images.h"
#include "client/daemon/observer.h"
#include "client/data/data.h"
#include "client/eps.h"
#include "client/model/model.h"
#include "client/model/source.h"
#include "client/options/options.h"
#include "client/task/document_rows.h"
#include "client/task/packed.h"
#include "client/task/source.h"
#include "client/text/conversation.h"
#include "client/text/tokenizer.h"
#include "proto/model/family.h"
#include "proto/plan/memory/data.h"
#include "proto/wire/message.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { DEFAULT_LIMIT = 10 };

struct show {
    const struct eps_data_options *options;
    const struct eps_data_events *events;
    void *user;
    struct eps_data_counts counts;
    struct client_model model;
    struct client_data data, eval_data;
    struct client_watch watch;
    struct client_tokenizer *tokenizer; /* NULL: ids have no texts */
    uint32_t *lengths;                  /* tokens of each row, uncut */
    struct eps_data_token *tokens;      /* (cap) of the row that is shown */
    size_t cap;
};

static int data_ask(void *user, struct error *err)
{
    const struct show *s = user;

    return s->events->should_stop && s->events->should_stop(s->user) ? error_set(err, -EINTR, "interrupted") : 0;
}

/* Shows a row of n ids (CLIENT_TOKEN_TRAINED), of which the first n_seen are seen, and counts them. */
static int data_add_row(struct show *s, struct eps_data_row row, const uint32_t *ids, struct error *err)
{
    const uint64_t limit = s->options->limit == UINT64_MAX ? DEFAULT_LIMIT : s->options->limit;
    struct eps_data_counts *counts = &s->counts;

    if (row.n > s->cap) {
        free(s->tokens);
        s->tokens = calloc(row.n, sizeof *s->tokens);
        s->cap = s->tokens ? row.n : 0;
        if (!s->tokens)
            return error_memory(err);
    }
    for (size_t i = 0; i < row.n; i++) {
        struct eps_data_token *token = &s->tokens[i];
        *token =
            (struct eps_data_token){.id = ids[i] & ~CLIENT_TOKEN_TRAINED, .trained = ids[i] & CLIENT_TOKEN_TRAINED};
        if (s->tokenizer)
            token->text = client_tokenizer_decode(s->tokenizer, token->id, &token->n);
        counts->n_trained += i < row.n_seen && token->trained;
    }
    counts->n_tokens += row.n_seen;
    row.tokens = s->tokens;
    row.number = ++counts->n_rows;
    if (row.number <= limit && s->events->on_row)
        s->events->on_row(s->user, &row);
    return 0;
}

static int data_by_number(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* lengths (n) become sorted. */
static void find_quantiles(struct eps_data_counts *counts, uint32_t *lengths, size_t n)
{
    static const unsigned percent[EPS_DATA_QUANTILES] = {50, 90, 95, 99};

    qsort(lengths, n, sizeof *lengths, data_by_number);
    for (size_t i = 0; n > 0 && i < EPS_DATA_QUANTILES; i++)
        counts->quantiles[i] = lengths[(n * percent[i] + 99) / 100 - 1];
    counts->longest = n > 0 ? lengths[n - 1] : 0;
}

/* ---- Conversations ---- */

/* Document k, of n tokens, uncut. */
static void count_document(struct show *s, size_t k, uint32_t n, enum eps_fate fate)
{
    s->counts.n_cut += fate == EPS_CUT;
    s->counts.n_dropped += fate == EPS_DROPPED;
    s->counts.n_unanswered += fate == EPS_UNANSWERED;
    s->lengths[k] = n;
}

/* A document has one token more than inputs: the last one is predicted only. Rows that the run would drop are shown
 * too, with their fate. */
static int show_documents(struct show *s, const struct client_source *source, struct error *err)
{
    const struct client_corpus *documents = client_document_rows_of(source);
    const uint32_t longest = client_documents_longest(documents), seq = s->counts.seq;
    uint32_t *ids = calloc(longest + (size_t)1, sizeof *ids);
    int rc = ids && s->lengths ? 0 : error_memory(err);

    for (size_t k = 0; !rc && k < documents->n; k++) {
        const struct client_example *document = &documents->list[k];
        const uint32_t n = client_document_inputs(document) + 1;
        const enum eps_fate fate = client_documents_fate(documents, k, seq, s->options->long_rows);
        const struct eps_data_row row = {.path = s->data.files[document->file].path,
                                         .line = document->line,
                                         .side = client_document_rows_side(source, k),
                                         .fate = fate,
                                         .n = n,
                                         .n_seen = fate == EPS_KEPT || fate == EPS_CUT
                                                       ? client_documents_length(documents, k, seq) + 1
                                                       : 0};
        if (s->options->long_rows == EPS_LONG_REFUSE && n - 1 > seq)
            rc = client_documents_refuse(documents, &s->data, k, seq, err);
        count_document(s, k, n, fate);
        if (!rc)
            rc = client_corpus_tokens(documents, ids, k, n, err);
        if (!rc)
            rc = data_add_row(s, row, ids, err);
        if (!rc && k % 1024 == 0)
            rc = client_watch_ask(&s->watch, err);
    }
    free(ids);
    return rc;
}

static void data_count_lines(struct show *s, const struct client_corpus *documents)
{
    s->counts.conversations = true;
    s->counts.n_lines = documents->n_lines, s->counts.n_spelled = documents->n_spelled;
}

/* As client_choose has them. */
static struct client_source_rules data_rules(const struct show *s)
{
    const struct eps_data_options *o = s->options;

    return (struct client_source_rules){.separator = o->separator,
                                        .chat_template = o->chat_template,
                                        .train_on = o->train_on,
                                        .split_special_tokens = o->split_special_tokens,
                                        .long_rows = o->long_rows,
                                        .seq = o->seq,
                                        .seed = o->seed == UINT64_MAX ? 0 : o->seed,
                                        .order = o->order,
                                        .watch = &s->watch};
}

/* Of the data as training has them, held-out ones beside them. */
static int data_open(struct client_source **out, struct show *s, const struct client_source_ops *kind,
                     struct error *err)
{
    const int rc = client_model_source(out, kind, &s->model, &s->data, &s->eval_data, err);

    if (rc)
        error_prefix(err, s->options->model);
    return rc;
}

/* The rows are not settled: those that the run would drop are shown as well. */
static int show_conversations(struct show *s, const struct client_source_ops *kind, struct error *err)
{
    const struct client_source_rules rules = data_rules(s);
    struct client_source *source = NULL;
    int rc = data_open(&source, s, kind, err);

    if (!rc)
        rc = client_source_read_part(source, CLIENT_TRAIN, &rules, err);
    if (!rc) {
        const struct client_corpus *documents = client_document_rows_of(source);
        if (s->counts.seq == 0)
            s->counts.seq = client_documents_seq(client_documents_longest(documents), s->model.config.n_positions);
        data_count_lines(s, documents);
        s->counts.preferences = kind->compares;
        s->lengths = calloc(documents->n + 1, sizeof *s->lengths);
        rc = show_documents(s, source, err);
        if (!rc)
            find_quantiles(&s->counts, s->lengths, documents->n);
    }
    client_source_close(source);
    return rc;
}

/* ---- Packed rows ---- */

/* Reads the documents of row k, one behind the other, into ids. */
static int data_read_packed(struct eps_data_row *row, struct eps_data_document *list, uint32_t *ids,
                            const struct show *s, const struct client_packed *packed, uint32_t k, struct error *err)
{
    const struct client_corpus *documents = packed->documents;
    const uint32_t *places;
    uint32_t n;
    int rc = 0;

    client_packing_get(&places, &n, &packed->packing, k);
    *row = (struct eps_data_row){.path = "", .documents = list, .n_documents = n};
    for (uint32_t i = 0; !rc && i < n; i++) {
        const uint32_t number = packed->list[places[i]];
        const struct client_example *document = &documents->list[number];
        const uint32_t n_tokens = client_documents_length(documents, number, packed->seq) + 1;
        list[i] = (struct eps_data_document){.path = s->data.files[document->file].path,
                                             .line = document->line,
                                             .fate = client_documents_fate(documents, number, packed->seq,
                                                                           s->options->long_rows),
                                             .n = n_tokens};
        rc = client_corpus_tokens(documents, ids + row->n, number, n_tokens, err);
        row->n += n_tokens;
    }
    row->n_seen = row->n;
    return rc;
}

/* In the order in which the first epoch takes them. A row has no more documents than tokens. */
static int show_packed_rows(struct show *s, const struct client_packed *packed, struct error *err)
{
    struct eps_data_document *list = calloc(packed->seq, sizeof *list);
    uint32_t *ids = calloc(2 * (size_t)packed->seq, sizeof *ids);
    struct eps_data_row row;
    int rc = list && ids ? 0 : error_memory(err);

    for (uint32_t k = 0; !rc && k < packed->packing.n_rows; k++) {
        rc = data_read_packed(&row, list, ids, s, packed, client_packing_row(&packed->packing, k), err);
        if (!rc)
            rc = data_add_row(s, row, ids, err);
        if (!rc && k % 1024 == 0)
            rc = client_watch_ask(&s->watch, err);
    }
    free(list);
    free(ids);
    return rc;
}

static int data_count_documents(struct show *s, const struct client_packed *packed, struct error *err)
{
    const struct client_corpus *documents = packed->documents;

    data_count_lines(s, documents);
    s->counts.seq = packed->seq;
    s->counts.n_documents = packed->n;
    s->lengths = calloc(documents->n + 1, sizeof *s->lengths);
    if (!s->lengths)
        return error_memory(err);
    for (size_t k = 0; k < documents->n; k++) {
        const enum eps_fate fate = client_documents_fate(documents, k, packed->seq, s->options->long_rows);
        count_document(s, k, client_document_inputs(&documents->list[k]) + 1, fate);
    }
    find_quantiles(&s->counts, s->lengths, documents->n);
    return 0;
}

static int show_packed(struct show *s, const struct client_source_ops *kind, struct error *err)
{
    const struct client_source_rules rules = data_rules(s);
    struct client_source *source = NULL;
    int rc = data_open(&source, s, kind, err);

    if (!rc)
        rc = client_source_read(source, &rules, err);
    if (!rc)
        rc = data_count_documents(s, client_packed_of(source), err);
    if (!rc)
        rc = show_packed_rows(s, client_packed_of(source), err);
    if (!rc)
        client_source_describe(s->counts.packing, sizeof s->counts.packing, source);
    client_source_close(source);
    return rc;
}

/* ---- A stream of text ---- */

/* Shows window k, whose tokens are its ids and then its last successor. */
static int show_window(struct show *s, struct client_source *source, uint64_t k, uint32_t *ids, struct error *err)
{
    const uint32_t seq = s->counts.seq;
    uint32_t *labels = ids + seq + 1, n = 0;
    const struct client_row_fields fields = {.at = {[PLAN_FIELD_IDS] = ids, [PLAN_FIELD_LABELS] = labels},
                                             .n_tokens = seq};
    const int rc = source->ops->read_row(source, &fields, CLIENT_HELD_OUT, client_source_pick_held_out(source, k), err);

    if (rc)
        return rc;
    while (n < seq && labels[n] != PLAN_NO_LABEL)
        n++;
    ids[n] = labels[n - 1];
    for (uint32_t i = 1; i <= n; i++)
        ids[i] |= CLIENT_TOKEN_TRAINED;
    s->lengths[k] = n + 1;
    return data_add_row(s, (struct eps_data_row){.path = "", .n = n + 1, .n_seen = n + 1}, ids, err);
}

static int show_windows(struct show *s, struct client_source *source, struct error *err)
{
    const uint64_t n = client_source_n_rows(source, CLIENT_HELD_OUT);
    uint32_t *ids = calloc(2 * (s->counts.seq + (size_t)1), sizeof *ids);
    int rc = 0;

    s->lengths = calloc(n + 1, sizeof *s->lengths);
    if (!ids || !s->lengths)
        rc = error_memory(err);
    else if (s->data.n == 0)
        rc = client_options_refuse_empty("", s->options->data, s->options->n_data, err);
    else if (n == 0)
        rc = error_set(err, -EINVAL, "%s: too few tokens for a row of --seq %u and the token after it",
                       s->options->data[0], s->counts.seq);
    for (uint64_t k = 0; !rc && k < n; k++) {
        rc = show_window(s, source, k, ids, err);
        if (!rc && k % 1024 == 0)
            rc = client_watch_ask(&s->watch, err);
    }
    if (!rc)
        find_quantiles(&s->counts, s->lengths, n);
    free(ids);
    return rc;
}

/* The data are opened as held-out ones: their windows come one behind the other. */
static int show_text(struct show *s, const struct client_source_ops *kind, struct error *err)
{
    const uint32_t n_positions = s->model.config.n_positions;
    const struct client_source_rules rules = data_rules(s);
    struct client_source *source = NULL;

    if (s->counts.seq == 0)
        s->counts.seq = n_positions < 1024 ? n_positions : 1024;
    const struct client_division division = {.seq = s->counts.seq, .stride = s->counts.seq};
    int rc = client_model_source(&source, kind, &s->model, NULL, &s->data, err);
    if (!rc)
        rc = client_source_read_part(source, CLIENT_HELD_OUT, &rules, err);
    if (!rc)
        rc = client_source_divide(source, &division, err);
    if (!rc)
        rc = show_windows(s, source, err);
    client_source_close(source);
    return rc;
}

/* ---- All ---- */

static int check(const struct show *s, const struct client_source_ops *kind, struct error *err)
{
    const struct eps_data_options *o = s->options;
    const char *alone = o->eval_data ? "--eval-data" : o->order ? "--order" : o->seed != UINT64_MAX ? "--seed" : NULL;
    const int rc = client_options_check_tasks(o, EPS_COMMAND_DATA, kind->facts.task, false, err);

    return rc || o->pack || !alone
               ? rc
               : error_set(err, -EDOM, "%s goes with --pack: without it, rows are shown as they come", alone);
}

/* Without weights: a directory that lacks them will do. */
static int data_open_model(struct show *s, struct error *err)
{
    const uint32_t seq = s->options->seq;
    const struct client_model_name name = {.path = s->options->model, .base = s->options->base_model};
    int rc = client_model_open_fresh(&s->model, &name, NULL, err);

    if (rc)
        return rc;
    if (client_source_kind(&s->model.config, NAN) != &client_source_text)
        return error_set(err, -EDOM,
                         "--model %s does not predict the next token: eps data shows rows of models that do",
                         s->options->model);
    if (seq > s->model.config.n_positions)
        return error_set(err, -EDOM, "--seq %u is more than the model's %u positions", seq,
                         s->model.config.n_positions);
    s->counts.seq = seq;
    rc = client_tokenizer_open(&s->tokenizer, s->model.side, s->model.config.family->model_type,
                               s->model.config.vocabulary, err);
    if (rc)
        error_prefix(err, s->options->model);
    return rc;
}

static int data_show(struct show *s, struct error *err)
{
    const struct client_source_ops *kind;
    int rc = data_open_model(s, err);

    if (!rc) {
        rc = client_data_open(&s->data, s->options->data, s->options->n_data, err);
        if (!rc)
            rc = client_source_find_kind(&kind, &s->model.config, NAN, &s->data, NULL, &s->watch, err);
    }
    if (!rc)
        rc = check(s, kind, err);
    if (!rc && s->options->eval_data && (rc = client_data_open(&s->eval_data, &s->options->eval_data, 1, err)) != 0)
        error_prefix(err, "--eval-data");
    if (rc)
        return rc;
    s->counts.teaches = kind->facts.task;
    if (!kind->has_line)
        return show_text(s, kind, err);
    if (s->options->pack)
        return show_packed(s, client_source_pack(kind), err);
    if (!s->tokenizer && (rc = client_tokenizer_refuse_unread(s->model.side, err)) != 0)
        return rc;
    return s->tokenizer
               ? show_conversations(s, kind, err)
               : error_set(err, -EINVAL, "%s: it has no tokenizer.json, which conversations need", s->options->model);
}

struct eps_data_options eps_data_defaults(void)
{
    return (struct eps_data_options){.limit = UINT64_MAX, .seed = UINT64_MAX};
}

int eps_data(struct eps_data_counts *out, const struct eps_data_options *options, const struct eps_data_events *events,
             void *user, struct eps_error *error)
{
    static const struct eps_data_events silent;
    struct show s = {.options = options,
                     .events = events ? events : &silent,
                     .user = user,
                     .model = {.config_fd = -1},
                     .watch = {.ask = data_ask, .data = &s}};
    struct error err = {""};
    int rc = 0;

    if (!options->model && !options->images)
        rc = error_set(
            &err, -EDOM,
            "--model is needed: a directory with config.json and the model's tokenizer; images need --images");
    else if (options->n_data == 0)
        rc = error_set(&err, -EDOM, "name at least one file of data%s",
                       options->images ? "" : ", or - for standard input");
    else if (options->image && !options->images)
        rc = error_set(&err, -EDOM, "--image goes with --images");
    else if (options->images)
        rc = client_data_images(&s.counts.images, options, s.events, user, &s.watch, &err);
    else
        rc = data_show(&s, &err);
    if (!rc && s.events->on_note) {
        client_unread_tell(&s.data, "--data", s.events->on_note, user);
        client_unread_tell(&s.eval_data, "--eval-data", s.events->on_note, user);
    }
    *out = s.counts;
    client_tokenizer_close(s.tokenizer);
    client_model_close(&s.model);
    client_data_free(&s.data);
    client_data_free(&s.eval_data);
    free(s.lengths);
    free(s.tokens);
    return client_report(error, &err, rc);
}
