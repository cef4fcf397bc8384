/* Rows of images: what they see is computed in float64 and by Pillow (tests/oracle/make_images.py). */
#include "tests/kit/command.h"
#include "tests/kit/test.h"

#include "client/images/sums.h"
#include "client/images/view.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint32_t number(const json_t *object, const char *key)
{
    return (uint32_t)json_integer_value(json_object_get(object, key));
}

static void make_image(struct client_image *image, uint32_t height, uint32_t width, uint32_t channels)
{
    ck_assert_int_eq(client_image_set(image, height, width, channels, NULL), 0);
    ck_assert_int_eq(client_image_make_room(image, NULL), 0);
    for (size_t i = 0; i < client_image_bytes(image); i++)
        image->pixels[i] = (uint8_t)((uint32_t)(i * 2654435761u) >> 24);
}

/* Byte i of `seen`, two hexadecimal digits each. */
static uint32_t byte_of(const char *seen, size_t i)
{
    unsigned byte;

    ck_assert_int_eq(sscanf(seen + 2 * i, "%2x", &byte), 1);
    return byte;
}

/* The case's row; one room serves all, of any size. */
static void check_case(const json_t *object, struct client_image *image, struct client_view_room *room)
{
    const char *seen = json_string_value(json_object_get(object, "seen")),
               *text = json_string_value(json_object_get(object, "augment"));
    const uint64_t seed = (uint64_t)json_integer_value(json_object_get(object, "seed")),
                   draw = (uint64_t)json_integer_value(json_object_get(object, "draw"));
    const struct random_key key = random_site_key(seed, 0, 0, RANDOM_VIEW);
    struct client_augment augment;
    struct client_frame frame;
    struct error err = {""};

    make_image(image, number(object, "height"), number(object, "width"), number(object, "channels"));
    ck_assert_int_eq(client_frame_parse(&frame, json_string_value(json_object_get(object, "image")), &err), 0);
    ck_assert_msg(client_augment_parse(&augment, text, &err) == 0, "%s", err.text);
    ck_assert_int_eq(client_augment_check(&augment, &frame, &err), 0);
    const size_t n = (size_t)frame.height * frame.width, c = image->channels;
    uint32_t *row = malloc(n * sizeof *row);
    const struct client_view view = text ? client_view_draw(&augment, &frame, image->height, image->width, key, draw)
                                         : client_view_centre(&frame, image->height, image->width);
    ck_assert_int_eq(client_view_write(row, &view, &frame, image, image->channels, room, &err), 0);
    ck_assert_uint_eq(strlen(seen), 2 * n * c);
    for (size_t i = 0; i < n; i++) {
        const uint32_t wanted =
            byte_of(seen, i * c) | (c == 3 ? byte_of(seen, 3 * i + 1) << 8 | byte_of(seen, 3 * i + 2) << 16 : 0);
        ck_assert_msg(row[i] == wanted, "%ux%u %s, draw %ju, pixel %zu: %06x, not %06x", image->height, image->width,
                      text ? text : "evaluation", (uintmax_t)draw, i, row[i], wanted);
    }
    free(row);
}

TEST(rows_see_what_float64_and_pillow_do)
{
    json_t *cases = json_load_file(TESTS_DIR "/fixtures/images/rows.json", 0, NULL), *each;
    struct client_view_room room = {0};
    struct client_image image = {0};
    size_t i;

    ck_assert_uint_eq(json_array_size(cases), 58);
    json_array_foreach(cases, i, each) check_case(each, &image, &room);
    client_view_free_room(&room);
    client_image_free(&image);
    json_decref(cases);
}

/* By hand: 5 is 0x050505 where others are in colour, 5 where all are grey. */
TEST(a_grey_image_among_colours_has_its_value_thrice)
{
    const struct client_frame frame = {.height = 1, .width = 1};
    struct client_image image = {0};
    struct client_view_room room = {0};
    uint32_t row;

    make_image(&image, 1, 1, 1);
    image.pixels[0] = 5;
    const struct client_view view = client_view_centre(&frame, 1, 1);
    ck_assert_int_eq(client_view_write(&row, &view, &frame, &image, 3, &room, NULL), 0);
    ck_assert_uint_eq(row, 0x050505);
    ck_assert_int_eq(client_view_write(&row, &view, &frame, &image, 1, &room, NULL), 0);
    ck_assert_uint_eq(row, 5);
    client_view_free_room(&room);
    client_image_free(&image);
}

/* Offsets 0 to 8 of a border of 4, and two flips: 9,000 draws of each axis, 1,000 of an offset expected. Five
 * deviations of a binomial of 1/9 are 149, of 1/2 are 237. */
