/* A slot is the daemon's from the message that names it to its FREE, whatever becomes of the step (OLD). So a step
 * that is abandoned gives back at once only slots of which nobody was told.
 *
 * The link is what a step sees of the daemon. Its calls wait by taking in mail, whatever it is, until what they wait
 * for has come; so pulls, slots and grants may arrive in any order. Each returns -ECANCELED if the job ends, -ESTALE if
 * the share was replaced: the step then returns from wherever it is. */
#include "device/worker/link.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <xxhash.h>

/* A step that was abandoned may leave slots that were never contributed. Its grant counts still if it is of this
 * step. */
void link_begin(struct link *link, uint64_t step)
{
    assert(link->n_pulls == 0 && !link->reading.lent);
    link->step = step;
    link->loss_digest = 0;
    link->granted = link->granted && link->granted_name.step == step;
    link->superseded = false;
    for (uint32_t k = 0; k <= link->n_slots; k++)
        link->slots[k] = link->slots[k] >= LINK_SLOT_GIVEN ? LINK_SLOT_OLD : LINK_SLOT_FREE;
}

/* What the calls of a step return. */
static int link_verdict(const struct link *link)
{
    return link->cancelled ? -ECANCELED : link->superseded ? -ESTALE : 0;
}

/* Weights that were lent lie in a place that the daemon uses again, once it has heard that they were read. */
static void tell_read(struct link *link, struct link_pull *pull)
{
    const struct message m = {.kind = MESSAGE_READ, .read = {.version = pull->version, .unit = pull->unit}};

    if (pull->lent)
        mailbox_post(link->box, &m);
    pull->lent = false;
}

/* Weights that nobody waits for are those of a share that was replaced. */
static void on_weights(struct link *link, const struct message *m)
{
    struct link_pull come = {.version = m->weights.version,
                             .at = m->weights.at,
                             .frozen_at = m->weights.frozen_at,
                             .unit = m->weights.unit,
                             .ready = true,
                             .lent = m->weights.lent};

    for (uint32_t i = 0; i < link->n_pulls; i++)
        if (!link->pulls[i].ready && link->pulls[i].unit == come.unit && link->pulls[i].version == come.version) {
            link->pulls[i] = come;
            return;
        }
    tell_read(link, &come);
}

/* Nothing of the share is taken any more, unless the pull is of one that was replaced. */
static void on_void(struct link *link, const struct message *m)
{
    for (uint32_t i = 0; i < link->n_pulls; i++)
        link->superseded |= !link->pulls[i].ready && link->pulls[i].unit == m->voided.unit &&
                            link->pulls[i].version == m->voided.version;
}

void link_end(struct link *link)
{
    tell_read(link, &link->reading);
    for (uint32_t i = 0; i < link->n_pulls; i++)
        tell_read(link, &link->pulls[i]);
    link->n_pulls = 0;
}

void link_take_in(struct link *link, const struct mail *mail)
{
    const struct message *m = &mail->message;

    switch (mail_kind(m)) {
    case MAIL_WEIGHTS:
        on_weights(link, m);
        break;
    case MAIL_VOID:
        on_void(link, m);
        break;
    case MAIL_FREE:
        if (m->free.slot <= link->n_slots)
            link->slots[m->free.slot] = LINK_SLOT_FREE;
        break;
    case MAIL_GRANT:
        link->granted = true;
        link->granted_name = m->grant.name;
        break;
    case MAIL_RELEASE:
        link->cancelled = true;
        break;
    /* The next step's share, while the last slices of this step are folded. The newest counts, as earlier ones belong
     * to skipped steps. A share of this step, or of the one before, replaces the work under way: parts of a worker that
     * was lost were added. */
    case MAIL_SHARE:
        link->superseded = m->share.step <= link->step;
        link->has_next = true;
        link->next = *mail;
        break;
    case MAIL_EVALUATE:
    case MAIL_GENERATE:
    case MAIL_ASSIGN:
        link->has_next = true;
        link->next = *mail;
        break;
    case MAIL_NONE:
        break;
    }
}

/* Waits for one message and handles it. */
static int link_pump(struct link *link)
{
    struct mail mail;

    mailbox_wait(link->box, &mail);
    link_take_in(link, &mail);
    return link_verdict(link);
}

/* Takes in what has come without waiting. */
static int link_ended(void *context)
{
    struct link *link = context;
    struct mail mail;

    while (mailbox_poll(link->box, &mail))
        link_take_in(link, &mail);
    return link_verdict(link);
}

