/* tools/stopping.h - the signals that end a command: the first lets a run save, the second does not wait.
 *
 * They are blocked and looked for where it suits, so that no handler is needed and none comes at a bad moment. SIGHUP (the
 * terminal was closed; a shell may send it twice) and SIGPIPE (nobody reads what is printed) only ever count as a first.
 * One that was ignored when the program started, as with nohup, stays ignored. */
#ifndef TOOLS_STOPPING_H
#define TOOLS_STOPPING_H

#include <signal.h>

struct stopping {
    sigset_t signals;
    int level; /* 0: go on, 1: save and end, 2: end at once */
    int first; /* number of the first that came; 0: none */
};

void stopping_init(struct stopping *stopping);

/* Looks for new ones; returns level. */
int stopping_look(struct stopping *stopping);

/* The same in the form that libeps asks: user is a struct stopping. */
int stopping_should_stop(void *user);

/* What a command that failed exits with: 128 and the first signal's number, or else `status`. */
int stopping_status(struct stopping *stopping, int status);

#endif
