/* Granite with windows and sinks (IBM 2026), tensors named and laid out as in Hugging Face's GraniteSWAForCausalLM: in
 * three of four blocks queries see a window, and each head has a trained sink. layer_rope_theta has a base for each
 * block, 0 where queries and keys are not rotated; bases may differ by the kind of block, as kinds have programs. */
#include "proto/model/decoder_family.h"

#include <errno.h>

static const char *const architectures[] = {"GraniteSWAForCausalLM", "GraniteSWAModel", NULL};

struct granite_swa_config {
    struct decoder_config decoder;
    struct config_reals bases; /* of each block; none: rope.base */
} MODEL_OWN;
MODEL_OWN_HOLDS(struct granite_swa_config);

static const struct family_key keys[] = {
    DECODER_GRANITE_KEYS,
    {"sliding_window", FAMILY_COUNT_OR_NULL, .offset = FAMILY_OWN(struct decoder_config, window)},
    {"layer_types", FAMILY_LAYERS, .offset = FAMILY_OWN(struct decoder_config, sliding), .words = decoder_kinds},
    {"layer_rope_theta", FAMILY_REALS, .offset = FAMILY_OWN(struct granite_swa_config, bases)},
    {0},
};

static const struct config_reals *granite_swa_bases(const struct model_config *c)
{
    return &((const struct granite_swa_config *)(const void *)c->own.bytes)->bases;
}

static struct decoder_rope *granite_swa_rope(struct decoder_config *d, uint32_t block)
{
    return config_layers_has(&d->sliding, block) ? &d->sliding_rope : &d->rope;
}

static void granite_swa_complete(struct model_config *c)
{
    struct decoder_config *d = decoder_edit(c);
    const struct config_reals *bases = granite_swa_bases(c);

    for (uint32_t i = 0; d->sliding.n == 0 && i < c->n_layers && i < CONFIG_LAYERS; i++)
        if (i % 4 != 0)
            config_layers_add(&d->sliding, i);
    d->sliding_rope = d->rope;
    for (uint32_t i = bases->n < c->n_layers ? bases->n : c->n_layers; i-- > 0;)
        if (bases->of[i] == 0)
            config_layers_add(&d->unrotated, i);
        else
            granite_swa_rope(d, i)->base = bases->of[i];
    decoder_complete_biases(c);
}

static int granite_swa_check(const struct model_config *c, struct error *err)
{
    struct decoder_config d = *decoder_of(c);
    const struct config_reals *bases = granite_swa_bases(c);

    if (bases->n > 0 && bases->n != c->n_layers)
        return error_set(err, -EINVAL, "layer_rope_theta has %u entries: num_hidden_layers is %u", bases->n,
                         c->n_layers);
    for (uint32_t i = 0; i < bases->n; i++)
        if (bases->of[i] != 0 && bases->of[i] != granite_swa_rope(&d, i)->base)
            return error_set(err, -EINVAL,
                             "layer_rope_theta has %g and %g in blocks of one kind: only 0 may be beside another base",
                             (double)granite_swa_rope(&d, i)->base, (double)bases->of[i]);
    return decoder_check_multipliers(c, err);
}

static void granite_swa_write_block(struct program *p, const struct model_config *c, uint32_t kind)
{
    static const struct decoder_attention how = {.sinks = true};

    decoder_write_normed_before(p, c, kind, &how, NULL);
}

static const struct family_layer layers[] = DECODER_LAYERS(granite_swa_write_block, decoder_write_norm);

const struct family family_granite_swa = {
    .model_type = "granite_swa",
    .architectures = architectures,
    .keys = keys,
    .defaults = {.family = &family_granite_swa,
                 .width = 2560,
                 .n_layers = 24,
                 .n_heads = 20,
                 .inner_width = 8192,
                 .vocabulary = 100352,
                 .n_positions = 8192,
                 .tied = true,
                 .norm_epsilon = 1e-5f,
                 .activation = MODEL_SILU,
                 .initializer_range = 0.02f},
    FAMILY_OWN_DEFAULTS(struct granite_swa_config, .decoder = {.n_kv_heads = 4,
                                                               .window = 128,
                                                               .embedding_scale = 1,
                                                               .score_scale = 1,
                                                               .branch_scale = 1,
                                                               .logit_divisor = 1,
                                                               .rope = {.base = 10000}}),
    .end_token = 100257,
    .padding = FAMILY_NO_TOKEN,
    .complete = granite_swa_complete,
    .check = granite_swa_check,
    DECODER_PARTS_OF(layers),
    .embedding_scale = decoder_given_embedding_scale,
};
