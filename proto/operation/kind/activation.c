/* A linear map beside it computes the function in its own epilogue (linear.c), so this file runs only where there is
 * none. Whether the gradient is already that of x is not noted anywhere: it is, if somebody has made it. */
#include "proto/operation/kind/activation.h"

#include "proto/operation/operation.h"
#include "proto/operation/program_internal.h"
#include "proto/operation/schedule_internal.h"

#include <assert.h>

int program_activation(struct program *p, int x, enum model_activation function)
{
    struct program_operation *op = program_append(p, &operation_activation);

    op->activation.function = function;
    program_add_input(p, op, x);
    return program_add_output(p, op, PROGRAM_VALUE, p->values[x].columns);
}

/* The linear map behind it may have made the gradient. */
static void activation_differentiate(struct schedule_builder *b, int operation)
{
    if (!schedule_has_gradient(b, b->program->operations[operation].inputs[0]))
        schedule_differentiate(b, operation);
}

static void activation_run(const struct operation_run *r, const struct schedule_step *step)
{
    const struct program_operation *op = operation_of(r, step);
    const bool forward = step->action == SCHEDULE_FORWARD;
    const size_t n = operation_columns(r, op->inputs[0]);
    const struct device_activate activate = {.n = operation_elements(r, op->inputs[0]) * n,
                                             .activation = op->activation.function,
                                             .x = r->at[step->inputs[0]],
                                             .y = forward ? r->at[step->outputs[0]] : NULL,
                                             .gradient = forward ? NULL : r->at[step->x_gradient]};

    assert(!step->accumulate);
    if (forward) {
        r->ops->activate(r->dev, &activate);
        return;
    }
    const struct device_dropout_add copy = {.n_rows = r->n_rows,
                                            .n_tokens = operation_row_elements(r, op->inputs[0]),
                                            .n = n,
                                            .h = r->at[step->y_gradient],
                                            .y = r->at[step->x_gradient]};
    if (step->y_gradient != step->x_gradient) /* the gradient is made in place */
        r->ops->dropout_add(r->dev, &copy);
    r->ops->activate_backward(r->dev, &activate);
}

const struct operation operation_activation = {.name = "activation",
                                               .reads_inputs = OPERATION_FIRST,
                                               .bears_4_bits = true,
                                               .gradient_over = true,
                                               .cheap = true,
                                               .differentiate = activation_differentiate,
                                               .run = activation_run};
