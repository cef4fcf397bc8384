/* Which rows a step gets: every row once in an epoch, those of a part by length, and nothing but seed and epoch to
 * decide it. Rows are made by hand; no text is read. */
#include "tests/kit/test.h"

#include "client/order/batches.h"
#include "client/task/source.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { N = 1000, BATCH = 8, PART = 4, SEQ = 96, N_STEPS = N / BATCH };

static uint32_t lengths[N];

static void setup(void)
{
    for (uint32_t i = 0; i < N; i++)
        lengths[i] = 3 + (i * 2654435761u >> 8) % 120; /* some longer than SEQ */
}

SUITE_FIXTURE(setup, NULL)

static struct client_subset all(uint32_t n)
{
    struct client_subset subset;

    ck_assert_int_eq(client_subset_all(&subset, lengths, N, NULL), 0);
    subset.n = n;
    return subset;
}

static struct client_batches batches_of(const struct client_subset *subset, enum eps_order order, uint64_t seed)
{
    struct client_batches batches;

    const struct client_batches_options options = {
        .subset = subset, .batch = BATCH, .part = PART, .seq = SEQ, .order = order, .seed = seed};
    ck_assert_int_eq(client_batches_init(&batches, &options, NULL), 0);
    return batches;
}

TEST(an_epoch_has_every_row_once_and_its_last_minibatch_what_is_left)
{
    struct client_subset subset = all(N - 3);
    struct client_batches b = batches_of(&subset, EPS_SHUFFLED, 1);
    unsigned n_short = 0;

    ck_assert_uint_eq(b.n, N_STEPS);
    for (uint64_t epoch = 0; epoch < 3; epoch++) {
        bool seen[N] = {false};
        for (uint64_t step = epoch * N_STEPS; step < (epoch + 1) * N_STEPS; step++) {
            const uint32_t *got;
            uint32_t n;
            client_batches_get(&got, &n, &b, step);
            ck_assert(n == BATCH || n == BATCH - 3);
            n_short += n < BATCH;
            for (uint32_t i = 0; i < n; i++) {
                ck_assert_uint_lt(got[i], N - 3);
                ck_assert(!seen[got[i]]);
                seen[got[i]] = true;
            }
        }
    }
    ck_assert_uint_eq(n_short, 3);
    client_batches_free(&b);
    client_subset_free(&subset);
}

static uint32_t length_of(uint32_t row)
{
    return lengths[row] < SEQ ? lengths[row] : SEQ;
}

/* The rows of each part by length; of the two parts, and of a minibatch and the next one, no one is always the
 * longer. */
TEST(a_part_s_rows_are_by_length_and_minibatches_are_of_all_lengths)
{
    struct client_subset subset = all(N);
    struct client_batches b = batches_of(&subset, EPS_SHUFFLED, 1);
    unsigned n_longer = 0, n_mixed = 0;

    for (uint64_t step = 0; step < N_STEPS; step++) {
        const uint32_t *got;
        uint32_t n;
        client_batches_get(&got, &n, &b, step);
        for (uint32_t i = 0; i < n; i++)
            ck_assert(i % PART == 0 || length_of(got[i]) >= length_of(got[i - 1]));
        n_longer += length_of(got[0]) > length_of(got[PART]);
        n_mixed += length_of(got[PART - 1]) > length_of(got[0]) + SEQ / 4;
    }
    ck_assert_uint_gt(n_longer, N_STEPS / 4);
    ck_assert_uint_lt(n_longer, N_STEPS * 3 / 4);
    ck_assert_uint_gt(n_mixed,
                      N_STEPS * 3 / 4); /* four rows that are drawn evenly from 3 to 96 tokens, by chance in 95 % */
    client_batches_free(&b);
    client_subset_free(&subset);
}

