#include "proto/plan/timeline_internal.h"
#include "proto/plan/units.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 2 };

/* ---- boundaries: proto/step/boundaries.c ---- */

struct microbatch {
    uint32_t visit, run, number;
    enum plan_work_kind kind;
    double tokens;
    bool backward;
    bool in_one_pass; /* forward includes backward */
};

static const struct model_layer *layer_of(const struct timeline_run *r, const struct microbatch *m)
{
    return &r->model->layers[r->model->visit_layers[m->visit]];
}

static bool is_top(const struct timeline_run *r, const struct microbatch *m)
{
    const struct model_layer *layer = layer_of(r, m);

    return m->visit == layer->first_visit + layer->n_visits - 1;
}

static bool is_bottom(const struct timeline_run *r, const struct microbatch *m)
{
    return m->visit == layer_of(r, m)->first_visit;
}

static bool has_gradient(const struct microbatch *m)
{
    return m->backward || m->in_one_pass;
}

static double tile_bytes(const struct timeline_run *r, const struct microbatch *m)
{
    return m->tokens * r->model->config.width * timeline_number(r);
}

static double sum_bytes(const struct timeline_run *r, const struct microbatch *m)
{
    return m->tokens * r->model->config.width * sizeof(float);
}

static bool has_sum(const struct timeline_run *r, const struct microbatch *m)
{
    return r->plan->head_sums && layer_of(r, m)->kind == MODEL_HEAD && m->backward;
}

static uint64_t *stashed_of(struct timeline_run *r, const struct microbatch *m)
{
    return &r->stashed[m->run * r->n_microbatches + m->number];
}

static void enter_tiles(struct timeline_run *r, const struct microbatch *m)
{
    const struct timeline_tiles *tiles = &r->tiles[r->tile];
    const bool head = layer_of(r, m)->kind == MODEL_HEAD;

    if (!r->plan->choice.host_stash)
        return;
    plan_queues_follow(&r->q, PLAN_QUEUE_PULL, PLAN_QUEUE_COMPUTE, tiles->used);
    plan_queues_follow(&r->q, PLAN_QUEUE_PULL, PLAN_QUEUE_PUSH, *stashed_of(r, m));
    if (r->model->visit_layers[m->visit] > 0)
        timeline_copy(r, PLAN_QUEUE_PULL, tile_bytes(r, m));
    plan_queues_follow(&r->q, PLAN_QUEUE_PULL, PLAN_QUEUE_PUSH, tiles->saved);
    if (!head && !m->backward && !is_bottom(r, m))
        timeline_copy(r, PLAN_QUEUE_PULL, tile_bytes(r, m));
    if (has_sum(r, m) && !is_top(r, m))
        timeline_copy(r, PLAN_QUEUE_PULL, sum_bytes(r, m));
    else if (!has_sum(r, m) && m->backward && !(head && is_top(r, m)))
        timeline_copy(r, PLAN_QUEUE_PULL, tile_bytes(r, m));
    timeline_follow(r, PLAN_QUEUE_COMPUTE, PLAN_QUEUE_PULL);
}

static void leave_tiles(struct timeline_run *r, const struct microbatch *m)
{
    struct timeline_tiles *tiles = &r->tiles[r->tile];
    const enum model_layer_kind kind = layer_of(r, m)->kind;

    if (!r->plan->choice.host_stash)
        return;
    tiles->used = plan_queues_mark(&r->q, PLAN_QUEUE_COMPUTE);
    timeline_follow(r, PLAN_QUEUE_PUSH, PLAN_QUEUE_COMPUTE);
    if (!m->backward && kind != MODEL_HEAD)
        timeline_copy(r, PLAN_QUEUE_PUSH, tile_bytes(r, m));
    if (has_sum(r, m) && !is_bottom(r, m))
        timeline_copy(r, PLAN_QUEUE_PUSH, sum_bytes(r, m));
    else if (has_gradient(m) && !(kind == MODEL_EMBEDDING && is_bottom(r, m)))
        timeline_copy(r, PLAN_QUEUE_PUSH, tile_bytes(r, m));
    tiles->saved = *stashed_of(r, m) = plan_queues_mark(&r->q, PLAN_QUEUE_PUSH);
    if (has_sum(r, m) && is_bottom(r, m))
        plan_queues_follow(&r->q, PLAN_QUEUE_PULL, PLAN_QUEUE_PUSH, tiles->saved);
    r->tile = (r->tile + 1) % r->plan->n_sets;
}

