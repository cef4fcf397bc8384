/* tools/screen/filters.h - a picture of filters for gnuplot. */
#ifndef TOOLS_SCREEN_FILTERS_H
#define TOOLS_SCREEN_FILTERS_H

#include "client/eps.h"

#include <stddef.h>
#include <stdio.h>

struct filters_titled {
    struct eps_filters filters;
    const char *title; /* any characters */
};

/* Writes the script for a picture in this format, "svg" or "png", of n runs' filters, one run below the other, with the
 * same places for the same filters. A filter of three channels has their colours, another one the grey of its first;
 * the least number of a filter is dark, its largest one light. */
void filters_write(FILE *script, const struct filters_titled *runs, size_t n, const char *format);

#endif
