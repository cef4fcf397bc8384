/* The checksum must not depend on threads. Records are added to it as files are read, in their order. Images in folders
 * are hashed on any thread, each hash to a place of its own, and these are added when all are done. Labels come last
 * (client_images_number), as their numbers are known only then. */
#include "client/images/images.h"

#include "client/images/encoded.h"
#include "client/images/images_internal.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

enum { MOST_FILE_BYTES = 256 << 20 };

/* ---- One image ---- */

static int make_bytes(struct client_images_room *room, size_t n, struct error *err)
{
    room->n = n;
    if (n <= room->cap)
        return 0;
    free(room->bytes);
    room->bytes = malloc(n);
    room->cap = room->bytes ? n : 0;
    return room->bytes ? 0 : error_memory(err);
}

static int get_raw(struct client_images_room *room, const struct client_images *images,
                   const struct client_image_entry *entry, struct error *err)
{
    const struct client_raw *raw = &images->raws[entry->file];
    const size_t n = client_raw_bytes(raw);
    int rc = make_bytes(room, n, err);

    if (!rc)
        rc = client_data_pread(&images->data->files[entry->file], room->bytes, n, raw->offset + entry->at * n, err);
    room->image.height = raw->height, room->image.width = raw->width, room->image.channels = raw->channels;
    if (!rc)
        rc = client_image_make_room(&room->image, err);
    if (!rc)
        client_raw_take(&room->image, raw, room->bytes);
    return rc;
}

/* Reads a whole file of a folder. */
static int images_read_file(struct client_images_room *room, int folder, const char *name, char *path,
                            struct error *err)
{
    struct client_data_file file = {.path = path, .fd = openat(folder, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
    struct stat st;
    int rc;

    if (file.fd < 0)
        return error_set(err, -errno, "%s: %s", path, strerror(errno));
    if (fstat(file.fd, &st))
        rc = error_set(err, -errno, "%s: %s", path, strerror(errno));
    else if (!S_ISREG(st.st_mode))
        rc = error_set(err, -EINVAL, "%s: not a regular file", path);
    else if (st.st_size > MOST_FILE_BYTES)
        rc = error_set(err, -EINVAL, "%s: an image of %jd bytes is larger than %d: shrink it", path,
                       (intmax_t)st.st_size, MOST_FILE_BYTES);
    else if (!(rc = make_bytes(room, (size_t)st.st_size, err)))
        rc = client_data_pread(&file, room->bytes, room->n, 0, err);
    close(file.fd);
    return rc;
}

static int get_encoded(struct client_images_room *room, const struct client_images *images,
                       const struct client_image_entry *entry, struct error *err)
{
    const struct client_data_file *folder = &images->data->files[entry->file];
    const char *name = images->names + entry->at;
    char path[ERROR_TEXT_BYTES]; /* for a sentence, which is no longer */
    const size_t n = strlen(folder->path);

    snprintf(path, sizeof path, "%s%s%s", folder->path, n > 0 && folder->path[n - 1] == '/' ? "" : "/", name);
    int rc = images_read_file(room, folder->fd, name, path, err);
    if (!rc && (rc = client_encoded_decode(&room->image, room->bytes, room->n, err)) != 0)
        error_prefix(err, path);
    return rc;
}

int client_images_get(struct client_images_room *room, const struct client_images *images, size_t k, struct error *err)
{
    const struct client_image_entry *entry = &images->list[k];

    assert(k < images->n);
    return images->data->files[entry->file].is_folder ? get_encoded(room, images, entry, err)
                                                      : get_raw(room, images, entry, err);
}

void client_images_free_room(struct client_images_room *room)
{
    client_image_free(&room->image);
    free(room->bytes);
    *room = (struct client_images_room){0};
}

/* ---- The list ---- */

int client_images_add(struct client_images *images, struct client_image_entry entry, struct error *err)
{
    if (images->n == images->cap) {
        const size_t cap = images->cap ? 2 * images->cap : 1024;
        struct client_image_entry *larger =
            cap > UINT32_MAX / 2 ? NULL : realloc(images->list, cap * sizeof *images->list);
        if (!larger)
            return error_set(err, -ENOMEM, "no memory for so many images");
        images->list = larger, images->cap = cap;
    }
    images->list[images->n++] = entry;
    return 0;
}

/* The numbers that a file's classes have in the list of all: to (n). names may be NULL. */
static int find_classes(uint32_t *to, uint32_t n, char **names, const struct client_images_rules *rules,
                        struct error *err)
{
    int rc = 0;

