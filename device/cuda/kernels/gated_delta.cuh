/* device/cuda/kernels/gated_delta.cuh - the gated delta rule (proto/operation/call/gated_delta.h): what its kernels share.
 *
 * A chunk's tokens are the rows of squares; heads are cut into strips of 64 columns. A strip of values needs no other
 * one: the columns of a state go through a document by themselves. A strip of keys is a part of the sums of each product
 * along keys. Nothing is read of tokens outside of the chunk, whose rows beyond the last token are zeros, so bits depend
 * on the document alone. */
#ifndef DEVICE_CUDA_KERNELS_GATED_DELTA_CUH
#define DEVICE_CUDA_KERNELS_GATED_DELTA_CUH

#include "device/cuda/kernels/gated_delta_tile.cuh"

enum {
    CHUNK = DEVICE_DELTA_CHUNK,
    DOCUMENT_SPAN = 256, /* documents that begin in so many tokens are one block's, one after the other */
    BLOCK = 16,          /* rows of a block of forward substitution */
};
static_assert((int)CHUNK == (int)SIDE, "a chunk's tokens are a square's rows");

/* Scratch of backward, by token and head. */
struct gated_delta_scratch {
    float *scores, *solved;        /* (m, n_heads, CHUNK): gradients of q k^T and of L, times the decays */
    float *change, *change_slope;  /* (m, n_heads, value_width): d, and the gradient of what it is solved from */
    float *states;                 /* shaped as states: their gradients */
    float *query_dots, *key_dots;  /* (m, n_heads): normalised vectors times their gradients */
    float *a_log_terms, *dt_terms; /* (m, n_heads): of the sums over tokens */
};

template <typename T> struct gated_delta {
    const T *qkv, *gates, *a_log, *dt_bias, *y_gradient;
    T *qkv_gradient, *gates_gradient;
    float *states;
    const uint32_t *positions; /* NULL: a row is one document */
    struct gated_delta_scratch scratch;
    size_t columns; /* of qkv */
    int n_rows, n_tokens, n_slots, n_heads, n_key_heads, group, key_width, value_width;
    float query_scale;
    uint32_t doubled, whole; /* whole: all is read in packs of four numbers; words: no gaps in a launch's copy */

    __device__ uint32_t position(int row, int token) const
    {
        return positions ? positions[(size_t)row * n_tokens + token] : (uint32_t)token;
    }

    /* A part of a token's row in an array like qkv: columns from strip `strip` on of a head whose columns begin at `first`. */
    template <typename U>
    __device__ array_part<U> part(U *array, size_t stride, size_t token, size_t first, int strip, int width,
                                  int n) const
    {
        return {array + token * stride + first + (size_t)strip * SIDE, stride, n, min(width - strip * SIDE, (int)SIDE),
                whole != 0};
    }

    template <typename U> __device__ array_part<U> queries(U *from, size_t token, int n, int key_head, int strip) const
    {
        return part(from, columns, token, (size_t)key_head * key_width, strip, key_width, n);
    }

    template <typename U> __device__ array_part<U> keys(U *from, size_t token, int n, int key_head, int strip) const
    {
        return part(from, columns, token, (size_t)(n_key_heads + key_head) * key_width, strip, key_width, n);
    }

    template <typename U> __device__ array_part<U> values(U *from, size_t token, int n, int head, int strip) const
    {
        return part(from, columns, token, 2 * (size_t)n_key_heads * key_width + (size_t)head * value_width, strip,
                    value_width, n);
    }

    /* Of y, and of arrays shaped as it. */
    template <typename U> __device__ array_part<U> outputs(U *from, size_t token, int n, int head, int strip) const
    {
        return part(from, (size_t)n_heads * value_width, token, (size_t)head * value_width, strip, value_width, n);
    }

    template <typename U> __device__ array_part<U> pairs(U *from, size_t token, int n, int head) const
    {
        return {from + (token * n_heads + head) * CHUNK, (size_t)n_heads * CHUNK, n, CHUNK, true};
    }

    /* Strips of the state, or its gradient, before a token that begins a chunk but no document. */
    template <typename U>
    __device__ array_part<U> state(U *from, int row, int token, int head, int key_strip, int value_strip) const
    {
        U *const at = from + (((size_t)row * n_slots + token / CHUNK - 1) * n_heads + head) * key_width * value_width;

        return {at + (size_t)key_strip * SIDE * value_width + value_strip * SIDE, (size_t)value_width,
                min(key_width - key_strip * SIDE, (int)SIDE), min(value_width - value_strip * SIDE, (int)SIDE),
                whole != 0};
    }

    __device__ int key_strips() const
    {
        return (key_width + SIDE - 1) / SIDE;
    }

    __device__ int value_strips() const
    {
        return (value_width + SIDE - 1) / SIDE;
    }
};

