/* Coded moments of the optimizer alone: their bias and scatter, their names' bits, and what is at the ends. */
#include "tests/kit/inprocess/plain.h"
#include "tests/kit/test.h"

#include "proto/model/groups.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

SUITE_LABELS(single)
SUITE_TIMEOUT(120)

/* (n) elements of whole groups, but for the last one. */
struct moments {
    size_t n, n_groups;
    int8_t *m8;
    uint8_t *v8;
    float *m_scales, *v_scales;
    float *m, *v; /* decoded */
};

static struct moments open_moments(size_t n)
{
    const size_t n_groups = (n + MODEL_GROUP - 1) / MODEL_GROUP;

    return (struct moments){n,
                            n_groups,
                            plain_zeros(n, 1),
                            plain_zeros(n, 1),
                            plain_zeros(n_groups, sizeof(float)),
                            plain_zeros(n_groups, sizeof(float)),
                            plain_zeros(n, sizeof(float)),
                            plain_zeros(n, sizeof(float))};
}

static void close_moments(struct moments *x)
{
    free(x->m8), free(x->v8), free(x->m_scales), free(x->v_scales), free(x->m), free(x->v);
}

static struct random_key key_of(uint64_t t)
{
    return random_site_key(11, t, 5, RANDOM_MOMENTS);
}

/* One fold, and what it left. */
static void fold(struct moments *x, const float *g, const struct hyper *hp, uint64_t t)
{
    const struct parameters p = {.kernel = plain_used(),
                                 .n = x->n,
                                 .coded = {x->m8, x->v8, x->m_scales, x->v_scales},
                                 .key = key_of(t)};

    optimizer_fold(&p, &(struct gradient){g, NUMBER_FP32, 1}, hp, true, false);
    optimizer_read(&p, NULL, x->m, x->v);
}

/* The codes' values, in parts of their scale. */
static double value_m(int code)
{
    return (double)code / (254 - abs(code));
}

static double value_v(int code)
{
    return (double)code * code / 65025;
}

/* The code below or at a number from 0 to 1. */
static int below_m(double x)
{
    int c = 0;

    while (c < 126 && value_m(c + 1) <= x)
        c++;
    return c;
}

static int below_v(double r)
{
    int c = 0;

    while (c < 254 && value_v(c + 1) <= r)
        c++;
    return c;
}

/* By how much one array is off in all, and what a sum of its roundings may be off by: each is between two codes' values
 * and unbiased, so its variance is the product of the distances. */
struct bias {
    double sum, off, variance;
};

static void bias_add(struct bias *b, double got, double want, double low, double high)
{
    b->sum += want, b->off += got - want;
    b->variance += fmax(0, (want - low) * (high - want));
}

static void bias_check(const struct bias *b, const char *what, double ratio)
{
    fprintf(stderr, "%s at 1/%g of the largest: off by %+.4f %%, %+.2f sigma\n", what, 1 / ratio,
            100 * b->off / fabs(b->sum), b->off / sqrt(b->variance));
    ck_assert_double_le(fabs(b->off), 5 * sqrt(b->variance));
}

/* 2^20 numbers in each of five bins, a tenth wide, as parts of their group's largest. With betas of 0, m is the gradient
 * and v its square. A code's error in v is up to its spacing; without bias the mean is exact but for scatter. */
TEST_EACH(rounding_is_unbiased_at_all_parts_of_the_largest, 5)
{
    static const double ratios[] = {1, 0.5, 0.25, 0.1, 0.05};
    const struct hyper hp = {.beta1 = 0, .beta2 = 0};
    const float largest = 0.37f;
    const double ratio = ratios[_i];
    enum { N = SANITIZED ? 1 << 14 : 1 << 20 };
    struct moments x = open_moments(N);
    struct bias m = {0}, v = {0};
    float *g = plain_zeros(N, sizeof *g);

    for (size_t i = 0; i < N; i++) {
        const double part = ratio * (1 - 0.1 * fabs((double)plain_number(i, 3)));
        g[i] = i % MODEL_GROUP == 0 ? largest : (i % 2 ? 1 : -1) * (float)(part * (double)largest);
    }
    fold(&x, g, &hp, 1);
    for (size_t i = 0; i < N; i++) {
        const double s = largest, s2 = (double)(largest * largest), part = fabs((double)g[i]) / s;
        const double square = (double)(g[i] * g[i]);
        const int cm = below_m(part), cv = below_v(square / s2);
        if (i % MODEL_GROUP == 0) {
            ck_assert(x.m[i] == largest && x.v[i] == largest * largest);
            continue;
        }
        bias_add(&m, fabs((double)x.m[i]), fabs((double)g[i]), s * value_m(cm), s * value_m(cm + 1));
        bias_add(&v, (double)x.v[i], square, s2 * value_v(cv), s2 * value_v(cv + 1));
        ck_assert(x.m[i] == 0 || (x.m[i] < 0) == (g[i] < 0));
    }
    bias_check(&m, "m", ratio);
    bias_check(&v, "v", ratio);
    ck_assert_double_le(fabs(v.off), 0.01 * v.sum);
    free(g), close_moments(&x);
}

