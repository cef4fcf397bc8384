/* SGD on arrays: against float64, and the same bits on every instruction path, in every form and however it is cut. */
#include "tests/kit/inprocess/plain.h"
#include "tests/kit/test.h"

#include "eps/store/optimizer_kernel.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

SUITE_LABELS(single)
SUITE_TIMEOUT(120)

enum { N = 70000, HALF = N / 2 + 3 }; /* several threads' worth, not a multiple of anything; half of it decays */

static const struct rule {
    double momentum;
    bool nesterov;
} rules[] = {{0.9, false}, {0.9, true}, {0, false}, {0.999, false}, {0.99, true}};

static struct hyper hyper_of(int rule)
{
    return (struct hyper){.lr = 0.1,
                          .weight_decay = 0.05,
                          .grad_scale = 1,
                          .sgd = true,
                          .nesterov = rules[rule].nesterov,
                          .momentum = rules[rule].momentum};
}

/* Weights and momentum in both forms. Ordinary numbers among zeros, denormals and large ones. */
struct state {
    float *w, *new_w, *m;
    uint16_t *high, *new_high, *m16;
    int16_t *low;
};

static float number_at(uint64_t i, uint64_t seed)
{
    static const float special[] = {0, -0.0f, FLT_TRUE_MIN, -FLT_TRUE_MIN, 1e-40f, FLT_MIN, 1e-20f, 1e15f, -1.5e19f};
    const float x = plain_number(i, seed);

    return (i + seed) % 7 ? x : special[(i / 7 + seed) % COUNT(special)];
}

static struct state open_state(void)
{
    struct state s = {plain_zeros(N, 4), plain_zeros(N, 4), plain_zeros(N, 4), plain_zeros(N, 2),
                      plain_zeros(N, 2), plain_zeros(N, 2), plain_zeros(N, 2)};

    for (uint64_t i = 0; i < N; i++) {
        s.w[i] = number_at(i, 1), s.m[i] = number_at(i, 2);
        s.m16[i] = number_to_bf16(s.m[i]);
        number_split(s.w[i], &s.high[i], &s.low[i]);
    }
    return s;
}

static void close_state(struct state *s)
{
    free(s->w), free(s->new_w), free(s->m), free(s->high), free(s->new_high), free(s->m16), free(s->low);
}

enum form { FP32, SPLIT = 1, NARROW = 2, ELSEWHERE = 4, FORMS = 8 };

static struct parameters parameters_of(const struct state *s, int rule, unsigned form, size_t first, size_t n)
{
    struct parameters p = {.kernel = plain_used(),
                           .n = n,
                           .first = first,
                           .key = random_site_key(3, 1, 2, RANDOM_MOMENTS)};

    if (form & SPLIT)
        p.type = NUMBER_BF16, p.high = s->high + first, p.low = s->low + first,
        p.new_high = form & ELSEWHERE ? s->new_high + first : NULL;
    else
        p.w = s->w + first, p.new_w = form & ELSEWHERE ? s->new_w + first : NULL;
    if (rules[rule].momentum > 0 && form & NARROW)
        p.m16 = s->m16 + first;
    else if (rules[rule].momentum > 0)
        p.m = s->m + first;
    return p;
}

/* A step of elements `first` on: as one pass, or by folds and an update. The first half decays, the other does not. */
static bool step(const struct state *s, int rule, unsigned form, size_t first, size_t n, const float *g, bool apart)
{
    const size_t decaying = first >= HALF ? 0 : n < HALF - first ? n : HALF - first;
    const struct hyper hp = hyper_of(rule);
    bool finite = true;

    for (int decays = 1; decays >= 0; decays--) {
        const size_t at = decays ? first : first + decaying, count = decays ? decaying : n - decaying;
        const struct parameters p = parameters_of(s, rule, form, at, count);
        const struct gradient gradient = {g + at, NUMBER_FP32, 1};
        if (apart)
            optimizer_fold(&p, &gradient, &hp, true, decays);
        finite &= apart ? optimizer_update(&p, &hp, 1, decays, 1) : optimizer_step(&p, &gradient, &hp, 1, decays);
    }
    return finite;
}

static float *gradient_of(uint64_t seed)
{
    float *g = plain_zeros(N, sizeof *g);

    for (uint64_t i = 0; i < N; i++)
        g[i] = number_at(i, seed);
    return g;
}

