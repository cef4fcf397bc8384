/* device/cuda/kernels/attention_chosen.cu - attention, backward: gradients of keys and values from chosen queries.
 *
 * As the kernel of keys in attention_backward.cu, but a block runs over a list of queries: each coming tile is the next
 * ones of the list, whose rows are copied from wherever they are. So of its four products as much is left as there are
 * queries. Lists ascend: those that a tile of keys is not seen by are a prefix and a suffix, which are skipped. Within
 * a tile each query brings the range of keys that it sees; with it one kernel serves causal and full rows, windows and
 * documents. A query's weight multiplies its probabilities and gradients of scores once these are known. */
#include "device/cuda/kernels/attention_plain.cuh"

#include <assert.h>

enum { WARPS = 4, THREADS = WARPS * WARP, TILE = WARPS * 16 };

/* A head's list: indices of numbers in (n_rows, n_heads, n_tokens), of which the first is `origin`. */
struct chosen {
    const uint32_t *numbers;
    const float *weights;
    uint32_t origin;

    __device__ chosen(const attention &a, unsigned head)
        : numbers(a.op.chosen + (size_t)head * a.op.n_chosen), weights(a.op.weights + (size_t)head * a.op.n_chosen),
          origin(head * (uint32_t)a.n_tokens)
    {
    }
    __device__ int query(int i) const
    {
        return (int)(numbers[i] - origin);
    }
    /* The first of n that is not before a query. */
    __device__ int find(int query, int n) const
    {
        int low = 0;

        for (int high = n; low < high;) {
            const int middle = (low + high) / 2;
            if (this->query(middle) < query)
                low = middle + 1;
            else
                high = middle;
        }
        return low;
    }
};

/* The part of a head's list that may see keys first .. first+TILE-1. */
struct run {
    int begin, end;

    static __device__ run of(const attention &a, unsigned head, int first)
    {
        const int n = (int)a.op.n_chosen;
        const chosen list(a, head);

        if (a.op.full && !a.op.positions)
            return {0, n};
        const int tokens = a.op.full ? a.n_tokens : queries_end(a, first, TILE);
        const int from = a.op.full ? document_of(a, head, first) : first;
        const int last = a.op.positions ? min(tokens, documents_end<TILE>(a, head, first, first + TILE - 1)) : tokens;
        return {list.find(from, n), list.find(last, n)};
    }
};

/* ---- tensor cores ---- */

/* Sizes for heads of this width, as the plan of attention_backward.cu has them: rows of a coming tile, and as many left
 * factors in registers as do not spill. */
template <int HEAD, bool DROPS> struct plan {
    enum { COMING = HEAD > 64 ? 32 : 64, KEPT = HEAD <= 64 ? 2 * HEAD / 16 : DROPS ? 1 : 4 };
};

/* What a coming query brings besides its rows. */
template <int COMING> struct brought {
    float log2_sum[COMING], delta[COMING], weight[COMING];
    int query[COMING], from[COMING], to[COMING]; /* it sees keys from .. to-1 */
};

/* Shared memory: two held tiles, and two stages of two coming tiles; at most 67 KiB. */
template <int HEAD, int COMING> struct room {
    unsigned char held[2][TILE * HEAD * 2], coming[2][2][COMING * HEAD * 2];
    brought<COMING> of[2];
};

