/* tests/families/parts.h - what the families that only tests have share: attention without positions, a gated MLP, and
 * most of their tables. */
#ifndef TESTS_FAMILIES_PARTS_H
#define TESTS_FAMILIES_PARTS_H

#include "proto/model/decoder_family.h"

#include <math.h>

static const struct program_dropout parts_no_dropout = {0};

static inline struct program_linear_options parts_linear(const struct model_config *c)
{
    return (struct program_linear_options){.deviation = c->initializer_range, .out_in = true};
}

/* x + attention of n, a normed x. full: each token sees all. */
static inline int parts_attend(struct program *p, int x, int n, const struct model_config *c, bool full)
{
    const struct decoder_config *d = decoder_of(c);
    const struct program_linear_options linear = parts_linear(c);
    const struct program_part qkv[] = {{"self_attn.q_proj", c->n_heads * d->head_width},
                                       {"self_attn.k_proj", d->n_kv_heads * d->head_width},
                                       {"self_attn.v_proj", d->n_kv_heads * d->head_width}};
    const struct program_attention_options attention = {.n_heads = c->n_heads,
                                                        .n_kv_heads = d->n_kv_heads,
                                                        .full = full,
                                                        .scale = 1 / sqrtf((float)d->head_width)};
    const int a = program_attention(p, program_linears(p, n, qkv, 3, &linear), &attention);

    return program_add(p, x, program_linear(p, a, "self_attn.o_proj", c->width, &linear), &parts_no_dropout);
}

/* r + MLP of n. */
static inline int parts_mix(struct program *p, int r, int n, const struct model_config *c)
{
    const struct program_linear_options linear = parts_linear(c);
    const struct program_part gate_up[] = {{"mlp.gate_proj", c->inner_width}, {"mlp.up_proj", c->inner_width}};
    const int g = program_glu(p, program_linears(p, n, gate_up, 2, &linear), c->activation);

    return program_add(p, r, program_linear(p, g, "mlp.down_proj", c->width, &linear), &parts_no_dropout);
}

/* A kind_of_block: the lowest block is of the first kind, all others are of the second. */
static inline uint32_t parts_above_lowest(const struct model_config *c, uint32_t index)
{
    (void)c;
    return index > 0;
}

/* For a struct family of this name, all but what differs: its keys and, of alternating and crossing, some functions. */
#define PARTS_FAMILY(name, function) PARTS_FAMILY_OF(decoder_tables, name, function)
#define PARTS_FAMILY_OF(all_tables, name, function)                                                                    \
    .model_type = #name, .architectures = architectures, .keys = keys,                                                 \
    .defaults = {.family = &family_##name,                                                                             \
                 .n_positions = 2048,                                                                                  \
                 .activation = function,                                                                               \
                 .norm_epsilon = 1e-6f,                                                                                \
                 .initializer_range = 0.02f},                                                                          \
    FAMILY_OWN_DEFAULTS(struct decoder_config, .rope = {.base = 10000}), .end_token = FAMILY_NO_TOKEN,                 \
    .padding = FAMILY_NO_TOKEN, .complete = decoder_complete, .prefix = "model.", .tables = all_tables,                \
    .layers = layers, .logits = "lm_head"

#endif
