/* proto/operation/schedule_internal.h - how an operation's derivative adds its steps to a schedule: struct operation,
 * differentiate(). A step is begun, told what it reads and writes, and ended. */
#ifndef PROTO_OPERATION_SCHEDULE_INTERNAL_H
#define PROTO_OPERATION_SCHEDULE_INTERNAL_H

#include "proto/operation/schedule.h"

struct schedule_builder {
    const struct program *program;
    struct schedule *schedule;
    uint64_t kept;
    bool backward;
    bool aligned;                  /* the step that is being built needs aligned arrays */
    int values[PROGRAM_VALUES];    /* buffer that holds the value now, or SCHEDULE_NONE */
    int codes[PROGRAM_VALUES];     /* buffer that holds the value compressed, or some of its rows, or SCHEDULE_NONE */
    int gradients[PROGRAM_VALUES]; /* buffer that holds its gradient as summed so far, or SCHEDULE_NONE */
    int changed[SCHEDULE_BUFFERS]; /* how often a gradient was added to */
    int as_of[PROGRAM_VALUES];     /* `changed` when a sum passed this gradient on */
};

/* Recomputes a value, unless it is available. Before the step that reads it begins. */
void schedule_ensure(struct schedule_builder *b, int value);

struct schedule_step *schedule_begin_step(struct schedule_builder *b, enum schedule_action action, int operation);
void schedule_end_step(struct schedule_builder *b);

/* Samples the input of a sampled linear map, unless that was done. Before the step that reads the sample begins. */
void schedule_ensure_sample(struct schedule_builder *b, int operation);
int schedule_read_sample(struct schedule_builder *b, int operation);

/* The buffer of a value that the step reads. */
int schedule_read(struct schedule_builder *b, int value);
/* The buffer of the gradient of a value, which the step reads. */
int schedule_read_gradient(struct schedule_builder *b, int value);
/* Sets step->x_gradient: the gradient that the step writes, or adds to, for an input of its operation; or for another
 * value; and step->other_gradient, for input 1 or another value. */
void schedule_write_gradient(struct schedule_builder *b, struct schedule_step *step, int input);
void schedule_write_gradient_of(struct schedule_builder *b, struct schedule_step *step, int value);
void schedule_write_other_gradient(struct schedule_builder *b, struct schedule_step *step);
void schedule_write_other_gradient_of(struct schedule_builder *b, struct schedule_step *step, int value);
/* Passes a gradient on unchanged, so that both are in one buffer: to a value that has none yet. */
void schedule_pass_gradient(struct schedule_builder *b, int from, int to);
bool schedule_has_gradient(const struct schedule_builder *b, int value);
/* True if schedule_pass_gradient may be called. False if `to` has a gradient, or if something may be added to one of
 * the two while the other is still needed: the gradient of a sum that other layers read, or of an input, which is
 * needed to the end. Only the first input's gradient takes an output's place. */
bool schedule_may_pass_gradient(const struct schedule_builder *b, int from, int to);

/* Begins a step that reads all values that backward reads, and the gradient of output 0. */
struct schedule_step *schedule_begin_derivative(struct schedule_builder *b, int operation);

/* Adds one whole step: schedule_begin_derivative, the gradient of input 0, schedule_end_step. */
void schedule_differentiate(struct schedule_builder *b, int operation);

#endif
