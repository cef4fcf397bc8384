/* Mistral (Jiang et al., arXiv:2310.06825), tensors named and laid out as in Hugging Face's MistralForCausalLM: Llama's
 * block. Windows of attention that are shorter than the positions are refused: version 0.1 alone has one. */
#include "proto/model/decoder_family.h"

#include <errno.h>

static const char *const architectures[] = {"MistralForCausalLM", "MistralModel", NULL};

static const struct family_key keys[] = {
    DECODER_KEYS,
    {"sliding_window", FAMILY_COUNT_OR_NULL, .offset = DECODER_AT(decoder.window)},
    {0},
};

static int check(const struct model_config *c, struct error *err)
{
    if (c->decoder.window && c->decoder.window < c->n_positions)
        return error_set(err, -EINVAL,
                         "sliding_window is %u, less than max_position_embeddings, which is %u: this is not supported; "
                         "for rows of up to %u tokens set both to %u",
                         c->decoder.window, c->n_positions, c->decoder.window, c->decoder.window);
    return decoder_check(c, err);
}

const struct family family_mistral = {
    .model_type = "mistral",
    .architectures = architectures,
    .keys = keys,
    .defaults = {.family = &family_mistral,
                 .n_positions = 131072,
                 .activation = MODEL_SILU,
                 .norm_epsilon = 1e-6f,
                 .initializer_range = 0.02f,
                 .decoder = {.n_kv_heads = 8, .window = 4096, .rope = {.base = 10000, .partial = 1}}},
    .end_token = 2,
    .complete = decoder_complete,
    .check = check,
    .prefix = "model.",
    .tables = decoder_tables,
    .layers = decoder_layers,
    .logits = "lm_head",
};