/* The new weights, in fp32, wherever they are. */
static float weight(const struct state *s, unsigned form, size_t i)
{
    if (form & SPLIT)
        return number_join(form & ELSEWHERE ? s->new_high[i] : s->high[i], s->low[i]);
    return form & ELSEWHERE ? s->new_w[i] : s->w[i];
}

static void check_same(const struct state *a, unsigned form_a, const struct state *b, unsigned form_b, const char *what)
{
    for (size_t i = 0; i < N; i++) {
        const uint32_t x = number_pattern(weight(a, form_a, i)), y = number_pattern(weight(b, form_b, i));
        if (x != y || number_pattern(a->m[i]) != number_pattern(b->m[i]) || a->m16[i] != b->m16[i])
            ck_abort_msg("%s, element %zu: w %08x %08x, m %a %a, %04x %04x", what, i, x, y, (double)a->m[i],
                         (double)b->m[i], a->m16[i], b->m16[i]);
    }
}

/* torch.optim.SGD, sentence by sentence, in float64: of elements that are exact in both. Each fold may add half an ulp of
 * the largest partial result to the momentum, and the direction's own half ulps times the rate to the weight. */
TEST_EACH(a_step_in_parts_is_that_of_float64, COUNT(rules) * 2 * 3)
{
    const int rule = _i % COUNT(rules), n_parts = _i / (int)COUNT(rules) % 2 ? 4 : 1;
    const struct hyper hp = hyper_of(rule);
    const bool folds = hp.momentum > 0 && !hp.nesterov;

    if (!plain_use((enum optimizer_isa)(OPTIMIZER_ISA_V2 + _i / (2 * (int)COUNT(rules)))))
        TEST_SKIP("this processor lacks the instructions");
    struct state s = open_state();
    float *sum = plain_zeros(N, sizeof *sum), *parts[4];
    const struct parameters p = parameters_of(&s, rule, FP32, 0, N);
    double *w = plain_zeros(N, sizeof *w), *m = plain_zeros(N, sizeof *m);
    for (size_t i = 0; i < N; i++) {
        s.w[i] = plain_number(i, 1), s.m[i] = plain_number(i, 2);
        w[i] = s.w[i], m[i] = s.m[i];
    }
    for (int k = 0; k < n_parts; k++) {
        parts[k] = plain_zeros(N, sizeof *sum);
        for (size_t i = 0; i < N; i++)
            parts[k][i] = plain_number(i, 3 + (uint64_t)k);
        if (folds)
            optimizer_fold(&p, &(struct gradient){parts[k], NUMBER_FP32, 1}, &hp, k == 0, true);
        else
            plain_sum(sum, parts[k], N, k == 0);
    }
    ck_assert(folds ? optimizer_update(&p, &hp, 1, true, 1)
                    : optimizer_step(&p, &(struct gradient){sum, NUMBER_FP32, 1}, &hp, 1, true));
    for (size_t i = 0; i < N; i++) {
        double grad = 0;
        for (int k = 0; k < n_parts; k++)
            grad += parts[k][i];
        grad += hp.weight_decay * w[i];
        m[i] = hp.momentum * m[i] + grad;
        const double direction = hp.nesterov ? grad + hp.momentum * m[i] : m[i];
        const double ulp = 0x1p-24 * 4 * n_parts; /* half of the largest: |m| <= 2 n_parts + 2 */
        if (hp.momentum > 0 && !(fabs(s.m[i] - m[i]) <= n_parts * ulp))
            ck_abort_msg("m %zu: %.9g, not %.9g", i, (double)s.m[i], m[i]);
        w[i] -= hp.lr * direction;
        if (!(fabs(s.w[i] - w[i]) <= 0x1p-24 * fmax(1, fabs(w[i])) + hp.lr * 2 * n_parts * ulp))
            ck_abort_msg("w %zu: %.9g, not %.9g", i, (double)s.w[i], w[i]);
    }
    for (int k = 0; k < n_parts; k++)
        free(parts[k]);
    free(sum), free(w), free(m);
    close_state(&s);
}

/* One element's step in float64, and the largest partial result, of the weights' size. */
static double exact_step(double w, double m, double g, const struct hyper *hp, double *largest)
{
    const double d = g + hp->weight_decay * w, new_m = hp->momentum * m + d;
    const double u = hp->nesterov ? d + hp->momentum * new_m : new_m, want = w - hp->lr * u;
    const double sums = fmax(fmax(fmax(fabs(m), fabs(g)), fmax(fabs(d), fabs(new_m))), fabs(u));

    *largest = fmax(fmax(fabs(w), fabs(want)), hp->lr * fmax(sums, fabs(hp->weight_decay * w)));
    return want;
}

