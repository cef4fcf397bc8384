/* Files are opened when they are named, and stay open: a name that is given to another file later changes nothing, but
 * in a folder of images. Of what is written over in place a token outside the vocabulary is found, and an end that
 * comes too soon. Such a token is -EIO in a later read: the file was right once. */
#include "client/data/data_file.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CHUNK_BYTES = 16384, MOST_WEIGHT = 1000 };

unsigned client_data_width(enum client_integer type)
{
    static const unsigned widths[] = {
        [CLIENT_U8] = 1, [CLIENT_U16] = 2, [CLIENT_U32] = 4, [CLIENT_I32] = 4, [CLIENT_I64] = 8};
    return widths[type];
}

int client_data_pread(const struct client_data_file *file, uint8_t *out, size_t n, uint64_t offset, struct error *err)
{
    while (n > 0) {
        ssize_t got = pread(file->fd, out, n, (off_t)offset);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return error_set(err, -errno, "%s: %s", file->path, strerror(errno));
        if (got == 0)
            return error_set(err, -EIO, "%s: became shorter while it was read", file->path);
        out += got, offset += (uint64_t)got, n -= (size_t)got;
    }
    return 0;
}

int client_data_outside(const struct client_data_file *file, uint64_t at, int64_t token, uint32_t vocabulary,
                        struct error *err)
{
    return error_set(err, -EINVAL, "%s: token %" PRIu64 " is %" PRId64 ", outside the model's vocabulary of %u",
                     file->path, at, token, vocabulary);
}

/* Reads tokens first .. first+n-1 of one file. Each is checked against the vocabulary again, as the file may have
 * changed. */
static int data_read_file(const struct client_data_file *file, uint32_t vocabulary, uint32_t *out, uint64_t first,
                          uint64_t n, struct error *err)
{
    const unsigned width = client_data_width(file->type);
    uint8_t raw[CHUNK_BYTES];

    while (n > 0) {
        const uint64_t now = n < CHUNK_BYTES / width ? n : CHUNK_BYTES / width;
        int rc = client_data_pread(file, raw, (size_t)now * width, file->offset + first * width, err);
        if (rc)
            return rc;
        for (uint64_t i = 0; i < now; i++) {
            const int64_t token = client_data_token(raw, i, file->type);
            if (token < 0 || token >= vocabulary)
                return client_data_outside(file, first + i, token, vocabulary, err);
            *out++ = (uint32_t)token;
        }
        first += now, n -= now;
    }
    return 0;
}

bool client_data_ends_with(const char *path, size_t n, const char *end)
{
    const size_t m = strlen(end);
    return n > m && strncasecmp(path + n - m, end, m) == 0;
}

static enum client_compression data_packing_of(const char *path)
{
    const size_t n = strlen(path);

    return client_data_ends_with(path, n, ".gz")    ? CLIENT_GZIP
           : client_data_ends_with(path, n, ".zst") ? CLIENT_ZSTD
                                                    : CLIENT_PLAIN;
}

size_t client_data_stem(const char *path)
{
    static const size_t suffixes[] = {
        [CLIENT_PLAIN] = 0, [CLIENT_GZIP] = sizeof ".gz" - 1, [CLIENT_ZSTD] = sizeof ".zst" - 1};

    return strlen(path) - suffixes[data_packing_of(path)];
}

/* Sets format and compression according to the name. Returns false for a suffix that a directory's file must not have;
 * a user may still name such a file, as text. */
static bool set_format(struct client_data_file *file, const char *path, bool rows)
{
    static const struct {
        const char *end;
        enum client_data_kind kind;
        bool in_stream, in_rows;
    } ends[] = {{".txt", CLIENT_DATA_TEXT, true, false},   {".md", CLIENT_DATA_TEXT, true, false},
                {".jsonl", CLIENT_DATA_LINES, true, true}, {".ndjson", CLIENT_DATA_LINES, true, true},
                {".bin", CLIENT_DATA_BIN, true, false},    {".npy", CLIENT_DATA_NPY, true, false},
                {".tsv", CLIENT_DATA_TEXT, false, true}};
    const size_t n = client_data_stem(path);

    file->kind = CLIENT_DATA_TEXT;
    file->packing = data_packing_of(path);
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        if (client_data_ends_with(path, n, ends[i].end)) {
            file->kind = ends[i].kind;
            return rows ? ends[i].in_rows : ends[i].in_stream;
        }
    }
    return false;
}

