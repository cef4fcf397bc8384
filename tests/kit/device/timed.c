#include "tests/kit/device/timed.h"

#include "proto/operation/backend.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What the optimizer is to do: a contribution's slice in the inbox, or a unit's update. */
struct timed_slice {
    uint32_t unit, step; /* step: of the run, from 0 */
    double came, seconds;
    double update; /* seconds, once all of the unit is folded */
    bool is_update;
};

enum { WAITING = TIMED_SLOTS + 64 };

/* An array link, whose calls it extends. */
struct timed_link {
    struct array_link array; /* first: calls that are array_link's own find it there */
    const struct timed_options *options;
    unsigned optimizer;
    uint32_t step;
    struct timed_slice inbox[WAITING]; /* in the order in which they came, but those that the optimizer has begun */
    uint32_t n_inbox, n_updates;       /* updates are in no slot */
    double freed[TIMED_SLOTS]; /* when the slots that it has begun are free, rising: those of the time to come */
    uint32_t n_freed;
    double free_at; /* the optimizer */
    double *folded; /* (units): when the last that was contributed is */
    double ends[TIMED_STEPS];
    uint32_t asked[PLAN_MAX_WEIGHT_BUFFERS];
    double asked_at[PLAN_MAX_WEIGHT_BUFFERS];
    unsigned n_pulls, n_waits;
    uint64_t *n_folded; /* (units): slices, since the unit was updated */
    void *weights;      /* (segment_n) in the worker's type */
    struct device_worker *worker;
};

/* Of a step. */
static uint64_t count_slices(const struct timed_link *link, uint32_t unit)
{
    const struct model_unit *u = &link->worker->model.units[unit];
    const struct plan_setting *s = &link->worker->plan.setting;

    return (uint64_t)u->n_slices * u->n_visits * (s->share_rows / s->part_rows);
}

static double message_s(const struct timed_link *link)
{
    return link->options->profile.message_s;
}

/* When the optimizer takes its next slice; the inbox is not empty. */
static double next_begin(const struct timed_link *link)
{
    double came = link->inbox[0].came;

    for (uint32_t i = 1; i < link->n_inbox; i++)
        came = fmin(came, link->inbox[i].came);
    return fmax(link->free_at, came);
}

static void end_fold(struct timed_link *link, const struct timed_slice *slice)
{
    const struct timed_slice update = {slice->unit, slice->step, link->free_at, slice->update, 0, true};

    link->freed[link->n_freed++] = link->free_at + message_s(link);
    if (++link->n_folded[slice->unit] < count_slices(link, slice->unit))
        return;
    link->n_folded[slice->unit] = 0;
    if (slice->update > 0) {
        ck_assert_uint_lt(link->n_inbox, WAITING);
        link->inbox[link->n_inbox++] = update;
        link->n_updates++;
    }
}

/* It takes it: of those that are there by then the lowest unit's, the oldest of them. */
static void begin_next(struct timed_link *link)
{
    const double begin = next_begin(link);
    uint32_t next = WAITING;

    for (uint32_t i = 0; i < link->n_inbox; i++)
        if (link->inbox[i].came <= begin && (next == WAITING || link->inbox[i].unit < link->inbox[next].unit))
            next = i;
    const struct timed_slice slice = link->inbox[next];
    memmove(link->inbox + next, link->inbox + next + 1, (--link->n_inbox - next) * sizeof slice);
    link->free_at = simulated.thread_worked(link->optimizer, begin, slice.seconds);
    link->folded[slice.unit] = link->ends[slice.step] = link->free_at;
    if (slice.is_update)
        link->n_updates--;
    else
        end_fold(link, &slice);
}

/* What it has begun by now, and which slots it has freed. */
static void catch_up(struct timed_link *link)
{
    const double now = simulated.now();
    uint32_t n_past = 0;

    while (link->n_inbox > 0 && next_begin(link) <= now)
        begin_next(link);
    while (n_past < link->n_freed && link->freed[n_past] <= now)
        n_past++;
    link->n_freed -= n_past;
    memmove(link->freed, link->freed + n_past, link->n_freed * sizeof *link->freed);
}

