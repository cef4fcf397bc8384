/* proto/operation/call/head_gate.h - heads times the sigmoid of a gate each, on the device: head_gate,
 * head_gate_backward. */
#ifndef PROTO_OPERATION_CALL_HEAD_GATE_H
#define PROTO_OPERATION_CALL_HEAD_GATE_H

#include <stddef.h>

/* y[i][h][j] = x[i][h][j] * sigmoid(gate[i][h]). Qiu et al., arXiv:2505.06708, section 2.2: an output gate that is
 * shared by a head's columns. The gradient of a gate is a sum over them, in an order that n and the device alone
 * decide. */
struct device_head_gate {
    size_t m, n_heads, n;   /* rows, heads of a row, columns of a head */
    const void *x;          /* (m, n_heads, n), read by both directions */
    const void *gate;       /* (m, n_heads), read by both directions */
    void *y;                /* shaped as x, forward; may be x */
    const void *y_gradient; /* shaped as x, backward */
    void *x_gradient;       /* shaped as x, backward; may be y_gradient */
    void *gate_gradient;    /* shaped as gate, backward */
};

#endif
