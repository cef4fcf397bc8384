/* device/cuda/kernels/conv2d.cu - convolution of images, as products whose factors are gathered.
 *
 * y, x's gradient and the weights' are each a product left (m, k) right (k, n) per group. A block computes a tile of
 * TILE x TILE; a chunk of CHUNK terms of both factors goes through shared memory, where padding reads as 0, so nothing is
 * copied as columns first. One thread sums an element in the order of k.
 *
 * Of the weights' gradient k counts the pixels of an image, in slices that depend on its size alone. Each slice is summed by
 * itself, and slices are added one by one, image after image: so the division of images into calls changes no bit. A small
 * gradient, of which tiles would leave most processors idle, has a block for each slice of each tile; they write to the
 * scratch, and a second kernel adds what is there. Of a large one a block has a tile of all images. */
#include "device/cuda/kernels/pack.cuh"

enum {
    TILE = 64,
    CHUNK = 16,
    THREADS = 128,
    THREADS_ACROSS = 16,
    DOWN = 8,                       /* results of a thread in a column, side by side */
    ACROSS = TILE / THREADS_ACROSS, /* and in a row, THREADS_ACROSS apart */
    LOADS = TILE * CHUNK / THREADS,
    RESIDENT = 5,     /* blocks of a processor at a time, of the weights' gradient */
    SLICE = 256,      /* pixels, at most */
    MANY_TILES = 256, /* of a gradient that needs no more blocks; fewer fit the scratch */
    AHEAD = 32,       /* slices of a weight in flight while they are added */
};
static_assert(MANY_TILES * TILE * TILE * sizeof(float) <= PLAN_CUDA_SCRATCH_BYTES, "a slice of a small gradient fits");

/* Division of numbers below 2^31, in two instructions. Granlund and Montgomery, "Division by invariant integers using
 * multiplication", 1994. */
struct divisor {
    unsigned factor, shift; /* 2^(31 + shift) / divisor, rounded up; the divisor is at most 2^shift */

    __device__ unsigned of(unsigned x) const
    {
        return __umulhi(2 * x, factor) >> shift;
    }
};

static struct divisor divisor_of(unsigned by)
{
    struct divisor d = {0, 0};

    while (1u << d.shift < by)
        d.shift++;
    d.factor = (unsigned)(((1ull << (31 + d.shift)) + by - 1) / by);
    return d;
}

/* The call's sizes; counts of pixels, channels and weights of one channel are below 2^31. */
struct conv {
    unsigned height, width, down, across; /* of x, of y */
    unsigned in, out, n_groups;           /* channels of a group */
    unsigned window_height, window_width, stride, padding;
    unsigned n_rows, taps;                                               /* taps: window_height * window_width * in */
    struct divisor by_in, by_out, by_window_width, by_across, by_pixels; /* by_pixels: down * across */

    __device__ size_t y_at(size_t pixel, unsigned group) const
    {
        return (pixel * n_groups + group) * out;
    }

    __device__ size_t x_at(size_t pixel, unsigned group) const
    {
        return (pixel * n_groups + group) * in;
    }

    /* The pixel of x that a tap of a pixel of y meets; false: it lies beyond an edge. */
    __device__ bool meet(size_t *x, unsigned y, unsigned tap) const
    {
        const unsigned image = by_pixels.of(y), at = y - image * down * across, i = by_across.of(at),
                       j = at - i * across;
        const unsigned tap_line = by_window_width.of(tap);
        const unsigned line = i * stride + tap_line - padding, /* below 0: it wraps around */
            column = j * stride + (tap - tap_line * window_width) - padding;

        *x = ((size_t)image * height + line) * width + column;
        return line < height && column < width;
    }
};

/* Each product: m, n and k, its factors' elements, and where an element of the result goes. Side by side in memory are
 * neighbours along k where LEFT_BY_K, or RIGHT_BY_K, else along m, or n. */

