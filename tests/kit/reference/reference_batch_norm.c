#include "tests/kit/reference/reference_batch_norm.h"

#include <math.h>

/* Of one column of a row: the mean, and the sum of squared deviations. */
static void row_moments_of(double out[2], const double *x, const struct device_row_moments *op)
{
    out[0] = out[1] = 0;
    for (size_t i = 0; i < op->n_elements; i++)
        out[0] += x[i * op->n] / (double)op->n_elements;
    for (size_t i = 0; i < op->n_elements; i++)
        out[1] += (x[i * op->n] - out[0]) * (x[i * op->n] - out[0]);
}

void reference_row_moments(const struct device_row_moments *op, bool backward)
{
    const double *gradient = (const void *)op->moments_gradient;
    double *moments = (void *)op->moments, of[2];

    for (size_t row = 0; row < op->n_rows; row++)
        for (size_t j = 0; j < op->n; j++) {
            const size_t at = row * op->n_elements * op->n + j, mean = 2 * row * op->n + j, squares = mean + op->n;
            const double *x = (const double *)op->x + at;
            double *dx = (double *)op->x_gradient + (backward ? at : 0);

            row_moments_of(of, x, op);
            if (!backward)
                moments[mean] = of[0], moments[squares] = of[1];
            for (size_t i = 0; backward && i < op->n_elements * op->n; i += op->n)
                dx[i] = (op->accumulate ? dx[i] : 0) + gradient[mean] / (double)op->n_elements +
                        2 * (x[i] - of[0]) * gradient[squares];
        }
}

/* statistics of one column of the moments */
static void join_of(double out[2], const double *moments, const struct device_join_moments *op)
{
    const double n_rows = (double)op->n_rows, n_elements = (double)op->n_elements;
    double variance = 0;

    out[0] = 0;
    for (size_t i = 0; i < op->n_rows; i++)
        out[0] += moments[2 * i * op->n] / n_rows;
    for (size_t i = 0; i < op->n_rows; i++) {
        const double off = moments[2 * i * op->n] - out[0];
        variance += (moments[(2 * i + 1) * op->n] / n_elements + off * off) / n_rows;
    }
    out[1] = 1 / sqrt(variance + (double)op->epsilon);
}

void reference_join_moments(const struct device_join_moments *op, bool backward)
{
    const double n_rows = (double)op->n_rows, *gradient = (const void *)op->statistics_gradient;
    double *statistics = (void *)op->statistics, *to = (void *)op->moments_gradient, of[2];

    for (size_t j = 0; j < op->n; j++) {
        const double *moments = (const double *)(const void *)op->moments + j;

        join_of(of, moments, op);
        if (!backward)
            statistics[j] = of[0], statistics[op->n + j] = of[1];
        for (size_t i = 0; backward && i < op->n_rows; i++) {
            const double of_variance = -0.5 * of[1] * of[1] * of[1] * gradient[op->n + j];
            to[2 * i * op->n + j] = gradient[j] / n_rows + of_variance * 2 * (moments[2 * i * op->n] - of[0]) / n_rows;
            to[(2 * i + 1) * op->n + j] = of_variance / (n_rows * (double)op->n_elements);
        }
    }
}

void reference_batch_norm(const struct device_batch_norm *op)
{
    const double *x = op->x, *mean = (const void *)op->statistics, *r = mean + op->n;
    const double *weight = op->weight, *bias = op->bias;

    for (size_t i = 0; i < op->n_rows * op->n_elements * op->n; i++) {
        const size_t j = i % op->n;
        ((double *)op->y)[i] = (x[i] - mean[j]) * r[j] * weight[j] + bias[j];
    }
}

void reference_batch_norm_backward(const struct device_batch_norm *op)
{
    const double *x = op->x, *dy = op->y_gradient, *mean = (const void *)op->statistics, *r = mean + op->n;
    const double *weight = op->weight;
    double *weights = (void *)op->weight_gradient, *biases = (void *)op->bias_gradient;
    double *means = (void *)op->statistics_gradient, *rs = means + op->n, *dx = op->x_gradient;

    for (size_t i = 0; i < op->n_rows * op->n_elements * op->n; i++) {
        const size_t j = i % op->n;
        dx[i] = (op->accumulate ? dx[i] : 0) + dy[i] * weight[j] * r[j];
        if (weights)
            weights[j] += dy[i] * (x[i] - mean[j]) * r[j];
        if (biases)
            biases[j] += dy[i];
        means[j] -= dy[i] * weight[j] * r[j];
        rs[j] += dy[i] * weight[j] * (x[i] - mean[j]);
    }
}

void reference_running_statistics(const struct device_running *op)
{
    const double *mean = op->mean, *variance = op->variance;
    double *to = (void *)op->statistics;

    for (size_t j = 0; j < op->n; j++)
        to[j] = mean[j], to[op->n + j] = 1 / sqrt(variance[j] + (double)op->epsilon);
}

void reference_running_gradient(const struct device_running *op)
{
    const double *mean = (const void *)op->statistics, *r = mean + op->n;
    double *means = (void *)op->mean_gradient, *variances = (void *)op->variance_gradient;

    for (size_t j = 0; means && j < op->n; j++)
        means[j] += (double)op->scale * mean[j];
    for (size_t j = 0; variances && j < op->n; j++)
        variances[j] += (double)op->scale * (double)op->correction * fmax(pow(r[j], -2) - (double)op->epsilon, 0);
}
