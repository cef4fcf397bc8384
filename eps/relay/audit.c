/* eps/relay/audit.c - the audited part of a step: its auditor's digests, and what follows when one differs.
 *
 * An auditor computes the audited part before parts of its own, and needs no slot: it waits for weights of the step
 * alone, which stand, as their units are not updated without the audited part. So slices may wait in their slots for
 * its digests.
 *
 * A slice that differs convicts nobody: its owner or the auditor may be wrong. A third worker audits the part, too;
 * without one the auditor does again, and if it stays with its result, the owner computes the part again. Each begins
 * its share anew behind that, so that it waits for nothing of its own. A result must agree with one of another worker,
 * as one that computes wrongly may do so twice alike; a worker's own counts only if nobody else has computed the
 * part. */
#include "eps/relay/relay_state.h"

#include <string.h>

static void act_audit(struct relay *r, uint32_t worker, bool third)
{
    struct relay_action *a = relay_act(r, RELAY_AUDIT);
    a->worker = worker;
    a->third = third;
    a->step = r->t;
    a->name.part = r->audit.part;
}

/* Digests are for the audited part alone; the third worker's lie behind the auditor's. */
void relay_begin_audit(struct relay *r, const struct relay_event *e)
{
    r->audit = (struct relay_audit){
        .on = e->audits, .waits = e->audits, .part = e->audited, .auditor = e->worker, .referee = RELAY_NOBODY};
    if (!e->audits)
        return;
    memset(r->digests, 0, 2 * (size_t)r->n_names_of_part * sizeof *r->digests);
    act_audit(r, e->worker, false);
}

/* The auditor's digest for a visit and slice of the audited part, in the order of its names. */
static struct relay_digest *digest_at(const struct relay *r, uint32_t visit, uint32_t slice)
{
    const uint32_t first = r->visits[visit].first_name;

    return &r->digests[(r->config.groups ? first : first / r->config.n_parts) + slice];
}

/* The third worker's. */
static struct relay_digest *third_at(const struct relay *r, uint32_t visit, uint32_t slice)
{
    return digest_at(r, visit, slice) + r->n_names_of_part;
}

static void note_digest(struct relay_digest *d, uint64_t value, uint32_t *n)
{
    *n += !d->known;
    if (!d->known)
        *d = (struct relay_digest){.known = true, .value = value};
}

/* Of each slice the first one counts: an auditor that is given another share begins anew. */
void relay_on_digest(struct relay *r, const struct relay_event *e)
{
    const struct contribution_name *name = &e->name;
    const struct relay_worker *w = relay_find_worker(r, e->worker);
    const bool audits = r->audit.on && r->audit.waits && e->worker == r->audit.auditor;

    if (name->step != r->t || r->covered || !(audits || (w && w->recruited))) {
        relay_refuse(r, e->worker, "no such audit");
    } else if (name->part != r->audit.part || name->visit >= r->n_visits ||
               name->slice >= r->visits[name->visit].n_slices || r->units[r->visits[name->visit].unit].frozen) {
        relay_refuse(r, e->worker, "no such digest");
    } else if (r->has_tail) {
        relay_refuse(r, e->worker, "digest before all weights");
    } else {
        if (audits)
            note_digest(digest_at(r, name->visit, name->slice), e->digest, &r->audit.n_digests);
        if (e->worker == r->audit.referee)
            note_digest(third_at(r, name->visit, name->slice), e->digest, &r->audit.n_theirs);
    }
}

/* A lost auditor ends the audit, not the step. The results that it has sent still count. What differs is found once
 * more. */
void relay_end_audit(struct relay *r, uint32_t worker)
{
    struct relay_audit *audit = &r->audit;

    if (!audit->on)
        return;
    if (worker == audit->auditor)
        audit->waits = false;
    if (worker == audit->referee) {
        audit->referee = RELAY_NOBODY;
        audit->disputed = false;
    }
}

