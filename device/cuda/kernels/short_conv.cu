/* device/cuda/kernels/short_conv.cu - a short causal convolution (proto/operation/call/short_conv.h).
 *
 * A thread has a pack of channels of a token. What it reads of the tokens before, or backward behind, the threads of
 * those have just read: memory is read once, the rest comes from the cache. Sums over tokens, for weights and bias, are
 * those of sum_rows.cuh, tap by tap; their order depends on the shape and the device alone.
 *
 * A tap that reaches before its document is left out, not multiplied by zero: what lies there may be infinite. */
#include "device/cuda/kernels/exponential.cuh"
#include "device/cuda/kernels/sum_rows.cuh"

template <typename T> struct short_conv {
    const T *x, *weight, *bias, *y_gradient;
    float *slopes;
    const uint32_t *positions; /* NULL: a row is one document */
    size_t m, n_tokens, n, n_taps;
    size_t columns, y_columns; /* from row to row of x; of y */
    uint32_t gated, silu;      /* words: what a launch copies has no gaps */

    /* Tokens of its document before token i of all rows, of those that taps reach. */
    __device__ unsigned earlier(size_t i) const
    {
        const size_t at = positions ? positions[i] : i % n_tokens;

        return (unsigned)(at < n_taps - 1 ? at : n_taps - 1);
    }

    /* What token i gives to sums of V channels. */
    template <int V> __device__ void input(float (&u)[V], size_t i, size_t column) const
    {
        const T *const at = x + i * columns + column;
        const pack<T, V> first = load<V>(at);

#pragma unroll
        for (int v = 0; v < V; v++)
            u[v] = first[v];
        if (gated) {
            const pack<T, V> other = load<V>(at + 2 * n);
#pragma unroll
            for (int v = 0; v < V; v++)
                u[v] *= other[v];
        }
    }

    /* sum += the tap's weights times what the token d before gave; d counts from the last tap. */
    template <int V> __device__ void tap(float (&sum)[V], const float (&u)[V], unsigned d, size_t column) const
    {
        const pack<T, V> w = load<V>(weight + (n_taps - 1 - d) * n + column);

#pragma unroll
        for (int v = 0; v < V; v++)
            sum[v] = fmaf(w[v], u[v], sum[v]);
    }

    template <int V> __device__ void begin(float (&sum)[V], size_t column) const
    {
        if (bias) {
            const pack<T, V> b = load<V>(bias + column);
#pragma unroll
            for (int v = 0; v < V; v++)
                sum[v] = b[v];
        } else {
#pragma unroll
            for (int v = 0; v < V; v++)
                sum[v] = 0;
        }
    }

    template <int V> __device__ void sums(float (&sum)[V], size_t i, size_t column) const
    {
        begin(sum, column);
        for (unsigned d = earlier(i) + 1; d-- > 0;) {
            float u[V];

            input(u, i - d, column);
            tap(sum, u, d, column);
        }
    }

    /* y of token i. */
    template <int V> __device__ void finish(T *y, const float (&sum)[V], size_t i, size_t column) const
    {
        float result[V];

        if (gated) {
            const pack<T, V> c = load<V>(x + i * columns + n + column);
#pragma unroll
            for (int v = 0; v < V; v++)
                result[v] = c[v] * sum[v];
        } else {
#pragma unroll
            for (int v = 0; v < V; v++)
                result[v] = silu ? __fdividef(sum[v], 1 + exponential_of_minus(sum[v])) : sum[v];
        }
        store(y + i * y_columns + column, result);
    }

    static __device__ inline float slope(float x)
    {
        const float e = exponential_of_minus(x), s = __fdividef(1, 1 + e);

        return s + x * s * (e * s);
    }
};

/* A thread's packs, of V channels of a token each, one after the other. */
template <int V, typename F> static __device__ inline void each_pack(size_t m, size_t n, F f)
{
    const size_t packs = n / V;

    for (size_t at = (size_t)blockIdx.x * blockDim.x + threadIdx.x; at < m * packs;
         at += (size_t)gridDim.x * blockDim.x)
        f(at / packs, at % packs * V);
}

