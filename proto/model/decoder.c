/* Parts of blocks, which differ by the numbers of decoder_config and by what the family's file asks for; no code asks
 * which family it is. Names are the files'. Beware of post_attention_layernorm: in Llama it norms what the MLP reads;
 * where norms come after as well (Gemma), it norms what attention gives, and the MLP's has another name.
 *
 * Qwen's files may have a window that another key disables, so it goes before the blocks that slide are chosen. */
#include "proto/model/decoder_family.h"
#include "proto/operation/call/rope.h"

#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <string.h>

const char *const decoder_scalings[] = {"default", "linear", "llama3", "yarn", "longrope", "dynamic", NULL};
const char *const decoder_kinds[] = {"full_attention", "sliding_attention", NULL};

const char *const decoder_ignored[] = {"rope_parameters.full_attention.truncate",
                                       "rope_parameters.sliding_attention.truncate", "rope_scaling.truncate", NULL};

static void decoder_complete_rope(struct decoder_rope *rope, uint32_t n_positions)
{
    if (rope->n_trained == 0)
        rope->n_trained = n_positions;
    if (rope->factor == 0 && rope->scaling == DECODER_PROPORTIONAL)
        rope->factor = 1;
    if (rope->factor == 0 && (rope->scaling == DECODER_YARN || rope->scaling == DECODER_LONGROPE))
        rope->factor = (float)n_positions / (float)rope->n_trained;
}

void decoder_complete(struct model_config *c)
{
    struct decoder_config *d = decoder_edit(c);

    if (d->n_kv_heads == 0)
        d->n_kv_heads = c->n_heads;
    if (d->head_width == 0 && c->n_heads > 0)
        d->head_width = c->width / c->n_heads;
    if (d->score_width == 0)
        d->score_width = d->head_width;
    if (d->rope.share == 0)
        d->rope.share = 1;
    if (!(d->sliding_rope.base > 0))
        d->sliding_rope = d->rope;
    if (d->sliding_rope.share == 0)
        d->sliding_rope.share = d->rope.share;
    decoder_complete_rope(&d->rope, c->n_positions);
    decoder_complete_rope(&d->sliding_rope, c->n_positions);
}

void decoder_slide(struct model_config *c, uint32_t first, uint32_t pattern)
{
    struct config_layers *sliding = &decoder_edit(c)->sliding;

    for (uint32_t i = first; sliding->n == 0 && i < c->n_layers && i < CONFIG_LAYERS; i++)
        if (pattern == 0 || (i + 1) % pattern != 0)
            config_layers_add(sliding, i);
}

void decoder_complete_biases(struct model_config *c)
{
    decoder_edit(c)->output_bias = decoder_of(c)->qkv_bias;
    decoder_complete(c);
}

void decoder_unrotate(struct model_config *c)
{
    struct decoder_config *d = decoder_edit(c);

    for (uint32_t i = 0; i < c->n_layers && i < CONFIG_LAYERS; i++)
        if (!config_layers_has(&d->sliding, i))
            config_layers_add(&d->unrotated, i);
}

void decoder_complete_window(struct model_config *c)
{
    if (decoder_of(c)->window > 0)
        decoder_slide(c, 0, 0);
    decoder_complete(c);
}

void decoder_complete_qwen(struct model_config *c)
{
    struct decoder_config *d = decoder_edit(c);

    if (!d->slides)
        d->window = 0;
    if (d->window > 0)
        decoder_slide(c, d->n_full, 0);
    decoder_complete(c);
}

uint32_t decoder_kind_of_block(const struct model_config *c, uint32_t index)
{
    const struct decoder_config *d = decoder_of(c);

    return (config_layers_has(&d->sliding, index) ? DECODER_SLIDES : 0) |
           (config_layers_has(&d->unrotated, index) ? DECODER_UNROTATED : 0);
}

float decoder_embedding_scale(const struct model_config *c)
{
    return sqrtf((float)c->width);
}

float decoder_given_embedding_scale(const struct model_config *c)
{
    return decoder_of(c)->embedding_scale;
}

