/* proto/model/gpt2.h - GPT-2's family, for models without a config.json: presets, benchmarks, tests. */
#ifndef PROTO_MODEL_GPT2_H
#define PROTO_MODEL_GPT2_H

#include "proto/model/config/model_config.h"

#include <stdbool.h>
#include <stddef.h>

/* The numbers of its config.json that only this family has. */
struct gpt2_config {
    bool scale_attention;                                         /* scores are multiplied by 1/sqrt(head width) */
    bool scale_by_layer;                                          /* scores are multiplied by 1/(layer + 1) as well */
    float dropout_attention, dropout_embedding, dropout_residual; /* in [0, 1) */
} MODEL_OWN;
MODEL_OWN_HOLDS(struct gpt2_config);

/* Of a config of this family. */
static inline const struct gpt2_config *gpt2_of(const struct model_config *config)
{
    return (const void *)config->own.bytes;
}

static inline struct gpt2_config *gpt2_edit(struct model_config *config)
{
    return (void *)config->own.bytes;
}

/* In an initialiser of a config: this switch is on. */
#define GPT2_ON(member) .own.bytes[offsetof(struct gpt2_config, member)] = true

extern const struct family family_gpt2;

#endif
