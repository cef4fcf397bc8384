#include "device/step.h"

#include "device/boundaries.h"
#include "device/layers/layers.h"
#include "device/pass.h"
#include "plan/units.h"

#include <assert.h>
#include <errno.h>
#include <math.h>

static void record(const struct device_pass *pass, uint64_t since, const char *what, uint32_t visit,
                   const struct trace_arg *args)
{
    char name[MODEL_NAME_BYTES];

    if (pass->worker->trace)
        trace_end(pass->worker->trace, since, what, model_visit_name(name, &pass->worker->model, visit), args);
}

static uint32_t microbatch_at(const struct device_pass *pass, uint32_t row)
{
    const uint32_t most = pass->worker->plan.choice.microbatch;

    return pass->run_rows - row < most ? pass->run_rows - row : most;
}

static uint32_t count_microbatches(const struct device_pass *pass)
{
    const uint32_t most = pass->worker->plan.choice.microbatch;

    return (pass->run_rows + most - 1) / most;
}

/* Where a block that keeps its internals has them of the microbatch from `row` of a run on; NULL for others. In an
 * evaluation, which keeps nothing, they all pass through one place. */
static void *kept_of(const struct device_pass *pass, const struct model_layer *layer, uint32_t run, uint32_t row)
{
    const struct plan *plan = &pass->worker->plan;
    const uint32_t first = pass->worker->model.config.n_layers - plan->choice.n_kept;
    const uint64_t microbatch = row / plan->choice.microbatch * plan->kept_microbatch;

    if (layer->kind != MODEL_BLOCK || layer->index < first)
        return NULL;
    return device_pass_address(pass, plan->kept + (layer->index - first) * plan->kept_bytes +
                                         (pass->train ? run * plan->kept_part + microbatch : 0));
}

/* What a visit may touch for the microbatch from `row` of a run on, but weights and boundaries. */
static struct layer_pass visit_of(const struct device_pass *pass, uint32_t visit, uint32_t run, uint32_t row)
{
    struct device_worker *w = pass->worker;
    const struct plan *plan = &w->plan;
    const struct model *model = &w->model;
    const struct model_layer *layer = &model->layers[model->visit_layers[visit]];
    const size_t token = device_pass_token(pass, run, row);

    return (struct layer_pass){.ops = w->ops,
                               .dev = w->dev,
                               .model = model,
                               .layer = layer,
                               .unit = &model->units[model->visits[visit]],
                               .bottom = visit == layer->first_visit,
                               .top = visit == layer->first_visit + layer->n_visits - 1,
                               .ids = (const uint32_t *)device_pass_address(pass, plan->ids) + token,
                               .labels = (const uint32_t *)device_pass_address(pass, plan->labels) + token,
                               .running = (float *)device_pass_address(pass, plan->running) + token * 3,
                               .losses = (double *)device_pass_address(pass, plan->losses) + token,
                               .workspace = device_pass_address(pass, plan->workspace),
                               .kept = kept_of(pass, layer, run, row),
                               .n_rows = microbatch_at(pass, row),
                               .n_tokens = plan->setting.seq,
                               .first_row = device_pass_first_row(pass, run) + row,
                               .seed = w->seed,
                               .step = pass->step,
                               .loss_scale = pass->loss_scale,
                               .dropout = pass->train,
                               .setting = &plan->setting};
}

/* The sum of a visit's contribution to one part of the share. */
static float *contribution_of(const struct device_pass *pass, uint32_t visit, uint32_t run)
{
    const struct plan *plan = &pass->worker->plan;
    const struct model *model = &pass->worker->model;
    const struct model_layer *head = plan_head(model);

    if (!plan->head_apart || visit < head->first_visit)
        return device_pass_address(pass, plan->contribution);
    const uint64_t each = plan_align(model->units[model->visits[head->first_visit]].n * sizeof(float));
    return device_pass_address(pass, plan->head + run * plan->head_bytes + (visit - head->first_visit) * each);
}

/* Whether forward does all the work of this visit's layer, all units at once, at its topmost visit. */
static bool in_one_pass(const struct device_pass *pass, uint32_t visit)
{
    return pass->train && pass->worker->plan.one_pass && visit >= plan_head(&pass->worker->model)->first_visit;
}

