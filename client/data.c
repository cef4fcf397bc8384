#include "client/data.h"

#include "proto/random.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CHUNK_BYTES = 16384 };

static unsigned bytes_of(enum client_integer type)
{
    static const unsigned bytes[] = {
        [CLIENT_U8] = 1, [CLIENT_U16] = 2, [CLIENT_U32] = 4, [CLIENT_I32] = 4, [CLIENT_I64] = 8};
    return bytes[type];
}

static int64_t get(const uint8_t *at, enum client_integer type)
{
    uint64_t bits = 0;

    for (unsigned i = 0; i < bytes_of(type); i++)
        bits |= (uint64_t)at[i] << (8 * i);
    return type == CLIENT_I32 ? (int32_t)bits : (int64_t)bits;
}

/* Reads exactly n bytes at offset. */
static int read_exactly(const struct client_data_file *file, uint8_t *out, size_t n, uint64_t offset, struct error *err)
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

/* Tokens first .. first+n-1 of one file, each checked against the vocabulary. */
static int file_read(const struct client_data_file *file, uint32_t vocabulary, uint32_t *out, uint64_t first,
                     uint64_t n, struct error *err)
{
    const unsigned bytes = bytes_of(file->type);
    uint8_t raw[CHUNK_BYTES];

    while (n > 0) {
        const uint64_t now = n < CHUNK_BYTES / bytes ? n : CHUNK_BYTES / bytes;
        int rc = read_exactly(file, raw, (size_t)now * bytes, file->offset + first * bytes, err);
        if (rc)
            return rc;
        for (uint64_t i = 0; i < now; i++) {
            const int64_t token = get(raw + i * bytes, file->type);
            if (token < 0 || token >= vocabulary)
                return error_set(err, -EINVAL,
                                 "%s: token %" PRIu64 " is %" PRId64 ", outside the model's vocabulary of %u",
                                 file->path, first + i, token, vocabulary);
            *out++ = (uint32_t)token;
        }
        first += now, n -= now;
    }
    return 0;
}

/* What the next byte of a UTF-8 text may be. */
struct utf8 {
    unsigned remaining; /* bytes of the current character still to come */
    uint32_t low, high; /* the next of them; only its first one is narrower than 0x80..0xBF */
};

static bool utf8_accept(struct utf8 *u, uint32_t byte)
{
    if (u->remaining > 0) {
        if (byte < u->low || byte > u->high)
            return false;
        *u = (struct utf8){u->remaining - 1, 0x80, 0xBF};
    } else if (byte < 0x80) {
        return true;
    } else if (byte >= 0xC2 && byte <= 0xDF) {
        *u = (struct utf8){1, 0x80, 0xBF};
    } else if (byte >= 0xE0 && byte <= 0xEF) { /* no overlong forms, no surrogates */
        *u = (struct utf8){2, byte == 0xE0 ? 0xA0 : 0x80, byte == 0xED ? 0x9F : 0xBF};
    } else if (byte >= 0xF0 && byte <= 0xF4) { /* nor code points above U+10FFFF */
        *u = (struct utf8){3, byte == 0xF0 ? 0x90 : 0x80, byte == 0xF4 ? 0x8F : 0xBF};
    } else {
        return false;
    }
    return true;
}

/* Reads every token once. */
static int file_check(const struct client_data_file *file, uint32_t vocabulary, struct error *err)
{
    const bool text = file->type == CLIENT_U8;
    uint32_t tokens[4096];
    struct utf8 utf8 = {0};

    for (uint64_t first = 0; first < file->n;) {
        const uint64_t now = file->n - first < 4096 ? file->n - first : 4096;
        int rc = file_read(file, vocabulary, tokens, first, now, err);
        if (rc)
            return rc;
        for (uint64_t i = 0; text && i < now; i++) {
            const bool cut = first + i < 3 && tokens[i] >= 0x80 && tokens[i] <= 0xBF && utf8.remaining == 0;
            if (!cut && !utf8_accept(&utf8, tokens[i]))
                return error_set(err, -EINVAL,
                                 "%s: not UTF-8 text at byte %" PRIu64
                                 " (0x%02X): convert it (iconv -t UTF-8), or name "
                                 "files of token ids .bin or .npy",
                                 file->path, first + i, tokens[i]);
        }
        first += now;
    }
    return 0;
}

static bool ends_with(const char *path, const char *end)
{
    const size_t n = strlen(path), m = strlen(end);
    return n > m && strcmp(path + n - m, end) == 0;
}

