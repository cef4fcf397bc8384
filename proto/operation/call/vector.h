/* proto/operation/call/vector.h - operations of the device on whole vectors: clearing, rounding, activations, sums. */
#ifndef PROTO_OPERATION_CALL_VECTOR_H
#define PROTO_OPERATION_CALL_VECTOR_H

#include "proto/base/number.h"
#include "proto/operation/kind/activation.h"

#include <stddef.h>
#include <stdint.h>

struct device_zero {
    void *x;
    size_t bytes;
};

/* to (n) = from (n), rounded to a type of 16 bits. `to` begins at least rounding_bytes (proto/operation/backend.h)
 * before `from`, and may overlap it; or it lies apart. */
struct device_round_half {
    uint16_t *to;
    const float *from;
    size_t n;
    enum number_type type; /* of `to` */
};

/* Forward: y = act(x), with the same bits as matmul's epilogue. Backward: `gradient` of y becomes that of x. */
struct device_activate {
    size_t n;
    enum model_activation activation;
    const void *x;  /* (n), read by both directions */
    void *y;        /* (n), forward */
    void *gradient; /* (n), backward: on entry y's, on return x's */
};

/* sum (n) += x (n). */
struct device_add {
    float *sum;
    const float *x;
    size_t n;
};

/* sum (n) += sum over the m rows of x (m, n), `stride` elements apart. */
struct device_reduce_rows {
    float *sum;
    const void *x;
    size_t m, n, stride;
};

#endif
