/* proto/model/decoder_family.h - for the files of families that followed Llama: what their models have in common, and
 * the parts of which a family's file composes its block.
 *
 * A block of Llama is, in its family's file:
 *
 *     const int x = program_begin(p, c->width);
 *     const int a = decoder_attention(p, c, kind, decoder_norm(p, c, x, "input_layernorm"), &how);
 *     const int r = decoder_add(p, c, x, a, RANDOM_DROPOUT_RESIDUAL_ATTENTION);
 *     const int m = decoder_gated(p, c, decoder_norm(p, c, r, "post_attention_layernorm"), NULL);
 *     program_end(p, decoder_add(p, c, r, m, RANDOM_DROPOUT_RESIDUAL_MLP));
 *
 * Where norms stand, how branches join, what tensors are called is the family's to write; sizes, windows, rotation and
 * biases are numbers of its config. No part knows a family. */
#ifndef PROTO_MODEL_DECODER_FAMILY_H
#define PROTO_MODEL_DECODER_FAMILY_H

#include "proto/model/decoder.h"
#include "proto/model/family.h"

/* ---- parts of a block: each returns the value that it makes ---- */

/* What a family's attention is beside its numbers. */
struct decoder_attention {
    const char *qkv;         /* one map for queries, keys and values; NULL: self_attn.q_proj, k_proj and v_proj */
    bool by_head;            /* the result of that one map is, head by head, a query, a key and a value */
    const char *output;      /* NULL: self_attn.o_proj */
    const char *query, *key; /* norms of queries and keys; NULL: none */
    bool normed_rotated;     /* these follow the rotation; else it follows them */
    bool full;               /* a query sees all keys, not those up to its own position alone */
    bool normed_by_mean;     /* by layer norms, with a bias; else by the root mean square */
    bool normed_each;        /* by layer norms, without a bias, and each head has a weight of its own */
    bool normed_stacked;     /* with normed_each: these weights are rows of one tensor */
    bool normed_bare;        /* by the root mean square, without weights; query and key are not read */
    bool normed_whole;       /* over all heads at once, a weight for each column; else head by head, with one weight */
    bool sinks;              /* each head has one: self_attn.sinks */
    bool gated; /* each column of the result has a gate: in self_attn.q_proj one stands behind each query */
    const char *gate,
        *head_gate; /* maps of x, whose sigmoids multiply each column, or each head's result; NULL: none */
};

/* Attention over x with its projections: its window and its rotation are those of the kind (DECODER_SLIDES,
 * DECODER_UNROTATED). */
int decoder_attention(struct program *program, const struct model_config *config, uint32_t kind, int x,
                      const struct decoder_attention *how);

/* A gated MLP (Shazeer, arXiv:2002.05202). gate_up: one map for both halves; NULL: mlp.gate_proj and mlp.up_proj. */
int decoder_gated(struct program *program, const struct model_config *config, int x, const char *gate_up);

/* An MLP of two maps. */
int decoder_plain(struct program *program, const struct model_config *config, int x, const char *up, const char *down);

/* A gated MLP of three maps of other names and of this width, without biases. */
struct decoder_gated_names {
    const char *gate, *up, *down;
};
int decoder_gated_as(struct program *program, const struct model_config *config, int x, uint32_t width,
                     const struct decoder_gated_names *names);

/* The same, with the names feed_forward.w1, w3 and w2; and a gated short convolution with its maps, conv.in_proj, conv.conv
 * and conv.out_proj. bias: of all three. */
int decoder_feed_forward(struct program *program, const struct model_config *config, int x, uint32_t width);
int decoder_convolution(struct program *program, const struct model_config *config, int x, uint32_t n_taps, bool bias);

/* A root mean square norm; the layer norm, with a bias or without. */
int decoder_norm(struct program *program, const struct model_config *config, int x, const char *name);
int decoder_layer_norm(struct program *program, const struct model_config *config, int x, const char *name, bool bias);

/* x plus what a branch gives: attention or the MLP, by the site of its dropout. */
int decoder_add(struct program *program, const struct model_config *config, int x, int branch, enum random_site site);

