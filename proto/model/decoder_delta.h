/* proto/model/decoder_delta.h - for the files of families with Gated DeltaNet (Yang et al., arXiv:2412.06464) in most
 * blocks: the branch that stands in attention's place, and its numbers. */
#ifndef PROTO_MODEL_DECODER_DELTA_H
#define PROTO_MODEL_DECODER_DELTA_H

#include "proto/model/decoder_family.h"
#include "proto/operation/call/short_conv.h"

/* Numbers of config.json. */
struct MODEL_OWN decoder_delta {
    struct config_layers linear; /* layer_types: blocks of this kind */
    uint32_t interval; /* where there is no layer_types, every so manyth block attends; 0: as the family says */
    uint32_t n_taps;   /* of the convolution over tokens */
    uint32_t n_key_heads, n_heads; /* of queries and keys; of values */
    uint32_t key_width, value_width;
    int activation; /* hidden_act: an index of decoder_delta_activations */
    bool doubled;   /* the share of a value that is written is up to 2 */
    /* Of a fresh model: bounds of exp(A_log), and of softplus(dt_bias), which is 1 where these are 0. */
    float least_rate, largest_rate, least_step, largest_step;
};

/* Kinds of block. */
enum { DECODER_ATTENDS, DECODER_DELTA };
extern const char *const decoder_delta_kinds[]; /* by layer_types */

/* Lines for a family's list of keys, whose config has a member `delta`; as: FAMILY_COUNT, or FAMILY_COUNT_OR_NULL. */
#define DECODER_DELTA_KEYS(config, as)                                                                                 \
    {"layer_types", FAMILY_LAYERS, .offset = FAMILY_OWN(config, delta.linear), .words = decoder_delta_kinds},          \
        {"linear_conv_kernel_dim", FAMILY_COUNT, .offset = FAMILY_OWN(config, delta.n_taps),                           \
         .most = DEVICE_SHORT_TAPS},                                                                                   \
        {"linear_num_key_heads", as, .offset = FAMILY_OWN(config, delta.n_key_heads), .most = 1024},                   \
        {"linear_num_value_heads", as, .offset = FAMILY_OWN(config, delta.n_heads), .most = 1024},                     \
        {"linear_key_head_dim", as, .offset = FAMILY_OWN(config, delta.key_width), .most = 256},                       \
    {                                                                                                                  \
        "linear_value_head_dim", as, .offset = FAMILY_OWN(config, delta.value_width), .most = 256                      \
    }

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

/* Which blocks are of this kind, by the interval, if the config has not said it. */
void decoder_complete_delta(const struct model_config *config, struct decoder_delta *delta);

/* Checks relations between numbers. As model_config_check. */
int decoder_check_delta(const struct model_config *config, const struct decoder_delta *delta, struct error *err);

#endif
