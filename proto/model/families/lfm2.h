/* proto/model/families/lfm2.h - what LFM2's dense models and mixtures have alike. */
#ifndef PROTO_MODEL_FAMILIES_LFM2_H
#define PROTO_MODEL_FAMILIES_LFM2_H

#include "proto/model/decoder_family.h"
#include "proto/operation/call/short_conv.h"

/* Lines for a list of keys, whose config has members n_taps and conv_bias, and `decoder`. */
#define LFM2_KEYS(config, decoder)                                                                                     \
    {"hidden_size", FAMILY_COUNT, .offset = FAMILY_AT(width), .required = true, .most = 65536},                        \
        {"num_hidden_layers", FAMILY_COUNT, .offset = FAMILY_AT(n_layers), .required = true, .most = 4096},            \
        {"num_attention_heads", FAMILY_COUNT, .offset = FAMILY_AT(n_heads), .required = true, .most = 65536},          \
        {"num_key_value_heads", FAMILY_COUNT_OR_NULL, .offset = FAMILY_OWN(config, decoder.n_kv_heads),                \
         .most = 65536},                                                                                               \
        {"head_dim", FAMILY_COUNT_OR_NULL, .offset = FAMILY_OWN(config, decoder.head_width), .most = 1024},            \
        {"intermediate_size", FAMILY_COUNT, .offset = FAMILY_AT(inner_width), .most = MODEL_WIDEST},                   \
        {"vocab_size", FAMILY_COUNT, .offset = FAMILY_AT(vocabulary), .required = true, .most = 1 << 24},              \
        {"max_position_embeddings", FAMILY_COUNT, .offset = FAMILY_AT(n_positions), .most = 1 << 24},                  \
        {"initializer_range", FAMILY_REAL, .offset = FAMILY_AT(initializer_range), .range = FAMILY_FRACTION},          \
        {"norm_eps", FAMILY_REAL, .offset = FAMILY_AT(norm_epsilon), .range = FAMILY_EPSILON},                         \
        {"tie_word_embeddings", FAMILY_SWITCH, .offset = FAMILY_AT(tied)},                                             \
        {"tie_embedding", FAMILY_SWITCH, .offset = FAMILY_AT(tied)},                                                   \
        {"rope_theta", FAMILY_REAL, .offset = FAMILY_OWN(config, decoder.rope.base)}, DECODER_ROPE_KEYS,               \
        {"conv_bias", FAMILY_SWITCH, .offset = FAMILY_OWN(config, conv_bias)},                                         \
    {                                                                                                                  \
        "conv_L_cache", FAMILY_COUNT, .offset = FAMILY_OWN(config, n_taps), .most = DEVICE_SHORT_TAPS                  \
    }

/* The last norm. */
void lfm2_write_norm(struct program *program, const struct model_config *config);

#endif