template <typename T, int V>
static __global__ void __launch_bounds__(ROW_THREADS) short_conv_forward(const struct short_conv<T> op, T *y)
{
    each_pack<V>(op.m, op.n, [&](size_t i, size_t column) {
        float sum[V];

        op.sums(sum, i, column);
        op.finish(y, sum, i, column);
    });
}

/* The gradients of sums, and of C, which no other token reads. */
template <typename T, int V>
static __global__ void __launch_bounds__(ROW_THREADS)
    short_conv_sums_gradient(const struct short_conv<T> op, T *x_gradient)
{
    each_pack<V>(op.m, op.n, [&](size_t i, size_t column) {
        const pack<T, V> dy = load<V>(op.y_gradient + i * op.y_columns + column);
        float sum[V], slope[V];

#pragma unroll
        for (int v = 0; v < V; v++)
            slope[v] = dy[v];
        if (op.gated) {
            const pack<T, V> c = load<V>(op.x + i * op.columns + op.n + column);
            op.sums(sum, i, column);
#pragma unroll
            for (int v = 0; v < V; v++)
                sum[v] *= dy[v], slope[v] *= c[v];
            store(x_gradient + i * op.columns + op.n + column, sum);
        } else if (op.silu) {
            op.sums(sum, i, column);
#pragma unroll
            for (int v = 0; v < V; v++)
                slope[v] *= op.slope(sum[v]);
        }
        store_wide(op.slopes + i * op.n + column, slope);
    });
}

/* The gradient of x, or of B and x: a token's is a sum over those that reach it. */
template <typename T, int V>
static __global__ void __launch_bounds__(ROW_THREADS)
    short_conv_input_gradient(const struct short_conv<T> op, T *x_gradient)
{
    each_pack<V>(op.m, op.n, [&](size_t i, size_t column) {
        const size_t left = op.n_tokens - i % op.n_tokens, at = i * op.columns + column;
        float sum[V] = {};

        for (unsigned d = 0; d < op.n_taps && d < left && op.earlier(i + d) >= d; d++) {
            float slope[V];

            load_wide(slope, op.slopes + (i + d) * op.n + column);
            op.tap(sum, slope, d, column);
        }
        if (op.gated) {
            const pack<T, V> b = load<V>(op.x + at), x = load<V>(op.x + at + 2 * op.n);
            float other[V];

#pragma unroll
            for (int v = 0; v < V; v++)
                other[v] = sum[v] * b[v], sum[v] *= x[v];
            store(x_gradient + at + 2 * op.n, other);
        }
        store(x_gradient + at, sum);
    });
}

/* ---- sums over tokens ---- */

/* Slopes times what the token d before gave: rows for a tap's weights. */
template <typename T, int V> struct tap_products {
    struct short_conv<T> op;
    size_t d;

    struct operands {
        pack<float, V> slope;
        pack<T, V> b, x;
        bool reaches;
    };

    __device__ operands load_at(size_t row, size_t column) const
    {
        operands held;

        held.slope = load<V>((const float *)op.slopes + row * op.n + column);
        held.reaches = op.earlier(row) >= d;
        if (held.reaches) {
            const T *const at = op.x + (row - d) * op.columns + column;
            held.x = load<V>(at);
            if (op.gated)
                held.b = load<V>(at + 2 * op.n);
        }
        return held;
    }

    __device__ pack<float, V> value_at(const operands &held, size_t, size_t) const
    {
        pack<float, V> y;

#pragma unroll
        for (int v = 0; v < V; v++)
            y.at[v] = !held.reaches ? 0 : held.slope.at[v] * (op.gated ? held.b[v] * held.x[v] : held.x[v]);
        return y;
    }
};

