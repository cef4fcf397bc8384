/* device/cuda/kernels/attention.cuh - shared by attention's passes: views, dropout, and tiles of 16 bits.
 *
 * Tiles of 16-bit values lie in shared memory for the tensor cores (fragment.cuh): fast, for some head widths. Those of
 * attention_plain.cuh are for any. */
#ifndef DEVICE_CUDA_KERNELS_ATTENTION_CUH
#define DEVICE_CUDA_KERNELS_ATTENTION_CUH

#include "device/cuda/kernels/buckets.cuh"
#include "device/cuda/kernels/tile.cuh"
#include "proto/operation/attention_path.h"

#define LOG2_E 1.4426950408889634
#define LN_2   0.6931471805599453

/* The operation, with derived numbers that all kernels need. */
struct attention {
    struct device_attention op;
    int n_tokens, head_width;
    unsigned n_heads, group; /* group: query heads per key head; unsigned divides faster than size_t */
    const void *keys;        /* the array of keys and values: qkv, or kv */
    void *keys_gradient;
    size_t key_column;         /* the first one of keys there */
    size_t kv_width;           /* columns of keys, or values */
    size_t stride, key_stride; /* from one row of queries, or of keys, to the next */
    int n_keys;                /* keys of each row, also those that do not count */
    int window;                /* keys that a query sees at most; in a local row, to each side */
    bool is_local;             /* `full`, with a window on both sides */
    float cap;                 /* bound of scores before they are scaled; 0: none */
    unsigned alibi;            /* device_alibi_whole; 0: no ALiBi */
    float to_log2;             /* score * to_log2 is the exponent of 2 */
    uint32_t threshold;        /* dropout keeps a word >= threshold */
    float kept_scale;          /* 1/(1-p) */
    float *delta;              /* scratch, (n_rows, n_heads, n_tokens): sum over the head of out * its gradient */
    float *log2_sum;           /* scratch, (n_rows, n_heads, n_tokens): log_sum_exp in powers of 2 */
    /* Scratch, (n_rows, n_heads, tiles of queries, buckets.n): sums of the bias's gradient. */
    float *bias_sums;
    float to_score; /* a bias, or ALiBi's term, times this is added to a score before it is scaled */
};

inline attention attention_of(const struct device_attention *op)
{
    const size_t n = op->n_rows * op->n_heads * op->n_tokens;
    attention a = {};

    a.op = *op;
    a.n_tokens = (int)op->n_tokens;
    a.n_keys = (int)device_attention_keys(op);
    a.head_width = (int)(op->width / op->n_heads);
    a.n_heads = (unsigned)op->n_heads;
    a.group = (unsigned)(op->n_heads / device_kv_heads(op->n_heads, op->n_kv_heads));
    a.keys = op->kv ? op->kv : op->qkv;
    a.keys_gradient = op->kv ? op->kv_gradient : op->qkv_gradient;
    a.key_column = op->kv ? 0 : op->width;
    a.kv_width = device_kv_width(op->n_heads, op->n_kv_heads, op->width);
    a.key_stride = a.key_column + 2 * a.kv_width;
    a.stride = op->kv ? op->width : a.key_stride;
    a.window = (int)device_window(op->window, op->n_tokens);
    a.is_local = device_attention_is_local(op);
    a.cap = op->cap / op->scale;
    a.alibi = op->alibi ? device_alibi_whole(op->n_heads) : 0;
    a.to_log2 = (float)((double)op->scale * LOG2_E);
    a.threshold = random_threshold(op->dropout.p);
    a.kept_scale = (float)(1 / (1 - (double)op->dropout.p));
    a.delta = (float *)op->scratch;
    a.log2_sum = a.delta + n;
    a.bias_sums = a.delta + plan_cuda_attention_scratch(op->n_rows, op->n_tokens, op->n_heads) / sizeof(float);
    a.to_score = 1 / op->scale;
    return a;
}

/* fp16 has fewer kernels: fast ones for the simple cases of attention_tile, and plain ones for all that attention may
 * be. */
template <typename T> constexpr bool has_few = std::is_same_v<T, fp16>;

/* attention_tile; also 0 where an address is no multiple of 16 bytes, which no plan gives. */
inline size_t tile_of(const struct cuda_queue *q, const attention &a, enum attention_kernel kernel)
{
    const uintptr_t addresses = (uintptr_t)a.op.qkv | (uintptr_t)a.keys | (uintptr_t)a.op.out |
                                (uintptr_t)a.op.out_gradient | (uintptr_t)a.op.qkv_gradient |
                                (uintptr_t)a.keys_gradient;

    return addresses % 16 == 0 ? attention_tile(q->type, &a.op, kernel) : 0;
}

