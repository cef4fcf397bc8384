/* client/ask/eval_rows.h - evaluates a classifier on labelled rows, and predicts rows. */
#ifndef CLIENT_ASK_EVAL_ROWS_H
#define CLIENT_ASK_EVAL_ROWS_H

#include "client/ask/forward.h"
#include "client/data/data.h"
#include "client/eps.h"

/* eps_eval for an open model that is a classifier; options are resolved in place. */
int client_eval_rows(double *loss, uint64_t *n_rows, struct client_forward *forward, struct eps_eval_options *options,
                     const struct eps_eval_events *events, void *user, struct error *err);

/* Refuses options, and predictions, that a task (of enum eps_tasks) has no use for: -EDOM. */
int client_eval_check(const struct eps_eval_options *options, unsigned task, const struct eps_eval_events *events,
                      struct error *err);

/* What is read must not be overwritten, under whatever name; path may be NULL. -EDOM. */
int client_eval_check_predictions(const struct client_data *data, const char *path, struct error *err);

#endif
