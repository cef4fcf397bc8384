/* These calls are bound by memory, so none has operations, and what each array is touched by is their whole price.
 * Backward reads of moments the means alone, half of the array; forward writes all of it. */
#include "proto/operation/call/batch_norm.h"

#include "proto/operation/call.h"

enum { UPDATED = CALL_READ | CALL_WRITTEN };

static unsigned written(bool accumulate)
{
    return accumulate ? UPDATED : CALL_WRITTEN;
}

/* ---- moments of rows ---- */

static void describe_rows(struct call_work *out, struct device_row_moments *op, unsigned use_of_moments)
{
    const size_t moments = op->n_rows * op->n, touched = use_of_moments & CALL_WRITTEN ? 2 * moments : moments;

    call_add_array(out, "x", &op->x, CALL_VALUES, CALL_READ, call_all(op->n_rows * op->n_elements * op->n));
    call_add_array(out, "moments", &op->moments, CALL_FP32, use_of_moments, call_some(2 * moments, touched));
}

void device_row_moments_describe(struct call_work *out, struct device_row_moments *op)
{
    describe_rows(out, op, CALL_WRITTEN);
}

void device_row_moments_backward_describe(struct call_work *out, struct device_row_moments *op)
{
    describe_rows(out, op, CALL_READ | CALL_FORWARD);
    call_add_array(out, "moments_gradient", &op->moments_gradient, CALL_FP32, CALL_READ,
                   call_all(2 * op->n_rows * op->n));
    call_add_array(out, "x_gradient", &op->x_gradient, CALL_VALUES, written(op->accumulate),
                   call_all(op->n_rows * op->n_elements * op->n));
}

/* ---- their join ---- */

void device_join_moments_describe(struct call_work *out, struct device_join_moments *op)
{
    call_add_array(out, "moments", &op->moments, CALL_FP32, CALL_READ, call_all(2 * op->n_rows * op->n));
    call_add_array(out, "statistics", &op->statistics, CALL_FP32, CALL_WRITTEN, call_all(2 * op->n));
}

void device_join_moments_backward_describe(struct call_work *out, struct device_join_moments *op)
{
    const size_t moments = op->n_rows * op->n;

    call_add_array(out, "moments", &op->moments, CALL_FP32, CALL_READ, call_some(2 * moments, moments));
    call_add_array(out, "statistics", &op->statistics, CALL_FP32, CALL_READ | CALL_FORWARD, call_all(2 * op->n));
    call_add_array(out, "statistics_gradient", &op->statistics_gradient, CALL_FP32, CALL_READ, call_all(2 * op->n));
    call_add_array(out, "moments_gradient", &op->moments_gradient, CALL_FP32, CALL_WRITTEN, call_all(2 * moments));
}

/* ---- normalisation ---- */

static void batch_norm_describe(struct call_work *out, struct device_batch_norm *op)
{
    call_add_array(out, "x", &op->x, CALL_VALUES, CALL_READ, call_all(op->n_rows * op->n_elements * op->n));
    call_add_array(out, "statistics", &op->statistics, CALL_FP32, CALL_READ, call_all(2 * op->n));
    call_add_array(out, "weight", &op->weight, CALL_VALUES, CALL_READ, call_all(op->n));
}

void device_batch_norm_describe(struct call_work *out, struct device_batch_norm *op)
{
    batch_norm_describe(out, op);
    call_add_array(out, "bias", &op->bias, CALL_VALUES, CALL_READ, call_all(op->n));
    call_add_array(out, "y", &op->y, CALL_VALUES, CALL_WRITTEN, call_all(op->n_rows * op->n_elements * op->n));
}

void device_batch_norm_backward_describe(struct call_work *out, struct device_batch_norm *op)
{
    batch_norm_describe(out, op);
    call_add_array(out, "y_gradient", &op->y_gradient, CALL_VALUES, CALL_READ,
                   call_all(op->n_rows * op->n_elements * op->n));
    call_add_array(out, "x_gradient", &op->x_gradient, CALL_VALUES, written(op->accumulate),
                   call_all(op->n_rows * op->n_elements * op->n));
    call_add_array(out, "weight_gradient", &op->weight_gradient, CALL_FP32, UPDATED | CALL_OPTIONAL, call_all(op->n));
    call_add_array(out, "bias_gradient", &op->bias_gradient, CALL_FP32, UPDATED | CALL_OPTIONAL, call_all(op->n));
    call_add_array(out, "statistics_gradient", &op->statistics_gradient, CALL_FP32, UPDATED, call_all(2 * op->n));
    call_add_array(out, "lost", &op->lost, CALL_FP32, UPDATED | CALL_OPTIONAL, call_all(2 * op->n));
}

/* ---- running statistics ---- */

void device_running_statistics_describe(struct call_work *out, struct device_running *op)
{
    call_add_array(out, "mean", &op->mean, CALL_VALUES, CALL_READ, call_all(op->n));
    call_add_array(out, "variance", &op->variance, CALL_VALUES, CALL_READ, call_all(op->n));
    call_add_array(out, "statistics", &op->statistics, CALL_FP32, CALL_WRITTEN, call_all(2 * op->n));
}

void device_running_gradient_describe(struct call_work *out, struct device_running *op)
{
    call_add_array(out, "statistics", &op->statistics, CALL_FP32, CALL_READ, call_all(2 * op->n));
    call_add_array(out, "mean_gradient", &op->mean_gradient, CALL_FP32, UPDATED | CALL_OPTIONAL, call_all(op->n));
    call_add_array(out, "variance_gradient", &op->variance_gradient, CALL_FP32, UPDATED | CALL_OPTIONAL,
                   call_all(op->n));
}