/* The launch of a kernel with tiles of so many columns; 0: without tensor cores. */
inline dim3 blocks_of(const attention &a, enum attention_kernel kernel, size_t tile)
{
    return dim3((unsigned)attention_blocks(&a.op, kernel, tile));
}

/* Which keys a query sees. Of a causal row, of those up to its own: all; the last `window` of them; of these, those of
 * its document. Of a full row: those that count. With a bias: all of a causal or a full row, which `full` tells at run
 * time. Fast kernels are compiled for each. */
enum reach { REACH_ALL, REACH_WINDOW, REACH_DOCUMENT, REACH_FULL, REACH_BIASED };

inline reach reach_of(const attention &a)
{
    if (a.op.bias)
        return REACH_BIASED;
    if (a.op.positions)
        return REACH_DOCUMENT;
    if (a.op.full)
        return REACH_FULL;
    return a.window < a.n_tokens ? REACH_WINDOW : REACH_ALL;
}

/* True if each query of a fast kernel sees all keys that count. */
template <reach R> __device__ inline bool sees_all(const attention &a)
{
    return R == REACH_FULL || (R == REACH_BIASED && a.op.full);
}

/* True if a fast kernel drops probabilities. With a bias one kernel serves both cases. In full rows the same branch,
 * which is always taken, keeps ptxas from mixing the drawing of words with the products: that takes more registers than
 * there are. */
template <bool DROPS, reach R> __device__ inline bool drops_any(const attention &a)
{
    return DROPS && ((R != REACH_BIASED && R != REACH_FULL) || a.op.dropout.p > 0);
}

/* n rows of a matrix. */
template <typename T> struct view {
    T *first;
    size_t stride;
    int n;
};

enum part { QUERIES, KEYS, VALUES };

/* Kinds that plain kernels are compiled for: causal without window, documents, bias, cap, ALiBi, sinks and shared keys;
 * or any attention, which leaves fewer registers. */
enum kind { OWN_CAUSAL, ANY };

inline kind kind_of(const attention &a)
{
    return a.group > 1 || a.cap > 0 || a.alibi || a.op.sinks || reach_of(a) != REACH_ALL ? ANY : OWN_CAUSAL;
}

template <kind K> __device__ inline bool is_full(const attention &a)
{
    return K == ANY && a.op.full;
}

/* One head's (of n_rows * n_heads) part of the arrays of queries and of keys, or of their gradients. */
template <kind K, typename T>
__device__ inline view<T> part_of(const attention &a, T *queries, T *keys, unsigned head, part part)
{
    const size_t row = head / a.n_heads, index = head % a.n_heads / (K == ANY && part != QUERIES ? a.group : 1);
    const size_t column = a.key_column + (part == VALUES ? a.kv_width : 0);

    if (part == QUERIES)
        return {queries + row * a.n_tokens * a.stride + index * a.head_width, a.stride, a.n_tokens};
    return {keys + row * a.n_keys * a.key_stride + column + index * a.head_width, a.key_stride, a.n_keys};
}

template <kind K, typename T> __device__ inline view<const T> input_of(const attention &a, unsigned head, part part)
{
    return part_of<K>(a, (const T *)a.op.qkv, (const T *)a.keys, head, part);
}

template <kind K, typename T> __device__ inline view<T> gradient_of(const attention &a, unsigned head, part part)
{
    return part_of<K>(a, (T *)a.op.qkv_gradient, (T *)a.keys_gradient, head, part);
}

/* Keys that count in a head's row. */
template <kind K> __device__ inline int keys_of(const attention &a, unsigned head)
{
    return is_full<K>(a) && a.op.lengths ? (int)a.op.lengths[head / a.n_heads] : a.n_keys;
}

/* The first key that a query sees, if all its row is one document, unless `full`. */
__device__ inline int first_in_window(const attention &a, int query)
{
    return max(query + 1 - a.window, 0);
}

/* The first token of a token's document; of tokens beyond the row, that of its last one. With positions. */
__device__ inline int document_of(const attention &a, unsigned head, int token)
{
    token = min(token, a.n_tokens - 1);
    return token - (int)a.op.positions[(size_t)(head / a.n_heads) * a.n_tokens + token];
}

