/* One block serves all families that followed Llama: they differ by the numbers of decoder_config, and no code asks
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

const char *const decoder_scalings[] = {"default", "linear", "llama3", NULL};
const char *const decoder_kinds[] = {"full_attention", "sliding_attention", NULL};

void decoder_complete(struct model_config *c)
{
    struct decoder_config *d = decoder_edit(c);

    if (d->n_kv_heads == 0)
        d->n_kv_heads = c->n_heads;
    if (d->head_width == 0 && c->n_heads > 0)
        d->head_width = c->width / c->n_heads;
    if (d->score_width == 0)
        d->score_width = d->head_width;
    if (!(d->sliding_rope.base > 0))
        d->sliding_rope = d->rope;
    if (d->rope.n_trained == 0)
        d->rope.n_trained = c->n_positions;
    if (d->sliding_rope.n_trained == 0)
        d->sliding_rope.n_trained = c->n_positions;
}

void decoder_slide(struct model_config *c, uint32_t first, uint32_t pattern)
{
    struct config_layers *sliding = &decoder_edit(c)->sliding;

    for (uint32_t i = first; sliding->n == 0 && i < c->n_layers && i < CONFIG_LAYERS; i++)
        if (pattern == 0 || (i + 1) % pattern != 0)
            config_layers_add(sliding, i);
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
    return decoder_of(c)->sliding.set[index / 64] >> index % 64 & 1;
}

float decoder_embedding_scale(const struct model_config *c)
{
    return sqrtf((float)c->width);
}

static int check_rope(const struct decoder_rope *rope, struct error *err)
{
    if (!(rope->base > 1 && rope->base <= 1e12f))
        return error_set(err, -EINVAL, "rope_theta is %g: it must be greater than 1 and at most 1e12",
                         (double)rope->base);
    if (rope->scaling != DECODER_NOT_SCALED && !(rope->factor >= 1 && rope->factor <= 1e6f))
        return error_set(err, -EINVAL, "the factor of rotary positions is %g: it must be from 1 to 1e6",
                         (double)rope->factor);
    if (rope->scaling == DECODER_LLAMA3 && !(rope->low > 0 && rope->high > rope->low && rope->high <= 1e6f))
        return error_set(
            err, -EINVAL,
            "low_freq_factor is %g and high_freq_factor is %g: the first must be greater than 0 and less than "
            "the second, which is at most 1e6",
            (double)rope->low, (double)rope->high);
    return 0;
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
    if (d->head_width < 2 || d->head_width % 2 || d->head_width > DEVICE_MAX_ROTATED)
        return error_set(err, -EINVAL, "a head has %u columns: it must be an even number from 2 to %d", d->head_width,
                         DEVICE_MAX_ROTATED);
    if (d->sliding.n > 0 && d->sliding.n != c->n_layers)
        return error_set(err, -EINVAL, "layer_types has %u entries: num_hidden_layers is %u", d->sliding.n,
                         c->n_layers);
    for (uint32_t i = 0; d->window == 0 && i < c->n_layers && i < CONFIG_LAYERS; i++)
        if (decoder_kind_of_block(c, i))
            return error_set(err, -EINVAL, "layer_types has sliding_attention, but sliding_window is null or not used");
    const int rc = check_rope(&d->rope, err);
    return rc ? rc : check_rope(&d->sliding_rope, err);
}

/* Su et al., arXiv:2104.09864; scaled as in section 3.1.3 of arXiv:2407.21783, with the code that came with it. */
void decoder_frequencies(double *out, const struct decoder_rope *rope, uint32_t n)
{
    for (uint32_t j = 0; j < n / 2; j++) {
        const double frequency = pow(rope->base, -2.0 * j / n), waves = rope->n_trained * frequency / (2 * M_PI);
        double kept = 1; /* weight of the unscaled frequency; the rest is divided by `factor` */

        if (rope->scaling == DECODER_LINEAR)
            kept = 0;
        else if (rope->scaling == DECODER_LLAMA3)
            kept = fmin(fmax((waves - rope->low) / (rope->high - rope->low), 0), 1);
        out[j] = rope->scaling == DECODER_NOT_SCALED ? frequency : frequency * (kept + (1 - kept) / rope->factor);
    }
}

