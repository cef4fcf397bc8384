/* proto/plan/layers.h - how layers divide the workspace of one microbatch: the plan takes the sizes, device/layers the
 * places. */
#ifndef PROTO_PLAN_LAYERS_H
#define PROTO_PLAN_LAYERS_H

#include "proto/plan/plan.h"

/* A block's internals, in bytes from the workspace's start, or where they are kept, those that are from the start of what
 * is kept of the microbatch. Two buffers serve twice, because their first content is dead by then. */
struct plan_block {
    /* Kept, or computed anew. */
    uint64_t qkv;         /* (tokens, 3 width) */
    uint64_t attended;    /* (tokens, width) */
    uint64_t log_sum_exp; /* (rows, heads, tokens) */
    uint64_t residual;    /* (tokens, width): r */
    uint64_t pre;         /* (tokens, inner): up's result */
    /* Never kept. */
    uint64_t normed; /* (tokens, width): norm_1(x), then norm_2(r); backward: gradient of attended, then norm_1(x) */
    uint64_t statistics;   /* (tokens, 2): of the norm that stands in normed */
    uint64_t active;       /* (tokens, inner): pre's activation; backward: pre's gradient */
    uint64_t qkv_gradient; /* (tokens, 3 width), where active was, and pre if that is not kept */
    uint64_t scratch;      /* attention's */
    uint64_t bytes;        /* of the workspace */
    uint64_t kept_bytes;   /* of what is kept; 0 */
};

/* How the setting's device computes attention's gradient in this model, if its shape suits (proto/plan/attention.h): our kernels
 * where there is none, values are fp32, or probabilities are dropped. */
enum plan_attention plan_attention_way(const struct model *model, const struct plan_setting *setting);

/* Of n_rows rows of n_tokens. */
void plan_block(struct plan_block *out, const struct model *model, const struct plan_setting *setting, uint32_t n_rows,
                uint32_t n_tokens, bool kept);

/* Bytes that a layer of this kind needs for one microbatch, forward or backward. */
uint64_t plan_workspace(const struct plan *plan, const struct model *model, enum model_layer_kind kind, uint32_t n_rows,
                        uint32_t n_tokens);

/* n rounded up to where the next buffer begins. */
static inline uint64_t plan_align(uint64_t bytes)
{
    return (bytes + PLAN_ALIGNMENT - 1) / PLAN_ALIGNMENT * PLAN_ALIGNMENT;
}

#endif
