/* proto/model/gpt2.h - GPT-2's family, for models without a config.json: presets, benchmarks, tests. */
#ifndef PROTO_MODEL_GPT2_H
#define PROTO_MODEL_GPT2_H

#include <stdbool.h>

/* The numbers of its config.json that only this family has. */
struct gpt2_config {
    bool scale_attention;                                         /* scores are multiplied by 1/sqrt(head width) */
    bool scale_by_layer;                                          /* scores are multiplied by 1/(layer + 1) as well */
    float dropout_attention, dropout_embedding, dropout_residual; /* in [0, 1) */
};

extern const struct family family_gpt2;

#endif
