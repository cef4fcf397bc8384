#include "tests/kit/device/reference.h"

#include <math.h>
#include <stdlib.h>

static const double pi = 3.14159265358979323846;

double reference_activation(enum model_activation activation, double x)
{
    switch (activation) {
    case MODEL_GELU_NEW:
        return 0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x * x * x)));
    case MODEL_GELU:
        return 0.5 * x * erfc(-x / sqrt(2));
    case MODEL_RELU:
        return x > 0 ? x : 0;
    case MODEL_SILU:
        return x / (1 + exp(-x));
    }
    abort();
}

double reference_activation_gradient(enum model_activation activation, double x)
{
    double t;

    switch (activation) {
    case MODEL_GELU_NEW:
        t = tanh(sqrt(2 / pi) * (x + 0.044715 * x * x * x));
        return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * sqrt(2 / pi) * (1 + 3 * 0.044715 * x * x);
    case MODEL_GELU:
        return 0.5 * erfc(-x / sqrt(2)) + x * exp(-x * x / 2) / sqrt(2 * pi);
    case MODEL_RELU:
        return x > 0;
    case MODEL_SILU:
        return 1 / (1 + exp(-x)) + x * exp(-x) / ((1 + exp(-x)) * (1 + exp(-x)));
    }
    abort();
}

void reference_matmul(double *c, const double *a, bool transpose_a, const double *b, bool transpose_b,
                      const size_t size[3])
{
    const size_t m = size[0], n = size[1], k = size[2];

    for (size_t i = 0; i < m; i++)
        for (size_t j = 0; j < n; j++) {
            double sum = 0;
            for (size_t p = 0; p < k; p++)
                sum += a[transpose_a ? p * m + i : i * k + p] * b[transpose_b ? j * k + p : p * n + j];
            c[i * n + j] = sum;
        }
}

static void statistics(double *mean, double *inverse, const double *x, size_t n, double epsilon)
{
    double variance = 0;

    *mean = 0;
    for (size_t j = 0; j < n; j++)
        *mean += x[j] / (double)n;
    for (size_t j = 0; j < n; j++)
        variance += (x[j] - *mean) * (x[j] - *mean) / (double)n;
    *inverse = 1 / sqrt(variance + epsilon);
}

void reference_norm(double *y, const double *x, const double *weight, const double *bias, size_t m, size_t n,
                    double epsilon)
{
    for (size_t i = 0; i < m; i++) {
        double mean, inverse;
        statistics(&mean, &inverse, x + i * n, n, epsilon);
        for (size_t j = 0; j < n; j++)
            y[i * n + j] = (x[i * n + j] - mean) * inverse * weight[j] + bias[j];
    }
}

void reference_norm_backward(const struct reference_norm_gradient *to, const double *dy, const double *x,
                             const double *weight, size_t m, size_t n, double epsilon)
{
    for (size_t j = 0; j < n; j++)
        to->weight[j] = to->bias[j] = 0;
    for (size_t i = 0; i < m; i++) {
        double mean, inverse, mean_g = 0, mean_gz = 0;
        statistics(&mean, &inverse, x + i * n, n, epsilon);
        for (size_t j = 0; j < n; j++) {
            double z = (x[i * n + j] - mean) * inverse, g = dy[i * n + j] * weight[j];
            to->weight[j] += dy[i * n + j] * z;
            to->bias[j] += dy[i * n + j];
            mean_g += g / (double)n;
            mean_gz += g * z / (double)n;
        }
        for (size_t j = 0; j < n; j++) {
            double z = (x[i * n + j] - mean) * inverse;
            to->x[i * n + j] = inverse * (dy[i * n + j] * weight[j] - mean_g - z * mean_gz);
        }
    }
}

/* One head of one row: pointers to its first element, rows 3 * width apart. */
struct view {
    const double *q, *k, *v;
    size_t stride, head_width, offset; /* offset of q in qkv */
};

static struct view view_of(const struct reference_attention *op, const double *qkv, size_t row, size_t head)
{
    const size_t head_width = op->width / op->n_heads;
    const size_t offset = row * op->n_tokens * 3 * op->width + head * head_width;

    return (
        struct view){qkv + offset, qkv + offset + op->width, qkv + offset + 2 * op->width, 3 * op->width, head_width,
                     offset};
}

/* Probabilities p (query + 1) of one query; returns the log of the sum of exponentials. */
static double probabilities(double *p, const struct view *view, double scale, size_t query)
{
    double max = -INFINITY, sum = 0;

    for (size_t key = 0; key <= query; key++) {
        p[key] = 0;
        for (size_t d = 0; d < view->head_width; d++)
            p[key] += scale * view->q[query * view->stride + d] * view->k[key * view->stride + d];
        max = fmax(max, p[key]);
    }
    for (size_t key = 0; key <= query; key++)
        sum += p[key] = exp(p[key] - max);
    for (size_t key = 0; key <= query; key++)
        p[key] /= sum;
    return max + log(sum);
}

