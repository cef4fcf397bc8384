/* A visit runs the layer of its home (proto/model/order.h), on the boundary values of its own place: what depends on
 * the layer is asked with the one, and what is moved with the other.
 *
 * What is due of other visits, slices that were made and a share of the next unit, is queued between a microbatch's
 * computation and the downloads of its tiles (overlap): slices behind these would wait for that computation. Every
 * way out waits for all queues (settle), unless the device is lost, as memory is borrowed until then. */
#include "proto/step/step.h"

#include "proto/step/layers.h"
#include "proto/step/boundaries.h"
#include "proto/step/pass.h"
#include "proto/plan/memory/chains.h"
#include "proto/plan/memory/units.h"

#include <assert.h>
#include <errno.h>

const struct layer_ops *const layer_table[] = {
    [MODEL_EMBEDDING] = &layer_embedding,
    [MODEL_BLOCK] = &layer_program,
    [MODEL_SINGLE] = &layer_program,
    [MODEL_HEAD] = &layer_head,
};

/* What a block keeps of its activations; NULL: nothing. */
static const struct plan_kept *kept_of(const struct plan *plan, const struct model_layer *layer)
{
    const struct plan_kept *kept = layer->kind == MODEL_BLOCK ? plan_kept_of(plan, layer) : NULL;

    return kept && kept->keeping != MODEL_KEEPS_NOTHING ? kept : NULL;
}

/* Their address for the microbatch that begins at `row` of a run; NULL if the block keeps none. An evaluation keeps
 * nothing: all its microbatches then share the place of the first. */
static void *step_kept_at(const struct device_pass *pass, const struct model_layer *layer, uint32_t run, uint32_t row)
{
    const struct plan *plan = &pass->worker->plan;
    const struct plan_kept *kept = kept_of(plan, layer);

    if (!kept)
        return NULL;
    return device_pass_address(pass,
                               kept->at + (layer->rank - kept->first) * kept->bytes +
                                   (pass->train ? run * kept->part + row / plan->choice.microbatch * kept->microbatch
                                                : 0));
}

/* What holds in every pass, training or not: also for generation, which has no boundaries and no shares. */
struct layer_pass layer_pass_of(const struct device_worker *worker, uint32_t visit)
{
    const struct model *model = &worker->model;
    const struct model_layer *layer = &model->layers[model->visit_layers[visit]];

    return (struct layer_pass){.ops = worker->ops,
                               .dev = worker->dev,
                               .model = model,
                               .layer = layer,
                               .program = layer->program,
                               .edges = &layer->edges,
                               .unit = &model->units[model->visits[visit]],
                               .workspace = (char *)worker->ops->arena(worker->dev) + worker->plan.workspace,
                               .setting = &worker->plan.setting,
                               .plan = &worker->plan};
}

/* What a visit may use for every microbatch, except boundaries. */
static struct layer_pass step_visit_of(const struct device_pass *pass, uint32_t visit)
{
    struct device_worker *w = pass->worker;
    const struct plan *plan = &w->plan;
    const struct model *model = &w->model;
    const uint32_t home = device_pass_home(pass, visit);
    const struct model_layer *layer = &model->layers[model->visit_layers[home]];
    const struct plan_kept *kept = kept_of(plan, layer);
    struct layer_pass p = layer_pass_of(w, home);

    /* The home's layer is run, but on the values of this visit's place. */
    p.edges = &model->layers[model->visit_layers[visit]].edges;
    p.bottom = home == layer->first_visit;
    p.top = home == layer->first_visit + layer->n_visits - 1;
    p.lowest = pass->train && model->visit_layers[visit] == model->visit_layers[pass->lowest];
    p.skipped = model_drop_has(pass->drop, model, home);
    p.keeping = kept ? kept->keeping : MODEL_KEEPS_NOTHING;
    p.seed = w->seed;
    p.step = pass->step;
    p.loss_scale = pass->loss_scale;
    p.dropout = pass->drops;
    p.smooths = pass->train;
    p.base = pass->base;
    return p;
}

