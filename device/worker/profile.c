#include "device/worker/profile.h"

#include "proto/base/random.h"
#include "proto/operation/backend.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    HOST_WIDTH = 512,    /* for products on the CPU: rows x width x width */
    DEVICE_WIDTH = 4096, /* on other devices, which are slow with narrow ones */
    HOST_HEAD = 64,      /* typical head width and tokens of a row, for attention */
    DEVICE_HEAD = 128,
    HOST_TOKENS = 512,
    DEVICE_TOKENS = 2048,
    DEVICE_ROWS = 4,
    NOISE = 1 << 20,     /* random numbers */
    ELEMENTS = 16 << 20, /* of the streamed arrays: beyond any cache */
    ROUNDS = 5,
    LEAST_MS = 10,        /* per round: short products are repeated, */
    MOST_QUEUED = 256,    /* up to this number between waits, which take time, too */
    MOST_ROUNDS_MS = 400, /* no further round begins after that */
};

struct bench {
    const struct device_ops *ops;
    struct device *dev;
    enum number_type type;
    unsigned index, n_threads;
    uint32_t rows, width;
    double (*now)(void);
    struct device_matmul product;
    enum attention_path path; /* of attention */
    enum plan_attention way;  /* the device's */
    char *arena;
    void *noise; /* (NOISE) in the device's type */
    float *host; /* (4, ELEMENTS): an optimizer's weights, moments and gradient */
};

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* Seconds per call, the least of several rounds; *rc is the device's. */
static double time_of(const struct bench *b, void (*call)(const struct bench *), int *rc)
{
    const double begin = b->now();
    double best = INFINITY;

    call(b); /* touches new memory */
    *rc = b->dev ? b->ops->sync(b->dev) : 0;
    for (int round = 0; !*rc && round < ROUNDS; round++) {
        const double since = b->now();
        unsigned n = 0;
        for (unsigned most = 1; !*rc && b->now() - since < LEAST_MS / 1e3; most *= 2) {
            for (unsigned i = 0; i < most && i < MOST_QUEUED; i++, n++)
                call(b);
            *rc = b->dev ? b->ops->sync(b->dev) : 0;
        }
        const double each = (b->now() - since) / n;
        best = each < best ? each : best;
        if (b->now() - begin > MOST_ROUNDS_MS / 1e3)
            break;
    }
    return best;
}

/* Uses the arena for weights, the largest number of rows, and their results. */
static void multiply(const struct bench *b)
{
    const size_t value = number_bytes(b->type), weights = (size_t)b->width * b->width * value;
    const size_t rows = (size_t)profile_rows[PROFILE_ROWS - 1] * b->width * value;
    const struct device_matmul op = {.m = b->rows,
                                     .n = b->width,
                                     .k = b->width,
                                     .a = b->arena + weights,
                                     .a_stride = b->width,
                                     .b = b->arena,
                                     .b_stride = b->width,
                                     .c = b->arena + weights + rows,
                                     .c_stride = b->width};

    b->ops->matmul(b->dev, &op);
}

/* Random numbers for products. Zeros would switch no transistor, and a device with little to do clocks higher than one
 * at work. The sum of four random bytes is roughly normal: mean 0, deviation 1. */
static float draw(uint32_t word)
{
    const float mean = 510, deviation = 147.8f; /* a sum of four bytes has 4 * 127.5, and 2 sqrt((256^2 - 1) / 12) */

    return ((float)((word & 255) + (word >> 8 & 255) + (word >> 16 & 255) + (word >> 24)) - mean) / deviation;
}

/* Fills the arena's first n elements. */
static int fill(const struct bench *b, size_t n)
{
    const struct random_key key = {{1, 2}};
    const size_t value = number_bytes(b->type);
    uint32_t words[4];

    for (uint32_t i = 0; i < NOISE; i++) {
        if (i % 4 == 0)
            random_quad(words, key, 0, i / 4);
        if (b->type == NUMBER_BF16)
            ((uint16_t *)b->noise)[i] = number_to_bf16(draw(words[i % 4]));
        else
            ((float *)b->noise)[i] = draw(words[i % 4]);
    }
    for (size_t at = 0; at < n; at += NOISE)
        b->ops->upload(b->dev, b->arena + at * value, b->noise, (n - at < NOISE ? n - at : NOISE) * value);
    return b->ops->sync(b->dev);
}

