/* eps_plan_narrower: forms of the optimizer's state, and of what is sent to it, each planned in the place of what the
 * options say. A form that the run cannot have is one whose plan is refused: which those are, the options themselves
 * know. One that the run has already plans the same step, so its time is not less. */
#include "client/eps.h"

#include <errno.h>
#include <string.h>

static const double least_gain = 0.01; /* of a step's time, for a form to be told of */

static void narrow_grad(struct eps_train_options *o)
{
    o->grad_dtype = EPS_BF16;
}

static void narrow_moments(struct eps_train_options *o)
{
    o->moments = EPS_MOMENTS_BF16;
}

static void code_moments(struct eps_train_options *o)
{
    o->moments = EPS_MOMENTS_CODED;
}

static void narrow_sums(struct eps_train_options *o)
{
    o->sums = EPS_BF16;
}

static void narrow_master(struct eps_train_options *o)
{
    o->master = EPS_MASTER_NONE;
}

static void narrow_state(struct eps_train_options *o)
{
    o->state = EPS_BF16;
}

static const struct {
    const char *member, *value;
    void (*narrow)(struct eps_train_options *o);
} narrower[EPS_PLAN_NARROWER] = {{"grad_dtype", "bf16", narrow_grad}, {"moments", "bf16", narrow_moments},
                                 {"moments", "coded", code_moments},  {"sums", "bf16", narrow_sums},
                                 {"master", "none", narrow_master},   {"state", "bf16", narrow_state}};

/* state is the others in one, but for coded moments: it is told of if it is faster than each of them. An option's second
 * form is told of if it is faster than its first. */
int eps_plan_narrower(struct eps_plan_narrower out[EPS_PLAN_NARROWER], uint32_t *n, const struct eps_plan *plan,
                      const struct eps_train_options *options, struct eps_error *error)
{
    double least_ms = plan->step_ms;

    *n = 0;
    for (uint32_t i = 0; plan->fits && plan->host_binds && i < EPS_PLAN_NARROWER; i++) {
        const bool again = *n > 0 && strcmp(out[*n - 1].member, narrower[i].member) == 0;
        const double other_ms = again ? out[*n - 1].step_ms : plan->step_ms;
        const double before_ms = narrower[i].narrow == narrow_state ? least_ms : other_ms;
        struct eps_train_options asked = *options;
        struct eps_plan other;
        narrower[i].narrow(&asked);
        const int rc = eps_plan(&other, &asked, error);
        if (rc && rc != -EDOM && rc != -EINVAL)
            return rc;
        if (rc || !other.fits || other.step_ms > (1 - least_gain) * before_ms)
            continue;
        out[(*n)++] = (struct eps_plan_narrower){narrower[i].member, narrower[i].value, other.step_ms};
        least_ms = other.step_ms < least_ms ? other.step_ms : least_ms;
    }
    return 0;
}
