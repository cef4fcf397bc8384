#include "tests/kit/inprocess/plain.h"
#include "tests/kit/test.h"

#include "eps/store/optimizer.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

SUITE_LABELS(single)

/* Adam's usual numbers. */
static const struct hyper usual = {.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8, .weight_decay = 0.1};

/* xorshift64*, so that cases are the same everywhere. */
static double uniform(uint64_t *state)
{
    *state ^= *state >> 12, *state ^= *state << 25, *state ^= *state >> 27;
    return (double)(*state * 0x2545F4914F6CDD1Du >> 11) * 0x1p-53;
}

/* Of either sign, magnitudes spread evenly over the exponents from low to high. */
static float spread(uint64_t *state, double low, double high)
{
    double magnitude = exp2(log2(low) + uniform(state) * (log2(high) - log2(low)));

    return (float)(uniform(state) < 0.5 ? -magnitude : magnitude);
}

/* One element in fp64. peak and w_peak are the largest partial results of the sums that m and w are: where terms
 * cancel, an fp32 sum cannot be closer than the rounding of its largest partial result, so that is what an ulp is
 * measured at. */
struct truth {
    double w, m, v, peak, w_peak;
};

static void truth_fold(struct truth *x, double g, const struct hyper *hp, bool first)
{
    if (first) {
        x->m *= hp->beta1;
        x->v *= hp->beta2;
        x->peak *= hp->beta1;
    }
    x->peak = fmax(x->peak, fmax(fabs(x->m), fabs((1 - hp->beta1) * g)));
    x->m += (1 - hp->beta1) * g;
    x->v += (1 - hp->beta2) * g * g;
    if (x->v < FLT_MIN)
        x->v = 0; /* by rule */
    x->peak = fmax(x->peak, fabs(x->m));
}

static void truth_update(struct truth *x, const struct hyper *hp, uint64_t t, bool decays)
{
    double step_size = hp->lr / (1 - pow(hp->beta1, (double)t));
    double denominator = sqrt(x->v / (1 - pow(hp->beta2, (double)t))) + hp->epsilon;

    x->w_peak = fmax(fabs(x->w), step_size * x->peak / denominator);
    if (decays)
        x->w *= 1 - hp->lr * hp->weight_decay;
    x->w -= step_size * x->m / denominator;
}

/* Within so many units in the last place of an fp32 number as large as scale, or as what is wanted. */
static void near(const char *what, double got, double want, double scale, double allowed)
{
    const double largest = fmax(fabs(want), scale);
    const int exponent = largest > 0 ? ilogb(largest) : -149;
    const double distance = fabs(got - want) / ldexp(1, exponent - 23 < -149 ? -149 : exponent - 23);

    if (!(distance <= allowed))
        ck_abort_msg("%s: %a, not %a: %.2f ulp", what, got, want, distance);
}

SUITE_TIMEOUT(60)

static const struct {
    int n_parts;
    uint64_t t;
    double low, high; /* magnitudes of gradients */
    bool zero;        /* weights and moments */
} random_cases[] = {
    {1, 1, 1e-3, 1, true},        {1, 1, 1e-30, 1e10, true},    {1, 2, 1e-3, 1, false},  {1, 1000, 1e-8, 1e4, false},
    {1, 1000000, 1e-3, 1, false}, {2, 1, 1e-3, 1, true},        {2, 10, 1e-2, 1, false}, {8, 3, 1e-2, 1, false},
    {8, 100, 1e-6, 1e6, false},   {1, 10, 1e-18, 1e-16, false},
};

/* One step from a state that is exact in both; half of the weights decay. Of AdamW, the sum of its parts: the rest is
 * as with one. Steps in a row, and other arithmetic than this file's: test_store_clip, test_exact_training. */
