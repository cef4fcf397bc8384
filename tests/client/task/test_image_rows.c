/* Rows of a source of images: what they hold, what is drawn for them, and which are held out. */
#include "tests/kit/command.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include "client/options/options.h"
#include "client/task/image_rows.h"
#include "proto/plan/memory/data.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { RECORD = 3073, N = 300, N_HELD = 30, PIXELS = 1024, BATCH = 200 };

SUITE_FIXTURE(processes_setup, processes_remove)

/* Channel c of pixel i of record r. */
static uint8_t value(size_t r, size_t i, size_t c)
{
    return (uint8_t)((uint32_t)((r * 3072 + c * PIXELS + i) * 2654435761u) >> 24);
}

static uint32_t pixel(size_t r, size_t i)
{
    return value(r, i, 0) | (uint32_t)value(r, i, 1) << 8 | (uint32_t)value(r, i, 2) << 16;
}

/* n records of CIFAR-10, of class r % n_classes. */
static const char *put_cifar(const char *name, size_t n, unsigned n_classes)
{
    uint8_t *bytes = malloc(n * RECORD);

    for (size_t r = 0; r < n; r++) {
        bytes[r * RECORD] = (uint8_t)(r % n_classes);
        for (size_t i = 0; i < 3 * PIXELS; i++)
            bytes[r * RECORD + 1 + i] = value(r, i % PIXELS, i / PIXELS);
    }
    const char *path = processes_write(name, bytes, n * RECORD);
    free(bytes);
    return path;
}

struct opened {
    struct model_config config;
    struct client_data data, eval_data;
    struct client_source *source;
    struct client_buffer buffer;
    struct client_minibatch minibatch;
};

/* Opens and reads; eval_data may be NULL. *o must not move. */
static int try_open(struct opened *o, const char *data, const char *eval_data, const struct client_source_rules *rules,
                    struct error *err)
{
    struct client_labels labels;
    const struct client_source_setup setup = {.config = &o->config,
                                              .labels = &labels,
                                              .data = &o->data,
                                              .eval_data = &o->eval_data};

    *o = (struct opened){.config = {.n_labels = 10}};
    ck_assert_int_eq(client_labels_init(&labels, false, NULL), 0);
    ck_assert_int_eq(client_source_open(&o->source, &client_source_images, &setup, NULL), 0);
    int rc = client_source_images.open_files(&o->data, &data, 1, err);
    if (!rc && eval_data)
        rc = client_source_images.open_files(&o->eval_data, &eval_data, 1, err);
    return rc ? rc : client_source_read(o->source, rules, err);
}

static void divide(struct opened *o, uint32_t batch, uint64_t seed)
{
    const uint32_t n = client_image_rows_frame(o->source)->height * client_image_rows_frame(o->source)->width;

    ck_assert_int_eq(client_source_divide(o->source, &(struct client_division){.batch = batch, .seq = n, .seed = seed},
                                          NULL),
                     0);
    ck_assert_int_eq(client_source_make_room(o->source, batch, NULL), 0);
    o->buffer = (struct client_buffer){.n_rows = batch, .seq = n};
    for (int f = 0; f < PLAN_FIELDS; f++)
        o->buffer.at[f] =
            o->source->ops->fields >> f & 1
                ? calloc(batch, (plan_field_types[f].by_token ? n : 1) * plan_field_types[f].element_bytes)
                : NULL;
}

static void open_on(struct opened *o, const char *data, const char *augment, unsigned n_threads, uint64_t seed)
{
    const struct client_source_rules rules = {.augment = augment, .n_threads = n_threads};
    struct error err = {""};

    ck_assert_msg(try_open(o, data, NULL, &rules, &err) == 0, "%s", err.text);
    divide(o, BATCH, seed);
}

static void shut(struct opened *o)
{
    for (int f = 0; f < PLAN_FIELDS; f++)
        free(o->buffer.at[f]);
    client_source_close(o->source);
    client_data_free(&o->data);
    client_data_free(&o->eval_data);
}

static const uint32_t *ids_of(const struct opened *o, size_t row)
{
    return (const uint32_t *)o->buffer.at[PLAN_FIELD_IDS] + row * o->buffer.seq;
}

