/* The header precedes the data, and its length shifts all offsets. So it is made from shapes alone, before any data are
 * there; whoever has it knows where each byte goes, and several hosts may write one file. jansson prints members in
 * the order in which they were set, which is that of the data. A shape that overflows or a name that comes twice is a
 * mistake of ours, as plans come from models that were checked: asserted, not reported. */
#include "proto/model/file/safetensors.h"

#include <assert.h>
#include <errno.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LENGTH_BYTES = 8, MOST_AT_ONCE = 1 << 30, MAX_HEADER_BYTES = 100000000 };

static int safetensors_writer_write_all(int fd, const void *data, uint64_t n, struct error *err)
{
    const char *at = data;

    while (n > 0) {
        ssize_t done = write(fd, at, n < MOST_AT_ONCE ? n : MOST_AT_ONCE);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0) {
            const int code = done < 0 ? errno : EIO;
            return error_set(err, -code, "cannot be written: %s", strerror(code));
        }
        at += done;
        n -= (uint64_t)done;
    }
    return 0;
}

static const struct {
    const char *name;
    unsigned bytes;
} types[] = {
    [SAFETENSORS_F32] = {"F32", 4}, [SAFETENSORS_F16] = {"F16", 2}, [SAFETENSORS_BF16] = {"BF16", 2},
    [SAFETENSORS_I64] = {"I64", 8}, [SAFETENSORS_U32] = {"U32", 4}, [SAFETENSORS_U16] = {"U16", 2},
    [SAFETENSORS_I8] = {"I8", 1},   [SAFETENSORS_U8] = {"U8", 1},
};

/* The header's entry for a tensor, its data at *offset, which is moved behind them. NULL: no memory. */
static json_t *entry_json(uint64_t *offset, const char *dtype, const uint64_t *sizes, uint32_t n_dims, uint64_t bytes)
{
    json_t *shape = json_array();
    uint64_t end;

    for (uint32_t i = 0; i < n_dims; i++)
        if (json_array_append_new(shape, json_integer((json_int_t)sizes[i])) != 0) {
            json_decref(shape);
            return NULL;
        }
    bool overflow = __builtin_add_overflow(*offset, bytes, &end);
    assert(!overflow && end <= INT64_MAX);
    json_t *entry = json_pack("{s:s, s:o, s:[I, I]}", "dtype", dtype, "shape", shape, "data_offsets",
                              (json_int_t)*offset, (json_int_t)end);
    *offset = end;
    return entry;
}

static json_t *safetensors_writer_describe(const struct safetensors_plan *plan, uint64_t *offset)
{
    assert(plan->n_dims <= SAFETENSORS_DIMS && plan->type < sizeof types / sizeof *types && types[plan->type].name);
    uint64_t bytes = types[plan->type].bytes;

    for (uint32_t i = 0; i < plan->n_dims; i++) {
        bool overflow = __builtin_mul_overflow(bytes, plan->shape[i], &bytes);
        assert(!overflow);
    }
    return entry_json(offset, types[plan->type].name, plan->shape, plan->n_dims, bytes);
}

static json_t *describe_copy(const struct safetensors_entry *entry, uint64_t *offset)
{
    return entry_json(offset, entry->dtype, entry->shape, entry->n_dims, safetensors_entry_bytes(entry));
}

/* The header as text, owned: free. NULL: no memory. Fills in offsets, from the data's start. copied may be NULL. */
static char *print_header(const struct safetensors_plan *plan, const struct safetensors_entry *const *copied, size_t n,
                          uint64_t *offsets, uint64_t *data_bytes)
{
    json_t *header = json_pack("{s:{s:s}}", "__metadata__", "format", "pt");
    char *text = NULL;

    *data_bytes = 0;
    for (size_t i = 0; i < n; i++) {
        offsets[i] = *data_bytes;
        json_t *entry = copied && copied[i] ? describe_copy(copied[i], data_bytes)
                                            : safetensors_writer_describe(&plan[i], data_bytes);
        if (json_object_set_new(header, plan[i].name, entry) != 0)
            goto out;
    }
    assert(json_object_size(header) == n + 1); /* no name twice */
    text = json_dumps(header, JSON_COMPACT);
out:
    json_decref(header);
    return text;
}