TEST_EACH(one_step_of_random_numbers_is_exact_to_its_rounding, 3 * COUNT(random_cases))
{
    enum { N = 20001, HALF = N / 2 };
    const int which = _i / 3, n_parts = random_cases[which].n_parts;
    const bool zero = random_cases[which].zero;
    const double low = random_cases[which].low, high = random_cases[which].high;
    /* Four where each step rounds a state once, as with AdamW or one part. Every further fold of a step rounds m and v
     * again, by up to half an ulp and for equal parts in the same direction: computing folds in fp64 changes nothing in
     * that (6.5 ulp after 40, against 5.5 as it is here), only wider moments would. */
    const double allowed = 4 + (n_parts - 1) * 0.5;
    const uint64_t t = random_cases[which].t;
    uint64_t seed = (uint64_t)which + 1;

    if (!plain_use((enum optimizer_isa)(OPTIMIZER_ISA_V2 + _i % 3)))
        TEST_SKIP("this processor lacks the instructions");
    struct truth *truth = plain_zeros(N, sizeof *truth);
    double *exact = plain_zeros(N, sizeof *exact), *peak = plain_zeros(N, sizeof *peak);
    float *w = plain_zeros(N, sizeof *w), *m = plain_zeros(N, sizeof *m), *v = plain_zeros(N, sizeof *v),
          *g = plain_zeros(N, sizeof *g), *sum = plain_zeros(N, sizeof *sum);
    for (int i = 0; i < N; i++) {
        w[i] = zero ? 0 : spread(&seed, 1e-6, 10);
        m[i] = zero ? 0 : spread(&seed, low, high);
        v[i] = zero ? 0 : (float)(uniform(&seed) * high * high);
        truth[i] = (struct truth){.w = w[i], .m = m[i], .v = v[i], .peak = fabsf(m[i])};
    }
    for (int part = 0; part < n_parts; part++) {
        for (int i = 0; i < N; i++) {
            g[i] = i % 50 ? spread(&seed, low, high) : 0;
            truth_fold(&truth[i], g[i], &usual, part == 0);
            exact[i] += g[i];
            peak[i] = fmax(peak[i], fmax(fabs(exact[i]), fabsf(g[i])));
        }
        plain_fold(m, v, g, N, &usual, part == 0);
        plain_sum(sum, g, N, part == 0);
    }
    plain_update(w, m, v, HALF, &usual, t, true);
    plain_update(w + HALF, m + HALF, v + HALF, N - HALF, &usual, t, false);
    for (int i = 0; i < N; i++) {
        truth_update(&truth[i], &usual, t, i < HALF);
        near("m", m[i], truth[i].m, truth[i].peak, allowed);
        near("v", v[i], truth[i].v, 0, allowed);
        near("w", w[i], truth[i].w, truth[i].w_peak, allowed);
        near("sum", sum[i], exact[i], peak[i], allowed);
    }
    free(truth), free(exact), free(peak), free(w), free(m), free(v), free(g), free(sum);
}

/* ---- the update's bound ----------------------------------------------------------------------------------------- */

enum { DRAWS = 300, DRAWN = 4099 }; /* settings; elements of each */

/* What the daemon takes (client/options/options.c), and weights' decay of 1e-9 to 0.1 a step. */
static struct hyper drawn_hyper(uint64_t *seed)
{
    const double lr = fabsf(spread(seed, 1e-12, 10)), decay = fabsf(spread(seed, 1e-9, 0.1));

    return (struct hyper){.lr = lr,
                          .beta1 = uniform(seed),
                          .beta2 = 1 - fabsf(spread(seed, 1e-5, 0.5)),
                          .epsilon = fabsf(spread(seed, 1e-30, 1)),
                          .weight_decay = decay / lr};
}

/* Of any magnitude that a moment may have; one in eight is 0. Half of the weights are near their update. */
static void draw_elements(float *w, float *m, float *v, const struct hyper *hp, uint64_t *seed)
{
    for (int i = 0; i < DRAWN; i++) {
        v[i] = i % 8 == 1 ? 0 : fabsf(spread(seed, FLT_MIN, i % 3 ? 1 : FLT_MAX / 2));
        m[i] = i % 8 == 2 ? 0 : spread(seed, FLT_MIN, i % 3 ? 1 : 1e20);
        w[i] = i % 8 == 3 ? 0 : spread(seed, 1e-35, 1e20);
        if (i % 2 && m[i] != 0)
            w[i] = (float)(hp->lr * (double)m[i] / (sqrt(v[i]) + hp->epsilon) * (double)spread(seed, 0.2, 5));
    }
}

/* In units in the last place of the largest partial result; a quotient and the rest below the normal numbers lose half
 * a denormal's step each. Negative where the quotient is past fp32's range. */
static double update_distance(double got, double w, double m, double v, const struct hyper *hp, uint64_t t)
{
    const double step_size = hp->lr / (1 - pow(hp->beta1, (double)t));
    const double q = m / (sqrt(v / (1 - pow(hp->beta2, (double)t))) + hp->epsilon);
    const double decay = hp->lr * hp->weight_decay * w, want = w - (step_size * q + decay);
    const double largest = fmax(fmax(fabs(w), fabs(want)), fmax(fabs(step_size * q), fabs(decay)));
    const double lost = (step_size + 3) * 0x1p-150;

    if (fabs(q) > FLT_MAX || largest > FLT_MAX)
        return -1;
    return fmax(fabs(got - want) - lost, 0) / ldexp(1, (largest > FLT_MIN ? ilogb(largest) : -126) - 23);
}

