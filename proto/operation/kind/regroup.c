/* Attention with a stride from head to head would save this copy, but in each of its kernels and caches, and in cuDNN's
 * graphs. The copy moves 2 values of each column. Weights stay as the files have them. */
#include "proto/operation/kind/regroup.h"

#include "proto/operation/operation.h"
#include "proto/operation/program_internal.h"

#include <assert.h>

int program_regroup(struct program *p, int x, uint32_t n_groups, uint32_t n_parts)
{
    struct program_operation *op = program_append(p, &operation_regroup);
    const uint32_t columns = p->values[x].columns;

    assert(columns % (n_groups * n_parts) == 0);
    op->regroup = (struct program_regroup_options){n_groups, n_parts};
    program_add_input(p, op, x);
    return program_add_output(p, op, PROGRAM_VALUE, columns);
}

/* Backward, parts are the groups of the gradient, which go back to where they came from. */
static void regroup_run(const struct operation_run *r, const struct schedule_step *step)
{
    const struct program_operation *op = operation_of(r, step);
    const bool forward = step->action == SCHEDULE_FORWARD;
    const uint32_t n_groups = op->regroup.n_groups, n_parts = op->regroup.n_parts;
    const struct device_regroup regroup = {.m = operation_elements(r, op->inputs[0]),
                                           .n_groups = forward ? n_groups : n_parts,
                                           .n_parts = forward ? n_parts : n_groups,
                                           .n = operation_columns(r, op->inputs[0]) / (n_groups * n_parts),
                                           .x = r->at[forward ? step->inputs[0] : step->y_gradient],
                                           .y = r->at[forward ? step->outputs[0] : step->x_gradient]};

    assert(!step->accumulate && regroup.x != regroup.y);
    r->ops->regroup(r->dev, &regroup);
}

const struct operation operation_regroup = {.name = "regroup", .cheap = true, .run = regroup_run};
