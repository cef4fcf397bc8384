/* Messages come first, before there are threads and memory of a device that would disturb them; then what needs host
 * memory alone; then libraries' algorithms, since the operations that follow are timed with those that were chosen.
 * Each measurement opens the device anew: what one has left in it cannot speed up the next. */
#include "device/worker/profile.h"

#include "device/worker/profile_measure.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

enum {
    LINK_ROUND_MS = 200, /* of copies on a GPU: a second in all */
    SLICES = 16,         /* of an update with copies beside it */
    HOST_ARRAYS = 5,
};

/* Updates only read the one, and do not touch the other: no copy meets what is being written. */
static float *profile_gradient_of(const struct measured *b)
{
    return b->host + 3 * (size_t)MEASURE_ELEMENTS;
}

static float *downloaded_of(const struct measured *b)
{
    return b->host + 4 * (size_t)MEASURE_ELEMENTS;
}

/* On a GPU both ways at once, as in a step: weights down, contributions up. */
static void copy_some(const struct measured *b, size_t bytes)
{
    b->ops->upload(b->dev, b->arena, profile_gradient_of(b), bytes);
    if (!b->of_host)
        b->ops->download(b->dev, downloaded_of(b), b->arena + MEASURE_ELEMENTS * sizeof(float), bytes);
}

static void profile_copy(const struct measured *b)
{
    copy_some(b, MEASURE_ELEMENTS * sizeof(float));
}

/* y = x + h, of rows of MEASURE_HOST_WIDTH */
static void profile_add_rows(const struct measured *b, size_t n)
{
    float *x = (float *)b->arena;
    const struct device_dropout_add op = {.n_rows = 1,
                                          .n_tokens = n,
                                          .n = MEASURE_HOST_WIDTH,
                                          .x = x + MEASURE_ELEMENTS,
                                          .h = x + 2 * (size_t)MEASURE_ELEMENTS,
                                          .y = x};

    b->ops->dropout_add(b->dev, &op);
}

static void profile_add(const struct measured *b)
{
    profile_add_rows(b, MEASURE_ELEMENTS / MEASURE_HOST_WIDTH);
}

/* As little as an operation can do. */
static void profile_add_one(const struct measured *b)
{
    profile_add_rows(b, 1);
}

/* An update like AdamW's: reads four arrays and writes three. */
enum { UPDATE_BYTES = 7 * sizeof(float) };

static void update_some(const struct measured *b, size_t first, ptrdiff_t n)
{
    float *restrict w = b->host + first, *restrict m = w + MEASURE_ELEMENTS, *restrict v = m + MEASURE_ELEMENTS;
    const float *restrict g = profile_gradient_of(b) + first;

#pragma omp parallel for simd num_threads(b->n_threads)
    for (ptrdiff_t i = 0; i < n; i++) {
        m[i] = 0.9f * m[i] + 0.1f * g[i];
        v[i] = 0.999f * v[i] + 0.001f * g[i] * g[i];
        w[i] = w[i] - 1e-3f * m[i] / (sqrtf(v[i]) + 1e-8f);
    }
}

static void profile_update(const struct measured *b)
{
    update_some(b, 0, MEASURE_ELEMENTS);
}

/* The same slice by slice, with the link at work both ways throughout. */
static void update_beside_copies(const struct measured *b)
{
    const size_t n = MEASURE_ELEMENTS / SLICES;

    for (size_t i = 0; i < SLICES; i++) {
        for (unsigned k = 0; k < b->n_copies; k++)
            copy_some(b, n * sizeof(float));
        update_some(b, i * n, (ptrdiff_t)n);
    }
}

/* Measures one type on one arena. */
static int measure_type(struct profile *out, struct measured *b, enum number_type type, struct error *err)
{
    const size_t products = measure_products_bytes(b, type), others = measure_operations_bytes(b, type);
    int rc = measure_open(b, type, products > others ? products : others, err);

    if (rc)
        return rc;
    b->ops->choose(b->dev, &out->products, NULL);
    rc = measure_products(out, b);
    if (!rc)
        rc = measure_operations(out, b);
    if (rc)
        b->ops->fault(b->dev, err);
    measure_close(b);
    return rc;
}

/* What the host's memory moves for optimizer and link together: the most of some mixes. Alone, both would take equally
 * long in the first, which tells what the two ask for where the memory limits neither. It slows one more than the
 * other, mostly the update, and what that needs then would run alone: the later mixes have more copies. */
