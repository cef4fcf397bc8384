#include "device/step.h"

#include "device/layers/layers.h"
#include "device/weights.h"
#include "proto/message.h"

#include <errno.h>
#include <math.h>
#include <string.h>

enum { CHUNK_BYTES = 16 << 10 }; /* of what passes between host and device by way of the stack */

/* One pass of some rows through the model. The rows come in runs: the parts of a share, or one run to evaluate. On the
 * device they lie packed, run after run. */
struct run {
    struct device_worker *worker;
    const struct device_link *link;
    void *context;
    struct error *err;
    struct device_weights weights;
    const uint32_t *parts; /* (n_runs), or NULL: one run from first_row on */
    uint32_t n_runs, run_rows, first_row;
    uint64_t step;
    float loss_scale;
    bool train;
};

static void record(const struct run *run, uint64_t since, const char *what, uint32_t visit,
                   const struct trace_arg *args)
{
    char name[MODEL_NAME_BYTES];

    if (run->worker->trace)
        trace_end(run->worker->trace, since, what, model_visit_name(name, &run->worker->model, visit), args);
}

/* Row of the minibatch. */
static uint64_t first_row_of(const struct run *run, uint32_t index)
{
    return run->parts ? (uint64_t)run->parts[index] * run->run_rows : run->first_row;
}

static void *address(const struct run *run, uint64_t offset)
{
    return (char *)run->worker->ops->arena(run->worker->dev) + offset;
}

static void *boundary(const struct run *run, uint32_t layer, size_t first_token)
{
    const struct plan *plan = &run->worker->plan;
    const void *base = address(run, plan->boundaries + layer % plan->n_boundaries * plan->boundary_bytes);

    return device_element(plan->setting.precision, base, first_token * run->worker->model.config.width);
}

/* One field (n tokens from the minibatch's token `first` on) to the device. The client can write this memory at any
 * time, so what is checked is a copy, and the copy is what is used. */
static int load_field(struct run *run, uint32_t *to, const uint32_t *from, size_t first, size_t n, bool is_label)
{
    struct device_worker *w = run->worker;
    const uint32_t vocabulary = w->model.config.vocabulary, seq = w->plan.setting.seq;
    uint32_t chunk[CHUNK_BYTES / sizeof(uint32_t)];
    const size_t most = sizeof chunk / sizeof *chunk;
    int rc = 0;

    for (size_t at = 0; rc == 0 && at < n; at += most) {
        const size_t here = n - at < most ? n - at : most;
        memcpy(chunk, from + first + at, here * sizeof *chunk);
        for (size_t i = 0; i < here; i++)
            if (chunk[i] >= vocabulary && !(is_label && chunk[i] == MESSAGE_NO_LABEL))
                return error_set(run->err, -EINVAL, "%s %u in row %zu, position %zu: the vocabulary has %u",
                                 is_label ? "label" : "token id", chunk[i], (first + at + i) / seq,
                                 (first + at + i) % seq, vocabulary);
        w->ops->upload(w->dev, to + at, chunk, here * sizeof *chunk);
        rc = w->ops->sync(w->dev);
    }
    return rc;
}

static int load_rows(struct run *run, const uint32_t *ids, const uint32_t *labels)
{
    const struct plan *plan = &run->worker->plan;
    const size_t n = (size_t)run->run_rows * plan->setting.seq;
    int rc = 0;

    for (uint32_t i = 0; rc == 0 && i < run->n_runs; i++) {
        const size_t first = first_row_of(run, i) * plan->setting.seq;
        rc = load_field(run, (uint32_t *)address(run, plan->ids) + i * n, ids, first, n, false);
        if (rc == 0)
            rc = load_field(run, (uint32_t *)address(run, plan->labels) + i * n, labels, first, n, true);
    }
    return rc;
}

/* Adds the losses of one run to *sum, row by row and token by token. */
static int add_losses(struct run *run, uint32_t index, double *sum)
{
    struct device_worker *w = run->worker;
    const size_t n = (size_t)run->run_rows * w->plan.setting.seq;
    const double *losses = (const double *)address(run, w->plan.losses) + index * n;
    double chunk[CHUNK_BYTES / sizeof(double)];
    const size_t most = sizeof chunk / sizeof *chunk;

    for (size_t at = 0; at < n; at += most) {
        const size_t here = n - at < most ? n - at : most;
        w->ops->download(w->dev, chunk, losses + at, here * sizeof *chunk);
        int rc = w->ops->sync(w->dev);
        if (rc != 0)
            return rc;
        for (size_t i = 0; i < here; i++)
            *sum += chunk[i];
    }
    return 0;
}