/* Six: derived in eps/store/optimizer.h. */
TEST_RANGE(an_update_is_within_six_units_in_the_last_place, OPTIMIZER_ISA_V2, OPTIMIZER_ISA_V4 + 1)
{
    static const uint64_t times[] = {1, 2, 10, 1000, 1000000};
    float *w = plain_zeros(DRAWN, sizeof *w), *new_w = plain_zeros(DRAWN, sizeof *w),
          *m = plain_zeros(DRAWN, sizeof *w), *v = plain_zeros(DRAWN, sizeof *w);
    uint64_t seed = 5, n_measured = 0;
    double worst = 0;

    if (!plain_use((enum optimizer_isa)_i))
        TEST_SKIP("this processor lacks the instructions");
    for (int k = 0; k < DRAWS; k++) {
        const struct hyper hp = drawn_hyper(&seed);
        const uint64_t t = times[k % (int)COUNT(times)];
        draw_elements(w, m, v, &hp, &seed);
        memcpy(new_w, w, DRAWN * sizeof *w);
        plain_update(new_w, m, v, DRAWN, &hp, t, true);
        for (int i = 0; i < DRAWN; i++) {
            const double distance = update_distance(new_w[i], w[i], m[i], v[i], &hp, t);
            if (!(distance <= 6))
                ck_abort_msg("lr %g, decay %g, epsilon %g, step %ju: w %a, m %a, v %a: %a, %.2f ulp", hp.lr,
                             hp.lr * hp.weight_decay, hp.epsilon, (uintmax_t)t, (double)w[i], (double)m[i],
                             (double)v[i], (double)new_w[i], distance);
            worst = fmax(worst, distance), n_measured += distance >= 0;
        }
    }
    fprintf(stderr, "%ju updates, the farthest by %.2f ulp\n", (uintmax_t)n_measured, worst);
    ck_assert_uint_ge(n_measured, (uint64_t)DRAWS * DRAWN / 2);
    free(w), free(new_w), free(m), free(v);
}

/* Decays of 1e-7 and 1e-8 a step: a weight's spacing is 2^-24 to 2^-23 of it. Gradients of either sign move weights by
 * more than that, so what rounding takes from a weight is a half of its spacing at most and uniform: over STEPS steps
 * spacing * sqrt(STEPS / 12), and of the mean over N_WEIGHTS weights a root's part. 1 - 1e-7 in fp32 would decay by
 * 1.19e-7, and 1 - 1e-8 not at all. */
TEST_EACH(four_thousand_small_decays_add_up_as_in_float64, 2)
{
    enum { N_WEIGHTS = SANITIZED ? 256 : 4096, STEPS = 4000 };
    const struct hyper hp = {
        .lr = 1e-5, .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8, .weight_decay = _i ? 1e-3 : 1e-2};
    float *w = plain_zeros(N_WEIGHTS, sizeof *w), *m = plain_zeros(N_WEIGHTS, sizeof *w),
          *v = plain_zeros(N_WEIGHTS, sizeof *w), *g = plain_zeros(N_WEIGHTS, sizeof *w);
    struct truth *truth = plain_zeros(N_WEIGHTS, sizeof *truth);
    double mean = 0, decayed = 0;
    uint64_t seed = 17;

    for (int i = 0; i < N_WEIGHTS; i++)
        truth[i].w = w[i] = spread(&seed, 0.5, 2);
    for (uint64_t t = 1; t <= STEPS; t++) {
        for (int i = 0; i < N_WEIGHTS; i++)
            g[i] = (float)(uniform(&seed) - 0.5);
        plain_step(w, m, v, g, N_WEIGHTS, &hp, t, true);
        for (int i = 0; i < N_WEIGHTS; i++) {
            truth_fold(&truth[i], g[i], &hp, true);
            truth_update(&truth[i], &hp, t, true);
        }
    }
    for (int i = 0; i < N_WEIGHTS; i++)
        mean += (w[i] - truth[i].w) / truth[i].w / N_WEIGHTS;
    decayed = STEPS * hp.lr * hp.weight_decay;
    fprintf(stderr, "decayed by %.2e, from float64 by %+.2e\n", decayed, mean);
    ck_assert_double_le(fabs(mean), 5 * 0x1p-23 * sqrt(STEPS / 12.0 / N_WEIGHTS));
    free(w), free(m), free(v), free(g), free(truth);
}

