/* proto/plan/queues.h - work on queues beside each other, in time that is computed: who is at work, and who waits for whom.
 *
 * A queue does its tasks in order, each when what it follows is done; the host gives them out, which takes no time, and
 * waits. While the host waits, time passes from the end of one task to the end of the next. Tasks that touch host memory
 * slow each other down where they want more of it together than there is: all by the same factor.
 *
 * Deterministic: no clock is read, and no random number. */
#ifndef PROTO_PLAN_QUEUES_H
#define PROTO_PLAN_QUEUES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum plan_queue {
    PLAN_QUEUE_PULL,      /* copies to the device */
    PLAN_QUEUE_COMPUTE,   /* the device */
    PLAN_QUEUE_PUSH,      /* copies to the host */
    PLAN_QUEUE_OPTIMIZER, /* the host's team: of the tasks that it has, the one of the lowest unit first */
    PLAN_QUEUES,
    PLAN_QUEUE_NOBODY = PLAN_QUEUES, /* a cause */
};

struct plan_task {
    double seconds;    /* alone */
    double host_bytes; /* of host memory, in that time */
    uint32_t unit;     /* the optimizer's */
    bool is_update;
    uint64_t after[PLAN_QUEUES]; /* tasks of each queue that must be done: set by plan_queues_give */
};

struct plan_queues {
    double now;              /* seconds */
    double host_bytes_per_s; /* 0: no limit */
    struct plan_queue_state {
        struct plan_task *tasks; /* from `first` on, n of them; the first may be at work */
        size_t first, n, capacity;
        uint64_t given, done;
        uint64_t after[PLAN_QUEUES]; /* what tasks from now on follow */
        bool at_work;
        double left; /* seconds, of the first */
        double busy; /* seconds at work so far */
        double
            waited[PLAN_QUEUES + 1]; /* and not at work, by whom it waited for: at the end of a chain of waits, who was
                                           at work */
    } queues[PLAN_QUEUES];
    bool no_memory; /* tasks were lost */
};

/* Zeroed, with host_bytes_per_s set, is a start. Undo. */
void plan_queues_free(struct plan_queues *q);

/* Returns the task's number in its queue, from 1: its mark. */
uint64_t plan_queues_give(struct plan_queues *q, enum plan_queue queue, const struct plan_task *task);

/* What is given to `queue` from now on waits for this mark of another. */
void plan_queues_follow(struct plan_queues *q, enum plan_queue queue, enum plan_queue other, uint64_t mark);

/* The mark of what was given last. */
static inline uint64_t plan_queues_mark(const struct plan_queues *q, enum plan_queue queue)
{
    return q->queues[queue].given;
}

static inline bool plan_queues_is_done(const struct plan_queues *q, enum plan_queue queue, uint64_t mark)
{
    return q->queues[queue].done >= mark;
}

/* Time passes until the next task ends, or several do, while the host waits for `queue`. What the optimizer has done is
 * told at once: it may then be given more. False: nobody is at work. */
bool plan_queues_pass(struct plan_queues *q, enum plan_queue host_waits_for,
                      void (*on_optimized)(void *context, const struct plan_task *task), void *context);

#endif