/* What it may use for the microbatch that begins at `row` of the run. */
static void set_rows(const struct device_pass *pass, struct layer_pass *visit, uint32_t run, uint32_t row)
{
    const struct plan *plan = visit->plan;
    const size_t token = device_pass_token(pass, run, row), predicted = device_pass_predicted(pass, run, row);
    const size_t first = (size_t)run * pass->run_rows + row;
    const uint32_t n_labels = visit->model->config.n_labels;

    visit->ids = (const uint32_t *)device_pass_address(pass, plan->ids) + token;
    visit->labels = (const uint32_t *)device_pass_address(pass, plan->labels) + predicted;
    visit->positions =
        plan->setting.goal.packs ? (const uint32_t *)device_pass_address(pass, plan->positions) + token : NULL;
    visit->lengths = model_has_lengths(&visit->model->config)
                         ? (const uint32_t *)device_pass_address(pass, plan->lengths) + first
                         : NULL;
    visit->segments = model_has_segments(&visit->model->config)
                          ? (const uint32_t *)device_pass_address(pass, plan->segments) + token
                          : NULL;
    visit->row_logits = pass->row_logits ? (float *)device_pass_address(pass, plan->logits) + first * n_labels : NULL;
    visit->running = (float *)device_pass_address(pass, plan->running) + predicted * 3;
    visit->losses = (double *)device_pass_address(pass, plan->losses) + predicted;
    if (plan_has_pairs(&plan->setting.goal)) {
        visit->references = (const float *)device_pass_address(pass, plan->references) + first;
        visit->log_p = (double *)device_pass_address(pass, plan->log_p) + first;
    }
    if (plan_has_pairs(&plan->setting.goal) || pass->token_weights)
        visit->scales = (float *)device_pass_address(pass, plan->scales) + predicted;
    visit->kept = step_kept_at(pass, visit->layer, run, row);
    visit->n_rows = device_pass_rows(pass, row);
    visit->n_tokens = device_pass_tokens(pass, run, row);
    visit->first_row = device_pass_first_row(pass, run) + row;
    /* fresh: the part's sums are begun by its first microbatch. */
    visit->norms_row = row;
    visit->fresh = row == 0;
}

static bool is_dropped(const struct device_pass *pass, uint32_t visit)
{
    return model_drop_has(pass->drop, &pass->worker->model, device_pass_home(pass, visit));
}

static bool step_contributes(const struct device_pass *pass, uint32_t visit)
{
    return model_drop_trains(pass->drop, pass->frozen, &pass->worker->model, device_pass_home(pass, visit));
}

/* Sets the order of a step's blocks; how far backward goes: to the lowest layer that is trained in any step; and the
 * visits that contribute to this one, in the order of backward. Contributions are numbered by this order, which the
 * daemon knows, too. */
static void arrange_visits(struct device_pass *pass, const struct model_order *order)
{
    struct device_worker *w = pass->worker;
    uint32_t n = 0;

    model_order_homes(w->homes, order, &w->model);
    pass->weights.homes = w->homes;
    for (uint32_t visit = w->model.n_visits; visit-- > 0;) {
        if (model_contributes(&w->model, w->homes[visit]))
            pass->lowest = w->model.layers[w->model.visit_layers[visit]].first_visit;
        if (step_contributes(pass, visit))
            w->contributing[n++] = visit;
    }
    device_weights_end(&pass->weights, pass->lowest);
}

/* The place of the sum of contribution n, available to what is queued next; NULL if the visit makes none. */
static float *begin_contribution(const struct device_pass *pass, uint32_t visit, uint32_t n)
{
    if (!step_contributes(pass, visit))
        return NULL;
    assert(pass->worker->contributing[n / pass->n_runs] == visit);
    device_offers_begin(pass, n);
    return device_offers_sum(pass, n);
}