/* ---- a step: proto/step/step.c ---- */

static void load_rows(struct timeline_run *r)
{
    const struct plan_setting *s = &r->plan->setting;

    for (uint32_t i = 0; i < r->n_runs; i++) {
        timeline_copy(r, PLAN_QUEUE_PULL, 2.0 * s->part_rows * s->goal.seq * sizeof(uint32_t));
        timeline_finish(r, PLAN_QUEUE_PULL, plan_queues_mark(&r->q, PLAN_QUEUE_PULL));
    }
}

static bool in_one_pass(const struct timeline_run *r, uint32_t visit)
{
    return r->plan->one_pass && visit >= plan_head(r->model)->first_visit;
}

static enum plan_work_kind kind_of(const struct timeline_run *r, uint32_t number)
{
    if (number == 0)
        return PLAN_WORK_FIRST;
    return r->work.n[PLAN_WORK_REST] > 0 && number + 1 == r->n_microbatches ? PLAN_WORK_REST : PLAN_WORK_NEXT;
}

/* Transfers between a microbatch's computation and its tiles' download. */
static void overlap(struct timeline_run *r, uint32_t place, const struct microbatch *m)
{
    const uint32_t done = m->number + 1, n = r->n_microbatches;

    if (!timeline_overlaps(r))
        return;
    timeline_weights_ahead(r, place + 1, ((double)m->run * n + done) / ((double)r->n_runs * n));
    if (m->backward)
        timeline_offers_go_on(r, n - done + 1);
}

static void visit_run(struct timeline_run *r, uint32_t place, uint32_t run)
{
    for (uint32_t i = 0; i < r->n_microbatches; i++) {
        struct microbatch m = {.visit = timeline_visit_at(r, place),
                               .run = run,
                               .number = i,
                               .kind = kind_of(r, i),
                               .backward = place >= r->n};
        m.tokens = (double)r->work.rows[m.kind] * r->plan->setting.goal.seq;
        m.in_one_pass = !m.backward && in_one_pass(r, m.visit);
        enter_tiles(r, &m);
        timeline_give(r, PLAN_QUEUE_COMPUTE, plan_work_visit(&r->work, m.visit, m.backward, m.kind), 0);
        overlap(r, place, &m);
        leave_tiles(r, &m);
    }
}

static void forward(struct timeline_run *r)
{
    const uint64_t apart = timeline_count_apart(r);

    for (uint32_t visit = 0; visit < r->n; visit++) {
        timeline_next_weights(r, visit);
        for (uint32_t run = 0; run < r->n_runs && !(in_one_pass(r, visit) && visit + 1 < r->n); run++) {
            if (in_one_pass(r, visit) && !r->plan->head_apart && model_contributes(r->model, visit))
                timeline_begin_sum(r, run);
            visit_run(r, visit, run);
        }
    }
    for (uint64_t contribution = 0; contribution < apart; contribution++)
        timeline_round_sum(r, contribution);
    r->forward = plan_queues_mark(&r->q, PLAN_QUEUE_COMPUTE);
}

static void backward(struct timeline_run *r)
{
    for (uint32_t place = r->n; place < r->end; place++) {
        const uint32_t visit = timeline_visit_at(r, place);
        const bool contributes = model_contributes(r->model, visit);
        timeline_next_weights(r, place);
        for (uint32_t run = 0; run < r->n_runs; run++) {
            if (!in_one_pass(r, visit)) {
                if (contributes)
                    timeline_begin_sum(r, model_contribution_number(r->model, visit, run, r->n_runs));
                visit_run(r, place, run);
            }
            if (contributes)
                timeline_offers_made(r);
        }
    }
    timeline_finish_offers(r);
}

