/* device/cuda/kernels/attention_backward.cu - attention, backward: probabilities are recomputed from log_sum_exp.
 *
 * Two kernels share one body. One holds a tile of keys, runs over the queries that see them, and sums the gradients of
 * keys and values. The other holds a tile of queries, runs over the keys they see, and sums the gradient of queries. So
 * scores are computed twice, seven products instead of five. But every sum has one owner: nothing is added atomically,
 * and sums follow the order of tiles. The held tile makes the rows of the scores (keys by queries, or queries by keys),
 * so that sums become factors of the next product without leaving registers. Of heads of 256 values, registers hold one
 * sum: keys' and values' gradients are a kernel each, with eight products in all.
 *
 * With p the probabilities, g = out_gradient values^T: values' gradient = p^T out_gradient, and with
 * s = p * (g - delta): queries' gradient = scale * s keys, keys' gradient = scale * s^T queries.
 * Source: Dao et al., arXiv:2205.14135, Algorithm 4. */
#include "device/cuda/kernels/attention_bias.cuh"
#include "device/cuda/kernels/attention_plain.cuh"
#include "device/cuda/kernels/pack.cuh"

enum { WARPS = 4, THREADS = WARPS * WARP, TILE = WARPS * 16 };

/* Whose gradients a kernel sums. */
enum sought { SEEKS_QUERIES, SEEKS_BOTH, SEEKS_KEYS, SEEKS_VALUES };

/* Sizes for heads of this width. A thread's part of the sums and of two tiles of scores takes at most 160 of its 255
 * registers; the others keep left factors, 4 each, that would otherwise be loaded again for each tile. */
template <int HEAD, sought S, reach R> struct plan {
    enum {
        HOLDS_KEYS = S != SEEKS_QUERIES,
        HELD = S == SEEKS_VALUES ? 1 : 2, /* tiles: no values for their own gradient */
        SUMS = S == SEEKS_BOTH ? 2 : 1,
        IS_SHORT = HEAD > 64 && (HOLDS_KEYS || R == REACH_BIASED),
        COMING = HEAD > 128 ? (S == SEEKS_VALUES ? 32 : 16)
                 : IS_SHORT ? 32
                            : 64, /* rows of a coming tile */
        KEPT = HEAD <= 64                ? 2 * HEAD / 16
               : HEAD <= 128 && IS_SHORT ? HEAD / 16
                                         : 0 /* left factors in registers */
    };
};

/* Shared memory: held tiles, and two stages of two coming tiles with two numbers per query; at most 97 KiB with all
 * that follows, which fits a block of any device from 8.6 on. */
template <int HEAD, sought S, reach R> struct room {
    enum { COMING = plan<HEAD, S, R>::COMING };
    unsigned char held[plan<HEAD, S, R>::HELD][TILE * HEAD * 2], coming[2][2][COMING * HEAD * 2];
    float numbers[2][2][COMING]; /* coming queries' log2_sum and delta */
};

/* With a bias it is followed by the bias by distance and, as the kernel of queries sums its gradient, each warp's
 * sums. */
template <int HEAD, sought S, reach R> struct biased {
    enum { COMING = plan<HEAD, S, R>::COMING, SUMS = S == SEEKS_QUERIES };
    typedef bias_table<16, COMING> table;
    typedef bias_sums<COMING> sums;

    static constexpr size_t bytes()
    {
        return sizeof(room<HEAD, S, R>) + (R == REACH_BIASED ? sizeof(table) + SUMS * WARPS * sizeof(sums) : 0);
    }
};

enum { PREPARE_GROUP = 8, PREPARE_THREADS = 256 };

/* delta and log2_sum: one group of threads per query and head. A thread sums whole packs, also where it must read them
 * value by value, so that the bits are the same wherever arrays begin. */
