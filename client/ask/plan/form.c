/* A plan of a run with --freeze-until is of two forms, and both must fit. */
#include "client/ask/plan/form.h"

#include "client/daemon/observer.h"
#include "client/options/options.h"

#include <stdio.h>
#include <string.h>

static int plan_form_check(const struct eps_train_options *options, struct eps_error *error)
{
    struct error err = {""};

    return client_report(error, &err, client_options_check_thaw(options, &err));
}

static uint64_t plan_form_larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* Both forms compute the same microbatch: the one that the later form chooses. */
static int plan_both(struct eps_plan *out, const struct eps_train_options *options, struct eps_error *error)
{
    const struct eps_train_options later = client_options_thaw(options, out->adapter_rank > 0);
    struct eps_train_options now = *options;
    struct eps_plan then;
    int rc = client_plan_form(&then, &later, true, error);

    if (!rc && now.microbatch == 0 && then.fits && then.microbatch != out->microbatch) {
        now.microbatch = then.microbatch;
        rc = client_plan_form(out, &now, false, error);
    }
    if (rc)
        return rc;
    out->options.freeze_until = options->freeze_until;
    out->thawed.host_bytes = then.host.bytes, out->thawed.device_bytes = then.worker.bytes;
    out->minimum = plan_form_larger(out->minimum, then.minimum);
    out->checkpoint_bytes = plan_form_larger(out->checkpoint_bytes, then.checkpoint_bytes);
    if (out->fits && !then.fits)
        snprintf(out->why, sizeof out->why,
                 "%.400s; this is for training all tensors: leave freeze_until out, and they stay frozen", then.why);
    out->fits = out->fits && then.fits;
    return 0;
}

int eps_plan(struct eps_plan *out, const struct eps_train_options *options, struct eps_error *error)
{
    int rc = plan_form_check(options, error);

    if (!rc)
        rc = client_plan_form(out, options, false, error);
    return rc || options->freeze_until == 0 ? rc : plan_both(out, options, error);
}

int eps_plan_minimum(uint64_t *bytes, const struct eps_train_options *options, struct eps_error *error)
{
    struct eps_plan plan;

    if (options->freeze_until == 0)
        return client_plan_form_minimum(bytes, options, error);
    const int rc = eps_plan(&plan, options, error);
    *bytes = plan.minimum;
    return rc;
}

int eps_plan_batch(uint32_t *n_rows, const struct eps_train_options *options, struct eps_error *error)
{
    struct eps_plan plan;
    uint32_t n_later;
    int rc = plan_form_check(options, error);

    if (!rc)
        rc = client_plan_form_batch(n_rows, options, false, error);
    if (!rc && options->freeze_until > 0)
        rc = client_plan_form(&plan, options, false, error);
    if (rc || options->freeze_until == 0)
        return rc;
    const struct eps_train_options later = client_options_thaw(options, plan.adapter_rank > 0);
    rc = client_plan_form_batch(&n_later, &later, true, error);
    *n_rows = !rc && n_later < *n_rows ? n_later : *n_rows;
    return rc;
}
