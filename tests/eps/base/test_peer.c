/* The list of who is attached. */
#include "eps/base/peer.h"

#include "tests/kit/test.h"

TEST(workers_are_counted_until_they_are_refused)
{
    struct peer client = {.role = ROLE_CLIENT, .id = 4},
                bad = {.role = ROLE_WORKER, .id = 3, .refused = true, .next = &client},
                good = {.role = ROLE_WORKER, .id = 1, .next = &bad};

    ck_assert_uint_eq(peer_count_workers(NULL), 0);
    ck_assert_uint_eq(peer_count_workers(&good), 1);
    ck_assert_ptr_eq(peer_find(&good, 4), &client);
    ck_assert_ptr_eq(peer_find_worker(&good, 3), &bad);
    ck_assert_ptr_null(peer_find_worker(&good, 2));
    ck_assert_ptr_null(peer_find(&good, 3)); /* a client's id is none of a worker's */
    client.id = 1;
    ck_assert_ptr_eq(peer_find(&good, 1), &client);
    ck_assert_ptr_eq(peer_find_worker(&good, 1), &good);
}
