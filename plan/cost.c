#include "plan/cost.h"

#include "plan/units.h"

#include <math.h>

enum { UPDATE_BYTES = 28 };

/* Of the rate of products in fp32, in which attention computes whatever the values are; measured on the CPU for heads of
 * 64, 256 to 1024 tokens. */
static const double attention_rate = 0.55, attention_backward = 2.25;

/* What a visit takes, in seconds, each for itself. */
struct visit {
    double compute, pull, push, stash, optimizer;
};

struct costs {
    const struct plan *plan;
    const struct model *model;
    const struct plan_host_setting *host;
    const struct profile *profile;
    double slow;   /* workers that share what the profile was measured with */
    double value;  /* bytes */
    uint32_t rows; /* of the microbatch at hand */
};

static double tokens_of(const struct costs *c)
{
    return (double)c->rows * c->plan->setting.seq;
}

static double moved(const struct costs *c, double bytes)
{
    return bytes / c->profile->memory_bytes_per_s;
}

/* (rows, in) times (in, out), with so many bytes of each weight read or written. */
static double product(const struct costs *c, double rows, double in, double out, double weight_bytes)
{
    const double computed = 2 * rows * in * out / profile_flops(c->profile, c->plan->setting.precision, rows);

    return fmax(computed, moved(c, rows * (in + out) * c->value + in * out * weight_bytes));
}

static double attention(const struct costs *c)
{
    const double seq = c->plan->setting.seq, operations = 2 * tokens_of(c) * seq * c->model->config.width;

    return operations / (attention_rate * profile_flops(c->profile, NUMBER_FP32, tokens_of(c)));
}

struct block_costs {
    double forward, recompute, backward;
};

/* Of one microbatch. Norms, residuals and activations are counted in columns of so many values a token. */
static struct block_costs block_costs(const struct costs *c)
{
    const struct model_config *m = &c->model->config;
    const double width = m->width, inner = m->inner_width, tokens = tokens_of(c);
    const double up = 8; /* bytes: contributions are fp32, read and written */
    const double maps[][2] = {{width, 3 * width}, {width, width}, {width, inner}, {inner, width}};
    const double down = product(c, tokens, inner, width, c->value) + moved(c, 3 * width * tokens * c->value);
    struct block_costs out = {.forward = attention(c) + moved(c, (10 * width + inner) * tokens * c->value)};

    out.backward = attention_backward * attention(c) + moved(c, (25 * width + 2 * inner) * tokens * c->value);
    for (int i = 0; i < 4; i++) {
        out.forward += product(c, tokens, maps[i][0], maps[i][1], c->value);
        out.backward +=
            product(c, tokens, maps[i][0], maps[i][1], c->value) + product(c, tokens, maps[i][0], maps[i][1], up);
    }
    out.recompute = out.forward - down;
    return out;
}

/* A product of the head with n labels, tile by tile, and a pass over the logits. */
static double logits(const struct costs *c, double n, double weight_bytes)
{
    const double tokens = tokens_of(c), tile = tokens < PLAN_HEAD_TILE ? tokens : PLAN_HEAD_TILE;

    return tokens / tile * product(c, tile, c->model->config.width, n, weight_bytes) +
           moved(c, tokens * n * sizeof(float));
}

static double forward_of(const struct costs *c, const struct model_layer *layer, const struct model_unit *unit,
                         const struct block_costs *block)
{
    const double width = c->model->config.width, column = moved(c, tokens_of(c) * width * c->value);

    switch (layer->kind) {
    case MODEL_EMBEDDING:
    case MODEL_NORM:
        return 2 * column;
    case MODEL_BLOCK:
        return block->forward;
    case MODEL_HEAD:
        break;
    }
    return logits(c, (double)unit->n / width, c->value);
}

static double backward_of(const struct costs *c, const struct model_layer *layer, const struct model_unit *unit,
                          const struct block_costs *block)
{
    const double width = c->model->config.width, column = moved(c, tokens_of(c) * width * c->value);
    const double n = (double)unit->n / width;

    switch (layer->kind) {
    case MODEL_EMBEDDING:
        return 2 * column;
    case MODEL_NORM:
        return 4 * column;
    case MODEL_BLOCK:
        return block->backward +
               (layer->index + c->plan->choice.n_kept < c->model->config.n_layers ? block->recompute : 0);
    case MODEL_HEAD:
        break;
    }
    return logits(c, n, c->value) + logits(c, n, 8) + (c->plan->one_pass ? 0 : logits(c, n, c->value));
}

/* Of a part's microbatches: so many of the chosen rows and one of what is left. */
struct microbatches {
    uint32_t rows[2];
    double n[2];
    struct block_costs block[2];
};

static struct microbatches microbatches_of(struct costs *c)
{
    const struct plan_setting *s = &c->plan->setting;
    const uint32_t rows = c->plan->choice.microbatch;
    const double parts = (double)(s->share_rows / s->part_rows);
    struct microbatches out = {.rows = {rows, s->part_rows % rows},
                               .n = {parts * (s->part_rows / rows), s->part_rows % rows ? parts : 0}};

    for (int i = 0; i < 2 && out.n[i] > 0; i++) {
        c->rows = out.rows[i];
        out.block[i] = block_costs(c);
    }
    return out;
}