static void fill(struct opened *o, uint64_t step)
{
    struct error err = {""};

    ck_assert_msg(client_source_fill(&o->minibatch, &o->buffer, o->source, step, step * BATCH, &err) == 0, "%s",
                  err.text);
}

static void fill_held_out(struct opened *o, uint64_t first, uint32_t n)
{
    ck_assert_int_eq(client_source_fill_held_out(&o->minibatch, &o->buffer, o->source, first, n, NULL), 0);
}

/* By hand: red | green << 8 | blue << 16, the class at the first token, a row of 1,024 tokens without a second text; of
 * 300 images 30 are held out, in the data's order. */
TEST(a_row_is_its_pixels_its_class_and_its_length)
{
    struct opened o;

    open_on(&o, put_cifar("a.bin", N, 10), NULL, 1, 7);
    ck_assert_uint_eq(client_source_n_rows(o.source, CLIENT_TRAIN), N - N_HELD);
    ck_assert_uint_eq(client_source_n_rows(o.source, CLIENT_HELD_OUT), N_HELD);
    fill_held_out(&o, 3, 5);
    ck_assert(o.minibatch.n_tokens == PIXELS && o.minibatch.n_valid == 5);
    const uint32_t *labels = o.buffer.at[PLAN_FIELD_LABELS];
    const struct plan_row *rows = o.buffer.at[PLAN_FIELD_LENGTHS];
    for (uint32_t row = 0, last = 0; row < 5; row++) {
        const uint32_t record = (uint32_t)client_source_pick_held_out(o.source, 3 + row).id;
        ck_assert_uint_gt(record, last);
        last = record;
        for (size_t i = 0; i < PIXELS; i++)
            ck_assert_uint_eq(ids_of(&o, row)[i], pixel(record, i));
        ck_assert_uint_eq(labels[row * PIXELS], record % 10);
        ck_assert_uint_eq(labels[row * PIXELS + 1], PLAN_NO_LABEL);
        ck_assert(rows[row].n_tokens == PIXELS && rows[row].second == PIXELS);
    }
    ck_assert(rows[5].n_tokens == 1 && ids_of(&o, 5)[0] == 0 && labels[5 * PIXELS] == PLAN_NO_LABEL); /* empty */
    shut(&o);
}

/* The row that sample (record, draw) has: as a view of the draw makes it of the image. */
static void check_drawn(const struct opened *o, size_t row, const struct client_augment *augment)
{
    const struct client_sample sample = o->source->samples[row];
    const struct client_view v = client_view_draw(augment, client_image_rows_frame(o->source), 32, 32,
                                                  random_site_key(7, 0, 0, RANDOM_VIEW), sample.draw);

    for (int64_t y = 0; y < 32; y++)
        for (int64_t x = 0; x < 32; x++) {
            const int64_t top = y + v.top, left = (v.flips ? 31 - x : x) + v.left;
            const bool inside = top >= 0 && top < 32 && left >= 0 && left < 32;
            ck_assert_uint_eq(ids_of(o, row)[y * 32 + x], inside ? pixel(sample.id, (size_t)(top * 32 + left)) : 0);
        }
}

/* Three epochs of 270 rows: steps of 200 and 70, in any order. A row's draw is its number in the run, as if all steps
 * were full. */
TEST(a_row_to_train_on_is_drawn_by_its_number_in_the_run)
{
    static const struct client_augment augment = {.crop = 4, .crops = true, .flips = true};
    struct client_view views[N][3];
    struct opened o;
    int n_same = 0;

    open_on(&o, put_cifar("a.bin", N, 10), "crop=4,flip", 1, 7);
    for (uint64_t step = 0; step < 6; step++) {
        fill(&o, step);
        const uint32_t n = (uint32_t)o.minibatch.n_valid;
        for (uint32_t row = 0; row < n; row++) {
            const struct client_sample sample = o.source->samples[row];
            ck_assert_uint_eq(sample.draw, step * BATCH + row);
            check_drawn(&o, row, &augment);
            views[sample.id][step / 2] = client_view_draw(&augment, client_image_rows_frame(o.source), 32, 32,
                                                          random_site_key(7, 0, 0, RANDOM_VIEW), sample.draw);
        }
    }
    for (uint64_t k = 0, id = 0; id < N; id++) { /* an image again is seen otherwise, but one in 162 */
        if (k < N_HELD && client_source_pick_held_out(o.source, k).id == id) {
            k++;
            continue;
        }
        n_same += memcmp(&views[id][0], &views[id][1], sizeof views[id][0]) == 0;
    }
    ck_assert_int_lt(n_same, 12); /* 1.7 are expected */
    shut(&o);
}