/* Uses the arena for qkv, out and its gradient, qkv's gradient, workspace, log-sum-exp, a bias. */
struct attention {
    size_t n_rows, n_tokens, head, width;
};

static struct attention attention_shape(const struct bench *b)
{
    if (b->width == HOST_WIDTH)
        return (struct attention){1, HOST_TOKENS, HOST_HEAD, b->width};
    return (struct attention){DEVICE_ROWS, DEVICE_TOKENS, DEVICE_HEAD, b->width};
}

static size_t heads_of(const struct attention *a)
{
    return a->width / a->head;
}

/* Elements of one array of the output's size. */
static size_t attention_elements(const struct attention *a)
{
    return a->n_rows * a->n_tokens * a->width;
}

enum { ATTENTION_ARRAYS = 8 };

/* Enough for every path. */
static size_t scratch_bytes(const struct bench *b, const struct attention *a)
{
    const size_t n_heads = heads_of(a);
    const struct plan_attention_sizes sizes = {
        .n_rows = a->n_rows, .n_tokens = a->n_tokens, .n_heads = n_heads, .n_kv_heads = n_heads, .width = a->width};
    const uint64_t own = plan_backend_find(b->ops->name)->scratch_bytes(&sizes, b->n_threads);
    struct plan_attention_scratch scratch;

    plan_attention_lay_out(&scratch, b->way, a->n_rows, a->n_tokens, n_heads, a->width);
    return scratch.way != PLAN_ATTENTION_OWN && scratch.bytes > own ? scratch.bytes : own;
}

static size_t sums_bytes(const struct attention *a)
{
    return a->n_rows * a->n_tokens * heads_of(a) * sizeof(float);
}

static size_t attention_bytes(const struct bench *b, const struct attention *a)
{
    return ATTENTION_ARRAYS * attention_elements(a) * number_bytes(b->type) + scratch_bytes(b, a) + sums_bytes(a) +
           heads_of(a) * sizeof(float);
}

/* The same shape on each path: with dropout; or with a bias by distance, of one bucket, which tensor cores have no part in. */
static struct device_attention attention_of(const struct bench *b)
{
    const struct attention a = attention_shape(b);
    const size_t n = attention_elements(&a) * number_bytes(b->type);
    char *const scratch = b->arena + ATTENTION_ARRAYS * n, *const sums = scratch + scratch_bytes(b, &a);
    struct device_attention op = {.n_rows = a.n_rows,
                                  .n_tokens = a.n_tokens,
                                  .n_heads = heads_of(&a),
                                  .width = a.width,
                                  .scale = 1 / sqrtf((float)a.head),
                                  .qkv = b->arena,
                                  .out_gradient = b->arena + 3 * n,
                                  .out = b->arena + 4 * n,
                                  .qkv_gradient = b->arena + 5 * n,
                                  .scratch = scratch,
                                  .log_sum_exp = (float *)sums};

    if (b->path == ATTENTION_DRAWING)
        op.dropout.p = 0.1f;
    if (b->path == ATTENTION_PLAIN && a.head == DEVICE_HEAD && b->type != NUMBER_FP32)
        op.bias = (float *)(sums + sums_bytes(&a)), op.buckets.n = 1;
    return op;
}

static void attend(const struct bench *b)
{
    const struct device_attention op = attention_of(b);

    b->ops->attention(b->dev, &op);
}

static void attend_backward(const struct bench *b)
{
    const struct device_attention op = attention_of(b);

    b->ops->attention_backward(b->dev, &op);
}

static void upload(const struct bench *b)
{
    b->ops->upload(b->dev, b->arena, b->host, ELEMENTS * sizeof(float));
}

/* y = x + h, of rows of HOST_WIDTH */
static void add_rows(const struct bench *b, size_t n)
{
    float *x = (float *)b->arena;
    const struct device_dropout_add op = {
        .n_rows = 1, .n_tokens = n, .n = HOST_WIDTH, .x = x + ELEMENTS, .h = x + 2 * (size_t)ELEMENTS, .y = x};

    b->ops->dropout_add(b->dev, &op);
}