/* Of four rows with 3 to 96 tokens the longest has, by chance, 78 on the mean, of two 65; rounding adds 3.5. */
TEST(what_microbatches_compute_is_measured)
{
    struct client_subset subset = all(N);
    struct client_batches b = batches_of(&subset, EPS_SHUFFLED, 1);
    uint32_t row_tokens[PLAN_ROW_TOKENS], pairs[PLAN_ROW_TOKENS];
    uint64_t by[3] = {0};

    for (uint64_t step = 0; step < N_STEPS; step++) {
        const uint32_t *got;
        uint32_t n;
        client_batches_get(&got, &n, &b, step);
        for (uint32_t i = 0; i < n; i++) /* sorted, so the last row of each is the longest */
            for (uint32_t k = 0; k < 3; k++)
                by[k] += client_batches_length(length_of(got[i | ((1u << k) - 1)]), SEQ);
    }
    client_batches_measure(row_tokens, &b, 1);
    client_batches_measure(pairs, &b, 2);
    for (int i = 0; i < PLAN_ROW_TOKENS; i++)
        ck_assert_uint_eq(row_tokens[i], (by[i < 2 ? i : 2] + N - 1) / N); /* no microbatch crosses a part's end */
    for (int i = 1; i < PLAN_ROW_TOKENS; i++)
        ck_assert_uint_eq(pairs[i], row_tokens[i - 1]);
    client_batches_free(&b);
    client_subset_free(&subset);
}

static bool same_step(struct client_batches *a, struct client_batches *b, uint64_t step_a, uint64_t step_b)
{
    const uint32_t *x, *y;
    uint32_t n, m;

    client_batches_get(&x, &n, a, step_a);
    uint32_t copy[BATCH];
    memcpy(copy, x, n * sizeof *x);
    client_batches_get(&y, &m, b, step_b);
    return n == m && memcmp(copy, y, n * sizeof *y) == 0;
}

TEST(a_step_s_rows_depend_on_seed_and_step_alone)
{
    struct client_subset subset = all(N);
    struct client_batches a = batches_of(&subset, EPS_SHUFFLED, 1), b = batches_of(&subset, EPS_SHUFFLED, 1),
                          other = batches_of(&subset, EPS_SHUFFLED, 2);
    unsigned n_same = 0, n_again = 0;

    for (uint64_t step = 0; step < 3 * N_STEPS; step++)
        ck_assert(same_step(&a, &b, step, step));
    ck_assert(same_step(&a, &b, 7, 7)); /* back, as a resumed run's first call is in the middle */
    for (uint64_t step = 0; step < N_STEPS; step++) {
        n_same += same_step(&a, &other, step, step);
        n_again += same_step(&a, &b, step, step + N_STEPS);
    }
    ck_assert_uint_lt(n_same, 3);
    ck_assert_uint_lt(n_again, 3);
    client_batches_free(&a);
    client_batches_free(&b);
    client_batches_free(&other);
    client_subset_free(&subset);
}

/* Pairs of rows that share a minibatch in both epochs: of 3,500, by chance 25. And the steps that an epoch's smaller
 * minibatch has, by chance 7 or 8 of 8. */
TEST(each_epoch_has_its_own_minibatches_in_its_own_order)
{
    struct client_subset subset = all(N - 3);
    struct client_batches b = batches_of(&subset, EPS_SHUFFLED, 1);
    uint64_t at[2][N] = {{0}};
    bool is_short[N_STEPS] = {false};
    unsigned n_pairs = 0, n_places = 0;

    for (uint64_t step = 0; step < 8 * N_STEPS; step++) {
        const uint32_t *got;
        uint32_t n;
        client_batches_get(&got, &n, &b, step);
        n_places += n < BATCH && !is_short[step % N_STEPS];
        is_short[step % N_STEPS] |= n < BATCH;
        for (uint32_t i = 0; step < 2 * N_STEPS && i < n; i++)
            at[step / N_STEPS][got[i]] = step;
    }
    for (uint32_t i = 0; i < N - 3; i++)
        for (uint32_t k = 0; k < i; k++)
            n_pairs += at[0][i] == at[0][k] && at[1][i] == at[1][k];
    ck_assert_uint_lt(n_pairs, 100);
    ck_assert_uint_gt(n_places, 4);
    client_batches_free(&b);
    client_subset_free(&subset);
}

