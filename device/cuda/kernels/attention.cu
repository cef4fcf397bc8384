/* device/cuda/kernels/attention.cu - attention, forward: tiles of queries by tiles of keys, no score matrix.
 *
 * Flash attention - Dao et al., arXiv:2205.14135; the division of work - Dao, arXiv:2307.08691. A block computes one
 * tile of queries of one head of one row, over all tiles of keys: scores, their exponentials relative to the largest
 * score so far, and the products with the values, which are rescaled when the largest changes. So no block depends on
 * another. Blocks with the most keys come first in each head. With a window or documents, tiles that no query of the
 * block sees are left out. Keys and values may be in another array than queries (cross attention). */
#include "device/cuda/kernels/attention_bias.cuh"
#include "device/cuda/kernels/attention_plain.cuh"

enum { WARPS = 4, THREADS = WARPS * WARP };

/* A warp has M times 16 queries. With 32, each right factor that it loads from shared memory serves two products, as
 * otherwise that memory, not the tensor cores, would be the limit; outputs of 256 columns leave registers for 16. Keys
 * of a tile: a thread's part of the scores and output takes 128 to 160 of its 255 registers. With 64 keys and heads of
 * 128 it would take 192, which leaves too few for factors and addresses. Shared memory: a tile of queries, and two
 * stages of a tile of keys and one of values: 64 KiB for heads of 128, 96 KiB for those of 256, so that two blocks fit
 * a processor of 9.0. */
template <int HEAD> struct plan {
    enum { M = HEAD > 128 ? 1 : 2, QUERIES = WARPS * M * 16, KEYS = HEAD > 64 ? 32 : 64 };
};

template <int HEAD> struct warp_state {
    enum { M = plan<HEAD>::M };
    float out[M][HEAD / 8][4];  /* output of 16 queries each, as sums (fragment.cuh) */
    float max[M][2], sum[M][2]; /* for queries lane/4 and lane/4 + 8; sum: this lane's part */
};

/* Masks the scores of keys from `key` on that come before the first one of their query's document; the warp's queries
 * begin at `query`. */
template <int M, int TILE_KEYS>
__device__ inline void mask_documents(const attention &a, unsigned head, float (*scores)[TILE_KEYS / 8][4], int query,
                                      int key)
{
    const int lane = lane_index();

#pragma unroll
    for (int row = 0; row < 2 * M; row++) {
        const int m = row / 2, half = row % 2;
        const int first = document_of(a, head, query + m * 16 + half * 8 + lane / 4) - key;
#pragma unroll
        for (int i = 0; i < TILE_KEYS / 4; i++)
            if (i / 2 * 8 + lane % 4 * 2 + i % 2 < first)
                scores[m][i / 2][2 * half + i % 2] = -INFINITY;
    }
}

/* Turns scores into exponentials relative to the largest so far, and rescales earlier sums. The first score is of the
 * key `ahead` positions after the warp's first query; in a full row, after the first key that does not count (negative:
 * before). With a bias, scores of unseen keys are -infinity already. */
