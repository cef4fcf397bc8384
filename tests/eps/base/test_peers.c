/* Events that parts of the daemon post to each other. */
#include "eps/base/peers.h"

#include "tests/kit/test.h"

#include <signal.h>

static uv_loop_t loop;
static struct peers peers;
static unsigned n_woken;

static void on_wake(uv_async_t *wake)
{
    (void)wake;
    n_woken++;
}

static void setup(void)
{
    ck_assert_int_eq(uv_loop_init(&loop), 0);
    ck_assert_int_eq(uv_async_init(&loop, &peers.wake, on_wake), 0);
    peers.loop = &loop;
}

static void teardown(void)
{
    uv_close((uv_handle_t *)&peers.wake, NULL);
    uv_run(&loop, UV_RUN_DEFAULT);
    ck_assert_int_eq(uv_loop_close(&loop), 0);
}

SUITE_FIXTURE(setup, teardown)

static void post(uint32_t reader)
{
    event_post(&peers, &(struct event){.kind = EVENT_ANNOUNCED, .reader = reader});
}

/* More than fit at once, so that the ring goes round. */
TEST(a_post_wakes_the_loop_and_events_are_taken_in_their_order)
{
    uint32_t posted = 0, taken = 0;
    struct event event;

    uv_run(&loop, UV_RUN_NOWAIT);
    ck_assert_uint_eq(n_woken, 0);
    post(posted++);
    uv_run(&loop, UV_RUN_ONCE);
    ck_assert_uint_eq(n_woken, 1);
    ck_assert(event_take(&peers, &event) && event.reader == taken++);
    for (uint32_t round = 1; round <= EVENT_MAX; round++) {
        for (uint32_t i = 0; i < round; i++)
            post(posted++);
        for (uint32_t i = 0; i < round; i++) {
            ck_assert(event_take(&peers, &event));
            ck_assert_int_eq(event.kind, EVENT_ANNOUNCED);
            ck_assert_uint_eq(event.reader, taken++);
        }
        ck_assert(!event_take(&peers, &event));
    }
}

TEST_SIGNAL(more_events_than_there_are_parts_to_post_them_is_a_mistake, SIGABRT)
{
    for (uint32_t i = 0; i <= EVENT_MAX; i++)
        post(i);
}
