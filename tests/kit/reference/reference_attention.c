#include "tests/kit/reference/reference_attention.h"

#include "tests/kit/reference/reference.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* One query of a head: where it, its output, and the row's first key and value are; the keys that it sees. Keys and
 * values are in qkv, or in kv, `stride` apart. */
struct view {
    size_t q, out, k, v, stride, head_width, from, to;
    size_t number; /* of log_sum_exp */
    size_t row;
};

static size_t keys_of(const struct device_attention *op)
{
    return op->kv ? op->n_keys : op->n_tokens;
}

static struct view view_of(const struct device_attention *op, size_t number)
{
    const size_t row = number / op->n_tokens / op->n_heads, head = number / op->n_tokens % op->n_heads;
    const size_t query = number % op->n_tokens, n_kv_heads = op->n_kv_heads ? op->n_kv_heads : op->n_heads;
    const size_t head_width = op->width / op->n_heads, kv_width = n_kv_heads * head_width;
    const size_t token = row * op->n_tokens + query, shared = head / (op->n_heads / n_kv_heads);
    const size_t before_keys = op->kv ? 0 : op->width, stride = before_keys + 2 * kv_width;
    const size_t k = row * keys_of(op) * stride + before_keys + shared * head_width;
    const uint32_t *positions = op->positions ? op->positions + row * op->n_tokens : NULL;
    size_t from = op->window && query >= op->window ? query + 1 - op->window : 0, to = query + 1;

    if (op->full)
        to = op->lengths ? op->lengths[row] : keys_of(op);
    if (op->full && op->window && from >= to)
        from = to - 1;
    if (op->full && op->window && to > query + op->window)
        to = query + op->window;
    if (positions && from < query - positions[query])
        from = query - positions[query];
    for (size_t key = query + 1; positions && key < to; key++)
        if (key - positions[key] > query)
            to = key;
    return (struct view){.q = token * (op->kv ? op->width : stride) + head * head_width,
                         .out = token * op->width + head * head_width,
                         .k = k,
                         .v = k + kv_width,
                         .stride = stride,
                         .head_width = head_width,
                         .from = from,
                         .to = to,
                         .number = number,
                         .row = row};
}

/* The element of the bias for a key, by T5's own words: half of the buckets for each direction, if there are both. */
static size_t bias_of(const struct device_attention *op, const struct view *view, size_t key)
{
    const size_t query = view->number % op->n_tokens, head = view->number / op->n_tokens % op->n_heads;
    const struct device_buckets *buckets = &op->buckets;
    const size_t n = buckets->both ? buckets->n / 2 : buckets->n, distance = query > key ? query - key : key - query;
    size_t bucket = 0;

    for (size_t i = 0; i < n && (key <= query || buckets->both); i++)
        if (buckets->starts[i] <= distance)
            bucket = i;
    return (bucket + (buckets->both && key > query ? n : 0)) * op->n_heads + head;
}

/* ALiBi's slope of a head, by transformers' own words (build_alibi_tensor of Bloom). */
static double slope_of_head(size_t n_heads, size_t head)
{
    const double closest = pow(2, floor(log2((double)n_heads)));
    const double base = pow(2, -pow(2, -(log2(closest) - 3))), extra = pow(2, -pow(2, -(log2(2 * closest) - 3)));

    return (double)head < closest ? pow(base, 1 + (double)head) : pow(extra, 1 + 2 * ((double)head - closest));
}

/* Probabilities p (n_keys) of the keys that are seen; returns the log of the sum of exponentials, a sink's too. */
static double probabilities(double *p, const struct view *view, const struct device_attention *op)
{
    const double *q = (const double *)op->qkv + view->q, *kv = op->kv ? op->kv : op->qkv;
    const size_t head = view->number / op->n_tokens % op->n_heads;
    const double sink = op->sinks ? ((const double *)op->sinks)[head] : -INFINITY;
    double max = sink, sum = 0;

    for (size_t key = view->from; key < view->to; key++) {
        p[key] = 0;
        for (size_t d = 0; d < view->head_width; d++)
            p[key] += (double)op->scale * q[d] * kv[view->k + key * view->stride + d];
        if (op->cap > 0)
            p[key] = (double)op->cap * tanh(p[key] / (double)op->cap);
        if (op->bias)
            p[key] += ((const double *)(const void *)op->bias)[bias_of(op, view, key)];
        if (op->alibi)
            p[key] -= slope_of_head(op->n_heads, head) * (double)(view->number % op->n_tokens - key);
        max = fmax(max, p[key]);
    }
    for (size_t key = view->from; key < view->to; key++)
        sum += p[key] = exp(p[key] - max);
    sum += exp(sink - max);
    for (size_t key = view->from; key < view->to; key++)
        p[key] /= sum;
    return max + log(sum);
}

