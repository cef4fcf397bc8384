/* Standard input and compressed files can only be read from beginning to end. They are copied into a nameless file,
 * which allows access to any token. */
#include "client/data/data_file.h"
#include "client/data/data.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

/* Text compresses to a third or a tenth. A file that expands more than MOST_TIMES is a decompression bomb. */
enum { IN_BYTES = 128 << 10, OUT_BYTES = 256 << 10, FREE_BYTES = 64 << 20, MOST_TIMES = 250, ASK_MS = 100 };

struct unpack {
    struct client_data_pass *pass;
    struct client_data_file *file;
    uint8_t *in, *out; /* (IN_BYTES), (OUT_BYTES) */
    int fd;            /* receives the expanded bytes */
    uint64_t n_in, n_out;
};

static int data_unpack_write_out(struct unpack *u, size_t n, struct error *err)
{
    int rc = client_data_write(u->fd, u->file, u->out, n, u->n_out, err);

    u->n_out += n;
    if (!rc && u->n_out > FREE_BYTES && u->n_out / MOST_TIMES > u->n_in)
        rc = error_set(err, -EINVAL,
                       "%s: expands to more than %d times its size, unlike text: unpack it yourself if it is text",
                       u->file->path, MOST_TIMES);
    return rc;
}

/* Reads the next piece; *n is 0 at the end of the file. */
static int read_in(struct unpack *u, size_t *n, struct error *err)
{
    const uint64_t left = u->file->bytes - u->n_in;

    *n = left < IN_BYTES ? (size_t)left : IN_BYTES;
    const int rc = client_data_next(u->pass, u->file, u->in, *n, u->n_in, err);
    u->n_in += *n;
    return rc;
}

static int data_unpack_refuse(const struct unpack *u, const char *packing, bool cut, const char *why, struct error *err)
{
    if (cut)
        return error_set(err, -EINVAL, "%s: its %s data ends too early: it is truncated", u->file->path, packing);
    return error_set(err, -EINVAL, "%s: its %s data is damaged after %" PRIu64 " bytes (%s)", u->file->path, packing,
                     u->n_out, why);
}

/* Behind the last member, as gzip itself reads files: zeros are padding, and other bytes are none of the data. */
static int count_behind(struct unpack *u, const uint8_t *bytes, size_t n, struct error *err)
{
    bool zeros = true;
    uint64_t n_bytes = 0;
    int rc = 0;

    for (; !rc && n > 0; bytes = u->in, rc = read_in(u, &n, err)) {
        for (size_t i = 0; i < n; i++)
            zeros = zeros && bytes[i] == 0;
        n_bytes += n;
    }
    u->file->unread.n_behind = zeros ? 0 : n_bytes;
    return rc;
}

/* One piece of input, until it is used up or a member ends. *status as inflate returns it. */
static int inflate_piece(struct unpack *u, z_stream *z, int *status, struct error *err)
{
    do { /* repeat while the output was full: more may be pending */
        z->next_out = u->out, z->avail_out = OUT_BYTES;
        *status = inflate(z, Z_NO_FLUSH);
        if (*status == Z_MEM_ERROR)
            return error_set(err, -ENOMEM, "%s: no memory to unpack it", u->file->path);
        if (*status != Z_OK && *status != Z_STREAM_END && *status != Z_BUF_ERROR)
            return data_unpack_refuse(u, "gzip", false, z->msg ? z->msg : "no gzip", err);
        const int rc = data_unpack_write_out(u, OUT_BYTES - z->avail_out, err);
        if (rc)
            return rc;
    } while (*status != Z_STREAM_END && (z->avail_in > 0 || z->avail_out == 0));
    return 0;
}

