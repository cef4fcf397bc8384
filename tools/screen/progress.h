/* tools/screen/progress.h - a run's progress: one changing line on a terminal, plain lines in a pipe.
 *
 * On a terminal the line is redrawn when it changes, at most ten times a second. Each drawing is one write that ends by
 * erasing the rest of the old line, so it does not flicker. The line ends one column short of the terminal's width,
 * which is queried for each drawing; so it never wraps, and resizing needs no signal handler. No terminal setting is
 * changed, so a killed run leaves nothing to restore. Red, for trouble, is the only colour; NO_COLOR turns it off.
 *
 * In a pipe, or if TERM is dumb or unset, a line is printed for the first step, the last step, each hundredth of the
 * run, and the first step after ten seconds without a line. */
#ifndef TOOLS_SCREEN_PROGRESS_H
#define TOOLS_SCREEN_PROGRESS_H

#include "client/eps.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct progress {
    FILE *out;
    bool terminal;
    size_t n_columns;              /* columns of the current line on the terminal; 0: no line */
    double mean_ms;                /* moving average of a step's time, for the time left; 0: no step yet */
    uint64_t shown_ns, shown_step; /* time and step of the last line */
    struct eps_step step;          /* last step */
    uint64_t saved;                /* last checkpoint's step; UINT64_MAX: none */
    bool trouble;                  /* a save failed */
    bool evaluating;               /* long enough to be shown */
    unsigned evaluated;            /* percent */
    uint64_t evaluating_ns;        /* when the evaluation began; in a pipe, when its last line was printed */
    char line[640];                /* as shown on the terminal */
};

/* `out` and the environment determine colour and redrawing. */
void progress_init(struct progress *progress, FILE *out);

/* Shows a step if it is due. */
void progress_step(struct progress *progress, const struct eps_step *step);

/* Shows an evaluation's progress, n_tokens of n_all. On a terminal it appears in the line after half a second, until
 * the next step or progress_clear; in a pipe, one line every ten seconds. */
void progress_evaluating(struct progress *progress, uint64_t n_tokens, uint64_t n_all);

/* Shows the last checkpoint: in the line from now on; in a pipe, one line. Clears the trouble mark. */
void progress_saved(struct progress *progress, uint64_t step, const char *path);

/* Reports a failed save: a permanent line of its own, and a mark in the line until progress_saved. */
void progress_trouble(struct progress *progress, const char *why);

/* Erases the line, so that something else can be printed. Does nothing in a pipe. */
void progress_clear(struct progress *progress);

/* Updates the line a last time and moves below it, at the end of a run. */
void progress_finish(struct progress *progress);

/* Formats "step 12/200  loss 2.3456  12345 tokens/s  1 min 20 s left  device 0.12 GiB of 2.0 GiB  saved 10"; at most
 * cap-1 characters. With trouble, "NOT SAVED" follows the loss; "evaluating 12 %" precedes it, or stands alone before
 * the first step. */
void progress_format(char *out, size_t cap, const struct progress *progress);

#endif
