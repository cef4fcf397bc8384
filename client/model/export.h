/* client/model/export.h - a model written for other programs to load: what eps_export is made of.
 *
 * Weights go from the source's mapped files to the new ones in blocks of a few MiB, so a model of any size needs no
 * memory. They are named as Hugging Face names them, in the order of the model, in whole tensors to a file. */
#ifndef CLIENT_MODEL_EXPORT_H
#define CLIENT_MODEL_EXPORT_H

#include "client/eps.h"
#include "client/model/model.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Of tensors in one file at most, unless it is one tensor alone. */
#define CLIENT_EXPORT_SHARD_BYTES ((uint64_t)4 << 30)

/* eps_export with files of another size. */
int client_export(const struct eps_export_options *options, uint64_t shard_bytes, struct error *err);

/* model.safetensors, or, where that would pass shard_bytes, model-00001-of-0000N.safetensors and so on and
 * model.safetensors.index.json; flushed. The directory holds none of them. -EINVAL by name: a tensor missing, unknown,
 * twice, of another shape or type; a number too large for bf16 (-ERANGE); -errno. */
int client_export_weights(const struct client_model *model, int directory_fd, bool bf16, uint64_t shard_bytes,
                          struct error *err);

/* To bf16, to nearest, ties to even; NaN stays NaN, infinity infinity. Returns n, or the index of the first finite value
 * that bf16 has no finite one for. */
size_t client_export_round(uint16_t *out, const float *values, size_t n);

/* Makes name in the directory, with this content, flushed. -errno. */
int client_export_text(int directory_fd, const char *name, const char *text, size_t n, struct error *err);

#endif
