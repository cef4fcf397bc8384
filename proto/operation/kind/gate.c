/* A gate for each column is what a gated linear unit multiplies by, so its kernels compute it, of two arrays instead of
 * one's halves. A gate for a head has a gradient that is a sum, and kernels of its own.
 *
 * Backward reads both factors, as either is the other's gradient. y is not kept: it is made again from them. */
#include "proto/operation/kind/gate.h"

#include "proto/operation/operation.h"
#include "proto/operation/program_internal.h"
#include "proto/operation/schedule_internal.h"

#include <assert.h>

enum { X, GATE }; /* inputs */

static int gate_append(struct program *p, int x, int gate, const struct program_gate_options *how)
{
    struct program_operation *op = program_append(p, &operation_gate);

    assert(p->values[x].domain == p->values[gate].domain);
    op->gate = *how;
    program_add_input(p, op, x);
    program_add_input(p, op, gate);
    return program_add_output(p, op, PROGRAM_VALUE, p->values[x].columns);
}

int program_gate(struct program *p, int x, int gate, enum model_activation function)
{
    assert(p->values[x].columns == p->values[gate].columns);
    return gate_append(p, x, gate, &(struct program_gate_options){.function = function});
}

int program_head_gate(struct program *p, int x, int gate, uint32_t n_heads)
{
    assert(p->values[gate].columns == n_heads && p->values[x].columns % n_heads == 0);
    return gate_append(p, x, gate, &(struct program_gate_options){.function = MODEL_SIGMOID, .n_heads = n_heads});
}

static void gate_differentiate(struct schedule_builder *b, int operation)
{
    struct schedule_step *step = schedule_begin_derivative(b, operation);

    schedule_write_gradient(b, step, X);
    schedule_write_other_gradient(b, step);
    schedule_end_step(b);
}

static void gate_run_columns(const struct operation_run *r, const struct schedule_step *step)
{
    const struct program_operation *op = operation_of(r, step);
    const size_t n = operation_columns(r, op->inputs[X]);
    struct device_glu glu = {.m = operation_elements(r, op->inputs[X]),
                             .n = n,
                             .activation = op->gate.function,
                             .gate = r->at[step->inputs[GATE]],
                             .up = r->at[step->inputs[X]],
                             .stride = n};

    if (step->action == SCHEDULE_FORWARD) {
        glu.y = r->at[step->outputs[0]];
        r->ops->glu(r->dev, &glu);
        return;
    }
    glu.y_gradient = r->at[step->y_gradient];
    glu.up_gradient = r->at[step->x_gradient];
    glu.gate_gradient = r->at[step->other_gradient];
    glu.gradient_stride = n;
    r->ops->glu_backward(r->dev, &glu);
}

static void gate_run_heads(const struct operation_run *r, const struct schedule_step *step)
{
    const struct program_operation *op = operation_of(r, step);
    struct device_head_gate gate = {.m = operation_elements(r, op->inputs[X]),
                                    .n_heads = op->gate.n_heads,
                                    .n = operation_columns(r, op->inputs[X]) / op->gate.n_heads,
                                    .x = r->at[step->inputs[X]],
                                    .gate = r->at[step->inputs[GATE]]};

    if (step->action == SCHEDULE_FORWARD) {
        gate.y = r->at[step->outputs[0]];
        r->ops->head_gate(r->dev, &gate);
        return;
    }
    gate.y_gradient = r->at[step->y_gradient];
    gate.x_gradient = r->at[step->x_gradient];
    gate.gate_gradient = r->at[step->other_gradient];
    r->ops->head_gate_backward(r->dev, &gate);
}

static void gate_run(const struct operation_run *r, const struct schedule_step *step)
{
    assert(!step->accumulate && !step->accumulate_other); /* no other operation reads x or the gate */
    if (operation_of(r, step)->gate.n_heads > 0)
        gate_run_heads(r, step);
    else
        gate_run_columns(r, step);
}

const struct operation operation_gate = {.name = "gate",
                                         .reads_inputs = OPERATION_FIRST | OPERATION_SECOND,
                                         .over_inputs = OPERATION_FIRST,
                                         .gradient_over = true,
                                         .bears_4_bits = true,
                                         .cheap = true,
                                         .differentiate = gate_differentiate,
                                         .run = gate_run};
