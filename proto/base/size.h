/* proto/base/size.h - sizes and counts. */
#ifndef PROTO_BASE_SIZE_H
#define PROTO_BASE_SIZE_H

#include <stddef.h>

static inline size_t size_smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

#endif
