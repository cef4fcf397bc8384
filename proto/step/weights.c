/* A buffer is free when no visit from here on is known to need its unit, though the device may still compute with
 * that. Its mark `used` stays with the buffer, and the upload that writes over it waits for the mark on the device:
 * the host does not.
 *
 * A pass is a sequence of places: each visit of forward, then those of backward, with layers that are computed again in
 * between. Pulls are requested in this order as far ahead as buffers allow, and come back in it. So the oldest pull is
 * always the next that is needed, and `arranged` alone says how far ahead the pass is. */
#include "proto/step/weights.h"

#include "proto/plan/memory/segments.h"
#include "proto/plan/memory/units.h"

#include <assert.h>
#include <string.h>

/* NOWHERE: the visit needs none. HOST: the device reads it where it lies (tables of an embedding). */
enum location { NOWHERE, BUFFER, RESIDENT, HOST };

void device_weights_init(struct device_weights *weights, const struct device_worker *worker,
                         const struct device_link *link, void *context)
{
    *weights =
        (struct device_weights){.worker = worker, .link = link, .context = context, .n_visits = worker->model.n_visits};
}

/* Visits of a segment: those that come again from the first on, then all from the last on. */
struct segment_visits {
    uint32_t first, n, n_again;
};

/* A segment's backward is preceded by its forward once more, but for what was stored. */
static struct segment_visits visits_of(const struct device_weights *weights, uint32_t s)
{
    const struct device_worker *w = weights->worker;
    const struct plan_choice *choice = &w->plan.choice;
    const struct plan_segment segment = plan_segment_at(choice, &w->model, s);
    const struct plan_visits again = plan_again_of(choice, &w->model, s);
    const uint32_t end = segment.end < w->model.n_layers ? w->model.layers[segment.end].first_visit : weights->n_visits;

    return (struct segment_visits){again.first, end - again.first, again.n};
}

/* Behind forward. */
static uint32_t weights_find_visit(const struct device_weights *weights, uint32_t place,
                                   enum device_direction *direction)
{
    uint32_t s = weights->worker->plan.choice.n_cuts, at = place - weights->n_visits;
    struct segment_visits visits = visits_of(weights, s);

    while (s > 0 && at >= visits.n_again + visits.n) {
        at -= visits.n_again + visits.n;
        visits = visits_of(weights, --s);
    }
    *direction = at < visits.n_again ? DEVICE_AGAIN : DEVICE_BACKWARD;
    return *direction == DEVICE_AGAIN ? visits.first + at : visits.first + visits.n - 1 - (at - visits.n_again);
}

uint32_t device_weights_visit(const struct device_weights *weights, uint32_t place)
{
    enum device_direction direction;

    if (weights->n_skipped > 0)
        return place < weights->skipped ? place : place + weights->n_skipped;
    return place < weights->n_visits ? place : weights_find_visit(weights, place, &direction);
}

enum device_direction device_weights_direction(const struct device_weights *weights, uint32_t place)
{
    enum device_direction direction = DEVICE_FORWARD;

    if (place >= weights->n_visits)
        weights_find_visit(weights, place, &direction);
    return direction;
}

/* Counts the places up to the backward of `lowest`, below which nothing is trained. */
void device_weights_end(struct device_weights *weights, uint32_t lowest)
{
    uint32_t s = weights->worker->plan.choice.n_cuts, end = 2 * weights->n_visits - lowest;
    struct segment_visits visits = visits_of(weights, s);

    for (; s > 0 && lowest < visits.first; visits = visits_of(weights, --s))
        end += visits.n_again;
    weights->end = end + visits.n_again;
}

uint32_t device_weights_home(const struct device_weights *weights, uint32_t place)
{
    return model_order_home(weights->homes, device_weights_visit(weights, place));
}

static uint32_t weights_unit_at(const struct device_weights *weights, uint32_t place)
{
    return weights->worker->model.visits[device_weights_home(weights, place)];
}

static uint32_t weights_count_places(const struct device_weights *weights)
{
    return weights->backward ? weights->end : weights->n_visits;
}

static bool is_backward(const struct device_weights *weights, uint32_t place)
{
    return place >= weights->n_visits;
}

/* Where the visit at this place finds its weights. */
static enum location locate(const struct device_weights *weights, uint32_t place)
{
    const struct plan *plan = &weights->worker->plan;
    const struct model *model = &weights->worker->model;
    const uint32_t home = device_weights_home(weights, place), layer = model->visit_layers[home];
    const bool looks_up = model->layers[layer].kind == MODEL_EMBEDDING;

    if (is_backward(weights, place) && (looks_up || (plan->one_pass && model->layers[layer].kind == MODEL_HEAD)))
        return NOWHERE;
    if (model_drop_has(weights->drop, model, home))
        return NOWHERE;
    if (looks_up)
        return HOST;
    if (plan->n_resident == 0)
        return BUFFER;
    return plan_place_of(model, weights_unit_at(weights, place)) < plan->n_resident ? RESIDENT : BUFFER;
}

