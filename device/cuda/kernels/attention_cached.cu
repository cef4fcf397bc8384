/* device/cuda/kernels/attention_cached.cu - attention of a few queries over cached keys and values.
 *
 * The cache is (2, n_kv_heads, n_positions, head_width): a head's keys, or values, are read sequentially. Positions
 * are processed in chunks counted from 0, and the chunks' results are merged in order, from the chunk of the first key
 * that the query sees. With few queries each chunk has
 * a block of its own, so that the whole device reads ("flash decoding", Dao et al., 2023), and a second kernel merges.
 * With many queries a block runs over all chunks. Neither this choice nor the other queries of a call change a bit of a
 * query's output, so the division of tokens into calls does not either.
 *
 * A call's own keys and values are read from their source, so no block waits until others append them to the cache. */
#include "device/cuda/kernels/buckets.cuh"

#define LOG2_E 1.4426950408889634

enum { CHUNK = 128, THREADS = 128, WARPS = THREADS / WARP, LANES = 8, KEYS_AT_ONCE = CHUNK / (THREADS / LANES) };

struct cached {
    struct device_attention_cached op;
    size_t head_width, group, kv_width, stride; /* as in attention.cuh */
    float to_log2;
    float cap;                    /* bound of scores as exponents of 2; 0: none */
    unsigned alibi;               /* device_alibi_whole; 0: no ALiBi */
    size_t window;                /* keys that a query sees at most */
    size_t first_chunk, n_chunks; /* the chunks that any query sees */
    float *partial; /* (n_tokens, n_heads, n_chunks, head_width + 2): out, maximum, sum; NULL: blocks merge */
};

/* The chunk of the first key that the query at a position sees. */
__host__ __device__ inline size_t first_chunk(size_t position, size_t window)
{
    return position < window ? 0 : (position + 1 - window) / CHUNK;
}

/* V values in one access. */
template <typename T, int V> struct alignas(V * sizeof(T)) piece {
    T at[V];
};

template <int V, typename T> __device__ inline piece<T, V> load(const T *from)
{
    return *(const piece<T, V> *)from;
}

/* Running softmax of one query, without the outputs. */
struct softmax {
    float max, sum; /* maximum of scores as exponents of 2; sum of exponentials relative to it */
};

/* The factors of both parts when `chunk` is merged into `all`. */
__device__ inline void merge(softmax *all, const softmax &chunk, float factors[2])
{
    const float max = fmaxf(all->max, chunk.max);

    factors[0] = exp2f(all->max - max);
    factors[1] = exp2f(chunk.max - max);
    all->max = max;
    all->sum = fmaf(chunk.sum, factors[1], all->sum * factors[0]);
}

/* The head's sink, merged behind all chunks: the factor of the outputs so far. 1 without one. */
template <typename T> __device__ inline float merge_sink(const cached &c, size_t head, softmax *all)
{
    float factors[2];

    if (!c.op.sinks)
        return 1;
    merge(all, {to_float(((const T *)c.op.sinks)[head]) * (float)LOG2_E, 1}, factors);
    return factors[0];
}

/* Address in the cache of a head's keys (part 0) or values (1) at a position. */
__device__ inline size_t place(const cached &c, size_t head, size_t position, int part)
{
    return part * c.kv_width * c.op.n_positions + (head * c.op.n_positions + position) * c.head_width;
}

/* These keys or values. */
template <typename T> __device__ inline const T *kept(const cached &c, size_t head, size_t position, int part)
{
    const struct device_attention_cached &op = c.op;

    if (position >= op.first)
        return (const T *)op.qkv + (position - op.first) * c.stride + op.width + part * c.kv_width +
               head * c.head_width;
    return (const T *)op.cache + place(c, head, position, part);
}

template <typename T, int V> __device__ inline void append(const cached &c, size_t head, size_t token)
{
    const size_t position = c.op.first + token;

    for (size_t i = threadIdx.x * V; i < 2 * c.head_width; i += THREADS * V) {
        const size_t part = i / c.head_width, at = i % c.head_width;
        T *to = (T *)c.op.cache + place(c, head, position, (int)part) + at;
        *(piece<T, V> *)to = load<V>(kept<T>(c, head, position, (int)part) + at);
    }
}

