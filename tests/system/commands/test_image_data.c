/* eps data --images: facts of images, and options that do not go with them. */
#include "tests/kit/command.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <jansson.h>
#include <math.h>
#include <string.h>

SUITE_FIXTURE(processes_setup, processes_remove)

/* 40 grey images of 4x2: those of an even number are all 0, the others all 200, and their class is 1. */
static void put_images(const char *images, const char *labels, uint8_t n)
{
    uint8_t bytes[16 + 40 * 8] = {0, 0, 8, 3, 0, 0, 0, n, 0, 0, 0, 4, 0, 0, 0, 2},
                            classes[8 + 40] = {0, 0, 8, 1, 0, 0, 0, n};

    for (int k = 0; k < n; k++) {
        classes[8 + k] = (uint8_t)(k % 2);
        memset(bytes + 16 + 8 * k, k % 2 ? 200 : 0, 8);
    }
    processes_write(images, bytes, 16 + 8 * (size_t)n);
    processes_write(labels, classes, 8 + (size_t)n);
}

/* By hand: with other held-out data 20 of each class are trained on, so the mean is 100 / 255, and the deviation,
 * too. */
TEST(images_are_described_with_their_classes)
{
    put_images("train-images", "train-labels", 40);
    put_images("t10k-images", "t10k-labels", 2);
    expect("eps data --images train-images --eval-data t10k-images", 0,
           "images       40, 2 held out\nsize         4x2, grey\nmean         0.3922\ndeviation    0.3922\n"
           "classes      2\n        20       1 held out  0\n        20       1 held out  1\n");
    expect("eps data --images . --image 2x2 --seed 3", 0, "images       36, 4 held out\n",
           "size         2x2, grey; the images' own from 4x2 to 4x2\n");
    json_t *said = expect_json("eps data --images train-images --eval-data t10k-images --json", 0),
           *counts = json_object_get(said, "counts"), *classes = json_object_get(counts, "classes");
    ck_assert_str_eq(json_string_value(json_object_get(counts, "kind")), "images");
    ck_assert_int_eq(json_integer_value(json_object_get(counts, "rows")), 40);
    ck_assert_int_eq(json_integer_value(json_object_get(counts, "channels")), 1);
    ck_assert_double_eq_tol(json_real_value(json_array_get(json_object_get(counts, "mean"), 0)), 100.0 / 255, 1e-15);
    ck_assert_double_eq_tol(json_real_value(json_array_get(json_object_get(counts, "deviation"), 0)), 100.0 / 255,
                            1e-15); /* one root, one division */
    ck_assert_uint_eq(json_array_size(classes), 2);
    ck_assert_str_eq(json_string_value(json_object_get(json_array_get(classes, 1), "name")), "1");
    json_decref(said);
}

/* Images of other kinds, files within a class that are none, and files beside the classes. */
TEST(files_that_are_no_images_read_here_are_counted)
{
    static const char note[] =
        "6 files in directories of --data passed over: not named .png, .jpg or .jpeg (2 .webp, 1 .GIF, "
        "1 without a suffix, 1 .bmp, 1 .txt)";

    expect("mkdir -p set/a/inner set/b && for i in 1 2 3 4; do cp " TESTS_DIR
           "/fixtures/images/grey.png set/a/$i.png; cp "
           "set/a/$i.png set/b/$i.png; done && touch set/a/5.webp set/a/inner/6.webp set/b/Q.GIF set/b/plain set/c.bmp "
           "set/notes.txt set/a/.hidden",
           0);
    expect("eps data --images set --image 8x8 2>&1", 0, print("eps data: %s", note));
    json_t *said = expect_json("eps data --images set --image 8x8 --json", 0);
    ck_assert_str_eq(json_string_value(json_at(said, "notes.0")), note);
    json_decref(said);
    processes_put_text("net.json", "{\"model_type\": \"wide_resnet\", \"depth\": 10, \"widen_factor\": 1, "
                                   "\"image_size\": 8}");
    expect(
        "eps train --model net.json --data set --eval-data set --image 8x8 --batch 4 --steps 1 --device cpu --out run",
        0, print("note         %s", note));
    expect("mkdir raw", 0);
    put_images("raw/train-images", "raw/train-labels", 40);
    put_images("raw/t10k-images", "raw/t10k-labels", 2);
    expect("touch raw/read.me && eps data --images raw 2>&1", 0,
           "2 files in directories of --data passed over: not named images, nor CIFAR's .bin (");
}

static const struct {
    const char *command;
    int status;
    const char *says;
} refused[] = {
    {"eps data --images train-images --model m", 2, "--model is for text"},
    {"eps data --images train-images --pack", 2, "--pack is for text"},
    {"eps data --images train-images --image 4", 2, "--image 4: expected HEIGHTxWIDTH"},
    {"eps data train-images --model m --image 4x4", 2, "--image goes with --images"},
    {"eps data train-images", 2, "images need --images"},
    {"eps data --images", 2, "at least one file"},
    {"eps data --images train-images --eval-data absent", 1, "--eval-data: absent: No such file"},
};

TEST_EACH(what_does_not_go_with_images_is_refused, COUNT(refused))
{
    put_images("train-images", "train-labels", 40);
    expect(refused[_i].command, refused[_i].status, refused[_i].says);
}

/* No model sees images: a text model's run names the option. */
TEST(a_model_of_text_refuses_options_of_images)
{
    processes_config("m.json", 1, 1, 8, 32);
    processes_put_text("t.txt", "some text, long enough for a row or two of it, and more of it");
    expect("eps train --model m.json --data t.txt --image 4x4 --out r", 2, "--image is for images");
    expect("eps train --model m.json --data t.txt --augment flip --out r", 2, "--augment is for images");
}
