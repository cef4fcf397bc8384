/* device/cpu/kernels/pool.kernel.c - pooling of images. Threads share the pixels of all rows.
 *
 * Backward, each pixel of x gathers from the windows that it is in, so its gradient is rounded once. Which pixel is a
 * window's largest is found first, once for all pixels of the window. */
#include "device/cpu/cpu.h"
#include "device/cpu/kernels/value.h"

#include <assert.h>
#include <math.h>

/* Taps first .. end-1 of a window in one direction lie in the image; the first at pixel `at`. */
struct reach {
    size_t first, end, at;
};

static struct reach reach_of(size_t i, size_t n, size_t size, const struct image_window *w)
{
    const size_t begin = i * w->stride; /* in pixels, the padding's counted */
    const size_t first = begin < w->padding ? w->padding - begin : 0;

    return (struct reach){first, size_smaller(size, n + w->padding - begin), begin + first - w->padding};
}

/* Windows first .. end-1 have a pixel; it is tap `tap` of the first one, and one `stride` less of each next one. */
struct readers {
    size_t first, end, tap;
};

static struct readers readers_of(size_t pixel, size_t n_windows, size_t size, const struct image_window *w)
{
    const size_t at = pixel + w->padding, first = at < size ? 0 : (at - size) / w->stride + 1;

    return (struct readers){first, size_smaller(at / w->stride + 1, n_windows), at - first * w->stride};
}

/* A window's reach, down and across. */
struct place {
    struct reach down, across;
    const value *x; /* of the first tap */
};

static struct place place_of(const struct device_pool *op, size_t pixel)
{
    const size_t down = device_pool_height(op), across = device_pool_width(op);
    struct place at = {.down = reach_of(pixel / across % down, op->height, op->window.height, &op->window),
                       .across = reach_of(pixel % across, op->width, op->window.width, &op->window)};

    at.x =
        (const value *)op->x + ((pixel / across / down * op->height + at.down.at) * op->width + at.across.at) * op->n;
    return at;
}

/* The largest numbers of n channels, and the taps of each. */
VECTOR_INLINE vec find_largest(vec_int *tap, const struct device_pool *op, const struct place *at, size_t j, size_t n)
{
    const int32_t width = (int32_t)op->window.width;
    vec most = vec_all(-INFINITY);

    *tap = (vec_int){0} + (int32_t)at->down.first * width + (int32_t)at->across.first;
    for (size_t y = at->down.first; y < at->down.end; y++)
        for (size_t x = at->across.first; x < at->across.end; x++) {
            const vec here =
                value_load_n(at->x + ((y - at->down.first) * op->width + x - at->across.first) * op->n + j, n);
            const vec_int larger = (here > most) | (here != here);

            most = vec_select(larger, here, most);
            *tap = (larger & ((int32_t)y * width + (int32_t)x)) | (~larger & *tap);
        }
    return most;
}

void KERNEL_NAME(cpu_max_pool)(struct device *dev, const struct device_pool *op)
{
    const size_t m = device_pool_pixels(op);

#pragma omp parallel for num_threads(cpu_threads(dev, m * op->n)) schedule(static)
    for (size_t i = 0; i < m; i++) {
        const struct place at = place_of(op, i);
        vec_int tap;

        for (size_t j = 0; j < op->n; j += VECTOR)
            value_store_n((value *)op->y + i * op->n + j, find_largest(&tap, op, &at, j, op->n - j), op->n - j);
    }
}

void KERNEL_NAME(cpu_average_pool)(struct device *dev, const struct device_pool *op)
{
    const size_t m = device_pool_pixels(op);
    const float pixels = (float)(op->window.height * op->window.width);

#pragma omp parallel for num_threads(cpu_threads(dev, m * op->n)) schedule(static)
    for (size_t i = 0; i < m; i++) {
        const struct place at = place_of(op, i);

        for (size_t j = 0; j < op->n; j += VECTOR) {
            vec sum = {0};

            for (size_t y = 0; y < at.down.end - at.down.first; y++)
                for (size_t x = 0; x < at.across.end - at.across.first; x++)
                    sum += value_load_n(at.x + (y * op->width + x) * op->n + j, op->n - j);
            value_store_n((value *)op->y + i * op->n + j, sum / pixels, op->n - j);
        }
    }
}