/* True if forward does all the work of this visit's layer, for all units at once, at its topmost visit. */
static bool in_one_pass(const struct device_pass *pass, uint32_t visit)
{
    return pass->train && pass->worker->plan.one_pass && visit >= plan_head(&pass->worker->model)->first_visit;
}

/* The head's units with the sums of their contributions to one part. */
static const struct layer_chunk *chunks_of(const struct device_pass *pass, uint32_t run,
                                           const struct device_weights_at *top)
{
    struct device_worker *w = pass->worker;
    const struct model_layer *head = plan_head(&w->model);

    for (uint32_t i = 0; i < head->n_visits; i++) {
        const uint32_t visit = head->first_visit + i, unit = w->model.visits[visit];
        const bool coded = w->model.units[unit].coded;
        const uint64_t apart =
            coded ? plan_decoded_at(&w->plan, &w->model, unit) : plan_resident(&w->plan, &w->model, unit);
        w->chunks[i] =
            (struct layer_chunk){.unit = &w->model.units[unit],
                                 .weights = w->plan.head_apart ? device_pass_address(pass, apart)
                                            : coded            ? top->decoded
                                                               : top->relayed,
                                 .contribution =
                                     begin_contribution(pass, visit,
                                                        (uint32_t)model_contribution_number(&w->model, visit, run,
                                                                                            pass->n_runs))};
    }
    return w->chunks;
}

/* For an evaluation, leaves out the step, which it does not belong to. */
static void record_forward(const struct device_pass *pass, uint64_t since, uint32_t visit, const char *what)
{
    const struct trace_arg args[] = {{"visit", visit},
                                     {"microbatches", pass->n_runs * device_pass_count_microbatches(pass)},
                                     {pass->train ? "step" : NULL, pass->step + 1},
                                     {NULL, 0}};

    device_pass_record(pass, since, what, visit, args);
}

/* The next place in the sequence of weights whose visit is not dropped. */
static uint32_t step_next_place(const struct device_pass *pass)
{
    const uint32_t end = pass->train ? pass->weights.end : pass->worker->model.n_visits;
    uint32_t place = pass->place + 1;

    while (place < end && is_dropped(pass, device_weights_visit(&pass->weights, place)))
        place++;
    return place;
}

/* Between a microbatch's computation and its download: uploads what comes next and sends what was made before. done:
 * microbatches of the run, including this one. A dropped visit has no time for either, nor have derived values.
 * Whatever is queued here is hidden behind the computation of this microbatch. */
static int step_overlap(struct device_pass *pass, uint32_t run, uint32_t done, enum device_direction direction)
{
    const uint32_t n = device_pass_count_microbatches(pass);
    const uint32_t left = direction == DEVICE_AGAIN ? 2 : n - done + 1; /* 2: no slot is waited for */
    int rc = 0;

    if (!device_pass_overlaps(pass) || direction == DEVICE_DERIVED ||
        is_dropped(pass, device_weights_visit(&pass->weights, pass->place)))
        return 0;
    rc = device_weights_ahead(&pass->weights, step_next_place(pass), run * n + done, pass->n_runs * n);
    return rc || direction == DEVICE_FORWARD ? rc : device_offers_go_on(pass, left);
}

/* Runs what finishes a layer, over all rows of a run: what their microbatches left, joined. */
static void finish_run(struct device_pass *pass, const struct layer_pass *visit, uint32_t run, bool is_backward)
{
    const struct layer_ops *layer = pass->worker->layers[visit->layer->kind];
    struct layer_pass finish = *visit;

    if (!visit->program || !visit->program->finish)
        return;
    finish.program = visit->program->finish;
    finish.edges = &visit->layer->finish;
    finish.keeping = MODEL_KEEPS_NOTHING;
    finish.kept = NULL;
    /* A finish has no tensors of its own, so it keeps and contributes nothing. */
    finish.contribution = finish.norms_out = NULL;
    finish.norms = NULL;
    finish.lowest = false;
    finish.fresh = true;
    finish.n_rows = pass->run_rows;
    finish.n_tokens = pass->n_tokens;
    device_boundaries_finish(pass, &finish, run, is_backward);
    (is_backward ? layer->backward : layer->forward)(&finish);
}

