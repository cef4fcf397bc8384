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
    THREADS = 256,
    ACROSS = 16,          /* threads */
    EACH = TILE / ACROSS, /* results of a thread, down and across, ACROSS apart */
    LINE = TILE + 2,      /* of shared memory: a warp's 2 x 16 elements lie in as many banks */
    LOADS = TILE * CHUNK / THREADS,
    RESIDENT = 4,     /* blocks of a processor at a time */
    SLICE = 256,      /* pixels, at most */
    MANY_TILES = 256, /* of a gradient that needs no more blocks; fewer fit the scratch */
    AHEAD = 32,       /* slices of a weight in flight while they are added */
};
static_assert(MANY_TILES * TILE * TILE * sizeof(float) <= PLAN_CUDA_SCRATCH_BYTES, "a slice of a small gradient fits");

/* The call's sizes; counts of pixels, channels and weights of one channel fit 32 bits. */
struct conv {
    unsigned height, width, down, across; /* of x, of y */
    unsigned in, out, n_groups;           /* channels of a group */
    unsigned window_height, window_width, stride, padding;
    unsigned n_rows, taps; /* taps: window_height * window_width * in */

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
        const unsigned of_image = down * across, i = y % of_image / across, j = y % across;
        const unsigned line = i * stride + tap / window_width - padding, /* below 0: it wraps around */
            column = j * stride + tap % window_width - padding;

        *x = ((size_t)(y / of_image) * height + line) * width + column;
        return line < height && column < width;
    }

    /* The pixel of y of which a tap meets a pixel of x. */
    __device__ bool met_by(size_t *y, unsigned x, unsigned tap) const
    {
        const unsigned of_image = height * width;
        const unsigned line = x % of_image / width + padding - tap / window_width,
                       column = x % width + padding - tap % window_width;

        *y = ((size_t)(x / of_image) * down + line / stride) * across + column / stride;
        return line % stride == 0 && column % stride == 0 && line / stride < down && column / stride < across;
    }
};

/* Each product: m, n and k, its factors' elements, and where an element of the result goes. Side by side in memory are
 * neighbours along k where LEFT_BY_K, or RIGHT_BY_K, else along m, or n. */

/* Pixels of y by channels of y, over taps and channels of x. */
template <typename T> struct forward {
    enum { LEFT_BY_K = 1, RIGHT_BY_K = 1 };
    struct conv c;
    const T *x, *weight, *bias;
    T *y;
    unsigned m, n, k, group;

    __device__ float left(unsigned i, unsigned p) const
    {
        size_t at;

        return c.meet(&at, i, p / c.in) ? to_float(x[c.x_at(at, group) + p % c.in]) : 0;
    }

    __device__ float right(unsigned p, unsigned j) const
    {
        return to_float(weight[((size_t)group * c.out + j) * c.taps + p]);
    }

    __device__ void put(unsigned i, unsigned j, float sum) const
    {
        set(&y[c.y_at(i, group) + j], bias ? sum + to_float(bias[group * c.out + j]) : sum);
    }
};

/* Pixels of x by channels of x, over taps and channels of y. */
template <typename T> struct input_gradient {
    enum { LEFT_BY_K = 1, RIGHT_BY_K = 0 };
    struct conv c;
    const T *y_gradient, *weight;
    T *x_gradient;
    bool accumulate;
    unsigned m, n, k, group;

    __device__ float left(unsigned i, unsigned p) const
    {
        size_t at;

        return c.met_by(&at, i, p / c.out) ? to_float(y_gradient[c.y_at(at, group) + p % c.out]) : 0;
    }

    __device__ float right(unsigned p, unsigned j) const
    {
        return to_float(weight[((size_t)group * c.out + p % c.out) * c.taps + p / c.out * c.in + j]);
    }

    __device__ void put(unsigned i, unsigned j, float sum) const
    {
        T *const to = &x_gradient[c.x_at(i, group) + j];

        set(to, accumulate ? sum + to_float(*to) : sum);
    }
};

