/* eps/store/pieces.h - a long operation in pieces, so that another thread can watch it go on, and end it.
 *
 * A thread that draws, reads or touches gigabytes notes each piece before it does it, at most PIECES_BYTES of memory.
 * So another thread sees that it goes on, and can end it: what is abandoned does no further piece. */
#ifndef EPS_STORE_PIECES_H
#define EPS_STORE_PIECES_H

#include "proto/base/size.h"

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { PIECES_BYTES = 4 << 20 };

struct pieces {
    uint64_t n;     /* noted so far; all access to both is __atomic */
    bool abandoned; /* never taken back */
};

/* 0, or -ECANCELED: the piece must not be done. NULL: nobody observes. Any thread. */
static inline int pieces_note(struct pieces *pieces)
{
    if (!pieces)
        return 0;
    if (__atomic_load_n(&pieces->abandoned, __ATOMIC_RELAXED))
        return -ECANCELED;
    __atomic_fetch_add(&pieces->n, 1, __ATOMIC_RELAXED);
    return 0;
}

/* Zeroes, or copies, pieces of at most PIECES_BYTES until all are done or they are abandoned. */
static inline void pieces_zero(struct pieces *pieces, void *base, size_t n_bytes)
{
    for (size_t at = 0; at < n_bytes && pieces_note(pieces) == 0; at += PIECES_BYTES)
        memset((char *)base + at, 0, size_smaller(n_bytes - at, PIECES_BYTES));
}

static inline void pieces_copy(struct pieces *pieces, void *to, const void *from, size_t n_bytes)
{
    for (size_t at = 0; at < n_bytes && pieces_note(pieces) == 0; at += PIECES_BYTES)
        memcpy((char *)to + at, (const char *)from + at, size_smaller(n_bytes - at, PIECES_BYTES));
}

static inline bool pieces_are_abandoned(const struct pieces *pieces)
{
    return pieces && __atomic_load_n(&pieces->abandoned, __ATOMIC_RELAXED);
}

static inline uint64_t pieces_count(const struct pieces *pieces)
{
    return __atomic_load_n(&pieces->n, __ATOMIC_RELAXED);
}

static inline void pieces_abandon(struct pieces *pieces)
{
    __atomic_store_n(&pieces->abandoned, true, __ATOMIC_RELAXED);
}

#endif
