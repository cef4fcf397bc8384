/* proto/model/config/model_config.h - what config.json says of a model, as daemon, worker and client each read it. */
#ifndef PROTO_MODEL_CONFIG_MODEL_CONFIG_H
#define PROTO_MODEL_CONFIG_MODEL_CONFIG_H

#include "proto/base/error.h"
#include "proto/model/adapter.h"
#include "proto/model/config/quantized.h"
#include "proto/model/guests.h"
#include "proto/model/image.h"
#include "proto/model/own.h"
#include "proto/model/widths.h"
#include "proto/operation/kind/activation.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The numbers of config.json that the mathematics depends on. All limits below are checked by model_config_parse
 * (model_config_check). */
struct model_config {
    const struct family *family; /* proto/model/family.h */
    /* inner_width: of feed-forward layers: of a model the widest; where its family writes a block's program, or checks
     * the numbers, the block's. */
    uint32_t n_layers, n_heads, width, inner_width, n_positions, vocabulary;
    enum model_activation activation;
    bool tied; /* the head's table is that of tokens */
    float norm_epsilon;
    float initializer_range; /* deviation of fresh weights */
    uint32_t n_labels;       /* a classifier predicts one of these for each row; 0: the model predicts tokens */
    bool regression;         /* the classifier's one label is a number */
    bool has_padding;        /* the input does not train the row of token `padding` in the table of tokens */
    uint32_t padding;        /* a token, if has_padding */
    struct model_adapter adapter;
    /* An encoder-decoder's row is divided into `row` parts: the first `source` are its source, the others its target
     * (model_divide_rows); if they are equal, each row is one of the two (model_part_rows). 0: other models. */
    uint32_t source, row;
    uint32_t start; /* of an encoder-decoder: the token before a target's first */
    /* An encoder-decoder's vocabulary of sources, if they have their own, and a table; 0: both have `vocabulary`. */
    uint32_t source_vocabulary;
    struct model_image image;   /* what a model of images sees; of others zeroed */
    struct model_widths widths; /* of each block's feed-forward layer, where the file lists them */
    struct model_guests guests; /* blocks whose programs another config writes */
    struct quantized quantized; /* how the files of its weights, or of its base's, have them */
    struct model_own own;       /* the family's own numbers: only its own file reads them */
    const char *ignored;        /* a key of the file that its family ignores and that was to change something; static,
                                 * NULL: none */
};

/* Rows of the head's table: labels, or the vocabulary. */
static inline uint32_t model_outputs(const struct model_config *config)
{
    return config->n_labels ? config->n_labels : config->vocabulary;
}

/* 21,843 classes, each named twice, take some 2 MiB; reading JSON takes up to 80 times its bytes. */
enum { MODEL_CONFIG_MAX_BYTES = 4 << 20 };
/* -EINVAL with a sentence if a config.json of n bytes is larger. */
int model_config_check_size(size_t n, struct error *err);

/* Reads config.json (text, n bytes, not terminated). -EINVAL with a sentence that names the key, its value and what is
 * accepted: a key is missing, absurd (0 layers, width not a multiple of heads, dropout of 1) or contradictory, names
 * another model_type, or is unknown and may change the mathematics. Keys known to change nothing are ignored. */
int model_config_parse(struct model_config *out, const char *text, size_t n, struct error *err);

/* Checks the limits alone: 1..4096 layers, width 1..65536, heads dividing width, positions and vocabulary 1..2^24, ...
 * so that no product of them overflows 64 bits. */
int model_config_check(const struct model_config *config, struct error *err);

#endif