void KERNEL_NAME(cpu_sum_blocks)(struct device *dev, const struct device_sum_blocks *op)
{
    const struct image_window *w = &op->window;
    const size_t down = device_blocks(op->height, op->side), across = device_blocks(op->width, op->side);
    const size_t lines = image_windows(op->height, w->height, w), columns = image_windows(op->width, w->width, w);

#pragma omp parallel for num_threads(cpu_threads(dev, op->n_rows * op->height * op->width * op->n)) schedule(static)
    for (size_t i = 0; i < op->n_rows * down * across; i++) {
        const size_t row = i / across / down, a = i / across % down * op->side, b = i % across * op->side;
        const size_t first = device_first_window(a, op->down, lines, w),
                     end = device_first_window(size_smaller(a + op->side, op->height), op->down, lines, w),
                     left = device_first_window(b, op->across, columns, w),
                     right = device_first_window(size_smaller(b + op->side, op->width), op->across, columns, w);
        const size_t n_windows = (end - first) * (right - left);
        const float count = op->mean && n_windows > 0 ? (float)n_windows : 1;

        for (size_t j = 0; j < op->n; j += VECTOR) {
            vec sum = {0};

            for (size_t y = first; y < end; y++)
                for (size_t x = left; x < right; x++)
                    sum +=
                        value_load_n((const value *)op->g + ((row * lines + y) * columns + x) * op->n + j, op->n - j);
            value_store_n((value *)op->y + i * op->n + j, sum / count, op->n - j);
        }
    }
}

/* ---- backward ---- */

typedef uint8_t vec_bytes __attribute__((vector_size(VECTOR)));

VECTOR_INLINE vec_int load_taps(const uint8_t *p, size_t n)
{
    vec_bytes x = {0};

    if (n >= VECTOR)
        memcpy(&x, p, VECTOR);
    else
        memcpy(&x, p, n);
    return __builtin_convertvector(x, vec_int);
}

VECTOR_INLINE void store_taps(uint8_t *p, vec_int taps, size_t n)
{
    const vec_bytes x = __builtin_convertvector(taps, vec_bytes);

    if (n >= VECTOR)
        memcpy(p, &x, VECTOR);
    else
        memcpy(p, &x, n);
}

static void note_largest(const struct device_pool *op, size_t i)
{
    const struct place at = place_of(op, i);

    for (size_t j = 0; j < op->n; j += VECTOR) {
        vec_int tap;

        find_largest(&tap, op, &at, j, op->n - j);
        store_taps(op->largest + i * op->n + j, tap, op->n - j);
    }
}

/* Pixel i of x; of the largest alone, or with an equal share of each. */
VECTOR_INLINE void gather(const struct device_pool *op, size_t i, const bool largest)
{
    const size_t down = device_pool_height(op), across = device_pool_width(op), image = i / op->width / op->height;
    const struct readers above = readers_of(i / op->width % op->height, down, op->window.height, &op->window);
    const struct readers beside = readers_of(i % op->width, across, op->window.width, &op->window);
    const float pixels = (float)(op->window.height * op->window.width);

    for (size_t j = 0; j < op->n; j += VECTOR) {
        const size_t n = op->n - j;
        value *const to = (value *)op->x_gradient + i * op->n + j;
        vec sum = {0};

        for (size_t y = above.first; y < above.end; y++)
            for (size_t x = beside.first; x < beside.end; x++) {
                const size_t at = ((image * down + y) * across + x) * op->n + j;
                const vec dy = value_load_n((const value *)op->y_gradient + at, n);
                const size_t tap = (above.tap - (y - above.first) * op->window.stride) * op->window.width + beside.tap -
                                   (x - beside.first) * op->window.stride;

                sum += largest ? vec_select(load_taps(op->largest + at, n) == (int32_t)tap, dy, (vec){0}) : dy;
            }
        if (!largest)
            sum /= pixels;
        if (op->accumulate)
            sum += value_load_n(to, n);
        value_store_n(to, sum, n);
    }
}

void KERNEL_NAME(cpu_max_pool_backward)(struct device *dev, const struct device_pool *op)
{
    const size_t m = device_pool_pixels(op);

    assert(op->window.height * op->window.width <= IMAGE_MOST_TAPS);
#pragma omp parallel for num_threads(cpu_threads(dev, m * op->n)) schedule(static)
    for (size_t i = 0; i < m; i++)
        note_largest(op, i);
#pragma omp parallel for num_threads(cpu_threads(dev, op->n_rows * op->height * op->width * op->n)) schedule(static)
    for (size_t i = 0; i < op->n_rows * op->height * op->width; i++)
        gather(op, i, true);
}

void KERNEL_NAME(cpu_average_pool_backward)(struct device *dev, const struct device_pool *op)
{
#pragma omp parallel for num_threads(cpu_threads(dev, op->n_rows * op->height * op->width * op->n)) schedule(static)
    for (size_t i = 0; i < op->n_rows * op->height * op->width; i++)
        gather(op, i, false);
}