/* window: as in struct program_attention_options. */
static void write_block(struct program *p, const struct model_config *c, uint32_t window,
                        const struct decoder_rope *of_rope)
{
    const struct decoder_config *d = decoder_of(c);
    const uint32_t attended = c->n_heads * d->head_width, kv = d->n_kv_heads * d->head_width;
    const struct program_norm_options norm = {.epsilon = c->norm_epsilon, .rms = true, .offset = d->norm_offset};
    const struct program_linear_options
        of_qkv = {.deviation = c->initializer_range, .bias = d->qkv_bias, .out_in = true},
        of_output = {.deviation = c->initializer_range, .bias = d->output_bias, .out_in = true},
        of_mlp = {.deviation = c->initializer_range, .bias = d->mlp_bias, .out_in = true};
    const struct program_part qkv[] = {{"self_attn.q_proj", attended},
                                       {"self_attn.k_proj", kv},
                                       {"self_attn.v_proj", kv}};
    const struct program_part gate_up[] = {{"mlp.gate_proj", c->inner_width}, {"mlp.up_proj", c->inner_width}};
    const struct program_attention_options attention = {
        .n_heads = c->n_heads,
        .n_kv_heads = d->n_kv_heads,
        .window = window,
        .scale = 1 / sqrtf((float)d->score_width),
        .dropout = {.p = d->dropout_attention, .site = RANDOM_DROPOUT_ATTENTION},
    };
    const struct program_head_norm_options head_norm = {.epsilon = c->norm_epsilon,
                                                        .n_heads = c->n_heads,
                                                        .n_kv_heads = d->n_kv_heads,
                                                        .head_width = d->head_width,
                                                        .offset = d->norm_offset};
    const struct program_dropout none = {0};
    double frequencies[DEVICE_MAX_ROTATED / 2];
    const struct program_rope_options rope = {.n_heads = c->n_heads + d->n_kv_heads,
                                              .head_width = d->head_width,
                                              .n_rotated = d->head_width,
                                              .frequencies = frequencies};

    decoder_frequencies(frequencies, of_rope, rope.n_rotated);
    const int x = program_begin(p, c->width);
    const int n1 = program_norm(p, x, "input_layernorm", &norm);
    const int projected = program_linears(p, n1, qkv, 3, &of_qkv);
    const int normed =
        !d->head_norm ? projected : program_head_norm(p, projected, "self_attn.q_norm", "self_attn.k_norm", &head_norm);
    const int a = program_attention(p, program_rope(p, normed, &rope), &attention);
    const int o = program_linear(p, a, "self_attn.o_proj", c->width, &of_output);
    const int r = program_add(p, x, d->norms_after ? program_norm(p, o, "post_attention_layernorm", &norm) : o, &none);
    const char *before_mlp = d->norms_after ? "pre_feedforward_layernorm" : "post_attention_layernorm";
    const int n2 = program_norm(p, r, before_mlp, &norm);
    const int g = program_glu(p, program_linears(p, n2, gate_up, 2, &of_mlp), c->activation);
    const int m = program_linear(p, g, "mlp.down_proj", c->width, &of_mlp);
    program_end(p,
                program_add(p, r, d->norms_after ? program_norm(p, m, "post_feedforward_layernorm", &norm) : m, &none));
}

void decoder_write_block(struct program *p, const struct model_config *c)
{
    write_block(p, c, 0, &decoder_of(c)->rope);
}

void decoder_write_sliding_block(struct program *p, const struct model_config *c)
{
    write_block(p, c, decoder_of(c)->window, &decoder_of(c)->sliding_rope);
}

void decoder_write_norm(struct program *p, const struct model_config *c)
{
    const struct program_norm_options norm = {.epsilon = c->norm_epsilon,
                                              .rms = true,
                                              .offset = decoder_of(c)->norm_offset};

    program_end(p, program_norm(p, program_begin(p, c->width), "norm", &norm));
}

bool decoder_is_mask(const char *name)
{
    static const char end[] = "rotary_emb.inv_freq";
    const size_t n = strlen(name), m = sizeof end - 1;

    return n >= m && strcmp(name + n - m, end) == 0;
}

const struct family_table decoder_tables[] = {{"embed_tokens", MODEL_BY_TOKEN, .rows = FAMILY_AT(vocabulary)}, {0}};

const struct family_layer decoder_layers[] = {
    {MODEL_BLOCK, "layers.%u", .write = decoder_write_block},
    {MODEL_BLOCK, "layers.%u", .write = decoder_write_sliding_block},
    {MODEL_SINGLE, "norm", .write = decoder_write_norm},
    {0},
};
