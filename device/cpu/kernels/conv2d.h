/* device/cpu/kernels/conv2d.h - a convolution as sums of products, for its parts (conv2d.kernel.c has the division). */
#ifndef DEVICE_CPU_KERNELS_CONV2D_H
#define DEVICE_CPU_KERNELS_CONV2D_H

#include "device/cpu/cpu.h"

/* A pixel of the window: where it meets the source, relative to the result's pixel, and its matrix within weights. */
struct cpu_conv_tap {
    ptrdiff_t y, x;
    size_t at; /* elements */
};

/* Results are a grid of pixels of each image. A pixel's result is the sum over taps of a pixel of the source, or of 0 beyond
 * its edges, times the tap's matrix (depth, columns):
 *
 *     result[i][j] = sum over taps of source[i*step + tap.y][j*step + tap.x] * matrix[tap]
 *
 * Forward, that is y of x. The gradient of x is stride^2 such grids of y's gradient: pixels of x that are `stride` apart are
 * met by the same taps. */
struct cpu_conv {
    size_t n_groups, depth, columns; /* of a group */
    const void *source;              /* (n_rows, height, width, n_groups*depth) */
    size_t height, width;
    size_t n_rows, down, across, step; /* the grid of each image */
    const void *weight;
    size_t apart;         /* elements from column to column of a matrix; or, with by_depth, from term to term */
    bool by_depth;        /* terms are `apart`, columns side by side; else the other way round */
    size_t group_weights; /* elements from group to group */
    size_t n_taps;
    struct cpu_conv_tap taps[IMAGE_MOST_TAPS]; /* the order of the sum */
};

/* ---- pixels of the source ---- */

enum { CONV_PIXELS = 2 * PLAN_CPU_PRODUCT_DEPTH, CONV_SLACK = 16 };

/* Some pixels of the grid: where a tap at (0, 0) meets the source. Those behind the last one meet none. */
struct cpu_conv_places {
    ptrdiff_t at[CONV_PIXELS + CONV_SLACK]; /* elements of the source */
    int32_t y[CONV_PIXELS + CONV_SLACK], x[CONV_PIXELS + CONV_SLACK];
};

/* Pixels first .. first+n-1 of all images'. */
static inline void conv_find_places(struct cpu_conv_places *out, const struct cpu_conv *conv, size_t group,
                                    size_t first, size_t n)
{
    const size_t pixels = conv->down * conv->across, channels = conv->n_groups * conv->depth;
    size_t image = first / pixels, i = first % pixels / conv->across, j = first % conv->across;

    for (size_t p = 0; p < n; p++) {
        const size_t y = i * conv->step, x = j * conv->step;
        out->y[p] = (int32_t)y, out->x[p] = (int32_t)x;
        out->at[p] = (ptrdiff_t)(((image * conv->height + y) * conv->width + x) * channels + group * conv->depth);
        if (++j == conv->across)
            j = 0, i++;
        if (i == conv->down)
            i = 0, image++;
    }
    for (size_t p = n; p < n + CONV_SLACK; p++)
        out->y[p] = out->x[p] = INT32_MIN / 2, out->at[p] = 0;
}

/* Where n places from `first` on have a tap's pixel in the source: an element of it; -1: beyond an edge. */
static inline void conv_find_source(ptrdiff_t *at, const struct cpu_conv *conv, const struct cpu_conv_places *places,
                                    size_t first, size_t n, const struct cpu_conv_tap *tap)
{
    const int32_t y = (int32_t)tap->y, x = (int32_t)tap->x;
    const uint32_t height = (uint32_t)conv->height, width = (uint32_t)conv->width;
    const ptrdiff_t off = (tap->y * (ptrdiff_t)conv->width + tap->x) * (ptrdiff_t)(conv->n_groups * conv->depth);

    for (size_t p = 0; p < n; p++) {
        const bool in =
            ((uint32_t)(places->y[first + p] + y) < height) & ((uint32_t)(places->x[first + p] + x) < width);
        at[p] = in ? places->at[first + p] + off : -1;
    }
}

#endif
