/* Conversations: documents (client/corpus/documents.h), each a row, in minibatches as of client/order/batches.h; or
 * several a row, packed (client/task/packed.h). A tenth of the conversations is held out, all documents of each. */
#include "client/task/documented.h"
#include "client/task/packed.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct conversations {
    struct client_documented rows;
    size_t fates[EPS_UNANSWERED + 1]; /* documents of data, of each fate */
    struct client_share *shares;      /* (n_shares) of the rows to train on, a file's each; owned */
    size_t n_shares;
    struct client_packed packed[2]; /* of a packed source: rows, by enum client_part */
    uint32_t seq;
    uint32_t *work; /* (seq + 1) */
};

static void close_source(struct client_source *source)
{
    struct conversations *c = (struct conversations *)source;

    client_documented_free(&c->rows);
    for (int part = 0; part < 2; part++)
        client_packed_free(&c->packed[part]);
    free(c->shares);
    free(c->work);
    free(c);
}

static int open_source(struct client_source **out, const struct client_source_setup *setup, struct error *err)
{
    struct conversations *c = calloc(1, sizeof *c);

    *out = NULL;
    if (!c)
        return error_memory(err);
    const int rc = client_documented_init(&c->rows, &client_source_conversations, setup, "conversations need", err);
    if (rc)
        close_source(&c->rows.source);
    else
        *out = &c->rows.source;
    return rc;
}

static int open_packed(struct client_source **out, const struct client_source_setup *setup, struct error *err)
{
    struct model model;
    int rc = model_init(&model, setup->config, err);

    *out = NULL;
    if (!rc)
        rc = client_source_check_packs(&model, err);
    model_free(&model);
    if (!rc)
        rc = open_source(out, setup, err);
    if (!rc)
        (*out)->ops = &client_source_packed;
    return rc;
}

/* ---- Reading, and which rows there are ---- */

static bool is_packed(const struct conversations *c)
{
    return c->rows.source.ops == &client_source_packed;
}

/* Packed rows are as long as documents may be at most. */
static uint32_t choose_seq(const struct conversations *c)
{
    if (is_packed(c))
        return client_documents_seq(UINT32_MAX / 2, c->rows.setup.config->n_positions);
    return client_documents_seq(client_documented_longest(&c->rows), c->rows.setup.config->n_positions);
}

/* Lists the documents that are rows, in their order. */
static int keep(struct client_subset *out, size_t counts[EPS_UNANSWERED + 1], const struct conversations *c,
                enum client_part part, enum eps_long long_rows, struct error *err)
{
    const struct client_documents *documents = &c->rows.documents[part];
    const struct client_data *data = part == CLIENT_TRAIN ? c->rows.setup.data : c->rows.setup.eval_data;
    int rc = client_subset_init(out, documents->lengths, documents->n, err);

    memset(counts, 0, (EPS_UNANSWERED + 1) * sizeof *counts);
    for (size_t k = 0; !rc && k < documents->n; k++) {
        const enum eps_fate fate = client_documents_fate(documents, k, c->seq, long_rows);
        if (long_rows == EPS_LONG_REFUSE && documents->lengths[k] > c->seq)
            rc = client_documents_refuse(documents, data, k, c->seq, err);
        counts[fate]++;
        if (fate == EPS_KEPT || fate == EPS_CUT)
            out->list[out->n++] = (uint32_t)k;
    }
    if (!rc && documents->n > 0 && out->n == 0)
        rc =
            error_set(err, -EINVAL, "%s%s: no conversation has an answer within --seq %" PRIu32 ": give a larger --seq",
                      data->files[0].path, data->n_files > 1 ? " and more" : "", c->seq);
    return rc;
}

static bool of_one_line(const struct client_documents *documents, uint32_t a, uint32_t b)
{
    const struct client_document *x = &documents->list[a], *y = &documents->list[b];

    return x->file == y->file && x->line == y->line;
}

/* The rows to train on are in the data's order, so each file's follow each other. */
static int make_shares(struct conversations *c, struct error *err)
{
    const struct client_subset *train = &c->rows.subsets[CLIENT_TRAIN];
    const struct client_data *data = c->rows.setup.data;
    uint32_t i = 0;

    c->shares = calloc(data ? data->n_files + 1 : 1, sizeof *c->shares);
    if (!c->shares)
        return error_memory(err);
    for (size_t file = 0; data && file < data->n_files; file++) {
        struct client_share share = {.first = i, .weight = data->files[file].weight};
        while (i < train->n && c->rows.documents[CLIENT_TRAIN].list[train->list[i]].file == file)
            i++;
        share.n = i - share.first;
        c->shares[c->n_shares++] = share;
    }
    return 0;
}

