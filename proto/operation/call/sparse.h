/* proto/operation/call/sparse.h - sparse weights and their gradients: scatter, gather (proto/model/sparse.h). */
#ifndef PROTO_OPERATION_CALL_SPARSE_H
#define PROTO_OPERATION_CALL_SPARSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* scatter: y (rows, columns) = x (n) in its places, and 0 elsewhere; in the device's type, or, if wide, in fp32.
 * gather: y (n) = x (rows, columns) at its places, and 0 from element starts[rows] on; both fp32.
 * Row r has elements starts[r] .. starts[r+1]-1, which are at most n, and ascend: those of its bits, in order. Places
 * beyond the columns, and starts beyond n, are not followed: they come from another process. A place without an element
 * is 0, and so is an element without a place. */
struct device_sparse {
    size_t rows, columns, n;
    const uint32_t *starts; /* (rows + 1) */
    const uint32_t *places; /* (rows, device_sparse_words) bit c % 32 of word c / 32: column c has an element */
    const void *x;
    void *y;
    bool wide;
};

/* Words of a row's places. */
static inline size_t device_sparse_words(size_t columns)
{
    return (columns + 31) / 32;
}

#endif
