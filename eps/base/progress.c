/* A worker does not say where it is: its position is guessed from the units that it gets, and a unit may be of several
 * places. The nearest in the direction of the pass is taken, so a guess is never behind; a wrong one is only shown,
 * never counted with. Limits of patience grow with what the worker itself has shown, since the same silence is a hang
 * of one device and a large layer of another. */
#include "eps/base/progress.h"

void progress_begin(struct progress *p, enum message_phase phase, uint32_t first_part, uint32_t n_parts)
{
    p->phase = phase;
    p->visit = 0;
    p->part = first_part;
    p->n_parts = n_parts;
}

static uint32_t progress_unit_of(const struct model *model, const uint32_t *homes, uint32_t visit)
{
    return model->visits[model_order_home(homes, visit)];
}

/* The nearest visit of a unit from this one on, upwards; n_visits if there is none. */
static uint32_t find_up(const struct model *model, const uint32_t *homes, uint32_t unit, uint32_t from)
{
    while (from < model->n_visits && progress_unit_of(model, homes, from) != unit)
        from++;
    return from;
}

static uint32_t find_down(const struct model *model, const uint32_t *homes, uint32_t unit, uint32_t from)
{
    for (uint32_t v = from + 1; v-- > 0;)
        if (progress_unit_of(model, homes, v) == unit)
            return v;
    return model->n_visits;
}

void progress_pull(struct progress *p, const struct model *model, const uint32_t *homes, uint32_t unit, uint64_t bytes)
{
    uint32_t visit;

    p->down_bytes += bytes;
    if (p->phase == PHASE_BACKWARD) {
        visit = find_down(model, homes, unit, p->visit);
    } else {
        visit = find_up(model, homes, unit, p->visit);
        if (visit == model->n_visits && p->phase != PHASE_FORWARD) /* the next microbatch, or token */
            visit = find_up(model, homes, unit, 0);
        if (visit == model->n_visits && p->phase == PHASE_FORWARD) {
            p->phase = PHASE_BACKWARD;
            visit = find_down(model, homes, unit, model->n_visits - 1);
        }
    }
    if (visit < model->n_visits)
        p->visit = visit;
}

void progress_loss(struct progress *p, const struct model *model, uint32_t part)
{
    if (p->phase == PHASE_FORWARD)
        p->visit = model->n_visits - 1;
    p->phase = PHASE_BACKWARD;
    p->part = part;
}

void progress_contribution(struct progress *p, uint32_t visit, uint32_t part, uint64_t bytes)
{
    p->phase = PHASE_BACKWARD;
    p->visit = visit;
    p->part = part;
    p->up_bytes += bytes;
}

bool silence_tick(struct silence *s, bool owes, uint64_t count, unsigned most_ticks, double allowance)
{
    if (owes && count == s->count) {
        const unsigned shown = SILENCE_PATIENCE * s->longest;
        return ++s->ticks > (shown > most_ticks ? shown : most_ticks) + allowance;
    }
    if (owes && s->longest < s->ticks)
        s->longest = s->ticks;
    s->ticks = 0;
    s->count = count;
    return false;
}

void deadline_begin(struct deadline *d, uint64_t step, uint32_t n_parts, uint32_t n_tokens)
{
    d->partial = d->open && d->n_parts > 0 && n_parts > 0 && d->step == step;
    d->open = true;
    d->step = step;
    d->n_parts = n_parts;
    d->n_tokens = n_tokens;
    d->elapsed = d->waited = 0;
}

/* Fewer parts or tokens never take longer. */
void deadline_meet(struct deadline *d)
{
    if (d->open && !d->partial && d->n_parts > 0) {
        if (d->seen.n_parts == 0 || d->seen.n_tokens < d->n_tokens)
            d->seen.n_parts = d->n_parts, d->seen.n_tokens = d->n_tokens;
        else if (d->seen.n_tokens == d->n_tokens && d->seen.n_parts > d->n_parts)
            d->seen.n_parts = d->n_parts;
        if (d->seen.elapsed < d->elapsed)
            d->seen.elapsed = d->elapsed;
    }
    d->open = false;
}

/* Time grows with parts no faster than in proportion. */
bool deadline_tick(struct deadline *d, bool owes, unsigned least_ticks, double allowance)
{
    const bool is_known = d->n_parts > 0 && d->seen.n_parts > 0 && d->n_tokens <= d->seen.n_tokens;
    const double more = is_known && d->n_parts > d->seen.n_parts ? (double)d->n_parts / d->seen.n_parts : 1;
    const double limit = is_known ? SILENCE_PATIENCE * more * d->seen.elapsed : allowance;

    d->elapsed++;
    d->waited += owes;
    return owes && d->waited > (limit > least_ticks ? limit : least_ticks);
}
