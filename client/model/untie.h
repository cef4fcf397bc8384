/* client/model/untie.h - whether a model's head is its table of tokens, where config.json does not tell.
 *
 * transformers 5 writes tie_word_embeddings as true for every T5, also for one with a head of its own (version 1.1,
 * Flan), and goes by the files when it reads them: two tables that differ are two. So does the client, which then sets
 * the key to false for all that read the config after it. */
#ifndef CLIENT_MODEL_UNTIE_H
#define CLIENT_MODEL_UNTIE_H

#include "client/model/model.h"

/* Unties an open model, in memory, if its family leaves that to the files (struct family: ties_by_files) and its
 * weights hold a head that differs from the table of tokens. Does nothing without weights; those that do not fit the
 * model are for client_model_match to refuse. Reads both tables up to their first difference. -EIO, -ENOMEM, -errno. */
int client_untie(struct client_model *model, struct error *err);

/* The same of a model that was opened without the weights in its directory. */
int client_untie_by(struct client_model *model, const char *directory, struct error *err);

#endif