static void begin_step(struct timeline_run *r, uint32_t step)
{
    r->step = step;
    memset(&r->weights, 0, sizeof r->weights);
    memset(r->tiles, 0, sizeof r->tiles);
    r->tile = 0;
    r->told = false;
    memset(&r->offers, 0, sizeof r->offers);
}

static void play_step(struct timeline_run *r, uint32_t step)
{
    begin_step(r, step);
    load_rows(r);
    forward(r);
    if (!timeline_overlaps(r))
        timeline_tell_losses(r);
    backward(r);
    for (enum plan_queue queue = PLAN_QUEUE_PULL; queue < PLAN_QUEUE_OPTIMIZER; queue++)
        timeline_finish(r, queue, plan_queues_mark(&r->q, queue));
}

static int open_run(struct timeline_run *r, const struct plan_timeline_setting *s)
{
    const struct plan_setting *p = &s->plan->setting;
    const uint32_t workers = s->host->n_workers < s->host->goal.n_parts ? s->host->n_workers : s->host->goal.n_parts;

    *r = (struct timeline_run){.s = s,
                               .plan = s->plan,
                               .model = s->model,
                               .q = {.host_bytes_per_s = s->profile->host_bytes_per_s},
                               .slow = p->backend->takes_turns ? workers : 1,
                               .n_runs = p->share_rows / p->part_rows,
                               .n = s->model->n_visits,
                               .end = model_end_of_backward(s->model),
                               .n_free = s->n_slots};
    plan_work_init(&r->work, s->plan, s->model, s->profile);
    r->work.gathers = true;
    r->n_microbatches = r->work.n[0] + r->work.n[1] + r->work.n[2];
    r->contributions = (double)s->host->goal.n_parts / r->n_runs;
    r->units = calloc(s->model->n_units, sizeof *r->units);
    r->stashed = calloc((size_t)r->n_runs * r->n_microbatches, sizeof *r->stashed);
    for (uint32_t u = 0; r->units && u < s->model->n_units; u++)
        r->n_slices += r->units[u].left = timeline_slices_of(r, u);
    r->not_folded = r->n_slices;
    return r->units && r->stashed ? 0 : -ENOMEM;
}

static void close_run(struct timeline_run *r)
{
    plan_queues_free(&r->q);
    free(r->units);
    free(r->stashed);
}

/* Reports the time since `before`. */
static void tell(struct plan_timeline *out, const struct plan_queues *q, const struct plan_queues *before)
{
    *out = (struct plan_timeline){.first = before->now, .seconds = q->now - before->now};
    for (int i = 0; i < PLAN_QUEUES; i++) {
        out->queues[i].busy = q->queues[i].busy - before->queues[i].busy;
        for (int j = 0; j <= PLAN_QUEUES; j++)
            out->queues[i].waited[j] = q->queues[i].waited[j] - before->queues[i].waited[j];
        if (out->queues[i].busy > out->queues[out->binds].busy)
            out->binds = (enum plan_queue)i;
    }
}

int plan_timeline(struct plan_timeline *out, const struct plan_timeline_setting *setting)
{
    struct timeline_run r;
    struct plan_queues before = {0};
    int rc = open_run(&r, setting);

    assert(setting->plan->setting.goal.purpose == PLAN_TRAIN && setting->n_slots > 0);
    for (uint32_t step = 0; rc == 0 && step < STEPS; step++) {
        before = r.q;
        play_step(&r, step);
        rc = r.q.no_memory ? -ENOMEM : 0;
    }
    if (rc == 0)
        tell(out, &r.q, &before);
    close_run(&r);
    return rc;
}
