/* device/cuda/kernels/softmax.cu - losses: softmax and cross entropy over a vocabulary that comes in chunks; squared
 * error; preferences.
 *
 * A block processes a row at a time. The sum reads four bytes per element; the gradient reads four and writes two or
 * four; both cap logits as they are read. Rows that the plan pads are read in whole packs, others element by element. */
#include "device/cuda/kernels/pack.cuh"

#include <float.h>

enum { SOFTMAX_THREADS = 512, SOFTMAX_BLOCKS = 8 /* of a processor */, LOGITS = 4 /* of a pack */ };

/* Elements that a thread loads at once. */
template <int V> struct softmax_share {
    enum { K = V == 1 ? 8 : PACKS };
};

/* Sum of exp(x - max). The initial maximum is finite, so that minus infinity always adds exp(-inf) = 0. total: sum of x,
 * where labels are smoothed. */
struct exponentials {
    float max, sum, total;
};

static __device__ inline void join(struct exponentials *to, struct exponentials other)
{
    const float max = fmaxf(to->max, other.max);

    to->sum = to->sum * expf(to->max - max) + other.sum * expf(other.max - max);
    to->max = max;
    to->total += other.total;
}

/* Adds N logits. A NaN does not become the maximum, but makes the sum a NaN; so does +infinity. */
template <int N> static __device__ inline void add(struct exponentials *to, const float (&x)[N])
{
    float max = to->max, sum[4] = {0, 0, 0, 0};

#pragma unroll
    for (int i = 0; i < N; i++)
        max = fmaxf(max, x[i]);
#pragma unroll
    for (int i = 0; i < N; i++)
        sum[i % 4] += expf(x[i] - max);
    to->sum = to->sum * expf(to->max - max) + (sum[0] + sum[1] + (sum[2] + sum[3]));
    to->max = max;
}

/* The block's sum, in thread 0. */
static __device__ inline struct exponentials join_block(struct exponentials mine)
{
    __shared__ struct exponentials of_warps[WARP];
    const unsigned lane = threadIdx.x % WARP, n_warps = blockDim.x / WARP;

    for (int far = WARP / 2; far > 0; far /= 2) {
        const float max = __shfl_xor_sync(WHOLE_WARP, mine.max, far), sum = __shfl_xor_sync(WHOLE_WARP, mine.sum, far);
        join(&mine, {max, sum, __shfl_xor_sync(WHOLE_WARP, mine.total, far)});
    }
    if (lane == 0)
        of_warps[threadIdx.x / WARP] = mine;
    __syncthreads();
    if (threadIdx.x == 0)
        for (unsigned w = 1; w < n_warps; w++)
            join(&mine, of_warps[w]);
    __syncthreads(); /* the next row overwrites it */
    return mine;
}

/* The operation, with what labels have. */
struct smoothed : device_cross_entropy {
    float share, even; /* a row's own label, and each */
};

static smoothed smoothed_of(const struct device_cross_entropy *op)
{
    smoothed all = {};

    static_cast<device_cross_entropy &>(all) = *op;
    all.share = device_label_share(op);
    all.even = device_smoothed(op);
    return all;
}

/* As struct device_soft_cap; 0 stays 0. */
static __device__ inline float capped(float x, float cap)
{
    return cap * tanhf(x / cap);
}

/* The derivative of cap * tanh(x / cap) where that is y. */
static __device__ inline float cap_slope(float y, float cap)
{
    const float part = y / cap;

    return 1 - part * part;
}

/* A thread has the same elements with packs and without, so that a sum's order depends on n alone. BIASED: op.bias is
 * added to them. */
template <bool WHOLE, bool BIASED>
static __global__ void __launch_bounds__(SOFTMAX_THREADS) log_sum_exp_rows(smoothed op)
{
    enum { V = LOGITS, K = softmax_share<V>::K };

    for (size_t i = blockIdx.x; i < op.m; i += gridDim.x) {
        const float *row = op.logits + i * op.logits_stride;
        struct exponentials all = {-FLT_MAX, 0, 0};

        for (size_t begin = (size_t)threadIdx.x * V; begin < op.n; begin += (size_t)blockDim.x * V * K) {
            const size_t step = (size_t)blockDim.x * V;
            float x[K * V];

#pragma unroll
            for (int k = 0; k < K; k++) {
                const size_t column = begin + k * step;
                pack<float, V> some = {};

                if (WHOLE && column < op.n)
                    some = load<V>(row + column);
#pragma unroll
                for (int v = 0; v < V; v++)
                    x[k * V + v] = WHOLE ? some.at[v] : column + v < op.n ? row[column + v] : 0;
            }
            if (op.cap != 0)
#pragma unroll
                for (int j = 0; j < K * V; j++)
                    x[j] = capped(x[j], op.cap);
#pragma unroll
            for (int j = 0; j < K * V; j++) {
                const size_t column = begin + j / V * step + j % V;
                x[j] = column < op.n ? x[j] + (BIASED ? op.bias[column] : 0) : -INFINITY;
            }
            add(&all, x);
            if (op.smoothing > 0)
#pragma unroll
                for (int j = 0; j < K * V; j++)
                    all.total += x[j] == -INFINITY ? 0 : x[j];
        }
        all = join_block(all);
        if (threadIdx.x == 0) {
            float *state = op.running + 3 * i;
            const uint32_t at = op.labels[i] - op.first;

            const bool is_here = op.labels[i] >= op.first && at < op.n;
            float own = is_here ? row[at] + (BIASED ? op.bias[at] : 0) : 0;

            if (op.cap != 0)
                own = capped(own, op.cap);

            if (!op.start)
                join(&all, {state[0], state[1], 0});
            state[0] = all.max;
            state[1] = all.sum;
            if (op.smoothing > 0)
                state[2] = (op.start ? 0 : state[2]) + op.share * own + op.even * all.total;
            else if (is_here || op.start)
                state[2] = own;
        }
    }
}

