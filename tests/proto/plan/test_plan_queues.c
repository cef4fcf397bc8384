#include "proto/plan/time/queues.h"

#include "tests/kit/test.h"

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
