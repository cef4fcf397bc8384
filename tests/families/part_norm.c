/* A family that only tests have: a normalisation over all tokens of a part. A block is
 *
 *   attention   r = x + attend(norm(x)), the value "residual", and the moments of its rows
 *     finish    joins them to the part's statistics
 *   mlp         the stream r + mlp(batch norm(r)) */
#include "tests/families/parts.h"

static const char *const architectures[] = {"PartNormForCausalLM", NULL};

static const struct family_key keys[] = {DECODER_KEYS("hidden_act"), {0}};

static void write_attention(struct program *p, const struct model_config *c)
{
    const struct program_norm_options norm = {.epsilon = c->norm_epsilon, .rms = true};
    const int x = program_begin(p, c->width);
    const int r = parts_attend(p, x, program_norm(p, x, "input_layernorm", &norm), c, false);

    program_output(p, "residual", r);
    program_output(p, "moments", program_row_moments(p, r));
}

static void finish_attention(struct program *p, const struct model_config *c, uint32_t kind)
{
    (void)kind;
    program_init(p);
    const int moments = program_input(p, "moments", PROGRAM_ROW, 2 * c->width);
    program_output(p, "statistics", program_join_moments(p, moments, PROGRAM_TOKENS, c->norm_epsilon));
}

static void write_mlp(struct program *p, const struct model_config *c)
{
    program_init(p);
    const int r = program_input(p, "residual", PROGRAM_TOKENS, c->width);
    const int statistics = program_input(p, "statistics", PROGRAM_PART, PROGRAM_STATISTICS * c->width);
    program_end(p, parts_mix(p, r, program_batch_norm(p, r, statistics, "part_norm"), c));
}

static const struct family_layer layers[] = {
    {MODEL_BLOCK, "layers.%u", .write = write_attention, .finish = finish_attention},
    {MODEL_BLOCK, "layers.%u.mlp", .goes_on = true, .write = write_mlp},
    {MODEL_SINGLE, "norm", .write = decoder_write_norm},
    {0},
};

const struct family family_part_norm = {PARTS_FAMILY(part_norm, MODEL_SILU), .check = decoder_check};