/* Without the first worker there is nobody left to convict, or to acquit. */
void relay_audit_lost(struct relay *r, uint32_t worker)
{
    if (r->audit.on && r->audit.disputed && worker == r->audit.first)
        r->audit.disputed = false;
    relay_end_audit(r, worker);
}

static bool is_audited(const struct relay *r, const struct relay_standing *x)
{
    return r->audit.on && x->tag.name.part == r->audit.part;
}

bool relay_is_agreed(const struct relay *r, const struct relay_standing *x)
{
    if (!is_audited(r, x))
        return true;
    const struct relay_digest *d = digest_at(r, x->tag.name.visit, x->tag.name.slice);
    return d->known ? d->value == x->digest : !r->audit.waits;
}

/* ---- differences ------------------------------------------------------------------------------------------------- */

static void end_undecided(struct relay *r, uint32_t first)
{
    struct relay_action *a = relay_act(r, RELAY_UNDECIDED);
    a->worker = first;
    a->other = r->audit.auditor;
    relay_tear(r);
}

static uint32_t find_load(const struct relay *r, uint32_t worker)
{
    uint32_t n = 0;

    for (uint32_t p = 0; p < r->config.n_parts; p++)
        n += r->parts[p].owner == worker && relay_is_unfinished(r, p);
    return n;
}

/* Its share is begun anew, so all that it has to redo must still have its weights. */
static bool may_restart(const struct relay *r, const struct relay_worker *w)
{
    return w && w->room > 0 && !w->leaving && relay_can_redo_all(r, w->id);
}

/* The least loaded worker that is neither of the two, and can begin its share anew; else the auditor, if it can. NULL:
 * nobody. */
static struct relay_worker *find_third(struct relay *r, uint32_t owner)
{
    struct relay_worker *third = NULL, *auditor = relay_find_worker(r, r->audit.auditor);

    for (uint32_t i = 0; i < r->n_workers; i++) {
        struct relay_worker *w = &r->workers[i];
        if (w->id != owner && w != auditor && may_restart(r, w) &&
            (!third || find_load(r, w->id) < find_load(r, third->id)))
            third = w;
    }
    return third ? third : r->audit.waits && may_restart(r, auditor) ? auditor : NULL;
}

/* Digests of an earlier third worker are forgotten. */
static void recruit(struct relay *r, struct relay_worker *w)
{
    r->audit.referee = w->id;
    r->audit.n_theirs = 0;
    memset(r->digests + r->n_names_of_part, 0, r->n_names_of_part * sizeof *r->digests);
    w->recruited = true;
    act_audit(r, w->id, true);
    relay_restart(r, w);
}

/* The first worker computes it again. */
static void try_again(struct relay *r)
{
    struct relay_worker *first = relay_find_worker(r, r->audit.first);

    r->audit.referee = RELAY_NOBODY;
    if (!may_restart(r, first)) {
        end_undecided(r, r->audit.first);
        return;
    }
    relay_act(r, RELAY_AGAIN)->worker = first->id;
    relay_restart(r, first);
}

static void differ(struct relay *r, const struct relay_standing *x)
{
    if (r->audit.disputed || !relay_can_redo(r, r->audit.part)) {
        end_undecided(r, x->worker);
        return;
    }
    r->audit.disputed = true;
    r->audit.name = x->name;
    r->audit.visit = x->tag.name.visit;
    r->audit.slice = x->tag.name.slice;
    r->audit.first = x->worker;
    r->audit.digest = x->digest;
    struct relay_worker *third = find_third(r, x->worker);
    if (third)
        recruit(r, third);
    else
        try_again(r);
}

/* The auditor's results are void. A third worker's stand for them. */
static void replace_auditor(struct relay *r)
{
    struct relay_audit *audit = &r->audit;
    const size_t n = r->n_names_of_part;

    audit->waits = audit->referee != RELAY_NOBODY && audit->referee != audit->auditor;
    if (audit->waits) {
        audit->auditor = audit->referee;
        audit->n_digests = audit->n_theirs;
        memcpy(r->digests, r->digests + n, n * sizeof *r->digests);
    } else {
        audit->n_digests = 0;
        memset(r->digests, 0, n * sizeof *r->digests);
    }
    audit->referee = RELAY_NOBODY;
}

