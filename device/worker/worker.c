/* A worker's life outside its steps, which are in proto/step/step.c. */
#include "proto/step/layers.h"
#include "proto/step/step.h"
#include "proto/plan/memory/data.h"
#include "proto/plan/memory/units.h"

#include <assert.h>
#include <stdlib.h>

static void enter_ledger(struct device_worker *worker)
{
    for (int c = 0; c < LEDGER_CATEGORIES; c++)
        ledger_add(worker->ledger, (enum ledger_category)c, worker->plan.bytes[c]);
}

static void leave_ledger(struct device_worker *worker)
{
    for (int c = 0; c < LEDGER_CATEGORIES; c++)
        ledger_sub(worker->ledger, (enum ledger_category)c, worker->plan.bytes[c]);
}

static int worker_allocate(struct device_worker *w, struct error *err)
{
    w->tables = calloc((size_t)model_table_visits(&w->model) + 1, sizeof *w->tables);
    w->chunks = calloc(plan_head(&w->model)->n_visits, sizeof *w->chunks);
    w->contributing = calloc(w->model.n_trained_visits, sizeof *w->contributing);
    w->homes = calloc(w->model.n_visits, sizeof *w->homes);
    if (w->plan.choice.host_stash)
        w->stashed = calloc(w->plan.setting.share_rows, sizeof *w->stashed);
    w->row_tokens = calloc(w->plan.setting.share_rows, sizeof *w->row_tokens);
    w->staying = calloc(w->model.n_units, sizeof *w->staying);
    return w->tables && w->chunks && w->contributing && w->homes && w->row_tokens && w->staying &&
                   (w->stashed || !w->plan.choice.host_stash)
               ? 0
               : error_memory(err);
}

/* Of a block, for the largest microbatch, as one of its class that keeps the least. */
static struct layer_pass worker_pass_of(const struct device_worker *w, const struct model_layer *layer)
{
    const struct plan *plan = &w->plan;
    const struct plan_kept *kept = plan_kept_of(plan, model_ranked(&w->model, model_class_of(layer), 0));
    char *arena = w->ops->arena(w->dev);

    struct layer_pass p = layer_pass_of(w, layer->first_visit);

    p.kept = kept->keeping ? arena + kept->at : NULL;
    p.keeping = kept->keeping;
    p.n_rows = plan->choice.microbatch;
    p.n_tokens = plan->setting.goal.seq;
    p.lengths = model_has_lengths(&w->model.config) ? (uint32_t *)(arena + plan->lengths) : NULL;
    p.positions = plan->setting.goal.packs ? (uint32_t *)(arena + plan->positions) : NULL;
    p.dropout = plan->setting.goal.purpose == PLAN_TRAIN;
    return p;
}

/* Of all shapes that the blocks have. */
static void worker_prepare_attention(struct device_worker *w)
{
    const struct model_layer *const first = &w->model.layers[w->model.first_block];
    struct device_attention ops[LAYER_ATTENTIONS];
    enum plan_attention ways[LAYER_ATTENTIONS];
    size_t n = 0;

    if (w->plan.setting.goal.purpose == PLAN_GENERATE || plan_cuts_rows(&w->plan.setting, &w->model))
        return; /* generation has attention of its own */
    for (const struct model_layer *layer = first; layer < first + w->model.n_block_layers; layer++) {
        const struct layer_pass pass = worker_pass_of(w, layer);
        n = layer_attentions(ops, ways, n, &pass, w->plan.setting.goal.purpose == PLAN_TRAIN);
    }
    if (n > 0)
        w->ops->prepare_attention(w->dev, ops, ways, n, w->attention);
}

/* Gives the call arrays at the arena's begin, which has room for all that a pass has at a time. */
static void place_arrays(const struct device_worker *w, struct device_conv2d *call)
{
    const size_t bytes = number_bytes(w->plan.setting.goal.precision);
    char *const x = w->ops->arena(w->dev);
    char *const y = x + plan_align(call->n_rows * call->height * call->width * call->n_in * bytes);
    char *const weight = y + plan_align(device_conv2d_pixels(call) * call->n_out * bytes);
    const size_t weight_bytes = call->weight_gradient ? sizeof(float) : bytes;

    assert((uint64_t)(weight - x) + call->n_out * device_conv2d_taps(call) * weight_bytes <= w->plan.arena_bytes);
    if (call->weight_gradient)
        call->weight_gradient = (float *)(void *)weight;
    call->x = call->x ? x : NULL, call->x_gradient = call->x_gradient ? x : NULL;
    call->y = call->y ? y : NULL, call->y_gradient = call->y_gradient ? y : NULL;
    call->weight = call->weight ? weight : NULL;
}

