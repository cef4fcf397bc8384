/* Moving its arrays takes the time; gates are a small part of them. */
#include "proto/operation/call/head_gate.h"

#include "proto/operation/call.h"

static void head_gate_describe_inputs(struct call_work *out, struct device_head_gate *op)
{
    const size_t n_gates = op->m * op->n_heads;

    call_add_array(out, "x", &op->x, CALL_VALUES, CALL_READ, call_all(n_gates * op->n));
    call_add_array(out, "gate", &op->gate, CALL_VALUES, CALL_READ, call_all(n_gates));
}

void device_head_gate_describe(struct call_work *out, struct device_head_gate *op)
{
    head_gate_describe_inputs(out, op);
    call_add_array(out, "y", &op->y, CALL_VALUES, CALL_WRITTEN, call_all(op->m * op->n_heads * op->n));
}

void device_head_gate_backward_describe(struct call_work *out, struct device_head_gate *op)
{
    const size_t n_gates = op->m * op->n_heads;

    head_gate_describe_inputs(out, op);
    call_add_array(out, "y_gradient", &op->y_gradient, CALL_VALUES, CALL_READ, call_all(n_gates * op->n));
    call_add_array(out, "x_gradient", &op->x_gradient, CALL_VALUES, CALL_WRITTEN, call_all(n_gates * op->n));
    call_add_array(out, "gate_gradient", &op->gate_gradient, CALL_VALUES, CALL_WRITTEN, call_all(n_gates));
}
