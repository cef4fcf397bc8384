/* A sum may be written again when the device has read its last slice (`sent`), not when the host has told of it: so
 * computation waits for copies, never for messages. */
#include "proto/step/offers.h"

#include "proto/model/norms.h"
#include "proto/step/pass.h"
#include "proto/plan/memory/layers.h"
#include "proto/plan/memory/units.h"

#include <assert.h>

static uint32_t offers_visit_of(const struct device_pass *pass, uint32_t n)
{
    return pass->worker->contributing[n / pass->n_runs];
}

static uint32_t offers_part_of(const struct device_pass *pass, uint32_t n)
{
    return pass->parts[n % pass->n_runs];
}

static const struct model_unit *offers_unit_of(const struct device_pass *pass, uint32_t n)
{
    return &pass->worker->model.units[pass->worker->model.visits[device_pass_home(pass, offers_visit_of(pass, n))]];
}

/* Number of contributions, from the first, that have a place of their own. */
static uint32_t count_apart(const struct device_pass *pass)
{
    return plan_count_apart(&pass->worker->plan, &pass->worker->model) * pass->n_runs;
}

/* The others alternate between the sums. */
static uint32_t offers_sum_of(const struct device_pass *pass, uint32_t n)
{
    return (n - count_apart(pass)) % pass->worker->plan.n_sums;
}

float *device_offers_sum(const struct device_pass *pass, uint32_t n)
{
    const struct plan *plan = &pass->worker->plan;
    const struct model *model = &pass->worker->model;
    const uint32_t bottom = plan_head(model)->first_visit;

    if (n >= count_apart(pass))
        return device_pass_address(pass, plan->contribution[offers_sum_of(pass, n)]);
    return device_pass_address(pass, plan_head_contribution(plan, model, n % pass->n_runs,
                                                            offers_visit_of(pass, n) - bottom));
}

/* The bf16 form, in the sum's place and a little before. */
static uint16_t *offers_rounded(const struct device_pass *pass, uint32_t n)
{
    return (uint16_t *)((char *)device_offers_sum(pass, n) - pass->worker->plan.rounding_bytes);
}

static bool is_rounded(const struct device_pass *pass)
{
    return pass->worker->plan.setting.goal.grad != NUMBER_FP32;
}

static void round_sum(const struct device_pass *pass, uint32_t n)
{
    const struct device_worker *w = pass->worker;

    if (is_rounded(pass))
        w->ops->round_half(w->dev, &(struct device_round_half){offers_rounded(pass, n), device_offers_sum(pass, n),
                                                               model_contribution_end(offers_unit_of(pass, n)),
                                                               w->plan.setting.goal.grad});
}

/* In storage order, as each begins where the one before it was read: part by part, bottom unit first. */
void device_offers_made_apart(const struct device_pass *pass)
{
    const uint32_t n = count_apart(pass);

    for (uint32_t part = 0; part < pass->n_runs; part++)
        for (uint32_t i = n; i > 0; i -= pass->n_runs)
            round_sum(pass, i - pass->n_runs + part);
}

void device_offers_begin(const struct device_pass *pass, uint32_t n)
{
    const struct device_worker *w = pass->worker;

    if (n >= count_apart(pass))
        w->ops->follow(w->dev, DEVICE_COMPUTE, DEVICE_PUSH, pass->offers.sent[offers_sum_of(pass, n)]);
}

static bool checks_memory(const struct device_pass *pass)
{
    return pass->worker->plan.setting.goal.checks_memory;
}

/* True if the device's memory is the host's, and its transfers are over when they are queued. Then a slice is summed
 * where it was computed, so that a change of its copy is found, too. Any other device's is summed once it has
 * arrived. */
static bool is_host_memory(const struct device_pass *pass)
{
    return pass->worker->plan.setting.backend->takes_turns;
}

static struct block_sum sum_slice(const struct device_pass *pass, const void *slice, uint64_t n)
{
    return contribution_sum(slice, n, number_bytes(pass->worker->plan.setting.goal.grad));
}

/* Waits for the oldest slice in transfer and contributes it. */
static int land(struct device_pass *pass)
{
    struct device_offers *o = &pass->offers;
    struct device_offer first = o->flying[0];
    const struct model_unit *unit = offers_unit_of(pass, first.n);
    const uint32_t visit = offers_visit_of(pass, first.n), part = offers_part_of(pass, first.n);
    const uint64_t n = model_slice_of(unit, first.slice).n;
    int rc = device_pass_finish(pass, DEVICE_PUSH, first.arrived);

    if (checks_memory(pass) && !is_host_memory(pass))
        first.sum = sum_slice(pass, first.slot, n);
    o->n_flying--, o->n_landed++;
    for (uint32_t i = 0; i < o->n_flying; i++)
        o->flying[i] = o->flying[i + 1];
    device_pass_record(pass, first.since, "download", visit,
                       (struct trace_arg[]){{"visit", visit},
                                            {"step", pass->step + 1},
                                            {"part", part},
                                            {"slice", first.slice},
                                            {"bytes", n * number_bytes(pass->worker->plan.setting.goal.grad)},
                                            {NULL, 0}});
    if (rc == 0)
        rc = pass->link->contribute(pass->context, visit, part, first.slice, first.slot,
                                    &(struct device_link_slice){n, checks_memory(pass) ? &first.sum : NULL});
    if (rc == 0 && first.slice + 1 == unit->n_slices)
        rc = pass->link->contributed(pass->context, visit, part);
    return rc;
}