/* For the rows of a pass: a microbatch's, or those with which a part ends. */
static int prepare_convolutions(struct device_worker *w, struct error *err)
{
    const struct plan *plan = &w->plan;
    const bool trains = plan->setting.goal.purpose == PLAN_TRAIN;
    const uint32_t microbatch = plan->choice.microbatch, seq = plan->setting.goal.seq;
    const struct plan_shape passes[] = {{microbatch, seq}, {plan->setting.part_rows % microbatch, seq}};
    const size_t n = layer_convolutions(NULL, &w->model, passes[0], trains, NULL);
    struct device_conv2d *all;
    size_t n_all = 0;

    if (n == 0)
        return 0;
    all = calloc(2 * n, sizeof *all);
    if (!all)
        return error_memory(err);
    for (int i = 0; i < 2; i++)
        if (passes[i].n_rows > 0)
            n_all += layer_convolutions(all + n_all, &w->model, passes[i], trains, w->ops->arena(w->dev));
    for (size_t i = 0; i < n_all; i++)
        place_arrays(w, &all[i]);
    w->ops->prepare_conv2d(w->dev, all, n_all, plan->setting.convolution, w->convolutions);
    free(all);
    return 0;
}

int device_worker_lay_out(struct device_worker *worker, const struct device_worker_options *options,
                          struct ledger *ledger, struct error *err)
{
    const struct plan_setting *setting = &options->setting;

    device_check(options->ops);
    *worker =
        (struct device_worker){.ops = options->ops, .layers = layer_table, .seed = options->seed, .ledger = ledger};
    int rc = model_init(&worker->model, &options->config, err);
    if (rc == 0)
        rc = model_freeze(&worker->model, options->freeze, model_base_of(setting->goal.base, setting->goal.precision),
                          err);
    if (rc == 0)
        plan_approximate(&worker->model, &setting->goal);
    if (rc == 0)
        rc = model_drop_prepare(&worker->model, setting->goal.drop_layers, err);
    if (rc == 0)
        rc = plan_check(&worker->model, setting, err);
    if (rc == 0)
        rc = plan_check_choice(&worker->model, setting, &options->choice, err);
    if (rc == 0)
        plan_lay_out(&worker->plan, &worker->model, setting, &options->choice);
    else
        device_worker_free(worker);
    return rc;
}

int device_worker_claim(struct device_worker *worker, const struct device_worker_options *options, struct error *err)
{
    int rc = worker_allocate(worker, err);

    if (rc == 0)
        rc = options->ops->open(&worker->dev, options->index, worker->plan.setting.goal.precision,
                                worker->plan.arena_bytes, worker->plan.setting.n_threads, err);
    if (rc == 0) {
        if (options->done)
            options->ops->count(worker->dev, options->done);
        worker_prepare_attention(worker);
        enter_ledger(worker);
        rc = prepare_convolutions(worker, err);
    }
    if (rc)
        device_worker_free(worker);
    return rc;
}

int device_worker_init(struct device_worker *worker, const struct device_worker_options *options, struct ledger *ledger,
                       struct error *err)
{
    const int rc = device_worker_lay_out(worker, options, ledger, err);

    return rc ? rc : device_worker_claim(worker, options, err);
}

void device_worker_free(struct device_worker *worker)
{
    if (worker->dev) {
        leave_ledger(worker);
        worker->ops->close(worker->dev);
    }
    free(worker->tables);
    free(worker->chunks);
    free(worker->contributing);
    free(worker->homes);
    free(worker->stashed);
    free(worker->row_tokens);
    free(worker->staying);
    model_free(&worker->model);
    *worker = (struct device_worker){0};
}