struct program_dropout decoder_embedding_dropout(const struct model_config *c)
{
    return (struct program_dropout){.p = decoder_of(c)->dropout_embedding, .site = RANDOM_DROPOUT_EMBEDDING};
}

float decoder_logit_cap(const struct model_config *c)
{
    return decoder_of(c)->logit_cap;
}

int decoder_check_caps(const struct model_config *c, struct error *err)
{
    if (!(decoder_of(c)->logit_cap >= 0 && decoder_of(c)->logit_cap <= 1e6f))
        return error_set(err, -EINVAL,
                         "final_logit_softcapping is %g: it must be null, or greater than 0 and at most 1e6",
                         (double)decoder_of(c)->logit_cap);
    if (!(decoder_of(c)->score_cap >= 0 && decoder_of(c)->score_cap <= 1e6f))
        return error_set(err, -EINVAL,
                         "attn_logit_softcapping is %g: it must be null, or greater than 0 and at most 1e6",
                         (double)decoder_of(c)->score_cap);
    return decoder_check(c, err);
}

int decoder_check_logit_scale(const struct model_config *c, struct error *err)
{
    if (!(decoder_of(c)->logit_scale >= 1e-6f && decoder_of(c)->logit_scale <= 1e6f))
        return error_set(err, -EINVAL, "logit_scale is %g: it must be from 1e-6 to 1e6",
                         (double)decoder_of(c)->logit_scale);
    return decoder_check(c, err);
}

int decoder_check_multipliers(const struct model_config *c, struct error *err)
{
    const struct decoder_config *d = decoder_of(c);
    const float all[] = {d->embedding_scale, d->score_scale, d->branch_scale, d->logit_divisor};
    static const char *const names[] = {"embedding_multiplier", "attention_multiplier", "residual_multiplier",
                                        "logits_scaling"};

    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (!(all[i] >= 1e-6f && all[i] <= 1e6f))
            return error_set(err, -EINVAL, "%s is %g: it must be from 1e-6 to 1e6", names[i], (double)all[i]);
    return decoder_check(c, err);
}

/* The share of a head's columns that is rotated: transformers rounds it down. If it is odd, one more is rotated, and
 * the odd number still divides the exponents. */
static uint32_t decoder_share(const struct decoder_rope *rope, uint32_t head_width)
{
    if (rope->scaling == DECODER_PROPORTIONAL)
        return head_width;
    return (uint32_t)((double)head_width * (double)rope->share);
}

static int decoder_check_longrope(const struct decoder_config *d, struct error *err)
{
    const struct config_reals *const lists[] = {&d->short_factors, &d->long_factors};
    const uint32_t n = (decoder_share(&d->rope, d->head_width) + 1) / 2;

    for (int i = 0; i < 2; i++) {
        const char *name = i == 0 ? "short_factor" : "long_factor";
        if (lists[i]->n != n)
            return error_set(err, -EINVAL, "%s has %u numbers: it must have %u, one for each pair of rotated columns",
                             name, lists[i]->n, n);
        for (uint32_t j = 0; j < n; j++)
            if (!(lists[i]->of[j] >= 1e-6f && lists[i]->of[j] <= 1e6f))
                return error_set(err, -EINVAL, "%s has %g: each number must be from 1e-6 to 1e6", name,
                                 (double)lists[i]->of[j]);
    }
    if (d->rope.n_trained < 2)
        return error_set(err, -EINVAL, "original_max_position_embeddings is %u: it must be at least 2",
                         d->rope.n_trained);
    return 0;
}

static int decoder_check_rope_numbers(const struct decoder_rope *rope, struct error *err)
{
    const float all[] = {rope->fast, rope->slow, rope->attention, rope->mscale, rope->mscale_all, rope->alpha};
    static const char *const names[] = {"beta_fast", "beta_slow",      "attention_factor",
                                        "mscale",    "mscale_all_dim", "alpha"};

    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (!(all[i] == 0 || (all[i] >= 1e-6f && all[i] <= 1e6f)))
            return error_set(err, -EINVAL, "%s is %g: it must be 0, or from 1e-6 to 1e6", names[i], (double)all[i]);
    return 0;
}