/* True if weights that pass through no buffer have arrived: for generation before all visits, otherwise with their
 * visit in forward. */
static bool has_arrived(const struct device_weights *weights, uint32_t place)
{
    return weights->worker->plan.setting.goal.purpose == PLAN_GENERATE || is_backward(weights, place);
}

/* A unit may still be in a buffer from an earlier place: then it is not pulled again. */
static struct device_weights_buffer *weights_find(struct device_weights *weights, uint32_t unit)
{
    for (uint32_t i = 0; i < weights->worker->plan.n_weight_buffers; i++)
        if (weights->buffers[i].taken && weights->buffers[i].unit == unit)
            return &weights->buffers[i];
    return NULL;
}

/* An empty buffer, or the longest unused buffer that no visit from `place` on is known to need, or NULL. */
static struct device_weights_buffer *weights_find_free(struct device_weights *weights, uint32_t place)
{
    struct device_weights_buffer *best = NULL;

    for (uint32_t i = 0; i < weights->worker->plan.n_weight_buffers; i++) {
        struct device_weights_buffer *b = &weights->buffers[i];
        if (!b->taken)
            return b;
        if (b->last < place && (!best || b->last < best->last))
            best = b;
    }
    return best;
}

/* Requests what a later place needs, during the visit at `place`. False if that is impossible yet; *rc of the link. */
static bool request_unit(struct device_weights *weights, uint32_t place, uint32_t wanted, int *rc)
{
    const uint32_t unit = weights_unit_at(weights, wanted);
    const enum location from = locate(weights, wanted);
    struct device_weights_buffer *b = from == BUFFER ? weights_find(weights, unit) : NULL;

    if (b)
        b->last = wanted;
    if (b || from == NOWHERE || (from != BUFFER && has_arrived(weights, wanted)))
        return true;
    b = from == BUFFER ? weights_find_free(weights, place) : NULL;
    if ((from == BUFFER && !b) || weights->n_pending == weights->worker->plan.choice.n_weight_buffers)
        return false;
    *rc = weights->link->pull(weights->context, weights->version, unit);
    if (*rc != 0)
        return false;
    weights->pending[weights->n_pending++] = wanted;
    if (b)
        *b = (struct device_weights_buffer){.unit = unit, .last = wanted, .taken = true, .used = b->used};
    return true;
}

/* Ends at the first place that cannot be requested yet: one further on may not overtake it. */
static int weights_arrange(struct device_weights *weights, uint32_t place)
{
    const uint32_t end = weights_count_places(weights);
    int rc = 0;

    while (weights->arranged < end && request_unit(weights, place, weights->arranged, &rc))
        weights->arranged++;
    return rc;
}

static void *device_address(struct device_weights *weights, uint32_t place)
{
    const struct device_worker *w = weights->worker;
    const uint32_t unit = weights_unit_at(weights, place);
    char *arena = w->ops->arena(w->dev);

    assert(locate(weights, place) != HOST);
    if (locate(weights, place) == RESIDENT)
        return arena + plan_resident(&w->plan, &w->model, unit);
    return arena + w->plan.weights[weights_find(weights, unit) - weights->buffers];
}

static void weights_copy(const struct device_worker *w, char *to, const void *from, uint64_t first, uint64_t end)
{
    if (first < end)
        w->ops->upload(w->dev, to + first, (const char *)from + first, end - first);
}

/* Uploads bytes first .. end-1 of a unit. Trained weights may lie in another buffer of the daemon's than frozen ones
 * (replay), so a range may be two copies. */
static void weights_upload(const struct device_worker *w, uint32_t unit, void *to,
                           const struct device_link_weights *from, uint64_t first, uint64_t end)
{
    const uint64_t since = trace_begin(w->trace);
    const uint64_t trained = w->model.units[unit].n_trained * number_bytes(w->plan.setting.goal.precision);
    const uint64_t border = from->trained == from->frozen || trained > end ? end : trained < first ? first : trained;
    char name[MODEL_NAME_BYTES];

    weights_copy(w, to, from->trained, first, border);
    weights_copy(w, to, from->frozen, border, end);
    if (w->trace)
        trace_end(w->trace, since, "upload", model_unit_name(name, &w->model, unit),
                  (struct trace_arg[]){{"bytes", end - first}, {NULL, 0}});
}

/* Clears the padding rows of the head's unit in a buffer that held other units. A resident unit has them since the
 * arena was zeroed. */