/* ---- gradients that are zero ------------------------------------------------------------------------------------ */

enum { N_IDLE = 1030, IDLE_STEPS = 2000, IDLE_FORMS = 4 };

struct idle {
    float w[N_IDLE], m[N_IDLE], v[N_IDLE];
    uint16_t m16[N_IDLE], v16[N_IDLE];
};

/* AdamW and SGD, with moments in fp32 and in 16 bits. */
static void step_idle(struct idle *s, enum optimizer_isa isa, int form, uint64_t t)
{
    static const float none[N_IDLE];
    const bool is_sgd = form & 1, narrow = form & 2;
    const struct hyper hp = {
        .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .weight_decay = 0.1, .sgd = is_sgd, .momentum = 0.9};
    struct parameters p = {.kernel = optimizer_find(isa),
                           .n = N_IDLE,
                           .w = s->w,
                           .key = random_site_key(1, t, 0, RANDOM_MOMENTS)};

    if (narrow)
        p.m16 = s->m16, p.v16 = is_sgd ? NULL : s->v16;
    else
        p.m = s->m, p.v = is_sgd ? NULL : s->v;
    ck_assert(optimizer_step(&p, &(struct gradient){none, NUMBER_FP32, 1}, &hp, t, !is_sgd));
    for (int i = 0; narrow && i < N_IDLE; i++)
        s->m[i] = number_from_bf16(s->m16[i]), s->v[i] = number_from_v16(s->v16[i]);
}

static void open_idle(struct idle *s)
{
    uint64_t seed = 3;

    for (int i = 0; i < N_IDLE; i++) {
        s->w[i] = spread(&seed, 1e-3, 1), s->m[i] = spread(&seed, 1e-10, 1), s->v[i] = (float)uniform(&seed);
        s->m16[i] = number_to_bf16(s->m[i]), s->v16[i] = number_to_v16(s->v[i]);
    }
}

/* From usual moments to exact zeros, without a denormal number on the way; the same bits on every path. */
TEST_EACH(moments_whose_gradient_is_zero_become_zero_and_never_denormal, IDLE_FORMS)
{
    struct idle *paths[OPTIMIZER_ISA_V4 + 1] = {0}, *v2 = NULL;

    for (int isa = OPTIMIZER_ISA_V2; isa <= OPTIMIZER_ISA_V4; isa++)
        if (optimizer_find((enum optimizer_isa)isa))
            open_idle(paths[isa] = plain_zeros(1, sizeof **paths));
    v2 = paths[OPTIMIZER_ISA_V2];
    for (uint64_t t = 1; t <= IDLE_STEPS; t++) {
        for (int isa = OPTIMIZER_ISA_V2; isa <= OPTIMIZER_ISA_V4 && paths[isa]; isa++) {
            step_idle(paths[isa], (enum optimizer_isa)isa, _i, t);
            ck_assert_mem_eq(paths[isa], v2, sizeof *v2);
        }
        for (int i = 0; i < N_IDLE; i++)
            if (fpclassify(v2->m[i]) == FP_SUBNORMAL || fpclassify(v2->v[i]) == FP_SUBNORMAL)
                ck_abort_msg("step %ju: m %a, v %a", (uintmax_t)t, (double)v2->m[i], (double)v2->v[i]);
    }
    for (int i = 0; i < N_IDLE; i++)
        ck_assert(number_pattern(v2->m[i]) == 0 && (_i & 1 || number_pattern(v2->v[i]) == 0));
    for (int isa = OPTIMIZER_ISA_V2; isa <= OPTIMIZER_ISA_V4; isa++)
        free(paths[isa]);
}

/* AdamA sums the squares of parts, Adam squares their sum: of N equal parts g/N, v gets (1-beta2) N (g/N)^2, an Nth of
 * Adam's (1-beta2) g^2, and m gets the same (arXiv:2305.19982). Here 1-beta1 and 1-beta2 are powers of two, moments and
 * gradients whole multiples of others, and no sum has more than 24 bits: nothing is rounded. */
