/* Every alternative is planned in full (plan_fit), as if it had been asked for: so a suggestion cannot fail for a
 * reason that was overlooked here. They are tried in order of what they cost the user, and the first that fits ends the
 * search. Each changes one thing alone, except the two number formats: a sentence with three options would be the
 * planner's run, not the user's.
 *
 * On several hosts this one alone is planned here. Fewer parts are another division among them, and too few are refused:
 * so they are not suggested. Eager commit needs replay there, which its bytes include.
 *
 * How many alternatives a list has depends on the job. So the index is counted down through the lists, and no table of
 * them exists. */
#include "proto/plan/advice.h"

#include "proto/base/process.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    NARROWER_MOMENTS = 1,
    NARROWER_PRECISION = 2,
    ADVICE_TEXT = 48,
    FEWEST_PARAMETERS = 1000, /* of a model worth training */
};

/* The n-th alternative, from 0; false: there are no more. */
static bool advice(struct plan_fit_asked *out, const struct plan_fit_asked *asked,
                   const struct plan_advice_scope *scope, unsigned n)
{
    const struct plan_goal *goal = &asked->goal;

    *out = *asked;
    for (uint32_t workers = asked->n_workers / 2; scope->can_drop_workers && workers; workers /= 2)
        if (n-- == 0) {
            out->n_workers = workers;
            return true;
        }
    if (scope->resumed)
        return false;
    if (goal->purpose == PLAN_TRAIN && goal->n_parts > asked->n_workers && !plan_sums_parts(goal) &&
        !plan_updates_last(goal) && asked->n_own == 0 && n-- == 0) {
        out->goal.folded = true;
        return true;
    }
    for (uint32_t parts = asked->n_own > 0 ? 0 : goal->n_parts / 2; parts; parts /= 2)
        if (goal->batch % parts == 0 && n-- == 0) {
            out->goal.n_parts = parts;
            out->n_workers = asked->n_workers < parts ? asked->n_workers : parts;
            return true;
        }
    for (unsigned change = NARROWER_MOMENTS; change <= (NARROWER_MOMENTS | NARROWER_PRECISION); change++) {
        const bool moments = change & NARROWER_MOMENTS, precision = change & NARROWER_PRECISION;
        if ((moments && goal->moments != NUMBER_FP32) || (precision && goal->precision != NUMBER_FP32) || n-- > 0)
            continue;
        out->goal.moments = moments ? NUMBER_BF16 : goal->moments;
        out->goal.precision = precision ? NUMBER_BF16 : goal->precision;
        return true;
    }
    const enum form base = (enum form)(goal->base + 1 + n);
    out->goal.base = base;
    return asked->model->n_trained < asked->model->n_parameters && base <= FORM_NF4;
}

/* plan_fit; with another precision or base the frozen tensors of the model have other forms. */
static int fit_other(struct plan_fit *out, const struct plan_fit_asked *other, const struct plan_fit_asked *asked)
{
    const struct plan_goal *goal = &other->goal;
    struct plan_fit_asked with = *other;
    struct model model;

    if (goal->base == asked->goal.base && (goal->precision == asked->goal.precision || goal->base == FORM_VALUES))
        return plan_fit(out, other, NULL);
    int rc = model_recode(&model, asked->model, model_base_of(goal->base, goal->precision), NULL);
    with.model = &model;
    if (rc == 0)
        rc = plan_fit(out, &with, NULL);
    model_free(&model);
    return rc;
}

