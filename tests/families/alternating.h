/* tests/families/alternating.h - the numbers of a family that only tests have (alternating.c). */
#ifndef TESTS_FAMILIES_ALTERNATING_H
#define TESTS_FAMILIES_ALTERNATING_H

#include "proto/model/decoder.h"

struct alternating_config {
    struct decoder_config decoder; /* first: decoder_of. window and sliding_rope: of windowed blocks */
    uint32_t wide_width;           /* of the MLP in blocks that do not attend */
    uint32_t n_window_kv_heads, window_head_width;
} MODEL_OWN;
MODEL_OWN_HOLDS(struct alternating_config);

/* Of a config of this family. */
static inline const struct alternating_config *alternating_of(const struct model_config *config)
{
    return (const void *)config->own.bytes;
}

static inline struct alternating_config *alternating_edit(struct model_config *config)
{
    return (void *)config->own.bytes;
}

#endif
