#include "eps/base/progress.h"

void progress_begin(struct progress *p, enum message_phase phase, uint32_t first_part, uint32_t n_parts)
{
    p->phase = phase;
    p->visit = 0;
    p->part = first_part;
    p->n_parts = n_parts;
}

/* The nearest visit of a unit from this one on, upwards; n_visits if there is none. */
static uint32_t find_up(const struct model *model, uint32_t unit, uint32_t from)
{
    while (from < model->n_visits && model->visits[from] != unit)
        from++;
    return from;
}

static uint32_t find_down(const struct model *model, uint32_t unit, uint32_t from)
{
    for (uint32_t v = from + 1; v-- > 0;)
        if (model->visits[v] == unit)
            return v;
    return model->n_visits;
}

void progress_pull(struct progress *p, const struct model *model, uint32_t unit, uint64_t bytes)
{
    uint32_t visit;

    p->down_bytes += bytes;
    if (p->phase == PHASE_BACKWARD) {
        visit = find_down(model, unit, p->visit);
    } else {
        visit = find_up(model, unit, p->visit);
        if (visit == model->n_visits && p->phase != PHASE_FORWARD) /* the next microbatch, or token */
            visit = find_up(model, unit, 0);
        if (visit == model->n_visits && p->phase == PHASE_FORWARD) {
            p->phase = PHASE_BACKWARD;
            visit = find_down(model, unit, model->n_visits - 1);
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
