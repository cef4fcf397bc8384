/* client/run/given.h - the rows of a step, as the caller of eps_train rewrites them (on_rows in
 * client/eps_options.h). */
#ifndef CLIENT_RUN_GIVEN_H
#define CLIENT_RUN_GIVEN_H

#include "client/task/source.h"
#include "client/run/run.h"

/* Refuses on_rows for rows that are more than ids and labels. -EDOM with a sentence. */
int client_given_check(const struct client_run *run, struct error *err);

/* What comes with rows, and goes with them. */
struct client_given {
    double lr;          /* the step's; NAN before the first */
    uint32_t first, n;  /* of EPS_ROWS_SCORE: which rows, */
    bool drops, base;   /* and how */
    const float *log_p; /* what came of it: client_job_score; NULL: nothing was scored */
};

/* Asks run's on_rows for the rows of `step` (from 0), which are in the buffer: rewrites them, the minibatch's labels
 * and what is given with them. Returns the answer, enum eps_rows; -EINVAL with a sentence: the rows are none; -EINTR
 * for EPS_ROWS_DROP. */
int client_given_ask(struct client_minibatch *minibatch, struct client_given *given, const struct client_buffer *buffer,
                     const struct client_run *run, uint64_t step, struct error *err);

#endif
