/* tools/screen/plot.h - a run as curves, drawn by gnuplot.
 *
 * gnuplot reads its script, data included, from standard input and writes the picture to standard output: it is given
 * no path, and what a path or a category is called never is a command. */
#ifndef TOOLS_SCREEN_PLOT_H
#define TOOLS_SCREEN_PLOT_H

#include "client/eps.h"
#include "tools/screen/series.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

enum { PLOT_CATEGORIES = 32 };

struct plot_side {
    struct series all;    /* what the categories add up to */
    struct series budget; /* where the run says which; of the device */
    size_t n;
    struct plot_category {
        char name[32];
        struct series bytes;
    } categories[PLOT_CATEGORIES];
};

struct plot {
    uint64_t first, last, n_steps; /* of the steps there are; 0: none */
    struct series loss, eval_loss, tokens_per_s;
    struct plot_side sides[2]; /* the host, the device that has most */
};

/* Begins zeroed. */
void plot_add(struct plot *plot, const struct eps_step *step);

/* The script for a picture in this format, "svg" or "png"; the title may be anything. */
void plot_write(FILE *script, const struct plot *plot, const char *format, const char *title);

#endif
