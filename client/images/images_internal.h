/* client/images/images_internal.h - shared by images.c, folders.c and beside.c. */
#ifndef CLIENT_IMAGES_IMAGES_INTERNAL_H
#define CLIENT_IMAGES_IMAGES_INTERNAL_H

#include "client/data/data_file.h"
#include "client/images/images.h"

int client_images_add(struct client_images *images, struct client_image_entry entry, struct error *err); /* -ENOMEM */

/* Adds the images of a directory of class folders. -EINVAL or -errno with a sentence. In folders.c. */
int client_images_add_folders(struct client_images *images, uint32_t file, const struct client_images_rules *rules,
                              struct error *err);

/* The labels (n) of a file of images that has none in it: from the file beside it. Owned: free. *most is the largest.
 * In beside.c. */
int client_images_labels(uint32_t **out, uint32_t *most, const struct client_data_file *file, uint64_t n,
                         struct client_data_pass *pass, struct error *err);

/* The names of CIFAR's classes, of which there must be n: a list that ends with NULL, or *out is NULL if there is no
 * file of names. Owned: client_images_free_names. In beside.c. */
int client_images_class_names(char ***out, const struct client_data_file *file, enum client_raw_format format,
                              struct error *err);
void client_images_free_names(char **names); /* safe on NULL */

#endif
