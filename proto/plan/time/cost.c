/* The search asks for hundreds of predictions, so none takes time in proportion to depth: a kind of visit is priced
 * once (known), and when a round of recurring visits moves all ends of the pipeline alike, the rest of the run is a
 * multiplication (advance_by).
 *
 * This is the quick prediction, by which a search compares plans. proto/step/timeline.c runs the worker's own code on a
 * clock, takes longer, and is what eps plan --timeline shows. The order of visits, buffers and waits is written here a
 * second time, and must stay that of the worker. */
#include "proto/plan/time/cost.h"

#include "proto/plan/memory/chains.h"
#include "proto/plan/memory/data.h"
#include "proto/plan/memory/segments.h"
#include "proto/plan/memory/units.h"
#include "proto/plan/memory/values.h"
#include "proto/plan/time/work.h"

#include <math.h>

/* The seconds of a visit, each as if alone, and its bytes. */
struct visit {
    double compute, pull, push, stash, optimizer, messages;
    uint64_t down_bytes, up_bytes, stash_bytes;
};

/* The last visit of its kind, but for what it pulls and pads. A program's visits cost the same for all blocks that
 * use it. */
struct known {
    const struct model_program *program; /* NULL: none */
    uint64_t frozen, coded;              /* as in struct model_unit */
    bool is_lowest;
    struct visit visit;
};

enum { PROGRAMS = 32 /* with places of their own */ };

struct costs {
    const struct plan *plan;
    const struct model *model;
    const struct plan_host_setting *host;
    const struct profile *profile;
    struct plan_work work;
    double slow;                        /* workers that share the profiled device */
    double value;                       /* bytes */
    struct known known[2][2][PROGRAMS]; /* forward and backward; lower blocks, and those that keep more */
    const struct model_unit *decoded;   /* whose coded pieces the last visit decoded; or NULL */
};

static double cost_moved(const struct costs *c, double bytes)
{
    return bytes / c->profile->memory_bytes_per_s;
}

/* Computation of all microbatches of the share, and what finishes their contributions. Parts are alike, so a share
 * costs its number of parts. */
static double compute_of(const struct costs *c, uint32_t visit, bool backward)
{
    double seconds = backward ? plan_work_finish(&c->work, visit) : 0;

    for (enum plan_work_kind kind = 0; kind < PLAN_WORK_KINDS; kind++)
        if (c->work.n[kind] > 0)
            seconds += c->work.n[kind] * plan_work_visit(&c->work, visit, backward, kind);
    return seconds * (c->plan->setting.share_rows / c->plan->setting.part_rows);
}

/* A unit with several visits is updated once: each has its share of that. */
static double optimizer_of(const struct costs *c, const struct model_unit *unit)
{
    const struct plan_work_update each = plan_work_update(c->host, c->model, unit);
    const double bytes = each.fold * c->host->goal.n_parts + each.update / unit->n_visits;

    return (double)unit->n_trained * bytes / (c->profile->update_parameters_per_s * PLAN_WORK_UPDATE_BYTES);
}

/* Seconds of a contribution's messages where it waits for its folding: it arrives, and its slot is free. */
static double messages_of(const struct costs *c)
{
    return c->plan->setting.backend->takes_turns ? 2 * c->profile->message_s : 0;
}

/* The units in the buffers: those used last, as in proto/step/weights.c. The first is the latest. */
struct buffers {
    uint32_t units[PLAN_MAX_WEIGHT_BUFFERS], n, capacity;
};

/* True if the unit must be pulled. */
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

/* Buffers bound how far pulls run ahead; sums and sets bound how many contributions and tiles wait to be sent. With one
 * of each the worker waits for its transfers before it requests the next unit (proto/step/offers.h). All times are
 * seconds since the pass began. */
struct pipeline {
    double pulled;
    double computed[PLAN_MAX_WEIGHT_BUFFERS], pushed[PLAN_MAX_SUMS]; /* ends of the last visits, the latest first */
    uint32_t n_buffers, n_sets, n_sums;
    bool is_alone; /* a visit is one microbatch: its tile is on the host before the next visit's comes from there */
};

/* Inlined; libm's fmax is a call because it handles NaN. */
static double cost_later(double a, double b)
{
    return a > b ? a : b;
}

