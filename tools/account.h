/* tools/account.h - what eps train says of a run: what is about to be done, before the first step, and what came of it.
 *
 * Lines on stdout, a word and what it is, for eyes; programs read metrics.jsonl. */
#ifndef TOOLS_ACCOUNT_H
#define TOOLS_ACCOUNT_H

#include "client/eps.h"

#include <stdbool.h>
#include <stdint.h>

/* Of a run, as it goes on; what the end says. */
struct account {
    char out[4096];
    uint64_t first, last, n_steps; /* updates: when this began, and so far; of the run */
    bool complete;                 /* the run has ended as it should */
    uint64_t saved;                /* of the newest checkpoint; UINT64_MAX: none */
    uint64_t n_skipped;            /* of these steps: they left no trace */
    double loss, before, after;    /* of the last step; held out, NAN if it was not measured */
    double tokens, ms;             /* of all steps here */
    uint64_t device_peak, device_planned, device_budget, host_peak, host_planned;
};

/* free_memory: nobody said how much of a device's. */
void account_options(const struct eps_train_options *resolved, uint64_t n_parameters, bool free_memory);
void account_plan(const struct eps_choice *choice, const struct eps_memory *host, const struct eps_memory *device);
/* After the last step of the run, or the last before it was interrupted. */
void account_end(const struct account *account);

#endif
