#include "tests/kit/test.h"

#include "proto/base/ledger.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

TEST(the_total_is_the_sum_and_peaks_remember)
{
    struct ledger ledger = {0};

    ledger_add(&ledger, LEDGER_WEIGHTS, 100);
    ledger_add(&ledger, LEDGER_STASH, 30);
    ledger_sub(&ledger, LEDGER_WEIGHTS, 60);
    ledger_add(&ledger, LEDGER_STASH, 20);
    ck_assert_uint_eq(ledger.rows[LEDGER_WEIGHTS].current, 40);
    ck_assert_uint_eq(ledger.rows[LEDGER_WEIGHTS].peak, 100);
    ck_assert_uint_eq(ledger.rows[LEDGER_STASH].current, 50);
    ck_assert_uint_eq(ledger.rows[LEDGER_STASH].peak, 50);
    ck_assert_uint_eq(ledger.total.current, 90);
    ck_assert_uint_eq(ledger.total.peak, 130); /* of the sum at one time, not the sum of the peaks */
    ck_assert_uint_eq(ledger.rows[LEDGER_DATA].peak, 0);
}

TEST(the_peaks_of_one_job_are_not_those_of_the_next)
{
    struct ledger ledger = {0};

    ledger_add(&ledger, LEDGER_WEIGHTS, 100);
    ledger_add(&ledger, LEDGER_OTHER, 7);
    ledger_sub(&ledger, LEDGER_WEIGHTS, 100);
    ledger_forget_peaks(&ledger);
    ck_assert_uint_eq(ledger.rows[LEDGER_WEIGHTS].peak, 0);
    ck_assert_uint_eq(ledger.rows[LEDGER_OTHER].peak, 7);
    ck_assert_uint_eq(ledger.total.peak, 7);
    ledger_add(&ledger, LEDGER_STASH, 5);
    ck_assert_uint_eq(ledger.total.peak, 12);
}

TEST(more_than_32_bits_are_counted)
{
    struct ledger ledger = {0};

    ledger_add(&ledger, LEDGER_OTHER, (uint64_t)3 << 40);
    ledger_sub(&ledger, LEDGER_OTHER, 1);
    ck_assert_uint_eq(ledger.total.current, ((uint64_t)3 << 40) - 1);
}

TEST_SIGNAL(taking_away_more_than_is_there_is_our_mistake, SIGABRT)
{
    struct ledger ledger = {0};

    ledger_add(&ledger, LEDGER_WEIGHTS, 10);
    ledger_sub(&ledger, LEDGER_DATA, 1); /* aborts, though the total would cover it */
}

/* The names are in eps mem --json for programs to read: they stay. */
TEST(each_category_has_its_name)
{
    static const char *const names[LEDGER_CATEGORIES] = {
        "weights",  "master",       "first_moment", "second_moment", "inbox",   "accumulators",
        "tied",     "gradient_sum", "data",         "contribution",  "stash",   "kept",
        "gradient", "statistics",   "cache",        "workspace",     "library", "other",
    };

    for (int i = 0; i < LEDGER_CATEGORIES; i++)
        ck_assert_str_eq(ledger_name((enum ledger_category)i), names[i]);
    ck_assert_ptr_null(ledger_name(LEDGER_CATEGORIES));
    ck_assert_ptr_null(ledger_name((enum ledger_category) - 1));
}