/* Threads read rows of 204,800 pixels; a step is filled without those before it, as by a run that goes on. */
TEST(neither_threads_nor_the_steps_before_change_a_row)
{
    const char *path = put_cifar("a.bin", N, 10);
    struct opened one, four;

    open_on(&one, path, "crop=4,reflect,flip", 1, 7);
    open_on(&four, path, "crop=4,reflect,flip", 4, 7);
    for (uint64_t step = 0; step < 3; step++)
        fill(&one, step);
    fill(&four, 2);
    for (int f = 0; f < PLAN_FIELDS; f++)
        if (one.buffer.at[f])
            ck_assert_mem_eq(one.buffer.at[f], four.buffer.at[f],
                             (size_t)BATCH * (plan_field_types[f].by_token ? PIXELS : 1) *
                                 plan_field_types[f].element_bytes);
    shut(&one), shut(&four);
}

TEST(held_out_rows_are_never_augmented)
{
    const char *path = put_cifar("a.bin", N, 10);
    struct opened plain, augmented;

    open_on(&plain, path, NULL, 1, 7);
    open_on(&augmented, path, "crop=16,flip", 1, 7);
    fill_held_out(&plain, 0, N_HELD), fill_held_out(&augmented, 0, N_HELD);
    ck_assert_mem_eq(ids_of(&plain, 0), ids_of(&augmented, 0), N_HELD * PIXELS * sizeof(uint32_t));
    shut(&plain), shut(&augmented);
}

/* Of the 270 records that are not held out, one by one; whatever the threads, and not of what is drawn. */
TEST(sums_by_channel_are_those_of_the_training_rows)
{
    const char *path = put_cifar("a.bin", N, 10);
    struct client_channel_sums wanted = {.n = (N - N_HELD) * PIXELS}, sums;
    uint64_t counts[10] = {0};
    struct opened o;

    for (unsigned threads = 1; threads <= 4; threads += 3) {
        open_on(&o, path, "crop=4,flip", threads, 7);
        for (uint64_t k = 0, id = 0; threads == 1 && id < N; id++) {
            if (k < N_HELD && client_source_pick_held_out(o.source, k).id == id) {
                k++;
                continue;
            }
            for (size_t i = 0; i < PIXELS; i++)
                for (size_t c = 0; c < 3; c++)
                    wanted.sums[c] += value(id, i, c), wanted.squares[c] += (uint64_t)value(id, i, c) * value(id, i, c);
        }
        ck_assert_int_eq(client_image_rows_sums(&sums, o.source, NULL, NULL), 0);
        ck_assert_mem_eq(&sums, &wanted, sizeof sums);
        shut(&o);
    }
    open_on(&o, path, NULL, 1, 7);
    client_image_rows_count(counts, o.source, CLIENT_TRAIN);
    client_image_rows_count(counts, o.source, CLIENT_HELD_OUT);
    for (int i = 0; i < 10; i++)
        ck_assert_uint_eq(counts[i], N / 10);
    shut(&o);
}

static void copy(const char *fixture, const char *name)
{
    uint8_t bytes[4096];
    FILE *file = fopen(print(TESTS_DIR "/fixtures/images/%s", fixture), "rb");

    ck_assert_ptr_nonnull(file);
    const size_t n = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    processes_write(name, bytes, n);
}

