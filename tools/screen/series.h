/* tools/screen/series.h - reduces a curve of any length to a few points: means over runs of equal length.
 *
 * The length of a file is unknown while it is read. When the series is full, pairs of means are merged, and each mean
 * then covers twice as many points. */
#ifndef TOOLS_SCREEN_SERIES_H
#define TOOLS_SCREEN_SERIES_H

#include <stddef.h>
#include <stdint.h>

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
/* The same points with y = 0: a category that was absent so far. */
void series_zero(struct series *out, const struct series *like);

double series_x(const struct series *series, size_t i);
double series_y(const struct series *series, size_t i); /* NAN if no point had a finite y */
double series_most(const struct series *series);        /* largest mean; NAN: none is finite */

#endif
