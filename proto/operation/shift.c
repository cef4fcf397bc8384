#include "proto/operation/shift.h"

#include "proto/operation/operation.h"
#include "proto/operation/program_internal.h"
#include "proto/operation/schedule_internal.h"

#include <assert.h>

enum { X, B }; /* inputs */

int program_shift(struct program *p, int x, int b)
{
    struct program_operation *op = program_append(p, &operation_shift);

    assert(p->values[b].domain == PROGRAM_PART && p->values[b].columns == p->values[x].columns);
    op->shift.n = p->values[x].columns;
    program_add_input(p, op, x);
    program_add_input(p, op, b);
    return program_add_output(p, op, PROGRAM_VALUE, p->values[x].columns);
}

static void differentiate_to(struct schedule_builder *b, int operation, int input)
{
    struct schedule_step *step = schedule_begin_step(b, SCHEDULE_BACKWARD, operation);

    step->y_gradient = schedule_read_gradient(b, b->program->operations[operation].outputs[0]);
    schedule_write_gradient(b, step, input);
    schedule_end_step(b);
}

/* The gradient passes to x as it is, if it may; its sum over all elements is added to b's. */
static void shift_differentiate(struct schedule_builder *b, int operation)
{
    const struct program_operation *op = &b->program->operations[operation];

    differentiate_to(b, operation, B);
    if (schedule_may_pass_gradient(b, op->outputs[0], op->inputs[X]))
        schedule_pass_gradient(b, op->outputs[0], op->inputs[X]);
    else
        differentiate_to(b, operation, X);
}

/* b in the device's type. */
static uint64_t shift_scratch(const struct program *p, const struct program_operation *op,
                              const struct operation_setting *s)
{
    (void)p;
    return s->type == NUMBER_FP32 ? 0 : op->shift.n * number_bytes(s->type);
}

static void shift_run_forward(const struct operation_run *r, const struct schedule_step *step)
{
    const struct program_operation *op = operation_of(r, step);
    const size_t n = op->shift.n;
    void *const y = r->at[step->outputs[0]];
    const void *b = r->at[step->inputs[B]];

    if (r->type != NUMBER_FP32) {
        r->ops->round_half(r->dev, &(struct device_round_half){r->at[step->scratch], b, n, r->type});
        b = r->at[step->scratch];
    }
    if (y != r->at[step->inputs[X]])
        operation_drop_add(r, &(struct program_dropout){0}, op->outputs[0], y, NULL, r->at[step->inputs[X]]);
    r->ops->position(r->dev,
                     &(struct device_position){
                         .n_rows = operation_elements(r, op->outputs[0]), .n_tokens = 1, .n = n, .table = b, .y = y});
}

static void shift_run(const struct operation_run *r, const struct schedule_step *step)
{
    const struct program_operation *op = operation_of(r, step);
    void *const gradient = step->action == SCHEDULE_BACKWARD ? r->at[step->x_gradient] : NULL;
    const void *dy = gradient ? r->at[step->y_gradient] : NULL;

    if (step->action == SCHEDULE_FORWARD)
        shift_run_forward(r, step);
    else if (step->of == X)
        operation_drop_add(r, &(struct program_dropout){0}, op->outputs[0], gradient,
                           step->accumulate ? gradient : NULL, dy);
    else if (gradient) /* NULL: b is frozen */
        r->ops->reduce_rows(r->dev, &(struct device_reduce_rows){gradient, dy, operation_elements(r, op->outputs[0]),
                                                                 op->shift.n, op->shift.n});
}

const struct operation operation_shift = {.name = "shift",
                                          .over_inputs = OPERATION_FIRST,
                                          .differentiate = shift_differentiate,
                                          .scratch = shift_scratch,
                                          .run = shift_run};
