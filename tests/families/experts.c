/* A family that only tests have: experts without routing. A block is
 *
 *   attention      r = x + attend(norm(x)), the value "residual"; no positions
 *   seven experts  add mlp(norm(r)), each with a norm of its own, to the sum "mixed"
 *   the last one   adds its own, and the sum, to r: the stream
 *
 * So eight layers read r. */
#include "tests/families/parts.h"

#include <stdio.h>

enum { EXPERTS = 8 };

static const char *const architectures[] = {"ExpertsForCausalLM", NULL};

/* intermediate_size is that of an expert. */
static const struct family_key keys[] = {DECODER_KEYS("hidden_act"), {0}};

static void write_attention(struct program *p, const struct model_config *c)
{
    const struct program_norm_options norm = {.epsilon = c->norm_epsilon, .bias = true};
    const int x = program_begin(p, c->width);

    program_output(p, "residual", parts_attend(p, x, program_norm(p, x, "input_layernorm", &norm), c, false));
}

/* Of r, normed. */
static int write_expert(struct program *p, int r, const struct model_config *c, int expert)
{
    const struct program_norm_options norm = {.epsilon = c->norm_epsilon, .rms = true};
    const struct program_linear_options linear = parts_linear(c);
    char stems[4][24];

    snprintf(stems[0], sizeof *stems, "experts.%d.norm", expert);
    snprintf(stems[1], sizeof *stems, "experts.%d.gate_proj", expert);
    snprintf(stems[2], sizeof *stems, "experts.%d.up_proj", expert);
    snprintf(stems[3], sizeof *stems, "experts.%d.down_proj", expert);
    const struct program_part gate_up[] = {{stems[1], c->inner_width}, {stems[2], c->inner_width}};
    const int n = program_norm(p, r, stems[0], &norm);
    const int g = program_glu(p, program_linears(p, n, gate_up, 2, &linear), c->activation);
    return program_linear(p, g, stems[3], c->width, &linear);
}

static void write_adding(struct program *p, const struct model_config *c, int expert)
{
    program_init(p);
    const int r = program_input(p, "residual", PROGRAM_TOKENS, c->width);
    program_add_to(p, "mixed", write_expert(p, r, c, expert));
}

static void write_last(struct program *p, const struct model_config *c)
{
    const struct program_dropout none = {0};

    program_init(p);
    const int r = program_input(p, "residual", PROGRAM_TOKENS, c->width);
    const int mixed = program_input(p, "mixed", PROGRAM_TOKENS, c->width);
    program_end(p, program_add(p, r, program_add(p, mixed, write_expert(p, r, c, EXPERTS - 1), &none), &none));
}

/* All but the last one. */
#define ADDING(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6)

#define DEFINE(expert)                                                                                                 \
    static void write_##expert(struct program *p, const struct model_config *c)                                        \
    {                                                                                                                  \
        write_adding(p, c, expert);                                                                                    \
    }
ADDING(DEFINE)
#undef DEFINE

static const struct family_layer layers[] = {
    {MODEL_BLOCK, "layers.%u", .write = write_attention},
#define ROW(expert) {MODEL_BLOCK, "layers.%u.experts." #expert, .goes_on = true, .write = write_##expert},
    ADDING(ROW)
#undef ROW
        {MODEL_BLOCK, "layers.%u.experts.7", .goes_on = true, .write = write_last},
    {MODEL_SINGLE, "norm", .write = decoder_write_norm},
    {0},
};

const struct family family_experts = {PARTS_FAMILY(experts, MODEL_SILU), .check = decoder_check};