TEST_RANGE(of_equal_parts_v_gets_an_nth_of_what_adam_gives_it, OPTIMIZER_ISA_V2, OPTIMIZER_ISA_V4 + 1)
{
    enum { N = 255 * 16 };
    static const struct hyper exact = {.beta1 = 1 - 0x1p-3, .beta2 = 1 - 0x1p-10};
    float *g = plain_zeros(N, sizeof *g), *part = plain_zeros(N, sizeof *part), *m = plain_zeros(N, sizeof *m),
          *v = plain_zeros(N, sizeof *v);

    if (!plain_use((enum optimizer_isa)_i))
        goto done;
    for (int n_parts = 1; n_parts <= 8; n_parts *= 2) {
        for (int i = 0; i < N; i++) {
            g[i] = (float)(256 * (i % 255 + 1) * (i % 2 ? -1 : 1)), part[i] = g[i] / (float)n_parts;
            m[i] = (float)(8 * (i % 17 - 8)), v[i] = (float)(1024 * (i % 1000));
        }
        for (int fold = 0; fold < n_parts; fold++)
            plain_fold(m, v, part, N, &exact, fold == 0);
        for (int i = 0; i < N; i++) {
            const float m_got = m[i] - (float)(7 * (i % 17 - 8)), v_got = v[i] - (float)(1023 * (i % 1000));
            ck_assert_msg(m_got == 0x1p-3f * g[i], "%d parts, m[%d]: %a", n_parts, i, (double)m_got);
            ck_assert_msg(v_got * (float)n_parts == 0x1p-10f * g[i] * g[i], "%d parts, v[%d]: %a", n_parts, i,
                          (double)v_got);
        }
    }
done:
    free(g), free(part), free(m), free(v);
}

enum { N = 70000 }; /* several threads' worth, not a multiple of anything */

struct state {
    float *w, *m, *v, *g;
};

/* Ordinary numbers among zeros, denormals, the largest and the smallest. */
static struct state strange_state(void)
{
    const float special[] = {0,     -0.0f, FLT_TRUE_MIN, -FLT_TRUE_MIN, 1e-40f,   FLT_MIN, 1e-20f,
                             1e-8f, 1,     -1e4f,        1e15f,         -1.5e19f, 1e25f,   FLT_MAX};
    const size_t n_special = sizeof special / sizeof *special;
    struct state state = {plain_zeros(N, sizeof(float)), plain_zeros(N, sizeof(float)), plain_zeros(N, sizeof(float)),
                          plain_zeros(N, sizeof(float))};
    uint64_t seed = 99;

    for (size_t i = 0; i < N; i++) {
        bool odd = uniform(&seed) < 0.2;
        state.w[i] = odd ? special[i % n_special] : spread(&seed, 1e-4, 10);
        state.m[i] = odd ? special[i / n_special % n_special] : spread(&seed, 1e-10, 1);
        state.v[i] = odd ? fabsf(special[i / n_special / n_special % n_special]) : (float)uniform(&seed);
        state.g[i] = odd ? special[i / 3 % n_special] : spread(&seed, 1e-10, 1);
    }
    return state;
}

static void free_state(struct state *state)
{
    free(state->w), free(state->m), free(state->v), free(state->g);
}

static void same(const struct state *a, const struct state *b)
{
    for (size_t i = 0; i < N; i++)
        if (memcmp(&a->w[i], &b->w[i], 4) || memcmp(&a->m[i], &b->m[i], 4) || memcmp(&a->v[i], &b->v[i], 4))
            ck_abort_msg("element %zu: w %a %a, m %a %a, v %a %a", i, a->w[i], b->w[i], a->m[i], b->m[i], a->v[i],
                         b->v[i]);
}

/* A run ends where a weight becomes infinite. */
static void put_ones_for_infinities(float *w)
{
    for (size_t i = 0; i < N; i++)
        w[i] = isinf(w[i]) ? 1 : w[i];
}

/* Every function, two of them twice. */
static void walk(struct state *s)
{
    float *sum = plain_zeros(N, sizeof(float));

    plain_fold(s->m, s->v, s->g, N, &usual, true);
    plain_fold(s->m, s->v, s->w, N, &usual, false);
    plain_update(s->w, s->m, s->v, N, &usual, 3, true);
    put_ones_for_infinities(s->w);
    plain_sum(sum, s->g, N, true);
    plain_sum(sum, s->m, N, false);
    for (int i = 0; i < N; i++)
        sum[i] = isfinite(sum[i]) ? sum[i] : 1;
    plain_step(s->w, s->m, s->v, sum, N, &usual, 4, false);
    free(sum);
}

