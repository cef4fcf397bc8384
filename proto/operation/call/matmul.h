/* proto/operation/call/matmul.h - matrix products on the device, with what follows them. */
#ifndef PROTO_OPERATION_CALL_MATMUL_H
#define PROTO_OPERATION_CALL_MATMUL_H

#include "proto/operation/kind/activation.h"

#include <stdbool.h>
#include <stddef.h>

enum device_epilogue {
    DEVICE_NO_EPILOGUE,
    DEVICE_BIAS,                /* c = ab + bias */
    DEVICE_BIAS_ACTIVATION,     /* pre = ab + bias; c = act(pre), read back as stored */
    DEVICE_ACTIVATION_GRADIENT, /* c = ab * act'(pre); its columns' sums are the gradient of the bias that pre has */
};

/* c (m, n) = factor * op(a) op(b) + beta * c, then the epilogue. op(a) is (m, k): a itself, or a (k, m) transposed. */
struct device_matmul {
    bool transpose_a, transpose_b;
    size_t m, n, k;
    const void *a, *b;
    size_t a_stride, b_stride, c_stride;
    void *c;
    bool wide;      /* c is fp32 whatever the values are: logits, contributions; without epilogue */
    float beta;     /* 0 or 1 */
    float factor;   /* 0: 1, as with every epilogue */
    bool over_rows; /* k counts rows: with beta 0 too, parts of k may be summed apart, in a fixed order */
    enum device_epilogue epilogue; /* with beta 0 only */
    enum model_activation activation;
    const void *bias; /* (n) */
    void *pre;        /* (m, n), stride c_stride: written by BIAS_ACTIVATION, read by ACTIVATION_GRADIENT */
    /* (n) of ACTIVATION_GRADIENT: += what reduce_rows makes of c, to the bit. NULL: not computed */
    float *bias_gradient;
};

#endif
