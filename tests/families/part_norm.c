/* A family that only tests have: a normalisation over all tokens of a part. A block is
 *
 *   attention   r = x + attend(norm(x)), the value "residual", and the moments of its rows
 *     finish    joins them to the part's statistics
 *   mlp         the stream r + mlp(batch norm(r)) */
#include "proto/model/decoder_family.h"

#include <math.h>

static const char *const architectures[] = {"PartNormForCausalLM", NULL};

static const struct family_key keys[] = {DECODER_KEYS("hidden_act"), {0}};

static const struct program_dropout none = {0};

static void write_attention(struct program *p, const struct model_config *c)
{
    const struct decoder_config *d = &c->decoder;
    const struct program_norm_options norm = {.epsilon = c->norm_epsilon, .rms = true};
    const struct program_linear_options linear = {.deviation = c->initializer_range, .out_in = true};
    const struct program_part qkv[] = {{"self_attn.q_proj", c->n_heads * d->head_width},
                                       {"self_attn.k_proj", d->n_kv_heads * d->head_width},
                                       {"self_attn.v_proj", d->n_kv_heads * d->head_width}};
    const struct program_attention_options attention = {.n_heads = c->n_heads,
                                                        .n_kv_heads = d->n_kv_heads,
                                                        .scale = 1 / sqrtf((float)d->head_width)};
    const int x = program_begin(p, c->width);
    const int n = program_norm(p, x, "input_layernorm", &norm);
    const int a = program_attention(p, program_linears(p, n, qkv, 3, &linear), &attention);
    const int r = program_add(p, x, program_linear(p, a, "self_attn.o_proj", c->width, &linear), &none);

    program_output(p, "residual", r);
    program_output(p, "moments", program_row_moments(p, r));
}

static void finish_attention(struct program *p, const struct model_config *c)
{
    program_init(p);
    const int moments = program_input(p, "moments", PROGRAM_ROW, 2 * c->width);
    program_output(p, "statistics", program_join_moments(p, moments, PROGRAM_TOKENS, c->norm_epsilon));
}

static void write_mlp(struct program *p, const struct model_config *c)
{
    const struct program_linear_options linear = {.deviation = c->initializer_range, .out_in = true};
    const struct program_part gate_up[] = {{"mlp.gate_proj", c->inner_width}, {"mlp.up_proj", c->inner_width}};

    program_init(p);
    const int r = program_input(p, "residual", PROGRAM_TOKENS, c->width);
    const int statistics = program_input(p, "statistics", PROGRAM_PART, 2 * c->width);
    const int n = program_batch_norm(p, r, statistics, "part_norm");
    const int g = program_glu(p, program_linears(p, n, gate_up, 2, &linear), c->activation);
    program_end(p, program_add(p, r, program_linear(p, g, "mlp.down_proj", c->width, &linear), &none));
}

static const struct family_layer layers[] = {
    {MODEL_BLOCK, "layers.%u", .write = write_attention, .finish = finish_attention},
    {MODEL_BLOCK, "layers.%u.mlp", .goes_on = true, .write = write_mlp},
    {MODEL_SINGLE, "norm", .write = decoder_write_norm},
    {0},
};

const struct family family_part_norm = {
    .model_type = "part_norm",
    .architectures = architectures,
    .keys = keys,
    .defaults = {.family = &family_part_norm,
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
