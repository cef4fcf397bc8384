/* Residual nets (He et al., arXiv:1512.03385) as torchvision has them: its tensors' names, stride 2 at a bottleneck's
 * middle convolution. The config is eps's own: the keys of transformers' ResNet where they mean the same.
 *
 *   conv1.weight, bn1.{weight,bias,running_mean,running_var}
 *   layer{1,2,3,4}.N.                of width, 2, 4 and 8 times it; a bottleneck's result has 4 times as many channels
 *     conv1.weight, bn1..., conv2.weight, bn2...; of a bottleneck conv3.weight, bn3...
 *     downsample.0.weight, downsample.1...     where the stream's size or channels change
 *   fc.weight, fc.bias
 *
 * Stem: "imagenet" a convolution of 7 x 7 at stride 2, and the largest of 3 x 3 at stride 2; "cifar" one of 3 x 3. A
 * norm follows each convolution, so a block's layers are from one convolution's result to the next, and a last one that
 * adds. */
#include "proto/model/image_family.h"

#include <errno.h>

enum { BASIC, BOTTLENECK, EXPANSION = 4 };
enum { STEM_IMAGENET, STEM_CIFAR };
enum { ENTERS, STAYS, KINDS = 2 * IMAGE_STAGES }; /* of a stage, and of all stages; behind them those of bottlenecks */
enum { STEM = PROGRAM_OWN, FIRST_STAGE, ONE = FIRST_STAGE + IMAGE_STAGES }; /* domains */

static const char *const architectures[] = {"TorchvisionResNetForImageClassification", NULL};
static const char *const layer_types[] = {"basic", "bottleneck", NULL}, *const stems[] = {"imagenet", "cifar", NULL};

static const struct family_key keys[] = {
    IMAGE_KEYS,
    {"depths", FAMILY_DEPTHS, .offset = FAMILY_OWN(struct image_net_config, depths), .required = true},
    {"layer_type", FAMILY_WORD, .offset = FAMILY_OWN(struct image_net_config, layer_type), .required = true,
     .words = layer_types},
    {"embedding_size", FAMILY_COUNT, .offset = FAMILY_OWN(struct image_net_config, stem_width), .most = 4096},
    {"stem", FAMILY_WORD, .offset = FAMILY_OWN(struct image_net_config, stem), .words = stems},
    {0},
};

static bool is_bottleneck(const struct model_config *c)
{
    return image_net_of(c)->layer_type == BOTTLENECK;
}

/* Channels of a block's inner values; torchvision_resnet_channels_of: of its result. */
static uint32_t inner_of(const struct model_config *c, uint32_t stage)
{
    return image_net_of(c)->stem_width << stage;
}

static uint32_t torchvision_resnet_channels_of(const struct model_config *c, uint32_t stage)
{
    return inner_of(c, stage) * (is_bottleneck(c) ? EXPANSION : 1);
}

static void torchvision_resnet_complete(struct model_config *c)
{
    c->n_layers = 0;
    for (uint32_t stage = 0; stage < IMAGE_STAGES; stage++)
        c->n_layers += image_net_of(c)->depths[stage];
    c->width = torchvision_resnet_channels_of(c, IMAGE_STAGES - 1);
    image_complete(c);
}

/* ---- blocks ---- */

static uint32_t torchvision_resnet_stage_of_block(const struct model_config *c, uint32_t *number)
{
    uint32_t stage = 0;

    while (*number >= image_net_of(c)->depths[stage])
        *number -= image_net_of(c)->depths[stage++];
    return stage;
}

static uint32_t torchvision_resnet_number_of_block(const struct model_config *c, uint32_t index)
{
    torchvision_resnet_stage_of_block(c, &index);
    return index;
}

static uint32_t torchvision_resnet_kind_of_block(const struct model_config *c, uint32_t index)
{
    const uint32_t stage = torchvision_resnet_stage_of_block(c, &index);

    return (is_bottleneck(c) ? KINDS : 0) + 2 * stage + (index > 0 ? STAYS : ENTERS);
}

