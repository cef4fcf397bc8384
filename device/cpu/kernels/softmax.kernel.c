/* device/cpu/kernels/softmax.kernel.c - losses: softmax and cross entropy over a vocabulary that comes in chunks;
 * squared error; preferences. */
#include "device/cpu/cpu.h"
#include "device/cpu/kernels/math.h"
#include "device/cpu/kernels/value.h"

#include <float.h>
#include <math.h>

enum { BLOCK = 512 }; /* terms summed in fp32, 32 or more per lane; blocks are added in double */

enum { PIECE = 1 << 14 };

/* As struct device_soft_cap. */
VECTOR_INLINE vec soft_cap(vec x, float cap)
{
    return cap * math_tanh(x / cap);
}

void KERNEL_NAME(cpu_soft_cap)(struct device *dev, const struct device_soft_cap *op)
{
    float *const x = op->x;
    const size_t n = op->n;
    const float cap = op->cap;

#pragma omp parallel for num_threads(cpu_threads(dev, n)) schedule(static)
    for (size_t first = 0; first < n; first += PIECE)
        for (size_t j = first; j < n && j < first + PIECE; j += VECTOR)
            vec_store_n(x + j, soft_cap(vec_load_n(x + j, n - j, 0), cap), n - j);
}

/* A row's logits, which count with their bias, or capped. */
struct logits {
    const float *x, *bias; /* (n); bias NULL: none */
    size_t n;
    float cap; /* 0: none */
};

static struct logits logits_of(const struct device_cross_entropy *op, size_t row)
{
    return (struct logits){op->logits + row * op->logits_stride, op->bias, op->n, op->cap};
}

/* From the j-th on; `beyond` after the last. */
VECTOR_INLINE vec logits_at(const struct logits *of, size_t j, float beyond)
{
    const size_t n = of->n - j;
    vec x = vec_load_n(of->x + j, n, beyond);

    if (of->bias)
        x += vec_load_n(of->bias + j, n, 0);
    if (of->cap != 0) {
        float numbers[VECTOR];
        vec_store(numbers, soft_cap(x, of->cap));
        x = vec_load_n(numbers, n, beyond);
    }
    return x;
}

/* Finite below, so that in a row of minus infinities every exp(x - max) is 0 and none is a NaN. Of capped
 * logits it is the cap of the largest: where a rounding puts another above it, no digit is lost. */
static float row_max(const struct logits *of)
{
    const struct logits raw = {of->x, of->bias, of->n, 0};
    vec max = vec_all(-FLT_MAX);

    for (size_t j = 0; j < of->n; j += VECTOR)
        max = vec_max(logits_at(&raw, j, -INFINITY), max);
    max = vec_all(vec_largest(max));
    return of->cap != 0 ? soft_cap(max, of->cap)[0] : max[0];
}

/* Sum of exp(x - max). A NaN among x gives a NaN. */
static double row_sum(const struct logits *of, float max)
{
    const size_t n = of->n;
    double sum = 0;

    for (size_t first = 0; first < n; first += BLOCK) {
        const size_t width = n - first < BLOCK ? n - first : BLOCK;
        vec lanes = {0};
        for (size_t j = 0; j < width; j += VECTOR)
            lanes += math_exp(logits_at(of, first + j, -INFINITY) - max);
        sum += vec_sum(lanes);
    }
    return sum;
}

/* For label smoothing: the mean of all logits. */
static double row_total(const struct logits *of)
{
    const size_t n = of->n;
    double sum = 0;

    for (size_t first = 0; first < n; first += BLOCK) {
        const size_t width = n - first < BLOCK ? n - first : BLOCK;
        vec lanes = {0};
        for (size_t j = 0; j < width; j += VECTOR)
            lanes += logits_at(of, first + j, 0);
        sum += vec_sum(lanes);
    }
    return sum;
}

/* Adds to a row's third sum what this chunk's labels have. label: in the chunk, or at n or beyond. */
static float add_labels(float sum, const struct device_cross_entropy *op, const struct logits *of, uint32_t label)
{
    const float own = label < op->n ? logits_at(of, label, 0)[0] : 0;

    if (op->smoothing == 0)
        return label < op->n ? own : sum;
    return (float)((double)sum + (double)device_label_share(op) * (double)own +
                   (double)device_smoothed(op) * row_total(of));
}

/* A later chunk's sum is added to what came before, both at the larger of their maxima. */
void KERNEL_NAME(cpu_log_sum_exp)(struct device *dev, const struct device_cross_entropy *op)
{
#pragma omp parallel for num_threads(cpu_threads(dev, op->m * op->n)) schedule(static)
    for (size_t i = 0; i < op->m; i++) {
        const struct logits of = logits_of(op, i);
        float *state = op->running + 3 * i;
        float max = row_max(&of);

        if (op->start) {
            state[0] = max;
            state[1] = (float)row_sum(&of, max);
            state[2] = 0;
        } else {
            max = max > state[0] ? max : state[0];
            state[1] = (float)((double)state[1] * exp((double)state[0] - (double)max) + row_sum(&of, max));
            state[0] = max;
        }
        state[2] = add_labels(state[2], op, &of, op->labels[i] >= op->first ? op->labels[i] - op->first : UINT32_MAX);
    }
}

