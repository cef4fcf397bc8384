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
#include "client/order/batches.h"
#include "client/task/image_rows.h"
#include "proto/base/random.h"
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
    struct client_source source;
    struct client_source_setup setup;
    struct client_labels labels;
    struct client_images images[2];  /* of data and of eval_data, by enum client_part; the latter may be empty */
    uint32_t *lengths[2];            /* (images) all of them a row's; owned */
    struct client_subset subsets[2]; /* by enum client_part */
    struct client_batches batches;   /* of the rows to train on */
    struct client_frame frame;
    struct client_augment augment;
    struct random_key key;
    uint32_t channels;
    struct room rooms[CLIENT_TEAM_MOST];
    unsigned n_threads;
    uint32_t *targets; /* (subsets[CLIENT_HELD_OUT].n) labels */
};

static const struct pictures *of(const struct client_source *source)
{
    return (const struct pictures *)source;
}

static uint32_t n_pixels(const struct pictures *p)
{
    return p->frame.height * p->frame.width;
}

/* ---- Opened, read, settled ---- */

static void close_source(struct client_source *source)
{
    struct pictures *p = (struct pictures *)source;

    client_batches_free(&p->batches);
    for (int part = 0; part < 2; part++) {
        client_subset_free(&p->subsets[part]);
        client_images_free(&p->images[part]);
        free(p->lengths[part]);
    }
    for (int i = 0; i < CLIENT_TEAM_MOST; i++) {
        client_images_free_room(&p->rooms[i].images);
        client_view_free_room(&p->rooms[i].view);
    }
    client_labels_free(&p->labels);
    free(p->targets);
    free(p);
}

static int open_source(struct client_source **out, const struct client_source_setup *setup, struct error *err)
{
    const bool numbers = setup->labels->numbers;
    struct pictures *p = numbers ? NULL : calloc(1, sizeof *p);

    *out = NULL;
    if (!p) {
        client_labels_free(setup->labels);
        return numbers ? error_set(err, -EINVAL, "images have classes, and the model predicts a number")
                       : error_memory(err);
    }
    p->source = (struct client_source){.ops = &client_source_images, .labels = &p->labels};
    p->setup = *setup;
    p->labels = *setup->labels;
    *setup->labels = (struct client_labels){0};
    *out = &p->source;
    return 0;
}

static int find_class(uint32_t *label, void *user, const char *name, struct error *err)
{
    return client_labels_find(label, user, name, strlen(name), err);
}

/* The classes of a fresh list got their numbers as they came. */
static int number_classes(struct pictures *p, struct client_images *images, struct error *err)
{
    uint32_t *to = p->labels.fixed ? NULL : calloc(p->labels.n + 1, sizeof *to);

    if (!p->labels.fixed && !to)
        return error_memory(err);
    if (to)
        client_labels_sort(&p->labels, to);
    client_images_number(images, to);
    free(to);
    return 0;
}

static int read_images(struct client_source *source, enum client_part part, const struct client_source_rules *rules,
                       struct error *err)
{
    struct pictures *p = (struct pictures *)source;
    struct client_data *data = part == CLIENT_TRAIN ? p->setup.data : p->setup.eval_data;
    struct client_images *images = &p->images[part];

    p->n_threads = rules->n_threads > 0 ? rules->n_threads : client_pieces_threads();
    const struct client_images_rules read = {.classes = {find_class, &p->labels},
                                             .n_threads = p->n_threads,
                                             .watch = rules->watch};
    if (data->n_files == 0)
        return 0;
    int rc = client_images_read(images, data, &read, err);
    if (!rc)
        rc = number_classes(p, images, err);
    data->hash = images->hash;
    return rc || part != CLIENT_TRAIN ? rc : client_labels_check(&p->labels, "every image is of the class", err);
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
    const struct model_image *sees = &p->setup.config->image;
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

    if (p->setup.config->image.height > 0)
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

static int settle(struct client_source *source, const struct client_source_rules *rules, struct error *err)
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
    for (int part = 0; !rc && part < 2; part++) {
        struct client_data *data = part == CLIENT_TRAIN ? p->setup.data : p->setup.eval_data;
        if (data)
            data->n = p->images[part].n * (uint64_t)n_pixels(p);
        p->lengths[part] = calloc(p->images[part].n + 1, sizeof *p->lengths[part]);
        if (!p->lengths[part])
            rc = error_memory(err);
        for (size_t i = 0; !rc && i < p->images[part].n; i++)
            p->lengths[part][i] = n_pixels(p);
    }
    return rc;
}

static void measure(struct client_source_facts *out, const struct client_source *source)
{
    const struct pictures *p = of(source);
    const size_t n = p->images[CLIENT_TRAIN].n;
    const bool apart = p->images[CLIENT_HELD_OUT].n > 0;

    *out = (struct client_source_facts){.whole = true,
                                        .flows = true,
                                        .task = EPS_CLASSIFY,
                                        .seq = n_pixels(p),
                                        .n_rows = (uint32_t)(apart ? n : n - client_subset_n_held_out(n)),
                                        .longest = n_pixels(p),
                                        .least = n_pixels(p)};
}

