/* eps/step/fence.h - fenced commit: nothing of a step touches the weights until the whole step is known good.
 *
 * So its gradient is known before the first update, and can be clipped; and a step that turns out not to be finite leaves
 * no trace. The norm costs no pass of its own at the end: the last fold of a unit finds the unit's sum of squares, and
 * what is left is one addition a unit. */
#ifndef EPS_STEP_FENCE_H
#define EPS_STEP_FENCE_H

#include <stdbool.h>
#include <stdint.h>

/* Of the open step. */
struct fence {
    uint32_t n_units; /* 0: the job is not fenced */
    double *squares; /* (n_units) of each unit's gradient once it is whole: written by the optimizer thread; borrowed */
    uint32_t *n_given; /* (n_units) its folds given to that thread; borrowed */
    double norm;       /* of the gradient, before it is clipped; NAN until it is known, and of a skipped step */
    bool skipped;
    uint64_t n_past; /* a step below may have been skipped while a worker was in the middle of it */
};

void fence_begin(struct fence *fence);
/* A fold is given to the optimizer thread: where the unit's sum of squares goes if it is the last of its n_folds, else
 * NULL. */
double *fence_note_fold(struct fence *fence, uint32_t unit, uint32_t n_folds);
/* Before the step's first update, when all folds are done: the norm, and what the gradient is multiplied by for it to be
 * clip_norm at most (0: whatever it is). */
float fence_commit(struct fence *fence, double clip_norm);
void fence_skip(struct fence *fence, uint64_t step);

#endif