static int check_rope(const struct decoder_rope *rope, uint32_t head_width, struct error *err)
{
    const bool divides = rope->scaling == DECODER_LINEAR || rope->scaling == DECODER_LLAMA3 ||
                         rope->scaling == DECODER_YARN || rope->scaling == DECODER_PROPORTIONAL;

    if (!(rope->share > 0 && rope->share <= 1) || decoder_share(rope, head_width) < 1 ||
        decoder_share(rope, head_width) > DEVICE_MAX_ROTATED)
        return error_set(err, -EINVAL,
                         "partial_rotary_factor is %g: of a head's %u columns it must be a number from 1 to %d",
                         (double)rope->share, head_width, DEVICE_MAX_ROTATED);
    if (!(rope->base > 1 && rope->base <= 1e12f))
        return error_set(err, -EINVAL, "rope_theta is %g: it must be greater than 1 and at most 1e12",
                         (double)rope->base);
    if (rope->n_trained > 1 << 24)
        return error_set(err, -EINVAL, "original_max_position_embeddings is %u: it must be from 1 to %d",
                         rope->n_trained, 1 << 24);
    if (divides && !(rope->factor >= 1 && rope->factor <= 1e6f))
        return error_set(err, -EINVAL, "the factor of rotary positions is %g: it must be from 1 to 1e6",
                         (double)rope->factor);
    if (rope->scaling == DECODER_LLAMA3 && !(rope->low > 0 && rope->high > rope->low && rope->high <= 1e6f))
        return error_set(
            err, -EINVAL,
            "low_freq_factor is %g and high_freq_factor is %g: the first must be greater than 0 and less than "
            "the second, which is at most 1e6",
            (double)rope->low, (double)rope->high);
    if (rope->alpha > 0 && decoder_share(rope, head_width) <= 2)
        return error_set(err, -EINVAL, "alpha is %g: a head must have more than 2 columns that are rotated",
                         (double)rope->alpha);
    return decoder_check_rope_numbers(rope, err);
}

static int decoder_check_rotation(const struct decoder_config *d, struct error *err)
{
    if (d->head_width < 2 || d->head_width % 2 || (d->rope.share == 1 && d->head_width > DEVICE_MAX_ROTATED))
        return error_set(err, -EINVAL, "a head has %u columns: it must be an even number from 2 to %d", d->head_width,
                         DEVICE_MAX_ROTATED);
    if (d->sliding_rope.scaling == DECODER_LONGROPE && d->rope.scaling != DECODER_LONGROPE)
        return error_set(err, -EINVAL, "rope_type is longrope in sliding_attention: it must be in full_attention, too");
    int rc = check_rope(&d->rope, d->head_width, err);
    if (!rc && d->rope.scaling == DECODER_LONGROPE)
        rc = decoder_check_longrope(d, err);
    return rc ? rc : check_rope(&d->sliding_rope, d->head_width, err);
}

int decoder_check(const struct model_config *c, struct error *err)
{
    const struct decoder_config *d = decoder_of(c);

    if (c->n_heads % d->n_kv_heads != 0)
        return error_set(err, -EINVAL,
                         "num_attention_heads is %u: it must be a multiple of num_key_value_heads, which is %u",
                         c->n_heads, d->n_kv_heads);
    if ((uint64_t)c->n_heads * d->head_width > 65536)
        return error_set(err, -EINVAL, "%u heads of head_dim %u are wider than 65536", c->n_heads, d->head_width);
    if (d->sliding.n > 0 && d->sliding.n != c->n_layers)
        return error_set(err, -EINVAL, "layer_types has %u entries: num_hidden_layers is %u", d->sliding.n,
                         c->n_layers);
    if (d->unrotated.n > 0 && d->unrotated.n != c->n_layers)
        return error_set(err, -EINVAL, "no_rope_layers has %u entries: num_hidden_layers is %u", d->unrotated.n,
                         c->n_layers);
    for (uint32_t i = 0; d->window == 0 && i < c->n_layers && i < CONFIG_LAYERS; i++)
        if (config_layers_has(&d->sliding, i))
            return error_set(err, -EINVAL, "layer_types has sliding_attention, but sliding_window is null or not used");
    return d->alibi ? 0 : decoder_check_rotation(d, err);
}