/* One more result of the slice, by an auditor or in another attempt. */
static void audit_decide(struct relay *r, uint32_t worker, uint64_t digest, uint64_t theirs)
{
    struct relay_audit *audit = &r->audit;
    const bool is_first = digest == audit->digest, is_second = !is_first && digest == theirs;
    const uint32_t agrees = is_first ? audit->first : audit->auditor, liar = is_first ? audit->auditor : audit->first;

    if ((is_first || is_second) && agrees == worker && audit->first != audit->auditor) {
        if (worker == audit->referee)
            try_again(r);
        else
            end_undecided(r, audit->first);
        return;
    }
    if (!(is_first || is_second)) {
        end_undecided(r, audit->first);
        return;
    }
    audit->disputed = false;
    if (liar == audit->auditor)
        replace_auditor(r);
    relay_act(r, RELAY_LIAR)->worker = liar;
    relay_lose(r, liar);
}

/* The first slice, in fold order, that decides a dispute or begins one. */
static const struct relay_standing *find_difference(const struct relay *r)
{
    for (size_t i = 0; i < r->n_standing; i++) {
        const struct relay_standing *x = &r->standing[i];
        if (!is_audited(r, x) || x->worker != r->parts[r->audit.part].owner || relay_is_folded(r, x->name))
            continue;
        const struct relay_digest *d = digest_at(r, x->tag.name.visit, x->tag.name.slice);
        if (d->known && (d->value != x->digest || (r->audit.disputed && r->audit.name == x->name)))
            return x;
    }
    return NULL;
}

/* While a third worker audits, nothing else is compared. False: there is nothing to do. */
static bool judge_once(struct relay *r)
{
    if (r->audit.disputed && r->audit.referee != RELAY_NOBODY) {
        const struct relay_digest *third = third_at(r, r->audit.visit, r->audit.slice);
        if (third->known)
            audit_decide(r, r->audit.referee, third->value, digest_at(r, r->audit.visit, r->audit.slice)->value);
        return third->known;
    }
    const struct relay_standing *found = find_difference(r);
    if (!found)
        return false;
    const struct relay_standing x = *found; /* losing a worker moves the list */
    if (r->audit.disputed && r->audit.name == x.name)
        audit_decide(r, x.worker, x.digest, digest_at(r, x.tag.name.visit, x.tag.name.slice)->value);
    else
        differ(r, &x);
    return true;
}

/* A verdict may free others that can be judged now. */
void relay_judge(struct relay *r)
{
    while (r->audit.on && !r->torn && !r->covered && judge_once(r))
        ;
}

/* ---- what others ask --------------------------------------------------------------------------------------------- */

uint32_t relay_audit_of(const struct relay *r, uint32_t worker)
{
    const struct relay_audit *a = &r->audit;
    const bool is_open = a->on && !r->covered && !r->torn,
               audits = a->waits && worker == a->auditor && a->n_digests < r->n_names_of_part,
               decides = a->disputed && worker == a->referee && a->n_theirs < r->n_names_of_part;

    return is_open && (audits || decides) ? a->part : UINT32_MAX;
}

uint32_t relay_audited(const struct relay *r)
{
    return r->audit.on ? r->audit.part : UINT32_MAX;
}

bool relay_is_auditor(const struct relay *r, uint32_t worker)
{
    const struct relay_worker *w = relay_find_worker(r, worker);

    return r->audit.on && ((r->audit.waits && worker == r->audit.auditor) || (w && w->recruited));
}

uint32_t relay_judge_of(const struct relay *r)
{
    return r->audit.disputed && r->audit.referee != RELAY_NOBODY ? r->audit.referee : r->audit.auditor;
}

bool relay_is_audited(const struct relay *r)
{
    return r->audit.on && r->audit.n_digests == r->n_names_of_part;
}