/* c1 * g is 2^-24 (1 - 2^-46): a sum of it and 1 + 2^-23 is 2^-70 off the middle between two numbers, which a double
 * does not tell from the middle. */
TEST_RANGE(a_sum_next_to_a_tie_is_rounded_once, OPTIMIZER_ISA_V2, OPTIMIZER_ISA_V4 + 1)
{
    enum { N_TIES = 67 };
    const struct hyper hp = {.beta1 = 1 - 0x1p-3 * (1 + 0x1p-23), .beta2 = 0.5};
    float m[N_TIES], v[N_TIES] = {0}, g[N_TIES];

    if (!plain_use((enum optimizer_isa)_i))
        TEST_SKIP("this processor lacks the instructions");
    for (int i = 0; i < N_TIES; i++) {
        m[i] = i & 1 ? -1 - 0x1p-23f : 1 + 0x1p-23f;
        g[i] = (i & 2 ? -0x1p-21f : 0x1p-21f) * (1 - 0x1p-23f);
    }
    plain_fold(m, v, g, N_TIES, &hp, false);
    for (int i = 0; i < N_TIES; i++)
        ck_assert_float_eq(m[i], i & 1 ? -1 - 0x1p-23f : 1 + 0x1p-23f);
}

TEST_RANGE(every_instruction_path_gives_the_same_bits, OPTIMIZER_ISA_V3, OPTIMIZER_ISA_V4 + 1)
{
    struct state v2 = strange_state(), other = strange_state();

    ck_assert(plain_use(OPTIMIZER_ISA_V2));
    walk(&v2);
    if (plain_use((enum optimizer_isa)_i)) {
        walk(&other);
        same(&v2, &other);
    }
    free_state(&v2), free_state(&other);
}

/* 1e21 overflows v, which stays at the largest number. */
TEST(gradients_up_to_1e37_never_make_a_nan)
{
    struct state state = strange_state();

    for (size_t i = 0; i < N; i++) {
        state.g[i] = fminf(state.g[i], 1e37f);
        state.m[i] = fminf(state.m[i], 1e37f);
        state.w[i] = fminf(state.w[i], 1e37f);
    }
    walk(&state);
    for (int t = 5; t < 10; t++) {
        put_ones_for_infinities(state.w);
        plain_step(state.w, state.m, state.v, state.g, N, &usual, (uint64_t)t, true);
    }
    for (size_t i = 0; i < N; i++)
        if (isnan(state.w[i]) || isnan(state.m[i]) || !(state.v[i] >= 0))
            ck_abort_msg("element %zu: w %a, m %a, v %a, g %a", i, state.w[i], state.m[i], state.v[i], state.g[i]);
    free_state(&state);
}

/* Cut anywhere, on as many threads; and AdamW, which goes through the sum of its parts, with one part. */
TEST(a_step_is_the_same_whole_in_pieces_apart_and_on_any_threads)
{
    struct state whole = strange_state(), cut = strange_state(), apart = strange_state();
    const size_t at[] = {0, 1, 1023, 1040, 40000, N};
    float *sum = plain_zeros(N, sizeof *sum);

    plain_step(whole.w, whole.m, whole.v, whole.g, N, &usual, 5, true);
    for (int k = 0; k < 5; k++)
        plain_step(cut.w + at[k], cut.m + at[k], cut.v + at[k], cut.g + at[k], at[k + 1] - at[k], &usual, 5, true);
    same(&whole, &cut);
    plain_sum(sum, apart.g, N, true);
    plain_fold(apart.m, apart.v, sum, N, &usual, true);
    plain_update(apart.w, apart.m, apart.v, N, &usual, 5, true);
    same(&whole, &apart);
    for (int n_threads = 1; n_threads <= 7; n_threads++) {
        struct state team = strange_state();
        plain_set_threads(n_threads);
        plain_step(team.w, team.m, team.v, team.g, N, &usual, 5, true);
        same(&whole, &team);
        free_state(&team);
    }
    free(sum);
    free_state(&whole), free_state(&cut), free_state(&apart);
}