template <typename T, int V> __global__ void __launch_bounds__(PREPARE_THREADS) prepare(const attention a)
{
    const size_t n = a.op.n_rows * a.op.n_heads * a.n_tokens;
    const size_t item = (blockIdx.x * (size_t)PREPARE_THREADS + threadIdx.x) / PREPARE_GROUP;
    const int lane = (int)threadIdx.x % PREPARE_GROUP;
    float sum = 0;

    if (item < n) {
        const unsigned head = (unsigned)(item / a.n_tokens);
        const view<const T> out = out_of(a, (const T *)a.op.out, head);
        const view<const T> gradient = out_of(a, (const T *)a.op.out_gradient, head);
        const T *x = out.first + item % a.n_tokens * out.stride, *y = gradient.first + item % a.n_tokens * out.stride;

        for (int i = lane * whole<T>::V; i < a.head_width; i += PREPARE_GROUP * whole<T>::V)
            for (int first = i; first < min(i + whole<T>::V, a.head_width); first += V) {
                const pack<T, V> of_x = load<V>(x + first), of_y = load<V>(y + first);
#pragma unroll
                for (int v = 0; v < V; v++)
                    sum = fmaf(of_x[v], of_y[v], sum);
            }
    }
    for (int far = PREPARE_GROUP / 2; far > 0; far /= 2)
        sum += __shfl_xor_sync(WHOLE_WARP, sum, far);
    if (item < n && lane == 0) {
        a.delta[item] = sum;
        a.log2_sum[item] = (float)((double)a.op.log_sum_exp[item] * LOG2_E);
    }
}

/* The fast kernel of keys that no heads share needs no division for their place. */
template <bool OF_KEYS, bool GROUPED> struct fast_kind {
    static constexpr kind K = OF_KEYS && !GROUPED ? OWN_CAUSAL : ANY;
};

/* The tiles that a block holds, and those that it runs over. */
template <typename T, kind K, bool OF_KEYS> struct sides {
    view<const T> held[2], coming[2]; /* keys, values; queries, out_gradient: or the other way round */

    __device__ sides(const attention &a, unsigned head)
    {
        const view<const T> queries[2] = {input_of<K, T>(a, head, QUERIES),
                                          out_of(a, (const T *)a.op.out_gradient, head)};
        const view<const T> keys[2] = {input_of<K, T>(a, head, KEYS), input_of<K, T>(a, head, VALUES)};

        for (int i = 0; i < 2; i++) {
            held[i] = OF_KEYS ? keys[i] : queries[i];
            coming[i] = OF_KEYS ? queries[i] : keys[i];
        }
    }
};

/* A thread's share of the coming tiles. */
template <typename T, int HEAD, sought S, reach R> struct arrivals {
    typedef tile_share<HEAD, THREADS> share;
    enum { COMING = plan<HEAD, S, R>::COMING, HOLDS_KEYS = plan<HEAD, S, R>::HOLDS_KEYS };
    const T *next[2];
    size_t stride[2];
    const float *number; /* this thread's next log2_sum, or delta */

    template <kind K>
    __device__ arrivals(const attention &a, const sides<T, K, HOLDS_KEYS> &sides, unsigned head, int first)
    {
        for (int i = 0; i < 2; i++) {
            next[i] = share::of(sides.coming[i], first);
            stride[i] = sides.coming[i].stride;
        }
        number =
            (threadIdx.x < COMING ? a.log2_sum : a.delta) + (size_t)head * a.n_tokens + first + threadIdx.x % COMING;
    }
    /* Begins to copy the next tile, which has `left` rows. */
    __device__ inline void fetch(const attention &a, room<HEAD, S, R> *room, int stage, int left)
    {
        for (int i = 0; i < 2; i++)
            next[i] = share::template fetch<COMING>(shared_at(room->coming[stage][i]), next[i], stride[i], left,
                                                    a.head_width);
        if (HOLDS_KEYS && threadIdx.x < 2 * COMING)
            copy_async<4>(shared_at(&room->numbers[stage][threadIdx.x / COMING][threadIdx.x % COMING]), number,
                          (int)threadIdx.x % COMING < left);
        number += COMING;
        copy_commit();
    }
};

/* Masks scores, as softmax_backward has them, of keys that come before the first one of their query's document. */
template <bool OF_KEYS, int COMING>
__device__ inline void mask_documents(const attention &a, unsigned head, float (*scores)[4], const int place[2])
{
    const int lane = lane_index(), row = place[0] + lane / 4, column = place[1] + lane % 4 * 2;

    if (document_of(a, head, OF_KEYS ? place[1] + COMING - 1 : place[0] + 15) <= place[OF_KEYS ? 0 : 1])
        return; /* the first key is of the last query's document */
#pragma unroll
    for (int i = 0; i < (OF_KEYS ? COMING / 4 : 2); i++) { /* queries */
        const int first = document_of(a, head, OF_KEYS ? column + i / 2 * 8 + i % 2 : row + i * 8);
#pragma unroll
        for (int j = 0; j < (OF_KEYS ? 2 : COMING / 4); j++) { /* keys */
            const int key = OF_KEYS ? row + j * 8 : column + j / 2 * 8 + j % 2;
            if (key < first)
                scores[(OF_KEYS ? i : j) / 2][OF_KEYS ? j * 2 + i % 2 : i * 2 + j % 2] = -INFINITY;
        }
    }
}