template <int HEAD, int TILE_KEYS, reach R>
__device__ inline void exponentiate(warp_state<HEAD> *state, float (*scores)[TILE_KEYS / 8][4], float to_log2,
                                    int ahead, int window)
{
    enum { M = plan<HEAD>::M };
    const int lane = lane_index();
    const bool slides = R == REACH_WINDOW || R == REACH_DOCUMENT;

    if (R != REACH_BIASED && ahead > -TILE_KEYS) /* some key comes after some query, or does not count */
#pragma unroll
        for (int i = 0; i < M * TILE_KEYS / 8 * 4; i++) {
            const int m = i / (TILE_KEYS / 2), n = i / 4 % (TILE_KEYS / 8), place = i % 4;
            const int last = R == REACH_FULL ? -1 : m * 16 + place / 2 * 8 + lane / 4;
            if (ahead + n * 8 + lane % 4 * 2 + place % 2 > last)
                scores[m][n][place] = -INFINITY;
        }
    if (slides && ahead + window < M * 16) /* some key comes before some query's window */
#pragma unroll
        for (int i = 0; i < M * TILE_KEYS / 8 * 4; i++) {
            const int m = i / (TILE_KEYS / 2), n = i / 4 % (TILE_KEYS / 8), place = i % 4;
            if (ahead + n * 8 + lane % 4 * 2 + place % 2 + window <= m * 16 + place / 2 * 8 + lane / 4)
                scores[m][n][place] = -INFINITY;
        }
#pragma unroll
    for (int row = 0; row < 2 * M; row++) {
        const int m = row / 2, half = row % 2;
        float max = state->max[m][half], sum = 0;
#pragma unroll
        for (int n = 0; n < TILE_KEYS / 8; n++)
            max = fmaxf(max, fmaxf(scores[m][n][2 * half], scores[m][n][2 * half + 1]));
        max = fmaxf(max, __shfl_xor_sync(WHOLE_WARP, max, 1));
        max = fmaxf(max, __shfl_xor_sync(WHOLE_WARP, max, 2));
        const bool unseen = slides && max == -INFINITY; /* no key so far: infinities have no difference */
        const float top = unseen ? 0 : max * to_log2;
        /* exactly 1 if the largest stays; nvcc would fuse the subtraction and leave the product's rounding error */
        const float rescale = unseen ? 1 : power_of_2((state->max[m][half] - max) * to_log2);
        state->max[m][half] = max;
#pragma unroll
        for (int n = 0; n < TILE_KEYS / 8; n++)
#pragma unroll
            for (int j = 2 * half; j < 2 * half + 2; j++) {
                scores[m][n][j] = power_of_2(fmaf(scores[m][n][j], to_log2, -top));
                sum += scores[m][n][j];
            }
        state->sum[m][half] = fmaf(state->sum[m][half], rescale, sum);
#pragma unroll
        for (int n = 0; n < HEAD / 8; n++) {
            state->out[m][n][2 * half] *= rescale;
            state->out[m][n][2 * half + 1] *= rescale;
        }
    }
}

/* Bit 4*n + i of kept[m]: of scores[m][n][i]. */
template <int M, int TILE_KEYS> __device__ inline void drop(float (*p)[TILE_KEYS / 8][4], const uint32_t kept[M])
{
#pragma unroll
    for (int i = 0; i < M * TILE_KEYS / 2; i++) {
        const int m = i / (TILE_KEYS / 2), bit = i % (TILE_KEYS / 2);
        if (!(kept[m] >> bit & 1))
            p[m][bit / 4][bit % 4] = 0;
    }
}

/* Of one head, by tiles of a warp. */
template <int HEAD> using bias_of_tiles = bias_table<plan<HEAD>::M * 16, plan<HEAD>::KEYS>;

template <typename T, int HEAD>
__device__ inline void finish(const attention &a, warp_state<HEAD> *state, unsigned char *tile, unsigned head, int row,
                              int query)
{
    const int lane = lane_index();

#pragma unroll
    for (int m = 0; m < plan<HEAD>::M; m++) {
        float scale[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int at = query + row + m * 16 + half * 8 + lane / 4;
            float sum = state->sum[m][half];
            sum += __shfl_xor_sync(WHOLE_WARP, sum, 1);
            sum += __shfl_xor_sync(WHOLE_WARP, sum, 2);
            float max = state->max[m][half] * a.to_log2;
            const float factor = join_sink<T>(a, head, &max, &sum);
            scale[half] = a.kept_scale / sum * factor;
            if (lane % 4 == 0 && at < a.n_tokens)
                a.op.log_sum_exp[(size_t)head * a.n_tokens + at] = fmaf(max, (float)LN_2, logf(sum));
        }
        tile_store<HEAD>(state->out[m], scale, tile, row + m * 16, a, out_of(a, (T *)a.op.out, head),
                         query + row + m * 16);
    }
}

/* Two blocks leave a thread 255 registers. With that bound ptxas would plan for a few more, and spill; without dropout
 * 248 are too few for some. */
