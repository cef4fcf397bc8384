/* Users without an entry have spent nothing, so the table is empty most of the time, and a refill removes whoever has
 * paid. Beyond BUDGET_USERS users, all others share one account: many users together are then held back like one, which
 * is better than a table that anybody can make grow. Who has spent from the shared account is not known. So while it
 * owes anything it remains the account of all users without an entry, even if the table has room again. */
#include "proto/wire/budget.h"

enum { MOST_SPENT = 2 * BUDGET_TICK }; /* a tick's budget, and a debt of as much */

/* budget->n: none yet. */
static unsigned budget_find(const struct budget *budget, uid_t uid)
{
    unsigned i = 0;

    while (i < budget->n && budget->users[i].uid != uid)
        i++;
    return i;
}

void budget_spend(struct budget *budget, uid_t uid, unsigned n)
{
    const unsigned i = budget_find(budget, uid);

    if (i == budget->n && i < BUDGET_USERS && budget->others_spent == 0)
        budget->users[budget->n++] = (struct budget_user){uid, 0};
    unsigned *spent = i < budget->n ? &budget->users[i].spent : &budget->others_spent;
    *spent = n < MOST_SPENT - *spent ? *spent + n : MOST_SPENT;
}

bool budget_allows(const struct budget *budget, uid_t uid)
{
    const unsigned i = budget_find(budget, uid);

    return (i < budget->n ? budget->users[i].spent : budget->others_spent) < BUDGET_TICK;
}

static unsigned budget_pay(unsigned spent)
{
    return spent > BUDGET_TICK ? spent - BUDGET_TICK : 0;
}

void budget_refill(struct budget *budget)
{
    unsigned n = 0;

    for (unsigned i = 0; i < budget->n; i++) {
        const struct budget_user user = {budget->users[i].uid, budget_pay(budget->users[i].spent)};
        if (user.spent > 0)
            budget->users[n++] = user;
    }
    budget->n = n;
    budget->others_spent = budget_pay(budget->others_spent);
}
