/* proto/operation/schedule.h - the order of a program's operations, forward or backward, and each value's lifetime.
 *
 * Forward runs the operations in order. Backward first recomputes, in order, the values that it reads and that were not
 * kept. Then it runs the derivatives, from the last operation to the first. Of each cheap kind only the last
 * value survives the recomputation. An earlier one, such as the output of GPT-2's first norm, is computed once
 * more just before backward reads it, so that it occupies memory for a short time only.
 *
 * Every array that a step reads or writes is a buffer: a value or a gradient, from its first step to its last, or the
 * scratch of one step. Where an operation may write over its input, and no later step reads that input, input and
 * output share a buffer. A layout only has to keep apart the buffers whose steps overlap (proto/plan/memory/layers.h).
 *
 * Values that backward reads in few bits (program_compress) are compressed as soon as forward has made them, and
 * expanded just before backward first reads them. If they are not kept, backward computes all of them again as they
 * were, and then rounds them to what it would have read. Cheap values are made from these, just before they are read.
 * Means of a convolution's input (program_pool) are taken just before backward reads them.
 * A value of which backward needs some rows alone (program_sample) is sampled as soon as forward has made it, or, if it
 * is not kept, just before backward reads the rows.
 *
 * The gradient of the layer's first input takes the place of that of its first output, if they have the same shape
 * (program_passes_gradient). A sum passes its gradient on without a copy. */
#ifndef PROTO_OPERATION_SCHEDULE_H
#define PROTO_OPERATION_SCHEDULE_H

#include "proto/operation/program.h"

enum { SCHEDULE_STEPS = 256, SCHEDULE_BUFFERS = 192, SCHEDULE_NONE = -1 };

enum schedule_action {
    SCHEDULE_FORWARD,    /* outputs from inputs */
    SCHEDULE_CONTRIBUTE, /* the gradients of a linear map's weight and bias */
    SCHEDULE_BACKWARD,   /* the gradients of inputs, and of tensors other than a linear map's */
    /* What stands for a map's input: rows of a linear map's, means of a convolution's, output 0, from the input, input
     * 0 */
    SCHEDULE_SAMPLE,
    /* These act on a value in few bits (program_compress). No operation runs them: `operation` writes the value. */
    SCHEDULE_COMPRESS, /* what is kept, output 0, from the value, input 0 */
    SCHEDULE_EXPAND,   /* the value, output 0, from what was kept, input 0 */
    SCHEDULE_ROUND,    /* the value, input 0, in its place, to what it would have been after both */
};

/* Where a buffer lies: one of the layer's own places, or the workspace. */
enum schedule_place {
    SCHEDULE_WORKSPACE,
    SCHEDULE_KEPT,     /* among the values kept for backward */
    SCHEDULE_INPUT,    /* an input */
    SCHEDULE_OUTPUT,   /* an output; backward, while that of the first is free, gradients of its size */
    SCHEDULE_GRADIENT, /* of an output on entry; of the first one, on return that of the first input if `passes` */
    SCHEDULE_INPUT_GRADIENT, /* of an input on return; in fp32, what is there is added to */
};

struct schedule_buffer {
    enum schedule_place place;
    int boundary;    /* which input or output, where the place is one's */
    int value;       /* the value whose shape it has; SCHEDULE_NONE for scratch */
    int first, last; /* steps: the one that writes it, the last one that reads it */
    bool gradient;   /* it holds the value's gradient */
    bool sample;     /* it holds some of the value's rows, or means of its pixels */
    bool aligned;    /* it is aligned to 64 bytes, for an operation that reads or writes it */
};

struct schedule_step {
    enum schedule_action action;
    int operation;
    int value; /* of those of few bits */
    /* The neighbour that the step computes as well: an operation, or SCHEDULE_NONE. Forward, it is the next one, and
     * the step writes its outputs (`after`). Backward, it is the one before. Of a linear map: the step reads the
     * activation's input and writes the gradient of that. Of a norm: it writes the gradient of the sum, and
     * other_gradient. */
    int absorbed;
    int after[PROGRAM_OUTPUTS];                           /* buffers */
    int inputs[PROGRAM_INPUTS], outputs[PROGRAM_OUTPUTS]; /* buffers of the values that the step touches */
    int y_gradient, x_gradient;                           /* buffers: of output 0; of input `of` */
    int of;                                               /* an index of the operation's inputs */
    bool accumulate;                                      /* x_gradient += */
    int other_gradient;    /* buffer: of input 1, if a step makes both; of the absorbed's */
    bool accumulate_other; /* other_gradient += */
    bool contributes;      /* it adds to the gradients of the operation's tensors */
    int scratch;           /* buffer */
};

struct schedule {
    int n_steps, n_buffers;
    int n_recomputed;                  /* steps of backward that come before any derivative */
    int gradients[PROGRAM_BOUNDARIES]; /* backward: the buffers of the inputs' gradients, some of them maybe the same */
    bool passes;                       /* backward: the first of these is where the first output's gradient was */
    struct schedule_step steps[SCHEDULE_STEPS];
    struct schedule_buffer buffers[SCHEDULE_BUFFERS];
};

/* kept: the values that forward leaves for backward, a subset of program_keepable. */
void schedule_forward(struct schedule *out, const struct program *program, uint64_t kept);
void schedule_backward(struct schedule *out, const struct program *program, uint64_t kept);

#endif
