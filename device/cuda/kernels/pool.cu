/* device/cuda/kernels/pool.cu - pooling of images: a thread has a pack of channels of one pixel.
 *
 * Backward, each pixel of x gathers from the windows that it is in. Which pixel is a window's largest is found first. */
#include "device/cuda/kernels/pack.cuh"

/* Counts of pixels and channels fit 32 bits. */
struct pool {
    unsigned height, width, down, across, n; /* of x, of y */
    unsigned window_height, window_width, stride, padding;
    size_t m; /* pixels to compute: of y, or of x */
    bool accumulate;
    const uint8_t *largest;
};

/* The window of pixel i of y: the first tap, how many, and the pixel of x where it lies. */
struct window {
    unsigned y, x, height, width;
    size_t at;

    __device__ window(const struct pool &op, size_t i)
    {
        const unsigned line = (unsigned)(i / op.across % op.down) * op.stride,
                       column = (unsigned)(i % op.across) * op.stride;

        y = line < op.padding ? op.padding - line : 0, x = column < op.padding ? op.padding - column : 0;
        height = min(op.window_height, op.height + op.padding - line) - y;
        width = min(op.window_width, op.width + op.padding - column) - x;
        at = (i / op.across / op.down * op.height + line + y - op.padding) * op.width + column + x - op.padding;
    }
};

/* Windows first .. end-1 have a pixel; it is tap `tap` of the first one, and one stride less of each next one. */
struct readers {
    unsigned first, end, tap;

    __device__ readers(unsigned pixel, unsigned n_windows, unsigned size, const struct pool &op)
    {
        const unsigned at = pixel + op.padding;

        first = at < size ? 0 : (at - size) / op.stride + 1;
        end = min(at / op.stride + 1, n_windows), tap = at - first * op.stride;
    }
};

/* f(pixel, channel) for the thread's packs. */
template <int V, typename F> static __device__ inline void each_pack(const struct pool &op, F f)
{
    const size_t packs = op.n / V;

    for (size_t at = (size_t)blockIdx.x * blockDim.x + threadIdx.x; at < op.m * packs;
         at += (size_t)gridDim.x * blockDim.x)
        f(at / packs, at % packs * V);
}

/* The largest numbers of a window, and their taps. */
template <int V, typename T>
static __device__ inline void find_largest(float (&most)[V], unsigned (&tap)[V], const struct pool &op,
                                           const struct window &w, const T *x)
{
#pragma unroll
    for (int v = 0; v < V; v++)
        most[v] = -INFINITY, tap[v] = w.y * op.window_width + w.x;
    for (unsigned y = 0; y < w.height; y++)
        for (unsigned column = 0; column < w.width; column++) {
            const pack<T, V> here = load<V>(x + (w.at + (size_t)y * op.width + column) * op.n);
#pragma unroll
            for (int v = 0; v < V; v++) {
                const float number = here[v];
                if (number > most[v] || number != number)
                    most[v] = number, tap[v] = (w.y + y) * op.window_width + w.x + column;
            }
        }
}

template <typename T, int V>
static __global__ void __launch_bounds__(ROW_THREADS) take_largest(struct pool op, T *y, const T *x)
{
    each_pack<V>(op, [&](size_t i, size_t j) {
        float most[V];
        unsigned tap[V];

        find_largest<V>(most, tap, op, window(op, i), x + j);
        store(y + i * op.n + j, most);
    });
}

template <typename T, int V>
static __global__ void __launch_bounds__(ROW_THREADS) note_largest(struct pool op, uint8_t *largest, const T *x)
{
    each_pack<V>(op, [&](size_t i, size_t j) {
        float most[V];
        unsigned tap[V];
        pack<uint8_t, V> to;

        find_largest<V>(most, tap, op, window(op, i), x + j);
#pragma unroll
        for (int v = 0; v < V; v++)
            to.at[v] = (uint8_t)tap[v];
        *(pack<uint8_t, V> *)(largest + i * op.n + j) = to;
    });
}

template <typename T, int V>
static __global__ void __launch_bounds__(ROW_THREADS) average(struct pool op, T *y, const T *x)
{
    each_pack<V>(op, [&](size_t i, size_t j) {
        const struct window w(op, i);
        float sums[V] = {};

        for (unsigned line = 0; line < w.height; line++)
            for (unsigned column = 0; column < w.width; column++) {
                const pack<T, V> here = load<V>(x + (w.at + (size_t)line * op.width + column) * op.n + j);
#pragma unroll
                for (int v = 0; v < V; v++)
                    sums[v] += here[v];
            }
#pragma unroll
        for (int v = 0; v < V; v++)
            sums[v] /= (float)(op.window_height * op.window_width);
        store(y + i * op.n + j, sums);
    });
}

