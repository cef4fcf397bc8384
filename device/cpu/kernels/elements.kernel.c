/* device/cpu/kernels/elements.kernel.c - element-wise operations: gated units, rotary positions, dropout, pixels.
 *
 * Sources: gated units - Shazeer, arXiv:2002.05202. Rotary positions - Su et al., arXiv:2104.09864. */
#include "device/cpu/cpu.h"
#include "device/cpu/kernels/dropout.h"
#include "device/cpu/kernels/math.h"
#include "device/cpu/kernels/value.h"
#include "device/turn.h"

#include <assert.h>
#include <string.h>

/* ---- act(gate) * up, and its gradients ---- */

/* Inlined once per activation, which is then a constant. */
VECTOR_INLINE void forward_row(enum model_activation activation, value *y, const value *gate, const value *up, size_t n)
{
    for (size_t j = 0; j < n; j += VECTOR)
        value_store_n(y + j, math_activation(activation, value_load_n(gate + j, n - j)) * value_load_n(up + j, n - j),
                      n - j);
}

/* Row i. Both inputs are read before either gradient, which may overwrite them, is written. */
VECTOR_INLINE void backward_row(enum model_activation activation, const struct device_glu *op, size_t i)
{
    const value *gate = (const value *)op->gate + i * op->stride, *up = (const value *)op->up + i * op->stride;
    const value *dy = (const value *)op->y_gradient + i * op->n;
    value *gate_gradient = (value *)op->gate_gradient + i * op->gradient_stride;
    value *up_gradient = (value *)op->up_gradient + i * op->gradient_stride;

    for (size_t j = 0; j < op->n; j += VECTOR) {
        const size_t left = op->n - j;
        const vec g = value_load_n(gate + j, left), u = value_load_n(up + j, left), d = value_load_n(dy + j, left);
        value_store_n(gate_gradient + j, d * u * math_activation_gradient(activation, g), left);
        value_store_n(up_gradient + j, d * math_activation(activation, g), left);
    }
}

VECTOR_INLINE void run(enum model_activation activation, const struct device_glu *op, size_t i, bool is_backward)
{
    if (is_backward)
        backward_row(activation, op, i);
    else
        forward_row(activation, (value *)op->y + i * op->n, (const value *)op->gate + i * op->stride,
                    (const value *)op->up + i * op->stride, op->n);
}

VECTOR_INLINE void run_rows(struct device *dev, const struct device_glu *op, bool is_backward)
{
    assert(op->activation <= MODEL_GELU_QUICK);
#pragma omp parallel for num_threads(cpu_threads(dev, op->m * op->n)) schedule(static)
    for (size_t i = 0; i < op->m; i++)
        switch (op->activation) {
        case MODEL_GELU_NEW:
            run(MODEL_GELU_NEW, op, i, is_backward);
            break;
        case MODEL_GELU:
            run(MODEL_GELU, op, i, is_backward);
            break;
        case MODEL_RELU:
            run(MODEL_RELU, op, i, is_backward);
            break;
        case MODEL_SILU:
            run(MODEL_SILU, op, i, is_backward);
            break;
        case MODEL_TANH:
            run(MODEL_TANH, op, i, is_backward);
            break;
        case MODEL_SIGMOID:
            run(MODEL_SIGMOID, op, i, is_backward);
            break;
        case MODEL_RELU2:
            run(MODEL_RELU2, op, i, is_backward);
            break;
        case MODEL_GELU_QUICK:
            run(MODEL_GELU_QUICK, op, i, is_backward);
            break;
        }
}

void KERNEL_NAME(cpu_glu)(struct device *dev, const struct device_glu *op)
{
    run_rows(dev, op, false);
}

void KERNEL_NAME(cpu_glu_backward)(struct device *dev, const struct device_glu *op)
{
    run_rows(dev, op, true);
}

/* ---- columns in another order ---- */

