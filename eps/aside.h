/* eps/aside.h - jobs that were set aside: they have ended, but the thread that loads them hangs. For eps/drain.c.
 *
 * The files are the owner's: other users' clients serve theirs, and no thread waits for those (proto/wire/files.h). A
 * thread that waits in the system for a disk that does not answer can be neither ended nor interrupted, and it may
 * still write to the job's memory. So the job keeps that thread and its memory, and the daemon gets a new thread and
 * goes on with the next job. If the old one ever comes back, it gives the memory back and ends. Until then the memory
 * counts in the ledger and within --host-mem. */
#ifndef EPS_ASIDE_H
#define EPS_ASIDE_H

#include "eps/drain.h"

/* Each costs a team of threads and the memory of its job. */
enum { ASIDE_MOST = 8 };

struct aside {
    struct aside *next;
    struct job *job;         /* owned */
    struct updater *updater; /* owned */
    uint64_t bytes;          /* of the job's plan, in the ledger */
    bool unloading;          /* the thread has come back, and gives the memory back */
};

/* If the present job has ended and its load hangs: sets it aside. True: the daemon has no job, and may begin another.
 * False, without such a job; or if it cannot be set aside, in which case d->stuck is set until its thread comes
 * back. */
bool aside_put(struct daemon *d);
/* Takes a task of a thread that has come back. False: none has. */
bool aside_go_on(struct daemon *d);

#endif
