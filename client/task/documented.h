/* client/task/documented.h - what sources share whose rows are of documents (answers.c, preferences.c,
 * targets.c): reading, holding rows out, and slots of struct client_source_ops, by their
 * names. */
#ifndef CLIENT_TASK_DOCUMENTED_H
#define CLIENT_TASK_DOCUMENTED_H

#include "client/order/batches.h"
#include "client/corpus/documents.h"
#include "client/task/source.h"

struct client_documented {
    struct client_source source;
    struct client_source_setup setup;
    struct client_tokenizer *tokenizer;   /* NULL once all is read */
    struct client_documents documents[2]; /* of data and of eval_data, by enum client_part; either may be empty */
    struct client_subset subsets[2];      /* by enum client_part */
    struct client_batches batches;        /* of the rows to train on */
    uint32_t n_held_out;                  /* of the held-out rows, those that are evaluated */
};

/* reader stands in the sentence "READER a tokenizer" (client_tokenizer_require). Undo: client_documented_free, also
 * after a failure. */
int client_documented_init(struct client_documented *out, const struct client_source_ops *ops,
                           const struct client_source_setup *setup, const char *reader, struct error *err);
void client_documented_free(struct client_documented *rows);

/* Reads a part. rules: without tokenizer and side, which are those of the source. Errors as client_documents_read. */
int client_documented_read(struct client_documented *rows, enum client_part part, struct client_documents_rules rules,
                           struct error *err);

/* Where the documents are that a part's rows are of: held-out rows may be of the data to train on. */
enum client_part client_documented_origin(const struct client_documented *rows, enum client_part part);
const struct client_documents *client_documented_of(const struct client_documented *rows, enum client_part part);

/* Inputs of the longest document of both parts. */
uint32_t client_documented_longest(const struct client_documented *rows);

/* Moves a tenth of the rows to train on to the held-out ones. `what` names one in a sentence. together: true of two
 * rows, one behind the other, that must not part; NULL: each stands alone. -EINVAL with a sentence: there is one;
 * -ENOMEM. */
int client_documented_hold_out(struct client_documented *rows, uint64_t seed, const char *what,
                               bool (*together)(const struct client_documents *documents, uint32_t a, uint32_t b),
                               struct error *err);

/* Sets how many held-out rows, which have n_tokens, are evaluated. */
void client_documented_limit(struct client_documented *rows, uint64_t n_tokens, uint64_t eval_tokens);

/* The k-th of those rows: they are spread evenly over all, which are sorted by length. */
uint32_t client_documented_held_out(const struct client_documented *rows, uint64_t k);

/* Reads ids, labels and entries of document k (client_documents_length of seq) into a row, from token `at` on: labels
 * are successors, or PLAN_NO_LABEL. work (seq + 1) is the caller's. -EIO, -errno. */
int client_documents_get(const struct client_documents *documents, const struct client_row_fields *row, uint32_t at,
                         uint32_t *work, size_t k, uint32_t seq, struct error *err);

/* The seq that is chosen for rows up to this length: at most 1024, and the model's positions. */
uint32_t client_documents_seq(uint32_t longest, uint32_t n_positions);

uint64_t client_documented_n_rows(const struct client_source *source, enum client_part part);
uint64_t client_documented_n_entries(const struct client_source *source);
uint64_t client_documented_tokens(struct client_source *source, uint64_t step, uint64_t n_before);
uint32_t client_documented_pick(struct client_sample *out, struct client_source *source, uint64_t step,
                                uint64_t n_before);
struct client_sample client_documented_pick_held_out(const struct client_source *source, uint64_t k);

#endif
