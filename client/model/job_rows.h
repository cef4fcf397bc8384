/* client/model/job_rows.h - a classifier's rows in a job's data segment: written for a step, and evaluated.
 *
 * All rows of a step are as long as its longest one, rounded up (client_batches_length); what is beyond a row's own
 * length is padding, and influences nothing. */
#ifndef CLIENT_MODEL_JOB_ROWS_H
#define CLIENT_MODEL_JOB_ROWS_H

#include "client/rows/batches.h"
#include "client/model/job.h"

/* A minibatch in a buffer. */
struct client_minibatch {
    uint32_t n_tokens; /* tokens of each row */
    uint64_t n_labels; /* labels that count */
};

/* Writes the rows in list (n) into a buffer; the job's other rows become empty ones, without a label. -errno. */
int client_job_put_rows(struct client_minibatch *out, struct client_job *job, unsigned buffer,
                        const struct client_rows *rows, const uint32_t *list, uint32_t n, struct error *err);

/* Mean loss over the rows of a subset that have labels (n_labels of them; 0: *loss is NAN), with the current weights.
 * logits (subset->n, job->n_labels) are the rows' in the subset's order. No step may be open. Errors as
 * client_job_evaluate. */
int client_job_evaluate_rows(double *loss, uint64_t *n_labels, float *logits, struct client_job *job,
                             const struct client_subset *subset, unsigned buffer, struct error *err);

#endif
