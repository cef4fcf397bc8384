/* A family that only tests have: a bias that is made once a part. Below the blocks a layer without an input gives the value
 * "shift", a vector; each block adds it to what its attention reads. */
#include "proto/model/decoder_family.h"

#include <math.h>

static const char *const architectures[] = {"ShiftedForCausalLM", NULL};

static const struct family_key keys[] = {DECODER_KEYS("hidden_act"), {0}};

static void write_shift(struct program *p, const struct model_config *c)
{
    program_init(p);
    program_output(p, "shift", program_parameter(p, "shift.bias", c->width));
}

static void write_block(struct program *p, const struct model_config *c)
{
    const struct decoder_config *d = &c->decoder;
    const struct program_norm_options norm = {.epsilon = c->norm_epsilon, .rms = true};
    const struct program_linear_options linear = {.deviation = c->initializer_range, .out_in = true};
    const struct program_part qkv[] = {{"self_attn.q_proj", c->n_heads * d->head_width},
                                       {"self_attn.k_proj", d->n_kv_heads * d->head_width},
                                       {"self_attn.v_proj", d->n_kv_heads * d->head_width}};
    const struct program_part gate_up[] = {{"mlp.gate_proj", c->inner_width}, {"mlp.up_proj", c->inner_width}};
    const struct program_attention_options attention = {.n_heads = c->n_heads,
                                                        .n_kv_heads = d->n_kv_heads,
                                                        .scale = 1 / sqrtf((float)d->head_width)};
    const struct program_dropout none = {0};
    const int x = program_begin(p, c->width);
    const int b = program_input(p, "shift", PROGRAM_PART, c->width);

    const int n = program_shift(p, program_norm(p, x, "input_layernorm", &norm), b);
    const int a = program_attention(p, program_linears(p, n, qkv, 3, &linear), &attention);
    const int r = program_add(p, x, program_linear(p, a, "self_attn.o_proj", c->width, &linear), &none);
    const int g =
        program_glu(p, program_linears(p, program_norm(p, r, "post_attention_layernorm", &norm), gate_up, 2, &linear),
                    c->activation);
    program_end(p, program_add(p, r, program_linear(p, g, "mlp.down_proj", c->width, &linear), &none));
}

static const struct family_layer layers[] = {
    {MODEL_SINGLE, "shift", .write = write_shift},
    {MODEL_BLOCK, "layers.%u", .write = write_block},
    {MODEL_SINGLE, "norm", .write = decoder_write_norm},
    {0},
};

const struct family family_shifted = {
    .model_type = "shifted",
    .architectures = architectures,
    .keys = keys,
    .defaults = {.family = &family_shifted,
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
    .logits = "lm_head",
};