/* What a visit may touch for n_rows rows from `row` of a run on. */
static struct layer_pass pass_of(const struct run *run, uint32_t visit, uint32_t index, uint32_t row, uint32_t n_rows)
{
    struct device_worker *w = run->worker;
    const struct plan *plan = &w->plan;
    const struct model *model = &w->model;
    const uint32_t l = model->visit_layers[visit];
    const struct model_layer *layer = &model->layers[l];
    const size_t token = ((size_t)index * run->run_rows + row) * plan->setting.seq;

    return (struct layer_pass){.ops = w->ops,
                               .dev = w->dev,
                               .model = model,
                               .layer = layer,
                               .unit = &model->units[model->visits[visit]],
                               .bottom = visit == layer->first_visit,
                               .top = visit == layer->first_visit + layer->n_visits - 1,
                               .input = l > 0 ? boundary(run, l - 1, token) : NULL,
                               .output = l < model->n_layers - 1 ? boundary(run, l, token) : NULL,
                               .ids = (const uint32_t *)address(run, plan->ids) + token,
                               .labels = (const uint32_t *)address(run, plan->labels) + token,
                               .running = (float *)address(run, plan->running) + token * 3,
                               .losses = (double *)address(run, plan->losses) + token,
                               .workspace = address(run, plan->workspace),
                               .n_rows = n_rows,
                               .n_tokens = plan->setting.seq,
                               .first_row = first_row_of(run, index) + row,
                               .seed = w->seed,
                               .step = run->step,
                               .loss_scale = run->loss_scale,
                               .dropout = run->train,
                               .setting = &plan->setting};
}

static uint32_t microbatch_at(const struct run *run, uint32_t row)
{
    const uint32_t most = run->worker->plan.choice.microbatch;

    return run->run_rows - row < most ? run->run_rows - row : most;
}

static uint32_t count_microbatches(const struct run *run)
{
    const uint32_t most = run->worker->plan.choice.microbatch;

    return (run->run_rows + most - 1) / most;
}

/* Of an evaluation without the step, which it is not a part of. */
static void record_forward(const struct run *run, uint64_t since, uint32_t visit)
{
    const struct trace_arg args[] = {{"visit", visit},
                                     {"microbatches", run->n_runs * count_microbatches(run)},
                                     {run->train ? "step" : NULL, run->step + 1},
                                     {NULL, 0}};

    record(run, since, "forward", visit, args);
}

static int forward(struct run *run)
{
    const struct model *model = &run->worker->model;

    for (uint32_t visit = 0; visit < model->n_visits; visit++) {
        const void *weights;
        int rc = device_weights_next(&run->weights, visit, &weights);
        if (rc != 0)
            return rc;
        const uint64_t since = trace_begin(run->worker->trace);
        for (uint32_t i = 0; i < run->n_runs; i++)
            for (uint32_t row = 0; row < run->run_rows; row += microbatch_at(run, row)) {
                struct layer_pass pass = pass_of(run, visit, i, row, microbatch_at(run, row));
                pass.weights = weights;
                layer_table[pass.layer->kind]->forward(&pass);
            }
        record_forward(run, since, visit);
    }
    return 0;
}

static int tell_losses(struct run *run)
{
    int rc = 0;

    for (uint32_t i = 0; rc == 0 && i < run->n_runs; i++) {
        double sum = 0;
        rc = add_losses(run, i, &sum);
        if (rc == 0)
            rc = run->link->loss(run->context, run->parts[i], sum, isfinite(sum));
    }
    return rc;
}

/* The contribution, slice by slice. */
static int offer(struct run *run, uint32_t visit, uint32_t part)
{
    struct device_worker *w = run->worker;
    const struct model_unit *unit = &w->model.units[w->model.visits[visit]];
    const float *contribution = address(run, w->plan.contribution);

    for (uint32_t slice = 0; slice < unit->n_slices; slice++) {
        const uint64_t first = (uint64_t)slice * MODEL_SLICE;
        const uint64_t n = unit->n - first < MODEL_SLICE ? unit->n - first : MODEL_SLICE;
        float *slot;
        int rc = run->link->wait_slot(run->context, visit, part, slice, &slot);
        if (rc != 0)
            return rc;
        const uint64_t since = trace_begin(w->trace);
        w->ops->download(w->dev, slot, contribution + first, n * sizeof *slot);
        rc = w->ops->sync(w->dev);
        record(run, since, "download", visit,
               (struct trace_arg[]){{"visit", visit},
                                    {"step", run->step + 1},
                                    {"part", part},
                                    {"slice", slice},
                                    {"bytes", n * sizeof *slot},
                                    {NULL, 0}});
        if (rc == 0)
            rc = run->link->contribute(run->context, visit, part, slice);
        if (rc != 0)
            return rc;
    }
    return run->link->contributed(run->context, visit, part);
}

