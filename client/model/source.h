/* client/model/source.h - the source of a model's rows (client/task/source.h). */
#ifndef CLIENT_MODEL_SOURCE_H
#define CLIENT_MODEL_SOURCE_H

#include "client/model/model.h"
#include "client/task/source.h"

/* Opens a source of this kind for the model, whose config and side files it borrows, and of a classifier takes the
 * labels. data (NULL: nothing is trained) and eval_data as in client_source_setup. Errors as client_classifier_labels
 * and client_source_ops.open; *out is then NULL. Undo: client_source_close. */
int client_model_source(struct client_source **out, const struct client_source_ops *kind,
                        const struct client_model *model, struct client_data *data, struct client_data *eval_data,
                        struct error *err);

#endif
