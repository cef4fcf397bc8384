#include "tests/kit/reference/reference_approximate.h"

#include <math.h>

void reference_row_norms(const struct device_row_norms *op)
{
    const size_t n_heads = op->n_heads ? op->n_heads : 1, n_tokens = op->n_heads ? op->n_tokens : 1;

    for (size_t i = 0; i < op->m * n_heads; i++) {
        const size_t token = i / n_heads, head = i % n_heads;
        const size_t at = (token / n_tokens * n_heads + head) * n_tokens + token % n_tokens;
        double *norm = (double *)(void *)op->norms + at, squares = 0;
        for (size_t j = 0; j < op->n; j++)
            squares += pow(((const double *)op->x)[token * op->stride + head * op->n + j], 2);
        *norm = (op->multiply ? *norm : 1) * sqrt(squares);
    }
}

void reference_weigh_scores(const struct device_weigh_scores *op)
{
    for (size_t row = 0; row < op->n_rows; row++) {
        const double *norms = (const double *)(const void *)op->norms + row * op->stride;
        double sum = 0, n = 0;
        for (size_t i = 0; i < op->n_tokens; i++)
            if (norms[i] > 0)
                sum += norms[i], n++;
        const bool tells = n > 0 && sum / n >= 1e-30;
        const double base = tells ? sum / n : 1;
        for (size_t i = 0; i < op->n_tokens; i++) {
            const double norm = norms[i] > 0 && tells ? fmax(norms[i], base / 64) : base;
            ((double *)(void *)op->scores)[row * op->n_tokens + i] *= signbit(norms[i]) ? base / 64 : norm;
        }
    }
}

void reference_gather_rows(const struct device_gather_rows *op)
{
    const double *weights = (const void *)op->weights;

    for (size_t i = 0; i < op->m * op->n; i++)
        ((double *)op->y)[i] = ((const double *)op->x)[op->chosen[i / op->n] * op->stride + i % op->n] *
                               (weights ? weights[i / op->n] : 1);
}

/* The largest of 64 values that lie in n, rounded up to 8 bits of precision. */
static double scale_of(const double *x, size_t first, size_t n)
{
    double largest = 0;
    int exponent;

    for (size_t i = first; i < n && i < first + 64; i++)
        largest = fmax(largest, fabs(x[i]));
    frexp(largest, &exponent);
    return ldexp(ceil(ldexp(largest, 8 - exponent)), exponent - 8);
}

/* As its header says, except that its first product is rounded to fp32 here, too: else it would, once in many numbers,
 * fall on the other side of a whole one. */
void reference_round_values(const struct device_round_values *op)
{
    const double most = op->bits == 8 ? 127 : 7;

    for (size_t row = 0; row < op->n_rows; row++) {
        double *x = (double *)op->x + row * op->n, scale = 0;
        for (size_t i = 0; i < op->n; i++) {
            const size_t in_block = i % 64;
            uint32_t words[4];
            scale = in_block == 0 ? scale_of(x, i, op->n) : scale;
            random_quad(words, op->key, op->first_row + row, i / 64 * 8 + in_block % 32 / 4);
            const uint32_t word = words[in_block % 4], half = in_block < 32 ? word & 0xffff : word >> 16;
            const float scaled = (float)x[i] * ((float)(most * 65536) / (float)scale);
            const double q = floor((nearbyint((double)scaled) + half) / 65536);
            x[i] = scale == 0 ? 0 : fmax(-most, fmin(most, q)) * scale / most;
        }
    }
}