/* Pixels of y by channels of y, over taps and channels of x. */
template <typename T> struct forward {
    typedef T value;
    enum { LEFT_BY_K = 1, RIGHT_BY_K = 1 };
    struct conv c;
    const T *x, *weight, *bias;
    T *y;
    unsigned m, n, k, group;

    __device__ void begin()
    {
        group = blockIdx.z;
    }

    __device__ T left(unsigned i, unsigned p) const
    {
        const unsigned tap = c.by_in.of(p);
        size_t at;

        return c.meet(&at, i, tap) ? x[c.x_at(at, group) + (p - tap * c.in)] : T();
    }

    __device__ T right(unsigned p, unsigned j) const
    {
        return weight[((size_t)group * c.out + j) * c.taps + p];
    }

    __device__ void put(unsigned i, unsigned j, float sum) const
    {
        set(&y[c.y_at(i, group) + j], bias ? sum + to_float(bias[group * c.out + j]) : sum);
    }
};

/* Pixels of x by channels of x, over taps and channels of y.
 *
 * In one direction, a tap of a window meets every stride'th pixel. So a block's pixels are stride apart, too, down and across:
 * its k counts only taps that meet all of them, but for those beyond y's edges. */
template <typename T> struct input_gradient {
    enum { LEFT_BY_K = 1, RIGHT_BY_K = 0 };
    typedef T value;

    /* The block's pixels and taps in one direction. */
    struct apart {
        unsigned first, tap, n_taps; /* the first pixel, its first tap, and how many there are, stride apart */
        unsigned y;                  /* which pixel of y the first tap of the first pixel is of */

        __device__ void begin(const struct conv &c, unsigned at, unsigned window)
        {
            first = at;
            tap = (at + c.padding) % c.stride;
            n_taps = tap < window ? (window - tap + c.stride - 1) / c.stride : 0;
            y = (at + c.padding) / c.stride;
        }
    };

    struct conv c;
    const T *y_gradient, *weight;
    T *x_gradient;
    bool accumulate;
    unsigned m, n, k, group;
    unsigned lines, columns; /* of an image's pixels that are stride apart, at most */
    struct divisor by_columns, by_apart /* lines * columns */, by_most_taps, by_fewer_taps /* across */, by_taps;
    struct apart line, column;

    __device__ void begin()
    {
        const unsigned at = blockIdx.z / c.n_groups;

        group = blockIdx.z % c.n_groups;
        line.begin(c, at / c.stride, c.window_height), column.begin(c, at % c.stride, c.window_width);
        k = line.n_taps * column.n_taps * c.out;
        by_taps = column.n_taps * c.stride < c.window_width ? by_fewer_taps : by_most_taps;
    }

    __device__ T left(unsigned i, unsigned p) const
    {
        const unsigned image = by_apart.of(i), at = i - image * lines * columns, down = by_columns.of(at),
                       across = at - down * columns;
        const unsigned tap = c.by_out.of(p), tap_line = by_taps.of(tap);
        const unsigned y_line = down + line.y - tap_line, /* below 0: it wraps around */
            y_column = across + column.y - (tap - tap_line * column.n_taps);

        return y_line < c.down && y_column < c.across
                   ? y_gradient[c.y_at(((size_t)image * c.down + y_line) * c.across + y_column, group) +
                                (p - tap * c.out)]
                   : T();
    }

    __device__ T right(unsigned p, unsigned j) const
    {
        const unsigned tap = c.by_out.of(p), tap_line = by_taps.of(tap);
        const unsigned in_window = (line.tap + tap_line * c.stride) * c.window_width + column.tap +
                                   (tap - tap_line * column.n_taps) * c.stride;

        return weight[((size_t)group * c.out + (p - tap * c.out)) * c.taps + in_window * c.in + j];
    }

    __device__ void put(unsigned i, unsigned j, float sum) const
    {
        const unsigned image = i / (lines * columns), at = i % (lines * columns),
                       x_line = line.first + at / columns * c.stride, x_column = column.first + at % columns * c.stride;
        T *const to = &x_gradient[c.x_at(((size_t)image * c.height + x_line) * c.width + x_column, group) + j];

        if (x_line < c.height && x_column < c.width)
            set(to, accumulate ? sum + to_float(*to) : sum);
    }
};