static int measure_beside(struct profile *out, struct measured *b)
{
    static const double mixes[] = {1, 1.25, 1.5};
    const double bytes = MEASURE_ELEMENTS * sizeof(float);
    const double copies = out->link_bytes_per_s / (sizeof(float) * out->update_parameters_per_s);
    int rc = 0;

    for (size_t i = 0; i < sizeof mixes / sizeof *mixes && !rc; i++) {
        b->n_copies = (unsigned)fmin(ceil(mixes[i] * copies), 1000);
        const double moved = (double)MEASURE_ELEMENTS * UPDATE_BYTES + 2 * b->n_copies * bytes;
        out->host_bytes_per_s = fmax(out->host_bytes_per_s, moved / measure_time(b, update_beside_copies, &rc));
    }
    return rc;
}

/* Host memory is page-locked as a worker does it: weights to be read, an inbox to be written. */
static int measure_link(struct profile *out, struct measured *b)
{
    const size_t bytes = MEASURE_ELEMENTS * sizeof(float);
    const double usual = b->round_s;
    int rc = 0;

    b->ops->lend(b->dev, profile_gradient_of(b), bytes, false, NULL);
    if (!b->of_host)
        b->ops->lend(b->dev, downloaded_of(b), bytes, true, NULL);
    b->round_s = b->of_host ? usual : LINK_ROUND_MS / 1e3;
    out->link_bytes_per_s = (double)bytes / measure_time(b, profile_copy, &rc);
    if (!rc && !b->of_host)
        rc = measure_beside(out, b);
    b->round_s = usual;
    return rc;
}

static int measure_memory(struct profile *out, struct measured *b, struct error *err)
{
    int rc = measure_open(b, NUMBER_FP32, 3 * (size_t)MEASURE_ELEMENTS * sizeof(float), err);

    if (rc)
        return rc;
    rc = measure_link(out, b);
    if (!rc)
        out->memory_bytes_per_s = 3.0 * MEASURE_ELEMENTS * sizeof(float) / measure_time(b, profile_add, &rc);
    if (!rc && !b->of_host)
        out->call_s = b->call_s = measure_time(b, profile_add_one, &rc);
    if (rc)
        b->ops->fault(b->dev, err);
    measure_close(b);
    return rc;
}

/* The device's memory and link, and the optimizer, in host memory of their own. */
static int measure_host(struct profile *out, struct measured *b, struct error *err)
{
    b->host = aligned_alloc(64, HOST_ARRAYS * (size_t)MEASURE_ELEMENTS * sizeof(float));
    if (!b->host)
        return error_set(err, -ENOMEM, "no memory to measure with: 320 MiB are needed");
    for (size_t i = 0; i < HOST_ARRAYS * (size_t)MEASURE_ELEMENTS; i++)
        b->host[i] = 1e-3f; /* avoids slow arithmetic */
    int rc = 0;
    out->update_parameters_per_s = MEASURE_ELEMENTS / measure_time(b, profile_update, &rc);
    if (!rc)
        rc = measure_memory(out, b, err);
    free(b->host);
    return rc;
}

static int worker_profile_measure(struct profile *out, struct measured *b, struct error *err)
{
    measure_messages(out, b);
    int rc = measure_host(out, b, err);
    for (int type = 0; !rc && !b->of_host && type < PROFILE_TYPES; type++) /* on the host, products are ours */
        rc = measure_choose(&out->products, b, (enum number_type)type, err);
    for (int type = 0; !rc && type < PROFILE_TYPES; type++)
        rc = measure_type(out, b, (enum number_type)type, err);
    return rc;
}

int device_profile(struct profile *out, const struct device_ops *ops, unsigned index, unsigned n_threads,
                   double (*clock)(void), struct error *err)
{
    const bool of_host = plan_backend_find(ops->name)->takes_turns;
    struct device_facts facts = {.attention = PLAN_ATTENTION_OWN};
    struct measured b;
    int rc = of_host ? 0 : ops->probe(index, &facts, err);

    *out = (struct profile){.attention = facts.attention,
                            .n_multiprocessors = facts.n_multiprocessors}; /* what is not measured is 0 */
    if (!rc)
        rc = measure_begin(&b, ops, index, n_threads, clock, err);
    if (rc)
        return rc;
    b.way = facts.attention, b.convolution = facts.convolution, b.n_multiprocessors = facts.n_multiprocessors;
    rc = worker_profile_measure(out, &b, err);
    measure_end(&b);
    return rc ? rc : profile_check(out, err);
}
