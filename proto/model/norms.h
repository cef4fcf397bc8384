/* proto/model/norms.h - the norms that a contribution has behind its gradient, and its slices.
 *
 * A linear map whose gradient comes from a sample of its tokens (program_sample) is sampled best by |x_i| |dy_i|.
 * Forward does not know dy, so it takes |dy_i| from the last time the token was trained on (WTA-CRS's cache of gradient
 * norms, Liu et al., arXiv 2305.15265). Backward appends this step's norms to the unit's contribution: for each such
 * map of the unit, in the order of its operations, (part_rows, seq) numbers. Of these, row r of the part has the d
 * norms from r * d on, where d are the tokens that the map's input has in a row of this step (program_row_elements);
 * the rest is 0.
 *
 * A contribution travels in slices of MODEL_SLICE elements: those of the gradient, then those of the norms. */
#ifndef PROTO_MODEL_NORMS_H
#define PROTO_MODEL_NORMS_H

#include "proto/model/model.h"

/* Elements first .. first+n-1 of a unit's gradient, or of its norms. */
struct model_slice {
    uint64_t first, n;
    bool is_norms;
};

/* slice < unit->n_slices (asserted). */
struct model_slice model_slice_of(const struct model_unit *unit, uint32_t slice);

/* Slices of the gradient alone. */
uint32_t model_gradient_slices(const struct model_unit *unit);

/* In a sum on the device: the element at which the norms begin, and that at which the contribution ends. */
uint64_t model_norms_at(const struct model_unit *unit);
uint64_t model_contribution_end(const struct model_unit *unit);

/* The place of a slice in such a sum. */
uint64_t model_slice_at(const struct model_unit *unit, const struct model_slice *slice);

/* Has the units of blocks remember norms of n_entries tokens; part_tokens = rows of a part * seq; 0: none do. A unit
 * does if it is trained and has sampled maps, all of which are of tokens. After model_approximate and model_freeze;
 * may be called again. */
void model_remember_norms(struct model *model, uint64_t part_tokens, uint32_t n_entries);

/* Map i of a unit that remembers norms, i < unit->n_norm_maps: the first tensor of the map; which tokens of a row of
 * n_tokens it is of, and how many. */
struct model_norm_map {
    const struct model_tensor *tensor;
    uint32_t first, n;
};
struct model_norm_map model_norm_map(const struct model *model, uint32_t unit, uint32_t i, uint32_t n_tokens);

#endif
