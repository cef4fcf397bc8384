/* Labelled rows: one text or two, with a class or a number (client/corpus/labelled.h). The label is at the row's first
 * token. */
#include "client/corpus/labelled.h"
#include "client/task/listed.h"
#include "proto/model/family.h"
#include "proto/plan/memory/data.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

struct labelled {
    struct client_listed rows;
    struct client_pairs pairs; /* what the tokenizer puts around texts */
};

static const struct labelled *labelled_of(const struct client_source *source)
{
    return (const struct labelled *)source;
}

static uint32_t labelled_length(const struct client_source *source, enum client_part data, size_t k)
{
    return client_labelled_length(&labelled_of(source)->rows.corpus[data], &labelled_of(source)->pairs, k);
}

static const struct client_listed_ops texts = {.what = "row",
                                               .reader = "text needs",
                                               .group = 1,
                                               .length = labelled_length};

static int labelled_open_source(struct client_source *source, struct error *err)
{
    return client_listed_open(source, &texts, err);
}

/* Special tokens are not in the data: each row has room for the most. */
static uint32_t most_added(const struct client_pairs *pairs)
{
    const uint32_t one = client_pairs_added(pairs, false), two = client_pairs_added(pairs, true);

    return one > two ? one : two;
}

static int labelled_read_part(struct client_source *source, enum client_part part,
                              const struct client_source_rules *rules, struct error *err)
{
    struct labelled *l = (struct labelled *)source;
    const struct client_labelled_rules read = {.tokenizer = l->rows.tokenizer,
                                               .columns = rules->columns,
                                               .unlabelled = rules->unlabelled,
                                               .watch = rules->watch};
    const int rc = client_labelled_read(&l->rows.corpus[part], &l->pairs, client_source_data(source, part),
                                        &source->labels, &read, err);

    client_listed_has_read(source, part);
    l->rows.n_added = rc ? 0 : most_added(&l->pairs);
    return rc || part != CLIENT_TRAIN ? rc : client_labels_check(&source->labels, "every row has the label", err);
}

static void labelled_measure(struct client_source_facts *out, const struct client_source *source)
{
    const struct labelled *l = labelled_of(source);

    client_listed_measure(out, source);
    out->task = source->labels.numbers ? EPS_REGRESS : EPS_CLASSIFY;
    for (int part = 0; part < 2; part++) {
        const uint32_t least = client_labelled_least(&l->rows.corpus[part], &l->pairs);
        out->least = least > out->least ? least : out->least;
    }
}

static int labelled_divide(struct client_source *source, const struct client_division *d, struct error *err)
{
    source->n_logits = source->setup.config->n_labels;
    return client_listed_make_work(source, 2 * (size_t)d->seq, err);
}

static void labelled_describe(char *out, size_t cap, const struct client_source *source)
{
    const struct client_listed *l = &labelled_of(source)->rows;
    char labels[100] = "";
    size_t n_cut = 0;

    for (size_t k = 0; k < l->n[CLIENT_TRAIN]; k++)
        n_cut += labelled_length(source, CLIENT_TRAIN, k) > source->seq;
    if (!source->labels.numbers)
        client_labels_say(labels, sizeof labels, &source->labels);
    const int used = snprintf(out, cap, "%s%s%u rows, %u held out", labels, *labels ? "; " : "",
                              l->subsets[CLIENT_TRAIN].n, l->subsets[CLIENT_HELD_OUT].n);
    if (n_cut > 0)
        snprintf(out + used, cap - (size_t)used, "; %zu rows of more than --seq %u tokens are cut", n_cut, source->seq);
}

static int labelled_read_row(struct client_source *source, const struct client_row_fields *row, enum client_part part,
                             struct client_sample sample, struct error *err)
{
    const struct labelled *l = labelled_of(source);
    const struct client_corpus *corpus = &l->rows.corpus[client_listed_data(source, part)];
    struct plan_row *lengths = row->at[PLAN_FIELD_LENGTHS];
    uint32_t *labels = row->at[PLAN_FIELD_LABELS];
    const int64_t n = client_labelled_get(corpus, &l->pairs, row->at[PLAN_FIELD_IDS], &lengths->second, l->rows.work,
                                          sample.id, row->n_tokens, err);

    if (n < 0)
        return (int)n;
    client_row_number(row, 0, corpus->list[sample.id].at + sample.id * l->rows.n_added, (uint32_t)n);
    lengths->n_tokens = (uint32_t)n;
    *labels = corpus->list[sample.id].label;
    return 0;
}

static uint32_t labelled_label_of(const struct client_source *source, enum client_part data, size_t k)
{
    return labelled_of(source)->rows.corpus[data].list[k].label;
}

/* Some rows may have no label: the loss of the others would mislead. */
static int labelled_score(struct client_source *source, double *loss, uint64_t *n_valid, struct error *err)
{
    const size_t n = client_source_n_rows(source, CLIENT_HELD_OUT);

    source->scores = (struct client_scores){.n = 0};
    if (*n_valid < n) {
        *loss = NAN;
        *n_valid = 0;
        return 0;
    }
    uint32_t *targets = client_listed_targets(source, labelled_label_of, err);
    if (!targets)
        return -ENOMEM;
    const int rc = source->labels.numbers
                       ? client_score_numbers(&source->scores, source->logits, targets, n, err)
                       : client_score_classes(&source->scores, source->logits, targets, n, source->labels.n, err);
    free(targets);
    return rc;
}

static bool labelled_takes(const struct model_config *config, double mask_fraction)
{
    (void)mask_fraction;
    return config->n_labels > 0;
}

static bool labelled_learns(const struct family *family)
{
    return family->classifier && !family->has_source && !family->sees_images;
}

const struct client_source_ops client_source_labelled = {
    .facts = {EPS_OF_LABELS, "labels", "labelled rows", "eval", NULL},
    .order = &client_listed_order,
    .bytes = sizeof(struct labelled),
    .fields = 1u << PLAN_FIELD_IDS | 1u << PLAN_FIELD_LABELS | 1u << PLAN_FIELD_LENGTHS | 1u << PLAN_FIELD_ENTRIES,
    .learns = labelled_learns,
    .takes = labelled_takes,
    .labels = true,
    .refusal = "%s is for models that predict tokens: leave it out, as rows are classified whole",
    .open = labelled_open_source,
    .open_files = client_data_open_rows,
    .read = labelled_read_part,
    .settle = client_listed_settle,
    .measure = labelled_measure,
    .divide = labelled_divide,
    .describe = labelled_describe,
    .read_row = labelled_read_row,
    .score = labelled_score,
};
