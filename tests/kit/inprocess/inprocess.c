#include "tests/kit/inprocess/inprocess.h"

#include "eps/store/rewire.h"
#include "eps/store/sparse.h"
#include "proto/plan/cuts.h"
#include "proto/plan/search.h"
#include "tests/kit/device/backend.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static void feed(struct inprocess *ip, const struct relay_event *event);

static bool sums_parts(const struct inprocess_options *o)
{
    const struct plan_goal goal = {.adamw = o->adamw, .sgd = o->sgd, .nesterov = o->nesterov, .momentum = o->momentum};

    return plan_sums_parts(&goal);
}

static bool updates_last(const struct inprocess_options *o)
{
    return o->fenced || o->folded;
}

static enum store_fold fold_kind(const struct inprocess *ip, uint32_t unit)
{
    return store_fold_kind(&ip->store, unit, ip->options.n_parts, sums_parts(&ip->options));
}

static float *slot_of(struct inprocess_worker *w, uint32_t slot)
{
    return w->inbox + slot * w->ip->slot_n;
}

uint64_t inprocess_at(const struct model *model, uint32_t unit)
{
    uint64_t n = 0;

    for (uint32_t u = 0; u < unit; u++)
        n += model_rounded(model->units[u].n);
    return n;
}

static void note_gradient(struct inprocess *ip, const struct relay_action *a, const float *g)
{
    const struct model_unit *unit = &ip->model.units[a->unit];
    const uint64_t first = (uint64_t)a->name.slice * MODEL_SLICE;
    const uint64_t n = unit->n_trained - first < MODEL_SLICE ? unit->n_trained - first : MODEL_SLICE;
    const uint64_t at = inprocess_at(&ip->model, a->unit);

    for (uint64_t i = 0; ip->gradient && i < n; i++)
        ip->gradient[at + first + i] += g[i];
}

static void fold(struct inprocess *ip, const struct relay_action *a)
{
    const float *g = slot_of(&ip->workers[a->worker], a->slot);
    const struct store_contribution contribution = {
        .g = g, .type = NUMBER_FP32, .first = a->first, .part = a->name.part, .visit = a->name.visit};
    struct relay_event done = {.kind = RELAY_FOLDED, .unit = a->unit, .name.slice = a->name.slice};

    note_gradient(ip, a, g);
    done.ok = store_fold(&ip->store, a->unit, a->name.slice, &contribution, fold_kind(ip, a->unit), &ip->hyper) == 0;
    feed(ip, &done);
}

/* True of a unit that the step drops, whose sum is an earlier step's. */
static bool is_left_out(const struct inprocess *ip, uint32_t unit)
{
    for (uint32_t i = ip->model.n_frozen_units; i < ip->n_left_out; i++)
        if (ip->frozen[i] == unit)
            return true;
    return false;
}

/* Everything is folded and nothing updated. */
static void clip(struct inprocess *ip)
{
    double sum = 0;

    for (uint32_t u = 0; u < ip->model.n_units; u++) {
        store_join(&ip->store, u);
        sum += is_left_out(ip, u) ? 0 : store_sum_squares(&ip->store, u);
    }
    const double scale = ip->options.loss_scale > 0 ? (double)ip->options.loss_scale : 1;
    ip->norm = sqrt(sum) / scale;
    const double clipped = ip->options.clip_norm > 0 ? fmin(1, ip->options.clip_norm / (ip->norm + 1e-6)) : 1;
    ip->hyper.grad_scale = (float)(clipped / scale);
}

static void update(struct inprocess *ip, const struct relay_action *a)
{
    const struct relay_event done = {.kind = RELAY_UPDATED, .unit = a->unit};

    if (ip->options.fenced && isnan(ip->norm))
        clip(ip);
    store_update(&ip->store, a->unit, fold_kind(ip, a->unit), &ip->hyper);
    store_swap(&ip->store, a->unit);
    feed(ip, &done);
}

static void share(struct inprocess *ip, const struct relay_action *a)
{
    struct inprocess_worker *w = &ip->workers[a->worker];

    w->share.n_parts = a->n_parts;
    for (uint32_t i = 0; i < a->n_parts; i++)
        w->parts[i] = a->parts[i].part;
}

