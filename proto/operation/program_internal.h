/* proto/operation/program_internal.h - what operations' files add to a program. */
#ifndef PROTO_OPERATION_PROGRAM_INTERNAL_H
#define PROTO_OPERATION_PROGRAM_INTERNAL_H

#include "proto/operation/program.h"

/* The next operation, without options; inputs, outputs and tensors are then added in order. */
struct program_operation *program_append(struct program *p, const struct operation *kind);
void program_add_input(const struct program *p, struct program_operation *op, int value);
/* Adds an output, in the domain of the operation's first input, or in another one. Returns the value. */
int program_add_output(struct program *p, struct program_operation *op, enum program_type type, uint32_t columns);
int program_add_output_in(struct program *p, struct program_operation *op, enum program_type type, uint32_t domain,
                          uint32_t columns);
/* Adds a tensor of the operation, named "stem.which". */
void program_add_tensor(struct program *p, struct program_operation *op, const char *stem, const char *which,
                        struct program_tensor tensor);
/* Adds a tensor of the operation, named as given: MODULE.PARAMETER (asserted). */
void program_add_named_tensor(struct program *p, struct program_operation *op, const char *name,
                              struct program_tensor tensor);
void program_add_number(struct program *p, double number);

#endif
