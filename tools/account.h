/* tools/account.h - eps train's report of a run: what it is, before the first step; what came of it, at the end.
 *
 * Each line on stdout is a label and its value, for people; programs read metrics.jsonl. Before the first step there
 * are six lines: model, data, steps, saves, plan, memory. With --verbose these become one line for each setting, and
 * the whole plan. */
#ifndef TOOLS_ACCOUNT_H
#define TOOLS_ACCOUNT_H

#include "client/eps.h"
#include "tools/screen/plot.h"

#include <stdbool.h>
#include <stdint.h>

enum { ACCOUNT_SCORES = 4 };

/* State of a run. Begin with account_init. */
struct account {
    bool verbose;               /* --verbose */
    bool free_memory;           /* --device-mem was left unset */
    uint64_t began_ms, took_ms; /* live_now_ms before the first step, 0: not begun; from then to the end */
    char out[4096], model[256];
    char workers[128], saves[160]; /* "1 worker on cpu"; "every 3 steps, the last 2 stay" */
    unsigned teaches;              /* of enum eps_tasks: what a row teaches */
    enum eps_task task;            /* of rows with labels */
    bool smoothed;                 /* training losses are of smoothed labels */
    uint64_t n_parameters;
    uint64_t first, last, n_steps; /* updates: before this call, so far, and of the whole run */
    bool complete;                 /* the run ended regularly */
    struct eps_score scores[ACCOUNT_SCORES];
    size_t n_scores;      /* scores of a task's last evaluation */
    uint64_t saved;       /* newest checkpoint's step; UINT64_MAX: none */
    uint64_t n_skipped;   /* skipped steps of this call */
    struct series losses; /* of this call's steps */
    double before, after; /* held-out losses before the first step, and the last one; NAN: not measured */
    uint64_t after_step;
    struct plot_best best; /* of the run, as far as it is known; step 0: before the first */
    double tokens, ms;     /* sums over this call's steps */
    double optimizer_ms;   /* likewise, of the optimizer's thread */
    double predicted_ms;   /* of a step; 0: not predicted */
    double predicted_compute_ms, predicted_optimizer_ms; /* likewise, of the device and of the optimizer */
    uint32_t pixels;                                     /* of an image (struct eps_step) */
    uint64_t device_peak, device_planned, device_budget, host_peak, host_planned;
    bool drawn; /* report.svg is in the run's directory */
};

void account_init(struct account *account);

/* ---- account_start.c: the three calls come in this order, as eps_train_events' of these names ---- */

void account_start(struct account *account, const struct eps_train_options *resolved, uint64_t n_parameters);
void account_disk(const struct account *account, uint64_t checkpoint_bytes, uint64_t n_most, uint64_t free_bytes);
void account_plan(struct account *account, const struct eps_choice *choice, const struct eps_memory *host,
                  const struct eps_memory *device);

/* ---- account.c ---- */

/* Adds a step; those of an earlier call are not counted. */
void account_step(struct account *account, const struct eps_step *step);
/* Adds an evaluation's loss after so many steps; 0: before the first. */
void account_evaluated(struct account *account, uint64_t step, double loss);

/* Prints the summary, after the run's last step, or after its last step before an interrupt. */
void account_end(const struct account *account);

/* ---- Lines, collected in memory before they are printed ---- */

struct account_lines {
    char *text;
    size_t n;
};

/* NULL: no memory; then nothing is reported. */
FILE *account_lines_open(struct account_lines *lines);
/* Closes out and prints its lines. Each is a label and a text, which is wrapped to the terminal's width. */
void account_lines_print(FILE *out, struct account_lines *lines);

#endif