TEST_RANGE(one_value_that_is_not_finite_is_found_anywhere, OPTIMIZER_ISA_V2, OPTIMIZER_ISA_V4 + 1)
{
    const float bad[] = {INFINITY, -INFINITY, NAN, -NAN};
    float *g = plain_zeros(N, sizeof(float));
    uint64_t seed = 7;

    if (plain_use((enum optimizer_isa)_i)) {
        for (size_t i = 0; i < N; i++)
            g[i] = i % 5 ? spread(&seed, FLT_TRUE_MIN, FLT_MAX) : i % 2 ? FLT_MAX : -FLT_MAX;
        ck_assert(plain_is_finite(g, N));
        ck_assert(plain_is_finite(g, 0));
        for (size_t at = 0; at < N; at = at < 200 || at > N - 100 ? at + 1 : at + 977) {
            float kept = g[at];
            g[at] = bad[at % 4];
            if (plain_is_finite(g, N) || plain_is_finite(g, at + 1) || !plain_is_finite(g, at))
                ck_abort_msg("element %zu", at);
            g[at] = kept;
        }
    }
    free(g);
}

/* One weight at the largest value that there is, decayed by a factor of 99 in size; or one moment that is not finite.
 * In both passes, and both forms of the weights. */
TEST_RANGE(a_weight_that_is_not_finite_afterwards_is_told_wherever_it_is, OPTIMIZER_ISA_V2, OPTIMIZER_ISA_V4 + 1)
{
    const struct hyper hp = {.lr = 10, .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8, .weight_decay = 10};
    float *w = plain_zeros(N, sizeof(float)), *m = plain_zeros(N, sizeof(float)), *v = plain_zeros(N, sizeof(float)),
          *g = plain_zeros(N, sizeof(float));
    uint16_t *high = plain_zeros(N, sizeof *high);
    int16_t *low = plain_zeros(N, sizeof *low);

    const struct parameters plain = {.kernel = optimizer_find((enum optimizer_isa)_i), .n = N, .w = w, .m = m, .v = v};
    const struct parameters split = {
        .kernel = plain.kernel, .n = N, .type = NUMBER_BF16, .high = high, .low = low, .m = m, .v = v};
    const struct gradient gradient = {g, NUMBER_FP32, 1};
    for (size_t at = 0; at < N && plain.kernel; at = at < 40 || at > N - 40 ? at + 1 : at + 4999) {
        for (int which = 0; which < 8; which++) {
            const bool by_moment = which & 1, is_split = which & 2, is_step = which & 4;
            const struct parameters *p = is_split ? &split : &plain;
            memset(w, 0, N * sizeof *w), memset(m, 0, N * sizeof *m), memset(v, 0, N * sizeof *v);
            memset(high, 0, N * sizeof *high), memset(low, 0, N * sizeof *low);
            ck_assert(is_step ? optimizer_step(p, &gradient, &hp, 1, true) : optimizer_update(p, &hp, 1, true, 1));
            m[at] = by_moment ? INFINITY : 0;
            w[at] = FLT_MAX;
            number_split(FLT_MAX, &high[at], &low[at]);
            if (by_moment)
                w[at] = 0, high[at] = 0, low[at] = 0;
            if (is_step ? optimizer_step(p, &gradient, &hp, 1, true) : optimizer_update(p, &hp, 1, true, 1))
                ck_abort_msg("element %zu, case %d", at, which);
        }
    }
    free(w), free(m), free(v), free(g), free(high), free(low);
}

