/* EXAONE 4 (LG AI Research, arXiv:2507.11407), tensors named and laid out as in Hugging Face's Exaone4ForCausalLM:
 * norms follow attention and MLP, and none precedes them; heads are normed. Where some blocks slide, the others are
 * not rotated. */
#include "proto/model/decoder_family.h"

#include <errno.h>

static const char *const architectures[] = {"Exaone4ForCausalLM", "Exaone4Model", NULL};

static const struct family_key keys[] = {
    DECODER_KEYS("hidden_act"),
    DECODER_ROPE_KEYS,
    {"sliding_window", FAMILY_COUNT_OR_NULL, .offset = FAMILY_OWN(struct decoder_config, window)},
    {"sliding_window_pattern", FAMILY_PERIOD, .offset = FAMILY_OWN(struct decoder_config, pattern)},
    {"layer_types", FAMILY_LAYERS, .offset = FAMILY_OWN(struct decoder_config, sliding), .words = decoder_kinds},
    {0},
};

static void exaone4_write_block(struct program *p, const struct model_config *c, uint32_t kind)
{
    static const struct decoder_attention how = {.query = "self_attn.q_norm", .key = "self_attn.k_norm"};

    decoder_write_normed_after(p, c, kind, &how);
}

static const struct family_layer layers[] = DECODER_LAYERS(exaone4_write_block, decoder_write_norm);

/* A window makes the blocks without one unrotated, whatever there are of them. */
static void exaone4_complete(struct model_config *c)
{
    struct decoder_config *d = decoder_edit(c);

    if (d->window > 0 && d->pattern > 0)
        decoder_slide(c, 0, d->pattern);
    if (d->window > 0)
        decoder_unrotate(c);
    decoder_complete(c);
}

static int exaone4_check(const struct model_config *c, struct error *err)
{
    const struct decoder_config *d = decoder_of(c);

    if (d->window > 0 && d->pattern == 0 && d->sliding.n == 0)
        return error_set(err, -EINVAL, "sliding_window is %u: it needs layer_types, or a sliding_window_pattern",
                         d->window);
    return decoder_check(c, err);
}

const struct family family_exaone4 = {
    .model_type = "exaone4",
    .architectures = architectures,
    .keys = keys,
    .defaults = {.family = &family_exaone4,
                 .width = 4096,
                 .n_layers = 32,
                 .n_heads = 32,
                 .inner_width = 16384,
                 .vocabulary = 102400,
                 .n_positions = 2048,
                 .norm_epsilon = 1e-5f,
                 .activation = MODEL_SILU,
                 .initializer_range = 0.02f},
    FAMILY_OWN_DEFAULTS(struct decoder_config, .n_kv_heads = 32, .window = 4096, .pattern = 4, .rope = {.base = 10000}),
    .end_token = 2,
    .padding = FAMILY_NO_TOKEN,
    .complete = exaone4_complete,
    .check = exaone4_check,
    DECODER_PARTS_OF(layers),
};
