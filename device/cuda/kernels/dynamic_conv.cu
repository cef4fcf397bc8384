/* device/cuda/kernels/dynamic_conv.cu - dynamic convolution: Wu et al., arXiv:1901.10430.
 *
 * A warp makes the filter of one head of an element, and its gradient: lane l has taps l, l + 32 ... Filters go through
 * scratch to the kernel that convolves, where a thread has one pack of columns of an element: 2 n_taps operations for a
 * pack of each neighbour, which the threads beside it read from the cache. */
#include "device/cuda/kernels/pack.cuh"

enum { CONV_WARPS = ROW_THREADS / WARP, LANE_TAPS = DEVICE_MOST_TAPS / WARP };

/* The call's sizes, and what all its kernels read. */
template <typename T> struct conv {
    const T *x, *scores, *y_gradient;
    float *filters;
    const uint32_t *lengths; /* NULL: n_tokens */
    size_t m, n_tokens, n_earlier, n, n_heads, n_taps, n_before, width;
    struct device_dropout dropout;
    uint32_t threshold;
    float factor; /* of taps that dropout keeps */

    __device__ size_t length_of(size_t row) const
    {
        return lengths && lengths[row] < n_tokens ? lengths[row] : n_tokens;
    }

    /* The factor of dropout of a tap: number `at` of all heads' in element i. */
    __device__ float kept(size_t i, size_t at) const
    {
        const uint64_t element = i % n_tokens * n_heads * n_taps + at;
        uint32_t words[4];

        if (dropout.p == 0)
            return factor;
        device_random_quad(words, dropout.key, dropout.first_row + i / n_tokens, element / 4);
        return words[element % 4] >= threshold ? factor : 0;
    }

    /* The lane's taps of the softmax of a head's scores; 0 beyond the last one. */
    __device__ void soften(float (&w)[LANE_TAPS], const T *of, unsigned lane) const
    {
        float most = -INFINITY, sum = 0;

        for (int l = 0; l < LANE_TAPS; l++) {
            w[l] = lane + l * WARP < n_taps ? to_float(of[lane + l * WARP]) : -INFINITY;
            most = fmaxf(most, w[l]);
        }
        most = warp_max(most);
        for (int l = 0; l < LANE_TAPS; l++) {
            w[l] = expf(w[l] - most);
            sum += w[l];
        }
        sum = warp_sum(sum);
        for (int l = 0; l < LANE_TAPS; l++)
            w[l] /= sum;
    }
};

/* A warp's head of an element, one after the other. */
template <typename F> static __device__ inline void each_head(size_t m, size_t n_heads, F f)
{
    for (size_t at = (size_t)blockIdx.x * CONV_WARPS + threadIdx.x / WARP; at < m * n_heads;
         at += (size_t)gridDim.x * CONV_WARPS)
        f(at / n_heads, at % n_heads);
}

template <typename T> static __global__ void __launch_bounds__(ROW_THREADS) make_filters(struct conv<T> op)
{
    const unsigned lane = threadIdx.x % WARP;

    each_head(op.m, op.n_heads, [&](size_t i, size_t h) {
        const size_t at = (i * op.n_heads + h) * op.n_taps;
        float w[LANE_TAPS];

        op.soften(w, op.scores + at, lane);
        for (int l = 0; l < LANE_TAPS; l++)
            if (lane + l * WARP < op.n_taps)
                op.filters[at + lane + l * WARP] = w[l] * op.kept(i, h * op.n_taps + lane + l * WARP);
    });
}

/* to (m, n): y, or backward x's gradient. Tap k of element t reaches element t + k - n_before; backward, it is reached by
 * that tap of element t + n_before - k. */
template <typename T, int V, bool backward>
static __global__ void __launch_bounds__(ROW_THREADS) convolve(struct conv<T> op, T *to)
{
    const size_t packs = op.n / V, first = (size_t)blockIdx.x * blockDim.x + threadIdx.x;

    for (size_t at = first; at < op.m * packs; at += (size_t)gridDim.x * blockDim.x) {
        const size_t i = at / packs, column = at % packs * V, t = i % op.n_tokens,
                     length = op.length_of(i / op.n_tokens);
        const float *w = op.filters + column / op.width * op.n_taps;
        float sums[V] = {};

        for (size_t k = 0; k < op.n_taps && t < length; k++) {
            /* Below 0: it wraps around. */
            const size_t other = backward ? t + op.n_before - k : op.n_earlier + t + k - op.n_before;
            if (other >= op.n_earlier + length)
                continue;
            const size_t element = i - t + other, filter = (backward ? element : i) * op.n_heads * op.n_taps;
            const pack<T, V> x = load<V>((backward ? op.y_gradient : op.x) + element * op.n + column);
#pragma unroll
            for (int v = 0; v < V; v++)
                sums[v] += w[filter + k] * x[v];
        }
        store(to + i * op.n + column, sums);
    }
}

