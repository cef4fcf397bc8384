/* The recurrence, without chunks; its gradient goes back over the states of all tokens, one by one. */
#include "tests/kit/reference/reference_gated_delta.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static double *zeros(size_t n)
{
    double *x = calloc(n + 1, sizeof *x);

    if (!x)
        abort();
    return x;
}

/* What a head has of one token. */
struct token {
    const double *q, *k, *v; /* as they are in qkv */
    double q_norm, k_norm;   /* what they are divided by */
    double slope, softplus;  /* of a + dt_bias */
    double rate, g;          /* -exp(a_log) */
    double sigmoid, beta;
};

static size_t column_of(const struct device_gated_delta *op, size_t head, int part)
{
    const size_t keys = op->n_key_heads * op->key_width;

    return part == 2 ? 2 * keys + head * op->value_width
                     : (part ? keys : 0) + head / (op->n_heads / op->n_key_heads) * op->key_width;
}

static double norm_of(const double *x, size_t n)
{
    double sum = 1e-6;

    for (size_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    return sqrt(sum);
}

static struct token token_of(const struct device_gated_delta *op, size_t head, size_t i)
{
    const double *row = (const double *)op->qkv + i * device_gated_delta_columns(op);
    const double *gates = (const double *)op->gates + i * 2 * op->n_heads;
    const double x = gates[head] + ((const double *)op->dt_bias)[head];
    struct token t = {.q = row + column_of(op, head, 0),
                      .k = row + column_of(op, head, 1),
                      .v = row + column_of(op, head, 2),
                      .slope = 1 / (1 + exp(-x)),
                      .softplus = log1p(exp(-fabs(x))) + fmax(x, 0),
                      .rate = -exp(((const double *)op->a_log)[head]),
                      .sigmoid = 1 / (1 + exp(-gates[op->n_heads + head]))};

    t.q_norm = norm_of(t.q, op->key_width) * sqrt((double)op->key_width);
    t.k_norm = norm_of(t.k, op->key_width);
    t.g = t.rate * t.softplus;
    t.beta = op->doubled ? 2 * t.sigmoid : t.sigmoid;
    return t;
}

/* v - S^T k, of value j. */
static double missed(const struct device_gated_delta *op, const struct token *t, const double *state, size_t j)
{
    double sum = t->v[j];

    for (size_t i = 0; i < op->key_width; i++)
        sum -= state[i * op->value_width + j] * t->k[i] / t->k_norm;
    return sum;
}

/* The state from before the token to behind it. */
static void advance(const struct device_gated_delta *op, const struct token *t, double *state)
{
    for (size_t i = 0; i < op->key_width * op->value_width; i++)
        state[i] *= exp(t->g);
    for (size_t j = 0; j < op->value_width; j++) {
        const double d = t->beta * missed(op, t, state, j);
        for (size_t i = 0; i < op->key_width; i++)
            state[i * op->value_width + j] += d * t->k[i] / t->k_norm;
    }
}

static void put_y(const struct device_gated_delta *op, size_t head, size_t i, const struct token *t,
                  const double *state)
{
    double *y = (double *)op->y + (i * op->n_heads + head) * op->value_width;

    for (size_t j = 0; j < op->value_width; j++) {
        y[j] = 0;
        for (size_t c = 0; c < op->key_width; c++)
            y[j] += state[c * op->value_width + j] * t->q[c] / t->q_norm;
    }
}

static size_t position_of(const struct device_gated_delta *op, size_t i)
{
    return op->positions ? op->positions[i] : i % op->n_tokens;
}

/* One row's head. */
static void forward_head(const struct device_gated_delta *op, size_t row, size_t head)
{
    const size_t n_state = op->key_width * op->value_width, slots = device_gated_delta_slots(op->n_tokens);
    double *state = zeros(n_state);

    for (size_t t = 0; t < op->n_tokens; t++) {
        const size_t i = row * op->n_tokens + t, position = position_of(op, i);
        const struct token token = token_of(op, head, i);

        if (position == 0)
            memset(state, 0, n_state * sizeof *state);
        else if (position % 64 == 0)
            memcpy((double *)(void *)op->states + ((row * slots + t / 64 - 1) * op->n_heads + head) * n_state, state,
                   n_state * sizeof *state);
        advance(op, &token, state);
        put_y(op, head, i, &token, state);
    }
    free(state);
}

void reference_gated_delta(const struct device_gated_delta *op)
{
    for (size_t i = 0; i < op->n_rows * op->n_heads; i++)
        forward_head(op, i / op->n_heads, i % op->n_heads);
}

void reference_gated_delta_cached(const struct device_gated_delta *op)
{
    for (size_t head = 0; head < op->n_heads; head++) {
        double *state = (double *)(void *)op->state + head * op->key_width * op->value_width;

        if (op->first == 0)
            memset(state, 0, op->key_width * op->value_width * sizeof *state);
        for (size_t i = 0; i < op->n_tokens; i++) {
            const struct token token = token_of(op, head, i);
            advance(op, &token, state);
            put_y(op, head, i, &token, state);
        }
    }
}

/* ---- backward ---- */

/* Adds the gradient of x / norm to that of x, where the norm is `scale` times sqrt(sum of squares + 1e-6). */
static void norm_backward(double *to, const double *x, const double *gradient, size_t n, double norm, double scale)
{
    double along = 0;

    for (size_t i = 0; i < n; i++)
        along += x[i] * gradient[i];
    for (size_t i = 0; i < n; i++)
        to[i] += gradient[i] / norm - x[i] * along * scale * scale / (norm * norm * norm);
}

/* The gradients of a head's g and beta become those of what they are made of. */
static void gates_backward(const struct device_gated_delta *op, size_t head, size_t i, const struct token *t,
                           double of_g, double of_beta)
{
    double *to = (double *)op->gates_gradient + i * 2 * op->n_heads + head;

    to[0] = of_g * t->rate * t->slope;
    to[op->n_heads] = of_beta * t->beta * (1 - t->sigmoid);
    if (op->a_log_gradient)
        ((double *)(void *)op->a_log_gradient)[head] += of_g * t->g;
    if (op->dt_bias_gradient)
        ((double *)(void *)op->dt_bias_gradient)[head] += of_g * t->rate * t->slope;
}

/* One token. state: behind it; before: before it, times e^g. gradient: of the state behind it, then before it. */
static void token_backward(const struct device_gated_delta *op, size_t head, size_t at, const double *state,
                           const double *before, double *gradient)
{
    const size_t n_k = op->key_width, n_v = op->value_width;
    const struct token t = token_of(op, head, at);
    const double *dy = (const double *)op->y_gradient + (at * op->n_heads + head) * n_v;
    double *to = (double *)op->qkv_gradient + at * device_gated_delta_columns(op);
    double *dq = zeros(n_k), *dk = zeros(n_k), of_beta = 0, of_g = 0;

    for (size_t j = 0; j < n_v; j++) {
        const double without = missed(op, &t, before, j);
        double dd = 0;
        for (size_t i = 0; i < n_k; i++) {
            gradient[i * n_v + j] += t.q[i] / t.q_norm * dy[j];
            dq[i] += state[i * n_v + j] * dy[j];
            dk[i] += gradient[i * n_v + j] * t.beta * without;
            dd += gradient[i * n_v + j] * t.k[i] / t.k_norm;
        }
        of_beta += dd * without;
        to[column_of(op, head, 2) + j] += t.beta * dd;
        for (size_t i = 0; i < n_k; i++) {
            dk[i] -= t.beta * dd * before[i * n_v + j];
            gradient[i * n_v + j] -= t.beta * dd * t.k[i] / t.k_norm;
            of_g += gradient[i * n_v + j] * before[i * n_v + j];
            gradient[i * n_v + j] *= exp(t.g);
        }
    }
    norm_backward(to + column_of(op, head, 0), t.q, dq, n_k, t.q_norm, sqrt((double)n_k));
    norm_backward(to + column_of(op, head, 1), t.k, dk, n_k, t.k_norm, 1);
    gates_backward(op, head, at, &t, of_g, of_beta);
    free(dq), free(dk);
}

/* One row's head: the states before all tokens, times their e^g, and behind them; then back. */
static void backward_head(const struct device_gated_delta *op, size_t row, size_t head)
{
    const size_t n = op->key_width * op->value_width, first = row * op->n_tokens;
    double *states = zeros(2 * op->n_tokens * n), *state = zeros(n), *gradient = zeros(n);

    for (size_t t = 0; t < op->n_tokens; t++) {
        const struct token token = token_of(op, head, first + t);
        if (position_of(op, first + t) == 0)
            memset(state, 0, n * sizeof *state);
        for (size_t i = 0; i < n; i++)
            states[2 * t * n + i] = state[i] * exp(token.g);
        advance(op, &token, state);
        memcpy(states + (2 * t + 1) * n, state, n * sizeof *state);
    }
    for (size_t t = op->n_tokens; t-- > 0;) {
        if (t + 1 == op->n_tokens || position_of(op, first + t + 1) == 0)
            memset(gradient, 0, n * sizeof *gradient);
        token_backward(op, head, first + t, states + (2 * t + 1) * n, states + 2 * t * n, gradient);
    }
    free(states), free(state), free(gradient);
}

void reference_gated_delta_backward(const struct device_gated_delta *op)
{
    const size_t m = op->n_rows * op->n_tokens;

    memset(op->qkv_gradient, 0, m * device_gated_delta_columns(op) * sizeof(double));
    for (size_t i = 0; i < op->n_rows * op->n_heads; i++)
        backward_head(op, i / op->n_heads, i % op->n_heads);
}
