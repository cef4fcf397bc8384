/* Preferences: pairs of documents, the chosen text and the rejected one (client/corpus/documents.h), each a row. A tenth
 * of the pairs is held out (client/order/batches.h). */
#include "client/task/documented.h"
#include "proto/operation/call/preference.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct preferences {
    struct client_documented rows; /* its subsets are of pairs */
    uint32_t *lengths[2];          /* (documents / 2) inputs of each pair's longer text; owned */
    size_t n_cut, n_left_out;      /* pairs of data: with a text that is cut; with one that is too long */
    uint32_t seq;
    double beta;
    uint32_t *work; /* (seq + 1) */
};

static void close_source(struct client_source *source)
{
    struct preferences *p = (struct preferences *)source;

    client_documented_free(&p->rows);
    for (int part = 0; part < 2; part++)
        free(p->lengths[part]);
    free(p->work);
    free(p);
}

static int open_source(struct client_source **out, const struct client_source_setup *setup, struct error *err)
{
    struct preferences *p = calloc(1, sizeof *p);

    *out = NULL;
    if (!p)
        return error_memory(err);
    const int rc = client_documented_init(&p->rows, &client_source_preferences, setup, "preferences need", err);
    p->rows.source.n_logits = 1;
    if (rc)
        close_source(&p->rows.source);
    else
        *out = &p->rows.source;
    return rc;
}

/* ---- Reading, and which rows there are ---- */

static uint32_t choose_seq(const struct preferences *p)
{
    return client_documents_seq(client_documented_longest(&p->rows), p->rows.setup.config->n_positions);
}

/* A pair is kept if both of its texts are. */
static int keep(struct preferences *p, enum client_part part, enum eps_long long_rows, struct error *err)
{
    const struct client_documents *documents = &p->rows.documents[part];
    const struct client_data *data = part == CLIENT_TRAIN ? p->rows.setup.data : p->rows.setup.eval_data;
    const size_t n = documents->n / 2;
    struct client_subset *out = &p->rows.subsets[part];
    size_t n_cut = 0;

    p->lengths[part] = calloc(n + 1, sizeof *p->lengths[part]);
    int rc = p->lengths[part] ? client_subset_init(out, p->lengths[part], n, err) : error_memory(err);
    for (size_t i = 0; !rc && i < n; i++) {
        bool kept = true, cut = false;
        for (size_t k = 2 * i; !rc && k < 2 * i + 2; k++) {
            const enum eps_fate fate = client_documents_fate(documents, k, p->seq, long_rows);
            kept &= fate == EPS_KEPT || fate == EPS_CUT, cut |= fate == EPS_CUT;
            if (documents->lengths[k] > p->lengths[part][i])
                p->lengths[part][i] = documents->lengths[k];
            if (long_rows == EPS_LONG_REFUSE && documents->lengths[k] > p->seq)
                rc = client_documents_refuse(documents, data, k, p->seq, err);
        }
        n_cut += kept && cut;
        if (kept)
            out->list[out->n++] = (uint32_t)i;
    }
    if (!rc && n > 0 && out->n == 0)
        rc = error_set(err, -EINVAL, "%s%s: no pair has both answers within --seq %" PRIu32 ": give a larger --seq",
                       data->files[0].path, data->n_files > 1 ? " and more" : "", p->seq);
    if (part == CLIENT_TRAIN)
        p->n_cut = n_cut, p->n_left_out = n - out->n;
    return rc;
}

/* Settles which rows there are, once all data are read. */
static int settle(struct client_source *source, const struct client_source_rules *rules, struct error *err)
{
    struct preferences *p = (struct preferences *)source;
    int rc;

    for (int part = 0; part < 2; part++)
        p->rows.source.n_references[part] = (uint32_t)p->rows.documents[part].n;
    p->rows.source.references =
        calloc(p->rows.documents[0].n + p->rows.documents[1].n + 1, sizeof *p->rows.source.references);
    if (!p->rows.source.references)
        return error_memory(err);
    p->seq = rules->seq ? rules->seq : choose_seq(p);
    rc = keep(p, CLIENT_TRAIN, rules->long_rows, err);
    if (!rc)
        rc = p->rows.documents[CLIENT_HELD_OUT].n > 0
                 ? keep(p, CLIENT_HELD_OUT, rules->long_rows, err)
                 : client_documented_hold_out(&p->rows, rules->seed, "pair", NULL, err);
    return rc;
}

