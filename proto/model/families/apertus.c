/* Apertus (Swiss AI 2025, arXiv:2509.14233), tensors named and laid out as in Hugging Face's ApertusForCausalLM: norms
 * of each head's queries and keys, and an MLP of two maps, whose activation, xIELU, has two trained numbers. */
#include "proto/model/decoder_family.h"

#define BASE 12e6f

static const char *const architectures[] = {"ApertusForCausalLM", "ApertusModel", NULL};

struct apertus_config {
    struct decoder_config decoder;
    enum { XIELU } activation;
} MODEL_OWN;
MODEL_OWN_HOLDS(struct apertus_config);

static const char *const activations[] = {"xielu", NULL};

static const struct family_key keys[] = {
    {"hidden_size", FAMILY_COUNT, .offset = FAMILY_AT(width), .required = true, .most = 65536},
    {"num_hidden_layers", FAMILY_COUNT, .offset = FAMILY_AT(n_layers), .required = true, .most = 4096},
    {"num_attention_heads", FAMILY_COUNT, .offset = FAMILY_AT(n_heads), .required = true, .most = 65536},
    {"intermediate_size", FAMILY_WIDTHS, .offset = FAMILY_AT(inner_width), .required = true, .most = MODEL_WIDEST},
    {"vocab_size", FAMILY_COUNT, .offset = FAMILY_AT(vocabulary), .required = true, .most = 1 << 24},
    {"hidden_act", FAMILY_WORD, .offset = FAMILY_OWN(struct apertus_config, activation), .words = activations},
    {"initializer_range", FAMILY_REAL, .offset = FAMILY_AT(initializer_range), .range = FAMILY_FRACTION},
    {"tie_word_embeddings", FAMILY_SWITCH, .offset = FAMILY_AT(tied)},
    {"rms_norm_eps", FAMILY_REAL, .offset = FAMILY_AT(norm_epsilon), .range = FAMILY_EPSILON},
    DECODER_OWN_KEYS,
    DECODER_ROPE_KEYS,
    {"attention_bias", FAMILY_SWITCH, .offset = FAMILY_OWN(struct decoder_config, qkv_bias)},
    {0},
};

static const struct program_xielu_options xielu = {.beta = 0.5f, .bound = -1e-6f};
static const struct family_constant constants[] = {{"mlp.act_fn.beta", 0.5f}, {"mlp.act_fn.eps", -1e-6f}, {0}};

/* Of published files, what transformers does not read. */
static const char *const harmless[] = {"mlp_bias", "post_norm", "qk_norm", NULL};

static void apertus_write_block(struct program *p, const struct model_config *c, uint32_t kind)
{
    static const struct decoder_attention how = {.query = "self_attn.q_norm", .key = "self_attn.k_norm"};
    const struct program_linear_options linear = {.deviation = c->initializer_range, .out_in = true};
    const int x = program_begin(p, c->width);
    const int a = decoder_attention(p, c, kind, decoder_norm(p, c, x, "attention_layernorm"), &how);
    const int r = decoder_add(p, c, x, a, RANDOM_DROPOUT_RESIDUAL_ATTENTION);
    const int n = decoder_norm(p, c, r, "feedforward_layernorm");
    const int u = program_linear(p, n, "mlp.up_proj", c->inner_width, &linear);
    const int m = program_linear(p, program_xielu(p, u, "mlp.act_fn", &xielu), "mlp.down_proj", c->width, &linear);

    program_end(p, decoder_add(p, c, r, m, RANDOM_DROPOUT_RESIDUAL_MLP));
}

/* What transformers gives a file that says nothing of rotary positions. A base alone, which it would pass over, is then
 * refused for the want of a factor. */
static void apertus_complete(struct model_config *c)
{
    struct decoder_rope *rope = &decoder_edit(c)->rope;

    if (rope->scaling == DECODER_LLAMA3 && rope->factor == 0 && rope->base == BASE)
        *rope = (struct decoder_rope){BASE, DECODER_LLAMA3, .factor = 8, .low = 1, .high = 4, .n_trained = 8192};
    decoder_complete_biases(c);
}

static const struct family_layer layers[] = DECODER_LAYERS(apertus_write_block, decoder_write_norm);

const struct family family_apertus = {
    .model_type = "apertus",
    .architectures = architectures,
    .keys = keys,
    .harmless = harmless,
    .defaults = {.family = &family_apertus,
                 .width = 4096,
                 .n_layers = 32,
                 .n_heads = 32,
                 .inner_width = 14336,
                 .vocabulary = 131072,
                 .n_positions = 65536,
                 .norm_epsilon = 1e-5f,
                 .initializer_range = 0.02f},
    FAMILY_OWN_DEFAULTS(struct apertus_config, .decoder = {.rope = {.base = BASE, .scaling = DECODER_LLAMA3}}),
    .end_token = 2,
    .padding = 3,
    .complete = apertus_complete,
    .check = decoder_check,
    DECODER_PARTS_OF(layers),
    .constants = constants,
};
