/* proto/model/image_family.h - for the files of families of convolutional nets: what their models have in common.
 *
 * The lowest layer makes values of a row's bytes, the topmost one the mean of all pixels, of which the head makes
 * logits. A batch norm needs the statistics of a whole part, so a layer ends with what it normalises: it gives the
 * moments of its rows, what finishes it joins them, and the layer above normalises. Of each norm its input alone is
 * kept. Where norms are over ghost batches, which no microbatch divides, a layer has them whole, and a block is one
 * layer. */
#ifndef PROTO_MODEL_IMAGE_FAMILY_H
#define PROTO_MODEL_IMAGE_FAMILY_H

#include "proto/model/family.h"

/* The numbers of config.json that only models of images have. */
struct image_net_config {
    uint32_t depth, widening;      /* of a wide ResNet: convolutions, and times the widths of a plain one */
    uint32_t depths[IMAGE_STAGES]; /* of a ResNet: blocks of each stage */
    int layer_type, stem;          /* words of the family */
    uint32_t stem_width;           /* channels of a ResNet's stem */
} MODEL_OWN;
MODEL_OWN_HOLDS(struct image_net_config);

/* Of a config of these families. */
static inline const struct image_net_config *image_net_of(const struct model_config *config)
{
    return (const void *)config->own.bytes;
}

/* Lines for a family's list of keys. */
#define IMAGE_KEYS                                                                                                     \
    {"image_size", FAMILY_COUNT, .offset = FAMILY_AT(image.height), .most = IMAGE_MOST_SIDE},                          \
        {"num_channels", FAMILY_COUNT, .offset = FAMILY_AT(image.channels), .most = 3},                                \
        {"image_mean", FAMILY_CHANNELS, .offset = FAMILY_AT(image.mean)},                                              \
        {"image_std", FAMILY_CHANNELS, .offset = FAMILY_AT(image.deviation)},                                          \
        {"ghost_batch_size", FAMILY_COUNT_OR_NULL, .offset = FAMILY_AT(image.ghost_batch)},                            \
    {                                                                                                                  \
        "batch_norm_eps", FAMILY_REAL, .offset = FAMILY_AT(norm_epsilon), .range = FAMILY_EPSILON                      \
    }

/* Members of struct family that all these families share. */
#define IMAGE_PARTS                                                                                                    \
    .is_own = true, .sees_images = true, .end_token = FAMILY_NO_TOKEN, .padding = FAMILY_NO_TOKEN, .prefix = "",       \
    .is_mask = image_is_mask

/* PyTorch counts the minibatches of each batch norm: "bn1.num_batches_tracked". */
bool image_is_mask(const char *name);

/* Sets derived numbers, once the width of what the head reads is set. For a family's `complete`. */
void image_complete(struct model_config *config);

/* Checks what pixels are normalised by. For a family's `check`. */
int image_check(const struct model_config *config, struct error *err);

/* A side after windows of 3 with padding 1, or of 1, at stride 2. */
static inline uint32_t image_half(uint32_t side)
{
    return (side + 1) / 2;
}

/* The image as a value of domain TOKENS, normalised. */
int image_pixels(struct program *p, const struct model_config *c);

/* A convolution without bias by square windows, which keeps the size at stride 1; fresh weights as He et al.
 * (arXiv:1502.01852) draw them, by what each weight serves: deviation (2 / (size^2 columns))^1/2. */
struct image_conv {
    uint32_t domain, columns; /* of the result */
    uint32_t size, stride;
};
int image_convolve(struct program *p, const struct model_config *c, int x, const char *stem, struct image_conv conv);

/* Gives a value to the layers above: itself under `name`, and the moments of its rows as "moments of NAME". */
void image_output(struct program *p, const char *name, int y);

/* For `finish`: joins the moments of n values, each to "statistics of NAME". */
struct image_value {
    const char *name;
    uint32_t domain, columns;
};
enum { IMAGE_JOINED = 2 };
void image_join(struct program *p, const struct model_config *c, const struct image_value *values, uint32_t n);

/* An input and its statistics, as a layer below gave them. Inputs come before operations. */
struct image_input {
    int x, statistics;
};
struct image_input image_input(struct program *p, const char *name, uint32_t domain, uint32_t columns);

/* A value of this layer and its statistics, for norms over ghost batches. */
struct image_input image_ghosts(struct program *p, const struct model_config *c, int x);

/* norm(x) by running statistics; and its relu. */
int image_norm(struct program *p, const struct model_config *c, struct image_input in, const char *stem);
int image_relu(struct program *p, const struct model_config *c, struct image_input in, const char *stem);

/* The mean of all pixels, in a domain of one, for the head; and the bias of its logits. */
void image_end(struct program *p, const struct model_config *c, int x, uint32_t one);

#endif
