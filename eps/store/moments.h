/* eps/store/moments.h - the store's coded moments (--moments coded): where each piece's are, and those of a file.
 *
 * Bytes and order are the plan's (proto/plan/memory/coded.h). Only a piece's own groups have moments of their own
 * kind, so parameters have moments if they lie in one run of one piece, and, if those are coded, begin with a group's
 * first element. All passes' parameters do. */
#ifndef EPS_STORE_MOMENTS_H
#define EPS_STORE_MOMENTS_H

#include "eps/store/store.h"
#include "proto/model/file/safetensors.h"

/* Of an own unit's trained piece. */
struct moments_place {
    uint64_t at;    /* its first element among those in fp32, or among the codes */
    uint64_t scale; /* its first group */
};

/* Divides the blocks m and v, of plan_moment_bytes each, among the pieces. */
void moments_place(struct store *store, void *m, void *v);

/* Adds the moments of n parameters of an own unit, from its element `first` on, all of them trained, if they have some
 * by themselves (see above). */
void moments_find(struct parameters *out, const struct store *store, uint32_t unit, uint64_t first, size_t n);

/* Zeroes a run's moments on the threads that will work on them. */
void moments_touch(const struct store *store, uint32_t unit, const struct model_piece *piece, uint64_t at, size_t n);

/* The codes or scales of a whole piece in memory, as files have them. */
struct moments_bytes {
    void *base;
    uint64_t bytes;
};
struct moments_bytes moments_codes(const struct store *store, uint32_t piece, bool second);
struct moments_bytes moments_scales(const struct store *store, uint32_t piece, bool second);

/* Reads a piece's codes or scales, as the entry's name says; of another host's piece nothing. -EINVAL with a sentence:
 * another type or shape, a code of -128, a scale that is negative or not finite. -EIO, -errno, -ECANCELED. */
int moments_load(struct store *store, uint32_t piece, const struct safetensors_entry *entry, struct error *err);

#endif
