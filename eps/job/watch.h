/* eps/job/watch.h - finds who keeps a job waiting for too long, so that nothing waits for ever. */
#ifndef EPS_JOB_WATCH_H
#define EPS_JOB_WATCH_H

#include "eps/job/job.h"

struct watch {
    struct job *job;
    unsigned most_quiet; /* ticks, at least, that whoever owes something may do nothing */
    struct silence optimizer;
    bool hung; /* the optimizer thread: the daemon is to end */
};

/* True: the optimizer thread hung a tick ago, and the client has had that tick to read why. Only the process's end
 * helps then. Called each second. */
bool watch_tick(struct watch *watch);

#endif