/* ---- documents and chunks; all threads of a warp must be here ---- */

/* The first token from `from` on whose position has none of the mask's bits: all bits find documents, CHUNK - 1 chunks. */
template <typename T>
__device__ inline int next_begin(const gated_delta<T> &d, int row, int from, int to, uint32_t mask)
{
    for (; from < to; from += WARP) {
        const int token = from + lane_index();
        const unsigned begun = __ballot_sync(WHOLE_WARP, token < to && (d.position(row, token) & mask) == 0);
        if (begun)
            return from + __ffs((int)begun) - 1;
    }
    return to;
}

struct chunk {
    int row, token, n;      /* its first token in its row; how many it has */
    bool is_first, is_last; /* of its document */
    size_t at;              /* the first token, of all rows */
};

template <typename T> __device__ inline chunk chunk_of(const gated_delta<T> &d, int row, int token)
{
    const int most = min(token + CHUNK, d.n_tokens), end = next_begin(d, row, token + 1, most, ~0u);

    return {row,
            token,
            end - token,
            d.position(row, token) == 0,
            end == d.n_tokens || d.position(row, end) == 0,
            (size_t)row * d.n_tokens + token};
}

/* The strip of blocks that a block is, and its part of the rows: tokens from .. to. */
template <typename T> __device__ inline int span_of(const gated_delta<T> &d, int span, int *from, int *to)
{
    const int spans = (d.n_tokens + span - 1) / span;

    *from = (int)(blockIdx.x % spans) * span;
    *to = min(*from + span, d.n_tokens);
    return (int)(blockIdx.x / spans);
}

/* ---- what a chunk's tokens have ---- */

struct chunk_rows {
    float high[SIDE], low[SIDE];   /* G: the sum of g up to a token */
    float decay[SIDE], left[SIDE]; /* e^G; e^(G[last] - G) */
    float beta[SIDE];
    float forgotten[SIDE]; /* beta's slope over b, over beta */
    float g[SIDE], softplus_slope[SIDE];
    float query[SIDE], key[SIDE]; /* factors that normalise them */

    /* e^(G[i] - G[j]) */
    __device__ float between(int i, int j) const
    {
        return expf((high[i] - high[j]) + (low[i] - low[j]));
    }
};

/* A token's g and beta, and the slopes of their functions. */
struct delta_gates {
    float g, softplus_slope, beta, forgotten;
};

template <typename T> __device__ inline delta_gates gates_of(const gated_delta<T> &d, size_t token, int head)
{
    const T *const at = d.gates + token * 2 * d.n_heads + head;
    const float x = number_at(at) + number_at(d.dt_bias + head), b = number_at(at + d.n_heads);
    const float softplus = fmaxf(x, 0) + log1pf(expf(-fabsf(x)));

    return {-expf(number_at(d.a_log + head)) * softplus, 1 / (1 + expf(-x)), (d.doubled ? 2.0f : 1.0f) / (1 + expf(-b)),
            1 / (1 + expf(b))};
}

/* By one warp, of which each lane has two tokens side by side. Sums are double: after tokens that forget much their
 * differences would be lost in fp32. */
