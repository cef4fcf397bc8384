/* Where dropout stands between a branch and the sum that a norm reads, the norm's backward writes both gradients in one
 * pass: that of the sum, and that of the branch behind its dropout. add_before_norm decides it, here and in add.c, so
 * exactly one of the two makes the second gradient. */
#include "proto/operation/kind/norm.h"

#include "proto/operation/operation.h"
#include "proto/operation/program_internal.h"
#include "proto/operation/schedule_internal.h"

int program_norm(struct program *p, int x, const char *stem, const struct program_norm_options *norm)
{
    const uint32_t columns = p->values[x].columns, n_heads = norm->n_heads > 0 ? norm->n_heads : 1;
    const uint32_t width = columns / n_heads;
    struct program_operation *op = program_append(p, &operation_norm);

    op->norm = *norm;
    program_add_input(p, op, x);
    const int y = program_add_output(p, op, PROGRAM_VALUE, columns);
    program_add_output(p, op, PROGRAM_STATISTIC, 2 * n_heads);
    assert(columns % n_heads == 0);
    assert(!norm->bare || !norm->bias);
    if (!norm->bare)
        program_add_tensor(p, op, stem, "weight",
                           (struct program_tensor){.rows = width,
                                                   .init = norm->offset ? MODEL_INIT_ZERO : MODEL_INIT_ONE});
    if (norm->bias)
        program_add_tensor(p, op, stem, "bias", (struct program_tensor){.rows = width, .init = MODEL_INIT_ZERO});
    return y;
}

enum { WEIGHT, BIAS };

struct device_norm norm_call(const struct operation_run *r, const struct program_operation *op)
{
    return (struct device_norm){.kind = op->norm.rms ? DEVICE_RMS_NORM : DEVICE_LAYER_NORM,
                                .m = operation_elements(r, op->inputs[0]),
                                .n =
                                    operation_columns(r, op->inputs[0]) / (op->norm.n_heads > 0 ? op->norm.n_heads : 1),
                                .n_heads = op->norm.n_heads,
                                .epsilon = op->norm.epsilon,
                                .bare = op->norm.bare,
                                .offset = op->norm.offset,
                                .weight = op->norm.bare ? NULL : r->weights[op->tensor + WEIGHT],
                                .bias = op->norm.bias ? r->weights[op->tensor + BIAS] : NULL};
}

/* With the gradient of what dropout let through, if it made what the norm reads. */
static void norm_differentiate(struct schedule_builder *b, int operation)
{
    const int add = add_before_norm(b->program, operation);
    struct schedule_step *step = schedule_begin_derivative(b, operation);

    schedule_write_gradient(b, step, 0);
    step->absorbed = add;
    if (add != SCHEDULE_NONE)
        schedule_write_other_gradient_of(b, step, b->program->operations[add].inputs[1]);
    schedule_end_step(b);
}

static void norm_run(const struct operation_run *r, const struct schedule_step *step)
{
    const struct program_operation *op = operation_of(r, step);
    struct device_norm norm = norm_call(r, op);

    norm.x = r->at[step->inputs[0]];
    norm.statistics = r->at[step->outputs[1]];
    if (step->action == SCHEDULE_FORWARD) {
        norm.y = r->at[step->outputs[0]];
        r->ops->norm(r->dev, &norm);
        return;
    }
    norm.y_gradient = r->at[step->y_gradient];
    norm.x_gradient = r->at[step->x_gradient];
    norm.accumulate = step->accumulate;
    norm.weight_gradient = op->norm.bare ? NULL : r->gradients[op->tensor + WEIGHT];
    norm.bias_gradient = op->norm.bias ? r->gradients[op->tensor + BIAS] : NULL;
    if (step->absorbed != SCHEDULE_NONE)
        norm.add = operation_sum_of(r, &r->program->operations[step->absorbed].add, op->inputs[0],
                                    r->at[step->other_gradient], NULL, NULL);
    r->ops->norm_backward(r->dev, &norm);
}

const struct operation operation_norm = {.name = "norm",
                                         .reads_inputs = OPERATION_FIRST,
                                         .reads_outputs = OPERATION_SECOND,
                                         .gradient_over = true,
                                         .cheap = true,
                                         .differentiate = norm_differentiate,
                                         .run = norm_run};
