/* client/run/given.h - the rows of a step, as the caller of eps_train rewrites them (on_rows in client/eps_options.h). */
#ifndef CLIENT_RUN_GIVEN_H
#define CLIENT_RUN_GIVEN_H

#include "client/rows/source.h"
#include "client/run/run.h"

/* Refuses on_rows for rows that are more than ids and labels. -EDOM with a sentence. */
int client_given_check(const struct client_run *run, struct error *err);

/* Asks run's on_rows for the rows of `step` (from 0), which are in the buffer: rewrites them, the minibatch's labels and the
 * step's rate. Returns the answer, enum eps_rows; -EINVAL with a sentence: the rows are none; -EINTR for EPS_ROWS_DROP. */
int client_given_ask(struct client_minibatch *minibatch, double *lr, const struct client_buffer *buffer,
                     const struct client_run *run, uint64_t step, struct error *err);

#endif