static void answer(struct inprocess *ip, const struct relay_action *a)
{
    struct inprocess_worker *w = &ip->workers[a->worker];

    for (uint32_t i = 0; i < w->n_pulls; i++)
        if (!w->pulls[i].ready && w->pulls[i].unit == a->unit) {
            w->pulls[i].buffer = store_buffer(&ip->store, a->unit, a->before);
            w->pulls[i].ready = true;
            return;
        }
}

static void act(struct inprocess *ip, const struct relay_action *a)
{
    switch (a->kind) {
    case RELAY_SHARE:
        share(ip, a);
        break;
    case RELAY_ANSWER:
        answer(ip, a);
        break;
    case RELAY_FOLD:
        fold(ip, a);
        break;
    case RELAY_UPDATE:
        update(ip, a);
        break;
    case RELAY_FREE:
        ip->workers[a->worker].slot_used[a->slot] = false;
        break;
    case RELAY_GRANT:
        ip->workers[a->worker].granted = true; /* it asks for the slot in fold order: the next is the one granted */
        ip->workers[a->worker].granted_part = a->name.part;
        break;
    case RELAY_COVERED:
        ip->covered = true;
        break;
    case RELAY_DONE:
        ip->n_done = a->step + 1;
        break;
    case RELAY_REFUSE:
    case RELAY_SKIPPED:
    case RELAY_TORN:
    case RELAY_AUDIT: /* its steps are not audited */
    case RELAY_AGAIN:
    case RELAY_REDO:
    case RELAY_LIAR:
    case RELAY_UNDECIDED:
        ip->failed = true;
        break;
    case RELAY_CAPTURE:
        assert(ip->on_capture);
        ip->on_capture(ip->capture_data, a->reader, a->unit, a->step);
        break;
    case RELAY_SAVED:
    case RELAY_ABANDON:
        break;
    }
}

/* Under the lock. An action may feed the relay in turn, so the list is copied before the first is carried out. */
static void feed(struct inprocess *ip, const struct relay_event *event)
{
    const struct relay_action *actions;
    int n = relay_feed(ip->relay, event, &actions);

    if (n < 0) {
        ip->failed = true;
        return;
    }
    struct relay_action copy[n > 0 ? n : 1];
    if (n)
        memcpy(copy, actions, (size_t)n * sizeof *copy);
    for (int i = 0; i < n; i++)
        act(ip, &copy[i]);
    pthread_cond_broadcast(&ip->changed);
}

static int say(struct inprocess_worker *w, const struct relay_event *event)
{
    struct inprocess *ip = w->ip;

    pthread_mutex_lock(&ip->mutex);
    feed(ip, event);
    const bool failed = ip->failed;
    pthread_mutex_unlock(&ip->mutex);
    return failed ? -ECANCELED : 0;
}

void inprocess_read(struct inprocess *ip, uint32_t reader)
{
    const struct relay_event event = {.kind = RELAY_SAVE, .reader = reader};

    pthread_mutex_lock(&ip->mutex);
    feed(ip, &event);
    pthread_mutex_unlock(&ip->mutex);
}

void inprocess_release(struct inprocess *ip, uint32_t reader, uint32_t unit)
{
    const struct relay_event event = {.kind = RELAY_RELEASED, .reader = reader, .unit = unit};

    pthread_mutex_lock(&ip->mutex);
    feed(ip, &event);
    pthread_mutex_unlock(&ip->mutex);
}

static int link_pull(void *context, uint64_t version, uint32_t unit)
{
    struct inprocess_worker *w = context;
    const struct relay_event event = {.kind = RELAY_PULL, .worker = w->id, .step = version, .unit = unit};

    assert(w->n_pulls < PLAN_MAX_WEIGHT_BUFFERS);
    pthread_mutex_lock(&w->ip->mutex);
    const bool still = w->ip->covered; /* an evaluation between steps: weights stand still */
    w->pulls[w->n_pulls].unit = unit;
    w->pulls[w->n_pulls].buffer = store_buffer(&w->ip->store, unit, false);
    w->pulls[w->n_pulls++].ready = still;
    pthread_mutex_unlock(&w->ip->mutex);
    return still ? 0 : say(w, &event);
}

