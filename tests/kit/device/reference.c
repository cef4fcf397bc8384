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

static void statistics(double *mean, double *inverse, const double *x, const struct reference_norm *op)
{
    double square = 0;

    *mean = 0;
    for (size_t j = 0; j < op->n && !op->rms; j++)
        *mean += x[j] / (double)op->n;
    for (size_t j = 0; j < op->n; j++)
        square += (x[j] - *mean) * (x[j] - *mean) / (double)op->n;
    *inverse = 1 / sqrt(square + op->epsilon);
}

void reference_norm(double *y, const struct reference_norm *op)
{
    for (size_t i = 0; i < op->m; i++) {
        const double *x = op->x + i * op->n;
        double mean, inverse;

        statistics(&mean, &inverse, x, op);
        for (size_t j = 0; j < op->n; j++)
            y[i * op->n + j] = (x[j] - mean) * inverse * op->weight[j] + (op->bias ? op->bias[j] : 0);
    }
}

void reference_norm_backward(const struct reference_norm_gradient *to, const double *dy,
                             const struct reference_norm *op)
{
    for (size_t j = 0; j < op->n; j++)
        to->weight[j] = to->bias[j] = 0;
    for (size_t i = 0; i < op->m; i++, dy += op->n) {
        const double *x = op->x + i * op->n;
        double mean, inverse, mean_g = 0, mean_gz = 0;

        statistics(&mean, &inverse, x, op);
        for (size_t j = 0; j < op->n; j++) {
            const double z = (x[j] - mean) * inverse, g = dy[j] * op->weight[j];
            to->weight[j] += dy[j] * z;
            to->bias[j] += dy[j];
            mean_g += op->rms ? 0 : g / (double)op->n;
            mean_gz += g * z / (double)op->n;
        }
        for (size_t j = 0; j < op->n; j++)
            to->x[i * op->n + j] = inverse * (dy[j] * op->weight[j] - mean_g - (x[j] - mean) * inverse * mean_gz);
    }
}

/* One query of a head: where it, its output, and the first key and value that it sees are. */
struct view {
    size_t q, out, k, v, stride, head_width, n_keys;
    size_t number;         /* of log_sum_exp */
    const double *factors; /* (n_keys), or NULL */
};

static struct view view_of(const struct reference_attention *op, size_t number)
{
    const size_t row = number / op->n_tokens / op->n_heads, head = number / op->n_tokens % op->n_heads;
    const size_t query = number % op->n_tokens, n_kv_heads = op->n_kv_heads ? op->n_kv_heads : op->n_heads;
    const size_t head_width = op->width / op->n_heads, stride = op->width + 2 * n_kv_heads * head_width;
    const size_t token = row * op->n_tokens + query, shared = head / (op->n_heads / n_kv_heads);
    const size_t k = row * op->n_tokens * stride + op->width + shared * head_width;

    return (struct view){.q = token * stride + head * head_width,
                         .out = token * op->width + head * head_width,
                         .k = k,
                         .v = k + n_kv_heads * head_width,
                         .stride = stride,
                         .head_width = head_width,
                         .n_keys = !op->full     ? query + 1
                                   : op->lengths ? op->lengths[row]
                                                 : op->n_tokens,
                         .number = number,
                         .factors = op->factors ? op->factors + number * op->n_tokens : NULL};
}

/* Probabilities p (n_keys); returns the log of the sum of exponentials. */
static double probabilities(double *p, const struct view *view, const double *qkv, double scale)
{
    double max = -INFINITY, sum = 0;

    for (size_t key = 0; key < view->n_keys; key++) {
        p[key] = 0;
        for (size_t d = 0; d < view->head_width; d++)
            p[key] += scale * qkv[view->q + d] * qkv[view->k + key * view->stride + d];
        max = fmax(max, p[key]);
    }
    for (size_t key = 0; key < view->n_keys; key++)
        sum += p[key] = exp(p[key] - max);
    for (size_t key = 0; key < view->n_keys; key++)
        p[key] /= sum;
    return max + log(sum);
}

static double factor_of(const struct view *view, size_t key)
{
    return view->factors ? view->factors[key] : 1;
}

void reference_attention(double *out, double *log_sum_exp, const double *qkv, const struct reference_attention *op)
{
    double *p = calloc(op->n_tokens, sizeof *p);

    for (size_t i = 0; i < op->n_rows * op->n_heads * op->n_tokens; i++) {
        const struct view view = view_of(op, i);
        log_sum_exp[i] = probabilities(p, &view, qkv, op->scale);
        for (size_t d = 0; d < view.head_width; d++) {
            out[view.out + d] = 0;
            for (size_t key = 0; key < view.n_keys; key++)
                out[view.out + d] += p[key] * factor_of(&view, key) * qkv[view.v + key * view.stride + d];
        }
    }
    free(p);
}

/* Adds one query's part to the gradients of q, k and v. p and g (n_tokens) are room to work in. */
static void query_backward(double *gradient, const double *out_gradient, const double *qkv, const struct view *view,
                           const struct reference_attention *op, double *p, double *g)
{
    const double *dy = out_gradient + view->out, *out = op->out ? op->out + view->out : NULL;
    double mean = 0;

    probabilities(p, view, qkv, op->scale);
    for (size_t key = 0; key < view->n_keys; key++) {
        const size_t v = view->v + key * view->stride;
        g[key] = 0;
        for (size_t d = 0; d < view->head_width; d++) {
            g[key] += dy[d] * qkv[v + d] * factor_of(view, key);
            gradient[v + d] += p[key] * factor_of(view, key) * dy[d];
        }
        mean += out ? 0 : p[key] * g[key];
    }
    for (size_t d = 0; out && d < view->head_width; d++)
        mean += out[d] * dy[d];
    for (size_t key = 0; key < view->n_keys; key++)
        for (size_t d = 0; d < view->head_width; d++) {
            const double ds = p[key] * (g[key] - mean) * op->scale;
            gradient[view->q + d] += ds * qkv[view->k + key * view->stride + d];
            gradient[view->k + key * view->stride + d] += ds * qkv[view->q + d];
        }
}

void reference_attention_backward(double *qkv_gradient, const double *out_gradient, const double *qkv,
                                  const struct reference_attention *op)
{
    double *room = calloc(2 * op->n_tokens, sizeof *room);

    for (size_t i = 0; i < op->n_rows * op->n_tokens * view_of(op, 0).stride; i++)
        qkv_gradient[i] = 0;
    for (size_t i = 0; i < op->n_rows * op->n_heads * op->n_tokens; i++) {
        const struct view view = view_of(op, i);
        query_backward(qkv_gradient, out_gradient, qkv, &view, op, room, room + op->n_tokens);
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