/* Each element's code, by a search among the codes' values in double and the published generator. Where the bits are
 * within 2^-12 of their threshold, fp32 may decide otherwise. */
TEST_EACH(codes_are_those_of_the_bits_of_their_name, 6)
{
    const struct hyper hp = {.beta1 = 0, .beta2 = 0};
    enum { N = 64 * 1024 + 40 };
    struct moments x = open_moments(N);
    float *g = plain_zeros(N, sizeof *g);
    size_t n_near = 0;

    if (!plain_use((enum optimizer_isa)(OPTIMIZER_ISA_V2 + _i % 3)))
        TEST_SKIP("this processor lacks the instructions");
    plain_set_threads(1 + _i / 3 * 2);
    for (size_t i = 0; i < N; i++)
        g[i] = plain_number(i, 9) * plain_number(i, 8) * 1e-3f;
    fold(&x, g, &hp, 7);
    for (size_t i = 0; i < N; i++) {
        const size_t group = i / MODEL_GROUP, end = (group + 1) * MODEL_GROUP < N ? (group + 1) * MODEL_GROUP : N;
        float largest = 0;
        for (size_t k = group * MODEL_GROUP; k < end; k++)
            largest = fmaxf(largest, fabsf(g[k]));
        ck_assert(x.m_scales[group] == largest && x.v_scales[group] == largest * largest);
        const unsigned bits = plain_bits(key_of(7), 0, i), swapped = (bits & 0xff) << 8 | bits >> 8;
        const double part = fabs((double)g[i]) / (double)largest,
                     r = (double)(g[i] * g[i]) / (double)(largest * largest);
        const int cm = below_m(part), cv = below_v(r);
        const double pm = (part - value_m(cm)) / (value_m(cm + 1) - value_m(cm)),
                     pv = (r - value_v(cv)) / (value_v(cv + 1) - value_v(cv));
        const double um = (bits + 0.5) / 65536, uv = (swapped + 0.5) / 65536;
        const int want_m = (g[i] < 0 ? -1 : 1) * (cm + (um < pm)), want_v = cv + (uv < pv);
        if (fabs(um - pm) < 0x1p-12 || fabs(uv - pv) < 0x1p-12) {
            n_near++;
            continue;
        }
        if (x.m8[i] != want_m || x.v8[i] != (want_v > 0 || g[i] == 0 ? want_v : 1))
            ck_abort_msg("element %zu: %d, not %d; %d, not %d", i, x.m8[i], want_m, x.v8[i], want_v);
    }
    ck_assert_uint_le(n_near, N / 100);
    free(g), close_moments(&x);
}

/* Codes and scales after steps of any path and number of threads. */
TEST(all_paths_and_threads_give_the_same_codes)
{
    const struct hyper hp = {.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8, .weight_decay = 0.1};
    enum { N = 80 * 1024 + 333, STEPS = 5 };
    struct moments first = {0};
    float *g = plain_zeros(N, sizeof *g), *w0 = NULL;

    for (int run = 0; run < 9; run++) {
        struct moments x = open_moments(N);
        float *w = plain_zeros(N, sizeof *w);
        if (!plain_use((enum optimizer_isa)(OPTIMIZER_ISA_V2 + run % 3))) {
            free(w), close_moments(&x);
            continue;
        }
        plain_set_threads(1 + run / 3);
        for (uint64_t t = 1; t <= STEPS; t++) {
            const struct parameters p = {.kernel = plain_used(),
                                         .n = N,
                                         .w = w,
                                         .coded = {x.m8, x.v8, x.m_scales, x.v_scales},
                                         .key = key_of(t)};
            for (size_t i = 0; i < N; i++)
                g[i] = plain_number(i, t) * (i % 97 ? 1e-2f : 1);
            ck_assert(optimizer_step(&p, &(struct gradient){g, NUMBER_FP32, 1}, &hp, t, true));
        }
        if (run == 0) {
            first = x, w0 = w;
            continue;
        }
        ck_assert_mem_eq(first.m8, x.m8, N);
        ck_assert_mem_eq(first.v8, x.v8, N);
        ck_assert_mem_eq(first.m_scales, x.m_scales, x.n_groups * sizeof(float));
        ck_assert_mem_eq(first.v_scales, x.v_scales, x.n_groups * sizeof(float));
        ck_assert_mem_eq(w0, w, N * sizeof *w);
        free(w), close_moments(&x);
    }
    free(g), free(w0), close_moments(&first);
}

