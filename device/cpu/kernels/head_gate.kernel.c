/* device/cpu/kernels/head_gate.kernel.c - heads times the sigmoid of a gate each (proto/operation/call/head_gate.h).
 *
 * A head's columns are summed by vectors, in fp32, and their lanes in a fixed order, so neither threads nor the row
 * count in a bit. Backward may run over y's gradient: each vector of it is read before it is overwritten. */
#include "device/cpu/cpu.h"
#include "device/cpu/kernels/math.h"
#include "device/cpu/kernels/value.h"

void KERNEL_NAME(cpu_head_gate)(struct device *dev, const struct device_head_gate *op)
{
#pragma omp parallel for num_threads(cpu_threads(dev, op->m * op->n_heads * op->n)) schedule(static)
    for (size_t i = 0; i < op->m * op->n_heads; i++) {
        const float opened = math_activation(MODEL_SIGMOID, value_load_n((const value *)op->gate + i, 1))[0];
        const value *x = (const value *)op->x + i * op->n;
        value *y = (value *)op->y + i * op->n;

        for (size_t j = 0; j < op->n; j += VECTOR)
            value_store_n(y + j, opened * value_load_n(x + j, op->n - j), op->n - j);
    }
}

void KERNEL_NAME(cpu_head_gate_backward)(struct device *dev, const struct device_head_gate *op)
{
#pragma omp parallel for num_threads(cpu_threads(dev, op->m * op->n_heads * op->n)) schedule(static)
    for (size_t i = 0; i < op->m * op->n_heads; i++) {
        const vec gate = value_load_n((const value *)op->gate + i, 1);
        const float opened = math_activation(MODEL_SIGMOID, gate)[0];
        const value *x = (const value *)op->x + i * op->n, *dy = (const value *)op->y_gradient + i * op->n;
        value *dx = (value *)op->x_gradient + i * op->n;
        vec sum = {0};

        for (size_t j = 0; j < op->n; j += VECTOR) {
            const vec d = value_load_n(dy + j, op->n - j);
            sum = vec_multiply_add(d, value_load_n(x + j, op->n - j), sum);
            value_store_n(dx + j, opened * d, op->n - j);
        }
        const float slope = math_activation_gradient(MODEL_SIGMOID, gate)[0];
        value_store_n((value *)op->gate_gradient + i, (vec){(float)vec_sum(sum) * slope}, 1);
    }
}
