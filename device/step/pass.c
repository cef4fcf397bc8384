#include "device/step/pass.h"

#include "proto/wire/message.h"

#include <errno.h>
#include <math.h>
#include <string.h>

enum { CHUNK_BYTES = 16 << 10 }; /* bytes copied through the stack between host and device */

void device_pass_record(const struct device_pass *pass, uint64_t since, const char *what, uint32_t visit,
                        const struct trace_arg *args)
{
    char name[MODEL_NAME_BYTES];

    if (pass->worker->trace)
        trace_end(pass->worker->trace, since, what, model_visit_name(name, &pass->worker->model, visit), args);
}

int device_pass_finish(const struct device_pass *pass, enum device_queue queue, uint64_t mark)
{
    const struct device_worker *w = pass->worker;

    return w->ops->finish(w->dev, queue, mark) ? w->ops->fault(w->dev, pass->err) : 0;
}

/* Loads one field (n tokens from the minibatch's token `first` on) to the device. The client can write this memory at
 * any time, so a copy is checked and used. */
static int load_field(struct device_pass *pass, uint32_t *to, const uint32_t *from, size_t first, size_t n,
                      bool is_label)
{
    struct device_worker *w = pass->worker;
    const uint32_t vocabulary = w->model.config.vocabulary, seq = w->plan.setting.goal.seq;
    uint32_t chunk[CHUNK_BYTES / sizeof(uint32_t)];
    const size_t most = sizeof chunk / sizeof *chunk;
    int rc = 0;

    for (size_t at = 0; rc == 0 && at < n; at += most) {
        const size_t here = n - at < most ? n - at : most;
        memcpy(chunk, from + first + at, here * sizeof *chunk);
        for (size_t i = 0; i < here; i++)
            if (chunk[i] >= vocabulary && !(is_label && chunk[i] == MESSAGE_NO_LABEL))
                return error_set(pass->err, -EINVAL, "%s %u in row %zu, position %zu: the vocabulary has %u",
                                 is_label ? "label" : "token id", chunk[i], (first + at + i) / seq,
                                 (first + at + i) % seq, vocabulary);
        w->ops->upload(w->dev, to + at, chunk, here * sizeof *chunk);
        rc = device_pass_finish(pass, DEVICE_PULL, w->ops->mark(w->dev, DEVICE_PULL));
    }
    return rc;
}

int device_pass_load_rows(struct device_pass *pass, const uint32_t *ids, const uint32_t *labels)
{
    const struct plan *plan = &pass->worker->plan;
    const size_t n = (size_t)pass->run_rows * plan->setting.goal.seq;
    int rc = 0;

    for (uint32_t i = 0; rc == 0 && i < pass->n_runs; i++) {
        const size_t first = device_pass_first_row(pass, i) * plan->setting.goal.seq;
        rc = load_field(pass, (uint32_t *)device_pass_address(pass, plan->ids) + i * n, ids, first, n, false);
        if (rc == 0)
            rc = load_field(pass, (uint32_t *)device_pass_address(pass, plan->labels) + i * n, labels, first, n, true);
    }
    return rc;
}

int device_pass_add_losses(struct device_pass *pass, uint32_t run, double *sum)
{
    struct device_worker *w = pass->worker;
    const size_t n = (size_t)pass->run_rows * w->plan.setting.goal.seq;
    const double *losses = (const double *)device_pass_address(pass, w->plan.losses) + run * n;
    double chunk[CHUNK_BYTES / sizeof(double)];
    const size_t most = sizeof chunk / sizeof *chunk;

    w->ops->follow(w->dev, DEVICE_PUSH, DEVICE_COMPUTE, pass->forward);
    for (size_t at = 0; at < n; at += most) {
        const size_t here = n - at < most ? n - at : most;
        w->ops->download(w->dev, chunk, losses + at, here * sizeof *chunk);
        int rc = device_pass_finish(pass, DEVICE_PUSH, w->ops->mark(w->dev, DEVICE_PUSH));
        if (rc != 0)
            return rc;
        for (size_t i = 0; i < here; i++)
            *sum += chunk[i];
    }
    return 0;
}

int device_pass_tell_losses(struct device_pass *pass)
{
    int rc = 0;

    for (uint32_t i = 0; rc == 0 && !pass->told && i < pass->n_runs; i++) {
        double sum = 0;
        rc = device_pass_add_losses(pass, i, &sum);
        if (rc == 0)
            rc = pass->link->loss(pass->context, pass->parts[i], sum, isfinite(sum));
    }
    pass->told = true;
    return rc;
}
