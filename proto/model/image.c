/* To the rest of the system an image is a row of tokens, one for each pixel, whose number has the bytes of all
 * channels. So data, packing and transport know of no images; a vocabulary has at most 2^24 entries, hence three
 * channels.
 *
 * A batch norm needs statistics of the whole part, which no layer sees at once. So a value that will be normed is given
 * with "moments of NAME", a layer between joins them to "statistics of NAME", and the next one reads both. The names
 * alone connect them, and image_name_of alone makes these. */
#include "proto/model/image_family.h"

#include "proto/base/text.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>

bool image_is_mask(const char *name)
{
    return text_ends_with(name, ".num_batches_tracked");
}

/* A row's tokens are its pixels; the head is drawn with the deviation of PyTorch's linear layers. */
void image_complete(struct model_config *c)
{
    struct model_image *image = &c->image;

    image->width = image->height;
    c->n_positions = image->height * image->width;
    c->vocabulary = 1u << 8 * (image->channels < 3 ? image->channels : 3);
    c->initializer_range = (float)(1 / sqrt(3.0 * c->width));
    for (struct image_channels *all = &image->mean; all <= &image->deviation; all++)
        if (all->n == 0)
            for (; all->n < image->channels && all->n < IMAGE_CHANNELS; all->n++)
                all->of[all->n] = all == &image->deviation;
}

static int check_channels(const struct image_channels *all, const char *key, const struct model_image *image,
                          struct error *err)
{
    const bool divides = all == &image->deviation;

    if (all->n != image->channels)
        return error_set(err, -EINVAL, "%s has %u numbers: it must have one for each of num_channels, which is %u", key,
                         all->n, image->channels);
    for (uint32_t i = 0; i < all->n; i++)
        if (!isfinite(all->of[i]) || (divides && !(all->of[i] >= 1e-6f)))
            return error_set(err, -EINVAL, "%s has %g: it must be %s", key, (double)all->of[i],
                             divides ? "at least 1e-6" : "a number");
    return 0;
}

int image_check(const struct model_config *c, struct error *err)
{
    if (c->image.ghost_batch > IMAGE_MOST_GHOSTS)
        return error_set(err, -EINVAL, "ghost_batch_size is %u: it must be at most %d", c->image.ghost_batch,
                         IMAGE_MOST_GHOSTS);
    const int rc = check_channels(&c->image.mean, "image_mean", &c->image, err);

    return rc ? rc : check_channels(&c->image.deviation, "image_std", &c->image, err);
}

int image_pixels(struct program *p, const struct model_config *c)
{
    struct program_pixels_options pixels = {.n = c->image.channels};

    for (uint32_t i = 0; i < pixels.n; i++)
        pixels.mean[i] = c->image.mean.of[i], pixels.deviation[i] = c->image.deviation.of[i];
    return program_pixels(p, &pixels);
}

int image_convolve(struct program *p, const struct model_config *c, int x, const char *stem, struct image_conv conv)
{
    const bool is_whole = p->values[x].domain == PROGRAM_TOKENS;
    const struct program_conv2d_options options = {.height = is_whole ? c->image.height : 0,
                                                   .width = is_whole ? c->image.width : 0,
                                                   .window = {conv.size, conv.size, conv.stride, conv.size / 2},
                                                   .n_groups = 1,
                                                   .deviation = (float)sqrt(
                                                       2.0 / ((double)conv.size * conv.size * conv.columns))};

    return program_conv2d(p, x, stem, conv.domain, conv.columns, &options);
}

/* ---- values and their statistics ---- */

static const char *image_name_of(char out[PROGRAM_NAME_BYTES], const char *what, const char *name)
{
    snprintf(out, PROGRAM_NAME_BYTES, "%s of %s", what, *name ? name : "the stream");
    return out;
}

void image_output(struct program *p, const char *name, int y)
{
    char of[PROGRAM_NAME_BYTES];
    const int moments = program_row_moments(p, y);

    program_output(p, name, y);
    program_output(p, image_name_of(of, "moments", name), moments);
}

void image_join(struct program *p, const struct model_config *c, const struct image_value *values, uint32_t n)
{
    char of[PROGRAM_NAME_BYTES];
    int moments[IMAGE_JOINED];

    assert(n <= IMAGE_JOINED);
    program_init(p);
    for (uint32_t i = 0; i < n; i++)
        moments[i] = program_input(p, image_name_of(of, "moments", values[i].name), PROGRAM_ROW, 2 * values[i].columns);
    for (uint32_t i = 0; i < n; i++)
        program_output(p, image_name_of(of, "statistics", values[i].name),
                       program_join_moments(p, moments[i], values[i].domain, c->norm_epsilon));
}

struct image_input image_input(struct program *p, const char *name, uint32_t domain, uint32_t columns)
{
    char of[PROGRAM_NAME_BYTES];
    const int x = program_input(p, name, domain, columns);

    return (struct image_input){x, program_input(p, image_name_of(of, "statistics", name), PROGRAM_PART,
                                                 PROGRAM_STATISTICS * columns)};
}

struct image_input image_ghosts(struct program *p, const struct model_config *c, int x)
{
    const int moments = program_row_moments(p, x);

    return (struct image_input){x, program_join_ghosts(p, moments, p->values[x].domain, c->image.ghost_batch,
                                                       c->norm_epsilon)};
}

int image_norm(struct program *p, const struct model_config *c, struct image_input in, const char *stem)
{
    return program_running_batch_norm(p, in.x, in.statistics, stem, c->norm_epsilon);
}

int image_relu(struct program *p, const struct model_config *c, struct image_input in, const char *stem)
{
    return program_activation(p, image_norm(p, c, in, stem), MODEL_RELU);
}

void image_end(struct program *p, const struct model_config *c, int x, uint32_t one)
{
    program_output(p, "", program_average_image(p, x, one));
    program_logit_bias(p, "fc.bias", c->n_labels);
}
