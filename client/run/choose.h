/* client/run/choose.h - chooses a run's model and tokens, either of which may depend on the other.
 *
 * A named model determines the tokens; a gpt2 preset takes the bytes of a text. Without a named model, the data
 * determine the preset. */
#ifndef CLIENT_RUN_CHOOSE_H
#define CLIENT_RUN_CHOOSE_H

#include "client/run/run.h"

/* Opens run's model, data and eval_data, checks every token, and describes the choice in model_name and model_note.
 * Errors as client_run_open. */
int client_choose(struct client_run *run, const struct eps_train_options *in, const struct client_watch *watch,
                  struct error *err);

/* Checks data for a known model; its tokenizer splits text. Errors as client_data_check. */
int client_choose_check(struct client_data *data, const struct client_model *model, enum eps_separator separator,
                        const struct client_watch *watch, struct error *err);

#endif
