/* Bloom (BigScience, arXiv:2211.05100), tensors named and laid out as in Hugging Face's BloomForCausalLM: scores fall
 * with the distance from query to key, by a slope for each head; a layer norm of the embedding; one map whose result
 * is, head by head, a query, a key and a value. With apply_residual_connection_post_layernorm sums continue from the
 * norms. */
#include "proto/model/decoder_family.h"

#include <errno.h>

static const char *const architectures[] = {"BloomForCausalLM", "BloomModel", NULL};

struct bloom_config {
    struct decoder_config decoder;
    bool adds_to_norms; /* what branches give is added to what they read */
} MODEL_OWN;
MODEL_OWN_HOLDS(struct bloom_config);

/* Files have the number of blocks, of heads and the width by one of two names each. */
static const struct family_key keys[] = {
    {"hidden_size", FAMILY_COUNT, .offset = FAMILY_AT(width), .most = 65536},
    {"n_embed", FAMILY_COUNT, .offset = FAMILY_AT(width), .most = 65536},
    {"num_hidden_layers", FAMILY_COUNT, .offset = FAMILY_AT(n_layers), .most = 4096},
    {"n_layer", FAMILY_COUNT, .offset = FAMILY_AT(n_layers), .most = 4096},
    {"num_attention_heads", FAMILY_COUNT, .offset = FAMILY_AT(n_heads), .most = 65536},
    {"n_head", FAMILY_COUNT, .offset = FAMILY_AT(n_heads), .most = 65536},
    {"vocab_size", FAMILY_COUNT, .offset = FAMILY_AT(vocabulary), .most = 1 << 24},
    {"initializer_range", FAMILY_REAL, .offset = FAMILY_AT(initializer_range), .range = FAMILY_FRACTION},
    {"tie_word_embeddings", FAMILY_SWITCH, .offset = FAMILY_AT(tied)},
    {"layer_norm_epsilon", FAMILY_REAL, .offset = FAMILY_AT(norm_epsilon), .range = FAMILY_EPSILON},
    {"attention_dropout", FAMILY_REAL, .offset = FAMILY_OWN(struct decoder_config, dropout_attention),
     .range = FAMILY_PROBABILITY},
    {"hidden_dropout", FAMILY_REAL, .offset = FAMILY_OWN(struct decoder_config, dropout_residual),
     .range = FAMILY_PROBABILITY},
    {"apply_residual_connection_post_layernorm", FAMILY_SWITCH,
     .offset = FAMILY_OWN(struct bloom_config, adds_to_norms)},
    {0},
};

/* How maps are computed, to the same result; and of published files, what nothing reads. */
static const char *const harmless[] = {"attention_softmax_in_fp32",
                                       "bias_dropout_fusion",
                                       "masked_softmax_fusion",
                                       "n_inner",
                                       "offset_alibi",
                                       "pretraining_tp",
                                       "seq_length",
                                       "skip_bias_add*",
                                       "slow_but_exact",
                                       NULL};

static void bloom_write_embedding(struct program *p, const struct model_config *c)
{
    program_end(p, decoder_layer_norm(p, c, program_begin(p, c->width), "word_embeddings_layernorm", true));
}

static void bloom_write_block(struct program *p, const struct model_config *c, uint32_t kind)
{
    static const struct decoder_attention how = {.qkv = "self_attention.query_key_value",
                                                 .by_head = true,
                                                 .output = "self_attention.dense"};
    const bool adds_to_norms = ((const struct bloom_config *)(const void *)c->own.bytes)->adds_to_norms;
    const int x = program_begin(p, c->width);
    const int n = decoder_layer_norm(p, c, x, "input_layernorm", true);
    const int a = decoder_attention(p, c, kind, n, &how);
    const int r = decoder_add(p, c, adds_to_norms ? n : x, a, RANDOM_DROPOUT_RESIDUAL_ATTENTION);
    const int o = decoder_layer_norm(p, c, r, "post_attention_layernorm", true);
    const int m = decoder_plain(p, c, o, "mlp.dense_h_to_4h", "mlp.dense_4h_to_h");

    program_end(p, decoder_add(p, c, adds_to_norms ? o : r, m, RANDOM_DROPOUT_RESIDUAL_MLP));
}

static void bloom_write_norm(struct program *p, const struct model_config *c)
{
    program_end(p, decoder_layer_norm(p, c, program_begin(p, c->width), "ln_f", true));
}

static const struct family_layer layers[] = {
    {MODEL_SINGLE, "word_embeddings_layernorm", .write = bloom_write_embedding},
    {MODEL_BLOCK, "h.%u", .write_kind = bloom_write_block},
    {MODEL_SINGLE, "ln_f", .write = bloom_write_norm},
    {0},
};

static const struct family_table tables[] = {{"word_embeddings", MODEL_BY_TOKEN, .rows = FAMILY_AT(vocabulary)}, {0}};

static void bloom_complete(struct model_config *c)
{
    c->inner_width = 4 * c->width;
    decoder_complete(c);
}

static int bloom_check(const struct model_config *c, struct error *err)
{
    if (c->width % c->n_heads != 0)
        return error_set(err, -EINVAL, "hidden_size is %u: it must be a multiple of n_head, which is %u", c->width,
                         c->n_heads);
    return decoder_check(c, err);
}

const struct family family_bloom = {
    .model_type = "bloom",
    .architectures = architectures,
    .keys = keys,
    .harmless = harmless,
    .defaults = {.family = &family_bloom,
                 .width = 64,
                 .n_layers = 2,
                 .n_heads = 8,
                 .vocabulary = 250880,
                 .n_positions = 1 << 24,
                 .tied = true,
                 .norm_epsilon = 1e-5f,
                 .activation = MODEL_GELU_NEW,
                 .initializer_range = 0.02f},
    FAMILY_OWN_DEFAULTS(struct bloom_config,
                        .decoder = {.qkv_bias = true, .output_bias = true, .mlp_bias = true, .alibi = true}),
    .end_token = 2,
    .padding = FAMILY_NO_TOKEN,
    .trains_padding = true,
    .complete = bloom_complete,
    .check = bloom_check,
    .prefix = "transformer.",
    .tables = tables,
    .layers = layers,
    .logits = "lm_head",
};
