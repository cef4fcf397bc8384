/* proto/operation/kind/glu.h - gated linear units: y = act(gate) * up, of gate and up side by side. Shazeer,
 * arXiv:2002.05202. */
#ifndef PROTO_OPERATION_KIND_GLU_H
#define PROTO_OPERATION_KIND_GLU_H

#include "proto/operation/kind/activation.h"

/* x: the gate's columns, then the same number of columns that the gate multiplies. */
int program_glu(struct program *p, int x, enum model_activation activation);

#endif
