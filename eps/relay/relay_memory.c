/* eps/relay/relay_memory.c - the relay's memory, all of it taken before an event is looked at.
 *
 * Every array keeps what it once had, so a run stops allocating when nothing larger comes: no worker more, no longer
 * step. */
#include "eps/relay/relay_state.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { PULLS_PER_WORKER = 16 }; /* a decent one has a pull for each weight buffer, so far fewer */

/* Room for n elements of `size` bytes in *array, at least half as much again as before. */
static int grow(void *array, size_t *cap, size_t n, size_t size)
{
    void *p, *old;
    memcpy(&old, array, sizeof old);
    if (n <= *cap)
        return 0;
    if (n < *cap + *cap / 2)
        n = *cap + *cap / 2;
    p = reallocarray(old, n, size);
    if (!p)
        return -ENOMEM;
    memcpy(array, &p, sizeof p);
    *cap = n;
    return 0;
}

static int grow32(void *array, uint32_t *cap, uint64_t n, size_t size)
{
    size_t wide = *cap;
    if (n > UINT32_MAX / 2)
        return -ENOMEM;
    int rc = grow(array, &wide, n, size);
    *cap = (uint32_t)wide;
    return rc;
}

/* All units up to this one, known by number. */
static int reserve_unit(struct relay *r, uint32_t unit)
{
    uint32_t cap = r->n_units;
    int rc = grow32(&r->units, &cap, (uint64_t)unit + 1, sizeof *r->units);
    if (rc)
        return rc;
    for (; r->n_units < cap; r->n_units++)
        r->units[r->n_units] = (struct relay_unit){.place = RELAY_NO_PLACE};
    return 0;
}

static int reserve_slices(struct relay_unit *u, uint32_t n)
{
    uint32_t had = u->cap_slices;
    int rc = grow32(&u->slices, &u->cap_slices, n, sizeof *u->slices);
    if (!rc && u->cap_slices > had)
        memset(u->slices + had, 0, (u->cap_slices - had) * sizeof *u->slices);
    return rc;
}

static int reserve_step(struct relay *r, const struct relay_event *e)
{
    uint64_t n_names = 0;
    int rc = 0;
    for (uint32_t v = 0; v < e->n_visits; v++) {
        n_names += (uint64_t)e->n_slices[v] * r->config.n_parts;
        if (n_names >= UINT32_MAX) /* they are numbered */
            return -ENOMEM;
    }
    for (uint32_t v = 0; v < e->n_visits && !rc; v++) {
        rc = reserve_unit(r, e->visits[v]);
        if (!rc)
            rc = reserve_slices(&r->units[e->visits[v]], e->n_slices[v]);
    }
    for (uint32_t i = 0; i < e->n_frozen && !rc; i++)
        rc = reserve_unit(r, e->frozen[i]);
    if (!rc)
        rc = grow32(&r->visits, &r->cap_visits, e->n_visits, sizeof *r->visits);
    if (!rc)
        rc = grow32(&r->sums, &r->cap_sums, e->n_visits, sizeof *r->sums);
    if (!rc)
        rc = grow(&r->folded, &r->cap_folded, (size_t)(n_names / 64 + 1), sizeof *r->folded);
    return rc;
}

static int reserve_worker(struct relay *r)
{
    uint32_t had = r->cap_workers;
    int rc = grow32(&r->workers, &r->cap_workers, (uint64_t)r->n_workers + 1, sizeof *r->workers);
    if (rc)
        return rc;
    if (r->cap_workers > had)
        memset(r->workers + had, 0, (r->cap_workers - had) * sizeof *r->workers);
    struct relay_worker *next = &r->workers[r->n_workers];
    if (!next->cells)
        next->cells = calloc((size_t)r->config.n_slots + 1, sizeof *next->cells);
    if (!next->cells)
        return -ENOMEM;
    size_t n = (size_t)r->n_workers + 1;
    rc = grow(&r->standing, &r->cap_standing, n * ((size_t)r->config.n_slots + 1), sizeof *r->standing);
    return rc ? rc : grow(&r->waiting, &r->cap_waiting, n * PULLS_PER_WORKER, sizeof *r->waiting);
}

/* The most that one event can bring: every slot freed and folded anew, every unit updated or captured by every reader,
 * every pull answered, a share for every worker, and a handful that come once. */
static size_t max_actions(const struct relay *r)
{
    size_t n_workers = (size_t)r->n_workers + 1, n_readers = (size_t)r->n_readers + 1;
    return 2 * n_workers * ((size_t)r->config.n_slots + 1) + ((size_t)r->n_units + 1) * (n_readers + 1) +
           r->cap_waiting + n_workers + 16;
}

int relay_reserve(struct relay *r, const struct relay_event *e, bool opens)
{
    int rc = 0;
    if (opens)
        rc = reserve_step(r, e);
    else if (e->kind == RELAY_ATTACHED)
        rc = reserve_worker(r);
    else if (e->kind == RELAY_PULL)
        rc = grow(&r->waiting, &r->cap_waiting, r->n_waiting + 1, sizeof *r->waiting);
    return rc ? rc : grow(&r->actions, &r->cap_actions, max_actions(r), sizeof *r->actions);
}

int relay_open(struct relay **out, const struct relay_config *config)
{
    struct relay *r = calloc(1, sizeof *r);
    if (!r)
        return -ENOMEM;
    r->config = *config;
    r->t = config->first_step - 1; /* RELAY_NO_STEP before 0 */
    r->covered = true;
    r->parts = calloc(config->n_parts, sizeof *r->parts);
    r->shared = calloc(config->n_parts, sizeof *r->shared);
    if (!r->parts || !r->shared) {
        relay_close(r);
        return -ENOMEM;
    }
    for (uint32_t p = 0; p < config->n_parts; p++)
        r->parts[p].owner = RELAY_NOBODY;
    *out = r;
    return 0;
}

void relay_close(struct relay *r)
{
    if (!r)
        return;
    for (uint32_t u = 0; u < r->n_units; u++)
        free(r->units[u].slices);
    for (uint32_t w = 0; w < r->cap_workers; w++)
        free(r->workers[w].cells);
    free(r->units);
    free(r->workers);
    free(r->visits);
    free(r->folded);
    free(r->sums);
    free(r->parts);
    free(r->standing);
    free(r->waiting);
    free(r->actions);
    free(r->shared);
    free(r);
}
