/* Preferences: pairs of documents, the chosen text and the rejected one (client/corpus/documents.h), each a row. A
 * tenth of the pairs is held out. */
#include "client/corpus/layouts.h"
#include "client/task/document_rows.h"
#include "proto/operation/call/preference.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

struct preferences {
    struct client_listed rows;
    double beta;
};

static const char *const sides[] = {"chosen", "rejected"};

static const struct client_listed_ops pairs = {
    .what = "pair",
    .reader = "preferences need",
    .group = 2,
    .sides = sides,
    .length = client_document_rows_length,
    .find_fate = client_document_rows_fate,
    .refuse = client_document_rows_refuse,
    .none = "no pair has both answers within",
};

static const struct preferences *preferences_of(const struct client_source *source)
{
    return (const struct preferences *)source;
}

static bool preferences_has_line(const json_t *line)
{
    return client_layout_of(line) == CLIENT_LAYOUT_PREFERENCE;
}

static int preferences_open_source(struct client_source *source, struct error *err)
{
    source->n_logits = 1;
    return client_listed_open(source, &pairs, err);
}

static int preferences_read_part(struct client_source *source, enum client_part part,
                                 const struct client_source_rules *rules, struct error *err)
{
    return client_document_rows_read(source, part,
                                     (struct client_documents_rules){.train_on = EPS_TRAIN_ON_ANSWERS,
                                                                     .chat_template = rules->chat_template,
                                                                     .parses =
                                                                         rules->split_special_tokens == EPS_SPLIT_NO,
                                                                     .pairs = true,
                                                                     .watch = rules->watch},
                                     err);
}

static uint32_t preferences_choose_seq(const struct client_source *source)
{
    return client_documents_seq(client_listed_longest(source), source->setup.config->n_positions);
}

/* Texts to train on come first among the references, those of held-out data of their own behind (reference_of). One
 * more, as there may be none. */
static int preferences_settle(struct client_source *source, const struct client_source_rules *rules, struct error *err)
{
    struct client_listed *l = (struct client_listed *)source;

    for (int part = 0; part < 2; part++)
        source->n_references[part] = (uint32_t)l->n[part];
    source->references = calloc(l->n[0] + l->n[1] + 1, sizeof *source->references);
    if (!source->references)
        return error_memory(err);
    l->seq = rules->seq ? rules->seq : preferences_choose_seq(source);
    return client_listed_settle(source, rules, err);
}

static void preferences_measure(struct client_source_facts *out, const struct client_source *source)
{
    client_listed_measure(out, source);
    out->pairs = true;
    out->seq = preferences_choose_seq(source);
}

static int preferences_divide(struct client_source *source, const struct client_division *d, struct error *err)
{
    assert(d->batch % 2 == 0);
    ((struct preferences *)source)->beta = d->beta;
    return client_listed_make_work(source, d->seq + (size_t)1, err);
}

static void preferences_describe(char *out, size_t cap, const struct client_source *source)
{
    const struct client_listed *l = &preferences_of(source)->rows;
    const size_t n_cut = l->fates[EPS_CUT], n_left_out = l->fates[EPS_DROPPED] + l->fates[EPS_UNANSWERED];
    size_t used = (size_t)snprintf(out, cap, "%zu preferences, %" PRIu32 " held out", l->n[CLIENT_TRAIN] / 2,
                                   l->subsets[CLIENT_HELD_OUT].n);

    if (n_cut > 0)
        used += (size_t)snprintf(out + used, cap - used, "; at --seq %" PRIu32 " %zu cut", l->seq, n_cut);
    if (n_left_out > 0)
        snprintf(out + used, cap - used, "; at --seq %" PRIu32 " %zu left out", l->seq, n_left_out);
}

static float reference_of(const struct client_source *source, enum client_part part, uint64_t id)
{
    return source->references
        [(client_listed_data(source, part) == CLIENT_HELD_OUT ? preferences_of(source)->rows.n[CLIENT_TRAIN] : 0) + id];
}

static int preferences_read_row(struct client_source *source, const struct client_row_fields *row,
                                enum client_part part, struct client_sample sample, struct error *err)
{
    *(float *)row->at[PLAN_FIELD_REFERENCES] = reference_of(source, part, sample.id);
    return client_document_rows_get(source, row, part, sample, err);
}

/* As TRL names them, of the held-out pairs. */
static int preferences_score(struct client_source *source, double *loss, uint64_t *n_valid, struct error *err)
{
    const struct preference preference = {.beta = preferences_of(source)->beta};
    const uint64_t n_rows = client_source_n_rows(source, CLIENT_HELD_OUT);
    const double n = (double)(n_rows / 2);
    struct preference_rewards sums = {0};

    (void)loss, (void)n_valid, (void)err;
    for (uint64_t k = 0; k < n_rows; k += 2) {
        const double log_p[2] = {(double)source->logits[k], (double)source->logits[k + 1]};
        const float references[2] = {reference_of(source, CLIENT_HELD_OUT, client_source_pick_held_out(source, k).id),
                                     reference_of(source, CLIENT_HELD_OUT,
                                                  client_source_pick_held_out(source, k + 1).id)};
        preference_judge(&sums, &preference, log_p, references);
    }
    source->scores = (struct client_scores){.list = {{"rewards/accuracies", sums.right / n},
                                                     {"rewards/margins", (sums.chosen - sums.rejected) / n},
                                                     {"rewards/chosen", sums.chosen / n}},
                                            .n = 3};
    return 0;
}

const struct client_source_ops client_source_preferences = {
    .facts = {EPS_OF_PREFERENCES, "preferences", "preferences", "chat", NULL},
    .order = &client_listed_order,
    .bytes = sizeof(struct preferences),
    .fields = 1u << PLAN_FIELD_IDS | 1u << PLAN_FIELD_LABELS | 1u << PLAN_FIELD_REFERENCES | 1u << PLAN_FIELD_ENTRIES,
    .learns = client_source_predicts_next,
    .has_line = preferences_has_line,
    .compares = true,
    .refusal = "%s is not for preferences, of which both answers are scored: leave it out",
    .open = preferences_open_source,
    .open_files = client_data_open,
    .read = preferences_read_part,
    .settle = preferences_settle,
    .measure = preferences_measure,
    .divide = preferences_divide,
    .describe = preferences_describe,
    .read_row = preferences_read_row,
    .score = preferences_score,
};