static void shift(double *ends, uint32_t n, double end)
{
    for (uint32_t i = n - 1; i > 0; i--)
        ends[i] = ends[i - 1];
    ends[0] = end;
}

/* A visit begins when its unit is here, the one before has been computed, and the memory for what it makes is free
 * again. What it makes is sent behind everything that was made before. */
static void cost_advance(struct pipeline *p, const struct visit *v)
{
    const double stash = v->stash / 2; /* half of it in each direction */
    const double left = p->n_sets == 1 ? p->pushed[0] : 0;

    p->pulled = cost_later(cost_later(p->pulled, left), p->computed[p->n_buffers - 1]) + v->pull;
    if (stash > 0)
        p->pulled = cost_later(p->pulled, p->is_alone ? p->pushed[0] : 0) + stash;
    const double tiles = v->stash > 0 ? p->pushed[p->n_sets - 1] : 0, sums = v->push > 0 ? p->pushed[p->n_sums - 1] : 0;
    const double begin = cost_later(cost_later(p->pulled, p->computed[0]), cost_later(tiles, sums));
    shift(p->computed, p->n_buffers, begin + v->compute);
    shift(p->pushed, p->n_sums, cost_later(p->pushed[0], p->computed[0]) + v->push + stash);
}

/* True if all ends have moved since `before` by the same amount, *by, up to rounding. */
static bool moved_alike(const struct pipeline *p, const struct pipeline *before, double *by)
{
    const double least = 1e-9;
    bool alike = true;

    *by = p->pulled - before->pulled;
    for (uint32_t i = 0; i < p->n_buffers; i++)
        alike &= fabs(p->computed[i] - before->computed[i] - *by) <= least * *by;
    for (uint32_t i = 0; i < p->n_sums; i++)
        alike &= fabs(p->pushed[i] - before->pushed[i] - *by) <= least * *by;
    return alike;
}

static void move(struct pipeline *p, double by)
{
    p->pulled += by;
    for (uint32_t i = 0; i < p->n_buffers; i++)
        p->computed[i] += by;
    for (uint32_t i = 0; i < p->n_sums; i++)
        p->pushed[i] += by;
}

static uint32_t common_multiple(uint32_t a, uint32_t b)
{
    uint32_t n = a;

    while (n % b > 0)
        n += a;
    return n;
}

/* Advances by n visits, which recur in periods. The use of buffers, sets and sums repeats after a round of visits. Once
 * a round of whole periods moves all ends by the same amount, every further one does. */
static void advance_by(struct pipeline *p, const struct visit *visits, uint32_t period, uint32_t n)
{
    const uint32_t round = common_multiple(p->n_buffers * p->n_sets * p->n_sums, period);
    double by;

    while (n > 0) {
        const struct pipeline before = *p;
        for (uint32_t i = 0, k = 0; i < round && n > 0; i++, n--) {
            cost_advance(p, &visits[k]);
            k = k + 1 < period ? k + 1 : 0;
        }
        if (n >= round && moved_alike(p, &before, &by)) {
            move(p, n / round * by);
            n %= round;
        }
    }
}

/* True if the visit pulls its unit. A resident unit is pulled once, in generation beforehand; the embedding's never.
 * Asked once for each visit, in order: it moves the buffers on. */
static bool is_pulled(const struct costs *c, struct buffers *buffers, uint32_t visit, bool backward)
{
    const uint32_t unit = c->model->visits[visit];

    const struct model_layer *layer = &c->model->layers[c->model->visit_layers[visit]];
    const bool generates = c->plan->setting.goal.purpose == PLAN_GENERATE;

    if (layer->kind == MODEL_EMBEDDING || (generates && c->plan->setting.goal.source > 0 && model_is_of_source(layer)))
        return false;
    if (plan_place_of(c->model, unit) < c->plan->n_resident)
        return !generates && !backward;
    return use(buffers, unit);
}

/* The embedding's rows are gathered from the host's memory: one row of each table for each token. */
static uint64_t gathered_bytes(const struct costs *c, uint32_t visit, bool backward)
{
    const struct plan_setting *s = &c->plan->setting;
    const struct model_layer *layer = &c->model->layers[c->model->visit_layers[visit]];
    const uint64_t tokens =
        s->goal.purpose == PLAN_GENERATE ? c->plan->choice.microbatch : (uint64_t)s->share_rows * s->goal.seq;

    if (backward || layer->kind != MODEL_EMBEDDING || visit > layer->first_visit)
        return 0;
    uint64_t bytes = 0;
    for (uint32_t v = layer->first_visit; v < layer->first_visit + layer->n_visits; v++) {
        const struct model_piece *piece = &c->model->pieces[c->model->units[c->model->visits[v]].first_piece];
        if (piece->first_row == 0)
            bytes += piece->form == FORM_BF16 ? number_bytes(NUMBER_BF16) : number_bytes(s->goal.precision);
    }
    return bytes * tokens * c->model->config.width;
}

