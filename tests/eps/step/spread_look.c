#include "tests/eps/step/spread_look.h"

#include "eps/step/spread_state.h"

static void look_at_host(struct spread_look *out, const struct spread *s, uint32_t h)
{
    const struct spread_host *other = &s->others[h];

    out->states |= (other->is_sent[0] ? SPREAD_USES_RESERVED : 0) | (other->n_words ? SPREAD_HAS_NO_ROOM : 0);
    for (uint32_t k = 0; k < SPREAD_SLOTS; k++) {
        out->states |= other->slots[k].held ? SPREAD_HOLDS_SLICE : 0;
        out->n_slices += other->is_sent[k];
        out->n_slots += h != s->host && (other->is_sent[k] || other->slots[k].taken);
    }
}

void spread_look(struct spread_look *out, const struct spread *s)
{
    *out = (struct spread_look){
        .host = s->host,
        .is_shared = s->shared,
        .is_lost = s->is_lost,
        .states = (s->n_held ? SPREAD_HOLDS_LOSS : 0) | (s->has_next_job ? SPREAD_HAS_NEXT_JOB : 0),
        .n_slices = (uint32_t)(s->n_queue + s->n_folded),
        .n_fetches = s->n_fetching + (uint32_t)s->n_fetches,
        .has_request_text = s->text != NULL,
    };
    for (uint32_t h = 0; h < s->n; h++)
        look_at_host(out, s, h);
}

bool spread_look_owns(const struct spread *s, uint32_t unit)
{
    return s->owner[unit] == s->host;
}

const struct job_seat *spread_look_seat(const struct spread *s, uint32_t unit, uint32_t slice)
{
    for (size_t i = 0; i < s->n_queue; i++)
        if (s->queue[i].unit == unit && s->queue[i].name.slice == slice)
            return s->queue[i].seat;
    return NULL;
}
