/* proto/operation/call/cross_entropy.h - softmax and cross entropy on the device: soft_cap, log_sum_exp, loss,
 * cross_entropy_gradient. */
#ifndef PROTO_OPERATION_CALL_CROSS_ENTROPY_H
#define PROTO_OPERATION_CALL_CROSS_ENTROPY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* x (n) = cap * tanh(x / cap). */
struct device_soft_cap {
    float *x;
    size_t n;
    float cap; /* > 0 */
};

/* Softmax and cross entropy over a vocabulary that comes in chunks: this chunk has the logits of labels
 * first .. first+n-1. A logit that is NaN or +infinity makes the loss a NaN. Elements from n up to the stride are
 * padding: of any content, and ignored.
 *
 * log_sum_exp adds the chunk to `running`, which holds the chunks before it.
 *
 * With smoothing e, the label has 1 - e, and e is spread evenly over all n_all labels, its own included: Szegedy et
 * al., arXiv:1512.00567, section 7; as in torch.nn.functional.cross_entropy. Without, it has 1.
 *
 * cross_entropy_gradient overwrites the logits by their gradient, (softmax - what labels have) * scale, 0 in rows
 * without a label; the scale may be a row's own. With a cap both read the logits as soft_cap leaves them, and the
 * gradient is that of those that were capped: times 1 - (logit / cap)^2. The gradient has the values' type: its row
 * i begins where row i of the logits did, so its stride in elements is that of the logits times device_wide(type).
 * Elements from n up to the stride become 0. */
struct device_cross_entropy {
    size_t m, n, logits_stride;
    uint32_t first;
    bool start;             /* log_sum_exp: this is the rows' first chunk */
    float *logits;          /* (m, n), read by log_sum_exp; cross_entropy_gradient overwrites them by their gradient */
    const float *bias;      /* (n): added to the logits of each row as they are read; not with a cap. NULL: none */
    const uint32_t *labels; /* (m); rows whose label is UINT32_MAX count for nothing */
    /* (m, 3): maximum, sum of exp(logit - maximum), sum of logits times what their labels have; log_sum_exp writes
     * it */
    float *running;
    float scale;         /* cross_entropy_gradient */
    const float *scales; /* (m): cross_entropy_gradient takes these in place of `scale`. NULL: `scale` for all rows */
    float cap;           /* logits are capped as they are read; 0: they are not */
    float smoothing;     /* 0: none */
    size_t n_all;        /* labels of all chunks; used with smoothing */
};

/* What smoothing gives to each label, and leaves to a row's own. */
static inline float device_smoothed(const struct device_cross_entropy *op)
{
    return op->smoothing > 0 ? (float)((double)op->smoothing / (double)op->n_all) : 0;
}

static inline float device_label_share(const struct device_cross_entropy *op)
{
    return 1 - op->smoothing;
}

/* The loss of each row: -log p of the label, from log_sum_exp's sums; 0 without a label. */
struct device_loss {
    size_t m;
    double *losses;         /* (m) */
    const float *running;   /* (m, 3) */
    const uint32_t *labels; /* (m) */
};

#endif
