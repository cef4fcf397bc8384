#include "proto/model/model_files.h"

#include "proto/model/adapter.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
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

static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

bool model_files_is_binary(const char *name)
{
    return strcmp(name, "tokenizer.model") == 0;
}

/* out: 4 digits for every 3 bytes, the last ones filled up with '='. */
static void encode(char *out, const uint8_t *bytes, size_t n)
{
    for (size_t i = 0; i < n; i += 3, out += 4) {
        const size_t left = n - i;
        const uint32_t second = left > 1 ? bytes[i + 1] : 0, third = left > 2 ? bytes[i + 2] : 0;
        const uint32_t group = (uint32_t)bytes[i] << 16 | second << 8 | third;
        out[0] = digits[group >> 18];
        out[1] = digits[group >> 12 & 63];
        out[2] = digits[group >> 6 & 63];
        out[3] = digits[group & 63];
        if (left < 3)
            memset(out + left + 1, '=', 3 - left);
    }
}

json_t *model_files_encode(const char *name, const char *bytes, size_t n)
{
    if (!model_files_is_binary(name))
        return memchr(bytes, 0, n) ? NULL : json_stringn(bytes, n);
    const size_t n_text = (n + 2) / 3 * 4;
    char *text = malloc(n_text + 1);
    if (!text)
        return NULL;
    encode(text, (const uint8_t *)bytes, n);
    json_t *string = json_stringn(text, n_text);
    free(text);
    return string;
}

/* -1: no digit. */
static int value_of(char digit)
{
    if (digit >= 'A' && digit <= 'Z')
        return digit - 'A';
    if (digit >= 'a' && digit <= 'z')
        return digit - 'a' + 26;
    if (digit >= '0' && digit <= '9')
        return digit - '0' + 52;
    return digit == '+' ? 62 : digit == '/' ? 63 : -1;
}

/* out NULL: only checks and counts. Bits beyond the last byte must be 0, so that a file has one string alone. */
static int decode(char *out, size_t *n, const char *text, size_t n_text)
{
    size_t n_digits = n_text, used = 0;

    if (n_text % 4 != 0)
        return -EINVAL;
    while (n_digits > 0 && n_text - n_digits < 2 && text[n_digits - 1] == '=')
        n_digits--;
    for (size_t i = 0; i < n_digits; i += 4) {
        const size_t left = n_digits - i < 4 ? n_digits - i : 4;
        uint32_t group = 0;
        for (size_t k = 0; k < left; k++) {
            const int value = value_of(text[i + k]);
            if (value < 0)
                return -EINVAL;
            group |= (uint32_t)value << (18 - 6 * k);
        }
        if ((group & (0xFFFFFFu >> 8 * (left - 1))) != 0)
            return -EINVAL;
        for (size_t k = 0; k + 1 < left; k++, used++)
            if (out)
                out[used] = (char)(group >> (16 - 8 * k) & 255);
    }
    *n = used;
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
