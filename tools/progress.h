/* tools/progress.h - a run as it goes by: one line that changes on a terminal, plain lines in a pipe.
 *
 * On a terminal the line is redrawn ten times a second at most and clipped to the width. In a pipe there is a line for
 * the first step and the last one, and about one a second between them. */
#ifndef TOOLS_PROGRESS_H
#define TOOLS_PROGRESS_H

#include "client/eps.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct progress {
    FILE *out;
    bool terminal;
    bool shown;        /* a line stands there that the next output has to clear */
    double mean_ms;    /* of a step, recent ones more: what time is left is reckoned from */
    uint64_t shown_ns; /* when the last line was written */
};

void progress_init(struct progress *progress, FILE *out);

/* Shows a step, if it is time to. */
void progress_step(struct progress *progress, const struct eps_step *step);

/* Takes the line away, or ends it, so that something else can be printed. */
void progress_clear(struct progress *progress);

/* "step 12/200  loss 2.3456  12345 tokens/s  1m20s left  device 120.0 MiB of 2.0 GiB"; at most cap-1 characters. */
void progress_format(char *out, size_t cap, const struct eps_step *step, double mean_ms);

#endif
