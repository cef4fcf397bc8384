/* proto/operation/call/batch_norm.h - batch normalisation over a part, whatever the microbatch.
 *
 * Each column is normalised over all elements of all rows of a part (Ioffe & Szegedy, arXiv:1502.03167), but a device
 * has only a microbatch of them at a time. So a layer is visited twice:
 *   row_moments    for each microbatch: the moments of each row by itself;
 *   join_moments   after the part's last microbatch: the statistics of all rows, added in row order;
 *   batch_norm     for each microbatch of the next visit: normalises with these statistics.
 * So y has the same bits however the rows are divided into microbatches. Backward goes the other way:
 * batch_norm_backward adds each row's sums to the statistics' gradient; join_moments_backward gives each row's moments
 * their gradient; row_moments_backward adds what flows through them to x_gradient.
 *
 * A row has n_elements elements (pixels, tokens) of n columns (channels). */
#ifndef PROTO_OPERATION_CALL_BATCH_NORM_H
#define PROTO_OPERATION_CALL_BATCH_NORM_H

#include <stdbool.h>
#include <stddef.h>

/* Moments of each row and column: the mean of the row's elements, and the sum of squared deviations from that mean.
 *   x_gradient = moments_gradient[0] / n_elements + 2 * (x - mean) * moments_gradient[1] */
struct device_row_moments {
    size_t n_rows, n_elements, n;
    const void *x;                 /* (n_rows * n_elements, n), read by both directions */
    float *moments;                /* (n_rows, 2, n): written forward, the means read backward */
    const float *moments_gradient; /* (n_rows, 2, n), backward */
    void *x_gradient;              /* shaped as x: written backward, or added to */
    bool accumulate;               /* x_gradient += */
};

/* Statistics of each column over all N = n_rows * n_elements elements, N > 0: mean and 1/sqrt(variance + epsilon), with
 *   variance = (sum of the rows' squared deviations + n_elements * sum of (row's mean - mean)^2) / N */
struct device_join_moments {
    size_t n_rows, n_elements, n;
    float epsilon;                    /* forward */
    const float *moments;             /* (n_rows, 2, n), read by both directions */
    float *statistics;                /* (2, n): written forward, read backward */
    const float *statistics_gradient; /* (2, n), backward */
    float *moments_gradient;          /* (n_rows, 2, n), written backward */
};

/* y = (x - mean) * r * weight + bias, where r = 1/deviation. Backward treats the statistics as inputs. It computes each
 * row's sums, in the same way whatever rows are beside it, and adds them to the gradients one row after another: calls
 * with some rows each give the bits of one with all, of the statistics' gradient where `lost` keeps what its rounding
 * loses. That is then as good as a sum in double.
 *   x_gradient          = y_gradient * weight * r
 *   weight_gradient     += sum over the rows of y_gradient * (x - mean) * r
 *   bias_gradient       += sum of y_gradient
 *   statistics_gradient += sum of -y_gradient * weight * r; sum of y_gradient * weight * (x - mean) */
struct device_batch_norm {
    size_t n_rows, n_elements, n; /* m = n_rows n_elements */
    const void *x;                /* (m, n), read by both directions */
    const float *statistics;      /* (2, n), mean and 1/deviation, read by both */
    const void *weight;           /* (n), read by both */
    const void *bias;             /* (n), forward */
    void *y;                      /* (m, n), forward */
    const void *y_gradient;       /* (m, n), backward */
    void *x_gradient;             /* (m, n), written backward, or added to; may be y_gradient if not accumulating */
    bool accumulate;              /* x_gradient += */
    float *weight_gradient;       /* (n), backward, +=; NULL: not computed */
    float *bias_gradient;         /* (n), backward, +=; NULL: not computed */
    float *statistics_gradient;   /* (2, n), backward, += */
    float *lost;                  /* (2, n), backward, +=: what rounding of statistics_gradient loses; NULL: dropped */
};

/* Running statistics of each column, which serve in the place of a part's where nothing is trained. PyTorch's are
 *   mean     = (1 - rate) mean + rate * a part's mean
 *   variance = (1 - rate) variance + rate * N / (N - 1) * a part's variance
 * Their owner takes such steps as SGD with weight decay 1, for which running_gradient gives
 *   mean_gradient += scale * a part's mean, variance_gradient += scale * correction * a part's variance
 * running_statistics makes (2, n) of them as join_moments makes a part's. */
struct device_running {
    size_t n;
    float epsilon;
    float scale, correction;                  /* of running_gradient */
    float *statistics;                        /* (2, n): written by running_statistics, read by running_gradient */
    const void *mean, *variance;              /* (n), running_statistics */
    float *mean_gradient, *variance_gradient; /* (n), running_gradient; NULL: not computed */
};

#endif
