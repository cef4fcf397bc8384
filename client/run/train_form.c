/* The form is chosen before the job is made, from predictions alone, by the same search as eps plan, so that eps plan
 * tells beforehand what eps train will take. What is said of the choice is kept until the run's head is printed. */
#include "client/run/train_state.h"

/* The options as eps plan would be given them. A daemon's workers are told from this machine's profile, the slower kind
 * for all; its host's memory is unknown here. */
static struct eps_train_options plan_options(const struct client_train *t)
{
    struct eps_train_options o = client_run_job_options(&t->run);

    /* How rows are read: resolved, and as such refused where it is of no use. */
    o.separator = EPS_SEPARATOR_DEFAULT, o.train_on = EPS_TRAIN_ON_DEFAULT, o.long_rows = EPS_LONG_DEFAULT;
    o.split_special_tokens = EPS_SPLIT_DEFAULT;
    if (!o.connect)
        return o;
    o.workers = t->n_workers;
    o.device = t->devices.cpu ? "cpu" : "cuda";
    o.device_mem = t->devices.budget;
    if (o.host_mem == 0)
        o.host_mem = INT64_MAX;
    return o;
}

static const char *train_form_name_of(const struct eps_plan_form *form)
{
    return form->approximate ? form->approximate : "exact gradients";
}

static const char *train_form_assumed(const struct eps_plan_form *form)
{
    return form->measured ? "" : " by assumed rates";
}

/* What the form that was asked for saves: "--approximate wta=0.3: as predicted, 35 ms a step, and exact ones in as much
 * device memory 37 ms; activations kept 1.2 MiB, exact 3.4 MiB" */
static void say_saving(struct error *sentence, const struct eps_plan_form *form)
{
    char bytes[24], exact_bytes[24];

    error_set(sentence, 0, "--approximate %s: ", form->approximate);
    if (form->exact_step_ms < 0)
        error_append(sentence, "exact gradients do not fit into as much device memory");
    else
        error_append(
            sentence,
            "as predicted%s, %.3g ms a step, with exact gradients in as much device memory %.3g ms; activations "
            "kept %s, exact %s",
            train_form_assumed(form), form->step_ms, form->exact_step_ms, eps_format_bytes(bytes, form->kept_bytes),
            eps_format_bytes(exact_bytes, form->exact_kept_bytes));
}

/* "12 % less time a step than exact gradients in this budget (predicted); device memory 3.5 GiB, exact 3.4 GiB" */
static void say_choice(struct error *sentence, const struct eps_plan_form *chosen, const struct eps_plan_form *exact)
{
    char bytes[24], exact_bytes[24];

    error_set(sentence, 0, "--approximate any chose %s: ", train_form_name_of(chosen));
    if (chosen->fresh)
        error_append(sentence, "inexact ones train fresh weights worse");
    else if (chosen == exact)
        error_append(sentence, "no form is predicted%s to take 5 %% less time a step", train_form_assumed(exact));
    else if (!exact->is_there)
        error_append(sentence, "exact gradients do not fit");
    else
        error_append(sentence,
                     "%.0f %% less time a step than exact gradients in this budget, as predicted%s; device memory %s, "
                     "exact %s",
                     100 * (1 - chosen->step_ms / exact->step_ms), train_form_assumed(exact),
                     eps_format_bytes(bytes, chosen->device_bytes), eps_format_bytes(exact_bytes, exact->device_bytes));
}

int client_train_choose_form(struct client_train *t, struct error *err)
{
    const struct eps_train_options asked = plan_options(t);
    struct eps_plan_form forms[EPS_PLAN_FORMS];
    struct eps_error error;

    if (!eps_approximate_is_any(asked.approximate)) {
        if (asked.approximate && eps_plan_one_form(forms, &asked, &error) == 0 && forms->is_there)
            say_saving(&t->form, forms);
        return 0;
    }
    const int rc = eps_plan_forms(forms, &asked, &error);
    if (rc)
        return error_set(err, rc, "--approximate any: %s", error.text);
    t->run.options.approximate = NULL;
    for (int i = 0; i < EPS_PLAN_FORMS; i++)
        if (forms[i].chosen) {
            t->run.options.approximate = forms[i].approximate;
            say_choice(&t->form, &forms[i], &forms[0]);
        }
    return 0;
}