/* Adds a period's visits, which come so many times, one period after the other. */
static void add_visits(struct plan_cost *out, struct pipeline *pipeline, const struct visit *visits, uint32_t period,
                       uint32_t times)
{
    for (const struct visit *v = visits; v < visits + period; v++) {
        out->compute_ms += times * v->compute * 1e3;
        out->pull_ms += times * v->pull * 1e3;
        out->push_ms += times * v->push * 1e3;
        out->stash_ms += times * v->stash * 1e3;
        out->optimizer_ms += times * v->optimizer * 1e3;
        out->message_ms += times * v->messages * 1e3;
        out->down_bytes += times * v->down_bytes;
        out->up_bytes += times * v->up_bytes;
        out->stash_bytes += times * v->stash_bytes;
    }
    advance_by(pipeline, visits, period, period * times);
}

/* Seconds to generate a token of each text: reads the weights, for all texts or for each, and earlier tokens' keys and
 * values. Products of so few rows take the time of reading their weights. */
static double generate_of(const struct costs *c, uint32_t visit)
{
    const double rows = c->plan->choice.microbatch, passes = c->plan->setting.backend->joins_rows ? 1 : rows;
    const struct model_layer *layer = &c->model->layers[c->model->visit_layers[visit]];
    const struct program_operation *attention =
        layer->program ? program_find(&layer->program->program, &operation_attention) : NULL;
    const int source = layer->program ? program_source_read(&layer->program->program) : -1;
    double cached =
        attention ? 2.0 * c->plan->setting.goal.seq * program_kv_columns(&layer->program->program, attention) : 0;

    if (source >= 0)
        cached += (double)c->plan->setting.goal.seq * layer->program->program.values[source].columns;
    if (layer->kind == MODEL_EMBEDDING ||
        (c->plan->setting.goal.source > 0 && model_is_of_source(layer))) /* the latter runs once for a text */
        return 0;
    return cost_moved(c, (passes * (double)c->model->units[c->model->visits[visit]].n + rows * cached) * c->value);
}

/* All but what it pulls, and pads. */
static struct visit compute_visit(const struct costs *c, uint32_t visit, bool backward)
{
    const struct plan_setting *s = &c->plan->setting;
    const uint64_t parts = s->share_rows / s->part_rows;
    const struct model_unit *unit = &c->model->units[c->model->visits[visit]];
    const double link = c->profile->link_bytes_per_s / c->slow;
    struct visit v = {
        .compute =
            (s->goal.purpose == PLAN_GENERATE ? generate_of(c, visit) : compute_of(c, visit, backward)) * c->slow,
        .optimizer = backward ? optimizer_of(c, unit) : 0,
        .messages = backward && unit->n_trained > 0 ? messages_of(c) * (double)parts : 0,
        .up_bytes = backward ? parts * (unit->n_trained + unit->n_norms) * number_bytes(c->host->goal.grad) : 0,
        .stash_bytes = plan_moved_bytes(c->plan, c->model, visit, backward),
    };

    v.push = (double)v.up_bytes / link;
    v.stash = (double)v.stash_bytes / link;
    return v;
}

/* compute_visit, remembered for layers with a program, each of which visits one unit. Programs beyond PROGRAMS share
 * places; then the price is computed anew each time. */
static struct visit cost_find_visit(struct costs *c, uint32_t visit, bool backward)
{
    const struct model *model = c->model;
    const struct model_layer *layer = &model->layers[model->visit_layers[visit]];
    const struct model_unit *unit = &model->units[model->visits[visit]];
    const bool is_lowest = backward && layer == &model->layers[model->lowest_trained];
    const bool keeps =
        layer->kind == MODEL_BLOCK && plan_kept_of(c->plan, layer) != c->plan->kept[model_class_of(layer)];

