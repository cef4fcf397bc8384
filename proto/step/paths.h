/* proto/step/paths.h - which kernels a model's attention takes on a CUDA device, before there is one. */
#ifndef PROTO_STEP_PATHS_H
#define PROTO_STEP_PATHS_H

#include "proto/base/number.h"
#include "proto/model/model.h"

/* The set of paths (bit i: path i of enum attention_path) by which our own kernels compute the model's attention, of
 * all blocks and both passes, in values of this type and rows of n_tokens. 0: the model has no attention. */
unsigned step_attention_paths(const struct model *model, enum number_type type, uint32_t n_tokens);

#endif