static int link_wait_weights(void *context, struct device_link_weights *weights)
{
    struct inprocess_worker *w = context;
    struct inprocess *ip = w->ip;

    pthread_mutex_lock(&ip->mutex);
    assert(w->n_pulls);
    while (!w->pulls[0].ready && !ip->failed)
        pthread_cond_wait(&ip->changed, &ip->mutex);
    const char *const base = ip->store.weights.base;
    const uint32_t unit = w->pulls[0].unit;
    *weights = (struct device_link_weights){.trained = base + store_weights_at(&ip->store, &ip->store.own, unit,
                                                                               w->pulls[0].buffer),
                                            .frozen = base + store_weights_at(&ip->store, &ip->store.own, unit, 0)};
    w->n_pulls--;
    memmove(w->pulls, w->pulls + 1, w->n_pulls * sizeof *w->pulls);
    const bool failed = ip->failed;
    pthread_mutex_unlock(&ip->mutex);
    return failed ? -ECANCELED : 0;
}

static int link_loss(void *context, uint32_t part, double sum, const struct preference_rewards *rewards, bool finite)
{
    struct inprocess_worker *w = context;
    struct inprocess *const ip = w->ip;
    const struct relay_event event = {.kind = RELAY_LOSS,
                                      .worker = w->id,
                                      .name = {.step = w->share.step, .part = part},
                                      .ok = finite};

    pthread_mutex_lock(&ip->mutex);
    ip->part_loss[part] = sum;
    ip->rewards.chosen += rewards->chosen;
    ip->rewards.rejected += rewards->rejected;
    ip->rewards.right += rewards->right;
    ip->rewards.chosen_log_p += rewards->chosen_log_p;
    ip->rewards.rejected_log_p += rewards->rejected_log_p;
    pthread_mutex_unlock(&ip->mutex);
    return say(w, &event);
}

static int link_take_slot(void *context, uint32_t visit, uint32_t part, uint32_t slice, bool wait, void **slot)
{
    struct inprocess_worker *w = context;
    struct inprocess *ip = w->ip;
    uint32_t k = 0;

    (void)visit, (void)slice;
    pthread_mutex_lock(&ip->mutex);
    while (!ip->failed) {
        for (k = 1; k <= ip->n_slots && w->slot_used[k]; k++) {
        }
        if (k > ip->n_slots && w->granted && !w->slot_used[0] &&
            (!updates_last(&ip->options) || part <= w->granted_part))
            k = 0;
        if (k <= ip->n_slots || !wait)
            break;
        pthread_cond_wait(&ip->changed, &ip->mutex);
    }
    const bool failed = ip->failed;
    *slot = failed || k > ip->n_slots ? NULL : slot_of(w, k);
    if (*slot) {
        w->granted &= updates_last(&ip->options);
        w->slot_used[k] = true;
    }
    pthread_mutex_unlock(&ip->mutex);
    return failed ? -ECANCELED : 0;
}

static int link_contribute(void *context, uint32_t visit, uint32_t part, uint32_t slice, const void *slot,
                           const struct device_link_slice *of)
{
    struct inprocess_worker *w = context;
    const struct relay_event event = {.kind = RELAY_CONTRIBUTION,
                                      .worker = w->id,
                                      .name = {.step = w->share.step, .visit = visit, .part = part, .slice = slice},
                                      .slot = (uint32_t)(((const float *)slot - slot_of(w, 0)) /
                                                         (slot_of(w, 1) - slot_of(w, 0)))};

    (void)of;
    return say(w, &event);
}

static int link_contributed(void *context, uint32_t visit, uint32_t part)
{
    (void)context, (void)visit, (void)part;
    return 0;
}

static int link_ended(void *context)
{
    (void)context;
    return 0;
}

static const struct device_link link_inprocess = {link_pull,       link_wait_weights, link_loss, link_take_slot,
                                                  link_contribute, link_contributed,  link_ended};

static void *run_step(void *arg)
{
    struct inprocess_worker *w = arg;
    struct error err;

    w->rc = device_worker_step(&w->worker, &w->share, &link_inprocess, w, &err);
    if (w->rc) { /* the others would wait for it */
        pthread_mutex_lock(&w->ip->mutex);
        w->ip->failed = true;
        pthread_cond_broadcast(&w->ip->changed);
        pthread_mutex_unlock(&w->ip->mutex);
    }
    return NULL;
}