static void weights_clear_padding(struct device_weights *weights, uint32_t place)
{
    const struct device_worker *w = weights->worker;
    const uint32_t unit = weights_unit_at(weights, place);
    const uint64_t n = w->model.units[unit].n, room = plan_unit_room(&w->model, unit, w->plan.head_pad);
    const size_t value = number_bytes(w->plan.setting.goal.precision);

    if (room > n && w->model.units[unit].n_decoded == 0 && locate(weights, place) == BUFFER)
        w->ops->zero(w->dev,
                     &(struct device_zero){(char *)device_address(weights, place) + n * value, (room - n) * value});
}

/* Before the next wait: what it gave may be lent, and must be on the device then. */
static int weights_wait_weights(struct device_weights *weights)
{
    const struct device_worker *w = weights->worker;
    int rc = 0;

    if (weights->coming.from.lent)
        rc = w->ops->finish(w->dev, DEVICE_PULL, w->ops->mark(w->dev, DEVICE_PULL));
    weights->coming.from.lent = false;
    return rc ? rc : weights->link->wait_weights(weights->context, &weights->coming.from);
}

/* Visits need their units in the order of the pulls, so the oldest pull is this one's. */
static int weights_receive(struct device_weights *weights, uint32_t place)
{
    int rc = weights_wait_weights(weights);

    weights->n_pending--;
    memmove(weights->pending, weights->pending + 1, weights->n_pending * sizeof *weights->pending);
    weights->coming.place = place;
    weights->coming.sent = 0;
    return rc;
}

/* Queues the rest of the first done/n of the incoming unit. */
static void upload_piece(struct device_weights *weights, uint32_t done, uint32_t n)
{
    const struct device_worker *w = weights->worker;
    const uint32_t place = weights->coming.place, unit = weights_unit_at(weights, place);
    const uint64_t bytes = w->staying[unit] ? plan_pulled_bytes(&w->plan, &w->model, unit)
                                            : model_unit_bytes(&w->model.units[unit], w->plan.setting.goal.precision);
    /* Whole lines, so that pieces of copies stay aligned. */
    const uint64_t end = done == n ? bytes : bytes / n * done / PLAN_ALIGNMENT * PLAN_ALIGNMENT;

    if (end == weights->coming.sent)
        return;
    const enum location from = locate(weights, place);
    if (from == HOST)
        return;
    if (from == BUFFER)
        w->ops->follow(w->dev, DEVICE_PULL, DEVICE_COMPUTE, weights_find(weights, unit)->used);
    weights_upload(w, unit, device_address(weights, place), &weights->coming.from, weights->coming.sent, end);
    weights->coming.sent = end;
    if (end == bytes)
        w->staying[unit] = plan_stays(&w->plan, &w->model, unit);
}

/* Called when the visit before `place` is queued. The mark says when the device no longer reads the buffer. */
static void weights_leave(struct device_weights *weights, uint32_t place)
{
    const struct device_worker *w = weights->worker;

    if (place > 0 && locate(weights, place - 1) == BUFFER)
        weights_find(weights, weights_unit_at(weights, place - 1))->used = w->ops->mark(w->dev, DEVICE_COMPUTE);
}

struct device_sparse device_weights_sparse(const struct model_unit *unit, const struct model_piece *piece,
                                           const void *relayed, enum number_type precision, const void *x, void *y)
{
    if (piece->dense == 0)
        return (struct device_sparse){0};
    const char *const starts = (const char *)relayed + model_starts_at(unit, piece, precision);

    return (struct device_sparse){.rows = piece->n_rows,
                                  .columns = piece->dense / piece->n_rows,
                                  .n = piece->n,
                                  .starts = (const uint32_t *)(const void *)starts,
                                  .places = (const uint32_t *)(const void *)(starts + model_places_at(piece)),
                                  .x = x,
                                  .y = y};
}

/* Elements go to their places in a dense matrix of the device's, which the layer reads. */
static void scatter_piece(const struct device_worker *w, const struct model_unit *unit, const struct model_piece *piece,
                          const char *relayed, char *decoded)
{
    const enum number_type precision = w->plan.setting.goal.precision;
    const struct device_sparse op =
        device_weights_sparse(unit, piece, relayed, precision, device_element(precision, relayed, piece->offset),
                              device_element(precision, decoded, piece->decoded));

    w->ops->scatter(w->dev, &op);
}

static void decode_piece(const struct device_worker *w, const struct model_unit *unit, const struct model_piece *piece,
                         const char *relayed, char *decoded)
{
    const enum number_type precision = w->plan.setting.goal.precision;
    const size_t columns = piece->n / piece->n_rows, value = number_bytes(precision);
    const char *codes = relayed + model_piece_at(unit, piece, precision);
    const struct device_decode op = {
        .form = piece->form,
        .rows = piece->n_rows,
        .columns = columns,
        .codes = codes,
        .scales = piece->form == FORM_BF16
                      ? NULL
                      : (const float *)(codes + form_scales_at(piece->form, piece->n_rows, columns)),
        .y = decoded + piece->decoded * value,
    };

    w->ops->decode(w->dev, &op);
}

