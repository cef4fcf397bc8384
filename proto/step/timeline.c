/* The daemon has no loop of its own here: its part is in the link's calls, and in what the clock calls when mail
 * arrives or the optimizer has finished. Time passes only while one of them waits. A layer's price is remembered by
 * its kind, since a plan may have 4,096 of them. */
#include "proto/step/timeline.h"

#include "proto/model/norms.h"
#include "proto/step/clock.h"
#include "proto/step/layers.h"
#include "proto/step/step.h"
#include "proto/plan/memory/units.h"
#include "proto/plan/time/work.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>

enum {
    STEPS = 2,
    DIRECTIONS = 2,             /* forward, backward */
    PROGRAMS = 32,              /* whose prices have places of their own */
    LAYER_KINDS = PROGRAMS + 2, /* by program; embedding, head */
    KEPT_KINDS = 2,             /* blocks by what they keep: plan.kept */
};

struct timeline_unit {
    uint64_t updates; /* so far: the version */
    uint64_t left;    /* slices of a step that are not folded */
    double updated;   /* when that version was there */
};

/* Times at which messages come, rising: a ring of n_slots. */
struct timeline_mail {
    double *at; /* (n_slots) */
    uint32_t first, n;
};

/* The last computed duration of a visit of this kind. */
struct timeline_price {
    const struct model_program *program; /* NULL: of embedding and head */
    const struct model_unit *unit;       /* NULL: none */
    bool lowest;                         /* as in struct layer_pass */
    double seconds;
    struct plan_uses uses;
};

struct timeline {
    const struct step_timeline_setting *s;
    struct device clock;
    struct device_worker worker; /* its model's arrays are borrowed */
    struct timeline_price prices[LAYER_KINDS][DIRECTIONS][PLAN_WORK_KINDS][KEPT_KINDS];
    struct plan_uses uses; /* of this step's visits */

    uint32_t n_runs, *parts;  /* (n_runs) of the share */
    uint32_t *tokens;         /* (share_rows, seq) zeros: ids and labels */
    struct plan_row *lengths; /* (share_rows) of a classifier */
    float *numbers;           /* (share_rows, seq) zeros: references of pairs, weights of tokens */

    /* The daemon: */
    double contributions; /* contributions of all workers per contribution of this one */
    uint64_t version;     /* version of the units to pull */
    struct {
        uint32_t unit;
        double at;
    } asked[PLAN_MAX_WEIGHT_BUFFERS]; /* a ring from n_waits to n_pulls */
    uint64_t n_pulls, n_waits;
    struct timeline_unit *units;       /* (units) */
    uint64_t n_slices, not_folded;     /* slices of all units in a step; those not folded yet */
    uint32_t n_free;                   /* slots, as the worker knows */
    struct timeline_mail given, freed; /* contributions, and slots that are free */
    struct plan_task *tasks;           /* (n_slots) of contributions on their way, as given.at */
};

/* ---- layers: one task a visit ---- */

/* The first microbatch of a part begins sums, a last one may be smaller; all others cost the same. */
static enum plan_work_kind timeline_kind_of(const struct layer_pass *pass)
{
    if (pass->fresh)
        return PLAN_WORK_FIRST;
    return pass->n_rows < pass->plan->choice.microbatch ? PLAN_WORK_REST : PLAN_WORK_NEXT;
}

/* Programs beyond PROGRAMS share places: is_of then notices, and the price is computed anew. */
static struct timeline_price *price_of(struct timeline *t, const struct layer_pass *pass, bool backward)
{
    const struct model_layer *layer = pass->layer;
    const uint32_t kind = pass->program ? (uint32_t)(pass->program - pass->model->programs) % PROGRAMS
                                        : PROGRAMS + (layer->kind == MODEL_HEAD);
    const bool is_above =
        layer->kind == MODEL_BLOCK && plan_kept_of(pass->plan, layer) != pass->plan->kept[model_class_of(layer)];

    return &t->prices[kind][backward][timeline_kind_of(pass)][is_above];
}

static bool is_of(const struct timeline_price *price, const struct layer_pass *pass)
{
    const bool is_alike =
        price->unit == pass->unit || (price->unit && pass->program && price->unit->frozen == pass->unit->frozen);

    return is_alike && price->program == pass->program && price->lowest == pass->lowest;
}