/* The column, of n, that turns `turns` times in the trained positions. */
static double decoder_column(const struct decoder_rope *rope, double turns, uint32_t n)
{
    return n * log(rope->n_trained / (turns * 2 * M_PI)) / (2 * log(rope->base));
}

/* YaRN's weight of column j's unscaled frequency, as transformers computes it: arXiv:2309.00071, section 3.2. */
static double decoder_yarn_kept(const struct decoder_rope *rope, uint32_t j, uint32_t n)
{
    double low = decoder_column(rope, rope->fast > 0 ? rope->fast : 32, n);
    double high = decoder_column(rope, rope->slow > 0 ? rope->slow : 1, n);

    if (!rope->unrounded)
        low = floor(low), high = ceil(high);
    low = fmax(low, 0), high = fmin(high, n - 1.0);
    if (low == high)
        high += 0.001;
    return 1 - fmin(fmax((j - low) / (high - low), 0), 1);
}

/* Su et al., arXiv:2104.09864; scaled as in section 3.1.3 of arXiv:2407.21783, with the code that came with it, and as
 * in the papers at enum decoder_scaling. */
void decoder_frequencies(double *out, const struct decoder_rope *rope, const struct config_reals *divisors, uint32_t n)
{
    const bool grows = rope->scaling == DECODER_DYNAMIC && rope->alpha > 0;
    const double base = grows ? rope->base * pow(rope->alpha, n / (n - 2.0)) : rope->base;

    for (uint32_t j = 0; j < (n + 1) / 2; j++) {
        const double frequency = pow(base, -2.0 * j / n), waves = rope->n_trained * frequency / (2 * M_PI);
        double kept = 1; /* weight of the unscaled frequency; the rest is divided by `factor` */

        if (rope->scaling == DECODER_LINEAR)
            kept = 0;
        else if (rope->scaling == DECODER_LLAMA3)
            kept = fmin(fmax((waves - rope->low) / (rope->high - rope->low), 0), 1);
        else if (rope->scaling == DECODER_YARN)
            kept = decoder_yarn_kept(rope, j, n);
        out[j] = kept == 1 ? frequency : frequency * (kept + (1 - kept) / rope->factor);
        if (rope->scaling == DECODER_LONGROPE)
            out[j] /= divisors->of[j];
        if (rope->scaling == DECODER_PROPORTIONAL)
            out[j] = j < (uint32_t)((double)rope->share * n / 2) ? frequency / rope->factor : 0;
    }
}

/* YaRN's 0.1 ln(factor) + 1, with a weight. */
static double decoder_mscale(double factor, double weight)
{
    return factor > 1 ? 0.1 * weight * log(factor) + 1 : 1;
}

/* The factor on cosines and sines. */
static float decoder_rope_factor(const struct decoder_rope *rope)
{
    if (rope->scaling != DECODER_YARN && rope->scaling != DECODER_LONGROPE)
        return 1;
    if (rope->attention > 0)
        return rope->attention;
    if (rope->scaling == DECODER_LONGROPE)
        return rope->factor > 1 ? (float)sqrt(1 + log(rope->factor) / log(rope->n_trained)) : 1;
    if (rope->mscale > 0 && rope->mscale_all > 0)
        return (float)(decoder_mscale(rope->factor, rope->mscale) / decoder_mscale(rope->factor, rope->mscale_all));
    return (float)decoder_mscale(rope->factor, 1);
}

