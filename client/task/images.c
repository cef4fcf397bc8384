/* Rows of images: a token for each pixel of height x width, rows of pixels from the top, with a class (client/images/).
 *
 * A token is red | green << 8 | blue << 16; if all images are grey, the value alone. The label is at the row's first
 * token. All rows have the same length, so minibatches are plain ones of epochs' permutations (client/order/batches.h).
 * They flow from one epoch into the next: a batch norm's statistics are of all rows of a part, and padding must not be
 * among them. A tenth of the rows is held out, drawn by the seed.
 *
 * Rows of a minibatch are read by several threads, each into its own place: while the step before is computed, as all
 * minibatches are, and with no memory but a thread's own (client/images/images.h). A row to train on sees its image as
 * the seed and its number in the run say, so no number of threads, workers or parts changes a bit, and a stopped run
 * goes on with the same rows. A held-out row sees the middle. */
#include "client/data/pieces.h"
#include "client/task/image_rows.h"
#include "client/task/listed.h"
#include "proto/base/random.h"
#include "proto/model/family.h"
#include "proto/plan/memory/data.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { THREAD_PIXELS = 65536 }; /* it costs as much to begin a thread as to read some of these */

_Static_assert((int)CLIENT_PIECES_MOST_THREADS <= (int)CLIENT_TEAM_MOST, "threads by default");

/* Memory of a thread. */
struct room {
    struct client_images_room images;
    struct client_view_room view;
};

struct pictures {
    struct client_listed rows;
    struct client_images images[2]; /* of data and of eval_data, by enum client_part; the latter may be empty */
    struct client_frame frame;
    struct client_augment augment;
    struct random_key key;
    uint32_t channels;
    struct room rooms[CLIENT_TEAM_MOST];
    unsigned n_threads;
};

static const struct pictures *images_of(const struct client_source *source)
{
    return (const struct pictures *)source;
}

static uint32_t n_pixels(const struct pictures *p)
{
    return p->frame.height * p->frame.width;
}

static uint32_t images_length(const struct client_source *source, enum client_part data, size_t k)
{
    (void)data, (void)k;
    return n_pixels(images_of(source));
}

static const struct client_listed_ops images = {.what = "image", .group = 1, .flows = true, .length = images_length};

/* ---- Opened, read, settled ---- */

static void images_close_source(struct client_source *source)
{
    struct pictures *p = (struct pictures *)source;

    for (int part = 0; part < 2; part++)
        client_images_free(&p->images[part]);
    for (int i = 0; i < CLIENT_TEAM_MOST; i++) {
        client_images_free_room(&p->rooms[i].images);
        client_view_free_room(&p->rooms[i].view);
    }
}

static int images_open_source(struct client_source *source, struct error *err)
{
    if (source->labels.numbers)
        return error_set(err, -EINVAL, "images have classes, and the model predicts a number");
    return client_listed_open(source, &images, err);
}

static int images_find_class(uint32_t *label, void *user, const char *name, struct error *err)
{
    return client_labels_find(label, user, name, strlen(name), err);
}

/* The classes of a fresh list got their numbers as they came. */
static int number_classes(struct client_labels *labels, struct client_images *of_part, struct error *err)
{
    uint32_t *to = labels->fixed ? NULL : calloc(labels->n + 1, sizeof *to);

    if (!labels->fixed && !to)
        return error_memory(err);
    const int rc = to ? client_labels_sort(labels, to, err) : 0;
    if (!rc)
        client_images_number(of_part, to);
    free(to);
    return rc;
}

static int images_read_part(struct client_source *source, enum client_part part,
                            const struct client_source_rules *rules, struct error *err)
{
    struct pictures *p = (struct pictures *)source;
    struct client_data *data = client_source_data(source, part);
    struct client_labels *labels = &source->labels;

    p->n_threads = rules->n_threads > 0 ? rules->n_threads : client_pieces_threads();
    const struct client_images_rules read = {.classes = {images_find_class, labels},
                                             .n_threads = p->n_threads,
                                             .watch = rules->watch};
    int rc = client_images_read(&p->images[part], data, &read, err);
    if (!rc)
        rc = number_classes(labels, &p->images[part], err);
    p->rows.n[part] = p->images[part].n;
    data->hash = p->images[part].hash;
    return rc || part != CLIENT_TRAIN ? rc : client_labels_check(labels, "every image is of the class", err);
}

