#include "proto/plan/advice.h"

#include <inttypes.h>
#include <stdio.h>

enum { NARROWER_MOMENTS = 1, NARROWER_PRECISION = 2 };

bool plan_advice(struct plan_asked *out, const struct plan_asked *asked, unsigned n)
{
    *out = *asked;
    for (uint32_t workers = asked->n_workers / 2; asked->can_drop_workers && workers; workers /= 2)
        if (n-- == 0) {
            out->n_workers = workers;
            return true;
        }
    if (asked->resumed)
        return false;
    for (uint32_t parts = asked->n_parts / 2; parts; parts /= 2)
        if (asked->batch % parts == 0 && n-- == 0) {
            out->n_parts = parts;
            out->n_workers = asked->n_workers < parts ? asked->n_workers : parts;
            return true;
        }
    for (unsigned change = NARROWER_MOMENTS; change <= (NARROWER_MOMENTS | NARROWER_PRECISION); change++) {
        const bool moments = change & NARROWER_MOMENTS, precision = change & NARROWER_PRECISION;
        if ((moments && asked->moments == NUMBER_BF16) || (precision && asked->precision == NUMBER_BF16) || n-- > 0)
            continue;
        out->moments = moments ? NUMBER_BF16 : asked->moments;
        out->precision = precision ? NUMBER_BF16 : asked->precision;
        return true;
    }
    return false;
}

/* What would follow from the number of workers or parts, had it not been given, is named too. */
const char *plan_advice_name(char text[PLAN_ADVICE_TEXT], const struct plan_asked *advice,
                             const struct plan_asked *asked)
{
    if (advice->n_parts != asked->n_parts)
        snprintf(text, PLAN_ADVICE_TEXT, "--parts %" PRIu32 " --batch %" PRIu32, advice->n_parts, advice->batch);
    else if (advice->n_workers != asked->n_workers)
        snprintf(text, PLAN_ADVICE_TEXT, "--workers %" PRIu32 " --parts %" PRIu32, advice->n_workers, advice->n_parts);
    else
        snprintf(text, PLAN_ADVICE_TEXT, "%s%s%s", advice->precision != asked->precision ? "--precision bf16" : "",
                 advice->precision != asked->precision && advice->moments != asked->moments ? " " : "",
                 advice->moments != asked->moments ? "--moments bf16" : "");
    return text;
}
