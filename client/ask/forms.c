/* eps_plan_forms: the forms of --approximate, side by side, and the one that eps train --approximate any takes. */
#include "client/eps.h"
#include "client/options/options.h"

#include <errno.h>
#include <string.h>

static const double least_gain = 0.05; /* of a step's time, for a form that is less exact */

/* Sums over tokens, and over queries, are estimated without bias; what is computed from coded activations is not linear in
 * them. */
static const struct eps_plan_form forms[EPS_PLAN_FORMS] = {
    {.approximate = NULL, .kind = "exact"},
    {.approximate = "wta=0.3", .kind = "unbiased"},
    {.approximate = "wta=0.1", .kind = "unbiased"},
    {.approximate = "attention=0.3", .kind = "unbiased"},
    {.approximate = "wta=0.3,attention=0.3", .kind = "unbiased"},
    {.approximate = "coded=8", .kind = "biased"},
    {.approximate = "coded=4", .kind = "biased"},
    {.approximate = "wta=0.3,coded=8", .kind = "biased"},
    {.approximate = "wta=0.3,coded=4", .kind = "biased"},
    {.approximate = "pool=2", .kind = "biased"},
    {.approximate = "pool=4", .kind = "biased"},
    {.approximate = "pool=8", .kind = "biased"},
};

static uint64_t bytes_of(const struct eps_plan_side *side, const char *category)
{
    for (size_t i = 0; i < side->n_terms; i++)
        if (strcmp(side->terms[i].category, category) == 0)
            return side->terms[i].bytes;
    return 0;
}

/* Fills in a form's figures. */
static int plan_form(struct eps_plan_form *form, const struct eps_train_options *options, struct eps_error *error)
{
    struct eps_train_options asked = *options;
    struct eps_plan plan, rival;

    asked.approximate = form->approximate;
    int rc = eps_plan(&plan, &asked, error);
    if (rc || !plan.fits)
        return rc;
    rival = plan;
    if (form->approximate) {
        asked.approximate = NULL;
        asked.device_mem = plan.worker.bytes;
        rc = eps_plan(&rival, &asked, error);
    }
    if (rc)
        return rc;
    form->is_there = true;
    form->device_bytes = plan.worker.bytes, form->kept_bytes = bytes_of(&plan.worker, "kept");
    form->host_bytes = plan.host.bytes, form->step_ms = plan.step_ms;
    form->exact_step_ms = rival.fits ? rival.step_ms : -1;
    form->exact_kept_bytes = rival.fits ? bytes_of(&rival.worker, "kept") : 0;
    form->exact_host_bytes = rival.fits ? rival.host.bytes : 0;
    return 0;
}

int eps_plan_one_form(struct eps_plan_form *out, const struct eps_train_options *options, struct eps_error *error)
{
    const char *form = options->approximate;

    *out = (struct eps_plan_form){.approximate = form, .kind = "exact"};
    const int rc = plan_form(out, options, error);
    if (!rc && form)
        out->kind = client_approximate_is_biased(form) ? "biased" : "unbiased";
    return rc;
}

static void choose(struct eps_plan_form all[EPS_PLAN_FORMS])
{
    struct eps_plan_form *choice = NULL;

    for (struct eps_plan_form *form = all; form < all + EPS_PLAN_FORMS; form++)
        if (form->is_there && (!choice || form->step_ms <= (1 - least_gain) * choice->step_ms))
            choice = form;
    if (choice)
        choice->chosen = true;
}

int eps_plan_forms(struct eps_plan_form out[EPS_PLAN_FORMS], const struct eps_train_options *options,
                   struct eps_error *error)
{
    memcpy(out, forms, sizeof forms);
    for (int i = 0; i < EPS_PLAN_FORMS; i++) {
        const int rc = plan_form(&out[i], options, error);
        if (rc && (i == 0 || rc != -EDOM)) /* what exact gradients did not have: this model has no such form */
            return rc;
    }
    choose(out);
    return 0;
}
