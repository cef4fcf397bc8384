/* client/images/images.h - labelled images from files: where each is, its class, and its pixels when they are asked
 * for.
 *
 *   files               labels                                      names of classes
 *   CIFAR's .bin        in the records                              batches.meta.txt or fine_label_names.txt beside it
 *   IDX, .npy           a file beside it, whose name has "labels"   numbers
 *                       where its own has "images", and "idx1"
 *                       where its own has "idx3"
 *   a directory of a    the folders                                 the folders'
 *   folder each class
 *
 * Files may be compressed (client/data/data.h), labels also where their images are not. Without names the classes are
 * numbers from 0 to the largest label; of CIFAR all ten or hundred, whichever occur. A class folder gives its files
 * that end in .png, .jpg or .jpeg, and those in its own folders; others, and what begins with a dot, are passed over.
 *
 * Every image is read and decoded once, on all processors, so that a damaged one is found now rather than after hours,
 * and then again whenever it is asked for. An image takes 16 bytes of memory, in folders beside its name; and decoding
 * takes on each thread the bytes of the largest file and of the largest image, at most 64 Mi pixels. */
#ifndef CLIENT_IMAGES_IMAGES_H
#define CLIENT_IMAGES_IMAGES_H

#include "client/data/data.h"
#include "client/images/image.h"
#include "client/images/raw.h"
#include "client/images/team.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct client_image_entry {
    uint64_t at;    /* number of its record, or where its path in the folder begins in `names` */
    uint32_t file;  /* of the data's files */
    uint32_t label; /* its class */
};

struct client_image_sizes {
    uint32_t least_height, least_width, height, width; /* of any image; the largest of each */
};
/* Widens all, zeroed at first, by more; one that is still zeroed changes nothing. */
void client_image_sizes_join(struct client_image_sizes *all, const struct client_image_sizes *more);

struct client_images {
    struct client_image_entry *list; /* (n), owned */
    size_t n, cap;
    char *names; /* (n_names) paths of images in folders, each with its end; owned */
    size_t n_names, cap_names;
    struct client_raw *raws;  /* (n_files of the data) of those that are no folders; owned */
    struct client_data *data; /* borrowed */
    struct client_image_sizes sizes;
    uint32_t channels; /* 3 if any image is in colour */
    bool encoded;      /* some are in folders: reading one takes long */
    uint64_t hash;     /* xxh3, 64 bits, over the stored bytes of all images in order, and their labels */
};

/* Class `number` of a file's images has this name, and the number *label in the list of all. -EINVAL with a sentence:
 * it is no class of the model. Rows keep the list (client/corpus/labels.h), which this folder comes before. */
struct client_image_classes {
    int (*find)(uint32_t *label, void *user, const char *name, struct error *err);
    void *user;
};

struct client_images_rules {
    struct client_image_classes classes;
    unsigned n_threads;               /* at most CLIENT_TEAM_MOST */
    const struct client_watch *watch; /* as in client_data_rules */
};

/* Reads every image of the files (client_data_open_images), which stay the caller's and must live as long. -EINVAL or
 * -errno with a sentence that begins with the file: it is of no known format, damaged or truncated, an image is too
 * large, labels are missing or out of range, a class folder has no image. Undo: client_images_free, also after a
 * failure. */
int client_images_read(struct client_images *out, struct client_data *data, const struct client_images_rules *rules,
                       struct error *err);
/* Gives class i the number to[i] (NULL: all stay), and adds the labels to the hash. Once, after reading. */
void client_images_number(struct client_images *images, const uint32_t *to);
void client_images_free(struct client_images *images); /* safe on a zeroed struct */

/* Memory of one thread that reads images. Zeroed at first. */
struct client_images_room {
    struct client_image image; /* the last one that was read */
    uint8_t *bytes;            /* (cap), of its file or record */
    size_t n, cap;
};
void client_images_free_room(struct client_images_room *room);

/* Reads image k into room->image. Threads may do so at once, each with a room of its own. -EINVAL with a sentence that
 * begins with the file; -EIO if it has become shorter; -errno. */
int client_images_get(struct client_images_room *room, const struct client_images *images, size_t k, struct error *err);

#endif