/* Packs the documents to train on. */
static int pack(struct conversations *c, const struct client_source_rules *rules, struct error *err)
{
    if (!is_packed(c) || c->rows.subsets[CLIENT_TRAIN].n == 0)
        return 0;
    return client_packed_init(&c->packed[CLIENT_TRAIN],
                              &(struct client_packed_options){.documents = &c->rows.documents[CLIENT_TRAIN],
                                                              .subset = &c->rows.subsets[CLIENT_TRAIN],
                                                              .shares = c->shares,
                                                              .n_shares = c->n_shares,
                                                              .seq = c->seq,
                                                              .order = rules->order ? rules->order : EPS_SHUFFLED,
                                                              .seed = rules->seed},
                              err);
}

/* Settles which rows there are, once all data are read. */
static int settle(struct client_source *source, const struct client_source_rules *rules, struct error *err)
{
    struct conversations *c = (struct conversations *)source;
    size_t ignored[EPS_UNANSWERED + 1];
    int rc = 0;

    c->seq = rules->seq ? rules->seq : choose_seq(c);
    if (c->rows.documents[CLIENT_TRAIN].n > 0)
        rc = keep(&c->rows.subsets[CLIENT_TRAIN], c->fates, c, CLIENT_TRAIN, rules->long_rows, err);
    if (!rc && c->rows.documents[CLIENT_HELD_OUT].n > 0)
        rc = keep(&c->rows.subsets[CLIENT_HELD_OUT], c->rows.documents[CLIENT_TRAIN].n > 0 ? ignored : c->fates, c,
                  CLIENT_HELD_OUT, rules->long_rows, err);
    else if (!rc)
        rc = client_documented_hold_out(&c->rows, rules->seed, "conversation", of_one_line, err);
    if (!rc)
        rc = make_shares(c, err);
    return rc ? rc : pack(c, rules, err);
}

static int read_rows(struct client_source *source, enum client_part part, const struct client_source_rules *rules,
                     struct error *err)
{
    return client_documented_read((struct client_documented *)source, part,
                                  (struct client_documents_rules){.train_on = rules->train_on ? rules->train_on
                                                                                              : EPS_TRAIN_ON_ANSWERS,
                                                                  .chat_template = rules->chat_template,
                                                                  .parses = rules->split_special_tokens == EPS_SPLIT_NO,
                                                                  .weighted = part == CLIENT_TRAIN,
                                                                  .watch = rules->watch},
                                  err);
}

static void measure(struct client_source_facts *out, const struct client_source *source)
{
    const struct conversations *c = (const struct conversations *)source;
    uint64_t n_rows = 0;

    for (size_t i = 0; i < c->n_shares; i++)
        n_rows += client_share_rows(&c->shares[i]);
    if (is_packed(c))
        n_rows = c->packed[CLIENT_TRAIN].packing.n_rows;
    *out = (struct client_source_facts){.whole = true,
                                        .flows = is_packed(c),
                                        .seq = choose_seq(c),
                                        .n_rows = n_rows < UINT32_MAX ? (uint32_t)n_rows : UINT32_MAX,
                                        .longest = client_documented_longest(&c->rows),
                                        .least = 1};
}

/* ---- Rows ---- */

/* Chooses the held-out documents that are evaluated, and makes room for one. */
static int choose_held_out(struct conversations *c, const struct client_division *d, struct error *err)
{
    struct client_subset *held_out = &c->rows.subsets[CLIENT_HELD_OUT];
    uint64_t n_tokens = 0;
    int rc = client_subset_by_length(held_out, err);

    assert(d->seq == c->seq);
    for (uint32_t i = 0; i < held_out->n; i++)
        n_tokens += client_documents_length(client_documented_of(&c->rows, CLIENT_HELD_OUT), held_out->list[i], c->seq);
    client_documented_limit(&c->rows, n_tokens, d->eval_tokens);
    c->work = calloc(c->seq + (size_t)1, sizeof *c->work);
    return rc || c->work ? rc : error_memory(err);
}

