/* eps/observe/look.h - answers to observers (status, mem, top): the job's state, its units and last steps, the
 * positions of workers, the memory of both sides. */
#ifndef EPS_OBSERVE_LOOK_H
#define EPS_OBSERVE_LOOK_H

#include "eps/job/queue.h"
#include "eps/step/steps.h"
#include "proto/base/pages.h"

/* The system's figures on the pages of both sides. While `work` is busy, its thread owns `sides`. */
enum { LOOK_MAX_SIDES = 1 + HUB_MAX_WORKERS };
struct look_pages {
    uv_work_t work;
    bool busy;
    uint64_t read_ms; /* when, by the loop's clock */
    unsigned n;       /* sides; 0: never read */
    struct look_side {
        uint32_t worker; /* 0: this process */
        pid_t pid;
        struct pages pages;
    } sides[LOOK_MAX_SIDES];
};

struct look {
    const struct hub *hub;
    const struct job *job;
    const struct steps *steps;
    const struct saves *saves;
    const struct queue *queue;
    bool stopping;      /* shown by the status */
    unsigned n_threads; /* of the optimizer's team */
    struct look_pages pages;
};

/* Answers once n_workers are attached. */
void look_status(struct look *look, struct peer *peer, uint32_t n_workers);
/* Another worker has attached: answers the viewers that waited for it. */
void look_on_worker(struct look *look);
void look_units(struct look *look, struct peer *peer, uint32_t first);
void look_workers(struct look *look, struct peer *peer);
void look_queue(struct look *look, struct peer *peer);
void look_recent(struct look *look, struct peer *peer);
void look_memory(struct look *look, struct peer *peer,
                 bool pages); /* pages: later, if it has to be asked of the system */

#endif