    if (!layer->program)
        return compute_visit(c, visit, backward);
    struct known *known = &c->known[backward][keeps][(layer->program - model->programs) % PROGRAMS];
    if (known->program != layer->program || known->frozen != unit->frozen || known->coded != unit->coded ||
        known->is_lowest != is_lowest)
        *known =
            (struct known){layer->program, unit->frozen, unit->coded, is_lowest, compute_visit(c, visit, backward)};
    return known->visit;
}

/* Seconds to zero the rows that pad a unit of the head in a buffer. A resident unit has them from the beginning. */
static double pad(const struct costs *c, uint32_t unit)
{
    const uint64_t n = plan_unit_room(c->model, unit, c->plan->head_pad) - c->model->units[unit].n;

    if (c->model->units[unit].n_decoded > 0 || plan_place_of(c->model, unit) < c->plan->n_resident)
        return 0;
    return cost_moved(c, (double)n * c->value) * c->slow;
}

/* Seconds to decode the coded and sparse pieces of a visit's unit, unless the visit before has. */
static double cost_decode(struct costs *c, uint32_t visit, bool backward)
{
    const struct model_unit *unit = &c->model->units[c->model->visits[visit]];
    const struct model_layer *layer = &c->model->layers[c->model->visit_layers[visit]];
    const bool needs_none =
        layer->kind == MODEL_EMBEDDING || (backward && c->plan->one_pass && layer->kind == MODEL_HEAD);

    if (needs_none || unit->n_decoded == 0 || unit == c->decoded || c->plan->choice.sparse_singly)
        return 0;
    c->decoded = unit;
    return plan_work_decode(&c->work, visit) * c->slow;
}

/* Seconds to copy a unit of which values will be derived again. */
static double cost_copy_unit(const struct costs *c, uint32_t visit, bool backward)
{
    const struct model_layer *layer = &c->model->layers[c->model->visit_layers[visit]];
    const double bytes = (double)c->model->units[c->model->visits[visit]].n * c->value;

    if (backward || !plan_is_copied(c->plan, c->model, layer))
        return 0;
    return (cost_moved(c, 2 * bytes) + c->profile->call_s) * c->slow;
}

/* What is known of the share's tokens comes for each visit (proto/model/norms.h). */
static uint64_t norms_bytes(const struct costs *c, const struct model_unit *unit)
{
    return c->plan->setting.share_rows / c->plan->setting.part_rows * unit->n_norms * sizeof(uint16_t);
}

static struct visit cost_visit_of(struct costs *c, struct buffers *buffers, uint32_t visit, bool backward)
{
    const uint32_t unit = c->model->visits[visit];
    const bool pulled = is_pulled(c, buffers, visit, backward);
    struct visit v = cost_find_visit(c, visit, backward);

    v.compute += (pulled ? pad(c, unit) : 0) + cost_decode(c, visit, backward) + cost_copy_unit(c, visit, backward);
    v.down_bytes = (pulled ? plan_pulled_bytes(c->plan, c->model, unit) : 0) + gathered_bytes(c, visit, backward) +
                   norms_bytes(c, &c->model->units[unit]);
    v.pull = (double)v.down_bytes / (c->profile->link_bytes_per_s / c->slow);
    return v;
}

/* Layers of blocks from begin on, before end, by their places among them. */
struct range {
    uint32_t begin, end;
};

/* Cuts the range at `at`, and leaves the half that contains `place`. */
static void cost_cut(struct range *range, uint32_t at, uint32_t place)
{
    if (place < at && at < range->end)
        range->end = at;
    if (place >= at && at > range->begin)
        range->begin = at;
}

static uint32_t cost_place_of(const struct model *model, const struct model_layer *layer)
{
    return (uint32_t)(layer - model->layers) - model->first_block;
}

/* The lowest layer of a class that keeps what its topmost ones do; beyond all blocks: none does. */
static uint32_t lowest_kept(const struct costs *c, uint32_t class)
{
    const uint32_t first = c->plan->kept[class][1].first;

    return first < c->model->classes[class].n_blocks ? cost_place_of(c->model, model_ranked(c->model, class, first))
                                                     : c->model->n_block_layers;
}

/* The layers of blocks around this one whose visits recur: with their units, all resident or none, and all of a class
 * keeping the same. */
