/* proto/operation/call/glu.h - gated units on the device: glu, glu_backward. */
#ifndef PROTO_OPERATION_CALL_GLU_H
#define PROTO_OPERATION_CALL_GLU_H

#include "proto/operation/kind/activation.h"

#include <stddef.h>

/* y = act(gate) * up. Shazeer, arXiv:2002.05202. */
struct device_glu {
    size_t m, n;
    enum model_activation activation;
    const void *gate, *up;  /* (m, n) each, read by both directions; may be columns of one array */
    size_t stride;          /* row stride of gate and of up */
    void *y;                /* (m, n), forward */
    const void *y_gradient; /* (m, n), backward */
    void *gate_gradient;    /* (m, n), backward; may be `gate` */
    void *up_gradient;      /* (m, n), backward; may be `up` */
    size_t gradient_stride; /* row stride of both gradients */
};

#endif