static int read_rows(struct client_source *source, enum client_part part, const struct client_source_rules *rules,
                     struct error *err)
{
    return client_documented_read((struct client_documented *)source, part,
                                  (struct client_documents_rules){.train_on = EPS_TRAIN_ON_ANSWERS,
                                                                  .chat_template = rules->chat_template,
                                                                  .parses = rules->split_special_tokens == EPS_SPLIT_NO,
                                                                  .pairs = true,
                                                                  .watch = rules->watch},
                                  err);
}

static void measure(struct client_source_facts *out, const struct client_source *source)
{
    const struct preferences *p = (const struct preferences *)source;

    *out = (struct client_source_facts){.whole = true,
                                        .pairs = true,
                                        .seq = choose_seq(p),
                                        .n_rows = 2 * p->rows.subsets[CLIENT_TRAIN].n,
                                        .longest = client_documented_longest(&p->rows),
                                        .least = 1};
}

/* ---- Rows ---- */

static int divide(struct client_source *source, const struct client_division *d, struct error *err)
{
    struct preferences *p = (struct preferences *)source;
    struct client_subset *held_out = &p->rows.subsets[CLIENT_HELD_OUT];
    uint64_t n_tokens = 0;
    int rc = client_subset_by_length(held_out, err);

    assert(d->seq == p->seq && d->batch % 2 == 0);
    p->beta = d->beta;
    for (uint32_t i = 0; i < held_out->n; i++)
        n_tokens += 2 * (uint64_t)(held_out->lengths[held_out->list[i]] < p->seq ? held_out->lengths[held_out->list[i]]
                                                                                 : p->seq);
    client_documented_limit(&p->rows, n_tokens, d->eval_tokens);
    if (!rc)
        rc = client_batches_init(&p->rows.batches,
                                 &(struct client_batches_options){.subset = &p->rows.subsets[CLIENT_TRAIN],
                                                                  .batch = d->batch / 2,
                                                                  .part = d->part / 2,
                                                                  .seq = d->seq,
                                                                  .order = d->order,
                                                                  .seed = d->seed},
                                 err);
    if (!rc)
        client_batches_measure(source->row_tokens, &p->rows.batches, 2);
    p->work = calloc(p->seq + (size_t)1, sizeof *p->work);
    return rc || p->work ? rc : error_memory(err);
}

static void describe(char *out, size_t cap, const struct client_source *source)
{
    const struct preferences *p = (const struct preferences *)source;
    size_t used = (size_t)snprintf(out, cap, "%zu preferences, %" PRIu32 " held out",
                                   p->rows.documents[CLIENT_TRAIN].n / 2, p->rows.subsets[CLIENT_HELD_OUT].n);

    if (p->n_cut > 0)
        used += (size_t)snprintf(out + used, cap - used, "; at --seq %" PRIu32 " %zu cut", p->seq, p->n_cut);
    if (p->n_left_out > 0)
        snprintf(out + used, cap - used, "; at --seq %" PRIu32 " %zu left out", p->seq, p->n_left_out);
}

static uint64_t count_rows(const struct client_source *source, enum client_part part)
{
    return 2 * client_documented_n_rows(source, part);
}

/* Counts both texts as long as the longer one. */
static uint64_t tokens(struct client_source *source, uint64_t step, uint64_t n_before)
{
    return 2 * client_documented_tokens(source, step, n_before);
}