static struct range cost_find_range(const struct costs *c, uint32_t visit, bool backward)
{
    const struct model *model = c->model;
    const uint32_t place = cost_place_of(model, &model->layers[model->visit_layers[visit]]);
    const uint32_t unit = model->visits[visit], lowest_unit = unit - place;
    const struct model_alike *alike = &model->units[unit].alike;
    const uint32_t places = plan_place_of(model, lowest_unit) + 1, n_resident = c->plan->n_resident;
    struct range range = {alike->first - lowest_unit, alike->end - lowest_unit};

    cost_cut(&range, places > n_resident ? places - n_resident : 0, place);
    for (uint32_t i = 0; i < model->n_classes; i++)
        cost_cut(&range, lowest_kept(c, i), place);
    if (backward && model->lowest_trained >= model->first_block) /* it computes less */
        cost_cut(&range, model->lowest_trained - model->first_block + 1, place);
    return range;
}

/* The number of recurring visits from this one on: of blocks, else 1. */
static uint32_t cost_count_alike(const struct costs *c, uint32_t visit, bool backward)
{
    const struct model_layer *layer = &c->model->layers[c->model->visit_layers[visit]];

    if (layer->kind != MODEL_BLOCK)
        return 1;
    const struct range range = cost_find_range(c, visit, backward);
    const uint32_t place = cost_place_of(c->model, layer);
    return backward ? place - range.begin + 1 : range.end - place;
}

/* Visits first .. first+n-1, upwards, or downwards if backward. Visit by visit, except for the middle of a run of
 * recurring visits, as of 4,096 blocks: when it begins, all buffers must hold units of the run, and so they do when it
 * ends. */
static void add_some(struct plan_cost *out, struct pipeline *pipeline, struct costs *c, struct buffers *buffers,
                     struct plan_visits some, bool backward)
{
    uint32_t n_before = 0, was_alike = 0; /* visits of the run before this one; cost_count_alike of the visit before */

    for (uint32_t done = 0, period, times; done < some.n; done += period * times) {
        const uint32_t visit = backward ? some.first + some.n - 1 - done : some.first + done;
        const uint32_t recurring = cost_count_alike(c, visit, backward), left = some.n - done;
        const uint32_t alike = recurring < left ? recurring : left;
        struct visit visits[MODEL_PERIOD];

        n_before = alike + 1 == was_alike ? n_before + 1 : 0;
        was_alike = alike;
        period = c->model->units[c->model->visits[visit]].alike.period;
        times =
            n_before > buffers->capacity && alike > buffers->capacity ? (alike - buffers->capacity - 1) / period : 0;
        if (times == 0)
            period = times = 1;
        for (uint32_t i = 0; i < period; i++)
            visits[i] = cost_visit_of(c, buffers, backward ? visit - i : visit + i, backward);
        add_visits(out, pipeline, visits, period, times);
    }
}

/* What derives the values of a chain again: nothing is pulled. Only computing is added: what is read of the units
 * was copied in forward. */
static void add_chain(struct plan_cost *out, struct pipeline *pipeline, struct costs *c,
                      const struct model_chain *chain)
{
    for (uint32_t i = 0; i < chain->n; i++) {
        const struct model_layer *layer = plan_chain_layer(c->model, chain, i);
        const struct visit v = {.compute = cost_find_visit(c, layer->first_visit, false).compute};
        add_visits(out, pipeline, &v, 1, 1);
    }
}

/* Of these visits. */
static void add_backward(struct plan_cost *out, struct pipeline *pipeline, struct costs *c, struct buffers *buffers,
                         struct plan_visits some)
{
    for (uint32_t i = c->plan->choice.derives ? c->model->values.n_chains : 0; i-- > 0;) {
        const struct model_chain *chain = &c->model->values.chains[i];
        const uint32_t above = c->model->layers[chain->topmost].first_visit + 1;
        if (above <= some.first)
            break;
        add_some(out, pipeline, c, buffers, (struct plan_visits){above, some.first + some.n - above}, true);
        add_chain(out, pipeline, c, chain);
        some.n = above - some.first;
    }
    add_some(out, pipeline, c, buffers, some, true);
}