static double factor_of(const struct device_attention *op, const struct view *view, size_t key)
{
    return reference_dropout(&op->dropout, view->row, view->number % (op->n_heads * op->n_tokens) * keys_of(op) + key);
}

void reference_attention(const struct device_attention *op)
{
    double *p = calloc(keys_of(op), sizeof *p), *out = op->out, *sums = (void *)op->log_sum_exp;
    const double *kv = op->kv ? op->kv : op->qkv;

    for (size_t i = 0; i < op->n_rows * op->n_heads * op->n_tokens; i++) {
        const struct view view = view_of(op, i);
        sums[i] = probabilities(p, &view, op);
        for (size_t key = view.from; key < view.to; key++)
            p[key] *= factor_of(op, &view, key);
        for (size_t d = 0; d < view.head_width; d++) {
            out[view.out + d] = 0;
            for (size_t key = view.from; key < view.to; key++)
                out[view.out + d] += p[key] * kv[view.v + key * view.stride + d];
        }
    }
    free(p);
}

/* How often a query's part in the gradients of keys and values counts. */
static double weight_of(const struct device_attention *op, size_t number)
{
    const double *weights = (const double *)(const void *)op->weights;
    double sum = 0;

    for (size_t i = 0; op->chosen && i < op->n_rows * op->n_heads * op->n_chosen; i++)
        sum += op->chosen[i] == number ? weights[i] : 0;
    return op->chosen ? sum : 1;
}

/* The derivative of the cap at a score, which is computed again. */
static double slope_of(const struct device_attention *op, const struct view *view, size_t key)
{
    const double *q = (const double *)op->qkv + view->q, *kv = op->kv ? op->kv : op->qkv;
    double score = 0;

    for (size_t d = 0; d < view->head_width; d++)
        score += (double)op->scale * q[d] * kv[view->k + key * view->stride + d];
    return op->cap > 0 ? pow(cosh(score / (double)op->cap), -2) : 1;
}

/* Adds one query's part to the gradients of q, k and v. p and g (n_keys) are room to work in. */
static void query_backward(const struct view *view, const struct device_attention *op, double *p, double *g)
{
    const double *dy = (const double *)op->out_gradient + view->out, *out = (const double *)op->out + view->out;
    const double *q = (const double *)op->qkv + view->q, *kv = op->kv ? op->kv : op->qkv;
    const double weight = weight_of(op, view->number);
    const size_t head = view->number / op->n_tokens % op->n_heads;
    double mean = 0, *q_gradient = (double *)op->qkv_gradient + view->q;
    double *kv_gradient = op->kv ? op->kv_gradient : op->qkv_gradient;

    const double total = probabilities(p, view, op);
    for (size_t key = view->from; key < view->to; key++) {
        const size_t v = view->v + key * view->stride;
        const double factor = factor_of(op, view, key);
        g[key] = 0;
        for (size_t d = 0; d < view->head_width; d++) {
            g[key] += dy[d] * kv[v + d] * factor;
            kv_gradient[v + d] += weight * p[key] * factor * dy[d];
        }
    }
    for (size_t d = 0; d < view->head_width; d++)
        mean += out[d] * dy[d];
    if (op->sinks_gradient) /* the sink's probability, of a value of 0 */
        ((double *)(void *)op->sinks_gradient)[head] += exp(((const double *)op->sinks)[head] - total) * (0 - mean);
    for (size_t key = view->from; key < view->to && op->bias; key++)
        ((double *)(void *)op->bias_gradient)[bias_of(op, view, key)] += p[key] * (g[key] - mean);
    for (size_t key = view->from; key < view->to; key++) {
        const double ds = p[key] * (g[key] - mean) * slope_of(op, view, key) * (double)op->scale;
        for (size_t d = 0; d < view->head_width; d++) {
            q_gradient[d] += ds * kv[view->k + key * view->stride + d];
            kv_gradient[view->k + key * view->stride + d] += weight * ds * q[d];
        }
    }
}

void reference_attention_backward(const struct device_attention *op)
{
    const size_t stride = view_of(op, 0).stride, n_keys = keys_of(op);
    double *room = calloc(2 * n_keys, sizeof *room);

    memset(op->qkv_gradient, 0, op->n_rows * op->n_tokens * (op->kv ? op->width : stride) * sizeof(double));
    if (op->kv)
        memset(op->kv_gradient, 0, op->n_rows * n_keys * stride * sizeof(double));
    for (size_t i = 0; i < op->n_rows * op->n_heads * op->n_tokens; i++) {
        const struct view view = view_of(op, i);
        query_backward(&view, op, room, room + n_keys);
    }
    free(room);
}
