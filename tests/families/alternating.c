/* A family that only tests have: as Llama, but every fourth block's queries see a window. */
#include "proto/model/decoder_family.h"

static const char *const architectures[] = {"AlternatingForCausalLM", NULL};

static const struct family_key keys[] = {
    DECODER_KEYS("hidden_act"),
    {"sliding_window", FAMILY_COUNT, .offset = FAMILY_AT(decoder.window), .required = true, .most = 1 << 24},
    {0},
};

static uint32_t kind_of_block(const struct model_config *c, uint32_t index)
{
    (void)c;
    return index % 4 == 2;
}

const struct family family_alternating = {
    .model_type = "alternating",
    .architectures = architectures,
    .keys = keys,
    .defaults = {.family = &family_alternating,
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
    .layers = decoder_layers,
    .kind_of_block = kind_of_block,
    .logits = "lm_head",
};
