/* tests/kit/inprocess/model.h - configurations of models, in a line. */
#ifndef TESTS_KIT_INPROCESS_MODEL_H
#define TESTS_KIT_INPROCESS_MODEL_H

#include "proto/model/gpt2.h"
#include "proto/model/model.h"

/* GPT-2's initializer: blocks, heads, width, width inside of a block, positions, tokens; then whatever else is set, as
 * members: .tied = true. Norms and fresh weights are as GPT-2 has them; no dropout. */
#define GPT2_CONFIG(blocks, heads, width_, inside, positions, tokens, ...)                                             \
    {                                                                                                                  \
        .family = &family_gpt2, .n_layers = blocks, .n_heads = heads, .width = width_, .inner_width = inside,          \
        .n_positions = positions, .vocabulary = tokens, .norm_epsilon = 1e-5f, .initializer_range = 0.02f,             \
        ##__VA_ARGS__                                                                                                  \
    }

#endif
