#include "tests/kit/reference/reference.h"

#include "tests/kit/reference/reference_approximate.h"
#include "tests/kit/reference/reference_attention.h"
#include "tests/kit/reference/reference_batch_norm.h"
#include "tests/kit/reference/reference_conv2d.h"
#include "tests/kit/reference/reference_dynamic_conv.h"
#include "tests/kit/reference/reference_experts.h"
#include "tests/kit/reference/reference_gated_delta.h"
#include "tests/kit/reference/reference_pool.h"
#include "tests/kit/reference/reference_short_conv.h"
#include "tests/kit/reference/reference_sparse.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

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
    case MODEL_TANH:
        return tanh(x);
    case MODEL_SIGMOID:
        return 1 / (1 + exp(-x));
    case MODEL_RELU2:
        return x > 0 ? x * x : 0;
    case MODEL_GELU_QUICK:
        return x / (1 + exp(-1.702 * x));
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
    case MODEL_TANH:
        return 1 - tanh(x) * tanh(x);
    case MODEL_SIGMOID:
        return exp(-x) / ((1 + exp(-x)) * (1 + exp(-x)));
    case MODEL_SILU:
        return 1 / (1 + exp(-x)) + x * exp(-x) / ((1 + exp(-x)) * (1 + exp(-x)));
    case MODEL_RELU2:
        return x > 0 ? 2 * x : 0;
    case MODEL_GELU_QUICK:
        t = 1 / (1 + exp(-1.702 * x));
        return t + 1.702 * x * t * (1 - t);
    }
    abort();
}

double reference_dropout(const struct device_dropout *dropout, uint64_t row, uint64_t element)
{
    uint32_t words[4];

    const double scale = dropout->scale != 0 ? (double)dropout->scale : 1;

    if (dropout->p == 0)
        return scale;
    random_quad(words, dropout->key, dropout->first_row + row, element / 4);
    return words[element % 4] >= random_threshold(dropout->p) ? scale / (1 - (double)dropout->p) : 0;
}

static void matmul(const struct device_matmul *op)
{
    const double *a = op->a, *b = op->b, *bias = op->bias;
    double *c = op->c, *pre = op->pre;

    for (size_t i = 0; i < op->m; i++)
        for (size_t j = 0; j < op->n; j++) {
            const size_t at = i * op->c_stride + j;
            double sum = 0;
            for (size_t k = 0; k < op->k; k++)
                sum += a[op->transpose_a ? k * op->a_stride + i : i * op->a_stride + k] *
                       b[op->transpose_b ? j * op->b_stride + k : k * op->b_stride + j];
            sum *= op->factor != 0 ? (double)op->factor : 1;
            if (op->beta != 0)
                sum += c[at];
            if (op->epilogue == DEVICE_BIAS || op->epilogue == DEVICE_BIAS_ACTIVATION)
                sum += bias[j];
            if (op->epilogue == DEVICE_BIAS_ACTIVATION)
                pre[at] = sum, sum = reference_activation(op->activation, sum);
            if (op->epilogue == DEVICE_ACTIVATION_GRADIENT)
                sum *= reference_activation_gradient(op->activation, pre[at]);
            c[at] = sum;
        }
}

/* mean and 1/sqrt(...) of a row */
static void statistics(double out[2], const double *x, const struct device_norm *op)
{
    double square = 0;

    out[0] = 0;
    for (size_t j = 0; j < op->n && op->kind == DEVICE_LAYER_NORM; j++)
        out[0] += x[j] / (double)op->n;
    for (size_t j = 0; j < op->n; j++)
        square += (x[j] - out[0]) * (x[j] - out[0]) / (double)op->n;
    out[1] = 1 / sqrt(square + (double)op->epsilon);
}

/* The number of rows' heads, and the first value of one. */
static size_t norm_heads(const struct device_norm *op)
{
    return op->m * (op->n_heads ? op->n_heads : 1);
}

static size_t norm_head(const struct device_norm *op, size_t i)
{
    const size_t heads = op->n_heads ? op->n_heads : 1;

    return i / heads * (op->stride ? op->stride : heads * op->n) + i % heads * op->n;
}

static double norm_factor(const struct device_norm *op, size_t j)
{
    return op->bare ? 1 : op->offset + ((const double *)op->weight)[j];
}

