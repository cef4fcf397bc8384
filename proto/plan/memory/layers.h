/* proto/plan/memory/layers.h - the layout of a layer's workspace, for a microbatch: its size for the plan, offsets for
 * proto/step.
 *
 * Buffers whose steps overlap lie apart; others may share bytes (proto/operation/schedule.h). Each is placed at the
 * lowest offset that is free during its steps. This is done largest first, and again in order of first step; the
 * smaller layout is used. Greedy by size: Pisarchyk & Lee, arXiv:2001.03288. */
#ifndef PROTO_PLAN_MEMORY_LAYERS_H
#define PROTO_PLAN_MEMORY_LAYERS_H

#include "proto/operation/operation.h"
#include "proto/plan/memory/plan.h"

/* A microbatch: n_rows rows of n_tokens. */
struct plan_shape {
    uint32_t n_rows, n_tokens;
};

/* The most that passes through a layer at once: a microbatch; in generation, tokens of one text or several side by
 * side, at most plan_row_tile of each. */
struct plan_shape plan_shape_of(const struct plan *plan);
uint32_t plan_row_tile(const struct plan *plan);

/* Offsets of buffers from the workspace's start, in bytes, multiples of PLAN_ALIGNMENT; 0 for buffers elsewhere. */
struct plan_places {
    uint64_t at[SCHEDULE_BUFFERS]; /* (n_buffers of the schedule) */
    uint64_t bytes;                /* size of the workspace, to its last byte */
};

/* A shape's places suffice for any smaller shape. */
void plan_places(struct plan_places *out, const struct program *program, const struct schedule *schedule,
                 const struct plan_setting *setting, struct plan_shape shape);

/* Bytes that a layer keeps for its backward pass of one microbatch. The values of the set `kept` follow each other, so
 * a value's offset is the size of the set of those before it. */
uint64_t plan_kept_bytes(const struct program *program, uint64_t kept, const struct plan_setting *setting,
                         struct plan_shape shape);

/* What a block of this class keeps of every microbatch of the plan's share. Sets all members but first, n_blocks and
 * at. */
struct plan_kept plan_keep(const struct plan *plan, const struct model *model, uint32_t class, uint32_t keeping);

/* In generation, what a row keeps of its tokens in a block of a class: the most that one of its kinds needs. And of its
 * source, which all of them read alike. */
uint64_t plan_cache_bytes(const struct plan_setting *setting, const struct model *model, uint32_t class);
uint64_t plan_source_bytes(const struct plan_setting *setting, const struct model *model, uint32_t class);

/* The setting by which operations compute their sizes for this shape. */
struct operation_setting plan_operation_setting(const struct plan_setting *setting, struct plan_shape shape);

/* Workspaces of one microbatch, remembered from plan to plan of a model and a setting. Zeroed before use. */
struct plan_workspaces {
    struct plan_shape shape;
    uint64_t singles, classes[MODEL_CLASSES][MODEL_KEEPINGS]; /* 0: not known yet */
};

/* Bytes that a layer of this kind needs for one microbatch of the plan, forward or backward. known: may be NULL. */
uint64_t plan_workspace(const struct plan *plan, const struct model *model, enum model_layer_kind kind,
                        struct plan_workspaces *known);

/* Rounds up to where the next buffer begins. */
static inline uint64_t plan_align(uint64_t bytes)
{
    return (bytes + PLAN_ALIGNMENT - 1) / PLAN_ALIGNMENT * PLAN_ALIGNMENT;
}

#endif