static double compute_of(struct costs *c, const struct microbatches *m, uint32_t visit, bool backward)
{
    const struct model_layer *layer = &c->model->layers[c->model->visit_layers[visit]];
    const struct model_unit *unit = &c->model->units[c->model->visits[visit]];
    double s = 0;

    for (int i = 0; i < 2 && m->n[i] > 0; i++) {
        c->rows = m->rows[i];
        s += m->n[i] * (backward ? backward_of : forward_of)(c, layer, unit, &m->block[i]);
    }
    return s;
}

/* Bytes that the folds and the update of a parameter touch: DIRECT, MOMENTS, SUM and HOLD of the store. */
static double optimizer_bytes(const struct plan_host_setting *h, bool tied)
{
    const double grad = (double)number_bytes(h->grad), moments = 2.0 * (double)number_bytes(h->moments);
    const double parts = h->n_parts, whole = 8 + 2 * moments; /* weights and moments, read and written */

    if (tied || h->fenced || (h->adamw && h->n_parts > 1))
        return (tied ? 2 * parts : parts) * (grad + 8) + whole + 4;
    if (h->n_parts == 1)
        return grad + whole;
    return parts * (grad + 2 * moments) + 8 + moments;
}

static double optimizer_of(const struct costs *c, const struct model_unit *unit)
{
    const double rate = c->profile->update_parameters_per_s * UPDATE_BYTES;

    return (double)unit->n * optimizer_bytes(c->host, unit->n_visits > 1) / unit->n_visits / rate;
}

/* Which units lie in the buffers: the last ones that were used, as device/weights.c has it. */
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

/* Pulls run ahead as far as there are buffers, contributions and tiles leave as far as there are sets of them, updates
 * follow. */
struct pipeline {
    double pulled, updated;
    double computed[PLAN_MAX_WEIGHT_BUFFERS], pushed[PLAN_MAX_SETS]; /* ends of the last visits, the latest first */
    uint32_t n_buffers, n_sets;
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

    p->pulled = fmax(p->pulled, p->computed[p->n_buffers - 1]) + v->pull + stash;
    const double sets = v->push > 0 || v->stash > 0 ? p->pushed[p->n_sets - 1] : 0;
    const double begin = fmax(fmax(p->pulled, p->computed[0]), sets);
    shift(p->computed, p->n_buffers, begin + v->compute);
    shift(p->pushed, p->n_sets, fmax(p->pushed[0], p->computed[0]) + v->push + stash);
    p->updated = fmax(p->updated, p->pushed[0]) + v->optimizer;
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

/* Rows of the embedding's units are gathered where the host has them: one for each token, of all its token units together
 * and of all those of positions. */
static uint64_t gathered_bytes(const struct costs *c, uint32_t visit, bool backward)
{
    const struct plan_setting *s = &c->plan->setting;
    const struct model_layer *layer = &c->model->layers[c->model->visit_layers[visit]];
    const uint64_t tokens = s->purpose == PLAN_GENERATE ? 1 : (uint64_t)s->share_rows * s->seq;

    if (backward || layer->kind != MODEL_EMBEDDING || visit > layer->first_visit)
        return 0;
    return 2 * tokens * c->model->config.width * number_bytes(s->precision);
}

/* Bytes of a stash on the host that a visit moves, both ways (device/boundaries.c): forward reads its input and writes its
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
    if (backward || (head && plan->one_pass))
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

static void add_all(struct plan_cost *out, struct pipeline *pipeline, struct costs *c, const struct microbatches *m)
{
    const struct plan_setting *s = &c->plan->setting;
    const uint32_t n = c->model->n_visits, end = s->purpose == PLAN_TRAIN ? 2 * n : n;
    const uint64_t parts = s->share_rows / s->part_rows;
    struct buffers buffers = {.capacity = c->plan->n_weight_buffers};

    for (uint32_t place = 0; place < end; place++) {
        const bool backward = place >= n;
        const uint32_t visit = backward ? 2 * n - 1 - place : place;
        const struct model_unit *unit = &c->model->units[c->model->visits[visit]];
        const uint64_t down = (is_pulled(c, &buffers, visit, backward) ? unit->n * number_bytes(s->precision) : 0) +
                              gathered_bytes(c, visit, backward);
        const uint64_t up = backward ? parts * unit->n * number_bytes(c->host->grad) : 0;
        const uint64_t stash = stash_bytes(c, visit, backward);
        const double link = c->profile->link_bytes_per_s / c->slow;
        const struct visit v = {
            .compute =
                (s->purpose == PLAN_GENERATE ? generate_of(c, visit) : compute_of(c, m, visit, backward)) * c->slow,
            .pull = (double)down / link,
            .push = (double)up / link,
            .stash = (double)stash / link,
            .optimizer = backward ? optimizer_of(c, unit) : 0,
        };
        add_visit(out, pipeline, &v);
        out->down_bytes += down, out->up_bytes += up, out->stash_bytes += stash;
    }
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
    const struct microbatches m = microbatches_of(&c);
    struct pipeline pipeline = {.n_buffers = plan->choice.n_weight_buffers, .n_sets = plan->n_sets};

    *out = (struct plan_cost){0};
    add_all(out, &pipeline, &c, &m);
    if (takes_turns)
        out->step_ms = out->compute_ms + out->pull_ms + out->push_ms + out->stash_ms + out->optimizer_ms;
    else
        out->step_ms = fmax(pipeline.updated, pipeline.computed[0]) * 1e3;
    out->hiding_tokens = c.value * profile_flops(profile, s->precision, (double)plan->choice.microbatch * s->seq) /
                         (2 * profile->link_bytes_per_s);
}