void KERNEL_NAME(cpu_regroup)(struct device *dev, const struct device_regroup *op)
{
    const size_t bytes = op->n * sizeof(value), row = op->n_groups * op->n_parts * bytes;

#pragma omp parallel for num_threads(cpu_threads(dev, op->m * op->n_groups * op->n_parts * op->n)) schedule(static)
    for (size_t i = 0; i < op->m; i++)
        for (size_t group = 0; group < op->n_groups; group++)
            for (size_t part = 0; part < op->n_parts; part++)
                memcpy((char *)op->y + i * row + (part * op->n_groups + group) * bytes,
                       (const char *)op->x + i * row + (group * op->n_parts + part) * bytes, bytes);
}

/* Row i of x to y and gates, or of these to x. */
static void split_row(const struct device_split *op, size_t i, bool joins)
{
    const size_t bytes = op->n * sizeof(value), rest = op->n_rest * sizeof(value);
    char *x = (char *)op->x + i * (2 * op->n_heads * bytes + rest),
         *y = (char *)op->y + i * (op->n_heads * bytes + rest);
    char *gates = (char *)op->gates + i * op->n_heads * bytes;

    for (size_t head = 0; head < op->n_heads; head++) {
        char *query = x + 2 * head * bytes, *gate = query + bytes;
        memcpy(joins ? query : y + head * bytes, joins ? y + head * bytes : query, bytes);
        memcpy(joins ? gate : gates + head * bytes, joins ? gates + head * bytes : gate, bytes);
    }
    x += 2 * op->n_heads * bytes, y += op->n_heads * bytes;
    memcpy(joins ? x : y, joins ? y : x, rest);
}

void KERNEL_NAME(cpu_split)(struct device *dev, const struct device_split *op)
{
#pragma omp parallel for num_threads(cpu_threads(dev, op->m *(2 * op->n_heads * op->n + op->n_rest))) schedule(static)
    for (size_t i = 0; i < op->m; i++)
        split_row(op, i, false);
}

void KERNEL_NAME(cpu_join)(struct device *dev, const struct device_split *op)
{
#pragma omp parallel for num_threads(cpu_threads(dev, op->m *(2 * op->n_heads * op->n + op->n_rest))) schedule(static)
    for (size_t i = 0; i < op->m; i++)
        split_row(op, i, true);
}

/* ---- rotary positions ---- */

enum { PAIRS = DEVICE_MAX_ROTATED / 2 };

/* Pair j of a head: columns j and n_pairs + j. */
static void rotate(value *head, const float *cosine, const float *sine, size_t n_pairs)
{
    for (size_t j = 0; j < n_pairs; j += VECTOR) {
        const size_t left = n_pairs - j;
        const vec c = vec_load_n(cosine + j, left, 0), s = vec_load_n(sine + j, left, 0);
        const vec x = value_load_n(head + j, left), y = value_load_n(head + n_pairs + j, left);
        value_store_n(head + j, x * c - y * s, left);
        value_store_n(head + n_pairs + j, y * c + x * s, left);
    }
}

/* Pair j of a head: columns 2j and 2j + 1. To each column times its cosine, its neighbour's is added times a sine,
 * which is negative in even columns. */
static void rotate_interleaved(value *head, const float *cosine, const float *sine, size_t n)
{
    for (size_t j = 0; j < n; j += VECTOR) {
        const size_t left = n - j;
        const vec x = value_load_n(head + j, left);
        value_store_n(head + j,
                      x * vec_load_n(cosine + j, left, 0) + VECTOR_EXCHANGE(x, 1) * vec_load_n(sine + j, left, 0),
                      left);
    }
}

/* Heads first .. end-1 of a token, by angles of which each is a turn for one position. */
static void rotate_heads(const struct device_rope *op, value *x, size_t first, size_t end, const uint64_t *turns,
                         uint64_t position, float factor)
{
    const size_t n_pairs = op->n_rotated / 2;
    float cosine[2 * PAIRS], sine[2 * PAIRS];

    if (first == end)
        return;
    for (size_t j = 0; j < n_pairs; j++) {
        float c, s;
        turn_circle(turns[j] * position, &c, &s);
        if (op->interleaved) {
            cosine[2 * j] = cosine[2 * j + 1] = c * factor;
            sine[2 * j] = -s * factor;
            sine[2 * j + 1] = s * factor;
        } else {
            cosine[j] = c * factor;
            sine[j] = s * factor;
        }
    }
    for (size_t head = first; head < end; head++)
        if (op->interleaved)
            rotate_interleaved(x + head * op->head_width, cosine, sine, op->n_rotated);
        else
            rotate(x + head * op->head_width, cosine, sine, n_pairs);
}

