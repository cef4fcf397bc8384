/* MiniMax-M2 (MiniMax 2025), tensors named and laid out as in Hugging Face's MiniMaxM2ForCausalLM: Mixtral's block without
 * a window, whose queries and keys are normed over all heads at once and rotated in part, and whose experts are chosen by
 * sigmoids. Published files give the rotated columns of a head as rotary_dim. */
#include "proto/model/decoder_moe.h"

#include <errno.h>

static const char *const architectures[] = {"MiniMaxM2ForCausalLM", "MiniMaxM2Model", NULL};

struct minimax_m2_config {
    struct decoder_moe_config moe;
    uint32_t rotated; /* columns of a head; 0: what the share says */
} MODEL_OWN;
MODEL_OWN_HOLDS(struct minimax_m2_config);

#define OWN(member) FAMILY_OWN(struct minimax_m2_config, member)

static const struct family_key keys[] = {
    DECODER_KEYS("hidden_act"),
    DECODER_ROPE_KEYS,
    DECODER_SHARE_KEYS,
    DECODER_MOE_KEYS,
    {"rotary_dim", FAMILY_COUNT_OR_NULL, .offset = OWN(rotated)},
    {"router_jitter_noise", FAMILY_REAL, .offset = OWN(moe.jitter)},
    {0},
};

static void minimax_m2_write_block(struct program *p, const struct model_config *c, uint32_t kind)
{
    static const struct decoder_attention how = {.query = "self_attn.q_norm",
                                                 .key = "self_attn.k_norm",
                                                 .normed_whole = true};
    static const struct program_experts_names names = {.gate = "block_sparse_moe.experts.%u.w1.weight",
                                                       .up = "block_sparse_moe.experts.%u.w3.weight",
                                                       .down = "block_sparse_moe.experts.%u.w2.weight",
                                                       .bias = "block_sparse_moe.e_score_correction_bias"};

    decoder_moe_write_block(p, c, kind, &how, "block_sparse_moe.gate", &names);
}

static const struct family_layer layers[] = DECODER_LAYERS(minimax_m2_write_block, decoder_write_norm);

/* A share that stands in the file, too, has precedence. Half a column more is rounded down to rotary_dim, whatever the
 * quotient. */
static void minimax_m2_complete(struct model_config *c)
{
    const struct minimax_m2_config *own = (const void *)c->own.bytes;
    struct decoder_config *d = decoder_edit(c);

    if (d->rope.share == 0 && own->rotated > 0 && d->head_width > 0)
        d->rope.share = ((float)own->rotated + (own->rotated < d->head_width ? 0.5f : 0)) / (float)d->head_width;
    decoder_complete(c);
}

const struct family family_minimax_m2 = {
    .model_type = "minimax_m2",
    .architectures = architectures,
    .keys = keys,
    .defaults = {.family = &family_minimax_m2,
                 .width = 3072,
                 .n_layers = 62,
                 .n_heads = 48,
                 .inner_width = 1536,
                 .vocabulary = 200064,
                 .n_positions = 196608,
                 .norm_epsilon = 1e-6f,
                 .activation = MODEL_SILU,
                 .initializer_range = 0.02f},
    FAMILY_OWN_DEFAULTS(struct minimax_m2_config,
                        .moe = {.decoder = {.n_kv_heads = 8, .head_width = 128, .rope = {.base = 5000000}},
                                .n_experts = 256,
                                .n_chosen = 8,
                                .step = 1,
                                .normalises = true,
                                .sigmoid = true,
                                .balance = 0.001f,
                                .scale = 1}),
    .end_token = 200020,
    .padding = FAMILY_NO_TOKEN,
    .complete = minimax_m2_complete,
    .check = decoder_moe_check,
    .prefix = "model.",
    .tables = decoder_tables,
    .layers = layers,
    .kind_of_block = decoder_moe_kind_of_block,
    .logits = "lm_head",
    .adapts_experts = true,
    .left_out = decoder_moe_left_out,
};
