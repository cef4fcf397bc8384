/* tests/client/run/played_daemon.h - a daemon that is played, by a script, in a process of its own. */
#ifndef TESTS_CLIENT_RUN_PLAYED_DAEMON_H
#define TESTS_CLIENT_RUN_PLAYED_DAEMON_H

#include "proto/wire/session.h"

enum { PLAYED_SEQ = 8, PLAYED_NEVER = 1000 };

/* What it does, from the beginning of its process on. A step is done as soon as it is opened, and a checkpoint saved as
 * soon as it is requested, but for what is said here. It notes what it is asked for in the file log, in order: "open
 * 0|save 1|", and "(saved 1)|" when a late answer leaves. */
extern struct played_daemon {
    double losses[8]; /* (n_losses) of its evaluations, in turn; then 1 */
    unsigned n_losses;
    uint64_t holds;         /* the step (from 0) that it does not finish: it waits for a worker */
    uint64_t skips_from;    /* steps from this one on have no finite loss */
    unsigned n_full;        /* checkpoints that the disk has no room for, the first ones */
    bool saves_late;        /* SAVED of the first one comes with the third evaluation */
    uint64_t stops_at;      /* with this step's end it says that the daemon is stopped */
    uint64_t answers_twice; /* this step's end it says twice */
    struct message taken;   /* its answer to TAKE */
} played;

/* Rows have PLAYED_SEQ tokens. */
void played_on_message(struct session *s, const struct message *m, const int *fds, unsigned n_fds);

#endif
