#include "tests/kit/test.h"

#include "proto/base/random.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static const struct random_key key = {{0x12345678, 0x9ABCDEF0}};

/* Random123's known answers for philox4x32, 10 rounds (its file kat_vectors): nought, ones, and the digits of pi. */
static const struct {
    uint32_t counter[4];
    struct random_key key;
    uint32_t expected[4];
} known[] = {
    {{0, 0, 0, 0}, {{0, 0}}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
    {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
     {{0xffffffff, 0xffffffff}},
     {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
    {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
     {{0xa4093822, 0x299f31d0}},
     {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
};

SUITE_TIMEOUT(120)

TEST_EACH(philox_gives_the_published_answers, 3)
{
    uint32_t out[4];

    random_philox(out, known[_i].counter, known[_i].key);
    ck_assert_mem_eq(out, known[_i].expected, sizeof out);
}

/* Key and counter of zero in every place: the folded key is philox(philox(0) ^ site in its last word). Each part of a
 * name changes it. */
TEST(the_key_of_a_site_is_two_philox_blocks)
{
    const uint32_t inner[4] = {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8 ^ RANDOM_ORDER};
    struct random_key keys[260];
    uint32_t outer[4];
    size_t n = 0;

    random_philox(outer, inner, (struct random_key){{0, 0}});
    const struct random_key site_key = random_site_key(0, 0, 0, RANDOM_ORDER);
    ck_assert_mem_eq(&site_key, outer, sizeof site_key);
    for (unsigned bit = 0; bit < 64; bit++) {
        keys[n++] = random_site_key((uint64_t)1 << bit, 0, 0, RANDOM_WEIGHTS);
        keys[n++] = random_site_key(0, (uint64_t)1 << bit, 0, RANDOM_WEIGHTS);
        keys[n++] = random_site_key(0, 0, (uint64_t)1 << bit, RANDOM_WEIGHTS);
    }
    for (int site = RANDOM_WEIGHTS; site <= RANDOM_DROPOUT_RESIDUAL_MLP; site++)
        keys[n++] = random_site_key(0, 0, 0, (enum random_site)site);
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < i; k++)
            ck_assert_mem_ne(&keys[i], &keys[k], sizeof keys[i]);
}

TEST(a_quad_is_the_block_of_its_row_and_place)
{
    const uint32_t counter[4] = {0x55667788, 0x11223344, 0xDDEEFF00, 0x99AABBCC};
    uint32_t out[4], expected[4];

    random_philox(expected, counter, key);
    random_quad(out, key, 0x99AABBCCDDEEFF00, 0x1122334455667788);
    ck_assert_mem_eq(out, expected, sizeof out);
}

TEST(the_threshold_is_the_probabilitys_share_of_all_words)
{
    ck_assert_uint_eq(random_threshold(0), 0); /* keeps all */
    ck_assert_uint_eq(random_threshold(0x1p-32f), 1);
    ck_assert_uint_eq(random_threshold(0.1f), 429496736); /* 0.100000001490116 * 2^32 */
    ck_assert_uint_eq(random_threshold(0.5f), 0x80000000);
    ck_assert_uint_eq(random_threshold(0x1.fffffep-1f), 0xFFFFFF00); /* the largest below 1 does not wrap */
}

/* Box-Muller: of two words u = (first + 1/2) / 2^32 and an angle of second / 2^32 of a turn. Their mean and deviation,
 * and the independence of neighbours, are then those of Philox, whose answers are published. One rounding to fp32. */
static void check_normal(float x, const uint32_t word[4], unsigned lane)
{
    const double radius = sqrt(-2 * log((word[lane / 2 * 2] + 0.5) / 4294967296.0));
    const double angle = 2 * acos(-1) * (word[lane / 2 * 2 + 1] / 4294967296.0);

    ck_assert_float_eq_tol(x, (float)(radius * (lane % 2 ? sin(angle) : cos(angle))), 1e-6f);
}

TEST(normals_follow_from_the_words_of_their_place)
{
    uint32_t word[4];
    float x[4096];

    random_normal(x, (struct random_key){{0, 0}}, 0, 0, 4); /* the published words, by hand */
    for (unsigned lane = 0; lane < 4; lane++)
        check_normal(x[lane], known[0].expected, lane);
    random_normal(x, key, 7, 0, 4096);
    for (uint64_t i = 0; i < 4096; i++) {
        random_quad(word, key, 7, i / 4);
        check_normal(x[i], word, (unsigned)(i % 4));
    }
}

/* Under a key of nought, the first block with a zero word is quad 3,230,741,590: 4487e5f4 603091e5 00000000 fb82dce0
 * (found by trying them all). Its third normal has the largest radius that there is, sqrt(-2 log(2^-33)) = 6.76. */
TEST(a_word_of_zero_gives_a_finite_normal)
{
    float x;

    random_normal(&x, (struct random_key){{0, 0}}, 0, 4 * (uint64_t)3230741590 + 2, 1);
    check_normal(x, (const uint32_t[4]){0, 0, 0, 0xfb82dce0}, 2);
    ck_assert(isfinite(x));
}

TEST(a_normal_is_the_same_however_the_range_is_cut)
{
    enum { N = 67 };
    float whole[N], cut[N + 1];

    random_normal(whole, key, 3, 0, N);
    for (uint64_t first = 0; first <= N; first++) {
        for (uint64_t n = 0; n <= N - first; n++) {
            cut[n] = 99;
            random_normal(cut, key, 3, first, n);
            ck_assert(memcmp(cut, whole + first, n * sizeof *cut) == 0);
            ck_assert_float_eq(cut[n], 99); /* nothing past the end */
        }
    }
    random_normal(cut, key, 4, 0, N);
    ck_assert_mem_ne(cut, whole, sizeof whole);               /* another row, other numbers */
    random_normal(whole, key, 3, ((uint64_t)1 << 34) + 1, 5); /* far elements are not near ones again */
    random_normal(cut, key, 3, 1, 5);
    ck_assert_mem_ne(cut, whole, 5 * sizeof *cut);
}

/* (word + 1/2) / 2^31 - 1, whatever else is drawn with it; one rounding to fp32. */
TEST(a_uniform_number_follows_from_its_word)
{
    uint32_t word[4];
    float x[61];

    random_uniform(x, (struct random_key){{0, 0}}, 0, 0, 4); /* the published words */
    for (unsigned lane = 0; lane < 4; lane++)
        ck_assert_float_eq(x[lane], (float)((known[0].expected[lane] + 0.5) / 2147483648.0 - 1));
    for (uint64_t first = 0; first < 9; first++) {
        random_uniform(x, key, 7, first, 61);
        for (uint64_t i = 0; i < 61; i++) {
            random_quad(word, key, 7, (first + i) / 4);
            ck_assert_float_eq(x[i], (float)((word[(first + i) % 4] + 0.5) / 2147483648.0 - 1));
        }
    }
}

TEST_EACH(a_permutation_takes_every_place_once, 10)
{
    static const uint64_t sizes[] = {1, 2, 3, 5, 15, 16, 17, 64, 65, 65536};
    const uint64_t n = sizes[_i];
    bool *taken = calloc(n, sizeof *taken);

    for (uint64_t i = 0; i < n; i++) {
        const uint64_t place = random_permute(key, i, n);
        ck_assert_uint_lt(place, n);
        ck_assert_msg(!taken[place], "%ju twice", (uintmax_t)place);
        taken[place] = true;
    }
    free(taken);
}

/* Small sets of far-away indices: no two in one place, none outside. */
TEST_EACH(a_permutation_of_a_huge_range_stays_inside_it, 3)
{
    static const uint64_t sizes[] = {((uint64_t)1 << 40) + 1, (uint64_t)1 << 62, UINT64_MAX};
    uint64_t places[64];

    for (uint64_t i = 0; i < 64; i++) {
        places[i] = random_permute(key, sizes[_i] - 1 - i, sizes[_i]);
        ck_assert_uint_lt(places[i], sizes[_i]);
        for (uint64_t k = 0; k < i; k++)
            ck_assert_uint_ne(places[i], places[k]);
    }
}

/* Over 4,096 seeds each of 6 orders of 3 comes 682.7 times; chi-squared with 5 degrees of freedom passes 30 once in
 * 80,000 times. */
TEST(every_order_is_as_likely)
{
    enum { SEEDS = 4096 };
    int counts[27] = {0};
    double chi = 0;

    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        const struct random_key k = random_site_key(seed, 0, 0, RANDOM_ORDER);
        counts[9 * random_permute(k, 0, 3) + 3 * random_permute(k, 1, 3) + random_permute(k, 2, 3)]++;
    }
    for (int i = 0; i < 27; i++)
        if (counts[i])
            chi += pow(counts[i] - SEEDS / 6.0, 2) / (SEEDS / 6.0);
    ck_assert_double_lt(chi, 30);
}
