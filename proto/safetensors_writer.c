#include "proto/safetensors.h"

#include <assert.h>
#include <errno.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_AT_ONCE = 1 << 30, MAX_HEADER_BYTES = 100000000 };

static int write_all(int fd, const void *data, uint64_t n, struct error *err)
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

/* One more tensor of the header, its data at *offset; NULL if there is no memory. */
static json_t *describe(const struct safetensors_plan *plan, uint64_t *offset)
{
    json_t *shape = json_array();
    uint64_t bytes = sizeof(float), end;

    assert(plan->n_dims <= 2);
    for (uint32_t i = 0; i < plan->n_dims; i++) {
        bool overflow = __builtin_mul_overflow(bytes, plan->shape[i], &bytes);
        assert(!overflow);
        if (json_array_append_new(shape, json_integer((json_int_t)plan->shape[i])) != 0) {
            json_decref(shape);
            return NULL;
        }
    }
    bool overflow = __builtin_add_overflow(*offset, bytes, &end);
    assert(!overflow && end <= INT64_MAX);
    json_t *entry = json_pack("{s:s, s:o, s:[I, I]}", "dtype", "F32", "shape", shape, "data_offsets",
                              (json_int_t)*offset, (json_int_t)end);
    *offset = end;
    return entry;
}

/* The header as text, free() it; NULL if there is no memory. */
static char *print_header(const struct safetensors_plan *plan, size_t n, uint64_t *data_bytes)
{
    json_t *header = json_pack("{s:{s:s}}", "__metadata__", "format", "pt");
    char *text = NULL;

    *data_bytes = 0;
    for (size_t i = 0; i < n; i++)
        if (json_object_set_new(header, plan[i].name, describe(&plan[i], data_bytes)) != 0)
            goto out;
    assert(json_object_size(header) == n + 1); /* no name twice */
    text = json_dumps(header, JSON_COMPACT);
out:
    json_decref(header);
    return text;
}

int safetensors_begin(struct safetensors_writer *writer, int fd, const struct safetensors_plan *plan, size_t n,
                      struct error *err)
{
    static const char blanks[8] = "        ";
    uint8_t length[8];

    *writer = (struct safetensors_writer){.fd = fd};
    char *text = print_header(plan, n, &writer->expected);
    if (!text)
        return error_set(err, -ENOMEM, "no memory for a header of %zu tensors", n);
    const size_t bytes = strlen(text), padded = (bytes + 7) / 8 * 8;
    for (unsigned i = 0; i < sizeof length; i++)
        length[i] = (uint8_t)(padded >> (8 * i));
    int rc = 0;
    if (padded > MAX_HEADER_BYTES)
        rc = error_set(err, -EFBIG, "a header of %zu bytes, where %d are the most", padded, MAX_HEADER_BYTES);
    if (rc == 0)
        rc = write_all(fd, length, sizeof length, err);
    if (rc == 0)
        rc = write_all(fd, text, bytes, err);
    if (rc == 0)
        rc = write_all(fd, blanks, padded - bytes, err);
    free(text);
    return rc;
}

int safetensors_append(struct safetensors_writer *writer, const float *data, uint64_t n, struct error *err)
{
    assert(n <= (writer->expected - writer->written) / sizeof *data);
    int rc = write_all(writer->fd, data, n * sizeof *data, err);
    if (rc == 0)
        writer->written += n * sizeof *data;
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
