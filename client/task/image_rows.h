/* client/task/image_rows.h - what a source of the kind images knows of its rows (client/task/images.c). */
#ifndef CLIENT_TASK_IMAGE_ROWS_H
#define CLIENT_TASK_IMAGE_ROWS_H

#include "client/images/images.h"
#include "client/images/sums.h"
#include "client/images/view.h"
#include "client/task/source.h"

/* The images that a part was read from; of the rows held out of data, those of data. Borrowed. */
const struct client_images *client_image_rows_of(const struct client_source *source, enum client_part part);

/* The size of a row, once the source is settled. Borrowed. */
const struct client_frame *client_image_rows_frame(const struct client_source *source);
/* 1: all images are grey; else 3. */
uint32_t client_image_rows_channels(const struct client_source *source);

/* Sums by channel over the rows to train on, as an evaluation sees them, once they are divided: exact, whatever the
 * number of threads. Reads them all. Errors as read_row; the watch's. */
int client_image_rows_sums(struct client_channel_sums *out, struct client_source *source,
                           const struct client_watch *watch, struct error *err);

/* After an evaluation (score): of each class its rows held out, and how many of them were predicted. -ENOMEM. */
int client_image_rows_classes(const struct client_source *source,
                              void (*tell)(void *user, const char *name, uint64_t n_rows, uint64_t n_right), void *user,
                              struct error *err);

/* Adds to counts (source->labels->n) the rows of each class in a part, once they are divided. */
void client_image_rows_count(uint64_t *counts, const struct client_source *source, enum client_part part);

#endif