/* False: the model cannot be divided. */
static bool divide(struct plan_choice *choice, const struct inprocess *ip, const struct plan_setting *setting)
{
    struct plan_cuts cuts;
    struct plan plan;

    plan_lay_out(&plan, &ip->model, setting, choice);
    plan_cuts_init(&cuts, &plan, &ip->model);
    if (cuts.n == 0)
        return false;
    return plan_cut(choice, &cuts, cuts.most - (cuts.most - cuts.least) / 8 * ip->options.saved_eighths);
}

/* With a budget the planner chooses, as a daemon's would. */
static int choose(struct plan_choice *out, const struct inprocess *ip, const struct plan_setting *setting,
                  struct error *err)
{
    const struct inprocess_options *o = &ip->options;
    const struct plan_wish wish = {.microbatch = o->microbatch};
    struct plan plan;

    *out = (struct plan_choice){.microbatch = o->microbatch ? o->microbatch : setting->part_rows,
                                .n_weight_buffers = o->n_weight_buffers,
                                .derives = o->derives};
    if (o->saved_eighths > 0 && !divide(out, ip, setting))
        return error_set(err, -EINVAL, "no layers to divide into segments");
    if (!o->budget)
        return 0;
    int rc = plan_search(&plan, &ip->model, setting, &wish, profile_default("cpu"), o->budget, err);
    if (rc == 0)
        *out = plan.choice;
    return rc;
}

static int open_worker(struct inprocess *ip, uint32_t id, struct error *err)
{
    const struct inprocess_options *o = &ip->options;
    struct inprocess_worker *w = &ip->workers[id];
    const struct relay_event attached = {.kind = RELAY_ATTACHED, .worker = id, .room = UINT32_MAX};
    const uint32_t part_rows = o->batch / o->n_parts;
    struct device_worker_options options = {
        .config = o->config,
        .freeze = o->freeze,
        .ops = backend_get()->ops,
        .setting = {.backend = backend_get()->plan,
                    .attention = backend_get()->attention,
                    .convolution = backend_get()->convolution,
                    .goal = {.purpose = o->evaluate_only ? PLAN_EVALUATE : PLAN_TRAIN,
                             .sampling = o->sampling,
                             .pooled = o->pooled,
                             .preference = o->preference,
                             .seq = o->seq,
                             .source = o->config.row == o->seq ? o->config.source : 0,
                             .batch = o->batch,
                             .precision = o->precision,
                             .sparse = o->sparse,
                             .drop_layers = o->drop_layers,
                             .chooses = o->chooses,
                             .fenced = o->fenced,
                             .folded = o->folded,
                             .base = o->base},
                    .share_rows = (o->n_parts + o->n_workers - 1) / o->n_workers * part_rows,
                    .part_rows = part_rows,
                    .n_threads = o->n_threads},
        .seed = o->seed,
    };

    w->ip = ip;
    w->id = id;
    w->inbox = calloc(1 + ip->n_slots, ip->slot_n * sizeof(float));
    if (!w->inbox)
        return -ENOMEM;
    feed(ip, &attached);
    int rc = choose(&options.choice, ip, &options.setting, err);
    if (rc == 0)
        rc = device_worker_init(&w->worker, &options, &w->ledger, err);
    if (rc == 0 && w->worker.plan.host_stash_bytes) {
        w->stash = malloc(w->worker.plan.host_stash_bytes);
        w->worker.stash = w->stash;
        rc = w->stash ? 0 : -ENOMEM;
    }
    return rc;
}

