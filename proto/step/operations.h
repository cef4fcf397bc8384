/* proto/step/operations.h - one step of a layer's schedule, in one or two calls to the device.
 *
 * For proto/step/program.c, which runs the schedules. */
#ifndef PROTO_STEP_OPERATIONS_H
#define PROTO_STEP_OPERATIONS_H

#include "proto/step/layers.h"

/* One pass through one schedule. */
struct operation_run {
    const struct layer_pass *pass;
    const struct model_program *layer;
    const struct schedule *schedule;
    uint32_t keeping; /* of the first n_keepings */
    struct plan_places places;
};

static inline const struct program_operation *operation_of(const struct operation_run *r,
                                                           const struct schedule_step *step)
{
    return &r->layer->program.operations[step->operation];
}

/* Runs the step, by its action. */
void operation_step(const struct operation_run *r, const struct schedule_step *step);

/* True if the step adds to the contribution of a trained tensor. */
bool operation_contributes(const struct operation_run *r, const struct schedule_step *step);

/* What a step of attention gives to the device; backward: with the gradients. */
struct device_attention operation_attention(const struct operation_run *r, const struct schedule_step *step);

#endif