/* The group's first element keeps its gradient, and so the scale; that of all others falls tenfold, and v a hundredfold
 * by a thousandth of itself a step, which is a tenth of its spacing to an eightieth. The mean over elements is that of the
 * recurrence within 5 sigma, and what fp32 adds: half an ulp a step, in the same direction at worst, of which a thousand
 * steps count. So is the number of steps until v is half. */
TEST(v_follows_a_gradient_that_falls_tenfold)
{
    enum { GROUPS = SANITIZED ? 8 : 128, N = GROUPS * MODEL_GROUP, STEPS = 3000 };
    const struct hyper hp = {.beta1 = 0.9, .beta2 = 0.999};
    struct moments x = open_moments(N);
    float *g = plain_zeros(N, sizeof *g);
    double v = 0, half = 0;
    int want_half = 0, got_half = 0;

    for (int t = 1; t <= 2 * STEPS; t++) {
        const double now = t <= STEPS ? 1 : 0.1;
        for (int i = 0; i < N; i++)
            g[i] = i % MODEL_GROUP ? (float)now : 1;
        fold(&x, g, &hp, (uint64_t)t);
        v = 0.999 * v + 0.001 * now * now;
        double sum = 0, squares = 0;
        for (int i = 0; i < N; i++) {
            const double d = (double)x.v[i] - v;
            sum += i % MODEL_GROUP ? d : 0, squares += i % MODEL_GROUP ? d * d : 0;
        }
        const double n = N - GROUPS, mean = v + sum / n;
        half = t == STEPS ? v / 2 : half;
        want_half = t > STEPS && !want_half && v < half ? t : want_half;
        got_half = t > STEPS && !got_half && mean < half ? t : got_half;
        if (t % 500)
            continue;
        fprintf(stderr, "step %4d: v %.5f, coded %+.4f %%, scatter %.2f %%\n", t, v, 100 * sum / n / v,
                100 * sqrt(squares / n) / v);
        ck_assert_double_le(fabs(sum / n), 5 * sqrt(squares / n / n) + 1000 * 0x1p-24 * v);
    }
    fprintf(stderr, "half of v after %d steps, coded %d\n", want_half - STEPS, got_half - STEPS);
    ck_assert_double_le(abs(got_half - want_half), 0.05 * (want_half - STEPS));
    free(g), close_moments(&x);
}

/* A group of zeros; a v far below the others', which is never 0; numbers at fp32's ends. */
TEST_EACH(the_ends_of_the_range, 3)
{
    static const float all[][4] = {{0, 0, 0, 0},
                                   {1, 1e-6f, -1e-12f, 0},
                                   {1e-19f, -2e-19f, 1e-19f, 0},
                                   {1e18f, -1e19f, 1, 1e-19f}};
    const struct hyper hp = {.beta1 = 0, .beta2 = 0};
    float g[4];

    if (!plain_use((enum optimizer_isa)(OPTIMIZER_ISA_V2 + _i % 3)))
        TEST_SKIP("this processor lacks the instructions");
    for (size_t k = 0; k < COUNT(all); k++) {
        struct moments x = open_moments(4);
        memcpy(g, all[k], sizeof g);
        fold(&x, g, &hp, k + 1);
        for (int i = 0; i < 4; i++) {
            const float square = g[i] * g[i] < FLT_MIN ? 0 : g[i] * g[i];
            ck_assert_int_eq(x.v8[i] > 0, square > 0);
            ck_assert(isfinite(x.v[i]) && isfinite(x.m[i]));
            ck_assert(square > 0 ? x.v[i] >= FLT_MIN : x.v[i] == 0);
            ck_assert(x.m[i] == 0 || fabsf(x.m[i]) >= FLT_MIN);
            ck_assert_int_ge(x.m8[i], -127);
        }
        close_moments(&x);
    }
}

/* A parameter whose gradient ends: its moments become zeros, and none stays between 0 and the smallest normal number. */
TEST(moments_without_a_gradient_end_at_zero_and_never_become_denormal)
{
    const struct hyper hp = {.beta1 = 0.9, .beta2 = 0.9};
    enum { N = 256, STEPS = 1200 };
    struct moments x = open_moments(N);
    float g[N];

    for (int i = 0; i < N; i++)
        g[i] = plain_number((uint64_t)i, 1);
    for (uint64_t t = 1; t <= STEPS; t++) {
        fold(&x, g, &hp, t);
        memset(g, 0, sizeof g);
        for (int i = 0; i < N; i++)
            if ((x.m[i] != 0 && fabsf(x.m[i]) < FLT_MIN) || (x.v[i] != 0 && x.v[i] < FLT_MIN))
                ck_abort_msg("step %ju, element %d: %a, %a", (uintmax_t)t, i, x.m[i], x.v[i]);
    }
    for (int i = 0; i < N; i++)
        ck_assert(x.m[i] == 0 && x.v[i] == 0);
    close_moments(&x);
}
