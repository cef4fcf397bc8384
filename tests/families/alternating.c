/* A family that only tests have: its blocks differ in their tensors, in what forward keeps for backward and in their
 * caches, with a period of four.
 *
 *   block 0, 4, 8, ..  as Llama's: root mean square norms, rotary positions, grouped heads, a gated MLP
 *   2, 6, 10, ..       the same, but its queries see a window; its heads have another width, keys and values another
 *                      number of them, and queries and keys are normed
 *   odd ones           do not attend: a layer norm, and a gated MLP of another width, with biases */
#include "tests/families/alternating.h"
#include "tests/families/parts.h"
#include "proto/operation/call/rope.h"

#include <errno.h>
#include <math.h>

static const char *const architectures[] = {"AlternatingForCausalLM", NULL};

static const struct family_key keys[] = {
    DECODER_KEYS("hidden_act"),
    {"wide_intermediate_size", FAMILY_COUNT, .offset = FAMILY_OWN(struct alternating_config, wide_width),
     .required = true, .most = 1 << 20},
    {"sliding_window", FAMILY_COUNT, .offset = FAMILY_OWN(struct decoder_config, window), .required = true,
     .most = 1 << 24},
    {"window_key_value_heads", FAMILY_COUNT, .offset = FAMILY_OWN(struct alternating_config, n_window_kv_heads),
     .required = true, .most = 65536},
    {"window_head_dim", FAMILY_COUNT, .offset = FAMILY_OWN(struct alternating_config, window_head_width),
     .required = true, .most = 256},
    {"rope_local_base_freq", FAMILY_REAL, .offset = FAMILY_OWN(struct decoder_config, sliding_rope.base)},
    {0},
};

struct heads {
    uint32_t n_kv, width, window; /* as in struct program_attention_options */
    const struct decoder_rope *rope;
    bool normed;
};

static struct heads full_heads(const struct model_config *c)
{
    const struct decoder_config *d = decoder_of(c);

    return (struct heads){d->n_kv_heads, d->head_width, 0, &d->rope, false};
}

static struct heads windowed_heads(const struct model_config *c)
{
    const struct alternating_config *a = alternating_of(c);

    return (struct heads){a->n_window_kv_heads, a->window_head_width, a->decoder.window, &a->decoder.sliding_rope,
                          true};
}

static int check(const struct model_config *c, struct error *err)
{
    const struct heads heads = windowed_heads(c);

    if (c->n_heads % heads.n_kv != 0 || heads.width % 2 || (uint64_t)c->n_heads * heads.width > 65536)
        return error_set(
            err, -EINVAL,
            "window_key_value_heads is %u and window_head_dim %u: the first must divide num_attention_heads, "
            "which is %u, and the second be even",
            heads.n_kv, heads.width, c->n_heads);
    return decoder_check(c, err);
}

static int write_attention(struct program *p, int x, const struct model_config *c, const struct heads *heads)
{
    const struct program_norm_options norm = {.epsilon = c->norm_epsilon, .rms = true};
    const struct program_linear_options linear = {.deviation = c->initializer_range, .out_in = true};
    const struct program_part qkv[] = {{"self_attn.q_proj", c->n_heads * heads->width},
                                       {"self_attn.k_proj", heads->n_kv * heads->width},
                                       {"self_attn.v_proj", heads->n_kv * heads->width}};
    const struct program_head_norm_options head_norm = {.epsilon = c->norm_epsilon,
                                                        .n_heads = c->n_heads,
                                                        .n_kv_heads = heads->n_kv,
                                                        .head_width = heads->width};
    const struct program_attention_options attention = {.n_heads = c->n_heads,
                                                        .n_kv_heads = heads->n_kv,
                                                        .window = heads->window,
                                                        .scale = 1 / sqrtf((float)heads->width)};
    double frequencies[DEVICE_MAX_ROTATED / 2];
    const struct program_rope_options rope = {.n_heads = c->n_heads + heads->n_kv,
                                              .head_width = heads->width,
                                              .n_rotated = heads->width,
                                              .frequencies = frequencies};

    decoder_frequencies(frequencies, heads->rope, NULL, rope.n_rotated);
    int y = program_linears(p, program_norm(p, x, "input_layernorm", &norm), qkv, 3, &linear);
    if (heads->normed)
        y = program_head_norm(p, y, "self_attn.q_norm", "self_attn.k_norm", &head_norm);
    y = program_attention(p, program_rope(p, y, &rope), &attention);
    return program_add(p, x, program_linear(p, y, "self_attn.o_proj", c->width, &linear), &(struct program_dropout){0});
}

/* x: normed before; r: what the result is added to. */
static int write_mlp(struct program *p, int r, int x, const struct model_config *c, uint32_t inner, bool bias)
{
    const struct program_linear_options linear = {.deviation = c->initializer_range, .bias = bias, .out_in = true};
    const struct program_part gate_up[] = {{"mlp.gate_proj", inner}, {"mlp.up_proj", inner}};
    const int g = program_glu(p, program_linears(p, x, gate_up, 2, &linear), c->activation);

    return program_add(p, r, program_linear(p, g, "mlp.down_proj", c->width, &linear), &(struct program_dropout){0});
}

static void write_attending(struct program *p, const struct model_config *c, const struct heads *heads)
{
    const struct program_norm_options norm = {.epsilon = c->norm_epsilon, .rms = true};
    const int r = write_attention(p, program_begin(p, c->width), c, heads);

    program_end(p, write_mlp(p, r, program_norm(p, r, "post_attention_layernorm", &norm), c, c->inner_width, false));
}

static void write_full(struct program *p, const struct model_config *c)
{
    const struct heads heads = full_heads(c);

    write_attending(p, c, &heads);
}

static void write_windowed(struct program *p, const struct model_config *c)
{
    const struct heads heads = windowed_heads(c);

    write_attending(p, c, &heads);
}

static void write_wide(struct program *p, const struct model_config *c)
{
    const struct program_norm_options norm = {.epsilon = c->norm_epsilon, .bias = true};
    const int x = program_begin(p, c->width);

    program_end(p, write_mlp(p, x, program_norm(p, x, "mlp_norm", &norm), c, alternating_of(c)->wide_width, true));
}

enum { FULL, WINDOWED, WIDE };

static const struct family_layer layers[] = {
    [FULL] = {MODEL_BLOCK, "layers.%u", .write = write_full},
    [WINDOWED] = {MODEL_BLOCK, "layers.%u", .write = write_windowed},
    [WIDE] = {MODEL_BLOCK, "layers.%u", .write = write_wide},
    {MODEL_SINGLE, "norm", .write = decoder_write_norm},
    {0},
};

static uint32_t kind_of_block(const struct model_config *c, uint32_t index)
{
    (void)c;
    return index % 2 ? WIDE : index % 4 ? WINDOWED : FULL;
}

const struct family family_alternating = {PARTS_FAMILY(alternating, MODEL_SILU), .check = check,
                                          .kind_of_block = kind_of_block};
