/* proto/operation/call/experts.h - mixtures of experts: route, route_backward, experts, experts_backward. */
#ifndef PROTO_OPERATION_CALL_EXPERTS_H
#define PROTO_OPERATION_CALL_EXPERTS_H

#include "proto/base/number.h"
#include "proto/base/size.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { DEVICE_CHOSEN = 32 /* experts of one token */, DEVICE_EXPERTS = 4096, DEVICE_EXPERT_GROUPS = 32 };

/* Each token's n_chosen experts of the highest scores s, the lower number first among equal ones, and their weights
 * (Shazeer et al., arXiv:1701.06538; Fedus et al., arXiv:2101.03961): p = softmax(s) in fp32, of all experts, or,
 * normalised, of the chosen ones alone. The choice has no gradient; the weights do:
 *
 *     ds[j] = p[j] (dp[j] - sum over chosen i of p[i] dp[i])
 *
 * where dp is 0 of experts that are not chosen; and normalised, so is p.
 *
 * With `sigmoid` (DeepSeek-AI, arXiv:2412.19437, section 2.1.2; Wang et al., arXiv:2408.15664) p = 1 / (1 + exp(-s)).
 * Chosen are the highest p + bias, where there is a bias: the weights do not have it, and it has no gradient. With
 * groups of consecutive experts, as many in each, these are of the n_chosen_groups best groups alone, the first among
 * equal ones: a group's score is the sum of its two highest p + bias. The weights of the chosen experts are
 *
 *     w = scale p / S,  S = epsilon + their sum of p, or 1 unless normalised
 *     ds[j] = scale / S p[j] (1 - p[j]) (dw[j] - sum over chosen i of dw[i] p[i] / S), without the sum unless normalised
 *
 * and ds is 0 of the others. */
struct device_route {
    size_t m, n_experts,
        n_chosen; /* tokens; n_chosen at most DEVICE_CHOSEN and n_experts, which is at most DEVICE_EXPERTS */
    bool normalises, sigmoid;
    uint32_t n_groups, n_chosen_groups; /* at most DEVICE_EXPERT_GROUPS, of 2 experts or more; the chosen ones have
                                         * n_chosen. 0: none. These, and what follows, with sigmoid alone */
    float epsilon, scale;
    const float *bias;  /* (n_experts), forward. NULL: none */
    const void *scores; /* (m, n_experts) */
    /* (m, n_chosen), from each token's highest score down: written by route, read by route_backward. */
    float *weights;
    uint32_t *numbers;             /* of experts */
    const float *weights_gradient; /* (m, n_chosen), backward */
    void *scores_gradient;         /* (m, n_experts), backward, overwritten */
};

/* A low-rank adapter (Hu et al., arXiv:2106.09685) of each expert's map of `in` to `out` numbers, whose weight is then
 * W[e] + factor B[e] A[e]. As PEFT's files have them: A[e] is rows rank e .. rank (e + 1) of a; column k of B[e] is
 * column k n_experts + e of b. */
struct device_experts_adapter {
    size_t rank; /* 0: there is none */
    float factor;
    const void *a, *b;              /* (n_experts rank, in), (out, rank n_experts) */
    float *a_gradient, *b_gradient; /* as they are, backward; NULL: not computed */
};

/* Each token's sum of what its experts make of it, gated units (Shazeer, arXiv:2002.05202) with silu:
 *
 *     y[t] = sum over the experts e of token t of w[t][e] down[e] (silu(gate[e] x[t]) * (up[e] x[t]))
 *
 * Terms are added in fp32, one at a time, in ascending order of experts; those of x's gradient in descending order. So
 * a token's bits depend on no other token's choice. Gradients of weights are sums over an expert's tokens in their
 * order; of an expert that nobody chose they are 0. Of adapters the factors alone have gradients, beside the weights or
 * without them. */