static void norm(const struct device_norm *op)
{
    const double *bias = op->bias;
    double *of_rows = (void *)op->statistics, *of;

    for (size_t i = 0; i < norm_heads(op); i++) {
        const double *x = (const double *)op->x + norm_head(op, i);
        double *y = (double *)op->y + norm_head(op, i);

        of = of_rows + 2 * i;
        statistics(of, x, op);
        for (size_t j = 0; j < op->n; j++)
            y[j] = (x[j] - of[0]) * of[1] * norm_factor(op, j) + (bias ? bias[j] : 0);
    }
}

static void norm_backward(const struct device_norm *op)
{
    const double n = (double)op->n;
    double *weights = (void *)op->weight_gradient, *biases = (void *)op->bias_gradient;

    for (size_t i = 0; i < norm_heads(op); i++) {
        const size_t at = norm_head(op, i);
        const double *x = (const double *)op->x + at, *dy = (const double *)op->y_gradient + at;
        double *dx = (double *)op->x_gradient + at, of[2], mean_g = 0, mean_gz = 0;

        statistics(of, x, op);
        for (size_t j = 0; j < op->n; j++) {
            const double z = (x[j] - of[0]) * of[1], g = dy[j] * norm_factor(op, j);
            if (weights)
                weights[j] += dy[j] * z;
            if (biases)
                biases[j] += dy[j];
            mean_g += op->kind == DEVICE_LAYER_NORM ? g / n : 0;
            mean_gz += g * z / n;
        }
        for (size_t j = 0; j < op->n; j++)
            dx[j] = (op->accumulate ? dx[j] : 0) +
                    of[1] * (dy[j] * norm_factor(op, j) - mean_g - (x[j] - of[0]) * of[1] * mean_gz);
    }
}

static void rope(const struct device_rope *op)
{
    const size_t half = op->n_rotated / 2;
    double *x = op->x;

    for (size_t i = 0; i < op->n_rows * op->n_tokens; i++)
        for (size_t j = 0; j < op->n_heads * half; j++) {
            double *head = x + i * op->stride + j / half * op->head_width;
            double *a = head + (op->interleaved ? 2 * (j % half) : j % half), *b = a + (op->interleaved ? 1 : half);
            const double was = *a;
            const uint64_t position = op->positions ? op->positions[i] : op->first + i % op->n_tokens;
            const double angle = (double)position * op->frequencies[j % half];
            const double sine = op->inverse ? -sin(angle) : sin(angle);
            double factor = op->factor > 0 ? op->factor : 1;
            if (j / half < op->n_grown)
                factor *= 1 + op->growth * log(1 + floor((double)position / op->period));
            *a = factor * (was * cos(angle) - *b * sine);
            *b = factor * (*b * cos(angle) + was * sine);
        }
}

static void glu(const struct device_glu *op, bool backward)
{
    const double *gate = op->gate, *up = op->up, *dy = op->y_gradient;
    double *y = op->y, *gates = op->gate_gradient, *ups = op->up_gradient;

    for (size_t i = 0; i < op->m; i++)
        for (size_t j = 0; j < op->n; j++) {
            const double g = gate[i * op->stride + j], u = up[i * op->stride + j];
            if (!backward) {
                y[i * op->n + j] = reference_activation(op->activation, g) * u;
                continue;
            }
            gates[i * op->gradient_stride + j] =
                dy[i * op->n + j] * u * reference_activation_gradient(op->activation, g);
            ups[i * op->gradient_stride + j] = dy[i * op->n + j] * reference_activation(op->activation, g);
        }
}

static void head_gate(const struct device_head_gate *op, bool backward)
{
    const double *x = op->x, *gate = op->gate, *dy = op->y_gradient;

    for (size_t i = 0; i < op->m * op->n_heads; i++) {
        const double opened = reference_activation(MODEL_SIGMOID, gate[i]);
        double sum = 0;
        for (size_t j = i * op->n; j < (i + 1) * op->n; j++) {
            ((double *)(backward ? op->x_gradient : op->y))[j] = (backward ? dy : x)[j] * opened;
            sum += backward ? dy[j] * x[j] : 0;
        }
        if (backward)
            ((double *)op->gate_gradient)[i] = sum * reference_activation_gradient(MODEL_SIGMOID, gate[i]);
    }
}

static double softplus(double x)
{
    return log1p(exp(x));
}