static void backward_part(struct run *run, uint32_t visit, uint32_t index, const void *weights)
{
    struct device_worker *w = run->worker;
    float *contribution = address(run, w->plan.contribution);
    const uint64_t since = trace_begin(w->trace);

    w->ops->zero(w->dev, contribution, w->model.units[w->model.visits[visit]].n);
    for (uint32_t row = 0; row < run->run_rows; row += microbatch_at(run, row)) {
        struct layer_pass pass = pass_of(run, visit, index, row, microbatch_at(run, row));
        const size_t token = ((size_t)index * run->run_rows + row) * pass.n_tokens;
        pass.weights = weights;
        pass.contribution = contribution;
        pass.gradient = layer_element(&pass, address(run, w->plan.gradient), token * w->model.config.width);
        layer_table[pass.layer->kind]->backward(&pass);
    }
    record(run, since, "backward", visit,
           (struct trace_arg[]){{"visit", visit},
                                {"microbatches", count_microbatches(run)},
                                {"step", run->step + 1},
                                {"part", run->parts[index]},
                                {NULL, 0}});
}

static int backward(struct run *run)
{
    const uint32_t n = run->worker->model.n_visits;

    for (uint32_t place = n; place < 2 * n; place++) {
        const uint32_t visit = device_weights_visit(&run->weights, place);
        const void *weights;
        int rc = device_weights_next(&run->weights, place, &weights);
        for (uint32_t i = 0; rc == 0 && i < run->n_runs; i++) {
            backward_part(run, visit, i, weights);
            rc = offer(run, visit, run->parts[i]);
        }
        if (rc != 0)
            return rc;
    }
    return 0;
}

/* Nothing borrowed is in use by the device any more when a step has returned. */
static int settle(const struct run *run, int rc)
{
    int synced = run->worker->ops->sync(run->worker->dev);

    if (synced != 0)
        return error_set(run->err, synced, "the device is lost");
    return rc;
}

static int check_share(const struct device_worker *w, const struct device_share *share, struct error *err)
{
    const struct plan_setting *s = &w->plan.setting;

    if (s->purpose != PLAN_TRAIN || (uint64_t)share->n_parts * s->part_rows > s->share_rows)
        return error_set(err, -EINVAL, "a share of %u parts was not planned for", share->n_parts);
    for (uint32_t i = 0; i < share->n_parts; i++)
        if (share->parts[i] >= w->batch / s->part_rows || (i > 0 && share->parts[i] <= share->parts[i - 1]))
            return error_set(err, -EINVAL, "part %u has no place in a share of %u rows", share->parts[i], w->batch);
    return 0;
}

int device_worker_step(struct device_worker *worker, const struct device_share *share, const struct device_link *link,
                       void *context, struct error *err)
{
    int rc = check_share(worker, share, err);

    if (rc != 0 || share->n_parts == 0)
        return rc;
    struct run run = {.worker = worker,
                      .link = link,
                      .context = context,
                      .err = err,
                      .parts = share->parts,
                      .n_runs = share->n_parts,
                      .run_rows = worker->plan.setting.part_rows,
                      .step = share->step,
                      .loss_scale = share->n_valid ? (float)(1.0 / (double)share->n_valid) : 0,
                      .train = true};
    device_weights_init(&run.weights, worker, link, context);
    run.weights.version = share->step;
    run.weights.backward = true;

    rc = load_rows(&run, share->ids, share->labels);
    if (rc == 0)
        rc = forward(&run);
    if (rc == 0)
        rc = tell_losses(&run);
    if (rc == 0)
        rc = backward(&run);
    return settle(&run, rc);
}

int device_worker_evaluate(struct device_worker *worker, const struct device_evaluation *evaluation,
                           const struct device_link *link, void *context, double *sum, struct error *err)
{
    const uint32_t most = worker->plan.setting.share_rows;
    int rc = 0;

    *sum = 0;
    if (worker->plan.setting.purpose == PLAN_GENERATE)
        return error_set(err, -EINVAL, "this worker was planned to generate, not to evaluate");
    if ((uint64_t)evaluation->first_row + evaluation->n_rows > worker->batch)
        return error_set(err, -EINVAL, "rows %u to %u to evaluate: a minibatch has %u", evaluation->first_row,
                         evaluation->first_row + evaluation->n_rows, worker->batch);
    for (uint32_t done = 0; rc == 0 && done < evaluation->n_rows; done += most) {
        struct run run = {.worker = worker,
                          .link = link,
                          .context = context,
                          .err = err,
                          .n_runs = 1,
                          .run_rows = evaluation->n_rows - done < most ? evaluation->n_rows - done : most,
                          .first_row = evaluation->first_row + done,
                          .step = evaluation->version};
        device_weights_init(&run.weights, worker, link, context);
        run.weights.version = evaluation->version;

        rc = load_rows(&run, evaluation->ids, evaluation->labels);
        if (rc == 0)
            rc = forward(&run);
        if (rc == 0)
            rc = add_losses(&run, 0, sum);
        rc = settle(&run, rc);
    }
    return rc;
}
