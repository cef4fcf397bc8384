/* proto/model/families/qwen3_5.h - what Qwen 3.5's blocks have alike whether an MLP or experts follow. */
#ifndef PROTO_MODEL_FAMILIES_QWEN3_5_H
#define PROTO_MODEL_FAMILIES_QWEN3_5_H

#include "proto/model/decoder_delta.h"

/* The branch that mixes tokens, of x, its norm: Gated DeltaNet, or attention with gates (kind: DECODER_DELTA or
 * DECODER_ATTENDS). */
int qwen3_5_mix(struct program *program, const struct model_config *config, int x, uint32_t kind,
                const struct decoder_delta *delta);

#endif
