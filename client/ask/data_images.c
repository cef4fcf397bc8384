/* No model is opened: its config would say no more than that there are classes, whose names the data give. The rows are
 * split as a run splits them, by the same seed, so means are those of the images that it would train on. Sums are of
 * the rows as the network sees them, scaled and cut, not of the files' pixels. */
#include "client/ask/data_images.h"

#include "client/options/options.h"
#include "client/task/image_rows.h"

#include <stdlib.h>

/* Names of classes, and the rows of each. */
static int tell_classes(const struct client_source *source, const struct eps_data_events *events, void *user,
                        struct error *err)
{
    const uint32_t n = source->labels.n;
    uint64_t *counts = calloc(2 * (size_t)n + 1, sizeof *counts);

    if (!counts)
        return error_memory(err);
    for (enum client_part part = CLIENT_TRAIN; part <= CLIENT_HELD_OUT; part++)
        client_image_rows_count(counts + part * (size_t)n, source, part);
    for (uint32_t i = 0; events->on_class && i < n; i++)
        events->on_class(user, source->labels.names[i], counts[i], counts[n + i]);
    free(counts);
    return 0;
}

/* The range of both parts' sizes. */
static void tell_sizes(struct eps_data_images *out, const struct client_source *source)
{
    struct client_image_sizes all = {0};

    for (enum client_part part = CLIENT_TRAIN; part <= CLIENT_HELD_OUT; part++)
        client_image_sizes_join(&all, &client_image_rows_of(source, part)->sizes);
    out->least_height = all.least_height, out->least_width = all.least_width;
    out->most_height = all.height, out->most_width = all.width;
}

static int data_images_tell(struct eps_data_images *out, struct client_source *source, const struct client_watch *watch,
                            struct error *err)
{
    const struct client_frame *frame = client_image_rows_frame(source);
    struct client_channel_sums sums;
    const int rc = client_image_rows_sums(&sums, source, watch, err);

    *out = (struct eps_data_images){.n = client_source_n_rows(source, CLIENT_TRAIN),
                                    .n_held_out = client_source_n_rows(source, CLIENT_HELD_OUT),
                                    .n_classes = source->labels.n,
                                    .height = frame->height,
                                    .width = frame->width,
                                    .channels = client_image_rows_channels(source)};
    tell_sizes(out, source);
    for (unsigned c = 0; !rc && c < out->channels; c++) {
        out->mean[c] = client_channel_mean(&sums, c);
        out->deviation[c] = client_channel_deviation(&sums, c);
    }
    return rc;
}

int client_data_images(struct eps_data_images *out, const struct eps_data_options *o,
                       const struct eps_data_events *events, void *user, const struct client_watch *watch,
                       struct error *err)
{
    const struct client_source_ops *kind = &client_source_images;
    const uint64_t seed = o->seed == UINT64_MAX ? 0 : o->seed;
    const struct model_config config = {.n_labels = 0};
    struct client_data data = {0}, eval_data = {0};
    struct client_labels labels = {0};
    const struct client_source_setup setup = {.config = &config,
                                              .labels = &labels,
                                              .data = &data,
                                              .eval_data = &eval_data};
    struct client_source *source = NULL;
    int rc = client_options_check_tasks(o, EPS_COMMAND_DATA, kind->facts.task, false, err);

    if (!rc)
        rc = client_labels_init(&labels, false, err);
    if (!rc)
        rc = client_source_open(&source, kind, &setup, err);
    if (!rc)
        rc = kind->open_files(&data, o->data, o->n_data, err);
    if (!rc && o->eval_data)
        rc = client_source_prefixed(kind->open_files(&eval_data, &o->eval_data, 1, err), "--eval-data", err);
    if (!rc)
        rc = client_source_read(source, &(struct client_source_rules){.image = o->image, .seed = seed, .watch = watch},
                                err);
    if (!rc)
        rc = client_source_divide(source, &(struct client_division){.seed = seed}, err);
    if (!rc)
        rc = data_images_tell(out, source, watch, err);
    if (!rc)
        rc = tell_classes(source, events, user, err);
    if (!rc && events->on_note) {
        client_unread_tell(&data, "--data", events->on_note, user);
        client_unread_tell(&eval_data, "--eval-data", events->on_note, user);
    }
    client_source_close(source);
    client_data_free(&data);
    client_data_free(&eval_data);
    return rc;
}