/* A line of weights, overwritten if it is fresh. */
struct onto_line {
    float *sums;
    size_t fresh; /* or 0 */

    __device__ void put(size_t column, double x) const
    {
        sums[column] = (float)((fresh ? 0 : (double)sums[column]) + x);
    }
};

template <typename T, int V>
static cudaError_t weight_gradient(const struct cuda_queue *q, const struct device_short_conv *op,
                                   const struct short_conv<T> &c)
{
    cudaError_t rc = cudaSuccess;

    for (size_t d = 0; d < op->n_taps && rc == cudaSuccess; d++) {
        const struct onto_line to = {op->weight_gradient + (op->n_taps - 1 - d) * op->n, op->beta == 0 ? 1u : 0u};
        const tap_products<T, V> from = {c, d};
        rc = sum_to<float, V>(q, to, from, c.m, c.n);
    }
    return rc;
}

template <typename T, int V>
static cudaError_t parameter_gradients(const struct cuda_queue *q, const struct device_short_conv *op,
                                       const struct short_conv<T> &c)
{
    const cudaError_t rc = op->weight_gradient ? weight_gradient<T, V>(q, op, c) : cudaSuccess;
    const summed_array<float, V> slopes = {op->slopes, op->n};

    if (rc != cudaSuccess || !op->bias_gradient)
        return rc;
    return sum_onto<float, V>(q, op->bias_gradient, slopes, c.m, c.n);
}

/* ---- generation ---- */

/* Row k of the tail becomes that of the token of as many rows before the end: of one channel, from the first row on. */
template <typename T> static __device__ inline void move_tail(const struct short_conv<T> &op, T *tail, size_t column)
{
    const size_t n_tail = op.n_taps - 1, columns = (op.gated ? 2 : 1) * op.n;

#pragma unroll 1
    for (size_t k = 0; k < n_tail; k++) {
        const size_t at = op.m + k; /* of the tail's rows and then the tokens' */
        const T *const from = (at < n_tail ? tail + at * columns : op.x + (at - n_tail) * op.columns) + column;

        tail[k * columns + column] = *from;
        if (op.gated)
            tail[k * columns + op.n + column] = from[(at < n_tail ? 1 : 2) * op.n];
    }
}

/* A thread has a channel, and goes through the tokens: what the last ones gave stays in registers. */
template <typename T>
static __global__ void __launch_bounds__(ROW_THREADS)
    short_conv_go_on(const struct short_conv<T> op, T *y, T *tail, uint32_t first)
{
    const size_t column = (size_t)blockIdx.x * blockDim.x + threadIdx.x, n_tail = op.n_taps - 1;
    float held[DEVICE_SHORT_TAPS] = {}; /* held[d]: of the token d before */

    if (column >= op.n)
        return;
#pragma unroll
    for (unsigned d = 1; d < DEVICE_SHORT_TAPS; d++)
        if (d <= n_tail && d <= first) {
            const T *const at = tail + (n_tail - d) * (op.gated ? 2 : 1) * op.n + column;
            held[d - 1] = op.gated ? to_float(at[0]) * to_float(at[op.n]) : to_float(at[0]);
        }
    for (size_t i = 0; i < op.m; i++) {
        float sum[1], u[1];

#pragma unroll
        for (unsigned d = DEVICE_SHORT_TAPS - 1; d > 0; d--)
            held[d] = held[d - 1];
        op.input(u, i, column);
        held[0] = u[0];
        op.begin(sum, column);
#pragma unroll
        for (unsigned d = DEVICE_SHORT_TAPS; d-- > 0;) {
            const float of[1] = {held[d]};
            if (d < op.n_taps && d <= first + i)
                op.tap(sum, of, d, column);
        }
        op.finish(y, sum, i, column);
    }
    move_tail(op, tail, column);
}

/* ---- launchers ---- */

