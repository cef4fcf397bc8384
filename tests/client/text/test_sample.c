/* Drawing tokens: by hand, against a plain reference, and by counting. */
#include "tests/kit/test.h"

#include "client/text/sample.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

SUITE_LABELS(single)

enum { MAX = 300 };

static struct client_sample_options by(double temperature, uint32_t top_k, double top_p, uint64_t seed)
{
    return (struct client_sample_options){
        .temperature = temperature, .top_k = top_k, .top_p = top_p, .repetition_penalty = 1, .seed = seed};
}

/* How often each token comes in n draws, over as many positions. */
static void count(uint32_t *counts, const struct client_sample_options *options, const float *logits, uint32_t n,
                  uint32_t n_draws)
{
    struct client_sampler s;

    memset(counts, 0, n * sizeof *counts);
    ck_assert_int_eq(client_sampler_init(&s, options, n, NULL), 0);
    for (uint32_t i = 0; i < n_draws; i++) {
        uint32_t id;
        ck_assert_int_eq(client_sampler_draw(&id, &s, logits, i, NULL), 0);
        ck_assert_uint_lt(id, n);
        counts[id]++;
    }
    client_sampler_free(&s);
}

/* Of p (n), summing to 1. Rare tokens are counted together, as each would add little but noise. Chi-square lies beyond
 * dof + 5 sqrt(2 dof) + 8 in less than one of ten thousand tries; seeds are fixed, so it is tried once and for all. */
static void check_frequencies(const uint32_t *counts, const double *p, uint32_t n, uint32_t n_draws)
{
    double chi = 0, dof = -1, rare = 0, n_rare = 0;

    for (uint32_t i = 0; i < n; i++) {
        const double expected = p[i] * n_draws, off = counts[i] - expected;
        ck_assert_msg(p[i] > 0 || counts[i] == 0, "token %u came %u times", i, counts[i]);
        if (expected < 5) {
            rare += expected;
            n_rare += counts[i];
            continue;
        }
        chi += off * off / expected;
        dof++;
    }
    ck_assert_double_le(fabs(n_rare - rare), 5 * sqrt(rare) + 2);
    ck_assert_msg(chi <= dof + 5 * sqrt(2 * fmax(dof, 0)) + 8, "chi-square %g, %g degrees of freedom", chi, dof);
}

/* The rules as they are told: all tokens sorted, the probabilities of those that stay, 0 for the others. */
struct ranked {
    double logit;
    uint32_t id;
};