/* Of 13 rows in fours, and of 3 in eights: one permutation behind the other, whatever the steps begin with. */
TEST_EACH(rows_that_flow_fill_every_minibatch, 3)
{
    static const uint32_t n_rows[] = {13, 3, 16};
    const uint32_t n = n_rows[_i], batch = n == 3 ? 8 : 4;
    struct client_subset subset = all(n);
    const struct client_batches_options options = {
        .subset = &subset, .batch = batch, .seq = SEQ, .order = EPS_SHUFFLED, .seed = 1, .flows = true};
    struct client_batches flowing, plain;
    struct client_sample got[8];
    unsigned times[13 + 3] = {0};
    uint64_t at = 0, tokens = 0;

    ck_assert_int_eq(client_batches_init(&flowing, &options, NULL), 0);
    for (uint64_t step = 0; step < 3 * n; step++) {
        ck_assert_uint_eq(client_batches_tokens(&flowing, step), tokens);
        ck_assert_uint_eq(client_batches_pick(got, &flowing, step), batch);
        for (uint32_t i = 0; i < batch; i++, at++) {
            ck_assert_uint_lt(got[i].id, n);
            ck_assert_uint_eq(times[got[i].id]++, at / n); /* once in each epoch */
            tokens += length_of((uint32_t)got[i].id);
        }
    }
    struct client_batches_options in_epochs = options;
    in_epochs.flows = false;
    ck_assert_int_eq(client_batches_init(&plain, &in_epochs, NULL), 0);
    for (uint64_t step = 0; n % batch == 0 && step < 8; step++) { /* the same rows */
        struct client_sample want[8];
        client_batches_pick(got, &flowing, step);
        client_batches_pick(want, &plain, step);
        ck_assert_mem_eq(got, want, batch * sizeof *got);
    }
    client_batches_free(&flowing), client_batches_free(&plain);
    client_subset_free(&subset);
}

TEST(sequential_order_is_the_data_s)
{
    struct client_subset subset = all(N - 3);
    struct client_batches b = batches_of(&subset, EPS_SEQUENTIAL, 1);
    const uint32_t *got;
    uint32_t n, next = 0;

    for (uint64_t step = 0; step < N_STEPS; step++) {
        client_batches_get(&got, &n, &b, step);
        for (uint32_t i = 0; i < n; i++)
            ck_assert_uint_eq(got[i], next++);
    }
    ck_assert_uint_eq(next, N - 3);
    client_batches_free(&b);
    client_subset_free(&subset);
}

/* Without padding: each row's own length, cut to SEQ. */
TEST(tokens_so_far_are_real_ones)
{
    struct client_subset subset = all(N - 3);
    struct client_batches b = batches_of(&subset, EPS_SHUFFLED, 5);
    uint64_t sum = 0;

    for (uint64_t step = 0; step < 2 * N_STEPS + 9; step++) {
        const uint32_t *got;
        uint32_t n;
        ck_assert_uint_eq(client_batches_tokens(&b, step), sum);
        client_batches_get(&got, &n, &b, step);
        for (uint32_t i = 0; i < n; i++)
            sum += length_of(got[i]);
    }
    client_batches_free(&b);
    client_subset_free(&subset);
}

TEST(a_minibatch_is_as_long_as_its_longest_row_in_eights)
{
    ck_assert_uint_eq(client_batches_length(8, SEQ), 8);
    ck_assert_uint_eq(client_batches_length(9, SEQ), 16);
    ck_assert_uint_eq(client_batches_length(93, SEQ), 96);
    ck_assert_uint_eq(client_batches_length(93, 50), 50);
    ck_assert_uint_eq(client_batches_length(UINT32_MAX, 50), 50); /* rounded up it would be 0 */
}