/* Runs the visit on a meter. Nothing is computed: the layer's own code runs over a table that adds up prices. */
static void timeline_measure(struct timeline_price *out, const struct timeline *t, const struct layer_pass *pass,
                             bool backward)
{
    const struct layer_ops *layer = layer_table[pass->layer->kind];
    struct plan_meter meter = t->clock.meter;
    struct layer_pass metered = *pass;

    if (pass->layer->kind == MODEL_EMBEDDING)
        meter.found = plan_work_found(pass->model, pass->unit, layer_tokens(pass));
    metered.ops = &plan_meter_ops;
    metered.dev = plan_meter_device(&meter);
    (backward ? layer->backward : layer->forward)(&metered);
    *out = (struct timeline_price){pass->program, pass->unit, pass->lowest, meter.seconds, meter.uses};
}

static void timeline_add(struct plan_uses *to, const struct plan_uses *uses)
{
    for (int i = 0; i < PLAN_USES; i++) {
        to->seconds[i] += uses->seconds[i];
        to->operations[i] += uses->operations[i];
    }
}

static void timeline_visit(const struct layer_pass *pass, bool backward)
{
    struct timeline *t = pass->dev->context;
    struct timeline_price *price = price_of(t, pass, backward);

    if (!is_of(price, pass))
        timeline_measure(price, t, pass, backward);
    timeline_add(&t->uses, &price->uses);
    clock_compute(pass->dev, price->seconds);
}

static void timeline_forward(const struct layer_pass *pass)
{
    timeline_visit(pass, false);
}

static void timeline_backward(const struct layer_pass *pass)
{
    timeline_visit(pass, true);
}

static const struct layer_ops priced = {timeline_forward, timeline_backward};
static const struct layer_ops *const layers[] = {
    [MODEL_EMBEDDING] = &priced, [MODEL_BLOCK] = &priced, [MODEL_SINGLE] = &priced, [MODEL_HEAD] = &priced};

/* ---- messages ---- */

static double message_s(const struct timeline *t)
{
    return t->s->profile->message_s;
}

/* Sends one now; returns its place. */
static uint32_t send_mail(struct timeline *t, struct timeline_mail *mail)
{
    const uint32_t place = (mail->first + mail->n++) % t->s->n_slots;

    assert(mail->n <= t->s->n_slots);
    mail->at[place] = t->clock.queues.now + message_s(t);
    return place;
}

static double next_mail(const struct timeline_mail *mail)
{
    return mail->n > 0 ? mail->at[mail->first] : INFINITY;
}

/* Takes those that have come. The number of them, from *first on. */
static uint32_t take_mail(struct timeline *t, struct timeline_mail *mail, uint32_t *first)
{
    uint32_t n = 0;

    *first = mail->first;
    for (; next_mail(mail) <= t->clock.queues.now; n++, mail->n--)
        mail->first = (mail->first + 1) % t->s->n_slots;
    return n;
}

/* Gives the optimizer what has come, and the worker slots. The alarm is set to the next mail, so that the clock
 * calls again then. */
static void timeline_deliver(void *context)
{
    struct timeline *t = context;
    uint32_t first;
    const uint32_t n = take_mail(t, &t->given, &first);

    for (uint32_t i = 0; i < n; i++)
        plan_queues_give(&t->clock.queues, PLAN_QUEUE_OPTIMIZER, &t->tasks[(first + i) % t->s->n_slots]);
    t->n_free += take_mail(t, &t->freed, &first);
    t->clock.alarm = fmin(next_mail(&t->given), next_mail(&t->freed));
}

/* ---- the optimizer ---- */

/* Bound by memory: as many bytes as the optimizer reads and writes, at the measured rate of an update. */
static struct plan_task task_of(const struct timeline *t, uint32_t unit, double n, double bytes, bool is_update)
{
    const double touched = n * bytes;

    return (struct plan_task){
        .unit = unit,
        .is_update = is_update,
        .seconds = touched / (t->s->profile->update_parameters_per_s * PLAN_WORK_UPDATE_BYTES),
        .host_bytes = touched,
    };
}

static void set_updated(struct timeline *t, uint32_t unit)
{
    t->units[unit].updates++;
    t->units[unit].updated = t->clock.queues.now;
}

