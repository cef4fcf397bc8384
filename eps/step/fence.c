/* All of this is the loop's, but for `squares`: the optimizer thread writes a unit's while it folds what
 * fence_note_fold was last called for. The loop reads them when all folds have come back. Scales are powers of two, so
 * that dividing by one changes no bit of a gradient that is not subnormal. */
#include "eps/step/fence.h"

#include "proto/wire/training_text.h"

#include <math.h>
#include <string.h>

static const double clip_epsilon = 1e-6; /* added to the norm, as PyTorch's clip_grad_norm_ does */

void fence_begin(struct fence *fence)
{
    memset(fence->n_given, 0, fence->n_units * sizeof *fence->n_given);
    fence->norm = NAN;
    fence->skipped = false;
}

double *fence_note_fold(struct fence *fence, uint32_t unit, uint32_t n_folds)
{
    return fence->n_units && ++fence->n_given[unit] == n_folds ? &fence->squares[unit] : NULL;
}

void fence_forget_fold(struct fence *fence, uint32_t unit)
{
    if (fence->n_units)
        fence->n_given[unit]--;
}

void fence_note_squares(struct fence *fence, uint32_t unit, double squares)
{
    fence->squares[unit] = squares;
    fence->n_given[unit] = 1;
}

/* Unit by unit, in order: on several hosts, too. Of a unit without folds, which the step drops, an earlier step's
 * squares may be there. */
double fence_norm(const struct fence *fence)
{
    double sum = 0;

    for (uint32_t u = 0; u < fence->n_units; u++)
        sum += fence->n_given[u] ? fence->squares[u] : 0;
    return sqrt(sum);
}

static void fence_grow(struct loss_scale *scale)
{
    if (scale->value > 0 && scale->value < FENCE_MOST_SCALE && ++scale->n_clean == FENCE_CLEAN_STEPS)
        *scale = (struct loss_scale){.value = 2 * scale->value};
}

float fence_commit(struct fence *fence, double norm, double clip_norm)
{
    const double loss = loss_scale_factor(fence->scale), factor = clip_norm / (norm / loss + clip_epsilon);

    fence->norm = norm / loss;
    fence_grow(fence->scale);
    return (float)((clip_norm > 0 && factor < 1 ? factor : 1) / loss);
}

void fence_skip(struct fence *fence, uint64_t step)
{
    fence->skipped = true;
    fence->n_past = step + 1;
    if (fence->scale->value > 1 / FENCE_MOST_SCALE)
        *fence->scale = (struct loss_scale){.value = fence->scale->value / 2};
}
