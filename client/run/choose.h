/* client/run/choose.h - the model and the tokens of a run: each can depend on the other.
 *
 * A model that is named decides what a token is. A gpt2 preset is one of bytes on a text. And without a name the tokens
 * decide which preset is trained. */
#ifndef CLIENT_RUN_CHOOSE_H
#define CLIENT_RUN_CHOOSE_H

#include "client/run/run.h"

/* Opens run's model, data and eval_data, checks every token, and says in model_name and model_note what was chosen.
 * As client_run_open. */
int client_choose(struct client_run *run, const struct eps_train_options *in, const struct client_watch *watch,
                  struct error *err);

/* Checks data for a model that is known, text by its own tokenizer. As client_data_check. */
int client_choose_check(struct client_data *data, const struct client_model *model, enum eps_separator separator,
                        const struct client_watch *watch, struct error *err);

#endif