/* Concatenated gzip members form one text, as gzip itself reads them. */
static int inflate_members(struct unpack *u, z_stream *z, struct error *err)
{
    int status = Z_OK;
    size_t n = 0;

    for (;;) {
        int rc = z->avail_in > 0 ? 0 : read_in(u, &n, err);
        if (rc)
            return rc;
        if (z->avail_in == 0)
            z->next_in = u->in, z->avail_in = (uInt)n;
        if (z->avail_in == 0)
            return status == Z_STREAM_END ? 0 : data_unpack_refuse(u, "gzip", true, "", err);
        if (status == Z_STREAM_END && client_data_packing(z->next_in, z->avail_in) != CLIENT_GZIP &&
            !(z->avail_in == 1 && *z->next_in == 0x1F && u->n_in < u->file->bytes)) /* half of a member's magic */
            return count_behind(u, z->next_in, z->avail_in, err);
        if (status == Z_STREAM_END && inflateReset(z) != Z_OK)
            return data_unpack_refuse(u, "gzip", false, "its state is lost", err);
        rc = inflate_piece(u, z, &status, err);
        if (rc)
            return rc;
    }
}

static int unpack_gzip(struct unpack *u, struct error *err)
{
    z_stream z = {0};

    if (inflateInit2(&z, 15 + 16) != Z_OK) /* largest window, gzip header */
        return error_set(err, -ENOMEM, "%s: no memory to unpack it", u->file->path);
    const int rc = inflate_members(u, &z, err);
    inflateEnd(&z);
    return rc;
}

/* Refuses windows above 128 MiB, the library's own limit: a window takes memory. */
static int unpack_zstd(struct unpack *u, struct error *err)
{
    ZSTD_DStream *z = ZSTD_createDStream();
    size_t n, left = 1; /* bytes left of a frame: 0 at its end */
    const char *why;
    int rc = z ? 0 : error_set(err, -ENOMEM, "%s: no memory to unpack it", u->file->path);

    while (!rc && !(rc = read_in(u, &n, err)) && n > 0) {
        ZSTD_inBuffer in = {u->in, n, 0};
        ZSTD_outBuffer out = {u->out, OUT_BYTES, OUT_BYTES};
        while (!rc && (in.pos < in.size || (out.pos == out.size && left != 0))) {
            out.pos = 0;
            left = ZSTD_decompressStream(z, &out, &in);
            why = ZSTD_getErrorCode(left) == ZSTD_error_frameParameter_windowTooLarge
                      ? "its window takes more than 128 MiB: compress it without --long or --ultra"
                      : ZSTD_getErrorName(left);
            rc = ZSTD_isError(left) ? data_unpack_refuse(u, "zstd", false, why, err)
                                    : data_unpack_write_out(u, out.pos, err);
        }
    }
    if (!rc && left != 0)
        rc = data_unpack_refuse(u, "zstd", true, "", err);
    ZSTD_freeDStream(z);
    return rc;
}

/* Waits for input. A pipe may stay silent for long; the watch can end the wait. */
static int await_input(const struct unpack *u, struct error *err)
{
    struct pollfd ready = {.fd = u->file->fd, .events = POLLIN};
    int n, rc = 0;

    while (!rc && (n = poll(&ready, 1, ASK_MS)) <= 0) {
        if (n < 0 && errno != EINTR)
            return error_set(err, -errno, "standard input: %s", strerror(errno));
        rc = client_watch_ask(u->pass->rules->watch, err);
    }
    return rc;
}

static int copy_input(struct unpack *u, struct error *err)
{
    for (;;) {
        int rc = await_input(u, err);
        if (rc)
            return rc;
        const ssize_t n = read(u->file->fd, u->out, OUT_BYTES);
        if (n < 0 && (errno == EINTR || errno == EAGAIN))
            continue;
        if (n < 0)
            return error_set(err, -errno, "standard input: %s", strerror(errno));
        if (n == 0)
            return 0;
        u->n_in += (uint64_t)n;
        rc = data_unpack_write_out(u, (size_t)n, err);
        if (rc)
            return rc;
    }
}

