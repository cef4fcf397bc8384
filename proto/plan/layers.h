/* proto/plan/layers.h - how a layer's program divides the workspace of one microbatch: the plan takes the sizes,
 * device/layers the places.
 *
 * Buffers whose steps overlap lie apart; all others may share bytes (proto/model/schedule.h). They are placed one by one,
 * each at the lowest offset that is free during its steps: the largest first, and once more in order of their first step; the
 * better of both counts. Greedy by size: Pisarchyk & Lee, arXiv:2001.03288. */
#ifndef PROTO_PLAN_LAYERS_H
#define PROTO_PLAN_LAYERS_H

#include "proto/plan/plan.h"

/* A microbatch: n_rows rows of n_tokens. */
struct plan_shape {
    uint32_t n_rows, n_tokens;
};

/* The largest that a plan runs through its layers. */
struct plan_shape plan_shape_of(const struct plan *plan);

/* Bytes from the workspace's start, multiples of PLAN_ALIGNMENT; of buffers elsewhere 0. */
struct plan_places {
    uint64_t at[SCHEDULE_BUFFERS];
    uint64_t bytes; /* of the workspace, to its last byte */
};

/* The places for a shape hold those of any smaller one. */
void plan_places(struct plan_places *out, const struct program *program, const struct schedule *schedule,
                 const struct plan_setting *setting, struct plan_shape shape);

/* What a layer leaves for its backward pass of one microbatch: the values of a set one after another, so a value lies
 * behind the set of those before it. */
uint64_t plan_kept_bytes(const struct program *program, uint64_t kept, const struct plan_setting *setting,
                         struct plan_shape shape);

/* What a block keeps of every microbatch of the plan's share: all of it but first, n_blocks and at. */
struct plan_kept plan_keep(const struct plan *plan, const struct model *model, uint32_t keeping);

/* How the setting's device computes attention's gradient, if its shape suits (proto/plan/attention.h): our kernels where
 * there is none, values are fp32, or probabilities are dropped. */
enum plan_attention plan_attention_way(const struct program_attention_options *attention,
                                       const struct plan_setting *setting);

/* Bytes that a layer of this kind needs for one microbatch of the plan, forward or backward. */
uint64_t plan_workspace(const struct plan *plan, const struct model *model, enum model_layer_kind kind);

/* n rounded up to where the next buffer begins. */
static inline uint64_t plan_align(uint64_t bytes)
{
    return (bytes + PLAN_ALIGNMENT - 1) / PLAN_ALIGNMENT * PLAN_ALIGNMENT;
}

#endif