/* Three classes; five images of 13x18. */
static const char *put_folders(void)
{
    static const char *const folders[] = {"f", "f/1", "f/10", "f/9"};

    for (int i = 0; i < COUNT(folders); i++)
        ck_assert_int_eq(mkdir(processes_path(folders[i]), 0700), 0);
    copy("colour.png", "f/10/a.png"), copy("halved.jpg", "f/10/b.jpg");
    copy("grey.png", "f/9/a.png"), copy("whole.jpg", "f/9/b.jpg");
    copy("cmyk.jpg", "f/1/a.jpg");
    return processes_path("f");
}

/* A grey PNG of one black pixel. */
static void put_small(const char *name)
{
    static const uint8_t png[] = {0x89, 'P',  'N',  'G',  13,   10,  26,  10,   0,    0,    0,    13,   'I',  'H',
                                  'D',  'R',  0,    0,    0,    1,   0,   0,    0,    1,    8,    0,    0,    0,
                                  0,    0x3A, 0x7E, 0x9B, 0x55, 0,   0,   0,    10,   'I',  'D',  'A',  'T',  0x78,
                                  0x9C, 0x63, 0x60, 0,    0,    0,   2,   0,    1,    0x48, 0xAF, 0xA4, 0x71, 0,
                                  0,    0,    0,    'I',  'E',  'N', 'D', 0xAE, 0x42, 0x60, 0x82};

    processes_write(name, png, sizeof png);
}

/* Classes that are numbers are in their order. */
TEST(images_in_folders_have_classes_by_name_or_by_value)
{
    const struct client_source_rules rules = {.n_threads = 2};
    struct client_source_facts facts;
    struct error err = {""};
    char said[200];
    struct opened o;

    ck_assert_msg(try_open(&o, put_folders(), NULL, &rules, &err) == 0, "%s", err.text);
    ck_assert_uint_eq(o.source->labels.n, 3);
    ck_assert(strcmp(o.source->labels.names[0], "1") == 0 && strcmp(o.source->labels.names[1], "9") == 0);
    facts = client_source_measure(o.source);
    ck_assert(facts.whole && facts.task == EPS_CLASSIFY && facts.n_rows == 4);
    ck_assert(facts.seq == 13 * 18 && facts.longest == 13 * 18 && facts.least == 13 * 18);
    ck_assert_uint_eq(o.data.n, 5 * 13 * 18);
    divide(&o, 2, 7);
    client_source_describe(said, sizeof said, o.source);
    ck_assert_str_eq(said, "3 classes: 1, 9, 10; 4 images of 13x18, in colour, 1 held out");
    for (uint32_t k = 0; k < 1; k++)
        fill_held_out(&o, k, 1);
    const uint32_t *labels = o.buffer.at[PLAN_FIELD_LABELS];
    const uint64_t id = client_source_pick_held_out(o.source, 0).id; /* 1/a, 10/a, 10/b, 9/a, 9/b */
    ck_assert_uint_eq(labels[0], id == 0 ? 0 : id < 3 ? 2 : 1);
    shut(&o);
}

TEST(images_of_several_sizes_need_one_to_be_named)
{
    struct client_source_rules rules = {.n_threads = 1};
    struct error err = {""};
    struct opened o;

    const char *path = put_folders();
    put_small("f/9/c.png");
    ck_assert_int_eq(try_open(&o, path, NULL, &rules, &err), -EDOM);
    ck_assert_str_eq(err.text,
                     "images are of several sizes, from 1x1 to 13x18: give the size that the model sees, as in "
                     "--image 224x224");
    shut(&o);
    rules.image = "8x6";
    ck_assert_msg(try_open(&o, path, NULL, &rules, &err) == 0, "%s", err.text);
    divide(&o, 5, 7);
    ck_assert_uint_eq(o.buffer.seq, 48);
    ck_assert_int_eq(client_source_fill(&o.minibatch, &o.buffer, o.source, 0, 0, &err), 0);
    ck_assert_uint_eq(o.minibatch.n_valid, 5);
    shut(&o);
    rules.image = NULL, rules.augment = "crop=13";
    ck_assert_int_eq(unlink(processes_path("f/9/c.png")), 0);
    ck_assert_int_eq(try_open(&o, path, NULL, &rules, &err), -EDOM);
    ck_assert_holds(err.text, "--augment crop=13", "13x18");
    shut(&o);
}