void KERNEL_NAME(cpu_rope)(struct device *dev, const struct device_rope *op)
{
    const float factor = op->factor > 0 ? op->factor : 1;
    const size_t n_pairs = op->n_rotated / 2, m = op->n_rows * op->n_tokens;
    uint64_t turns[PAIRS];

    assert(op->n_rotated % 2 == 0 && op->n_rotated <= op->head_width && n_pairs <= PAIRS);
    for (size_t j = 0; j < n_pairs; j++)
        turns[j] = turn_of(op->frequencies[j], op->inverse);
#pragma omp parallel for num_threads(cpu_threads(dev, m * op->n_rotated)) schedule(static)
    for (size_t i = 0; i < m; i++) {
        const uint64_t position = op->positions ? op->positions[i] : op->first + i % op->n_tokens;
        value *x = (value *)op->x + i * op->stride;

        if (op->n_grown > 0)
            rotate_heads(op, x, 0, op->n_grown, turns, position, factor * device_rope_growth(op, position));
        rotate_heads(op, x, op->n_grown, op->n_heads, turns, position, factor);
    }
}

/* ---- fixed positions ---- */

static void add_to(value *y, const float *x, size_t n)
{
    for (size_t j = 0; j < n; j += VECTOR)
        value_store_n(y + j, value_load_n(y + j, n - j) + vec_load_n(x + j, n - j, 0), n - j);
}

void KERNEL_NAME(cpu_sinusoid)(struct device *dev, const struct device_sinusoid *op)
{
    const size_t half = op->n / 2;

    for (size_t first = 0; first < half; first += PAIRS) {
        const size_t width = half - first < PAIRS ? half - first : PAIRS;
        uint64_t turns[PAIRS];

        for (size_t j = 0; j < width; j++)
            turns[j] = turn_of(device_sinusoid_frequency(op, first + j), false);
#pragma omp parallel for num_threads(cpu_threads(dev, op->n_rows * op->n_tokens * op->n)) schedule(static)
        for (size_t i = 0; i < op->n_rows * op->n_tokens; i++) {
            value *y = (value *)op->y + i * op->n + first;
            float cosine[PAIRS], sine[PAIRS];

            for (size_t j = 0; j < width; j++)
                turn_circle(turns[j] * (op->first + i % op->n_tokens), &cosine[j], &sine[j]);
            add_to(y, sine, width);
            add_to(y + half, cosine, width);
        }
    }
}

/* ---- pixels ---- */

/* Pixels' values, from a table of all bytes for each channel. */
void KERNEL_NAME(cpu_pixels)(struct device *dev, const struct device_pixels *op)
{
    enum { BYTES = 256 };
    value values[DEVICE_MAX_CHANNELS][BYTES];

    for (size_t c = 0; c < op->n; c++) {
        float x[BYTES];
        for (int byte = 0; byte < BYTES; byte++)
            x[byte] = (float)fma(byte, op->scale[c], op->shift[c]);
        for (size_t j = 0; j < BYTES; j += VECTOR)
            value_store_n(values[c] + j, vec_load(x + j), VECTOR);
    }
#pragma omp parallel for num_threads(cpu_threads(dev, op->m * op->n)) schedule(static)
    for (size_t i = 0; i < op->m; i++)
        for (size_t c = 0; c < op->n; c++)
            ((value *)op->y)[i * op->n + c] = values[c][op->ids[i] >> 8 * c & 0xff];
}

/* ---- dropout of activations, with the residual addition ---- */

void KERNEL_NAME(cpu_dropout_add)(struct device *dev, const struct device_dropout_add *op)
{
    const size_t m = op->n_rows * op->n_tokens;

#pragma omp parallel for num_threads(cpu_threads(dev, m * op->n)) schedule(static)
    for (size_t i = 0; i < m; i++) {
        const size_t at = i * device_dropout_stride(op);
        dropout_add_row(op, i, (value *)op->y + at, op->x ? (const value *)op->x + at : NULL,
                        (const value *)op->h + at);
    }
}