/* Channels of y by taps and channels of x, over the pixels of an image of y. */
template <typename T> struct weight_gradient {
    enum { LEFT_BY_K = 0, RIGHT_BY_K = 0 };
    struct conv c;
    const T *x, *y_gradient;
    float *to;
    float beta;
    unsigned m, n, k, group, image;
    unsigned slice, n_slices; /* pixels of one, and how many an image has */

    __device__ float left(unsigned i, unsigned p) const
    {
        return to_float(y_gradient[c.y_at((size_t)image * k + p, group) + i]);
    }

    __device__ float right(unsigned p, unsigned j) const
    {
        size_t at;

        return c.meet(&at, p, j / c.in) ? to_float(x[c.x_at((size_t)image * c.height * c.width + at, group) + j % c.in])
                                        : 0;
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

struct chunks {
    float left[CHUNK][LINE], right[CHUNK][LINE];
};

/* sums (EACH, EACH) of the thread += left right over terms from .. end-1. All threads of the block; first and column: the
 * tile's. */
template <typename P>
static __device__ inline void multiply(float (&sums)[EACH][EACH], struct chunks *held, const P &op, unsigned first,
                                       unsigned column, unsigned from, unsigned end)
{
    const unsigned t = threadIdx.x, down = t / ACROSS, across = t % ACROSS;

    for (; from < end; from += CHUNK) {
#pragma unroll
        for (int l = 0; l < LOADS; l++) {
            const unsigned i = P::LEFT_BY_K ? t / CHUNK + l * (THREADS / CHUNK) : t % TILE,
                           p = P::LEFT_BY_K ? t % CHUNK : t / TILE + l * (THREADS / TILE);
            const unsigned j = P::RIGHT_BY_K ? t / CHUNK + l * (THREADS / CHUNK) : t % TILE,
                           q = P::RIGHT_BY_K ? t % CHUNK : t / TILE + l * (THREADS / TILE);
            held->left[p][i] = first + i < op.m && from + p < end ? op.left(first + i, from + p) : 0;
            held->right[q][j] = column + j < op.n && from + q < end ? op.right(from + q, column + j) : 0;
        }
        __syncthreads();
#pragma unroll
        for (int p = 0; p < CHUNK; p++) {
            float left[EACH], right[EACH];

#pragma unroll
            for (int e = 0; e < EACH; e++)
                left[e] = held->left[p][down + e * ACROSS], right[e] = held->right[p][across + e * ACROSS];
#pragma unroll
            for (int i = 0; i < EACH; i++)
#pragma unroll
                for (int j = 0; j < EACH; j++)
                    sums[i][j] = fmaf(left[i], right[j], sums[i][j]);
        }
        __syncthreads();
    }
}

/* f(row, column, the thread's sum there). */
template <typename P, typename F>
static __device__ inline void each_result(float (&sums)[EACH][EACH], const P &op, unsigned first, unsigned column, F f)
{
#pragma unroll
    for (int i = 0; i < EACH; i++)
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            const unsigned row = first + threadIdx.x / ACROSS + i * ACROSS,
                           at = column + threadIdx.x % ACROSS + j * ACROSS;
            if (row < op.m && at < op.n)
                f(row, at, sums[i][j]);
        }
}

/* Block (x, y, z): a tile of the result's rows, of its columns, a group. */
template <typename P> static __global__ void __launch_bounds__(THREADS) multiply_all(P op)
{
    __shared__ struct chunks held;
    const unsigned first = blockIdx.x * TILE, column = blockIdx.y * TILE;
    float sums[EACH][EACH] = {};

    op.group = blockIdx.z;
    multiply(sums, &held, op, first, column, 0, op.k);
    each_result(sums, op, first, column, [&](unsigned i, unsigned j, float sum) { op.put(i, j, sum); });
}

/* Block (x, y, z) as above, of all slices. */
template <typename T> static __global__ void __launch_bounds__(THREADS) add_slices(struct weight_gradient<T> op)
{
    __shared__ struct chunks held;
    const unsigned first = blockIdx.x * TILE, column = blockIdx.y * TILE;
    float all[EACH][EACH] = {};

    op.group = blockIdx.z;
    if (op.beta != 0)
        each_result(all, op, first, column, [&](unsigned i, unsigned j, float &sum) { sum = op.to[op.at(i, j)]; });
    for (op.image = 0; op.image < op.c.n_rows; op.image++)
        for (unsigned from = 0; from < op.k; from += op.slice) {
            float sums[EACH][EACH] = {};

            multiply(sums, &held, op, first, column, from, op.end_of(from));
#pragma unroll
            for (int i = 0; i < EACH; i++)
#pragma unroll
                for (int j = 0; j < EACH; j++)
                    all[i][j] += sums[i][j];
        }
    each_result(all, op, first, column, [&](unsigned i, unsigned j, float sum) { op.to[op.at(i, j)] = sum; });
}

/* Slices from this one on, counted over all images, to lines (n_slices, n). Block (x, y, z): a slice and a tile's rows, its
 * columns, a group. */
template <typename T>
static __global__ void __launch_bounds__(THREADS)
    sum_slices(struct weight_gradient<T> op, unsigned first_slice, float *lines, size_t n)
{
    __shared__ struct chunks held;
    const unsigned tiles = (op.m + TILE - 1) / TILE, line = blockIdx.x / tiles, slice = first_slice + line;
    const unsigned first = blockIdx.x % tiles * TILE, column = blockIdx.y * TILE, from = slice % op.n_slices * op.slice;
    float sums[EACH][EACH] = {};

    op.group = blockIdx.z;
    op.image = slice / op.n_slices;
    multiply(sums, &held, op, first, column, from, op.end_of(from));
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
    p.m = (unsigned)(op->n_rows * op->height * op->width), p.n = p.c.in, p.k = p.c.taps / p.c.in * p.c.out;
    return launch(multiply_all<struct input_gradient<T>>, tiles_of(p), THREADS, 0, q->stream, p);
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
    return q->type == NUMBER_BF16 ? compute<bf16>(q, op) : compute<float>(q, op);
}

cudaError_t cuda_conv2d_input_gradient(const struct cuda_queue *q, const struct device_conv2d *op)
{
    if (op->n_rows == 0)
        return cudaSuccess;
    return q->type == NUMBER_BF16 ? compute_input<bf16>(q, op) : compute_input<float>(q, op);
}

cudaError_t cuda_conv2d_weight_gradient(const struct cuda_queue *q, const struct device_conv2d *op)
{
    return q->type == NUMBER_BF16 ? compute_weights<bf16>(q, op) : compute_weights<float>(q, op);
}