template <typename T, int HEAD, bool DROPS, reach R>
__global__ void __maxnreg__(!DROPS ? 250 : 248) attend(const attention a)
{
    enum { M = plan<HEAD>::M, TILE_QUERIES = plan<HEAD>::QUERIES, TILE_KEYS = plan<HEAD>::KEYS };
    enum { BYTES = TILE_KEYS * HEAD * 2, KEEP = HEAD <= 64 && !DROPS }; /* queries in registers, if there are enough */
    typedef tile_share<HEAD, THREADS> share;
    const int n_tiles = (a.n_tokens + TILE_QUERIES - 1) / TILE_QUERIES;
    const unsigned head = blockIdx.x / n_tiles;
    const int query = (n_tiles - 1 - (int)(blockIdx.x % n_tiles)) * TILE_QUERIES; /* the block's first */
    const int row = (int)threadIdx.x / WARP * M * 16;
    const int end = sees_all<R>(a) ? keys_of<ANY>(a, head) : min(query + TILE_QUERIES, a.n_tokens);
    const int begin = first_seen<R>(a, head, query) / TILE_KEYS * TILE_KEYS;
    const size_t stride = a.key_stride;
    const bool drops = drops_any<DROPS, R>(a);
    const T *keys = share::of(input_of<ANY, T>(a, head, KEYS), begin); /* values: a.kv_width behind */
    unsigned char *room = shared_memory<unsigned char>();
    const shared_address q = shared_at(room), stages = q + TILE_QUERIES * HEAD * 2;
    bias_of_tiles<HEAD> *bias = (bias_of_tiles<HEAD> *)(room + (TILE_QUERIES + 4 * TILE_KEYS) * HEAD * 2);
    warp_state<HEAD> state = {};
    matrices kept[KEEP ? HEAD / 16 : 1][M];

    for (int i = 0; i < 2 * M; i++)
        state.max[i / 2][i % 2] = -INFINITY;
    tile_fetch<HEAD, TILE_QUERIES, THREADS>(q, a, input_of<ANY, T>(a, head, QUERIES), query);
    share::template fetch<TILE_KEYS>(stages + BYTES, keys + a.kv_width, stride, a.n_keys - begin, a.head_width);
    keys = share::template fetch<TILE_KEYS>(stages, keys, stride, a.n_keys - begin, a.head_width);
    copy_commit();
    if (R == REACH_BIASED)
        bias->template fill<THREADS>(a, head);
    for (int key = begin, stage = 0; key < end; key += TILE_KEYS, stage = !stage) {
        const shared_address k = stages + stage * 2 * BYTES, v = k + BYTES;
        uint32_t drawn[M] = {};
        float scores[M][TILE_KEYS / 8][4] = {};

        for (int m = 0; drops && m < M; m++)
            drawn[m] = draw<false, TILE_KEYS>(a, head, query + row + m * 16, key);
        copy_wait<0>();
        __syncthreads(); /* this stage has arrived; the other one is free */
        if (key + TILE_KEYS < end) {
            const shared_address next = stages + !stage * 2 * BYTES;
            const int left = a.n_keys - key - TILE_KEYS;
            share::template fetch<TILE_KEYS>(next + BYTES, keys + a.kv_width, stride, left, a.head_width);
            keys = share::template fetch<TILE_KEYS>(next, keys, stride, left, a.head_width);
            copy_commit();
        }
        if (R == REACH_BIASED)
            bias->template begin<false>(a, scores, query + row, key, end);
        if (KEEP && key == begin)
#pragma unroll
            for (int i = 0; i < M * HEAD / 16; i++)
                kept[KEEP ? i / M : 0][i % M] = tile_left<HEAD>(q, row + i % M * 16, i / M);
#pragma unroll
        for (int step = 0; step < HEAD / 16; step++) {
            matrices left[M];
#pragma unroll
            for (int m = 0; m < M; m++)
                left[m] = KEEP ? kept[KEEP ? step : 0][m] : tile_left<HEAD>(q, row + m * 16, step);
            tile_multiply_transposed<T, HEAD, M, TILE_KEYS>(scores, left, k, step);
        }
        if (R == REACH_DOCUMENT && key < document_of(a, afresh(head), query + row + M * 16 - 1))
            mask_documents<M, TILE_KEYS>(a, head, scores, query + row, key);
        exponentiate<HEAD, TILE_KEYS, R>(&state, scores, a.to_log2, R == REACH_FULL ? key - end : key - query - row,
                                         a.window);
        if (drops)
            drop<M, TILE_KEYS>(scores, drawn);
#pragma unroll
        for (int n = 0; n < TILE_KEYS / 16; n++) {
            matrices left[M];
#pragma unroll
            for (int m = 0; m < M; m++)
                left[m] = left_of<T>(scores[m] + 2 * n);
            tile_multiply<T, HEAD, M>(state.out, left, v, n * 16);
        }
    }
    finish<T, HEAD>(a, &state, room, head, row, query);
}