int inprocess_open(struct inprocess **out, const struct inprocess_options *options, struct error *err)
{
    struct inprocess *ip = calloc(1, sizeof *ip);
    struct inprocess_options *o;
    int rc;

    *out = ip;
    if (!ip)
        return -ENOMEM;
    ip->options = *options;
    o = &ip->options;
    o->n_workers = o->n_workers ? o->n_workers : 1;
    o->n_weight_buffers = o->n_weight_buffers ? o->n_weight_buffers : 2;
    o->n_threads = o->n_threads ? o->n_threads : 1;
    ip->covered = true;
    pthread_mutex_init(&ip->mutex, NULL);
    pthread_cond_init(&ip->changed, NULL);
    rc = model_init(&ip->model, &o->config, err);
    if (!rc)
        model_approximate(&ip->model, &(struct model_approximation){0, o->sampling.share > 0, o->pooled});
    if (!rc)
        rc = model_freeze(&ip->model, o->freeze, model_base_of(o->base, o->precision), err);
    if (!rc)
        model_sparsify(&ip->model, &o->sparse);
    if (!rc)
        rc = model_drop_prepare(&ip->model, o->drop_layers, err);
    if (rc)
        goto fail;
    ip->n_slots = 2;
    ip->slot_n = model_slot_bytes(&ip->model, NUMBER_FP32) / sizeof(float);
    ip->slices = calloc(ip->model.n_visits, sizeof *ip->slices);
    ip->homes = calloc(ip->model.n_visits, sizeof *ip->homes);
    ip->visits = calloc(ip->model.n_visits, sizeof *ip->visits);
    ip->frozen = calloc(ip->model.n_frozen_units + ip->model.n_units, sizeof *ip->frozen);
    for (uint32_t u = 0, n = 0; u < ip->model.n_units; u++)
        if (ip->model.units[u].n_trained == 0)
            ip->frozen[n++] = u;
    const struct store_options store = {.train = !o->evaluate_only,
                                        .precision = o->precision,
                                        .base = o->base,
                                        .moments = o->moments,
                                        .sgd = o->sgd,
                                        .nesterov = o->nesterov,
                                        .momentum = o->momentum,
                                        .seed = o->seed,
                                        .fenced = o->fenced,
                                        .folded = o->folded,
                                        .n_parts = o->n_parts,
                                        .replay = o->replay,
                                        .n_accumulators = sums_parts(o) && o->n_parts > 1 && !updates_last(o) ? 2 : 0};
    rc = store_init(&ip->store, &ip->model, &store, &ip->ledger, err);
    if (rc)
        goto fail;
    store_draw(&ip->store, o->seed);
    ip->n_opened = ip->n_done = o->first_step;
    const struct relay_config relay = {.first_step = o->first_step,
                                       .n_parts = o->n_parts,
                                       .n_slots = ip->n_slots,
                                       .n_accumulators = store.n_accumulators,
                                       .adamw = sums_parts(o),
                                       .fenced = o->fenced,
                                       .folded = o->folded,
                                       .groups = updates_last(o),
                                       .deterministic = o->deterministic,
                                       .replay = o->replay};
    rc = relay_open(&ip->relay, &relay);
    for (uint32_t i = 0; !rc && i < o->n_workers; i++)
        rc = open_worker(ip, i, err);
    if (!rc)
        return 0;
fail:
    inprocess_close(ip);
    *out = NULL;
    return rc;
}

void inprocess_close(struct inprocess *ip)
{
    if (!ip)
        return;
    for (uint32_t i = 0; i < INPROCESS_MAX_WORKERS; i++) {
        device_worker_free(&ip->workers[i].worker);
        free(ip->workers[i].inbox);
        free(ip->workers[i].stash);
    }
    relay_close(ip->relay);
    store_free(&ip->store);
    model_free(&ip->model);
    pthread_mutex_destroy(&ip->mutex);
    pthread_cond_destroy(&ip->changed);
    free(ip->slices);
    free(ip->homes);
    free(ip->visits);
    free(ip->frozen);
    free(ip);
}

static void run_workers(struct inprocess *ip)
{
    const uint32_t n = ip->options.n_workers;

    for (uint32_t i = 1; i < n; i++)
        if (ip->workers[i].share.n_parts)
            ip->workers[i].running = pthread_create(&ip->workers[i].thread, NULL, run_step, &ip->workers[i]) == 0;
    run_step(&ip->workers[0]); /* here: one worker needs no thread */
    for (uint32_t i = 1; i < n; i++) {
        if (ip->workers[i].running)
            pthread_join(ip->workers[i].thread, NULL);
        ip->workers[i].running = false;
    }
}