/* A block's shared memory, by N queries. */
template <int N> struct room {
    float *q, *out, *parts; /* (N, head_width), times to_log2; outputs so far; (THREADS, V) partial sums */
    float (*scores)[CHUNK];
    softmax *all, *chunk; /* (N) */

    __device__ room(unsigned char *bytes, size_t head_width)
    {
        scores = (float(*)[CHUNK])bytes;
        all = (softmax *)(scores + N), chunk = all + N;
        parts = (float *)(chunk + N);
        q = parts + THREADS * 8, out = q + N * head_width;
    }
    static size_t bytes(size_t head_width)
    {
        return N * (CHUNK * sizeof(float) + 2 * sizeof(softmax)) + (THREADS * 8 + 2 * N * head_width) * sizeof(float);
    }
};

/* Scores of n keys from `first` on: LANES threads per key, several keys in flight per thread. */
template <typename T, int V, int N>
__device__ inline void score(const cached &c, room<N> *room, size_t head, size_t first, int n)
{
    const int group = (int)threadIdx.x / LANES, lane = (int)threadIdx.x % LANES;
    float sums[KEYS_AT_ONCE][N] = {};

    for (size_t at = lane * V; at < c.head_width; at += LANES * V) {
        piece<T, V> keys[KEYS_AT_ONCE];
#pragma unroll
        for (int i = 0; i < KEYS_AT_ONCE; i++)
            keys[i] = load<V>(kept<T>(c, head, first + min(group * KEYS_AT_ONCE + i, n - 1), 0) + at);
#pragma unroll
        for (int v = 0; v < V; v++)
#pragma unroll
            for (int query = 0; query < N; query++) {
                const float q = room->q[query * c.head_width + at + v];
#pragma unroll
                for (int i = 0; i < KEYS_AT_ONCE; i++)
                    sums[i][query] = fmaf(q, to_float(keys[i].at[v]), sums[i][query]);
            }
    }
#pragma unroll
    for (int i = 0; i < KEYS_AT_ONCE; i++)
#pragma unroll
        for (int query = 0; query < N; query++) {
            for (int far = LANES / 2; far > 0; far /= 2)
                sums[i][query] += __shfl_xor_sync(WHOLE_WARP, sums[i][query], far);
            if (lane == 0)
                room->scores[query][group * KEYS_AT_ONCE + i] = sums[i][query];
        }
}

/* Numbers of a query and of a key, counted from a chunk's first key. */
__device__ inline bool is_seen(const cached &c, int query, int key)
{
    return key <= query && query - key < (int)c.window;
}

/* True if the query sees any key of the chunk. */
__device__ inline bool sees_chunk(const cached &c, int query)
{
    return query >= 0 && query - (CHUNK - 1) < (int)c.window;
}

/* Bounds the scores of all keys, or adds the bias or ALiBi's term to them, also of unseen ones. at: of the first query,
 * counted from the chunk's first key. A thread has the same scores here and in exponentiate(). */
template <int N> __device__ inline void change_scores(const cached &c, room<N> *room, size_t head, int at)
{
    const float slope = c.alibi ? alibi_slope(c.alibi, (unsigned)head) * (float)LOG2_E : 0;

    for (int query = (int)threadIdx.x / WARP; query < N; query += WARPS)
        for (int key = (int)threadIdx.x % WARP; key < CHUNK; key += WARP) {
            float *score = &room->scores[query][key];
            if (c.cap > 0) {
                *score = c.cap * tanhf(*score / c.cap);
                continue;
            }
            if (c.alibi) {
                *score = fmaf(slope, (float)(key - at - query), *score);
                continue;
            }
            *score = fmaf(c.op.bias[bucket_of(&c.op.buckets, key - at - query) * c.op.n_heads + head], (float)LOG2_E,
                          *score);
        }
}

/* Scores become exponentials; 0 for unseen keys. at: of the first query, counted from the chunk's first key. */
template <int N> __device__ inline void exponentiate(const cached &c, room<N> *room, int at)
{
    const int lane = (int)threadIdx.x % WARP;

    for (int query = (int)threadIdx.x / WARP; query < N; query += WARPS) {
        float x[CHUNK / WARP], max = -INFINITY, sum = 0;

        for (int i = 0; i < CHUNK / WARP; i++) {
            const int key = lane + i * WARP;
            x[i] = is_seen(c, at + query, key) ? room->scores[query][key] : -INFINITY;
            max = fmaxf(max, x[i]);
        }
        max = warp_max(max);
        for (int i = 0; i < CHUNK / WARP; i++) {
            x[i] = exp2f(x[i] - max);
            sum += x[i];
            room->scores[query][lane + i * WARP] = x[i];
        }
        room->chunk[query] = {max, warp_sum(sum)};
    }
}

/* The chunk's outputs, passed to `take`; at_first: of the first query, counted from the chunk's first key. All threads
 * that are available share each piece. */
