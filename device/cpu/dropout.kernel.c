/* device/cpu/dropout.kernel.c - dropout of activations, and the residual addition that goes with it. */
#include "device/cpu/cpu.h"
#include "device/cpu/dropout.h"

#include <string.h>

/* y = x + factor * h, or factor * h if there is no x */
static void apply(float *y, const float *x, const float *h, const float *factors, size_t n)
{
    if (x)
        for (size_t j = 0; j < n; j++)
            y[j] = x[j] + factors[j] * h[j];
    else
        for (size_t j = 0; j < n; j++)
            y[j] = factors[j] * h[j];
}

static void add_row(float *y, const float *x, const float *h, size_t n)
{
    if (x)
        for (size_t j = 0; j < n; j++)
            y[j] = x[j] + h[j];
    else if (y != h)
        memcpy(y, h, n * sizeof *y);
}

static void add(struct device *dev, float *y, const float *x, const float *h, size_t n_rows, size_t n_tokens, size_t n,
                const struct device_dropout *dropout)
{
#pragma omp parallel for num_threads(dev->n_threads) schedule(static) if (n_rows * n_tokens > 1)
    for (size_t i = 0; i < n_rows * n_tokens; i++) {
        const uint64_t row = dropout->first_row + i / n_tokens, first = (uint64_t)(i % n_tokens) * n;
        const size_t at = i * n;

        if (dropout->p == 0) {
            add_row(y + at, x ? x + at : NULL, h + at, n);
            continue;
        }
        for (size_t j = 0; j < n; j += DROPOUT_PIECE) {
            const size_t width = n - j < DROPOUT_PIECE ? n - j : DROPOUT_PIECE;
            float factors[DROPOUT_PIECE];

            dropout_factors(factors, first + j, width, row, dropout);
            apply(y + at + j, x ? x + at + j : NULL, h + at + j, factors, width);
        }
    }
}

const struct cpu_dropout_kernels KERNEL_NAME(cpu_dropout) = {.add = add};
