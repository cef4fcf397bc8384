/* proto/model/joined.h - tensors that a model's files may have joined (struct family_joined): experts of a block. */
#ifndef PROTO_MODEL_JOINED_H
#define PROTO_MODEL_JOINED_H

#include "proto/model/model.h"

#include <stdbool.h>
#include <stdint.h>

/* Where a tensor lies in the one that it is joined in: rows [number][part]. */
struct joined {
    char name[MODEL_TENSOR_BYTES]; /* "model.layers.0.mlp.experts.gate_up_proj" */
    uint32_t number, part, n_parts;
};

/* False: files have the tensor by itself alone. */
bool joined_find(struct joined *out, const struct model *model, const struct model_tensor *tensor);

/* The shape in files: numbers, rows of all parts, columns. */
void joined_shape(uint64_t out[3], const struct joined *joined, const struct model_tensor *tensor);

/* Index of the tensor's first element there. */
uint64_t joined_first(const struct joined *joined, const struct model_tensor *tensor);

/* How many of the model's tensors may be joined. */
uint32_t joined_count(const struct model *model);

#endif
