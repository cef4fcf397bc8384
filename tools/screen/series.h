/* tools/screen/series.h - a curve of however many points, kept as few: means of runs of equal length.
 *
 * While a file is read, nobody knows how long it is. When a curve is full, each two of its means become one, and from
 * then on twice as many points make one. */
#ifndef TOOLS_SCREEN_SERIES_H
#define TOOLS_SCREEN_SERIES_H

#include <stddef.h>
#include <stdint.h>

enum { SERIES_MEANS = 1024 };

struct series {
    size_t n;        /* means, the last perhaps of fewer points */
    uint64_t stride; /* points of each; 0: none came */
    struct series_mean {
        uint64_t n_x, n_y; /* points, and those of them that have a finite y */
        double x, y;       /* sums */
    } means[SERIES_MEANS];
};

/* Begins zeroed. A y that is not finite counts for x alone. */
void series_add(struct series *series, double x, double y);
/* The same points with y = 0 throughout: what was not there yet. */
void series_zero(struct series *out, const struct series *like);

double series_x(const struct series *series, size_t i);
double series_y(const struct series *series, size_t i); /* NAN where no point had one */
double series_most(const struct series *series);        /* of the means; NAN: there is none that is finite */

#endif