/* With w the softmax, f its factors of dropout, and g the gradient of f w: ds = f w g - w sum(f w g). */
template <typename T> static __global__ void __launch_bounds__(ROW_THREADS) score(struct conv<T> op, T *to)
{
    const unsigned lane = threadIdx.x % WARP;

    each_head(op.m, op.n_heads, [&](size_t i, size_t h) {
        const size_t t = i % op.n_tokens, length = op.length_of(i / op.n_tokens), at = (i * op.n_heads + h) * op.n_taps;
        const T *dy = op.y_gradient + i * op.n + h * op.width, *x = op.x + (i - t) * op.n + h * op.width;
        float w[LANE_TAPS], products[LANE_TAPS] = {}, sum = 0;

        for (size_t k = 0; k < op.n_taps && t < length; k++) {
            const size_t other = t + k - op.n_before;
            float g = 0;

            for (size_t j = lane; other < length && j < op.width; j += WARP)
                g += to_float(dy[j]) * to_float(x[other * op.n + j]);
            g = warp_sum(g) * op.filters[at + k];
            sum += g;
#pragma unroll
            for (int l = 0; l < LANE_TAPS; l++)
                if (k == lane + l * WARP)
                    products[l] = g;
        }
        op.soften(w, op.scores + at, lane);
        for (int l = 0; l < LANE_TAPS; l++)
            if (lane + l * WARP < op.n_taps)
                set(&to[at + lane + l * WARP], t < length ? products[l] - w[l] * sum : 0);
    });
}

template <typename T> static struct conv<T> conv_of(const struct device_dynamic_conv *op) {
    struct conv<T> c = {
    };

    c.x = (const T *)op->x, c.scores = (const T *)op->scores, c.y_gradient = (const T *)op->y_gradient;
    c.filters = op->filters, c.lengths = op->lengths;
    c.m = op->n_rows * op->n_tokens, c.n_tokens = op->n_tokens, c.n_earlier = op->n_earlier;
    c.n = op->n, c.n_heads = op->n_heads;
    c.n_taps = op->n_taps, c.n_before = op->n_before, c.width = device_dynamic_conv_width(op);
    c.dropout = op->dropout;
    c.threshold = random_threshold(op->dropout.p), c.factor = device_dropout_factor(&op->dropout);
    return c;
}

static dim3
blocks(const struct cuda_queue *q, size_t n, size_t each)
{
    return dim3(smaller(pieces(n, each), (size_t)q->n_processors * BLOCKS));
}

/* from: what `convolve` reads. */
template <typename T, bool backward>
static cudaError_t convolve_all(const struct cuda_queue *q, const struct conv<T> &c, const T *from, T *to)
{
    enum { V = whole<T>::V };
    const bool are_whole = is_whole(from, c.n) && is_whole(to, c.n) && c.width % V == 0;
    const size_t packs = c.m * c.n / (are_whole ? (size_t)V : 1);

    return launch(are_whole ? convolve<T, V, backward> : convolve<T, 1, backward>, blocks(q, packs, ROW_THREADS),
                  ROW_THREADS, 0, q->stream, c, to);
}

template <typename T> static cudaError_t filter(const struct cuda_queue *q, const struct conv<T> &c)
{
    return launch(make_filters<T>, blocks(q, c.m * c.n_heads, CONV_WARPS), ROW_THREADS, 0, q->stream, c);
}

template <typename T> static cudaError_t forward(const struct cuda_queue *q, const struct device_dynamic_conv *op)
{
    const struct conv<T> c = conv_of<T>(op);
    const cudaError_t rc = filter(q, c);

    return rc != cudaSuccess ? rc : convolve_all<T, false>(q, c, c.x, (T *)op->y);
}

template <typename T> static cudaError_t backward(const struct cuda_queue *q, const struct device_dynamic_conv *op)
{
    const struct conv<T> c = conv_of<T>(op);
    cudaError_t rc = filter(q, c);

    if (rc == cudaSuccess)
        rc = convolve_all<T, true>(q, c, c.y_gradient, (T *)op->x_gradient);
    if (rc != cudaSuccess)
        return rc;
    return launch(score<T>, blocks(q, c.m * c.n_heads, CONV_WARPS), ROW_THREADS, 0, q->stream, c,
                  (T *)op->scores_gradient);
}

cudaError_t cuda_dynamic_conv(const struct cuda_queue *q, const struct device_dynamic_conv *op)
{
    if (op->n_rows * op->n_tokens == 0)
        return cudaSuccess;
    return TYPED(q, forward)(q, op);
}

cudaError_t cuda_dynamic_conv_backward(const struct cuda_queue *q, const struct device_dynamic_conv *op)
{
    if (op->n_rows * op->n_tokens == 0)
        return cudaSuccess;
    return TYPED(q, backward)(q, op);
}