static int divide(struct client_source *source, const struct client_division *d, struct error *err)
{
    struct conversations *c = (struct conversations *)source;
    int rc = choose_held_out(c, d, err);

    if (!rc && d->batch > 0 && c->rows.subsets[CLIENT_TRAIN].n > 0)
        rc = client_batches_init(&c->rows.batches,
                                 &(struct client_batches_options){.subset = &c->rows.subsets[CLIENT_TRAIN],
                                                                  .shares = c->shares,
                                                                  .n_shares = c->n_shares,
                                                                  .batch = d->batch,
                                                                  .part = d->part,
                                                                  .seq = d->seq,
                                                                  .order = d->order,
                                                                  .seed = d->seed},
                                 err);
    if (!rc)
        client_batches_measure(source->row_tokens, &c->rows.batches, 1);
    return rc;
}

static size_t describe_packed(char *out, size_t cap, const struct client_packed *p)
{
    const double rows = p->packing.n_rows;

    return (size_t)snprintf(out, cap, "; %" PRIu32 " packed rows of %.1f documents, %.0f %% full", p->packing.n_rows,
                            p->n / rows, 100 * (double)client_packed_tokens(p) / (rows * p->seq));
}

static void describe(char *out, size_t cap, const struct client_source *source)
{
    static const char *const words[] = {[EPS_CUT] = "cut", [EPS_DROPPED] = "dropped", [EPS_UNANSWERED] = "unanswered"};
    const struct conversations *c = (const struct conversations *)source;
    const struct client_documents *documents = &c->rows.documents[CLIENT_TRAIN];
    const char *row = is_packed(c) ? "documents" : "rows", *between = "";
    size_t used = (size_t)snprintf(out, cap, "%zu conversations", documents->n_lines);

    if (documents->n > documents->n_lines)
        used += (size_t)snprintf(out + used, cap - used, " in %zu %s", documents->n, row);
    used +=
        (size_t)snprintf(out + used, cap - used, ", %" PRIu32 " %s held out", c->rows.subsets[CLIENT_HELD_OUT].n, row);
    if (is_packed(c))
        used += describe_packed(out + used, cap - used, &c->packed[CLIENT_TRAIN]);
    if (documents->n > c->fates[EPS_KEPT])
        used += (size_t)snprintf(out + used, cap - used, "; at --seq %" PRIu32 " ", c->seq);
    for (size_t i = EPS_CUT; i <= EPS_UNANSWERED; i++) {
        if (c->fates[i] == 0)
            continue;
        used += (size_t)snprintf(out + used, cap - used, "%s%zu %s", between, c->fates[i], words[i]);
        between = ", ";
    }
    if (c->fates[EPS_UNANSWERED] > 0)
        snprintf(out + used, cap - used, " and left out");
}

static int divide_packed(struct client_source *source, const struct client_division *d, struct error *err)
{
    struct conversations *c = (struct conversations *)source;
    struct client_subset evaluated;
    int rc = choose_held_out(c, d, err);

    if (rc)
        return rc;
    rc = client_subset_init(&evaluated, c->rows.subsets[CLIENT_HELD_OUT].lengths, c->rows.n_held_out, err);
    for (; !rc && evaluated.n < c->rows.n_held_out; evaluated.n++)
        evaluated.list[evaluated.n] = client_documented_held_out(&c->rows, evaluated.n);
    if (!rc)
        rc = client_packed_init(&c->packed[CLIENT_HELD_OUT],
                                &(struct client_packed_options){.documents =
                                                                    client_documented_of(&c->rows, CLIENT_HELD_OUT),
                                                                .subset = &evaluated,
                                                                .seq = c->seq,
                                                                .order = EPS_SHUFFLED,
                                                                .seed = d->seed},
                                err);
    client_subset_free(&evaluated);
    return rc;
}

static uint32_t length(const struct client_source *source, enum client_part part, const struct client_sample *samples,
                       uint32_t n)
{
    const struct conversations *c = (const struct conversations *)source;
    uint32_t longest = 1;

    for (uint32_t i = 0; i < n; i++) {
        const uint32_t own = client_documents_length(client_documented_of(&c->rows, part), samples[i].id, c->seq);
        longest = own > longest ? own : longest;
    }
    return client_batches_length(longest, c->seq);
}