/* Runs every microbatch of one run. contribution: NULL forward, and if the unit is frozen. */
static int visit_run(struct device_pass *pass, uint32_t visit, uint32_t run, enum device_direction direction,
                     const struct device_weights_at *weights, const struct layer_chunk *chunks, float *contribution)
{
    const bool is_backward = direction == DEVICE_BACKWARD;
    struct layer_pass v = step_visit_of(pass, visit);
    const struct layer_ops *layer = v.skipped ? &layer_dropped : pass->worker->layers[v.layer->kind];
    struct device_moves moves;
    uint32_t done = 0;
    int rc = 0;

    v.weights = weights->relayed;
    v.decoded = weights->decoded;
    v.chunks = chunks;
    v.contribution = contribution;
    v.dense = device_pass_address(pass, pass->worker->plan.dense);
    device_norms_set(&v, pass, run, contribution);
    device_boundaries_begin(&moves, pass, &v, run, is_backward);
    if (is_backward)
        finish_run(pass, &v, run, true);
    for (uint32_t row = 0; rc == 0 && row < pass->run_rows; row += device_pass_rows(pass, row)) {
        set_rows(pass, &v, run, row);
        device_boundaries_enter(pass, &moves, &v, row);
        (is_backward ? layer->backward : layer->forward)(&v);
        rc = step_overlap(pass, run, ++done, direction);
        device_boundaries_leave(pass, &moves, &v, row);
    }
    if (direction == DEVICE_FORWARD)
        finish_run(pass, &v, run, false);
    return rc;
}

/* Copies the unit of a layer whose result will be derived again, in the device's type. */
static void step_copy_unit(const struct device_pass *pass, uint32_t visit, const struct device_weights_at *weights)
{
    const struct device_worker *w = pass->worker;
    const struct model_layer *layer = &w->model.layers[w->model.visit_layers[visit]];
    const struct device_dropout_add copy = {.n_rows = 1,
                                            .n_tokens = 1,
                                            .n = w->model.units[w->model.visits[visit]].n,
                                            .h = weights->relayed,
                                            .y =
                                                device_pass_address(pass, plan_chain_unit(&w->plan, &w->model, layer))};

    if (pass->train && plan_is_copied(&w->plan, &w->model, layer))
        w->ops->dropout_add(w->dev, &copy);
}

/* A head in one pass runs at its last visit, for all its units: those before only bring their weights. */
static int step_forward(struct device_pass *pass)
{
    struct device_worker *w = pass->worker;
    const uint32_t n = w->model.n_visits;
    int rc = 0;

    for (uint32_t visit = 0; rc == 0 && visit < n; visit++) {
        struct device_weights_at weights;
        pass->place = visit;
        rc = device_weights_next(&pass->weights, visit, &weights);
        if (rc != 0 || (in_one_pass(pass, visit) && visit + 1 < n))
            continue;
        const uint64_t since = trace_begin(w->trace);
        step_copy_unit(pass, visit, &weights);
        device_norms_next(pass, visit);
        for (uint32_t run = 0; rc == 0 && run < pass->n_runs; run++)
            rc = visit_run(pass, visit, run, DEVICE_FORWARD, &weights,
                           in_one_pass(pass, visit) ? chunks_of(pass, run, &weights) : NULL, NULL);
        device_norms_leave(pass, visit);
        record_forward(pass, since, visit, "forward");
    }
    if (pass->train)
        device_offers_made_apart(pass);
    pass->forward = w->ops->mark(w->dev, DEVICE_COMPUTE);
    return rc;
}

