/* tools/screen/plot.h - draws a run's curves with gnuplot.
 *
 * gnuplot reads its script, data included, from standard input and writes the picture to standard output. It is given
 * no path, and names of paths or categories are never executed as commands. */
#ifndef TOOLS_SCREEN_PLOT_H
#define TOOLS_SCREEN_PLOT_H

#include "client/eps.h"
#include "tools/screen/series.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

enum { PLOT_CATEGORIES = 32 };

struct plot_side {
    struct series all;    /* sum of the categories */
    struct series budget; /* the device's, if recorded */
    size_t n;
    struct plot_category {
        char name[32];
        struct series bytes;
    } categories[PLOT_CATEGORIES];
};

struct plot {
    uint64_t first, last, n_steps; /* first and last step, and their number; 0: none */
    struct series loss, eval_loss, tokens_per_s;
    struct plot_side sides[2]; /* the host; the device with the most memory */
};

/* Adds a step. Begin with a zeroed struct. */
void plot_add(struct plot *plot, const struct eps_step *step);

/* Writes the script for a picture in this format, "svg" or "png"; the title may hold any characters. */
void plot_write(FILE *script, const struct plot *plot, const char *format, const char *title);

#endif
