/* A stored token carries a bit that says whether it is learned. So one reading of n + 1 tokens gives ids and labels:
 * token i predicts token i + 1, if the bit of that one is set. */
#include "client/task/document_rows.h"

#include "client/text/conversation.h"
#include "proto/plan/memory/data.h"

enum { DEFAULT_SEQ = 1024 };

static const struct client_listed *document_rows_of(const struct client_source *source)
{
    return (const struct client_listed *)source;
}

uint32_t client_document_rows_length(const struct client_source *source, enum client_part data, size_t k)
{
    return client_document_inputs(&document_rows_of(source)->corpus[data].list[k]);
}

enum eps_fate client_document_rows_fate(const struct client_source *source, enum client_part data, size_t k,
                                        enum eps_long long_rows)
{
    return client_documents_fate(&document_rows_of(source)->corpus[data], k, document_rows_of(source)->seq, long_rows);
}

int client_document_rows_refuse(const struct client_source *source, enum client_part data, size_t k, struct error *err)
{
    const struct client_corpus *documents = &document_rows_of(source)->corpus[data];

    if (client_document_inputs(&documents->list[k]) <= document_rows_of(source)->seq)
        return 0;
    return client_documents_refuse(documents, client_source_data(source, data), k, document_rows_of(source)->seq, err);
}

int client_document_rows_read(struct client_source *source, enum client_part part, struct client_documents_rules rules,
                              struct error *err)
{
    struct client_listed *l = (struct client_listed *)source;

    rules.tokenizer = l->tokenizer, rules.side = source->setup.side;
    const int rc = client_documents_read(&l->corpus[part], client_source_data(source, part), &rules, err);
    client_listed_has_read(source, part);
    return rc;
}

const struct client_corpus *client_document_rows_of(const struct client_source *source)
{
    return &document_rows_of(source)->corpus[CLIENT_TRAIN];
}

const char *client_document_rows_side(const struct client_source *source, size_t k)
{
    const struct client_listed_ops *ops = document_rows_of(source)->ops;

    return ops->sides ? ops->sides[k % ops->group] : NULL;
}

int client_documents_get(const struct client_corpus *documents, const struct client_row_fields *row, uint32_t at,
                         uint32_t *work, size_t k, uint32_t seq, struct error *err)
{
    uint32_t *const ids = (uint32_t *)row->at[PLAN_FIELD_IDS] + at;
    uint32_t *const labels = (uint32_t *)row->at[PLAN_FIELD_LABELS] + at;
    const uint32_t n = client_documents_length(documents, k, seq);
    const int rc = client_corpus_tokens(documents, work, k, n + (size_t)1, err);

    for (uint32_t i = 0; !rc && i < n; i++) {
        ids[i] = work[i] & ~CLIENT_TOKEN_TRAINED;
        labels[i] = work[i + 1] & CLIENT_TOKEN_TRAINED ? work[i + 1] & ~CLIENT_TOKEN_TRAINED : PLAN_NO_LABEL;
    }
    client_row_number(row, at, documents->list[k].at, n);
    return rc;
}

int client_document_rows_get(struct client_source *source, const struct client_row_fields *row, enum client_part part,
                             struct client_sample sample, struct error *err)
{
    const struct client_listed *l = document_rows_of(source);

    return client_documents_get(&l->corpus[client_listed_data(source, part)], row, 0, l->work, sample.id, source->seq,
                                err);
}

uint32_t client_documents_seq(uint32_t longest, uint32_t n_positions)
{
    return client_batches_length(longest, n_positions < DEFAULT_SEQ ? n_positions : DEFAULT_SEQ);
}
