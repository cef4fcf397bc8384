#include "proto/model/model_files.h"

#include "proto/model/adapter.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *const names[] = {
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "generation_config.json",
    "tokenizer.model",
    ADAPTER_CONFIG,
};

static bool is_name(const char *name)
{
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strcmp(names[i], name) == 0)
            return true;
    }
    return false;
}

/* ---- a file as a string of JSON ----------------------------------------------------------------------------------- */

bool model_files_is_binary(const char *name)
{
    return strcmp(name, "tokenizer.model") == 0;
}

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

/* out NULL: only checks and counts, piece by piece. Bits beyond the last byte must be 0, so that a file has one string alone. */
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

/* ---- a directory --------------------------------------------------------------------------------------------------- */

static int read_bytes(char *out, size_t n, int fd, const char *directory, const char *name, struct error *err)
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

/* Adds a file of n bytes. */
static int add(json_t *files, const char *bytes, size_t n, const char *directory, const char *name, struct error *err)
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
    int rc = read_bytes(bytes, n, fd, directory, name, err);
    if (!rc)
        rc = add(files, bytes, n, directory, name, err);
    free(bytes);
    *total += n;
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
        rc = error_set(err, -ENOMEM, "out of memory");
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
    if (from >= 0)
        close(from);
    if (rc)
        json_decref(files);
    else
        *out = files;
    return rc;
}

int model_files_check(json_t *files, struct error *err)
{
    size_t total = 0, n;
    const char *name;
    json_t *string;

    if (!json_is_object(files))
        return error_set(err, -EINVAL, "the model's side files are not a JSON object");
    json_object_foreach(files, name, string)
    {
        if (!is_name(name) || model_files_size(&n, name, string) != 0)
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

int model_files_write(const json_t *files, int directory_fd, struct error *err)
{
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const json_t *string = json_object_get(files, names[i]);
        const int rc = string ? write_file(directory_fd, names[i], string) : 0;
        if (rc)
            return error_set(err, rc, "%s: %s", names[i], strerror(-rc));
    }
    return 0;
}