/* ---- Rows ---- */

static int divide(struct client_source *source, const struct client_division *d, struct error *err)
{
    struct pictures *p = (struct pictures *)source;
    int rc = client_subset_divide_data(p->subsets,
                                       (const uint32_t *[]){p->lengths[CLIENT_TRAIN], p->lengths[CLIENT_HELD_OUT]},
                                       (const size_t[]){p->images[CLIENT_TRAIN].n, p->images[CLIENT_HELD_OUT].n},
                                       d->seed, err);

    if (!rc && d->batch > 0)
        rc = client_batches_init(&p->batches,
                                 &(struct client_batches_options){.subset = &p->subsets[CLIENT_TRAIN],
                                                                  .batch = d->batch,
                                                                  .part = d->part,
                                                                  .seq = n_pixels(p),
                                                                  .order = d->order,
                                                                  .seed = d->seed,
                                                                  .flows = true},
                                 err);
    if (rc)
        return rc;
    p->key = random_site_key(d->seed, 0, 0, RANDOM_VIEW);
    source->n_logits = p->setup.config->n_labels;
    p->targets = calloc(p->subsets[CLIENT_HELD_OUT].n + (size_t)1, sizeof *p->targets);
    return p->targets ? 0 : error_memory(err);
}

static void describe(char *out, size_t cap, const struct client_source *source)
{
    const struct pictures *p = of(source);
    char labels[100];

    client_labels_say(labels, sizeof labels, &p->labels);
    snprintf(out, cap, "%s; %u images of %ux%u, %s, %u held out", labels, p->subsets[CLIENT_TRAIN].n, p->frame.height,
             p->frame.width, p->channels == 1 ? "grey" : "in colour", p->subsets[CLIENT_HELD_OUT].n);
}

static uint64_t n_rows(const struct client_source *source, enum client_part part)
{
    return of(source)->subsets[part].n;
}

/* Norms of gradients are not remembered by pixels. */
static uint64_t n_entries(const struct client_source *source)
{
    (void)source;
    return 0;
}

static uint64_t tokens(struct client_source *source, uint64_t step, uint64_t n_before)
{
    (void)n_before;
    return client_batches_tokens(&((struct pictures *)source)->batches, step);
}

static uint32_t pick(struct client_sample *out, struct client_source *source, uint64_t step, uint64_t n_before)
{
    const uint32_t n = client_batches_pick(out, &((struct pictures *)source)->batches, step);

    for (uint32_t i = 0; i < n; i++)
        out[i].draw = n_before + i;
    return n;
}

static struct client_sample pick_held_out(const struct client_source *source, uint64_t k)
{
    return (struct client_sample){.id = of(source)->subsets[CLIENT_HELD_OUT].list[k]};
}

static uint32_t length(const struct client_source *source, enum client_part part, const struct client_sample *samples,
                       uint32_t n)
{
    (void)part, (void)samples, (void)n;
    return n_pixels(of(source));
}

const struct client_images *client_image_rows_of(const struct client_source *source, enum client_part part)
{
    const struct pictures *p = of(source);

    return &p->images[part == CLIENT_HELD_OUT && p->images[CLIENT_HELD_OUT].n > 0 ? CLIENT_HELD_OUT : CLIENT_TRAIN];
}

/* Writes image k as training sees it, by this draw; NULL: as an evaluation does. */
static int write_ids(uint32_t *ids, struct pictures *p, unsigned thread, const struct client_images *images, size_t k,
                     const uint64_t *draw, struct error *err)
{
    struct room *room = &p->rooms[thread];
    const struct client_image *image = &room->images.image;
    const int rc = client_images_get(&room->images, images, k, err);

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
    const struct client_images *images = client_image_rows_of(&m->p->source, m->part);
    struct plan_row *lengths = row->at[CLIENT_FIELD_ROWS];
    uint32_t *labels = row->at[CLIENT_FIELD_LABELS];

    lengths->n_tokens = lengths->second = n_pixels(m->p);
    *labels = images->list[m->samples[i].id].label;
    return write_ids(row->at[CLIENT_FIELD_IDS], m->p, thread, images, m->samples[i].id,
                     m->part == CLIENT_TRAIN ? &m->samples[i].draw : NULL, err);
}

/* Threads for n rows. */
static unsigned threads_for(const struct pictures *p, size_t n)
{
    const uint64_t worth = 1 + n * (uint64_t)n_pixels(p) / THREAD_PIXELS;

    return worth < p->n_threads ? (unsigned)worth : p->n_threads;
}