/* An image that is damaged after all were read. */
TEST(a_row_that_cannot_be_read_any_more_names_its_file)
{
    const struct client_source_rules rules = {.n_threads = 2};
    struct error err = {""};
    struct opened o;

    ck_assert_int_eq(try_open(&o, put_folders(), NULL, &rules, NULL), 0);
    divide(&o, 4, 7);
    static const char *const names[] = {"f/1/a.jpg", "f/10/a.png", "f/10/b.jpg", "f/9/a.png", "f/9/b.jpg"};
    for (int i = 0; i < COUNT(names); i++)
        ck_assert_int_eq(truncate(processes_path(names[i]), 200), 0);
    ck_assert_int_eq(client_source_fill(&o.minibatch, &o.buffer, o.source, 0, 0, &err), -EINVAL);
    const char *name = names[o.source->samples[0].id];
    ck_assert_holds(err.text, name, "ends too early");
    shut(&o);
}

/* Of the same classes: the training data's, by their numbers. Scores are those of the held-out rows' own labels. */
TEST(named_held_out_data_are_all_held_out_and_scored)
{
    const char *data = put_cifar("a.bin", 20, 10), *eval_data = put_cifar("b.bin", 12, 3);
    const struct client_source_rules rules = {.n_threads = 1};
    uint64_t n_labels = 12;
    double loss = 1;
    struct opened o;

    ck_assert_int_eq(try_open(&o, data, eval_data, &rules, NULL), 0);
    divide(&o, 4, 7);
    ck_assert(client_source_n_rows(o.source, CLIENT_TRAIN) == 20 &&
              client_source_n_rows(o.source, CLIENT_HELD_OUT) == 12);
    fill_held_out(&o, 5, 1);
    ck_assert_uint_eq(ids_of(&o, 0)[9], pixel(5, 9));
    ck_assert_uint_eq(((const uint32_t *)o.buffer.at[PLAN_FIELD_LABELS])[0], 5 % 3);
    for (uint64_t k = 0; k < 12; k++) /* always class 2: right for 4 of 12 */
        o.source->logits[10 * k + 2] = 1;
    ck_assert_int_eq(o.source->ops->score(o.source, &loss, &n_labels, NULL), 0);
    ck_assert_str_eq(o.source->scores.list[0].name, "accuracy");
    ck_assert_double_eq_tol(o.source->scores.list[0].value, 4.0 / 12, 1e-12); /* one division */
    shut(&o);
}

TEST(images_of_one_class_teach_no_classifier)
{
    const struct client_source_rules rules = {.n_threads = 1};
    struct error err = {""};
    struct opened o;

    ck_assert_int_eq(mkdir(processes_path("one"), 0700), 0);
    ck_assert_int_eq(mkdir(processes_path("one/cat"), 0700), 0);
    copy("colour.png", "one/cat/a.png");
    ck_assert_int_eq(try_open(&o, processes_path("one"), NULL, &rules, &err), -EINVAL);
    ck_assert_str_eq(err.text, "--data: every image is of the class 'cat': a classifier needs two classes");
    shut(&o);
}

static int check(const struct client_source_ops *kind, const struct eps_train_options *asked, struct error *err)
{
    return client_options_check_tasks(asked, EPS_COMMAND_TRAIN, kind->facts.task, false, err);
}

TEST(options_of_text_are_not_for_images_nor_those_of_images_for_text)
{
    struct eps_train_options asked = eps_train_defaults();
    struct error err = {""};

    asked.image = "32x32", asked.augment = "crop=4";
    ck_assert_int_eq(check(&client_source_images, &asked, &err), 0);
    ck_assert_int_eq(check(&client_source_labelled, &asked, &err), -EDOM);
    ck_assert_holds(err.text, "--image is for images");
    asked.image = NULL;
    ck_assert_int_eq(check(&client_source_text, &asked, &err), -EDOM);
    ck_assert_holds(err.text, "--augment is for images");
    asked.augment = NULL, asked.columns = "text,label";
    ck_assert_int_eq(check(&client_source_images, &asked, &err), -EDOM);
    ck_assert_holds(err.text, "--columns is for text");
}
