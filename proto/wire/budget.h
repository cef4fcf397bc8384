/* proto/wire/budget.h - a limit on each user's requests to a daemon in a tick.
 *
 * A daemon answers everybody on one thread, which is also the one that relays weights. So a user's requests are
 * counted, over all of the user's sessions. A user who asks for more than a tick's budget is in debt: further requests
 * wait unread until later ticks have paid it. */
#ifndef PROTO_WIRE_BUDGET_H
#define PROTO_WIRE_BUDGET_H

#include <stdbool.h>
#include <sys/types.h>

enum {
    BUDGET_TICK = 512,     /* messages read or sent for a user in a tick; a debt is never larger */
    BUDGET_NS = 100000000, /* of the daemon's time cost as much as BUDGET_TICK messages */
    BUDGET_USERS = 64,     /* users counted one by one; all further users share one entry */
};

struct budget {
    struct budget_user {
        uid_t uid;
        unsigned spent; /* messages that are not paid yet, > 0 */
    } users[BUDGET_USERS];
    unsigned n;
    unsigned others_spent; /* by all users without an entry, together; > 0: no entry is added */
};

/* The user has cost n (> 0) messages. */
void budget_spend(struct budget *budget, uid_t uid, unsigned n);
/* True if the user has something left. */
bool budget_allows(const struct budget *budget, uid_t uid);
/* A tick has passed: pays BUDGET_TICK of what each user has spent. */
void budget_refill(struct budget *budget);

#endif
