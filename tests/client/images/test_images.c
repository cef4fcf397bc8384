/* Images from files of every kind, and what is refused of each. */
#include "tests/kit/command.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include "client/images/images.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

enum { CIFAR = 3073, CIFAR_HUNDRED = 3074, MOST_CLASSES = 200 };

SUITE_FIXTURE(processes_setup, processes_remove)

/* The classes of a reading, numbered as they come. */
struct classes {
    char names[MOST_CLASSES][40];
    uint32_t n;
};

static int find_class(uint32_t *label, void *user, const char *name, struct error *err)
{
    struct classes *c = user;

    for (*label = 0; *label < c->n; ++*label)
        if (strcmp(c->names[*label], name) == 0)
            return 0;
    if (strcmp(name, "none") == 0)
        return error_set(err, -EINVAL, "its label 'none' is no class");
    snprintf(c->names[c->n++], sizeof c->names[0], "%s", name);
    return 0;
}

struct opened {
    struct client_data data;
    struct client_images images;
    struct classes classes;
    struct client_images_room room;
};

/* Opens and reads; what either returned. Undo: shut, in any case. */
static int read_on(struct opened *o, const char *name, unsigned n_threads, struct error *err)
{
    const struct client_images_rules rules = {.classes = {find_class, &o->classes}, .n_threads = n_threads};

    *o = (struct opened){.images = {.n = 0}};
    const int rc = client_data_open_images(&o->data, &name, 1, err);
    return rc ? rc : client_images_read(&o->images, &o->data, &rules, err);
}

static int read_images(struct opened *o, const char *name, struct error *err)
{
    return read_on(o, name, 2, err);
}

static void shut(struct opened *o)
{
    client_images_free_room(&o->room);
    client_images_free(&o->images);
    client_data_free(&o->data);
}

static void refuse(const char *name, int wanted, const char *says)
{
    struct error err = {""};
    struct opened o;

    const int rc = read_images(&o, name, &err);
    ck_assert_msg(rc == wanted, "%s: %d, %s", name, rc, err.text);
    ck_assert_holds(err.text, says);
    shut(&o);
}

/* n records with these labels; byte i of the pixels of record r is r * 31 + i. */
static void put_cifar(const char *name, size_t n, size_t record, const uint8_t *labels)
{
    uint8_t *bytes = malloc(n * record + 1);
    const size_t skip = record - 3072;

    for (size_t r = 0; r < n; r++) {
        memcpy(bytes + r * record, labels + r * skip, skip);
        for (size_t i = 0; i < 3072; i++)
            bytes[r * record + skip + i] = (uint8_t)(r * 31 + i);
    }
    processes_write(name, bytes, n * record);
    free(bytes);
}

/* By hand: pixel (y, x) of channel c is byte c * 1024 + 32 y + x. */
static void check_cifar(struct opened *o, size_t k, unsigned record)
{
    ck_assert_int_eq(client_images_get(&o->room, &o->images, k, NULL), 0);
    ck_assert(o->room.image.height == 32 && o->room.image.width == 32 && o->room.image.channels == 3);
    for (unsigned y = 0; y < 32; y++)
        for (unsigned x = 0; x < 32; x++)
            for (unsigned c = 0; c < 3; c++)
                ck_assert_uint_eq(o->room.image.pixels[(y * 32 + x) * 3 + c],
                                  (uint8_t)(record * 31 + c * 1024 + y * 32 + x));
}

TEST(cifar_10_s_records_are_planes_behind_a_label_and_names_are_beside_them)
{
    struct error err = {""};
    struct opened o;

    mkdir(processes_path("c"), 0700);
    put_cifar("c/data_batch_1.bin", 2, CIFAR, (const uint8_t[]){3, 9});
    put_cifar("c/data_batch_2.bin", 1, CIFAR, (const uint8_t[]){3});
    put_cifar("c/test_batch.bin", 4, CIFAR, (const uint8_t[]){0, 1, 2, 3});
    processes_put_text("c/batches.meta.txt",
                       "airplane\nautomobile\nbird\ncat\ndeer\ndog\nfrog\nhorse\nship\ntruck \r\n\n");
    ck_assert_msg(read_images(&o, processes_path("c"), &err) == 0, "%s", err.text);
    ck_assert_uint_eq(o.images.n, 3); /* not those of test_batch */
    ck_assert_uint_eq(o.classes.n, 10);
    ck_assert_str_eq(o.classes.names[o.images.list[0].label], "cat");
    ck_assert_str_eq(o.classes.names[o.images.list[1].label], "truck");
    ck_assert_uint_eq(o.images.list[2].label, o.images.list[0].label);
    check_cifar(&o, 0, 0), check_cifar(&o, 1, 1), check_cifar(&o, 2, 0);
    ck_assert(o.images.channels == 3 && !o.images.encoded && o.images.sizes.height == 32);
    shut(&o);
}