/* Both directions. */
static void xielu(const struct device_xielu *op, bool backward)
{
    const double positive = *(const double *)op->positive, negative = *(const double *)op->negative;
    const double beta = (double)op->beta, bound = (double)op->bound, factor = beta + softplus(negative);
    const double *x = op->x, *dy = op->y_gradient;
    double sums[2] = {0};

    for (size_t i = 0; i < op->n; i++) {
        const double rest = expm1(fmin(x[i], bound)) - x[i];
        if (!backward) {
            ((double *)op->y)[i] = (x[i] > 0 ? softplus(positive) * x[i] * x[i] : factor * rest) + beta * x[i];
            continue;
        }
        const double slope = x[i] > 0 ? 2 * softplus(positive) * x[i] : x[i] < bound ? factor * expm1(x[i]) : -factor;
        ((double *)op->x_gradient)[i] = dy[i] * (slope + beta);
        sums[x[i] <= 0] += dy[i] * (x[i] > 0 ? x[i] * x[i] : rest);
    }
    if (backward && op->of_positive)
        *(double *)(void *)op->of_positive += sums[0] / (1 + exp(-positive));
    if (backward && op->of_negative)
        *(double *)(void *)op->of_negative += sums[1] / (1 + exp(-negative));
}

static void regroup(const struct device_regroup *op)
{
    const size_t n = op->n_groups * op->n_parts * op->n;

    for (size_t i = 0; i < op->m * n; i++) {
        const size_t j = i % op->n, part = i / op->n % op->n_parts, group = i / op->n / op->n_parts % op->n_groups;
        ((double *)op->y)[i / n * n + (part * op->n_groups + group) * op->n + j] = ((const double *)op->x)[i];
    }
}

static void split(const struct device_split *op, bool joins)
{
    const size_t n_pairs = 2 * op->n_heads * op->n, n_columns = n_pairs + op->n_rest, n_queries = n_pairs / 2;

    for (size_t i = 0; i < op->m * n_columns; i++) {
        const size_t row = i / n_columns, c = i % n_columns, head = c / (2 * op->n), j = c % (2 * op->n);
        double *x = (double *)op->x + i, *y = (double *)op->y + row * (n_queries + op->n_rest), *other;
        if (c >= n_pairs)
            other = y + c - n_queries;
        else if (j < op->n)
            other = y + head * op->n + j;
        else
            other = (double *)op->gates + row * n_queries + head * op->n + j - op->n;
        *(joins ? x : other) = joins ? *other : *x;
    }
}

static void sinusoid(const struct device_sinusoid *op)
{
    const double half = (double)op->n / 2;

    for (size_t i = 0; i < op->n_rows * op->n_tokens * op->n; i++) {
        const double j = (double)(i % op->n % (op->n / 2)), t = (double)(op->first + i / op->n % op->n_tokens);
        const double angle = t * (half > 1 ? exp(-j * log(10000) / (half - 1)) : 1);
        ((double *)op->y)[i] += i % op->n < op->n / 2 ? sin(angle) : cos(angle);
    }
}

static void pixels(const struct device_pixels *op)
{
    for (size_t i = 0; i < op->m * op->n; i++) {
        const size_t c = i % op->n;
        const double byte = op->ids[i / op->n] / (1u << 8 * c) % 256;
        ((double *)op->y)[i] = byte * op->scale[c] + op->shift[c];
    }
}

static void dropout_add(const struct device_dropout_add *op)
{
    const size_t row = op->n_tokens * op->n, stride = op->stride ? op->stride : op->n;
    const double *x = op->x, *h = op->h;
    double *y = op->y;

    for (size_t i = 0; i < op->n_rows * row; i++) {
        const size_t at = i / op->n * stride + i % op->n;
        y[at] = (x ? x[at] : 0) + h[at] * reference_dropout(&op->dropout, i / row, i % row);
    }
}

/* Backward adds in fp32, in order: a sum of two floats is rounded once, also by way of double; times a scale once
 * more. */
static void embed(const struct device_embed *op, bool backward)
{
    const double *table = op->table, *dy = op->y_gradient;
    double *y = op->y, *sums = (void *)op->table_gradient;
    const double scale = (double)device_embed_scale(op);

    for (size_t i = 0; i < op->m; i++)
        for (size_t j = 0; j < op->n && op->ids[i] >= op->first && op->ids[i] - op->first < op->n_table; j++) {
            const size_t from = (op->ids[i] - op->first) * op->n + j, to = i * op->n + j;
            if (backward)
                sums[from] = (double)(float)(sums[from] + scale * dy[to]);
            else
                y[to] = (op->accumulate ? y[to] : 0) + scale * table[from];
        }
}

