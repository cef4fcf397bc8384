/* tools/stopping.h - the signals that end a run: the first lets it save, the second does not wait.
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

#endif