TEST(cifar_100_s_images_have_the_fine_label)
{
    struct error err = {""};
    struct opened o;

    put_cifar("train.bin", 3, CIFAR_HUNDRED, (const uint8_t[]){19, 99, 0, 0, 5, 50});
    ck_assert_msg(read_images(&o, processes_path("train.bin"), &err) == 0, "%s", err.text);
    ck_assert(o.images.n == 3 && o.classes.n == 100);
    ck_assert_str_eq(o.classes.names[o.images.list[0].label], "99");
    ck_assert_str_eq(o.classes.names[o.images.list[2].label], "50");
    check_cifar(&o, 2, 2);
    shut(&o);
}

TEST(what_is_not_cifar_is_refused)
{
    put_cifar("a.bin", 2, CIFAR, (const uint8_t[]){3, 10});
    refuse(processes_path("a.bin"), -EINVAL, "record 1 has the label 10, and CIFAR-10 has 10");
    put_cifar("b.bin", 1, CIFAR_HUNDRED, (const uint8_t[]){20, 3});
    refuse(processes_path("b.bin"), -EINVAL, "record 0 has the label 20, and CIFAR-100 has 20 coarse");
    put_cifar("d.bin", 1, CIFAR, (const uint8_t[]){3});
    ck_assert_int_eq(truncate(processes_path("d.bin"), CIFAR - 1), 0);
    refuse(processes_path("d.bin"), -EINVAL, "3072 bytes are not a whole number of records");
    processes_put_text("e.bin", "");
    refuse(processes_path("e.bin"), -EINVAL, "it is empty");
    put_cifar("f.bin", 1, CIFAR, (const uint8_t[]){3});
    processes_put_text("batches.meta.txt", "cat\ndog\n");
    refuse(processes_path("f.bin"), -EINVAL, "batches.meta.txt: it has fewer than 10 names");
}

static void put_gzip(const char *name, const void *bytes, size_t n)
{
    gzFile file = gzopen(processes_path(name), "wb");

    ck_assert_int_eq(gzwrite(file, bytes, (unsigned)n), (int)n);
    ck_assert_int_eq(gzclose(file), Z_OK);
}

/* Two images of 3x2, 0 to 11; labels 4 and 1. As the file formats on the page of MNIST are given. */
static const uint8_t idx_images[] = {0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 3, 0,  0,
                                     0, 2, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11},
                     idx_labels[] = {0, 0, 8, 1, 0, 0, 0, 2, 4, 1};

static void check_idx(struct opened *o)
{
    ck_assert(o->images.n == 2 && o->images.channels == 1 && o->classes.n == 5);
    ck_assert_str_eq(o->classes.names[o->images.list[0].label], "4");
    ck_assert_str_eq(o->classes.names[o->images.list[1].label], "1");
    ck_assert_int_eq(client_images_get(&o->room, &o->images, 1, NULL), 0);
    ck_assert(o->room.image.height == 3 && o->room.image.width == 2 && o->room.image.channels == 1);
    ck_assert_mem_eq(o->room.image.pixels, idx_images + 22, 6);
}