/* Channels of y by taps and channels of x, over the pixels of an image of y. */
template <typename T> struct weight_gradient {
    typedef T value;
    enum { LEFT_BY_K = 0, RIGHT_BY_K = 0 };
    struct conv c;
    const T *x, *y_gradient;
    float *to;
    float beta;
    unsigned m, n, k, group;
    unsigned slice, n_slices; /* pixels of one, and how many an image has */

    __device__ T left(unsigned i, unsigned p) const
    {
        return y_gradient[c.y_at(p, group) + i];
    }

    __device__ T right(unsigned p, unsigned j) const
    {
        const unsigned tap = c.by_in.of(j);
        size_t at;

        return c.meet(&at, p, tap) ? x[c.x_at(at, group) + (j - tap * c.in)] : T();
    }

    /* x and y_gradient become those of the image that is as many further. */
    __device__ void skip(unsigned n_images)
    {
        x += (size_t)n_images * c.x_at((size_t)c.height * c.width, 0);
        y_gradient += (size_t)n_images * c.y_at(k, 0);
    }

    __device__ size_t at(unsigned i, unsigned j) const
    {
        return ((size_t)group * c.out + i) * c.taps + j;
    }

    __device__ unsigned end_of(unsigned from) const
    {
        return k - from < slice ? k : from + slice;
    }
};

/* Of both factors, in shared memory: a chunk that is multiplied, and the next one. Lines are so long that a warp's threads
 * store to as many banks; of the left factor they are whole packs, which needs `swapped`, too. */
struct alignas(PACK_BYTES) chunks {
    float left[2][CHUNK][TILE + 4], right[2][CHUNK][TILE + 2];
};

/* Where k is side by side, rows i of term p of the left factor are at i ^ swapped. */
template <bool BY_K> static __device__ inline unsigned swapped(unsigned p)
{
    return BY_K ? p / (CHUNK / 2) * 2 : 0;
}

/* A thread's part of the next chunk, on its way from memory. */
template <typename T> struct fetched {
    T left[LOADS], right[LOADS];
};

/* Where number l of a thread's part lies: the row, or column, of the tile, and the term of the chunk. */
template <bool BY_K> static __device__ inline unsigned along(int l)
{
    return BY_K ? threadIdx.x / CHUNK + (unsigned)l * (THREADS / CHUNK) : threadIdx.x % TILE;
}

template <bool BY_K> static __device__ inline unsigned term(int l)
{
    return BY_K ? threadIdx.x % CHUNK : threadIdx.x / TILE + (unsigned)l * (THREADS / TILE);
}

template <typename P>
static __device__ inline void fetch(struct fetched<typename P::value> *next, const P &op, unsigned first,
                                    unsigned column, unsigned from, unsigned end)
{
#pragma unroll
    for (int l = 0; l < LOADS; l++) {
        const unsigned i = first + along<P::LEFT_BY_K>(l), p = from + term<P::LEFT_BY_K>(l),
                       j = column + along<P::RIGHT_BY_K>(l), q = from + term<P::RIGHT_BY_K>(l);

        next->left[l] = i < op.m && p < end ? op.left(i, p) : typename P::value();
        next->right[l] = j < op.n && q < end ? op.right(q, j) : typename P::value();
    }
}

/* sums (DOWN, ACROSS) of the thread += left right over terms from .. end-1. All threads of the block; first and column: the
 * tile's. turn: which of the two chunks is next; a block's calls share it, so that one barrier a chunk is enough. */
