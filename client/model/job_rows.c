#include "client/model/job_rows.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <string.h>

static void *at(const struct client_job *job, uint64_t offset)
{
    return (char *)job->data.base + offset;
}

int client_job_put_rows(struct client_minibatch *out, struct client_job *job, unsigned buffer,
                        const struct client_rows *rows, const uint32_t *list, uint32_t n, struct error *err)
{
    const struct plan_data data = client_job_data(job);
    uint32_t *ids = at(job, data.buffers[buffer].ids), *labels = at(job, data.buffers[buffer].labels);
    struct plan_row *all = at(job, data.buffers[buffer].rows);
    const uint32_t n_tokens = client_batches_length(rows, list, n, job->seq);

    assert(n <= job->batch);
    *out = (struct client_minibatch){.n_tokens = n_tokens};
    memset(ids, 0, (size_t)job->batch * n_tokens * sizeof *ids);
    for (size_t i = 0; i < (size_t)job->batch * n_tokens; i++)
        labels[i] = PLAN_NO_LABEL;
    for (uint32_t row = 0; row < job->batch; row++)
        all[row] = (struct plan_row){1, 1};
    for (uint32_t row = 0; row < n; row++) {
        const size_t first = (size_t)row * n_tokens;
        const int64_t length =
            client_rows_get(rows, ids + first, &all[row].second, job->work, list[row], n_tokens, err);
        if (length < 0)
            return (int)length;
        all[row].n_tokens = (uint32_t)length;
        labels[first] = rows->list[list[row]].label;
        out->n_labels += labels[first] != PLAN_NO_LABEL;
    }
    return 0;
}

static int evaluate(double *sum, struct client_job *job, const struct message *request, struct error *err)
{
    struct message m;

    client_link_send(job->link, request);
    const int rc = client_link_expect(job->link, MESSAGE_EVALUATED, &m, NULL, err);
    if (rc)
        return rc;
    if (!isfinite(m.evaluated.sum)) /* the daemon passed on a worker's value */
        return error_set(err, -EINVAL, "the model's loss is %s: its weights are damaged, or its training has diverged",
                         isnan(m.evaluated.sum) ? "not a number" : "infinite");
    *sum += m.evaluated.sum;
    return 0;
}

int client_job_evaluate_rows(double *loss, uint64_t *n_labels, float *logits, struct client_job *job,
                             const struct client_subset *subset, unsigned buffer, struct error *err)
{
    double sum = 0;
    int rc = 0;

    *n_labels = 0;
    for (uint32_t first = 0; !rc && first < subset->n;) {
        const uint32_t left = subset->n - first, n = left < job->batch ? left : job->batch;
        struct client_minibatch minibatch;
        if (job->on_evaluating)
            job->on_evaluating(job->user, first, subset->n);
        if (job->stop && *job->stop)
            return error_set(err, -ECANCELED, "the evaluation was cut short");
        rc = client_job_put_rows(&minibatch, job, buffer, subset->rows, subset->list + first, n, err);
        if (rc)
            return rc;
        const struct message request = {.kind = MESSAGE_EVALUATE,
                                        .evaluate = {.buffer = buffer, .n_rows = n, .n_tokens = minibatch.n_tokens}};
        rc = evaluate(&sum, job, &request, err);
        memcpy(logits + (size_t)first * job->n_labels, at(job, client_job_data(job).logits),
               (size_t)n * job->n_labels * sizeof *logits);
        *n_labels += minibatch.n_labels;
        first += n;
    }
    if (!rc && job->on_evaluating)
        job->on_evaluating(job->user, subset->n, subset->n);
    *loss = *n_labels ? sum / (double)*n_labels : NAN;
    return rc;
}