/* From scores and g: p, for the values' gradient, and s. Element i of sums n is in row lane/4 + i/2*8 and column n*8 +
 * lane%4*2 + i%2. row, column: of the warp's first element, among all tokens. */
template <bool OF_KEYS, bool DROPS, reach R, int COMING>
__device__ inline void softmax_backward(const attention &a, float (*p)[4], float (*g)[4],
                                        const float (*numbers)[COMING], const float of_rows[2][2], const int place[2],
                                        int n_keys, uint32_t kept)
{
    const int lane = lane_index(), row = place[0] + lane / 4, column = place[1] + lane % 4 * 2;
    const bool masks = R == REACH_BIASED ? false /* they are -infinity */
                       : R == REACH_FULL ? place[OF_KEYS ? 0 : 1] + (OF_KEYS ? 16 : COMING) > n_keys
                       : OF_KEYS         ? place[0] + 15 > place[1]
                                         : place[1] + COMING - 1 > place[0];
    const bool slides = (R == REACH_WINDOW || R == REACH_DOCUMENT) &&
                        place[OF_KEYS ? 0 : 1] + a.window < (OF_KEYS ? place[1] + COMING : place[0] + 16);

#pragma unroll
    for (int n = 0; n < COMING / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int at = n * 8 + lane % 4 * 2 + i % 2; /* column of the tile */
            const int query = OF_KEYS ? column + n * 8 + i % 2 : row + i / 2 * 8;
            const int key = OF_KEYS ? row + i / 2 * 8 : column + n * 8 + i % 2;
            const float log2_sum = OF_KEYS ? numbers[0][at] : of_rows[0][i / 2];
            const float delta = OF_KEYS ? numbers[1][at] : of_rows[1][i / 2];
            float x = power_of_2(fmaf(p[n][i], a.to_log2, -log2_sum));

            if ((masks && (R == REACH_FULL ? key >= n_keys : key > query)) || (slides && key + a.window <= query))
                x = 0;
            p[n][i] = x;
            if (DROPS) {
                p[n][i] = kept >> (n * 4 + i) & 1 ? x : 0;
                g[n][i] = kept >> (n * 4 + i) & 1 ? g[n][i] * a.kept_scale : 0;
            }
            g[n][i] = x * (g[n][i] - delta);
        }
}