/* As they are published, compressed or not, the one or both; a directory gives the training files alone. */
TEST(idx_images_find_their_labels_beside_them)
{
    uint64_t hash;
    struct error err = {""};
    struct opened o;

    mkdir(processes_path("m"), 0700);
    put_gzip("m/train-images-idx3-ubyte.gz", idx_images, sizeof idx_images);
    put_gzip("m/train-labels-idx1-ubyte.gz", idx_labels, sizeof idx_labels);
    processes_write("m/t10k-images-idx3-ubyte", idx_images, sizeof idx_images - 1); /* would be refused */
    ck_assert_msg(read_images(&o, processes_path("m"), &err) == 0, "%s", err.text);
    check_idx(&o);
    hash = o.images.hash;
    shut(&o);
    processes_write("m/images.idx3", idx_images, sizeof idx_images);
    put_gzip("m/labels.idx1.gz", idx_labels, sizeof idx_labels);
    ck_assert_msg(read_images(&o, processes_path("m/images.idx3"), &err) == 0, "%s", err.text);
    check_idx(&o);
    ck_assert(o.images.hash == hash); /* what is in the files counts, not how it is stored */
    shut(&o);
}

TEST(what_is_not_idx_is_refused)
{
    uint8_t bytes[sizeof idx_images];
    static const struct {
        size_t at;
        uint8_t value;
        const char *says;
    } faults[] = {{0, 1, "none of CIFAR's .bin, IDX and .npy"},
                  {2, 0x0D, "elements of type 0x0D"},
                  {3, 4, "4 dimensions, and images are three"},
                  {3, 1, "it has labels, which are found beside their images"},
                  {7, 3, "promises 3 images of 3x2, but it has the bytes of 2: it is truncated"},
                  {7, 1, "promises 1 images of 3x2, but it has the bytes of 2: it is damaged"},
                  {8, 0xFF, "too large"},
                  {11, 0, "no pixels"}};

    processes_write("labels", idx_labels, sizeof idx_labels);
    for (int i = 0; i < COUNT(faults); i++) {
        memcpy(bytes, idx_images, sizeof bytes);
        bytes[faults[i].at] = faults[i].value;
        processes_write("images", bytes, sizeof bytes);
        refuse(processes_path("images"), -EINVAL, faults[i].says);
    }
    processes_write("images", idx_images, 9);
    refuse(processes_path("images"), -EINVAL, "header is truncated");
    processes_write("images", idx_images, sizeof idx_images);
    processes_write("labels", idx_labels, sizeof idx_labels - 1);
    refuse(processes_path("images"), -EINVAL, "promises 2 labels, but it has the bytes of 1: it is truncated");
    processes_write("labels", (const uint8_t[]){0, 0, 8, 1, 0, 0, 0, 1, 4}, 9);
    refuse(processes_path("images"), -EINVAL, "it has 1 labels, and there are 2 images");
    processes_write("labels", idx_images, sizeof idx_images);
    refuse(processes_path("images"), -EINVAL, "labels are one");
    ck_assert_int_eq(unlink(processes_path("labels")), 0);
    refuse(processes_path("images"), -ENOENT, "it should have the labels of");
    processes_write("pictures", idx_images, sizeof idx_images);
    refuse(processes_path("pictures"), -EINVAL, "a file of images has 'images' in its name");
    processes_write("images.gz", idx_images, sizeof idx_images);
    refuse(processes_path("images.gz"), -EINVAL, "not compressed, though its name says so");
}

/* numpy.save of array (n bytes), by hand. */
static void put_npy(const char *name, const char *dictionary, const void *array, size_t n)
{
    char bytes[600];

    memcpy(bytes, "\x93NUMPY\x01\x00\x76\x00", 10);
    snprintf(bytes + 10, 119, "%-117s\n", dictionary);
    memcpy(bytes + 128, array, n);
    processes_write(name, bytes, 128 + n);
}

static const uint8_t npy_pixels[24] = {1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12,
                                       13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24};
static const char npy_labels[] = "{'descr': '<i8', 'fortran_order': False, 'shape': (2,), }";

