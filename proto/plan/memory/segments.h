/* proto/plan/memory/segments.h - activation checkpoints of some layers alone: the others' inputs are computed again, a
 * segment of layers at a time.
 *
 * A choice with cuts divides the layers, from the bottom up, into segments: each begins at a cut, the lowest with the
 * embedding, whose tables are not read a second time. A value that backward reads is *stored* from forward on if a
 * layer of a higher segment reads it, or the lowest segment writes it; else it is *inner*. Inner values of all segments
 * share memory. Those of the topmost segment are there when forward ends. For each lower one, before the backward of
 * its topmost layer, a forward pass over its lower layers fills them in again, from what is stored below. Its weights
 * are pulled once more: none is updated yet, as the layers' contributions come only after. What a layer gives rows and
 * parts (statistics of batch norms) is stored in any case, and finished once.
 *
 * Values lie as on a stack: what is stored of segments 0 .. s lies in order, and the inner values of s behind it, in
 * the places of what is stored of higher segments. Forward writes these later, and backward is done with them when it
 * comes to s. So lower segments can be larger.
 *
 *     bytes while s is in backward = stored(0 .. s) + inner(s)
 *
 * Optimal segments: proto/plan/cuts.h. Chen et al., arXiv:1604.06174, store every sqrt(n)-th layer's input. */
#ifndef PROTO_PLAN_MEMORY_SEGMENTS_H
#define PROTO_PLAN_MEMORY_SEGMENTS_H

#include "proto/plan/memory/plan.h"

/* Layers first .. end-1. */
struct plan_segment {
    uint32_t first, end;
};

/* Segment s, 0 .. n_cuts. */
struct plan_segment plan_segment_at(const struct plan_choice *choice, const struct model *model, uint32_t s);

/* True if a segment may begin at this layer (1 .. n_layers-1): it is above the embedding; no lower layer adds to a sum
 * to which this one or a higher one adds; and what layers below it give to those above is stashed. */
bool plan_may_cut(const struct model *model, uint32_t layer);

/* The layers of a segment that are computed again, unless it is the topmost, end here: above the topmost that writes an
 * inner value. */
uint32_t plan_again_end(const struct model *model, struct plan_segment segment);

/* The first visit of its layers; the number of visits that are computed again before its backward, from that one on: up
 * to the topmost that writes an inner value. 0 of the topmost and the lowest segment. */
struct plan_visits {
    uint32_t first, n;
};
struct plan_visits plan_again_of(const struct plan_choice *choice, const struct model *model, uint32_t s);

/* The layers above the embedding whose inputs are there from forward on: each segment's lowest, and all of the topmost
 * and of the lowest segment; if the choice derives, those that read no derivable value. */
uint32_t plan_count_stored(const struct plan_choice *choice, const struct model *model);

/* For a choice with cuts, which is for training. Sets plan->stored, from `begin` on; returns where the values end.
 * values[] must have the bytes of all shapes. */
uint64_t plan_place_segments(struct plan *plan, const struct model *model, uint64_t begin);

/* Offset of a stashed value that is not small. */
uint64_t plan_segment_value(const struct plan *plan, const struct model *model, uint32_t value);

/* Where the values end while the layers lowest .. topmost are in backward. */
uint64_t plan_segments_end(const struct plan *plan, const struct model *model, uint32_t lowest, uint32_t topmost);

#endif
