/* Each gradient is gathered by what the result is made of: a token's sum scatters to the taps that it read. */
#include "tests/kit/reference/reference_short_conv.h"

#include "tests/kit/reference/reference.h"

#include <stdlib.h>

static const double *row_of(const struct device_short_conv *op, size_t i)
{
    return (const double *)op->x + i * device_short_conv_x_stride(op);
}

/* B * x, or x. */
static double input(const struct device_short_conv *op, size_t i, size_t c)
{
    return op->gated ? row_of(op, i)[c] * row_of(op, i)[2 * op->n + c] : row_of(op, i)[c];
}

/* True if the token d before token i is of its document. */
static bool reaches(const struct device_short_conv *op, size_t i, size_t d)
{
    return d <= (op->positions ? op->positions[i] : op->first + i % op->n_tokens);
}

static double weight(const struct device_short_conv *op, size_t d, size_t c)
{
    return ((const double *)op->weight)[(op->n_taps - 1 - d) * op->n + c];
}

/* Of row k of the tail. */
static double tail_input(const struct device_short_conv *op, size_t k, size_t c)
{
    const double *at = (const double *)op->tail + k * device_short_conv_tail(op);

    return op->gated ? at[c] * at[op->n + c] : at[c];
}

static double sum_of(const struct device_short_conv *op, size_t i, size_t c)
{
    double sum = op->bias ? ((const double *)op->bias)[c] : 0;

    for (size_t d = 0; d < op->n_taps && reaches(op, i, d); d++)
        sum +=
            weight(op, d, c) * (op->tail && d > i ? tail_input(op, op->n_taps - 1 - (d - i), c) : input(op, i - d, c));
    return sum;
}

void reference_short_conv(const struct device_short_conv *op)
{
    for (size_t i = 0; i < op->n_rows * op->n_tokens; i++)
        for (size_t c = 0; c < op->n; c++) {
            const double sum = sum_of(op, i, c);
            ((double *)op->y)[i * device_short_conv_y_stride(op) + c] = op->gated ? row_of(op, i)[op->n + c] * sum
                                                                        : op->silu
                                                                            ? reference_activation(MODEL_SILU, sum)
                                                                            : sum;
        }
}

/* The tail's rows, and those of the tokens behind them: the last ones stay. */
void reference_short_conv_cached(const struct device_short_conv *op)
{
    const size_t n_tail = op->n_taps - 1, columns = device_short_conv_tail(op);
    double *tail = op->tail, *all = calloc((n_tail + op->n_tokens) * columns, sizeof *all);

    if (!all)
        abort();
    reference_short_conv(op);
    for (size_t i = 0; i < (n_tail + op->n_tokens) * columns; i++)
        all[i] = i < n_tail * columns ? tail[i]
                                      : row_of(op, i / columns - n_tail)[i % columns + (i % columns / op->n) * op->n];
    for (size_t i = 0; i < n_tail * columns; i++)
        tail[i] = all[op->n_tokens * columns + i];
    free(all);
}

/* Adds what the slope of token i's sum gives to the token d before. */
static void tap_backward(const struct device_short_conv *op, size_t i, size_t d, size_t c, double slope)
{
    double *dx = (double *)op->x_gradient + (i - d) * device_short_conv_x_stride(op) + c;
    const double *x = row_of(op, i - d) + c, g = slope * weight(op, d, c);

    dx[0] += op->gated ? g * x[2 * op->n] : g;
    if (op->gated)
        dx[2 * op->n] += g * x[0];
    if (op->weight_gradient)
        ((double *)(void *)op->weight_gradient)[(op->n_taps - 1 - d) * op->n + c] += slope * input(op, i - d, c);
}

static void token_backward(const struct device_short_conv *op, size_t i, size_t c)
{
    const double sum = sum_of(op, i, c), dy = ((const double *)op->y_gradient)[i * device_short_conv_y_stride(op) + c];
    double slope = dy;

    if (op->gated) {
        ((double *)op->x_gradient)[(3 * i + 1) * op->n + c] = dy * sum;
        slope = dy * row_of(op, i)[op->n + c];
    } else if (op->silu) {
        slope = dy * reference_activation_gradient(MODEL_SILU, sum);
    }
    if (op->bias_gradient)
        ((double *)(void *)op->bias_gradient)[c] += slope;
    for (size_t d = 0; d < op->n_taps && reaches(op, i, d); d++)
        tap_backward(op, i, d, c, slope);
}

void reference_short_conv_backward(const struct device_short_conv *op)
{
    const size_t m = op->n_rows * op->n_tokens, columns = device_short_conv_columns(op);

    for (size_t i = 0; i < m * columns; i++)
        ((double *)op->x_gradient)[i / columns * device_short_conv_x_stride(op) + i % columns] = 0;
    for (size_t i = 0; op->weight_gradient && op->beta == 0 && i < op->n_taps * op->n; i++)
        ((double *)(void *)op->weight_gradient)[i] = 0;
    for (size_t i = 0; i < m; i++)
        for (size_t c = 0; c < op->n; c++)
            token_backward(op, i, c);
}
