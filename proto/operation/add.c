#include "proto/operation/add.h"

#include "proto/operation/operation.h"
#include "proto/operation/program_internal.h"
#include "proto/operation/schedule_internal.h"

#include <assert.h>

int program_add(struct program *p, int x, int h, const struct program_dropout *dropout)
{
    struct program_operation *op = program_append(p, &operation_add);

    assert(p->values[x].columns == p->values[h].columns);
    op->add = *dropout;
    program_add_input(p, op, x);
    program_add_input(p, op, h);
    return program_add_output(p, op, PROGRAM_VALUE, p->values[x].columns);
}

/* The gradient passes to both as it is; dropout makes h's another. */
static void differentiate(struct schedule_builder *b, int operation)
{
    const struct program_operation *op = &b->program->operations[operation];

    schedule_pass_gradient(b, op->outputs[0], op->inputs[0]);
    if (op->add.p == 0) {
        schedule_pass_gradient(b, op->outputs[0], op->inputs[1]);
        return;
    }
    struct schedule_step *step = schedule_begin_step(b, SCHEDULE_BACKWARD, operation);
    step->y_gradient = schedule_read_gradient(b, op->outputs[0]);
    schedule_write_gradient(b, step, op->inputs[1]);
    schedule_end_step(b);
}

static void run(const struct operation_run *r, const struct schedule_step *step)
{
    const struct program_operation *op = operation_of(r, step);
    const size_t n = operation_columns(r, op->outputs[0]);

    assert(!step->accumulate);
    if (step->action == SCHEDULE_FORWARD)
        operation_drop_add(r, &op->add, n, r->at[step->outputs[0]], r->at[step->inputs[0]], r->at[step->inputs[1]]);
    else
        operation_drop_add(r, &op->add, n, r->at[step->x_gradient], NULL, r->at[step->y_gradient]);
}

const struct operation operation_add = {.name = "add",
                                        .result = "residual",
                                        .over_inputs = OPERATION_FIRST | OPERATION_SECOND,
                                        .differentiate = differentiate,
                                        .run = run};