/* ---- what many of them share ---- */

/* Blocks that several families have but for names and norms of heads. Llama's, whose norms precede attention and MLP;
 * one whose norms follow them; one in which both read the same layer norm, without a bias. gate_up: as of
 * decoder_gated. */
void decoder_write_normed_before(struct program *program, const struct model_config *config, uint32_t kind,
                                 const struct decoder_attention *how, const char *gate_up);
void decoder_write_normed_after(struct program *program, const struct model_config *config, uint32_t kind,
                                const struct decoder_attention *how);
void decoder_write_side_by_side(struct program *program, const struct model_config *config, uint32_t kind,
                                const struct decoder_attention *how);

/* Llama's block and last norm; also with the layer norm, with a bias and without. */
void decoder_write_block(struct program *program, const struct model_config *config, uint32_t kind);
void decoder_write_norm(struct program *program, const struct model_config *config);
void decoder_write_layer_norm(struct program *program, const struct model_config *config);
void decoder_write_bare_layer_norm(struct program *program, const struct model_config *config);

/* Ends the last layer with the head's input, multiplied as logits are. */
void decoder_end_head(struct program *program, const struct model_config *config, int normed);

/* A family's layers, for its table: `block` writes those of all kinds. */
#define DECODER_LAYERS(block, norm)                                                                                    \
    {                                                                                                                  \
        {MODEL_BLOCK, "layers.%u", .write_kind = block}, {MODEL_BLOCK, "layers.%u", .write_kind = block},              \
            {MODEL_BLOCK, "layers.%u", .write_kind = block}, {MODEL_BLOCK, "layers.%u", .write_kind = block},          \
            {MODEL_SINGLE, "norm", .write = norm},                                                                     \
        {                                                                                                              \
            0                                                                                                          \
        }                                                                                                              \
    }

/* Frequencies of n rotated columns (half of them, rounded up), in radians a position. divisors: of DECODER_LONGROPE. */
void decoder_frequencies(double *out, const struct decoder_rope *rope, const struct config_reals *divisors, uint32_t n);

/* For struct family. */
void decoder_complete(struct model_config *config);
int decoder_check(const struct model_config *config, struct error *err);
uint32_t decoder_kind_of_block(const struct model_config *config, uint32_t index);

/* True for "layers.0.self_attn.rotary_emb.inv_freq" and the like: frequencies that old files hold. */
bool decoder_is_mask(const char *name);

/* Sets which blocks slide, unless the file says so: from block `first` on, all but every pattern'th; pattern 0: all.
 * For a family's `complete`. */
void decoder_slide(struct model_config *config, uint32_t first, uint32_t pattern);

/* decoder_complete for Qwen, whose window is used if its file says so. */
void decoder_complete_qwen(struct model_config *config);

/* sqrt(width), as in Gemma; the config's own, as in Granite. */
float decoder_embedding_scale(const struct model_config *config);
float decoder_given_embedding_scale(const struct model_config *config);

/* A family's check, with that of Granite's multipliers; and with that of the factor on logits. */
int decoder_check_multipliers(const struct model_config *config, struct error *err);
int decoder_check_logit_scale(const struct model_config *config, struct error *err);

/* Of struct family, the bound that the config has. Its check: that it, and attention's, are such. */
float decoder_logit_cap(const struct model_config *config);
int decoder_check_caps(const struct model_config *config, struct error *err);

extern const struct family_table decoder_tables[];
extern const struct family_layer decoder_layers[];

/* Members of struct family that all these families share; and with layers of its own. */
#define DECODER_PARTS DECODER_PARTS_OF(decoder_layers)
#define DECODER_PARTS_OF(own_layers)                                                                                   \
    .prefix = "model.", .tables = decoder_tables, .layers = own_layers, .kind_of_block = decoder_kind_of_block,        \
    .logits = "lm_head"

/* Lines for a family's list of keys: those that all of them have, but for the name of the activation's; and rotary
 * positions, which are one object, or in older files a base and an object that scales it. */
#define DECODER_KEYS(hidden_act) DECODER_KEYS_OF(hidden_act, "rms_norm_eps")

