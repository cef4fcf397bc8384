#include "device/weights.h"

#include <assert.h>

void device_weights_init(struct device_weights *weights, const struct device_worker *worker,
                         const struct device_link *link, void *context)
{
    *weights = (struct device_weights){.worker = worker, .link = link, .context = context};
}

uint32_t device_weights_visit(const struct device_weights *weights, uint32_t place)
{
    const uint32_t n = weights->worker->model.n_visits;

    if (weights->listed)
        return weights->listed[place];
    return place < n ? place : 2 * n - 1 - place;
}

static uint32_t unit_at(const struct device_weights *weights, uint32_t place)
{
    return weights->worker->model.visits[device_weights_visit(weights, place)];
}

static bool is_resident(const struct device_weights *weights, uint32_t unit)
{
    return unit < weights->worker->plan.choice.n_resident;
}

static void *resident_address(const struct device_weights *weights, uint32_t unit)
{
    const struct device_worker *w = weights->worker;

    return device_element(w->plan.setting.precision, (char *)w->ops->arena(w->dev) + w->plan.resident,
                          w->model.units[unit].offset);
}

static uint64_t unit_bytes(const struct device_worker *w, uint32_t unit)
{
    return w->model.units[unit].n * number_bytes(w->plan.setting.precision);
}

static uint32_t count_places(const struct device_weights *weights)
{
    return weights->listed ? weights->n_listed : weights->worker->model.n_visits * (weights->backward ? 2 : 1);
}

static struct device_weights_buffer *find(struct device_weights *weights, uint32_t unit)
{
    for (uint32_t i = 0; i < weights->worker->plan.choice.n_weight_buffers; i++)
        if (weights->buffers[i].taken && weights->buffers[i].unit == unit)
            return &weights->buffers[i];
    return NULL;
}

/* An empty buffer, or the longest unused of those that no visit from `place` on is known to want, or NULL. */
static struct device_weights_buffer *find_free(struct device_weights *weights, uint32_t place)
{
    struct device_weights_buffer *best = NULL;

    for (uint32_t i = 0; i < weights->worker->plan.choice.n_weight_buffers; i++) {
        struct device_weights_buffer *b = &weights->buffers[i];
        if (!b->taken)
            return b;
        if (b->last < place && (!best || b->last < best->last))
            best = b;
    }
    return best;
}

/* Gives buffers to as many visits as can have one while `place` is at work. */
static int arrange(struct device_weights *weights, uint32_t place)
{
    const uint32_t end = count_places(weights);

    for (; weights->arranged < end; weights->arranged++) {
        const uint32_t unit = unit_at(weights, weights->arranged);
        if (is_resident(weights, unit))
            continue;
        struct device_weights_buffer *b = find(weights, unit);
        if (!b) {
            b = find_free(weights, place);
            if (!b)
                return 0;
            int rc = weights->link->pull(weights->context, weights->version, unit);
            if (rc != 0)
                return rc;
            *b = (struct device_weights_buffer){.order = weights->n_pulls++,
                                                .unit = unit,
                                                .taken = true,
                                                .pending = true};
        }
        b->last = weights->arranged;
    }
    return 0;
}

static void *device_address(const struct device_weights *weights, const struct device_weights_buffer *b)
{
    const struct device_worker *w = weights->worker;

    return (char *)w->ops->arena(w->dev) + w->plan.weights[b - weights->buffers];
}

/* Visits want their units in the order of the pulls, so the oldest pull is this one's. */
static int receive(struct device_weights *weights, struct device_weights_buffer *b)
{
    const struct device_worker *w = weights->worker;
    char name[MODEL_NAME_BYTES];
    const void *host;

    for (uint32_t i = 0; i < w->plan.choice.n_weight_buffers; i++)
        assert(!weights->buffers[i].pending || weights->buffers[i].order >= b->order);
    int rc = weights->link->wait_weights(weights->context, &host);
    if (rc != 0)
        return rc;
    const uint64_t since = trace_begin(w->trace), bytes = unit_bytes(w, b->unit);
    w->ops->upload(w->dev, device_address(weights, b), host, bytes);
    if (w->trace)
        trace_end(w->trace, since, "upload", model_unit_name(name, &w->model, b->unit),
                  (struct trace_arg[]){{"bytes", bytes}, {NULL, 0}});
    b->pending = false;
    return 0;
}

int device_weights_next(struct device_weights *weights, uint32_t place, const void **out)
{
    const uint32_t unit = unit_at(weights, place);
    int rc = arrange(weights, place);
    if (rc != 0)
        return rc;

    if (is_resident(weights, unit)) {
        *out = resident_address(weights, unit);
        return 0;
    }
    struct device_weights_buffer *b = find(weights, unit);
    assert(b && b->last >= place);
    if (b->pending)
        rc = receive(weights, b);
    *out = device_address(weights, b);
    return rc;
}

int device_weights_load_resident(struct device_weights *weights)
{
    const struct device_worker *w = weights->worker;
    const uint32_t n = w->plan.choice.n_resident, ahead = w->plan.choice.n_weight_buffers;
    int rc = 0;

    for (uint32_t unit = 0, asked = 0; rc == 0 && unit < n; unit++) {
        const void *host;
        for (; rc == 0 && asked < n && asked < unit + ahead; asked++)
            rc = weights->link->pull(weights->context, weights->version, asked);
        if (rc == 0)
            rc = weights->link->wait_weights(weights->context, &host);
        if (rc == 0)
            w->ops->upload(w->dev, resident_address(weights, unit), host, unit_bytes(w, unit));
    }
    return rc;
}
