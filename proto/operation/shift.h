/* proto/operation/shift.h - y = x + b: a value of a part added to each element. */
#ifndef PROTO_OPERATION_SHIFT_H
#define PROTO_OPERATION_SHIFT_H

#include <stdint.h>

struct program;

struct program_shift_options {
    uint32_t n;
};

/* b: of domain PART, with as many columns as x. */
int program_shift(struct program *p, int x, int b);

#endif
