/* proto/operation/parameter.h - y = w: a tensor as a value, once a part. */
#ifndef PROTO_OPERATION_PARAMETER_H
#define PROTO_OPERATION_PARAMETER_H

#include <stdbool.h>
#include <stdint.h>

struct program;

struct program_parameter_options {
    uint32_t n;
    bool is_matrix;
};

/* A vector (n) of this name, zero in a fresh model; returns it in fp32, of domain PART. */
int program_parameter(struct program *p, const char *name, uint32_t n);

/* A matrix (rows, columns) of this name, normal deviates in a fresh model; returned row by row, as
 * program_parameter. */
int program_matrix(struct program *p, const char *name, uint32_t rows, uint32_t columns, float deviation);

#endif
