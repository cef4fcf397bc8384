/* Wide residual nets for images of 32 x 32 or so (Zagoruyko & Komodakis, arXiv:1605.07146): WRN-depth-widening. The
 * config is eps's own; tensors are named as in the authors' list of a model's parts, block by block.
 *
 *   conv1.weight                     (16, channels, 3, 3)
 *   block{1,2,3}.layer.N.            of 16, 32 and 64 channels, times widening; blocks 2 and 3 begin at stride 2
 *     bn1.{weight,bias,running_mean,running_var}, conv1.weight, bn2..., conv2.weight
 *     convShortcut.weight            where the number of channels changes: of the first norm's result
 *   bn1..., fc.weight, fc.bias
 *
 * Norm and relu precede each convolution. A block has two layers: from one norm to the next; with ghost batches it is
 * one. */
#include "proto/model/image_family.h"

#include <errno.h>

enum { STAGES = 3, STEM_CHANNELS = 16, LEAST_DEPTH = 10, MOST_DEPTH = 1000, MOST_WIDENING = 64 };
enum { ONE = PROGRAM_OWN + STAGES }; /* domains: the images of each stage; one pixel */
enum { ENTERS, STAYS };              /* kinds of a stage: its first block, and others */

static const char *const architectures[] = {"WideResNetForImageClassification", NULL};

static const struct family_key keys[] = {
    IMAGE_KEYS,
    {"depth", FAMILY_COUNT, .offset = FAMILY_OWN(struct image_net_config, depth), .required = true, .most = MOST_DEPTH},
    {"widen_factor", FAMILY_COUNT, .offset = FAMILY_OWN(struct image_net_config, widening), .required = true,
     .most = MOST_WIDENING},
    {0},
};

static uint32_t wide_resnet_channels_of(const struct model_config *c, uint32_t stage)
{
    return ((uint32_t)STEM_CHANNELS << stage) * image_net_of(c)->widening;
}

static uint32_t channels_below(const struct model_config *c, uint32_t stage)
{
    return stage == 0 ? STEM_CHANNELS : wide_resnet_channels_of(c, stage - 1);
}

static void wide_resnet_complete(struct model_config *c)
{
    c->n_layers = image_net_of(c)->depth >= LEAST_DEPTH ? (image_net_of(c)->depth - 4) / 6 * STAGES : 0;
    c->width = wide_resnet_channels_of(c, STAGES - 1);
    image_complete(c);
}

static int wide_resnet_check(const struct model_config *c, struct error *err)
{
    const uint32_t depth = image_net_of(c)->depth;

    if (depth < LEAST_DEPTH || depth % 6 != 4)
        return error_set(err, -EINVAL, "depth is %u: it must be 4 and a multiple of 6, as 10, 16, 28 and 40 are",
                         depth);
    return image_check(c, err);
}

/* ---- blocks ---- */

static uint32_t wide_resnet_stage_of_block(const struct model_config *c, uint32_t index)
{
    return index / (c->n_layers / STAGES);
}

static uint32_t wide_resnet_number_of_block(const struct model_config *c, uint32_t index)
{
    return index % (c->n_layers / STAGES);
}

static uint32_t wide_resnet_kind_of_block(const struct model_config *c, uint32_t index)
{
    return 2 * wide_resnet_stage_of_block(c, index) + (wide_resnet_number_of_block(c, index) > 0 ? STAYS : ENTERS);
}

static struct program_own wide_resnet_own_domain(const struct model_config *c, uint32_t own)
{
    uint32_t side = c->image.height;

    if (own > STAGES)
        return (struct program_own){0};
    for (uint32_t stage = 0; stage < own && own < STAGES; stage++)
        side = image_half(side);
    return own < STAGES ? (struct program_own){.height = side, .width = side}
                        : (struct program_own){.height = 1, .width = 1};
}

/* What a block of this kind maps to what. */
struct block {
    uint32_t from, to; /* domains */
    uint32_t channels_in, channels, stride;
    bool changes; /* the stream's channels or size: a convolution takes it along */
};

static struct block wide_resnet_block_of(const struct model_config *c, uint32_t kind)
{
    const uint32_t stage = kind / 2;
    const bool enters = kind % 2 == ENTERS;
    struct block b = {.to = PROGRAM_OWN + stage,
                      .channels = wide_resnet_channels_of(c, stage),
                      .stride = enters && stage > 0 ? 2 : 1};

    b.from = enters && stage > 0 ? b.to - 1 : b.to;
    b.channels_in = enters ? channels_below(c, stage) : b.channels;
    b.changes = b.channels_in != b.channels || b.stride > 1;
    return b;
}

static int wide_resnet_convolve_stem(struct program *p, const struct model_config *c)
{
    program_init(p);
    return image_convolve(p, c, image_pixels(p, c), "conv1", (struct image_conv){PROGRAM_OWN, STEM_CHANNELS, 3, 1});
}

static void wide_resnet_write_stem(struct program *p, const struct model_config *c)
{
    image_output(p, "", wide_resnet_convolve_stem(p, c));
}

static void wide_resnet_finish_stem(struct program *p, const struct model_config *c, uint32_t kind)
{
    (void)kind;
    image_join(p, c, &(struct image_value){"", PROGRAM_OWN, STEM_CHANNELS}, 1);
}

