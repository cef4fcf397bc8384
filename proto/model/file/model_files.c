/* Files come back with the bytes that they had, but for a tokenizer_config.json into which templates were folded: it
 * is printed anew, and numbers that jansson cannot hold, as a model_max_length of 1e30 in digits, go through
 * unchanged (proto/base/wide.h).
 *
 * A name may be a pipe's: files are opened without waiting for a writer, and refused if they are not regular. */
#include "proto/model/file/model_files.h"

#include "proto/base/dump.h"
#include "proto/base/text.h"
#include "proto/base/wide.h"
#include "proto/model/adapter.h"
#include "proto/model/file/checkpoint.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sodium.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *const names[] = {
    "tokenizer.json",     "tokenizer_config.json",   "vocab.json",        "merges.txt",
    "vocab.txt",          "special_tokens_map.json", "added_tokens.json", "chat_template.jinja",
    "chat_template.json", "generation_config.json",  "tokenizer.model",   ADAPTER_CONFIG,
};

static bool model_files_is_name(const char *name)
{
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strcmp(names[i], name) == 0)
            return true;
    }
    return false;
}

/* ---- a file as a string of JSON ---------------------------------------------------------------------------------- */

bool model_files_is_binary(const char *name)
{
    return strcmp(name, "tokenizer.model") == 0;
}

bool model_files_is_editable(const char *name)
{
    return model_files_is_name(name) && !model_files_is_binary(name) && strcmp(name, ADAPTER_CONFIG) != 0;
}

/* Files travel to the daemon as one JSON object, so a binary one is a string in base64. NULL: no memory, or bytes that
 * are no UTF-8. */
json_t *model_files_encode(const char *name, const char *bytes, size_t n)
{
    if (!model_files_is_binary(name))
        return memchr(bytes, 0, n) ? NULL : json_stringn(bytes, n);
    const size_t room = sodium_base64_ENCODED_LEN(n, sodium_base64_VARIANT_ORIGINAL);
    char *text = malloc(room);
    if (!text)
        return NULL;
    json_t *string =
        json_string(sodium_bin2base64(text, room, (const uint8_t *)bytes, n, sodium_base64_VARIANT_ORIGINAL));
    free(text);
    return string;
}

/* out NULL: only checks and counts, piece by piece. Bits beyond the last byte must be 0, so that a file has one string
 * alone. */
static int decode(char *out, size_t *n, const char *text, size_t n_text)
{
    enum { PIECE = 4096 };
    uint8_t bytes[PIECE / 4 * 3];

    *n = 0;
    for (size_t at = 0, length, got; at < n_text; at += length, *n += got) {
        length = n_text - at < PIECE ? n_text - at : PIECE;
        if (sodium_base642bin(bytes, sizeof bytes, text + at, length, NULL, &got, NULL, sodium_base64_VARIANT_ORIGINAL))
            return -EINVAL;
        if (at + length < n_text && got < sizeof bytes) /* filled up before the end */
            return -EINVAL;
        if (out)
            memcpy(out + *n, bytes, got);
    }
    return 0;
}

int model_files_size(size_t *n, const char *name, const json_t *string)
{
    if (!json_is_string(string))
        return -EINVAL;
    *n = json_string_length(string);
    return model_files_is_binary(name) ? decode(NULL, n, json_string_value(string), *n) : 0;
}

int model_files_decode(const char **out, size_t *n, char **made, const char *name, const json_t *string)
{
    const char *text = json_string_value(string);
    const size_t n_text = json_string_length(string);

    *out = text, *n = n_text, *made = NULL;
    if (!model_files_is_binary(name))
        return 0;
    *out = *made = malloc(n_text / 4 * 3 + 1);
    if (!*made)
        return -ENOMEM;
    const int rc = decode(*made, n, text, n_text);
    assert(rc == 0);
    return 0;
}

/* ---- a directory ------------------------------------------------------------------------------------------------- */

static int model_files_read_bytes(char *out, size_t n, int fd, const char *directory, const char *name,
                                  struct error *err)
{
    for (size_t used = 0; used < n;) {
        ssize_t got = pread(fd, out + used, n - used, (off_t)used);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return error_set(err, -EIO, "%s/%s: %s", directory, name,
                             got < 0 ? strerror(errno) : "became shorter while it was read");
        used += (size_t)got;
    }
    return 0;
}

/* Adds a file of n bytes. A clone without LFS has pointers in place of files: they would be taken for a tokenizer. */
static int model_files_add(json_t *files, const char *bytes, size_t n, const char *directory, const char *name,
                           struct error *err)
{
    static const char pointer[] = "version https://git-lfs.github.com/";

