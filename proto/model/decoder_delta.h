/* proto/model/decoder_delta.h - for the files of families with Gated DeltaNet (Yang et al., arXiv:2412.06464) in most
 * blocks: the branch that stands in attention's place, and its numbers. */
#ifndef PROTO_MODEL_DECODER_DELTA_H
#define PROTO_MODEL_DECODER_DELTA_H

#include "proto/model/decoder_family.h"

/* Numbers of config.json. */
struct MODEL_OWN decoder_delta {
    struct config_layers linear;   /* layer_types: blocks of this kind */
    uint32_t n_taps;               /* of the convolution over tokens */
    uint32_t n_key_heads, n_heads; /* of queries and keys; of values */
    uint32_t key_width, value_width;
    int activation; /* hidden_act: an index of decoder_delta_activations */
    bool doubled;   /* the share of a value that is written is up to 2 */
    /* Of a fresh model: bounds of exp(A_log), and of softplus(dt_bias), which is 1 where these are 0. */
    float least_rate, largest_rate, least_step, largest_step;
};

extern const char *const decoder_delta_activations[]; /* those that the convolution over tokens has */

/* Names of a family's tensors, and the epsilon of the norm of each head's result. */
struct decoder_delta_names {
    const char *query, *key, *value; /* maps of x; key NULL: query is one map to all three */
    const char *convs[3];            /* of queries, keys and values, over tokens; the second NULL: one for all three */
    const char *a, *b, *gate, *norm, *output;
    float epsilon;
};

/* Of x: queries, keys and values behind a short convolution and silu, the rule, a norm of each head, a gate of silu. */
int decoder_delta(struct program *program, const struct model_config *config, int x, const struct decoder_delta *delta,
                  const struct decoder_delta_names *names);

/* Checks relations between numbers. As model_config_check. */
int decoder_check_delta(const struct model_config *config, const struct decoder_delta *delta, struct error *err);

#endif