static int unpack(struct client_data_pass *pass, struct client_data_file *file,
                  int (*work)(struct unpack *u, struct error *err), struct error *err)
{
    struct unpack u = {.pass = pass,
                       .file = file,
                       .in = malloc(IN_BYTES),
                       .out = malloc(OUT_BYTES),
                       .fd = client_data_nameless("data", err)};
    int rc = u.fd < 0 ? u.fd : 0;

    if (!rc && (!u.in || !u.out))
        rc = error_set(err, -ENOMEM, "%s: out of memory", file->path);
    if (!rc)
        rc = work(&u, err);
    free(u.in);
    free(u.out);
    if (rc) {
        if (u.fd >= 0)
            close(u.fd);
        return rc;
    }
    close(file->fd);
    file->fd = u.fd;
    file->bytes = u.n_out;
    return 0;
}

int client_data_head(uint8_t head[CLIENT_DATA_HEAD_BYTES], size_t *n, const struct client_data_file *file,
                     struct error *err)
{
    *n = file->bytes < CLIENT_DATA_HEAD_BYTES ? (size_t)file->bytes : CLIENT_DATA_HEAD_BYTES;
    return client_data_pread(file, head, *n, 0, err);
}

static int unpack_packed(struct client_data_pass *pass, struct client_data_file *file, enum client_compression found,
                         struct error *err)
{
    static int (*const works[])(struct unpack *,
                                struct error *) = {[CLIENT_GZIP] = unpack_gzip, [CLIENT_ZSTD] = unpack_zstd};

    if (file->packing != CLIENT_PLAIN && found != file->packing)
        return error_set(err, -EINVAL, "%s: %s", file->path,
                         file->bytes == 0 ? "it is empty, so it is not compressed data"
                                          : "it is not compressed, though its name says so: rename it");
    return found == CLIENT_PLAIN ? 0 : unpack(pass, file, works[found], err);
}

/* Expands a compressed file; head gets the first *n bytes of what is in it. */
static int data_unpack_expand(uint8_t head[CLIENT_DATA_HEAD_BYTES], size_t *n, struct client_data_pass *pass,
                              struct client_data_file *file, struct error *err)
{
    const bool ids = file->kind == CLIENT_DATA_BIN || file->kind == CLIENT_DATA_NPY;
    int rc = client_data_head(head, n, file, err);

    if (rc)
        return rc;
    /* Files of ids may begin with any bytes, so only the name says whether they are compressed. */
    const enum client_compression packing =
        ids && file->packing == CLIENT_PLAIN ? CLIENT_PLAIN : client_data_packing(head, *n);
    if (packing == CLIENT_PLAIN && file->packing == CLIENT_PLAIN)
        return 0;
    rc = unpack_packed(pass, file, packing, err);
    return rc ? rc : client_data_head(head, n, file, err);
}

int client_data_expand(struct client_data_pass *pass, struct client_data_file *file, struct error *err)
{
    uint8_t head[CLIENT_DATA_HEAD_BYTES];
    size_t n;
    const int rc = file->unpacked ? 0 : data_unpack_expand(head, &n, pass, file, err);

    file->unpacked = rc == 0;
    return rc;
}

int client_data_unpack(struct client_data_pass *pass, struct client_data_file *file, struct error *err)
{
    const bool streamed = file->stream;
    uint8_t head[CLIENT_DATA_HEAD_BYTES];
    size_t n;

    if (file->unpacked)
        return 0;
    int rc = streamed ? unpack(pass, file, copy_input, err) : 0;

    file->stream = false;
    if (!rc)
        rc = data_unpack_expand(head, &n, pass, file, err);
    if (!rc && file->kind == CLIENT_DATA_NPY && file->packing != CLIENT_PLAIN)
        rc = client_data_describe_npy(file, err);
    if (!rc && streamed && client_data_is_lines(head, n, n == file->bytes))
        file->kind = CLIENT_DATA_LINES;
    if (!rc && file->kind != CLIENT_DATA_NPY)
        rc = client_data_recognise(file, pass->data->rows, head, n, err);
    file->unpacked = rc == 0;
    return rc;
}