static int backward_run(struct device_pass *pass, uint32_t visit, uint32_t run, const struct device_weights_at *weights)
{
    const uint64_t since = trace_begin(pass->worker->trace);
    const int rc = visit_run(pass, visit, run, DEVICE_BACKWARD, weights, NULL,
                             begin_contribution(pass, visit, pass->offers.n_made));

    device_pass_record(pass, since, "backward", visit,
                       (struct trace_arg[]){{"visit", visit},
                                            {"microbatches", device_pass_count_microbatches(pass)},
                                            {"step", pass->step + 1},
                                            {"part", pass->parts[run]},
                                            {NULL, 0}});
    return rc;
}

/* Fills in what a layer wrote in forward once more. What finishes the layer was done then. */
static int compute_again(struct device_pass *pass, uint32_t visit, enum device_direction direction,
                         const struct device_weights_at *weights)
{
    const uint64_t since = trace_begin(pass->worker->trace);
    int rc = 0;

    for (uint32_t run = 0; rc == 0 && run < pass->n_runs; run++)
        rc = visit_run(pass, visit, run, direction, weights, NULL, NULL);
    record_forward(pass, since, visit, "forward again");
    return rc;
}

/* Before the backward of the topmost layer that reads values of a chain: all of these, upwards, as each is derived of
 * the one before. */
static int derive_chain(struct device_pass *pass, uint32_t visit)
{
    const struct device_worker *w = pass->worker;
    const struct model *model = &w->model;
    int rc = 0;

    for (uint32_t c = 0; w->plan.choice.derives && c < model->values.n_chains; c++) {
        const struct model_chain *chain = &model->values.chains[c];
        for (uint32_t i = 0; rc == 0 && chain->topmost == model->visit_layers[visit] && i < chain->n; i++) {
            const struct model_layer *layer = plan_chain_layer(model, chain, i);
            const struct device_weights_at unit = {
                .relayed = device_pass_address(pass, plan_chain_unit(&w->plan, model, layer))};
            rc = compute_again(pass, layer->first_visit, DEVICE_DERIVED, &unit);
        }
    }
    return rc;
}

static int backward_runs(struct device_pass *pass, uint32_t visit, const struct device_weights_at *weights)
{
    int rc = derive_chain(pass, visit);

    for (uint32_t run = 0; rc == 0 && run < pass->n_runs; run++) {
        if (!in_one_pass(pass, visit))
            rc = backward_run(pass, visit, run, weights);
        if (rc == 0 && step_contributes(pass, visit))
            rc = device_offers_made(pass);
    }
    return rc;
}

/* Places behind forward: visits downwards, with those before them that are computed again (proto/step/weights.c). */
static int step_backward(struct device_pass *pass)
{
    int rc = 0;

    for (uint32_t place = pass->worker->model.n_visits; rc == 0 && place < pass->weights.end; place++) {
        const uint32_t visit = device_weights_visit(&pass->weights, place);
        const enum device_direction direction = device_weights_direction(&pass->weights, place);
        struct device_weights_at weights;
        pass->place = place;
        rc = device_weights_next(&pass->weights, place, &weights);
        device_norms_next(pass, place);
        if (rc == 0)
            rc = direction == DEVICE_AGAIN ? compute_again(pass, visit, direction, &weights)
                                           : backward_runs(pass, visit, &weights);
        device_norms_leave(pass, place);
    }
    return rc ? rc : device_offers_finish(pass);
}

/* Waits until the device no longer uses anything borrowed, however the step ended. */
static int step_settle(const struct device_pass *pass, int rc)
{
    const struct device_worker *w = pass->worker;

    return rc != -EIO && w->ops->sync(w->dev) != 0 ? w->ops->fault(w->dev, pass->err) : rc;
}

static int step_check_rows(const struct device_worker *w, const struct device_rows *rows, struct error *err)
{
    const uint32_t seq = w->plan.setting.goal.seq, least = w->model.least_tokens > 1 ? w->model.least_tokens : 1;

    if (rows->n_tokens < least || rows->n_tokens > seq)
        return error_set(err, -EINVAL, "rows of %u tokens: the plan has rows of %u to %u", rows->n_tokens, least, seq);
    assert(rows->rows || !model_has_lengths(&w->model.config));
    return 0;
}

