/* Points may stand anywhere along the steps, close together where they are recent: so a column is a span of steps, and
 * one that no point falls into repeats its neighbour. The least value still takes the lowest level, so that a curve is
 * seen from its first column to its last. */
#include "tools/screen/chart.h"

#include <math.h>
#include <stdio.h>

enum { LEVELS = 8 }; /* of a line */

static void chart_add_column(struct chart *chart, double sum, uint64_t n_finite, uint64_t n)
{
    const double value = n_finite > 0 ? sum / (double)n_finite : n > 0 ? INFINITY : chart->columns[chart->n - 1];

    chart->columns[chart->n++] = value;
    if (isfinite(value)) {
        chart->least = fmin(chart->least, value); /* ignores NAN */
        chart->most = fmax(chart->most, value);
    }
}

void chart_make(struct chart *out, const struct series *curve, size_t n_columns)
{
    size_t i = 0;

    *out = (struct chart){.least = NAN, .most = NAN};
    if (curve->n == 0 || n_columns == 0)
        return;
    n_columns = n_columns < CHART_COLUMNS ? n_columns : CHART_COLUMNS;
    n_columns = n_columns < curve->n ? n_columns : curve->n;
    const double first = series_x(curve, 0), last = series_x(curve, curve->n - 1);
    for (size_t column = 0; column < n_columns; column++) {
        const double end = first + (last - first) * (double)(column + 1) / (double)n_columns;
        uint64_t n = 0, n_finite = 0;
        double sum = 0;
        for (; i < curve->n && (series_x(curve, i) <= end || column + 1 == n_columns); i++) {
            n += curve->means[i].n_x;
            n_finite += curve->means[i].n_y;
            sum += curve->means[i].y;
        }
        chart_add_column(out, sum, n_finite, n);
    }
}

/* Levels of a column in all lines, at least 1. What is not finite stands out. */
static unsigned chart_height(const struct chart *chart, double value, unsigned n_levels)
{
    if (!isfinite(value))
        return n_levels;
    const double share = chart->most > chart->least ? (value - chart->least) / (chart->most - chart->least) : 0;
    return 1 + (unsigned)(share * (n_levels - 1) + 0.5);
}

void chart_row(char *out, size_t cap, const struct chart *chart, unsigned row, unsigned n_rows, bool utf8)
{
    static const char *const blocks[LEVELS + 1] = {" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
    static const char *const ascii[LEVELS + 1] = {" ", "_", "_", "_", "=", "=", "=", "#", "#"};
    const unsigned below = (n_rows - 1 - row) * LEVELS; /* levels of the lines below it */
    size_t at = 0;

    out[0] = '\0';
    for (size_t i = 0; i < chart->n && at + 4 < cap; i++) {
        const unsigned height = chart_height(chart, chart->columns[i], n_rows * LEVELS);
        const unsigned level = height <= below ? 0 : height - below < LEVELS ? height - below : LEVELS;
        at += (size_t)snprintf(out + at, cap - at, "%s", (utf8 ? blocks : ascii)[level]);
    }
}
