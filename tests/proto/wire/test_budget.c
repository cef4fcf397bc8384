/* What a user may ask in a tick, by hand: 512 messages; a debt is at most as many. */
#include "proto/wire/budget.h"
#include "tests/kit/test.h"

TEST(a_user_has_what_a_tick_allows_and_pays_what_is_beyond)
{
    struct budget budget = {0};

    ck_assert(budget_allows(&budget, 7));
    budget_spend(&budget, 7, 511);
    ck_assert(budget_allows(&budget, 7));
    budget_spend(&budget, 7, 101);
    ck_assert(!budget_allows(&budget, 7));
    ck_assert(budget_allows(&budget, 8));
    budget_refill(&budget); /* -100 + 512 */
    budget_spend(&budget, 7, 411);
    ck_assert(budget_allows(&budget, 7));
    budget_spend(&budget, 7, 1);
    ck_assert(!budget_allows(&budget, 7));
}

/* Of one large sum, or of many that are each within a tick's. */
TEST_EACH(a_debt_is_paid_after_two_ticks_at_most, 2)
{
    struct budget budget = {0};

    for (unsigned i = 0; i < 100; i++)
        budget_spend(&budget, 7, _i ? 300 : 4000000000);
    budget_refill(&budget);
    ck_assert(!budget_allows(&budget, 7));
    budget_refill(&budget);
    ck_assert(budget_allows(&budget, 7));
    ck_assert_uint_eq(budget.n, 0); /* nothing is kept of those who owe nothing */
}

TEST(users_beyond_those_that_are_counted_share_a_budget)
{
    struct budget budget = {0};

    for (uid_t uid = 0; uid < BUDGET_USERS; uid++)
        budget_spend(&budget, uid, 1);
    budget_spend(&budget, 1000, 300);
    ck_assert(budget_allows(&budget, 1001));
    budget_spend(&budget, 1001, 300);
    ck_assert(!budget_allows(&budget, 1000) && !budget_allows(&budget, 1002));
    ck_assert(budget_allows(&budget, 0) && budget_allows(&budget, BUDGET_USERS - 1));
    budget_refill(&budget);
    ck_assert(budget_allows(&budget, 1000));
}

/* 64 users pay at once, so that the table is empty; the two that share a debt of a tick both owe it for another. */
TEST(a_shared_debt_stays_everybodys_when_the_table_has_room_again)
{
    struct budget budget = {0};

    for (uid_t uid = 0; uid < BUDGET_USERS; uid++)
        budget_spend(&budget, uid, 1);
    budget_spend(&budget, 1000, 1);
    budget_spend(&budget, 1001, 2 * BUDGET_TICK);
    budget_refill(&budget);
    ck_assert_uint_eq(budget.n, 0);
    ck_assert(!budget_allows(&budget, 1000) && !budget_allows(&budget, 1001));
    budget_refill(&budget);
    ck_assert(budget_allows(&budget, 1000) && budget_allows(&budget, 1001));
    budget_spend(&budget, 1001, 1); /* an account of its own again */
    ck_assert_uint_eq(budget.n, 1);
}
