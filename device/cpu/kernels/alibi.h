/* device/cpu/kernels/alibi.h - linear biases of scores: Press et al., arXiv:2108.12409. Keys of a query's own document
 * are as far from it in the row as there, so documents need no places of their own. */
#ifndef DEVICE_CPU_KERNELS_ALIBI_H
#define DEVICE_CPU_KERNELS_ALIBI_H

#include "device/cpu/kernels/value.h"
#include "proto/operation/call/attention.h"

#include <math.h>

static inline float alibi_slope(size_t n_heads, size_t head)
{
    const size_t n = device_alibi_whole(n_heads);
    const double power = head < n ? 8 * (double)(head + 1) : 4 * (double)(2 * (head - n) + 1);

    return (float)exp2(-power / (double)n);
}

/* scores (n) of one query += slope * (places from the query to the key). ahead: of the first key. */
VECTOR_INLINE void alibi_add(float *scores, size_t n, float slope, ptrdiff_t ahead)
{
    static const float steps[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

    for (size_t j = 0; j < n; j += VECTOR)
        vec_store(scores + j, vec_load(scores + j) + slope * (vec_load(steps) + (float)(ahead + (ptrdiff_t)j)));
}

#endif
