/* proto/model/decoder_family.h - for the files of families that followed Llama: what their models have in common.
 *
 * Root mean square norms before attention and MLP, rotary positions, grouped heads, a gated MLP. A family's file names
 * the keys of its config.json, and says where its block differs. */
#ifndef PROTO_MODEL_DECODER_FAMILY_H
#define PROTO_MODEL_DECODER_FAMILY_H

#include "proto/model/decoder.h"
#include "proto/model/family.h"

/* Frequencies of n rotated columns (n / 2), in radians a position. */
void decoder_frequencies(double *out, const struct decoder_rope *rope, uint32_t n);

/* For struct family and struct family_layer. */
void decoder_complete(struct model_config *config);
int decoder_check(const struct model_config *config, struct error *err);
void decoder_write_block(struct program *program, const struct model_config *config);
void decoder_write_sliding_block(struct program *program, const struct model_config *config);
uint32_t decoder_kind_of_block(const struct model_config *config, uint32_t index);
void decoder_write_norm(struct program *program, const struct model_config *config);

/* True for "layers.0.self_attn.rotary_emb.inv_freq" and the like: frequencies that old files hold. */
bool decoder_is_mask(const char *name);

/* Sets which blocks slide, unless the file says so: from block `first` on, all but every pattern'th; pattern 0: all.
 * For a family's `complete`. */
void decoder_slide(struct model_config *config, uint32_t first, uint32_t pattern);

/* decoder_complete for Qwen, whose window is used if its file says so. */
void decoder_complete_qwen(struct model_config *config);

/* sqrt(width), as in Gemma. */
float decoder_embedding_scale(const struct model_config *config);

extern const struct family_table decoder_tables[];
extern const struct family_layer decoder_layers[];

/* Members of struct family that all these families share. */
#define DECODER_PARTS                                                                                                  \
    .prefix = "model.", .tables = decoder_tables, .layers = decoder_layers, .kind_of_block = decoder_kind_of_block,    \
    .logits = "lm_head"

/* Lines for a family's list of keys: those that all of them have, but for the name of the activation's; and rotary
 * positions, which are one object, or in older files a base and an object that scales it. */
#define DECODER_KEYS(hidden_act)                                                                                       \
    FAMILY_KEYS(hidden_act),                                                                                           \
        {"num_key_value_heads", FAMILY_COUNT_OR_NULL, .offset = FAMILY_OWN(struct decoder_config, n_kv_heads),         \
         .most = 65536},                                                                                               \
        {"head_dim", FAMILY_COUNT_OR_NULL, .offset = FAMILY_OWN(struct decoder_config, head_width), .most = 1024},     \
        {"max_position_embeddings", FAMILY_COUNT, .offset = FAMILY_AT(n_positions), .most = 1 << 24},                  \
        {"rms_norm_eps", FAMILY_REAL, .offset = FAMILY_AT(norm_epsilon), .range = FAMILY_EPSILON},                     \
        {"attention_dropout", FAMILY_REAL, .offset = FAMILY_OWN(struct decoder_config, dropout_attention),             \
         .range = FAMILY_PROBABILITY},                                                                                 \
    {                                                                                                                  \
        "rope_theta", FAMILY_REAL, .offset = FAMILY_OWN(struct decoder_config, rope.base)                              \
    }

#define DECODER_ROPE_KEYS                                                                                              \
    DECODER_ROPE_KEYS_OF("rope_parameters.", rope), DECODER_ROPE_KEYS_OF("rope_scaling.", rope),                       \
    {                                                                                                                  \
        "rope_scaling", FAMILY_SAME, .other = "rope_parameters"                                                        \
    }

#define DECODER_ROPE_KEYS_OF(object, member)                                                                           \
    {object "type", FAMILY_WORD, .offset = FAMILY_OWN(struct decoder_config, member.scaling),                          \
     .words = decoder_scalings},                                                                                       \
        DECODER_ROPE_NUMBERS_OF(object, member)

/* Keys of an object of rotary positions, without "type", the old name of rope_type. */
#define DECODER_ROPE_NUMBERS_OF(object, member)                                                                        \
    {object "rope_theta", FAMILY_REAL, .offset = FAMILY_OWN(struct decoder_config, member.base)},                      \
        {object "rope_type", FAMILY_WORD, .offset = FAMILY_OWN(struct decoder_config, member.scaling),                 \
         .words = decoder_scalings},                                                                                   \
        {object "factor", FAMILY_REAL, .offset = FAMILY_OWN(struct decoder_config, member.factor)},                    \
        {object "low_freq_factor", FAMILY_REAL, .offset = FAMILY_OWN(struct decoder_config, member.low)},              \
        {object "high_freq_factor", FAMILY_REAL, .offset = FAMILY_OWN(struct decoder_config, member.high)},            \
    {                                                                                                                  \
        object "original_max_position_embeddings", FAMILY_COUNT,                                                       \
            .offset = FAMILY_OWN(struct decoder_config, member.n_trained)                                              \
    }

extern const char *const decoder_scalings[]; /* by enum decoder_scaling */
extern const char *const decoder_kinds[];    /* of blocks: full_attention, sliding_attention */

/* Lines for a Qwen's list of keys. */
#define DECODER_QWEN_KEYS                                                                                              \
    {"sliding_window", FAMILY_COUNT_OR_NULL, .offset = FAMILY_OWN(struct decoder_config, window)},                     \
        {"use_sliding_window", FAMILY_SWITCH, .offset = FAMILY_OWN(struct decoder_config, slides)},                    \
        {"max_window_layers", FAMILY_COUNT, .offset = FAMILY_OWN(struct decoder_config, n_full)},                      \
    {                                                                                                                  \
        "layer_types", FAMILY_LAYERS, .offset = FAMILY_OWN(struct decoder_config, sliding), .words = decoder_kinds     \
    }

#endif