#define DECODER_KEYS_OF(hidden_act, epsilon)                                                                           \
    DECODER_KEYS_BUT_EPSILON(hidden_act),                                                                              \
    {                                                                                                                  \
        epsilon, FAMILY_REAL, .offset = FAMILY_AT(norm_epsilon), .range = FAMILY_EPSILON                               \
    }

#define DECODER_KEYS_BUT_EPSILON(hidden_act) FAMILY_KEYS(hidden_act), DECODER_OWN_KEYS

/* Of these, the ones that FAMILY_KEYS lacks. */
#define DECODER_OWN_KEYS                                                                                               \
    {"num_key_value_heads", FAMILY_COUNT_OR_NULL, .offset = FAMILY_OWN(struct decoder_config, n_kv_heads),             \
     .most = 65536},                                                                                                   \
        {"head_dim", FAMILY_COUNT_OR_NULL, .offset = FAMILY_OWN(struct decoder_config, head_width), .most = 1024},     \
        {"max_position_embeddings", FAMILY_COUNT, .offset = FAMILY_AT(n_positions), .most = 1 << 24},                  \
        {"attention_dropout", FAMILY_REAL, .offset = FAMILY_OWN(struct decoder_config, dropout_attention),             \
         .range = FAMILY_PROBABILITY},                                                                                 \
    {                                                                                                                  \
        "rope_theta", FAMILY_REAL_OR_NULL, .offset = FAMILY_OWN(struct decoder_config, rope.base)                      \
    }

#define DECODER_ROPE_KEYS                                                                                              \
    DECODER_ROPE_KEYS_OF("rope_parameters.", rope), DECODER_ROPE_KEYS_OF("rope_scaling.", rope),                       \
        DECODER_ROPE_LISTS_OF("rope_parameters."), DECODER_ROPE_LISTS_OF("rope_scaling."),                             \
    {                                                                                                                  \
        "rope_scaling", FAMILY_SAME, .other = "rope_parameters"                                                        \
    }

#define DECODER_ROPE_KEYS_OF(object, member)                                                                           \
    {object "type", FAMILY_WORD, .offset = FAMILY_OWN(struct decoder_config, member.scaling),                          \
     .words = decoder_scalings},                                                                                       \
        DECODER_ROPE_NUMBERS_OF(object, member)

/* Keys of an object of rotary positions, without "type", the old name of rope_type. */
#define DECODER_ROPE_NUMBERS_OF(object, member)                                                                        \
    {object "rope_type", FAMILY_WORD, .offset = FAMILY_OWN(struct decoder_config, member.scaling),                     \
     .words = decoder_scalings},                                                                                       \
        DECODER_ROPE_VALUES_OF(object, member),                                                                        \
    {                                                                                                                  \
        object "original_max_position_embeddings", FAMILY_COUNT,                                                       \
            .offset = FAMILY_OWN(struct decoder_config, member.n_trained)                                              \
    }

/* Of these, what is neither rope_type nor the number of trained positions. */
#define DECODER_ROPE_VALUES_OF(object, member)                                                                         \
    {object "rope_theta", FAMILY_REAL_OR_NULL, .offset = FAMILY_OWN(struct decoder_config, member.base)},              \
        {object "factor", FAMILY_REAL_OR_NULL, .offset = FAMILY_OWN(struct decoder_config, member.factor)},            \
        {object "low_freq_factor", FAMILY_REAL, .offset = FAMILY_OWN(struct decoder_config, member.low)},              \
        {object "high_freq_factor", FAMILY_REAL, .offset = FAMILY_OWN(struct decoder_config, member.high)},            \
        {object "beta_fast", FAMILY_REAL_OR_DEFAULT, .offset = FAMILY_OWN(struct decoder_config, member.fast)},        \
        {object "beta_slow", FAMILY_REAL_OR_DEFAULT, .offset = FAMILY_OWN(struct decoder_config, member.slow)},        \
        {object "truncate", FAMILY_SWITCHED_OFF, .offset = FAMILY_OWN(struct decoder_config, member.unrounded)},       \
        {object "attention_factor", FAMILY_REAL_OR_NULL,                                                               \
         .offset = FAMILY_OWN(struct decoder_config, member.attention)},                                               \
        {object "mscale", FAMILY_REAL_OR_DEFAULT, .offset = FAMILY_OWN(struct decoder_config, member.mscale)},         \
    {                                                                                                                  \
        object "mscale_all_dim", FAMILY_REAL_OR_DEFAULT,                                                               \
            .offset = FAMILY_OWN(struct decoder_config, member.mscale_all)                                             \
    }

