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

/* Whether a CUDA device has tensor cores for them: where lines are whole packs (device/cuda/kernels/expert_product.cuh).
 */
static bool experts_have_tensor_cores(const struct device_experts *op, enum number_type type)
{
    return type != NUMBER_FP32 && op->n % 8 == 0 && op->inner % 8 == 0;
}

/* Of what a CUDA device computes. Half: in fp32 a warp's 16 multiplications, which take four clocks, wait for eight loads
 * from shared memory, each of one; on tensor cores products take about as long as the loads for them, and are taken to
 * wait for each other. And tiles have rows that are not the expert's. */
static double experts_filled(size_t rows, bool tensor)
{
    const size_t side = tensor ? 128 : 64, tiles = (rows + side - 1) / side;

    return 0.5 * (double)rows / (double)(tiles * side);
}

/* Elements of A and B, of (in, out) numbers. */
static void experts_describe_adapter(struct call_work *out, struct device_experts_adapter *adapter, const char *a,
                                     const char *b, size_t n_a, size_t n_b)
{
    call_add_array(out, a, &adapter->a, CALL_VALUES, CALL_READ | CALL_OPTIONAL, call_all(n_a * adapter->rank));
    call_add_array(out, b, &adapter->b, CALL_VALUES, CALL_READ | CALL_OPTIONAL, call_all(n_b * adapter->rank));
}

static void experts_describe_adapter_gradient(struct call_work *out, struct device_experts_adapter *adapter,
                                              const char *a, const char *b, size_t n_a, size_t n_b, unsigned sums)
{
    call_add_array(out, a, &adapter->a_gradient, CALL_FP32, sums, call_all(n_a * adapter->rank));
    call_add_array(out, b, &adapter->b_gradient, CALL_FP32, sums, call_all(n_b * adapter->rank));
}

/* Multiplications of both adapters for one token's expert, each product once. */
static size_t experts_adapter_numbers(const struct device_experts *op)
{
    return op->gate_up.rank * (op->n + 2 * op->inner) + op->of_down.rank * (op->inner + op->n);
}

/* Of products on tensor cores, in the time of one in fp32: adapters' are in fp32 (device/cuda/kernels/expert_adapter.cuh). */
enum { EXPERT_LOW_TIMES = 16 };

/* n_each: launches of each expert on a CUDA device, besides those of the whole call (device/cuda/kernels/experts.cu). */
static void experts_describe_all(struct call_work *out, struct device_experts *op, double products, double low_products,
                                 size_t n_each)
{
    const size_t chosen = op->m * op->n_chosen, of_each = op->n * op->inner;
    const bool cuda = !out->on.backend->takes_turns, tensor = cuda && experts_have_tensor_cores(op, out->on.type);

    out->rate = CALL_RATE_PRODUCT;
    out->operations = 2 * (double)chosen *
                      (products * (double)of_each +
                       (tensor ? EXPERT_LOW_TIMES : 1) * low_products * (double)experts_adapter_numbers(op));
    out->rows = (chosen + op->n_experts - 1) / op->n_experts;
    out->products = products * (double)op->n_experts;
    out->in_fp32 = cuda && !tensor;
    out->filled = cuda ? experts_filled(out->rows, tensor) : 1;
    out->n_launches = 5 + op->n_experts * n_each;
    call_add_array(out, "x", &op->x, CALL_VALUES, CALL_READ, call_all(op->m * op->n));
    call_add_array(out, "weights", &op->weights, CALL_FP32, CALL_READ, call_all(op->m * op->n_chosen));
    call_add_array(out, "numbers", &op->numbers, CALL_WORDS, CALL_READ, call_all(op->m * op->n_chosen));
    call_add_array(out, "gate", &op->gate, CALL_VALUES, CALL_READ, call_all(op->n_experts * of_each));
    call_add_array(out, "up", &op->up, CALL_VALUES, CALL_READ, call_all(op->n_experts * of_each));
    call_add_array(out, "down", &op->down, CALL_VALUES, CALL_READ, call_all(op->n_experts * of_each));
    experts_describe_adapter(out, &op->gate_up, "gate_up_a", "gate_up_b", op->n_experts * op->n,
                             op->n_experts * 2 * op->inner);
    experts_describe_adapter(out, &op->of_down, "down_a", "down_b", op->n_experts * op->inner, op->n_experts * op->n);
}

static void experts_describe_scratch(struct call_work *out, struct device_experts *op, bool backward)
{
    call_add_array(out, "scratch", &op->scratch, CALL_BYTES, 0,
                   call_all(device_experts_scratch(op, out->on.type, backward)));
}

static size_t experts_count_adapters(const struct device_experts *op)
{
    return (op->gate_up.rank > 0 ? 1u : 0u) + (op->of_down.rank > 0 ? 1u : 0u);
}

void device_experts_describe(struct call_work *out, struct device_experts *op)
{
    experts_describe_all(out, op, 3, 1, 6 + 2 * experts_count_adapters(op));
    call_add_array(out, "y", &op->y, CALL_VALUES, CALL_WRITTEN, call_all(op->m * op->n));
    experts_describe_scratch(out, op, false);
}

void device_experts_backward_describe(struct call_work *out, struct device_experts *op)
{
    const size_t n = op->n_experts * op->n * op->inner;
    const unsigned sums = (op->beta != 0 ? CALL_READ : 0) | CALL_WRITTEN | CALL_OPTIONAL;
    const size_t n_sums = (op->gate_gradient ? 1u : 0u) + (op->up_gradient ? 1u : 0u) + (op->down_gradient ? 1u : 0u);

    /* Each factor of an adapter is multiplied by forward's values, by gradients, and for its own gradient: but of down,
     * B not by the first. */
    experts_describe_all(out, op, 5 + (double)n_sums, 3,
                         8 + n_sums + (op->gate_up.rank > 0 ? 6u : 0u) + (op->of_down.rank > 0 ? 5u : 0u));
    call_add_array(out, "y_gradient", &op->y_gradient, CALL_VALUES, CALL_READ, call_all(op->m * op->n));
    call_add_array(out, "x_gradient", &op->x_gradient, CALL_VALUES, CALL_WRITTEN, call_all(op->m * op->n));
    call_add_array(out, "weights_gradient", &op->weights_gradient, CALL_FP32, CALL_WRITTEN,
                   call_all(op->m * op->n_chosen));
    call_add_array(out, "gate_gradient", &op->gate_gradient, CALL_FP32, sums, call_all(n));
    call_add_array(out, "up_gradient", &op->up_gradient, CALL_FP32, sums, call_all(n));
    call_add_array(out, "down_gradient", &op->down_gradient, CALL_FP32, sums, call_all(n));
    experts_describe_adapter_gradient(out, &op->gate_up, "gate_up_a_gradient", "gate_up_b_gradient",
                                      op->n_experts * op->n, op->n_experts * 2 * op->inner, sums);
    experts_describe_adapter_gradient(out, &op->of_down, "down_a_gradient", "down_b_gradient",
                                      op->n_experts * op->inner, op->n_experts * op->n, sums);
    experts_describe_scratch(out, op, true);
}
