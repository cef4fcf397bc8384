/* Losses are summed in double, row by row and token by token, on the host. So neither microbatch nor device changes a
 * bit of a part's loss. They come through a small array on the stack: a buffer of their number would grow with the
 * batch.
 *
 * device_pass_add_losses comes first: it lets the queue of downloads follow the forward pass. device_pass_take_log_p
 * and device_pass_take_token_log_p download by the same queue, and rely on that. */
#include "proto/step/pass.h"

#include "proto/plan/memory/data.h"

#include <errno.h>
#include <math.h>
#include <string.h>

enum { CHUNK_BYTES = 16 << 10 }; /* bytes copied through the stack between host and device */

void device_pass_record(const struct device_pass *pass, uint64_t since, const char *what, uint32_t visit,
                        const struct trace_arg *args)
{
    char name[MODEL_NAME_BYTES];

    if (pass->worker->trace)
        trace_end(pass->worker->trace, since, what,
                  model_visit_name(name, &pass->worker->model, device_pass_home(pass, visit)), args);
}

int device_pass_finish(const struct device_pass *pass, enum device_queue queue, uint64_t mark)
{
    const struct device_worker *w = pass->worker;

    return w->ops->finish(w->dev, queue, mark) ? w->ops->fault(w->dev, pass->err) : 0;
}

/* Bytes of the device, which forward has written. */
static int pass_download(const struct device_pass *pass, void *to, const void *from, size_t bytes)
{
    const struct device_worker *w = pass->worker;

    w->ops->download(w->dev, to, from, bytes);
    return device_pass_finish(pass, DEVICE_PUSH, w->ops->mark(w->dev, DEVICE_PUSH));
}

/* Rows of a run that are some row's, not the padding behind an epoch's last pairs. Padding without labels adds no loss
 * to a sum over tokens; a pair of it would add log 2, as neither text is the likelier one. */
static size_t real_rows(const struct device_pass *pass, uint32_t run)
{
    const uint64_t first = device_pass_first_row(pass, run), end = 2 * pass->n_pairs;

    return !pass->train || end >= first + pass->run_rows ? pass->run_rows : end > first ? (size_t)(end - first) : 0;
}

/* Adds the losses of the pairs in a run. */
static int add_pairs(struct device_pass *pass, uint32_t run, double *sum, struct preference_rewards *rewards)
{
    const size_t first = (size_t)run * pass->run_rows, n_rows = real_rows(pass, run);
    enum { MOST = CHUNK_BYTES / sizeof(double) / 2 };
    const struct plan *plan = &pass->worker->plan;
    const double *log_p = (const double *)device_pass_address(pass, plan->log_p) + first;
    const float *references = (const float *)device_pass_address(pass, plan->references) + first;
    double sums[MOST] = {0}; /* a clock downloads nothing (proto/step/clock.h) */
    float given[MOST] = {0};
    int rc = 0;

    for (size_t at = 0; rc == 0 && at < n_rows; at += MOST) {
        const size_t n = n_rows - at < MOST ? n_rows - at : MOST;
        rc = pass_download(pass, sums, log_p + at, n * sizeof *sums);
        if (rc == 0)
            rc = pass_download(pass, given, references + at, n * sizeof *given);
        for (size_t i = 0; rc == 0 && i < n; i += 2)
            *sum += preference_judge(rewards, &plan->setting.goal.preference, sums + i, given + i);
    }
    return rc;
}

