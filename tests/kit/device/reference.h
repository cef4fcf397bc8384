/* tests/kit/device/reference.h - the operations of device/device.h, plainly and in double.
 *
 * What every backend is compared with. Written from the formulas, one loop per index, nothing shared with the code
 * under test but proto/base/random.h; the backward functions are proven by finite differences in test_reference.c. */
#ifndef TESTS_KIT_DEVICE_REFERENCE_H
#define TESTS_KIT_DEVICE_REFERENCE_H

#include "proto/base/random.h"
#include "proto/model/model.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

double reference_activation(enum model_activation activation, double x);
double reference_activation_gradient(enum model_activation activation, double x);

/* c (m, n) = op(a) (m, k) op(b) (k, n), all without gaps: a is (k, m) if transposed, b (n, k). */
void reference_matmul(double *c, const double *a, bool transpose_a, const double *b, bool transpose_b,
                      const size_t size[3]);

/* y, x, dy, dx (m, n); weight, bias (or NULL) and their gradients (n). Gradients are overwritten. */
struct reference_norm {
    bool rms; /* x / sqrt(mean square + epsilon); else less the mean, by the deviation */
    size_t m, n;
    double epsilon;
    const double *x, *weight, *bias;
};
struct reference_norm_gradient {
    double *x, *weight, *bias;
};
void reference_norm(double *y, const struct reference_norm *op);
void reference_norm_backward(const struct reference_norm_gradient *to, const double *dy,
                             const struct reference_norm *op);

/* As struct device_attention. factors (n_rows, n_heads, n_tokens, n_tokens): dropout's, or NULL. */
struct reference_attention {
    size_t n_rows, n_tokens, n_heads, width;
    size_t n_kv_heads; /* 0: n_heads */
    bool full;
    const uint32_t *lengths; /* (n_rows), or NULL */
    double scale;
    const double *factors;
    const double *out; /* (n_rows*n_tokens, width): the output that backward reads; NULL: the exact one */
};
void reference_attention(double *out, double *log_sum_exp, const double *qkv, const struct reference_attention *op);
void reference_attention_backward(double *qkv_gradient, const double *out_gradient, const double *qkv,
                                  const struct reference_attention *op);

/* 0 or 1/(1-p): element `element` of row `row` of the minibatch. */
double reference_dropout(float p, struct random_key key, uint64_t row, uint64_t element);

/* -log softmax(logits)[label] of n logits, and its gradient. */
double reference_cross_entropy(const double *logits, size_t n, size_t label);
void reference_cross_entropy_backward(double *gradient, const double *logits, size_t n, size_t label);

#endif