/* The first key that a query sees; it rises from query to query. */
template <reach R> __device__ inline int first_seen(const attention &a, unsigned head, int query)
{
    const int first = R == REACH_WINDOW || R == REACH_DOCUMENT ? first_in_window(a, query) : 0;

    return R == REACH_DOCUMENT ? max(first, document_of(a, head, query)) : first;
}

/* For all that attention may be. In local rows those beyond the row's length see its last key, as nothing would be left
 * of a softmax over none. */
__device__ inline int first_seen_of_any(const attention &a, unsigned head, int query)
{
    const int first = a.is_local  ? min(first_in_window(a, query), keys_of<ANY>(a, head) - 1)
                      : a.op.full ? 0
                                  : first_in_window(a, query);

    return a.op.positions ? max(first, document_of(a, head, query)) : first;
}

/* End of the tiles of N tokens, from `from` on, that begin in documents which begin at `last` or before: those further
 * on have no token of a document that reaches back to `last`. Each warp finds it, of which all threads must be here. */
template <int N> __device__ inline int documents_end(const attention &a, unsigned head, int from, int last)
{
    for (int first = from;; first += WARP * N) {
        const int token = first + (int)threadIdx.x % WARP * N;
        const unsigned begun = __ballot_sync(WHOLE_WARP, token < a.n_tokens && document_of(a, head, token) <= last);
        if (begun != WHOLE_WARP)
            return first + __popc(begun) * N;
    }
}

/* End of the queries that see any of n keys. */
__device__ inline int queries_end(const attention &a, int key, int n)
{
    return min(a.n_tokens, key + n - 1 + a.window);
}

/* n_keys: those that count in the row. */
template <kind K> __device__ inline bool is_seen(const attention &a, unsigned head, int query, int key, int n_keys)
{
    if (K == ANY && a.op.positions) {
        const bool is_near = a.op.full ? key < n_keys : key <= query && key + a.window > query;
        if (a.is_local && abs(query - key) >= a.window)
            return false;
        return is_near && document_of(a, head, key) == document_of(a, head, query);
    }
    if (K == ANY && a.is_local)
        return key < n_keys && key < query + a.window && key >= min(first_in_window(a, query), n_keys - 1);
    if (is_full<K>(a))
        return key < n_keys;
    return key <= query && (K == OWN_CAUSAL || key + a.window > query);
}

/* attention_chosen.cu: gradients of keys and values from chosen queries, after prepare. */
cudaError_t attention_of_chosen(const struct cuda_queue *q, const attention &a);

/* What is added to the score of a key so many places after the query, before it is scaled. */
__device__ inline float bias_of(const attention &a, unsigned head, int ahead)
{
    return a.op.bias[bucket_of(&a.op.buckets, ahead) * a.n_heads + head % a.n_heads] * a.to_score;
}

/* The same of ALiBi. */
__device__ inline float alibi_of(const attention &a, unsigned head, int ahead)
{
    return alibi_slope(a.alibi, head % a.n_heads) * a.to_score * (float)ahead;
}

/* A score, before it is scaled, with the cap if there is one; and the derivative there, from what this gave. */
__device__ inline float capped(const attention &a, float score)
{
    return a.cap > 0 ? a.cap * tanhf(score / a.cap) : score;
}

__device__ inline float cap_slope(const attention &a, float capped)
{
    const float part = capped / a.cap;

    return a.cap > 0 ? 1 - part * part : 1;
}

/* A head's sink as an exponent of 2. */
template <typename T> __device__ inline float sink_of(const attention &a, unsigned head)
{
    return to_float(((const T *)a.op.sinks)[head % a.n_heads]) * (float)LOG2_E;
}

/* Adds the head's sink, if it has one, to a query's softmax, once its keys are done. max: its largest exponent of 2 so
 * far; sum: of exponentials relative to it. Returns the factor of all that was relative to the earlier max. */
template <typename T> __device__ inline float join_sink(const attention &a, unsigned head, float *max, float *sum)
{
    if (!a.op.sinks)
        return 1;
    const float sink = sink_of<T>(a, head), before = *max;
    *max = fmaxf(before, sink);
    const float factor = exp2f(before - *max);
    *sum = fmaf(*sum, factor, exp2f(sink - *max));
    return factor;
}

/* One head's part of out or its gradient. */
template <typename T> __device__ inline view<T> out_of(const attention &a, T *out, unsigned head)
{
    const size_t row = head / a.n_heads, index = head % a.n_heads;

    return {out + row * a.n_tokens * a.op.width + index * a.head_width, a.op.width, a.n_tokens};
}

