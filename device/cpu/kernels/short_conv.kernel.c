/* device/cpu/kernels/short_conv.kernel.c - a short causal convolution (proto/operation/call/short_conv.h).
 *
 * Threads share tokens, whose sums run over taps from the earliest token to the token itself, so a token's bits
 * depend on nothing but what it reaches. A tap that reaches before its document is left out rather than multiplied by
 * zero: what lies there may be infinite.
 *
 * Sums over tokens, for weights and bias, are divided among threads by channels: each is the same whatever the number
 * of threads. Runs of 64 tokens are summed in fp32, and these sums in double. */
#include "device/cpu/cpu.h"
#include "device/cpu/kernels/math.h"
#include "device/cpu/kernels/value.h"

enum { RUN = 64, STRIP = 4 * VECTOR /* channels that a thread sums at a time: a row of them is whole cache lines */ };

/* What a token gives to the sums of channels j on: x, or the product of B and x, `apart` columns apart. */
VECTOR_INLINE vec input_of(const struct device_short_conv *op, const value *x, size_t apart, size_t j)
{
    const size_t left = op->n - j;

    return op->gated ? value_load_n(x + j, left) * value_load_n(x + apart + j, left) : value_load_n(x + j, left);
}

/* Tokens of its document before token i of all rows, of those that taps reach. */
static size_t earlier_of(const struct device_short_conv *op, size_t i)
{
    return size_smaller(op->positions ? op->positions[i] : op->first + i % op->n_tokens, op->n_taps - 1);
}

static const value *row_of(const struct device_short_conv *op, size_t i)
{
    return (const value *)op->x + i * device_short_conv_x_stride(op);
}

static value *tail_of(const struct device_short_conv *op, size_t row)
{
    return (value *)op->tail + row * device_short_conv_tail(op);
}

/* The sums of token i of all rows, channels j on, with d of the document's tokens before it. Those before the call's
 * are the last rows of the tail. */
VECTOR_INLINE vec sum_of(const struct device_short_conv *op, size_t i, size_t d, size_t j)
{
    const size_t left = op->n - j, last = op->n_taps - 1;
    vec sum = op->bias ? value_load_n((const value *)op->bias + j, left) : (vec){0};

    for (; d <= last; d--) { /* below 0 it wraps around */
        const vec w = value_load_n((const value *)op->weight + (last - d) * op->n + j, left);
        const vec u = op->tail && d > i ? input_of(op, tail_of(op, last - (d - i)), op->n, j)
                                        : input_of(op, row_of(op, i - d), 2 * op->n, j);
        sum = vec_multiply_add(w, u, sum);
    }
    return sum;
}

static void forward_token(const struct device_short_conv *op, size_t i, size_t first, size_t end)
{
    const size_t d = earlier_of(op, i);
    const value *c = row_of(op, i) + op->n; /* gated */
    value *y = (value *)op->y + i * device_short_conv_y_stride(op);

    for (size_t j = first; j < end; j += VECTOR) {
        const vec sum = sum_of(op, i, d, j);
        value_store_n(y + j,
                      op->gated  ? value_load_n(c + j, op->n - j) * sum
                      : op->silu ? math_silu(sum)
                                 : sum,
                      op->n - j);
    }
}

void KERNEL_NAME(cpu_short_conv)(struct device *dev, const struct device_short_conv *op)
{
    const size_t m = op->n_rows * op->n_tokens;

#pragma omp parallel for num_threads(cpu_threads(dev, m * op->n)) schedule(static)
    for (size_t i = 0; i < m; i++)
        forward_token(op, i, 0, op->n);
}

/* Row k of the tail becomes that of the token of as many rows before the end. From the first row on, so a row that is
 * still needed is not overwritten. */
static void move_tail(const struct device_short_conv *op, size_t first, size_t end)
{
    const size_t n_tail = op->n_taps - 1, bytes = (end - first) * sizeof(value);

    for (size_t k = 0; k < n_tail; k++) {
        const size_t at = op->n_tokens + k; /* of the tail's rows and then the tokens' */
        const value *from = at < n_tail ? tail_of(op, at) : row_of(op, at - n_tail);

        memcpy(tail_of(op, k) + first, from + first, bytes);
        if (op->gated)
            memcpy(tail_of(op, k) + op->n + first, from + (at < n_tail ? 1 : 2) * op->n + first, bytes);
    }
}

void KERNEL_NAME(cpu_short_conv_cached)(struct device *dev, const struct device_short_conv *op)
{
#pragma omp parallel for num_threads(cpu_threads(dev, op->n_tokens * op->n)) schedule(static)
    for (size_t first = 0; first < op->n; first += STRIP) {
        const size_t end = size_smaller(first + STRIP, op->n);

        for (size_t i = 0; i < op->n_tokens; i++)
            forward_token(op, i, first, end);
        move_tail(op, first, end);
    }
}

