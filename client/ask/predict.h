/* client/ask/predict.h - what a classifier says of each row that it was evaluated on. */
#ifndef CLIENT_ASK_PREDICT_H
#define CLIENT_ASK_PREDICT_H

#include "client/data/data.h"
#include "client/eps.h"
#include "client/task/source.h"

/* Tells on_prediction each held-out row, in the data's order. -EINVAL with a sentence: a logit is not finite; -ENOMEM;
 * what on_prediction returned. */
int client_predict(const struct client_source *source, const struct eps_eval_events *events, void *user,
                   struct error *err);

/* Refuses options, and predictions, that tasks (of enum eps_tasks) have no use for: -EDOM. */
int client_eval_check(const struct eps_eval_options *options, unsigned tasks, const struct eps_eval_events *events,
                      struct error *err);

/* What is read must not be overwritten, under whatever name; path may be NULL. -EDOM. */
int client_predict_check(const struct client_data *data, const char *path, struct error *err);

#endif
