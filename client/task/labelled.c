/* Labelled rows: one text or two, with a class or a number (client/corpus/labelled.h), in minibatches as of
 * client/order/batches.h. The label is at the row's first token. */
#include "client/order/batches.h"
#include "client/corpus/labelled.h"
#include "client/task/source.h"
#include "client/text/tokenizer.h"
#include "proto/model/family.h"
#include "proto/plan/memory/data.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct labelled {
    struct client_source source;
    struct client_source_setup setup;
    struct client_tokenizer *tokenizer; /* NULL once the rows are divided: all are read */
    struct client_labels labels;
    struct client_rows rows[2];      /* of data and of eval_data, by enum client_part; the latter may be empty */
    struct client_subset subsets[2]; /* by enum client_part */
    struct client_batches batches;   /* of the rows to train on */
    uint32_t seq;
    uint32_t *work;    /* (2 * seq) texts of a row */
    uint32_t *targets; /* (subsets[CLIENT_HELD_OUT].n) labels */
};

static void close_source(struct client_source *source)
{
    struct labelled *l = (struct labelled *)source;

    client_tokenizer_close(l->tokenizer);
    client_batches_free(&l->batches);
    for (int part = 0; part < 2; part++) {
        client_subset_free(&l->subsets[part]);
        client_rows_free(&l->rows[part]);
    }
    client_labels_free(&l->labels);
    free(l->work);
    free(l->targets);
    free(l);
}

static int open_source(struct client_source **out, const struct client_source_setup *setup, struct error *err)
{
    struct labelled *l = calloc(1, sizeof *l);

    *out = NULL;
    if (!l) {
        client_labels_free(setup->labels);
        return error_memory(err);
    }
    *l = (struct labelled){.source = {.ops = &client_source_labelled, .labels = &l->labels},
                           .setup = *setup,
                           .labels = *setup->labels,
                           .rows = {{.fd = -1}, {.fd = -1}}};
    *setup->labels = (struct client_labels){0};
    const int rc = client_tokenizer_require(&l->tokenizer, setup->side, setup->config->family->model_type,
                                            setup->config->vocabulary, "text needs", err);
    if (rc)
        close_source(&l->source);
    else
        *out = &l->source;
    return rc;
}

static int read_rows(struct client_source *source, enum client_part part, const struct client_source_rules *rules,
                     struct error *err)
{
    struct labelled *l = (struct labelled *)source;
    struct client_data *data = part == CLIENT_TRAIN ? l->setup.data : l->setup.eval_data;
    const struct client_rows_rules read = {.tokenizer = l->tokenizer,
                                           .columns = rules->columns,
                                           .unlabelled = rules->unlabelled,
                                           .watch = rules->watch};

    if (data->n_files == 0)
        return 0;
    const int rc = client_rows_read(&l->rows[part], data, &l->labels, &read, err);
    data->n = l->rows[part].n_tokens;
    data->hash = l->rows[part].hash;
    return rc || part != CLIENT_TRAIN ? rc : client_labels_check(&l->labels, "every row has the label", err);
}

static uint32_t most(const struct labelled *l, uint32_t (*of)(const struct client_rows *rows))
{
    const uint32_t data = of(&l->rows[CLIENT_TRAIN]), eval_data = of(&l->rows[CLIENT_HELD_OUT]);

    return data > eval_data ? data : eval_data;
}

static void measure(struct client_source_facts *out, const struct client_source *source)
{
    const struct labelled *l = (const struct labelled *)source;
    const size_t n = l->rows[CLIENT_TRAIN].n;
    const bool apart = l->rows[CLIENT_HELD_OUT].n > 0;

    *out = (struct client_source_facts){.whole = true,
                                        .task = l->labels.numbers ? EPS_REGRESS : EPS_CLASSIFY,
                                        .n_rows = (uint32_t)(apart ? n : n - client_subset_n_held_out(n)),
                                        .longest = most(l, client_rows_longest),
                                        .least = most(l, client_rows_least)};
}

/* The rows that a part's numbers are of. */
static const struct client_rows *rows_of(const struct labelled *l, enum client_part part)
{
    return &l->rows[part == CLIENT_HELD_OUT && l->rows[CLIENT_HELD_OUT].n > 0 ? CLIENT_HELD_OUT : CLIENT_TRAIN];
}

static int divide(struct client_source *source, const struct client_division *d, struct error *err)
{
    struct labelled *l = (struct labelled *)source;
    struct client_subset *held_out = &l->subsets[CLIENT_HELD_OUT];
    const struct client_rows *data = &l->rows[CLIENT_TRAIN], *eval_data = &l->rows[CLIENT_HELD_OUT];
    int rc = client_subset_divide_data(l->subsets, (const uint32_t *[]){data->lengths, eval_data->lengths},
                                       (const size_t[]){data->n, eval_data->n}, d->seed, err);

    client_tokenizer_close(l->tokenizer);
    l->tokenizer = NULL;
    l->seq = d->seq;
    if (!rc)
        rc = client_subset_by_length(held_out, err);
    if (!rc && d->batch > 0)
        rc = client_batches_init(&l->batches,
                                 &(struct client_batches_options){.subset = &l->subsets[CLIENT_TRAIN],
                                                                  .batch = d->batch,
                                                                  .part = d->part,
                                                                  .seq = d->seq,
                                                                  .order = d->order,
                                                                  .seed = d->seed},
                                 err);
    if (!rc)
        client_batches_measure(source->row_tokens, &l->batches, 1);
    if (rc)
        return rc;
    source->n_logits = l->setup.config->n_labels;
    l->work = calloc(2 * (size_t)d->seq, sizeof *l->work);
    l->targets = calloc(held_out->n + (size_t)1, sizeof *l->targets);
    return l->work && l->targets ? 0 : error_memory(err);
}