template <typename T> static struct short_conv<T> conv_of(const struct device_short_conv *op) {
    struct short_conv<T> c = {
    };

    c.x = (const T *)op->x, c.weight = (const T *)op->weight, c.bias = (const T *)op->bias;
    c.y_gradient = (const T *)op->y_gradient;
    c.slopes = op->slopes, c.positions = op->positions;
    c.m = op->n_rows * op->n_tokens, c.n_tokens = op->n_tokens, c.n = op->n, c.n_taps = op->n_taps;
    c.columns = device_short_conv_x_stride(op), c.y_columns = device_short_conv_y_stride(op);
    c.gated = op->gated, c.silu = op->silu;
    return c;
}

static dim3
blocks(const struct cuda_queue *q, size_t packs)
{
    return dim3(smaller(pieces(packs, ROW_THREADS), (size_t)q->n_processors * BLOCKS));
}

/* y: y, or the gradient of x. */
template <typename T> static bool are_whole(const struct short_conv<T> &c, const T *y)
{
    return is_whole(c.x, c.n) && is_whole(c.weight, c.n) && is_whole(c.bias, c.n) && is_whole(c.y_gradient, c.n) &&
           is_whole(c.slopes, c.n) && is_whole(y, c.n) && is_whole(c.x, c.columns) && is_whole(y, c.y_columns);
}

template <typename T> static cudaError_t forward(const struct cuda_queue *q, const struct device_short_conv *op)
{
    const struct short_conv<T> c = conv_of<T>(op);
    T *const y = (T *)op->y;
    const bool whole_packs = are_whole(c, (const T *)y);

    return launch(whole_packs ? short_conv_forward<T, whole<T>::V> : short_conv_forward<T, 1>,
                  blocks(q, c.m * c.n / (whole_packs ? (size_t)whole<T>::V : 1)), ROW_THREADS, 0, q->stream, c, y);
}

template <typename T, int V>
static cudaError_t backward_in(const struct cuda_queue *q, const struct device_short_conv *op,
                               const struct short_conv<T> &c)
{
    T *const x_gradient = (T *)op->x_gradient;
    const dim3 grid = blocks(q, c.m * c.n / V);
    cudaError_t rc = launch(short_conv_sums_gradient<T, V>, grid, ROW_THREADS, 0, q->stream, c, x_gradient);

    if (rc == cudaSuccess)
        rc = launch(short_conv_input_gradient<T, V>, grid, ROW_THREADS, 0, q->stream, c, x_gradient);
    return rc == cudaSuccess ? parameter_gradients < T, V < 4 ? V : 4 > (q, op, c) : rc;
}

template <typename T> static cudaError_t backward(const struct cuda_queue *q, const struct device_short_conv *op)
{
    const struct short_conv<T> c = conv_of<T>(op);

    return are_whole(c, (const T *)op->x_gradient) ? backward_in<T, whole<T>::V>(q, op, c)
                                                   : backward_in<T, 1>(q, op, c);
}

template <typename T> static cudaError_t go_on(const struct cuda_queue *q, const struct device_short_conv *op)
{
    const struct short_conv<T> c = conv_of<T>(op);

    return launch(short_conv_go_on<T>, dim3((unsigned)pieces(c.n, ROW_THREADS)), ROW_THREADS, 0, q->stream, c,
                  (T *)op->y, (T *)op->tail, op->first);
}

cudaError_t cuda_short_conv(const struct cuda_queue *q, const struct device_short_conv *op)
{
    return op->n_rows * op->n_tokens == 0 ? cudaSuccess : TYPED(q, forward)(q, op);
}

cudaError_t cuda_short_conv_backward(const struct cuda_queue *q, const struct device_short_conv *op)
{
    return op->n_rows * op->n_tokens == 0 ? cudaSuccess : TYPED(q, backward)(q, op);
}

cudaError_t cuda_short_conv_cached(const struct cuda_queue *q, const struct device_short_conv *op)
{
    return op->n_tokens == 0 ? cudaSuccess : TYPED(q, go_on)(q, op);
}
