/* device/cuda/kernels/xielu.cu - an activation with two trained numbers (proto/operation/call/xielu.h).
 *
 * Gradients of the two numbers are sums over all elements, in two phases: each block writes its own to the scratch, and
 * one block adds them up. Which elements a block has depends on their number and the device alone. */
#include "device/cuda/kernels/pack.cuh"

/* The two factors: of squares, and of exponentials. */
struct factors {
    float square, exponential, beta, bound;
};

static __device__ inline float softplus(float x)
{
    return x > 20 ? x : log1pf(expf(x));
}

template <typename T> static __device__ inline factors factors_of(const struct device_xielu &op)
{
    const float positive = to_float(*(const T *)op.positive), negative = to_float(*(const T *)op.negative);

    return {softplus(positive), op.beta + softplus(negative), op.beta, op.bound};
}

/* A block's turns: in each a thread has PACKS packs of V elements, blockDim.x * V apart. */
template <int V> static __device__ inline size_t first_pack()
{
    return ((size_t)blockIdx.x * blockDim.x * PACKS + threadIdx.x) * V;
}

template <int V> static __device__ inline size_t next_packs()
{
    return (size_t)gridDim.x * blockDim.x * PACKS * V;
}

template <typename T, int V>
static __global__ void __launch_bounds__(ROW_THREADS) xielu_forward(const struct device_xielu op)
{
    const size_t step = (size_t)blockDim.x * V;
    const factors of = factors_of<T>(op);

    for (size_t first = first_pack<V>(); first < op.n; first += next_packs<V>()) {
        pack<T, V> held[PACKS];

#pragma unroll
        for (int k = 0; k < PACKS; k++)
            if (first + k * step < op.n)
                held[k] = load<V>((const T *)op.x + first + k * step);
#pragma unroll
        for (int k = 0; k < PACKS; k++) {
            float y[V];

#pragma unroll
            for (int v = 0; v < V; v++) {
                const float x = held[k][v],
                            term = x > 0 ? of.square * x * x : of.exponential * (expm1f(fminf(x, of.bound)) - x);
                y[v] = term + of.beta * x;
            }
            if (first + k * step < op.n)
                store((T *)op.y + first + k * step, y);
        }
    }
}

/* lines (blocks, 2): sums of dy x^2 above 0, and of dy (expm1(min(x, bound)) - x) elsewhere. */
template <typename T, int V>
static __global__ void __launch_bounds__(ROW_THREADS) xielu_gradient(const struct device_xielu op, float *lines)
{
    enum { AT_ONCE = PACKS / 2 }; /* of each of two operands */
    __shared__ struct block_sums shared;
    const size_t step = (size_t)blockDim.x * V;
    const factors of = factors_of<T>(op);
    float sums[2] = {};

    for (size_t first = first_pack<V>(); first < op.n; first += next_packs<V>()) {
#pragma unroll
        for (int k = 0; k < PACKS; k += AT_ONCE) {
            pack<T, V> held[2][AT_ONCE];

#pragma unroll
            for (int i = 0; i < AT_ONCE; i++)
                if (first + (k + i) * step < op.n) {
                    held[0][i] = load<V>((const T *)op.x + first + (k + i) * step);
                    held[1][i] = load<V>((const T *)op.y_gradient + first + (k + i) * step);
                }
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) {
                float dx[V];

                if (first + (k + i) * step >= op.n)
                    continue;
#pragma unroll
                for (int v = 0; v < V; v++) {
                    const float x = held[0][i][v], dy = held[1][i][v], e = expm1f(fminf(x, of.bound));
                    const float below = of.exponential * (x < of.bound ? e : -1);
                    sums[0] += x > 0 ? dy * x * x : 0;
                    sums[1] += x > 0 ? 0 : dy * (e - x);
                    dx[v] = dy * ((x > 0 ? 2 * of.square * x : below) + of.beta);
                }
                store((T *)op.x_gradient + first + (k + i) * step, dx);
            }
        }
    }
    block_sum(&shared, 0, sums);
    if (threadIdx.x == 0)
        lines[2 * blockIdx.x] = sums[0], lines[2 * blockIdx.x + 1] = sums[1];
}

/* The derivative of softplus is the logistic function. */
template <typename T>
static __global__ void __launch_bounds__(ROW_THREADS)
    xielu_sums(const struct device_xielu op, const float *lines, unsigned n_lines)
{
    __shared__ struct block_sums shared;
    float sums[2] = {};

    for (unsigned i = threadIdx.x; i < n_lines; i += blockDim.x)
        sums[0] += lines[2 * i], sums[1] += lines[2 * i + 1];
    block_sum(&shared, 0, sums);
    if (threadIdx.x == 0 && op.of_positive)
        *op.of_positive += sums[0] / (1 + expf(-to_float(*(const T *)op.positive)));
    if (threadIdx.x == 0 && op.of_negative)
        *op.of_negative += sums[1] / (1 + expf(-to_float(*(const T *)op.negative)));
}

static unsigned blocks_of(const struct cuda_queue *q, size_t n, size_t v)
{
    return smaller(pieces(n, ROW_THREADS * PACKS * v), (size_t)q->n_processors * BLOCKS);
}

template <typename T> static cudaError_t forward(const struct cuda_queue *q, const struct device_xielu *op)
{
    const bool are_whole = is_whole((const T *)op->x, op->n) && is_whole((const T *)op->y, op->n);
    const size_t v = are_whole ? whole<T>::V : 1;

    return launch(are_whole ? xielu_forward<T, whole<T>::V> : xielu_forward<T, 1>, dim3(blocks_of(q, op->n, v)),
                  ROW_THREADS, 0, q->stream, *op);
}

template <typename T> static cudaError_t backward(const struct cuda_queue *q, const struct device_xielu *op)
{
    const bool are_whole = is_whole((const T *)op->x, op->n) && is_whole((const T *)op->y_gradient, op->n) &&
                           is_whole((const T *)op->x_gradient, op->n);
    const unsigned blocks = blocks_of(q, op->n, are_whole ? whole<T>::V : 1);
    float *const lines = (float *)q->scratch;
    const cudaError_t rc = launch(are_whole ? xielu_gradient<T, whole<T>::V> : xielu_gradient<T, 1>, dim3(blocks),
                                  ROW_THREADS, 0, q->stream, *op, lines);

    if (rc != cudaSuccess || (!op->of_positive && !op->of_negative))
        return rc;
    return launch(xielu_sums<T>, dim3(1), ROW_THREADS, 0, q->stream, *op, (const float *)lines, blocks);
}

cudaError_t cuda_xielu(const struct cuda_queue *q, const struct device_xielu *op)
{
    return op->n == 0 ? cudaSuccess : TYPED(q, forward)(q, op);
}

cudaError_t cuda_xielu_backward(const struct cuda_queue *q, const struct device_xielu *op)
{
    return op->n == 0 ? cudaSuccess : TYPED(q, backward)(q, op);
}