static unsigned softmax_threads(size_t n, int v, int k)
{
    return whole_warps(smaller(pieces(n, (size_t)v * (size_t)k), SOFTMAX_THREADS));
}

template <bool WHOLE, bool BIASED>
static cudaError_t log_sum_exp(const struct cuda_queue *q, const struct device_cross_entropy *op)
{
    enum { V = LOGITS };
    const dim3 grid(smaller(op->m, (size_t)q->n_processors * SOFTMAX_BLOCKS));

    return launch(log_sum_exp_rows<WHOLE, BIASED>, grid, softmax_threads(op->n, V, softmax_share<V>::K), 0, q->stream,
                  smoothed_of(op));
}

cudaError_t cuda_log_sum_exp(const struct cuda_queue *q, const struct device_cross_entropy *op)
{
    if (op->m == 0 || op->n == 0)
        return cudaSuccess;
    if (op->bias)
        return is_whole(op->logits, op->logits_stride) ? log_sum_exp<true, true>(q, op)
                                                       : log_sum_exp<false, true>(q, op);
    return is_whole(op->logits, op->logits_stride) ? log_sum_exp<true, false>(q, op) : log_sum_exp<false, false>(q, op);
}

static __global__ void losses(double *loss, const float *running, const uint32_t *labels, size_t m)
{
    const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;

    if (i < m)
        loss[i] = labels[i] == UINT32_MAX
                      ? 0
                      : log((double)running[3 * i + 1]) + (double)running[3 * i] - (double)running[3 * i + 2];
}

cudaError_t cuda_loss(const struct cuda_queue *q, const struct device_loss *op)
{
    if (op->m == 0)
        return cudaSuccess;
    return launch(losses, dim3((unsigned)pieces(op->m, ROW_THREADS)), ROW_THREADS, 0, q->stream, op->losses,
                  op->running, op->labels, op->m);
}

/* A row's gradient overwrites its logits from the beginning. In 16 bits, element j lies on logit j/2, which another thread
 * may still read. So the block reads K packs per thread, meets at a barrier, and then writes only where it has read.
 * Padding is written too. */
template <typename T, int V, bool BIASED>
static __global__ void __launch_bounds__(SOFTMAX_THREADS) gradient_rows(smoothed op)
{
    enum { K = softmax_share<V>::K };
    const size_t step = (size_t)blockDim.x * V;

    for (size_t i = blockIdx.x; i < op.m; i += gridDim.x) {
        const float *row = op.logits + i * op.logits_stride;
        const float scale = op.scales ? op.scales[i] : op.scale;
        const float max = op.running[3 * i], factor = scale / op.running[3 * i + 1];
        const float own = scale * op.share, even = scale * op.even;
        const bool counts = op.labels[i] != UINT32_MAX;
        const uint32_t label = op.labels[i] - op.first;
        T *to = (T *)row;

        for (size_t begin = 0; begin < op.logits_stride; begin += step * K) {
            const size_t column = begin + threadIdx.x * V;
            pack<float, V> x[K];

#pragma unroll
            for (int k = 0; k < K; k++)
                if (counts && column + k * step < op.n)
                    x[k] = load<V>(row + column + k * step);
            if (sizeof(T) < sizeof(float))
                __syncthreads();
#pragma unroll
            for (int k = 0; k < K; k++) {
                const size_t at = column + k * step;
                float logit[V], gradient[V];

#pragma unroll
                for (int v = 0; v < V; v++)
                    logit[v] = BIASED && counts && at + v < op.n ? x[k][v] + op.bias[at + v] : x[k][v];
                if (op.cap != 0)
#pragma unroll
                    for (int v = 0; v < V; v++)
                        logit[v] = capped(logit[v], op.cap);
#pragma unroll
                for (int v = 0; v < V; v++)
                    gradient[v] = expf(logit[v] - max) * factor - even - (at + v == label ? own : 0);
                if (op.cap != 0)
#pragma unroll
                    for (int v = 0; v < V; v++)
                        gradient[v] *= cap_slope(logit[v], op.cap);
#pragma unroll
                for (int v = 0; v < V; v++)
                    gradient[v] = counts && at + v < op.n ? gradient[v] : 0;
                if (at < op.logits_stride)
                    store(to + at, gradient);
            }
        }
    }
}