/* Any head width and any keys. A block computes PLAIN queries and PLAIN columns of their output; blocks of other
 * columns compute the same scores again. */
template <typename T, kind K, bool DROPS>
__global__ void __launch_bounds__(PLAIN_THREADS, 1) attend_plain(const attention a)
{
    const int n_columns = (a.head_width + PLAIN - 1) / PLAIN, n_tiles = (a.n_tokens + PLAIN - 1) / PLAIN;
    const int column = (int)(blockIdx.x % n_columns) * PLAIN;
    const int query = (n_tiles - 1 - (int)(blockIdx.x / n_columns % n_tiles)) * PLAIN;
    const unsigned head = blockIdx.x / n_columns / n_tiles;
    const int n_keys = keys_of<K>(a, head), begin = K == ANY ? first_seen_of_any(a, head, query) / PLAIN * PLAIN : 0;
    const int row_end = !is_full<K>(a)   ? query + 1
                        : a.op.positions ? documents_end<PLAIN>(a, head, begin, query + PLAIN - 1)
                                         : n_keys;
    const int end = K == ANY && a.is_local ? min(row_end, query + PLAIN - 1 + a.window) : row_end;
    plain_room *room = shared_memory<plain_room>();
    float max[4], sum[4] = {}, out[4][4] = {}, scale[4];

    for (int i = 0; i < 4; i++)
        max[i] = -INFINITY;
    for (int key = begin; key < end; key += PLAIN) {
        float p[4][4];

        plain_products(p, room, a, input_of<K, T>(a, head, QUERIES), query, input_of<K, T>(a, head, KEYS), key);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int at = query + plain_row() + i;
            float top = max[i];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                if (K == ANY)
                    p[i][j] = capped(a, p[i][j]);
                if (K == ANY && a.op.bias)
                    p[i][j] += bias_of(a, head, key + plain_column() + j - at);
                if (K == ANY && a.alibi)
                    p[i][j] += alibi_of(a, head, key + plain_column() + j - at);
                p[i][j] = is_seen<K>(a, head, at, key + plain_column() + j, n_keys) ? p[i][j] : -INFINITY;
                top = fmaxf(top, p[i][j]);
            }
            for (int far = 8; far > 0; far /= 2)
                top = fmaxf(top, __shfl_xor_sync(WHOLE_WARP, top, far));
            const bool unseen = K == ANY && top == -INFINITY; /* no key so far */
            const float rescale = unseen ? 1 : exp2f((max[i] - top) * a.to_log2);
            const float base = unseen ? 0 : top * a.to_log2;
            max[i] = top;
            sum[i] *= rescale;
#pragma unroll
            for (int j = 0; j < 4; j++) {
                out[i][j] *= rescale;
                p[i][j] = exp2f(p[i][j] * a.to_log2 - base);
                sum[i] += p[i][j];
                if (DROPS && !is_kept(a, head, at, key + plain_column() + j))
                    p[i][j] = 0;
            }
        }
        plain_add(out, room, a, p, input_of<K, T>(a, head, VALUES), key, column);
    }
    for (int i = 0; i < 4; i++) {
        const int at = query + plain_row() + i;
        for (int far = 8; far > 0; far /= 2)
            sum[i] += __shfl_xor_sync(WHOLE_WARP, sum[i], far);
        float top = max[i] * a.to_log2;
        const float factor = K == ANY ? join_sink<T>(a, head, &top, &sum[i]) : 1;
        scale[i] = a.kept_scale / sum[i] * factor;
        if (column == 0 && plain_column() == 0 && at < a.n_tokens)
            a.op.log_sum_exp[(size_t)head * a.n_tokens + at] = (float)((double)top * LN_2 + (double)logf(sum[i]));
    }
    plain_store(out_of(a, (T *)a.op.out, head), a, query, column, out, scale);
}