int client_data_describe_npy(struct client_data_file *file, struct error *err)
{
    const uint64_t size = file->bytes;
    uint8_t head[CLIENT_DATA_HEAD_BYTES];
    struct client_npy npy;
    size_t n;
    int rc = client_data_head(head, &n, file, err);

    if (rc)
        return rc;
    rc = client_npy_parse(&npy, head, n, err);
    if (rc) {
        error_prefix(err, file->path);
        return rc;
    }
    const unsigned width = client_data_width(npy.type);
    file->type = npy.type, file->offset = npy.offset, file->n = npy.n;
    file->bytes = size - npy.offset;
    if (file->bytes % width || file->bytes / width != npy.n)
        return error_set(err, -EINVAL, "%s: its header promises %" PRIu64 " tokens, but its size is that of %" PRIu64,
                         file->path, npy.n, file->bytes / width);
    return 0;
}

int client_data_open_file(struct client_data_file *file, const char *path, struct error *err)
{
    struct stat st;

    *file = (struct client_data_file){.path = strdup(path), .fd = -1};
    if (!file->path)
        return error_set(err, -ENOMEM, "%s: out of memory", path);
    file->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO must not block before it is refused */
    if (file->fd < 0)
        return error_set(err, -errno, "%s: %s", path, strerror(errno));
    if (fstat(file->fd, &st))
        return error_set(err, -errno, "%s: %s", path, strerror(errno));
    if (!S_ISREG(st.st_mode))
        return error_set(err, -EINVAL, "%s: not a regular file: pipe it in, as --data -", path);
    set_format(file, path, false);
    file->bytes = (uint64_t)st.st_size;
    return 0;
}

/* A compressed file is described once it is unpacked. */
static int file_open(struct client_data_file *file, const char *path, struct error *err)
{
    const int rc = client_data_open_file(file, path, err);

    if (rc || file->kind != CLIENT_DATA_NPY || file->packing != CLIENT_PLAIN)
        return rc;
    return client_data_describe_npy(file, err);
}

/* A file of images may begin with any bytes, as a file of ids does. */
static int images_open(struct client_data_file *file, const char *path, struct error *err)
{
    const int rc = client_data_open_file(file, path, err);

    file->kind = CLIENT_DATA_BIN;
    return rc;
}

static int folder_open(struct client_data_file *file, const char *path, struct error *err)
{
    *file = (struct client_data_file){.path = strdup(path), .fd = -1, .kind = CLIENT_DATA_BIN, .is_folder = true};
    if (!file->path)
        return error_set(err, -ENOMEM, "%s: out of memory", path);
    file->fd = open(path, O_RDONLY | O_CLOEXEC | O_DIRECTORY);
    return file->fd < 0 ? error_set(err, -errno, "%s: %s", path, strerror(errno)) : 0;
}

/* A copy of the descriptor, so that it is closed like any other file's. */
static int input_open(struct client_data_file *file, bool images, struct error *err)
{
    *file = (struct client_data_file){.path = strdup(CLIENT_DATA_INPUT), .fd = -1, .stream = true};
    if (!file->path)
        return error_set(err, -ENOMEM, "standard input: out of memory");
    if (images)
        return error_set(err, -EINVAL, "- is standard input, and images are files: name files, or a directory");
    if (isatty(STDIN_FILENO))
        return error_set(err, -EINVAL, "- is standard input, which is a terminal: pipe a text into it");
    file->fd = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 0);
    return file->fd < 0 ? error_set(err, -errno, "standard input: %s", strerror(errno)) : 0;
}

static int data_add_file(struct client_data *data, const char *path, bool is_folder, struct error *err)
{
    struct client_data_file *files = realloc(data->files, (data->n_files + 1) * sizeof *files);
    const bool input = strcmp(path, CLIENT_DATA_INPUT) == 0;

    if (!files)
        return error_set(err, -ENOMEM, "%s: out of memory", path);
    data->files = files;
    for (size_t i = 0; input && i < data->n_files; i++) {
        if (files[i].stream)
            return error_set(err, -EINVAL, "- is standard input, which can be read only once: name it once");
    }
    struct client_data_file *file = &files[data->n_files++];
    int rc = input          ? input_open(file, data->images, err)
             : is_folder    ? folder_open(file, path, err)
             : data->images ? images_open(file, path, err)
                            : file_open(file, path, err);
    file->weight = 1;
    data->has_text = data->has_text || client_data_is_a_text(file);
    return rc;
}