/* The share comes from the daemon, by messages; what it would index here is judged first. */
static int check_share(const struct device_worker *w, const struct device_share *share, struct error *err)
{
    const struct plan_setting *s = &w->plan.setting;

    if (s->goal.purpose != PLAN_TRAIN || share->n_parts > w->plan.share_parts)
        return error_set(err, -EINVAL, "a share of %u parts was not planned for", share->n_parts);
    for (uint32_t i = 0; i < share->n_parts; i++)
        if (share->parts[i] >= s->goal.batch / s->part_rows || (i > 0 && share->parts[i] <= share->parts[i - 1]))
            return error_set(err, -EINVAL, "part %u has no place in a share of %u rows", share->parts[i],
                             s->goal.batch);
    if (share->drop && !model_drop_is_empty(share->drop) &&
        (!plan_may_drop(&s->goal) || model_drop_exceeds(share->drop, w->model.config.n_layers)))
        return error_set(err, -EINVAL, "blocks are dropped that this model must keep, or does not have");
    if (share->frozen && !model_drop_is_empty(share->frozen) &&
        (!s->goal.chooses || model_drop_exceeds(share->frozen, w->model.config.n_layers)))
        return error_set(err, -EINVAL, "blocks are frozen that this model must train, or does not have");
    if (share->order && share->order->n > 0 &&
        (!s->goal.chooses || !model_order_is_valid(share->order, share->drop, &w->model)))
        return error_set(err, -EINVAL, "blocks in an order that this model cannot have");
    return step_check_rows(w, &share->rows, err);
}

/* n of the share's parts, from this one on: a row group. */
static int step_group(struct device_worker *worker, const struct device_share *share, uint32_t first, uint32_t n,
                      const struct device_link *link, void *context, struct error *err)
{
    const float scale = share->loss_scale > 0 ? share->loss_scale : 1;
    struct device_pass pass = {.worker = worker,
                               .link = link,
                               .context = context,
                               .err = err,
                               .arena = worker->ops->arena(worker->dev),
                               .parts = share->parts + first,
                               .n_runs = n,
                               .run_rows = worker->plan.setting.part_rows,
                               .n_tokens = share->rows.n_tokens,
                               .step = share->step,
                               .n_pairs = share->n_valid,
                               /* By the labels of the whole minibatch, which the daemon has counted: no worker's share
                                * changes the scale. */
                               .loss_scale = share->n_valid ? scale / (float)share->n_valid : 0,
                               .train = true,
                               .drops = true,
                               .norms = share->rows.norms,
                               .token_weights = worker->plan.setting.goal.weighted ? share->rows.weights : NULL,
                               .drop = share->drop,
                               .frozen = share->frozen};
    device_weights_init(&pass.weights, worker, link, context);
    pass.weights.version = share->step;
    pass.weights.backward = true;
    pass.weights.drop = share->drop;
    arrange_visits(&pass, share->order);

    int rc = device_pass_load_rows(&pass, &share->rows);
    if (rc == 0)
        rc = step_forward(&pass);
    /* Where nothing overlaps, losses are ready now, and others may wait for them. Else they are told during
     * backward. */
    if (rc == 0 && !device_pass_overlaps(&pass))
        rc = device_pass_tell_losses(&pass);
    if (rc == 0)
        rc = step_backward(&pass);
    return step_settle(&pass, rc);
}

/* How many parts, from this one of the share on, pass the model together. By the plan's room; with row groups, by
 * parts that follow each other. */
static uint32_t count_group(const struct device_worker *worker, const struct device_share *share, uint32_t first)
{
    const uint32_t most = worker->plan.setting.share_rows / worker->plan.setting.part_rows;
    uint32_t n = 1;

    while (n < most && first + n < share->n_parts &&
           (!share->groups || share->parts[first + n] == share->parts[first + n - 1] + 1))
        n++;
    return n;
}