template <typename T, kind K> static cudaError_t launch_plain(const struct cuda_queue *q, const attention &a)
{
    const auto kernel = a.op.dropout.p > 0 ? attend_plain<T, K, true> : attend_plain<T, K, has_few<T>>;

    return launch(kernel, blocks_of(a, ATTENTION_FORWARD, 0), PLAIN_THREADS, sizeof(plain_room), q->stream, a);
}

template <typename T> static cudaError_t launch_plain(const struct cuda_queue *q, const attention &a)
{
    constexpr enum kind CAUSAL = has_few<T> ? ANY : OWN_CAUSAL;

    return kind_of(a) == OWN_CAUSAL ? launch_plain<T, CAUSAL>(q, a) : launch_plain<T, ANY>(q, a);
}

template <typename T, int HEAD, reach R> static cudaError_t launch_fast(const struct cuda_queue *q, const attention &a)
{
    const size_t shared = (plan<HEAD>::QUERIES + 4 * plan<HEAD>::KEYS) * HEAD * sizeof(T) +
                          (R == REACH_BIASED ? sizeof(bias_of_tiles<HEAD>) : 0);
    auto kernel = attend<T, HEAD, R == REACH_BIASED, R>;
    if constexpr (!has_few<T> && R != REACH_BIASED &&
                  (HEAD < 128 || (HEAD == 128 && (R == REACH_ALL || R == REACH_FULL))))
        kernel = a.op.dropout.p > 0 ? attend<T, HEAD, true, R> : kernel;
    const cudaError_t rc = allow_shared(kernel, shared);

    if (rc != cudaSuccess)
        return rc;
    return launch(kernel, blocks_of(a, ATTENTION_FORWARD, HEAD), THREADS, shared, q->stream, a);
}

template <typename T, int HEAD> static cudaError_t launch_fast(const struct cuda_queue *q, const attention &a)
{
    const enum reach extent = reach_of(a);

    if constexpr (!has_few<T>) {
        if (extent == REACH_WINDOW)
            return launch_fast<T, HEAD, REACH_WINDOW>(q, a);
        if (extent == REACH_DOCUMENT)
            return launch_fast<T, HEAD, REACH_DOCUMENT>(q, a);
        if (extent == REACH_BIASED)
            return launch_fast<T, HEAD, REACH_BIASED>(q, a);
    }
    return extent == REACH_FULL ? launch_fast<T, HEAD, REACH_FULL>(q, a) : launch_fast<T, HEAD, REACH_ALL>(q, a);
}

template <typename T> static cudaError_t launch_either(const struct cuda_queue *q, const attention &a)
{
    const size_t tile = tile_of(q, a, ATTENTION_FORWARD);

    if constexpr (!std::is_same_v<T, float>) {
        if (tile == 64)
            return launch_fast<T, 64>(q, a);
        if (tile == 128)
            return launch_fast<T, 128>(q, a);
        if constexpr (!has_few<T>)
            if (tile == 256) /* a window of the whole row is none */
                return a.op.positions ? launch_fast<T, 256, REACH_DOCUMENT>(q, a)
                                      : launch_fast<T, 256, REACH_WINDOW>(q, a);
    }
    return launch_plain<T>(q, a);
}

extern "C" cudaError_t cuda_attention(const struct cuda_queue *q, const struct device_attention *op)
{
    return TYPED(q, launch_either)(q, attention_of(op));
}