static void timeline_update(struct timeline *t, uint32_t unit)
{
    const struct model_unit *u = &t->worker.model.units[unit];
    const double bytes = plan_work_update(t->s->host, &t->worker.model, u).update;

    const struct plan_task task = task_of(t, unit, (double)u->n_trained, bytes, true);

    if (bytes > 0)
        plan_queues_give(&t->clock.queues, PLAN_QUEUE_OPTIMIZER, &task);
    else
        set_updated(t, unit);
}

/* Slices contributed to a unit in a step. */
static uint64_t timeline_slices_of(const struct timeline *t, uint32_t unit)
{
    const struct model_unit *u = &t->worker.model.units[unit];

    return (uint64_t)u->n_slices * u->n_visits * t->n_runs;
}

/* A unit is updated when all its slices are folded; unless the commit is eager, when all of the step's are. The next
 * step contributes nothing before that. A fold frees its slot, which the worker hears of a message later. */
static void on_optimized(void *context, const struct plan_task *task)
{
    struct timeline *t = context;
    const struct model *model = &t->worker.model;
    struct timeline_unit *unit = &t->units[task->unit];

    if (task->is_update) {
        set_updated(t, task->unit);
        return;
    }
    send_mail(t, &t->freed);
    t->clock.alarm = fmin(t->clock.alarm, next_mail(&t->freed));
    if (--t->not_folded == 0) {
        for (uint32_t u = 0; plan_updates_last(&t->s->host->goal) && u < model->n_units; u++)
            if (model->units[u].n_trained > 0)
                timeline_update(t, u);
        t->not_folded = t->n_slices;
    }
    if (--unit->left == 0) {
        if (!plan_updates_last(&t->s->host->goal))
            timeline_update(t, task->unit);
        unit->left = timeline_slices_of(t, task->unit);
    }
}

/* ---- the link ---- */

/* Out of memory the job ends. */
static int timeline_verdict(const struct timeline *t)
{
    return t->clock.queues.no_memory ? -ECANCELED : 0;
}

static int timeline_pull(void *context, uint64_t version, uint32_t unit)
{
    struct timeline *t = context;

    assert(version == t->version && t->n_pulls - t->n_waits < PLAN_MAX_WEIGHT_BUFFERS);
    t->asked[t->n_pulls % PLAN_MAX_WEIGHT_BUFFERS].unit = unit;
    t->asked[t->n_pulls++ % PLAN_MAX_WEIGHT_BUFFERS].at = t->clock.queues.now;
    return 0;
}

/* The answer comes a message after both the question and the unit's update. */
static int timeline_wait_weights(void *context, struct device_link_weights *weights)
{
    struct timeline *t = context;
    const uint64_t n = t->n_waits++ % PLAN_MAX_WEIGHT_BUFFERS;
    const uint32_t unit = t->asked[n].unit;

    while (t->worker.model.units[unit].n_trained > 0 && t->units[unit].updates < t->version && timeline_verdict(t) == 0)
        clock_pass(&t->clock, PLAN_QUEUE_OPTIMIZER, INFINITY);
    const double answered = fmax(t->asked[n].at + message_s(t), t->units[unit].updated) + message_s(t);
    while (t->clock.queues.now < answered && timeline_verdict(t) == 0)
        clock_pass(&t->clock, PLAN_QUEUE_NOBODY, answered);
    *weights = (struct device_link_weights){.trained = CLOCK_ADDRESS, .frozen = CLOCK_ADDRESS};
    return timeline_verdict(t);
}

static int timeline_loss(void *context, uint32_t part, double sum, const struct preference_rewards *rewards,
                         bool finite)
{
    (void)part, (void)sum, (void)rewards, (void)finite;
    return timeline_verdict(context);
}

static int timeline_take_slot(void *context, uint32_t of_visit, uint32_t part, uint32_t slice, bool wait, void **slot)
{
    struct timeline *t = context;

    (void)of_visit, (void)part, (void)slice;
    while (wait && t->n_free == 0 && timeline_verdict(t) == 0)
        clock_pass(&t->clock, PLAN_QUEUE_OPTIMIZER, INFINITY);
    *slot = t->n_free > 0 ? CLOCK_ADDRESS : NULL;
    t->n_free -= *slot != NULL;
    return timeline_verdict(t);
}

