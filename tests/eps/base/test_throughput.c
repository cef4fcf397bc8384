/* Shares by speed, from times that the test makes up. Expected divisions by hand. */
#include "eps/base/throughput.h"
#include "tests/kit/test.h"

#include <string.h>

enum { ROOMY = 100 };

static void measure(struct throughput *throughput, double ms, uint32_t n_parts)
{
    throughput_begin(throughput, n_parts);
    throughput_on_weights(throughput, 1000);
    throughput_on_weights(throughput, 1001); /* of the next unit: no new beginning */
    for (uint32_t i = 0; i < n_parts; i++)
        throughput_on_loss(throughput, 1000 + ms * (i + 1) / n_parts);
}

TEST(a_speed_is_known_after_five_steps_and_one_disturbed_step_changes_nothing)
{
    struct throughput throughput = {0};

    for (int i = 0; i < THROUGHPUT_STEPS; i++) {
        ck_assert_double_eq(throughput_of(&throughput), 0);
        measure(&throughput, i == 2 ? 9000 : 60, 3);
    }
    ck_assert_double_eq(throughput_of(&throughput), 20);
    for (int i = 0; i < 3; i++)
        measure(&throughput, 80, 2);
    ck_assert_double_eq(throughput_of(&throughput), 40);
}

/* A share that is given out again begins again; a loss without weights counts for nothing. */
TEST(a_share_that_is_replaced_is_measured_from_its_own_beginning)
{
    struct throughput throughput = {0};

    for (int i = 0; i < THROUGHPUT_STEPS; i++) {
        throughput_begin(&throughput, 2);
        throughput_on_loss(&throughput, 5);
        throughput_on_weights(&throughput, 0);
        throughput_on_loss(&throughput, 50);
        throughput_begin(&throughput, 3);
        throughput_on_weights(&throughput, 100);
        for (int p = 0; p < 3; p++)
            throughput_on_loss(&throughput, 130);
        throughput_on_loss(&throughput, 999); /* one too many */
    }
    ck_assert_uint_eq(throughput.n, THROUGHPUT_STEPS);
    ck_assert_double_eq(throughput_of(&throughput), 10);
}

static const struct {
    double part_ms[3];
    uint32_t room[3], n_parts, expected[3];
} divisions[] = {
    {{10, 10, 10}, {ROOMY, ROOMY, ROOMY}, 6, {2, 2, 2}},
    {{10, 10, 10}, {ROOMY, ROOMY, ROOMY}, 7, {3, 2, 2}},
    {{10, 20, 40}, {ROOMY, ROOMY, ROOMY}, 7, {4, 2, 1}},
    {{10, 100, 100}, {ROOMY, ROOMY, ROOMY}, 4, {2, 1, 1}}, /* each gets one */
    {{10, 100, 100}, {ROOMY, ROOMY, ROOMY}, 2, {2, 0, 0}},
    {{10, 20, 40}, {2, ROOMY, ROOMY}, 7, {2, 4, 1}}, /* {2, 3, 2} takes as long */
    {{0, 0, 0}, {ROOMY, ROOMY, ROOMY}, 5, {2, 2, 1}},
    {{10, 0, 30}, {ROOMY, ROOMY, ROOMY}, 5, {3, 1, 1}}, /* unknown: as 30, the median of two */
};

TEST_EACH(parts_go_where_they_end_earliest, COUNT(divisions))
{
    struct throughput_share shares[3];
    uint32_t sum = 0;

    for (int i = 0; i < 3; i++)
        shares[i] = (struct throughput_share){.part_ms = divisions[_i].part_ms[i], .room = divisions[_i].room[i]};
    throughput_divide(shares, 3, divisions[_i].n_parts);
    for (int i = 0; i < 3; i++) {
        ck_assert_uint_eq(shares[i].n, divisions[_i].expected[i]);
        sum += shares[i].n;
    }
    ck_assert_uint_eq(sum, divisions[_i].n_parts);
}

/* A brute force over all divisions of up to 8 parts, one at least for each worker, finds no faster one. */
TEST(no_division_is_faster)
{
    uint64_t state = 1;

    for (int n = 0; n < 2000; n++) {
        struct throughput_share shares[3], other[3];
        const uint32_t n_parts = 1 + (uint32_t)n % 8;
        for (int i = 0; i < 3; i++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            shares[i] = (struct throughput_share){.part_ms = 1 + (double)(state >> 60), .room = n_parts};
        }
        throughput_divide(shares, 3, n_parts);
        memcpy(other, shares, sizeof other);
        const uint32_t least = n_parts >= 3;
        for (uint32_t a = least; a <= n_parts; a++)
            for (uint32_t b = least; a + b + least <= n_parts; b++) {
                other[0].n = a, other[1].n = b, other[2].n = n_parts - a - b;
                ck_assert_double_ge(throughput_time(other, 3), throughput_time(shares, 3));
            }
    }
}

/* Speeds that vary by a tenth around one another never move a part; twice the speed moves parts once, and then no
 * more. */
TEST(shares_do_not_flap)
{
    static const double noise[] = {1, 1.1, 0.9, 1.05, 0.95, 1.1, 0.9};
    struct throughput_share now[2] = {{.room = 6, .n = 3}, {.room = 6, .n = 3}}, then[2];
    unsigned n_changes = 0;

    for (unsigned twice = 0; twice < 2; twice++) {
        for (int i = 0; i < 49; i++) {
            now[0].part_ms = 100 * noise[i % 7] * (1 + twice), now[1].part_ms = 100 * noise[i / 7];
            memcpy(then, now, sizeof then);
            throughput_divide(then, 2, 6);
            if (!throughput_is_worth(throughput_time(now, 2), throughput_time(then, 2)))
                continue;
            n_changes++;
            memcpy(now, then, sizeof now);
        }
        ck_assert_uint_eq(n_changes, twice);
    }
    ck_assert_uint_eq(now[0].n, 2);
    ck_assert(!throughput_is_worth(8, 4)); /* too little time to be measured well */
    ck_assert(throughput_is_worth(80, 70));
    ck_assert(!throughput_is_worth(80, 71));
}
