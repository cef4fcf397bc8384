/* proto/plan/memory/chains.h - values that are derived again, elementwise, rather than stored from forward to backward.
 *
 * In a plan that derives, the values of a chain (proto/model/config/values.h) are there twice: in forward until the topmost
 * layer that reads one has run; and from before the backward of that layer, when they are derived again, all of them
 * upwards, until the backward of the lowest layer that writes one. Between, their memory is that of what higher layers
 * stash and of other chains: of a net of four stages, one stage's values are there at a time. Nothing is multiplied,
 * and nothing pulled: what such a layer needs of its unit, scale and shift by channel, is copied in forward, unless the
 * unit is resident.
 *
 * Statistics of batch norms are by part, and stay. The same program reads the same values as in forward, so it writes
 * the same bits, signs that blocks keep of them included. */
#ifndef PROTO_PLAN_MEMORY_CHAINS_H
#define PROTO_PLAN_MEMORY_CHAINS_H

#include "proto/plan/memory/plan.h"

/* True if a plan of this choice can derive values: there are chains; only in training, with the stash on the device,
 * without segments; no block may be dropped or moved; and no unit of their layers is coded or sparse. */
bool plan_may_derive(const struct model *model, const struct plan_setting *setting, const struct plan_choice *choice);

/* The layer that writes value i of a chain, 0 .. n-1. */
const struct model_layer *plan_chain_layer(const struct model *model, const struct model_chain *chain, uint32_t i);

/* True if the layer's unit is copied: it writes a value of a chain, and the unit is not resident. */
bool plan_is_copied(const struct plan *plan, const struct model *model, const struct model_layer *layer);

/* Offset of what a derivable value's layer reads of its unit: the copy, or the resident unit. */
uint64_t plan_chain_unit(const struct plan *plan, const struct model *model, const struct model_layer *layer);

/* Bytes of a chain's values as they lie, and the largest number of bytes of stashed values, but small ones, that are
 * there at a time, without what aligns them. */
uint64_t plan_chain_bytes(const struct plan *plan, const struct model_chain *chain);
uint64_t plan_most_derived(const struct plan *plan, const struct model *model);

#endif
