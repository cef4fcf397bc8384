/* Sources and targets: what an encoder-decoder reads, and what it says of it (client/corpus/documents.h), in minibatches
 * as of client/order/batches.h. A tenth of them is held out.
 *
 * A row of n tokens is divided in proportion: --source-seq of --seq for the source, the rest for the target
 * (model_divide_rows). The decoder reads the start token and the target without its last one, and predicts the
 * target. */
#include "client/task/documented.h"
#include "client/text/conversation.h"
#include "proto/plan/memory/data.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SIDES = 2, DEFAULT_SIDE = 512 }; /* most tokens of a side, unless more are asked for */

struct targets {
    struct client_documented rows;
    uint32_t *lengths[2];    /* (documents) tokens of each row, uncut; owned */
    size_t n_cut, n_dropped; /* rows of data */
    uint32_t seq, source_seq;
    uint32_t *work; /* (the longest row) */
};

static void close_source(struct client_source *source)
{
    struct targets *t = (struct targets *)source;

    client_documented_free(&t->rows);
    for (int part = 0; part < 2; part++)
        free(t->lengths[part]);
    free(t->work);
    free(t);
}

static int open_source(struct client_source **out, const struct client_source_setup *setup, struct error *err)
{
    struct targets *t = calloc(1, sizeof *t);

    *out = NULL;
    if (!t)
        return error_memory(err);
    const int rc = client_documented_init(&t->rows, &client_source_targets, setup, "sources and targets need", err);
    if (rc)
        close_source(&t->rows.source);
    else
        *out = &t->rows.source;
    return rc;
}

/* ---- Reading, and which rows there are ---- */

static int read_rows(struct client_source *source, enum client_part part, const struct client_source_rules *rules,
                     struct error *err)
{
    return client_documented_read((struct client_documented *)source, part,
                                  (struct client_documents_rules){.targets = true, .watch = rules->watch}, err);
}

/* Tokens of the two sides of a row, uncut: those of the source come first, and are not trained. */
static void find_sides(uint32_t n[SIDES], const struct client_documents *documents, size_t k)
{
    n[0] = documents->list[k].first + 1;
    n[1] = documents->list[k].n - n[0];
}

/* Tokens of the two sides in rows of n tokens. */
static void divide_tokens(uint32_t room[SIDES], const struct targets *t, uint32_t n)
{
    const struct program_own own = {.n = t->source_seq, .of = t->seq};

    room[0] = program_own_elements(&own, n);
    room[1] = n - room[0];
}

/* Finds the longest source and the longest target of both parts. */
static void find_longest(uint32_t longest[SIDES], const struct targets *t)
{
    longest[0] = longest[1] = 1;
    for (int part = 0; part < 2; part++)
        for (size_t k = 0; k < t->rows.documents[part].n; k++) {
            uint32_t n[SIDES];
            find_sides(n, &t->rows.documents[part], k);
            for (int side = 0; side < SIDES; side++)
                longest[side] = longest[side] < n[side] ? n[side] : longest[side];
        }
}

/* What is not asked for is as long as the longest side, within the default; a row that is asked for is divided as the
 * longest sides are. -EDOM. */
static int choose_sides(struct targets *t, const struct client_source_rules *rules, struct error *err)
{
    uint32_t longest[SIDES], side[SIDES];

    find_longest(longest, t);
    for (int i = 0; i < SIDES; i++)
        side[i] = client_batches_length(longest[i], DEFAULT_SIDE);
    t->source_seq = rules->source_seq ? rules->source_seq : side[0];
    t->seq = rules->seq ? rules->seq : t->source_seq + side[1];
    if (rules->seq && !rules->source_seq) {
        t->source_seq = (uint32_t)((uint64_t)rules->seq * side[0] / (side[0] + side[1]));
        t->source_seq += t->source_seq == 0;
    }
    if (t->source_seq < t->seq)
        return 0;
    return error_set(err, -EDOM,
                     "--seq %" PRIu32 " leaves no room for a target after --source-seq %" PRIu32
                     ": choose a larger --seq, which is that of both",
                     t->seq, t->source_seq);
}