    if (n >= sizeof pointer && memcmp(bytes, pointer, sizeof pointer - 1) == 0)
        return error_set(err, -EINVAL, "%s/%s: not the file but Git LFS's pointer to it: run git lfs pull", directory,
                         name);
    json_t *string = model_files_encode(name, bytes, n);
    if (!string && !model_files_is_binary(name))
        return error_set(err, -EINVAL, "%s/%s: not UTF-8 text", directory, name);
    if (json_object_set_new(files, name, string))
        return error_set(err, -ENOMEM, "%s/%s: out of memory", directory, name);
    return 0;
}

/* *total counts the bytes of all files. */
static int add_open(json_t *files, int fd, const char *directory, const char *name, size_t *total, struct error *err)
{
    struct stat st;

    if (fstat(fd, &st))
        return error_set(err, -errno, "%s/%s: %s", directory, name, strerror(errno));
    if (!S_ISREG(st.st_mode))
        return error_set(err, -EINVAL, "%s/%s: not a regular file", directory, name);
    if ((uint64_t)st.st_size > MODEL_FILES_MAX_BYTES - *total)
        return error_set(err, -EFBIG, "%s/%s: the tokenizer's files have more than %d MiB together", directory, name,
                         MODEL_FILES_MAX_BYTES >> 20);
    const size_t n = (size_t)st.st_size;
    char *bytes = malloc(n + 1);
    if (!bytes)
        return error_set(err, -ENOMEM, "%s/%s: out of memory", directory, name);
    int rc = model_files_read_bytes(bytes, n, fd, directory, name, err);
    if (!rc)
        rc = model_files_add(files, bytes, n, directory, name, err);
    free(bytes);
    *total += n;
    return rc;
}

/* ---- a folder of chat templates -------------------------------------------------------------------------------------
 *
 * transformers saves several templates as chat_template.jinja, which is `default`, and as a file of this folder for
 * each other one. It reads them as well from a list in tokenizer_config.json, which a checkpoint has room for: its
 * files are flat, and removed as such. An export has the files again. They take the place of what stands in
 * tokenizer_config.json, as in transformers. */

#define TEMPLATES        MODEL_FILES_TEMPLATES
#define TEMPLATE         "chat_template.jinja"
#define TOKENIZER_CONFIG "tokenizer_config.json"

enum { MOST_TEMPLATES = 64 };

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* The names of the folder's files NAME.jinja, sorted: (*n), owned, each too. Sorted, as the order of a directory is
 * that of its history. */
static int list_templates(char **list, size_t *n, int folder, const char *directory, struct error *err)
{
    const int fd = fcntl(folder, F_DUPFD_CLOEXEC, 0);
    DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;
    int rc = dir ? 0 : error_set(err, -errno, "%s/" TEMPLATES ": %s", directory, strerror(errno));

    *n = 0;
    for (struct dirent *entry; !rc && (entry = readdir(dir));) {
        const size_t length = strlen(entry->d_name);
        if (!text_ends_with(entry->d_name, ".jinja"))
            continue;
        if (*n == MOST_TEMPLATES)
            rc = error_set(err, -EFBIG, "%s/" TEMPLATES ": more than %d templates", directory, MOST_TEMPLATES);
        else if (!(list[*n] = strndup(entry->d_name, length - 6)))
            rc = error_memory(err);
        else
            ++*n;
    }
    if (dir)
        closedir(dir);
    else if (fd >= 0)
        close(fd);
    qsort(list, *n, sizeof *list, compare_names);
    return rc;
}

/* file: where it came from, "additional_chat_templates/rag.jinja". */
static int append_template(json_t *list, const char *name, json_t *text, const char *file, struct error *err)
{
    return json_array_append_new(list, json_pack("{s:s, s:O, s:s}", "name", name, "template", text, "file", file))
               ? error_memory(err)
               : 0;
}

/* Reads the folder's templates into a list, chat_template.jinja first. */
static int read_templates(json_t *list, json_t *files, int folder, const char *directory, size_t *total,
                          struct error *err)
{
    json_t *alone = json_object_get(files, TEMPLATE), *read = json_object();
    char *names_of[MOST_TEMPLATES], where[PATH_MAX], name[NAME_MAX + 8], file[sizeof TEMPLATES + sizeof name];
    size_t n;
    int rc = list_templates(names_of, &n, folder, directory, err);