/* To pixels of x: from windows of which they are the largest; or, without `largest`, an equal share of each. */
template <typename T, int V>
static __global__ void __launch_bounds__(ROW_THREADS) gather(struct pool op, T *x_gradient, const T *y_gradient)
{
    each_pack<V>(op, [&](size_t i, size_t j) {
        const unsigned line = (unsigned)(i / op.width % op.height), column = (unsigned)(i % op.width);
        const struct readers above(line, op.down, op.window_height, op), beside(column, op.across, op.window_width, op);
        T *const at = x_gradient + i * op.n + j;
        float sums[V] = {};
        pack<T, V> was;

        for (unsigned y = above.first; y < above.end; y++)
            for (unsigned x = beside.first; x < beside.end; x++) {
                const size_t from = ((i / op.width / op.height * op.down + y) * op.across + x) * op.n + j;
                const unsigned tap = (above.tap - (y - above.first) * op.stride) * op.window_width + beside.tap -
                                     (x - beside.first) * op.stride;
                const pack<T, V> dy = load<V>(y_gradient + from);
                pack<uint8_t, V> largest;

                if (op.largest)
                    largest = load<V>(op.largest + from);
#pragma unroll
                for (int v = 0; v < V; v++)
                    if (!op.largest || largest.at[v] == tap)
                        sums[v] += dy[v];
            }
        if (op.accumulate)
            was = load<V>(at);
#pragma unroll
        for (int v = 0; v < V; v++) {
            const float share = op.largest ? sums[v] : sums[v] / (float)(op.window_height * op.window_width);

            sums[v] = op.accumulate ? share + was[v] : share;
        }
        store(at, sums);
    });
}

static struct pool pool_of(const struct device_pool *op, size_t m)
{
    struct pool p = {};

    p.height = (unsigned)op->height, p.width = (unsigned)op->width, p.n = (unsigned)op->n;
    p.down = (unsigned)device_pool_height(op), p.across = (unsigned)device_pool_width(op);
    p.window_height = op->window.height, p.window_width = op->window.width;
    p.stride = op->window.stride, p.padding = op->window.padding;
    p.m = m, p.accumulate = op->accumulate;
    return p;
}

template <typename T> static bool are_whole(const struct device_pool *op, const void *x, const void *y)
{
    return is_whole((const T *)x, op->n) && is_whole((const T *)y, op->n) && is_whole_for<T>(op->largest, op->n);
}

/* A kernel over packs of V, or single values. */
template <int V, typename K, typename P, typename... A>
static cudaError_t run(const struct cuda_queue *q, K kernel, const P &p, A... arrays)
{
    const size_t blocks = pieces(p.m * (p.n / V), ROW_THREADS);

    if (blocks == 0)
        return cudaSuccess;
    return launch(kernel, dim3(smaller(blocks, (size_t)q->n_processors * BLOCKS)), ROW_THREADS, 0, q->stream, p,
                  arrays...);
}

template <typename T> static cudaError_t forward(const struct cuda_queue *q, const struct device_pool *op, bool largest)
{
    enum { V = whole<T>::V };
    const struct pool p = pool_of(op, device_pool_pixels(op));
    T *const y = (T *)op->y;
    const T *const x = (const T *)op->x;

    if (are_whole<T>(op, x, y))
        return run<V>(q, largest ? take_largest<T, V> : average<T, V>, p, y, x);
    return run<1>(q, largest ? take_largest<T, 1> : average<T, 1>, p, y, x);
}

template <typename T> static cudaError_t spread(const struct cuda_queue *q, const struct device_pool *op, bool largest)
{
    enum { V = whole<T>::V };
    struct pool p = pool_of(op, op->n_rows * op->height * op->width);
    T *const dx = (T *)op->x_gradient;
    const T *const dy = (const T *)op->y_gradient;

    p.largest = largest ? op->largest : NULL;
    if (are_whole<T>(op, dx, dy))
        return run<V>(q, gather<T, V>, p, dx, dy);
    return run<1>(q, gather<T, 1>, p, dx, dy);
}

