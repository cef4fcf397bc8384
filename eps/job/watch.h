/* eps/job/watch.h - finds workers and threads that hang, so that nothing waits for ever. */
#ifndef EPS_JOB_WATCH_H
#define EPS_JOB_WATCH_H

#include "eps/job/job.h"

struct watch {
    struct job *job;
    unsigned most_quiet; /* ticks without progress before one counts as hung, at least */
    unsigned most_late;  /* ticks that a worker may owe something, whatever it counts, at least */
    struct silence optimizer;
    bool hung; /* the optimizer thread hangs, so the daemon must end */
};

/* Call each second. True: the optimizer thread hangs, the client has had a second to read why, and the process must
 * end. */
bool watch_tick(struct watch *watch);

#endif
