/* client/task/document_rows.h - what tasks share whose rows are documents (client/corpus/documents.h), each token of
 * which predicts the one after it: answers.c, preferences.c. targets.c reads as they do. */
#ifndef CLIENT_TASK_DOCUMENT_ROWS_H
#define CLIENT_TASK_DOCUMENT_ROWS_H

#include "client/corpus/documents.h"
#include "client/task/listed.h"

/* As struct client_listed_ops has them. */
uint32_t client_document_rows_length(const struct client_source *source, enum client_part data, size_t k);
enum eps_fate client_document_rows_fate(const struct client_source *source, enum client_part data, size_t k,
                                        enum eps_long long_rows);
int client_document_rows_refuse(const struct client_source *source, enum client_part data, size_t k, struct error *err);

/* Reads a part of the data; rules: without tokenizer and side, which are those of the source. Errors as
 * client_documents_read. */
int client_document_rows_read(struct client_source *source, enum client_part part, struct client_documents_rules rules,
                              struct error *err);

/* The documents to train on, once they are read; borrowed. */
const struct client_corpus *client_document_rows_of(const struct client_source *source);

/* What document k is called in its group: client_listed_ops.sides. NULL: it is alone. */
const char *client_document_rows_side(const struct client_source *source, size_t k);

/* As read_row of struct client_source_ops: ids, labels and entries of a row that is one document. The rows' work has
 * seq + 1. */
int client_document_rows_get(struct client_source *source, const struct client_row_fields *row, enum client_part part,
                             struct client_sample sample, struct error *err);

/* Reads ids, labels and entries of document k (client_documents_length of seq) into a row, from token `at` on: labels
 * are successors, or PLAN_NO_LABEL. work (seq + 1) is the caller's. -EIO, -errno. */
int client_documents_get(const struct client_corpus *documents, const struct client_row_fields *row, uint32_t at,
                         uint32_t *work, size_t k, uint32_t seq, struct error *err);

/* The seq that is chosen for rows up to this length: at most 1024, and the model's positions. */
uint32_t client_documents_seq(uint32_t longest, uint32_t n_positions);

#endif
