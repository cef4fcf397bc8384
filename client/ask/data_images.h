/* client/ask/data_images.h - eps_data of images: their facts. */
#ifndef CLIENT_ASK_DATA_IMAGES_H
#define CLIENT_ASK_DATA_IMAGES_H

#include "client/eps.h"
#include "proto/base/error.h"
#include "proto/base/watch.h"

/* Reads all images, and those to train on twice. -EDOM for options of text; -EINVAL, -EINTR or -errno with a
 * sentence. */
int client_data_images(struct eps_data_images *out, const struct eps_data_options *options,
                       const struct eps_data_events *events, void *user, const struct client_watch *watch,
                       struct error *err);

#endif