/* The head's units with the sums of their contributions to one part, from nothing. */
static const struct layer_chunk *chunks_of(const struct device_pass *pass, uint32_t run, const void *weights)
{
    struct device_worker *w = pass->worker;
    const struct model_layer *head = plan_head(&w->model);

    for (uint32_t i = 0; i < head->n_visits; i++) {
        const uint32_t unit = w->model.visits[head->first_visit + i];
        w->chunks[i] =
            (struct layer_chunk){.unit = &w->model.units[unit],
                                 .weights = w->plan.head_apart
                                                ? device_pass_address(pass, plan_resident(&w->plan, &w->model, unit))
                                                : weights,
                                 .contribution = contribution_of(pass, head->first_visit + i, run)};
        w->ops->zero(w->dev, w->chunks[i].contribution, w->chunks[i].unit->n);
    }
    return w->chunks;
}

/* Of an evaluation without the step, which it is not a part of. */
static void record_forward(const struct device_pass *pass, uint64_t since, uint32_t visit)
{
    const struct trace_arg args[] = {{"visit", visit},
                                     {"microbatches", pass->n_runs * count_microbatches(pass)},
                                     {pass->train ? "step" : NULL, pass->step + 1},
                                     {NULL, 0}};

    record(pass, since, "forward", visit, args);
}

/* Every microbatch of one run: forward, or, with a sum of contributions, backward. */
static void visit_run(const struct device_pass *pass, uint32_t visit, uint32_t run, const void *weights,
                      const struct layer_chunk *chunks, float *contribution)
{
    const bool is_backward = contribution != NULL;

    for (uint32_t row = 0; row < pass->run_rows; row += microbatch_at(pass, row)) {
        const size_t token = device_pass_token(pass, run, row);
        struct layer_pass v = visit_of(pass, visit, run, row);
        const struct layer_ops *layer = layer_table[v.layer->kind];
        v.weights = weights;
        v.chunks = chunks;
        v.contribution = contribution;
        device_boundaries_enter(pass, &v, token, is_backward);
        (is_backward ? layer->backward : layer->forward)(&v);
        device_boundaries_leave(pass, &v, token, is_backward);
    }
}

static int forward(struct device_pass *pass)
{
    const uint32_t n = pass->worker->model.n_visits;

    for (uint32_t visit = 0; visit < n; visit++) {
        const void *weights;
        int rc = device_weights_next(&pass->weights, visit, &weights);
        if (rc != 0)
            return rc;
        if (in_one_pass(pass, visit) && visit + 1 < n)
            continue;
        const uint64_t since = trace_begin(pass->worker->trace);
        for (uint32_t run = 0; run < pass->n_runs; run++)
            visit_run(pass, visit, run, weights, in_one_pass(pass, visit) ? chunks_of(pass, run, weights) : NULL, NULL);
        record_forward(pass, since, visit);
    }
    return 0;
}

static int tell_losses(struct device_pass *pass)
{
    int rc = 0;

    for (uint32_t i = 0; rc == 0 && i < pass->n_runs; i++) {
        double sum = 0;
        rc = device_pass_add_losses(pass, i, &sum);
        if (rc == 0)
            rc = pass->link->loss(pass->context, pass->parts[i], sum, isfinite(sum));
    }
    return rc;
}

enum { CHUNK = 4096 }; /* floats that pass by way of the stack at a time */

/* n floats of the device into a slot, rounded where contributions are bf16. */
static int fill_slot(struct device_worker *w, void *slot, const float *from, uint64_t n)
{
    float chunk[CHUNK];
    int rc = 0;

    if (w->grad == NUMBER_FP32) {
        w->ops->download(w->dev, slot, from, n * sizeof *from);
        return w->ops->sync(w->dev);
    }
    for (uint64_t at = 0; rc == 0 && at < n; at += CHUNK) {
        const uint64_t here = n - at < CHUNK ? n - at : CHUNK;
        w->ops->download(w->dev, chunk, from + at, here * sizeof *chunk);
        rc = w->ops->sync(w->dev);
        for (uint64_t i = 0; i < here; i++)
            ((uint16_t *)slot)[at + i] = number_to_bf16(chunk[i]);
    }
    return rc;
}

