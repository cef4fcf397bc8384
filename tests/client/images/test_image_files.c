/* PNG and JPEG: their pixels are Pillow's (tests/oracle/make_images.py), and what is none is refused. */
#include "tests/kit/command.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include "client/images/encoded.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FOLDER TESTS_DIR "/fixtures/images/"

static uint8_t *load(size_t *n, const char *name)
{
    char path[300];

    snprintf(path, sizeof path, FOLDER "%s", name);
    FILE *file = fopen(path, "rb");
    ck_assert_ptr_nonnull(file);
    uint8_t *bytes = malloc(1 << 16);
    *n = fread(bytes, 1, 1 << 16, file);
    fclose(file);
    return bytes;
}

static void check_pixels(const char *name, const struct client_image *image, const char *wanted)
{
    ck_assert_uint_eq(strlen(wanted), 2 * client_image_bytes(image));
    for (size_t i = 0; i < client_image_bytes(image); i++) {
        unsigned byte;
        ck_assert_int_eq(sscanf(wanted + 2 * i, "%2x", &byte), 1);
        ck_assert_msg(image->pixels[i] == byte, "%s: byte %zu is %u, not %u", name, i, image->pixels[i], byte);
    }
}

/* Fourteen files; an image serves one after the other, larger or smaller. */
TEST(images_of_every_form_have_the_pixels_that_pillow_sees)
{
    json_t *decoded = json_load_file(FOLDER "decoded.json", 0, NULL), *wanted;
    struct client_image image = {0};
    const char *name;

    ck_assert_uint_eq(json_object_size(decoded), 14);
    json_object_foreach(decoded, name, wanted)
    {
        struct error err = {""};
        size_t n;
        uint8_t *bytes = load(&n, name);
        ck_assert_msg(client_encoded_decode(&image, bytes, n, &err) == 0, "%s: %s", name, err.text);
        ck_assert_uint_eq(image.height, (unsigned)json_integer_value(json_object_get(wanted, "height")));
        ck_assert_uint_eq(image.width, (unsigned)json_integer_value(json_object_get(wanted, "width")));
        ck_assert_uint_eq(image.channels, (unsigned)json_integer_value(json_object_get(wanted, "channels")));
        check_pixels(name, &image, json_string_value(json_object_get(wanted, "pixels")));
        free(bytes);
    }
    client_image_free(&image);
    json_decref(decoded);
}

/* Each in a block of its own size, so that the sanitizers see a read past it. PNG's last chunk holds nothing, and
 * JPEG's last marker is made up where it lacks: an image is whole without them, but not without anything before. */
TEST(every_truncation_is_refused_with_a_sentence)
{
    static const char *const names[] = {"colour.png", "palette.png",     "interlaced.png", "deep.png",
                                        "halved.jpg", "progressive.jpg", "cmyk.jpg"};
    struct client_image image = {0};

    for (int i = 0; i < COUNT(names); i++) {
        size_t n;
        uint8_t *bytes = load(&n, names[i]);
        for (size_t cut = 0; cut < n - 2; cut++) {
            struct error err = {""};
            uint8_t *copy = malloc(cut + 1);
            memcpy(copy, bytes, cut);
            ck_assert_msg(client_encoded_decode(&image, copy, cut, &err) == -EINVAL, "%s, %zu bytes", names[i], cut);
            ck_assert_msg(*err.text, "%s, %zu bytes", names[i], cut);
            free(copy);
        }
        free(bytes);
    }
    client_image_free(&image);
}

/* Any byte may be any other: an image, or a sentence. */
TEST(every_changed_byte_is_survived)
{
    static const char *const names[] = {"palette.png", "interlaced.png", "progressive.jpg", "cmyk.jpg"};
    struct client_image image = {0};

    for (int i = 0; i < COUNT(names); i++) {
        size_t n;
        uint8_t *bytes = load(&n, names[i]);
        for (size_t at = 0; at < n; at++) {
            for (unsigned change = 1; change < 256; change *= 2) {
                struct error err = {""};
                bytes[at] ^= (uint8_t)change;
                const int rc = client_encoded_decode(&image, bytes, n, &err);
                ck_assert(rc == 0 || (rc == -EINVAL && *err.text));
                bytes[at] ^= (uint8_t)change;
            }
        }
        free(bytes);
    }
    client_image_free(&image);
}

static void put32(uint8_t *at, uint32_t value)
{
    for (int i = 0; i < 4; i++)
        at[i] = (uint8_t)(value >> (24 - 8 * i));
}