/* True if dropout keeps the probability. */
__device__ inline bool is_kept(const attention &a, unsigned head, int query, int key)
{
    const uint64_t element = (head % a.n_heads * (uint64_t)a.n_tokens + query) * (uint64_t)a.n_keys + key;
    uint32_t words[4];

    device_random_quad(words, a.op.dropout.key, a.op.dropout.first_row + head / a.n_heads, element / 4);
    const uint32_t low = element % 2 ? words[1] : words[0], high = element % 2 ? words[3] : words[2];
    return (element % 4 < 2 ? low : high) >= a.threshold;
}

/* draw where rows have whole quads of keys: lanes that share quads draw each once. These are two lanes, or if rows are
 * keys four: `part` is the lane's place among them, and the elements whose quads it draws. Nibble n of `drawn`: its
 * quad of sums n. */
template <bool OF_KEYS, int N>
__device__ inline uint32_t draw_quads(const attention &a, unsigned head, int row, int column, const int *queries)
{
    const int lane = (int)threadIdx.x % WARP, part = OF_KEYS ? lane / 4 % 4 : lane % 2;
    const int query = OF_KEYS ? column + lane % 4 * 2 + part % 2 : row + part * 8 + lane / 4;
    const int key = OF_KEYS ? row + part / 2 * 8 + lane / 16 * 4 : column + lane % 4 / 2 * 4;
    uint32_t drawn = 0, kept = 0;

#pragma unroll 1
    for (int n = 0; n < N / 8; n++) {
        const int at = query + (OF_KEYS ? n * 8 : 0);
        const uint64_t line = head % a.n_heads * (uint64_t)a.n_tokens + (queries ? queries[at] : at);
        uint32_t words[4];

        device_random_quad(words, a.op.dropout.key, a.op.dropout.first_row + head / a.n_heads,
                           (line * a.n_keys + key + (OF_KEYS ? 0 : n * 8)) / 4);
#pragma unroll
        for (int v = 0; v < 4; v++)
            drawn |= (uint32_t)(words[v] >= a.threshold) << (4 * n + v);
    }
    if constexpr (OF_KEYS) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t of = __shfl_sync(WHOLE_WARP, drawn, lane ^ ((part ^ i) * 4));
            kept |= (of >> part & 0x11111111) << i;
        }
    } else {
        const uint32_t other = __shfl_xor_sync(WHOLE_WARP, drawn, 1);
        const uint32_t upper = part ? other : drawn, lower = part ? drawn : other; /* rows lane/4 and lane/4 + 8 */
        kept = (upper >> 2 * part & 0x33333333) | (lower >> 2 * part & 0x33333333) << 2;
    }
    return kept;
}

/* is_kept for a lane's elements of 16 x N sums (fragment.cuh), from (row, column) on; rows are queries, or keys. Bit
 * 4*n + i: element i of sums n. Drawn before the sums exist, to leave them the registers. queries: those of the
 * columns; NULL: the columns themselves. */
template <bool OF_KEYS, int N>
__device__ inline uint32_t draw(const attention &a, unsigned head, int row, int column, const int *queries = nullptr)
{
    const int lane = (int)threadIdx.x % WARP, first = row + lane / 4, second = column + lane % 4 * 2;
    uint32_t kept = 0;

    head = afresh(head);
    if (a.n_keys % 4 == 0)
        return draw_quads<OF_KEYS, N>(a, head, row, column, queries);
#pragma unroll 1
    for (int i = 0; i < N / 2; i++) {
        const int r = first + i / 2 % 2 * 8, c = second + i / 4 * 8 + i % 2;
        kept |= (uint32_t)is_kept(a, head, !OF_KEYS ? r : queries ? queries[c] : c, OF_KEYS ? r : c) << i;
    }
    return kept;
}

/* ---- tiles of 16 bits, rows of HEAD values ---- */

/* A thread's share of the copy of each tile: 8 values of some rows. Keeps only the part of the address that changes
 * from tile to tile, to save registers. */