    for (uint32_t i = 0; !rc && i < n; i++) {
        char number[16];
        snprintf(number, sizeof number, "%" PRIu32, i);
        rc = rules->classes.find(&to[i], rules->classes.user, names ? names[i] : number, err);
    }
    return rc;
}

/* CIFAR's labels, from the records; both bytes of CIFAR-100's must be labels. */
static int images_read_labels(uint32_t *labels, const struct client_data_file *file, const struct client_raw *raw,
                              struct client_data_pass *pass, struct error *err)
{
    const size_t record = client_raw_bytes(raw);
    uint8_t *bytes = malloc(record);
    int rc = bytes ? 0 : error_memory(err);

    for (uint64_t i = 0; !rc && i < raw->n; i++) {
        rc = client_data_next(pass, file, bytes, record, i * record, err);
        if (rc)
            break;
        labels[i] = bytes[raw->skip - 1];
        if (labels[i] >= client_raw_classes(raw->format) || (raw->skip == 2 && bytes[0] >= 20))
            rc = error_set(err, -EINVAL,
                           "%s: record %" PRIu64 " has the label %u, and CIFAR-%u has %s: it is another kind of file",
                           file->path, i, raw->skip == 2 && bytes[0] >= 20 ? bytes[0] : labels[i],
                           client_raw_classes(raw->format), raw->skip == 2 ? "20 coarse and 100 fine ones" : "10");
        client_data_add(pass, bytes, record);
    }
    free(bytes);
    return rc;
}

/* Adds the pixels of files whose labels are apart to the hash. */
static int hash_pixels(const struct client_data_file *file, const struct client_raw *raw, struct client_data_pass *pass,
                       struct error *err)
{
    enum { BLOCK = 1 << 20 };
    uint8_t *bytes = malloc(BLOCK);
    int rc = bytes ? 0 : error_memory(err);