static double factor_of(const struct reference_attention *op, size_t head, size_t query, size_t key)
{
    return op->factors ? op->factors[(head * op->n_tokens + query) * op->n_tokens + key] : 1;
}

void reference_attention(double *out, double *log_sum_exp, const double *qkv, const struct reference_attention *op)
{
    double *p = calloc(op->n_tokens, sizeof *p);

    for (size_t head = 0; head < op->n_rows * op->n_heads; head++) {
        const size_t row = head / op->n_heads, index = head % op->n_heads;
        const struct view view = view_of(op, qkv, row, index);
        for (size_t query = 0; query < op->n_tokens; query++) {
            double *to = out + (row * op->n_tokens + query) * op->width + index * view.head_width;
            log_sum_exp[head * op->n_tokens + query] = probabilities(p, &view, op->scale, query);
            for (size_t d = 0; d < view.head_width; d++) {
                to[d] = 0;
                for (size_t key = 0; key <= query; key++)
                    to[d] += p[key] * factor_of(op, head, query, key) * view.v[key * view.stride + d];
            }
        }
    }
    free(p);
}

/* Adds one query's part to the gradients of q, k and v. out: of this query, or NULL. p and g (n_tokens) are room to work
 * in. */
static void query_backward(double *gradient, const double *dy, const double *out, const struct view *view,
                           const struct reference_attention *op, const size_t place[2], double *room)
{
    const size_t head = place[0], query = place[1], stride = view->stride;
    double mean = 0, *p = room, *g = room + op->n_tokens;

    probabilities(p, view, op->scale, query);
    for (size_t key = 0; key <= query; key++) {
        g[key] = 0;
        for (size_t d = 0; d < view->head_width; d++) {
            g[key] += dy[d] * view->v[key * stride + d] * factor_of(op, head, query, key);
            gradient[key * stride + 2 * op->width + d] += p[key] * factor_of(op, head, query, key) * dy[d];
        }
        mean += out ? 0 : p[key] * g[key];
    }
    for (size_t d = 0; out && d < view->head_width; d++)
        mean += out[d] * dy[d];
    for (size_t key = 0; key <= query; key++)
        for (size_t d = 0; d < view->head_width; d++) {
            double ds = p[key] * (g[key] - mean) * op->scale;
            gradient[query * stride + d] += ds * view->k[key * stride + d];
            gradient[key * stride + op->width + d] += ds * view->q[query * stride + d];
        }
}

void reference_attention_backward(double *qkv_gradient, const double *out_gradient, const double *qkv,
                                  const struct reference_attention *op)
{
    double *room = calloc(2 * op->n_tokens, sizeof *room);

    for (size_t i = 0; i < op->n_rows * op->n_tokens * 3 * op->width; i++)
        qkv_gradient[i] = 0;
    for (size_t head = 0; head < op->n_rows * op->n_heads; head++) {
        const size_t row = head / op->n_heads, index = head % op->n_heads;
        const struct view view = view_of(op, qkv, row, index);
        for (size_t query = 0; query < op->n_tokens; query++) {
            const size_t at = (row * op->n_tokens + query) * op->width + index * view.head_width;
            query_backward(qkv_gradient + view.offset, out_gradient + at, op->out ? op->out + at : NULL, &view, op,
                           (const size_t[2]){head, query}, room);
        }
    }
    free(room);
}

double reference_dropout(float p, struct random_key key, uint64_t row, uint64_t element)
{
    uint32_t words[4];

    if (p == 0)
        return 1;
    random_quad(words, key, row, element / 4);
    return words[element % 4] >= random_threshold(p) ? 1 / (1 - (double)p) : 0;
}

double reference_cross_entropy(const double *logits, size_t n, size_t label)
{
    double max = -INFINITY, sum = 0;

    for (size_t i = 0; i < n; i++)
        max = fmax(max, logits[i]);
    for (size_t i = 0; i < n; i++)
        sum += exp(logits[i] - max);
    return max + log(sum) - logits[label];
}

void reference_cross_entropy_backward(double *gradient, const double *logits, size_t n, size_t label)
{
    double max = -INFINITY, sum = 0;

    for (size_t i = 0; i < n; i++)
        max = fmax(max, logits[i]);
    for (size_t i = 0; i < n; i++)
        sum += exp(logits[i] - max);
    for (size_t i = 0; i < n; i++)
        gradient[i] = exp(logits[i] - max) / sum - (i == label);
}