static bool has_folded(const struct timed_link *link, uint32_t unit)
{
    for (uint32_t i = 0; i < link->n_inbox; i++)
        if (link->inbox[i].unit == unit && link->inbox[i].step < link->step)
            return false;
    return true;
}

static int pull(void *context, uint64_t version, uint32_t unit)
{
    struct timed_link *link = context;

    link->asked_at[link->n_pulls % PLAN_MAX_WEIGHT_BUFFERS] = simulated.now();
    link->asked[link->n_pulls++ % PLAN_MAX_WEIGHT_BUFFERS] = unit;
    return array_link.pull(&link->array, version, unit);
}

/* Nothing comes while the worker waits, so what the optimizer does next is known. */
static int wait_weights(void *context, struct device_link_weights *weights)
{
    struct timed_link *link = context;
    const double asked = link->asked_at[link->n_waits % PLAN_MAX_WEIGHT_BUFFERS];
    const uint32_t unit = link->asked[link->n_waits++ % PLAN_MAX_WEIGHT_BUFFERS];

    catch_up(link);
    while (!has_folded(link, unit))
        begin_next(link);
    simulated.host_awaits(link->optimizer, fmax(asked + message_s(link), link->folded[unit]) + message_s(link));
    const size_t each = number_bytes(link->array.precision);
    const int rc = array_link.wait_weights(&link->array, weights);
    char *pinned = (char *)link->weights + link->array.model->units[unit].offset * each;
    memcpy(pinned, weights->trained, link->array.model->units[unit].n * each); /* the same every time */
    weights->trained = weights->frozen = pinned;
    return rc;
}

static uint32_t count_used(const struct timed_link *link)
{
    return link->array.n_slots - link->array.n_contributions + link->n_inbox - link->n_updates + link->n_freed;
}

static int take_slot(void *context, uint32_t visit, uint32_t part, uint32_t slice, bool wait, void **slot)
{
    struct timed_link *link = context;

    catch_up(link);
    if (wait && count_used(link) == link->options->n_slots) {
        while (link->n_freed == 0)
            begin_next(link);
        simulated.host_awaits(link->optimizer, link->freed[0]);
        catch_up(link);
    }
    *slot = NULL;
    if (count_used(link) == link->options->n_slots)
        return 0;
    return array_link.take_slot(&link->array, visit, part, slice, wait, slot);
}

static int contribute(void *context, uint32_t visit, uint32_t part, uint32_t slice, const void *slot,
                      const struct device_link_slice *of)
{
    struct timed_link *link = context;
    const uint32_t unit = link->array.model->visits[visit];
    const struct model_unit *u = &link->array.model->units[unit];
    const uint64_t left = u->n - (uint64_t)slice * MODEL_SLICE;
    const double elements = (double)(left < MODEL_SLICE ? left : MODEL_SLICE);
    const double rate = link->options->profile.update_parameters_per_s;
    const struct timed_price alike = {.fold = link->options->update},
                             price = link->options->prices ? link->options->prices[u->n_visits - 1] : alike;

    catch_up(link);
    link->inbox[link->n_inbox++] = (struct timed_slice){.unit = unit,
                                                        .step = link->step,
                                                        .came = simulated.now() + message_s(link),
                                                        .seconds = elements * price.fold / rate,
                                                        .update = (double)u->n * price.update / rate};
    return array_link.contribute(&link->array, visit, part, slice, slot, of);
}

struct device_worker_options timed_worker(const struct setting *s, uint32_t part_rows, uint32_t microbatch)
{
    struct device_worker_options options = setting_options(s, part_rows, microbatch);

    options.ops = simulated.ops;
    options.setting.backend = plan_backend_find("cuda");
    return options;
}

