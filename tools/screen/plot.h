/* tools/screen/plot.h - draws the curves of a run, or of several beside each other, with gnuplot.
 *
 * gnuplot reads its script, data included, from standard input and writes the picture to standard output. It is given
 * no path, and names of paths or categories are never executed as commands. */
#ifndef TOOLS_SCREEN_PLOT_H
#define TOOLS_SCREEN_PLOT_H

#include "client/eps.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* ---- A series: reduces a curve of any length to a few points, means over runs of equal length ----
 *
 * The length of a file is unknown while it is read. When the series is full, pairs of means are merged, and each mean
 * then covers twice as many points. */

enum { SERIES_MEANS = 1024 };

struct series {
    size_t n;        /* means; the last may cover fewer points */
    uint64_t stride; /* points per mean; 0: no point yet */
    struct series_mean {
        uint64_t n_x, n_y; /* points; points with a finite y */
        double x, y;       /* sums */
    } means[SERIES_MEANS];
};

/* Adds a point. A y that is not finite counts for x only. Begin with a zeroed struct. */
void series_add(struct series *series, double x, double y);
/* Sets *out to the points of `like` with y = 0: a category that was absent so far. */
void series_zero(struct series *out, const struct series *like);

double series_x(const struct series *series, size_t i);
double series_y(const struct series *series, size_t i); /* NAN if no point had a finite y */
double series_most(const struct series *series);        /* largest mean; NAN: none is finite */
double series_least(const struct series *series);       /* likewise */

/* ---- The picture ---- */

enum { PLOT_CATEGORIES = 32, PLOT_SCORES = 16 };

struct plot_side {
    struct series all;    /* sum of the categories */
    struct series budget; /* the device's, if recorded */
    size_t n;
    struct plot_category {
        char name[32];
        struct series bytes;
    } categories[PLOT_CATEGORIES];
};

/* What a task measures beside its loss, by the names of eps_score. */
struct plot_score {
    char name[32];
    bool held_out; /* else of each step */
    struct series series;
};

/* The lowest held-out loss, and after how many steps; loss NAN: none. */
struct plot_best {
    uint64_t step;
    double loss;
};

struct plot {
    uint64_t first, last, n_steps; /* first and last step, and their number; 0: none */
    bool has_before;               /* the held-out loss before the first step is in eval_loss */
    struct plot_best best;
    struct plot_score scores[PLOT_SCORES]; /* (n_scores) */
    size_t n_scores;
    struct series loss, eval_loss, rate; /* rate: images a second if `of_images`, else tokens */
    bool of_images;
    struct plot_side sides[2]; /* the host; the device with the most memory */
};

/* Adds a step. Begin with a zeroed struct. Its best is of those that it was given. */
void plot_add(struct plot *plot, const struct eps_step *step);

/* Prints any text as a single-quoted string of gnuplot; what cannot be printed there is replaced. */
void plot_text(FILE *script, const char *text);

/* Writes the script for a picture of a run in this format, "svg" or "png"; the title may hold any characters. Panels:
 * the losses; rewards, and accuracy or correlation, if the run has them; memory of the host and of the device. */
void plot_write(FILE *script, const struct plot *plot, const char *format, const char *title);

enum { PLOT_RUNS = 14 }; /* as many colours as there are */

struct plot_titled {
    struct plot *plot;
    const char *title; /* as of plot_write */
};

/* Writes the script for a picture of several runs (n in 1 .. PLOT_RUNS), without memory: each curve has its run's
 * title, or the end of a long one. */
void plot_compare(FILE *script, const struct plot_titled *runs, size_t n, const char *format);

#endif