static void add(const struct bench *b)
{
    add_rows(b, ELEMENTS / HOST_WIDTH);
}

/* As little as an operation can do. */
static void add_one(const struct bench *b)
{
    add_rows(b, 1);
}

/* An update like AdamW's: reads four arrays and writes three. */
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

/* Matrices of a class, one after another; each dimension is 4,096 or the number of rows. */
static struct device_matmul product_of(const struct bench *b, enum products_kind kind, size_t rows)
{
    const size_t width = b->width, most = (size_t)products_rows[PRODUCTS_ROWS - 1] * width * number_bytes(b->type);
    const bool over_rows = kind == PRODUCTS_WEIGHTS;

    return (struct device_matmul){.transpose_a = over_rows,
                                  .transpose_b = kind == PRODUCTS_BACKWARD,
                                  .m = over_rows ? width : rows,
                                  .n = width,
                                  .k = over_rows ? rows : width,
                                  .a = b->arena,
                                  .a_stride = width,
                                  .b = b->arena + most,
                                  .b_stride = width,
                                  .c = b->arena + 2 * most,
                                  .c_stride = width,
                                  .wide = over_rows,
                                  .over_rows = over_rows};
}

static void multiply_so(const struct bench *b)
{
    b->ops->matmul(b->dev, &b->product);
}

/* Chooses among the proposals for b->product. */
static int choose_algorithm(struct products *out, struct bench *b, int class)
{
    struct products_candidates candidates;
    double best = INFINITY;
    int rc = 0;

    b->ops->propose(b->dev, &b->product, &candidates);
    for (unsigned i = 0; !rc && i < candidates.n; i++) {
        struct products one = {.version = candidates.version};
        one.of[class] = candidates.of[i];
        if (b->ops->choose(b->dev, &one, NULL))
            continue;
        const double seconds = time_of(b, multiply_so, &rc);
        if (!rc && seconds < best * 0.99)
            best = seconds, out->version = candidates.version, out->of[class] = candidates.of[i];
    }
    return rc;
}

static int choose_algorithms(struct products *out, struct bench *b, enum number_type type, struct error *err)
{
    const size_t most = (size_t)products_rows[PRODUCTS_ROWS - 1] * b->width, value = number_bytes(type);
    const size_t result = (size_t)b->width * b->width * sizeof(float);
    int rc = open_device(b, type, 2 * most * value + result, err);

    if (rc)
        return rc;
    rc = fill(b, 2 * most);
    for (int kind = 0; !rc && kind < PRODUCTS_KINDS; kind++)
        for (uint32_t i = 0; !rc && i < PRODUCTS_ROWS; i++) {
            b->product = product_of(b, (enum products_kind)kind, products_rows[i]);
            rc = choose_algorithm(out, b, products_class(type, (enum products_kind)kind, i));
        }
    if (rc)
        b->ops->fault(b->dev, err);
    close_device(b);
    return rc;
}

int device_profile_products(struct products *out, const struct device_ops *ops, unsigned index, double (*clock)(void),
                            struct error *err)
{
    struct bench b = {.ops = ops, .index = index, .n_threads = 1, .width = DEVICE_WIDTH, .now = clock ? clock : now};
    int rc = 0;

    *out = (struct products){0};
    b.noise = malloc(NOISE * sizeof(float));
    if (!b.noise)
        return error_set(err, -ENOMEM, "no memory to measure with: 4 MiB are needed");
    for (int type = 0; !rc && type < PROFILE_TYPES; type++)
        rc = choose_algorithms(out, &b, (enum number_type)type, err);
    free(b.noise);
    return rc;
}

/* Forward runs first, as backward reads its output. */
static int measure_path(struct profile *out, struct bench *b, enum attention_path path)
{
    const struct attention a = attention_shape(b);
    const double each = (double)attention_elements(&a) * (double)a.n_tokens;
    int rc = 0;

    b->path = path;
    out->attention_flops[PROFILE_FORWARD][path][b->type] = 2 * each / time_of(b, attend, &rc);
    if (!rc)
        out->attention_flops[PROFILE_BACKWARD][path][b->type] = 5 * each / time_of(b, attend_backward, &rc);
    return rc;
}

