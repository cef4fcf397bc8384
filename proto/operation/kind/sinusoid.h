/* proto/operation/kind/sinusoid.h - y = x + fixed positions, of sines and cosines: Vaswani et al., arXiv:1706.03762. */
#ifndef PROTO_OPERATION_KIND_SINUSOID_H
#define PROTO_OPERATION_KIND_SINUSOID_H

#include <stdint.h>

struct program;

struct program_sinusoid_options {
    uint32_t n;
};

/* The first element of each row has position 0. No other operation may read x, whose columns are even in number. */
int program_sinusoid(struct program *p, int x);

#endif