TEST(arrays_are_images_with_channels_or_without)
{
    struct opened o;
    struct error err = {""};

    put_npy("train_labels.npy", npy_labels, (const int64_t[]){1, 0}, 16);
    put_npy("train_images.npy", "{'descr': '|u1', 'fortran_order': False, 'shape': (2, 2, 2, 3), }", npy_pixels, 24);
    ck_assert_msg(read_images(&o, processes_path("train_images.npy"), &err) == 0, "%s", err.text);
    ck_assert(o.images.n == 2 && o.images.channels == 3 && o.classes.n == 2);
    ck_assert_str_eq(o.classes.names[o.images.list[0].label], "1");
    ck_assert_int_eq(client_images_get(&o.room, &o.images, 1, NULL), 0);
    ck_assert_mem_eq(o.room.image.pixels, npy_pixels + 12, 12);
    shut(&o);
    put_npy("train_images.npy", "{'descr': '|u1', 'fortran_order': False, 'shape': (2, 3, 4), }", npy_pixels, 24);
    ck_assert_msg(read_images(&o, processes_path("train_images.npy"), &err) == 0, "%s", err.text);
    ck_assert_int_eq(client_images_get(&o.room, &o.images, 1, NULL), 0);
    ck_assert(o.room.image.height == 3 && o.room.image.width == 4 && o.room.image.channels == 1);
    ck_assert_mem_eq(o.room.image.pixels, npy_pixels + 12, 12);
    shut(&o);
}

TEST(other_arrays_are_refused)
{
    static const struct {
        const char *type, *order, *shape, *says;
    } arrays[] = {{"<u2", "False", "(2, 2, 3)", "not uint8"},
                  {"<f4", "False", "(2, 3, 1)", "type"},
                  {"|u1", "False", "(2, 12)", "it has 2"},
                  {"|u1", "False", "(2, 2, 3, 2)", "the last is neither"},
                  {"|u1", "True", "(2, 3, 4)", "Fortran"},
                  {"|u1", "False", "(3, 3, 4)", "it is truncated"},
                  {"|u1", "False", "(18446744073709551615, 3, 4)", "it is truncated"},
                  {"|u1", "False", "(2, 4294967296, 4294967296)", "too large"}};

    put_npy("labels.npy", npy_labels, (const int64_t[]){1, 0}, 16);
    for (int i = 0; i < COUNT(arrays); i++) {
        char dictionary[118];
        snprintf(dictionary, sizeof dictionary, "{'descr': '%s', 'fortran_order': %s, 'shape': %s, }", arrays[i].type,
                 arrays[i].order, arrays[i].shape);
        put_npy("images.npy", dictionary, npy_pixels, 24);
        refuse(processes_path("images.npy"), -EINVAL, arrays[i].says);
    }
    put_npy("images.npy", "{'descr': '|u1', 'fortran_order': False, 'shape': (2, 3, 4), }", npy_pixels, 24);
    put_npy("labels.npy", npy_labels, (const int64_t[]){1, -1}, 16);
    refuse(processes_path("images.npy"), -EINVAL, "label 1 is -1");
    put_npy("labels.npy", npy_labels, (const int64_t[]){65536, 0}, 16);
    refuse(processes_path("images.npy"), -EINVAL, "label 0 is 65536");
}

/* ---- Folders ---- */

static void copy(const char *fixture, const char *name)
{
    char path[300];
    uint8_t bytes[4096];

    snprintf(path, sizeof path, TESTS_DIR "/fixtures/images/%s", fixture);
    FILE *file = fopen(path, "rb");
    ck_assert_ptr_nonnull(file);
    const size_t n = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    processes_write(name, bytes, n);
}

static void make(const char *name)
{
    ck_assert_int_eq(mkdir(processes_path(name), 0700), 0);
}

static void make_folders(void)
{
    make("f"), make("f/dog"), make("f/cat"), make("f/cat/more"), make("f/.git");
    copy("colour.png", "f/dog/a.JPEG"); /* bytes decide */
    copy("halved.jpg", "f/cat/b.jpg");
    copy("grey.png", "f/cat/more/a.png");
    processes_put_text("f/cat/notes.txt", "no image");
    processes_put_text("f/list.txt", "no class");
}