/* GROUPED: the block that holds keys runs over the heads that share them, one after another, and sums in place. */
template <typename T, int HEAD, sought S, bool DROPS, reach R, bool GROUPED>
__global__ void __launch_bounds__(THREADS, 2) attend_backward(const attention a)
{
    typedef ::plan<HEAD, S, R> plan;
    typedef ::biased<HEAD, S, R> biased;
    enum { STEPS = HEAD / 16, COMING = plan::COMING, HELD = plan::HELD, SUMS = plan::SUMS };
    constexpr bool HOLDS_KEYS = plan::HOLDS_KEYS;
    enum { KEPT = plan::KEPT - (HOLDS_KEYS && HEAD > 64 && DROPS ? HEAD / 16 : 0) }; /* else it spills */
    constexpr kind K = fast_kind<HOLDS_KEYS, GROUPED>::K;
    const int n_tiles = ((HOLDS_KEYS ? a.n_keys : a.n_tokens) + TILE - 1) / TILE, tile = (int)(blockIdx.x % n_tiles);
    unsigned head = blockIdx.x / n_tiles * (GROUPED ? a.group : 1);
    const int first = (HOLDS_KEYS ? tile : n_tiles - 1 - tile) * TILE; /* the longest runs begin first */
    const int row = (int)threadIdx.x / WARP * 16, seen = first_seen<R>(a, head, first) / COMING * COMING;
    const bool sees_all = ::sees_all<R>(a), drops = drops_any<DROPS, R>(a);
    const int begin = HOLDS_KEYS && !sees_all ? first : seen, n_keys = sees_all ? keys_of<ANY>(a, head) : 0;
    const int window_end = R == REACH_WINDOW || R == REACH_DOCUMENT ? queries_end(a, first, TILE) : a.n_tokens;
    const int end = !HOLDS_KEYS           ? (sees_all ? n_keys : min(first + TILE, a.n_tokens))
                    : R == REACH_DOCUMENT ? min(window_end, documents_end<COMING>(a, head, first, first + TILE - 1))
                                          : window_end;
    const sides<T, K, HOLDS_KEYS> sides(a, head);
    const int n_coming = HOLDS_KEYS ? a.n_tokens : a.n_keys;
    room<HEAD, S, R> *shared = shared_memory<room<HEAD, S, R>>();
    typename biased::table *bias = (typename biased::table *)(shared + 1);
    typename biased::sums *bias_sums = (typename biased::sums *)(bias + 1) + threadIdx.x / WARP;
    float sums[SUMS][1][HEAD / 8][4] = {}; /* of s, then of p; or of one */
    float of_rows[2][2] = {};
    matrices kept[KEPT > 0 ? KEPT : 1]; /* left factors of held[0], then of held[1] */

    for (int i = 0; i < HELD; i++)
        tile_fetch<HEAD, TILE, THREADS>(shared_at(shared->held[i]), a, sides.held[i], first);
    arrivals<T, HEAD, S, R> arrivals(a, sides, head, begin);
    arrivals.fetch(a, shared, 0, n_coming - begin);
    if (R == REACH_BIASED)
        bias->template fill<THREADS>(a, head);
    if (R == REACH_BIASED && !HOLDS_KEYS)
        bias_sums->clear();
    for (int half = 0; !HOLDS_KEYS && half < 2; half++) {
        const int query = first + row + half * 8 + lane_index() / 4;
        const size_t at = (size_t)head * a.n_tokens + query;
        of_rows[0][half] = query < a.n_tokens ? a.log2_sum[at] : 0;
        of_rows[1][half] = query < a.n_tokens ? a.delta[at] : 0;
    }
    for (int other = begin, stage = 0, left_heads = GROUPED ? (int)a.group : 1; other < end; stage = !stage) {
        const int place[2] = {first + row, other};
        const shared_address coming[2] = {shared_at(shared->coming[stage][0]), shared_at(shared->coming[stage][1])};
        const unsigned turn = GROUPED ? afresh(head) + a.group - left_heads : head;
        const uint32_t drawn = drops ? draw<HOLDS_KEYS, COMING>(a, turn, first + row, other) : 0;
        float p[1][COMING / 8][4] = {}, g[1][COMING / 8][4] = {};

        copy_wait<0>();
        __syncthreads();                                     /* this stage has arrived; the other one is free */
        const bool turns = GROUPED && other + COMING >= end; /* to the next head */
        if (GROUPED && (!turns || left_heads > 1)) {
            /* begins anew for each tile: that leaves registers free */
            const unsigned of = afresh(head) + a.group - left_heads + turns;
            const int at = turns ? begin : other + COMING;
            ::arrivals<T, HEAD, S, R>(a, ::sides<T, K, HOLDS_KEYS>(a, of), of, at)
                .fetch(a, shared, !stage, n_coming - at);
        } else if (!GROUPED && other + COMING < end) {
            arrivals.fetch(a, shared, !stage, n_coming - other - COMING);
        }
        if (R == REACH_BIASED)
            bias->template begin<HOLDS_KEYS>(a, p, place[HOLDS_KEYS], place[!HOLDS_KEYS], n_keys);
        if (other == begin)
#pragma unroll
            for (int i = 0; i < KEPT; i++)
                kept[i] = tile_left<HEAD>(shared_at(shared->held[i / STEPS]), row, i % STEPS);
#pragma unroll
        for (int i = 0; i < HELD * STEPS; i++) {
            if (R == REACH_DOCUMENT && i == STEPS) /* here: g has no registers yet */
                mask_documents<HOLDS_KEYS, COMING>(a, afresh(head), p[0], place);
            const matrices left =
                i < KEPT ? kept[i < KEPT ? i : 0] : tile_left<HEAD>(shared_at(shared->held[i / STEPS]), row, i % STEPS);
            tile_multiply_transposed<T, HEAD, 1, COMING>(i < STEPS ? p : g, &left, coming[i / STEPS], i % STEPS);
        }
        if (R == REACH_DOCUMENT && HELD == 1)
            mask_documents<HOLDS_KEYS, COMING>(a, afresh(head), p[0], place);
        if (drops)
            softmax_backward<HOLDS_KEYS, DROPS, R, COMING>(a, p[0], g[0], shared->numbers[stage], of_rows, place,
                                                           n_keys, drawn);
        else
            softmax_backward<HOLDS_KEYS, false, R, COMING>(a, p[0], g[0], shared->numbers[stage], of_rows, place,
                                                           n_keys, drawn);
        if (R == REACH_BIASED && !HOLDS_KEYS && a.op.bias_gradient)
            bias_sums->add(g[0], place[1] - place[0]);
#pragma unroll
        for (int n = 0; n < COMING / 16; n++) {
            const matrices left[2] = {left_of<T>(g[0] + 2 * n), left_of<T>(p[0] + 2 * n)};
            if (S != SEEKS_VALUES)
                tile_multiply<T, HEAD, 1>(sums[0], &left[0], coming[0], n * 16);
            if (S == SEEKS_BOTH || S == SEEKS_VALUES)
                tile_multiply<T, HEAD, 1>(sums[SUMS - 1], &left[1], coming[1], n * 16);
        }
        other += COMING;
        if (GROUPED && other >= end && --left_heads > 0)
            other = begin;
    }
    if (R == REACH_BIASED && !HOLDS_KEYS && a.op.bias_gradient)
        store_bias_sums<COMING, WARPS>(a, (typename biased::sums *)(bias + 1), bias->at,
                                       a.bias_sums + ((size_t)head * n_tiles + tile) * a.op.buckets.n);
    const float scale[2] = {a.op.scale, a.op.scale}, kept_scale[2] = {a.kept_scale, a.kept_scale};
    if (S != SEEKS_VALUES)
        tile_store<HEAD>(sums[0][0], scale, shared->held[0], row, a,
                         gradient_of<K, T>(a, head, HOLDS_KEYS ? KEYS : QUERIES), first + row);
    if (S == SEEKS_BOTH || S == SEEKS_VALUES)
        tile_store<HEAD>(sums[SUMS - 1][0], kept_scale, shared->held[HELD - 1], row, a,
                         gradient_of<K, T>(a, head, VALUES), first + row);
}

