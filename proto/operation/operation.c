#include "proto/operation/operation.h"

struct device_dropout operation_dropout_of(const struct operation_run *r, const struct program_dropout *dropout)
{
    return (struct device_dropout){.p = r->drops ? dropout->p : 0,
                                   .key = random_site_key(r->seed, r->step, r->unit, dropout->site),
                                   .first_row = r->first_row};
}

void operation_drop_add(const struct operation_run *r, const struct program_dropout *dropout, int value, void *y,
                        const void *x, const void *h)
{
    const struct device_dropout_add sum = {.n_rows = r->n_rows,
                                           .n_tokens = operation_row_elements(r, value),
                                           .n = operation_columns(r, value),
                                           .x = x,
                                           .h = h,
                                           .y = y,
                                           .dropout = operation_dropout_of(r, dropout)};

    r->ops->dropout_add(r->dev, &sum);
}

void operation_run_steps(const struct operation_run *r, int first, int end)
{
    for (const struct schedule_step *step = &r->schedule->steps[first]; step < &r->schedule->steps[end]; step++)
        operation_of(r, step)->kind->run(r, step);
}

static bool contributes(const struct operation_run *r, const struct schedule_step *step)
{
    const struct program_operation *op = operation_of(r, step);

    for (int i = 0; step->contributes && i < op->n_tensors; i++)
        if (r->gradients[op->tensor + i])
            return true;
    return false;
}

int operation_count_steps(const struct operation_run *r, bool lowest)
{
    int n = r->schedule->n_steps;

    while (lowest && n > r->schedule->n_recomputed && !contributes(r, &r->schedule->steps[n - 1]))
        n--;
    return n;
}
