#include "tests/kit/test.h"

#include "proto/base/ledger.h"

#include <signal.h>

static void check(const struct ledger_row *row, uint64_t current, uint64_t peak)
{
    ck_assert_uint_eq(row->current, current);
    ck_assert_uint_eq(row->peak, peak);
}

TEST(the_total_is_the_sum_and_peaks_remember_until_they_are_to_forget)
{
    const uint64_t more_than_32_bits = (uint64_t)3 << 40;
    struct ledger ledger = {0};

    ledger_add(&ledger, LEDGER_WEIGHTS, 100);
    ledger_add(&ledger, LEDGER_STASH, 30);
    ledger_sub(&ledger, LEDGER_WEIGHTS, 60);
    ledger_add(&ledger, LEDGER_STASH, 20);
    check(&ledger.rows[LEDGER_WEIGHTS], 40, 100);
    check(&ledger.rows[LEDGER_STASH], 50, 50);
    check(&ledger.rows[LEDGER_DATA], 0, 0);
    check(&ledger.total, 90, 130); /* of the sum at one time, not the sum of the peaks */
    ledger_forget_peaks(&ledger);  /* the next job's are not this one's */
    check(&ledger.rows[LEDGER_WEIGHTS], 40, 40);
    check(&ledger.total, 90, 90);
    ledger_add(&ledger, LEDGER_OTHER, more_than_32_bits);
    ledger_sub(&ledger, LEDGER_OTHER, 1);
    check(&ledger.total, 90 + more_than_32_bits - 1, 90 + more_than_32_bits);
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
        "weights", "replay",       "master",     "first_moment", "second_moment", "inbox",        "accumulators",
        "tied",    "gradient_sum", "checksums",  "norms",        "data",          "contribution", "stash",
        "kept",    "gradient",     "statistics", "cache",        "workspace",     "library",      "other",
    };

    for (int i = 0; i < LEDGER_CATEGORIES; i++)
        ck_assert_str_eq(ledger_name((enum ledger_category)i), names[i]);
    ck_assert_ptr_null(ledger_name(LEDGER_CATEGORIES));
    ck_assert_ptr_null(ledger_name((enum ledger_category) - 1));
}