template <typename P>
static __device__ inline void multiply(float (&sums)[DOWN][ACROSS], struct chunks *held, unsigned *turn, const P &op,
                                       unsigned first, unsigned column, unsigned from, unsigned end)
{
    const unsigned down = threadIdx.x / THREADS_ACROSS * DOWN, across = threadIdx.x % THREADS_ACROSS;
    struct fetched<typename P::value> next;

    fetch(&next, op, first, column, from, end);
    for (; from < end; from += CHUNK, *turn ^= 1) {
        float(*const left)[TILE + 4] = held->left[*turn], (*const right)[TILE + 2] = held->right[*turn];

#pragma unroll
        for (int l = 0; l < LOADS; l++) {
            const unsigned p = term<P::LEFT_BY_K>(l);
            left[p][along<P::LEFT_BY_K>(l) ^ swapped<P::LEFT_BY_K>(p)] = to_float(next.left[l]);
            right[term<P::RIGHT_BY_K>(l)][along<P::RIGHT_BY_K>(l)] = to_float(next.right[l]);
        }
        __syncthreads();
        fetch(&next, op, first, column, from + CHUNK, end);
#pragma unroll
        for (int p = 0; p < CHUNK; p++) {
            float a[DOWN], b[ACROSS];

            load_wide(a, &left[p][down]);
#pragma unroll
            for (int j = 0; j < ACROSS; j++)
                b[j] = right[p][across + j * THREADS_ACROSS];
#pragma unroll
            for (int i = 0; i < DOWN; i++)
#pragma unroll
                for (int j = 0; j < ACROSS; j++)
                    sums[i][j] = fmaf(a[i ^ swapped<P::LEFT_BY_K>(p)], b[j], sums[i][j]);
        }
    }
}

/* f(row, column, the thread's sum there). */
template <typename P, typename F>
static __device__ inline void each_result(float (&sums)[DOWN][ACROSS], const P &op, unsigned first, unsigned column,
                                          F f)
{
#pragma unroll
    for (int i = 0; i < DOWN; i++)
#pragma unroll
        for (int j = 0; j < ACROSS; j++) {
            const unsigned row = first + threadIdx.x / THREADS_ACROSS * DOWN + i,
                           at = column + threadIdx.x % THREADS_ACROSS + j * THREADS_ACROSS;
            if (row < op.m && at < op.n)
                f(row, at, sums[i][j]);
        }
}

/* Block (x, y, z): a tile of the result's rows, of its columns, a group; of x's gradient also which pixels. */
template <typename P> static __global__ void __launch_bounds__(THREADS) multiply_all(P op)
{
    __shared__ struct chunks held;
    unsigned turn = 0;
    const unsigned first = blockIdx.x * TILE, column = blockIdx.y * TILE;
    float sums[DOWN][ACROSS] = {};

    op.begin();
    multiply(sums, &held, &turn, op, first, column, 0, op.k);
    each_result(sums, op, first, column, [&](unsigned i, unsigned j, float sum) { op.put(i, j, sum); });
}

/* Block (x, y, z) as above, of all slices. Their sum is in shared memory, so that registers suffice for RESIDENT blocks. */
template <typename T>
static __global__ void __launch_bounds__(THREADS, RESIDENT) add_slices(struct weight_gradient<T> op)
{
    __shared__ struct chunks held;
    __shared__ float all[DOWN * ACROSS][THREADS];
    unsigned turn = 0;
    const unsigned first = blockIdx.x * TILE, column = blockIdx.y * TILE;
    float total[DOWN][ACROSS] = {};

    op.group = blockIdx.z;
    if (op.beta != 0)
        each_result(total, op, first, column, [&](unsigned i, unsigned j, float &sum) { sum = op.to[op.at(i, j)]; });
#pragma unroll
    for (int e = 0; e < DOWN * ACROSS; e++)
        all[e][threadIdx.x] = total[e / ACROSS][e % ACROSS];
    for (unsigned image = 0; image < op.c.n_rows; image++, op.skip(1))
        for (unsigned from = 0; from < op.k; from += op.slice) {
            float sums[DOWN][ACROSS] = {};

            multiply(sums, &held, &turn, op, first, column, from, op.end_of(from));
#pragma unroll
            for (int e = 0; e < DOWN * ACROSS; e++)
                all[e][threadIdx.x] += sums[e / ACROSS][e % ACROSS];
        }
#pragma unroll
    for (int e = 0; e < DOWN * ACROSS; e++)
        total[e / ACROSS][e % ACROSS] = all[e][threadIdx.x];
    each_result(total, op, first, column, [&](unsigned i, unsigned j, float sum) { op.to[op.at(i, j)] = sum; });
}

