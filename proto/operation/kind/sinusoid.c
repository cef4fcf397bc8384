/* The gradient passes through unchanged, so backward does nothing but share its buffer; that is asserted, as a buffer
 * of its own would stay uninitialised. */
#include "proto/operation/kind/sinusoid.h"

#include "proto/operation/operation.h"
#include "proto/operation/program_internal.h"

#include <assert.h>

int program_sinusoid(struct program *p, int x)
{
    struct program_operation *op = program_append(p, &operation_sinusoid);

    assert(p->values[x].columns % 2 == 0);
    op->sinusoid.n = p->values[x].columns;
    program_add_input(p, op, x);
    return program_add_output(p, op, PROGRAM_VALUE, op->sinusoid.n);
}

/* In place; backward there is nothing to do. */
static void sinusoid_run(const struct operation_run *r, const struct schedule_step *step)
{
    const struct program_operation *op = operation_of(r, step);
    const bool forward = step->action == SCHEDULE_FORWARD;
    void *const x = r->at[forward ? step->outputs[0] : step->x_gradient];

    struct device_sinusoid sinusoid = {.n_rows = r->n_rows,
                                       .n_tokens = operation_row_elements(r, op->inputs[0]),
                                       .n = op->sinusoid.n,
                                       .y = x};

    assert(x == r->at[forward ? step->inputs[0] : step->y_gradient] && !step->accumulate);
    if (forward && !r->spans)
        r->ops->sinusoid(r->dev, &sinusoid);
    for (const struct operation_span *span = r->spans; span < r->spans + r->n_spans; span++) {
        sinusoid.n_tokens = span->n;
        sinusoid.first = span->position;
        sinusoid.y = operation_element(r, x, span->at * sinusoid.n);
        r->ops->sinusoid(r->dev, &sinusoid);
    }
}

/* Positions are those of the row, whatever its documents. */
const struct operation operation_sinusoid = {.name = "sinusoid",
                                             .over_inputs = OPERATION_FIRST,
                                             .gradient_over = true,
                                             .mixes_tokens = true,
                                             .run = sinusoid_run};