static struct program_linear_options decoder_linear_of(const struct model_config *c, bool bias)
{
    return (struct program_linear_options){.deviation = c->initializer_range, .bias = bias, .out_in = true};
}

static int decoder_rotate(struct program *p, const struct model_config *c, int qkv, const struct decoder_rope *of)
{
    const struct decoder_config *d = decoder_of(c);
    const uint32_t share = decoder_share(of, d->head_width);
    const bool has_lists = of->scaling == DECODER_LONGROPE;
    double frequencies[DEVICE_MAX_ROTATED / 2], longer[DEVICE_MAX_ROTATED / 2];
    const struct program_rope_options rope = {.n_heads = c->n_heads + d->n_kv_heads,
                                              .head_width = d->head_width,
                                              .n_rotated = (share + 1) / 2 * 2,
                                              .frequencies = frequencies,
                                              .long_frequencies = has_lists ? longer : NULL,
                                              .n_short = of->n_trained,
                                              .interleaved = d->interleaved,
                                              .backwards = d->backwards,
                                              .factor = decoder_rope_factor(of),
                                              .n_grown = d->query_growth > 0 ? c->n_heads : 0,
                                              .growth = d->query_growth,
                                              .period = of->n_trained};

    decoder_frequencies(frequencies, of, &d->short_factors, share);
    if (has_lists)
        decoder_frequencies(longer, of, &d->long_factors, share);
    return program_rope(p, qkv, &rope);
}

static int decoder_norm_heads(struct program *p, const struct model_config *c, int qkv,
                              const struct decoder_attention *how)
{
    const struct decoder_config *d = decoder_of(c);
    const struct program_head_norm_options norm = {.epsilon = c->norm_epsilon,
                                                   .n_heads = c->n_heads,
                                                   .n_kv_heads = d->n_kv_heads,
                                                   .head_width = d->head_width,
                                                   .bare = how->normed_bare,
                                                   .offset = d->norm_offset && !how->normed_bare,
                                                   .layer = how->normed_by_mean,
                                                   .each = how->normed_each,
                                                   .stacked = how->normed_stacked,
                                                   .whole = how->normed_whole};

    return program_head_norm(p, qkv, how->query, how->key, &norm);
}

/* The gate is read from what attention reads, not from its result. Qiu et al., arXiv:2505.06708. */
static int decoder_gate_heads(struct program *p, const struct model_config *c, int x, int attended, const char *gate)
{
    const struct program_linear_options linear = decoder_linear_of(c, false);

    return program_head_gate(p, attended, program_linear(p, x, gate, c->n_heads, &linear), c->n_heads);
}

int decoder_attention(struct program *p, const struct model_config *c, uint32_t kind, int x,
                      const struct decoder_attention *how)
{
    const struct decoder_config *d = decoder_of(c);
    const uint32_t attended = c->n_heads * d->head_width, kv = d->n_kv_heads * d->head_width;
    const struct program_linear_options of_qkv = decoder_linear_of(c, d->qkv_bias),
                                        of_output = decoder_linear_of(c, d->output_bias);
    const struct program_part parts[] = {{"self_attn.q_proj", how->gated ? 2 * attended : attended},
                                         {"self_attn.k_proj", kv},
                                         {"self_attn.v_proj", kv}};
    const struct program_attention_options attention = {
        .n_heads = c->n_heads,
        .n_kv_heads = d->n_kv_heads,
        .full = how->full,
        .window = kind & DECODER_SLIDES ? d->window : 0,
        .cap = d->score_cap,
        .alibi = d->alibi,
        .sinks = how->sinks,
        .scale = d->score_scale > 0 ? d->score_scale : 1 / sqrtf((float)d->score_width),
        .dropout = {.p = d->dropout_attention, .site = RANDOM_DROPOUT_ATTENTION},
    };

    const bool normed = how->query || how->normed_bare;
    int qkv = how->qkv ? program_linear(p, x, how->qkv, attended + 2 * kv, &of_qkv)
                       : program_linears(p, x, parts, 3, &of_qkv);
    int gates = -1;
    if (how->gated)
        qkv = program_split(p, qkv, c->n_heads, d->head_width, &gates);
    if (how->by_head)
        qkv = program_regroup(p, qkv, c->n_heads, 3);
    if (normed && !how->normed_rotated)
        qkv = decoder_norm_heads(p, c, qkv, how);
    if (!d->alibi && !(kind & DECODER_UNROTATED))
        qkv = decoder_rotate(p, c, qkv, kind & DECODER_SLIDES ? &d->sliding_rope : &d->rope);
    if (normed && how->normed_rotated)
        qkv = decoder_norm_heads(p, c, qkv, how);
    int a =
        how->sinks ? program_sinking_attention(p, qkv, "self_attn", &attention) : program_attention(p, qkv, &attention);
    if (how->gated)
        a = program_gate(p, a, gates, MODEL_SIGMOID);
    if (how->gate) {
        const struct program_linear_options of_gate = decoder_linear_of(c, false);
        a = program_gate(p, a, program_linear(p, x, how->gate, attended, &of_gate), MODEL_SIGMOID);
    }
    if (how->head_gate)
        a = decoder_gate_heads(p, c, x, a, how->head_gate);
    return program_linear(p, a, how->output ? how->output : "self_attn.o_proj", c->width, &of_output);
}

