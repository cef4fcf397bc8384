#include "plan/make.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

enum { NAMED_TERMS = 3 }; /* in a refusal: the largest ones say what to change */

/* What is wished for. */
struct search {
    const struct model *model;
    const struct plan_setting *setting;
    const struct plan_choice *wish;
    uint64_t budget;
};

static void lay_out_rows(struct plan *plan, const struct search *s, uint32_t rows)
{
    struct plan_choice choice = *s->wish;

    choice.microbatch = rows;
    plan_lay_out(plan, s->model, s->setting, &choice);
}

static void lay_out_resident(struct plan *plan, const struct search *s, uint32_t n)
{
    struct plan_choice choice = *s->wish;

    choice.microbatch = 1;
    choice.n_resident = n;
    plan_lay_out(plan, s->model, s->setting, &choice);
}

/* Lays out with the most of something, from least to most, that the budget holds; with the least, if it does not hold
 * that. Bytes never fall as the number grows. */
static void lay_out_largest(struct plan *plan, const struct search *s,
                            void (*with)(struct plan *, const struct search *, uint32_t n), uint32_t least,
                            uint32_t most)
{
    while (least < most) {
        const uint32_t n = least + (most - least + 1) / 2;
        with(plan, s, n);
        if (plan_total(plan) <= s->budget)
            least = n;
        else
            most = n - 1;
    }
    with(plan, s, least);
}

/* As many units as leave room for the buffers of the others; or the least that can do, if the budget does not hold that.
 * One more may take less, where a buffer goes with it. */
static void lay_out_most_resident(struct plan *plan, const struct search *s)
{
    uint64_t least = UINT64_MAX;
    uint32_t leanest = 0;

    for (uint32_t n = s->model->n_units + 1; n-- > 0;) {
        lay_out_resident(plan, s, n);
        if (plan_total(plan) <= s->budget)
            return;
        if (plan_total(plan) < least)
            least = plan_total(plan), leanest = n;
    }
    lay_out_resident(plan, s, leanest);
}

/* Rounded up, so that the figure suffices when it is typed back. */
static double mib(uint64_t bytes)
{
    return ceil((double)bytes / (1 << 20) * 10) / 10;
}

/* "stash 120.0 MiB, weights 54.0 MiB, workspace 31.5 MiB": the largest terms. */
static void name_terms(char *text, size_t n, const struct plan *plan)
{
    bool named[LEDGER_CATEGORIES] = {false};
    size_t used = 0;

    for (int i = 0; i < NAMED_TERMS; i++) {
        int largest = -1;
        for (int c = 0; c < LEDGER_CATEGORIES; c++)
            if (!named[c] && (largest < 0 || plan->bytes[c] > plan->bytes[largest]))
                largest = c;
        named[largest] = true;
        int wanted = snprintf(text + used, n - used, "%s%s %.1f MiB", i ? ", " : "",
                              ledger_name((enum ledger_category)largest), mib(plan->bytes[largest]));
        if (wanted < 0 || (size_t)wanted >= n - used)
            return;
        used += (size_t)wanted;
    }
}

static int refuse(struct plan *plan, const struct search *s, struct error *err)
{
    const uint32_t rows = plan->choice.microbatch;
    const uint64_t needed = plan_total(plan), budget = s->budget;
    char terms[160], otherwise[96] = "";

    name_terms(terms, sizeof terms, plan);
    if (s->setting->purpose == PLAN_GENERATE)
        return error_set(err, -ENOSPC,
                         "this model needs at least %.1f MiB (%" PRIu64
                         " bytes) of device memory to generate up to %u tokens (%s); --device-mem is %.1f MiB (%" PRIu64
                         " bytes)",
                         mib(needed), needed, s->setting->seq, terms, (double)budget / (1 << 20), budget);
    if (rows > 1) {
        lay_out_rows(plan, s, 1);
        snprintf(otherwise, sizeof otherwise, ", or %.1f MiB (%" PRIu64 " bytes) with microbatches of 1 row",
                 mib(plan_total(plan)), plan_total(plan));
    }
    return error_set(err, -ENOSPC,
                     "this model needs at least %.1f MiB (%" PRIu64
                     " bytes) of device memory with microbatches of %u row%s"
                     " (%s)%s; --device-mem is %.1f MiB (%" PRIu64 " bytes)",
                     mib(needed), needed, rows, rows > 1 ? "s" : "", terms, otherwise, (double)budget / (1 << 20),
                     budget);
}

int plan_make(struct plan *out, const struct model *model, const struct plan_setting *setting,
              const struct plan_choice *wish, uint64_t budget, struct error *err)
{
    const struct search s = {.model = model, .setting = setting, .wish = wish, .budget = budget};
    struct plan_choice least = *wish;

    least.microbatch = wish->microbatch ? wish->microbatch : 1;
    int rc = plan_check(model, setting, err);
    if (rc == 0)
        rc = plan_check_choice(model, setting, &least, err);
    if (rc != 0)
        return rc;
    if (setting->purpose == PLAN_GENERATE)
        lay_out_most_resident(out, &s);
    else if (wish->microbatch)
        plan_lay_out(out, model, setting, wish);
    else
        lay_out_largest(out, &s, lay_out_rows, 1, setting->part_rows);
    return plan_total(out) <= budget ? 0 : refuse(out, &s, err);
}