static uint32_t pick(struct client_sample *out, struct client_source *source, uint64_t step, uint64_t n_before)
{
    const uint32_t *pairs;
    uint32_t n;

    (void)n_before;
    client_batches_get(&pairs, &n, &((struct preferences *)source)->rows.batches, step);
    for (uint32_t i = 0; i < 2 * n; i++)
        out[i] = (struct client_sample){.id = 2 * (uint64_t)pairs[i / 2] + i % 2};
    return 2 * n;
}

static struct client_sample pick_held_out(const struct client_source *source, uint64_t k)
{
    const struct preferences *p = (const struct preferences *)source;

    return (struct client_sample){.id = 2 * (uint64_t)client_documented_held_out(&p->rows, k / 2) + k % 2};
}

static uint32_t length(const struct client_source *source, enum client_part part, const struct client_sample *samples,
                       uint32_t n)
{
    const struct preferences *p = (const struct preferences *)source;
    uint32_t longest = 1;

    for (uint32_t i = 0; i < n; i++) {
        const uint32_t own = client_documents_length(client_documented_of(&p->rows, part), samples[i].id, p->seq);
        longest = own > longest ? own : longest;
    }
    return client_batches_length(longest, p->seq);
}

static float reference_of(const struct preferences *p, enum client_part part, uint64_t id)
{
    return p->rows.source.references
        [(client_documented_origin(&p->rows, part) == CLIENT_HELD_OUT ? p->rows.documents[CLIENT_TRAIN].n : 0) + id];
}

static int read_row(struct client_source *source, const struct client_row_fields *row, enum client_part part,
                    struct client_sample sample, struct error *err)
{
    const struct preferences *p = (const struct preferences *)source;

    *(float *)row->at[CLIENT_FIELD_REFERENCES] = reference_of(p, part, sample.id);
    return client_documents_get(client_documented_of(&p->rows, part), row, 0, p->work, sample.id, p->seq, err);
}

static uint64_t progress(const struct client_source *source, uint64_t n)
{
    (void)source;
    return n / 2;
}

/* As TRL names them, of the held-out pairs. */
static int score(struct client_source *source, double *loss, uint64_t *n_labels, struct error *err)
{
    const struct preferences *p = (const struct preferences *)source;
    const struct preference preference = {.beta = p->beta};
    const double n = p->rows.n_held_out;
    struct preference_rewards sums = {0};

    (void)loss, (void)n_labels, (void)err;
    for (uint32_t i = 0; i < p->rows.n_held_out; i++) {
        const double log_p[2] = {(double)source->logits[2 * i], (double)source->logits[2 * i + 1]};
        const float references[2] = {reference_of(p, CLIENT_HELD_OUT, pick_held_out(source, 2 * i).id),
                                     reference_of(p, CLIENT_HELD_OUT, pick_held_out(source, 2 * i + 1).id)};
        preference_judge(&sums, &preference, log_p, references);
    }
    source->scores = (struct client_scores){.list = {{"rewards/accuracies", sums.right / n},
                                                     {"rewards/margins", (sums.chosen - sums.rejected) / n},
                                                     {"rewards/chosen", sums.chosen / n}},
                                            .n = 3};
    return 0;
}

const struct client_source_ops client_source_preferences = {
    .name = "preferences",
    .task = EPS_OF_PREFERENCES,
    .fields =
        1u << CLIENT_FIELD_IDS | 1u << CLIENT_FIELD_LABELS | 1u << CLIENT_FIELD_REFERENCES | 1u << CLIENT_FIELD_ENTRIES,
    .fixes_batch = true,
    .open = open_source,
    .open_files = client_data_open,
    .read = read_rows,
    .settle = settle,
    .measure = measure,
    .divide = divide,
    .describe = describe,
    .n_rows = count_rows,
    .n_entries = client_documented_n_entries,
    .tokens = tokens,
    .pick = pick,
    .pick_held_out = pick_held_out,
    .length = length,
    .read_row = read_row,
    .progress = progress,
    .score = score,
    .close = close_source,
};
