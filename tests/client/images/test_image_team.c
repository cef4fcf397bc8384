/* Items on several threads. */
#include "tests/kit/test.h"

#include "client/images/team.h"

#include <errno.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { N = 1000, THREADS = 4 };

struct counted {
    atomic_int times[N];
    atomic_bool outside;
};

static int count(void *user, unsigned thread, size_t item, struct error *err)
{
    struct counted *c = user;

    (void)err;
    c->times[item]++;
    if (thread >= THREADS)
        c->outside = true;
    return 0;
}

TEST(each_item_is_done_once)
{
    struct counted counted = {0};

    ck_assert_int_eq(client_team_run(THREADS, N, count, &counted, NULL, NULL), 0);
    for (int i = 0; i < N; i++)
        ck_assert_int_eq(counted.times[i], 1);
    ck_assert(!counted.outside);
    ck_assert_int_eq(client_team_run(THREADS, 0, count, &counted, NULL, NULL), 0);
}

/* Item 2 fails only once item 5 has, which another thread has come to meanwhile. */
static int fail_late(void *user, unsigned thread, size_t item, struct error *err)
{
    atomic_bool *failed = user;

    (void)thread;
    while (item == 2 && !*failed)
        sched_yield();
    if (item == 5)
        *failed = true;
    return item == 2 || item == 5 ? error_set(err, item == 2 ? -EINVAL : -EIO, "item %zu", item) : 0;
}

TEST(the_error_is_the_first_item_s_whichever_fails_first)
{
    atomic_bool failed = false;
    struct error err = {""};

    ck_assert_int_eq(client_team_run(2, 10, fail_late, &failed, NULL, &err), -EINVAL);
    ck_assert_str_eq(err.text, "item 2");
}

static int ask(void *user, struct error *err)
{
    atomic_int *left = user;

    return --*left < 0 ? error_set(err, -EINTR, "interrupted") : 0;
}

TEST(the_watch_ends_the_work)
{
    struct counted counted = {0};
    atomic_int left = 2;
    struct error err = {""};
    int n = 0;

    ck_assert_int_eq(client_team_run(1, N, count, &counted, &(struct client_watch){.ask = ask, .data = &left}, &err),
                     -EINTR);
    ck_assert_str_eq(err.text, "interrupted");
    for (int i = 0; i < N; i++)
        n += counted.times[i];
    ck_assert_int_eq(n, 32); /* asked before items 0, 16 and 32 */
}