/* In the order of their bytes, whatever the threads. */
TEST(a_folder_is_a_class)
{
    static const char *const names[] = {"cat/b.jpg", "cat/more/a.png", "dog/a.JPEG"};
    struct error err = {""};
    uint64_t hashes[2];
    struct opened o;

    make_folders();
    for (unsigned threads = 1; threads <= 2; threads++) {
        ck_assert_msg(read_on(&o, processes_path("f"), threads, &err) == 0, "%s", err.text);
        ck_assert(o.images.n == 3 && o.images.channels == 3 && o.images.encoded && o.classes.n == 2);
        for (int i = 0; i < 3; i++) {
            ck_assert_str_eq(o.images.names + o.images.list[i].at, names[i]);
            ck_assert_str_eq(o.classes.names[o.images.list[i].label], i < 2 ? "cat" : "dog");
        }
        ck_assert_int_eq(client_images_get(&o.room, &o.images, 1, NULL), 0);
        ck_assert(o.room.image.height == 13 && o.room.image.width == 18 && o.room.image.channels == 1);
        hashes[threads - 1] = o.images.hash;
        shut(&o);
    }
    ck_assert(hashes[0] == hashes[1]);
    copy("progressive.jpg", "f/cat/b.jpg");
    ck_assert_int_eq(read_images(&o, processes_path("f"), NULL), 0);
    ck_assert(o.images.hash != hashes[0]);
    shut(&o);
}

TEST(folders_without_images_or_with_broken_ones_are_refused)
{
    make_folders();
    make("f/emu");
    processes_put_text("f/emu/readme.md", "later");
    refuse(processes_path("f"), -EINVAL, "f/emu: no file in this folder of a class ends in");
    copy("colour.png", "f/emu/a.png");
    ck_assert_int_eq(truncate(processes_path("f/emu/a.png"), 300), 0);
    refuse(processes_path("f"), -EINVAL, "emu/a.png: its PNG ends too early");
    processes_put_text("f/cat/more/a.png", ""); /* the first is named, whichever thread meets one first */
    refuse(processes_path("f"), -EINVAL, "cat/more/a.png: it is empty");
    copy("grey.png", "f/cat/more/a.png");
    ck_assert_int_eq(unlink(processes_path("f/emu/a.png")), 0);
    ck_assert_int_eq(symlink(processes_path("f/emu"), processes_path("f/emu/again")), 0);
    refuse(processes_path("f"), -EINVAL, "more than 8 deep");
    ck_assert_int_eq(unlink(processes_path("f/emu/again")), 0);
    ck_assert_int_eq(rename(processes_path("f/emu"), processes_path("f/none")), 0);
    refuse(processes_path("f"), -EINVAL, "its label 'none' is no class");
}

static int ask_nine_times(void *data, struct error *err)
{
    return ++*(unsigned *)data < 9 ? 0 : error_set(err, -EINTR, "enough");
}

/* Links make ever more folders of a few: here 3 and 9. */
TEST(the_watch_ends_the_reading_of_folders_within_a_class)
{
    struct opened o = {.images = {.n = 0}};
    unsigned n_asked = 0;
    const struct client_watch watch = {.ask = ask_nine_times, .data = &n_asked};
    const struct client_images_rules rules = {.classes = {find_class, &o.classes}, .n_threads = 1, .watch = &watch};
    struct error err = {""};

    make("w"), make("w/cat"), make("w/cat/one"), make("w/cat/one/two");
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(symlink("one", processes_path(print("w/cat/link-%d", i))), 0);
        ck_assert_int_eq(symlink("two", processes_path(print("w/cat/one/link-%d", i))), 0);
    }
    const char *const path = processes_path("w");
    ck_assert_int_eq(client_data_open_images(&o.data, &path, 1, &err), 0);
    ck_assert_int_eq(client_images_read(&o.images, &o.data, &rules, &err), -EINTR);
    ck_assert_str_eq(err.text, "enough");
    shut(&o);
}

TEST(names_that_are_no_images_are_refused)
{
    make("empty"), make("parts"), make("parts/train"), make("parts/val");
    refuse(processes_path("empty"), -ENOENT, "no training images in it");
    refuse(processes_path("parts"), -EINVAL, "are parts of a data set, not classes");
    refuse("-", -EINVAL, "images are files");
    copy("colour.png", "one.png");
    refuse(processes_path("one.png"), -EINVAL, "but a single image: name a directory");
    processes_put_text("rows.tsv", "text\tlabel\n");
    refuse(processes_path("rows.tsv"), -EINVAL, "none of CIFAR's .bin, IDX and .npy");
    put_cifar("a.bin", 1, CIFAR, (const uint8_t[]){3});
    refuse(print("%s=2", processes_path("a.bin")), -EINVAL, "weights are for conversations");
    refuse(processes_path("missing"), -ENOENT, "No such file");
}