template <typename T> static cudaError_t backward(const struct cuda_queue *q, const struct device_pool *op)
{
    enum { V = whole<T>::V };
    const struct pool p = pool_of(op, device_pool_pixels(op));
    const T *const x = (const T *)op->x;
    const cudaError_t rc = are_whole<T>(op, x, x) ? run<V>(q, note_largest<T, V>, p, op->largest, x)
                                                  : run<1>(q, note_largest<T, 1>, p, op->largest, x);

    return rc != cudaSuccess ? rc : spread<T>(q, op, true);
}

cudaError_t cuda_max_pool(const struct cuda_queue *q, const struct device_pool *op)
{
    return TYPED(q, forward)(q, op, true);
}

cudaError_t cuda_max_pool_backward(const struct cuda_queue *q, const struct device_pool *op)
{
    return TYPED(q, backward)(q, op);
}

cudaError_t cuda_average_pool(const struct cuda_queue *q, const struct device_pool *op)
{
    return TYPED(q, forward)(q, op, false);
}

cudaError_t cuda_average_pool_backward(const struct cuda_queue *q, const struct device_pool *op)
{
    return TYPED(q, spread)(q, op, false);
}

/* ---- blocks ---- */

/* Counts of pixels, windows and channels fit 32 bits. In each direction, block i has windows from first(i) to first(i+1)-1. */
struct blocks {
    struct direction {
        unsigned n_blocks, n_windows, pixels, side, tap, stride, padding;

        __device__ unsigned first(unsigned block) const
        {
            const unsigned at = min(block * side, pixels) + padding;

            return min(at > tap ? (at - tap + stride - 1) / stride : 0, n_windows);
        }
    } down, across;
    unsigned n;
    size_t m; /* blocks, of all rows */
    bool mean;
};

template <typename T, int V>
static __global__ void __launch_bounds__(ROW_THREADS) add_blocks(struct blocks op, T *y, const T *g)
{
    const size_t packs = op.n / V;

    for (size_t at = (size_t)blockIdx.x * blockDim.x + threadIdx.x; at < op.m * packs;
         at += (size_t)gridDim.x * blockDim.x) {
        const size_t i = at / packs, j = at % packs * V, row = i / op.across.n_blocks / op.down.n_blocks;
        const unsigned a = (unsigned)(i / op.across.n_blocks % op.down.n_blocks),
                       b = (unsigned)(i % op.across.n_blocks);
        const unsigned first = op.down.first(a), end = op.down.first(a + 1), left = op.across.first(b),
                       right = op.across.first(b + 1);
        const float count = op.mean ? (float)max((end - first) * (right - left), 1u) : 1;
        float sums[V] = {};

        for (unsigned line = first; line < end; line++)
            for (unsigned x = left; x < right; x++) {
                const pack<T, V> here =
                    load<V>(g + ((row * op.down.n_windows + line) * op.across.n_windows + x) * op.n + j);
#pragma unroll
                for (int v = 0; v < V; v++)
                    sums[v] += here[v];
            }
#pragma unroll
        for (int v = 0; v < V; v++)
            sums[v] /= count;
        store(y + i * op.n + j, sums);
    }
}

static struct blocks::direction direction_of(size_t pixels, size_t size, uint32_t tap, uint32_t side,
                                             const struct image_window *w)
{
    struct blocks::direction of = {};

    of.n_blocks = (unsigned)device_blocks(pixels, side);
    of.n_windows = (unsigned)image_windows(pixels, size, w);
    of.pixels = (unsigned)pixels, of.side = side, of.tap = tap, of.stride = w->stride, of.padding = w->padding;
    return of;
}

template <typename T> static cudaError_t sum_blocks(const struct cuda_queue *q, const struct device_sum_blocks *op)
{
    enum { V = whole<T>::V };
    T *const y = (T *)op->y;
    const T *const g = (const T *)op->g;
    struct blocks of = {};

    of.down = direction_of(op->height, op->window.height, op->down, op->side, &op->window);
    of.across = direction_of(op->width, op->window.width, op->across, op->side, &op->window);
    of.n = (unsigned)op->n, of.mean = op->mean;
    of.m = op->n_rows * of.down.n_blocks * of.across.n_blocks;
    if (is_whole(y, op->n) && is_whole(g, op->n))
        return run<V>(q, add_blocks<T, V>, of, y, g);
    return run<1>(q, add_blocks<T, 1>, of, y, g);
}

cudaError_t cuda_sum_blocks(const struct cuda_queue *q, const struct device_sum_blocks *op)
{
    return TYPED(q, sum_blocks)(q, op);
}
