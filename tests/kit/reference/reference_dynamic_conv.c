#include "tests/kit/reference/reference_dynamic_conv.h"

#include "tests/kit/reference/reference.h"

#include <math.h>

/* One head of one element. */
struct place {
    size_t row, t, h;
};

/* Tap k's share of the softmax. */
static double softmax_of(const struct device_dynamic_conv *op, const struct place *at, size_t k)
{
    const double *s =
        (const double *)op->scores + ((at->row * op->n_tokens + at->t) * op->n_heads + at->h) * op->n_taps;
    double sum = 0;

    for (size_t other = 0; other < op->n_taps; other++)
        sum += exp(s[other] - s[k]);
    return 1 / sum;
}

static double kept(const struct device_dynamic_conv *op, const struct place *at, size_t k)
{
    return reference_dropout(&op->dropout, at->row, (at->t * op->n_heads + at->h) * op->n_taps + k);
}

static bool is_there(const struct device_dynamic_conv *op, size_t row, size_t t)
{
    return (ptrdiff_t)t < (ptrdiff_t)(op->lengths ? op->lengths[row] : op->n_tokens); /* earlier ones are below 0 */
}

/* The sum over a head's columns of y's gradient times what tap k reads; adds to the gradient of the latter. */
static double tap_backward(const struct device_dynamic_conv *op, const struct place *at, size_t k)
{
    const size_t width = op->n / op->n_heads, element = at->row * op->n_tokens + at->t, column = at->h * width;
    double sum = 0;

    if (at->t + k < op->n_before || !is_there(op, at->row, at->t + k - op->n_before) || !is_there(op, at->row, at->t))
        return 0;
    const size_t other = element + k - op->n_before;
    const double *dy = (const double *)op->y_gradient + element * op->n + column;
    const double *x = (const double *)op->x + other * op->n + column;
    double *dx = (double *)op->x_gradient + other * op->n + column;
    for (size_t j = 0; j < width; j++) {
        dx[j] += kept(op, at, k) * softmax_of(op, at, k) * dy[j];
        sum += dy[j] * x[j];
    }
    return sum;
}

/* ds[k] = sum over l of w[l] (1 if l is k - w[k]) times the gradient of w[l]. */
static void head_backward(const struct device_dynamic_conv *op, const struct place *at)
{
    double *ds = (double *)op->scores_gradient + ((at->row * op->n_tokens + at->t) * op->n_heads + at->h) * op->n_taps;

    for (size_t k = 0; k < op->n_taps; k++)
        ds[k] = 0;
    for (size_t l = 0; l < op->n_taps; l++) {
        const double g = tap_backward(op, at, l) * kept(op, at, l) * softmax_of(op, at, l);
        for (size_t k = 0; k < op->n_taps; k++)
            ds[k] += g * ((k == l) - softmax_of(op, at, k));
    }
}

static void head(const struct device_dynamic_conv *op, const struct place *at)
{
    const size_t width = op->n / op->n_heads;

    for (size_t c = at->h * width; c < (at->h + 1) * width; c++) {
        double *y = (double *)op->y + (at->row * op->n_tokens + at->t) * op->n + c;
        *y = 0;
        for (size_t k = 0; k < op->n_taps && is_there(op, at->row, at->t); k++)
            if (op->n_earlier + at->t + k >= op->n_before && is_there(op, at->row, at->t + k - op->n_before))
                *y += kept(op, at, k) * softmax_of(op, at, k) *
                      ((const double *)
                           op->x)[(at->row * op->n_tokens + op->n_earlier + at->t + k - op->n_before) * op->n + c];
    }
}

void reference_dynamic_conv(const struct device_dynamic_conv *op, bool backward)
{
    for (size_t i = 0; backward && i < op->n_rows * op->n_tokens * op->n; i++)
        ((double *)op->x_gradient)[i] = 0;
    for (size_t row = 0; row < op->n_rows; row++)
        for (size_t t = 0; t < op->n_tokens; t++)
            for (size_t h = 0; h < op->n_heads; h++) {
                const struct place at = {row, t, h};
                if (backward)
                    head_backward(op, &at);
                else
                    head(op, &at);
            }
}