template <typename T>
__device__ inline void load_gates(chunk_rows *rows, const gated_delta<T> &d, const chunk &c, int head)
{
    const int lane = lane_index();
    double sums[2] = {0, 0};

#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int r = 2 * lane + i;
        const delta_gates x = r < c.n ? gates_of(d, c.at + r, head) : delta_gates{0, 0, 0, 0};

        sums[i] = (i > 0 ? sums[0] : 0) + (double)x.g;
        rows->g[r] = x.g, rows->softplus_slope[r] = x.softplus_slope;
        rows->beta[r] = x.beta, rows->forgotten[r] = x.forgotten;
    }
    double all = sums[1];
    for (unsigned far = 1; far < WARP; far *= 2) {
        const double before = __shfl_up_sync(WHOLE_WARP, all, far);
        all += lane >= (int)far ? before : 0;
    }
    const double before = __shfl_up_sync(WHOLE_WARP, all, 1);
    sums[0] += lane > 0 ? before : 0;
    sums[1] = all;
    const double total = __shfl_sync(WHOLE_WARP, (c.n - 1) % 2 ? sums[1] : sums[0], (c.n - 1) / 2);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int r = 2 * lane + i;
        rows->high[r] = (float)sums[i], rows->low[r] = (float)(sums[i] - (double)(float)sums[i]);
        rows->decay[r] = expf((float)sums[i]), rows->left[r] = r < c.n ? expf((float)(total - sums[i])) : 0;
    }
}

/* The sum of squares of a vector of keys' width, by a warp. */
template <typename T> __device__ inline float squares_of(const gated_delta<T> &d, const T *x)
{
    float sum = 0;

    for (int i = lane_index(); i < d.key_width; i += WARP) {
        const float at = number_at(x + i);
        sum = fmaf(at, at, sum);
    }
    return warp_sum(sum);
}

/* The tokens' factors of a head's queries and keys, by all warps. */
template <typename T>
__device__ inline void load_norms(chunk_rows *rows, const gated_delta<T> &d, const chunk &c, int key_head)
{
    for (int r = (int)threadIdx.x / WARP; r < SIDE; r += SQUARE_THREADS / WARP) {
        float query = 0, key = 0; /* of rows beyond the last token */

        if (r < c.n) {
            const T *const from = d.queries(d.qkv, c.at + r, 1, key_head, 0).first;
            query = d.query_scale / sqrtf(squares_of(d, from) + 1e-6f);
            key = 1 / sqrtf(squares_of(d, from + (size_t)d.n_key_heads * d.key_width) + 1e-6f);
        }
        if (lane_index() == 0)
            rows->query[r] = query, rows->key[r] = key;
    }
}

/* All of a chunk's rows of a head of values; ends with a barrier. */
template <typename T>
__device__ inline void load_rows(chunk_rows *rows, const gated_delta<T> &d, const chunk &c, int head)
{
    __syncthreads(); /* the earlier chunk's rows have been read */
    if (threadIdx.x < WARP)
        load_gates(rows, d, c, head);
    load_norms(rows, d, c, head / d.group);
    __syncthreads();
}

/* Strips of a chunk's queries and keys, as factors, as they are: products of 16-bit numbers are exact, and are normalised
 * after they have been summed. Where tokens repeat, an error of a key's square would grow with each. */
template <typename P, typename T>
__device__ inline void fetch_raw_queries(square *to, const gated_delta<T> &d, const chunk &c, int key_head, int strip)
{
    fetch<P>(to, d.queries(d.qkv, c.at, c.n, key_head, strip), unscaled);
}

template <typename P, typename T>
__device__ inline void fetch_raw_keys(square *to, const gated_delta<T> &d, const chunk &c, int key_head, int strip)
{
    fetch<P>(to, d.keys(d.qkv, c.at, c.n, key_head, strip), unscaled);
}

/* The same, normalised. */
template <typename P, typename T>
__device__ inline void fetch_queries(square *to, const gated_delta<T> &d, const chunk &c, const chunk_rows *rows,
                                     int key_head, int strip)
{
    fetch<P>(to, d.queries(d.qkv, c.at, c.n, key_head, strip), [&](int r) { return rows->query[r]; });
}

