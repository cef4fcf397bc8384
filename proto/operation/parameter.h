/* proto/operation/parameter.h - y = w: a tensor as a value, once a part. */
#ifndef PROTO_OPERATION_PARAMETER_H
#define PROTO_OPERATION_PARAMETER_H

#include <stdint.h>

struct program;

struct program_parameter_options {
    uint32_t n;
};

/* A vector (n) of this name, zero in a fresh model; returns it in fp32, of domain PART. */
int program_parameter(struct program *p, const char *name, uint32_t n);

#endif
