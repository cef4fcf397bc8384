/* Attention whose heads share keys and values, and attention to all keys of a row, against the formula in double. */
#include "tests/kit/device/operation.h"
#include "tests/kit/device/reference.h"
#include "tests/kit/test.h"

#include <math.h>
#include <stdlib.h>

SUITE_LABELS(single, on_cuda)

/* Groups of 2, of all heads and of one; less than a tile, exactly one, and ending anywhere in the third; lengths: of the
 * last row, those before it are whole. */
static const struct shape {
    size_t n_rows, n_tokens, n_heads, n_kv_heads, head_width;
    bool full;
    size_t length; /* 0: no lengths */
    float p;
} shapes[] = {
    {1, 5, 4, 2, 6, false, 0, 0},     {2, 65, 3, 1, 24, false, 0, 0},  {1, 130, 4, 2, 64, false, 0, 0.2f},
    {1, 96, 4, 1, 128, false, 0, 0},  {1, 1, 1, 1, 1, true, 0, 0},     {2, 17, 2, 2, 40, true, 0, 0.1f},
    {1, 64, 2, 2, 64, true, 0, 0},    {1, 150, 2, 2, 16, true, 0, 0},  {3, 20, 2, 2, 8, true, 7, 0},
    {2, 140, 1, 1, 32, true, 60, 0},  {2, 130, 4, 2, 20, true, 64, 0}, {2, 70, 6, 3, 64, true, 1, 0.3f},
    {1, 191, 2, 1, 100, false, 0, 0},
};
enum { N_SHAPES = sizeof shapes / sizeof *shapes, N_CASES = N_SHAPES * NUMBER_TYPES };

static const struct random_key key = {{11, 22}};
enum { FIRST_ROW = 5 };

struct attention {
    const struct shape *shape;
    enum number_type type;
    size_t width, kv_width, stride, n_out, n_qkv, n_sum;
    void *qkv, *out, *dy;
    uint32_t *lengths;
    double *want_out, *want_sum, *want_gradient;
};

/* A query of a head: where it and its output are, and where the first key and value that it sees are. */
struct query {
    size_t q, out, k, v, n_keys;
    size_t number; /* of log_sum_exp */
};

static struct query query_of(const struct attention *t, size_t row, size_t head, size_t token)
{
    const struct shape *s = t->shape;
    const size_t first = row * s->n_tokens, of_keys = head / (s->n_heads / s->n_kv_heads);
    const size_t all = t->lengths ? t->lengths[row] : s->n_tokens;
    const size_t k = first * t->stride + t->width + of_keys * s->head_width;

    return (struct query){.q = (first + token) * t->stride + head * s->head_width,
                          .out = (first + token) * t->width + head * s->head_width,
                          .k = k,
                          .v = k + t->kv_width,
                          .n_keys = s->full ? all : token + 1,
                          .number = (row * s->n_heads + head) * s->n_tokens + token};
}

static double factor_of(const struct attention *t, const struct query *at, size_t of_key)
{
    const size_t n = t->shape->n_tokens, per_row = t->shape->n_heads * n;

    return reference_dropout(t->shape->p, key, FIRST_ROW + at->number / per_row, at->number % per_row * n + of_key);
}

/* Probabilities (n_keys), and their sum's logarithm. */
static double probabilities(double *p, const struct attention *t, const struct query *at, const double *qkv)
{
    double max = -INFINITY, sum = 0;

    for (size_t i = 0; i < at->n_keys; i++) {
        p[i] = 0;
        for (size_t d = 0; d < t->shape->head_width; d++)
            p[i] += (double)0.4f * qkv[at->q + d] * qkv[at->k + i * t->stride + d];
        max = fmax(max, p[i]);
    }
    for (size_t i = 0; i < at->n_keys; i++)
        sum += p[i] = exp(p[i] - max);
    for (size_t i = 0; i < at->n_keys; i++)
        p[i] /= sum;
    return max + log(sum);
}

static void expect_forward(struct attention *t, const struct query *at, const double *qkv, double *p)
{
    t->want_sum[at->number] = probabilities(p, t, at, qkv);
    for (size_t i = 0; i < at->n_keys; i++)
        for (size_t d = 0; d < t->shape->head_width; d++)
            t->want_out[at->out + d] += p[i] * factor_of(t, at, i) * qkv[at->v + i * t->stride + d];
}