/* The version is that of the step: an evaluation says none. */
static int pull(void *context, uint64_t version, uint32_t unit)
{
    struct link *link = context;
    const struct message m = {.kind = MESSAGE_PULL, .pull = {.version = link->step, .unit = unit}};

    assert(link->n_pulls < PLAN_MAX_WEIGHT_BUFFERS);
    assert(version == link->step || link->step == MESSAGE_NO_STEP);
    link->pulls[link->n_pulls++] = (struct link_pull){.version = link->step, .unit = unit};
    mailbox_post(link->box, &m);
    return link_verdict(link);
}

static bool link_is_within(const struct link *link, uint64_t at, uint64_t bytes)
{
    return bytes <= link->weights->bytes && at <= link->weights->bytes - bytes;
}

/* The oldest pull is answered next, whatever order the answers came in. What it gave before has been read by now. */
static int link_wait_weights(void *context, struct device_link_weights *weights)
{
    struct link *link = context;
    char name[MODEL_NAME_BYTES];

    assert(link->n_pulls > 0);
    tell_read(link, &link->reading);
    const uint64_t since = link->pulls[0].ready ? 0 : trace_begin(link->trace);
    while (!link->pulls[0].ready) {
        int rc = link_pump(link);
        if (rc)
            return rc;
    }
    if (since)
        trace_end(link->trace, since, "wait for weights", model_unit_name(name, link->model, link->pulls[0].unit),
                  NULL);
    const struct link_pull *pull = &link->pulls[0];
    const struct model_unit *unit = &link->model->units[pull->unit];
    if (!link_is_within(link, pull->at, unit->n_trained * number_bytes(link->precision)) ||
        !link_is_within(link, pull->frozen_at, model_unit_bytes(unit, link->precision)))
        return error_set(&link->error, -EPROTO,
                         "the daemon named a place of %s beyond the weights' memory: are they of one build?",
                         model_unit_name(name, link->model, pull->unit));
    const uint64_t trained = unit->n_trained > 0 ? pull->at : pull->frozen_at; /* then all of it is frozen */
    *weights = (struct device_link_weights){.trained = (const char *)link->weights->base + trained,
                                            .frozen = (const char *)link->weights->base + pull->frozen_at,
                                            .lent = pull->lent};
    link->reading = *pull;
    link->n_pulls--;
    memmove(link->pulls, link->pulls + 1, link->n_pulls * sizeof *link->pulls);
    return 0;
}

/* Bits of the loss as it is told. */
static uint64_t digest_loss(double sum, const struct preference_rewards *rewards, bool finite)
{
    const double told[] = {
        sum, rewards->chosen, rewards->rejected, rewards->right, rewards->chosen_log_p, rewards->rejected_log_p};

    return finite ? XXH3_64bits(told, sizeof told) : 0;
}

/* A slice's digest includes the loss, so that a part whose loss alone is wrong is found, too. */
static uint64_t digest_slice(const struct link *link, const void *slot, uint64_t n)
{
    return XXH3_64bits_withSeed(slot, n * number_bytes(link->grad), link->loss_digest);
}

static int link_loss(void *context, uint32_t part, double sum, const struct preference_rewards *rewards, bool finite)
{
    struct link *link = context;
    struct message m = {.kind = MESSAGE_LOSS};

    m.loss.step = link->step;
    m.loss.part = part;
    m.loss.attempt = link->attempts[part];
    m.loss.sum = finite ? sum : 0;
    if (finite)
        m.loss.rewards = *rewards;
    m.loss.finite = finite;
    if (part + 1 == link->audited)
        link->loss_digest = digest_loss(sum, rewards, finite);
    mailbox_post(link->box, &m);
    return link_verdict(link);
}

static struct contribution_name link_name_of(const struct link *link, uint32_t visit, uint32_t part, uint32_t slice)
{
    return (struct contribution_name){
        .step = link->step, .visit = visit, .part = part, .slice = slice, .attempt = link->attempts[part]};
}

/* A slot is granted to the lowest name that is not folded, by visit downwards, part, slice. So those before it are: a
 * part that is redone begins with what its first worker contributed. */
static bool is_folded(const struct link *link, const struct contribution_name *name)
{
    const struct contribution_name *g = &link->granted_name;

    if (link->groups)
        return false; /* it may be, or not */
    if (!link->granted || g->step != name->step || g->visit != name->visit)
        return link->granted && g->step == name->step && name->visit > g->visit;
    return name->part < g->part || (name->part == g->part && name->slice < g->slice);
}

/* With row groups, parts come in ascending order, and the reserved slot is for all up to the grant's. */
static bool is_granted(const struct link *link, const struct contribution_name *name)
{
    const struct contribution_name *g = &link->granted_name;

    if (link->groups)
        return link->granted && g->step == name->step && name->part <= g->part;
    return link->granted && contribution_is(g, name);
}

/* An ordinary slot, or the reserved one if it is granted to this name or to one after it; above n_slots: none is
 * free. */
