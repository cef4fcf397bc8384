/* proto/operation/call/xielu.h - an activation with two trained numbers, on the device: xielu, xielu_backward. */
#ifndef PROTO_OPERATION_CALL_XIELU_H
#define PROTO_OPERATION_CALL_XIELU_H

#include <stddef.h>

/* Element by element, Huang & Schlag, arXiv:2411.13010, as transformers computes it:
 *
 *     x > 0: y = softplus(positive) x^2 + beta x
 *     else:  y = (beta + softplus(negative)) (expm1(min(x, bound)) - x) + beta x */
struct device_xielu {
    size_t n;
    float beta, bound;                /* bound < 0 */
    const void *x;                    /* (n), read by both directions */
    const void *positive, *negative;  /* (1) each, read by both */
    void *y;                          /* (n), written forward */
    const void *y_gradient;           /* (n), backward */
    void *x_gradient;                 /* (n), written backward; may be y_gradient */
    float *of_positive, *of_negative; /* (1) each, backward, +=: the gradients; NULL: not computed */
};

#endif
