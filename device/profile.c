#include "device/profile.h"

#include "plan/backend.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    HOST_WIDTH = 512,    /* of the products on the CPU: rows x width x width */
    DEVICE_WIDTH = 4096, /* on another device, which is slow with narrow ones */
    ELEMENTS = 16 << 20, /* of the arrays that pass by: beyond any cache */
    ROUNDS = 5,
    LEAST_MS = 10,        /* of a round: short products are repeated, */
    MOST_QUEUED = 256,    /* up to so many before they are waited for, which takes time too */
    MOST_ROUNDS_MS = 400, /* and no further round begins after that */
};

struct bench {
    const struct device_ops *ops;
    struct device *dev;
    enum number_type type;
    unsigned index, n_threads;
    uint32_t rows, width;
    char *arena;
    float *host; /* (4, ELEMENTS): in the order of an optimizer's weights, moments and gradient */
};

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* Seconds of one call, the least of some rounds; *rc is the device's. */
static double time_of(const struct bench *b, void (*call)(const struct bench *), int *rc)
{
    const double begin = now();
    double best = INFINITY;

    call(b); /* touches what is new */
    *rc = b->dev ? b->ops->sync(b->dev) : 0;
    for (int round = 0; !*rc && round < ROUNDS; round++) {
        const double since = now();
        unsigned n = 0;
        for (unsigned most = 1; !*rc && now() - since < LEAST_MS / 1e3; most *= 2) {
            for (unsigned i = 0; i < most && i < MOST_QUEUED; i++, n++)
                call(b);
            *rc = b->dev ? b->ops->sync(b->dev) : 0;
        }
        const double each = (now() - since) / n;
        best = each < best ? each : best;
        if (now() - begin > MOST_ROUNDS_MS / 1e3)
            break;
    }
    return best;
}

static void multiply(const struct bench *b)
{
    const size_t value = number_bytes(b->type), weights = (size_t)b->width * b->width * value;
    const struct device_matmul op = {.m = b->rows,
                                     .n = b->width,
                                     .k = b->width,
                                     .a = b->arena + weights,
                                     .a_stride = b->width,
                                     .b = b->arena,
                                     .b_stride = b->width,
                                     .c = b->arena + weights + (size_t)b->rows * b->width * value,
                                     .c_stride = b->width};

    b->ops->matmul(b->dev, &op);
}

static void upload(const struct bench *b)
{
    b->ops->upload(b->dev, b->arena, b->host, ELEMENTS * sizeof(float));
}

/* y = x + h */
static void add(const struct bench *b)
{
    float *x = (float *)b->arena;
    static const struct device_dropout none;

    b->ops->dropout_add(b->dev, x, x + ELEMENTS, x + 2 * (size_t)ELEMENTS, 1, ELEMENTS / HOST_WIDTH, HOST_WIDTH, &none);
}

/* An update as AdamW's: it reads four arrays and writes three. */
static void update(const struct bench *b)
{
    const ptrdiff_t n = ELEMENTS;
    float *restrict w = b->host, *restrict m = w + n, *restrict v = m + n;
    const float *restrict g = v + n;

#pragma omp parallel for simd num_threads(b->n_threads)
    for (ptrdiff_t i = 0; i < n; i++) {
        m[i] = 0.9f * m[i] + 0.1f * g[i];
        v[i] = 0.999f * v[i] + 0.001f * g[i] * g[i];
        w[i] = w[i] - 1e-3f * m[i] / (sqrtf(v[i]) + 1e-8f);
    }
}

static int open_device(struct bench *b, enum number_type type, size_t bytes, struct error *err)
{
    const int rc = b->ops->open(&b->dev, b->index, type, bytes, b->n_threads, err);

    b->type = type;
    if (!rc)
        b->arena = b->ops->arena(b->dev);
    return rc;
}

static void close_device(struct bench *b)
{
    b->ops->close(b->dev);
    b->dev = NULL;
}

static int measure_products(struct profile *out, struct bench *b, enum number_type type, struct error *err)
{
    const size_t largest = profile_rows[PROFILE_ROWS - 1];
    int rc = open_device(b, type, (2 * largest + b->width) * b->width * number_bytes(type), err);

    if (rc)
        return rc;
    for (int i = 0; !rc && i < PROFILE_ROWS; i++) {
        b->rows = profile_rows[i];
        out->matmul_flops[type][i] = 2.0 * b->rows * b->width * b->width / time_of(b, multiply, &rc);
    }
    if (rc)
        b->ops->fault(b->dev, err);
    close_device(b);
    return rc;
}

static int measure_memory(struct profile *out, struct bench *b, struct error *err)
{
    int rc = open_device(b, NUMBER_FP32, 3 * (size_t)ELEMENTS * sizeof(float), err);

    if (rc)
        return rc;
    b->ops->lend(b->dev, b->host, ELEMENTS * sizeof(float), false, NULL); /* as a worker does with weights */
    out->link_bytes_per_s = ELEMENTS * sizeof(float) / time_of(b, upload, &rc);
    if (!rc)
        out->memory_bytes_per_s = 3.0 * ELEMENTS * sizeof(float) / time_of(b, add, &rc);
    if (rc)
        b->ops->fault(b->dev, err);
    close_device(b);
    return rc;
}

int device_profile(struct profile *out, const struct device_ops *ops, unsigned index, unsigned n_threads,
                   struct error *err)
{
    const bool of_host = plan_backend_find(ops->name)->takes_turns;
    struct bench b = {.ops = ops, .index = index, .n_threads = n_threads, .width = of_host ? HOST_WIDTH : DEVICE_WIDTH};
    int rc = 0;

    for (int type = 0; !rc && type < NUMBER_TYPES; type++)
        rc = measure_products(out, &b, (enum number_type)type, err);
    if (rc)
        return rc;
    b.host = aligned_alloc(64, 4 * (size_t)ELEMENTS * sizeof(float));
    if (!b.host)
        return error_set(err, -ENOMEM, "no memory to measure with: 256 MiB are needed");
    for (size_t i = 0; i < 4 * (size_t)ELEMENTS; i++)
        b.host[i] = 1e-3f; /* nothing whose arithmetic is slow */
    rc = measure_memory(out, &b, err);
    if (!rc)
        out->update_parameters_per_s = ELEMENTS / time_of(&b, update, &rc);
    free(b.host);
    return rc ? rc : profile_check(out, err);
}
