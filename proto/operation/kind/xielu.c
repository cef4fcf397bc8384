/* No linear map computes it in its epilogue, as it does activations: its two numbers are tensors, and their gradients
 * sums over all elements, for which backward reads x in a pass of its own. */
#include "proto/operation/kind/xielu.h"

#include "proto/operation/operation.h"
#include "proto/operation/program_internal.h"

#include <assert.h>

enum { POSITIVE, NEGATIVE };

int program_xielu(struct program *p, int x, const char *stem, const struct program_xielu_options *xielu)
{
    /* softplus of the first is 0.8, of the second 0.3: those of transformers' fresh models */
    const struct program_tensor positive = {.rows = 1, .init = MODEL_INIT_CONSTANT, .deviation = 0.20339f};
    const struct program_tensor negative = {.rows = 1, .init = MODEL_INIT_CONSTANT, .deviation = -1.0502f};
    struct program_operation *op = program_append(p, &operation_xielu);

    op->xielu = *xielu;
    program_add_input(p, op, x);
    const int y = program_add_output(p, op, PROGRAM_VALUE, p->values[x].columns);
    program_add_tensor(p, op, stem, "alpha_p", positive);
    program_add_tensor(p, op, stem, "alpha_n", negative);
    return y;
}

static void xielu_run(const struct operation_run *r, const struct schedule_step *step)
{
    const struct program_operation *op = operation_of(r, step);
    struct device_xielu xielu = {.n = operation_elements(r, op->inputs[0]) * operation_columns(r, op->inputs[0]),
                                 .beta = op->xielu.beta,
                                 .bound = op->xielu.bound,
                                 .x = r->at[step->inputs[0]],
                                 .positive = r->weights[op->tensor + POSITIVE],
                                 .negative = r->weights[op->tensor + NEGATIVE]};

    if (step->action == SCHEDULE_FORWARD) {
        xielu.y = r->at[step->outputs[0]];
        r->ops->xielu(r->dev, &xielu);
        return;
    }
    assert(!step->accumulate); /* no other operation reads x */
    xielu.y_gradient = r->at[step->y_gradient];
    xielu.x_gradient = r->at[step->x_gradient];
    xielu.of_positive = r->gradients[op->tensor + POSITIVE];
    xielu.of_negative = r->gradients[op->tensor + NEGATIVE];
    r->ops->xielu_backward(r->dev, &xielu);
}

const struct operation operation_xielu = {
    .name = "xielu", .reads_inputs = OPERATION_FIRST, .gradient_over = true, .cheap = true, .run = xielu_run};
