/* A copy a row, by dropout_add without dropout: rows of x and of y have different lengths, and no single stride
 * describes both. The gradient is zero where nothing was taken, so it is cleared first, unless another operation has
 * begun it. */
#include "proto/operation/kind/take.h"

#include "proto/operation/operation.h"
#include "proto/operation/program_internal.h"

#include <assert.h>

int program_take(struct program *p, int x, uint32_t domain)
{
    struct program_operation *op = program_append(p, &operation_take);

    assert(domain >= PROGRAM_OWN && p->values[x].domain == PROGRAM_TOKENS);
    op->take.domain = domain;
    program_add_input(p, op, x);
    return program_add_output_in(p, op, PROGRAM_VALUE, domain, p->values[x].columns);
}

/* One row: to (n elements) = from, or += from. */
static void take_copy(const struct operation_run *r, size_t n, size_t columns, void *to, const void *from, bool adds)
{
    r->ops->dropout_add(r->dev,
                        &(struct device_dropout_add){
                            .n_rows = 1, .n_tokens = n, .n = columns, .x = adds ? to : NULL, .h = from, .y = to});
}

static void take_run(const struct operation_run *r, const struct schedule_step *step)
{
    const struct program_operation *op = operation_of(r, step);
    const size_t columns = operation_columns(r, op->outputs[0]), all = operation_row_elements(r, op->inputs[0]);
    const size_t n = operation_row_elements(r, op->outputs[0]);
    const size_t begin = program_own_first(&r->program->own[op->take.domain - PROGRAM_OWN], r->n_tokens);
    const bool forward = step->action == SCHEDULE_FORWARD;
    void *const gradient = forward ? NULL : r->at[step->x_gradient];

    assert(begin + n <= all);
    if (!forward && !step->accumulate)
        r->ops->zero(r->dev, &(struct device_zero){gradient, operation_elements(r, op->inputs[0]) * columns *
                                                                 number_bytes(r->type)});
    for (size_t row = 0; row < r->n_rows; row++) {
        const size_t of_x = (row * all + begin) * columns, of_y = row * n * columns;
        if (forward)
            take_copy(r, n, columns, operation_element(r, r->at[step->outputs[0]], of_y),
                      operation_element(r, r->at[step->inputs[0]], of_x), false);
        else
            take_copy(r, n, columns, operation_element(r, gradient, of_x),
                      operation_element(r, r->at[step->y_gradient], of_y), true);
    }
}

const struct operation operation_take = {.name = "take", .mixes_tokens = true, .run = take_run};