int device_worker_step(struct device_worker *worker, const struct device_share *share, const struct device_link *link,
                       void *context, struct error *err)
{
    int rc = check_share(worker, share, err);

    for (uint32_t first = 0, n = 0; rc == 0 && first < share->n_parts; first += n) {
        n = count_group(worker, share, first);
        rc = step_group(worker, share, first, n, link, context, err);
    }
    return rc;
}

/* Into the minibatch's logits. They have arrived once the pass has settled. */
static void download_logits(const struct device_pass *pass, float *logits)
{
    const struct device_worker *w = pass->worker;
    const size_t n = w->model.config.n_labels;

    w->ops->follow(w->dev, DEVICE_PUSH, DEVICE_COMPUTE, pass->forward);
    w->ops->download(w->dev, logits + pass->first_row * n, device_pass_address(pass, w->plan.logits),
                     pass->run_rows * n * sizeof *logits);
}

int device_worker_evaluate(struct device_worker *worker, const struct device_evaluation *evaluation,
                           const struct device_link *link, void *context, double *sum, struct error *err)
{
    const struct plan_setting *s = &worker->plan.setting;
    /* What finishes a layer joins the rows of a run (batch norm's moments), and there is room for a part's. */
    const uint32_t most = worker->model.n_finishes ? s->part_rows : s->share_rows, batch = s->goal.batch;
    int rc = 0;

    *sum = 0;
    if (s->goal.purpose == PLAN_GENERATE)
        return error_set(err, -EINVAL, "this worker was planned to generate, not to evaluate");
    if ((uint64_t)evaluation->first_row + evaluation->n_rows > batch)
        return error_set(err, -EINVAL, "rows %u to %u to evaluate: a minibatch has %u", evaluation->first_row,
                         evaluation->first_row + evaluation->n_rows, batch);
    assert(!evaluation->logits || plan_data_of(&s->goal, worker->model.config.n_labels).outputs);
    if ((evaluation->first_row | evaluation->n_rows) % plan_whole_rows(&s->goal))
        return error_set(err, -EINVAL, "%u rows to evaluate from row %u on: half a pair of texts", evaluation->n_rows,
                         evaluation->first_row);
    rc = step_check_rows(worker, &evaluation->rows, err);
    for (uint32_t done = 0; rc == 0 && done < evaluation->n_rows; done += most) {
        struct device_pass pass = {.worker = worker,
                                   .link = link,
                                   .context = context,
                                   .err = err,
                                   .arena = worker->ops->arena(worker->dev),
                                   .n_runs = 1,
                                   .run_rows = evaluation->n_rows - done < most ? evaluation->n_rows - done : most,
                                   .first_row = evaluation->first_row + done,
                                   .n_tokens = evaluation->rows.n_tokens,
                                   .row_logits = evaluation->logits && worker->model.config.n_labels,
                                   .drops = evaluation->drops,
                                   .base = evaluation->base,
                                   .step = evaluation->step};
        device_weights_init(&pass.weights, worker, link, context);
        pass.weights.version = evaluation->version;

        rc = device_pass_load_rows(&pass, &evaluation->rows);
        if (rc == 0)
            rc = step_forward(&pass);
        if (rc == 0)
            rc = device_pass_add_losses(&pass, 0, sum, &(struct preference_rewards){0});
        if (rc == 0 && pass.row_logits)
            download_logits(&pass, evaluation->logits);
        if (rc == 0 && evaluation->logits && plan_has_pairs(&s->goal))
            rc = device_pass_take_log_p(&pass, evaluation->logits + pass.first_row);
        if (rc == 0 && evaluation->logits && s->goal.weighted)
            rc = device_pass_take_token_log_p(&pass, evaluation->logits + (size_t)pass.first_row * s->goal.seq);
        rc = step_settle(&pass, rc);
    }
    return rc;
}
