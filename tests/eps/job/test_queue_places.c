/* Places in the queue: by user, and one for the owner. By hand: of 16 places a member has 4, of 8 two, of fewer one. */
#include "eps/job/queue.h"
#include "tests/kit/test.h"
#include "tests/proto/wire/session_of.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

enum { MOST = 40 };

static struct peer clients[MOST];
static unsigned n_clients;
static struct queue queue;

/* The owner is not root, who counts as the owner. */
static void begin(void)
{
    ck_assert(geteuid() > 0 || seteuid(4321) == 0);
    n_clients = 0;
    queue = (struct queue){0};
}

static void end(void)
{
    while (queue.first)
        queue_drop(&queue, queue.first);
    ck_assert_int_eq(seteuid(getuid()), 0);
}

SUITE_FIXTURE(begin, end)

/* Another client of this user asks for a place. */
static int add(uid_t uid, const char *sentence)
{
    const struct message request = {.kind = MESSAGE_JOB};
    const unsigned i = n_clients++;
    struct error err = {""};

    ck_assert_uint_lt(i, MOST);
    clients[i] = (struct peer){.session = session_of(uid)};
    const int rc = queue_add(&queue, &clients[i], i + 1, &request, NULL, 0, &err);
    ck_assert_msg(strstr(err.text, sentence) != NULL, "%s", err.text);
    return rc;
}

TEST_EACH(a_user_has_a_quarter_of_the_places_and_the_owner_one_more, 5)
{
    static const struct {
        uint32_t most, share;
    } queues[] = {{1, 1}, {2, 1}, {8, 2}, {15, 3}, {16, 4}};
    const uint32_t most = queues[_i].most;
    uid_t uid = 1000 + geteuid();

    queue.most = most;
    while (queue.n < most) {
        for (uint32_t i = 0; i < queues[_i].share && queue.n < most; i++)
            ck_assert_int_eq(add(uid, ""), 0);
        if (queue.n < most)
            ck_assert_int_eq(add(uid, "as many as one user's may"), -ENOBUFS);
        uid++;
    }
    ck_assert_int_eq(add(uid, "(epsd --queue)"), -ENOBUFS);
    ck_assert_int_eq(add(geteuid(), ""), 0);
    ck_assert_int_eq(add(geteuid(), "(epsd --queue)"), -ENOBUFS);
    ck_assert_int_eq(add(0, "(epsd --queue)"), -ENOBUFS); /* root has the owner's */
    ck_assert_uint_eq(queue.n, most + 1);
}

TEST(the_owner_may_have_all_places_and_none_of_a_queue_that_has_none)
{
    queue.most = 16;
    for (int i = 0; i < 16; i++)
        ck_assert_int_eq(add(geteuid(), ""), 0);
    ck_assert_int_eq(add(geteuid(), "16 jobs wait already"), -ENOBUFS);
    end();
    begin();
    ck_assert_int_eq(add(geteuid(), "0 jobs wait already"), -ENOBUFS);
}