/* Begins to copy the rows of queries at .. at+COMING-1 of the list, zeros from `end` on, and brings their numbers. */
template <int HEAD, int COMING>
__device__ inline void fetch(room<HEAD, COMING> *room, int stage, const attention &a, unsigned head, int at, int end)
{
    typedef tile_share<HEAD, THREADS> share;
    const chosen list(a, head);
    const view<const bf16> queries = input_of<ANY, bf16>(a, head, QUERIES),
                           gradients = out_of(a, (const bf16 *)a.op.out_gradient, head);
    const unsigned to = tile_at<HEAD>(share::row(), (int)threadIdx.x % share::EIGHTS);
    const int column = (int)threadIdx.x % share::EIGHTS * 8, rows_end = column < a.head_width ? end : 0;

#pragma unroll 2
    for (int i = 0; i < COMING; i += share::AT_ONCE) {
        const int row = at + i + share::row();
        const bool there = row < rows_end;
        const size_t query = there ? (size_t)list.query(row) : 0;
        copy_async<16>(shared_at(room->coming[stage][0]) + to + i * HEAD * 2,
                       queries.first + query * queries.stride + column, there);
        copy_async<16>(shared_at(room->coming[stage][1]) + to + i * HEAD * 2,
                       gradients.first + query * gradients.stride + column, there);
    }
    if (threadIdx.x < COMING) {
        const int i = (int)threadIdx.x, row = at + i;
        brought<COMING> *const of = &room->of[stage];
        const bool there = row < end;
        const int query = there ? list.query(row) : 0;
        const size_t number = (size_t)head * a.n_tokens + query;

        copy_async<4>(shared_at(&of->log2_sum[i]), &a.log2_sum[number], there);
        copy_async<4>(shared_at(&of->delta[i]), &a.delta[number], there);
        copy_async<4>(shared_at(&of->weight[i]), list.weights + row, there);
        of->query[i] = query;
        of->from[i] = there ? first_seen_of_any(a, head, query) : 0;
        of->to[i] = !there ? 0 : a.op.full ? keys_of<ANY>(a, head) : query + 1;
    }
    copy_commit();
}

/* From scores and g: p and s, times the query's weight; as softmax_backward of attention_backward.cu. Rows are keys
 * from `key` on of the warp. */
template <bool DROPS, int COMING>
__device__ inline void softmax_backward(const attention &a, float (*p)[4], float (*g)[4], const brought<COMING> &of,
                                        int key, uint32_t kept)
{
    const int lane = lane_index();

#pragma unroll
    for (int n = 0; n < COMING / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int at = n * 8 + lane % 4 * 2 + i % 2, row = key + lane / 4 + i / 2 * 8;
            const bool seen = row >= of.from[at] && row < of.to[at];
            const float x = seen ? power_of_2(fmaf(p[n][i], a.to_log2, -of.log2_sum[at])) * of.weight[at] : 0;

            p[n][i] = x;
            if (DROPS) {
                p[n][i] = kept >> (n * 4 + i) & 1 ? x : 0;
                g[n][i] = kept >> (n * 4 + i) & 1 ? g[n][i] * a.kept_scale : 0;
            }
            g[n][i] = x * (g[n][i] - of.delta[at]);
        }
}

