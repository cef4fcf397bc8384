/* tools/stopping.h - signals that end a command: the first lets a run save, the second ends it at once.
 *
 * The signals are blocked and polled, so there is no handler and no bad moment. SIGHUP (the terminal was closed; a
 * shell may send it twice) and SIGPIPE (nobody reads the output) only ever count as a first signal. A signal that was
 * ignored at start, as under nohup, stays ignored. */
#ifndef TOOLS_STOPPING_H
#define TOOLS_STOPPING_H

#include <signal.h>

struct stopping {
    sigset_t signals;
    int level; /* 0: continue, 1: save and end, 2: end at once */
    int first; /* the first signal's number; 0: none */
};

void stopping_init(struct stopping *stopping);

/* Polls for signals; returns level. */
int stopping_look(struct stopping *stopping);

/* The same as a callback of libeps; user is a struct stopping. */
int stopping_should_stop(void *user);

/* Exit status of a failed command: 128 plus the first signal's number, or else `status`. */
int stopping_status(struct stopping *stopping, int status);

#endif
