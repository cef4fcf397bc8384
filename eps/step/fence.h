/* eps/step/fence.h - fenced commit: nothing of a step touches the weights until the whole step is known to be good.
 *
 * So the gradient can be clipped before the first update, and a step that is not finite leaves no trace. The norm needs
 * no extra pass at the end: the last fold of a unit computes the unit's sum of squares, and one addition per unit
 * remains.
 *
 * In fp16 small gradients would become 0, so workers multiply the loss by a power of two, which the sums are divided by
 * (Micikevicius et al., arXiv:1710.03740). It is halved by each step that overflows, which is skipped, and doubled
 * after FENCE_CLEAN_STEPS that do not: the numbers of PyTorch's GradScaler. */
#ifndef EPS_STEP_FENCE_H
#define EPS_STEP_FENCE_H

#include <stdbool.h>
#include <stdint.h>

struct loss_scale; /* proto/wire/training_text.h */

#define FENCE_FIRST_SCALE 65536.0
#define FENCE_MOST_SCALE  0x1p40 /* gradients of zero never overflow */
enum { FENCE_CLEAN_STEPS = 2000 };

struct fence {
    uint32_t n_units;         /* 0: the job is not fenced */
    double *squares;          /* (n_units) of each unit's whole gradient: written by the optimizer thread; borrowed */
    uint32_t *n_given;        /* (n_units) folds of the unit given to that thread; borrowed */
    double norm;              /* of the gradient before clipping; NAN until it is known, and of a skipped step */
    struct loss_scale *scale; /* the next step's; borrowed */
    bool skipped;
    /* Steps below this are over, though a worker may still be working on one: it was skipped, or covered without that
     * worker's part. */
    uint64_t n_past;
};

/* A step opens. */
void fence_begin(struct fence *fence);
/* Notes that a fold was given to the optimizer thread. Returns where the unit's sum of squares goes if this is the last
 * of its n_folds, else NULL. */
double *fence_note_fold(struct fence *fence, uint32_t unit, uint32_t n_folds);
/* Such a fold has changed nothing, and is done again. */
void fence_forget_fold(struct fence *fence, uint32_t unit);
/* Another host has folded all of the unit. */
void fence_note_squares(struct fence *fence, uint32_t unit, double squares);
/* The norm by the sums of squares of all units that the step updates, which are known: all folds are done. */
double fence_norm(const struct fence *fence);
/* The step counts, and its scaled gradient has this norm. Returns the factor that takes the loss's scale out, and
 * scales down to clip_norm at most (0: no clipping), as PyTorch's clip_grad_norm_ does. */
float fence_commit(struct fence *fence, double norm, double clip_norm);
/* The step does not count. */
void fence_skip(struct fence *fence, uint64_t step);

#endif
