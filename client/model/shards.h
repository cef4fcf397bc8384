/* client/model/shards.h - the files that hold a model's weights: which they are, and what each must hold.
 *
 * As in transformers, model.safetensors is taken alone if it is there, else the files that model.safetensors.index.json
 * lists. Without either, it is every *.safetensors but a checkpoint's optimizer.safetensors.
 *
 * An index may come from a stranger. It names files within its directory only: no absolute path, no "..". A link is
 * followed, as for every other file, with the rights of the process that opens it, which is the client. Of the files,
 * only the headers are read. */
#ifndef CLIENT_MODEL_SHARDS_H
#define CLIENT_MODEL_SHARDS_H

#include "client/model/model.h"

/* Opens the files as model->weights. -EINVAL with a sentence that names the file and the tensor: a header that is
 * damaged, a tensor that the index places in a file that lacks it, a tensor in a file that the index does not place
 * there. -ENOENT, -E2BIG, -errno. On failure, client_model_close closes what is open. */
int client_shards_open(struct client_model *model, const char *directory, struct error *err);

/* Opens one more file of the directory. Errors as client_shards_open. */
int client_shards_add(struct client_model *model, const char *directory, const char *name, struct error *err);

#endif
