/* device/cpu/kernels/dynamic_conv.kernel.c - dynamic convolution: Wu et al., arXiv:1901.10430.
 *
 * Threads share the elements of all rows. Forward, an element's filters are made and used by one thread. Backward, all
 * filters are made first: an element of x is met by filters of its neighbours. Sums over taps run in their order. */
#include "device/cpu/cpu.h"
#include "device/cpu/kernels/dropout.h"
#include "device/cpu/kernels/math.h"
#include "device/cpu/kernels/value.h"

#include <assert.h>
#include <math.h>

_Static_assert(DEVICE_MOST_TAPS % VECTOR == 0, "a filter is whole vectors");

/* filter: n_taps of DEVICE_MOST_TAPS, then zeros up to a whole vector. */
static void softmax(float *filter, const value *scores, size_t n_taps)
{
    vec most = vec_all(-INFINITY), sums = {0};

    for (size_t k = 0; k < n_taps || k % VECTOR > 0; k++)
        filter[k] = k < n_taps ? value_widen(scores[k]) : -INFINITY;
    for (size_t k = 0; k < n_taps; k += VECTOR)
        most = vec_max(most, vec_load(filter + k));
    const float largest = vec_largest(most);
    for (size_t k = 0; k < n_taps; k += VECTOR) {
        const vec e = math_exp(vec_load(filter + k) - largest);
        vec_store(filter + k, e);
        sums += e;
    }
    const float factor = (float)(1 / vec_sum(sums));
    for (size_t k = 0; k < n_taps; k += VECTOR)
        vec_store(filter + k, vec_load(filter + k) * factor);
}

static size_t length_of(const struct device_dynamic_conv *op, size_t row)
{
    return op->lengths ? size_smaller(op->lengths[row], op->n_tokens) : op->n_tokens;
}

/* Where element i's scores are, or their gradients, or its filters. */
static size_t at_scores(const struct device_dynamic_conv *op, size_t i)
{
    return i * op->n_heads * op->n_taps;
}

/* The filters of element i of all rows, dropped. */
static void make_filters(const struct device_dynamic_conv *op, size_t i)
{
    const size_t n = op->n_heads * op->n_taps;
    const uint64_t row = op->dropout.first_row + i / op->n_tokens, first = (uint64_t)(i % op->n_tokens) * n;
    float *filters = op->filters + at_scores(op, i);

    for (size_t h = 0; h < op->n_heads; h++) {
        float filter[DEVICE_MOST_TAPS];

        softmax(filter, (const value *)op->scores + at_scores(op, i) + h * op->n_taps, op->n_taps);
        memcpy(filters + h * op->n_taps, filter, op->n_taps * sizeof *filters);
    }
    for (size_t j = 0; op->dropout.p > 0 && j < n; j += DROPOUT_PIECE) {
        const size_t width = size_smaller(DROPOUT_PIECE, n - j);
        float factors[DROPOUT_PIECE];

        dropout_factors(factors, first + j, width, row, &op->dropout);
        for (size_t k = 0; k < width; k++)
            filters[j + k] *= factors[k];
    }
}

/* A run of taps that stay within the row: the first, how many, and the element that the first one reaches. */
struct reach {
    size_t first, n, element;
};

/* Element t reads elements from t - before on, one a tap, of which [0, length) are there. */
static struct reach reach_of(size_t t, size_t before, size_t n_taps, size_t length)
{
    const size_t first = before > t ? before - t : 0, element = t + first - before;
    const size_t n = first < n_taps && element < length ? size_smaller(n_taps - first, length - element) : 0;

    return (struct reach){first, n, element};
}

/* y (width) = sum over i of w[i * w_apart] * x[i * x_apart] (width). */
static void weigh(value *y, const value *x, size_t x_apart, const float *w, size_t w_apart, size_t n, size_t width)
{
    for (size_t j = 0; j < width; j += VECTOR) {
        const size_t left = width - j;
        vec sum = {0};

        for (size_t i = 0; i < n; i++)
            sum += w[i * w_apart] * value_load_n(x + i * x_apart + j, left);
        value_store_n(y + j, sum, left);
    }
}

static void convolve(const struct device_dynamic_conv *op, size_t i)
{
    const size_t row = i / op->n_tokens, t = i % op->n_tokens, length = length_of(op, row);
    const size_t width = device_dynamic_conv_width(op);
    const struct reach reach = reach_of(op->n_earlier + t, op->n_before, op->n_taps, op->n_earlier + length);
    const value *x = (const value *)op->x + (row * op->n_tokens + reach.element) * op->n;

    if (t < length)
        make_filters(op, i);
    for (size_t h = 0; h < op->n_heads; h++)
        weigh((value *)op->y + i * op->n + h * width, x + h * width, op->n,
              op->filters + at_scores(op, i) + h * op->n_taps + reach.first, 1, t < length ? reach.n : 0, width);
}

