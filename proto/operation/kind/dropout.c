/* Backward applies the same mask to the gradient. Nothing is kept for it: bits are a function of the row and the
 * element, and are drawn again. */
#include "proto/operation/kind/dropout.h"

#include "proto/operation/operation.h"
#include "proto/operation/program_internal.h"

#include <assert.h>

int program_drop(struct program *p, int x, const struct program_dropout *dropout)
{
    if (dropout->p == 0 && (dropout->scale == 0 || dropout->scale == 1))
        return x;
    struct program_operation *op = program_append(p, &operation_dropout);
    op->dropout = *dropout;
    program_add_input(p, op, x);
    return program_add_output(p, op, PROGRAM_VALUE, p->values[x].columns);
}

static void dropout_run(const struct operation_run *r, const struct schedule_step *step)
{
    const struct program_operation *op = operation_of(r, step);
    const bool forward = step->action == SCHEDULE_FORWARD;

    assert(!step->accumulate);
    operation_drop_add(r, &op->dropout, op->outputs[0], r->at[forward ? step->outputs[0] : step->x_gradient], NULL,
                       r->at[forward ? step->inputs[0] : step->y_gradient]);
}

const struct operation operation_dropout = {.name = "dropout",
                                            .over_inputs = OPERATION_FIRST,
                                            .gradient_over = true,
                                            .bears_4_bits = true,
                                            .cheap = true,
                                            .run = dropout_run};