static void lend(const struct timed_link *link, const void *host, size_t bytes, bool writable)
{
    struct error err = {""};
    const int rc = link->worker->ops->lend(link->worker->dev, host, bytes, writable, &err);

    ck_assert_msg(rc == 0, "%s", err.text);
}

/* Whole ones, which a device can be lent; owned. */
static void *pages(size_t bytes)
{
    enum { PAGE = 4096 };
    void *out = aligned_alloc(PAGE, (bytes / PAGE + 1) * PAGE);

    ck_assert_ptr_nonnull(out);
    return out;
}

/* As a worker does with what the daemon gave it. The slots are then the array link's. */
static void lend_inbox(struct timed_link *link)
{
    const size_t slot_bytes = model_slot_bytes(link->array.model, link->array.grad);

    for (uint32_t i = 0; i < link->array.n_inbox; i++) {
        free(link->array.inbox[i]);
        link->array.inbox[i] = pages(slot_bytes);
        lend(link, link->array.inbox[i], slot_bytes, true);
    }
}

static void unlend_inbox(struct timed_link *link)
{
    for (uint32_t i = 0; i < link->array.n_inbox; i++)
        link->worker->ops->unlend(link->worker->dev, link->array.inbox[i]);
}

static void begin_step(struct timed_link *link, const struct setting *s, uint64_t step)
{
    const struct device_worker_options *o = &link->options->worker;

    array_link_init(&link->array, &s->model, s->weights);
    link->array.version = step;
    link->array.precision = o->setting.goal.precision;
    link->array.grad = o->setting.goal.grad;
    link->array.n_buffers = o->choice.n_weight_buffers;
    link->array.n_inbox = link->options->n_slots < ARRAY_LINK_SLOTS ? link->options->n_slots : ARRAY_LINK_SLOTS;
    lend_inbox(link);
}

void timed_run(struct timed *out, const struct setting *s, const struct timed_options *options)
{
    struct device_link calls = array_link;
    struct device_worker worker;
    struct ledger ledger = {0};
    struct error err = {""};
    struct timed_link link = {.options = options,
                              .worker = &worker,
                              .weights = pages(s->model.segment_n * sizeof(float)),
                              .folded = calloc(s->model.n_units, sizeof(double)),
                              .n_folded = calloc(s->model.n_units, sizeof(uint64_t))};

    ck_assert(options->n_steps >= 1 && options->n_steps <= TIMED_STEPS && options->n_slots >= 1 &&
              options->n_slots <= TIMED_SLOTS && link.folded && link.n_folded);
    ck_assert_msg(device_worker_init(&worker, &options->worker, &ledger, &err) == 0, "%s", err.text);
    void *stash = worker.stash = pages(worker.plan.host_stash_bytes);
    lend(&link, stash, worker.plan.host_stash_bytes + 1, true);
    lend(&link, link.weights, s->model.segment_n * sizeof(float), false);
    simulated.time(&options->profile);
    calls.pull = pull, calls.wait_weights = wait_weights;
    calls.take_slot = take_slot, calls.contribute = contribute;
    *out = (struct timed){.optimizer = simulated.thread("optimizer")};
    link.optimizer = out->optimizer;
    for (uint32_t i = 0; i < options->n_steps; i++) {
        struct device_share share = setting_share(s, s->batch / options->worker.setting.part_rows);
        share.step += i;
        if (i > 0) {
            unlend_inbox(&link);
            array_link_free(&link.array);
        }
        link.step = i;
        begin_step(&link, s, share.step);
        ck_assert_msg(device_worker_step(&worker, &share, &calls, &link, &err) == 0, "%s", err.text);
        out->ends[i] = simulated.now();
    }
    while (link.n_inbox > 0)
        begin_next(&link);
    memcpy(out->folded, link.ends, sizeof out->folded);
    simulated.tell_time(&out->report);
    simulated.time(NULL);
    out->link = link.array;
    device_worker_free(&worker);
    free(stash);
    free(link.weights);
    free(link.folded);
    free(link.n_folded);
}

void timed_free(struct timed *timed)
{
    array_link_free(&timed->link);
}
