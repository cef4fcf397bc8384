/* proto/model/schedule.h - the order in which a program's operations run, forward or backward, and when each value lives.
 *
 * Forward runs the operations in order. Backward first computes again what was not kept: in order, as far as backward
 * reads it. Then come the derivatives, from the last operation to the first. Of each cheap kind (program_rules) the
 * recomputation leaves the value made last alone; an older one is made again where backward reads it, so that it takes
 * memory for a short time only: GPT-2's first norm.
 *
 * Every array that a step reads or writes is a buffer: a value or a gradient from its first step to its last, or the
 * scratch of one step. Where an operation may write over what it reads, and nobody reads that later, both are one buffer.
 * Of two values a buffer never holds both at a time otherwise, so a layout need only keep apart buffers whose steps
 * overlap (proto/plan/layers.h).
 *
 * The gradient of the layer's input takes the place of that of its output. A sum passes its gradient on without a copy. */
#ifndef PROTO_MODEL_SCHEDULE_H
#define PROTO_MODEL_SCHEDULE_H

#include "proto/model/program.h"

enum { SCHEDULE_STEPS = 80, SCHEDULE_BUFFERS = 64, SCHEDULE_NONE = -1 };

enum schedule_action {
    SCHEDULE_FORWARD,    /* outputs from inputs */
    SCHEDULE_CONTRIBUTE, /* the gradients of a linear map's weight and bias */
    SCHEDULE_BACKWARD,   /* the gradients of inputs, and of tensors but for a linear map's */
};

/* Where a buffer lies: one of the layer's own places, or the workspace. */
enum schedule_place {
    SCHEDULE_WORKSPACE,
    SCHEDULE_KEPT,     /* where what is kept for backward lies */
    SCHEDULE_INPUT,    /* boundary below */
    SCHEDULE_OUTPUT,   /* boundary above; backward, where it is free, gradients of that size */
    SCHEDULE_GRADIENT, /* of the output on entry, of the input on return */
};

struct schedule_buffer {
    enum schedule_place place;
    int value;       /* whose shape it has; scratch: SCHEDULE_NONE */
    int first, last; /* steps: written, read last */
    bool gradient;   /* of value */
    bool attended;   /* attention reads or writes it: it begins at whole 64 bytes */
};

struct schedule_step {
    enum schedule_action action;
    int operation;
    /* A linear map together with the activation of its result; backward, of its input: an operation, or SCHEDULE_NONE.
     * Forward writes that one's output too (`after`); backward writes the gradient of its input, and reads this. */
    int activation;
    int after;                                            /* buffer */
    int inputs[PROGRAM_INPUTS], outputs[PROGRAM_OUTPUTS]; /* buffers of the operation's values, those that it touches */
    int y_gradient, x_gradient;                           /* buffers: of output 0; of input 0, or of PROGRAM_ADD's h */
    bool accumulate;                                      /* x_gradient += */
    int scratch;                                          /* buffer */
};

struct schedule {
    int n_steps, n_buffers;
    int n_recomputed; /* the first steps of backward: before any derivative */
    int gradient;     /* backward: the buffer of the input's gradient */
    struct schedule_step steps[SCHEDULE_STEPS];
    struct schedule_buffer buffers[SCHEDULE_BUFFERS];
};

/* kept: a set of values that forward leaves for backward, of program_keepable's. */
void schedule_forward(struct schedule *out, const struct program *program, uint64_t kept);
void schedule_backward(struct schedule *out, const struct program *program, uint64_t kept);

#endif