/* Of any magnitudes. The bounds are derived in eps/store/optimizer.h. */
TEST_EACH(a_step_is_within_its_units_in_the_last_place, COUNT(rules) * 3)
{
    const int rule = _i % (int)COUNT(rules);
    struct state s = open_state();
    float *g = plain_zeros(N, sizeof *g), *old_w = plain_zeros(N, sizeof *g), *old_m = plain_zeros(N, sizeof *g);
    double worst = 0;

    if (!plain_use((enum optimizer_isa)(OPTIMIZER_ISA_V2 + _i / (int)COUNT(rules))))
        TEST_SKIP("this processor lacks the instructions");
    for (int draw = 0; draw < 8; draw++) {
        struct hyper hp = hyper_of(rule);
        hp.lr = ldexp(0.7, -4 * draw), hp.weight_decay = ldexp(0.9, 2 - 3 * draw);
        for (size_t i = 0; i < N; i++) {
            const int scale = (int)(i % 97) - 48;
            g[i] = ldexpf(plain_number(i, 6), scale + (int)(i % 5) - 2);
            old_m[i] = s.m[i] = rules[rule].momentum > 0 ? ldexpf(plain_number(i, 7), scale) : 0;
            old_w[i] = s.w[i] = ldexpf(plain_number(i, 8), scale - 4 * draw * (int)(i % 2));
        }
        const struct parameters p = parameters_of(&s, rule, FP32, 0, N);
        ck_assert(optimizer_step(&p, &(struct gradient){g, NUMBER_FP32, 1}, &hp, 1, true));
        for (size_t i = 0; i < N; i++) {
            double largest;
            const double want = exact_step(old_w[i], old_m[i], g[i], &hp, &largest);
            const double distance = fabs(s.w[i] - want) / ldexp(1, ilogb(fmax(largest, FLT_MIN)) - 23);
            if (!(distance <= (hp.nesterov ? 10 : 6)))
                ck_abort_msg("w %a, m %a, g %a: %a, not %a: %.2f ulp", (double)old_w[i], (double)old_m[i], (double)g[i],
                             (double)s.w[i], want, distance);
            worst = fmax(worst, distance);
        }
    }
    fprintf(stderr, "momentum %g%s: the farthest by %.2f ulp\n", rules[rule].momentum,
            rules[rule].nesterov ? " (Nesterov)" : "", worst);
    free(g), free(old_w), free(old_m);
    close_state(&s);
}

TEST_EACH(every_instruction_path_gives_the_same_bits, COUNT(rules) * FORMS * 2)
{
    const int rule = _i / 2 % COUNT(rules);
    const unsigned form = (unsigned)_i / 2 / COUNT(rules);
    struct state v2 = open_state(), other = open_state();
    float *g = gradient_of(4);

    plain_use(OPTIMIZER_ISA_V2);
    const bool finite = step(&v2, rule, form, 0, N, g, false);
    if (plain_use((enum optimizer_isa)(OPTIMIZER_ISA_V3 + _i % 2))) {
        ck_assert_int_eq(step(&other, rule, form, 0, N, g, false), finite);
        check_same(&v2, form, &other, form, "path");
    }
    free(g);
    close_state(&v2), close_state(&other);
}

/* Folds in parts, on every path. */
TEST_RANGE(every_instruction_path_folds_the_same_bits, OPTIMIZER_ISA_V3, OPTIMIZER_ISA_V4 + 1)
{
    const struct hyper hp = hyper_of(0);
    struct state v2 = open_state(), other = open_state();
    float *g = gradient_of(4), *next = gradient_of(5);

    if (optimizer_find((enum optimizer_isa)_i))
        for (int which = 0; which < 4; which++) {
            const unsigned form = (unsigned)which;
            for (int k = 0; k < 2; k++) {
                struct state *const s = k ? &other : &v2;
                plain_use(k ? (enum optimizer_isa)_i : OPTIMIZER_ISA_V2);
                const struct parameters p = parameters_of(s, 0, form, 0, N);
                optimizer_fold(&p, &(struct gradient){g, NUMBER_FP32, 1}, &hp, true, true);
                optimizer_fold(&p, &(struct gradient){next, NUMBER_FP32, 0.5f}, &hp, false, true);
                optimizer_update(&p, &hp, 1, true, 1);
            }
            check_same(&v2, form, &other, form, "fold");
        }
    free(g), free(next);
    close_state(&v2), close_state(&other);
}