/* The units that the step does not update: the model's frozen ones, and those of dropped blocks. */
static uint32_t leave_out(struct inprocess *ip)
{
    uint32_t n = ip->model.n_frozen_units;

    for (uint32_t v = 0; v < ip->model.n_visits; v++)
        if (model_drop_has(&ip->drop, &ip->model, v))
            ip->frozen[n++] = ip->model.visits[v];
    ip->n_left_out = n;
    return n;
}

int inprocess_step_rows(struct inprocess *ip, const struct device_rows *rows, uint64_t n_valid,
                        const struct hyper *hyper, double *loss, struct error *err)
{
    const uint32_t n_parts = ip->options.n_parts, n = ip->options.n_workers;
    uint32_t owners[64];
    const struct relay_event open = {
        .kind = RELAY_OPEN,
        .step = ip->n_opened,
        .visits = ip->visits,
        .n_slices = ip->slices,
        .n_visits = ip->model.n_visits,
        .frozen = ip->frozen,
        .n_frozen = leave_out(ip),
        .owners = owners,
        .n_owners = n_parts,
    };

    for (uint32_t p = 0; p < n_parts; p++)
        owners[p] = (uint32_t)((uint64_t)p * n / n_parts);
    for (uint32_t i = 0; i < n; i++)
        ip->workers[i].granted = false;
    for (uint32_t i = 0; i < n; i++)
        ip->workers[i].share = (struct device_share){.step = ip->n_opened,
                                                     .n_valid = n_valid,
                                                     .loss_scale = ip->options.loss_scale,
                                                     .parts = ip->workers[i].parts,
                                                     .groups = updates_last(&ip->options),
                                                     .rows = *rows,
                                                     .drop = &ip->drop,
                                                     .order = &ip->order};
    model_order_homes(ip->homes, &ip->order, &ip->model);
    for (uint32_t v = 0; v < ip->model.n_visits; v++) {
        ip->visits[v] = ip->model.visits[ip->homes[v]];
        ip->slices[v] = ip->model.units[ip->visits[v]].n_slices;
    }
    ip->hyper = *hyper;
    ip->hyper.grad_scale = 1;
    ip->hyper.sgd = ip->options.sgd, ip->hyper.nesterov = ip->options.nesterov;
    ip->hyper.momentum = ip->options.momentum;
    ip->norm = NAN;
    ip->rewards = (struct preference_rewards){0};
    ip->covered = false;
    ip->n_opened++;
    feed(ip, &open);
    run_workers(ip);
    pthread_mutex_lock(&ip->mutex);
    while (ip->on_capture && !ip->failed && ip->n_done != ip->n_opened) /* a reader holds units up */
        pthread_cond_wait(&ip->changed, &ip->mutex);
    pthread_mutex_unlock(&ip->mutex);
    if (ip->failed || ip->n_done != ip->n_opened)
        return error_set(err, -EPROTO, "the step was not finished");
    if (rewire_is_due(&ip->store, ip->n_done))
        store_rewire(&ip->store, ip->n_done);
    *loss = 0;
    for (uint32_t p = 0; p < n_parts; p++)
        *loss += ip->part_loss[p];
    *loss /= (double)n_valid;
    return 0;
}

int inprocess_step(struct inprocess *ip, const uint32_t *ids, const uint32_t *labels, uint64_t n_valid,
                   const struct hyper *hyper, double *loss, struct error *err)
{
    const struct device_rows rows = {.n_tokens = ip->options.seq, .ids = ids, .labels = labels};

    return inprocess_step_rows(ip, &rows, n_valid, hyper, loss, err);
}

int inprocess_evaluate_rows(struct inprocess *ip, const struct device_evaluation *evaluation, double *sum,
                            struct error *err)
{
    struct inprocess_worker *w = &ip->workers[0];
    struct device_evaluation now = *evaluation;

    now.version = ip->n_done;
    return device_worker_evaluate(&w->worker, &now, &link_inprocess, w, sum, err);
}

int inprocess_evaluate(struct inprocess *ip, const uint32_t *ids, const uint32_t *labels, uint32_t first_row,
                       uint32_t n_rows, double *sum, struct error *err)
{
    const struct device_evaluation evaluation = {.rows = {.n_tokens = ip->options.seq, .ids = ids, .labels = labels},
                                                 .first_row = first_row,
                                                 .n_rows = n_rows};

    return inprocess_evaluate_rows(ip, &evaluation, sum, err);
}
