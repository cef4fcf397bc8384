/* A family that only tests have: the first 15 tokens of each row are the pixels of an image.
 *
 *   pixels         takes them from the embedding: the value "pixels", of 3 x 5
 *   block 0        a convolution at stride 2, the value "image" of 2 x 3, and the moments of its rows
 *     finish       joins them to the part's statistics
 *     features     pool(convolution(relu(batch norm(image)))), the value "features" of 1 x 2
 *   other blocks   decode all tokens of the row: each sees those before it, and the features */
#include "tests/families/parts.h"

#include <math.h>

enum { PIXELS = PROGRAM_OWN, IMAGE, FEATURES };

static const char *const architectures[] = {"PicturesForCausalLM", NULL};

static const struct family_key keys[] = {DECODER_KEYS("hidden_act"), {0}};

static struct program_own own_domain(const struct model_config *c, uint32_t own)
{
    static const struct program_own domains[] = {{.height = 3, .width = 5},
                                                 {.height = 2, .width = 3},
                                                 {.height = 1, .width = 2}};

    (void)c;
    return own < sizeof domains / sizeof *domains ? domains[own] : (struct program_own){0};
}

static void write_pixels(struct program *p, const struct model_config *c)
{
    program_output(p, "pixels", program_take(p, program_begin(p, c->width), PIXELS));
}

static void write_image(struct program *p, const struct model_config *c)
{
    const struct program_conv2d_options conv = {.window = {3, 3, 2, 1},
                                                .n_groups = 1,
                                                .deviation = c->initializer_range};

    program_init(p);
    const int x = program_input(p, "pixels", PIXELS, c->width);
    const int y = program_conv2d(p, x, "conv1", IMAGE, c->width, &conv);
    program_output(p, "image", y);
    program_output(p, "moments", program_row_moments(p, y));
}

static void finish_image(struct program *p, const struct model_config *c, uint32_t kind)
{
    (void)kind;
    program_init(p);
    const int moments = program_input(p, "moments", PROGRAM_ROW, 2 * c->width);
    program_output(p, "statistics", program_join_moments(p, moments, IMAGE, c->norm_epsilon));
}

static void write_features(struct program *p, const struct model_config *c)
{
    const struct program_conv2d_options conv = {.window = {3, 3, 1, 1},
                                                .n_groups = 2,
                                                .bias = true,
                                                .deviation = c->initializer_range};
    const struct image_window pool = {2, 2, 1, 0};

    program_init(p);
    const int image = program_input(p, "image", IMAGE, c->width);
    const int statistics = program_input(p, "statistics", PROGRAM_PART, PROGRAM_STATISTICS * c->width);
    const int x = program_activation(p, program_batch_norm(p, image, statistics, "batch_norm"), MODEL_RELU);
    program_output(p, "features",
                   program_max_pool(p, program_conv2d(p, x, "conv2", IMAGE, c->width, &conv), FEATURES, &pool));
}

static void write_decoding(struct program *p, const struct model_config *c)
{
    const struct decoder_config *d = decoder_of(c);
    const struct program_norm_options norm = {.epsilon = c->norm_epsilon, .rms = true};
    const struct program_linear_options linear = parts_linear(c);
    const struct program_part kv[] = {{"cross_attn.k_proj", d->n_kv_heads * d->head_width},
                                      {"cross_attn.v_proj", d->n_kv_heads * d->head_width}};
    const struct program_cross_attention_options attention = {.n_heads = c->n_heads,
                                                              .n_kv_heads = d->n_kv_heads,
                                                              .scale = 1 / sqrtf((float)d->head_width)};
    const int x = program_begin(p, c->width), features = program_input(p, "features", FEATURES, c->width);
    const int s = parts_attend(p, x, program_norm(p, x, "input_layernorm", &norm), c, false);
    const int q = program_linear(p, program_norm(p, s, "cross_attn_layernorm", &norm), "cross_attn.q_proj",
                                 c->n_heads * d->head_width, &linear);
    const int a = program_cross_attention(p, q, program_linears(p, features, kv, 2, &linear), &attention);
    const int r = program_add(p, s, program_linear(p, a, "cross_attn.o_proj", c->width, &linear), &parts_no_dropout);

    program_end(p, parts_mix(p, r, program_norm(p, r, "post_attention_layernorm", &norm), c));
}

static const struct family_layer layers[] = {
    {MODEL_SINGLE, "pixels", .write = write_pixels},
    {MODEL_BLOCK, "layers.%u", .write = write_image, .finish = finish_image},
    {MODEL_BLOCK, "layers.%u.features", .goes_on = true, .write = write_features},
    {MODEL_BLOCK, "layers.%u", .write = write_decoding},
    {MODEL_SINGLE, "norm", .write = decoder_write_norm},
    {0},
};

const struct family family_pictures = {PARTS_FAMILY(pictures, MODEL_SILU), .check = decoder_check,
                                       .kind_of_block = parts_above_lowest, .own_domain = own_domain};