/* With s = p (g - out dy), g = dy v: dq = scale s k, dk = scale s q, dv = p dy. out: the rounded one that backward reads. */
static void expect_backward(struct attention *t, const struct query *at, const double *qkv, double *p)
{
    const size_t head_width = t->shape->head_width;
    double mean = 0, *to = t->want_gradient;

    probabilities(p, t, at, qkv);
    for (size_t d = 0; d < head_width; d++)
        mean +=
            (double)operation_get(t->type, t->out, at->out + d) * (double)operation_get(t->type, t->dy, at->out + d);
    for (size_t i = 0; i < at->n_keys; i++) {
        const size_t k = at->k + i * t->stride, v = at->v + i * t->stride;
        const double factor = factor_of(t, at, i);
        double g = 0;

        for (size_t d = 0; d < head_width; d++) {
            const double dy = (double)operation_get(t->type, t->dy, at->out + d);
            g += factor * dy * qkv[v + d];
            to[v + d] += p[i] * factor * dy;
        }
        for (size_t d = 0; d < head_width; d++) {
            to[at->q + d] += (double)0.4f * p[i] * (g - mean) * qkv[k + d];
            to[k + d] += (double)0.4f * p[i] * (g - mean) * qkv[at->q + d];
        }
    }
}

static void each_query(struct attention *t,
                       void (*f)(struct attention *, const struct query *, const double *, double *))
{
    const struct shape *s = t->shape;
    double *p = calloc(s->n_tokens, sizeof *p), *qkv = operation_widen(t->type, t->qkv, t->n_qkv);

    for (size_t i = 0; i < t->n_sum; i++) {
        const size_t per_row = s->n_heads * s->n_tokens;
        const struct query at = query_of(t, i / per_row, i % per_row / s->n_tokens, i % s->n_tokens);
        f(t, &at, qkv, p);
    }
    free(p);
}

static void set_up(struct attention *t, int i)
{
    const struct shape *s = &shapes[i / NUMBER_TYPES];

    *t = (struct attention){.shape = s, .type = (enum number_type)(i % NUMBER_TYPES)};
    t->width = s->n_heads * s->head_width, t->kv_width = s->n_kv_heads * s->head_width;
    t->stride = t->width + 2 * t->kv_width;
    t->n_out = s->n_rows * s->n_tokens * t->width, t->n_qkv = s->n_rows * s->n_tokens * t->stride;
    t->n_sum = s->n_rows * s->n_heads * s->n_tokens;
    t->qkv = operation_values(t->type, t->n_qkv, 1), t->dy = operation_values(t->type, t->n_out, 2);
    t->out = operation_room(t->type, t->n_out);
    t->want_out = operation_zeros(t->n_out), t->want_sum = operation_zeros(t->n_sum);
    t->want_gradient = operation_zeros(t->n_qkv);
    if (s->length > 0) {
        t->lengths = mirror_array(s->n_rows, sizeof *t->lengths);
        for (size_t row = 0; row < s->n_rows; row++)
            t->lengths[row] = (uint32_t)(row + 1 < s->n_rows ? s->n_tokens : s->length);
    }
    each_query(t, expect_forward);
    for (size_t e = 0; e < t->n_out; e++)
        operation_set(t->type, t->out, e, (float)t->want_out[e]);
    each_query(t, expect_backward);
}

static struct device_attention attention_of(struct mirror *at, const struct attention *t)
{
    const struct shape *s = t->shape;

    return (struct device_attention){.n_rows = s->n_rows,
                                     .n_tokens = s->n_tokens,
                                     .n_heads = s->n_heads,
                                     .width = t->width,
                                     .n_kv_heads = s->n_kv_heads,
                                     .full = s->full,
                                     .lengths = mirror_of(at, t->lengths),
                                     .scale = 0.4f,
                                     .qkv = mirror_of(at, t->qkv),
                                     .out_gradient = mirror_of(at, t->dy),
                                     .scratch = mirror_scratch(at, at->plan->scratch_bytes(s->n_rows, s->n_tokens,
                                                                                           s->n_heads, s->n_kv_heads,
                                                                                           t->width, at->n_threads)),
                                     .dropout = {s->p, key, FIRST_ROW}};
}

