#include "client/task/documented.h"
#include "client/text/conversation.h"
#include "proto/model/family.h"
#include "proto/plan/memory/data.h"

#include <errno.h>
#include <stdlib.h>

static const struct client_documented *of(const struct client_source *source)
{
    return (const struct client_documented *)source;
}

int client_documented_init(struct client_documented *out, const struct client_source_ops *ops,
                           const struct client_source_setup *setup, const char *reader, struct error *err)
{
    const uint32_t vocabulary = setup->config->vocabulary, source = setup->config->source_vocabulary;

    *out = (struct client_documented){.source = {.ops = ops}, .setup = *setup, .documents = {{.fd = -1}, {.fd = -1}}};
    return client_tokenizer_require(&out->tokenizer, setup->side, setup->config->family->model_type,
                                    vocabulary > source ? vocabulary : source, reader, err);
}

void client_documented_free(struct client_documented *rows)
{
    client_tokenizer_close(rows->tokenizer);
    client_batches_free(&rows->batches);
    for (int part = 0; part < 2; part++) {
        client_subset_free(&rows->subsets[part]);
        client_documents_free(&rows->documents[part]);
    }
}

int client_documented_read(struct client_documented *rows, enum client_part part, struct client_documents_rules rules,
                           struct error *err)
{
    struct client_data *data = part == CLIENT_TRAIN ? rows->setup.data : rows->setup.eval_data;
    struct client_documents *documents = &rows->documents[part];
    int rc = 0;

    rules.tokenizer = rows->tokenizer, rules.side = rows->setup.side;
    if (data->n_files > 0) {
        rc = client_documents_read(documents, data, &rules, err);
        data->n = documents->n_tokens;
        data->hash = documents->hash;
    }
    if (part == CLIENT_HELD_OUT) { /* the last one */
        client_tokenizer_close(rows->tokenizer);
        rows->tokenizer = NULL;
    }
    return rc;
}

enum client_part client_documented_origin(const struct client_documented *rows, enum client_part part)
{
    return part == CLIENT_HELD_OUT && rows->documents[CLIENT_HELD_OUT].n > 0 ? CLIENT_HELD_OUT : CLIENT_TRAIN;
}

const struct client_documents *client_documented_of(const struct client_documented *rows, enum client_part part)
{
    return &rows->documents[client_documented_origin(rows, part)];
}

uint32_t client_documented_longest(const struct client_documented *rows)
{
    const uint32_t data = client_documents_longest(&rows->documents[CLIENT_TRAIN]),
                   eval_data = client_documents_longest(&rows->documents[CLIENT_HELD_OUT]);

    return data > eval_data ? data : eval_data;
}

int client_documented_hold_out(struct client_documented *rows, uint64_t seed, const char *what,
                               bool (*together)(const struct client_documents *documents, uint32_t a, uint32_t b),
                               struct error *err)
{
    const struct client_documents *documents = &rows->documents[CLIENT_TRAIN];
    struct client_subset *train = &rows->subsets[CLIENT_TRAIN], *held_out = &rows->subsets[CLIENT_HELD_OUT];
    const uint32_t n = train->n;
    uint32_t *group = calloc(n + (size_t)1, sizeof *group), n_groups = 0;
    bool *held = calloc(n + (size_t)1, sizeof *held);
    int rc = group && held ? client_subset_init(held_out, train->lengths, n, err) : error_memory(err);

    for (uint32_t i = 0; !rc && i < n; i++) {
        n_groups += i == 0 || !together || !together(documents, train->list[i - 1], train->list[i]);
        group[i] = n_groups - 1;
    }
    if (!rc && n_groups < 2)
        rc =
            error_set(err, -EINVAL,
                      "--data: one %s is too few to train on and to hold out another: give more, or --eval-data", what);
    if (!rc)
        client_subset_draw(held, n_groups, seed);
    train->n = 0;
    for (uint32_t i = 0; !rc && i < n; i++) {
        struct client_subset *to = held[group[i]] ? held_out : train;
        to->list[to->n++] = train->list[i];
    }
    free(group);
    free(held);
    return rc;
}

void client_documented_limit(struct client_documented *rows, uint64_t n_tokens, uint64_t eval_tokens)
{
    const uint32_t n = rows->subsets[CLIENT_HELD_OUT].n;

    rows->n_held_out = n;
    if (eval_tokens > 0 && n_tokens > eval_tokens)
        rows->n_held_out = (uint32_t)((double)n * (double)eval_tokens / (double)n_tokens);
    rows->n_held_out += rows->n_held_out == 0;
}

uint32_t client_documented_held_out(const struct client_documented *rows, uint64_t k)
{
    const struct client_subset *subset = &rows->subsets[CLIENT_HELD_OUT];

    return subset->list[k * subset->n / rows->n_held_out];
}

uint64_t client_documented_n_rows(const struct client_source *source, enum client_part part)
{
    return part == CLIENT_HELD_OUT ? of(source)->n_held_out : of(source)->subsets[part].n;
}

uint64_t client_documented_n_entries(const struct client_source *source)
{
    return of(source)->documents[CLIENT_TRAIN].n_tokens;
}

uint64_t client_documented_tokens(struct client_source *source, uint64_t step, uint64_t n_before)
{
    (void)n_before;
    return client_batches_tokens(&((struct client_documented *)source)->batches, step);
}

uint32_t client_documented_pick(struct client_sample *out, struct client_source *source, uint64_t step,
                                uint64_t n_before)
{
    (void)n_before;
    return client_batches_pick(out, &((struct client_documented *)source)->batches, step);
}

struct client_sample client_documented_pick_held_out(const struct client_source *source, uint64_t k)
{
    return (struct client_sample){.id = client_documented_held_out(of(source), k)};
}

int client_documents_get(const struct client_documents *documents, const struct client_row_fields *row, uint32_t at,
                         uint32_t *work, size_t k, uint32_t seq, struct error *err)
{
    uint32_t *const ids = (uint32_t *)row->at[CLIENT_FIELD_IDS] + at;
    uint32_t *const labels = (uint32_t *)row->at[CLIENT_FIELD_LABELS] + at;
    const uint32_t n = client_documents_length(documents, k, seq);
    const int rc = client_documents_tokens(documents, work, k, n + 1, err);

    for (uint32_t i = 0; !rc && i < n; i++) {
        ids[i] = work[i] & ~CLIENT_TOKEN_TRAINED;
        labels[i] = work[i + 1] & CLIENT_TOKEN_TRAINED ? work[i + 1] & ~CLIENT_TOKEN_TRAINED : PLAN_NO_LABEL;
    }
    client_row_number(row, at, documents->list[k].at, n);
    return rc;
}

enum { DEFAULT_SEQ = 1024 };

uint32_t client_documents_seq(uint32_t longest, uint32_t n_positions)
{
    return client_batches_length(longest, n_positions < DEFAULT_SEQ ? n_positions : DEFAULT_SEQ);
}