static uint32_t stage_side(const struct model_config *c, uint32_t stage)
{
    uint32_t side = c->image.height;

    if (image_net_of(c)->stem == STEM_IMAGENET)
        side = image_half(image_half(side));
    for (; stage > 0; stage--)
        side = image_half(side);
    return side;
}

static struct program_own torchvision_resnet_own_domain(const struct model_config *c, uint32_t own)
{
    const uint32_t domain = PROGRAM_OWN + own;
    uint32_t side = 1;

    if (domain > ONE)
        return (struct program_own){0};
    if (domain == STEM)
        side = image_half(c->image.height);
    else if (domain < ONE)
        side = stage_side(c, domain - FIRST_STAGE);
    return (struct program_own){.height = side, .width = side};
}

/* What a block of this kind maps to what. */
struct block {
    uint32_t from, to; /* domains */
    uint32_t channels_in, inner, channels, stride;
    bool is_bottleneck, changes; /* changes: the stream's channels or size */
};

static struct block torchvision_resnet_block_of(const struct model_config *c, uint32_t kind)
{
    const uint32_t stage = kind % KINDS / 2;
    const bool enters = kind % 2 == ENTERS;
    struct block b = {.to = FIRST_STAGE + stage,
                      .inner = inner_of(c, stage),
                      .channels = torchvision_resnet_channels_of(c, stage),
                      .stride = enters && stage > 0 ? 2 : 1,
                      .is_bottleneck = kind >= KINDS};

    b.from = b.stride > 1 ? b.to - 1 : b.to;
    b.channels_in = !enters     ? b.channels
                    : stage > 0 ? torchvision_resnet_channels_of(c, stage - 1)
                                : image_net_of(c)->stem_width;
    b.changes = b.channels_in != b.channels || b.stride > 1;
    return b;
}

/* The first convolution's result. */
static uint32_t first_domain(const struct block *b)
{
    return b->is_bottleneck ? b->from : b->to;
}

static bool is_large(const struct model_config *c)
{
    return image_net_of(c)->stem == STEM_IMAGENET;
}

static uint32_t stem_domain(const struct model_config *c)
{
    return is_large(c) ? STEM : FIRST_STAGE;
}

static int torchvision_resnet_convolve_stem(struct program *p, const struct model_config *c)
{
    const struct image_conv conv = {stem_domain(c), image_net_of(c)->stem_width, is_large(c) ? 7 : 3,
                                    is_large(c) ? 2 : 1};

    program_init(p);
    return image_convolve(p, c, image_pixels(p, c), "conv1", conv);
}

static void torchvision_resnet_write_stem(struct program *p, const struct model_config *c)
{
    image_output(p, "inner", torchvision_resnet_convolve_stem(p, c));
}

/* The norm, and the pool of a large one. */
static void end_stem(struct program *p, const struct model_config *c, struct image_input in)
{
    const struct image_window window = {3, 3, 2, 1};
    const int x = image_relu(p, c, in, "bn1");

    program_output(p, "", is_large(c) ? program_max_pool(p, x, FIRST_STAGE, &window) : x);
}

static void torchvision_resnet_finish_stem(struct program *p, const struct model_config *c, uint32_t kind)
{
    (void)kind;
    image_join(p, c, &(struct image_value){"inner", stem_domain(c), image_net_of(c)->stem_width}, 1);
}

static void write_stem_norm(struct program *p, const struct model_config *c)
{
    program_init(p);
    end_stem(p, c, image_input(p, "inner", stem_domain(c), image_net_of(c)->stem_width));
}

static void write_first(struct program *p, const struct model_config *c, uint32_t kind)
{
    const struct block b = torchvision_resnet_block_of(c, kind);
    const struct image_conv conv = {first_domain(&b), b.inner, b.is_bottleneck ? 1 : 3, b.is_bottleneck ? 1 : b.stride};

    program_init(p);
    const int x = program_input(p, "", b.from, b.channels_in);
    image_output(p, "inner", image_convolve(p, c, x, "conv1", conv));
    if (b.changes)
        image_output(p, "shortcut",
                     image_convolve(p, c, x, "downsample.0", (struct image_conv){b.to, b.channels, 1, b.stride}));
}

