/* proto/model/decoder_moe.h - the numbers of decoders whose MLPs are mixtures of experts, and their blocks' parts.
 *
 * A block's experts are one operation and are visited together (proto/operation/kind/experts.h). Each expert's weights
 * are tensors of their own, as files have them. The load-balance loss, which transformers adds where a config says
 * output_router_logits, is refused unless its coefficient is 0. */
#ifndef PROTO_MODEL_DECODER_MOE_H
#define PROTO_MODEL_DECODER_MOE_H

#include "proto/model/decoder_family.h"
#include "proto/operation/kind/experts.h"

struct decoder_moe_config {
    struct decoder_config decoder;
    uint32_t n_experts, n_chosen; /* 0 experts: all blocks are dense */
    uint32_t expert_width;        /* columns of an expert's gate; 0: inner_width */
    uint32_t shared_width;        /* of the expert that every token has; 0: there is none */
    uint32_t n_shared;            /* experts that every token has, in one MLP, mlp.shared_experts, without a gate */
    uint32_t n_dense;             /* the lowest blocks, which have no experts */
    uint32_t step;                /* blocks step - 1, 2 step - 1, ... have experts, unless they are dense */
    struct config_layers dense;   /* mlp_only_layers */
    bool normalises;              /* weights of a token's experts sum to 1 */
    bool balances;                /* output_router_logits */
    float balance, jitter, clip;
    bool sigmoid, biased;               /* scores are sigmoids; experts are chosen with a bias beside them */
    uint32_t n_groups, n_chosen_groups; /* of experts, with sigmoids; 0: none */
    float epsilon, scale;               /* of weights, with sigmoids (proto/operation/call/experts.h) */
} MODEL_OWN;
MODEL_OWN_HOLDS(struct decoder_moe_config);

static inline const struct decoder_moe_config *decoder_moe_of(const struct model_config *config)
{
    return (const void *)config->own.bytes;
}

#define DECODER_MOE_OWN(member) FAMILY_OWN(struct decoder_moe_config, member)

/* Lines for a family's list of keys. */
#define DECODER_MOE_KEYS                                                                                               \
    {"num_experts", FAMILY_COUNT, .offset = DECODER_MOE_OWN(n_experts)},                                               \
        {"num_local_experts", FAMILY_COUNT, .offset = DECODER_MOE_OWN(n_experts)},                                     \
        {"num_experts_per_tok", FAMILY_COUNT, .offset = DECODER_MOE_OWN(n_chosen)},                                    \
        {"output_router_logits", FAMILY_SWITCH, .offset = DECODER_MOE_OWN(balances)},                                  \
    {                                                                                                                  \
        "router_aux_loss_coef", FAMILY_REAL, .offset = DECODER_MOE_OWN(balance)                                        \
    }

#define DECODER_MOE_SPARSE_KEYS                                                                                        \
    {"moe_intermediate_size", FAMILY_COUNT, .offset = DECODER_MOE_OWN(expert_width), .most = MODEL_WIDEST},            \
        {"decoder_sparse_step", FAMILY_COUNT, .offset = DECODER_MOE_OWN(step)},                                        \
        {"mlp_only_layers", FAMILY_INDICES, .offset = DECODER_MOE_OWN(dense)},                                         \
    {                                                                                                                  \
        "norm_topk_prob", FAMILY_SWITCH, .offset = DECODER_MOE_OWN(normalises)                                         \
    }

/* Kinds of block, besides DECODER_SLIDES. */
enum { DECODER_MOE_DENSE = 2 };
uint32_t decoder_moe_kind_of_block(const struct model_config *config, uint32_t index);

/* Lines for routers by sigmoid: a factor on weights, whether they are normalised. */
#define DECODER_MOE_SIGMOID_KEYS                                                                                       \
    {"routed_scaling_factor", FAMILY_REAL, .offset = DECODER_MOE_OWN(scale)},                                          \
    {                                                                                                                  \
        "norm_topk_prob", FAMILY_SWITCH, .offset = DECODER_MOE_OWN(normalises)                                         \
    }

/* For struct family: decoder_check, and what experts must be. */
int decoder_moe_check(const struct model_config *config, struct error *err);

/* For struct family: that no load-balance loss is added, if the config has a coefficient for it. */
const char *decoder_moe_left_out(const struct model_config *config);

/* Llama's block, with experts in the place of the MLP unless its kind is DECODER_MOE_DENSE. The router, a linear map, is
 * `router`; the shared expert, mlp.shared_expert, is multiplied by the sigmoid of mlp.shared_expert_gate, one number for
 * each token. That of n_shared, mlp.shared_experts, is added as it is. */
void decoder_moe_write_block(struct program *program, const struct model_config *config, uint32_t kind,
                             const struct decoder_attention *how, const char *router,
                             const struct program_experts_names *names);

/* The experts of x alone, with those that every token has: for blocks of a family's own. */
int decoder_moe_experts(struct program *program, const struct model_config *config, int x, const char *router,
                        const struct program_experts_names *names);

/* "mlp.experts.%u.gate_proj.weight" and the like; and how files may have them joined. */
extern const struct program_experts_names decoder_moe_names;
extern const struct family_joined decoder_moe_joined[];

#endif