/* As published, in fp32: Dettmers et al., arXiv:2305.14314, appendix E, and arXiv:2208.07339. */
static float decoded(const struct device_decode *op, size_t i)
{
    static const float quantiles[] = {-1,
                                      -0.6961928009986877f,
                                      -0.5250730514526367f,
                                      -0.39491748809814453f,
                                      -0.28444138169288635f,
                                      -0.18477343022823334f,
                                      -0.09105003625154495f,
                                      0,
                                      0.07958029955625534f,
                                      0.16093020141124725f,
                                      0.24611230194568634f,
                                      0.33791524171829224f,
                                      0.44070982933044434f,
                                      0.5626170039176941f,
                                      0.7229568362236023f,
                                      1};
    const double *scales = (const double *)(const void *)op->scales;
    const uint8_t *bytes = op->codes;

    switch (op->form) {
    case FORM_BF16:
        return number_from_pattern((uint32_t)(bytes[2 * i] | bytes[2 * i + 1] << 8) << 16);
    case FORM_INT8:
        return (float)(int8_t)bytes[i] * (float)scales[i / op->columns] * (float)(1.0 / 127);
    case FORM_NF4:
        return quantiles[i % 2 ? bytes[i / 2] % 16 : bytes[i / 2] / 16] * (float)scales[i / 64];
    case FORM_VALUES:
    case FORM_FP32:
    case FORMS:
        break;
    }
    abort();
}

static void decode(const struct device_decode *op)
{
    for (size_t i = 0; i < op->rows * op->columns; i++)
        ((double *)op->y)[i] = (double)decoded(op, i);
}

static void position(const struct device_position *op, bool backward)
{
    const size_t row = op->n_tokens * op->n;
    const double *table = op->table, *dy = op->y_gradient;
    double *y = op->y, *sums = (void *)op->table_gradient;

    for (size_t i = 0; i < op->n_rows * row; i++)
        if (backward)
            sums[i % row] += dy[i];
        else
            y[i] += table[i % row];
}

static double logit_at(const struct device_cross_entropy *op, size_t i, size_t j)
{
    const double *logits = (const void *)op->logits, *bias = (const void *)op->bias;
    const double logit = logits[i * op->logits_stride + j] + (bias ? bias[j] : 0), cap = (double)op->cap;

    return cap != 0 ? cap * tanh(logit / cap) : logit;
}

/* What a label has, of which a row's own has most. */
static double label_weight(const struct device_cross_entropy *op, size_t i, size_t j)
{
    const double smoothing = (double)op->smoothing, even = smoothing > 0 ? smoothing / (double)op->n_all : 0;

    return even + (op->labels[i] == op->first + j ? 1 - smoothing : 0);
}

/* running: the maximum, the sum of exp(logit - maximum), the sum of logits times what their labels have. */
static void log_sum_exp(const struct device_cross_entropy *op)
{
    for (size_t i = 0; i < op->m; i++) {
        double *to = (double *)(void *)op->running + 3 * i;
        double max = op->start ? -INFINITY : to[0], sum = 0;
        for (size_t j = 0; j < op->n; j++)
            max = fmax(max, logit_at(op, i, j));
        for (size_t j = 0; j < op->n; j++)
            sum += exp(logit_at(op, i, j) - max);
        to[1] = sum + (op->start ? 0 : to[1] * exp(to[0] - max));
        to[0] = max;
        to[2] = op->start || (op->smoothing == 0 && op->labels[i] >= op->first && op->labels[i] < op->first + op->n)
                    ? 0
                    : to[2];
        for (size_t j = 0; j < op->n; j++)
            to[2] += label_weight(op, i, j) * logit_at(op, i, j);
    }
}

static void loss(const struct device_loss *op)
{
    const double *from = (const double *)(const void *)op->running;

    for (size_t i = 0; i < op->m; i++)
        op->losses[i] = op->labels[i] == UINT32_MAX ? 0 : from[3 * i] + log(from[3 * i + 1]) - from[3 * i + 2];
}

/* In its place, and zeros behind it. */
static void cross_entropy_gradient(const struct device_cross_entropy *op)
{
    for (size_t i = 0; i < op->m; i++) {
        double *logits = (double *)(void *)op->logits + i * op->logits_stride;
        const double *of = (const double *)(const void *)op->running + 3 * i;
        const bool counts = op->labels[i] != UINT32_MAX;
        for (size_t j = 0; j < op->logits_stride; j++)
            logits[j] = counts && j < op->n
                            ? (exp(logit_at(op, i, j) - of[0]) / of[1] - label_weight(op, i, j)) *
                                  (op->scales ? ((const double *)(const void *)op->scales)[i] : (double)op->scale) *
                                  (op->cap != 0 ? 1 - pow(logit_at(op, i, j) / (double)op->cap, 2) : 1)
                            : 0;
    }
}

