/* Attention with a stride from head to head would save this copy, but in each of its kernels and caches, and in cuDNN's
 * graphs, as for regroup. Backward reads no value here: x is free once both parts of it are made, and weights stay as
 * the files have them. */
#include "proto/operation/kind/split.h"

#include "proto/operation/operation.h"
#include "proto/operation/program_internal.h"
#include "proto/operation/schedule_internal.h"

#include <assert.h>

enum { Y, GATES }; /* outputs */

int program_split(struct program *p, int x, uint32_t n_heads, uint32_t head_width, int *gates)
{
    struct program_operation *op = program_append(p, &operation_split);
    const uint32_t columns = p->values[x].columns, queries = n_heads * head_width;

    assert(columns >= 2 * queries);
    op->split = (struct program_split_options){n_heads, head_width};
    program_add_input(p, op, x);
    const int y = program_add_output(p, op, PROGRAM_VALUE, columns - queries);
    *gates = program_add_output(p, op, PROGRAM_VALUE, queries);
    return y;
}

/* The gradients of both outputs make that of x. */
static void split_differentiate(struct schedule_builder *b, int operation)
{
    const struct program_operation *op = &b->program->operations[operation];
    struct schedule_step *step = schedule_begin_derivative(b, operation);

    step->inputs[GATES] = schedule_read_gradient(b, op->outputs[GATES]);
    schedule_write_gradient(b, step, 0);
    schedule_end_step(b);
}

static void split_run(const struct operation_run *r, const struct schedule_step *step)
{
    const struct program_operation *op = operation_of(r, step);
    const size_t n_heads = op->split.n_heads, n = op->split.head_width;
    const struct device_split split = {
        .m = operation_elements(r, op->inputs[0]),
        .n_heads = n_heads,
        .n = n,
        .n_rest = operation_columns(r, op->inputs[0]) - 2 * n_heads * n,
        .x = r->at[step->action == SCHEDULE_FORWARD ? step->inputs[0] : step->x_gradient],
        .y = r->at[step->action == SCHEDULE_FORWARD ? step->outputs[Y] : step->y_gradient],
        .gates = r->at[step->action == SCHEDULE_FORWARD ? step->outputs[GATES] : step->inputs[GATES]]};

    assert(!step->accumulate); /* no other operation reads x */
    if (step->action == SCHEDULE_FORWARD)
        r->ops->split(r->dev, &split);
    else
        r->ops->join(r->dev, &split);
}

const struct operation operation_split = {.name = "split",
                                          .cheap = true,
                                          .differentiate = split_differentiate,
                                          .run = split_run};
