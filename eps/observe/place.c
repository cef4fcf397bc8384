#include "eps/observe/place.h"

void place_begin(struct place *place, enum message_phase phase, uint32_t first_part, uint32_t n_parts)
{
    place->phase = phase;
    place->visit = 0;
    place->part = first_part;
    place->n_parts = n_parts;
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

void place_pull(struct place *place, const struct model *model, uint32_t unit, uint64_t bytes)
{
    uint32_t visit;

    place->down_bytes += bytes;
    if (place->phase == PHASE_BACKWARD) {
        visit = find_down(model, unit, place->visit);
    } else {
        visit = find_up(model, unit, place->visit);
        if (visit == model->n_visits && place->phase != PHASE_FORWARD) /* the next microbatch, or token */
            visit = find_up(model, unit, 0);
        if (visit == model->n_visits && place->phase == PHASE_FORWARD) {
            place->phase = PHASE_BACKWARD;
            visit = find_down(model, unit, model->n_visits - 1);
        }
    }
    if (visit < model->n_visits)
        place->visit = visit;
}

void place_loss(struct place *place, const struct model *model, uint32_t part)
{
    if (place->phase == PHASE_FORWARD)
        place->visit = model->n_visits - 1;
    place->phase = PHASE_BACKWARD;
    place->part = part;
}

void place_contribution(struct place *place, uint32_t visit, uint32_t part, uint64_t bytes)
{
    place->phase = PHASE_BACKWARD;
    place->visit = visit;
    place->part = part;
    place->up_bytes += bytes;
}
