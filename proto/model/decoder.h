/* proto/model/decoder.h - the numbers of decoders that followed Llama (Touvron et al., arXiv:2302.13971). */
#ifndef PROTO_MODEL_DECODER_H
#define PROTO_MODEL_DECODER_H

#include "proto/model/config_lists.h"
#include "proto/model/model_config.h"

#include <stdbool.h>
#include <stdint.h>

/* How the frequencies of rotary positions are changed for longer texts. */
enum decoder_scaling {
    DECODER_NOT_SCALED,
    DECODER_LINEAR, /* all divided by `factor` */
    DECODER_LLAMA3, /* low ones divided, high ones kept, others interpolated. Grattafiori et al., arXiv:2407.21783 */
};

/* The numbers of config.json that GPT-2 does not have. */
struct decoder_config {
    uint32_t n_kv_heads; /* 0 in the file: n_heads */
    uint32_t head_width; /* 0 in the file: width / n_heads */
    uint32_t window;     /* keys that a query sees, up to its own; 0: all up to its own */
    bool qkv_bias, output_bias, mlp_bias;
    bool head_norm;   /* queries and keys are normed head by head */
    bool norm_offset; /* norms multiply by 1 + weight */
    float dropout_attention;
    struct MODEL_OWN decoder_rope {
        float base;
        enum decoder_scaling scaling;
        float factor;
        float low, high;    /* DECODER_LLAMA3: a frequency below low / n_trained waves a position is low, one above
                             * high / n_trained is high */
        uint32_t n_trained; /* positions before scaling; 0 in the file: n_positions */
    } rope;
    /* Blocks of two kinds: queries of sliding ones see the window, those of the others all keys before them. */
    struct config_layers sliding;
    /* If the file lists no kinds, these blocks slide: */
    bool slides;                      /* Qwen: the window is used at all */
    uint32_t n_full;                  /* Qwen: all but the first n_full blocks */
    uint32_t pattern;                 /* Gemma: all but every pattern'th block */
    struct decoder_rope sliding_rope; /* rotation in sliding blocks; base 0 in the file: rope */
    bool norms_after;                 /* attention's and the MLP's results are normed too, before they are added */
    uint32_t score_width;             /* scores are divided by its square root; 0 in the file: head_width */
    float logit_cap;                  /* bound of the head's logits; 0: none */
} MODEL_OWN;
MODEL_OWN_HOLDS(struct decoder_config);

/* Of a config of these families, or of one whose own numbers begin with these. */
static inline const struct decoder_config *decoder_of(const struct model_config *config)
{
    return (const void *)config->own.bytes;
}

static inline struct decoder_config *decoder_edit(struct model_config *config)
{
    return (void *)config->own.bytes;
}

#endif