/* The contribution, slice by slice. */
static int offer(struct device_pass *pass, uint32_t visit, uint32_t run)
{
    struct device_worker *w = pass->worker;
    const struct model_unit *unit = &w->model.units[w->model.visits[visit]];
    const float *contribution = contribution_of(pass, visit, run);
    const uint32_t part = pass->parts[run];

    for (uint32_t slice = 0; slice < unit->n_slices; slice++) {
        const uint64_t first = (uint64_t)slice * MODEL_SLICE;
        const uint64_t n = unit->n - first < MODEL_SLICE ? unit->n - first : MODEL_SLICE;
        void *slot;
        int rc = pass->link->wait_slot(pass->context, visit, part, slice, &slot);
        if (rc != 0)
            return rc;
        const uint64_t since = trace_begin(w->trace);
        rc = fill_slot(w, slot, contribution + first, n);
        record(pass, since, "download", visit,
               (struct trace_arg[]){{"visit", visit},
                                    {"step", pass->step + 1},
                                    {"part", part},
                                    {"slice", slice},
                                    {"bytes", n * number_bytes(w->grad)},
                                    {NULL, 0}});
        if (rc == 0)
            rc = pass->link->contribute(pass->context, visit, part, slice);
        if (rc != 0)
            return rc;
    }
    return pass->link->contributed(pass->context, visit, part);
}

static void backward_run(struct device_pass *pass, uint32_t visit, uint32_t run, const void *weights)
{
    struct device_worker *w = pass->worker;
    float *contribution = contribution_of(pass, visit, run);
    const uint64_t since = trace_begin(w->trace);

    w->ops->zero(w->dev, contribution, w->model.units[w->model.visits[visit]].n);
    visit_run(pass, visit, run, weights, NULL, contribution);
    record(pass, since, "backward", visit,
           (struct trace_arg[]){{"visit", visit},
                                {"microbatches", count_microbatches(pass)},
                                {"step", pass->step + 1},
                                {"part", pass->parts[run]},
                                {NULL, 0}});
}

static int backward(struct device_pass *pass)
{
    const uint32_t n = pass->worker->model.n_visits;

    for (uint32_t place = n; place < 2 * n; place++) {
        const uint32_t visit = device_weights_visit(&pass->weights, place);
        const void *weights;
        int rc = device_weights_next(&pass->weights, place, &weights);
        for (uint32_t run = 0; rc == 0 && run < pass->n_runs; run++) {
            if (!in_one_pass(pass, visit))
                backward_run(pass, visit, run, weights);
            rc = offer(pass, visit, run);
        }
        if (rc != 0)
            return rc;
    }
    return 0;
}

/* Nothing borrowed is in use by the device any more when a step has returned. */
static int settle(const struct device_pass *pass, int rc)
{
    int synced = pass->worker->ops->sync(pass->worker->dev);

    if (synced != 0)
        return pass->worker->ops->fault(pass->worker->dev, pass->err);
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
    struct device_pass pass = {.worker = worker,
                               .link = link,
                               .context = context,
                               .err = err,
                               .parts = share->parts,
                               .n_runs = share->n_parts,
                               .run_rows = worker->plan.setting.part_rows,
                               .step = share->step,
                               .loss_scale = share->n_valid ? (float)(1.0 / (double)share->n_valid) : 0,
                               .train = true};
    device_weights_init(&pass.weights, worker, link, context);
    pass.weights.version = share->step;
    pass.weights.backward = true;

    rc = device_pass_load_rows(&pass, share->ids, share->labels);
    if (rc == 0)
        rc = forward(&pass);
    if (rc == 0)
        rc = tell_losses(&pass);
    if (rc == 0)
        rc = backward(&pass);
    return settle(&pass, rc);
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
        struct device_pass pass = {.worker = worker,
                                   .link = link,
                                   .context = context,
                                   .err = err,
                                   .n_runs = 1,
                                   .run_rows = evaluation->n_rows - done < most ? evaluation->n_rows - done : most,
                                   .first_row = evaluation->first_row + done,
                                   .step = evaluation->version};
        device_weights_init(&pass.weights, worker, link, context);
        pass.weights.version = evaluation->version;

        rc = device_pass_load_rows(&pass, evaluation->ids, evaluation->labels);
        if (rc == 0)
            rc = forward(&pass);
        if (rc == 0)
            rc = device_pass_add_losses(&pass, 0, sum);
        rc = settle(&pass, rc);
    }
    return rc;
}