static int refuse_length(const struct targets *t, const struct client_data *data,
                         const struct client_document *document, const uint32_t n[SIDES], struct error *err)
{
    return error_set(err, -EINVAL,
                     "%s: line %" PRIu32 ": %" PRIu32 " tokens of source and %" PRIu32 " of target, in rows of %" PRIu32
                     " and %" PRIu32 ": give a larger --seq and --source-seq, or --long cut or drop",
                     data->files[document->file].path, document->line, n[0], n[1], t->source_seq,
                     t->seq - t->source_seq);
}

/* Lists the rows, in their order. */
static int keep(struct targets *t, enum client_part part, enum eps_long long_rows, struct error *err)
{
    const struct client_documents *documents = &t->rows.documents[part];
    const struct client_data *data = part == CLIENT_TRAIN ? t->rows.setup.data : t->rows.setup.eval_data;
    struct client_subset *out = &t->rows.subsets[part];
    uint32_t room[SIDES], n[SIDES];
    int rc;

    divide_tokens(room, t, t->seq);
    t->lengths[part] = calloc(documents->n + 1, sizeof *t->lengths[part]);
    rc = t->lengths[part] ? client_subset_init(out, t->lengths[part], documents->n, err) : error_memory(err);
    for (size_t k = 0; !rc && k < documents->n; k++) {
        find_sides(n, documents, k);
        const bool fits = n[0] <= room[0] && n[1] <= room[1];
        t->lengths[part][k] = documents->list[k].n;
        if (!fits && long_rows == EPS_LONG_REFUSE)
            rc = refuse_length(t, data, &documents->list[k], n, err);
        t->n_cut += !fits && long_rows != EPS_LONG_DROP && part == CLIENT_TRAIN;
        t->n_dropped += !fits && long_rows == EPS_LONG_DROP && part == CLIENT_TRAIN;
        if (fits || long_rows != EPS_LONG_DROP)
            out->list[out->n++] = (uint32_t)k;
    }
    if (!rc && out->n == 0)
        rc = error_set(err, -EINVAL, "%s%s: no row is within --seq %" PRIu32 ": give a larger --seq",
                       data->files[0].path, data->n_files > 1 ? " and more" : "", t->seq);
    return rc;
}

static int settle(struct client_source *source, const struct client_source_rules *rules, struct error *err)
{
    struct targets *t = (struct targets *)source;
    int rc = choose_sides(t, rules, err);

    if (!rc && t->rows.documents[CLIENT_TRAIN].n > 0)
        rc = keep(t, CLIENT_TRAIN, rules->long_rows, err);
    if (rc)
        return rc;
    return t->rows.documents[CLIENT_HELD_OUT].n > 0
               ? keep(t, CLIENT_HELD_OUT, rules->long_rows, err)
               : client_documented_hold_out(&t->rows, rules->seed, "row", NULL, err);
}

static void measure(struct client_source_facts *out, const struct client_source *source)
{
    const struct targets *t = (const struct targets *)source;

    *out = (struct client_source_facts){.whole = true,
                                        .seq = t->seq,
                                        .source = t->source_seq,
                                        .n_rows = t->rows.subsets[CLIENT_TRAIN].n,
                                        .longest = t->seq,
                                        .least = 2};
}

/* ---- Rows ---- */

/* Tokens that a row trains on or reads, cut. */
static uint32_t count_tokens(const struct targets *t, enum client_part part, size_t k)
{
    uint32_t n[SIDES], room[SIDES];

    find_sides(n, client_documented_of(&t->rows, part), k);
    divide_tokens(room, t, t->seq);
    return (n[0] < room[0] ? n[0] : room[0]) + (n[1] < room[1] ? n[1] : room[1]);
}