static void finish_first(struct program *p, const struct model_config *c, uint32_t kind)
{
    const struct block b = torchvision_resnet_block_of(c, kind);

    image_join(p, c, (struct image_value[]){{"inner", first_domain(&b), b.inner}, {"shortcut", b.to, b.channels}},
               b.changes ? 2 : 1);
}

/* A bottleneck's convolution of 3 x 3. */
static void write_middle(struct program *p, const struct model_config *c, uint32_t kind)
{
    const struct block b = torchvision_resnet_block_of(c, kind);

    program_init(p);
    const int x = image_relu(p, c, image_input(p, "inner", b.from, b.inner), "bn1");
    image_output(p, "inner", image_convolve(p, c, x, "conv2", (struct image_conv){b.to, b.inner, 3, b.stride}));
}

static void finish_middle(struct program *p, const struct model_config *c, uint32_t kind)
{
    const struct block b = torchvision_resnet_block_of(c, kind);

    image_join(p, c, &(struct image_value){"inner", b.to, b.inner}, 1);
}

/* The last convolution. */
static void write_second(struct program *p, const struct model_config *c, uint32_t kind)
{
    const struct block b = torchvision_resnet_block_of(c, kind);

    program_init(p);
    const int x = image_relu(p, c, image_input(p, "inner", b.to, b.inner), b.is_bottleneck ? "bn2" : "bn1");
    image_output(p, "inner",
                 image_convolve(p, c, x, b.is_bottleneck ? "conv3" : "conv2",
                                (struct image_conv){b.to, b.channels, b.is_bottleneck ? 1 : 3, 1}));
}

static void finish_second(struct program *p, const struct model_config *c, uint32_t kind)
{
    const struct block b = torchvision_resnet_block_of(c, kind);

    image_join(p, c, &(struct image_value){"inner", b.to, b.channels}, 1);
}

static void write_sum(struct program *p, const struct model_config *c, uint32_t kind)
{
    const struct program_dropout none = {0};
    const struct block b = torchvision_resnet_block_of(c, kind);
    struct image_input shortcut = {0};

    program_init(p);
    const int x = b.changes ? -1 : program_input(p, "", b.to, b.channels);
    if (b.changes)
        shortcut = image_input(p, "shortcut", b.to, b.channels);
    const struct image_input inner = image_input(p, "inner", b.to, b.channels);
    const int z = image_norm(p, c, inner, b.is_bottleneck ? "bn3" : "bn2");
    const int s = b.changes ? image_norm(p, c, shortcut, "downsample.1") : x;
    program_output(p, "", program_activation(p, program_add(p, s, z, &none), MODEL_RELU));
}

static void torchvision_resnet_write_top(struct program *p, const struct model_config *c)
{
    program_init(p);
    image_end(p, c, program_input(p, "", ONE - 1, c->width), ONE);
}

/* ---- with ghost batches: a block is one layer ---- */

static void torchvision_resnet_write_ghost_stem(struct program *p, const struct model_config *c)
{
    end_stem(p, c, image_ghosts(p, c, torchvision_resnet_convolve_stem(p, c)));
}

/* A convolution, its norm, and a relu. */
static int torchvision_resnet_follow(struct program *p, const struct model_config *c, int x, const char *conv,
                                     const char *norm, struct image_conv how)
{
    return image_relu(p, c, image_ghosts(p, c, image_convolve(p, c, x, conv, how)), norm);
}

