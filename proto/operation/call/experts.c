/* Products take the time: forward three of (tokens, n, inner) for each choice; backward two of them again, three for
 * gradients of what is multiplied, and one for each weight's gradient. Their rows are an expert's tokens, on average,
 * and each expert has launches of its own. All weights are read, whatever is chosen. */
#include "proto/operation/call/experts.h"

#include "proto/operation/call.h"

void device_route_describe(struct call_work *out, struct device_route *op)
{
    call_add_array(out, "scores", &op->scores, CALL_VALUES, CALL_READ, call_all(op->m * op->n_experts));
    call_add_array(out, "bias", &op->bias, CALL_FP32, CALL_READ | CALL_OPTIONAL, call_all(op->n_experts));
    call_add_array(out, "weights", &op->weights, CALL_FP32, CALL_WRITTEN, call_all(op->m * op->n_chosen));
    call_add_array(out, "numbers", &op->numbers, CALL_WORDS, CALL_WRITTEN, call_all(op->m * op->n_chosen));
}

void device_route_backward_describe(struct call_work *out, struct device_route *op)
{
    call_add_array(out, "scores", &op->scores, CALL_VALUES, CALL_READ, call_all(op->m * op->n_experts));
    call_add_array(out, "weights", &op->weights, CALL_FP32, CALL_READ, call_all(op->m * op->n_chosen));
    call_add_array(out, "numbers", &op->numbers, CALL_WORDS, CALL_READ, call_all(op->m * op->n_chosen));
    call_add_array(out, "weights_gradient", &op->weights_gradient, CALL_FP32, CALL_READ,
                   call_all(op->m * op->n_chosen));
    call_add_array(out, "scores_gradient", &op->scores_gradient, CALL_VALUES, CALL_WRITTEN,
                   call_all(op->m * op->n_experts));
}

enum { EXPERT_TILE = 64 /* rows of a CUDA device's products */ };

/* Of what a CUDA device computes, in fp32 without tensor cores: a warp's 16 multiplications, which take four clocks, wait
 * for eight loads from shared memory, each of one; and tiles have rows that are not the expert's. */
static double experts_filled(size_t rows)
{
    const size_t tiles = (rows + EXPERT_TILE - 1) / EXPERT_TILE;

    return 0.5 * (double)rows / (double)(tiles * EXPERT_TILE);
}

/* n_each: launches of each expert on a CUDA device, besides those of the whole call (device/cuda/kernels/experts.cu). */
static void experts_describe_all(struct call_work *out, struct device_experts *op, double products, size_t n_each)
{
    const size_t chosen = op->m * op->n_chosen, of_each = op->n * op->inner;

    out->rate = CALL_RATE_PRODUCT;
    out->operations = 2 * products * (double)chosen * (double)of_each;
    out->rows = (chosen + op->n_experts - 1) / op->n_experts;
    out->products = products * (double)op->n_experts;
    out->in_fp32 = !out->on.backend->takes_turns;
    out->filled = out->in_fp32 ? experts_filled(out->rows) : 1;
    out->n_launches = 5 + op->n_experts * n_each;
    call_add_array(out, "x", &op->x, CALL_VALUES, CALL_READ, call_all(op->m * op->n));
    call_add_array(out, "weights", &op->weights, CALL_FP32, CALL_READ, call_all(op->m * op->n_chosen));
    call_add_array(out, "numbers", &op->numbers, CALL_WORDS, CALL_READ, call_all(op->m * op->n_chosen));
    call_add_array(out, "gate", &op->gate, CALL_VALUES, CALL_READ, call_all(op->n_experts * of_each));
    call_add_array(out, "up", &op->up, CALL_VALUES, CALL_READ, call_all(op->n_experts * of_each));
    call_add_array(out, "down", &op->down, CALL_VALUES, CALL_READ, call_all(op->n_experts * of_each));
}

static void experts_describe_scratch(struct call_work *out, struct device_experts *op, bool backward)
{
    call_add_array(out, "scratch", &op->scratch, CALL_BYTES, 0,
                   call_all(device_experts_scratch(op, out->on.type, backward)));
}

void device_experts_describe(struct call_work *out, struct device_experts *op)
{
    experts_describe_all(out, op, 3, 6);
    call_add_array(out, "y", &op->y, CALL_VALUES, CALL_WRITTEN, call_all(op->m * op->n));
    experts_describe_scratch(out, op, false);
}

void device_experts_backward_describe(struct call_work *out, struct device_experts *op)
{
    const size_t n = op->n_experts * op->n * op->inner;
    const unsigned sums = (op->beta != 0 ? CALL_READ : 0) | CALL_WRITTEN | CALL_OPTIONAL;
    const size_t n_sums = (op->gate_gradient ? 1u : 0u) + (op->up_gradient ? 1u : 0u) + (op->down_gradient ? 1u : 0u);

    experts_describe_all(out, op, 5 + (double)n_sums, 8 + n_sums);
    call_add_array(out, "y_gradient", &op->y_gradient, CALL_VALUES, CALL_READ, call_all(op->m * op->n));
    call_add_array(out, "x_gradient", &op->x_gradient, CALL_VALUES, CALL_WRITTEN, call_all(op->m * op->n));
    call_add_array(out, "weights_gradient", &op->weights_gradient, CALL_FP32, CALL_WRITTEN,
                   call_all(op->m * op->n_chosen));
    call_add_array(out, "gate_gradient", &op->gate_gradient, CALL_FP32, sums, call_all(n));
    call_add_array(out, "up_gradient", &op->up_gradient, CALL_FP32, sums, call_all(n));
    call_add_array(out, "down_gradient", &op->down_gradient, CALL_FP32, sums, call_all(n));
    experts_describe_scratch(out, op, true);
}