/* Sizes of all images of both parts, and the channels. */
static struct client_image_sizes all_sizes(const struct pictures *p)
{
    struct client_image_sizes all = {0};

    for (int part = 0; part < 2; part++)
        client_image_sizes_join(&all, &p->images[part].sizes);
    return all;
}

/* The row has the size that the model sees. */
static int settle_as_model(struct pictures *p, struct error *err)
{
    const struct model_image *sees = &p->rows.source.setup.config->image;
    const int rc = client_frame_check(&p->frame, sees, err);

    if (rc)
        return rc;
    if (p->channels > sees->channels)
        return error_set(err, -EDOM, "images in colour, and the model has one channel (num_channels)");
    p->frame.height = sees->height, p->frame.width = sees->width;
    p->channels = sees->channels;
    return 0;
}

/* Without --image or a model the row has the size of all images. */
static int settle_frame(struct pictures *p, struct error *err)
{
    const struct client_image_sizes s = all_sizes(p);

    if (p->rows.source.setup.config->image.height > 0)
        return settle_as_model(p, err);
    if (p->frame.height > 0)
        return 0;
    if (s.least_height != s.height || s.least_width != s.width)
        return error_set(err, -EDOM,
                         "images are of several sizes, from %ux%u to %ux%u: give the size that the model sees, as in "
                         "--image 224x224",
                         s.least_height, s.least_width, s.height, s.width);
    if (s.height > CLIENT_FRAME_MOST_SIDE || s.width > CLIENT_FRAME_MOST_SIDE)
        return error_set(err, -EDOM, "images of %ux%u are more than a row has room for: give --image, up to %dx%d",
                         s.height, s.width, CLIENT_FRAME_MOST_SIDE, CLIENT_FRAME_MOST_SIDE);
    p->frame = (struct client_frame){.height = s.height, .width = s.width};
    return 0;
}

/* Channels are those of all parts: one image in colour makes all rows colour. */
static int images_settle(struct client_source *source, const struct client_source_rules *rules, struct error *err)
{
    struct pictures *p = (struct pictures *)source;
    int rc = client_frame_parse(&p->frame, rules->image, err);

    for (int part = 0; part < 2; part++)
        p->channels = p->images[part].channels > p->channels ? p->images[part].channels : p->channels;
    if (!rc)
        rc = client_augment_parse(&p->augment, rules->augment, err);
    if (!rc)
        rc = settle_frame(p, err);
    if (!rc)
        rc = client_augment_check(&p->augment, &p->frame, err);
    for (enum client_part part = CLIENT_TRAIN; !rc && part <= CLIENT_HELD_OUT; part++) {
        struct client_data *data = client_source_data(source, part);
        if (data)
            data->n = p->images[part].n * (uint64_t)n_pixels(p);
    }
    return rc ? rc : client_listed_settle(source, rules, err);
}

static void images_measure(struct client_source_facts *out, const struct client_source *source)
{
    client_listed_measure(out, source);
    out->task = EPS_CLASSIFY;
    out->seq = out->least = n_pixels(images_of(source));
}

/* ---- Rows ---- */

static int images_divide(struct client_source *source, const struct client_division *d, struct error *err)
{
    (void)err;
    ((struct pictures *)source)->key = random_site_key(d->seed, 0, 0, RANDOM_VIEW);
    source->n_logits = source->setup.config->n_labels;
    return 0;
}

