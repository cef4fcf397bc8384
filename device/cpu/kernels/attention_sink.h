/* device/cpu/kernels/attention_sink.h - a head's trained score to no key (struct device_attention).
 *
 * A sink joins a query's softmax when its keys are done, so no other sum changes. Backward needs it nowhere but in its
 * own gradient: the log-sum-exp holds it. As the sink's probability p has no value, that is the sum of -p * delta. It
 * is computed in a pass of its own, head by head, so that no scratch has a number for each query; it reads what one key
 * in attention does. */
#ifndef DEVICE_CPU_KERNELS_ATTENTION_SINK_H
#define DEVICE_CPU_KERNELS_ATTENTION_SINK_H

#include "device/cpu/cpu.h"
#include "device/cpu/kernels/value.h"
#include "proto/operation/call/attention.h"

#include <math.h>

/* As an exponent of 2. */
static inline double sink_exponent(const void *sinks, size_t head)
{
    return (double)value_widen(((const value *)sinks)[head]) * 1.4426950408889634;
}

/* Adds a sink, given as an exponent of 2, to a query's softmax. max: its largest exponent so far; sum: of exponentials
 * relative to it. Returns the factor of all that was relative to the earlier max. */
static inline float sink_join(float *max, float *sum, double sink)
{
    const float before = *max, top = (float)sink > before ? (float)sink : before, factor = exp2f(before - top);

    *max = top;
    *sum = *sum * factor + exp2f((float)sink - top);
    return factor;
}

/* Sum over a head's columns of a token's out times its gradient. */
static inline double sink_delta(const value *out, const value *gradient, size_t width)
{
    vec sum = {0};

    for (size_t j = 0; j < width; j += VECTOR)
        sum += value_load_n(out + j, width - j) * value_load_n(gradient + j, width - j);
    return vec_sum(sum);
}

/* Of a head's sink: a sum over all queries. */
static inline double sink_gradient(const struct device_attention *op, size_t head)
{
    const size_t width = op->width / op->n_heads;
    const double sink = sink_exponent(op->sinks, head);
    double sum = 0;

    for (size_t i = 0; i < op->n_rows * op->n_tokens; i++) {
        const size_t row = i / op->n_tokens, first = i * op->width + head * width;
        const float log_sum_exp = op->log_sum_exp[(row * op->n_heads + head) * op->n_tokens + i % op->n_tokens];
        const double p = exp2(sink - (double)log_sum_exp * 1.4426950408889634);
        sum -= p * sink_delta((const value *)op->out + first, (const value *)op->out_gradient + first, width);
    }
    return sum;
}

#endif
