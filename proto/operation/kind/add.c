/* Most sums cost backward nothing: the gradient of the sum serves as that of both operands, under the same number of a
 * buffer. Where the norm's step makes the gradient of h, this operation must not make it again. No step carries that
 * answer: norm and sum both ask add_before_norm, which depends on the program alone. */
#include "proto/operation/kind/add.h"

#include "proto/operation/operation.h"
#include "proto/operation/program_internal.h"
#include "proto/operation/schedule_internal.h"

#include <assert.h>

int program_add(struct program *p, int x, int h, const struct program_dropout *dropout)
{
    struct program_operation *op = program_append(p, &operation_add);

    assert(p->values[x].columns == p->values[h].columns && p->values[x].domain == p->values[h].domain);
    op->add = *dropout;
    program_add_input(p, op, x);
    program_add_input(p, op, h);
    return program_add_output(p, op, PROGRAM_VALUE, p->values[x].columns);
}

/* True if the gradient of h is that of the sum. */
static bool adds_as_it_is(const struct program_dropout *dropout)
{
    return dropout->p == 0 && dropout->survival == 0 && (dropout->scale == 0 || dropout->scale == 1);
}

/* Forward: the norm behind it. Not of heads; one of a part's values has another shape than dropout draws for. */
static int add_absorb(const struct program *p, int operation)
{
    const struct program_operation *op = &p->operations[operation], *next = op + 1;

    if (operation + 1 == p->n_operations || next->kind != &operation_norm || next->inputs[0] != op->outputs[0] ||
        next->norm.n_heads > 1 || p->values[op->outputs[0]].domain == PROGRAM_PART)
        return SCHEDULE_NONE;
    return operation + 1;
}

int add_before_norm(const struct program *p, int norm)
{
    const int maker = p->values[p->operations[norm].inputs[0]].operation;
    const struct program_operation *add = maker >= 0 ? &p->operations[maker] : NULL;

    if (!add || add->kind != &operation_add || add_absorb(p, maker) != norm || adds_as_it_is(&add->add) ||
        program_count_readers(p, add->inputs[1]) != 1)
        return SCHEDULE_NONE;
    return maker;
}

/* The gradient passes to both as it is, unless dropout or a scale changes it, there is one already, or it needs a place
 * of its own. The norm behind it may have made that of h. */
static void add_differentiate(struct schedule_builder *b, int operation)
{
    const struct program_operation *op = &b->program->operations[operation];
    const int norm = add_absorb(b->program, operation);

    for (int i = 0; i < op->n_inputs; i++) {
        if (i == 1 && norm != SCHEDULE_NONE && add_before_norm(b->program, norm) == operation)
            continue;
        if (schedule_may_pass_gradient(b, op->outputs[0], op->inputs[i]) && (i == 0 || adds_as_it_is(&op->add))) {
            schedule_pass_gradient(b, op->outputs[0], op->inputs[i]);
            continue;
        }
        struct schedule_step *step = schedule_begin_step(b, SCHEDULE_BACKWARD, operation);
        step->y_gradient = schedule_read_gradient(b, op->outputs[0]);
        schedule_write_gradient(b, step, i);
        schedule_end_step(b);
    }
}

static void run(const struct operation_run *r, const struct schedule_step *step)
{
    const struct program_operation *op = operation_of(r, step);
    const struct program_dropout none = {0};
    const int y = op->outputs[0];

    if (step->absorbed != SCHEDULE_NONE) {
        struct device_norm norm = norm_call(r, &r->program->operations[step->absorbed]);
        norm.add = operation_sum_of(r, &op->add, y, step->outputs[0] != SCHEDULE_NONE ? r->at[step->outputs[0]] : NULL,
                                    r->at[step->inputs[0]], r->at[step->inputs[1]]);
        norm.y = r->at[step->after[0]];
        norm.statistics = r->at[step->after[1]];
        r->ops->norm(r->dev, &norm);
        return;
    }
    if (step->action == SCHEDULE_FORWARD) {
        operation_drop_add(r, &op->add, y, r->at[step->outputs[0]], r->at[step->inputs[0]], r->at[step->inputs[1]]);
        return;
    }
    void *const gradient = r->at[step->x_gradient];
    operation_drop_add(r, step->of == 0 ? &none : &op->add, y, gradient, step->accumulate ? gradient : NULL,
                       r->at[step->y_gradient]);
}

const struct operation operation_add = {.name = "add",
                                        .result = "residual",
                                        .over_inputs = OPERATION_FIRST | OPERATION_SECOND,
                                        .absorb = add_absorb,
                                        .leaves_out = true,
                                        .differentiate = add_differentiate,
                                        .run = run};
