/* The learning rate of each step. */
#include "client/options/options.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>

/* Reads the next of numbers that ascend, separated by commas; false after the last, or at one that does not follow,
 * which is then at *rest. */
static bool next_milestone(uint64_t *milestone, const char **rest)
{
    char *end;

    if (!**rest)
        return false;
    errno = 0;
    const uint64_t next = **rest >= '1' && **rest <= '9' ? strtoull(*rest, &end, 10) : 0;
    if (next <= *milestone || errno || (*end && (*end != ',' || !end[1])))
        return false;
    *milestone = next;
    *rest = *end ? end + 1 : end;
    return true;
}

int client_options_schedule(struct eps_train_options *o, struct error *err)
{
    const char *rest = o->lr_steps;
    uint64_t milestone = 0;

    if (o->schedule == EPS_SCHEDULE_DEFAULT)
        o->schedule = EPS_SCHEDULE_COSINE;
    if (o->schedule != EPS_SCHEDULE_STEP) {
        if (!o->lr_steps && isnan(o->lr_factor))
            return 0;
        return error_set(err, -EDOM, "%s is for --schedule step: choose that, or leave it out",
                         o->lr_steps ? "--lr-steps" : "--lr-factor");
    }
    if (!o->lr_steps)
        return error_set(err, -EDOM,
                         "--schedule step needs --lr-steps: the steps after which the rate falls, as in "
                         "--lr-steps 60,120,160");
    while (next_milestone(&milestone, &rest))
        ;
    if (*rest || milestone == 0)
        return error_set(err, -EDOM, "--lr-steps %.100s: it takes numbers of steps that ascend, as in 60,120,160",
                         o->lr_steps);
    if (isnan(o->lr_factor))
        o->lr_factor = 0.1; /* as torch's MultiStepLR */
    if (!(o->lr_factor > 0 && o->lr_factor <= 1))
        return error_set(err, -EDOM, "--lr-factor %g is not above 0 and at most 1", o->lr_factor);
    return 0;
}

/* lr_factor by as many times as there are milestones up to this step: torch's MultiStepLR. */
static double falls(const struct eps_train_options *o, uint64_t step)
{
    const char *rest = o->lr_steps;
    uint64_t milestone = 0;
    double factor = 1;

    while (next_milestone(&milestone, &rest) && milestone <= step)
        factor *= o->lr_factor;
    return factor;
}

double client_options_lr(const struct eps_train_options *options, uint64_t step)
{
    const double lr = options->lr, min_lr = options->min_lr;

    if (step < options->warmup)
        return lr * (double)(step + 1) / (double)(options->warmup + 1);
    if (options->schedule == EPS_SCHEDULE_INVERSE_SQRT)
        return fmax(min_lr, lr * sqrt((double)(options->warmup + 1) / (double)(step + 1)));
    if (options->schedule == EPS_SCHEDULE_STEP)
        return fmax(min_lr, lr * falls(options, step));
    if (step >= options->steps)
        return min_lr;
    const double way = (double)(step - options->warmup) / (double)(options->steps - options->warmup);
    switch (options->schedule) {
    case EPS_SCHEDULE_CONSTANT:
        return lr;
    case EPS_SCHEDULE_LINEAR:
        return lr - (lr - min_lr) * way;
    case EPS_SCHEDULE_COSINE:
        return min_lr + (lr - min_lr) * (1 + cos(M_PI * way)) / 2;
    case EPS_SCHEDULE_INVERSE_SQRT:
    case EPS_SCHEDULE_STEP:
    case EPS_SCHEDULE_DEFAULT:
        break;
    }
    assert(options->schedule != EPS_SCHEDULE_DEFAULT); /* resolved options name a schedule */
    return lr;
}
