/* device/cpu/glu.kernel.c - gated linear units: act(gate) * up, and its gradients. Shazeer, arXiv:2002.05202. */
#include "device/cpu/cpu.h"
#include "device/cpu/math.h"
#include "device/cpu/value.h"

#include <assert.h>

/* Inlined once per activation, which is then a constant. */
VECTOR_INLINE void forward_row(enum model_activation activation, value *y, const value *gate, const value *up, size_t n)
{
    for (size_t j = 0; j < n; j += VECTOR)
        value_store_n(y + j, math_activation(activation, value_load_n(gate + j, n - j)) * value_load_n(up + j, n - j),
                      n - j);
}

/* Of row i. Both inputs are read before either gradient, which may lie there, is written. */
VECTOR_INLINE void backward_row(enum model_activation activation, const struct device_glu *op, size_t i)
{
    const value *gate = (const value *)op->gate + i * op->stride, *up = (const value *)op->up + i * op->stride;
    const value *dy = (const value *)op->y_gradient + i * op->n;
    value *gate_gradient = (value *)op->gate_gradient + i * op->gradient_stride;
    value *up_gradient = (value *)op->up_gradient + i * op->gradient_stride;

    for (size_t j = 0; j < op->n; j += VECTOR) {
        const size_t left = op->n - j;
        const vec g = value_load_n(gate + j, left), u = value_load_n(up + j, left), d = value_load_n(dy + j, left);
        value_store_n(gate_gradient + j, d * u * math_activation_gradient(activation, g), left);
        value_store_n(up_gradient + j, d * math_activation(activation, g), left);
    }
}

VECTOR_INLINE void run(enum model_activation activation, const struct device_glu *op, size_t i, bool is_backward)
{
    if (is_backward)
        backward_row(activation, op, i);
    else
        forward_row(activation, (value *)op->y + i * op->n, (const value *)op->gate + i * op->stride,
                    (const value *)op->up + i * op->stride, op->n);
}

VECTOR_INLINE void run_rows(struct device *dev, const struct device_glu *op, bool is_backward)
{
    assert(op->activation <= MODEL_SILU);
#pragma omp parallel for num_threads(dev->n_threads) schedule(static) if (op->m > 1)
    for (size_t i = 0; i < op->m; i++)
        switch (op->activation) {
        case MODEL_GELU_NEW:
            run(MODEL_GELU_NEW, op, i, is_backward);
            break;
        case MODEL_GELU:
            run(MODEL_GELU, op, i, is_backward);
            break;
        case MODEL_RELU:
            run(MODEL_RELU, op, i, is_backward);
            break;
        case MODEL_SILU:
            run(MODEL_SILU, op, i, is_backward);
            break;
        }
}

static void forward(struct device *dev, const struct device_glu *op)
{
    run_rows(dev, op, false);
}

static void backward(struct device *dev, const struct device_glu *op)
{
    run_rows(dev, op, true);
}

const struct cpu_glu_kernels KERNEL_NAME(cpu_glu) = {.forward = forward, .backward = backward};
