/* device/cpu/dropout.kernel.c - dropout of activations, and the residual addition that goes with it. */
#include "device/cpu/cpu.h"
#include "device/cpu/dropout.h"
#include "device/cpu/value.h"

#include <string.h>

/* y = x + factor * h, or factor * h if there is no x */
static void apply(value *y, const value *x, const value *h, const float *factors, size_t n)
{
    for (size_t j = 0; j < n; j += VECTOR) {
        const vec factor = vec_load_n(factors + j, n - j, 0), element = value_load_n(h + j, n - j);
        value_store_n(y + j, x ? value_load_n(x + j, n - j) + factor * element : factor * element, n - j);
    }
}

static void add_row(value *y, const value *x, const value *h, size_t n)
{
    if (x)
        for (size_t j = 0; j < n; j += VECTOR)
            value_store_n(y + j, value_load_n(x + j, n - j) + value_load_n(h + j, n - j), n - j);
    else if (y != h)
        memcpy(y, h, n * sizeof *y);
}

static void add(struct device *dev, const struct device_dropout_add *op)
{
    const struct device_dropout *dropout = &op->dropout;
    const size_t m = op->n_rows * op->n_tokens, n = op->n;
    value *y = op->y;
    const value *x = op->x, *h = op->h;

#pragma omp parallel for num_threads(dev->n_threads) schedule(static) if (m > 1)
    for (size_t i = 0; i < m; i++) {
        const uint64_t row = dropout->first_row + i / op->n_tokens, first = (uint64_t)(i % op->n_tokens) * n;
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