static void write_ghost_block(struct program *p, const struct model_config *c, uint32_t kind)
{
    const struct program_dropout none = {0};
    const struct block b = torchvision_resnet_block_of(c, kind);
    const struct image_conv first = {first_domain(&b), b.inner, b.is_bottleneck ? 1 : 3,
                                     b.is_bottleneck ? 1 : b.stride},
                            middle = {b.to, b.inner, 3, b.stride},
                            last = {b.to, b.channels, b.is_bottleneck ? 1 : 3, 1},
                            shortcut = {b.to, b.channels, 1, b.stride};

    program_init(p);
    const int x = program_input(p, "", b.from, b.channels_in);
    int y = torchvision_resnet_follow(p, c, x, "conv1", "bn1", first), s = x;
    if (b.is_bottleneck)
        y = torchvision_resnet_follow(p, c, y, "conv2", "bn2", middle);
    y = image_convolve(p, c, y, b.is_bottleneck ? "conv3" : "conv2", last);
    y = image_norm(p, c, image_ghosts(p, c, y), b.is_bottleneck ? "bn3" : "bn2");
    if (b.changes)
        s = image_norm(p, c, image_ghosts(p, c, image_convolve(p, c, x, "downsample.0", shortcut)), "downsample.1");
    program_output(p, "", program_activation(p, program_add(p, s, y, &none), MODEL_RELU));
}

#define FIRST(name)                                                                                                    \
    {                                                                                                                  \
        MODEL_BLOCK, name ".%u", .write_kind = write_first, .finish = finish_first                                     \
    }
#define MIDDLE(name)                                                                                                   \
    {                                                                                                                  \
        MODEL_BLOCK, name ".%u.conv2", .goes_on = true, .write_kind = write_middle, .finish = finish_middle            \
    }
#define SECOND(name, conv)                                                                                             \
    {                                                                                                                  \
        MODEL_BLOCK, name ".%u." conv, .goes_on = true, .write_kind = write_second, .finish = finish_second            \
    }
#define SUM(name)                                                                                                      \
    {                                                                                                                  \
        MODEL_BLOCK, name ".%u.sum", .goes_on = true, .write_kind = write_sum                                          \
    }
#define BASIC_OF(name)      FIRST(name), SECOND(name, "conv2"), SUM(name)
#define BOTTLENECK_OF(name) FIRST(name), MIDDLE(name), SECOND(name, "conv3"), SUM(name)
#define STAGES_OF(block)                                                                                               \
    block("layer1"), block("layer1"), block("layer2"), block("layer2"), block("layer3"), block("layer3"),              \
        block("layer4"), block("layer4")

static const struct family_layer layers[] = {
    {MODEL_SINGLE, "conv1", .write = torchvision_resnet_write_stem, .finish = torchvision_resnet_finish_stem},
    {MODEL_SINGLE, "bn1", .write = write_stem_norm},
    STAGES_OF(BASIC_OF),
    STAGES_OF(BOTTLENECK_OF),
    {MODEL_SINGLE, "fc.bias", .write = torchvision_resnet_write_top},
    {0},
};

#define GHOST(name)                                                                                                    \
    {                                                                                                                  \
        MODEL_BLOCK, name ".%u", .write_kind = write_ghost_block                                                       \
    }

static const struct family_layer ghost_layers[] = {
    {MODEL_SINGLE, "conv1", .write = torchvision_resnet_write_ghost_stem},
    STAGES_OF(GHOST), /* basic */
    STAGES_OF(GHOST), /* bottlenecks */
    {MODEL_SINGLE, "fc.bias", .write = torchvision_resnet_write_top},
    {0},
};

static const char *const no_others[] = {NULL};
static const struct family_classifier classifier = {.architecture = "TorchvisionResNetForImageClassification",
                                                    .layers = layers,
                                                    .ghost_layers = ghost_layers,
                                                    .logits = "fc",
                                                    .others = no_others};

const struct family family_torchvision_resnet = {
    .model_type = "torchvision_resnet",
    .architectures = architectures,
    .classifier = &classifier,
    .keys = keys,
    .defaults = {.family = &family_torchvision_resnet,
                 .activation = MODEL_RELU,
                 .norm_epsilon = 1e-5f,
                 .image = {.height = 224, .channels = 3}},
    FAMILY_OWN_DEFAULTS(struct image_net_config, .stem_width = 64),
    .complete = torchvision_resnet_complete,
    .check = image_check,
    .layers = layers,
    .kind_of_block = torchvision_resnet_kind_of_block,
    .number_of_block = torchvision_resnet_number_of_block,
    .own_domain = torchvision_resnet_own_domain,
    .logits = "fc",
    IMAGE_PARTS,
};
