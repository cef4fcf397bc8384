/* tools/screen/progress.h - a run as it goes by: one line that changes on a terminal, plain lines in a pipe.
 *
 * On a terminal the line is drawn again when it has changed, ten times a second at most, in one write that ends by
 * erasing what is left of the old one, so that it does not flicker. It is cut one column short of the terminal's width,
 * asked for at each drawing, so that it never wraps and a resized window needs no signal handler. Nothing of the
 * terminal is changed that would outlast a line: a run that is killed leaves nothing to restore. Red, for trouble, is
 * the only colour; NO_COLOR turns it off.
 *
 * In a pipe, or where TERM is dumb or not set, there is a line for the first step, for the last, for each step that
 * completes another hundredth of the run, and for the first after ten seconds without any. */
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
    size_t n_columns;              /* of the line that stands on the terminal; 0: none does */
    double mean_ms;                /* of a step, recent ones more: what time is left is reckoned from. 0: no step yet */
    uint64_t shown_ns, shown_step; /* when the last line was written, and for which step */
    struct eps_step step;          /* the last one */
    uint64_t saved;                /* the last checkpoint's step; UINT64_MAX: none */
    bool trouble;                  /* what should have been saved was not */
    bool evaluating;               /* for long enough to be shown */
    unsigned evaluated;            /* per cent */
    uint64_t evaluating_ns;        /* since when; in a pipe, when the last line was written */
    char line[640];                /* as it stands on the terminal */
};

/* Colour, and whether a line is drawn over, follow from what `out` is and from the environment. */
void progress_init(struct progress *progress, FILE *out);

/* Shows a step, if it is time to. */
void progress_step(struct progress *progress, const struct eps_step *step);

/* A held-out loss is being measured, of which n_tokens are done: in the line, if that takes more than half a second,
 * until the next step or progress_clear; in a pipe a line every ten seconds. */
void progress_evaluating(struct progress *progress, uint64_t n_tokens, uint64_t n_all);

/* A checkpoint stands: in the line from now on; in a pipe a line of its own. Ends a trouble. */
void progress_saved(struct progress *progress, uint64_t step, const char *path);

/* Something could not be saved: a line of its own that stays, and a mark in the line until progress_saved. */
void progress_trouble(struct progress *progress, const char *why);

/* Takes the line away, so that something else can be printed. Nothing in a pipe. */
void progress_clear(struct progress *progress);

/* Leaves the line standing, up to date, and goes on below it; for the end of a run. */
void progress_finish(struct progress *progress);

/* "step 12/200  loss 2.3456  12345 tokens/s  1 min 20 s left  device 0.12 GiB of 2.0 GiB  saved 10"; at most cap-1
 * characters. "NOT SAVED" stands after the loss where there is trouble, "evaluating 12 %" before it, or alone before a step. */
void progress_format(char *out, size_t cap, const struct progress *progress);

#endif