int decoder_gated(struct program *p, const struct model_config *c, int x, const char *gate_up)
{
    const struct program_linear_options linear = decoder_linear_of(c, decoder_of(c)->mlp_bias);
    const struct program_part parts[] = {{"mlp.gate_proj", c->inner_width}, {"mlp.up_proj", c->inner_width}};
    const int both =
        gate_up ? program_linear(p, x, gate_up, 2 * c->inner_width, &linear) : program_linears(p, x, parts, 2, &linear);

    return program_linear(p, program_glu(p, both, c->activation), "mlp.down_proj", c->width, &linear);
}

int decoder_plain(struct program *p, const struct model_config *c, int x, const char *up, const char *down)
{
    const struct program_linear_options linear = decoder_linear_of(c, decoder_of(c)->mlp_bias);
    const int u = program_linear(p, x, up, c->inner_width, &linear);

    return program_linear(p, program_activation(p, u, c->activation), down, c->width, &linear);
}

int decoder_gated_as(struct program *p, const struct model_config *c, int x, uint32_t width,
                     const struct decoder_gated_names *names)
{
    const struct program_linear_options linear = decoder_linear_of(c, false);
    const struct program_part parts[] = {{names->gate, width}, {names->up, width}};
    const int both = program_linears(p, x, parts, 2, &linear);

    return program_linear(p, program_glu(p, both, c->activation), names->down, c->width, &linear);
}

int decoder_feed_forward(struct program *p, const struct model_config *c, int x, uint32_t width)
{
    static const struct decoder_gated_names names = {"feed_forward.w1", "feed_forward.w3", "feed_forward.w2"};

    return decoder_gated_as(p, c, x, width, &names);
}

int decoder_convolution(struct program *p, const struct model_config *c, int x, uint32_t n_taps, bool bias)
{
    const struct program_linear_options linear = decoder_linear_of(c, bias);
    const struct program_short_conv_options conv = {.n_taps = n_taps,
                                                    .bias = bias,
                                                    .gated = true,
                                                    .deviation = c->initializer_range};
    const int all = program_linear(p, x, "conv.in_proj", 3 * c->width, &linear);

    return program_linear(p, program_short_conv(p, all, "conv.conv", &conv), "conv.out_proj", c->width, &linear);
}

int decoder_norm(struct program *p, const struct model_config *c, int x, const char *name)
{
    const struct program_norm_options norm = {.epsilon = c->norm_epsilon,
                                              .rms = true,
                                              .offset = decoder_of(c)->norm_offset};

    return program_norm(p, x, name, &norm);
}

int decoder_layer_norm(struct program *p, const struct model_config *c, int x, const char *name, bool bias)
{
    return program_norm(p, x, name, &(struct program_norm_options){.epsilon = c->norm_epsilon, .bias = bias});
}