/* Type, offset and count from the name's end, the size and, of .npy, the header. */
static int file_describe(struct client_data_file *file, uint64_t size, uint32_t vocabulary, struct error *err)
{
    if (ends_with(file->path, ".npy")) {
        uint8_t head[CLIENT_NPY_HEAD_BYTES];
        const size_t n = size < sizeof head ? (size_t)size : sizeof head;
        struct client_npy npy;
        int rc = read_exactly(file, head, n, 0, err);
        if (rc)
            return rc;
        rc = client_npy_parse(&npy, head, n, err);
        if (rc) {
            error_prefix(err, file->path);
            return rc;
        }
        file->type = npy.type, file->offset = npy.offset, file->n = npy.n;
        if ((size - npy.offset) % bytes_of(npy.type) || (size - npy.offset) / bytes_of(npy.type) != npy.n)
            return error_set(err, -EINVAL, "%s: its header promises %" PRIu64 " tokens, its size is that of %" PRIu64,
                             file->path, npy.n, (size - npy.offset) / bytes_of(npy.type));
    } else if (ends_with(file->path, ".bin")) {
        file->type = vocabulary > 65536 ? CLIENT_U32 : CLIENT_U16;
        file->n = size / bytes_of(file->type);
        if (size % bytes_of(file->type))
            return error_set(err, -EINVAL,
                             "%s: %" PRIu64 " bytes are not a whole number of tokens of %u bytes, which .bin has for a "
                             "vocabulary of %u",
                             file->path, size, bytes_of(file->type), vocabulary);
    } else {
        file->type = CLIENT_U8;
        file->n = size;
        if (vocabulary != 256)
            return error_set(err, -EINVAL,
                             "%s: text is trained on as bytes, for a vocabulary of 256, and this model's is %u: give "
                             "token ids as .bin or .npy",
                             file->path, vocabulary);
    }
    return 0;
}

static int file_open(struct client_data_file *file, const char *path, uint32_t vocabulary, struct error *err)
{
    struct stat st;

    *file = (struct client_data_file){.path = path};
    file->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO must not hold us up before it is refused */
    if (file->fd < 0)
        return error_set(err, -errno, "%s: %s", path, strerror(errno));
    if (fstat(file->fd, &st))
        return error_set(err, -errno, "%s: %s", path, strerror(errno));
    if (!S_ISREG(st.st_mode))
        return error_set(err, -EINVAL, "%s: not a regular file", path);
    int rc = file_describe(file, (uint64_t)st.st_size, vocabulary, err);
    return rc ? rc : file_check(file, vocabulary, err);
}

int client_data_open(struct client_data *out, const char *const *paths, size_t n_paths, uint32_t vocabulary,
                     struct error *err)
{
    *out = (struct client_data){.vocabulary = vocabulary};
    out->files = calloc(n_paths ? n_paths : 1, sizeof *out->files);
    if (!out->files)
        return error_set(err, -ENOMEM, "out of memory");
    for (size_t i = 0; i < n_paths; i++) {
        struct client_data_file *file = &out->files[i];
        int rc = file_open(file, paths[i], vocabulary, err);
        out->n_files++;
        if (rc) {
            client_data_free(out);
            return rc;
        }
        file->first = out->n;
        out->n += file->n;
    }
    return 0;
}

void client_data_free(struct client_data *data)
{
    for (size_t i = 0; i < data->n_files; i++) {
        if (data->files[i].fd >= 0)
            close(data->files[i].fd);
    }
    free(data->files);
    *data = (struct client_data){0};
}

int client_data_read(const struct client_data *data, uint32_t *out, uint64_t first, uint64_t n, struct error *err)
{
    assert(first <= data->n && n <= data->n - first);
    for (size_t i = 0; n > 0; i++) {
        const struct client_data_file *file = &data->files[i];
        if (first >= file->first + file->n)
            continue;
        const uint64_t at = first - file->first, now = n < file->n - at ? n : file->n - at;
        int rc = file_read(file, data->vocabulary, out, at, now, err);
        if (rc)
            return rc == -EINVAL ? -EIO : rc;
        out += now, first += now, n -= now;
    }
    return 0;
}

struct client_windows client_windows_of(const struct client_data *data, uint64_t first, uint64_t n_tokens, uint32_t seq)
{
    return (
        struct client_windows){.data = data, .first = first, .seq = seq, .n = n_tokens > 0 ? (n_tokens - 1) / seq : 0};
}

int client_windows_read(const struct client_windows *windows, uint32_t *ids, uint32_t *labels, uint64_t k,
                        struct error *err)
{
    const uint64_t first = windows->first + k * windows->seq;

    assert(k < windows->n);
    int rc = client_data_read(windows->data, ids, first, windows->seq, err);
    if (rc)
        return rc;
    memcpy(labels, ids + 1, (windows->seq - 1) * sizeof *labels);
    return client_data_read(windows->data, labels + windows->seq - 1, first + windows->seq, 1, err);
}

uint64_t client_windows_pick(const struct client_windows *windows, enum eps_order order, uint64_t seed, uint64_t row)
{
    const uint64_t epoch = row / windows->n, place = row % windows->n;

    assert(windows->n > 0);
    if (order == EPS_SEQUENTIAL)
        return place;
    return random_permute(random_site_key(seed, epoch, 0, RANDOM_ORDER), place, windows->n);
}
