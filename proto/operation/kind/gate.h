/* proto/operation/kind/gate.h - y = x * act(gate), of two values: what a block makes, times a gate that it makes of
 * its own input. Qiu et al., arXiv:2505.06708. */
#ifndef PROTO_OPERATION_KIND_GATE_H
#define PROTO_OPERATION_KIND_GATE_H

#include "proto/operation/kind/activation.h"

#include <stdint.h>

struct program_gate_options {
    enum model_activation function;
    uint32_t n_heads; /* heads of x that have one gate each; 0: each column has one */
};

/* gate: as wide as x. No other operation may read x or gate. */
int program_gate(struct program *p, int x, int gate, enum model_activation function);

/* gate: a column for each of n_heads heads of x, through a sigmoid. No other operation may read x or gate. */
int program_head_gate(struct program *p, int x, int gate, uint32_t n_heads);

#endif
