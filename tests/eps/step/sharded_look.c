#include "tests/eps/step/sharded_look.h"

#include "eps/step/sharded_state.h"

static void look_at_host(struct sharded_look *out, const struct sharded *s, uint32_t h)
{
    const struct sharded_host *other = &s->others[h];

    out->states |= (other->is_sent[0] ? SHARDED_USES_RESERVED : 0) | (other->n_messages ? SHARDED_HAS_NO_ROOM : 0);
    for (uint32_t k = 0; k < SHARDED_SLOTS; k++) {
        out->states |= other->slots[k].held ? SHARDED_HOLDS_SLICE : 0;
        out->n_slices += other->is_sent[k];
        out->n_slots += h != s->host && (other->is_sent[k] || other->slots[k].taken);
    }
}

void sharded_look(struct sharded_look *out, const struct sharded *s)
{
    *out = (struct sharded_look){
        .host = s->host,
        .is_shared = s->shared,
        .is_lost = s->is_lost,
        .states = (s->n_held ? SHARDED_HOLDS_LOSS : 0) | (s->has_next_job ? SHARDED_HAS_NEXT_JOB : 0),
        .n_slices = (uint32_t)(s->n_queue + s->n_folded),
        .n_fetches = s->n_fetching + (uint32_t)s->n_fetches,
        .has_request_text = s->text != NULL,
    };
    for (uint32_t h = 0; h < s->n; h++)
        look_at_host(out, s, h);
}

bool sharded_look_owns(const struct sharded *s, uint32_t unit)
{
    return s->owner[unit] == s->host;
}

const struct job_seat *sharded_look_seat(const struct sharded *s, uint32_t unit, uint32_t slice)
{
    for (size_t i = 0; i < s->n_queue; i++)
        if (s->queue[i].unit == unit && s->queue[i].name.slice == slice)
            return s->queue[i].seat;
    return NULL;
}

/* No host reads the weights with this turn any more: their owner may overwrite them. */
static bool is_old(const struct sharded *s, uint32_t unit, uint64_t turn)
{
    return s->job->model.units[unit].n_trained > 0 && s->n_opened > s->job->request.job.step &&
           relay_version(s->job->relay, unit) - (s->turns[unit] - turn) + 1 < s->n_opened;
}

static const char *look_at_lent(const struct sharded *s, const struct ring_pull *pull)
{
    const struct ring_slot *slot = pull->slot;
    uint32_t n_readers = 0, n_lent = 0;

    for (const struct ring_pull *p = s->ring.pulls; p < s->ring.pulls + s->ring.n_pulls; p++) {
        n_readers += p->slot == slot;
        n_lent += p->slot && p->worker == pull->worker;
    }
    if (slot->unit != pull->unit || slot->turn != pull->turn)
        return "a slot is lent that has another unit, or another version";
    if (slot->fetching)
        return "a slot is lent that is being fetched";
    if (slot->n_readers != n_readers)
        return "a slot has not as many readers as pulls";
    if (is_old(s, slot->unit, slot->turn))
        return "a slot of an earlier step is lent";
    return n_lent > RING_LENT ? "a worker has too many slots" : NULL;
}

const char *sharded_look_ring(const struct sharded *s)
{
    const char *wrong = NULL;

    for (const struct ring_pull *p = s->ring.pulls; !wrong && p < s->ring.pulls + s->ring.n_pulls; p++)
        if (p->slot)
            wrong = look_at_lent(s, p);
        else if (p->answered && is_old(s, p->unit, p->turn))
            wrong = "a worker waits for weights of an earlier step";
    if (s->announced_covered && ring_is_fetching(&s->ring, s->n_opened - 1))
        wrong = "weights of a covered step are being fetched";
    return wrong;
}

bool sharded_look_waits(const struct sharded *s, const struct peer *worker)
{
    const struct ring_pull *first = NULL;
    uint32_t n_lent = 0;

    for (const struct ring_pull *p = s->ring.pulls; p < s->ring.pulls + s->ring.n_pulls; p++)
        if (p->worker == worker->id && p->slot)
            n_lent++;
        else if (p->worker == worker->id && !first)
            first = p;
    return first && first->answered && n_lent < RING_LENT;
}
