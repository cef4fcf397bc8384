/* device/cuda/kernels/head_gate.cu - heads times the sigmoid of a gate each (proto/operation/call/head_gate.h).
 *
 * A head has a group of lanes, as in norms of heads, so that a warp has several heads and meets at no barrier: the sum
 * over a head's columns, which is its gate's gradient, is the lanes'. Forward and backward move each value once. */
#include "device/cuda/kernels/exponential.cuh"
#include "device/cuda/kernels/teams.cuh"

static __device__ inline float sigmoid(float x)
{
    return x != x ? x : __fdividef(1, 1 + exponential_of_minus(x)); /* a NaN stays */
}

template <typename T> struct gate_arrays {
    T *y, *dx, *d_gate;
    const T *x, *gate, *dy;
    unsigned m, n, lanes; /* heads of all rows, columns of a head */
};

template <typename T, int V>
static __global__ void __launch_bounds__(ROW_THREADS) head_gate_rows(const gate_arrays<T> op)
{
    const group team(op.lanes);

    for (unsigned i = team.first() + team.own(); i < op.m; i += team.all()) {
        const float opened = sigmoid(load<1>(op.gate + i)[0]);
        const size_t row = (size_t)i * op.n;

        for (unsigned j = team.thread() * V; j < op.n; j += team.n_threads() * V) {
            const pack<T, V> x = load<V>(op.x + row + j);
            float y[V];

#pragma unroll
            for (int v = 0; v < V; v++)
                y[v] = opened * x[v];
            store(op.y + row + j, y);
        }
    }
}

/* All lanes of a warp meet in the sum, also those that have no head. */
template <typename T, int V>
static __global__ void __launch_bounds__(ROW_THREADS) head_gate_gradient(const gate_arrays<T> op)
{
    group team(op.lanes);

    for (unsigned first = team.first(); first < op.m; first += team.all()) {
        const unsigned i = first + team.own(), n = i < op.m ? op.n : 0;
        const size_t row = (size_t)i * op.n;
        const float opened = n > 0 ? sigmoid(load<1>(op.gate + i)[0]) : 0;
        float sum[1] = {};

        for (unsigned j = team.thread() * V; j < n; j += team.n_threads() * V) {
            const pack<T, V> x = load<V>(op.x + row + j), dy = load<V>(op.dy + row + j);
            float dx[V];

#pragma unroll
            for (int v = 0; v < V; v++) {
                sum[0] += dy[v] * x[v];
                dx[v] = opened * dy[v];
            }
            store(op.dx + row + j, dx);
        }
        team.sum(sum);
        if (n > 0 && team.thread() == 0)
            set(op.d_gate + i, sum[0] * opened * (1 - opened));
    }
}

template <typename T, int V>
static cudaError_t run_head_gate(const struct cuda_queue *q, gate_arrays<T> op, bool is_backward)
{
    const struct teams teams = teams_of(smaller(pieces(op.n, V), WARP), 1, ROW_THREADS);
    const dim3 grid(teams.blocks(op.m, (size_t)q->n_processors * BLOCKS));

    op.lanes = teams.lanes;
    return launch(is_backward ? head_gate_gradient<T, V> : head_gate_rows<T, V>, grid, teams.threads, 0, q->stream, op);
}

template <typename T>
static cudaError_t head_gate(const struct cuda_queue *q, const struct device_head_gate *op, bool is_backward)
{
    const gate_arrays<T> arrays = {(T *)op->y,
                                   (T *)op->x_gradient,
                                   (T *)op->gate_gradient,
                                   (const T *)op->x,
                                   (const T *)op->gate,
                                   (const T *)op->y_gradient,
                                   (unsigned)(op->m * op->n_heads),
                                   (unsigned)op->n,
                                   0};
    const bool are_whole =
        is_whole(arrays.x, op->n) &&
        (is_backward ? is_whole(arrays.dy, op->n) && is_whole(arrays.dx, op->n) : is_whole(arrays.y, op->n));

    return are_whole ? run_head_gate<T, whole<T>::V>(q, arrays, is_backward)
                     : run_head_gate<T, 1>(q, arrays, is_backward);
}

static cudaError_t head_gate_either(const struct cuda_queue *q, const struct device_head_gate *op, bool is_backward)
{
    if (op->m == 0 || op->n_heads == 0 || op->n == 0)
        return cudaSuccess;
    return TYPED(q, head_gate)(q, op, is_backward);
}

cudaError_t cuda_head_gate(const struct cuda_queue *q, const struct device_head_gate *op)
{
    return head_gate_either(q, op, false);
}

cudaError_t cuda_head_gate_backward(const struct cuda_queue *q, const struct device_head_gate *op)
{
    return head_gate_either(q, op, true);
}
