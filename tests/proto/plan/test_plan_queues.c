#include "proto/plan/time/queues.h"

#include "tests/kit/test.h"

#include <string.h>

static void forget(void *context, const struct plan_task *task)
{
    (void)context, (void)task;
}

static void pass_all(struct plan_queues *q, enum plan_queue host_waits_for)
{
    while (plan_queues_pass(q, host_waits_for, INFINITY, forget, NULL))
        ;
}

/* 2 s of a pull, then 3 s of computing, then 1 s of a push. */
TEST(who_waits_for_whom_is_who_was_at_work)
{
    struct plan_queues q = {0};

    plan_queues_give(&q, PLAN_QUEUE_PULL, &(struct plan_task){.seconds = 2});
    plan_queues_follow(&q, PLAN_QUEUE_COMPUTE, PLAN_QUEUE_PULL, 1);
    plan_queues_give(&q, PLAN_QUEUE_COMPUTE, &(struct plan_task){.seconds = 3});
    plan_queues_follow(&q, PLAN_QUEUE_PUSH, PLAN_QUEUE_COMPUTE, 1);
    plan_queues_give(&q, PLAN_QUEUE_PUSH, &(struct plan_task){.seconds = 1});
    pass_all(&q, PLAN_QUEUE_PUSH);
    ck_assert_double_eq(q.now, 6);
    ck_assert_double_eq(q.queues[PLAN_QUEUE_PUSH].waited[PLAN_QUEUE_PULL], 2); /* by way of computing */
    ck_assert_double_eq(q.queues[PLAN_QUEUE_PUSH].waited[PLAN_QUEUE_COMPUTE], 3);
    ck_assert_double_eq(q.queues[PLAN_QUEUE_COMPUTE].waited[PLAN_QUEUE_PUSH], 1); /* as the host does */
    ck_assert_double_eq(q.queues[PLAN_QUEUE_COMPUTE].busy, 3);
    ck_assert_double_eq(q.queues[PLAN_QUEUE_OPTIMIZER].waited[PLAN_QUEUE_PULL], 2);
    plan_queues_free(&q);
}

/* Of 10 bytes a second, copies want 4 each way and the optimizer 12: half of what they want, until a copy of 2 s is
 * done after 4. The other, of 1 s, was done after 2: from then on 10 of 16. So the first: 1 s of its 2 in the first 2
 * seconds, the second in 1.6 more. The optimizer's 3 s: 1, 1 and, alone, at 10 of 12 the last in 1.2. Computing goes on
 * beside. */
TEST(the_host_s_memory_is_shared)
{
    struct plan_queues q = {.host_bytes_per_s = 10};

    plan_queues_give(&q, PLAN_QUEUE_PULL, &(struct plan_task){.seconds = 2, .host_bytes = 8});
    plan_queues_give(&q, PLAN_QUEUE_PUSH, &(struct plan_task){.seconds = 1, .host_bytes = 4});
    plan_queues_give(&q, PLAN_QUEUE_OPTIMIZER, &(struct plan_task){.seconds = 3, .host_bytes = 36});
    plan_queues_give(&q, PLAN_QUEUE_COMPUTE, &(struct plan_task){.seconds = 4.5});
    pass_all(&q, PLAN_QUEUE_OPTIMIZER);
    ck_assert_double_eq_tol(q.queues[PLAN_QUEUE_PUSH].busy, 2, 1e-12);
    ck_assert_double_eq_tol(q.queues[PLAN_QUEUE_PULL].busy, 3.6, 1e-12);
    ck_assert_double_eq_tol(q.queues[PLAN_QUEUE_COMPUTE].busy, 4.5, 1e-12);
    ck_assert_double_eq_tol(q.now, 4.8, 1e-12);
    plan_queues_free(&q);
}

static void note_unit(void *context, const struct plan_task *task)
{
    uint32_t **next = context;

    *(*next)++ = task->unit;
}

/* What it has begun it ends. */
TEST(the_optimizer_takes_the_lowest_unit_first)
{
    static const uint32_t given[] = {5, 7, 2, 7, 1}, done[] = {5, 1, 2, 7, 7};
    uint32_t units[5], *next = units;
    struct plan_queues q = {0};

    plan_queues_give(&q, PLAN_QUEUE_PULL, &(struct plan_task){.seconds = 0.5});
    plan_queues_give(&q, PLAN_QUEUE_OPTIMIZER, &(struct plan_task){.seconds = 1, .unit = given[0]});
    ck_assert(plan_queues_pass(&q, PLAN_QUEUE_PULL, INFINITY, note_unit, &next)); /* it is at work */
    for (int i = 1; i < 5; i++)
        plan_queues_give(&q, PLAN_QUEUE_OPTIMIZER, &(struct plan_task){.seconds = 1, .unit = given[i]});
    while (plan_queues_pass(&q, PLAN_QUEUE_OPTIMIZER, INFINITY, note_unit, &next))
        ;
    ck_assert_mem_eq(units, done, sizeof done);
    plan_queues_free(&q);
}

struct listed {
    uint32_t unit, number;
};

static void note_number(void *context, const struct plan_task *task)
{
    uint32_t **next = context;

    *(*next)++ = (uint32_t)task->host_bytes;
}

/* Of those of the lowest unit the first: its place in a list that is searched one by one. */
static uint32_t lowest_of(const struct listed *list, uint32_t n)
{
    uint32_t lowest = 0;

    for (uint32_t i = 1; i < n; i++)
        lowest = list[i].unit < list[lowest].unit ? i : lowest;
    return lowest;
}

/* A thousand tasks of 1 s: the first half of falling units, as in backward, the second of any. Most come faster than
 * they are done, so that no place in front is free; copies of a quarter of a second end while one is at work. */
TEST(its_order_is_that_of_a_list_that_is_searched)
{
    enum { TASKS = 1000, QUARTERS = 4 };
    uint32_t expected[TASKS], done[TASKS], *next = done, n_expected = 0, n = 0, left = 0, random = 1;
    struct listed waiting[TASKS];
    struct plan_queues q = {0}; /* shares no memory, so host_bytes number the tasks */

    for (uint32_t i = 0; i < TASKS || n > 0;) {
        random = random * 1664525 + 1013904223;
        if (i < TASKS && (random >> 24) % 8 > 1) {
            waiting[n] = (struct listed){i < TASKS / 2 ? TASKS - i / 3 : (random >> 8) % TASKS, i};
            plan_queues_give(&q, PLAN_QUEUE_OPTIMIZER,
                             &(struct plan_task){.seconds = 1, .host_bytes = i++, .unit = waiting[n++].unit});
            continue;
        }
        if (left == 0 && n > 0) {
            const uint32_t at = lowest_of(waiting, n--);
            expected[n_expected++] = waiting[at].number;
            memmove(waiting + at, waiting + at + 1, (n - at) * sizeof *waiting);
            left = QUARTERS;
        }
        plan_queues_give(&q, PLAN_QUEUE_PULL, &(struct plan_task){.seconds = 1.0 / QUARTERS});
        ck_assert(plan_queues_pass(&q, PLAN_QUEUE_OPTIMIZER, INFINITY, note_number, &next));
        left -= left > 0;
    }
    while (plan_queues_pass(&q, PLAN_QUEUE_OPTIMIZER, INFINITY, note_number, &next))
        ;
    ck_assert_mem_eq(done, expected, sizeof expected);
    plan_queues_free(&q);
}