template <int HEAD, int THREADS> struct tile_share {
    enum { EIGHTS = HEAD / 8, AT_ONCE = THREADS / EIGHTS };
    static_assert(AT_ONCE % 8 == 0 || (AT_ONCE == 4 && HEAD % 64 == 0), "each thread copies with one turn, or two");

    static __device__ inline int row()
    {
        return (int)threadIdx.x / EIGHTS;
    }
    /* Address of this thread's share of the tile whose first row is `first`. */
    template <typename T> static __device__ inline const T *of(view<const T> from, int first)
    {
        return from.first + (size_t)(first + row()) * from.stride + (int)threadIdx.x % EIGHTS * 8;
    }
    /* Begins to copy ROWS rows; zeros from n_rows, and from column head_width on. Returns the address of the share of
     * the rows behind them. */
    template <int ROWS, typename T>
    static __device__ inline const T *fetch(shared_address tile, const T *source, size_t stride, int n_rows,
                                            int head_width)
    {
        static_assert(ROWS % AT_ONCE == 0, "each thread copies as much");
        const int there = (int)threadIdx.x % EIGHTS * 8 < head_width ? n_rows - row() : 0;
        const unsigned at = tile_at<HEAD>(row(), (int)threadIdx.x % EIGHTS);
        const size_t step = (size_t)AT_ONCE * afresh((unsigned)stride);

#pragma unroll 4
        for (int i = 0; i < ROWS; i += AT_ONCE, source += step)
            copy_async<16>(tile + i * HEAD * 2 + (at ^ (unsigned)(AT_ONCE % 8 ? i % 8 * 16 : 0)), source, i < there);
        return source;
    }
};

/* Begins to copy a head's rows first .. first+ROWS-1; zeros beyond the last one. */
template <int HEAD, int ROWS, int THREADS, typename T>
__device__ inline void tile_fetch(shared_address tile, const attention &a, view<const T> from, int first)
{
    typedef tile_share<HEAD, THREADS> share;
    share::template fetch<ROWS>(tile, share::of(from, first), from.stride, from.n - first, a.head_width);
}

/* sums (M*16, N) += one step of left times the transpose of the tile's first N rows. */
template <typename T, int HEAD, int M, int N>
__device__ inline void tile_multiply_transposed(float (*sums)[N / 8][4], const matrices *left, shared_address tile,
                                                int step)
{
#pragma unroll
    for (int n = 0; n < N / 16; n++) {
        const matrices right = tile_right_transposed<HEAD>(tile, n * 16, step);
#pragma unroll
        for (int m = 0; m < M; m++) {
            multiply_add<T>(sums[m][2 * n], left[m], right.pair[0], right.pair[1]);
            multiply_add<T>(sums[m][2 * n + 1], left[m], right.pair[2], right.pair[3]);
        }
    }
}

/* sums (M*16, HEAD) += left (M*16, 16) times 16 rows of the tile. */
template <typename T, int HEAD, int M>
__device__ inline void tile_multiply(float (*sums)[HEAD / 8][4], const matrices *left, shared_address tile, int row)
{
#pragma unroll
    for (int step = 0; step < HEAD / 16; step++) {
        const matrices right = tile_right<HEAD>(tile, row, step);
#pragma unroll
        for (int m = 0; m < M; m++) {
            multiply_add<T>(sums[m][2 * step], left[m], right.pair[0], right.pair[1]);
            multiply_add<T>(sums[m][2 * step + 1], left[m], right.pair[2], right.pair[3]);
        }
    }
}

/* Stores a warp's 16 rows, sums * scale[half] rounded, to a head's rows first .. through the tile's rows from `row` on,
 * which no other warp uses. */
template <int HEAD, typename T>
__device__ inline void tile_store(const float (*sums)[4], const float scale[2], unsigned char *tile, int row,
                                  const attention &a, view<T> to, int first)
{
    enum { EIGHTS = HEAD / 8 };
    const int lane = lane_index();

    __syncwarp();
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
        for (int eight = 0; eight < EIGHTS; eight++) {
            const uint32_t low = bits_of<T>(sums[eight][2 * half] * scale[half]);
            const uint32_t high = bits_of<T>(sums[eight][2 * half + 1] * scale[half]);
            *(uint32_t *)(tile + tile_at<HEAD>(row + 8 * half + lane / 4, eight) + lane % 4 * 4) = low | high << 16;
        }
    __syncwarp();
    for (int i = lane; i < 16 * EIGHTS; i += WARP)
        if (first + i / EIGHTS < to.n && i % EIGHTS * 8 < a.head_width)
            *(uint4 *)(to.first + (size_t)(first + i / EIGHTS) * to.stride + i % EIGHTS * 8) =
                *(const uint4 *)(tile + tile_at<HEAD>(row + i / EIGHTS, i % EIGHTS));
}

#endif
