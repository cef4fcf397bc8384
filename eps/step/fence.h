/* eps/step/fence.h - fenced commit: nothing of a step touches the weights until the whole step is known to be good.
 *
 * So the gradient is known before the first update, and can be clipped. A step that is not finite leaves no trace.
 * The norm needs no pass of its own at the end: the last fold of a unit computes the unit's sum of squares, and one
 * addition a unit remains. */
#ifndef EPS_STEP_FENCE_H
#define EPS_STEP_FENCE_H

#include <stdbool.h>
#include <stdint.h>

/* Of the open step. */
struct fence {
    uint32_t n_units;  /* 0: the job is not fenced */
    double *squares;   /* (n_units) of each unit's whole gradient: written by the optimizer thread; borrowed */
    uint32_t *n_given; /* (n_units) folds of the unit given to that thread; borrowed */
    double norm;       /* of the gradient before clipping; NAN until it is known, and of a skipped step */
    bool skipped;
    uint64_t n_past; /* a step below this may have been skipped while a worker was in the middle of it */
};

void fence_begin(struct fence *fence);
/* Notes that a fold was given to the optimizer thread. Returns where the unit's sum of squares goes if this is the
 * last of its n_folds, else NULL. */
double *fence_note_fold(struct fence *fence, uint32_t unit, uint32_t n_folds);
/* Call before the step's first update, when all folds are done. Sets the norm, and returns the factor that scales
 * the gradient's norm down to clip_norm at most (0: no clipping). */
float fence_commit(struct fence *fence, double clip_norm);
void fence_skip(struct fence *fence, uint64_t step);

#endif