static int divide(struct client_source *source, const struct client_division *d, struct error *err)
{
    struct targets *t = (struct targets *)source;
    struct client_subset *held_out = &t->rows.subsets[CLIENT_HELD_OUT];
    uint64_t n_tokens = 0;
    int rc = client_subset_by_length(held_out, err);

    assert(d->seq == t->seq);
    for (uint32_t i = 0; i < held_out->n; i++)
        n_tokens += count_tokens(t, CLIENT_HELD_OUT, held_out->list[i]);
    client_documented_limit(&t->rows, n_tokens, d->eval_tokens);
    t->work = calloc(client_documented_longest(&t->rows) + (size_t)1, sizeof *t->work); /* of inputs, one fewer */
    if (!rc && !t->work)
        rc = error_memory(err);
    if (!rc && d->batch > 0 && t->rows.subsets[CLIENT_TRAIN].n > 0)
        rc = client_batches_init(&t->rows.batches,
                                 &(struct client_batches_options){.subset = &t->rows.subsets[CLIENT_TRAIN],
                                                                  .batch = d->batch,
                                                                  .part = d->part,
                                                                  .seq = d->seq,
                                                                  .order = d->order,
                                                                  .seed = d->seed},
                                 err);
    if (!rc)
        client_batches_measure(source->row_tokens, &t->rows.batches, 1);
    return rc;
}

static void describe(char *out, size_t cap, const struct client_source *source)
{
    const struct targets *t = (const struct targets *)source;
    size_t used = (size_t)snprintf(out, cap,
                                   "%" PRIu32 " rows, %" PRIu32 " held out; sources of at most %" PRIu32
                                   " tokens, targets of %" PRIu32,
                                   t->rows.subsets[CLIENT_TRAIN].n, t->rows.subsets[CLIENT_HELD_OUT].n, t->source_seq,
                                   t->seq - t->source_seq);

    if (t->n_cut > 0 && used < cap)
        used += (size_t)snprintf(out + used, cap - used, "; %zu cut", t->n_cut);
    if (t->n_dropped > 0 && used < cap)
        snprintf(out + used, cap - used, "; %zu dropped", t->n_dropped);
}

/* The shortest row that has room for both sides of all rows, as far as --seq has it. */
static uint32_t length(const struct client_source *source, enum client_part part, const struct client_sample *samples,
                       uint32_t n)
{
    const struct targets *t = (const struct targets *)source;
    uint32_t most[SIDES], need[SIDES] = {1, 1}, room[SIDES], sides[SIDES], longest = 2;

    divide_tokens(most, t, t->seq);
    for (uint32_t i = 0; i < n; i++) {
        find_sides(sides, client_documented_of(&t->rows, part), samples[i].id);
        for (int side = 0; side < SIDES; side++) {
            const uint32_t cut = sides[side] < most[side] ? sides[side] : most[side];
            need[side] = need[side] < cut ? cut : need[side];
        }
    }
    for (divide_tokens(room, t, longest); room[0] < need[0] || room[1] < need[1]; divide_tokens(room, t, longest))
        longest++;
    return client_batches_length(longest, t->seq);
}

/* What is left of a side in this room: of a longer one the beginning, and its last token, which ends it. */
static uint32_t cut(uint32_t *ids, uint32_t n, uint32_t room)
{
    if (n > room)
        ids[room - 1] = ids[n - 1];
    return n < room ? n : room;
}