static void images_describe(char *out, size_t cap, const struct client_source *source)
{
    const struct pictures *p = images_of(source);
    char labels[100];

    client_labels_say(labels, sizeof labels, &source->labels);
    snprintf(out, cap, "%s; %u images of %ux%u, %s, %u held out", labels, p->rows.subsets[CLIENT_TRAIN].n,
             p->frame.height, p->frame.width, p->channels == 1 ? "grey" : "in colour",
             p->rows.subsets[CLIENT_HELD_OUT].n);
}

const struct client_images *client_image_rows_of(const struct client_source *source, enum client_part part)
{
    return &images_of(source)->images[client_listed_data(source, part)];
}

/* Writes image k as training sees it, by this draw; NULL: as an evaluation does. */
static int images_write_ids(uint32_t *ids, struct pictures *p, unsigned thread, const struct client_images *from,
                            size_t k, const uint64_t *draw, struct error *err)
{
    struct room *room = &p->rooms[thread];
    const struct client_image *image = &room->images.image;
    const int rc = client_images_get(&room->images, from, k, err);

    if (rc)
        return rc;
    const struct client_view view =
        draw ? client_view_draw(&p->augment, &p->frame, image->height, image->width, p->key, *draw)
             : client_view_centre(&p->frame, image->height, image->width);
    return client_view_write(ids, &view, &p->frame, image, p->channels, &room->view, err);
}

struct minibatch {
    struct pictures *p;
    const struct client_row_fields *rows;
    enum client_part part;
    const struct client_sample *samples;
};

static int read_item(void *user, unsigned thread, size_t i, struct error *err)
{
    const struct minibatch *m = user;
    const struct client_row_fields *row = &m->rows[i];
    const struct client_images *from = client_image_rows_of(&m->p->rows.source, m->part);
    struct plan_row *lengths = row->at[PLAN_FIELD_LENGTHS];
    uint32_t *labels = row->at[PLAN_FIELD_LABELS];

    lengths->n_tokens = lengths->second = n_pixels(m->p);
    *labels = from->list[m->samples[i].id].label;
    return images_write_ids(row->at[PLAN_FIELD_IDS], m->p, thread, from, m->samples[i].id,
                            m->part == CLIENT_TRAIN ? &m->samples[i].draw : NULL, err);
}

/* Threads for n rows. */
static unsigned threads_for(const struct pictures *p, size_t n)
{
    const uint64_t worth = 1 + n * (uint64_t)n_pixels(p) / THREAD_PIXELS;

    return worth < p->n_threads ? (unsigned)worth : p->n_threads;
}

static int images_read_rows(struct client_source *source, const struct client_row_fields *rows, enum client_part part,
                            const struct client_sample *samples, uint32_t n, struct error *err)
{
    struct minibatch m = {(struct pictures *)source, rows, part, samples};

    return client_team_run(threads_for(m.p, n), n, read_item, &m, NULL, err);
}

static int images_read_row(struct client_source *source, const struct client_row_fields *row, enum client_part part,
                           struct client_sample sample, struct error *err)
{
    return images_read_rows(source, row, part, &sample, 1, err);
}

static uint32_t images_label_of(const struct client_source *source, enum client_part data, size_t k)
{
    return images_of(source)->images[data].list[k].label;
}

static int images_score(struct client_source *source, double *loss, uint64_t *n_valid, struct error *err)
{
    const size_t n = client_source_n_rows(source, CLIENT_HELD_OUT);
    uint32_t *targets = client_listed_targets(source, images_label_of, err);

    (void)loss, (void)n_valid;
    if (!targets)
        return -ENOMEM;
    const int rc = client_score_classes(&source->scores, source->logits, targets, n, source->labels.n, err);
    if (!rc)
        client_score_add_top5(&source->scores, source->logits, targets, n, source->labels.n);
    free(targets);
    return rc;
}

static bool images_takes(const struct model_config *config, double mask_fraction)
{
    (void)mask_fraction;
    return config->image.height > 0;
}

static bool images_learns(const struct family *family)
{
    return family->sees_images;
}