/* Adds the gradients of a tile's scores, of queries from `query` on by keys from `key` on, to their buckets. A diagonal
 * of the tile is one distance: a thread sums it, and another one sums a bucket's diagonals, each in order. */
__device__ inline void add_bias_gradient(plain_room *room, const attention &a, const float g[4][4], int key, int query)
{
    const int number = (int)threadIdx.x, behind = number - (PLAIN - 1); /* this thread's diagonal */
    float *by_distance = &room->left[0][0];
    int *bucket = (int *)&room->right[0][0];

    __syncthreads();
    for (int i = 0; i < 16; i++)
        room->tile[plain_row() + i / 4][plain_column() + i % 4] = g[i / 4][i % 4];
    __syncthreads();
    if (behind < PLAIN) {
        float sum = 0;
        for (int row = max(behind, 0); row < min(PLAIN, PLAIN + behind); row++)
            sum += room->tile[row][row - behind];
        by_distance[number] = sum;
        bucket[number] = bucket_of(&a.op.buckets, key - query - behind);
    }
    __syncthreads();
    if (number < (int)a.op.buckets.n)
        for (int i = 0; i < 2 * PLAIN - 1; i++)
            room->by_bucket[number] += bucket[i] == number ? by_distance[i] : 0;
}

/* Any head width and any keys, as attend_plain of attention.cu. The block that holds keys runs over the heads that
 * share them, one after another. */