/* The paths that the device has for this type, cuDNN last: once it is prepared, it takes the shape. */
static int measure_attention(struct profile *out, struct bench *b, bool of_host)
{
    int rc = measure_path(out, b, ATTENTION_PLAIN);

    if (rc || of_host || b->type == NUMBER_FP32)
        return rc;
    rc = measure_path(out, b, ATTENTION_TENSOR);
    if (!rc)
        rc = measure_path(out, b, ATTENTION_DRAWING);
    if (rc || b->way == PLAN_ATTENTION_OWN)
        return rc;
    b->path = ATTENTION_LIBRARY;
    const struct device_attention op = attention_of(b);
    char told[DEVICE_TOLD];
    b->ops->prepare_attention(b->dev, &op, b->way, told);
    return measure_path(out, b, ATTENTION_LIBRARY);
}

static int measure_products(struct profile *out, struct bench *b)
{
    const size_t largest = profile_rows[PROFILE_ROWS - 1];
    int rc = fill(b, (largest + b->width) * b->width);

    for (int i = 0; !rc && i < PROFILE_ROWS; i++) {
        b->rows = profile_rows[i];
        out->matmul_flops[b->type][i] = 2.0 * b->rows * b->width * b->width / time_of(b, multiply, &rc);
    }
    return rc;
}

/* Measures one type on one arena, which is filled once. */
static int measure_type(struct profile *out, struct bench *b, enum number_type type, struct error *err)
{
    const size_t largest = profile_rows[PROFILE_ROWS - 1];
    const struct attention a = attention_shape(b);
    b->type = type;
    const size_t products = (2 * largest + b->width) * b->width * number_bytes(type), other = attention_bytes(b, &a);
    int rc = open_device(b, type, products > other ? products : other, err);

    if (rc)
        return rc;
    b->ops->choose(b->dev, &out->products, NULL);
    rc = measure_products(out, b);
    if (!rc)
        rc = measure_attention(out, b, b->width == HOST_WIDTH);
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
    if (!rc && !plan_backend_find(b->ops->name)->takes_turns)
        out->call_s = time_of(b, add_one, &rc);
    if (rc)
        b->ops->fault(b->dev, err);
    close_device(b);
    return rc;
}

int device_profile(struct profile *out, const struct device_ops *ops, unsigned index, unsigned n_threads,
                   struct error *err)
{
    const bool of_host = plan_backend_find(ops->name)->takes_turns;
    struct bench b = {
        .ops = ops, .index = index, .n_threads = n_threads, .width = of_host ? HOST_WIDTH : DEVICE_WIDTH, .now = now};
    struct device_facts facts = {.attention = PLAN_ATTENTION_OWN};
    int rc = of_host ? 0 : ops->probe(index, &facts, err);

    *out =
        (struct profile){.attention = facts.attention}; /* figures that are not measured here are 0: host_bytes_per_s */
    if (rc)
        return rc;
    b.way = facts.attention;
    b.noise = malloc(NOISE * sizeof(float));
    if (!b.noise)
        return error_set(err, -ENOMEM, "no memory to measure with: 4 MiB are needed");
    for (int type = 0; !rc && !of_host && type < PROFILE_TYPES; type++) /* on the host, products are ours */
        rc = choose_algorithms(&out->products, &b, (enum number_type)type, err);
    for (int type = 0; !rc && type < PROFILE_TYPES; type++)
        rc = measure_type(out, &b, (enum number_type)type, err);
    free(b.noise);
    if (rc)
        return rc;
    b.host = aligned_alloc(64, 4 * (size_t)ELEMENTS * sizeof(float));
    if (!b.host)
        return error_set(err, -ENOMEM, "no memory to measure with: 256 MiB are needed");
    for (size_t i = 0; i < 4 * (size_t)ELEMENTS; i++)
        b.host[i] = 1e-3f; /* avoids slow arithmetic */
    rc = measure_memory(out, &b, err);
    if (!rc)
        out->update_parameters_per_s = ELEMENTS / time_of(&b, update, &rc);
    free(b.host);
    return rc ? rc : profile_check(out, err);
}
