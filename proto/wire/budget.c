#include "proto/wire/budget.h"

/* The last entry is that of all users that have no other. budget->n: none yet. */
static unsigned budget_find(const struct budget *budget, uid_t uid)
{
    unsigned i = 0;

    while (i < budget->n && i < BUDGET_USERS && budget->users[i].uid != uid)
        i++;
    return i;
}

void budget_spend(struct budget *budget, uid_t uid, unsigned n)
{
    const unsigned i = budget_find(budget, uid);
    int *left = &budget->users[i].left;

    if (i == budget->n)
        budget->users[budget->n++] = (struct budget_user){uid, BUDGET_TICK};
    *left = n > BUDGET_TICK || *left - (int)n < -BUDGET_TICK ? -BUDGET_TICK : *left - (int)n;
}

bool budget_allows(const struct budget *budget, uid_t uid)
{
    const unsigned i = budget_find(budget, uid);

    return i == budget->n || budget->users[i].left > 0;
}

void budget_refill(struct budget *budget)
{
    unsigned n = 0;

    for (unsigned i = 0; i < budget->n; i++) {
        struct budget_user user = budget->users[i];
        user.left += BUDGET_TICK;
        if (user.left < BUDGET_TICK)
            budget->users[n++] = user;
    }
    budget->n = n;
}
