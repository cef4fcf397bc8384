/* A family that only tests have: two domains of tokens. The first context_length tokens of each row are a text of their
 * own, the context.
 *
 *   context        takes them from the embedding: the value "context"
 *   block 0        encodes it: each token of the context sees all of it
 *   other blocks   decode all tokens of the row: each sees those before it, and the whole context */
#include "tests/families/parts.h"

#include <math.h>

enum { CONTEXT = PROGRAM_OWN };

static const char *const architectures[] = {"CrossingForCausalLM", NULL};

struct crossing_config {
    struct decoder_config decoder; /* first: decoder_of */
    uint32_t n_context;            /* tokens of the context */
} MODEL_OWN;
MODEL_OWN_HOLDS(struct crossing_config);

static const struct family_key keys[] = {
    DECODER_KEYS("hidden_act"),
    {"context_length", FAMILY_COUNT, .offset = FAMILY_OWN(struct crossing_config, n_context), .required = true,
     .most = 1 << 20},
    {0},
};

static struct program_own own_domain(const struct model_config *c, uint32_t own)
{
    const struct crossing_config *numbers = (const void *)c->own.bytes;

    return (struct program_own){.n = own == 0 ? numbers->n_context : 0};
}

static void write_context(struct program *p, const struct model_config *c)
{
    program_output(p, "context", program_take(p, program_begin(p, c->width), CONTEXT));
}

static int attend(struct program *p, int x, const struct model_config *c, bool full)
{
    const struct program_norm_options norm = {.epsilon = c->norm_epsilon, .rms = true};

    return parts_attend(p, x, program_norm(p, x, "input_layernorm", &norm), c, full);
}

static int look(struct program *p, int x, int context, const struct model_config *c)
{
    const struct decoder_config *d = decoder_of(c);
    const struct program_norm_options norm = {.epsilon = c->norm_epsilon, .rms = true};
    const struct program_linear_options linear = parts_linear(c);
    const struct program_part kv[] = {{"cross_attn.k_proj", d->n_kv_heads * d->head_width},
                                      {"cross_attn.v_proj", d->n_kv_heads * d->head_width}};
    const struct program_cross_attention_options attention = {.n_heads = c->n_heads,
                                                              .n_kv_heads = d->n_kv_heads,
                                                              .scale = 1 / sqrtf((float)d->head_width)};
    const int n = program_norm(p, x, "cross_attn_layernorm", &norm);
    const int q = program_linear(p, n, "cross_attn.q_proj", c->n_heads * d->head_width, &linear);
    const int a = program_cross_attention(p, q, program_linears(p, context, kv, 2, &linear), &attention);

    return program_add(p, x, program_linear(p, a, "cross_attn.o_proj", c->width, &linear), &parts_no_dropout);
}

static int mix(struct program *p, int r, const struct model_config *c)
{
    const struct program_norm_options norm = {.epsilon = c->norm_epsilon, .rms = true};

    return parts_mix(p, r, program_norm(p, r, "post_attention_layernorm", &norm), c);
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

const struct family family_crossing = {PARTS_FAMILY(crossing, MODEL_SILU), .check = decoder_check,
                                       .kind_of_block = parts_above_lowest, .own_domain = own_domain};
