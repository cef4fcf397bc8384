/* The text model of Muse Glimmer (Meta, 2026), tensors named and laid out as in Hugging Face's MuseGlimmerTextModel, behind
 * it the wrapper's head: Gemma's norms before and after attention and MLP, heads normed without weights, a gate for each
 * column of attention's result, blocks without rotation, a norm of the embedding; logits are multiplied, then capped.
 *
 * transformers has no class for this model with its head alone. Of layer_rope_theta it reads which are 0. */
#include "proto/model/decoder_family.h"

#include <errno.h>
#include <math.h>

static const char *const architectures[] = {"MuseGlimmerTextModel", NULL};

struct muse_glimmer_config {
    struct decoder_config decoder;
    float query_scale;  /* of normed queries */
    float post_epsilon; /* of norms that follow attention and MLP */
} MODEL_OWN;
MODEL_OWN_HOLDS(struct muse_glimmer_config);

#define OWN(member) FAMILY_OWN(struct muse_glimmer_config, member)

static const struct family_key keys[] = {
    DECODER_KEYS("hidden_activation"),
    DECODER_ROPE_KEYS,
    {"attention_bias", FAMILY_SWITCH, .offset = OWN(decoder.qkv_bias)},
    {"sliding_window", FAMILY_COUNT_OR_NULL, .offset = OWN(decoder.window)},
    {"layer_types", FAMILY_LAYERS, .offset = OWN(decoder.sliding), .words = decoder_kinds},
    {"layer_rope_theta", FAMILY_SWITCHES, .offset = OWN(decoder.unrotated)},
    {"final_logit_softcapping", FAMILY_REAL, .offset = OWN(decoder.logit_cap)},
    {"output_multiplier", FAMILY_REAL, .offset = OWN(decoder.logit_scale)},
    {"qk_scale_factor", FAMILY_REAL, .offset = OWN(query_scale)},
    {"post_norm_eps", FAMILY_REAL, .offset = OWN(post_epsilon), .range = FAMILY_EPSILON},
    {0},
};

static const struct muse_glimmer_config *muse_glimmer_of(const struct model_config *c)
{
    return (const void *)c->own.bytes;
}

static int muse_glimmer_norm_after(struct program *p, const struct model_config *c, int x, const char *name)
{
    return program_norm(p, x, name,
                        &(struct program_norm_options){.epsilon = muse_glimmer_of(c)->post_epsilon,
                                                       .rms = true,
                                                       .offset = true});
}

static void muse_glimmer_write_block(struct program *p, const struct model_config *c, uint32_t kind)
{
    static const struct decoder_attention how = {.normed_bare = true, .gate = "self_attn.gate_proj"};
    const int x = program_begin(p, c->width);
    const int a = decoder_attention(p, c, kind, decoder_norm(p, c, x, "input_layernorm"), &how);
    const int r = decoder_add(p, c, x, muse_glimmer_norm_after(p, c, a, "post_attention_layernorm"),
                              RANDOM_DROPOUT_RESIDUAL_ATTENTION);
    const int m = decoder_gated(p, c, decoder_norm(p, c, r, "pre_feedforward_layernorm"), NULL);

    program_end(p, decoder_add(p, c, r, muse_glimmer_norm_after(p, c, m, "post_feedforward_layernorm"),
                               RANDOM_DROPOUT_RESIDUAL_MLP));
}

static void muse_glimmer_write_embedding_norm(struct program *p, const struct model_config *c)
{
    const struct program_norm_options bare = {.epsilon = c->norm_epsilon, .rms = true, .bare = true};

    program_end(p, program_norm(p, program_begin(p, c->width), "", &bare));
}

/* Its weight stands for itself, where those of blocks stand for 1 more. */
static void muse_glimmer_write_norm(struct program *p, const struct model_config *c)
{
    const struct program_norm_options norm = {.epsilon = c->norm_epsilon, .rms = true};

    decoder_end_head(p, c, program_norm(p, program_begin(p, c->width), "norm", &norm));
}

static const struct family_layer layers[] = {
    {MODEL_SINGLE, "embeddings.norm", .write = muse_glimmer_write_embedding_norm},
    {MODEL_BLOCK, "layers.%u", .write_kind = muse_glimmer_write_block},
    {MODEL_BLOCK, "layers.%u", .write_kind = muse_glimmer_write_block},
    {MODEL_BLOCK, "layers.%u", .write_kind = muse_glimmer_write_block},
    {MODEL_BLOCK, "layers.%u", .write_kind = muse_glimmer_write_block},
    {MODEL_SINGLE, "norm", .write = muse_glimmer_write_norm},
    {0},
};

/* Every fourth block, counted backwards from the last, attends to all, and is not rotated. */
static void muse_glimmer_complete(struct model_config *c)
{
    struct muse_glimmer_config *own = (void *)c->own.bytes;
    struct decoder_config *d = &own->decoder;
    const bool slides = d->sliding.n == 0, rotates = d->unrotated.n == 0;

    for (uint32_t i = 0; i < c->n_layers && i < CONFIG_LAYERS; i++) {
        const bool fourth = (c->n_layers - 1 - i) % 4 == 0;
        if (slides && !fourth)
            config_layers_add(&d->sliding, i);
        if (rotates && fourth)
            config_layers_add(&d->unrotated, i);
    }
    d->output_bias = d->qkv_bias;
    decoder_complete(c);
    d->score_scale = own->query_scale / sqrtf((float)d->head_width);
}

static int muse_glimmer_check(const struct model_config *c, struct error *err)
{
    const struct muse_glimmer_config *own = muse_glimmer_of(c);

    if (!(own->query_scale >= 1e-6f && own->query_scale <= 1e6f))
        return error_set(err, -EINVAL, "qk_scale_factor is %g: it must be from 1e-6 to 1e6", (double)own->query_scale);
    if (!(own->decoder.logit_cap > 0))
        return error_set(err, -EINVAL, "final_logit_softcapping is %g: it must be greater than 0",
                         (double)own->decoder.logit_cap);
    if (!(own->decoder.logit_scale >= 1e-6f && own->decoder.logit_scale <= 1e6f))
        return error_set(err, -EINVAL, "output_multiplier is %g: it must be from 1e-6 to 1e6",
                         (double)own->decoder.logit_scale);
    return decoder_check_caps(c, err);
}

const struct family family_muse_glimmer_text = {
    .model_type = "muse_glimmer_text",
    .architectures = architectures,
    .keys = keys,
    .defaults = {.family = &family_muse_glimmer_text,
                 .width = 6656,
                 .n_layers = 52,
                 .n_heads = 32,
                 .inner_width = 19968,
                 .vocabulary = 202048,
                 .n_positions = 131072,
                 .norm_epsilon = 1e-5f,
                 .activation = MODEL_SILU,
                 .initializer_range = 0.02f},
    FAMILY_OWN_DEFAULTS(struct muse_glimmer_config,
                        .decoder = {.n_kv_heads = 2,
                                    .head_width = 128,
                                    .window = 2048,
                                    .norm_offset = true,
                                    .logit_cap = 20,
                                    .logit_scale = 0.19611613513818404f,
                                    .rope = {.base = 10000}},
                        .query_scale = 3.87f, .post_epsilon = 1e-8f),
    .end_token = 200001,
    .padding = FAMILY_NO_TOKEN,
    .complete = muse_glimmer_complete,
    .check = muse_glimmer_check,
    DECODER_PARTS_OF(layers),
    .logit_cap = decoder_logit_cap,
};
