/* A family that only tests have: a model without tables. Its lowest layer maps the bytes of a token's id to the stream;
 * blocks attend, and mix. */
#include "tests/families/parts.h"

static const char *const architectures[] = {"PixelsForCausalLM", NULL};

static const struct family_key keys[] = {DECODER_KEYS("hidden_act"), {0}};

static void write_stem(struct program *p, const struct model_config *c)
{
    const struct program_pixels_options pixels = {.n = 3, .mean = {0.125f, 0.25f, 0}, .deviation = {0.0625f, 0.5f, 1}};
    const struct program_linear_options linear = {.deviation = c->initializer_range, .out_in = true, .bias = true};

    program_init(p);
    program_output(p, "", program_linear(p, program_pixels(p, &pixels), "stem", c->width, &linear));
}

static void write_block(struct program *p, const struct model_config *c)
{
    const struct program_norm_options norm = {.epsilon = c->norm_epsilon, .rms = true};
    const int x = program_begin(p, c->width);
    const int r = parts_attend(p, x, program_norm(p, x, "input_layernorm", &norm), c, false);

    program_end(p, parts_mix(p, r, program_norm(p, r, "post_attention_layernorm", &norm), c));
}

static const struct family_layer layers[] = {
    {MODEL_SINGLE, "stem", .write = write_stem},
    {MODEL_BLOCK, "layers.%u", .write = write_block},
    {MODEL_SINGLE, "norm", .write = decoder_write_norm},
    {0},
};

const struct family family_pixels = {PARTS_FAMILY_OF(NULL, pixels, MODEL_SILU), .check = decoder_check};
