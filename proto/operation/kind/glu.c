/* Gate and up are read again in backward, not their product: the gradient of each needs the other. x is never
 * overwritten by y, which has half its columns. */
#include "proto/operation/kind/glu.h"

#include "proto/operation/operation.h"
#include "proto/operation/program_internal.h"

#include <assert.h>

int program_glu(struct program *p, int x, enum model_activation activation)
{
    struct program_operation *op = program_append(p, &operation_glu);

    assert(p->values[x].columns % 2 == 0);
    op->glu.function = activation;
    program_add_input(p, op, x);
    return program_add_output(p, op, PROGRAM_VALUE, p->values[x].columns / 2);
}

static void glu_run(const struct operation_run *r, const struct schedule_step *step)
{
    const struct program_operation *op = operation_of(r, step);
    const size_t n = operation_columns(r, op->outputs[0]);
    const void *x = r->at[step->inputs[0]];
    struct device_glu glu = {.m = operation_elements(r, op->inputs[0]),
                             .n = n,
                             .activation = op->glu.function,
                             .gate = x,
                             .up = operation_element(r, x, n),
                             .stride = 2 * n};

    if (step->action == SCHEDULE_FORWARD) {
        glu.y = r->at[step->outputs[0]];
        r->ops->glu(r->dev, &glu);
        return;
    }
    glu.y_gradient = r->at[step->y_gradient];
    glu.gate_gradient = r->at[step->x_gradient];
    glu.up_gradient = operation_element(r, glu.gate_gradient, n);
    glu.gradient_stride = 2 * n;
    r->ops->glu_backward(r->dev, &glu);
}

const struct operation operation_glu = {
    .name = "glu", .reads_inputs = OPERATION_FIRST, .bears_4_bits = true, .cheap = true, .run = glu_run};
