/* proto/plan/memory/units.h - which units the device holds, and which of them are resident. */
#ifndef PROTO_PLAN_MEMORY_UNITS_H
#define PROTO_PLAN_MEMORY_UNITS_H

#include "proto/plan/memory/plan.h"

/* The number of uploaded units: all but those of the embedding alone, whose rows are gathered in host memory. */
uint32_t plan_count_uploaded(const struct model *model);

/* Units become resident from the head downwards. plan_unit_at: the unit at this place in that order, 0 ..
 * plan_count_uploaded()-1. plan_place_of: the place of a unit; plan_count_uploaded() if it is not uploaded. */
uint32_t plan_unit_at(const struct model *model, uint32_t place);
uint32_t plan_place_of(const struct model *model, uint32_t unit);

/* Returns how many times the units at the *n places from `place` on recur, with equal sizes, one after the other,
 * before `end`; at least once. Sets *n. So work for 4,096 equal blocks is done for one period of them. */
uint32_t plan_count_times(const struct model *model, uint32_t place, uint32_t end, uint32_t *n);

/* Elements of a unit as layers read it, the padding rows of a head's unit included (to a multiple of `pad`). */
uint64_t plan_unit_room(const struct model *model, uint32_t unit, uint32_t pad);

/* Elements of a unit's contribution on the device, padding rows of a head's unit included: the trained ones only. A
 * head's unit is trained whole or not at all. */
uint64_t plan_unit_sum(const struct model *model, uint32_t unit, uint32_t pad);

/* The number of the head's visits whose contributions lie apart. */
uint32_t plan_count_apart(const struct plan *plan, const struct model *model);

/* Bytes that a unit takes on the device as it is uploaded. Padding rows are of the values alone: a unit of the head is
 * coded whole or not at all. */
uint64_t plan_uploaded_bytes(const struct model *model, uint32_t unit, const struct plan *plan);
/* True if a unit's frozen elements stay on the device from step to step: in training, those of a resident unit without
 * sparse pieces, whose places change. Bytes of a unit that are uploaded when a step pulls it: of such a unit, once it is
 * there, the trained elements alone. */
bool plan_stays(const struct plan *plan, const struct model *model, uint32_t unit);
uint64_t plan_pulled_bytes(const struct plan *plan, const struct model *model, uint32_t unit);
/* Elements of a unit's coded and sparse pieces once they are decoded, padding rows of a head's unit included. */
uint64_t plan_decoded(const struct model *model, uint32_t unit, uint32_t pad);

/* The largest plan_uploaded_bytes, and the largest plan_decoded, of the places from `first` on; 0 if there is none. */
uint64_t plan_largest_uploaded(const struct model *model, uint32_t first, const struct plan *plan);
uint64_t plan_largest_decoded(const struct model *model, uint32_t first, uint32_t pad);

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
