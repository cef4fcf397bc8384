/* eps/store/norms.h - what is remembered of each token of the training data: the norms of gradients
 * (proto/model/norms.h).
 *
 * LEDGER_NORMS, one block, plan_norms_bytes: of each map of the own units that remembers norms (plan_own)
 *   cache     (n_entries) bf16, by the tokens' entries; 0: the token has not been trained on, whose norm was
 *             at least the least positive number. As moments, part of its unit's
 *             state: the next version's when the unit is updated, captured and saved with it
 *   pending   (parts, the unit's maps, part_rows, seq) bf16 for each unit: the norms of the open step, as its
 *             contributions have them. A step that does not count leaves them behind; the next one writes over all of
 *             them
 *   gathered  8 bytes: the step, from 1, whose minibatch has the unit's entries already
 * and (batch, seq) entries of two steps, as updates of a step may still be under way when the next is open. */
#ifndef EPS_STORE_NORMS_H
#define EPS_STORE_NORMS_H

#include "eps/store/store.h"
#include "proto/model/file/safetensors.h"

/* Lays out the block; memory (plan_norms_bytes), NULL if there are none, stays the caller's. */
void norms_init(struct norms *norms, const struct store_options *options, const struct plan_own *own, void *memory);

/* The owner's thread: the step (from 0) is about to open, the last but one is done. Copies its entries, (batch,
 * n_tokens), from memory that others may write. -EINVAL with a sentence: one is none of the data's. Does nothing if no
 * norms are remembered here. */
int norms_open_step(struct norms *norms, uint64_t step, const uint32_t *entries, uint32_t n_tokens, struct error *err);

/* The owner's thread: an own unit at the version of an open step is about to be computed with. Copies the entries of
 * the step's tokens to out, (the unit's maps, batch, seq), as struct plan_data says: once in a step, so that what is
 * computed again reads the same. What has no entry is as struct device_weigh_scores has it: 0, and SAMPLE_PADDING. A
 * unit that remembers none is left alone. */
void norms_gather(struct norms *norms, const struct model *model, uint32_t unit, uint64_t step, uint16_t *out);

/* The optimizer thread: n norms of a part's contribution to the unit, from the unit's norm `first` on, finite, in fp32
 * or bf16. Their signs are dropped. */
void norms_fold(struct norms *norms, const struct model_unit *unit, const struct store_contribution *contribution,
                uint64_t first, uint64_t n);

/* The optimizer thread: all norms of the unit in this step are folded, and the unit is updated. Of several rows that
 * have one token, the last one counts, whatever the order of folds. */
void norms_update(struct norms *norms, const struct model *model, uint32_t unit, uint64_t step);

/* Reads "norms.NAME" of a map from an open optimizer.safetensors (proto/model/file/checkpoint.h), *n_seen counting them.
 * Those of another host's map are not read. A model that remembers none passes over it. -EINVAL with a sentence: of no
 * map of the model, of other data, of another type, or not finite and positive; -errno. */
int norms_load(struct norms *norms, const struct model *model, const struct safetensors_entry *entry, uint32_t *n_seen,
               struct error *err);

/* The entries of map i of an own unit: (n_entries). */
uint16_t *norms_of(const struct norms *norms, const struct model_unit *unit, uint32_t i);

#endif
