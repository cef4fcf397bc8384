/* client/ask/export.h - writes a model for other programs to load: the parts of eps_export.
 *
 * Weights are copied from the source's mapped files in blocks of a few MiB, so a model of any size needs little memory.
 * Tensors have Hugging Face's names, stand in the model's order, and are never split between files. Behind them come
 * those of the model's source that were not trained (client/model/passed.h). */
#ifndef CLIENT_ASK_EXPORT_H
#define CLIENT_ASK_EXPORT_H

#include "client/eps.h"
#include "client/model/model.h"
#include "client/model/passed.h"

#include <stddef.h>
#include <stdint.h>

/* Maximum bytes of tensors in one file; a single larger tensor has a file to itself. */
#define CLIENT_EXPORT_SHARD_BYTES ((uint64_t)4 << 30)

/* eps_export with another maximum file size. */
int client_export(struct eps_exported *written, const struct eps_export_options *options, uint64_t shard_bytes,
                  struct error *err);

struct client_export_form {
    enum safetensors_type type; /* F32, F16 or BF16 */
    uint64_t shard_bytes;
    bool merge; /* adapters are added to the weights: W + factor * B A, in fp32, rounded once to the type */
    const struct client_passed *passed; /* names the tensors, and adds its own, in their type; NULL: there is none */
};

/* Writes the mean of the models (n_models > 0), which must have the same tensors: model.safetensors, flushed. If that
 * would pass shard_bytes, writes model-00001-of-0000N.safetensors and so on, and model.safetensors.index.json. Of a
 * model with adapters that are not merged: adapter_model.safetensors. The directory must hold none of them. Errors as
 * weights_open; -ERANGE names the tensor with a number too large for the type; -errno. */
int client_export_weights(const struct client_model *models, size_t n_models, int directory_fd,
                          const struct client_export_form *form, struct error *err);

/* Converts to F16 or BF16: to nearest, ties to even; NaN stays NaN, infinity stays infinity. Returns n, or the index of
 * the first finite value that would overflow. */
size_t client_export_round(uint16_t *out, const float *values, size_t n, enum safetensors_type type);

/* Creates a file with this name and content in the directory, flushed. -errno. */
int client_export_text(int directory_fd, const char *name, const char *text, size_t n, struct error *err);

#endif
