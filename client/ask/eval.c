/* eps_eval: a model's loss over files, by a job with weights but no moments. */
#include "client/model/job.h"
#include "client/daemon/observer.h"
#include "client/data/data.h"
#include "client/eps.h"
#include "client/ask/eval_rows.h"
#include "client/ask/forward.h"
#include "client/run/run.h"
#include "client/options/options.h"
#include "proto/model/family.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

struct eval {
    struct eps_eval_options options; /* with seq and batch resolved */
    const struct eps_eval_events *events;
    void *user;
    struct client_forward forward;
    struct client_masks masks;
    struct client_data data;
    struct client_windows windows;
    struct client_job job;
};

static bool is_masked(const struct eval *e)
{
    return client_run_masks(&e->forward.model);
}

static int open_masks(struct eval *e, struct error *err)
{
    const struct client_model *model = &e->forward.model;
    struct eps_eval_options *o = &e->options;

    if (!is_masked(e) && o->mask_fraction == 0)
        o->mask_fraction = NAN;
    int rc = client_options_mask(&o->mask_fraction, is_masked(e), err);
    if (rc || !is_masked(e))
        return rc;
    if (o->stride)
        return error_set(err, -EDOM,
                         "--stride %u: the model predicts masked tokens, each from its whole sequence: leave it out",
                         o->stride);
    rc = client_masks_open(&e->masks, model->side, model->config.vocabulary, err);
    if (rc)
        error_prefix(err, model->name);
    else
        client_masks_set(&e->masks, o->mask_fraction, o->seed);
    return rc;
}

static int open_data(struct eval *e, struct error *err)
{
    int rc = client_data_open(&e->data, e->options.data, e->options.n_data, err);

    if (!rc)
        rc = client_choose_check(&e->data, &e->forward.model, e->options.separator, &e->forward.link.watches[1], err);
    if (rc && rc != -EINTR && rc != -EDOM)
        error_prefix(err, "--data");
    return rc;
}

/* Chooses seq and batch: the largest minibatch that runs in one pass, like a training run's. */
static int resolve(struct eval *e, struct error *err)
{
    struct eps_eval_options *o = &e->options;
    const uint32_t n_positions = e->forward.model.config.n_positions;

    if (o->seq == 0)
        o->seq = n_positions < 1024 ? n_positions : 1024;
    if (o->seq > n_positions)
        return error_set(err, -EDOM, "--seq %u is more than the model's %u positions", o->seq, n_positions);
    if (o->stride == 0)
        o->stride = o->seq;
    if (o->stride > o->seq)
        return error_set(err, -EDOM, "--stride %u is more than --seq %u: tokens between sequences would be left out",
                         o->stride, o->seq);
    e->windows = client_windows_held_out(&e->data, 0, e->data.n, o->seq, o->stride, o->eval_tokens,
                                         is_masked(e) ? &e->masks : NULL);
    if (e->windows.n == 0)
        return error_set(err, -EINVAL,
                         "--data %s%s: %" PRIu64
                         " tokens are too few for a window of --seq %u%s: give more data or a lower --seq",
                         o->data[0], o->n_data > 1 ? " and more" : "", e->data.n, o->seq,
                         is_masked(e) ? "" : " and the token after it");
    if (o->batch == 0)
        o->batch = client_options_batch(o->seq, 1, e->windows.n);
    return client_options_check_batch(o->batch, o->seq, err);
}

static int evaluate(struct eval *e, double *loss, uint64_t *tokens, struct error *err)
{
    /* The optimizer is never used, but its numbers must be valid. */
    struct message request = {.kind = MESSAGE_JOB,
                              .job = {.goal = {.purpose = PLAN_EVALUATE,
                                               .precision = e->forward.model.precision,
                                               .batch = e->options.batch,
                                               .seq = e->options.seq,
                                               .n_parts = 1},
                                      .beta1 = 0.9,
                                      .beta2 = 0.999,
                                      .epsilon = 1e-8}};
    int rc = client_forward_open_job(&e->forward, &e->job, &request, err);

    e->job.on_evaluating = e->events->on_evaluating;
    e->job.user = e->user;
    if (!rc)
        rc = client_job_evaluate(loss, tokens, &e->job, &e->windows, 0, err);
    return rc ? rc : client_job_close(&e->job, err);
}

/* A model that predicts tokens. */
static int eval_tokens(struct eval *e, double *loss, uint64_t *tokens, struct error *err)
{
    int rc = e->options.columns || e->events->on_prediction
                 ? error_set(err, -EDOM, "%s is for classifiers, and this model predicts tokens: leave it out",
                             e->options.columns ? "--columns" : "--predictions")
                 : open_masks(e, err);

    if (!rc)
        rc = open_data(e, err);
    if (!rc)
        rc = resolve(e, err);
    if (!rc && e->events->on_start)
        e->events->on_start(e->user, &e->options);
    if (!rc)
        rc = client_forward_start(&e->forward, err);
    return rc ? rc : evaluate(e, loss, tokens, err);
}

struct eps_eval_options eps_eval_defaults(void)
{
    return (struct eps_eval_options){.wait = NAN, .mask_fraction = NAN};
}

int eps_eval(double *loss, uint64_t *tokens, const struct eps_eval_options *options,
             const struct eps_eval_events *events, void *user, struct eps_error *error)
{
    static const struct eps_eval_events silent;
    const struct client_forward_options forward = {.model = options->model,
                                                   .connect = options->connect,
                                                   .wait = options->wait,
                                                   .programs = options->programs,
                                                   .device = options->device,
                                                   .device_mem = options->device_mem,
                                                   .should_stop = events ? events->should_stop : NULL,
                                                   .on_note = events ? events->on_note : NULL,
                                                   .user = user};
    struct eval *e;
    struct error err = {""};

    if (options->n_data == 0)
        return client_report(error,
                             &(struct error){
                                 "--data is needed: files of text, .jsonl, .bin or .npy, or - for standard input"},
                             -EDOM);
    e = calloc(1, sizeof *e);
    if (!e)
        return client_report(error, &(struct error){"out of memory"}, -ENOMEM);
    e->options = *options;
    e->events = events ? events : &silent;
    e->user = user;
    int rc = client_forward_open(&e->forward, &forward, &err);
    if (!rc && e->forward.model.config.n_labels > 0)
        rc = client_eval_rows(loss, tokens, &e->forward, &e->options, e->events, user, &err);
    else if (!rc)
        rc = eval_tokens(e, loss, tokens, &err);
    client_job_free(&e->job);
    client_forward_close(&e->forward);
    client_masks_close(&e->masks);
    client_data_free(&e->data);
    free(e);
    return client_report(error, &err, rc);
}
