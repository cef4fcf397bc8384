/* proto/plan/time/queues.h - parallel queues simulated in virtual time: which are busy, and which wait for which.
 *
 * A queue runs its tasks in order, each when the tasks that it follows are done. The host enqueues them, which takes no
 * time, and waits. While it waits, time advances from one task's end to the next. If concurrent tasks demand more than
 * host memory's rate, all slow down by the same factor.
 *
 * Deterministic: no clock, no random numbers. */
#ifndef PROTO_PLAN_TIME_QUEUES_H
#define PROTO_PLAN_TIME_QUEUES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum plan_queue {
    PLAN_QUEUE_PULL,      /* copies to the device */
    PLAN_QUEUE_COMPUTE,   /* the device */
    PLAN_QUEUE_PUSH,      /* copies to the host */
    PLAN_QUEUE_OPTIMIZER, /* the host's threads: the task of the lowest unit first */
    PLAN_QUEUES,
    PLAN_QUEUE_NOBODY = PLAN_QUEUES, /* as a cause of waiting */
};

struct plan_task {
    double seconds;    /* duration if it runs alone */
    double host_bytes; /* bytes of host memory that it moves in that time */
    uint32_t unit;     /* for the optimizer's tasks */
    bool is_update;
    uint64_t after[PLAN_QUEUES]; /* marks of each queue that must be done: set by plan_queues_give */
};

struct plan_queues {
    double now;              /* seconds */
    double host_bytes_per_s; /* 0: no limit */
    struct plan_queue_state {
        struct plan_task *tasks; /* n of them from `first` on; the first may be running */
        size_t first, n, capacity;
        uint64_t given, done;
        uint64_t after[PLAN_QUEUES]; /* marks that later tasks follow */
        bool at_work;
        double left; /* seconds left of the first */
        double busy; /* busy seconds so far */
        /* Idle seconds, by the queue waited for: the busy one at the end of the chain of waits. */
        double waited[PLAN_QUEUES + 1];
    } queues[PLAN_QUEUES];
    bool no_memory; /* tasks were lost */
};

/* Frees the tasks. A zeroed struct with host_bytes_per_s set is ready for use. */
void plan_queues_free(struct plan_queues *q);

/* Enqueues a task. Returns its mark: its number in its queue, from 1. */
uint64_t plan_queues_give(struct plan_queues *q, enum plan_queue queue, const struct plan_task *task);

/* Tasks given to `queue` from now on wait for this mark of `other`. */
static inline void plan_queues_follow(struct plan_queues *q, enum plan_queue queue, enum plan_queue other,
                                      uint64_t mark)
{
    uint64_t *after = &q->queues[queue].after[other];

    if (*after < mark)
        *after = mark;
}

/* The mark of the last task given. */
static inline uint64_t plan_queues_mark(const struct plan_queues *q, enum plan_queue queue)
{
    return q->queues[queue].given;
}

static inline bool plan_queues_is_done(const struct plan_queues *q, enum plan_queue queue, uint64_t mark)
{
    return q->queues[queue].done >= mark;
}

/* Advances time to the next end of a task or several, but not beyond `until` (INFINITY: as long as it takes), while the
 * host waits for that queue. on_optimized is called for each task that the optimizer finished, and may give it more.
 * False: no queue is busy, and until is INFINITY. */
bool plan_queues_pass(struct plan_queues *q, enum plan_queue host_waits_for, double until,
                      void (*on_optimized)(void *context, const struct plan_task *task), void *context);

#endif