/* CRC-32 of PNG's own, bit by bit. */
static uint32_t crc(const uint8_t *bytes, size_t n)
{
    uint32_t c = UINT32_MAX;

    for (size_t i = 0; i < n; i++) {
        c ^= bytes[i];
        for (int k = 0; k < 8; k++)
            c = c & 1 ? c >> 1 ^ 0xEDB88320u : c >> 1;
    }
    return ~c;
}

/* A PNG of a few hundred bytes whose header promises much: more than an image may have, then more than its bytes can
 * hold. Neither takes memory first. */
TEST(a_png_that_promises_more_than_it_can_hold_is_refused_before_memory_is_taken)
{
    static const struct {
        uint32_t width, height;
        const char *says;
    } bombs[] = {{60000, 60000, "too large"},
                 {70000, 2, "too large"},
                 {8000, 8000, "more than its 489 bytes can hold"},
                 {0, 5, "cannot be decoded"}};
    struct client_image image = {0};

    for (int i = 0; i < COUNT(bombs); i++) {
        struct error err = {""};
        size_t n;
        uint8_t *bytes = load(&n, "colour.png");
        put32(bytes + 16, bombs[i].width), put32(bytes + 20, bombs[i].height);
        put32(bytes + 29, crc(bytes + 12, 17));
        ck_assert_int_eq(client_encoded_decode(&image, bytes, n, &err), -EINVAL);
        ck_assert_holds(err.text, bombs[i].says);
        ck_assert_uint_eq(image.cap, 0);
        free(bytes);
    }
}

/* Where the marker after byte `at` begins; 0xFF00 is a byte of data. */
static size_t next_marker(const uint8_t *bytes, size_t n, size_t at)
{
    while (at + 1 < n && (bytes[at] != 0xFF || bytes[at + 1] == 0))
        at++;
    return at;
}

/* No Huffman code is all ones: 0xFF, written with a 0 after it. */
TEST(a_damaged_scan_is_refused)
{
    static const char *const names[] = {"whole.jpg", "grey.jpg", "progressive.jpg"};
    struct client_image image = {0};

    for (int i = 0; i < COUNT(names); i++) {
        struct error err = {""};
        size_t n, at = 0;
        uint8_t *bytes = load(&n, names[i]);
        while (bytes[at] != 0xFF || bytes[at + 1] != 0xDA)
            at++;
        at += 2 + (size_t)bytes[at + 2] * 256 + bytes[at + 3]; /* past the scan's header */
        for (size_t k = 0; k < 8; k += 2)
            bytes[at + k] = 0xFF, bytes[at + k + 1] = 0;
        ck_assert_int_eq(client_encoded_decode(&image, bytes, n, &err), -EINVAL);
        ck_assert_holds(err.text, "its JPEG is damaged");
        free(bytes);
    }
    client_image_free(&image);
}

/* A progressive image whose first scan comes 201 times. */
TEST(a_jpeg_of_endless_scans_is_refused)
{
    struct client_image image = {0};
    struct error err = {""};
    size_t n, first = 0;
    uint8_t *bytes = load(&n, "progressive.jpg"), *many = malloc(300 * n);

    while (bytes[first] != 0xFF || bytes[first + 1] != 0xDA)
        first++;
    const size_t after = next_marker(bytes, n, first + 2), scan = after - first;
    memcpy(many, bytes, after);
    for (size_t i = 0; i < 200; i++)
        memcpy(many + after + i * scan, bytes + first, scan);
    memcpy(many + after + 200 * scan, bytes + after, n - after);
    ck_assert_int_eq(client_encoded_decode(&image, many, n + 200 * scan, &err), -EINVAL);
    ck_assert_holds(err.text, "more than 100 scans");
    free(bytes);
    free(many);
    client_image_free(&image);
}

TEST(other_files_are_named)
{
    static const struct {
        const char *bytes, *says;
    } files[] = {{"", "it is empty"},
                 {"GIF89a", "a GIF image"},
                 {"BM....", "a BMP image"},
                 {"RIFF....WEBP", "a WebP image"},
                 {"version https://git-lfs.github.com/spec/v1", "a pointer of Git LFS"},
                 {"hello", "neither PNG nor JPEG"}};
    struct client_image image = {0};

    for (int i = 0; i < COUNT(files); i++) {
        struct error err = {""};
        const size_t n = strlen(files[i].bytes);
        ck_assert_int_eq(client_encoded_decode(&image, (const uint8_t *)files[i].bytes, n, &err), -EINVAL);
        ck_assert_holds(err.text, files[i].says);
    }
}
