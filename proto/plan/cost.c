#include "proto/plan/cost.h"

#include "proto/plan/units.h"
#include "proto/plan/work.h"

#include <math.h>

/* What a visit takes, in seconds, each for itself. */
struct visit {
    double compute, pull, push, stash, optimizer;
};

struct costs {
    const struct plan *plan;
    const struct model *model;
    const struct plan_host_setting *host;
    const struct profile *profile;
    struct plan_work work;
    double slow;  /* workers that share what the profile was measured with */
    double value; /* bytes */
};

static double moved(const struct costs *c, double bytes)
{
    return bytes / c->profile->memory_bytes_per_s;
}

/* All microbatches of the share, and what their contributions take to be rounded. */
static double compute_of(const struct costs *c, uint32_t visit, bool backward)
{
    double seconds = backward ? plan_work_round(&c->work, visit) : 0;

    for (enum plan_work_kind kind = 0; kind < PLAN_WORK_KINDS; kind++)
        if (c->work.n[kind] > 0)
            seconds += c->work.n[kind] * plan_work_visit(&c->work, visit, backward, kind);
    return seconds * (c->plan->setting.share_rows / c->plan->setting.part_rows);
}

static double optimizer_of(const struct costs *c, const struct model_unit *unit)
{
    const struct plan_work_update each = plan_work_update(c->host, unit);
    const double bytes = each.fold * c->host->n_parts + each.update / unit->n_visits;

    return (double)unit->n_trained * bytes / (c->profile->update_parameters_per_s * PLAN_WORK_UPDATE_BYTES);
}

/* Which units lie in the buffers: the last ones that were used, as device/step/weights.c has it. */
struct buffers {
    uint32_t units[PLAN_MAX_WEIGHT_BUFFERS], n, capacity;
};

/* True if it was not there: it is pulled. */
static bool use(struct buffers *b, uint32_t unit)
{
    uint32_t at = 0;

    while (at < b->n && b->units[at] != unit)
        at++;
    const bool missed = at == b->n;
    if (missed && b->n < b->capacity)
        b->n++;
    if (missed)
        at = b->n - 1;
    for (; at > 0; at--)
        b->units[at] = b->units[at - 1];
    b->units[0] = unit;
    return missed;
}

/* Pulls run ahead as far as there are buffers, contributions and tiles leave as far as there are sums and sets. With one of
 * each the worker waits for what leaves before it asks for the next unit (device/step/offers.h). */
struct pipeline {
    double pulled;
    double computed[PLAN_MAX_WEIGHT_BUFFERS], pushed[PLAN_MAX_SUMS]; /* ends of the last visits, the latest first */
    uint32_t n_buffers, n_sets, n_sums;
};

static void shift(double *ends, uint32_t n, double end)
{
    for (uint32_t i = n - 1; i > 0; i--)
        ends[i] = ends[i - 1];
    ends[0] = end;
}

static void advance(struct pipeline *p, const struct visit *v)
{
    const double stash = v->stash / 2; /* half of it each way */
    const double left = p->n_sets == 1 ? p->pushed[0] : 0;

    p->pulled = fmax(fmax(p->pulled, left), p->computed[p->n_buffers - 1]) + v->pull + stash;
    const double tiles = v->stash > 0 ? p->pushed[p->n_sets - 1] : 0, sums = v->push > 0 ? p->pushed[p->n_sums - 1] : 0;
    const double begin = fmax(fmax(p->pulled, p->computed[0]), fmax(tiles, sums));
    shift(p->computed, p->n_buffers, begin + v->compute);
    shift(p->pushed, p->n_sums, fmax(p->pushed[0], p->computed[0]) + v->push + stash);
}

/* Whether the visit waits for its unit. One that stays comes once: to generate, before. The embedding's never come. */
static bool is_pulled(const struct costs *c, struct buffers *buffers, uint32_t visit, bool backward)
{
    const uint32_t unit = c->model->visits[visit];

    if (c->model->layers[c->model->visit_layers[visit]].kind == MODEL_EMBEDDING)
        return false;
    if (plan_place_of(c->model, unit) < c->plan->n_resident)
        return c->plan->setting.purpose != PLAN_GENERATE && !backward;
    return use(buffers, unit);
}

/* The embedding's rows are gathered from the host's memory: one row of each table for each token. */
static uint64_t gathered_bytes(const struct costs *c, uint32_t visit, bool backward)
{
    const struct plan_setting *s = &c->plan->setting;
    const struct model_layer *layer = &c->model->layers[c->model->visit_layers[visit]];
    const uint64_t tokens = s->purpose == PLAN_GENERATE ? 1 : (uint64_t)s->share_rows * s->seq;

    if (backward || layer->kind != MODEL_EMBEDDING || visit > layer->first_visit)
        return 0;
    return c->model->embedding.n_tables * tokens * c->model->config.width * number_bytes(s->precision);
}

/* Bytes of a stash on the host that a visit moves, both ways (device/step/boundaries.c): forward reads its input and writes its
 * output, backward reads its input, reads and writes the gradient. A layer's later visits add to what the earlier wrote;
 * nobody has a gradient before the head, nor wants the embedding's. */
