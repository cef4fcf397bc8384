/* Between two ends of tasks all speeds are constant, so time jumps from one to the next. Which tasks have ended is
 * decided by comparing durations, not by a rest of 0: rounding may leave a rest so small that adding it does not change
 * the time, and the simulation would never end.
 *
 * The optimizer's queue is ordered by unit, so its marks count tasks done without saying which: no other queue may
 * follow it. A finished task is copied out before the callback, which may give another one and so move the array. */
#include "proto/plan/time/queues.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void plan_queues_free(struct plan_queues *q)
{
    for (int i = 0; i < PLAN_QUEUES; i++)
        free(q->queues[i].tasks);
}

static struct plan_task *queues_first_of(struct plan_queue_state *s)
{
    return &s->tasks[s->first];
}

/* Makes room for one more task at the end. */
static bool queues_make_room(struct plan_queue_state *s)
{
    enum { LEAST = 64 };

    if (s->first + s->n < s->capacity)
        return true;
    if (s->first > s->n) {
        memmove(s->tasks, s->tasks + s->first, s->n * sizeof *s->tasks);
        s->first = 0;
        return true;
    }
    const size_t capacity = s->capacity ? 2 * s->capacity : LEAST;
    struct plan_task *tasks = realloc(s->tasks, capacity * sizeof *tasks);
    if (!tasks)
        return false;
    s->tasks = tasks, s->capacity = capacity;
    return true;
}

/* Moves the tasks of higher units up, except the running one. The place below them. */
static struct plan_task *make_gap(struct plan_queue_state *s, uint32_t unit)
{
    struct plan_task *const first = queues_first_of(s) + s->at_work, *at = queues_first_of(s) + s->n;

    for (; at > first && at[-1].unit > unit; at--)
        at[0] = at[-1];
    return at;
}

uint64_t plan_queues_give(struct plan_queues *q, enum plan_queue queue, const struct plan_task *task)
{
    struct plan_queue_state *s = &q->queues[queue];

    if (!queues_make_room(s)) {
        q->no_memory = true;
        return s->given;
    }
    struct plan_task *at = queue == PLAN_QUEUE_OPTIMIZER ? make_gap(s, task->unit) : queues_first_of(s) + s->n;
    *at = *task;
    memcpy(at->after, s->after, sizeof s->after);
    s->n++;
    return ++s->given;
}

/* The queue that the first task waits for, or PLAN_QUEUE_NOBODY. */
static enum plan_queue held_by(const struct plan_queues *q, const struct plan_queue_state *s)
{
    enum plan_queue other = 0;

    while (other < PLAN_QUEUES && q->queues[other].done >= s->tasks[s->first].after[other])
        other++;
    return other;
}

static void queues_begin(struct plan_queues *q)
{
    for (int i = 0; i < PLAN_QUEUES; i++) {
        struct plan_queue_state *s = &q->queues[i];
        if (s->at_work || s->n == 0 || held_by(q, s) != PLAN_QUEUE_NOBODY)
            continue;
        s->at_work = true;
        s->left = queues_first_of(s)->seconds;
    }
}

/* Host memory bytes per second that the first task takes if it runs alone. */
static double demand_of(const struct plan_queue_state *s)
{
    const struct plan_task *task = s->at_work ? &s->tasks[s->first] : NULL;

    return task && task->host_bytes > 0 && task->seconds > 0 ? task->host_bytes / task->seconds : 0;
}

/* Speed of tasks that touch host memory, relative to running alone. */
static double shared_speed(const struct plan_queues *q)
{
    double demand = 0;

    for (int i = 0; i < PLAN_QUEUES && q->host_bytes_per_s > 0; i++)
        demand += demand_of(&q->queues[i]);
    return demand > q->host_bytes_per_s ? q->host_bytes_per_s / demand : 1;
}

/* The busy queue at the end of the chain of waits that begins with `queue`. An empty queue waits for the host. */
static enum plan_queue cause_of(const struct plan_queues *q, enum plan_queue queue, enum plan_queue host_waits_for)
{
    for (int steps = 0; steps <= 2 * PLAN_QUEUES && queue != PLAN_QUEUE_NOBODY; steps++) {
        const struct plan_queue_state *s = &q->queues[queue];
        if (s->at_work)
            return queue;
        queue = s->n > 0 ? held_by(q, s) : host_waits_for;
    }
    return PLAN_QUEUE_NOBODY;
}

static void queues_pass(struct plan_queues *q, double seconds, enum plan_queue host_waits_for)
{
    const enum plan_queue host = cause_of(q, host_waits_for, host_waits_for);

    for (enum plan_queue i = 0; i < PLAN_QUEUES; i++) {
        struct plan_queue_state *s = &q->queues[i];
        if (s->at_work)
            s->busy += seconds;
        else
            s->waited[s->n > 0 ? cause_of(q, i, host_waits_for) : host] += seconds;
    }
    q->now += seconds;
}

bool plan_queues_pass(struct plan_queues *q, enum plan_queue host_waits_for, double until,
                      void (*on_optimized)(void *context, const struct plan_task *task), void *context)
{
    double speeds[PLAN_QUEUES], lefts[PLAN_QUEUES], seconds = until - q->now;

    queues_begin(q);
    const double shared = shared_speed(q);
    for (int i = 0; i < PLAN_QUEUES; i++) {
        const struct plan_queue_state *s = &q->queues[i];
        if (!s->at_work)
            continue;
        speeds[i] = 1, lefts[i] = s->left;
        if (shared < 1 && demand_of(s) > 0)
            speeds[i] = shared, lefts[i] = s->left / shared;
        seconds = lefts[i] < seconds ? lefts[i] : seconds;
    }
    if (seconds == INFINITY)
        return false;
    queues_pass(q, seconds, host_waits_for);
    for (enum plan_queue i = 0; i < PLAN_QUEUES; i++) {
        struct plan_queue_state *s = &q->queues[i];
        if (!s->at_work)
            continue;
        s->left -= seconds * speeds[i];
        if (lefts[i] > seconds) /* s->left may have been rounded to more than 0 */
            continue;
        const struct plan_task task = *queues_first_of(s);
        s->at_work = false;
        s->first++, s->n--, s->done++;
        if (i == PLAN_QUEUE_OPTIMIZER)
            on_optimized(context, &task);
    }
    return true;
}
