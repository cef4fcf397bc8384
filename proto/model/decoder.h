/* proto/model/decoder.h - the numbers of decoders that followed Llama (Touvron et al., arXiv:2302.13971). */
#ifndef PROTO_MODEL_DECODER_H
#define PROTO_MODEL_DECODER_H

#include "proto/model/config/config_lists.h"
#include "proto/model/config/model_config.h"

#include <stdbool.h>
#include <stdint.h>

/* How the frequencies of rotary positions are changed for longer texts. */
enum decoder_scaling {
    DECODER_NOT_SCALED,
    DECODER_LINEAR,   /* all divided by `factor` */
    DECODER_LLAMA3,   /* low ones divided, high ones kept, others interpolated. Grattafiori et al., arXiv:2407.21783 */
    DECODER_YARN,     /* the same by another measure, and cosines and sines multiplied. Peng et al., arXiv:2309.00071 */
    DECODER_LONGROPE, /* each divided by a number of its own, others in long rows. Ding et al., arXiv:2402.13753 */
    DECODER_DYNAMIC,  /* scaled in rows longer than n_positions, which do not exist here */
    DECODER_PROPORTIONAL, /* all of a head's columns have a frequency, which is 0 but for the first `share` of them */
};

/* Kinds of block, as sets: the numbers of a block's queries and keys. */
enum { DECODER_SLIDES = 1, DECODER_UNROTATED = 2, DECODER_KINDS = 4 };

/* The numbers of config.json that GPT-2 does not have. */
struct decoder_config {
    uint32_t n_kv_heads; /* 0 in the file: n_heads */
    uint32_t head_width; /* 0 in the file: width / n_heads */
    uint32_t window;     /* keys that a query sees, up to its own; 0: all up to its own */
    bool qkv_bias, output_bias, mlp_bias;
    bool norm_offset; /* norms multiply by 1 + weight */
    bool norms_heads; /* of queries and of keys, where the family leaves it to the file */
    bool parallel;    /* attention and MLP read the same norm */
    float dropout_attention, dropout_residual, dropout_embedding;
    struct MODEL_OWN decoder_rope {
        float base;
        enum decoder_scaling scaling;
        float factor;       /* 0 in the file: n_positions / n_trained with DECODER_YARN and DECODER_LONGROPE, 1 with
                             * DECODER_PROPORTIONAL */
        float low, high;    /* DECODER_LLAMA3: a frequency below low / n_trained waves a position is low, one above
                             * high / n_trained is high */
        uint32_t n_trained; /* positions before scaling; 0 in the file: n_positions */
        float share;        /* of a head's columns, the first ones, that are rotated; 0 in the file: 1 */
        /* DECODER_YARN: the columns between which frequencies are interpolated are those that turn `fast` and `slow`
         * times in n_trained positions; 0: 32 and 1. They are rounded outward, unless `unrounded` is set. */
        float fast, slow;
        bool unrounded;
        /* DECODER_YARN, DECODER_LONGROPE: the factor on cosines and sines. 0: it comes from `factor`, and with
         * DECODER_YARN is a ratio of two such, of weights mscale and mscale_all, if both are set. */
        float attention, mscale, mscale_all;
        float alpha; /* DECODER_DYNAMIC: the base grows by a power of it, in rows of any length; 0: it does not */
    } rope;
    /* Blocks of two kinds: queries of sliding ones see the window, those of the others all keys before them. */
    struct config_layers sliding;
    /* If the file lists no kinds, these blocks slide: */
    bool slides;                      /* Qwen: the window is used at all */
    uint32_t n_full;                  /* Qwen: all but the first n_full blocks */
    uint32_t pattern;                 /* Gemma: all but every pattern'th block */
    struct decoder_rope sliding_rope; /* rotation in sliding blocks; base 0 in the file: rope */
    struct config_layers unrotated;   /* blocks whose queries and keys are not rotated */
    uint32_t score_width;             /* scores are divided by its square root; 0 in the file: head_width */
    float logit_cap;                  /* bound of the head's logits; 0: none */
    float score_cap;                  /* bound of attention's scores, before their softmax; 0: none */
    float score_scale;                /* the factor on scores, where it is no power of score_width; 0: 1/sqrt of it */
    struct config_reals short_factors, long_factors; /* DECODER_LONGROPE: divisors of frequencies, in rows up to
                                                      * n_trained and in longer ones */
    bool interleaved;   /* pairs of columns that are rotated are neighbours, not of a head's halves */
    bool backwards;     /* rotated by the negative angle */
    bool alibi;         /* nothing is rotated: scores fall with distance (struct device_attention) */
    float query_growth; /* queries are multiplied by 1 + query_growth * log(1 + floor(position / rope.n_trained)) */
    float logit_scale;  /* the factor on logits; 0: 1 */
    /* Granite's multipliers: of the embedding's rows, of what a branch adds, and a divisor of logits. 0: 1 */
    float embedding_scale, branch_scale, logit_divisor;
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