/* Adds the losses of the microbatch that begins at a row of the run. */
static int add_microbatch(struct device_pass *pass, uint32_t run, uint32_t row, double *sum)
{
    const struct model *model = &pass->worker->model;
    const uint32_t tokens = device_pass_tokens(pass, run, row);
    const size_t n = (size_t)device_pass_rows(pass, row) * model_predicted(model, tokens);
    const double *losses =
        (const double *)device_pass_address(pass, pass->worker->plan.losses) + device_pass_predicted(pass, run, row);
    const float *weights = /* tokens have weights only where all of a row are predicted */
        pass->token_weights ? pass->token_weights + (device_pass_first_row(pass, run) + row) * pass->n_tokens : NULL;
    double chunk[CHUNK_BYTES / sizeof(double)] = {0}; /* a clock downloads nothing (proto/step/clock.h) */
    const size_t most = sizeof chunk / sizeof *chunk;
    int rc = 0;

    for (size_t at = 0; rc == 0 && at < n; at += most) {
        const size_t here = n - at < most ? n - at : most;
        rc = pass_download(pass, chunk, losses + at, here * sizeof *chunk);
        for (size_t i = at; rc == 0 && i < at + here; i++)
            *sum += weights ? chunk[i - at] * (double)weights[i / tokens * pass->n_tokens + i % tokens] : chunk[i - at];
    }
    return rc;
}

int device_pass_add_losses(struct device_pass *pass, uint32_t run, double *sum, struct preference_rewards *rewards)
{
    struct device_worker *w = pass->worker;
    int rc = 0;

    w->ops->follow(w->dev, DEVICE_PUSH, DEVICE_COMPUTE, pass->forward);
    if (plan_has_pairs(&w->plan.setting.goal))
        return add_pairs(pass, run, sum, rewards);
    for (uint32_t row = 0; rc == 0 && row < pass->run_rows; row += device_pass_rows(pass, row))
        rc = add_microbatch(pass, run, row, sum);
    return rc;
}

int device_pass_take_log_p(struct device_pass *pass, float *out)
{
    const double *log_p = device_pass_address(pass, pass->worker->plan.log_p);
    double chunk[CHUNK_BYTES / sizeof(double)] = {0};
    const size_t n = pass->run_rows, most = sizeof chunk / sizeof *chunk;
    int rc = 0;

    for (size_t at = 0; rc == 0 && at < n; at += most) {
        const size_t here = n - at < most ? n - at : most;
        rc = pass_download(pass, chunk, log_p + at, here * sizeof *chunk);
        for (size_t i = 0; rc == 0 && i < here; i++)
            out[at + i] = (float)chunk[i];
    }
    return rc;
}

/* The same of row `row` of the microbatch that begins at `first`. */
static int take_row(struct device_pass *pass, uint32_t first, uint32_t row, float *out)
{
    const uint32_t n = device_pass_tokens(pass, 0, first);
    const double *losses = (const double *)device_pass_address(pass, pass->worker->plan.losses) +
                           device_pass_predicted(pass, 0, first) + (size_t)(row - first) * n;
    double chunk[CHUNK_BYTES / sizeof(double)] = {0};
    const uint32_t most = sizeof chunk / sizeof *chunk;
    int rc = 0;

    for (uint32_t at = 0; rc == 0 && at < n; at += most) {
        const uint32_t here = n - at < most ? n - at : most;
        rc = pass_download(pass, chunk, losses + at, here * sizeof *chunk);
        for (uint32_t i = 0; rc == 0 && i < here; i++)
            out[at + i] = (float)(0 - chunk[i]);
    }
    for (uint32_t at = n; at < pass->n_tokens; at++) /* no label is there */
        out[at] = 0;
    return rc;
}

int device_pass_take_token_log_p(struct device_pass *pass, float *out)
{
    const uint32_t seq = pass->worker->plan.setting.goal.seq;
    int rc = 0;

    for (uint32_t first = 0; first < pass->run_rows; first += device_pass_rows(pass, first))
        for (uint32_t row = first; rc == 0 && row < first + device_pass_rows(pass, first); row++)
            rc = take_row(pass, first, row, out + (size_t)row * seq);
    return rc;
}

int device_pass_tell_losses(struct device_pass *pass)
{
    int rc = 0;

    for (uint32_t i = 0; rc == 0 && !pass->told && i < pass->n_runs; i++) {
        struct preference_rewards rewards = {0};
        double sum = 0;
        rc = device_pass_add_losses(pass, i, &sum, &rewards);
        if (rc == 0)
            rc = pass->link->loss(pass->context, pass->parts[i], sum, &rewards, isfinite(sum));
    }
    pass->told = true;
    return rc;
}
