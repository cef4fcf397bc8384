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

/* Moves the tasks to an array of three times the room that they need, with as much of it free before them as after. */
static bool queues_grow(struct plan_queue_state *s)
{
    enum { LEAST = 64 };
    const size_t capacity = 3 * (s->n < LEAST ? LEAST : s->n), first = (capacity - s->n) / 2;
    struct plan_task *tasks = malloc(capacity * sizeof *tasks);

    if (!tasks)
        return false;
    if (s->n > 0)
        memcpy(tasks + first, queues_first_of(s), s->n * sizeof *tasks);
    free(s->tasks);
    s->tasks = tasks, s->capacity = capacity, s->first = first;
    return true;
}

/* Makes room for one more task, at the end and, in the optimizer's queue, at the front. Any other queue is used up from
 * the front, and moves back there. */
static bool queues_make_room(struct plan_queue_state *s, bool in_front)
{
    const bool at_end = s->first + s->n < s->capacity;

    if (at_end && (s->first > 0 || !in_front))
        return true;
    if (!in_front && s->first > s->n) {
        memmove(s->tasks, queues_first_of(s), s->n * sizeof *s->tasks);
        s->first = 0;
        return true;
    }
    return queues_grow(s);
}

/* Opens a gap behind the tasks of this unit and lower ones, and behind the running one: moves those before it, or those
 * behind it, whichever are fewer. In backward each unit is below all that wait, thousands of slices of a large model.
 * The place of the gap. */
static struct plan_task *make_gap(struct plan_queue_state *s, uint32_t unit)
{
    struct plan_task *const first = queues_first_of(s);
    size_t low = s->at_work, high = s->n;

    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (first[middle].unit > unit)
            high = middle;
        else
            low = middle + 1;
    }
    if (low >= s->n - low) {
        memmove(first + low + 1, first + low, (s->n - low) * sizeof *first);
        return first + low;
    }
    memmove(first - 1, first, low * sizeof *first);
    s->first--;
    return first + low - 1;
}

uint64_t plan_queues_give(struct plan_queues *q, enum plan_queue queue, const struct plan_task *task)
{
    struct plan_queue_state *s = &q->queues[queue];

    if (!queues_make_room(s, queue == PLAN_QUEUE_OPTIMIZER)) {
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