static int read_row(struct client_source *source, const struct client_row_fields *row, enum client_part part,
                    struct client_sample sample, struct error *err)
{
    const struct conversations *c = (const struct conversations *)source;

    return client_documents_get(client_documented_of(&c->rows, part), row, 0, c->work, sample.id, c->seq, err);
}

static uint64_t progress(const struct client_source *source, uint64_t n)
{
    const struct conversations *c = (const struct conversations *)source;
    uint64_t n_tokens = 0;

    for (uint64_t k = 0; k < n; k++)
        n_tokens += client_documents_length(client_documented_of(&c->rows, CLIENT_HELD_OUT),
                                            client_documented_held_out(&c->rows, k), c->seq);
    return n_tokens;
}

static int score(struct client_source *source, double *loss, uint64_t *n_labels, struct error *err)
{
    (void)source, (void)loss;
    return *n_labels > 0 ? 0 : error_set(err, -EINVAL, "the held-out rows have no answer");
}

/* ---- Packed rows ---- */

static const struct client_packing *packing_of(const struct client_source *source, enum client_part part)
{
    return &((const struct conversations *)source)->packed[part].packing;
}

const struct client_packed *client_packed_of(const struct client_source *source)
{
    assert(source->ops == &client_source_packed);
    return &((const struct conversations *)source)->packed[CLIENT_TRAIN];
}

static uint64_t count_packed(const struct client_source *source, enum client_part part)
{
    return packing_of(source, part)->n_rows;
}

static uint64_t tokens_packed(struct client_source *source, uint64_t step, uint64_t n_before)
{
    (void)step;
    return client_packed_tokens_before(&((struct conversations *)source)->packed[CLIENT_TRAIN], n_before);
}

static uint32_t pick_packed(struct client_sample *out, struct client_source *source, uint64_t step, uint64_t n_before)
{
    (void)step;
    for (uint32_t i = 0; i < source->batch; i++)
        out[i] = (struct client_sample){.id = client_packing_row(packing_of(source, CLIENT_TRAIN), n_before + i)};
    return source->batch;
}

static struct client_sample pick_held_out_packed(const struct client_source *source, uint64_t k)
{
    (void)source;
    return (struct client_sample){.id = k};
}

static uint32_t length_packed(const struct client_source *source, enum client_part part,
                              const struct client_sample *samples, uint32_t n)
{
    const struct conversations *c = (const struct conversations *)source;
    uint32_t longest = 1;

    for (uint32_t i = 0; i < n; i++) {
        const uint32_t own = packing_of(source, part)->tokens[samples[i].id];
        longest = own > longest ? own : longest;
    }
    return client_batches_length(longest, c->seq);
}

static int read_packed(struct client_source *source, const struct client_row_fields *row, enum client_part part,
                       struct client_sample sample, struct error *err)
{
    const struct conversations *c = (const struct conversations *)source;

    return client_packed_get(&c->packed[part], row, c->work, (uint32_t)sample.id, err);
}

static uint64_t progress_packed(const struct client_source *source, uint64_t n)
{
    uint64_t n_tokens = 0;

    for (uint64_t k = 0; k < n; k++)
        n_tokens += packing_of(source, CLIENT_HELD_OUT)->tokens[k];
    return n_tokens;
}

const struct client_source_ops client_source_conversations = {
    .name = "conversations",
    .task = EPS_OF_CONVERSATIONS,
    .fields = 1u << CLIENT_FIELD_IDS | 1u << CLIENT_FIELD_LABELS | 1u << CLIENT_FIELD_ENTRIES,
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

const struct client_source_ops client_source_packed = {
    .name = "packed conversations",
    .task = EPS_OF_CONVERSATIONS,
    .fields =
        1u << CLIENT_FIELD_IDS | 1u << CLIENT_FIELD_LABELS | 1u << CLIENT_FIELD_POSITIONS | 1u << CLIENT_FIELD_ENTRIES,
    .open = open_packed,
    .open_files = client_data_open,
    .read = read_rows,
    .settle = settle,
    .measure = measure,
    .divide = divide_packed,
    .describe = describe,
    .n_rows = count_packed,
    .n_entries = client_documented_n_entries,
    .tokens = tokens_packed,
    .pick = pick_packed,
    .pick_held_out = pick_held_out_packed,
    .length = length_packed,
    .read_row = read_packed,
    .progress = progress_packed,
    .score = score,
    .close = close_source,
};