static int layout_make(struct safetensors_layout *out, const struct safetensors_plan *plan,
                       const struct safetensors_entry *const *copied, size_t n, struct error *err)
{
    uint64_t data_bytes;
    char *text = NULL;
    int rc = -ENOMEM;

    *out = (struct safetensors_layout){.offsets = calloc(n + 1, sizeof *out->offsets)};
    if (out->offsets)
        text = print_header(plan, copied, n, out->offsets, &data_bytes);
    const size_t bytes = text ? strlen(text) : 0, padded = (bytes + 7) / 8 * 8;
    if (text)
        out->header = malloc(LENGTH_BYTES + padded);
    if (!out->header) {
        error_set(err, rc, "no memory for a header of %zu tensors", n);
        goto fail;
    }
    if (padded > MAX_HEADER_BYTES) {
        rc = error_set(err, -EFBIG, "a header of %zu bytes, where %d are the most", padded, MAX_HEADER_BYTES);
        goto fail;
    }
    for (unsigned i = 0; i < LENGTH_BYTES; i++)
        out->header[i] = (char)(padded >> (8 * i));
    memcpy(out->header + LENGTH_BYTES, text, bytes);
    memset(out->header + LENGTH_BYTES + bytes, ' ', padded - bytes);
    out->header_bytes = LENGTH_BYTES + padded;
    for (size_t i = 0; i < n; i++)
        out->offsets[i] += out->header_bytes;
    out->file_bytes = out->header_bytes + data_bytes;
    free(text);
    return 0;
fail:
    free(text);
    safetensors_layout_free(out);
    return rc;
}

int safetensors_layout_init(struct safetensors_layout *out, const struct safetensors_plan *plan, size_t n,
                            struct error *err)
{
    return layout_make(out, plan, NULL, n, err);
}

void safetensors_layout_free(struct safetensors_layout *layout)
{
    free(layout->header);
    free(layout->offsets);
    *layout = (struct safetensors_layout){0};
}

int safetensors_begin_copies(struct safetensors_writer *writer, int fd, const struct safetensors_plan *plan,
                             const struct safetensors_entry *const *copied, size_t n, struct error *err)
{
    struct safetensors_layout layout;
    int rc = layout_make(&layout, plan, copied, n, err);

    *writer = (struct safetensors_writer){.fd = fd};
    if (rc != 0)
        return rc;
    writer->expected = layout.file_bytes - layout.header_bytes;
    rc = safetensors_writer_write_all(fd, layout.header, layout.header_bytes, err);
    safetensors_layout_free(&layout);
    return rc;
}

int safetensors_begin(struct safetensors_writer *writer, int fd, const struct safetensors_plan *plan, size_t n,
                      struct error *err)
{
    return safetensors_begin_copies(writer, fd, plan, NULL, n, err);
}

int safetensors_append(struct safetensors_writer *writer, const void *data, uint64_t bytes, struct error *err)
{
    assert(bytes <= writer->expected - writer->written);
    int rc = safetensors_writer_write_all(writer->fd, data, bytes, err);
    if (rc == 0)
        writer->written += bytes;
    return rc;
}

/* Not all file systems can, nor all pairs of them; and some say so by an end that is none. */
static uint64_t copy_by_system(int to, int from, uint64_t offset, uint64_t bytes)
{
    off_t at = (off_t)offset;
    uint64_t left = bytes;

    while (left > 0) {
        const ssize_t done = copy_file_range(from, &at, to, NULL, left < MOST_AT_ONCE ? left : MOST_AT_ONCE, 0);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            break;
        left -= (uint64_t)done;
    }
    return bytes - left;
}

int safetensors_append_file(struct safetensors_writer *writer, int fd, uint64_t offset, uint64_t bytes,
                            struct error *err)
{
    enum { PIECE = 1 << 16 };
    const struct file from = file_own(fd);
    char piece[PIECE];
    int rc = 0;

    assert(bytes <= writer->expected - writer->written);
    uint64_t done = copy_by_system(writer->fd, fd, offset, bytes);
    writer->written += done;
    for (uint64_t n; rc == 0 && done < bytes; done += n) {
        n = bytes - done < PIECE ? bytes - done : PIECE;
        if ((rc = file_read(&from, piece, n, offset + done, err)) != 0)
            error_prefix(err, "its source");
        else
            rc = safetensors_append(writer, piece, n, err);
    }
    return rc;
}

int safetensors_end(struct safetensors_writer *writer, struct error *err)
{
    if (writer->written != writer->expected)
        return error_set(err, -EINVAL, "%ju bytes of data were written of %ju", (uintmax_t)writer->written,
                         (uintmax_t)writer->expected);
    if (fsync(writer->fd) != 0)
        return error_set(err, -errno, "cannot be flushed to the disk: %s", strerror(errno));
    return 0;
}