/* Slices from this one on, counted over all images, to lines (n_slices, n). Block (x, y, z): a slice and a tile's rows, its
 * columns, a group. */
template <typename T>
static __global__ void __launch_bounds__(THREADS, RESIDENT)
    sum_slices(struct weight_gradient<T> op, unsigned first_slice, float *lines, size_t n)
{
    __shared__ struct chunks held;
    unsigned turn = 0;
    const unsigned tiles = (op.m + TILE - 1) / TILE, line = blockIdx.x / tiles, slice = first_slice + line;
    const unsigned first = blockIdx.x % tiles * TILE, column = blockIdx.y * TILE, from = slice % op.n_slices * op.slice;
    float sums[DOWN][ACROSS] = {};

    op.group = blockIdx.z;
    op.skip(slice / op.n_slices);
    multiply(sums, &held, &turn, op, first, column, from, op.end_of(from));
    each_result(sums, op, first, column,
                [&](unsigned i, unsigned j, float sum) { lines[line * n + op.at(i, j)] = sum; });
}

/* to (n) = beta to + each of the lines, in order. */
static __global__ void add_lines(float *to, const float *lines, unsigned n_lines, size_t n, float beta)
{
    const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;

    if (i >= n)
        return;
    float sum = beta != 0 ? to[i] : 0;
    for (unsigned line = 0; line < n_lines; line += AHEAD) {
        float held[AHEAD];

#pragma unroll
        for (int a = 0; a < AHEAD; a++)
            held[a] = line + a < n_lines ? lines[(line + a) * n + i] : 0;
#pragma unroll
        for (int a = 0; a < AHEAD; a++)
            if (line + a < n_lines)
                sum += held[a];
    }
    to[i] = sum;
}

static struct conv conv_of(const struct device_conv2d *op)
{
    struct conv c = {};

    c.height = (unsigned)op->height, c.width = (unsigned)op->width;
    c.down = (unsigned)device_conv2d_height(op), c.across = (unsigned)device_conv2d_width(op);
    c.in = (unsigned)(op->n_in / op->n_groups), c.out = (unsigned)(op->n_out / op->n_groups);
    c.n_groups = (unsigned)op->n_groups, c.n_rows = (unsigned)op->n_rows;
    c.window_height = op->window.height, c.window_width = op->window.width;
    c.stride = op->window.stride, c.padding = op->window.padding;
    c.taps = (unsigned)device_conv2d_taps(op);
    c.by_in = divisor_of(c.in), c.by_out = divisor_of(c.out), c.by_window_width = divisor_of(c.window_width);
    c.by_across = divisor_of(c.across), c.by_pixels = divisor_of(c.down * c.across);
    return c;
}

template <typename P> static dim3 tiles_of(const P &op)
{
    return dim3((unsigned)pieces(op.m, TILE), (unsigned)pieces(op.n, TILE), op.c.n_groups);
}

template <typename T> static cudaError_t compute(const struct cuda_queue *q, const struct device_conv2d *op)
{
    struct forward<T> p = {
    };

    p.c = conv_of(op);
    p.x = (const T *)op->x, p.weight = (const T *)op->weight, p.bias = (const T *)op->bias, p.y = (T *)op->y;
    p.m = (unsigned)device_conv2d_pixels(op), p.n = p.c.out, p.k = p.c.taps;
    return launch(multiply_all<struct forward<T>>, tiles_of(p), THREADS, 0, q->stream, p);
}

