/* proto/base/size.h - sizes and counts. */
#ifndef PROTO_BASE_SIZE_H
#define PROTO_BASE_SIZE_H

#include <stddef.h>

static inline size_t size_smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* How many pieces of this size n takes; the last may be shorter. */
static inline size_t size_pieces(size_t n, size_t piece)
{
    return n / piece + (n % piece > 0); /* which cannot overflow */
}

#endif
