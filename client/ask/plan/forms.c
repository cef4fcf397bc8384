/* eps_plan_forms: the forms of --approximate, side by side, and the one that eps train --approximate any takes. */
#include "client/eps.h"
#include "client/options/options.h"

#include <errno.h>
#include <string.h>

static const double least_gain = 0.05; /* of a step's time, for a form that is less exact */

/* From exact by unbiased to biased: sums over tokens, and over queries, are estimated without bias; what is computed
 * from coded activations is not linear in them. */
static const char *const forms[EPS_PLAN_FORMS] = {
    NULL,      "wta=0.3", "wta=0.1",         "attention=0.3",   "wta=0.3,attention=0.3",
    "coded=8", "coded=4", "wta=0.3,coded=8", "wta=0.3,coded=4", "pool=2",
    "pool=4",  "pool=8"};

static uint64_t forms_bytes_of(const struct eps_plan_side *side, const char *category)
{
    for (size_t i = 0; i < side->n_terms; i++)
        if (strcmp(side->terms[i].category, category) == 0)
            return side->terms[i].bytes;
    return 0;
}

int eps_plan_one_form(struct eps_plan_form *out, const struct eps_train_options *options, struct eps_error *error)
{
    const char *form = options->approximate;
    struct eps_train_options asked = *options;
    struct eps_plan plan, rival;

    *out = (struct eps_plan_form){.approximate = form,
                                  .kind = !form                                ? "exact"
                                          : client_approximate_is_biased(form) ? "biased"
                                                                               : "unbiased"};
    int rc = eps_plan(&plan, &asked, error);
    if (rc || !plan.fits)
        return rc;
    rival = plan;
    if (form) {
        asked.approximate = NULL;
        asked.device_mem = plan.worker.bytes;
        rc = eps_plan(&rival, &asked, error);
    }
    if (rc)
        return rc;
    out->is_there = true, out->measured = plan.measured, out->fresh = plan.fresh;
    out->device_bytes = plan.worker.bytes, out->kept_bytes = forms_bytes_of(&plan.worker, "kept");
    out->host_bytes = plan.host.bytes, out->step_ms = plan.step_ms;
    out->exact_step_ms = rival.fits ? rival.step_ms : -1;
    out->exact_kept_bytes = rival.fits ? forms_bytes_of(&rival.worker, "kept") : 0;
    out->exact_host_bytes = rival.fits ? rival.host.bytes : 0;
    return 0;
}

/* Of fresh weights only exact ones: what is estimated in their first steps leaves them worse for good, as the samples'
 * noise is then as large as what there is to learn (tools/bench/README.md has the figures). */
static void forms_choose(struct eps_plan_form all[EPS_PLAN_FORMS])
{
    struct eps_plan_form *choice = NULL;

    for (struct eps_plan_form *form = all; form < all + EPS_PLAN_FORMS; form++)
        if (form->is_there && (form == all || !form->fresh) &&
            (!choice || form->step_ms <= (1 - least_gain) * choice->step_ms))
            choice = form;
    if (choice)
        choice->chosen = true;
}

int eps_plan_forms(struct eps_plan_form out[EPS_PLAN_FORMS], const struct eps_train_options *options,
                   struct eps_error *error)
{
    struct eps_train_options asked = *options;

    for (int i = 0; i < EPS_PLAN_FORMS; i++) {
        asked.approximate = forms[i];
        const int rc = eps_plan_one_form(&out[i], &asked, error);
        if (rc && (i == 0 || rc != -EDOM)) /* what exact gradients did not have: this model has no such form */
            return rc;
    }
    forms_choose(out);
    return 0;
}