template <typename P, typename T>
__device__ inline void fetch_keys(square *to, const gated_delta<T> &d, const chunk &c, const chunk_rows *rows,
                                  int key_head, int strip)
{
    fetch<P>(to, d.keys(d.qkv, c.at, c.n, key_head, strip), [&](int r) { return rows->key[r]; });
}

/* ---- the triangle of a chunk ---- */

/* k k^T becomes L, 0 on and above the diagonal. */
template <typename P> __device__ inline void triangle_of(float (&pairs)[SUMS], const chunk_rows *rows)
{
#pragma unroll
    for (int i = 0; i < SUMS; i++) {
        const int r = P::row(i), column = P::column(i);
        pairs[i] =
            column < r ? rows->beta[r] * rows->between(r, column) * (rows->key[r] * pairs[i] * rows->key[column]) : 0;
    }
}

/* q k^T becomes the weights of d in y, 0 above the diagonal. */
template <typename P> __device__ inline void weights_of(float (&pairs)[SUMS], const chunk_rows *rows)
{
#pragma unroll
    for (int i = 0; i < SUMS; i++) {
        const int r = P::row(i), column = P::column(i);
        pairs[i] = column <= r ? rows->between(r, column) * (rows->query[r] * pairs[i] * rows->key[column]) : 0;
    }
}

template <typename P> __device__ inline void scale_rows(float (&x)[SUMS], const float (&by)[SIDE])
{
#pragma unroll
    for (int i = 0; i < SUMS; i++)
        x[i] *= by[P::row(i)];
}

/* Values become what d is solved from; keys_state: keys times the state. */
template <typename P>
__device__ inline void solved_from(float (&values)[SUMS], const float (&keys_state)[SUMS], const chunk_rows *rows)
{
#pragma unroll
    for (int i = 0; i < SUMS; i++)
        values[i] = rows->beta[P::row(i)] * (values[i] - rows->decay[P::row(i)] * keys_state[i]);
}

/* The blocks on the diagonal of I + L become their inverses, in place: 16 threads each, of a column. */
__device__ inline void invert_diagonal(square *x)
{
    const int first = (int)threadIdx.x / BLOCK * BLOCK, column = (int)threadIdx.x % BLOCK;
    float own[BLOCK];

    if (threadIdx.x < SIDE)
#pragma unroll
        for (int i = 0; i < BLOCK; i++) {
            own[i] = i == column ? 1 : 0;
#pragma unroll
            for (int j = 0; j < i; j++)
                own[i] = fmaf(-x->at[first + i][first + j], own[j], own[i]);
        }
    __syncthreads();
    if (threadIdx.x < SIDE)
#pragma unroll
        for (int i = 0; i < BLOCK; i++)
            x->at[first + i][first + column] = own[i];
    __syncthreads();
}

/* sums[j] = the thread's number of blocks (row, first ..) times blocks (first .., j), for the blocks j left of it. */
__device__ inline void block_products(float (&sums)[SIDE / BLOCK - 1], const square *x, int block, bool is_solution)
{
    const int row = block * BLOCK + (int)threadIdx.x / BLOCK, column = (int)threadIdx.x % BLOCK;

#pragma unroll
    for (int j = 0; j < SIDE / BLOCK - 1; j++) {
        const int first = is_solution ? block : j, end = is_solution ? block + 1 : block;

        sums[j] = 0;
        if (j < block)
            for (int k = first * BLOCK; k < end * BLOCK; k++)
                sums[j] = fmaf(x->at[row][k], x->at[k][j * BLOCK + column], sums[j]);
    }
}

__device__ inline void put_blocks(square *x, int block, const float (&sums)[SIDE / BLOCK - 1], float sign)
{
    const int row = block * BLOCK + (int)threadIdx.x / BLOCK, column = (int)threadIdx.x % BLOCK;

    __syncthreads();
#pragma unroll
    for (int j = 0; j < SIDE / BLOCK - 1; j++)
        if (j < block)
            x->at[row][j * BLOCK + column] = sign * sums[j];
    __syncthreads();
}

