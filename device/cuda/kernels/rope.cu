/* device/cuda/kernels/rope.cu - rotary positions: 2 values per element. Su et al., arXiv:2104.09864.
 *
 * A block processes a token at a time. Cosines and sines, one per pair of columns, are computed once for all heads. */
#include "device/cuda/kernels/pack.cuh"
#include "device/turn.h"

#include <assert.h>

enum { ROPE_PAIRS = DEVICE_MAX_ROTATED / 2 };

template <typename T> struct rotation {
    T *x;
    size_t n_tokens, stride, n_heads, head_width, m;
    uint64_t first;
    const uint32_t *positions; /* NULL: from `first` on */
    unsigned n_pairs, n_grown, period;
    float factor, growth;
    uint64_t turns[ROPE_PAIRS]; /* angle of each pair for one position */
};

/* What a thread rotates: V columns of both halves. Interleaved, V columns side by side: 2 V would be two loads, each of
 * half of every sector; a single column's neighbour is another load. */
template <int V, bool INTERLEAVED> struct turned {
    enum { PACKS_OF = INTERLEAVED && V > 1 ? 1 : 2, PAIRS = PACKS_OF * V / 2 };
};

template <typename T, int V, bool INTERLEAVED>
static __global__ void __launch_bounds__(ROW_THREADS) rotate(struct rotation<T> op)
{
    __shared__ float cosines[ROPE_PAIRS], sines[ROPE_PAIRS];
    using OF = turned<V, INTERLEAVED>;
    const unsigned packs = op.n_pairs / OF::PAIRS, step = INTERLEAVED ? V : op.n_pairs;

    for (size_t i = blockIdx.x; i < op.m; i += gridDim.x) {
        const uint64_t position = op.positions ? op.positions[i] : op.first + i % op.n_tokens;
        const float grown = op.n_grown ? 1 + op.growth * logf(1 + (float)(position / op.period)) : 1;
        T *token = op.x + i * op.stride;

        for (unsigned j = threadIdx.x; j < op.n_pairs; j += blockDim.x) {
            turn_circle(op.turns[j] * position, &cosines[j], &sines[j]);
            cosines[j] *= op.factor;
            sines[j] *= op.factor;
        }
        __syncthreads();
        for (unsigned at = threadIdx.x; at < op.n_heads * packs; at += blockDim.x) {
            const unsigned j = at % packs * OF::PAIRS;
            T *first = token + at / packs * op.head_width + (INTERLEAVED ? 2 * j : j);
            const float by = at / packs < op.n_grown ? grown : 1;
            pack<T, V> x[OF::PACKS_OF];
            float y[OF::PACKS_OF][V];

#pragma unroll
            for (int n = 0; n < OF::PACKS_OF; n++)
                x[n] = load<V>(first + n * step);
#pragma unroll
            for (int v = 0; v < OF::PAIRS; v++) {
                const int k = INTERLEAVED ? 2 * v : v, l = INTERLEAVED ? 2 * v + 1 : V + v; /* of all its values */
                const float a = x[k / V][k % V], b = x[l / V][l % V];
                const float c = cosines[j + v] * by, s = sines[j + v] * by;
                y[k / V][k % V] = a * c - b * s;
                y[l / V][l % V] = b * c + a * s;
            }
#pragma unroll
            for (int n = 0; n < OF::PACKS_OF; n++)
                store(first + n * step, y[n]);
        }
        __syncthreads(); /* the next token overwrites them */
    }
}

template <typename T> static cudaError_t rope(const struct cuda_queue *q, const struct device_rope *op)
{
    enum { V = whole<T>::V };
    struct rotation<T> r = {
    };

    r.x = (T *)op->x, r.n_tokens = op->n_tokens, r.stride = op->stride, r.first = op->first;
    r.positions = op->positions;
    r.n_heads = op->n_heads, r.head_width = op->head_width, r.m = op->n_rows * op->n_tokens;
    r.n_pairs = (unsigned)(op->n_rotated / 2);
    r.factor = op->factor > 0 ? op->factor : 1;
    r.n_grown = (unsigned)op->n_grown, r.growth = op->growth, r.period = op->period;
    for (unsigned j = 0; j < r.n_pairs; j++)
        r.turns[j] = turn_of(op->frequencies[j], op->inverse);
    const unsigned pairs = op->interleaved ? V / 2 : V; /* of a thread, of whole packs */
    const bool are_whole = is_whole(r.x, op->stride) && is_whole(r.x, op->head_width) && r.n_pairs % pairs == 0;
    const unsigned threads = whole_warps(smaller(op->n_heads * r.n_pairs / (are_whole ? pairs : 1), ROW_THREADS));
    const auto kernel = op->interleaved ? (are_whole ? rotate<T, V, true> : rotate<T, 1, true>)
                                        : (are_whole ? rotate<T, V, false> : rotate<T, 1, false>);

    return launch(kernel, dim3(smaller(r.m, (size_t)q->n_processors * BLOCKS)), threads, 0, q->stream, r);
}

/* ---- fixed positions ---- */

/* A thread has two columns of some tokens, and their angle. */
template <typename T>
static __global__ void __launch_bounds__(ROW_THREADS)
    add_sinusoid(T *y, size_t m, size_t n_tokens, size_t n, size_t first)
{
    const size_t half = n / 2, j = (size_t)blockIdx.x * blockDim.x + threadIdx.x;

    if (j >= half)
        return;
    const uint64_t turn = turn_of(half > 1 ? pow(10000., -(double)j / ((double)half - 1)) : 1, false);
    for (size_t i = blockIdx.y; i < m; i += gridDim.y) {
        T *sine = y + i * n + j, *cosine = sine + half;
        float c, s;

        turn_circle(turn * (first + i % n_tokens), &c, &s);
        set(sine, to_float(*sine) + s);
        set(cosine, to_float(*cosine) + c);
    }
}

template <typename T> static cudaError_t sinusoid(const struct cuda_queue *q, const struct device_sinusoid *op)
{
    const size_t m = op->n_rows * op->n_tokens, half = op->n / 2;
    const unsigned threads = whole_warps(smaller(half, ROW_THREADS));
    const size_t x = pieces(half, threads), y = pieces((size_t)q->n_processors * BLOCKS, x);

    return launch(add_sinusoid<T>, dim3((unsigned)x, smaller(m, smaller(y, 65535))), threads, 0, q->stream, (T *)op->y,
                  m, op->n_tokens, op->n, op->first);
}

cudaError_t cuda_sinusoid(const struct cuda_queue *q, const struct device_sinusoid *op)
{
    assert(op->n % 2 == 0);
    if (op->n_rows * op->n_tokens * op->n == 0)
        return cudaSuccess;
    return TYPED(q, sinusoid)(q, op);
}

cudaError_t cuda_rope(const struct cuda_queue *q, const struct device_rope *op)
{
    assert(op->n_rotated % 2 == 0 && op->n_rotated <= op->head_width && op->n_rotated <= DEVICE_MAX_ROTATED);
    if (op->n_rows * op->n_tokens * op->n_heads * op->n_rotated == 0)
        return cudaSuccess;
    return TYPED(q, rope)(q, op);
}
