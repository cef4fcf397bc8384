/* tools/screen/chart.h - a curve in lines of text: an area, a column of characters for each span of steps.
 *
 * In UTF-8 a line has eight levels (the block elements from U+2581), in ASCII three. Its range is that of what it
 * shows. It does not depend on a terminal. */
#ifndef TOOLS_SCREEN_CHART_H
#define TOOLS_SCREEN_CHART_H

#include "tools/screen/plot.h"

#include <stdbool.h>
#include <stddef.h>

enum { CHART_COLUMNS = 512 };

struct chart {
    double columns[CHART_COLUMNS]; /* (n) means; INFINITY: none of the column's values is finite */
    size_t n;
    double least, most; /* of the finite ones; NAN: there is none */
};

/* Divides the steps of a curve into n_columns columns, or into fewer, one for each point. */
void chart_make(struct chart *out, const struct series *curve, size_t n_columns);

/* Writes line `row` of n_rows, from the top, at most cap - 1 bytes: room for 3 a column. */
void chart_row(char *out, size_t cap, const struct chart *chart, unsigned row, unsigned n_rows, bool utf8);

#endif
