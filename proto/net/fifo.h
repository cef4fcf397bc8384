/* proto/net/fifo.h - bytes that wait in order, in one growing block with a bound. For proto/net/ alone. */
#ifndef PROTO_NET_FIFO_H
#define PROTO_NET_FIFO_H

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { FIFO_MOST = 16 << 20, FIFO_FIRST = 4096 }; /* bytes; a peer that reads keeps far below */

struct fifo {
    uint8_t *bytes;
    size_t head, tail, cap;
};

static inline size_t fifo_n(const struct fifo *f)
{
    return f->tail - f->head;
}

static inline uint8_t *fifo_at(const struct fifo *f, size_t at)
{
    return f->bytes + f->head + at;
}

/* Appends n bytes, which the caller fills in; NULL: past FIFO_MOST, or out of memory. Moves what waits. */
static inline uint8_t *fifo_add(struct fifo *f, size_t n)
{
    const size_t used = fifo_n(f);
    size_t cap = f->cap ? f->cap : FIFO_FIRST;

    if (used + n > FIFO_MOST)
        return NULL;
    while (cap < used + n)
        cap *= 2;
    if (cap > f->cap) {
        uint8_t *bytes = realloc(f->bytes, cap);
        if (!bytes)
            return NULL;
        f->bytes = bytes;
        f->cap = cap;
    }
    if (f->tail + n > f->cap) {
        memmove(f->bytes, f->bytes + f->head, used);
        f->head = 0;
        f->tail = used;
    }
    f->tail += n;
    return f->bytes + f->tail - n;
}

static inline void fifo_drop(struct fifo *f, size_t n)
{
    f->head += n;
    if (f->head == f->tail)
        f->head = f->tail = 0;
}

static inline void fifo_free(struct fifo *f)
{
    free(f->bytes);
    *f = (struct fifo){0};
}

#endif