/* Decodes the coded and sparse pieces of a unit; returns where they are then, or NULL if there are none. */
static const void *weights_decode(struct device_weights *weights, uint32_t unit, const void *relayed)
{
    const struct device_worker *w = weights->worker;
    const struct model_unit *u = &w->model.units[unit];
    const struct model_piece *piece = &w->model.pieces[u->first_piece];
    const size_t value = number_bytes(w->plan.setting.goal.precision);
    const uint64_t padding = plan_unit_room(&w->model, unit, w->plan.head_pad) - u->n;

    if (u->n_decoded == 0 || w->plan.choice.sparse_singly)
        return NULL;
    char *const decoded = (char *)w->ops->arena(w->dev) + plan_decoded_at(&w->plan, &w->model, unit);
    /* A unit that is visited twice in a row is decoded once. */
    if (weights->has_decoded && weights->decoded == unit)
        return decoded;
    for (uint32_t i = 0; i < u->n_pieces; i++)
        if (u->coded >> piece[i].slot & 1 && piece[i].form != FORM_FP32)
            decode_piece(w, u, &piece[i], relayed, decoded);
        else if (u->sparse >> piece[i].slot & 1)
            scatter_piece(w, u, &piece[i], relayed, decoded);
    if (padding > 0)
        w->ops->zero(w->dev, &(struct device_zero){decoded + u->n_decoded * value, padding * value});
    weights->has_decoded = true;
    weights->decoded = unit;
    return decoded;
}

/* Called once for each place, in order. First the buffer of the visit before is released, then later units are
 * requested, and only then is this one waited for. */
int device_weights_next(struct device_weights *weights, uint32_t place, struct device_weights_at *out)
{
    const struct device_worker *w = weights->worker;
    bool has_arrived = weights->coming.from.trained && weights->coming.place == place;

    weights_leave(weights, place);
    int rc = weights_arrange(weights, place);
    assert(rc != 0 || weights->arranged > place);
    if (rc == 0 && !has_arrived && weights->n_pending > 0 && weights->pending[0] == place) {
        rc = weights_receive(weights, place);
        has_arrived = true;
    }
    *out = (struct device_weights_at){0};
    if (rc != 0)
        return rc;
    if (has_arrived)
        upload_piece(weights, 1, 1);
    /* Also covers pieces that device_weights_ahead has queued. */
    w->ops->follow(w->dev, DEVICE_COMPUTE, DEVICE_PULL, w->ops->mark(w->dev, DEVICE_PULL));
    if (has_arrived)
        weights_clear_padding(weights, place);
    const enum location from = locate(weights, place);
    if (from == HOST)
        out->relayed =
            has_arrived ? weights->coming.from.trained : w->tables[place]; /* the embedding's visits come first */
    else if (from != NOWHERE) {
        out->relayed = device_address(weights, place);
        out->decoded = weights_decode(weights, weights_unit_at(weights, place), out->relayed);
    }
    return 0;
}

int device_weights_ahead(struct device_weights *weights, uint32_t place, uint32_t done, uint32_t n)
{
    int rc = 0;

    if (weights->n_pending > 0 && weights->pending[0] == place)
        rc = weights_receive(weights, place);
    if (rc == 0 && weights->coming.from.trained && weights->coming.place == place)
        upload_piece(weights, done, n);
    return rc;
}

/* For generation: all resident units and tables once, before the first pass. No more pulls are open than in any
 * pass. */
int device_weights_load(struct device_weights *weights)
{
    const struct device_worker *w = weights->worker;
    const uint32_t n_resident = w->plan.n_resident, n = n_resident + model_table_visits(&w->model);
    const uint32_t ahead = w->plan.choice.n_weight_buffers;
    char *arena = w->ops->arena(w->dev);
    int rc = 0;

    for (uint32_t at = 0, asked = 0; rc == 0 && at < n; at++) {
        for (; rc == 0 && asked < n && asked < at + ahead; asked++)
            rc = weights->link->pull(weights->context, weights->version,
                                     asked < n_resident ? plan_unit_at(&w->model, asked)
                                                        : w->model.visits[asked - n_resident]);
        if (rc == 0)
            rc = weights_wait_weights(weights);
        if (rc == 0 && at < n_resident) {
            const uint32_t unit = plan_unit_at(&w->model, at);
            weights_upload(w, unit, arena + plan_resident(&w->plan, &w->model, unit), &weights->coming.from, 0,
                           model_unit_bytes(&w->model.units[unit], w->plan.setting.goal.precision));
        } else if (rc == 0)
            w->tables[at - n_resident] = weights->coming.from.trained;
    }
    return rc;
}
