/* A family that only tests have: its MLP is too wide for the device, so that it comes in four layers. A block is
 *
 *   attention     r = x + attend(norm(x)), the value "residual"; n = norm(r), "normed"
 *   three chunks  add down(act(up(n))), each with columns of the MLP of its own, to the sum "mixed"
 *   the last one  adds its own, and the sum, to r: the stream */
#include "tests/families/parts.h"
#include "proto/operation/call/rope.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>

enum { CHUNKS = 4 };

static const char *const architectures[] = {"ChunkedForCausalLM", NULL};

static const struct family_key keys[] = {DECODER_KEYS("hidden_act"), {0}};

static int check(const struct model_config *c, struct error *err)
{
    if (c->inner_width % CHUNKS != 0)
        return error_set(err, -EINVAL, "intermediate_size is %u: it must be a multiple of %d", c->inner_width, CHUNKS);
    return decoder_check(c, err);
}

static void write_attention(struct program *p, const struct model_config *c)
{
    const struct decoder_config *d = decoder_of(c);
    const struct program_norm_options norm = {.epsilon = c->norm_epsilon, .rms = true};
    const struct program_linear_options linear = {.deviation = c->initializer_range, .out_in = true};
    const struct program_part qkv[] = {{"self_attn.q_proj", c->n_heads * d->head_width},
                                       {"self_attn.k_proj", d->n_kv_heads * d->head_width},
                                       {"self_attn.v_proj", d->n_kv_heads * d->head_width}};
    const struct program_attention_options attention = {.n_heads = c->n_heads,
                                                        .n_kv_heads = d->n_kv_heads,
                                                        .scale = 1 / sqrtf((float)d->head_width)};
    double frequencies[DEVICE_MAX_ROTATED / 2];
    const struct program_rope_options rope = {.n_heads = c->n_heads + d->n_kv_heads,
                                              .head_width = d->head_width,
                                              .n_rotated = d->head_width,
                                              .frequencies = frequencies};

    decoder_frequencies(frequencies, &d->rope, NULL, rope.n_rotated);
    const int x = program_begin(p, c->width);
    const int projected = program_linears(p, program_norm(p, x, "input_layernorm", &norm), qkv, 3, &linear);
    const int a = program_attention(p, program_rope(p, projected, &rope), &attention);
    const int o = program_linear(p, a, "self_attn.o_proj", c->width, &linear);
    const int r = program_add(p, x, o, &(struct program_dropout){0});
    program_output(p, "residual", r);
    program_output(p, "normed", program_norm(p, r, "post_attention_layernorm", &norm));
}

static int write_mlp(struct program *p, int x, const struct model_config *c, int chunk, bool bias)
{
    const struct program_linear_options up = {.deviation = c->initializer_range, .bias = true, .out_in = true},
                                        down = {.deviation = c->initializer_range, .bias = bias, .out_in = true};
    char up_stem[24], down_stem[24];

    snprintf(up_stem, sizeof up_stem, "mlp.%d.up_proj", chunk);
    snprintf(down_stem, sizeof down_stem, "mlp.%d.down_proj", chunk);
    const int u = program_linear(p, x, up_stem, c->inner_width / CHUNKS, &up);
    return program_linear(p, program_activation(p, u, c->activation), down_stem, c->width, &down);
}

static void write_chunk(struct program *p, const struct model_config *c, int chunk)
{
    program_init(p);
    const int n = program_input(p, "normed", PROGRAM_TOKENS, c->width);
    program_add_to(p, "mixed", write_mlp(p, n, c, chunk, false));
}

static void write_0(struct program *p, const struct model_config *c)
{
    write_chunk(p, c, 0);
}

static void write_1(struct program *p, const struct model_config *c)
{
    write_chunk(p, c, 1);
}

static void write_2(struct program *p, const struct model_config *c)
{
    write_chunk(p, c, 2);
}

/* r comes first: its gradient takes the place of the output's. */
static void write_last(struct program *p, const struct model_config *c)
{
    const struct program_dropout none = {0};

    program_init(p);
    const int r = program_input(p, "residual", PROGRAM_TOKENS, c->width);
    const int mixed = program_input(p, "mixed", PROGRAM_TOKENS, c->width);
    const int n = program_input(p, "normed", PROGRAM_TOKENS, c->width);
    program_end(p, program_add(p, r, program_add(p, mixed, write_mlp(p, n, c, CHUNKS - 1, true), &none), &none));
}

static const struct family_layer layers[] = {
    {MODEL_BLOCK, "layers.%u", .write = write_attention},
    {MODEL_BLOCK, "layers.%u.mlp.0", .goes_on = true, .write = write_0},
    {MODEL_BLOCK, "layers.%u.mlp.1", .goes_on = true, .write = write_1},
    {MODEL_BLOCK, "layers.%u.mlp.2", .goes_on = true, .write = write_2},
    {MODEL_BLOCK, "layers.%u.mlp.3", .goes_on = true, .write = write_last},
    {MODEL_SINGLE, "norm", .write = decoder_write_norm},
    {0},
};

const struct family family_chunked = {PARTS_FAMILY(chunked, MODEL_GELU), .check = check};
