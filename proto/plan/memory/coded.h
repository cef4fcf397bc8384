/* proto/plan/memory/coded.h - bytes of one of the optimizer's moments, coded or not.
 *
 * Coded ones (proto/model/groups.h) are one allocation for m and one for v: first the moments that stay in fp32, then
 * the scales, then the codes; of the own units' trained pieces in their order, without padding. So a parameter whose
 * moments are coded takes 2 + 8 / 64 bytes for both, and another one 8. */
#ifndef PROTO_PLAN_MEMORY_CODED_H
#define PROTO_PLAN_MEMORY_CODED_H

#include "proto/plan/memory/division.h"

enum { PLAN_CODED_PLACE = 2 * sizeof(uint64_t) }; /* bytes of the store's note of a piece's place */

struct plan_coded {
    uint64_t n_wide, n_scales, n_codes; /* elements of a moment of the own units */
};
void plan_coded(struct plan_coded *out, const struct model *model, const struct plan_own *own);

/* Bytes of a moment of the own units, in this form. */
uint64_t plan_moment_bytes(const struct model *model, const struct plan_own *own, enum number_type moments);
/* The same of one unit, without its padding. */
uint64_t plan_unit_moment_bytes(const struct model *model, const struct model_unit *unit, enum number_type moments);

#endif
