/* A family that only tests have: a bias that is made once a part. Below the blocks a layer without an input gives the
 * value "shift", a vector; each block adds it to what its attention reads. */
#include "tests/families/parts.h"

static const char *const architectures[] = {"ShiftedForCausalLM", NULL};

static const struct family_key keys[] = {DECODER_KEYS("hidden_act"), {0}};

static void write_shift(struct program *p, const struct model_config *c)
{
    program_init(p);
    program_output(p, "shift", program_parameter(p, "shift.bias", c->width));
}

static void write_block(struct program *p, const struct model_config *c)
{
    const struct program_norm_options norm = {.epsilon = c->norm_epsilon, .rms = true};
    const int x = program_begin(p, c->width), b = program_input(p, "shift", PROGRAM_PART, c->width);

    const int n = program_shift(p, program_norm(p, x, "input_layernorm", &norm), b);
    const int r = parts_attend(p, x, n, c, false);
    program_end(p, parts_mix(p, r, program_norm(p, r, "post_attention_layernorm", &norm), c));
}

static const struct family_layer layers[] = {
    {MODEL_SINGLE, "shift", .write = write_shift},
    {MODEL_BLOCK, "layers.%u", .write = write_block},
    {MODEL_SINGLE, "norm", .write = decoder_write_norm},
    {0},
};

const struct family family_shifted = {PARTS_FAMILY(shifted, MODEL_SILU), .check = decoder_check};