/* A block holds a tile of keys, and runs over the heads that share them, one after another. */
template <int HEAD, bool DROPS> __global__ void __launch_bounds__(THREADS, 2) attend_chosen(const attention a)
{
    enum { STEPS = HEAD / 16, COMING = plan<HEAD, DROPS>::COMING, KEPT = plan<HEAD, DROPS>::KEPT };
    const int n_tiles = (a.n_keys + TILE - 1) / TILE, first = (int)(blockIdx.x % n_tiles) * TILE;
    const unsigned from = blockIdx.x / n_tiles * a.group;
    const int row = (int)threadIdx.x / WARP * 16;
    room<HEAD, COMING> *shared = shared_memory<room<HEAD, COMING>>();
    float sums[2][1][HEAD / 8][4] = {}; /* with 0: s, 1: p */
    matrices kept[KEPT];                /* left factors of held[0], then of held[1] */

    tile_fetch<HEAD, TILE, THREADS>(shared_at(shared->held[0]), a, input_of<ANY, bf16>(a, from, KEYS), first);
    tile_fetch<HEAD, TILE, THREADS>(shared_at(shared->held[1]), a, input_of<ANY, bf16>(a, from, VALUES), first);
    copy_commit();
    copy_wait<0>();
    __syncthreads();
#pragma unroll
    for (int i = 0; i < KEPT; i++)
        kept[i] = tile_left<HEAD>(shared_at(shared->held[i / STEPS]), row, i % STEPS);
    for (unsigned member = 0; member < a.group; member++) {
        const unsigned head = from + member;
        const run over = run::of(a, head, first);

        if (over.begin == over.end)
            continue;    /* the whole block does */
        __syncthreads(); /* the last head's tiles have been read */
        fetch(shared, 0, a, head, over.begin, over.end);
        for (int at = over.begin, stage = 0; at < over.end; at += COMING, stage = !stage) {
            const shared_address coming[2] = {shared_at(shared->coming[stage][0]), shared_at(shared->coming[stage][1])};
            float p[1][COMING / 8][4] = {}, g[1][COMING / 8][4] = {};

            copy_wait<0>();
            __syncthreads(); /* this stage has arrived; the other one is free */
            if (at + COMING < over.end)
                fetch(shared, !stage, a, afresh(head), at + COMING, over.end);
            const uint32_t drawn = DROPS ? draw<true, COMING>(a, head, first + row, 0, shared->of[stage].query) : 0;
#pragma unroll
            for (int i = 0; i < 2 * STEPS; i++) {
                const matrices left = i < KEPT ? kept[i < KEPT ? i : 0]
                                               : tile_left<HEAD>(shared_at(shared->held[i / STEPS]), row, i % STEPS);
                tile_multiply_transposed<bf16, HEAD, 1, COMING>(i < STEPS ? p : g, &left, coming[i / STEPS], i % STEPS);
            }
            softmax_backward<DROPS, COMING>(a, p[0], g[0], shared->of[stage], first + row, drawn);
#pragma unroll
            for (int n = 0; n < COMING / 16; n++) {
                const matrices left[2] = {left_of<bf16>(g[0] + 2 * n), left_of<bf16>(p[0] + 2 * n)};
                tile_multiply<bf16, HEAD, 1>(sums[0], &left[0], coming[0], n * 16);
                tile_multiply<bf16, HEAD, 1>(sums[1], &left[1], coming[1], n * 16);
            }
        }
    }
    const float scale[2] = {a.op.scale, a.op.scale}, kept_scale[2] = {a.kept_scale, a.kept_scale};
    tile_store<HEAD>(sums[0][0], scale, shared->held[0], row, a, gradient_of<ANY, bf16>(a, from, KEYS), first + row);
    tile_store<HEAD>(sums[1][0], kept_scale, shared->held[1], row, a, gradient_of<ANY, bf16>(a, from, VALUES),
                     first + row);
}

/* ---- any head, any keys ---- */

/* The first n queries of the list (plain_rows). */
struct chosen_rows {
    const chosen &list;
    int n;

    __device__ int at(int i) const
    {
        return list.query(i);
    }
};