template <typename T, kind K, bool OF_KEYS, bool DROPS>
__global__ void __launch_bounds__(PLAIN_THREADS, 1) attend_backward_plain(const attention a)
{
    const int n_columns = (a.head_width + PLAIN - 1) / PLAIN;
    const int n_tiles = ((OF_KEYS ? a.n_keys : a.n_tokens) + PLAIN - 1) / PLAIN;
    const int column = (int)(blockIdx.x % n_columns) * PLAIN, tile = (int)(blockIdx.x / n_columns % n_tiles);
    const unsigned group = OF_KEYS && K != OWN_CAUSAL ? a.group : 1, from = blockIdx.x / n_columns / n_tiles * group;
    const int n_keys = keys_of<K>(a, from), first = (OF_KEYS ? tile : n_tiles - 1 - tile) * PLAIN;
    const bool is_whole =
        K == OWN_CAUSAL || (is_full<K>(a) && !(a.is_local && !a.op.lengths)); /* no window ends them */
    const int near_end = K == ANY && a.is_local ? min(n_keys, first + PLAIN - 1 + a.window) : n_keys;
    const int seen = K == ANY ? first_seen_of_any(a, from, first) / PLAIN * PLAIN : 0;
    const int begin = OF_KEYS && !is_full<K>(a) ? first : seen;
    const int row_end = OF_KEYS         ? (is_whole ? a.n_tokens : queries_end(a, first, PLAIN))
                        : is_full<K>(a) ? near_end
                                        : first + 1;
    const int end =
        K == ANY && a.op.positions ? min(row_end, documents_end<PLAIN>(a, from, begin, first + PLAIN - 1)) : row_end;
    plain_room *room = shared_memory<plain_room>();
    /* in the kernel of queries: that of chosen ones does not see all scores */
    const bool sums_bias = K == ANY && !OF_KEYS && a.op.bias_gradient && column == 0;
    float sums[2][4][4] = {}, scale[4], kept_scale[4];

    if (sums_bias && threadIdx.x < DEVICE_BUCKETS)
        room->by_bucket[threadIdx.x] = 0;
    for (unsigned member = 0; member < group; member++) {
        const unsigned head = from + member;
        const sides<T, K, OF_KEYS> sides(a, head);

        for (int other = begin; other < end; other += PLAIN) {
            float p[4][4], g[4][4];

            plain_products(p, room, a, sides.held[0], first, sides.coming[0], other);
            plain_products(g, room, a, sides.held[1], first, sides.coming[1], other);
#pragma unroll
            for (int i = 0; i < 16; i++) {
                const int row = first + plain_row() + i / 4, at = other + plain_column() + i % 4;
                const int query = OF_KEYS ? at : row, key = OF_KEYS ? row : at;
                const size_t number = (size_t)head * a.n_tokens + query;
                const bool takes_part = is_seen<K>(a, head, query, key, n_keys) && query < a.n_tokens;
                float slope = 1;
                if (K == ANY) {
                    p[i / 4][i % 4] = capped(a, p[i / 4][i % 4]);
                    slope = cap_slope(a, p[i / 4][i % 4]);
                }
                if (K == ANY && a.op.bias)
                    p[i / 4][i % 4] += bias_of(a, head, key - query);
                if (K == ANY && a.alibi)
                    p[i / 4][i % 4] += alibi_of(a, head, key - query);
                const float x = takes_part ? exp2f(p[i / 4][i % 4] * a.to_log2 - a.log2_sum[number]) : 0;
                const float factor = !DROPS ? 1 : takes_part && is_kept(a, head, query, key) ? a.kept_scale : 0;

                p[i / 4][i % 4] = x * factor;
                g[i / 4][i % 4] = takes_part ? x * (g[i / 4][i % 4] * factor - a.delta[number]) * slope : 0;
            }
            if (sums_bias)
                add_bias_gradient(room, a, g, other, first);
            plain_add(sums[0], room, a, g, sides.coming[0], other, column);
            if (OF_KEYS)
                plain_add(sums[1], room, a, p, sides.coming[1], other, column);
        }
    }
    if (sums_bias && threadIdx.x < a.op.buckets.n)
        a.bias_sums[((size_t)from * n_tiles + tile) * a.op.buckets.n + threadIdx.x] = room->by_bucket[threadIdx.x];
    for (int i = 0; i < 4; i++)
        scale[i] = a.op.scale, kept_scale[i] = 1;
    plain_store(gradient_of<K, T>(a, from, OF_KEYS ? KEYS : QUERIES), a, first, column, sums[0], scale);
    if (OF_KEYS)
        plain_store(gradient_of<K, T>(a, from, VALUES), a, first, column, sums[1], kept_scale);
}

/* The bias's gradient += the sums of all rows, and of their tiles; a block for each head. Thread (bucket, i) adds every
 * SUMMERS-th one from i on, in order, and thread (bucket, 0) these sums. */
