/* Span corruption: how long windows and their two sides are, as run_t5_mlm_flax.py computes it; that the sides hold
 * each token once; that runs are cut each way alike. */
#include "tests/kit/test.h"

#include "client/task/spans.h"

#include <math.h>
#include <string.h>

enum { END = 1, FIRST_SENTINEL = 5000, N_SENTINELS = 512 };

static uint32_t sentinels[N_SENTINELS];

static void set_sentinels(void)
{
    for (uint32_t i = 0; i < N_SENTINELS; i++)
        sentinels[i] = FIRST_SENTINEL - i; /* T5's: the later, the lower */
}
SUITE_FIXTURE(set_sentinels, NULL)

/* tokens, inputs, targets: compute_input_and_target_lengths(inputs, fraction, 3.0), which answers tokens and
 * targets. */
static const struct {
    double fraction;
    uint32_t inputs, tokens, targets;
} lengths[] = {{0.15, 512, 568, 114}, {0.15, 128, 141, 29}, {0.15, 1024, 1137, 229}, {0.3, 512, 639, 257}};

TEST_EACH(windows_are_as_long_as_their_source_lets_them, sizeof lengths / sizeof *lengths)
{
    const struct client_spans s = client_spans_within(lengths[_i].inputs, UINT32_MAX, UINT32_MAX, lengths[_i].fraction);

    ck_assert_uint_eq(s.n, lengths[_i].tokens);
    ck_assert_uint_le(s.source, lengths[_i].inputs);
    ck_assert_uint_eq(s.target, lengths[_i].targets);
}

/* np.round(n * 0.15): of 1.5, 4.5, 7.5 and 10.5. */
TEST(halves_are_rounded_to_even)
{
    ck_assert_uint_eq(client_spans_of(10, 0.15).n_chosen, 2);
    ck_assert_uint_eq(client_spans_of(30, 0.15).n_chosen, 4);
    ck_assert_uint_eq(client_spans_of(50, 0.15).n_chosen, 8);
    ck_assert_uint_eq(client_spans_of(70, 0.15).n_chosen, 10);
}

TEST(windows_stay_within_the_target_and_within_both)
{
    const uint32_t any = UINT32_MAX;

    for (uint32_t most = 6; most < 300; most++) {
        const struct client_spans target = client_spans_within(any, most, any, 0.15),
                                  both = client_spans_within(any, any, most, 0.15),
                                  next = client_spans_of(target.n + 1, 0.15), more = client_spans_of(both.n + 1, 0.15);
        ck_assert_uint_le(target.target, most);
        ck_assert_uint_gt(next.target, most);
        ck_assert_uint_le(both.source + both.target, most);
        ck_assert_uint_gt(more.source + more.target, most);
    }
    ck_assert_uint_eq(client_spans_within(3, 3, any, 0.15).n, 2); /* a token, a sentinel and the end, of each */
    ck_assert_uint_eq(client_spans_within(3, 2, any, 0.15).n, 0);
    ck_assert_uint_eq(client_spans_within(any, any, 5, 0.15).n, 0);
}

/* Reads the sides of a row back to back: what is between sentinels, first of the source, then of the target. */
static void check_sides(const struct client_spans *s, const uint32_t *source, const uint32_t *target)
{
    uint32_t next = 0, i = 0, k = 0;

    for (uint32_t run = 0; run < s->n_runs; run++) {
        const uint32_t first = next;
        for (; source[i] != sentinels[run]; i++, next++)
            ck_assert_uint_eq(source[i], 100 + next);
        ck_assert_uint_gt(next, first);
        i++;
        ck_assert_uint_eq(target[k], sentinels[run]);
        const uint32_t last = run + 1 < s->n_runs ? sentinels[run + 1] : END, begin = next;
        for (k++; target[k] != last; k++, next++)
            ck_assert_uint_eq(target[k], 100 + next);
        ck_assert_uint_gt(next, begin);
    }
    ck_assert_uint_eq(next, s->n);
    ck_assert_uint_eq(source[i], END);
    ck_assert_uint_eq(i + 1, s->source);
    ck_assert_uint_eq(k + 1, s->target);
}

TEST(each_token_is_on_one_side_once)
{
    static const double fractions[] = {0.01, 0.15, 0.5, 0.9, 0.999};
    enum { MOST = 200 };
    uint32_t ids[MOST], source[2 * MOST], target[2 * MOST];

    for (uint32_t i = 0; i < MOST; i++)
        ids[i] = 100 + i;
    for (uint32_t n = 2; n <= MOST; n++)
        for (unsigned f = 0; f < sizeof fractions / sizeof *fractions; f++) {
            const struct client_spans s = client_spans_of(n, fractions[f]);
            client_spans_corrupt(&s, source, target, ids, sentinels, END, random_site_key(1, 0, 0, RANDOM_MASKS), n);
            check_sides(&s, source, target);
        }
}

/* 8 tokens, 4 of them in 2 runs: the kept are cut after one, two or three, and so are the chosen. Nine ways, each with
 * probability 1/9: of 9,000 rows, 1,000 with a standard deviation of 29.8. */
TEST(runs_are_cut_each_way_alike)
{
    const struct client_spans s = {8, 4, 2, 7, 7};
    uint32_t ids[8] = {10, 11, 12, 13, 14, 15, 16, 17}, source[7], target[7], again[7];
    unsigned counts[3][3] = {{0}}, moved = 0;
    const struct random_key key = random_site_key(3, 0, 0, RANDOM_MASKS),
                            other = random_site_key(4, 0, 0, RANDOM_MASKS);

    for (uint64_t row = 0; row < 9000; row++) {
        uint32_t kept = 1, chosen = 1;
        client_spans_corrupt(&s, source, target, ids, sentinels, END, key, row);
        while (source[kept] != sentinels[0])
            kept++;
        while (target[chosen + 1] != sentinels[1])
            chosen++;
        counts[kept - 1][chosen - 1]++;
        client_spans_corrupt(&s, again, target, ids, sentinels, END, other, row);
        moved += memcmp(again, source, sizeof again) != 0;
        client_spans_corrupt(&s, again, target, ids, sentinels, END, key, row);
        ck_assert_mem_eq(again, source, sizeof again);
    }
    for (int i = 0; i < 9; i++)
        ck_assert_msg(fabs(counts[i / 3][i % 3] - 1000.0) < 6 * 29.8, "%u", counts[i / 3][i % 3]);
    ck_assert_uint_gt(moved, 5000); /* another seed: 8/9 of the rows have another cut */
}
