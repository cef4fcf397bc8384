/* tools/account.h - eps train's report of a run: the plan before the first step, the result at the end.
 *
 * Each line on stdout is a label and its value, for people; programs read metrics.jsonl. */
#ifndef TOOLS_ACCOUNT_H
#define TOOLS_ACCOUNT_H

#include "client/eps.h"

#include <stdbool.h>
#include <stdint.h>

enum { ACCOUNT_SCORES = 4 };

/* State of a run, for the report at its end. */
struct account {
    char out[4096];
    uint64_t first, last, n_steps; /* updates: before this call, so far, and of the whole run */
    bool complete;                 /* the run ended regularly */
    bool silent;                   /* it generates no text: it predicts masked tokens, or labels */
    struct eps_score scores[ACCOUNT_SCORES];
    size_t n_scores;            /* scores of a task's last evaluation */
    uint64_t saved;             /* newest checkpoint's step; UINT64_MAX: none */
    uint64_t n_skipped;         /* skipped steps of this call */
    double loss, before, after; /* loss: the last step's; before, after: held-out losses, NAN if not measured */
    double tokens, ms;          /* sums over this call's steps */
    double optimizer_ms;        /* likewise, of the optimizer's thread */
    double predicted_ms;        /* of a step; 0: not predicted */
    double predicted_compute_ms, predicted_optimizer_ms; /* likewise, of the device and of the optimizer */
    uint32_t pixels;                                     /* of an image (struct eps_step) */
    uint64_t device_peak, device_planned, device_budget, host_peak, host_planned;
};

/* free_memory: --device-mem was left unset. */
void account_options(const struct eps_train_options *resolved, uint64_t n_parameters, bool free_memory);
/* As eps_train_events' on_disk. */
void account_disk(uint64_t checkpoint_bytes, uint64_t n_most, uint64_t free_bytes);
void account_plan(const struct eps_choice *choice, const struct eps_memory *host, const struct eps_memory *device);
/* After the run's last step, or after its last step before an interrupt. */
void account_end(const struct account *account);

#endif
