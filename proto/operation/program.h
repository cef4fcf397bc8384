/* proto/operation/program.h - a layer as a short program: operations over values, written once by its family.
 *
 * A layer maps one value, its input, to another, its output, for each token of a microbatch. All else follows from the
 * program: the tensors of its unit, the order of forward and backward and what backward computes again
 * (proto/operation/schedule.h), where values lie (proto/plan/layers.h), how long operations take (proto/plan/work.h), and
 * their calls to the device. What differs from operation to operation stands in its own file (proto/operation/operation.h).
 *
 * A program is written by calling the functions below and those of the operations' headers in order, as in
 *
 *     const int n = program_norm(p, x, "ln_1", &norm);
 *     const int u = program_linear(p, n, "mlp.c_fc", inner, &linear);
 *
 * A value is named by the number that the function returns. One operation writes it, any number read it. A program that
 * exceeds the limits is a mistake in its family's file: an assertion fails. */
#ifndef PROTO_OPERATION_PROGRAM_H
#define PROTO_OPERATION_PROGRAM_H

#include "proto/operation/list.h"

#include <stdbool.h>
#include <stdint.h>

enum model_init { MODEL_INIT_ZERO, MODEL_INIT_ONE, MODEL_INIT_NORMAL };

/* Sets of operations and of values are bits of 64. */
enum {
    PROGRAM_OPERATIONS = 64,
    PROGRAM_VALUES = 64,
    PROGRAM_TENSORS = 64,
    PROGRAM_NUMBERS = 512,
    PROGRAM_INPUTS = 3,  /* of one operation */
    PROGRAM_OUTPUTS = 2, /* of one operation */
    PROGRAM_NAME_BYTES = 48,
};

struct operation; /* proto/operation/operation.h */

enum program_type {
    PROGRAM_VALUE,     /* of the device's type, as weights are */
    PROGRAM_STATISTIC, /* fp32 */
};

struct program_value {
    enum program_type type;
    uint32_t columns; /* elements per token: a width; 2 for a norm's statistics; the number of heads for attention's */
    int operation;    /* the one that writes it; -1: the layer's input */
};

/* A tensor of the layer's unit. The unit holds them in the order in which the operations name them. */
struct program_tensor {
    char name[PROGRAM_NAME_BYTES]; /* "attn.c_attn.weight" */
    uint32_t rows, columns;        /* columns 0: a vector */
    enum model_init init;
    float deviation; /* of MODEL_INIT_NORMAL */
};

struct program_operation {
    const struct operation *kind;
    int n_inputs, n_outputs;
    int inputs[PROGRAM_INPUTS], outputs[PROGRAM_OUTPUTS];
    int tensor, n_tensors; /* the first: weights, then biases */
#define PROGRAM_OPTIONS(name, options) struct options name;
    union { /* by kind */
        OPERATIONS(PROGRAM_OPTIONS)
    };
#undef PROGRAM_OPTIONS
};

struct program {
    int n_operations, n_values, n_tensors, n_numbers;
    int input, output; /* values */
    int logit_bias;    /* the tensor that the head adds to logits; -1: none */
    struct program_operation operations[PROGRAM_OPERATIONS];
    struct program_value values[PROGRAM_VALUES];
    struct program_tensor tensors[PROGRAM_TENSORS];
    double numbers[PROGRAM_NUMBERS]; /* of operations' options */
};

/* Begins a program; returns the layer's input. */
int program_begin(struct program *p, uint32_t columns);

/* Gives the unit one more tensor, a vector (n_outputs: model_outputs), which the head adds to the logits; zero in a fresh
 * model. One layer above the blocks may have it. */
void program_logit_bias(struct program *p, const char *name, uint32_t n_outputs);

/* True if two programs have the same values and operations, their options and tensors aside. */
bool program_is_alike(const struct program *a, const struct program *b);

/* The program's first operation of a kind. NULL: it has none. */
const struct program_operation *program_find(const struct program *p, const struct operation *kind);

/* Ends the program. y is the layer's output, as wide as its input. */
void program_end(struct program *p, int y);

/* The number of operations that read a value, the layer's end included. */
int program_count_readers(const struct program *p, int value);

/* The values that backward reads and that are expensive to recompute: all that a layer can keep. */
uint64_t program_keepable(const struct program *p);

/* The same in groups: the values of one operation are kept together; if operations outnumber groups, the last ones
 * share a group. Returns the number of groups, and fills in each one's set and first operation. */
enum { PROGRAM_KEPT_GROUPS = 4 };
int program_kept_groups(const struct program *p, uint64_t values[PROGRAM_KEPT_GROUPS],
                        int operations[PROGRAM_KEPT_GROUPS]);

/* The values that backward reads. */
uint64_t program_read_backward(const struct program *p);

#endif