/* Forward; in training then segment after segment, the topmost first: what is computed again, and backward. */
static void add_all(struct plan_cost *out, struct pipeline *pipeline, struct costs *c)
{
    const struct model *model = c->model;
    const uint32_t n = model->n_visits;
    const bool trains = c->plan->setting.goal.purpose == PLAN_TRAIN;
    const uint32_t lowest = trains ? 2 * n - model_end_of_backward(model) : n;
    struct buffers buffers = {.capacity = c->plan->n_weight_buffers};

    add_some(out, pipeline, c, &buffers, (struct plan_visits){0, n}, false);
    for (uint32_t s = c->plan->choice.n_cuts + 1, end = n; s-- > 0 && lowest < end;) {
        const struct plan_visits again = plan_again_of(&c->plan->choice, model, s);
        const uint32_t first = again.first > lowest ? again.first : lowest;
        add_some(out, pipeline, c, &buffers, again, false);
        add_backward(out, pipeline, c, &buffers, (struct plan_visits){first, end - first});
        end = again.first;
    }
}

/* All row groups, the last of which may be smaller. What the optimizer does is of the whole step. Each group pulls
 * all weights once more; all else grows with the rows. */
static void repeat(struct plan_cost *out, struct pipeline *pipeline, const struct plan *plan)
{
    const uint32_t parts = plan->setting.share_rows / plan->setting.part_rows;
    const double times = (double)plan->share_parts / parts;
    const uint64_t n_groups = (plan->share_parts + parts - 1) / parts;

    if (n_groups == 1)
        return;
    out->compute_ms *= times, out->push_ms *= times, out->stash_ms *= times, out->message_ms *= times;
    out->pull_ms *= (double)n_groups, out->down_bytes *= n_groups;
    out->up_bytes = (uint64_t)((double)out->up_bytes * times);
    out->stash_bytes = (uint64_t)((double)out->stash_bytes * times);
    pipeline->computed[0] *= times, pipeline->pushed[0] *= times;
}

/* The optimizer overlaps the next step, and shares host memory with the link. So a step cannot be shorter than the
 * host's memory takes for both. */
static double host_ms(const struct costs *c, const struct plan_cost *out)
{
    const double optimizer_bytes =
        out->optimizer_ms / 1e3 * c->profile->update_parameters_per_s * PLAN_WORK_UPDATE_BYTES;
    const double copied = (double)(out->down_bytes + out->up_bytes + out->stash_bytes) * c->host->n_workers;
    const double memory = c->profile->host_bytes_per_s;

    return fmax(out->optimizer_ms, memory > 0 ? (optimizer_bytes + copied) / memory * 1e3 : 0);
}

void plan_cost(struct plan_cost *out, const struct plan *plan, const struct model *model,
               const struct plan_host_setting *host, const struct profile *profile, struct plan_prices *prices)
{
    const struct plan_setting *s = &plan->setting;
    const bool takes_turns = s->backend->takes_turns;
    const uint32_t n_parts = plan_host_parts(host);
    const uint32_t n_workers = host->n_workers < n_parts ? host->n_workers : n_parts;
    struct costs c = {.plan = plan,
                      .model = model,
                      .host = host,
                      .profile = profile,
                      .slow = takes_turns ? n_workers : 1,
                      .value = (double)number_bytes(s->goal.precision)};
    struct pipeline pipeline = {.n_buffers = plan->choice.n_weight_buffers,
                                .n_sets = plan->n_sets,
                                .n_sums = plan->n_sums,
                                .is_alone = plan->choice.microbatch >= s->share_rows};

    struct plan_prices own = {0};

    *out = (struct plan_cost){0};
    plan_work_init(&c.work, plan, model, profile, prices ? prices : &own);
    add_all(out, &pipeline, &c);
    repeat(out, &pipeline, plan);
    if (takes_turns)
        out->device_ms =
            out->compute_ms + out->pull_ms + out->push_ms + out->stash_ms + out->optimizer_ms + out->message_ms;
    else
        out->device_ms = fmax(pipeline.computed[0], pipeline.pushed[0]) * 1e3;
    out->step_ms = takes_turns ? out->device_ms : fmax(out->device_ms, host_ms(&c, out));
    /* From so many tokens on, a matrix is used for longer than its weights take to come: two operations for each weight
     * and token, against `value` bytes. */
    out->hiding_tokens =
        c.value *
        profile_flops(profile, profile_type(s->backend, s->goal.precision),
                      (double)plan->choice.microbatch * plan_row_tokens(s, model, plan->choice.microbatch),
                      model->config.width) /
        (2 * profile->link_bytes_per_s);
}
