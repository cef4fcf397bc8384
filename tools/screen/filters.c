/* gnuplot gets pixels with their colours, not values: each filter has a scale of its own, which palettes cannot
 * express. Margins are fixed, so that a run's filters lie in the same places as the next one's. */
#include "tools/screen/filters.h"

#include "tools/screen/plot.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

enum {
    ACROSS = 16,
    TAP = 8,
    TITLE = 40,
    WHITE = 255
}; /* filters in a line; pixels of a tap, and above a run's filters */

static uint32_t filters_smaller(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* Taps of the picture across and down, with one between filters. */
static uint32_t taps_across(const struct eps_filters *f)
{
    return filters_smaller(f->n, ACROSS) * (f->width + 1) - 1;
}

static uint32_t taps_down(const struct eps_filters *f)
{
    return (f->n + ACROSS - 1) / ACROSS * (f->height + 1) - 1;
}

struct range {
    float least, most;
};

static struct range filters_range_of(const float *filter, size_t n)
{
    struct range range = {INFINITY, -INFINITY};

    for (size_t i = 0; i < n; i++)
        range = (struct range){fminf(range.least, filter[i]), fmaxf(range.most, filter[i])};
    return range;
}

/* 0 .. 255, from the least number of the filter to its largest. */
static int shade(struct range of, float value)
{
    return isfinite(value) && of.most > of.least ? (int)lrintf(255 * (value - of.least) / (of.most - of.least)) : 127;
}

/* Prints a tap's place and colour. */
static void print_tap(FILE *out, const struct eps_filters *f, uint32_t x, uint32_t y)
{
    const uint32_t index = y / (f->height + 1) * ACROSS + x / (f->width + 1), line = y % (f->height + 1),
                   column = x % (f->width + 1);
    const size_t each = (size_t)f->height * f->width * f->channels;
    int colour[3] = {WHITE, WHITE, WHITE};

    if (index < f->n && line < f->height && column < f->width) {
        const float *const filter = f->values + index * each, *const tap =
                                                                  filter + (line * f->width + column) * f->channels;
        const struct range range = filters_range_of(filter, each);
        for (uint32_t k = 0; k < 3; k++)
            colour[k] = shade(range, tap[f->channels == 3 ? k : 0]);
    }
    fprintf(out, "%u %u %d %d %d\n", x, y, colour[0], colour[1], colour[2]);
}

void filters_write(FILE *out, const struct filters_titled *runs, size_t n, const char *format)
{
    uint32_t width = 0, height = 0;

    for (size_t i = 0; i < n; i++) {
        const uint32_t across = taps_across(&runs[i].filters);
        width = width < across ? across : width;
        height += taps_down(&runs[i].filters) * TAP + TITLE;
    }
    fprintf(out, "set terminal %s size %u,%u noenhanced\nset encoding utf8\n",
            strcmp(format, "png") == 0 ? "pngcairo font 'sans,10'" : "svg background 'white'", width * TAP + TITLE,
            height);
    fprintf(out,
            "unset border\nunset tics\nunset key\nset size ratio -1\nset yrange [*:*] reverse\nset lmargin 1\n"
            "set rmargin 1\nset bmargin 0\nset tmargin 2\nset multiplot layout %zu,1\n",
            n);
    for (size_t i = 0; i < n; i++) {
        const struct eps_filters *const f = &runs[i].filters;
        fprintf(out, "$filters%zu << EOD\n", i);
        for (uint32_t y = 0; y < taps_down(f); y++)
            for (uint32_t x = 0; x < taps_across(f); x++)
                print_tap(out, f, x, y);
        fputs("EOD\nset title ", out);
        plot_text(out, runs[i].title);
        fprintf(out, " noenhanced\nplot $filters%zu using 1:2:3:4:5 with rgbimage pixels\n", i);
    }
    fputs("unset multiplot\n", out);
}