/* In both passes and both forms of the weights, cut anywhere: the bits of an update in place, and the old ones stay. */
TEST_RANGE(new_weights_elsewhere_are_those_in_place, OPTIMIZER_ISA_V2, OPTIMIZER_ISA_V4 + 1)
{
    const struct optimizer_kernel *kernel = optimizer_find((enum optimizer_isa)_i);
    const size_t at[] = {0, 1, 1023, 1040, 40000, N};
    float *new_w = plain_zeros(N, sizeof *new_w);
    uint16_t *high = plain_zeros(N, sizeof *high), *new_high = plain_zeros(N, sizeof *new_high);
    int16_t *low = plain_zeros(N, sizeof *low), *other_low = plain_zeros(N, sizeof *other_low);

    for (int which = 0; kernel && which < 4; which++) {
        const bool is_split = which & 1, is_step = which & 2;
        struct state old = strange_state(), here = strange_state(), there = strange_state();
        for (size_t i = 0; i < N; i++)
            number_split(old.w[i], &high[i], &low[i]);
        memcpy(other_low, low, N * sizeof *low);
        for (int k = 0; k < COUNT(at) - 1; k++) {
            const size_t i = at[k];
            struct parameters p = {.kernel = kernel, .n = at[k + 1] - i, .m = there.m + i, .v = there.v + i};
            const struct gradient gradient = {there.g + i, NUMBER_FP32, 1};
            if (is_split)
                p.type = NUMBER_BF16, p.high = high + i, p.low = other_low + i, p.new_high = new_high + i;
            else
                p.w = there.w + i, p.new_w = new_w + i;
            (void)(is_step ? optimizer_step(&p, &gradient, &usual, 5, true) : optimizer_update(&p, &usual, 5, true, 1));
        }
        for (size_t i = 0; is_split && i < N; i++) {
            uint16_t high_was;
            int16_t low_was;
            number_split(old.w[i], &high_was, &low_was);
            ck_assert_uint_eq(high[i], high_was);
        }
        struct parameters p = {.kernel = kernel, .n = N, .m = here.m, .v = here.v};
        const struct gradient gradient = {here.g, NUMBER_FP32, 1};
        if (is_split)
            p.type = NUMBER_BF16, p.high = high, p.low = low;
        else
            p.w = here.w;
        (void)(is_step ? optimizer_step(&p, &gradient, &usual, 5, true) : optimizer_update(&p, &usual, 5, true, 1));
        if (is_split)
            ck_assert(memcmp(high, new_high, N * sizeof *high) == 0 && memcmp(low, other_low, N * sizeof *low) == 0);
        else
            ck_assert(memcmp(here.w, new_w, N * sizeof *new_w) == 0 && memcmp(there.w, old.w, N * sizeof *new_w) == 0);
        ck_assert(memcmp(here.m, there.m, N * sizeof *new_w) == 0 && memcmp(here.v, there.v, N * sizeof *new_w) == 0);
        free_state(&old), free_state(&here), free_state(&there);
    }
    free(new_w), free(high), free(new_high), free(low), free(other_low);
}

/* Of weights that fp16's masters have exactly, steps are those of fp32. */
TEST_RANGE(a_split_master_of_fp16_is_the_one_in_fp32, OPTIMIZER_ISA_V2, OPTIMIZER_ISA_V4 + 1)
{
    enum { N_WEIGHTS = 5000 };
    const struct optimizer_kernel *const kernel = optimizer_find((enum optimizer_isa)_i);
    const struct hyper hp = {.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8, .weight_decay = 0.1};
    float *w = plain_zeros(N_WEIGHTS, sizeof *w), *joined = plain_zeros(N_WEIGHTS, sizeof *w),
          *g = plain_zeros(N_WEIGHTS, sizeof *g), *moments = plain_zeros((size_t)4 * N_WEIGHTS, sizeof *moments);
    uint16_t *high = plain_zeros(N_WEIGHTS, sizeof *high);
    int16_t *low = plain_zeros(N_WEIGHTS, sizeof *low);
    const struct parameters plain = {.kernel = kernel, .n = N_WEIGHTS, .w = w, .m = moments, .v = moments + N_WEIGHTS},
                            split = {.kernel = kernel,
                                     .n = N_WEIGHTS,
                                     .type = NUMBER_FP16,
                                     .high = high,
                                     .low = low,
                                     .m = moments + 2 * N_WEIGHTS,
                                     .v = moments + 3 * N_WEIGHTS};

    for (size_t i = 0; kernel && i < N_WEIGHTS; i++)
        w[i] = copysignf(ldexpf(1 + fabsf(plain_number(i, 1)), (int)(i % 14) - 3), plain_number(i, 2));
    for (unsigned t = 1; kernel && t <= 20; t++) {
        if (t == 1)
            optimizer_write(&split, w, NULL, NULL);
        for (size_t i = 0; i < N_WEIGHTS; i++)
            g[i] = plain_number(i, t + 2);
        ck_assert(optimizer_step(&plain, &(struct gradient){g, NUMBER_FP32, 0.5f}, &hp, t, true));
        ck_assert(optimizer_step(&split, &(struct gradient){g, NUMBER_FP32, 0.5f}, &hp, t, true));
        optimizer_read(&split, joined, NULL, NULL);
        ck_assert_mem_eq(joined, w, N_WEIGHTS * sizeof *w);
    }
    if (kernel) { /* where fp16 ends, which fp32 does not see */
        const struct hyper far = {.lr = 100, .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8};
        w[7] = 65500, g[7] = -1;
        optimizer_write(&split, w, NULL, NULL);
        ck_assert(optimizer_step(&plain, &(struct gradient){g, NUMBER_FP32, 1}, &far, 21, false));
        ck_assert(!optimizer_step(&split, &(struct gradient){g, NUMBER_FP32, 1}, &far, 21, false));
    }
    free(w), free(joined), free(g), free(moments), free(high), free(low);
}