/* As attend_backward_plain, of keys. */
template <typename T, bool DROPS>
__global__ void __launch_bounds__(PLAIN_THREADS, 1) attend_chosen_plain(const attention a)
{
    static_assert((int)PLAIN == (int)TILE, "runs are of tiles of as many keys");
    const int n_columns = (a.head_width + PLAIN - 1) / PLAIN, n_tiles = (a.n_keys + PLAIN - 1) / PLAIN;
    const int column = (int)(blockIdx.x % n_columns) * PLAIN, first = (int)(blockIdx.x / n_columns % n_tiles) * PLAIN;
    const unsigned from = blockIdx.x / n_columns / n_tiles * a.group;
    const int n_keys = keys_of<ANY>(a, from);
    const view<const T> keys = input_of<ANY, T>(a, from, KEYS), values = input_of<ANY, T>(a, from, VALUES);
    plain_room *room = shared_memory<plain_room>();
    float sums[2][4][4] = {};
    const float scale[4] = {a.op.scale, a.op.scale, a.op.scale, a.op.scale}, one[4] = {1, 1, 1, 1};

    for (unsigned member = 0; member < a.group; member++) {
        const unsigned head = from + member;
        const chosen list(a, head);
        const run over = run::of(a, head, first);
        const chosen_rows rows = {list, over.end};
        const view<const T> queries = input_of<ANY, T>(a, head, QUERIES),
                            gradients = out_of(a, (const T *)a.op.out_gradient, head);

        for (int at = over.begin; at < over.end; at += PLAIN) {
            float p[4][4], g[4][4];

            plain_products(p, room, a, keys, first, queries, at, rows);
            plain_products(g, room, a, values, first, gradients, at, rows);
#pragma unroll
            for (int i = 0; i < 16; i++) {
                const int key = first + plain_row() + i / 4, number = at + plain_column() + i % 4;
                const bool there = number < over.end;
                const int query = there ? list.query(number) : 0;
                const size_t of = (size_t)head * a.n_tokens + query;
                const bool takes_part = there && is_seen<ANY>(a, head, query, key, n_keys);
                p[i / 4][i % 4] = capped(a, p[i / 4][i % 4]);
                const float slope = cap_slope(a, p[i / 4][i % 4]);
                if (a.op.bias)
                    p[i / 4][i % 4] += bias_of(a, head, key - query);
                if (a.alibi)
                    p[i / 4][i % 4] += alibi_of(a, head, key - query);
                const float weight = takes_part ? list.weights[number] : 0;
                const float x = takes_part ? exp2f(p[i / 4][i % 4] * a.to_log2 - a.log2_sum[of]) * weight : 0;
                const float factor = !DROPS ? 1 : takes_part && is_kept(a, head, query, key) ? a.kept_scale : 0;

                p[i / 4][i % 4] = x * factor;
                g[i / 4][i % 4] = takes_part ? x * (g[i / 4][i % 4] * factor - a.delta[of]) * slope : 0;
            }
            plain_add(sums[0], room, a, g, queries, at, column, rows);
            plain_add(sums[1], room, a, p, gradients, at, column, rows);
        }
    }
    plain_store(gradient_of<ANY, T>(a, from, KEYS), a, first, column, sums[0], scale);
    plain_store(gradient_of<ANY, T>(a, from, VALUES), a, first, column, sums[1], one);
}

/* ---- launches ---- */

template <int HEAD> static cudaError_t launch_fast(const struct cuda_queue *q, const attention &a)
{
    const bool drops = a.op.dropout.p > 0;
    const auto kernel = drops ? attend_chosen<HEAD, true> : attend_chosen<HEAD, false>;
    const size_t bytes = sizeof(room<HEAD, plan<HEAD, false>::COMING>);
    const cudaError_t rc = allow_shared(kernel, bytes);

    if (rc != cudaSuccess)
        return rc;
    return launch(kernel, blocks_of(a, ATTENTION_KEYS, HEAD), THREADS, bytes, q->stream, a);
}

template <typename T> static cudaError_t launch_plain(const struct cuda_queue *q, const attention &a)
{
    const auto kernel = a.op.dropout.p > 0 ? attend_chosen_plain<T, true> : attend_chosen_plain<T, false>;

    return launch(kernel, blocks_of(a, ATTENTION_KEYS, 0), PLAIN_THREADS, sizeof(plain_room), q->stream, a);
}

cudaError_t attention_of_chosen(const struct cuda_queue *q, const attention &a)
{
    const size_t tile = tile_of(q, a, ATTENTION_KEYS);

    assert(q->type != NUMBER_FP16); /* queries are not sampled there */
    if (tile == 64)
        return launch_fast<64>(q, a);
    if (tile == 128)
        return launch_fast<128>(q, a);
    return q->type == NUMBER_BF16 ? launch_plain<bf16>(q, a) : launch_plain<float>(q, a);
}
