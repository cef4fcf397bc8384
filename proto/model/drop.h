/* proto/model/drop.h - stochastic depth: each step leaves some blocks out.
 *
 * A training step drops each block with probability p, drawn by seed, step and block, so all parts and workers drop the
 * same. The stream passes a dropped block unchanged, forward and backward. Its unit is not pulled, has no gradient, and
 * is neither updated nor decayed: a unit counts its own updates, so Adam's t stays, too. A block that is kept adds each
 * residual branch times 1/(1-p). An evaluation has all blocks, unscaled.
 *
 * Blocks may be in several stacks, each with a stream of its own, and read values of others, as a decoder's blocks read
 * what the encoder gives. A dropped block reads none of those. If all readers of a value are dropped, its gradient is
 * zero: layers below that are kept are updated with a gradient of zeros. What stands behind a block of a stack and adds
 * no branch, such as the norm at the encoder's end, is never dropped.
 *
 * Sources: Huang et al., arXiv:1603.09382, who scale by 1-p in evaluation instead. To scale in training, branch by
 * branch, is torchvision's stochastic_depth, and leaves a model's files as they are. p is the same for all blocks, as
 * in Fan et al., arXiv:1909.11556, for transformers. */
#ifndef PROTO_MODEL_DROP_H
#define PROTO_MODEL_DROP_H

#include "proto/base/error.h"
#include "proto/model/model.h"

#include <stdbool.h>
#include <stdint.h>

enum { MODEL_DROP_WORDS = 64 }; /* 4096 blocks, as many as a model may have */

/* A set of blocks, as those that a step drops: bit i%64 of word i/64 for block i. */
struct model_drop {
    uint64_t blocks[MODEL_DROP_WORDS];
};

static inline bool model_drop_holds(const struct model_drop *set, uint32_t block)
{
    return set->blocks[block / 64] >> block % 64 & 1;
}

static inline void model_drop_add(struct model_drop *set, uint32_t block)
{
    set->blocks[block / 64] |= UINT64_C(1) << block % 64;
}

void model_drop_draw(struct model_drop *out, uint32_t n_blocks, double p, uint64_t seed, uint64_t step);

/* For a model of which blocks alone are trained (adapters): if all that are trained are dropped, has the step keep the
 * one whose word was the largest, so that it trains something. */
void model_drop_keep_one(struct model_drop *drop, const struct model_drop *trained, uint32_t n_blocks, uint64_t seed,
                         uint64_t step);

/* True if blocks are dropped that a model of n_blocks does not have. */
bool model_drop_exceeds(const struct model_drop *drop, uint32_t n_blocks);
bool model_drop_is_empty(const struct model_drop *drop);

/* True of a program that adds branches to its first input, and gives nothing else: a step may leave it out. */
bool model_drop_skips(const struct program *program);

/* True of a layer that steps leave out if they drop its block, or do not train if they freeze it. */
static inline bool model_drop_concerns(const struct model_layer *layer)
{
    return layer->kind == MODEL_BLOCK && layer->program->skips;
}

/* True if the visit is one that is left out with a dropped block. NULL: nothing is dropped. */
bool model_drop_has(const struct model_drop *drop, const struct model *model, uint32_t visit);

/* True if the visit is of a unit that is trained in a step which drops and freezes these blocks; NULL: none. */
bool model_drop_trains(const struct model_drop *drop, const struct model_drop *frozen, const struct model *model,
                       uint32_t visit);

/* Whether blocks can be left out at all: -EINVAL with a sentence as of model_drop_prepare. */
int model_drop_check(const struct model *model, struct error *err);

/* Has training scale the blocks' residual branches by 1/(1-p); p = 0 changes nothing. Called once, after model_freeze
 * and model_approximate. -EINVAL with a sentence: p is not in [0, 1); or in a block no layer adds branches to what it
 * reads, or another one does more than to map one value. */
int model_drop_prepare(struct model *model, double p, struct error *err);

#endif
