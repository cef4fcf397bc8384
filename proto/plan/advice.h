/* proto/plan/advice.h - what else could be asked for where something does not fit, the cheapest first: fewer workers leave the
 * result what it is, fewer parts round differently, and narrower numbers lose digits. eps plan and the daemon both try
 * these and name the first that fits. Less device memory is not among them: plans take less by themselves. */
#ifndef PROTO_PLAN_ADVICE_H
#define PROTO_PLAN_ADVICE_H

#include "proto/base/number.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Of a training job. */
struct plan_asked {
    uint32_t batch, n_parts;
    uint32_t n_workers;    /* that get a share */
    bool can_drop_workers; /* they are the client's own */
    bool resumed;          /* a run keeps its parts and its numbers */
    enum number_type moments, precision;
};

/* The n-th thing to try, from 0; false: there are no more. */
bool plan_advice(struct plan_asked *out, const struct plan_asked *asked, unsigned n);

/* "--workers 1 --parts 4": the options that make it of what was asked; returns text. */
enum { PLAN_ADVICE_TEXT = 48 };
const char *plan_advice_name(char text[PLAN_ADVICE_TEXT], const struct plan_asked *advice,
                             const struct plan_asked *asked);

#endif
