/* eps/relay/audit.c - the audited part of a step: its auditor's digests, and what follows when one differs.
 *
 * An auditor computes the audited part before parts of its own, and needs no slot: it waits for weights of the step alone,
 * which stand, as their units are not updated without the audited part. So slices may wait in their slots for its digests.
 *
 * A slice that differs convicts nobody: its owner or the auditor may be wrong. The owner is lost here, so that its parts are
 * computed again by others, and of the slice the third result decides. It must agree with a result of another worker, as one
 * that computes wrongly may do so twice alike; its own counts only if nobody else has computed the part. */
#include "eps/relay/relay_state.h"

#include <string.h>

void relay_begin_audit(struct relay *r, const struct relay_event *e)
{
    r->audit = (struct relay_audit){.on = e->audits, .waits = e->audits, .part = e->audited, .auditor = e->worker};
    if (!e->audits)
        return;
    memset(r->digests, 0, r->n_names_of_part * sizeof *r->digests);
    struct relay_action *a = relay_act(r, RELAY_AUDIT);
    a->worker = e->worker;
    a->step = e->step;
    a->name.part = e->audited;
}

/* The digest for a visit and slice of the audited part, in the order of its names. */
static struct relay_digest *digest_at(const struct relay *r, uint32_t visit, uint32_t slice)
{
    const uint32_t first = r->visits[visit].first_name;

    return &r->digests[(r->config.groups ? first : first / r->config.n_parts) + slice];
}

/* The first one counts: an auditor that is given another share begins anew. */
void relay_on_digest(struct relay *r, const struct relay_event *e)
{
    const struct contribution_name *name = &e->name;

    if (name->step != r->t || r->covered || !r->audit.on || e->worker != r->audit.auditor || !r->audit.waits) {
        relay_refuse(r, e->worker, "no such audit");
    } else if (name->part != r->audit.part || name->visit >= r->n_visits ||
               name->slice >= r->visits[name->visit].n_slices || r->units[r->visits[name->visit].unit].frozen) {
        relay_refuse(r, e->worker, "no such digest");
    } else if (r->has_tail) {
        relay_refuse(r, e->worker, "digest before all weights");
    } else {
        struct relay_digest *d = digest_at(r, name->visit, name->slice);
        r->audit.n_digests += !d->known;
        if (!d->known)
            *d = (struct relay_digest){.known = true, .value = e->digest};
    }
}

/* A lost auditor ends the audit, not the step. The results that it has sent still count. */
void relay_end_audit(struct relay *r, uint32_t worker)
{
    if (r->audit.on && worker == r->audit.auditor)
        r->audit.waits = false;
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

bool relay_has_judged(const struct relay *r, uint32_t worker, uint32_t part)
{
    return r->audit.on && r->audit.disputed && part == r->audit.part &&
           (worker == r->audit.first || worker == r->audit.auditor);
}

/* ---- differences ------------------------------------------------------------------------------------------------- */

static void end_undecided(struct relay *r, uint32_t first)
{
    struct relay_action *a = relay_act(r, RELAY_UNDECIDED);
    a->worker = first;
    a->other = r->audit.auditor;
    relay_tear(r);
}

static void differ(struct relay *r, const struct relay_standing *x)
{
    const uint32_t worker = x->worker;

    if (r->audit.disputed || !relay_can_redo_all(r, worker)) {
        end_undecided(r, worker);
        return;
    }
    r->audit.disputed = true;
    r->audit.name = x->name;
    r->audit.first = worker;
    r->audit.digest = x->digest;
    *relay_act(r, RELAY_REFUSE) =
        (struct relay_action){.kind = RELAY_REFUSE, .worker = worker, .differs = true, .why = "differs"};
    relay_lose(r, worker);
}

static void decide(struct relay *r, const struct relay_standing *x)
{
    struct relay_audit *audit = &r->audit;
    const uint64_t theirs = digest_at(r, x->tag.name.visit, x->tag.name.slice)->value;
    const bool is_first = x->digest == audit->digest, is_second = !is_first && x->digest == theirs;
    const uint32_t agrees = is_first ? audit->first : audit->auditor, liar = is_first ? audit->auditor : audit->first;

    if (!(is_first || is_second) || (agrees == x->worker && audit->first != audit->auditor)) {
        end_undecided(r, audit->first);
        return;
    }
    audit->disputed = false;
    if (liar == audit->auditor) {
        audit->waits = false;
        audit->n_digests = 0;
        memset(r->digests, 0, r->n_names_of_part * sizeof *r->digests);
    }
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

void relay_judge(struct relay *r)
{
    const struct relay_standing *found;

    while (r->audit.on && !r->torn && !r->covered && (found = find_difference(r)) != NULL) {
        const struct relay_standing x = *found; /* losing a worker moves the list */
        if (r->audit.disputed && r->audit.name == x.name)
            decide(r, &x);
        else
            differ(r, &x);
    }
}

/* ---- what others ask ---------------------------------------------------------------------------------------------- */

uint32_t relay_audit_of(const struct relay *r, uint32_t worker)
{
    const bool waits = r->audit.on && r->audit.waits && !r->covered && !r->torn;

    return waits && worker == r->audit.auditor && r->audit.n_digests < r->n_names_of_part ? r->audit.part : UINT32_MAX;
}

uint32_t relay_audited(const struct relay *r)
{
    return r->audit.on ? r->audit.part : UINT32_MAX;
}

uint32_t relay_n_digests(const struct relay *r)
{
    return r->audit.on ? r->audit.n_digests : 0;
}
