#include "device/step/generate.h"

#include "device/layers/layers.h"
#include "device/step/weights.h"

#include <errno.h>
#include <string.h>

/* Consecutive tokens that pass through the layers together. */
struct tile {
    struct device_worker *worker;
    const struct device_link *link;
    void *context;
    struct device_weights weights;
    uint32_t ids[PLAN_GENERATE_TILE];
    uint32_t first, n; /* tokens of the row */
    bool last;         /* its logits are needed */
    uint64_t loaded;   /* DEVICE_PULL: ids may be overwritten */
};

static void *address(const struct device_worker *w, uint64_t offset)
{
    return (char *)w->ops->arena(w->dev) + offset;
}

static void *boundary(const struct device_worker *w, uint32_t layer)
{
    return address(w, w->plan.boundaries + layer % w->plan.n_boundaries * w->plan.boundary_bytes);
}

/* Above the blocks only the last token continues. */
static struct layer_pass pass_of(const struct tile *t, uint32_t visit)
{
    struct device_worker *w = t->worker;
    const uint32_t l = w->model.visit_layers[visit];
    const struct model_layer *layer = &w->model.layers[l];
    const bool block = layer->kind == MODEL_BLOCK, above = model_is_above_blocks(&w->model, layer);
    /* The first layer above the blocks reads all tokens. */
    const bool first_above = above && w->model.layers[l - 1].kind == MODEL_BLOCK;
    const size_t skipped = first_above ? (size_t)(t->n - 1) * w->model.config.width : 0;

    return (struct layer_pass){.ops = w->ops,
                               .dev = w->dev,
                               .model = &w->model,
                               .layer = layer,
                               .unit = &w->model.units[w->model.visits[visit]],
                               .input =
                                   l > 0 ? device_element(w->plan.setting.goal.precision, boundary(w, l - 1), skipped)
                                         : NULL,
                               .output = l < w->model.n_layers - 1 ? boundary(w, l) : NULL,
                               .ids = address(w, w->plan.ids),
                               .workspace = address(w, w->plan.workspace),
                               .n_rows = 1,
                               .n_tokens = above ? 1 : t->n,
                               .setting = &w->plan.setting,
                               .plan = &w->plan,
                               .position = t->first,
                               .n_positions = w->plan.setting.goal.seq,
                               .cache = block ? address(w, w->plan.cache + layer->index * w->plan.cache_bytes) : NULL,
                               .logits = address(w, w->plan.logits)};
}

static int run_layers(struct tile *t)
{
    struct device_worker *w = t->worker;

    device_weights_init(&t->weights, w, t->link, t->context);
    if (!t->last) /* other tiles do not need the layers above the blocks */
        t->weights.n_visits = w->model.layers[w->model.first_block + w->model.config.n_layers].first_visit;
    for (uint32_t visit = 0; visit < t->weights.n_visits; visit++) {
        struct layer_pass pass = pass_of(t, visit);
        int rc = t->link->ended(t->context);
        if (rc == 0)
            rc = device_weights_next(&t->weights, visit, &pass.weights);
        if (rc != 0)
            return rc;
        layer_table[pass.layer->kind]->forward(&pass);
    }
    return 0;
}

/* Checks and uses a copy of the ids, as the client can write its own at any time. Everything uploaded for this tile,
 * including weights, waits until the previous tile is done. */
static int load_ids(struct tile *t, const uint32_t *ids, struct error *err)
{
    struct device_worker *w = t->worker;
    const uint32_t vocabulary = w->model.config.vocabulary;

    if (w->ops->finish(w->dev, DEVICE_PULL, t->loaded) != 0)
        return -EIO;
    memcpy(t->ids, ids + t->first, t->n * sizeof *t->ids);
    for (uint32_t i = 0; i < t->n; i++)
        if (t->ids[i] >= vocabulary)
            return error_set(err, -EINVAL, "token id %u at position %u: the vocabulary has %u", t->ids[i], t->first + i,
                             vocabulary);
    w->ops->follow(w->dev, DEVICE_PULL, DEVICE_COMPUTE, w->ops->mark(w->dev, DEVICE_COMPUTE));
    w->ops->upload(w->dev, address(w, w->plan.ids), t->ids, t->n * sizeof *t->ids);
    t->loaded = w->ops->mark(w->dev, DEVICE_PULL);
    return 0;
}

/* t provides the worker and the link. */
static int run_tiles(struct tile *t, const struct device_run *run, struct error *err)
{
    struct device_worker *w = t->worker;
    const uint32_t end = run->first + run->n;
    int rc = 0;

    if (!w->loaded) {
        device_weights_init(&t->weights, w, t->link, t->context);
        rc = device_weights_load(&t->weights);
        w->loaded = rc == 0;
    }
    for (t->first = run->first; rc == 0 && t->first < end; t->first += t->n) {
        t->n = end - t->first < PLAN_GENERATE_TILE ? end - t->first : PLAN_GENERATE_TILE;
        t->last = t->first + t->n == end;
        rc = load_ids(t, run->ids, err);
        if (rc == 0)
            rc = run_layers(t);
    }
    if (rc != 0)
        return rc;
    w->ops->follow(w->dev, DEVICE_PUSH, DEVICE_COMPUTE, w->ops->mark(w->dev, DEVICE_COMPUTE));
    w->ops->download(w->dev, run->logits, address(w, w->plan.logits), w->model.config.vocabulary * sizeof(float));
    return 0;
}

int device_worker_generate(struct device_worker *worker, const struct device_run *run, const struct device_link *link,
                           void *context, struct error *err)
{
    const struct plan *plan = &worker->plan;

    if (plan->setting.goal.purpose != PLAN_GENERATE || run->first > worker->n_run || run->n == 0 ||
        run->n > plan->setting.goal.seq - run->first)
        return error_set(err, -EINVAL, "tokens %u to %llu to run: %u of up to %u were run so far", run->first,
                         (unsigned long long)run->first + run->n, worker->n_run, plan->setting.goal.seq);
    struct tile t = {.worker = worker, .link = link, .context = context};
    worker->n_run = run->first; /* keys and values from there on are replaced */
    int rc = run_tiles(&t, run, err);
    if (rc == -EIO || worker->ops->sync(worker->dev) != 0)
        return worker->ops->fault(worker->dev, err);
    if (rc == 0)
        worker->n_run += run->n;
    return rc;
}