template <typename T, int V, bool BIASED>
static cudaError_t gradient(const struct cuda_queue *q, const struct device_cross_entropy *op)
{
    const dim3 grid(smaller(op->m, (size_t)q->n_processors * SOFTMAX_BLOCKS));

    return launch(gradient_rows<T, V, BIASED>, grid, softmax_threads(op->n, V, softmax_share<V>::K), 0, q->stream,
                  smoothed_of(op));
}

template <typename T> static cudaError_t gradient(const struct cuda_queue *q, const struct device_cross_entropy *op)
{
    const bool are_whole = is_whole(op->logits, op->logits_stride);

    if (op->bias)
        return are_whole ? gradient<T, 4, true>(q, op) : gradient<T, 1, true>(q, op);
    return are_whole ? gradient<T, 4, false>(q, op) : gradient<T, 1, false>(q, op);
}

cudaError_t cuda_cross_entropy_gradient(const struct cuda_queue *q, const struct device_cross_entropy *op)
{
    if (op->m == 0 || op->n == 0)
        return cudaSuccess;
    return TYPED(q, gradient)(q, op);
}

/* 0 without a label. */
static __device__ inline float error_of(const struct device_squared_error &op, size_t i)
{
    const float logit = op.logits[i * op.logits_stride] + (op.bias ? *op.bias : 0);
    float label;

    memcpy(&label, &op.labels[i], sizeof label);
    return op.labels[i] == UINT32_MAX ? 0 : logit - label;
}

static __global__ void squares(struct device_squared_error op)
{
    const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;

    if (i < op.m) {
        const double error = error_of(op, i);
        op.losses[i] = error * error;
    }
}

cudaError_t cuda_squared_error(const struct cuda_queue *q, const struct device_squared_error *op)
{
    if (op->m == 0)
        return cudaSuccess;
    return launch(squares, dim3((unsigned)pieces(op->m, ROW_THREADS)), ROW_THREADS, 0, q->stream, *op);
}

/* A block processes a row at a time. In 16 bits the first two elements lie on the logit, so all threads read it first. */
template <typename T> static __global__ void square_gradients(struct device_squared_error op)
{
    for (size_t i = blockIdx.x; i < op.m; i += gridDim.x) {
        const float gradient = 2 * error_of(op, i) * op.scale;
        T *to = (T *)(op.logits + i * op.logits_stride);

        __syncthreads();
        for (size_t j = threadIdx.x; j < op.logits_stride; j += blockDim.x)
            set(&to[j], j == 0 ? gradient : 0);
    }
}

cudaError_t cuda_squared_error_gradient(const struct cuda_queue *q, const struct device_squared_error *op)
{
    if (op->m == 0)
        return cudaSuccess;
    const dim3 grid(smaller(op->m, (size_t)q->n_processors * SOFTMAX_BLOCKS));
    const unsigned threads = whole_warps(smaller(op->logits_stride, SOFTMAX_THREADS));

    return launch(TYPED(q, square_gradients), grid, threads, 0, q->stream, *op);
}

/* The sum of a row's losses, in every lane of the warp. */
static __device__ inline double sum_losses(const double *losses, size_t n)
{
    double sum = 0;

    for (size_t t = threadIdx.x % WARP; t < n; t += WARP)
        sum += losses[t];
    for (int far = WARP / 2; far > 0; far /= 2)
        sum += __shfl_xor_sync(WHOLE_WARP, sum, far);
    return sum;
}

/* A block has a pair at a time, and each of its two warps a row. */
static __global__ void __launch_bounds__(2 * WARP) preferences(struct device_preference op)
{
    __shared__ double rewards[2];
    const unsigned mine = threadIdx.x / WARP;

    for (size_t i = blockIdx.x; i < op.n_pairs; i += gridDim.x) {
        const size_t row = 2 * i + mine;
        const double sum = -sum_losses(op.losses + row * op.n_tokens, op.n_tokens);

        if (threadIdx.x % WARP == 0) {
            op.log_p[row] = sum;
            rewards[mine] = op.preference.beta * (sum - (double)op.references[row]);
        }
        __syncthreads();
        const double wrong = 1 / (1 + exp(rewards[0] - rewards[1])), smoothing = op.preference.smoothing;
        const double scale = op.preference.beta * op.scale * ((1 - smoothing) * wrong - smoothing * (1 - wrong));
        for (size_t t = threadIdx.x % WARP; t < op.n_tokens; t += WARP)
            op.scales[row * op.n_tokens + t] = (float)(mine == 0 ? scale : -scale);
        __syncthreads(); /* the next pair overwrites the rewards */
    }
}

cudaError_t cuda_preference(const struct cuda_queue *q, const struct device_preference *op)
{
    if (op->n_pairs == 0)
        return cudaSuccess;
    return launch(preferences, dim3(smaller(op->n_pairs, (size_t)q->n_processors * SOFTMAX_BLOCKS)), 2 * WARP, 0,
                  q->stream, *op);
}