/* The contributions of all other workers are folded, too: each of this one's stands for its share of them. */
static int timeline_contribute(void *context, uint32_t of_visit, uint32_t part, uint32_t slice, const void *slot,
                               const struct device_link_slice *of)
{
    struct timeline *t = context;
    const uint32_t unit = t->worker.model.visits[of_visit];
    const struct model_unit *u = &t->worker.model.units[unit];

    (void)part, (void)slice, (void)slot;
    t->tasks[send_mail(t, &t->given)] = task_of(t, unit, (double)of->n * t->contributions,
                                                plan_work_update(t->s->host, &t->worker.model, u).fold, false);
    t->clock.alarm = fmin(t->clock.alarm, next_mail(&t->given));
    return timeline_verdict(t);
}

/* A worker that takes turns shares its cores with the optimizer, updates included: their times add up. */
static int timeline_contributed(void *context, uint32_t of_visit, uint32_t part)
{
    struct timeline *t = context;

    (void)of_visit, (void)part;
    while (t->clock.takes_turns && (t->clock.queues.queues[PLAN_QUEUE_OPTIMIZER].n > 0 || t->clock.alarm < INFINITY) &&
           timeline_verdict(t) == 0)
        clock_pass(&t->clock, PLAN_QUEUE_OPTIMIZER, INFINITY);
    return timeline_verdict(t);
}

static int timeline_ended(void *context)
{
    return timeline_verdict(context);
}

static const struct device_link played = {timeline_pull,       timeline_wait_weights, timeline_loss, timeline_take_slot,
                                          timeline_contribute, timeline_contributed,  timeline_ended};

/* ---- steps ---- */

/* Makes a minibatch whose rows all have full length. Contents do not matter, as prices depend on sizes alone; but
 * ids must be valid. */
static int make_share(struct timeline *t)
{
    const struct plan_setting *p = &t->s->plan->setting;
    const uint32_t source = model_first_predicted(t->s->model, p->goal.seq), length = source ? source : p->goal.seq;

    t->n_runs = p->share_rows / p->part_rows;
    t->parts = calloc(t->n_runs, sizeof *t->parts);
    t->tokens = calloc((size_t)p->share_rows * p->goal.seq, sizeof *t->tokens);
    t->lengths = calloc(p->share_rows, sizeof *t->lengths);
    t->numbers = calloc((size_t)p->share_rows * p->goal.seq, sizeof *t->numbers);
    if (!t->parts || !t->tokens || !t->lengths || !t->numbers)
        return -ENOMEM;
    for (uint32_t i = 0; i < t->n_runs; i++)
        t->parts[i] = i;
    for (uint32_t i = 0; i < p->share_rows; i++)
        t->lengths[i] = (struct plan_row){.n_tokens = length, .second = length};
    return 0;
}

static int make_daemon(struct timeline *t)
{
    const struct model *model = t->s->model;

    t->n_free = t->s->n_slots;
    t->contributions = (double)t->s->host->goal.n_parts / t->n_runs;
    t->units = calloc(model->n_units, sizeof *t->units);
    t->given.at = calloc(t->s->n_slots, sizeof *t->given.at);
    t->freed.at = calloc(t->s->n_slots, sizeof *t->freed.at);
    t->tasks = calloc(t->s->n_slots, sizeof *t->tasks);
    for (uint32_t u = 0; t->units && u < model->n_units; u++)
        t->n_slices += t->units[u].left = timeline_slices_of(t, u);
    t->not_folded = t->n_slices;
    return t->units && t->given.at && t->freed.at && t->tasks ? 0 : -ENOMEM;
}