void KERNEL_NAME(cpu_dynamic_conv)(struct device *dev, const struct device_dynamic_conv *op)
{
#pragma omp parallel for num_threads(cpu_threads(dev, op->n_rows * op->n_tokens * op->n)) schedule(static)
    for (size_t i = 0; i < op->n_rows * op->n_tokens; i++)
        convolve(op, i);
}

/* Element t of x is met by tap k of element t + n_before - k. With j = n_taps-1 - k that is t - before + j, where
 * before is n_taps-1 - n_before: a filter of taps from the last to the first, each one of another element. */
static void convolve_backward(const struct device_dynamic_conv *op, size_t i)
{
    const size_t row = i / op->n_tokens, t = i % op->n_tokens, length = length_of(op, row);
    const size_t width = device_dynamic_conv_width(op), n_filters = op->n_heads * op->n_taps;
    const struct reach reach = reach_of(t, op->n_taps - 1 - op->n_before, op->n_taps, length);
    const size_t element = row * op->n_tokens + reach.element, tap = op->n_taps - 1 - reach.first;
    const size_t n = t < length ? reach.n : 0;

    for (size_t h = 0; h < op->n_heads; h++)
        weigh((value *)op->x_gradient + i * op->n + h * width,
              (const value *)op->y_gradient + element * op->n + h * width, op->n,
              n > 0 ? op->filters + at_scores(op, element) + h * op->n_taps + tap : op->filters, n_filters - 1, n,
              width);
}

static float multiply(const value *a, const value *b, size_t n)
{
    vec sum = {0};

    for (size_t j = 0; j < n; j += VECTOR)
        sum += value_load_n(a + j, n - j) * value_load_n(b + j, n - j);
    return (float)vec_sum(sum);
}

/* With w the softmax, f its factors of dropout, and g the gradient of f w: ds = f w g - w sum(f w g). */
static void score(const struct device_dynamic_conv *op, size_t i, size_t h, const struct reach *reach)
{
    const size_t width = device_dynamic_conv_width(op), at = at_scores(op, i) + h * op->n_taps;
    const value *dy = (const value *)op->y_gradient + i * op->n + h * width;
    const value *x = (const value *)op->x + (i / op->n_tokens * op->n_tokens + reach->element) * op->n + h * width;
    value *to = (value *)op->scores_gradient + at;
    float filter[DEVICE_MOST_TAPS], products[DEVICE_MOST_TAPS] = {0};
    vec sums = {0};

    softmax(filter, (const value *)op->scores + at, op->n_taps);
    for (size_t k = reach->first; k < reach->first + reach->n; k++)
        products[k] = op->filters[at + k] * multiply(dy, x + (k - reach->first) * op->n, width);
    for (size_t k = 0; k < op->n_taps; k += VECTOR)
        sums += vec_load(products + k);
    const float sum = (float)vec_sum(sums);
    for (size_t k = 0; k < op->n_taps; k += VECTOR)
        value_store_n(to + k, vec_load(products + k) - vec_load(filter + k) * sum, op->n_taps - k);
}

static void score_all(const struct device_dynamic_conv *op, size_t i)
{
    const size_t t = i % op->n_tokens, length = length_of(op, i / op->n_tokens);
    const struct reach reach = reach_of(t, op->n_before, op->n_taps, length);

    for (size_t h = 0; t < length && h < op->n_heads; h++)
        score(op, i, h, &reach);
    if (t >= length)
        memset((value *)op->scores_gradient + at_scores(op, i), 0, op->n_heads * op->n_taps * sizeof(value));
}

void KERNEL_NAME(cpu_dynamic_conv_backward)(struct device *dev, const struct device_dynamic_conv *op)
{
    const size_t m = op->n_rows * op->n_tokens;

#pragma omp parallel for num_threads(cpu_threads(dev, m * op->n)) schedule(static)
    for (size_t i = 0; i < m; i++)
        if (i % op->n_tokens < length_of(op, i / op->n_tokens))
            make_filters(op, i);
#pragma omp parallel for num_threads(cpu_threads(dev, m * op->n)) schedule(static)
    for (size_t i = 0; i < m; i++) {
        convolve_backward(op, i);
        score_all(op, i);
    }
}