static double log_sigmoid(double z)
{
    return -log1p(exp(-z));
}

/* By the loss's central difference: rewards lie a step apart. */
static void preference(const struct device_preference *op)
{
    const double *references = (const void *)op->references, step = 1e-5;
    double *scales = (void *)op->scales;

    for (size_t i = 0; i < op->n_pairs; i++) {
        double z = 0, loss[2];
        for (size_t row = 2 * i; row < 2 * i + 2; row++) {
            op->log_p[row] = 0;
            for (size_t t = 0; t < op->n_tokens; t++)
                op->log_p[row] -= op->losses[row * op->n_tokens + t];
            z += (row % 2 ? -1 : 1) * (op->log_p[row] - references[row]);
        }
        for (int k = 0; k < 2; k++) { /* by the preferred text's log p */
            const double at = op->preference.beta * (z + (k ? step : -step)), smoothing = op->preference.smoothing;
            loss[k] = -(1 - smoothing) * log_sigmoid(at) - smoothing * log_sigmoid(-at);
        }
        for (size_t t = 0; t < 2 * op->n_tokens; t++)
            scales[2 * i * op->n_tokens + t] =
                (t < op->n_tokens ? 1 : -1) * (loss[0] - loss[1]) / (2 * step) * (double)op->scale;
    }
}

/* The gradient in the logits' place, and zeros behind it. */
static void squared_error(const struct device_squared_error *op, bool gradient)
{
    const double *bias = (const void *)op->bias;

    for (size_t i = 0; i < op->m; i++) {
        double *logits = (double *)(void *)op->logits + i * op->logits_stride;
        float label;
        memcpy(&label, &op->labels[i], sizeof label);
        const double error = op->labels[i] == UINT32_MAX ? 0 : *logits + (bias ? *bias : 0) - (double)label;
        if (!gradient)
            op->losses[i] = error * error;
        for (size_t j = 0; gradient && j < op->logits_stride; j++)
            logits[j] = j == 0 ? 2 * error * (double)op->scale : 0;
    }
}

static void activate(const struct device_activate *op)
{
    for (size_t i = 0; i < op->n; i++)
        ((double *)op->y)[i] = reference_activation(op->activation, ((const double *)op->x)[i]);
}

static void activate_backward(const struct device_activate *op)
{
    for (size_t i = 0; i < op->n; i++)
        ((double *)op->gradient)[i] *= reference_activation_gradient(op->activation, ((const double *)op->x)[i]);
}

static void add(const struct device_add *op)
{
    for (size_t i = 0; i < op->n; i++)
        ((double *)(void *)op->sum)[i] += ((const double *)(const void *)op->x)[i];
}

static void reduce_rows(const struct device_reduce_rows *op)
{
    for (size_t i = 0; i < op->m * op->n; i++)
        ((double *)(void *)op->sum)[i % op->n] += ((const double *)op->x)[i / op->n * op->stride + i % op->n];
}

static void soft_cap(const struct device_soft_cap *op)
{
    double *x = (double *)(void *)op->x;

    for (size_t i = 0; i < op->n; i++)
        x[i] = (double)op->cap * tanh(x[i] / (double)op->cap);
}

