/* eps/observe/observe.h - answers to observers (status, mem, top): the job's state, its units and last steps, the
 * positions of workers, the memory of both sides. */
#ifndef EPS_OBSERVE_OBSERVE_H
#define EPS_OBSERVE_OBSERVE_H

#include "eps/job/queue.h"
#include "eps/step/steps.h"
#include "proto/base/pages.h"

/* The system's figures on the pages of daemon and workers. While `work` is busy, its thread owns `sides`. */
enum { OBSERVE_MAX_SIDES = 1 + PEERS_MAX_WORKERS };
struct observe_pages {
    uv_work_t work;
    bool busy;
    uint64_t read_ms; /* the loop's time when they were read */
    unsigned n;       /* sides; 0: never read */
    struct observe_side {
        uint32_t worker; /* 0: this process */
        pid_t pid;
        struct pages pages;
    } sides[OBSERVE_MAX_SIDES];
};

struct observer {
    const struct peers *peers;
    const struct job *job;
    const struct steps *steps;
    const struct saves *saves;
    const struct queue *queue;
    bool stopping;      /* shown by the status */
    unsigned n_threads; /* threads of the optimizer's team */
    struct observe_pages pages;
};

/* Answers once n_workers are attached. */
void observe_status(struct observer *observer, struct peer *peer, uint32_t n_workers);
/* Another worker has attached: answers the viewers that waited for it. */
void observe_on_worker(struct observer *observer);
void observe_units(struct observer *observer, struct peer *peer, uint32_t first);
void observe_workers(struct observer *observer, struct peer *peer);
void observe_queue(struct observer *observer, struct peer *peer);
void observe_recent(struct observer *observer, struct peer *peer);
void observe_memory(struct observer *observer, struct peer *peer,
                    bool pages); /* pages: later, if it has to be asked of the system */

#endif