/* Queues the transfer of the next slice into a slot; *sent is false if there is no slot. The transfer follows the
 * computation of the sum on the device: nobody waits here. */
static int send(struct device_pass *pass, bool wait, bool *sent)
{
    struct device_worker *w = pass->worker;
    struct device_offers *o = &pass->offers;
    const struct model_unit *unit = offers_unit_of(pass, o->next);
    const struct model_slice slice = model_slice_of(unit, o->slice);
    const size_t each = number_bytes(w->plan.setting.goal.grad);
    const char *from =
        is_rounded(pass) ? (char *)offers_rounded(pass, o->next) : (char *)device_offers_sum(pass, o->next);
    const bool apart = o->next < count_apart(pass);
    struct device_offer offer = {.n = o->next, .slice = o->slice};
    int rc = pass->link->take_slot(pass->context, offers_visit_of(pass, o->next), offers_part_of(pass, o->next),
                                   o->slice, wait, &offer.slot);

    *sent = rc == 0 && offer.slot;
    if (!*sent)
        return rc;
    offer.since = trace_begin(w->trace);
    w->ops->follow(w->dev, DEVICE_PUSH, DEVICE_COMPUTE, apart ? pass->forward : o->made[offers_sum_of(pass, o->next)]);
    if (checks_memory(pass) && is_host_memory(pass))
        offer.sum = sum_slice(pass, from + model_slice_at(unit, &slice) * each, slice.n);
    w->ops->download(w->dev, offer.slot, from + model_slice_at(unit, &slice) * each, slice.n * each);
    offer.arrived = w->ops->mark(w->dev, DEVICE_PUSH);
    assert(o->n_flying < DEVICE_OFFERS);
    o->flying[o->n_flying++] = offer;
    if (++o->slice < unit->n_slices)
        return 0;
    if (!apart)
        o->sent[offers_sum_of(pass, o->next)] = offer.arrived;
    o->slice = 0;
    o->next++;
    return 0;
}

/* In host memory a transfer is over when it is queued, so a second one would only hold a slot. */
static uint32_t most_flying(const struct device_pass *pass)
{
    return pass->worker->plan.setting.backend->takes_turns ? 1 : DEVICE_OFFERS;
}

/* Sends all contributions before `end`. */
static int offers_flush(struct device_pass *pass, uint32_t end)
{
    struct device_offers *o = &pass->offers;
    bool sent;
    int rc = device_pass_tell_losses(pass);

    while (rc == 0 && o->next < end) {
        sent = false;
        if (o->n_flying < most_flying(pass))
            rc = send(pass, o->n_flying == 0, &sent);
        if (rc == 0 && !sent)
            rc = land(pass);
    }
    return rc;
}

static int land_all(struct device_pass *pass)
{
    int rc = 0;

    while (rc == 0 && pass->offers.n_flying > 0)
        rc = land(pass);
    return rc;
}

/* Those that are made and not queued yet. */
static uint64_t count_slices(const struct device_pass *pass)
{
    const struct device_offers *o = &pass->offers;
    uint64_t n = 0;

    for (uint32_t i = o->next; i < o->n_made; i++)
        n += offers_unit_of(pass, i)->n_slices;
    return n - o->slice;
}

/* Number of contributions, from the first, that must be sent before the contribution after the current one has a sum:
 * those that it would overwrite, and all before them. */
static uint32_t count_in_the_way(const struct device_pass *pass)
{
    const uint32_t n_made = pass->offers.n_made, n_sums = pass->worker->plan.n_sums;

    return n_made + 2 > n_sums ? n_made + 2 - n_sums : 0;
}

/* Losses come first. Nothing waits for the host before a whole contribution with a sum is queued, so that the device
 * has work meanwhile. At the last microbatch every contribution that finds slots is sent; the others stay in their sums
 * until the next one needs a sum. Slices of earlier calls are landed: they were queued before a microbatch that is. */
int device_offers_go_on(struct device_pass *pass, uint32_t left)
{
    struct device_offers *o = &pass->offers;
    const uint32_t before = o->n_landed + o->n_flying;
    bool sent = true;

    if (o->n_made <= count_apart(pass))
        return 0;
    int rc = device_pass_tell_losses(pass);
    if (rc == 0 && left == 1 && count_in_the_way(pass) > count_apart(pass))
        rc = offers_flush(pass, count_in_the_way(pass));
    for (uint64_t due = (count_slices(pass) + left - 1) / left; rc == 0 && sent && due > 0; due--) {
        const bool full = o->n_flying == most_flying(pass);
        if (full && left > 1)
            break;
        rc = full ? land(pass) : 0;
        rc = rc ? rc : send(pass, false, &sent);
    }
    while (rc == 0 && o->n_landed < before)
        rc = land(pass);
    return rc;
}

int device_offers_made(struct device_pass *pass)
{
    struct device_offers *o = &pass->offers;
    const struct device_worker *w = pass->worker;
    const uint32_t n = o->n_made++;

    if (n >= count_apart(pass)) {
        round_sum(pass, n);
        o->made[offers_sum_of(pass, n)] = w->ops->mark(w->dev, DEVICE_COMPUTE);
    }
    return device_pass_overlaps(pass) ? 0 : device_offers_finish(pass);
}

int device_offers_finish(struct device_pass *pass)
{
    int rc = offers_flush(pass, pass->offers.n_made);

    return rc ? rc : land_all(pass);
}