/* Where source and target have vocabularies of their own, the tokenizer has the larger of them. */
static int check_ids(const struct targets *t, const struct client_documents *documents, size_t k, int side,
                     const uint32_t *ids, uint32_t n, struct error *err)
{
    const bool trains = documents == &t->rows.documents[CLIENT_TRAIN];
    const struct client_data *data = trains ? t->rows.setup.data : t->rows.setup.eval_data;
    const struct client_document *document = &documents->list[k];
    const struct model_config *config = t->rows.setup.config;
    const uint32_t vocabulary = side == 0 ? config->source_vocabulary : config->vocabulary;

    for (uint32_t i = 0; config->source_vocabulary > 0 && i < n; i++)
        if (ids[i] >= vocabulary)
            return error_set(err, -EINVAL,
                             "%s: line %" PRIu32 ": token %" PRIu32 " is not among the %" PRIu32
                             " of %s: use a tokenizer whose tokens on this side have lower numbers",
                             data->files[document->file].path, document->line, ids[i], vocabulary,
                             side == 0 ? "sources (source_vocab_size)" : "targets (vocab_size)");
    return 0;
}

static int read_row(struct client_source *source, const struct client_row_fields *row, enum client_part part,
                    struct client_sample sample, struct error *err)
{
    const struct targets *t = (const struct targets *)source;
    const struct client_documents *documents = client_documented_of(&t->rows, part);
    uint32_t *ids = row->at[CLIENT_FIELD_IDS], *labels = row->at[CLIENT_FIELD_LABELS];
    struct plan_row *lengths = row->at[CLIENT_FIELD_ROWS];
    uint32_t n[SIDES], room[SIDES];
    int rc = client_documents_tokens(documents, t->work, sample.id, documents->list[sample.id].n, err);

    if (rc)
        return rc;
    find_sides(n, documents, sample.id);
    divide_tokens(room, t, row->n_tokens);
    uint32_t *const target = t->work + n[0];
    for (uint32_t i = 0; i < n[1]; i++)
        target[i] &= ~CLIENT_TOKEN_TRAINED;
    const uint32_t n_source = cut(t->work, n[0], room[0]), n_target = cut(target, n[1], room[1]);
    rc = check_ids(t, documents, sample.id, 0, t->work, n_source, err);
    rc = rc ? rc : check_ids(t, documents, sample.id, 1, target, n_target, err);
    if (rc)
        return rc;
    lengths->n_tokens = lengths->second = n_source;
    memcpy(ids, t->work, n_source * sizeof *ids);
    ids[room[0]] = t->rows.setup.config->start;
    memcpy(ids + room[0] + 1, target, (n_target - 1) * sizeof *ids);
    memcpy(labels + room[0], target, n_target * sizeof *labels);
    client_row_number(row, 0, documents->list[sample.id].at, n_source);
    client_row_number(row, room[0], documents->list[sample.id].at + n[0], n_target); /* of what they predict */
    return 0;
}

static uint64_t progress(const struct client_source *source, uint64_t n)
{
    const struct targets *t = (const struct targets *)source;
    uint64_t n_tokens = 0;

    for (uint64_t k = 0; k < n; k++)
        n_tokens += count_tokens(t, CLIENT_HELD_OUT, client_documented_held_out(&t->rows, k));
    return n_tokens;
}

static int score(struct client_source *source, double *loss, uint64_t *n_labels, struct error *err)
{
    (void)source, (void)loss;
    return *n_labels > 0 ? 0 : error_set(err, -EINVAL, "the held-out rows have no target");
}

const struct client_source_ops client_source_targets = {
    .name = "targets",
    .task = EPS_OF_TARGETS,
    .fields = 1u << CLIENT_FIELD_IDS | 1u << CLIENT_FIELD_LABELS | 1u << CLIENT_FIELD_ROWS | 1u << CLIENT_FIELD_ENTRIES,
    .fixes_batch = true,
    .open = open_source,
    .open_files = client_data_open,
    .read = read_rows,
    .settle = settle,
    .measure = measure,
    .divide = divide,
    .describe = describe,
    .n_rows = client_documented_n_rows,
    .n_entries = client_documented_n_entries,
    .tokens = client_documented_tokens,
    .pick = client_documented_pick,
    .pick_held_out = client_documented_pick_held_out,
    .length = length,
    .read_row = read_row,
    .progress = progress,
    .score = score,
    .close = close_source,
};
