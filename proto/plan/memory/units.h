/* proto/plan/memory/units.h - which units the device holds, and which of them are resident. */
#ifndef PROTO_PLAN_MEMORY_UNITS_H
#define PROTO_PLAN_MEMORY_UNITS_H

#include "proto/plan/memory/plan.h"

/* The number of uploaded units: all but those of the embedding alone, whose rows are gathered in host memory. */
uint32_t plan_count_uploaded(const struct model *model);

/* The unit at this place, 0 .. plan_count_uploaded()-1, in the order in which units become resident: from the head
 * downwards; the place of a unit, plan_count_uploaded() if it is not uploaded. */
uint32_t plan_unit_at(const struct model *model, uint32_t place);
uint32_t plan_place_of(const struct model *model, uint32_t unit);

/* The next *n places from this one on, before `end`, recur so many times, one after the other, with units of equal sizes;
 * at least once. It lets work for each of 4,096 blocks be done once for each of a period. */
uint32_t plan_count_times(const struct model *model, uint32_t place, uint32_t end, uint32_t *n);

/* Elements that a unit takes on the device, the padding rows of a head's unit included (to a multiple of `pad`). */
uint64_t plan_unit_room(const struct model *model, uint32_t unit, uint32_t pad);

/* The same for its contribution, which has the trained elements only; a head's unit has all or none of them. */
uint64_t plan_unit_sum(const struct model *model, uint32_t unit, uint32_t pad);

/* The number of the head's visits whose contributions lie apart. */
uint32_t plan_count_apart(const struct plan *plan, const struct model *model);

/* The largest plan_unit_room (elements) of the places from `first` on; 0 if there is none. */
uint64_t plan_largest_uploaded(const struct model *model, uint32_t first, uint32_t pad);

/* n labels, or logits of a row, with their padding. */
static inline uint64_t plan_head_pad(uint64_t n, uint32_t pad)
{
    return (n + pad - 1) / pad * pad;
}

/* The head's layer. */
static inline const struct model_layer *plan_head(const struct model *model)
{
    return &model->layers[model->n_layers - 1];
}

#endif
