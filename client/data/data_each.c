/* The lines of a file, one after the other. */
#include "client/data/data_file.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { PIECE_BYTES = 1 << 20, MAX_LINE = 64 << 20 };

struct each {
    const struct client_data_file *file;
    int (*on_line)(void *user, const char *line, size_t n, uint64_t number, struct error *err);
    void *user;
    uint64_t number; /* lines taken */
    char *buffer;    /* (cap) bytes read, from the beginning of a line */
    size_t n, cap;
};

static int data_each_make_room(struct each *e, struct error *err)
{
    const size_t cap = e->cap ? 2 * e->cap : PIECE_BYTES;
    char *larger = NULL;

    if (e->n < e->cap)
        return 0;
    if (cap > MAX_LINE)
        return error_set(err, -EINVAL, "%s: line %" PRIu64 ": longer than 64 MiB", e->file->path, e->number + 1);
    larger = realloc(e->buffer, cap);
    if (!larger)
        return error_set(err, -ENOMEM, "%s: out of memory", e->file->path);
    e->buffer = larger, e->cap = cap;
    return 0;
}

/* Some editors put a mark before a text in UTF-8. */
static int data_each_take(struct each *e, const char *line, size_t n, struct error *err)
{
    if (e->number == 0 && n >= 3 && memcmp(line, "\xEF\xBB\xBF", 3) == 0)
        line += 3, n -= 3;
    return e->on_line(e->user, line, n, ++e->number, err);
}

static int data_each_take_all(struct each *e, struct client_data_pass *pass, struct error *err)
{
    int rc = 0;

    for (uint64_t at = 0; !rc && at < e->file->bytes;) {
        rc = data_each_make_room(e, err);
        if (rc)
            return rc;
        const uint64_t left = e->file->bytes - at;
        const size_t now = left < e->cap - e->n ? (size_t)left : e->cap - e->n;
        size_t begin = 0;
        rc = client_data_next(pass, e->file, (uint8_t *)e->buffer + e->n, now, at, err);
        e->n += now, at += now;
        for (char *end; !rc && (end = memchr(e->buffer + begin, '\n', e->n - begin));) {
            rc = data_each_take(e, e->buffer + begin, (size_t)(end - (e->buffer + begin)), err);
            begin = (size_t)(end - e->buffer) + 1;
        }
        e->n -= begin;
        memmove(e->buffer, e->buffer + begin, e->n);
    }
    return rc || e->n == 0 ? rc : data_each_take(e, e->buffer, e->n, err);
}

int client_data_each_line(struct client_data_pass *pass, const struct client_data_file *file,
                          int (*on_line)(void *user, const char *line, size_t n, uint64_t number, struct error *err),
                          void *user, struct error *err)
{
    struct each e = {.file = file, .on_line = on_line, .user = user};
    const int rc = data_each_take_all(&e, pass, err);

    free(e.buffer);
    return rc;
}

bool client_data_is_blank(const char *line, size_t n)
{
    size_t blanks = 0;

    while (blanks < n && memchr(" \t\r", line[blanks], 3))
        blanks++;
    return blanks == n;
}
