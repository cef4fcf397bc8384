#include "proto/operation/norm.h"

#include "proto/operation/operation.h"
#include "proto/operation/program_internal.h"

int program_norm(struct program *p, int x, const char *stem, const struct program_norm_options *norm)
{
    const uint32_t width = p->values[x].columns;
    struct program_operation *op = program_append(p, &operation_norm);

    op->norm = *norm;
    program_add_input(p, op, x);
    const int y = program_add_output(p, op, PROGRAM_VALUE, width);
    program_add_output(p, op, PROGRAM_STATISTIC, 2);
    program_add_tensor(p, op, stem, "weight",
                       (struct program_tensor){.rows = width, .init = norm->offset ? MODEL_INIT_ZERO : MODEL_INIT_ONE});
    if (norm->bias)
        program_add_tensor(p, op, stem, "bias", (struct program_tensor){.rows = width, .init = MODEL_INIT_ZERO});
    return y;
}

enum { WEIGHT, BIAS };

static void run(const struct operation_run *r, const struct schedule_step *step)
{
    const struct program_operation *op = operation_of(r, step);
    struct device_norm norm = {.kind = op->norm.rms ? DEVICE_RMS_NORM : DEVICE_LAYER_NORM,
                               .m = operation_elements(r, op->inputs[0]),
                               .n = operation_columns(r, op->inputs[0]),
                               .offset = op->norm.offset,
                               .x = r->at[step->inputs[0]],
                               .weight = r->weights[op->tensor + WEIGHT],
                               .statistics = r->at[step->outputs[1]]};

    if (step->action == SCHEDULE_FORWARD) {
        norm.epsilon = op->norm.epsilon;
        norm.bias = op->norm.bias ? r->weights[op->tensor + BIAS] : NULL;
        norm.y = r->at[step->outputs[0]];
        r->ops->norm(r->dev, &norm);
        return;
    }
    norm.y_gradient = r->at[step->y_gradient];
    norm.x_gradient = r->at[step->x_gradient];
    norm.accumulate = step->accumulate;
    norm.weight_gradient = r->gradients[op->tensor + WEIGHT];
    norm.bias_gradient = op->norm.bias ? r->gradients[op->tensor + BIAS] : NULL;
    r->ops->norm_backward(r->dev, &norm);
}

const struct operation operation_norm = {.name = "norm",
                                         .reads_inputs = OPERATION_FIRST,
                                         .reads_outputs = OPERATION_SECOND,
                                         .gradient_over = true,
                                         .cheap = true,
                                         .run = run};