static void describe(char *out, size_t cap, const struct client_source *source)
{
    const struct labelled *l = (const struct labelled *)source;
    const size_t n_cut = client_rows_n_cut(&l->rows[CLIENT_TRAIN], l->seq);
    char labels[100] = "";

    if (!l->labels.numbers)
        client_labels_say(labels, sizeof labels, &l->labels);
    const int used = snprintf(out, cap, "%s%s%u rows, %u held out", labels, *labels ? "; " : "",
                              l->subsets[CLIENT_TRAIN].n, l->subsets[CLIENT_HELD_OUT].n);
    if (n_cut > 0)
        snprintf(out + used, cap - (size_t)used, "; %zu rows of more than --seq %u tokens are cut", n_cut, l->seq);
}

static uint64_t n_rows(const struct client_source *source, enum client_part part)
{
    return ((const struct labelled *)source)->subsets[part].n;
}

static uint64_t tokens(struct client_source *source, uint64_t step, uint64_t n_before)
{
    (void)n_before;
    return client_batches_tokens(&((struct labelled *)source)->batches, step);
}

static uint32_t pick(struct client_sample *out, struct client_source *source, uint64_t step, uint64_t n_before)
{
    (void)n_before;
    return client_batches_pick(out, &((struct labelled *)source)->batches, step);
}

/* By length, so that an evaluation pads little. */
static struct client_sample pick_held_out(const struct client_source *source, uint64_t k)
{
    return (struct client_sample){.id = ((const struct labelled *)source)->subsets[CLIENT_HELD_OUT].list[k]};
}

static uint32_t length(const struct client_source *source, enum client_part part, const struct client_sample *samples,
                       uint32_t n)
{
    const struct labelled *l = (const struct labelled *)source;
    uint32_t longest = 1;

    for (uint32_t i = 0; i < n; i++) {
        const uint32_t own = client_rows_length(rows_of(l, part), samples[i].id, l->seq);
        longest = own > longest ? own : longest;
    }
    return client_batches_length(longest, l->seq);
}

/* Special tokens are not in the data: each row has room for the most. */
static uint64_t first_entry(const struct client_rows *rows, uint64_t k)
{
    const uint32_t one = client_pairs_added(&rows->pairs, false), two = client_pairs_added(&rows->pairs, true);

    return (k < rows->n ? rows->list[k].at : rows->n_tokens) + k * (one > two ? one : two);
}

static uint64_t n_entries(const struct client_source *source)
{
    const struct client_rows *rows = &((const struct labelled *)source)->rows[CLIENT_TRAIN];

    return first_entry(rows, rows->n);
}

static int read_row(struct client_source *source, const struct client_row_fields *row, enum client_part part,
                    struct client_sample sample, struct error *err)
{
    const struct labelled *l = (const struct labelled *)source;
    const struct client_rows *rows = rows_of(l, part);
    struct plan_row *lengths = row->at[CLIENT_FIELD_ROWS];
    uint32_t *labels = row->at[CLIENT_FIELD_LABELS];
    const int64_t n =
        client_rows_get(rows, row->at[CLIENT_FIELD_IDS], &lengths->second, l->work, sample.id, row->n_tokens, err);

    if (n < 0)
        return (int)n;
    client_row_number(row, 0, first_entry(rows, sample.id), (uint32_t)n);
    lengths->n_tokens = (uint32_t)n;
    *labels = rows->list[sample.id].label;
    return 0;
}

static uint64_t progress(const struct client_source *source, uint64_t n)
{
    (void)source;
    return n;
}

/* Some rows may have no label: the loss of the others would mislead. */
static int score(struct client_source *source, double *loss, uint64_t *n_labels, struct error *err)
{
    struct labelled *l = (struct labelled *)source;
    const struct client_subset *subset = &l->subsets[CLIENT_HELD_OUT];

    source->scores = (struct client_scores){.n = 0};
    if (*n_labels < subset->n) {
        *loss = NAN;
        *n_labels = 0;
        return 0;
    }
    for (uint32_t i = 0; i < subset->n; i++)
        l->targets[i] = rows_of(l, CLIENT_HELD_OUT)->list[subset->list[i]].label;
    return l->labels.numbers
               ? client_score_numbers(&source->scores, source->logits, l->targets, subset->n, err)
               : client_score_classes(&source->scores, source->logits, l->targets, subset->n, l->labels.n, err);
}

const struct client_source_ops client_source_labelled = {
    .name = "labelled",
    .task = EPS_OF_LABELS,
    .fields = 1u << CLIENT_FIELD_IDS | 1u << CLIENT_FIELD_LABELS | 1u << CLIENT_FIELD_ROWS | 1u << CLIENT_FIELD_ENTRIES,
    .fixes_batch = true,
    .open = open_source,
    .open_files = client_data_open_rows,
    .read = read_rows,
    .measure = measure,
    .divide = divide,
    .describe = describe,
    .n_rows = n_rows,
    .n_entries = n_entries,
    .tokens = tokens,
    .pick = pick,
    .pick_held_out = pick_held_out,
    .length = length,
    .read_row = read_row,
    .progress = progress,
    .score = score,
    .close = close_source,
};
