/* The smallest plan is computed again for a microbatch of one row, or of one pair, only where a larger one was asked
 * for: that is the remedy that costs the user nothing but speed. Sizes in MiB are rounded up, as a user will give back
 * the figure that is printed. */
#include "proto/plan/refusal.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

/* Rounded up, so that the printed figure suffices as a budget. */
static double mib(uint64_t bytes)
{
    return ceil((double)bytes / (1 << 20) * 10) / 10;
}

/* "stash 120.0 MiB, weights 54.0 MiB, workspace 31.5 MiB": the largest terms. */
static void name_terms(char *text, size_t n, const struct plan *plan)
{
    uint32_t named = 0;
    size_t used = 0;

    for (int i = 0; i < PLAN_NAMED_TERMS; i++) {
        const int largest = plan_largest(plan->bytes, LEDGER_CATEGORIES, &named);
        if (largest < 0)
            return;
        int wanted = snprintf(text + used, n - used, "%s%s %.1f MiB", i ? ", " : "",
                              ledger_name((enum ledger_category)largest), mib(plan->bytes[largest]));
        if (wanted < 0 || (size_t)wanted >= n - used)
            return;
        used += (size_t)wanted;
    }
}

/* "; its largest unit, h.0, alone has 27.0 MiB of weights": if that alone exceeds the budget. */
static void name_unit(char *text, size_t n, const struct model *model, const struct plan *plan, uint64_t budget)
{
    const enum number_type precision = plan->setting.goal.precision;
    const uint64_t bytes = model_largest_bytes(model, precision);
    char name[MODEL_NAME_BYTES];
    uint32_t u = 0;

    text[0] = 0;
    if (bytes <= budget)
        return;
    while (model_unit_bytes(&model->units[u], precision) != bytes)
        u++;
    snprintf(text, n, "; its largest unit, %s, alone has %.1f MiB of weights", model_unit_name(name, model, u),
             mib(bytes));
}

int plan_refuse(const struct plan *plan, const struct model *model, const struct plan_setting *setting,
                const struct plan_wish *wish, uint64_t budget, struct error *err)
{
    const uint64_t needed = plan_total(plan);
    char terms[160], unit[96], otherwise[96] = "", how[64];

    name_terms(terms, sizeof terms, plan);
    name_unit(unit, sizeof unit, model, plan, budget);
    const uint32_t whole = plan_joined_rows(&setting->goal, &model->config);

    if (wish->microbatch > whole) {
        struct plan_wish single = *wish;
        struct plan least;
        single.microbatch = whole;
        plan_smallest(&least, model, setting, &single);
        snprintf(otherwise, sizeof otherwise, ", or %.1f MiB (%" PRIu64 " bytes) with microbatches of %u row%s",
                 mib(plan_total(&least)), plan_total(&least), whole, whole > 1 ? "s" : "");
    }
    if (setting->goal.purpose == PLAN_GENERATE)
        snprintf(how, sizeof how, "to generate up to %u tokens", setting->goal.seq);
    else
        snprintf(how, sizeof how, "with microbatches of %u row%s", plan->choice.microbatch,
                 plan->choice.microbatch > 1 ? "s" : "");
    return error_set(err, -ENOSPC,
                     "this model needs at least %.1f MiB (%" PRIu64
                     " bytes) of device memory %s (%s)%s%s; --device-mem is %.1f MiB (%" PRIu64 " bytes)",
                     mib(needed), needed, how, terms, otherwise, unit, (double)budget / (1 << 20), budget);
}