/* The same object's lists, of which a model has one pair. */
#define DECODER_ROPE_LISTS_OF(object)                                                                                  \
    {object "short_factor", FAMILY_REALS, .offset = FAMILY_OWN(struct decoder_config, short_factors)},                 \
    {                                                                                                                  \
        object "long_factor", FAMILY_REALS, .offset = FAMILY_OWN(struct decoder_config, long_factors)                  \
    }

/* Of families that rotate a share of a head's columns. */
#define DECODER_SHARE_KEYS                                                                                             \
    {"partial_rotary_factor", FAMILY_REAL, .offset = FAMILY_OWN(struct decoder_config, rope.share)},                   \
        {"rope_scaling.partial_rotary_factor", FAMILY_REAL, .offset = FAMILY_OWN(struct decoder_config, rope.share)},  \
    {                                                                                                                  \
        "rope_parameters.partial_rotary_factor", FAMILY_REAL, .offset = FAMILY_OWN(struct decoder_config, rope.share)  \
    }

/* decoder_complete of families with one key for the biases of queries, keys, values and attention's result. */
void decoder_complete_biases(struct model_config *config);

/* Blocks that do not slide are not rotated: for `complete`, once those that slide are known. */
void decoder_unrotate(struct model_config *config);

/* Of families whose window, if there is one, holds in all blocks: for `complete`. */
void decoder_complete_window(struct model_config *config);

/* Dropout of the embedding's sum: struct family. */
struct program_dropout decoder_embedding_dropout(const struct model_config *config);

/* Of families whose rotary positions differ by kind of block: transformers looks for truncate beside the kinds. */
extern const char *const decoder_ignored[];

extern const char *const decoder_scalings[]; /* by enum decoder_scaling */
extern const char *const decoder_kinds[];    /* of blocks: full_attention, sliding_attention */

/* Lines for a Granite's list of keys. */
#define DECODER_GRANITE_KEYS                                                                                           \
    DECODER_KEYS("hidden_act"), DECODER_ROPE_KEYS,                                                                     \
        {"attention_bias", FAMILY_SWITCH, .offset = FAMILY_OWN(struct decoder_config, qkv_bias)},                      \
        {"mlp_bias", FAMILY_SWITCH, .offset = FAMILY_OWN(struct decoder_config, mlp_bias)},                            \
        {"embedding_multiplier", FAMILY_REAL, .offset = FAMILY_OWN(struct decoder_config, embedding_scale)},           \
        {"attention_multiplier", FAMILY_REAL, .offset = FAMILY_OWN(struct decoder_config, score_scale)},               \
        {"residual_multiplier", FAMILY_REAL, .offset = FAMILY_OWN(struct decoder_config, branch_scale)},               \
    {                                                                                                                  \
        "logits_scaling", FAMILY_REAL, .offset = FAMILY_OWN(struct decoder_config, logit_divisor)                      \
    }

/* Lines for a Qwen's list of keys. */
#define DECODER_QWEN_KEYS                                                                                              \
    {"sliding_window", FAMILY_COUNT_OR_NULL, .offset = FAMILY_OWN(struct decoder_config, window)},                     \
        {"use_sliding_window", FAMILY_SWITCH, .offset = FAMILY_OWN(struct decoder_config, slides)},                    \
        {"max_window_layers", FAMILY_COUNT, .offset = FAMILY_OWN(struct decoder_config, n_full)},                      \
    {                                                                                                                  \
        "layer_types", FAMILY_LAYERS, .offset = FAMILY_OWN(struct decoder_config, sliding), .words = decoder_kinds     \
    }

#endif