/* CPU workers share cores, so each is slower by their number; devices share the host's memory. */
static int make_worker(struct timeline *t)
{
    const struct step_timeline_setting *s = t->s;
    const uint32_t workers = s->host->n_workers < s->host->goal.n_parts ? s->host->n_workers : s->host->goal.n_parts;
    const struct plan_setting *setting = &s->plan->setting;
    const bool takes_turns = setting->backend->takes_turns;

    t->clock = (struct device){.queues.host_bytes_per_s = s->profile->host_bytes_per_s,
                               .meter = plan_meter_of(setting, s->profile),
                               .takes_turns = takes_turns,
                               .slow = takes_turns ? workers : 1,
                               .n_beside = takes_turns ? 0 : workers - 1,
                               .on_optimized = on_optimized,
                               .on_alarm = timeline_deliver,
                               .alarm = INFINITY,
                               .context = t};
    t->worker = (struct device_worker){
        .ops = &device_clock,
        .dev = &t->clock,
        .layers = layers,
        .model = *s->model,
        .plan = *s->plan,
        .stash = CLOCK_ADDRESS,
        .chunks = calloc(plan_head(s->model)->n_visits, sizeof *t->worker.chunks),
        .stashed = calloc(setting->share_rows, sizeof *t->worker.stashed),
        .row_tokens = calloc(setting->share_rows, sizeof *t->worker.row_tokens),
        .contributing = calloc(s->model->n_trained_visits, sizeof *t->worker.contributing),
        .homes = calloc(s->model->n_visits, sizeof *t->worker.homes),
        .staying = calloc(s->model->n_units, sizeof *t->worker.staying),
    };
    if (!t->worker.chunks || !t->worker.stashed || !t->worker.row_tokens || !t->worker.contributing ||
        !t->worker.homes || !t->worker.staying)
        return -ENOMEM;
    t->worker.plan.setting.goal.checks_memory = false;        /* slices have no bytes to add up */
    for (uint32_t unit = 0; unit < s->model->n_units; unit++) /* as in any step but a job's first */
        t->worker.staying[unit] = plan_stays(s->plan, s->model, unit);
    return 0;
}

static int play_step(struct timeline *t, uint64_t step)
{
    const struct device_share share = {
        .step = step,
        .n_valid = 1,
        .n_parts = t->n_runs,
        .parts = t->parts,
        .rows = {.n_tokens = t->s->plan->setting.goal.seq,
                 .ids = t->tokens,
                 .labels = t->tokens,
                 .positions = t->tokens,
                 .rows = t->lengths,
                 .references = t->numbers,
                 .weights = t->numbers},
    };
    struct error err;

    t->version = step;
    t->uses = (struct plan_uses){0};
    const int rc = device_worker_step(&t->worker, &share, &played, t, &err);
    assert(rc == 0 || t->clock.queues.no_memory);
    return rc ? -ENOMEM : 0;
}

static void close_timeline(struct timeline *t)
{
    plan_queues_free(&t->clock.queues);
    free(t->worker.chunks);
    free(t->worker.stashed);
    free(t->worker.row_tokens);
    free(t->worker.contributing);
    free(t->worker.homes);
    free(t->worker.staying);
    free(t->parts);
    free(t->tokens);
    free(t->lengths);
    free(t->numbers);
    free(t->units);
    free(t->given.at);
    free(t->freed.at);
    free(t->tasks);
}

/* Reports the time since `before`. */
static void timeline_tell(struct step_timeline *out, const struct plan_queues *q, const struct plan_queues *before)
{
    *out = (struct step_timeline){.first = before->now, .seconds = q->now - before->now};
    for (int i = 0; i < PLAN_QUEUES; i++) {
        out->queues[i].busy = q->queues[i].busy - before->queues[i].busy;
        for (int j = 0; j <= PLAN_QUEUES; j++)
            out->queues[i].waited[j] = q->queues[i].waited[j] - before->queues[i].waited[j];
        if (out->queues[i].busy > out->queues[out->binds].busy)
            out->binds = (enum plan_queue)i;
    }
}

/* Two steps: the first begins with all weights there, the second waits for updates as every later one does, and is
 * reported. */
int step_timeline(struct step_timeline *out, const struct step_timeline_setting *setting)
{
    struct timeline t = {.s = setting};
    struct plan_queues before = {0};
    int rc = make_share(&t);

    assert(setting->plan->setting.goal.purpose == PLAN_TRAIN && setting->n_slots > 0);
    if (rc == 0)
        rc = make_worker(&t);
    if (rc == 0)
        rc = make_daemon(&t);
    for (uint64_t step = 0; rc == 0 && step < STEPS; step++) {
        before = t.clock.queues;
        rc = play_step(&t, step);
    }
    if (rc == 0) {
        timeline_tell(out, &t.clock.queues, &before);
        out->uses = t.uses;
    }
    close_timeline(&t);
    return rc;
}

double step_timeline_play(const struct plan *plan, const struct model *model, const struct plan_host_setting *host,
                          const struct profile *profile, uint32_t n_slots)
{
    const struct step_timeline_setting setting = {plan, model, host, profile, n_slots};
    struct step_timeline line;

    return step_timeline(&line, &setting) ? INFINITY : line.seconds;
}