struct device_experts {
    size_t m, n, inner;           /* tokens; columns of x; of a gate */
    size_t n_experts, n_chosen;   /* as of device_route */
    const void *x;                /* (m, n) */
    const float *weights;         /* (m, n_chosen), as route left them, and as are: */
    const uint32_t *numbers;      /* (m, n_chosen); no token has an expert twice */
    const void *gate, *up, *down; /* (n_experts, inner, n), (n_experts, inner, n), (n_experts, n, inner) */
    void *y;                      /* (m, n), forward */
    const void *y_gradient;       /* (m, n), backward */
    void *x_gradient;             /* (m, n), backward, overwritten */
    float *weights_gradient;      /* (m, n_chosen), backward, overwritten */
    float *gate_gradient, *up_gradient, *down_gradient; /* shaped as the weights, backward; NULL: not computed */
    struct device_experts_adapter gate_up;              /* of gate and up as one map, of 2 inner numbers: gates first */
    struct device_experts_adapter of_down;
    float beta;    /* a gradient of weights = its sum + beta * what was there: 0 or 1 */
    void *scratch; /* device_experts_scratch bytes */
};

/* What lies in the scratch, in bytes from its start. One expert's tokens at a time are gathered, at most all m of them:
 * so any choice has room, and n_chosen does not matter. */
struct device_experts_places {
    size_t sum;    /* (m, n) fp32: the sums of terms */
    size_t rows;   /* (m, n) of x; after the products that read them, forward, (m, n) fp32: terms of y */
    size_t slopes; /* (m, n), backward: gradients of y; with `rows`, afterwards, (m, n) fp32: terms of x's gradient */
    size_t both;   /* (m, 2 inner): gates and ups, backward then their gradients */
    size_t units;  /* (m, inner): gated units */
    size_t order;  /* (m n_chosen) uint32_t: places in the choice, by expert, then by token */
    size_t starts; /* (n_experts + 1) uint32_t: where each expert's begin in `order` */
    /* Of adapters: their inner values, (m, rank) each, what is between A and B, or its gradient; one expert's B, (out,
     * rank); and, backward, the gradient of one expert's B in fp32. */
    size_t low, low_down, b, b_down, b_gradient;
    size_t bytes;
};

static inline size_t device_experts_take(size_t *at, size_t bytes)
{
    const size_t place = *at;

    *at += (bytes + 63) / 64 * 64;
    return place;
}

static inline struct device_experts_places device_experts_lay(const struct device_experts *op, enum number_type type,
                                                              bool backward)
{
    const size_t each = number_bytes(type), rows = op->m * op->n * each, wide = op->m * op->n * sizeof(float);
    const size_t b = 2 * op->inner * op->gate_up.rank, b_down = op->n * op->of_down.rank;
    struct device_experts_places p;

    p.bytes = 0;
    p.sum = device_experts_take(&p.bytes, wide);
    p.rows = device_experts_take(&p.bytes, backward ? rows : wide);
    p.slopes = backward ? device_experts_take(&p.bytes, wide - rows > rows ? wide - rows : rows) : 0;
    p.both = device_experts_take(&p.bytes, 2 * op->m * op->inner * each);
    p.units = device_experts_take(&p.bytes, op->m * op->inner * each);
    p.order = device_experts_take(&p.bytes, op->m * op->n_chosen * sizeof(uint32_t));
    p.starts = device_experts_take(&p.bytes, (op->n_experts + 1) * sizeof(uint32_t));
    p.low = device_experts_take(&p.bytes, op->m * op->gate_up.rank * each);
    p.low_down = device_experts_take(&p.bytes, op->m * op->of_down.rank * each);
    p.b = device_experts_take(&p.bytes, b * each);
    p.b_down = device_experts_take(&p.bytes, b_down * each);
    p.b_gradient = device_experts_take(&p.bytes, backward ? (b > b_down ? b : b_down) * sizeof(float) : 0);
    return p;
}

static inline size_t device_experts_scratch(const struct device_experts *op, enum number_type type, bool backward)
{
    return device_experts_lay(op, type, backward).bytes;
}

#endif