enum { SUMMERS = 8 };
__global__ void __launch_bounds__(DEVICE_BUCKETS *SUMMERS) sum_bias(const attention a, unsigned n_tiles)
{
    const unsigned bucket = threadIdx.x % DEVICE_BUCKETS, i = threadIdx.x / DEVICE_BUCKETS, n = a.op.buckets.n;
    const unsigned head = blockIdx.x;
    float *room = shared_memory<float>(), sum = 0; /* (SUMMERS, DEVICE_BUCKETS) */

    if (bucket < n)
        for (size_t tile = i; tile < a.op.n_rows * n_tiles; tile += SUMMERS)
            sum += a.bias_sums[((tile / n_tiles * a.n_heads + head) * n_tiles + tile % n_tiles) * n + bucket];
    room[threadIdx.x] = sum;
    __syncthreads();
    if (i > 0 || bucket >= n)
        return;
    for (unsigned other = 1; other < SUMMERS; other++)
        sum += room[other * DEVICE_BUCKETS + bucket];
    a.op.bias_gradient[bucket * a.n_heads + head] += sum;
}

/* The sinks' gradient += the sum of -p * delta over rows and queries, p a sink's probability; a block for each head. */
template <typename T> static __global__ void __launch_bounds__(PREPARE_THREADS) sum_sinks(const attention a)
{
    __shared__ struct block_sums shared;
    const unsigned head = blockIdx.x;
    const float sink = sink_of<T>(a, head);
    float sum[1] = {};

    for (size_t i = threadIdx.x; i < a.op.n_rows * a.n_tokens; i += PREPARE_THREADS) {
        const size_t at = (i / a.n_tokens * a.n_heads + head) * a.n_tokens + i % a.n_tokens;
        sum[0] = fmaf(-exp2f(sink - a.log2_sum[at]), a.delta[at], sum[0]);
    }
    block_sum(&shared, 0, sum);
    if (threadIdx.x == 0)
        a.op.sinks_gradient[head] += sum[0];
}

template <typename T> static cudaError_t launch_prepare(const struct cuda_queue *q, const attention &a)
{
    const size_t n = a.op.n_rows * a.op.n_heads * a.n_tokens;
    const bool packs = a.head_width % whole<T>::V == 0 && is_whole((const T *)a.op.out, a.op.width) &&
                       is_whole((const T *)a.op.out_gradient, a.op.width);

    return launch(packs ? prepare<T, whole<T>::V> : prepare<T, 1>,
                  dim3((unsigned)pieces(n * PREPARE_GROUP, PREPARE_THREADS)), PREPARE_THREADS, 0, q->stream, a);
}

/* For keys of wide heads, ptxas has too few registers for a window or documents but in the kernel for groups, and there
 * for dropout. */
template <typename T, int HEAD, sought S, reach R> static auto fast_kernel(const attention &a)
{
    constexpr bool HOLDS_KEYS = S != SEEKS_QUERIES, SLIDES = R == REACH_WINDOW || R == REACH_DOCUMENT;
    constexpr bool GROUPS = HOLDS_KEYS && R != REACH_FULL; /* keys that heads share */

    if constexpr (R == REACH_BIASED)
        return attend_backward<T, HEAD, S, true, R, false>;
    else if constexpr (HEAD > 128)
        return attend_backward<T, HEAD, S, false, R, HOLDS_KEYS>;
    else if constexpr (HEAD == 128 && HOLDS_KEYS && SLIDES)
        return attend_backward<T, HEAD, S, false, R, true>;
    else if (!has_few<T> && a.op.dropout.p > 0)
        return GROUPS && a.group > 1 ? attend_backward<T, HEAD, S, !has_few<T>, R, GROUPS>
                                     : attend_backward<T, HEAD, S, !has_few<T>, R, false>;
    else if constexpr (GROUPS)
        return a.group > 1 ? attend_backward<T, HEAD, S, false, R, true> : attend_backward<T, HEAD, S, false, R, false>;
    else
        return attend_backward<T, HEAD, S, false, R, false>;
}

template <typename T, int HEAD, sought S, reach R>
static cudaError_t launch_fast(const struct cuda_queue *q, const attention &a)
{
    const auto kernel = fast_kernel<T, HEAD, S, R>(a);
    const size_t bytes = biased<HEAD, S, R>::bytes();
    const cudaError_t rc = allow_shared(kernel, bytes);

    if (rc != cudaSuccess)
        return rc;
    return launch(kernel, blocks_of(a, S == SEEKS_QUERIES ? ATTENTION_QUERIES : ATTENTION_KEYS, HEAD), THREADS, bytes,
                  q->stream, a);
}