TEST(a_tenth_is_held_out_by_the_seed)
{
    struct client_subset rest, held, other_rest, other;
    uint32_t n_common = 0;

    ck_assert_int_eq(client_subset_divide(&rest, &held, lengths, N, 1, NULL), 0);
    ck_assert_int_eq(client_subset_divide(&other_rest, &other, lengths, N, 2, NULL), 0);
    ck_assert_uint_eq(held.n, N / 10);
    ck_assert_uint_eq(rest.n, N - N / 10);
    bool seen[N] = {false};
    for (uint32_t i = 0; i < held.n; i++)
        seen[held.list[i]] = true;
    for (uint32_t i = 0; i < rest.n; i++) {
        ck_assert(!seen[rest.list[i]]);
        seen[rest.list[i]] = true;
    }
    for (uint32_t i = 0; i < N; i++)
        ck_assert(seen[i]);
    memset(seen, 0, sizeof seen);
    for (uint32_t i = 0; i < held.n; i++)
        seen[held.list[i]] = true;
    for (uint32_t i = 0; i < other.n; i++)
        n_common += seen[other.list[i]];
    ck_assert_uint_lt(n_common, 40); /* 10 of 100 are expected */
    client_subset_free(&rest), client_subset_free(&held), client_subset_free(&other_rest), client_subset_free(&other);

    struct error err = {""};
    ck_assert_int_eq(client_subset_divide(&rest, &held, lengths, 1, 1, &err), -EINVAL);
    ck_assert_holds(err.text, "one row");
    client_subset_free(&rest), client_subset_free(&held);
}

/* 30 rows once, 20 twice and 50 every second time are 95 rows an epoch. After 20 epochs each has had its share, to the
 * row, and in each epoch no row comes more often than its weight rounded up. */
TEST(shares_are_taken_as_often_as_their_weights_say)
{
    static const struct client_share shares[] = {{.first = 0, .n = 30, .weight = 1},
                                                 {.first = 30, .n = 0, .weight = 7},
                                                 {.first = 30, .n = 20, .weight = 2},
                                                 {.first = 50, .n = 50, .weight = 0.5}};
    struct client_subset subset = all(100);
    const struct client_batches_options options = {.subset = &subset,
                                                   .shares = shares,
                                                   .n_shares = 4,
                                                   .batch = BATCH,
                                                   .part = BATCH,
                                                   .seq = SEQ,
                                                   .order = EPS_SHUFFLED,
                                                   .seed = 1};
    struct client_batches b, other;
    unsigned total[100] = {0}, n_new = 0, n_again = 0;
    bool first_half[100];
    uint64_t tokens = 0;
    const uint32_t *got;
    uint32_t n;

    ck_assert_int_eq(client_batches_init(&b, &options, NULL), 0);
    ck_assert_int_eq(client_batches_init(&other, &options, NULL), 0);
    ck_assert_uint_eq(b.n_rows, 30 + 40 + 25);
    ck_assert_uint_eq(b.n, 12);
    for (uint64_t epoch = 0; epoch < 20; epoch++) {
        unsigned now[100] = {0};
        for (uint64_t step = epoch * b.n; step < (epoch + 1) * b.n; step++) {
            ck_assert_uint_eq(client_batches_tokens(&b, step), tokens);
            client_batches_get(&got, &n, &b, step);
            for (uint32_t i = 0; i < n; i++)
                now[got[i]]++, tokens += length_of(got[i]);
        }
        for (unsigned row = 0; row < 100; row++) {
            ck_assert_uint_le(now[row], row >= 30 && row < 50 ? 2 : 1);
            total[row] += now[row];
            n_new += epoch == 1 && row >= 50 && now[row] && total[row] == 1;
            first_half[row] = epoch == 0 ? now[row] > 0 : first_half[row];
            n_again += epoch == 2 && row >= 50 && now[row] && first_half[row];
        }
    }
    for (unsigned row = 0; row < 100; row++)
        ck_assert_uint_eq(total[row], row < 30 ? 20 : row < 50 ? 40 : 10);
    ck_assert_uint_eq(n_new, 25);   /* the second epoch has the other half */
    ck_assert_uint_lt(n_again, 20); /* and the third one half of another permutation: by chance 12 or 13 of the first */
    client_batches_get(&got, &n, &b, 230);
    const uint32_t first = got[0];
    client_batches_get(&got, &n, &other, 230); /* without those before it */
    ck_assert_uint_eq(got[0], first);
    ck_assert_uint_eq(client_batches_tokens(&other, 240), tokens);
    client_batches_free(&b), client_batches_free(&other);
    client_subset_free(&subset);
}
