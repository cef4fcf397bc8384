/* A block keeps of its branch what the rule and the two factors of the gate read. The norm's result is made again, as it
 * is cheap; its statistics are stored.
 *
 * A_log and dt_bias are vectors, so they are not decayed. */
#include "proto/model/decoder_delta.h"

#include <errno.h>

const char *const decoder_delta_activations[] = {"silu", "swish", NULL};
const char *const decoder_delta_kinds[] = {"full_attention", "linear_attention", NULL};

static int delta_maps(struct program *p, const struct model_config *c, int x, const struct decoder_delta *d,
                      const struct decoder_delta_names *names)
{
    const uint32_t of_keys = d->n_key_heads * d->key_width, of_values = d->n_heads * d->value_width;
    const struct program_linear_options linear = {.deviation = c->initializer_range, .out_in = true};
    const struct program_part parts[] = {{names->query, of_keys}, {names->key, of_keys}, {names->value, of_values}};

    return names->key ? program_linears(p, x, parts, 3, &linear)
                      : program_linear(p, x, names->query, 2 * of_keys + of_values, &linear);
}

static int delta_convolve(struct program *p, const struct model_config *c, int qkv, const struct decoder_delta *d,
                          const struct decoder_delta_names *names)
{
    const struct program_short_conv_options conv = {.n_taps = d->n_taps,
                                                    .silu = true,
                                                    .deviation = c->initializer_range};
    const uint32_t of_keys = d->n_key_heads * d->key_width;
    const struct program_part parts[] = {{names->convs[0], of_keys},
                                         {names->convs[1], of_keys},
                                         {names->convs[2], d->n_heads * d->value_width}};

    return names->convs[1] ? program_short_convs(p, qkv, parts, 3, &conv)
                           : program_short_conv(p, qkv, names->convs[0], &conv);
}

int decoder_delta(struct program *p, const struct model_config *c, int x, const struct decoder_delta *d,
                  const struct decoder_delta_names *names)
{
    const struct program_linear_options linear = {.deviation = c->initializer_range, .out_in = true};
    const struct program_gated_delta_options rule = {.n_heads = d->n_heads,
                                                     .n_key_heads = d->n_key_heads,
                                                     .key_width = d->key_width,
                                                     .doubled = d->doubled,
                                                     .least = d->least_rate,
                                                     .largest = d->largest_rate,
                                                     .least_step = d->least_step,
                                                     .largest_step = d->largest_step};
    const struct program_norm_options norm = {.epsilon = names->epsilon, .rms = true, .n_heads = d->n_heads};
    const struct program_part gates[] = {{names->a, d->n_heads}, {names->b, d->n_heads}};

    const int qkv = delta_convolve(p, c, delta_maps(p, c, x, d, names), d, names);
    const int y = program_gated_delta(p, qkv, program_linears(p, x, gates, 2, &linear), "linear_attn", &rule);
    const int z = program_linear(p, x, names->gate, d->n_heads * d->value_width, &linear);
    const int gated = program_gate(p, program_norm(p, y, names->norm, &norm), z, MODEL_SILU);
    return program_linear(p, gated, names->output, c->width, &linear);
}

void decoder_complete_delta(const struct model_config *c, struct decoder_delta *d)
{
    for (uint32_t i = 0; d->linear.n == 0 && d->interval > 0 && i < c->n_layers && i < CONFIG_LAYERS; i++)
        if ((i + 1) % d->interval != 0)
            config_layers_add(&d->linear, i);
}

int decoder_check_delta(const struct model_config *c, const struct decoder_delta *d, struct error *err)
{
    if (d->linear.n > 0 && d->linear.n != c->n_layers)
        return error_set(err, -EINVAL, "layer_types has %u entries: num_hidden_layers is %u", d->linear.n, c->n_layers);
    if (d->n_heads % d->n_key_heads != 0)
        return error_set(err, -EINVAL,
                         "linear_num_value_heads is %u: it must be a multiple of linear_num_key_heads, which is %u",
                         d->n_heads, d->n_key_heads);
    if ((uint64_t)d->n_heads * d->value_width > 65536 || (uint64_t)d->n_key_heads * d->key_width > 65536)
        return error_set(
            err, -EINVAL,
            "linear_key_head_dim is %u and linear_value_head_dim %u: all heads together are wider than 65536",
            d->key_width, d->value_width);
    return decoder_check(c, err);
}
