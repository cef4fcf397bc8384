/* A family that only tests have: two domains of tokens. The first context_length tokens of each row are a text of their
 * own, the context.
 *
 *   context        takes them from the embedding: the value "context"
 *   block 0        encodes it: each token of the context sees all of it
 *   other blocks   decode all tokens of the row: each sees those before it, and the whole context */
#include "proto/model/decoder_family.h"

#include <math.h>

enum { CONTEXT = PROGRAM_OWN };

static const char *const architectures[] = {"CrossingForCausalLM", NULL};

static const struct family_key keys[] = {
    DECODER_KEYS("hidden_act"),
    {"context_length", FAMILY_COUNT, .offset = FAMILY_AT(decoder.pattern), .required = true, .most = 1 << 20},
    {0},
};

static const struct program_dropout none = {0};

static uint32_t own_domain(const struct model_config *c, uint32_t own)
{
    return own == 0 ? c->decoder.pattern : 0;
}

static void write_context(struct program *p, const struct model_config *c)
{
    program_output(p, "context", program_take(p, program_begin(p, c->width), CONTEXT, 0));
}

static int attend(struct program *p, int x, const struct model_config *c, bool full)
{
    const struct decoder_config *d = &c->decoder;
    const struct program_norm_options norm = {.epsilon = c->norm_epsilon, .rms = true};
    const struct program_linear_options linear = {.deviation = c->initializer_range, .out_in = true};
    const struct program_part qkv[] = {{"self_attn.q_proj", c->n_heads * d->head_width},
                                       {"self_attn.k_proj", d->n_kv_heads * d->head_width},
                                       {"self_attn.v_proj", d->n_kv_heads * d->head_width}};
    const struct program_attention_options attention = {.n_heads = c->n_heads,
                                                        .n_kv_heads = d->n_kv_heads,
                                                        .full = full,
                                                        .scale = 1 / sqrtf((float)d->head_width)};
    const int n = program_norm(p, x, "input_layernorm", &norm);
    const int a = program_attention(p, program_linears(p, n, qkv, 3, &linear), &attention);

    return program_add(p, x, program_linear(p, a, "self_attn.o_proj", c->width, &linear), &none);
}

static int look(struct program *p, int x, int context, const struct model_config *c)
{
    const struct decoder_config *d = &c->decoder;
    const struct program_norm_options norm = {.epsilon = c->norm_epsilon, .rms = true};
    const struct program_linear_options linear = {.deviation = c->initializer_range, .out_in = true};
    const struct program_part kv[] = {{"cross_attn.k_proj", d->n_kv_heads * d->head_width},
                                      {"cross_attn.v_proj", d->n_kv_heads * d->head_width}};
    const struct program_cross_attention_options attention = {.n_heads = c->n_heads,
                                                              .n_kv_heads = d->n_kv_heads,
                                                              .scale = 1 / sqrtf((float)d->head_width)};
    const int n = program_norm(p, x, "cross_attn_layernorm", &norm);
    const int q = program_linear(p, n, "cross_attn.q_proj", c->n_heads * d->head_width, &linear);
    const int a = program_cross_attention(p, q, program_linears(p, context, kv, 2, &linear), &attention);

    return program_add(p, x, program_linear(p, a, "cross_attn.o_proj", c->width, &linear), &none);
}

static int mix(struct program *p, int r, const struct model_config *c)
{
    const struct program_norm_options norm = {.epsilon = c->norm_epsilon, .rms = true};
    const struct program_linear_options linear = {.deviation = c->initializer_range, .out_in = true};
    const struct program_part gate_up[] = {{"mlp.gate_proj", c->inner_width}, {"mlp.up_proj", c->inner_width}};
    const int n = program_norm(p, r, "post_attention_layernorm", &norm);
    const int g = program_glu(p, program_linears(p, n, gate_up, 2, &linear), c->activation);

    return program_add(p, r, program_linear(p, g, "mlp.down_proj", c->width, &linear), &none);
}

static void write_encoding(struct program *p, const struct model_config *c)
{
    program_init(p);
    const int x = program_input(p, "context", CONTEXT, c->width);
    program_output(p, "context", mix(p, attend(p, x, c, true), c));
}

static void write_decoding(struct program *p, const struct model_config *c)
{
    const int x = program_begin(p, c->width), context = program_input(p, "context", CONTEXT, c->width);

    program_end(p, mix(p, look(p, attend(p, x, c, false), context, c), c));
}

static const struct family_layer layers[] = {
    {MODEL_SINGLE, "context", .write = write_context},
    {MODEL_BLOCK, "layers.%u", .write = write_encoding},
    {MODEL_BLOCK, "layers.%u", .write = write_decoding},
    {MODEL_SINGLE, "norm", .write = decoder_write_norm},
    {0},
};

static uint32_t kind_of_block(const struct model_config *c, uint32_t index)
{
    (void)c;
    return index > 0;
}

const struct family family_crossing = {
    .model_type = "crossing",
    .architectures = architectures,
    .keys = keys,
    .defaults = {.family = &family_crossing,
                 .n_positions = 2048,
                 .activation = MODEL_SILU,
                 .norm_epsilon = 1e-6f,
                 .initializer_range = 0.02f,
                 .decoder = {.rope = {.base = 10000}}},
    .end_token = FAMILY_NO_TOKEN,
    .padding = FAMILY_NO_TOKEN,
    .complete = decoder_complete,
    .check = decoder_check,
    .prefix = "model.",
    .tables = decoder_tables,
    .layers = layers,
    .kind_of_block = kind_of_block,
    .own_domain = own_domain,
    .logits = "lm_head",
};