void KERNEL_NAME(cpu_loss)(struct device *dev, const struct device_loss *op)
{
#pragma omp parallel for num_threads(cpu_threads(dev, op->m)) schedule(static)
    for (size_t i = 0; i < op->m; i++) {
        const float *state = op->running + 3 * i;
        op->losses[i] = op->labels[i] == UINT32_MAX ? 0 : log((double)state[1]) + (double)state[0] - (double)state[2];
    }
}

/* to (n) may begin where the logits do: it never runs ahead of them. label is in the row or at n or beyond. capped is
 * a constant. */
VECTOR_INLINE void gradient_row(value *to, const struct device_cross_entropy *op, size_t row, uint32_t label,
                                float scale, bool capped)
{
    const struct logits of = logits_of(op, row);
    const float max = op->running[3 * row], factor = scale / op->running[3 * row + 1], cap = op->cap;
    const float own = scale * device_label_share(op), even = scale * device_smoothed(op);
    const size_t n = op->n;
    float piece[BLOCK], part[BLOCK]; /* part: of the cap */

    for (size_t first = 0; first < n; first += BLOCK) {
        const size_t width = n - first < BLOCK ? n - first : BLOCK;

        for (size_t j = 0; j < width; j += VECTOR) {
            const vec logits = logits_at(&of, first + j, 0);
            vec_store(piece + j, math_exp(logits - max) * factor - even);
            if (capped)
                vec_store(part + j, logits / cap);
        }
        if (label >= first && label - first < width)
            piece[label - first] -= own;
        for (size_t j = 0; j < width; j += VECTOR) {
            const vec gradient = vec_load(piece + j), of_cap = capped ? vec_load(part + j) : vec_all(0);
            value_store_n(to + first + j, capped ? gradient * (1 - of_cap * of_cap) : gradient, width - j);
        }
    }
}

void KERNEL_NAME(cpu_cross_entropy_gradient)(struct device *dev, const struct device_cross_entropy *op)
{
#pragma omp parallel for num_threads(cpu_threads(dev, op->m * op->n)) schedule(static)
    for (size_t i = 0; i < op->m; i++) {
        value *to = (value *)op->logits + i * op->logits_stride * (sizeof(float) / sizeof(value));
        const float scale = op->scales ? op->scales[i] : op->scale;

        if (op->labels[i] == UINT32_MAX)
            memset(to, 0, op->n * sizeof *to);
        else if (op->cap != 0)
            gradient_row(to, op, i, op->labels[i] - op->first, scale, true);
        else
            gradient_row(to, op, i, op->labels[i] - op->first, scale, false);
        memset(to + op->n, 0, (op->logits_stride - op->n) * sizeof *to);
    }
}

/* log p of a text is minus the sum of its tokens' losses; tokens without a label have 0. */
static double sum_losses(const double *losses, size_t n)
{
    double sum = 0;

    for (size_t i = 0; i < n; i++)
        sum += losses[i];
    return sum;
}

/* -beta * dL/dz * scale. */
static float preference_scale(const struct device_preference *op, double z)
{
    const double wrong = 1 / (1 + exp(z)), smoothing = op->preference.smoothing;

    return (float)(op->preference.beta * (double)op->scale * ((1 - smoothing) * wrong - smoothing * (1 - wrong)));
}

void KERNEL_NAME(cpu_preference)(struct device *dev, const struct device_preference *op)
{
    const size_t n = op->n_tokens;

#pragma omp parallel for num_threads(cpu_threads(dev, op->n_pairs * op->n_tokens)) schedule(static)
    for (size_t i = 0; i < op->n_pairs; i++) {
        double z = 0;

        for (size_t row = 2 * i; row < 2 * i + 2; row++) {
            op->log_p[row] = -sum_losses(op->losses + row * n, n);
            z += (row % 2 ? -1 : 1) * op->preference.beta * (op->log_p[row] - (double)op->references[row]);
        }
        const float scale = preference_scale(op, z);
        for (size_t t = 0; t < 2 * n; t++)
            op->scales[2 * i * n + t] = t < n ? scale : -scale;
    }
}

/* 0 without a label. */
static inline float error_of(const struct device_squared_error *op, size_t i)
{
    const float logit = op->logits[i * op->logits_stride] + (op->bias ? *op->bias : 0);
    float label;

    memcpy(&label, &op->labels[i], sizeof label);
    return op->labels[i] == UINT32_MAX ? 0 : logit - label;
}

/* One number a row is not worth a team. */
void KERNEL_NAME(cpu_squared_error)(struct device *dev, const struct device_squared_error *op)
{
    (void)dev;
    for (size_t i = 0; i < op->m; i++) {
        const double error = (double)error_of(op, i);
        op->losses[i] = error * error;
    }
}

void KERNEL_NAME(cpu_squared_error_gradient)(struct device *dev, const struct device_squared_error *op)
{
    (void)dev;
    for (size_t i = 0; i < op->m; i++) {
        const float gradient = 2 * error_of(op, i) * op->scale;
        value *to = (value *)op->logits + i * op->logits_stride * (sizeof(float) / sizeof(value));

        memset(to, 0, op->logits_stride * sizeof *to);
        value_store_n(to, vec_all(gradient), 1);
    }
}