template <typename T> static cudaError_t compute_input(const struct cuda_queue *q, const struct device_conv2d *op)
{
    struct input_gradient<T> p = {
    };

    p.c = conv_of(op);
    p.y_gradient = (const T *)op->y_gradient, p.weight = (const T *)op->weight;
    p.x_gradient = (T *)op->x_gradient, p.accumulate = op->accumulate;
    p.lines = (unsigned)pieces(op->height, p.c.stride), p.columns = (unsigned)pieces(op->width, p.c.stride);
    p.by_columns = divisor_of(p.columns), p.by_apart = divisor_of(p.lines * p.columns);
    const unsigned taps = (unsigned)pieces(p.c.window_width, p.c.stride);
    p.by_most_taps = divisor_of(taps), p.by_fewer_taps = divisor_of(taps > 1 ? taps - 1 : 1);
    p.m = p.c.n_rows * p.lines * p.columns, p.n = p.c.in;
    dim3 grid = tiles_of(p);
    grid.z *= p.c.stride * p.c.stride;
    return launch(multiply_all<struct input_gradient<T>>, grid, THREADS, 0, q->stream, p);
}

/* As many slices at a time as fill the device and fit the scratch; their number changes no bit. */
template <typename T>
static cudaError_t compute_slices(const struct cuda_queue *q, const struct weight_gradient<T> &p, dim3 tiles)
{
    const size_t n = (size_t)p.m * p.n * p.c.n_groups, all = (size_t)p.c.n_rows * p.n_slices,
                 room = PLAN_CUDA_SCRATCH_BYTES / (n * sizeof(float)),
                 wave = pieces((size_t)q->n_processors * RESIDENT, (size_t)tiles.x * tiles.y * tiles.z);
    float *const lines = (float *)q->scratch;
    cudaError_t rc = cudaSuccess;

    for (size_t done = 0, here; done < all && rc == cudaSuccess; done += here) {
        here = smaller(all - done, smaller(room, wave));
        rc = launch(sum_slices<T>, dim3(tiles.x * (unsigned)here, tiles.y, tiles.z), THREADS, 0, q->stream, p,
                    (unsigned)done, lines, n);
        if (rc == cudaSuccess)
            rc = launch(add_lines, dim3((unsigned)pieces(n, WARP)), WARP, 0, q->stream, p.to, lines, (unsigned)here, n,
                        done == 0 ? p.beta : 1);
    }
    return rc;
}

template <typename T> static cudaError_t compute_weights(const struct cuda_queue *q, const struct device_conv2d *op)
{
    struct weight_gradient<T> p = {
    };

    p.c = conv_of(op);
    p.x = (const T *)op->x, p.y_gradient = (const T *)op->y_gradient, p.to = op->weight_gradient, p.beta = op->beta;
    p.m = p.c.out, p.n = p.c.taps, p.k = p.c.down * p.c.across;
    p.slice = (unsigned)pieces(pieces(p.k, pieces(p.k, SLICE)), CHUNK) * CHUNK;
    p.n_slices = (unsigned)pieces(p.k, p.slice);
    const dim3 tiles = tiles_of(p);
    return (size_t)tiles.x * tiles.y * tiles.z < MANY_TILES && p.c.n_rows > 0
               ? compute_slices(q, p, tiles)
               : launch(add_slices<T>, tiles, THREADS, 0, q->stream, p);
}

cudaError_t cuda_conv2d(const struct cuda_queue *q, const struct device_conv2d *op)
{
    if (op->n_rows == 0)
        return cudaSuccess;
    return TYPED(q, compute)(q, op);
}

cudaError_t cuda_conv2d_input_gradient(const struct cuda_queue *q, const struct device_conv2d *op)
{
    if (op->n_rows == 0)
        return cudaSuccess;
    return TYPED(q, compute_input)(q, op);
}

cudaError_t cuda_conv2d_weight_gradient(const struct cuda_queue *q, const struct device_conv2d *op)
{
    return TYPED(q, compute_weights)(q, op);
}