    snprintf(where, sizeof where, "%s/" TEMPLATES, directory);
    if (!rc && n > 0 && alone)
        rc = append_template(list, "default", alone, TEMPLATE, err);
    for (size_t i = 0; i < n; i++) {
        snprintf(name, sizeof name, "%s.jinja", names_of[i]);
        snprintf(file, sizeof file, TEMPLATES "/%s", name);
        const int fd = rc ? -1 : openat(folder, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        if (!rc && fd < 0)
            rc = error_set(err, -errno, "%s/%s: %s", where, name, strerror(errno));
        if (!rc)
            rc = add_open(read, fd, where, name, total, err);
        if (!rc)
            rc = append_template(list, names_of[i], json_object_get(read, name), file, err);
        if (fd >= 0)
            close(fd);
        free(names_of[i]);
    }
    json_decref(read);
    return rc;
}

/* Puts a list of templates into tokenizer_config.json, in place of those that are there and of chat_template.jinja.
 * It is parsed so that numbers which jansson cannot hold stay as they are written. */
static int set_templates(json_t *files, json_t *list, const char *directory, struct error *err)
{
    size_t n = 0;
    const char *text = model_files_find(files, TOKENIZER_CONFIG, &n);
    json_t *config = text ? wide_read(text, n, 0, NULL) : json_object();
    char *printed = NULL;
    int rc = 0;

    if (!json_is_object(config))
        rc = error_set(err, -EINVAL, "%s/" TOKENIZER_CONFIG ": not a JSON object", directory);
    else if (json_object_set(config, "chat_template", list) || !(printed = dump_json(NULL, config, &dump_indented)) ||
             json_object_set_new(files, TOKENIZER_CONFIG, json_sprintf("%s\n", printed)))
        rc = error_memory(err);
    if (!rc)
        json_object_del(files, TEMPLATE);
    free(printed);
    json_decref(config);
    return rc;
}

/* For a tokenizer that was saved by a program that knows no templates: the model's own stay. */
int model_files_keep_templates(json_t *files, const json_t *from, struct error *err)
{
    json_t *own = model_files_json(files, TOKENIZER_CONFIG), *other = model_files_json(from, TOKENIZER_CONFIG);
    json_t *kept = json_object_get(other, "chat_template"), *has = json_object_get(own, "chat_template");
    const bool missing = !json_object_get(files, TEMPLATE) && (!has || json_is_null(has));
    const int rc =
        missing && kept && !json_is_null(kept) ? set_templates(files, kept, "the tokenizer's files", err) : 0;

    json_decref(own);
    json_decref(other);
    return rc;
}

static int fold_templates(json_t *files, int from, const char *directory, size_t *total, struct error *err)
{
    const int folder = openat(from, TEMPLATES, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    json_t *list = json_array();
    int rc = list ? 0 : error_memory(err);

    if (folder < 0 && errno != ENOENT && errno != ENOTDIR && !rc)
        rc = error_set(err, -errno, "%s/" TEMPLATES ": %s", directory, strerror(errno));
    if (!rc && folder >= 0)
        rc = read_templates(list, files, folder, directory, total, err);
    if (!rc && json_array_size(list) > 0)
        rc = set_templates(files, list, directory, err);
    if (folder >= 0)
        close(folder);
    json_decref(list);
    return rc;
}

int model_files_read(json_t **out, const char *directory, struct error *err)
{
    int rc = 0, from = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    json_t *files = json_object();
    size_t total = 0;

    *out = NULL;
    if (from < 0)
        rc = error_set(err, -errno, "%s: %s", directory, strerror(errno));
    else if (!files)
        rc = error_memory(err);
    for (size_t i = 0; !rc && i < sizeof names / sizeof *names; i++) {
        int fd = openat(from, names[i], O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        if (fd < 0 && errno == ENOENT)
            continue;
        if (fd < 0) {
            rc = error_set(err, -errno, "%s/%s: %s", directory, names[i], strerror(errno));
            continue;
        }
        rc = add_open(files, fd, directory, names[i], &total, err);
        close(fd);
    }
    if (!rc)
        rc = fold_templates(files, from, directory, &total, err);
    if (from >= 0)
        close(from);
    if (rc)
        json_decref(files);
    else
        *out = files;
    return rc;
}

/* What comes from another process: names, forms and sizes are judged before any of it is used or written. */
int model_files_check(json_t *files, struct error *err)
{
    size_t total = 0, n;
    const char *name;
    json_t *string;

    if (!json_is_object(files))
        return error_set(err, -EINVAL, "the model's side files are not a JSON object");
    json_object_foreach(files, name, string)
    {
        if (!model_files_is_name(name) || model_files_size(&n, name, string) != 0)
            return error_set(err, -EINVAL, "%.64s is not one of a model's side files", name);
        if (n > MODEL_FILES_MAX_BYTES - total)
            return error_set(err, -EFBIG, "the tokenizer's files have more than %d MiB together",
                             MODEL_FILES_MAX_BYTES >> 20);
        total += n;
    }
    return 0;
}

const char *model_files_find(const json_t *files, const char *name, size_t *n)
{
    const json_t *text = json_object_get(files, name);

    if (!json_is_string(text))
        return NULL;
    *n = json_string_length(text);
    return json_string_value(text);
}

json_t *model_files_json(const json_t *files, const char *name)
{
    size_t n;
    const char *text = model_files_find(files, name, &n);
    json_t *value = text ? json_loadb(text, n, 0, NULL) : NULL;

    return value || !text ? value : json_loadb(text, n, JSON_DECODE_INT_AS_REAL, NULL);
}

json_t *model_files_token(const json_t *config, const char *key)
{
    json_t *token = json_object_get(config, key);

    token = json_is_object(token) ? json_object_get(token, "content") : token;
    return json_is_string(token) ? token : NULL;
}

/* Flushed: a checkpoint is whole only if its side files are. */
static int write_bytes(int fd, const char *bytes, size_t n)
{
    while (n > 0) {
        ssize_t put = write(fd, bytes, n);
        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0)
            return -errno;
        bytes += put, n -= (size_t)put;
    }
    return fsync(fd) ? -errno : 0;
}

/* O_EXCL: nothing is overwritten, and no link is followed. */
static int write_file(int directory_fd, const char *name, const json_t *string)
{
    const char *bytes;
    char *made;
    size_t n;
    int rc = model_files_decode(&bytes, &n, &made, name, string);
    int fd = rc ? -1 : openat(directory_fd, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);

    if (!rc)
        rc = fd < 0 ? -errno : write_bytes(fd, bytes, n);
    if (fd >= 0 && close(fd) && !rc)
        rc = -errno;
    free(made);
    return rc;
}

/* ---- the folder of chat templates again ---- */

/* A file that set_templates has read, and no other place. */
static bool is_template_file(const char *file)
{
    const size_t n = sizeof TEMPLATES; /* with the slash */

    return strcmp(file, TEMPLATE) == 0 ||
           (strncmp(file, TEMPLATES "/", n) == 0 && checkpoint_is_name(file + n) && text_ends_with(file, ".jinja"));
}

/* Only a list that this file has made is taken apart again; a tokenizer may have had one of its own. */
static bool came_from_files(const json_t *list)
{
    const json_t *item;
    size_t i;

    json_array_foreach(list, i, item)
    {
        const char *file = json_string_value(json_object_get(item, "file"));
        if (!file || !is_template_file(file) || !json_is_string(json_object_get(item, "template")))
            return false;
    }
    return json_array_size(list) > 0;
}

static int write_templates(const json_t *list, int directory_fd)
{
    const json_t *item;
    int folder = -1, rc = 0;
    size_t i;

    json_array_foreach(list, i, item)
    {
        const char *file = json_string_value(json_object_get(item, "file"));
        if (!rc && strchr(file, '/') && mkdirat(directory_fd, TEMPLATES, 0777) && errno != EEXIST)
            rc = -errno;
        if (!rc)
            rc = write_file(directory_fd, file, json_object_get(item, "template"));
    }
    if (!rc && (folder = openat(directory_fd, TEMPLATES, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) >= 0 && fsync(folder))
        rc = -errno;
    if (folder >= 0)
        close(folder);
    return rc;
}

/* What fold_templates has put together. *config: tokenizer_config.json without it, owned; null: there was none; NULL:
 * it stays. */
static int unfold_templates(json_t **config, const json_t *files, int directory_fd, struct error *err)
{
    size_t n = 0;
    const char *text = json_object_get(files, TEMPLATE) ? NULL : model_files_find(files, TOKENIZER_CONFIG, &n);
    json_t *root = text ? wide_read(text, n, 0, NULL) : NULL;
    const json_t *list = json_object_get(root, "chat_template");
    int rc = 0;

    *config = NULL;
    if (came_from_files(list)) {
        rc = write_templates(list, directory_fd);
        if (rc)
            error_set(err, rc, TEMPLATES ": %s", strerror(-rc));
        json_object_del(root, "chat_template");
        char *printed = dump_json(NULL, root, &dump_indented);
        *config = json_object_size(root) == 0 ? json_null() : printed ? json_sprintf("%s\n", printed) : NULL;
        if (!rc && !*config)
            rc = error_memory(err);
        free(printed);
    }
    json_decref(root);
    return rc;
}

int model_files_write(const json_t *files, int directory_fd, struct error *err)
{
    json_t *config;
    int rc = unfold_templates(&config, files, directory_fd, err);

    for (size_t i = 0; !rc && i < sizeof names / sizeof *names; i++) {
        const bool is_config = config && strcmp(names[i], TOKENIZER_CONFIG) == 0;
        const json_t *string = is_config ? config : json_object_get(files, names[i]);
        rc = string && !json_is_null(string) ? write_file(directory_fd, names[i], string) : 0;
        if (rc)
            error_set(err, rc, "%s: %s", names[i], strerror(-rc));
    }
    json_decref(config);
    return rc;
}