int decoder_add(struct program *p, const struct model_config *c, int x, int branch, enum random_site site)
{
    const struct program_dropout dropout = {.p = decoder_of(c)->dropout_residual,
                                            .site = site,
                                            .scale = decoder_of(c)->branch_scale};

    return program_add(p, x, branch, &dropout);
}

void decoder_write_normed_before(struct program *p, const struct model_config *c, uint32_t kind,
                                 const struct decoder_attention *how, const char *gate_up)
{
    const int x = program_begin(p, c->width);
    const int a = decoder_attention(p, c, kind, decoder_norm(p, c, x, "input_layernorm"), how);
    const int r = decoder_add(p, c, x, a, RANDOM_DROPOUT_RESIDUAL_ATTENTION);
    const int m = decoder_gated(p, c, decoder_norm(p, c, r, "post_attention_layernorm"), gate_up);

    program_end(p, decoder_add(p, c, r, m, RANDOM_DROPOUT_RESIDUAL_MLP));
}

void decoder_write_normed_after(struct program *p, const struct model_config *c, uint32_t kind,
                                const struct decoder_attention *how)
{
    const int x = program_begin(p, c->width);
    const int a = decoder_norm(p, c, decoder_attention(p, c, kind, x, how), "post_attention_layernorm");
    const int r = decoder_add(p, c, x, a, RANDOM_DROPOUT_RESIDUAL_ATTENTION);
    const int m = decoder_norm(p, c, decoder_gated(p, c, r, NULL), "post_feedforward_layernorm");

    program_end(p, decoder_add(p, c, r, m, RANDOM_DROPOUT_RESIDUAL_MLP));
}

void decoder_write_side_by_side(struct program *p, const struct model_config *c, uint32_t kind,
                                const struct decoder_attention *how)
{
    const int x = program_begin(p, c->width);
    const int n = decoder_layer_norm(p, c, x, "input_layernorm", false);
    const int r = decoder_add(p, c, x, decoder_attention(p, c, kind, n, how), RANDOM_DROPOUT_RESIDUAL_ATTENTION);

    program_end(p, decoder_add(p, c, r, decoder_gated(p, c, n, NULL), RANDOM_DROPOUT_RESIDUAL_MLP));
}

void decoder_write_block(struct program *p, const struct model_config *c, uint32_t kind)
{
    static const struct decoder_attention how = {0};

    decoder_write_normed_before(p, c, kind, &how, NULL);
}

/* Logits are multiplied as the head's input is: the same product, though transformers multiplies after it. */
void decoder_end_head(struct program *p, const struct model_config *c, int normed)
{
    const struct decoder_config *d = decoder_of(c);
    const struct program_dropout scaled = {.scale = d->logit_divisor > 0 ? 1 / d->logit_divisor : d->logit_scale};

    program_end(p, program_drop(p, normed, &scaled));
}

void decoder_write_norm(struct program *p, const struct model_config *c)
{
    decoder_end_head(p, c, decoder_norm(p, c, program_begin(p, c->width), "norm"));
}

void decoder_write_bare_layer_norm(struct program *p, const struct model_config *c)
{
    decoder_end_head(p, c, decoder_layer_norm(p, c, program_begin(p, c->width), "norm", false));
}

void decoder_write_layer_norm(struct program *p, const struct model_config *c)
{
    program_end(p, decoder_layer_norm(p, c, program_begin(p, c->width), "norm", true));
}

bool decoder_is_mask(const char *name)
{
    static const char end[] = "rotary_emb.inv_freq";
    const size_t n = strlen(name), m = sizeof end - 1;

    return n >= m && strcmp(name + n - m, end) == 0;
}

const struct family_table decoder_tables[] = {{"embed_tokens", MODEL_BY_TOKEN, .rows = FAMILY_AT(vocabulary)}, {0}};

const struct family_layer decoder_layers[] = DECODER_LAYERS(decoder_write_block, decoder_write_norm);