static uint32_t link_find_slot(const struct link *link, const struct contribution_name *name)
{
    uint32_t k = 1;

    while (k <= link->n_slots && link->slots[k])
        k++;
    if (k > link->n_slots && !link->slots[0] && (is_granted(link, name) || is_folded(link, name)))
        k = 0;
    return k;
}

/* Returns 0 with *slot NULL if none is free and the caller does not wait. */
static int link_take_slot(void *context, uint32_t visit, uint32_t part, uint32_t slice, bool wait, void **slot)
{
    struct link *link = context;
    const struct contribution_name name = link_name_of(link, visit, part, slice);
    uint32_t k = link_find_slot(link, &name);
    const uint64_t since = wait && k > link->n_slots ? trace_begin(link->trace) : 0;
    char visited[MODEL_NAME_BYTES];
    int rc = 0;

    *slot = NULL;
    if (!wait && k > link->n_slots)
        rc = link_ended(link);
    while (rc == 0 && (k = link_find_slot(link, &name)) > link->n_slots && wait)
        rc = link_pump(link);
    if (since && rc == 0)
        trace_end(link->trace, since, "wait for a slot", model_visit_name(visited, link->model, visit), NULL);
    if (rc != 0 || k > link->n_slots)
        return rc;
    link->slots[k] = LINK_SLOT_FILLING;
    *slot = (char *)link->inbox->base + k * link->slot_bytes;
    return 0;
}

/* From this message on the slot is the daemon's. */
static int link_contribute(void *context, uint32_t visit, uint32_t part, uint32_t slice, const void *slot,
                           const struct device_link_slice *of)
{
    struct link *link = context;
    struct message m = {.kind = MESSAGE_CONTRIBUTION};

    m.contribution.name = link_name_of(link, visit, part, slice);
    m.contribution.slot = (uint32_t)((size_t)((const char *)slot - (const char *)link->inbox->base) / link->slot_bytes);
    if (m.contribution.slot == 0 && is_folded(link, &m.contribution.name)) { /* nobody waits for it */
        link->slots[0] = LINK_SLOT_FREE;
        return link_verdict(link);
    }
    if (part + 1 == link->audited)
        m.contribution.digest = digest_slice(link, slot, of->n);
    if (of->sum)
        m.contribution.sum = *of->sum;
    link->slots[m.contribution.slot] = LINK_SLOT_GIVEN;
    mailbox_post(link->box, &m);
    return link_verdict(link);
}

/* The optimizer's team and this worker's share the cores. Overlap would slow each of them far more than it could gain,
 * so one blocks while the other works, until everything that this step contributed is folded. */
static int link_contributed(void *context, uint32_t visit, uint32_t part)
{
    struct link *link = context;
    const uint64_t since = link->takes_turns ? trace_begin(link->trace) : 0;
    char name[MODEL_NAME_BYTES];

    (void)part;
    for (uint32_t k = 0; link->takes_turns && k <= link->n_slots; k++)
        while (link->slots[k] == LINK_SLOT_GIVEN) {
            int rc = link_pump(link);
            if (rc)
                return rc;
        }
    if (since)
        trace_end(link->trace, since, "wait until folded", model_visit_name(name, link->model, visit), NULL);
    return link_verdict(link);
}

const struct device_link link_session = {pull,           link_wait_weights, link_loss,
                                         link_take_slot, link_contribute,   link_contributed,
                                         link_ended};

/* ---- audits ----------------------------------------------------------------------------------------------------- */

static int audit_loss(void *context, uint32_t part, double sum, const struct preference_rewards *rewards, bool finite)
{
    struct link *link = context;

    (void)part;
    link->loss_digest = digest_loss(sum, rewards, finite);
    return link_verdict(link);
}

/* An audit sends no slice: only the digest of what it would have been. */
static int audit_contribute(void *context, uint32_t visit, uint32_t part, uint32_t slice, const void *slot,
                            const struct device_link_slice *of)
{
    struct link *link = context;
    struct message m = {.kind = MESSAGE_DIGEST};
    const size_t k = (size_t)((const char *)slot - (const char *)link->inbox->base) / link->slot_bytes;

    m.digest.step = link->step;
    m.digest.visit = visit;
    m.digest.part = part;
    m.digest.slice = slice;
    m.digest.digest = digest_slice(link, slot, of->n);
    link->slots[k] = LINK_SLOT_FREE;
    mailbox_post(link->box, &m);
    return link_verdict(link);
}

static int audit_contributed(void *context, uint32_t visit, uint32_t part)
{
    (void)visit, (void)part;
    return link_verdict(context);
}

const struct device_link link_audit = {pull,           link_wait_weights, audit_loss,
                                       link_take_slot, audit_contribute,  audit_contributed,
                                       link_ended};