template <typename T, int V, int N, typename Take>
__device__ inline void weigh(const cached &c, room<N> *room, size_t head, size_t first, int at_first, int n, Take take)
{
    for (size_t begin = 0; begin < c.head_width; begin += THREADS * V) {
        const int width = (int)min(c.head_width - begin, (size_t)THREADS * V), pieces = width / V;
        const int groups = min(THREADS / pieces, CHUNK), group = (int)threadIdx.x / pieces;
        const size_t at = begin + (int)threadIdx.x % pieces * V;
        float sums[N][V] = {};

#pragma unroll 4
        for (int key = group; group < groups && key < n; key += groups) {
            const piece<T, V> values = load<V>(kept<T>(c, head, first + key, 1) + at);
#pragma unroll
            for (int query = 0; query < N; query++)
#pragma unroll
                for (int v = 0; v < V; v++)
                    if (is_seen(c, at_first + query, key)) /* unseen values may be NaNs */
                        sums[query][v] = fmaf(room->scores[query][key], to_float(values.at[v]), sums[query][v]);
        }
#pragma unroll
        for (int query = 0; query < N; query++) {
            for (int v = 0; v < V; v++)
                room->parts[threadIdx.x * V + v] = sums[query][v];
            __syncthreads();
            for (int i = (int)threadIdx.x; i < width; i += THREADS) {
                float sum = 0;
                for (int g = 0; g < groups; g++)
                    sum += room->parts[g * width + i];
                take(query, begin + i, sum);
            }
            __syncthreads();
        }
    }
}

/* N queries of a head: one chunk for the merging kernel, or all of them. A kernel for calls with a bias, a cap or
 * ALiBi and without would take up to 208 registers a thread for both; without, 168 are enough. */
template <typename T, int V, int N, bool CHANGES> __global__ void __launch_bounds__(THREADS, 1) attend(const cached c)
{
    const bool splits = c.partial != NULL;
    const size_t n_blocks = splits ? c.n_chunks : 1, of_chunks = blockIdx.x % n_blocks;
    const size_t head = blockIdx.x / n_blocks % c.op.n_heads, query = blockIdx.x / n_blocks / c.op.n_heads * N;
    const int n_queries = (int)min((size_t)N, c.op.n_tokens - query);
    const size_t position = c.op.first + query,
                 end = position + n_queries; /* end: of the keys that the last query sees */
    const size_t begin = first_chunk(position, c.window);
    const size_t of_keys = head / c.group;
    const T *q = (const T *)c.op.qkv + query * c.stride + head * c.head_width;
    room<N> room(shared_memory<unsigned char>(), c.head_width);

    for (int i = 0; of_chunks == 0 && head % c.group == 0 && i < n_queries; i++)
        append<T, V>(c, of_keys, query + i);
    for (size_t i = threadIdx.x; i < N * c.head_width; i += THREADS) {
        const size_t of = i / c.head_width;
        room.q[i] = of < (size_t)n_queries ? to_float(q[of * c.stride + i % c.head_width]) * c.to_log2 : 0;
        room.out[i] = 0;
    }
    if (threadIdx.x < N)
        room.all[threadIdx.x] = {-INFINITY, 0};
    for (size_t chunk = c.first_chunk + of_chunks; chunk * CHUNK < end; chunk += n_blocks) {
        const size_t first = chunk * CHUNK;
        const int n = (int)min((size_t)CHUNK, end - first), at_first = (int)position - (int)first;

        if (chunk < begin)
            continue;

        __syncthreads();
        score<T, V, N>(c, &room, of_keys, first, n);
        __syncthreads();
        if (CHANGES)
            change_scores<N>(c, &room, head, at_first);
        exponentiate<N>(c, &room, at_first);
        __syncthreads();
        weigh<T, V, N>(c, &room, of_keys, first, at_first, n, [&](int of, size_t at, float x) {
            softmax all = room.all[of];
            float factors[2], *partial = c.partial;
            if (of >= n_queries || !sees_chunk(c, at_first + of))
                return;
            if (splits) {
                partial +=
                    (((query + of) * c.op.n_heads + head) * c.n_chunks + chunk - c.first_chunk) * (c.head_width + 2);
                partial[at] = x;
                if (at == 0)
                    partial[c.head_width] = room.chunk[of].max, partial[c.head_width + 1] = room.chunk[of].sum;
                return;
            }
            merge(&all, room.chunk[of], factors);
            float *out = &room.out[of * c.head_width + at];
            *out = fmaf(x, factors[1], *out * factors[0]);
        });
        if (threadIdx.x < N && sees_chunk(c, at_first + (int)threadIdx.x)) {
            float factors[2];
            merge(&room.all[threadIdx.x], room.chunk[threadIdx.x], factors);
        }
    }
    __syncthreads();
    for (size_t i = threadIdx.x; !splits && i < n_queries * c.head_width; i += THREADS) {
        const size_t of = i / c.head_width;
        softmax all = room.all[of];
        const float out = room.out[i] * merge_sink<T>(c, head, &all);
        set((T *)c.op.out + (query + of) * c.op.width + head * c.head_width + i % c.head_width, out / all.sum);
    }
}