static int by_rank(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;

    if (x->logit != y->logit)
        return x->logit > y->logit ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

static void reference(double *p, const struct client_sample_options *options, const float *logits, uint32_t n)
{
    struct ranked order[MAX];
    double e[MAX], sum = 0, cumulated = 0, kept = 0;
    uint32_t k = options->top_k > 0 && options->top_k < n ? options->top_k : n, m = 0;

    for (uint32_t i = 0; i < n; i++)
        order[i] = (struct ranked){logits[i], i};
    qsort(order, n, sizeof *order, by_rank);
    for (uint32_t i = 0; i < k; i++)
        sum += e[i] = exp((order[i].logit - order[0].logit) / options->temperature);
    for (; m < k && (m == 0 || cumulated < options->top_p); m++)
        cumulated += e[m] / sum;
    for (uint32_t i = 0; i < m; i++)
        kept += e[i];
    memset(p, 0, n * sizeof *p);
    for (uint32_t i = 0; i < m; i++)
        p[order[i].id] = e[i] / kept;
}

static void skewed(float *logits, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        logits[i] = (float)(i * 2654435761u >> 8 & 0xffff) / 8192.f - 3;
}

/* ln 1, ln 2, ln 3, ln 4: probabilities 0.1, 0.2, 0.3, 0.4. */
static const float tenths[] = {0, 0.69314718f, 1.0986123f, 1.3862944f};
static const float falling[] = {-1, 3, 2.5f, 3, -7}, equal[] = {1, 2, 1, 2, 2, 1, 1};
static const float ends[] = {-3.4e38f, 3.4e38f, 0, 3.4e38f}; /* of float's range: differences that no float holds */

static const struct {
    const float *logits;
    uint32_t n;
    double temperature;
    uint32_t top_k;
    double top_p, p[7];
} cases[] = {
    /* Temperature 0 takes the likeliest, and of equals the lowest; nothing else matters then. */
    {falling, 5, 0, 0, 1, {0, 1}},
    {falling, 5, 0, 3, 1, {0, 1}},
    {falling, 5, 0, 0, 0.5, {0, 1}},
    {tenths, 4, 1, 0, 1, {0.1, 0.2, 0.3, 0.4}},
    {tenths, 4, 1, 4, 1, {0.1, 0.2, 0.3, 0.4}},
    {tenths, 4, 1, 400, 1, {0.1, 0.2, 0.3, 0.4}},
    {tenths, 4, 0.5, 0, 1, {1 / 30., 4 / 30., 9 / 30., 16 / 30.}}, /* squares */
    {tenths, 4, 1, 2, 1, {0, 0, 3 / 7., 4 / 7.}},
    {tenths, 4, 1, 1, 1, {0, 0, 0, 1}},
    {tenths, 4, 1e30, 1, 1, {0, 0, 0, 1}}, /* flattened, the likeliest is still known */
    {tenths, 4, 1, 0, 0.4 - 1e-6, {0, 0, 0, 1}},
    {tenths, 4, 1, 0, 0.4 + 1e-6, {0, 0, 3 / 7., 4 / 7.}},
    {tenths, 4, 1, 0, 0.9 + 1e-6, {0.1, 0.2, 0.3, 0.4}},
    {tenths, 4, 1, 0, 1e-300, {0, 0, 0, 1}},
    /* Among the three likeliest the first has 4/9: the nucleus is taken of what top-k leaves. */
    {tenths, 4, 1, 3, 4 / 9. - 1e-6, {0, 0, 0, 1}},
    {tenths, 4, 1, 3, 4 / 9. + 1e-6, {0, 0, 3 / 7., 4 / 7.}},
    {tenths, 4, 0.5, 0, 0.5, {0, 0, 0, 1}}, /* squares first: 16/30 suffices */
    {tenths, 4, 1e-300, 0, 1, {0, 0, 0, 1}},
    /* Which of several equal ones are among the k: the lowest ids. */
    {equal, 7, 1, 2, 1, {0, 0.5, 0, 0.5}},
    {equal, 7, 1, 0, 0.01, {0, 1}},
    {ends, 4, 1, 0, 1, {0, 0.5, 0, 0.5}},
    {ends, 4, 1e-308, 3, 0.99, {0, 0.5, 0, 0.5}},
};

TEST_EACH(small_distributions_come_out_as_by_hand, COUNT(cases))
{
    const struct client_sample_options options =
        by(cases[_i].temperature, cases[_i].top_k, cases[_i].top_p, (uint64_t)_i);
    uint32_t counts[7];

    count(counts, &options, cases[_i].logits, cases[_i].n, 20000);
    check_frequencies(counts, cases[_i].p, cases[_i].n, 20000);
}

TEST(frequencies_are_those_of_the_plain_rules)
{
    const struct client_sample_options drawn[] = {
        by(1, 0, 1, 1),      by(0.7, 0, 1, 2),  by(2, 0, 1, 3),       by(1, 1, 1, 4),     by(1, 40, 1, 5),
        by(1, 299, 1, 6),    by(1, 0, 0.9, 7),  by(1, 0, 0.5, 8),     by(1, 0, 0.999, 9), by(0.8, 50, 0.95, 10),
        by(1.3, 7, 0.3, 11), by(0.2, 0, 1, 12), by(1, 300, 0.99, 13), by(3, 0, 0.2, 14),  by(1, 2, 1, UINT64_MAX),
    };
    static const uint32_t sizes[] = {300, 17, 1};
    float logits[MAX];

    for (size_t i = 0; i < sizeof drawn / sizeof *drawn; i++) {
        for (size_t j = 0; j < sizeof sizes / sizeof *sizes; j++) {
            const uint32_t n = sizes[j], n_draws = 4000;
            uint32_t counts[MAX];
            double p[MAX];
            skewed(logits, n);
            reference(p, &drawn[i], logits, n);
            count(counts, &drawn[i], logits, n, n_draws);
            check_frequencies(counts, p, n, n_draws);
        }
    }
}

static double number(const json_t *object, const char *key)
{
    return json_number_value(json_object_get(object, key));
}

/* A text's tokens, a repetition penalty, min-p and all else: what is left, and how often it comes. */
TEST_EACH(distributions_are_those_of_transformers, 24)
{
    json_t *file = json_load_file(TESTS_DIR "/fixtures/sampling.json", 0, NULL);
    const json_t *wanted = json_array_get(json_object_get(file, "cases"), (size_t)_i);
    const json_t *text = json_object_get(wanted, "ids");
    const uint32_t n = (uint32_t)number(wanted, "n"), n_draws = 20000;
    const struct client_sample_options options = {.temperature = number(wanted, "temperature"),
                                                  .top_k = (uint32_t)number(wanted, "top_k"),
                                                  .top_p = number(wanted, "top_p"),
                                                  .min_p = number(wanted, "min_p"),
                                                  .repetition_penalty = number(wanted, "repetition_penalty"),
                                                  .seed = (uint64_t)_i};
    uint32_t ids[MAX], counts[MAX] = {0}, id;
    struct client_sampler s;
    float logits[MAX];
    double p[MAX];

    for (size_t i = 0; i < json_array_size(text); i++)
        ids[i] = (uint32_t)json_integer_value(json_array_get(text, i));
    for (uint32_t i = 0; i < n; i++)
        p[i] = json_real_value(json_array_get(json_object_get(wanted, "p"), i));
    skewed(logits, n);
    ck_assert_int_eq(client_sampler_init(&s, &options, n, NULL), 0);
    for (uint32_t i = 0; i < n_draws; i++) {
        client_sampler_begin(&s, ids, json_array_size(text)); /* without the token drawn before */
        ck_assert_int_eq(client_sampler_draw(&id, &s, logits, i, NULL), 0);
        counts[id]++;
    }
    check_frequencies(counts, p, n, n_draws);
    client_sampler_free(&s);
    json_decref(file);
}

/* By hand: 4 / 2 = 2 is behind 3, then 3 / 2 = 1.5 is behind 2; and -1 is ahead of -1.5 * 2. Of float's range, the
 * logits stay finite. */
TEST(a_penalty_sees_what_was_drawn)
{
    const struct client_sample_options options = {.top_p = 1, .repetition_penalty = 2},
                                       reward = {.top_p = 1, .repetition_penalty = 0.1};
    const float falling_twice[] = {1.9f, 3, 4}, negative[] = {-1.5f, -2, -4}, huge[] = {3e38f, 3.1e38f, -3e38f};
    const uint32_t wanted[] = {2, 1, 2}, seen = 0;
    struct client_sampler s;
    uint32_t id;

    ck_assert_int_eq(client_sampler_init(&s, &options, 3, NULL), 0);
    client_sampler_begin(&s, NULL, 0);
    for (uint32_t i = 0; i < 3; i++) {
        ck_assert_int_eq(client_sampler_draw(&id, &s, falling_twice, i, NULL), 0);
        ck_assert_uint_eq(id, wanted[i]);
    }
    client_sampler_begin(&s, &seen, 1);
    ck_assert_int_eq(client_sampler_draw(&id, &s, negative, 0, NULL), 0);
    ck_assert_uint_eq(id, 1);
    client_sampler_free(&s);
    ck_assert_int_eq(client_sampler_init(&s, &reward, 3, NULL), 0);
    client_sampler_begin(&s, &seen, 1);
    ck_assert_int_eq(client_sampler_draw(&id, &s, huge, 0, NULL), 0);
    ck_assert_uint_eq(id, 0);
    client_sampler_free(&s);
}

TEST(a_draw_depends_on_seed_and_position_alone)
{
    const struct client_sample_options options = by(1, 0, 1, 77), other = by(1, 0, 1, 78);
    struct client_sampler forth, back, seeded;
    uint32_t ids[200], n_same = 0, n_moved = 0;
    float logits[MAX];

    skewed(logits, MAX);
    ck_assert_int_eq(client_sampler_init(&forth, &options, MAX, NULL), 0);
    ck_assert_int_eq(client_sampler_init(&back, &options, MAX, NULL), 0);
    ck_assert_int_eq(client_sampler_init(&seeded, &other, MAX, NULL), 0);
    for (uint32_t i = 0; i < 200; i++)
        ck_assert_int_eq(client_sampler_draw(&ids[i], &forth, logits, i, NULL), 0);
    for (uint32_t i = 200; i-- > 0;) {
        uint32_t id;
        ck_assert_int_eq(client_sampler_draw(&id, &back, logits, i, NULL), 0);
        ck_assert_uint_eq(id, ids[i]);
        ck_assert_int_eq(client_sampler_draw(&id, &seeded, logits, i, NULL), 0);
        n_same += id == ids[i];
        n_moved += i > 0 && ids[i] != ids[i - 1];
    }
    ck_assert_uint_lt(n_same, 20); /* two seeds agree by chance, in about one of a hundred */
    ck_assert_uint_gt(n_moved, 150);
    client_sampler_free(&forth);
    client_sampler_free(&back);
    client_sampler_free(&seeded);
}

TEST(logits_that_are_no_numbers_are_refused)
{
    const float bad[] = {NAN, -NAN, INFINITY, -INFINITY};
    float logits[5] = {1, 2, 3, 4, 5};

    for (size_t i = 0; i < 20; i++) {
        const struct client_sample_options options = by(i % 2 ? 0 : 1, 0, 1, 0);
        struct client_sampler s;
        struct error err = {""};
        uint32_t id;
        ck_assert_int_eq(client_sampler_init(&s, &options, 5, NULL), 0);
        logits[i % 5] = bad[i / 5];
        ck_assert_int_eq(client_sampler_draw(&id, &s, logits, 12, &err), -EINVAL);
        ck_assert_holds(err.text, "at position 12 is ");
        logits[i % 5] = 0;
        ck_assert_int_eq(client_sampler_draw(&id, &s, logits, 12, &err), 0);
        client_sampler_free(&s);
    }
}

TEST(options_out_of_range_are_named)
{
    const struct {
        struct client_sample_options options;
        const char *says;
    } wrongs[] = {
        {by(-0.5, 0, 1, 0), "--temperature -0.5: "},
        {by(INFINITY, 0, 1, 0), "--temperature inf: "},
        {by(NAN, 0, 1, 0), "--temperature "},
        {by(1, 0, 0, 0), "--top-p 0: "},
        {by(1, 0, 1.01, 0), "--top-p 1.01: "},
        {by(1, 0, -1, 0), "--top-p -1: "},
        {by(1, 0, NAN, 0), "--top-p "},
        {{1, 0, 1, -0.1, 1, 0}, "--min-p -0.1: "},
        {{1, 0, 1, 1.5, 1, 0}, "--min-p 1.5: "},
        {{1, 0, 1, NAN, 1, 0}, "--min-p "},
        {{1, 0, 1, 0, 0, 0}, "--repetition-penalty 0: "},
        {{1, 0, 1, 0, -1, 0}, "--repetition-penalty -1: "},
        {{1, 0, 1, 0, INFINITY, 0}, "--repetition-penalty inf: "},
    };
    const struct client_sample_options fine = by(0, 0, 1e-9, 0);

    for (size_t i = 0; i < sizeof wrongs / sizeof *wrongs; i++) {
        struct error err = {""};
        ck_assert_int_eq(client_sample_check(&wrongs[i].options, &err), -EDOM);
        ck_assert_msg(strncmp(err.text, wrongs[i].says, strlen(wrongs[i].says)) == 0, "%s", err.text);
    }
    ck_assert_int_eq(client_sample_check(&fine, NULL), 0);
}