static uint64_t stash_bytes(const struct costs *c, uint32_t visit, bool backward)
{
    const struct plan *plan = c->plan;
    const struct model_layer *layer = &c->model->layers[c->model->visit_layers[visit]];
    const bool bottom = visit == layer->first_visit, top = visit == layer->first_visit + layer->n_visits - 1;
    const bool head = layer->kind == MODEL_HEAD, embedding = layer->kind == MODEL_EMBEDDING;
    const uint64_t tokens = (uint64_t)plan->setting.share_rows * plan->setting.seq;
    uint64_t boundaries = embedding ? 0 : 1;

    if (!plan->choice.host_stash || (head && plan->one_pass && (backward || !top)))
        return 0;
    if (backward && head && plan->head_sums) /* twice as many bytes, but for what it is rounded to */
        boundaries += (top ? 0u : 2u) + (bottom ? 1u : 2u);
    else if (backward || (head && plan->one_pass))
        boundaries += 2u - (head && top) - (embedding && bottom);
    else if (!head)
        boundaries += bottom ? 1 : 2;
    return boundaries * tokens * c->model->config.width * number_bytes(plan->setting.precision);
}

static void add_visit(struct plan_cost *out, struct pipeline *pipeline, const struct visit *v)
{
    out->compute_ms += v->compute * 1e3;
    out->pull_ms += v->pull * 1e3;
    out->push_ms += v->push * 1e3;
    out->stash_ms += v->stash * 1e3;
    out->optimizer_ms += v->optimizer * 1e3;
    advance(pipeline, v);
}

/* Of a token to generate: weights are read, and the keys and values of those before. */
static double generate_of(const struct costs *c, uint32_t visit)
{
    const struct model_layer *layer = &c->model->layers[c->model->visit_layers[visit]];
    const double cached = 2.0 * c->plan->setting.seq * c->model->config.width * c->value;

    if (layer->kind == MODEL_EMBEDDING)
        return 0;
    return moved(c, (double)c->model->units[c->model->visits[visit]].n * c->value +
                        (layer->kind == MODEL_BLOCK ? cached : 0));
}

static void add_all(struct plan_cost *out, struct pipeline *pipeline, const struct costs *c)
{
    const struct plan_setting *s = &c->plan->setting;
    const uint32_t n = c->model->n_visits, end = s->purpose == PLAN_TRAIN ? 2 * n - model_lowest_visit(c->model) : n;
    const uint64_t parts = s->share_rows / s->part_rows;
    struct buffers buffers = {.capacity = c->plan->n_weight_buffers};

    for (uint32_t place = 0; place < end; place++) {
        const bool backward = place >= n;
        const uint32_t visit = backward ? 2 * n - 1 - place : place;
        const struct model_unit *unit = &c->model->units[c->model->visits[visit]];
        const uint64_t down = (is_pulled(c, &buffers, visit, backward) ? unit->n * number_bytes(s->precision) : 0) +
                              gathered_bytes(c, visit, backward);
        const uint64_t up = backward ? parts * unit->n_trained * number_bytes(c->host->grad) : 0;
        const uint64_t stash = stash_bytes(c, visit, backward);
        const double link = c->profile->link_bytes_per_s / c->slow;
        const struct visit v = {
            .compute = (s->purpose == PLAN_GENERATE ? generate_of(c, visit) : compute_of(c, visit, backward)) * c->slow,
            .pull = (double)down / link,
            .push = (double)up / link,
            .stash = (double)stash / link,
            .optimizer = backward ? optimizer_of(c, unit) : 0,
        };
        add_visit(out, pipeline, &v);
        out->down_bytes += down, out->up_bytes += up, out->stash_bytes += stash;
    }
}

/* The optimizer goes on while the next step begins, and its memory is the link's too. */
static double host_ms(const struct costs *c, const struct plan_cost *out)
{
    const double optimizer_bytes =
        out->optimizer_ms / 1e3 * c->profile->update_parameters_per_s * PLAN_WORK_UPDATE_BYTES;
    const double copied = (double)(out->down_bytes + out->up_bytes + out->stash_bytes) * c->host->n_workers;
    const double memory = c->profile->host_bytes_per_s;

    return fmax(out->optimizer_ms, memory > 0 ? (optimizer_bytes + copied) / memory * 1e3 : 0);
}

void plan_cost(struct plan_cost *out, const struct plan *plan, const struct model *model,
               const struct plan_host_setting *host, const struct profile *profile)
{
    const struct plan_setting *s = &plan->setting;
    const bool takes_turns = s->backend->takes_turns;
    const uint32_t n_workers = host->n_workers < host->n_parts ? host->n_workers : host->n_parts;
    struct costs c = {.plan = plan,
                      .model = model,
                      .host = host,
                      .profile = profile,
                      .slow = takes_turns ? n_workers : 1,
                      .value = (double)number_bytes(s->precision)};
    struct pipeline pipeline = {.n_buffers = plan->choice.n_weight_buffers,
                                .n_sets = plan->n_sets,
                                .n_sums = plan->n_sums};

    *out = (struct plan_cost){0};
    plan_work_init(&c.work, plan, model, profile);
    add_all(out, &pipeline, &c);
    if (takes_turns)
        out->step_ms = out->compute_ms + out->pull_ms + out->push_ms + out->stash_ms + out->optimizer_ms;
    else
        out->step_ms = fmax(fmax(pipeline.computed[0], pipeline.pushed[0]) * 1e3, host_ms(&c, out));
    out->hiding_tokens = c.value * profile_flops(profile, s->precision, (double)plan->choice.microbatch * s->seq) /
                         (2 * profile->link_bytes_per_s);
}