TEST(offsets_and_flips_are_uniform)
{
    const struct client_augment augment = {.crop = 4, .crops = true, .flips = true};
    const struct client_frame frame = {.height = 32, .width = 32};
    const struct random_key key = random_site_key(3, 0, 0, RANDOM_VIEW);
    int tops[9] = {0}, lefts[9] = {0}, n_flips = 0;

    for (uint64_t draw = 0; draw < 9000; draw++) {
        const struct client_view v = client_view_draw(&augment, &frame, 32, 32, key, draw);
        ck_assert(v.top >= -4 && v.top <= 4 && v.left >= -4 && v.left <= 4);
        tops[v.top + 4]++, lefts[v.left + 4]++;
        n_flips += v.flips;
    }
    for (int i = 0; i < 9; i++)
        ck_assert(abs(tops[i] - 1000) < 149 && abs(lefts[i] - 1000) < 149);
    ck_assert_int_lt(abs(n_flips - 4500), 237);
}

/* A window has its share of the image and its proportions but for whole pixels, and lies within it. */
TEST(resized_crops_have_their_shares_and_proportions)
{
    const struct client_augment augment = {.resized = 0.25};
    const struct client_frame frame = {.height = 224, .width = 224};
    const struct random_key key = random_site_key(3, 0, 0, RANDOM_VIEW);
    double least = 1, most = 0;

    for (uint64_t draw = 0; draw < 5000; draw++) {
        const struct client_view v = client_view_draw(&augment, &frame, 1000, 1200, key, draw);
        const double share = (double)v.height * v.width / 1.2e6, proportions = (double)v.width / v.height;
        ck_assert(v.y + v.height <= 1000 && v.x + v.width <= 1200);
        ck_assert(share > 0.249 && share <= 1 && proportions > 0.748 && proportions < 1.336);
        ck_assert(v.scaled_height == 224 && v.scaled_width == 224 && v.top == 0 && v.left == 0);
        least = share < least ? share : least, most = share > most ? share : most;
    }
    ck_assert(least < 0.26 && most > 0.9);
}

TEST(options_are_refused_with_what_is_expected)
{
    static const char *const images[] = {"",
                                         "32",
                                         "32x",
                                         "x32",
                                         "0x32",
                                         "32x0",
                                         "4097x32",
                                         "32x32,",
                                         "32x32,shorter=",
                                         "32x32,shorter=31",
                                         "32x32,larger=40",
                                         "32x32x3",
                                         " 32x32"};
    static const char *const augments[] = {"",
                                           "crop",
                                           "crop=",
                                           "crop=x",
                                           "crop=4,crop=4",
                                           "crop=4,",
                                           ",crop=4",
                                           "flip,flip",
                                           "reflect",
                                           "flip,reflect",
                                           "resized-crop=0",
                                           "resized-crop=1.5",
                                           "resized-crop=",
                                           "resized-crops",
                                           "crop=4,resized-crop",
                                           "Flip",
                                           "crop=99999"};
    struct client_augment augment;
    struct client_frame frame;

    for (int i = 0; i < COUNT(images); i++) {
        struct error err = {""};
        ck_assert_msg(client_frame_parse(&frame, images[i], &err) == -EDOM, "%s", images[i]);
        ck_assert_holds(err.text, "--image");
    }
    for (int i = 0; i < COUNT(augments); i++) {
        struct error err = {""};
        ck_assert_msg(client_augment_parse(&augment, augments[i], &err) == -EDOM, "%s", augments[i]);
        ck_assert_holds(err.text, "--augment");
    }
    ck_assert_int_eq(client_frame_parse(&frame, "32x48", NULL), 0);
    ck_assert_int_eq(client_augment_parse(&augment, "crop=32", NULL), 0);
    struct error err = {""};
    ck_assert_int_eq(client_augment_check(&augment, &frame, &err), -EDOM);
    ck_assert_holds(err.text, "crop=32", "32x48");
}

/* By hand: red 0, 51, 102 and 255 of four pixels; the mean of value / 255 is 0.4, that of the squares 0.3. */
TEST(means_and_deviations_are_those_of_the_pixels)
{
    const uint32_t row[] = {0x00FF00, 0x00FF33, 0x00FF66, 0x00FFFF};
    struct client_channel_sums sums = {0}, all = {0};

    client_channel_sums_add(&sums, row, 2);
    client_channel_sums_join(&all, &sums);
    client_channel_sums_add(&all, row + 2, 2);
    ck_assert(all.n == 4 && all.sums[0] == 408 && all.squares[0] == 0 + 2601 + 10404 + 65025);
    ck_assert_double_eq_tol(client_channel_mean(&all, 0), 0.4, 1e-15);                      /* one division */
    ck_assert_double_eq_tol(client_channel_deviation(&all, 0), sqrt(0.3 - 0.16), 1e-15);    /* and a root */
    ck_assert(client_channel_mean(&all, 1) == 1 && client_channel_deviation(&all, 1) == 0); /* exactly */
    ck_assert(client_channel_mean(&(struct client_channel_sums){0}, 0) == 0);
}
