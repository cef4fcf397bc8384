/* What is beside a file of images: its labels, or the names of its classes. */
#include "client/images/images_internal.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_CLASSES = 65536, NAMES_BYTES = 65536 };

/* ---- Labels ---- */

/* path with the last `from` of its base name replaced by `to`; the same path if there is none. Owned; NULL: no
 * memory. */
static char *replaced(const char *path, const char *from, const char *to)
{
    const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path, *found = NULL;
    char *out;

    for (const char *at = base; (at = strstr(at, from)); at++)
        found = at;
    if (!found)
        return strdup(path);
    return asprintf(&out, "%.*s%s%s", (int)(found - path), path, to, found + strlen(from)) < 0 ? NULL : out;
}

/* The file of labels that exists, of those that may be: as compressed as its images, or otherwise. */
static char *find_labels(const char *name, enum client_compression packing)
{
    static const char *const ends[] = {"", ".gz", ".zst"};
    const size_t n = strlen(name) - strlen(ends[packing]);
    char *path;

    for (size_t i = 0; i < 3; i++) {
        const char *end = ends[(packing + i) % 3];
        if (asprintf(&path, "%.*s%s", (int)n, name, end) < 0)
            return NULL;
        if (access(path, F_OK) == 0)
            return path;
        free(path);
    }
    return strdup(name);
}

static int name_labels(char **out, const struct client_data_file *file, struct error *err)
{
    char *kind = replaced(file->path, "idx3", "idx1"), *name = kind ? replaced(kind, "images", "labels") : NULL;
    int rc = 0;

    *out = NULL;
    if (name && kind && strcmp(name, kind) == 0)
        rc =
            error_set(err, -EINVAL,
                      "%s: a file of images has 'images' in its name, and its labels, beside it, have 'labels' in that "
                      "place: rename both",
                      file->path);
    else if (name)
        *out = find_labels(name, file->packing);
    if (!rc && !*out)
        rc = error_memory(err);
    free(kind);
    free(name);
    return rc;
}

/* raw (n elements) as labels. */
static int take_labels(uint32_t *out, uint32_t *most, const uint8_t *raw, const struct client_raw_labels *labels,
                       struct error *err)
{
    *most = 0;
    for (uint64_t i = 0; i < labels->n; i++) {
        const int64_t label = client_data_token(raw, i, labels->type);
        if (label < 0 || label >= MOST_CLASSES)
            return error_set(err, -EINVAL, "label %" PRIu64 " is %" PRId64 ": classes are numbers from 0 to %d", i,
                             label, MOST_CLASSES - 1);
        out[i] = (uint32_t)label;
        *most = out[i] > *most ? out[i] : *most;
    }
    return 0;
}

/* The labels of n images from their opened file. */
static int beside_read_labels(uint32_t **out, uint32_t *most, struct client_data_file *file, uint64_t n,
                              struct client_data_pass *pass, struct error *err)
{
    uint8_t head[CLIENT_DATA_HEAD_BYTES], *raw = NULL;
    struct client_raw_labels labels;
    size_t n_head;
    int rc = client_data_expand(pass, file, err);

    if (rc)
        return rc;
    rc = client_data_head(head, &n_head, file, err);
    if (rc)
        return rc;
    rc = client_raw_parse_labels(&labels, head, n_head, file->bytes, err);
    if (!rc && labels.n != n)
        rc = error_set(err, -EINVAL, "it has %" PRIu64 " labels, and there are %" PRIu64 " images", labels.n, n);
    if (!rc) {
        raw = malloc(labels.n * client_data_width(labels.type) + 1);
        *out = calloc(n + 1, sizeof **out);
        rc = raw && *out ? 0 : error_memory(err);
    }
    if (rc) {
        error_prefix(err, file->path);
    } else {
        rc = client_data_pread(file, raw, labels.n * client_data_width(labels.type), labels.offset, err);
        if (!rc && (rc = take_labels(*out, most, raw, &labels, err)) != 0)
            error_prefix(err, file->path);
    }
    free(raw);
    return rc;
}

int client_images_labels(uint32_t **out, uint32_t *most, const struct client_data_file *file, uint64_t n,
                         struct client_data_pass *pass, struct error *err)
{
    struct client_data_file beside = {.fd = -1};
    char *name;
    int rc = name_labels(&name, file, err);

    *out = NULL, *most = 0;
    if (rc)
        return rc;
    rc = client_data_open_file(&beside, name, err);
    beside.kind = CLIENT_DATA_BIN;
    if (!rc)
        rc = beside_read_labels(out, most, &beside, n, pass, err);
    else
        error_append(err, ": it should have the labels of %s", file->path);
    if (beside.fd >= 0)
        close(beside.fd);
    free(beside.path);
    free(name);
    return rc;
}

/* ---- Names of classes ---- */

void client_images_free_names(char **names)
{
    for (size_t i = 0; names && names[i]; i++)
        free(names[i]);
    free(names);
}

/* Lines of text, without what blanks, tabs and returns end them, and without empty ones. */
static int beside_take_names(char **names, uint32_t n, char *text, struct error *err)
{
    uint32_t found = 0;
    char *rest = text;

    for (char *line; (line = strsep(&rest, "\n")) && found <= n;) {
        size_t end = strlen(line);
        while (end > 0 && strchr(" \t\r", line[end - 1]))
            line[--end] = 0;
        if (end == 0)
            continue;
        if (found < n && !(names[found] = strdup(line)))
            return error_memory(err);
        found++;
    }
    return found == n ? 0
                      : error_set(err, -EINVAL, "it has %s than %u names of classes", found < n ? "fewer" : "more", n);
}

static int beside_read_names(char ***out, FILE *file, uint32_t n, struct error *err)
{
    char *text = calloc(NAMES_BYTES + 1, 1);
    int rc = 0;

    *out = calloc(n + (size_t)1, sizeof **out);
    if (!text || !*out)
        rc = error_memory(err);
    else
        fread(text, 1, NAMES_BYTES, file);
    if (!rc && ferror(file))
        rc = error_set(err, -EIO, "it cannot be read");
    if (!rc)
        rc = beside_take_names(*out, n, text, err);
    free(text);
    if (rc) {
        client_images_free_names(*out);
        *out = NULL;
    }
    return rc;
}

int client_images_class_names(char ***out, const struct client_data_file *file, enum client_raw_format format,
                              struct error *err)
{
    const char *base = format == CLIENT_RAW_CIFAR10 ? "batches.meta.txt" : "fine_label_names.txt";
    const char *slash = strrchr(file->path, '/');
    char *path;
    int rc = 0;

    *out = NULL;
    if (asprintf(&path, "%.*s%s", slash ? (int)(slash + 1 - file->path) : 0, file->path, base) < 0)
        return error_memory(err);
    FILE *names = fopen(path, "re");
    if (names)
        rc = beside_read_names(out, names, client_raw_classes(format), err);
    if (rc)
        error_prefix(err, path);
    if (names)
        fclose(names);
    free(path);
    return rc;
}