/* L becomes the inverse of I + L, as a factor: forward substitution, block by block. With X the blocks that are solved,
 * X[i][j] = -X[i][i] (sum over k of L[i][k] X[k][j]). Begins and ends with a barrier. */
template <typename P> __device__ inline void invert(square *to, const float (&triangle)[SUMS])
{
    float sums[SIDE / BLOCK - 1], own[SUMS];

    __syncthreads();
#pragma unroll
    for (int i = 0; i < SUMS; i++)
        to->at[P::row(i)][P::column(i)] = triangle[i];
    __syncthreads();
    invert_diagonal(to);
#pragma unroll 1
    for (int block = 1; block < SIDE / BLOCK; block++) {
        block_products(sums, to, block, false);
        put_blocks(to, block, sums, 1);
        block_products(sums, to, block, true);
        put_blocks(to, block, sums, -1);
    }
#pragma unroll
    for (int i = 0; i < SUMS; i++)
        own[i] = to->at[P::row(i)][P::column(i)];
    __syncthreads();
    P::store(to, own);
    __syncthreads();
}

/* ---- launchers ---- */

inline struct gated_delta_scratch gated_delta_scratch_of(const struct device_gated_delta *op)
{
    const size_t m = op->n_rows * op->n_tokens * op->n_heads;
    float *at = (float *)op->scratch;
    const auto take = [&](size_t n) {
        float *const taken = at;
        at += n;
        return taken;
    };
    struct gated_delta_scratch s;

    s.scores = take(m * CHUNK), s.solved = take(m * CHUNK);
    s.change = take(m * op->value_width), s.change_slope = take(m * op->value_width);
    s.states = take(op->n_rows * device_gated_delta_slots(op->n_tokens) * device_gated_delta_state(op));
    s.query_dots = take(m), s.key_dots = take(m), s.a_log_terms = take(m), s.dt_terms = take(m);
    return s;
}

/* True if all arrays can be read in packs of four numbers. */
template <typename T> inline bool gated_delta_is_whole(const struct device_gated_delta *op)
{
    const uintptr_t values =
        (uintptr_t)op->qkv | (uintptr_t)op->y | (uintptr_t)op->y_gradient | (uintptr_t)op->qkv_gradient;
    const uintptr_t numbers = (uintptr_t)op->states | (uintptr_t)op->scratch;

    return (op->key_width | op->value_width) % 4 == 0 && values % (4 * sizeof(T)) == 0 && numbers % PACK_BYTES == 0;
}

template <typename T> inline gated_delta<T> gated_delta_of(const struct device_gated_delta *op)
{
    gated_delta<T> d = {};

    d.qkv = (const T *)op->qkv, d.gates = (const T *)op->gates;
    d.a_log = (const T *)op->a_log, d.dt_bias = (const T *)op->dt_bias;
    d.y_gradient = (const T *)op->y_gradient;
    d.qkv_gradient = (T *)op->qkv_gradient, d.gates_gradient = (T *)op->gates_gradient;
    d.states = op->states, d.positions = op->positions;
    d.columns = device_gated_delta_columns(op);
    d.n_rows = (int)op->n_rows, d.n_tokens = (int)op->n_tokens, d.n_slots = (int)device_gated_delta_slots(op->n_tokens);
    d.n_heads = (int)op->n_heads, d.n_key_heads = (int)op->n_key_heads;
    d.group = (int)(op->n_heads / op->n_key_heads);
    d.key_width = (int)op->key_width, d.value_width = (int)op->value_width;
    d.query_scale = (float)(1 / sqrt((double)op->key_width));
    d.doubled = op->doubled, d.whole = gated_delta_is_whole<T>(op);
    return d;
}

/* Blocks for so many tokens of each row, by what else there is. */
inline dim3 gated_delta_grid(const struct device_gated_delta *op, size_t span, size_t others)
{
    return dim3((unsigned)(op->n_rows * pieces(op->n_tokens, span)), (unsigned)others);
}

#endif
