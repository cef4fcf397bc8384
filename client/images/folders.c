/* Directories with a folder of images for each class. */
#include "client/images/images_internal.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MOST_DEPTH = 8 }; /* folders in a class folder; a link may make a circle */

struct folder {
    struct client_images *images;
    const struct client_watch *watch;
    const char *top; /* path of the directory of all classes */
    uint32_t file, label;
};

static bool is_image(const char *name)
{
    const char *dot = strrchr(name, '.');

    return dot && (strcasecmp(dot, ".png") == 0 || strcasecmp(dot, ".jpg") == 0 || strcasecmp(dot, ".jpeg") == 0);
}

static int add_image(const struct folder *f, const char *path, struct error *err)
{
    struct client_images *images = f->images;
    const size_t n = strlen(path) + 1;

    if (n > images->cap_names - images->n_names) {
        const size_t cap = 2 * images->cap_names + n + 4096;
        char *larger = realloc(images->names, cap);
        if (!larger)
            return error_set(err, -ENOMEM, "no memory for so many names");
        images->names = larger, images->cap_names = cap;
    }
    memcpy(images->names + images->n_names, path, n);
    const struct client_image_entry entry = {images->n_names, f->file, f->label};
    images->n_names += n;
    return client_images_add(images, entry, err);
}

static int add_folder(const struct folder *f, const char *path, unsigned depth, struct error *err);

/* path: of the entry, within the directory of all classes. */
static int folders_add_entry(const struct folder *f, const char *path, unsigned depth, struct error *err)
{
    struct stat st;

    if (fstatat(f->images->data->files[f->file].fd, path, &st, 0))
        return error_set(err, -errno, "%s/%s: %s", f->top, path, strerror(errno));
    if (S_ISDIR(st.st_mode))
        return add_folder(f, path, depth + 1, err);
    if (S_ISREG(st.st_mode) && is_image(path))
        return add_image(f, path, err);
    client_unread_pass(f->images->data, path);
    return 0;
}

static int add_folder(const struct folder *f, const char *path, unsigned depth, struct error *err)
{
    const int top = f->images->data->files[f->file].fd;
    struct dirent **entries = NULL;
    const int n = depth > MOST_DEPTH ? 0 : client_data_scan(&entries, top, path);
    int rc = client_watch_ask(f->watch, err);

    if (!rc && depth > MOST_DEPTH)
        rc = error_set(err, -EINVAL, "%s/%s: folders in it are more than %d deep: is one a link to another?", f->top,
                       path, MOST_DEPTH);
    if (!rc && n < 0)
        rc = error_set(err, -errno, "%s/%s: %s", f->top, path, strerror(errno));
    for (int i = 0; i < n; i++) {
        char *at = NULL;
        if (!rc && asprintf(&at, "%s/%s", path, entries[i]->d_name) < 0)
            rc = error_memory(err);
        if (!rc)
            rc = folders_add_entry(f, at, depth, err);
        free(at);
        free(entries[i]);
    }
    free(entries);
    return rc;
}

static int add_class(struct folder *f, const char *name, const struct client_images_rules *rules, struct error *err)
{
    const size_t before = f->images->n;
    int rc = rules->classes.find(&f->label, rules->classes.user, name, err);

    if (rc) {
        error_prefix(err, f->top);
        return rc;
    }
    rc = add_folder(f, name, 1, err);
    if (!rc && f->images->n == before)
        rc = error_set(err, -EINVAL,
                       "%s/%s: no file in this folder of a class ends in .png, .jpg or .jpeg: fill it, or remove it",
                       f->top, name);
    return rc;
}

static bool folders_is_directory(int top, const char *name)
{
    struct stat st;

    return fstatat(top, name, &st, 0) == 0 && S_ISDIR(st.st_mode);
}

/* "train" and "val" are no classes. */
static int refuse_parts(const char *top, struct dirent **entries, int n, struct error *err)
{
    bool train = false, other = false;

    for (int i = 0; i < n; i++) {
        const char *name = entries[i]->d_name;
        train = train || strcmp(name, "train") == 0;
        other = other || strcmp(name, "val") == 0 || strcmp(name, "test") == 0 || strcmp(name, "valid") == 0 ||
                strcmp(name, "validation") == 0;
    }
    return train && other
               ? error_set(err, -EINVAL,
                           "%s: its folders are parts of a data set, not classes: name %s/train, and another "
                           "as --eval-data",
                           top, top)
               : 0;
}

int client_images_add_folders(struct client_images *images, uint32_t file, const struct client_images_rules *rules,
                              struct error *err)
{
    const struct client_data_file *from = &images->data->files[file];
    struct folder folder = {.images = images, .watch = rules->watch, .top = from->path, .file = file};
    struct dirent **entries = NULL;
    const int n = client_data_scan(&entries, from->fd, ".");
    int rc = n < 0 ? error_set(err, -errno, "%s: %s", from->path, strerror(errno))
                   : refuse_parts(from->path, entries, n, err);

    for (int i = 0; i < n; i++) {
        if (!rc && folders_is_directory(from->fd, entries[i]->d_name))
            rc = add_class(&folder, entries[i]->d_name, rules, err);
        else if (!rc)
            client_unread_pass(images->data, entries[i]->d_name);
        free(entries[i]);
    }
    free(entries);
    return rc;
}