void reference_run(const struct call *call)
{
    switch (call->kind) {
    case CALL_matmul:
        return matmul(&call->matmul);
    case CALL_norm:
        return norm(&call->norm);
    case CALL_norm_backward:
        return norm_backward(&call->norm);
    case CALL_row_moments:
    case CALL_row_moments_backward:
        return reference_row_moments(&call->row_moments, call->kind == CALL_row_moments_backward);
    case CALL_join_moments:
    case CALL_join_moments_backward:
        return reference_join_moments(&call->join_moments, call->kind == CALL_join_moments_backward);
    case CALL_batch_norm:
        return reference_batch_norm(&call->batch_norm);
    case CALL_batch_norm_backward:
        return reference_batch_norm_backward(&call->batch_norm);
    case CALL_running_statistics:
        return reference_running_statistics(&call->running_statistics);
    case CALL_running_gradient:
        return reference_running_gradient(&call->running_gradient);
    case CALL_rope:
        return rope(&call->rope);
    case CALL_sinusoid:
        return sinusoid(&call->sinusoid);
    case CALL_xielu:
    case CALL_xielu_backward:
        return xielu(&call->xielu, call->kind == CALL_xielu_backward);
    case CALL_regroup:
        return regroup(&call->regroup);
    case CALL_split:
    case CALL_join:
        return split(&call->split, call->kind == CALL_join);
    case CALL_pixels:
        return pixels(&call->pixels);
    case CALL_glu:
    case CALL_glu_backward:
        return glu(&call->glu, call->kind == CALL_glu_backward);
    case CALL_head_gate:
    case CALL_head_gate_backward:
        return head_gate(&call->head_gate, call->kind == CALL_head_gate_backward);
    case CALL_attention:
        return reference_attention(&call->attention);
    case CALL_attention_backward:
        return reference_attention_backward(&call->attention);
    case CALL_dynamic_conv:
    case CALL_dynamic_conv_backward:
        return reference_dynamic_conv(&call->dynamic_conv, call->kind == CALL_dynamic_conv_backward);
    case CALL_short_conv:
        return reference_short_conv(&call->short_conv);
    case CALL_short_conv_backward:
        return reference_short_conv_backward(&call->short_conv);
    case CALL_short_conv_cached:
        return reference_short_conv_cached(&call->short_conv);
    case CALL_gated_delta:
        return reference_gated_delta(&call->gated_delta);
    case CALL_gated_delta_backward:
        return reference_gated_delta_backward(&call->gated_delta);
    case CALL_gated_delta_cached:
        return reference_gated_delta_cached(&call->gated_delta);
    case CALL_route:
        return reference_route(&call->route);
    case CALL_route_backward:
        return reference_route_backward(&call->route);
    case CALL_experts:
        return reference_experts(&call->experts);
    case CALL_experts_backward:
        return reference_experts_backward(&call->experts);
    case CALL_conv2d:
        return reference_conv2d(&call->conv2d, REFERENCE_CONV2D_FORWARD);
    case CALL_conv2d_input_gradient:
        return reference_conv2d(&call->conv2d, REFERENCE_CONV2D_INPUT);
    case CALL_conv2d_weight_gradient:
        return reference_conv2d(&call->conv2d, REFERENCE_CONV2D_WEIGHT);
    case CALL_max_pool:
    case CALL_average_pool:
        return reference_pool(&call->max_pool, call->kind == CALL_max_pool);
    case CALL_max_pool_backward:
    case CALL_average_pool_backward:
        return reference_pool_backward(&call->max_pool, call->kind == CALL_max_pool_backward);
    case CALL_sum_blocks:
        return reference_sum_blocks(&call->sum_blocks);
    case CALL_dropout_add:
        return dropout_add(&call->dropout_add);
    case CALL_scatter:
        return reference_scatter(&call->scatter);
    case CALL_gather:
        return reference_gather(&call->gather);
    case CALL_decode:
        return decode(&call->decode);
    case CALL_embed:
    case CALL_embed_backward:
        return embed(&call->embed, call->kind == CALL_embed_backward);
    case CALL_position:
    case CALL_position_backward:
        return position(&call->position, call->kind == CALL_position_backward);
    case CALL_log_sum_exp:
        return log_sum_exp(&call->log_sum_exp);
    case CALL_cross_entropy_gradient:
        return cross_entropy_gradient(&call->cross_entropy_gradient);
    case CALL_preference:
        return preference(&call->preference);
    case CALL_squared_error:
    case CALL_squared_error_gradient:
        return squared_error(&call->squared_error, call->kind == CALL_squared_error_gradient);
    case CALL_loss:
        return loss(&call->loss);
    case CALL_activate:
        return activate(&call->activate);
    case CALL_activate_backward:
        return activate_backward(&call->activate_backward);
    case CALL_add:
        return add(&call->add);
    case CALL_reduce_rows:
        return reduce_rows(&call->reduce_rows);
    case CALL_row_norms:
        return reference_row_norms(&call->row_norms);
    case CALL_weigh_scores:
        return reference_weigh_scores(&call->weigh_scores);
    case CALL_gather_rows:
        return reference_gather_rows(&call->gather_rows);
    case CALL_round_values:
        return reference_round_values(&call->round_values);
    case CALL_soft_cap:
        return soft_cap(&call->soft_cap);
    case CALL_zero:
    case CALL_round_half:
    case CALL_attention_cached:
    case CALL_choose_rows:
    case CALL_compress:
    case CALL_expand:
        break;
    }
    abort();
}
