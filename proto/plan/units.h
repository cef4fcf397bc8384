/* proto/plan/units.h - which units the device needs room for, and which of them stay. */
#ifndef PROTO_PLAN_UNITS_H
#define PROTO_PLAN_UNITS_H

#include "proto/plan/plan.h"

/* Units that are uploaded: all but those that the embedding alone visits, whose rows are gathered where the host has
 * them. */
uint32_t plan_count_uploaded(const struct model *model);

/* The unit of this place, 0 .. plan_count_uploaded()-1, in the order in which units stay on the device: from the head
 * downwards; and the place of a unit, plan_count_uploaded() for those that are not uploaded. */
uint32_t plan_unit_at(const struct model *model, uint32_t place);
uint32_t plan_place_of(const struct model *model, uint32_t unit);

/* The places from this one on, before `end`, whose units have as many elements, or 1: so that what is done for each of
 * 4,096 blocks can be done once. */
uint32_t plan_count_alike(const struct model *model, uint32_t place, uint32_t end);

/* Elements that a unit has room for on the device: its own, and for one of the head's, whose rows
 * are padded to a multiple of `pad`, those of the rows added, too. */
uint64_t plan_unit_room(const struct model *model, uint32_t unit, uint32_t pad);

/* The same of its contribution: of the trained elements, which of one of the head's are all or none. */
uint64_t plan_unit_sum(const struct model *model, uint32_t unit, uint32_t pad);

/* The head's visits whose contributions have a place of their own. */
uint32_t plan_count_apart(const struct plan *plan, const struct model *model);

/* The most of those (elements) of the places from `first` on, which are uploaded; 0 if there is none. */
uint64_t plan_largest_uploaded(const struct model *model, uint32_t first, uint32_t pad);

/* Labels, or logits of a row, and what pads them. */
static inline uint64_t plan_head_pad(uint64_t n, uint32_t pad)
{
    return (n + pad - 1) / pad * pad;
}

/* Of the head. */
static inline const struct model_layer *plan_head(const struct model *model)
{
    return &model->layers[model->n_layers - 1];
}

#endif