const struct client_source_ops client_source_images = {
    .facts = {EPS_OF_IMAGES, "images", "images with classes", "eval", NULL},
    .order = &client_listed_order,
    .bytes = sizeof(struct pictures),
    .fields = 1u << PLAN_FIELD_IDS | 1u << PLAN_FIELD_LABELS | 1u << PLAN_FIELD_LENGTHS,
    .learns = images_learns,
    .takes = images_takes,
    .labels = true,
    .refusal = "%s is for text, and the model sees images: leave it out",
    .open = images_open_source,
    .open_files = client_data_open_images,
    .read = images_read_part,
    .settle = images_settle,
    .measure = images_measure,
    .divide = images_divide,
    .describe = images_describe,
    .read_row = images_read_row,
    .read_rows = images_read_rows,
    .score = images_score,
    .tell_classes = client_image_rows_classes,
    .close = images_close_source,
};

/* ---- Facts ---- */

const struct client_frame *client_image_rows_frame(const struct client_source *source)
{
    return &images_of(source)->frame;
}

uint32_t client_image_rows_channels(const struct client_source *source)
{
    return images_of(source)->channels;
}

struct summing {
    struct pictures *p;
    struct client_channel_sums sums[CLIENT_TEAM_MOST]; /* by thread */
    uint32_t *rows;                                    /* (threads, pixels) */
};

static int images_add_row(void *user, unsigned thread, size_t i, struct error *err)
{
    struct summing *s = user;
    const struct client_subset *subset = &s->p->rows.subsets[CLIENT_TRAIN];
    uint32_t *row = s->rows + (size_t)thread * n_pixels(s->p);
    const int rc = images_write_ids(row, s->p, thread, &s->p->images[CLIENT_TRAIN], subset->list[i], NULL, err);

    if (!rc)
        client_channel_sums_add(&s->sums[thread], row, n_pixels(s->p));
    return rc;
}

/* Each thread sums its own rows, and joining is exact: sums are of integers. */
int client_image_rows_sums(struct client_channel_sums *out, struct client_source *source,
                           const struct client_watch *watch, struct error *err)
{
    struct pictures *p = (struct pictures *)source;
    const size_t n = p->rows.subsets[CLIENT_TRAIN].n;
    const unsigned n_threads = threads_for(p, n);
    struct summing s = {.p = p, .rows = calloc((size_t)n_threads * n_pixels(p), sizeof *s.rows)};
    const int rc = s.rows ? client_team_run(n_threads, n, images_add_row, &s, watch, err) : error_memory(err);

    *out = (struct client_channel_sums){.n = 0};
    for (unsigned i = 0; i < n_threads; i++)
        client_channel_sums_join(out, &s.sums[i]);
    free(s.rows);
    return rc;
}

void client_image_rows_count(uint64_t *counts, const struct client_source *source, enum client_part part)
{
    const struct client_subset *subset = &images_of(source)->rows.subsets[part];

    for (uint32_t i = 0; i < subset->n; i++)
        counts[images_label_of(source, client_listed_data(source, part), subset->list[i])]++;
}

int client_image_rows_classes(const struct client_source *source,
                              void (*tell)(void *user, const char *name, uint64_t n_rows, uint64_t n_right), void *user,
                              struct error *err)
{
    const uint32_t n = source->labels.n;
    const uint64_t n_held_out = client_source_n_rows(source, CLIENT_HELD_OUT);
    uint64_t *rows = calloc(2 * (size_t)n + 1, sizeof *rows), *right = rows ? rows + n : NULL;
    uint32_t *targets = rows ? client_listed_targets(source, images_label_of, err) : NULL;

    for (uint64_t i = 0; targets && i < n_held_out; i++) {
        rows[targets[i]]++;
        right[targets[i]] += client_score_class(source->logits + i * n, n) == targets[i];
    }
    for (uint32_t k = 0; targets && k < n; k++)
        tell(user, source->labels.names[k], rows[k], right[k]);
    free(rows);
    free(targets);
    return targets ? 0 : error_memory(err);
}