template <typename T, int HEAD, sought S> static cudaError_t launch_fast(const struct cuda_queue *q, const attention &a)
{
    const enum reach extent = reach_of(a);

    if constexpr (!has_few<T>) {
        if (extent == REACH_WINDOW)
            return launch_fast<T, HEAD, S, REACH_WINDOW>(q, a);
        if (extent == REACH_DOCUMENT)
            return launch_fast<T, HEAD, S, REACH_DOCUMENT>(q, a);
        if (extent == REACH_BIASED)
            return launch_fast<T, HEAD, S, REACH_BIASED>(q, a);
    }
    return extent == REACH_FULL ? launch_fast<T, HEAD, S, REACH_FULL>(q, a) : launch_fast<T, HEAD, S, REACH_ALL>(q, a);
}

/* A window of the whole row is none. */
template <typename T, sought S> static cudaError_t launch_widest(const struct cuda_queue *q, const attention &a)
{
    return a.op.positions ? launch_fast<T, 256, S, REACH_DOCUMENT>(q, a) : launch_fast<T, 256, S, REACH_WINDOW>(q, a);
}

template <typename T, kind K, bool OF_KEYS>
static cudaError_t launch_plain(const struct cuda_queue *q, const attention &a)
{
    const auto kernel = a.op.dropout.p > 0 ? attend_backward_plain<T, K, OF_KEYS, true>
                                           : attend_backward_plain<T, K, OF_KEYS, has_few<T>>;

    return launch(kernel, blocks_of(a, OF_KEYS ? ATTENTION_KEYS : ATTENTION_QUERIES, 0), PLAIN_THREADS,
                  sizeof(plain_room), q->stream, a);
}

template <typename T, bool OF_KEYS> static cudaError_t launch_plain(const struct cuda_queue *q, const attention &a)
{
    constexpr enum kind CAUSAL = has_few<T> ? ANY : OWN_CAUSAL;

    return kind_of(a) == OWN_CAUSAL ? launch_plain<T, CAUSAL, OF_KEYS>(q, a) : launch_plain<T, ANY, OF_KEYS>(q, a);
}

template <typename T, bool HOLDS_KEYS>
static cudaError_t launch_gradient(const struct cuda_queue *q, const attention &a)
{
    constexpr sought S = HOLDS_KEYS ? SEEKS_BOTH : SEEKS_QUERIES;
    const size_t tile = tile_of(q, a, HOLDS_KEYS ? ATTENTION_KEYS : ATTENTION_QUERIES);

    if constexpr (!std::is_same_v<T, float>) {
        if (tile == 64)
            return launch_fast<T, 64, S>(q, a);
        if (tile == 128)
            return launch_fast<T, 128, S>(q, a);
        if constexpr (!has_few<T>) {
            if (tile == 256 && HOLDS_KEYS) {
                const cudaError_t rc = launch_widest<T, SEEKS_KEYS>(q, a);
                return rc == cudaSuccess ? launch_widest<T, SEEKS_VALUES>(q, a) : rc;
            }
            if (tile == 256)
                return launch_widest<T, SEEKS_QUERIES>(q, a);
        }
    }
    return launch_plain<T, HOLDS_KEYS>(q, a);
}

template <typename T> static cudaError_t launch_gradients(const struct cuda_queue *q, const attention &a)
{
    cudaError_t rc = launch_prepare<T>(q, a);

    if (rc == cudaSuccess && a.op.sinks_gradient)
        rc = launch(sum_sinks<T>, dim3(a.n_heads), PREPARE_THREADS, 0, q->stream, a);
    if (rc == cudaSuccess)
        rc = a.op.chosen ? attention_of_chosen(q, a) : launch_gradient<T, true>(q, a);
    return rc == cudaSuccess ? launch_gradient<T, false>(q, a) : rc;
}

extern "C" cudaError_t cuda_attention_backward(const struct cuda_queue *q, const struct device_attention *op)
{
    const attention a = attention_of(op);
    const cudaError_t rc = TYPED(q, launch_gradients)(q, a);

    if (rc != cudaSuccess || !op->bias_gradient)
        return rc;
    return launch(sum_bias, dim3(a.n_heads), DEVICE_BUCKETS * SUMMERS, DEVICE_BUCKETS * SUMMERS * sizeof(float),
                  q->stream, a, (unsigned)((op->n_tokens + TILE - 1) / TILE));
}
