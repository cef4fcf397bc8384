/* device/cpu/kernels/conv2d.h - a convolution as sums of products, for its parts (conv2d.kernel.c has the division). */
#ifndef DEVICE_CPU_KERNELS_CONV2D_H
#define DEVICE_CPU_KERNELS_CONV2D_H

#include "device/cpu/cpu.h"

/* A pixel of the window: where it meets the source, relative to the result's pixel, and its matrix within weights. */
struct cpu_conv_tap {
    ptrdiff_t y, x;
    size_t at; /* elements */
};

/* Where results go: pixels `step` apart, from the first on, of images (height, width, channels). */
struct cpu_conv_results {
    void *to;
    size_t height, width, y, x, step, channels;
    const void *bias; /* (channels), or NULL */
    bool accumulate;
};

/* Results are a grid of pixels of each image. A pixel's result is the sum over taps of a pixel of the source, or of 0
 * beyond its edges, times the tap's matrix (depth, columns):
 *
 *     result[i][j] = sum over taps of source[i*step + tap.y][j*step + tap.x] * matrix[tap]
 *
 * Forward, that is y of x. The gradient of x is stride^2 such grids of y's gradient: pixels of x that are `stride`
 * apart are met by the same taps. */
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
    struct cpu_conv_results results;           /* none of a gradient of weights */
};

/* ---- pixels of the source ---- */

enum { CONV_PIXELS = 2 * PLAN_CPU_PRODUCT_DEPTH };

/* Some pixels of the grid: where a tap at (0, 0) meets the source. */
struct cpu_conv_places {
    ptrdiff_t at[CONV_PIXELS]; /* elements of the source */
    int32_t y[CONV_PIXELS], x[CONV_PIXELS];
};

/* Neighbours of the grid: n from (i, j) of an image on. */
struct cpu_conv_line {
    size_t image, i, j, n;
};

/* From pixel `first` of all images' on, at most n. */
static inline struct cpu_conv_line conv_line(const struct cpu_conv *conv, size_t first, size_t n)
{
    const size_t pixels = conv->down * conv->across, j = first % conv->across;

    return (struct cpu_conv_line){first / pixels, first % pixels / conv->across, j, size_smaller(conv->across - j, n)};
}

/* Pixels first .. first+n-1 of all images'. */
static inline void conv_find_places(struct cpu_conv_places *out, const struct cpu_conv *conv, size_t group,
                                    size_t first, size_t n)
{
    const size_t channels = conv->n_groups * conv->depth;

    for (size_t p = 0; p < n;) {
        const struct cpu_conv_line line = conv_line(conv, first + p, n - p);
        const size_t y = line.i * conv->step, x = line.j * conv->step;
        const ptrdiff_t begin =
            (ptrdiff_t)(((line.image * conv->height + y) * conv->width + x) * channels + group * conv->depth);

        for (size_t k = 0; k < line.n; k++) {
            out->y[p + k] = (int32_t)y, out->x[p + k] = (int32_t)(x + k * conv->step);
            out->at[p + k] = begin + (ptrdiff_t)(k * conv->step * channels);
        }
        p += line.n;
    }
}

/* Elements from a place to its tap's pixel. */
static inline ptrdiff_t conv_tap_offset(const struct cpu_conv *conv, const struct cpu_conv_tap *tap)
{
    return (tap->y * (ptrdiff_t)conv->width + tap->x) * (ptrdiff_t)(conv->n_groups * conv->depth);
}

/* False if the tap's pixel of place p is beyond an edge. */
static inline bool conv_meets(const struct cpu_conv *conv, const struct cpu_conv_places *places, size_t p,
                              const struct cpu_conv_tap *tap)
{
    return ((uint32_t)(places->y[p] + (int32_t)tap->y) < (uint32_t)conv->height) &
           ((uint32_t)(places->x[p] + (int32_t)tap->x) < (uint32_t)conv->width);
}

/* Pointers to a tap's pixel of n places, from a channel on; beyond an edge to `zeros`. size: bytes of an element. */
static inline void conv_point(const void **out, const struct cpu_conv *conv, const struct cpu_conv_places *places,
                              size_t n, const struct cpu_conv_tap *tap, size_t channel, size_t size, const void *zeros)
{
    const uintptr_t from =
        (uintptr_t)conv->source + (uintptr_t)(conv_tap_offset(conv, tap) + (ptrdiff_t)channel) * size;

    for (size_t p = 0; p < n; p++) {
        const uintptr_t at = from + (uintptr_t)places->at[p] * size;
        out[p] = (const void *)(conv_meets(conv, places, p, tap) ? at : (uintptr_t)zeros);
    }
}

#endif
