/* The layer runs for each microbatch, but the tensor is the part's: only the first run reads it, and only the first run
 * of backward contributes. By then all microbatches of the layers above have added to the gradient of y, as a visit
 * ends for all microbatches before the next begins. */
#include "proto/operation/parameter.h"

#include "proto/operation/operation.h"
#include "proto/operation/program_internal.h"
#include "proto/operation/schedule_internal.h"

static int parameter_append(struct program *p, const char *name, struct program_tensor tensor)
{
    struct program_operation *op = program_append(p, &operation_parameter);

    op->parameter.n = tensor.rows * (tensor.columns ? tensor.columns : 1);
    op->parameter.is_matrix = tensor.columns > 0;
    program_add_named_tensor(p, op, name, tensor);
    return program_add_output_in(p, op, PROGRAM_STATISTIC, PROGRAM_PART, op->parameter.n);
}

int program_parameter(struct program *p, const char *name, uint32_t n)
{
    return parameter_append(p, name, (struct program_tensor){.rows = n, .init = MODEL_INIT_ZERO});
}

int program_matrix(struct program *p, const char *name, uint32_t rows, uint32_t columns, float deviation)
{
    return parameter_append(
        p, name,
        (struct program_tensor){.rows = rows, .columns = columns, .init = MODEL_INIT_NORMAL, .deviation = deviation});
}

/* What all microbatches of a part left in the gradient of y is the tensor's. */
static void parameter_differentiate(struct schedule_builder *b, int operation)
{
    struct schedule_step *step = schedule_begin_step(b, SCHEDULE_BACKWARD, operation);

    step->contributes = true;
    step->y_gradient = schedule_read_gradient(b, b->program->operations[operation].outputs[0]);
    schedule_end_step(b);
}

/* In the first microbatch of a part. */
static void parameter_run(const struct operation_run *r, const struct schedule_step *step)
{
    const struct program_operation *op = operation_of(r, step);
    const size_t n = op->parameter.n;
    float *const gradient = r->gradients[op->tensor];

    if (!r->fresh)
        return;
    if (step->action == SCHEDULE_FORWARD) {
        float *const y = r->at[step->outputs[0]];
        r->ops->zero(r->dev, &(struct device_zero){y, n * sizeof *y});
        r->ops->reduce_rows(r->dev, &(struct device_reduce_rows){y, r->weights[op->tensor], 1, n, n});
    } else if (gradient) {
        if (op->parameter.is_matrix)
            r->ops->zero(r->dev, &(struct device_zero){gradient, n * sizeof *gradient});
        r->ops->add(r->dev, &(struct device_add){gradient, r->at[step->y_gradient], n});
        operation_end_gradient(r, op->tensor);
    }
}

const struct operation operation_parameter = {.name = "parameter",
                                              .differentiate = parameter_differentiate,
                                              .run = parameter_run};