/* One query of a head: its chunks in order. */
template <typename T> __global__ void __launch_bounds__(THREADS) combine(const cached c)
{
    const size_t token = blockIdx.x / c.op.n_heads, head = blockIdx.x % c.op.n_heads;
    const size_t position = c.op.first + token, stride = c.head_width + 2;
    const float *partial = c.partial + blockIdx.x * c.n_chunks * stride;

    for (size_t at = threadIdx.x; at < c.head_width; at += THREADS) {
        softmax all = {-INFINITY, 0};
        float out = 0;

        for (size_t chunk = first_chunk(position, c.window); chunk <= position / CHUNK; chunk++) {
            const float *from = partial + (chunk - c.first_chunk) * stride;
            float factors[2];
            merge(&all, {from[c.head_width], from[c.head_width + 1]}, factors);
            out = fmaf(from[at], factors[1], out * factors[0]);
        }
        out *= merge_sink<T>(c, head, &all);
        set((T *)c.op.out + token * c.op.width + head * c.head_width + at, out / all.sum);
    }
}

template <typename T, int V, int N> static cudaError_t launch_attend(const struct cuda_queue *q, const cached &c)
{
    const size_t shared = room<N>::bytes(c.head_width), groups = (c.op.n_tokens + N - 1) / N;
    const size_t blocks = groups * c.op.n_heads * (c.partial ? c.n_chunks : 1);
    const auto kernel = c.op.bias || c.cap > 0 || c.alibi ? attend<T, V, N, true> : attend<T, V, N, false>;
    const cudaError_t rc = allow_shared(kernel, shared);

    if (rc != cudaSuccess)
        return rc;
    return launch(kernel, dim3((unsigned)blocks), THREADS, shared, q->stream, c);
}

template <typename T> static cudaError_t launch_cached(const struct cuda_queue *q, cached c)
{
    enum { V = 16 / sizeof(T), MANY = 4 };
    const uintptr_t addresses = (uintptr_t)c.op.qkv | (uintptr_t)c.op.out | (uintptr_t)c.op.cache;
    const size_t queries = c.op.n_tokens * c.op.n_heads,
                 bytes = queries * c.n_chunks * (c.head_width + 2) * sizeof(float);
    const bool vectors = addresses % 16 == 0 && c.head_width % V == 0;
    cudaError_t rc;

    /* with two blocks per processor, no splitting is needed */
    if (c.n_chunks > 1 && queries < 2 * (size_t)q->n_processors * MANY && bytes <= PLAN_CUDA_SCRATCH_BYTES)
        c.partial = (float *)q->scratch;
    if (c.op.n_tokens == 1 || room<MANY>::bytes(c.head_width) > 48 << 10)
        rc = vectors ? launch_attend<T, V, 1>(q, c) : launch_attend<T, 1, 1>(q, c);
    else
        rc = vectors ? launch_attend<T, V, MANY>(q, c) : launch_attend<T, 1, MANY>(q, c);
    if (rc == cudaSuccess && c.partial)
        rc = launch(combine<T>, dim3((unsigned)queries), THREADS, 0, q->stream, c);
    return rc;
}

extern "C" cudaError_t cuda_attention_cached(const struct cuda_queue *q, const struct device_attention_cached *op)
{
    cached c = {};

    c.op = *op;
    c.head_width = op->width / op->n_heads;
    c.group = op->n_heads / device_kv_heads(op->n_heads, op->n_kv_heads);
    c.kv_width = device_kv_width(op->n_heads, op->n_kv_heads, op->width);
    c.stride = op->width + 2 * c.kv_width;
    c.to_log2 = (float)((double)op->scale * LOG2_E);
    c.cap = (float)((double)op->cap * LOG2_E);
    c.alibi = op->alibi ? device_alibi_whole(op->n_heads) : 0;
    c.window = device_window(op->window, op->first + op->n_tokens);
    c.first_chunk = first_chunk(op->first, c.window);
    c.n_chunks = (op->first + op->n_tokens + CHUNK - 1) / CHUNK;
    c.n_chunks -= c.first_chunk;
    return TYPED(q, launch_cached)(q, c);
}
