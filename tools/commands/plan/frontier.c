/* The forms come from eps_plan_forms, the same list that eps train --approximate any chooses from. The first is exact,
 * so there is always something to compare with, unless it does not fit. */
#include "tools/commands/plan/frontier.h"

#include "tools/commands.h"
#include "tools/screen/text.h"

#include <jansson.h>
#include <stdio.h>

static bool is_assumed(const struct eps_plan_form forms[EPS_PLAN_FORMS])
{
    for (int i = 0; i < EPS_PLAN_FORMS; i++)
        if (forms[i].is_there && !forms[i].measured)
            return true;
    return false;
}

static bool is_fresh(const struct eps_plan_form forms[EPS_PLAN_FORMS])
{
    for (int i = 0; i < EPS_PLAN_FORMS; i++)
        if (forms[i].is_there)
            return forms[i].fresh;
    return false;
}

static void print_form(const struct eps_plan_form *form)
{
    char device[24], kept[24], host[24], step[32], exact[32];

    printf("%-23s%-12s%-12s%-12s%-10s%-20s%s\n", form->approximate ? form->approximate : "-",
           eps_format_bytes(device, form->device_bytes), eps_format_bytes(kept, form->kept_bytes),
           eps_format_bytes(host, form->host_bytes), text_ms(step, form->step_ms),
           form->exact_step_ms < 0 ? "none fits" : text_ms(exact, form->exact_step_ms), form->kind);
}

static void print_forms(const struct eps_plan_form forms[EPS_PLAN_FORMS])
{
    printf("--approximate          device      kept        host        a step    exact in the same   gradients\n");
    for (const struct eps_plan_form *form = forms; form < forms + EPS_PLAN_FORMS; form++)
        if (form->is_there)
            print_form(form);
    if (is_assumed(forms))
        printf("\ntimes are assumed: by rates of another machine, or of a data sheet; eps bench measures this one\n");
    for (const struct eps_plan_form *form = forms; form < forms + EPS_PLAN_FORMS; form++)
        if (form->chosen)
            printf("\neps train --approximate any chooses %s%s\n",
                   form->approximate ? form->approximate : "exact gradients",
                   form->fresh ? ": inexact ones train fresh weights worse" : "");
    if (!forms->is_there)
        printf("\nexact gradients do not fit%s\n",
               is_fresh(forms) ? ", and eps train --approximate any chooses no others for fresh weights" : "");
}

static json_t *form_to_json(const struct eps_plan_form *form)
{
    return json_pack("{s:s?, s:s, s:b, s:b, s:I, s:I, s:I, s:f, s:o}", "approximate", form->approximate, "kind",
                     form->kind, "chosen", form->chosen, "assumed", !form->measured, "device",
                     (json_int_t)form->device_bytes, "kept", (json_int_t)form->kept_bytes, "host",
                     (json_int_t)form->host_bytes, "step_ms", form->step_ms, "exact_step_ms",
                     form->exact_step_ms < 0 ? json_null() : json_real(form->exact_step_ms));
}

static void plan_frontier_print_json(const struct eps_plan_form forms[EPS_PLAN_FORMS])
{
    json_t *list = json_array();

    for (const struct eps_plan_form *form = forms; form < forms + EPS_PLAN_FORMS; form++)
        if (form->is_there)
            json_array_append_new(list, form_to_json(form));
    answer_write(stdout, list, 0);
    putchar('\n');
    json_decref(list);
}

int plan_frontier(const struct command *command, const struct eps_train_options *options, bool json)
{
    struct eps_plan_form forms[EPS_PLAN_FORMS];
    struct eps_error error;
    bool any = false;
    const int rc = eps_plan_forms(forms, options, &error);

    if (rc)
        return arguments_fail(command, rc, error.text);
    for (int i = 0; i < EPS_PLAN_FORMS; i++)
        any |= forms[i].is_there;
    if (json)
        plan_frontier_print_json(forms);
    else if (any)
        print_forms(forms);
    return any ? 0 : arguments_fail(command, 1, "nothing fits, exact or not: see eps plan without --approximate any");
}