static void write_first(struct program *p, const struct model_config *c, uint32_t kind)
{
    const struct block b = wide_resnet_block_of(c, kind);

    program_init(p);
    const int o = image_relu(p, c, image_input(p, "", b.from, b.channels_in), "bn1");
    image_output(p, "inner", image_convolve(p, c, o, "conv1", (struct image_conv){b.to, b.channels, 3, b.stride}));
    if (b.changes)
        program_output(p, "shortcut",
                       image_convolve(p, c, o, "convShortcut", (struct image_conv){b.to, b.channels, 1, b.stride}));
}

static void finish_first(struct program *p, const struct model_config *c, uint32_t kind)
{
    const struct block b = wide_resnet_block_of(c, kind);

    image_join(p, c, &(struct image_value){"inner", b.to, b.channels}, 1);
}

static void write_second(struct program *p, const struct model_config *c, uint32_t kind)
{
    const struct program_dropout none = {0};
    const struct block b = wide_resnet_block_of(c, kind);

    program_init(p);
    const int x = program_input(p, b.changes ? "shortcut" : "", b.to, b.channels);
    const int o = image_relu(p, c, image_input(p, "inner", b.to, b.channels), "bn2");
    const int z = image_convolve(p, c, o, "conv2", (struct image_conv){b.to, b.channels, 3, 1});
    image_output(p, "", program_add(p, x, z, &none));
}

static void finish_second(struct program *p, const struct model_config *c, uint32_t kind)
{
    const struct block b = wide_resnet_block_of(c, kind);

    image_join(p, c, &(struct image_value){"", b.to, b.channels}, 1);
}

static void wide_resnet_write_top(struct program *p, const struct model_config *c)
{
    program_init(p);
    image_end(p, c, image_relu(p, c, image_input(p, "", ONE - 1, c->width), "bn1"), ONE);
}

/* ---- with ghost batches ---- */

static void wide_resnet_write_ghost_stem(struct program *p, const struct model_config *c)
{
    program_output(p, "", wide_resnet_convolve_stem(p, c));
}

static void write_ghost_block(struct program *p, const struct model_config *c, uint32_t kind)
{
    const struct program_dropout none = {0};
    const struct block b = wide_resnet_block_of(c, kind);

    program_init(p);
    const int x = program_input(p, "", b.from, b.channels_in);
    const int o = image_relu(p, c, image_ghosts(p, c, x), "bn1");
    const int y = image_convolve(p, c, o, "conv1", (struct image_conv){b.to, b.channels, 3, b.stride});
    const int u = image_relu(p, c, image_ghosts(p, c, y), "bn2");
    const int z = image_convolve(p, c, u, "conv2", (struct image_conv){b.to, b.channels, 3, 1});
    const int s =
        b.changes ? image_convolve(p, c, o, "convShortcut", (struct image_conv){b.to, b.channels, 1, b.stride}) : x;
    program_output(p, "", program_add(p, s, z, &none));
}

static void write_ghost_top(struct program *p, const struct model_config *c)
{
    program_init(p);
    const int x = program_input(p, "", ONE - 1, c->width);
    image_end(p, c, image_relu(p, c, image_ghosts(p, c, x), "bn1"), ONE);
}

#define BLOCK(name)                                                                                                    \
    {MODEL_BLOCK, name ".layer.%u", .write_kind = write_first, .finish = finish_first},                                \
    {                                                                                                                  \
        MODEL_BLOCK, name ".layer.%u.conv2", .goes_on = true, .write_kind = write_second, .finish = finish_second      \
    }

static const struct family_layer layers[] = {
    {MODEL_SINGLE, "conv1", .write = wide_resnet_write_stem, .finish = wide_resnet_finish_stem},
    BLOCK("block1"),
    BLOCK("block1"),
    BLOCK("block2"),
    BLOCK("block2"),
    BLOCK("block3"),
    BLOCK("block3"),
    {MODEL_SINGLE, "bn1", .write = wide_resnet_write_top},
    {0},
};

#define GHOST_BLOCK(name)                                                                                              \
    {                                                                                                                  \
        MODEL_BLOCK, name ".layer.%u", .write_kind = write_ghost_block                                                 \
    }

static const struct family_layer ghost_layers[] = {
    {MODEL_SINGLE, "conv1", .write = wide_resnet_write_ghost_stem},
    GHOST_BLOCK("block1"),
    GHOST_BLOCK("block1"),
    GHOST_BLOCK("block2"),
    GHOST_BLOCK("block2"),
    GHOST_BLOCK("block3"),
    GHOST_BLOCK("block3"),
    {MODEL_SINGLE, "bn1", .write = write_ghost_top},
    {0},
};

static const char *const no_others[] = {NULL};
static const struct family_classifier classifier = {.architecture = "WideResNetForImageClassification",
                                                    .layers = layers,
                                                    .ghost_layers = ghost_layers,
                                                    .logits = "fc",
                                                    .others = no_others};

const struct family family_wide_resnet = {
    .model_type = "wide_resnet",
    .architectures = architectures,
    .classifier = &classifier,
    .keys = keys,
    .defaults = {.family = &family_wide_resnet,
                 .activation = MODEL_RELU,
                 .norm_epsilon = 1e-5f,
                 .image = {.height = 32, .channels = 3}},
    .complete = wide_resnet_complete,
    .check = wide_resnet_check,
    .layers = layers,
    .kind_of_block = wide_resnet_kind_of_block,
    .number_of_block = wide_resnet_number_of_block,
    .own_domain = wide_resnet_own_domain,
    .logits = "fc",
    IMAGE_PARTS,
};