static int is_shown(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

static int by_bytes(const struct dirent **a, const struct dirent **b) /* one order for every locale */
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

int client_data_scan(struct dirent ***out, int at, const char *path)
{
    return scandirat(at, path, out, is_shown, by_bytes);
}

/* True of a directory's files of training images. */
static bool is_training_images(const char *name)
{
    const size_t n = client_data_stem(name);

    return (client_data_ends_with(name, n, ".bin") || strstr(name, "images")) && strncasecmp(name, "test", 4) != 0 &&
           strncasecmp(name, "t10k", 4) != 0;
}

/* True of files that are read with those of images: labels, and names of classes. */
static bool is_beside_images(const char *name)
{
    return strstr(name, "labels") || strcmp(name, "batches.meta.txt") == 0 || strcmp(name, "fine_label_names.txt") == 0;
}

static int data_add_entry(struct client_data *data, const char *directory, const char *name, struct error *err)
{
    struct client_data_file named;
    struct stat st;
    char *path;
    int rc = 0;

    if (asprintf(&path, "%s%s%s", directory, client_data_ends_with(directory, strlen(directory), "/") ? "" : "/",
                 name) < 0)
        return error_set(err, -ENOMEM, "%s: out of memory", directory);
    const bool known = stat(path, &st) == 0;
    if (known && S_ISREG(st.st_mode)) {
        if (data->images ? is_training_images(name) : set_format(&named, path, data->rows))
            rc = data_add_file(data, path, false, err);
        else if (!data->images || !is_beside_images(name))
            client_unread_pass(data, name);
    } else if (known && S_ISDIR(st.st_mode)) {
        if (data->n_folders++ == 0)
            data->folder = path, path = NULL;
    }
    free(path);
    return rc;
}

const char *client_data_suffixes(const struct client_data *data)
{
    if (data->images)
        return data->n_files > 0 && !data->files[0].is_folder ? "images, nor CIFAR's .bin" : ".png, .jpg or .jpeg";
    return data->rows ? ".tsv or .jsonl" : ".txt, .md, .jsonl, .bin or .npy";
}

static int add_directory(struct client_data *data, const char *directory, struct error *err)
{
    struct dirent **entries;
    const size_t before = data->n_files;
    const int n = client_data_scan(&entries, AT_FDCWD, directory);
    int rc = n < 0 ? error_set(err, -errno, "%s: %s", directory, strerror(errno)) : 0;

    for (int i = 0; i < n; i++) {
        if (!rc)
            rc = data_add_entry(data, directory, entries[i]->d_name, err);
        free(entries[i]);
    }
    if (n >= 0)
        free(entries);
    if (!rc && data->n_files == before && data->images)
        rc = error_set(err, -ENOENT,
                       "%s: no training images in it: a folder for each class, CIFAR's .bin, or files with 'images' in "
                       "their name; files that begin with test or t10k are named one by one",
                       directory);
    else if (!rc && data->n_files == before)
        rc = error_set(err, -ENOENT,
                       "%s: no file in it ends in %s, with or without .gz or .zst%s%s: name files, or a pattern",
                       directory, client_data_suffixes(data),
                       data->folder ? ", and folders in it are not searched, as " : "",
                       data->folder ? data->folder : "");
    return rc;
}

/* Folders in a directory of images are its classes. */
static bool has_directories(const char *directory)
{
    DIR *dir = opendir(directory);
    const struct dirent *entry;
    struct stat st;
    bool found = false;

    while (dir && !found && (entry = readdir(dir)))
        found = is_shown(entry) && fstatat(dirfd(dir), entry->d_name, &st, 0) == 0 && S_ISDIR(st.st_mode);
    if (dir)
        closedir(dir);
    return found;
}

static int data_add_path(struct client_data *data, const char *path, struct error *err)
{
    struct stat st;

    if (stat(path, &st) || !S_ISDIR(st.st_mode))
        return data_add_file(data, path, false, err);
    return data->images && has_directories(path) ? data_add_file(data, path, true, err)
                                                 : add_directory(data, path, err);
}

static int add_matches(struct client_data *data, const char *pattern, struct error *err)
{
    glob_t found = {0};
    int rc = glob(pattern, GLOB_ERR, NULL, &found);

    if (rc == GLOB_NOMATCH)
        rc = error_set(err, -ENOENT, "%s: no file matches", pattern);
    else if (rc)
        rc = error_set(err, rc == GLOB_NOSPACE ? -ENOMEM : -EIO, "%s: %s", pattern,
                       rc == GLOB_NOSPACE ? "out of memory" : "a directory cannot be read");
    for (size_t i = 0; !rc && i < found.gl_pathc; i++)
        rc = data_add_path(data, found.gl_pathv[i], err);
    globfree(&found);
    return rc;
}

/* The bytes of a name before =WEIGHT, which is no part of the name of a file that exists; all of them, and 1, without
 * it. */
static size_t find_weight(double *weight, const char *name)
{
    const char *equals = strrchr(name, '=');
    const bool number = equals && equals > name && equals[1] && !equals[1 + strspn(equals + 1, "0123456789.")];
    char *end;

    *weight = number && access(name, F_OK) != 0 ? strtod(equals + 1, &end) : 0;
    if (*weight > 0 && *weight <= MOST_WEIGHT && !*end)
        return (size_t)(equals - name);
    *weight = 1;
    return strlen(name);
}

/* A file that exists is itself, even if its name looks like a pattern. */
static int open_name(struct client_data *out, const char *given, struct error *err)
{
    const size_t before = out->n_files;
    double weight;
    char *name = strndup(given, find_weight(&weight, given));
    int rc = name ? 0 : error_set(err, -ENOMEM, "%s: out of memory", given);

    if (!rc && strpbrk(name, "*?[") && access(name, F_OK) != 0)
        rc = add_matches(out, name, err);
    else if (!rc)
        rc = data_add_path(out, name, err);
    for (size_t i = before; i < out->n_files; i++)
        out->files[i].weight = weight;
    free(name);
    return rc;
}

int client_data_refuse_weights(const struct client_data *data, struct error *err)
{
    for (size_t i = 0; i < data->n_files; i++)
        if (data->files[i].weight != 1)
            return error_set(
                err, -EINVAL,
                "%s has the weight %g: weights are for conversations to train on: leave it out, with its =",
                data->files[i].path, data->files[i].weight);
    return 0;
}

char *client_data_name(const struct client_data_file *file)
{
    const int decimals = 16 - (int)floor(log10(file->weight)); /* 17 digits, which tell any two numbers apart */
    char *real = file->weight != 1 ? realpath(file->path, NULL) : NULL, *name = NULL;

    if (file->weight == 1)
        name = strdup(file->path);
    else if (asprintf(&name, "%s=%.*f", real ? real : file->path, decimals, file->weight) < 0)
        name = NULL;
    for (size_t n = name && file->weight != 1 ? strlen(name) : 0; n > 0 && (name[n - 1] == '0' || name[n - 1] == '.');
         n--) {
        const bool last = name[n - 1] == '.';
        name[n - 1] = 0;
        if (last)
            break;
    }
    free(real);
    return name;
}

static int open_names(struct client_data *out, const char *const *names, size_t n_names, struct error *err)
{
    int rc = 0;

    for (size_t i = 0; !rc && i < n_names; i++)
        rc = open_name(out, names[i], err);
    if (rc)
        client_data_free(out);
    return rc;
}

int client_data_open(struct client_data *out, const char *const *names, size_t n_names, struct error *err)
{
    *out = (struct client_data){0};
    return open_names(out, names, n_names, err);
}

int client_data_open_rows(struct client_data *out, const char *const *names, size_t n_names, struct error *err)
{
    *out = (struct client_data){.rows = true};
    return open_names(out, names, n_names, err);
}

int client_data_open_images(struct client_data *out, const char *const *names, size_t n_names, struct error *err)
{
    *out = (struct client_data){.images = true};
    return open_names(out, names, n_names, err);
}

void client_data_free(struct client_data *data)
{
    for (size_t i = 0; i < data->n_files; i++) {
        if (data->files[i].fd >= 0)
            close(data->files[i].fd);
        client_unread_free(&data->files[i].unread);
        free(data->files[i].path);
    }
    client_unread_free(&data->passed);
    free(data->files);
    free(data->folder);
    *data = (struct client_data){0};
}

bool client_data_is_text(const struct client_data *data)
{
    for (size_t i = 0; i < data->n_files; i++) {
        if (!client_data_is_a_text(&data->files[i]))
            return false;
    }
    return true;
}

int client_data_read(const struct client_data *data, uint32_t *out, uint64_t first, uint64_t n, struct error *err)
{
    assert(first <= data->n && n <= data->n - first);
    for (size_t i = 0; n > 0; i++) {
        const struct client_data_file *file = &data->files[i];
        if (first >= file->first + file->n)
            continue;
        const uint64_t at = first - file->first, now = n < file->n - at ? n : file->n - at;
        int rc = data_read_file(file, data->vocabulary, out, at, now, err);
        if (rc)
            return rc == -EINVAL ? -EIO : rc;
        out += now, first += now, n -= now;
    }
    return 0;
}

/* Memory is the last resort, as the data may be large. */
int client_data_nameless(const char *what, struct error *err)
{
    const char *places[] = {getenv("TMPDIR"), "/var/tmp"};

    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        int fd = places[i] && *places[i] ? open(places[i], O_TMPFILE | O_RDWR | O_CLOEXEC, 0600) : -1;
        if (fd >= 0)
            return fd;
    }
    int fd = memfd_create("eps-nameless", MFD_CLOEXEC);
    return fd >= 0 ? fd : error_set(err, -errno, "no temporary file for %s: %s", what, strerror(errno));
}

int client_data_reread(int fd, uint32_t *out, uint64_t first, size_t n, struct error *err)
{
    uint8_t *at = (uint8_t *)out;
    size_t left = n * sizeof *out;

    for (off_t offset = (off_t)(first * sizeof *out); left > 0;) {
        const ssize_t got = pread(fd, at, left, offset);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return error_set(err, got ? -errno : -EIO, "the temporary copy of the data: %s",
                             strerror(got ? errno : EIO));
        at += got, offset += got, left -= (size_t)got;
    }
    return 0;
}
