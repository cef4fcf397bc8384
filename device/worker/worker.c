/* A worker's life outside its steps, which are in proto/step/step.c. */
#include "proto/step/layers.h"
#include "proto/step/step.h"
#include "proto/plan/memory/units.h"

#include <errno.h>
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

static int allocate(struct device_worker *w, struct error *err)
{
    w->tables = calloc((size_t)model_table_visits(&w->model) + 1, sizeof *w->tables);
    w->chunks = calloc(plan_head(&w->model)->n_visits, sizeof *w->chunks);
    w->contributing = calloc(w->model.n_trained_visits, sizeof *w->contributing);
    w->homes = calloc(w->model.n_visits, sizeof *w->homes);
    if (w->plan.choice.host_stash)
        w->stashed = calloc(w->plan.setting.share_rows, sizeof *w->stashed);
    return w->tables && w->chunks && w->contributing && w->homes && (w->stashed || !w->plan.choice.host_stash)
               ? 0
               : error_set(err, -ENOMEM, "out of memory");
}

/* For the largest microbatch, and for a block of its class that keeps the least. */
static void prepare_attention(struct device_worker *w)
{
    const struct model_layer *layer = layer_to_prepare(&w->model);

    if (!layer || w->plan.setting.goal.purpose == PLAN_GENERATE) /* which has attention of its own */
        return;
    char *arena = w->ops->arena(w->dev);
    const struct plan *plan = &w->plan;
    const struct plan_kept *kept = plan_kept_of(plan, model_ranked(&w->model, model_class_of(layer), 0));
    const struct layer_pass pass = {.ops = w->ops,
                                    .dev = w->dev,
                                    .model = &w->model,
                                    .layer = layer,
                                    .program = layer->program,
                                    .edges = &layer->edges,
                                    .unit = &w->model.units[w->model.visits[layer->first_visit]],
                                    .workspace = arena + plan->workspace,
                                    .kept = kept->keeping ? arena + kept->at : NULL,
                                    .keeping = kept->keeping,
                                    .n_rows = plan->choice.microbatch,
                                    .n_tokens = plan->setting.goal.seq,
                                    .positions =
                                        plan->setting.goal.packs ? (uint32_t *)(arena + plan->positions) : NULL,
                                    .dropout = plan->setting.goal.purpose == PLAN_TRAIN,
                                    .setting = &plan->setting,
                                    .plan = plan};

    layer_prepare_attention(&pass, plan->setting.goal.purpose == PLAN_TRAIN, w->attention);
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
    int rc = allocate(worker, err);

    if (rc == 0)
        rc = options->ops->open(&worker->dev, options->index, worker->plan.setting.goal.precision,
                                worker->plan.arena_bytes, worker->plan.setting.n_threads, err);
    if (rc == 0) {
        prepare_attention(worker);
        enter_ledger(worker);
    } else {
        device_worker_free(worker);
    }
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
    model_free(&worker->model);
    *worker = (struct device_worker){0};
}
