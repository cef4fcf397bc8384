/* proto/plan/memory/values.h - where boundary values and their gradients lie (proto/model/config/values.h), and what of them a
 * layer needs on the device at once. */
#ifndef PROTO_PLAN_MEMORY_VALUES_H
#define PROTO_PLAN_MEMORY_VALUES_H

#include "proto/plan/memory/plan.h"

/* Bytes of a value of this shape for the whole share; in domain PART, for one part. */
uint64_t plan_shape_bytes(const struct plan *plan, const struct model_shape *shape);

/* Bytes of all stashed values but small ones, without what aligns them; if some are derived, of those that are there at
 * a time, at most. Of a choice with cuts, training: likewise, with what aligns them. */
uint64_t plan_stash_bytes(const struct plan *plan, const struct model *model);

/* Offset of a value, or of its gradient: in the host's stash if there is one and the shape is not small, else in the
 * arena. */
uint64_t plan_value(const struct plan *plan, const struct model *model, uint32_t value);
uint64_t plan_gradient(const struct plan *plan, const struct model *model, uint32_t value);

/* Bytes of all places of a shape's gradients, as they are aligned, but for small ones and the head's. */
uint64_t plan_gradients_bytes(const struct plan *plan, const struct model *model, uint32_t shape);

/* Places that are taken in turn. Each chain's values, and then each shape's gradients, the largest first, but for small
 * ones and the head's, lie as low as they can: where others are that are never there at the same time; in places, from
 * `begin` on, of stashed values that backward is done with; or behind the others. plan->gradient, of the head, is the
 * last of these. */
struct plan_turns {
    uint64_t begin, end;        /* of the places of values. Given, and set to the new end */
    uint64_t chains, gradients; /* bytes that they add: those of gradients side by side, without what aligns them */
};

/* Sets plan->chains, and the gradients of plan->values. All other places of values must be set. */
void plan_take_turns(struct plan *plan, const struct model *model, struct plan_turns *turns);

/* Places of stashed values of a shape: those that are not derived, if the plan derives. */
static inline uint32_t plan_count_stashed(const struct plan *plan, const struct model_shape *shape)
{
    return plan->choice.derives ? shape->n_stored : shape->n_stashed;
}

/* Elements of a shape in n_rows rows of n_tokens. */
static inline uint64_t plan_shape_elements(const struct model_shape *shape, uint64_t n_rows, uint32_t n_tokens)
{
    const uint64_t of_row = shape->domain == PROGRAM_TOKENS ? n_tokens
                            : shape->domain >= PROGRAM_OWN  ? program_own_elements(&shape->own, n_tokens)
                                                            : 1;

    return shape->domain == PROGRAM_PART ? 1 : n_rows * of_row;
}

/* Bytes of an element as it is stored. */
static inline uint64_t plan_element_bytes(const struct plan *plan, const struct model_shape *shape)
{
    return shape->columns * (shape->wide ? sizeof(float) : number_bytes(plan->setting.goal.precision));
}

/* True of a shape that the host holds under this plan. */
static inline bool plan_is_on_host(const struct plan *plan, const struct model_shape *shape)
{
    return plan->choice.host_stash && !model_is_small(shape);
}

/* A layer works on what is stored where that is on the device and of its type. Else it works on a tile: `stored`, where
 * the host holds the value, and `narrow`, of the device's type, where an fp32 sum is read in bf16 or added to. Offsets
 * from the beginning of plan->input, output or dy, by the operand's role; PLAN_NO_TILE: none. */
#define PLAN_NO_TILE UINT64_MAX
struct plan_tiles {
    struct plan_tile {
        uint64_t stored, narrow;
    } of[MODEL_OPERANDS];
    uint64_t bytes[3]; /* all tiles of inputs, of outputs, of gradients */
};
void plan_tiles(struct plan_tiles *out, const struct plan *plan, const struct model *model,
                const struct model_passage *passage, bool backward);

/* Bytes that a visit moves to and from a stash on the host, for the share. */
uint64_t plan_moved_bytes(const struct plan *plan, const struct model *model, uint32_t visit, bool backward);

#endif