static int read_rows(struct client_source *source, const struct client_row_fields *rows, enum client_part part,
                     const struct client_sample *samples, uint32_t n, struct error *err)
{
    struct minibatch m = {(struct pictures *)source, rows, part, samples};

    return client_team_run(threads_for(m.p, n), n, read_item, &m, NULL, err);
}

static int read_row(struct client_source *source, const struct client_row_fields *row, enum client_part part,
                    struct client_sample sample, struct error *err)
{
    return read_rows(source, row, part, &sample, 1, err);
}

static uint64_t progress(const struct client_source *source, uint64_t n)
{
    (void)source;
    return n;
}

static int score(struct client_source *source, double *loss, uint64_t *n_labels, struct error *err)
{
    struct pictures *p = (struct pictures *)source;
    const struct client_subset *subset = &p->subsets[CLIENT_HELD_OUT];
    const struct client_images *images = client_image_rows_of(source, CLIENT_HELD_OUT);

    (void)loss, (void)n_labels;
    for (uint32_t i = 0; i < subset->n; i++)
        p->targets[i] = images->list[subset->list[i]].label;
    const int rc = client_score_classes(&source->scores, source->logits, p->targets, subset->n, p->labels.n, err);
    if (!rc)
        client_score_add_top5(&source->scores, source->logits, p->targets, subset->n, p->labels.n);
    return rc;
}

const struct client_source_ops client_source_images = {
    .name = "images",
    .task = EPS_OF_IMAGES,
    .fields = 1u << CLIENT_FIELD_IDS | 1u << CLIENT_FIELD_LABELS | 1u << CLIENT_FIELD_ROWS,
    .fixes_batch = true,
    .open = open_source,
    .open_files = client_data_open_images,
    .read = read_images,
    .settle = settle,
    .measure = measure,
    .divide = divide,
    .describe = describe,
    .n_rows = n_rows,
    .n_entries = n_entries,
    .tokens = tokens,
    .pick = pick,
    .pick_held_out = pick_held_out,
    .length = length,
    .read_row = read_row,
    .read_rows = read_rows,
    .progress = progress,
    .score = score,
    .close = close_source,
};

/* ---- Facts ---- */

const struct client_frame *client_image_rows_frame(const struct client_source *source)
{
    return &of(source)->frame;
}

uint32_t client_image_rows_channels(const struct client_source *source)
{
    return of(source)->channels;
}

struct summing {
    struct pictures *p;
    struct client_channel_sums sums[CLIENT_TEAM_MOST]; /* by thread */
    uint32_t *rows;                                    /* (threads, pixels) */
};

static int add_row(void *user, unsigned thread, size_t i, struct error *err)
{
    struct summing *s = user;
    const struct client_subset *subset = &s->p->subsets[CLIENT_TRAIN];
    uint32_t *row = s->rows + (size_t)thread * n_pixels(s->p);
    const int rc = write_ids(row, s->p, thread, &s->p->images[CLIENT_TRAIN], subset->list[i], NULL, err);

    if (!rc)
        client_channel_sums_add(&s->sums[thread], row, n_pixels(s->p));
    return rc;
}

int client_image_rows_sums(struct client_channel_sums *out, struct client_source *source,
                           const struct client_watch *watch, struct error *err)
{
    struct pictures *p = (struct pictures *)source;
    const size_t n = p->subsets[CLIENT_TRAIN].n;
    const unsigned n_threads = threads_for(p, n);
    struct summing s = {.p = p, .rows = calloc((size_t)n_threads * n_pixels(p), sizeof *s.rows)};
    const int rc = s.rows ? client_team_run(n_threads, n, add_row, &s, watch, err) : error_memory(err);

    *out = (struct client_channel_sums){.n = 0};
    for (unsigned i = 0; i < n_threads; i++)
        client_channel_sums_join(out, &s.sums[i]);
    free(s.rows);
    return rc;
}

void client_image_rows_count(uint64_t *counts, const struct client_source *source, enum client_part part)
{
    const struct client_images *images = client_image_rows_of(source, part);
    const struct client_subset *subset = &of(source)->subsets[part];

    for (uint32_t i = 0; i < subset->n; i++)
        counts[images->list[subset->list[i]].label]++;
}

int client_image_rows_classes(const struct client_source *source,
                              void (*tell)(void *user, const char *name, uint64_t n_rows, uint64_t n_right), void *user,
                              struct error *err)
{
    const struct pictures *p = of(source);
    const uint32_t n = p->labels.n;
    uint64_t *rows = calloc(2 * (size_t)n + 1, sizeof *rows), *right = rows + n;

    if (!rows)
        return error_memory(err);
    for (uint32_t i = 0; i < p->subsets[CLIENT_HELD_OUT].n; i++) {
        const uint32_t label = p->targets[i];
        rows[label]++;
        right[label] += client_score_class(source->logits + (size_t)i * n, n) == label;
    }
    for (uint32_t k = 0; k < n; k++)
        tell(user, p->labels.names[k], rows[k], right[k]);
    free(rows);
    return 0;
}
