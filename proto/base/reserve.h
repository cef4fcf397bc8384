/* proto/base/reserve.h - one block of memory that is handed out piece by piece, and given back as a whole.
 *
 * What a file describes is counted before it is read: whoever reads it takes memory from here and from nowhere else. */
#ifndef PROTO_BASE_RESERVE_H
#define PROTO_BASE_RESERVE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct reserve {
    char *memory; /* (bytes), owned by whoever made it */
    uint64_t bytes, used;
};

/* Bytes that a piece of n bytes takes. */
static inline uint64_t reserve_rounded(uint64_t n)
{
    return (n + 7) / 8 * 8;
}

static inline uint64_t reserve_left(const struct reserve *reserve)
{
    return reserve->bytes - reserve->used;
}

/* n bytes of zeros, aligned to 8; NULL if there are not as many. */
static inline void *reserve_take(struct reserve *reserve, uint64_t n)
{
    if (!reserve->memory || n > reserve_left(reserve) || reserve_rounded(n) > reserve_left(reserve))
        return NULL;
    char *const piece = reserve->memory + reserve->used;
    reserve->used += reserve_rounded(n);
    return memset(piece, 0, n);
}

#endif