/* Against fp32 in place as one pass: a fold and an update; a split master; new weights elsewhere, and the old ones
 * stay; cut anywhere, on any number of threads. */
TEST_EACH(form_cut_and_threads_change_no_bit, COUNT(rules))
{
    const size_t at[] = {0, 1, 1023, 1040, 40000, N};
    struct state want = open_state();
    float *g = gradient_of(4);

    plain_use(OPTIMIZER_ISA_V4);
    step(&want, _i, FP32, 0, N, g, false);
    for (unsigned form = 0; form < FORMS; form++) {
        if (form & NARROW)
            continue; /* another momentum */
        struct state s = open_state();
        for (int k = 0; k < COUNT(at) - 1; k++) {
            plain_set_threads(1 + (k + (int)form) % 5);
            step(&s, _i, form, at[k], at[k + 1] - at[k], g, false);
        }
        check_same(&want, FP32, &s, form, "form");
        struct state old = open_state();
        ck_assert(!(form & ELSEWHERE) || form & SPLIT || memcmp(s.w, old.w, N * sizeof *s.w) == 0);
        ck_assert(!(form & ELSEWHERE) || memcmp(s.high, old.high, N * sizeof *s.high) == 0);
        close_state(&old);
        close_state(&s);
        if (rules[_i].momentum == 0 || rules[_i].nesterov)
            continue; /* only steps */
        s = open_state();
        step(&s, _i, form, 0, N, g, true);
        check_same(&want, FP32, &s, form, "apart");
        close_state(&s);
    }
    free(g);
    close_state(&want);
}

/* A 16-bit momentum moves the weights before it is rounded, and is rounded by the bits by which m is beside a v. */
TEST_RANGE(a_16_bit_momentum_is_rounded_after_it_moves_the_weights, OPTIMIZER_ISA_V2, OPTIMIZER_ISA_V4 + 1)
{
    enum { GROUPS = (N + OPTIMIZER_GROUP - 1) / OPTIMIZER_GROUP };
    struct state narrow = open_state(), wide = open_state();
    uint16_t *random = plain_zeros(GROUPS * OPTIMIZER_GROUP, 2), *m16 = plain_zeros(N, 2), *v16 = plain_zeros(N, 2);
    float *g = gradient_of(4), *v = plain_zeros(N, sizeof *v);

    if (plain_use((enum optimizer_isa)_i)) {
        for (size_t i = 0; i < N; i++)
            wide.m[i] = number_from_bf16(wide.m16[i]);
        step(&narrow, 0, NARROW, 0, N, g, false);
        step(&wide, 0, FP32, 0, N, g, false);
        plain_used()->draw(random, random_site_key(3, 1, 2, RANDOM_MOMENTS), 0, 0, GROUPS);
        plain_used()->round_moments(m16, v16, wide.m, v, random, N);
        ck_assert_mem_eq(narrow.m16, m16, N * sizeof *m16);
        ck_assert_mem_eq(narrow.w, wide.w, N * sizeof *wide.w);
    }
    free(random), free(m16), free(v16), free(g), free(v);
    close_state(&narrow), close_state(&wide);
}

TEST_EACH(a_weight_that_is_not_finite_afterwards_is_told_wherever_it_is, COUNT(rules) * 3)
{
    const int rule = _i / 3;
    struct state s = open_state();
    float *g = plain_zeros(N, sizeof *g);

    if (plain_use((enum optimizer_isa)(OPTIMIZER_ISA_V2 + _i % 3)))
        for (size_t at = 0; at < N; at = at < 40 || at > N - 40 ? at + 1 : at + 4999)
            for (int by_momentum = 0; by_momentum < 2; by_momentum++) {
                const bool apart = at % 2 && rules[rule].momentum > 0 && !rules[rule].nesterov;
                memset(s.w, 0, N * sizeof *s.w), memset(s.m, 0, N * sizeof *s.m);
                ck_assert(step(&s, rule, FP32, 0, N, g, apart));
                if (by_momentum)
                    s.m[at] = INFINITY;
                else
                    s.w[at] = INFINITY;
                const bool there = !by_momentum || rules[rule].momentum > 0;
                ck_assert_msg(step(&s, rule, FP32, 0, N, g, apart) == !there, "element %zu", at);
            }
    free(g);
    close_state(&s);
}