    for (uint64_t left = file->bytes - raw->offset; !rc && left > 0;) {
        const size_t n = left < BLOCK ? (size_t)left : BLOCK;
        rc = client_data_next(pass, file, bytes, n, file->bytes - left, err);
        if (!rc)
            client_data_add(pass, bytes, n);
        left -= n;
    }
    free(bytes);
    return rc;
}

static int read_head(struct client_raw *raw, const struct client_data_file *file, struct error *err)
{
    const bool is_bin = client_data_ends_with(file->path, client_data_stem(file->path), ".bin");
    uint8_t head[CLIENT_DATA_HEAD_BYTES];
    size_t n;
    int rc = client_data_head(head, &n, file, err);

    if (rc)
        return rc;
    rc = client_raw_parse(raw, head, n, file->bytes, is_bin, err);
    if (rc)
        error_prefix(err, file->path);
    return rc;
}

static int add_labelled(struct client_images *images, uint32_t file, const uint32_t *labels, uint32_t n_classes,
                        char **names, const struct client_images_rules *rules, struct error *err)
{
    uint32_t *to = calloc(n_classes, sizeof *to);
    int rc = to ? find_classes(to, n_classes, names, rules, err) : error_memory(err);

    for (uint64_t i = 0; !rc && i < images->raws[file].n; i++)
        rc = client_images_add(images, (struct client_image_entry){i, file, to[labels[i]]}, err);
    free(to);
    return rc;
}

static int add_raw(struct client_images *images, uint32_t number, struct client_data_pass *pass,
                   const struct client_images_rules *rules, struct error *err)
{
    struct client_data_file *file = &pass->data->files[number];
    struct client_raw *raw = &images->raws[number];
    uint32_t *labels = NULL, n_classes;
    char **names = NULL;
    int rc = client_data_expand(pass, file, err);

    if (!rc)
        rc = read_head(raw, file, err);
    if (rc)
        return rc;
    n_classes = client_raw_classes(raw->format);
    if (n_classes > 0) {
        labels = calloc(raw->n + 1, sizeof *labels);
        rc = labels ? images_read_labels(labels, file, raw, pass, err) : error_memory(err);
        if (!rc)
            rc = client_images_class_names(&names, file, raw->format, err);
    } else {
        rc = client_images_labels(&labels, &n_classes, file, raw->n, pass, err);
        n_classes++;
        if (!rc)
            rc = hash_pixels(file, raw, pass, err);
    }
    if (!rc && (rc = add_labelled(images, number, labels, n_classes, names, rules, err)) != 0 && rc != -EINTR)
        error_prefix(err, file->path);
    client_images_free_names(names);
    free(labels);
    return rc;
}

/* ---- Every image once ---- */

struct check {
    struct client_images *images;
    struct client_images_room rooms[CLIENT_TEAM_MOST];
    struct seen {
        struct client_image_sizes sizes;
        uint32_t channels;
    } seen[CLIENT_TEAM_MOST]; /* by thread */
    uint64_t *hashes;         /* (images->n) of the stored bytes of each in a folder */
};

void client_image_sizes_join(struct client_image_sizes *all, const struct client_image_sizes *more)
{
    const bool first = all->height == 0;

    if (more->height == 0)
        return;
    all->least_height = first || more->least_height < all->least_height ? more->least_height : all->least_height;
    all->least_width = first || more->least_width < all->least_width ? more->least_width : all->least_width;
    all->height = more->height > all->height ? more->height : all->height;
    all->width = more->width > all->width ? more->width : all->width;
}

static void see(struct seen *to, const struct client_image_sizes *sizes, uint32_t channels)
{
    client_image_sizes_join(&to->sizes, sizes);
    to->channels = channels > to->channels ? channels : to->channels;
}

static int check_image(void *user, unsigned thread, size_t k, struct error *err)
{
    struct check *c = user;
    struct client_images_room *room = &c->rooms[thread];
    const struct client_image *image = &room->image;

    if (!c->images->data->files[c->images->list[k].file].is_folder)
        return 0; /* nothing in a record can be damaged */
    const int rc = client_images_get(room, c->images, k, err);
    if (rc)
        return rc;
    c->hashes[k] = XXH3_64bits(room->bytes, room->n);
    see(&c->seen[thread], &(struct client_image_sizes){image->height, image->width, image->height, image->width},
        image->channels);
    return 0;
}

/* Sizes and channels of all images, and of those in folders whether they can be decoded. */
static int check_images(struct client_images *images, struct client_data_pass *pass,
                        const struct client_images_rules *rules, struct error *err)
{
    struct check *c = calloc(1, sizeof *c);
    struct seen seen = {.channels = 0};
    int rc = 0;

    if (c)
        *c = (struct check){.images = images, .hashes = calloc(images->n + 1, sizeof *c->hashes)};
    if (!c || !c->hashes)
        rc = error_memory(err);
    if (!rc && images->encoded)
        rc = client_team_run(rules->n_threads, images->n, check_image, c, rules->watch, err);
    for (size_t i = 0; !rc && i < CLIENT_TEAM_MOST; i++)
        if (c->seen[i].channels > 0)
            see(&seen, &c->seen[i].sizes, c->seen[i].channels);
    for (size_t i = 0; !rc && i < pass->data->n_files; i++) {
        const struct client_raw *raw = &images->raws[i];
        if (raw->n > 0)
            see(&seen, &(struct client_image_sizes){raw->height, raw->width, raw->height, raw->width}, raw->channels);
    }
    images->sizes = seen.sizes, images->channels = seen.channels;
    if (!rc)
        client_data_add(pass, (const uint8_t *)c->hashes, images->n * sizeof *c->hashes);
    for (size_t i = 0; c && i < CLIENT_TEAM_MOST; i++)
        client_images_free_room(&c->rooms[i]);
    free(c ? c->hashes : NULL);
    free(c);
    return rc;
}

static int images_read_all(struct client_images *images, struct client_data_pass *pass,
                           const struct client_images_rules *rules, struct error *err)
{
    int rc = client_data_refuse_weights(pass->data, err);

    images->raws = calloc(pass->data->n_files + 1, sizeof *images->raws);
    if (!images->raws)
        rc = error_memory(err);
    for (uint32_t i = 0; !rc && i < pass->data->n_files; i++) {
        const bool is_folder = pass->data->files[i].is_folder;
        images->encoded = images->encoded || is_folder;
        rc = is_folder ? client_images_add_folders(images, i, rules, err) : add_raw(images, i, pass, rules, err);
    }
    return rc ? rc : check_images(images, pass, rules, err);
}

int client_images_read(struct client_images *out, struct client_data *data, const struct client_images_rules *rules,
                       struct error *err)
{
    const struct client_data_rules read = {.watch = rules->watch};
    XXH3_state_t *hash = XXH3_createState();
    struct client_data_pass pass = {.data = data, .rules = &read, .hash = hash};

    *out = (struct client_images){.data = data};
    if (!hash)
        return error_memory(err);
    XXH3_64bits_reset(hash);
    int rc = images_read_all(out, &pass, rules, err);
    if (!rc && out->n == 0)
        rc = error_set(err, -EINVAL, "%s: it has no images", data->files[0].path);
    out->hash = XXH3_64bits_digest(hash);
    XXH3_freeState(hash);
    return rc;
}

void client_images_number(struct client_images *images, const uint32_t *to)
{
    for (size_t i = 0; i < images->n; i++) {
        uint32_t *label = &images->list[i].label;
        *label = to ? to[*label] : *label;
        images->hash = XXH3_64bits_withSeed(label, sizeof *label, images->hash);
    }
}

void client_images_free(struct client_images *images)
{
    free(images->list);
    free(images->names);
    free(images->raws);
    *images = (struct client_images){0};
}