/* The gradients of token i's sums; and of its C, which no other token reads. */
static void backward_sums(const struct device_short_conv *op, size_t i)
{
    const size_t d = earlier_of(op, i);
    const value *dy = (const value *)op->y_gradient + i * device_short_conv_y_stride(op), *c = row_of(op, i) + op->n;
    value *dc = (value *)op->x_gradient + i * device_short_conv_x_stride(op) + op->n;

    for (size_t j = 0; j < op->n; j += VECTOR) {
        const size_t left = op->n - j;
        vec slope = value_load_n(dy + j, left);

        if (op->gated) {
            value_store_n(dc + j, slope * sum_of(op, i, d, j), left);
            slope *= value_load_n(c + j, left);
        } else if (op->silu) {
            slope *= math_silu_gradient(sum_of(op, i, d, j));
        }
        vec_store_n(op->slopes + i * op->n + j, slope, left);
    }
}

/* The gradient of what token i gave to the sums of the tokens from its own to the last one that reaches it: `reached`
 * of them. */
VECTOR_INLINE vec input_gradient(const struct device_short_conv *op, size_t i, size_t reached, size_t j)
{
    const size_t left = op->n - j;
    vec sum = {0};

    for (size_t d = 0; d < reached; d++)
        sum = vec_multiply_add(value_load_n((const value *)op->weight + (op->n_taps - 1 - d) * op->n + j, left),
                               vec_load_n(op->slopes + (i + d) * op->n + j, left, 0), sum);
    return sum;
}

static void backward_inputs(const struct device_short_conv *op, size_t i)
{
    const value *x = row_of(op, i);
    value *dx = (value *)op->x_gradient + i * device_short_conv_x_stride(op);
    size_t reached = 1;

    while (reached < op->n_taps && i % op->n_tokens + reached < op->n_tokens && earlier_of(op, i + reached) >= reached)
        reached++;
    for (size_t j = 0; j < op->n; j += VECTOR) {
        const size_t left = op->n - j;
        const vec g = input_gradient(op, i, reached, j);

        if (!op->gated) {
            value_store_n(dx + j, g, left);
            continue;
        }
        value_store_n(dx + j, g * value_load_n(x + 2 * op->n + j, left), left);
        value_store_n(dx + 2 * op->n + j, g * value_load_n(x + j, left), left);
    }
}

/* Adds the products of slopes and inputs of tokens from `begin` to the end of a run. The last row is the bias's. */
static void sum_run(const struct device_short_conv *op, double (*sums)[STRIP], size_t begin, size_t first, size_t end)
{
    const size_t after = size_smaller(begin + RUN, op->n_rows * op->n_tokens);

    for (size_t j = first; j < end; j += VECTOR) {
        vec run[DEVICE_SHORT_TAPS + 1] = {0};

        for (size_t i = begin; i < after; i++) {
            const size_t earlier = earlier_of(op, i);
            const vec slope = vec_load_n(op->slopes + i * op->n + j, op->n - j, 0);

            for (size_t d = 0; d <= earlier; d++)
                run[d] = vec_multiply_add(slope, input_of(op, row_of(op, i - d), 2 * op->n, j), run[d]);
            run[DEVICE_SHORT_TAPS] += slope;
        }
        for (size_t d = 0; d <= DEVICE_SHORT_TAPS; d++)
            vec_add_double(sums[d] + j - first, run[d]);
    }
}

static void backward_weights(const struct device_short_conv *op, size_t first, size_t end)
{
    double sums[DEVICE_SHORT_TAPS + 1][STRIP] = {{0}};

    for (size_t begin = 0; begin < op->n_rows * op->n_tokens; begin += RUN)
        sum_run(op, sums, begin, first, end);
    for (size_t d = 0; op->weight_gradient && d < op->n_taps; d++)
        for (size_t j = first; j < end; j++) {
            float *to = op->weight_gradient + (op->n_taps - 1 - d) * op->n + j;
            *to = (float)((op->beta != 0 ? (double)*to : 0) + sums[d][j - first]);
        }
    for (size_t j = first; op->bias_gradient && j < end; j++)
        op->bias_gradient[j] = (float)((double)op->bias_gradient[j] + sums[DEVICE_SHORT_TAPS][j - first]);
}

void KERNEL_NAME(cpu_short_conv_backward)(struct device *dev, const struct device_short_conv *op)
{
    const size_t m = op->n_rows * op->n_tokens;

#pragma omp parallel for num_threads(cpu_threads(dev, m * op->n)) schedule(static)
    for (size_t i = 0; i < m; i++)
        backward_sums(op, i);
#pragma omp parallel for num_threads(cpu_threads(dev, m * op->n)) schedule(static)
    for (size_t i = 0; i < m; i++)
        backward_inputs(op, i);
    if (!op->weight_gradient && !op->bias_gradient)
        return;
#pragma omp parallel for num_threads(cpu_threads(dev, m * op->n)) schedule(static)
    for (size_t first = 0; first < op->n; first += STRIP)
        backward_weights(op, first, size_smaller(first + STRIP, op->n));
}