/* "--workers 1 --parts 4". Also names values that would otherwise change with the number of workers or parts. */
static void name_advice(char text[ADVICE_TEXT], const struct plan_fit_asked *other, const struct plan_fit_asked *asked)
{
    const struct plan_goal *goal = &other->goal;
    const bool moments = goal->moments != asked->goal.moments, precision = goal->precision != asked->goal.precision;

    if (goal->base != asked->goal.base)
        snprintf(text, ADVICE_TEXT, "--base %s", form_name(goal->base));
    else if (goal->folded != asked->goal.folded)
        snprintf(text, ADVICE_TEXT, "--commit folded");
    else if (goal->n_parts != asked->goal.n_parts)
        snprintf(text, ADVICE_TEXT, "--parts %" PRIu32 " --batch %" PRIu32, goal->n_parts, goal->batch);
    else if (other->n_workers != asked->n_workers)
        snprintf(text, ADVICE_TEXT, "--workers %" PRIu32 " --parts %" PRIu32, other->n_workers, goal->n_parts);
    else
        snprintf(text, ADVICE_TEXT, "%s%s%s", precision ? "--precision bf16" : "", precision && moments ? " " : "",
                 moments ? "--moments bf16" : "");
}

bool plan_advise(struct error *err, const struct plan_fit_asked *asked, const struct plan_advice_scope *scope)
{
    char name[ADVICE_TEXT], bytes[2][PROCESS_BYTES_TEXT];
    struct plan_fit_asked other;
    struct plan_fit *fit = malloc(sizeof *fit); /* half a stack */
    bool found = false;

    for (unsigned n = 0; fit && !found && advice(&other, asked, scope, n); n++) {
        found = fit_other(fit, &other, asked) == 0;
        if (!found)
            continue;
        name_advice(name, &other, asked);
        error_append(err, "; %s would take %s of host memory and %s of %s", name,
                     process_format_bytes(bytes[0], fit->host.total),
                     process_format_bytes(bytes[1], plan_total(&fit->plans[0])),
                     other.n_workers > 1 ? "each device" : "the device");
    }
    free(fit);
    return found;
}

/* Tries the same plans with updates that take less host memory. */
static bool find_lighter_updates(struct error *err, const struct plan_fit_asked *asked, const struct plan_fit *fit,
                                 uint64_t arenas)
{
    char bytes[PROCESS_BYTES_TEXT];
    struct plan_host host;

    for (unsigned change = 1; asked->goal.purpose == PLAN_TRAIN && change < 4; change++) {
        const bool narrow = change & 1, eager = change & 2 && asked->goal.precision != NUMBER_FP16;
        struct plan_host_setting setting = fit->setting;
        if ((narrow && setting.goal.moments != NUMBER_FP32) || (eager && !setting.goal.fenced) || (!narrow && !eager))
            continue;
        setting.goal.moments = narrow ? NUMBER_BF16 : setting.goal.moments;
        setting.goal.fenced = !eager && setting.goal.fenced;
        setting.replay = asked->n_own > 0 && !setting.goal.fenced;
        plan_host(&host, asked->model, &setting);
        if (!plan_host_fits(&host, &fit->room))
            continue;
        error_append(err, "; %s%s%s would take %s", narrow ? "--moments bf16" : "", narrow && eager ? " and " : "",
                     eager ? "--commit eager without --clip-norm" : "",
                     process_format_bytes(bytes, host.total + arenas));
        return true;
    }
    return false;
}

void plan_remedy(struct error *err, const struct plan_fit_asked *asked, const struct plan_fit *fit)
{
    const struct plan_host *host = &fit->host;
    const struct plan_room *room = &fit->room;
    const uint64_t a_parameter = host->total / asked->model->n_parameters + 1;
    const uint64_t all = room->available > room->arenas ? room->available - room->arenas : 0;
    const uint64_t parameters = (all < room->cap ? all : room->cap) / a_parameter;

    if (find_lighter_updates(err, asked, fit, host->total > room->cap ? 0 : room->arenas))
        return;
    if (host->bytes[LEDGER_STASH] + host->bytes[LEDGER_DATA] > host->total / 2)
        error_append(err, "; choose a smaller --batch or --seq");
    else if (parameters < FEWEST_PARAMETERS)
        error_append(err, "; choose a smaller model, or allow more");
    else
        error_append(err, "; choose a smaller model, of about %.3g million parameters", (double)parameters / 1e6);
}