static void run_forward(struct mirror *at, void *const out[], const void *context)
{
    struct device_attention op = attention_of(at, context);

    op.out = out[0], op.log_sum_exp = out[1];
    at->ops->attention(at->dev, &op);
}

/* From the device's own log-sum-exp and the reference's output, as in test_attention.c. */
static void run_backward(struct mirror *at, void *const out[], const void *context)
{
    const struct attention *t = context;
    struct device_attention op = attention_of(at, t);

    op.out = mirror_scratch(at, t->n_out * number_bytes(t->type));
    op.log_sum_exp = mirror_scratch(at, t->n_sum * sizeof(float));
    op.qkv_gradient = out[0];
    at->ops->attention(at->dev, &op);
    op.out = mirror_of(at, t->out);
    at->ops->attention_backward(at->dev, &op);
}

/* The bounds are test_attention.c's. */
static const double tolerance = 40 * 0x1p-24;

static double near(const struct attention *t)
{
    return backend_get()->cuda && t->type == NUMBER_BF16 ? 0x1p-8 : tolerance;
}

static bool suits(int i)
{
    const struct shape *s = &shapes[i / NUMBER_TYPES];

    return backend_suits(4 * (double)(s->n_rows * s->n_tokens * s->n_tokens * s->n_heads * s->head_width));
}

SUITE_FIXTURE(mirror_forget, NULL)

TEST_EACH(attention_of_every_kind_is_the_formula, N_CASES)
{
    struct attention t;

    if (!suits(_i))
        return;
    set_up(&t, _i);
    operation_check(
        &(struct operation){.type = t.type,
                            .run = run_forward,
                            .context = &t,
                            .parts = {{"out", t.n_out, t.want_out, near(&t), NULL, OPERATION_VALUES},
                                      {"log_sum_exp", t.n_sum, t.want_sum, tolerance, .type = OPERATION_FP32}}});
}

TEST_EACH(attention_backward_of_every_kind_is_the_formula, N_CASES)
{
    struct attention t;

    if (!suits(_i))
        return;
    set_up(&t, _i);
    operation_check(&(struct operation){.type = t.type,
                                        .run = run_backward,
                                        .context = &t,
                                        .parts = {{"qkv_gradient", t.n_qkv, t.want_gradient, 1.5 * near(&t), NULL,
                                                   OPERATION_VALUES}}});
}

/* A causal row from a cache: all tokens but the last five in one call, then these one by one. */
static void run_cached(struct mirror *at, void *const out[], const void *context)
{
    enum { ALONE = 5 };
    const struct attention *t = context;
    const struct shape *s = t->shape;
    struct device_attention_cached op = {
        .n_heads = s->n_heads,
        .width = t->width,
        .n_kv_heads = s->n_kv_heads,
        .n_positions = s->n_tokens + 3,
        .scale = 0.4f,
        .cache = mirror_scratch(at, at->plan->cache_bytes(t->type, s->n_tokens + 3, s->n_kv_heads, t->kv_width)),
        .scratch = mirror_scratch(at, at->plan->scratch_bytes(1, s->n_tokens, s->n_heads, s->n_kv_heads, t->width,
                                                              at->n_threads))};

    for (op.first = 0; op.first < s->n_tokens; op.first += op.n_tokens) {
        op.n_tokens = op.first == 0 && s->n_tokens > ALONE ? s->n_tokens - ALONE : 1;
        op.qkv = device_element(t->type, mirror_of(at, t->qkv), op.first * t->stride);
        op.out = device_element(t->type, out[0], op.first * t->width);
        at->ops->attention_cached(at->dev, &op);
    }
}

/* Values that are bf16 are not rounded again in the cache. */
TEST_EACH(shared_heads_from_a_cache_are_the_formula, N_CASES)
{
    struct attention t;

    if (!suits(_i) || shapes[_i / NUMBER_TYPES].full || shapes[_i / NUMBER_TYPES].n_rows > 1 ||
        shapes[_i / NUMBER_TYPES].p > 0)
        return;
    set_up(&t, _i);
    operation_check(&(struct operation){.type = t.type,
                                        .run = run_cached,
                                        .context = &t,
                                        .parts = {{"out", t.n_out, t.want_out, tolerance, NULL, OPERATION_VALUES}}});
}
