/* 16-bit moments of the optimizer alone, over many elements and steps: their bias and scatter. */
#include "tests/kit/inprocess/plain.h"
#include "tests/kit/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

struct moments {
    uint16_t *m, *v;
    size_t n;
};

static struct moments open_moments(size_t n)
{
    return (struct moments){plain_zeros(n, 2), plain_zeros(n, 2), n};
}

static void fold_same(const struct moments *x, const float *g, const struct hyper *hp, uint64_t t)
{
    const struct parameters p = {
        .kernel = plain_used(), .n = x->n, .m16 = x->m, .v16 = x->v, .key = random_site_key(11, t, 5, RANDOM_MOMENTS)};

    optimizer_fold(&p, &(struct gradient){g, NUMBER_FP32, 1}, hp, true, false);
}

SUITE_LABELS(single)
SUITE_TIMEOUT(120)

/* The published worst case: beta2 = 0.999 and a gradient that falls tenfold, so that v should fall a hundredfold by a
 * thousandth of itself at a time, a quarter of its spacing of 1/256 or half of it.
 *
 * Folding is linear in v, and rounding is unbiased and independent: so the mean over elements is fp32's v within the
 * scatter over the root of their number (5 sigma). Each rounding adds at most a quarter of the spacing squared, and
 * spacing is at most v / 256: variance' <= beta2^2 variance + (mean^2 + variance) / (4 * 256^2).
 * Rounded to nearest, v stops where a thousandth of it is less than half its spacing, near where it began. */
TEST(v_follows_a_gradient_that_falls_tenfold_where_rounding_to_nearest_freezes)
{
    enum { N = SANITIZED ? 512 : 8192, STEPS = 3000 };
    const struct hyper hp = {.beta1 = 0.9, .beta2 = 0.999};
    struct moments x = open_moments(N);
    float *g = plain_zeros(N, sizeof *g), m = 0, v = 0, nearest_m = 0, nearest_v = 0;
    double variance = 0;

    for (uint64_t t = 1; t <= 2 * STEPS; t++) {
        const float now = t <= STEPS ? 1 : 0.1f;
        for (int i = 0; i < N; i++)
            g[i] = now;
        fold_same(&x, g, &hp, t);
        plain_fold(&m, &v, &now, 1, &hp, true);
        variance = hp.beta2 * hp.beta2 * variance + ((double)v * v + variance) / (4.0 * 256 * 256);
        if (t == STEPS) /* at its height to nearest too, or it would have stopped on its way up */
            nearest_v = v;
        plain_fold(&nearest_m, &nearest_v, &now, 1, &hp, true);
        if (t > STEPS)
            nearest_v = number_from_v16(number_to_v16(nearest_v));
        if (t % 500)
            continue;
        double sum = 0, squares = 0;
        for (int i = 0; i < N; i++) {
            const double d = (double)number_from_v16(x.v[i]) - v;
            sum += d, squares += d * d;
        }
        fprintf(stderr, "step %4ju: v %.5f, in 16 bits bias %+.4f %%, scatter %.2f %%; to nearest %.5f\n", (uintmax_t)t,
                (double)v, 100 * sum / N / (double)v, 100 * sqrt(squares / N) / (double)v, (double)nearest_v);
        ck_assert_double_le(fabs(sum / N), 5 * sqrt(variance / N));
        ck_assert_double_le(squares / N, variance * (1 + 5 * sqrt(2.0 / N)));
    }
    ck_assert_float_le(v, 0.06f); /* 0.01 + 0.94 e^-3 */
    ck_assert_float_ge(nearest_v, 0.9f);
    free(g), free(x.m), free(x.v);
}

/* How often a value between two is rounded up: a fraction p of N independent times, within 5 sigma; and whether m is,
 * whether v is and whether the neighbour is do not tell of each other. beta1 = 1/2 and beta2 = 3/4: m = g / 2 and v =
 * g^2 / 4 are exact for a g of 12 bits. */
TEST_EACH(rounding_is_unbiased_and_m_and_v_and_neighbours_are_independent, 8)
{
    enum { N = SANITIZED ? 1 << 15 : 1 << 18 };
    const struct hyper hp = {.beta1 = 0.5, .beta2 = 0.75};
    const float g0 = 1 + (float)(2 * _i + 1) * 0x1p-11f;
    struct moments x = open_moments(N);
    float *g = plain_zeros(N, sizeof *g);
    double up_m = 0, up_v = 0, both = 0, neighbours = 0;

    for (int i = 0; i < N; i++)
        g[i] = g0;
    fold_same(&x, g, &hp, 1);
    const uint32_t m = number_pattern(g0 / 2), v = number_pattern(g0 * g0 / 4);
    const double p = (m & 0xffff) / 65536.0, q = (v & 0x7fff) / 32768.0;
    for (int i = 0; i < N; i++) {
        const unsigned um = x.m[i] - (m >> 16), uv = x.v[i] - (v >> 15), next = x.m[(i + 1) % N] - (m >> 16);
        if (um > 1 || uv > 1)
            ck_abort_msg("element %d", i);
        up_m += um, up_v += uv;
        both += (um - p) * (uv - q), neighbours += (um - p) * (next - p);
    }
    ck_assert_double_eq_tol(up_m / N, p, 5 * sqrt(p * (1 - p) / N));
    ck_assert_double_eq_tol(up_v / N, q, 5 * sqrt(q * (1 - q) / N));
    ck_assert_double_le(fabs(both), 5 * sqrt(N * p * (1 - p) * q * (1 - q)));
    ck_assert_double_le(fabs(neighbours), 5 * sqrt(N) * p * (1 - p));
    free(g), free(x.m), free(x.v);
}
