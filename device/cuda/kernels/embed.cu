/* device/cuda/kernels/embed.cu - the embedding's look-ups and their gradients.
 *
 * A token's gradient is added to the table row of its id, and ids repeat. So ids are sorted first, keeping the order of
 * equal ones. Then one block sums each run of RUN equal ids: an id's first run onto the table, others into lines of the
 * scratch, which are then added to the table in order. So even an id of half of all tokens is divided among blocks. The
 * bits depend neither on other ids nor on the division of the table; up to RUN tokens of an id, they equal a plain
 * loop's. */
#include "device/cuda/kernels/pack.cuh"

#include <assert.h>

/* ---- look-ups: a warp copies a row, 512 bytes at a time: lines of 128, if the table is in the host's memory ---- */

/* y += x * scale, or = x * scale. */
template <typename T, typename U, int V>
static __device__ inline void put(T *y, const pack<U, V> &x, bool accumulate, float scale)
{
    float row[V];

    if (accumulate) {
        const pack<T, V> was = load<V>(y);
#pragma unroll
        for (int v = 0; v < V; v++)
            row[v] = was[v] + x[v] * scale;
    } else {
#pragma unroll
        for (int v = 0; v < V; v++)
            row[v] = x[v] * scale;
    }
    store(y, row);
}

/* U: the table's type. */
template <typename T, typename U, int V> static __global__ void look_up(struct device_embed op, float scale)
{
    const size_t warps = (size_t)gridDim.x * blockDim.x / WARP, step = WARP * V;
    const size_t first = (size_t)(threadIdx.x % WARP) * V;

    for (size_t i = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) / WARP; i < op.m; i += warps) {
        const uint32_t id = op.ids[i] - op.first;

        if (op.ids[i] < op.first || id >= op.n_table)
            continue;
        for (size_t begin = first; begin < op.n; begin += PACKS * step) {
            pack<U, V> held[PACKS];

#pragma unroll
            for (int k = 0; k < PACKS; k++)
                if (begin + k * step < op.n)
                    held[k] = load<V>((const U *)op.table + id * op.n + begin + k * step);
#pragma unroll
            for (int k = 0; k < PACKS; k++)
                if (begin + k * step < op.n)
                    put((T *)op.y + i * op.n + begin + k * step, held[k], op.accumulate, scale);
        }
    }
}

template <typename T, typename U> static cudaError_t embed(const struct cuda_queue *q, const struct device_embed *op)
{
    const bool are_whole = is_whole((T *)op->y, op->n) && is_whole_for<T>((const U *)op->table, op->n);
    const size_t blocks = pieces(op->m, ROW_THREADS / WARP);

    return launch(are_whole ? look_up<T, U, whole<T>::V> : look_up<T, U, 1>,
                  dim3(smaller(blocks, (size_t)q->n_processors * BLOCKS)), ROW_THREADS, 0, q->stream, *op,
                  device_embed_scale(op));
}

template <typename T> static cudaError_t embed_either(const struct cuda_queue *q, const struct device_embed *op)
{
    return op->narrow ? embed<T, bf16>(q, op) : embed<T, T>(q, op);
}

cudaError_t cuda_embed(const struct cuda_queue *q, const struct device_embed *op)
{
    if (op->m == 0 || op->n == 0)
        return cudaSuccess;
    return TYPED(q, embed_either)(q, op);
}

/* ---- pixels: a thread has a channel of one, so that a warp writes side by side ---- */

template <typename T> static __global__ void __launch_bounds__(ROW_THREADS) spread(struct device_pixels op)
{
    const size_t threads = (size_t)gridDim.x * blockDim.x, n = op.m * op.n;

    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += threads) {
        const unsigned c = (unsigned)(i % op.n);
        set((T *)op.y + i, (float)fma((double)(op.ids[i / op.n] >> 8 * c & 0xff), op.scale[c], op.shift[c]));
    }
}

cudaError_t cuda_pixels(const struct cuda_queue *q, const struct device_pixels *op)
{
    assert(op->n <= DEVICE_MAX_CHANNELS);
    if (op->m == 0 || op->n == 0)
        return cudaSuccess;
    return launch(TYPED(q, spread), dim3(smaller(pieces(op->m * op->n, ROW_THREADS), (size_t)q->n_processors * BLOCKS)),
                  ROW_THREADS, 0, q->stream, *op);
}

/* ---- gradients of look-ups: each value of dy read once, each affected row of the table read and written ---- */

enum {
    SORT_THREADS = 1024,
    SORT_IDS = 512,    /* of a block, at most */
    SORT_ROWS = 32768, /* at once, at most: counts are 16 bits wide */
    RUN = 128,
    AHEAD = 8, /* rows of dy loaded ahead */
    RUN_THREADS = 512,
};

/* A sorted token: its row of dy and, if a run of its id begins there, the id's remaining tokens; else 0. */
struct place {
    uint32_t row, left;
};
#define FIRST_RUN 0x80000000u /* set in left */

struct sorted {
    uint32_t *n_places;
    struct place *places; /* (SORT_ROWS) */
    float *lines;         /* (n_places / RUN, rounded up, n): sums of later runs, at their place / RUN */
};

struct ids {
    const uint32_t *ids;
    uint32_t m, first, n_table, n_block; /* ids of a block */
};

/* Calls f(lanes, id) once per distinct id of the warp, with the lanes that have it. mine: this lane has an id. */
template <typename F> static __device__ inline void each_id(bool mine, uint32_t id, F f)
{
    for (unsigned left = __ballot_sync(WHOLE_WARP, mine); left;) {
        const uint32_t one = __shfl_sync(WHOLE_WARP, id, __ffs((int)left) - 1);
        const unsigned lanes = __ballot_sync(WHOLE_WARP, mine && id == one);

        f(lanes, one);
        left &= ~lanes;
    }
}

/* Exclusive prefix sums of x (n), in place. A barrier too: all threads call it. */
static __device__ inline void sum_before(uint32_t *x, uint32_t n)
{
    for (uint32_t far = 1; far < n; far *= 2) {
        const uint32_t i = threadIdx.x, was = i < n && i >= far ? x[i - far] : 0;

        __syncthreads();
        if (i < n)
            x[i] += was;
        __syncthreads();
    }
}

/* Sorts the ids b * n_block .. of block b into places, after those of all lower ids; the block counts these itself, so
 * blocks are independent. Warps have consecutive rows and separate counts: a warp's places for an id follow those of
 * earlier warps. At least as many threads as ids. */
static __global__ void __launch_bounds__(SORT_THREADS) sort_ids(struct sorted to, struct ids op)
{
    uint32_t *lower = shared_memory<uint32_t>(), *ends = lower + WARP, *sizes = ends + op.n_block;
    uint16_t *counts = (uint16_t *)(sizes + op.n_block); /* (warps, n_block) */
    const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, n_warps = blockDim.x / WARP;
    const uint32_t each = (op.m + blockDim.x - 1) / blockDim.x * WARP, begin = warp * each;
    const uint32_t end = begin + each < op.m ? begin + each : op.m, from = blockIdx.x * op.n_block;
    uint16_t *mine = counts + warp * op.n_block;
    uint32_t below = 0;

    for (uint32_t i = lane; i < op.n_block; i += WARP)
        mine[i] = 0;
    __syncwarp();
    for (uint32_t i = begin; i < end; i += WARP) {
        const uint32_t id = i + lane < end ? op.ids[i + lane] - op.first : UINT32_MAX;

        below += (uint32_t)__popc(__ballot_sync(WHOLE_WARP, id < from));
        each_id(id >= from && id < op.n_table && id - from < op.n_block, id - from, [&](unsigned lanes, uint32_t one) {
            if (lane == 0)
                mine[one] = (uint16_t)(mine[one] + __popc(lanes));
        });
    }
    if (lane == 0)
        lower[warp] = below;
    __syncthreads();
    if (threadIdx.x < op.n_block) { /* the warps' counts of an id become their first places in it */
        uint32_t size = 0;
        for (uint32_t w = 0; w < n_warps; w++) {
            const uint32_t count = counts[w * op.n_block + threadIdx.x];
            counts[w * op.n_block + threadIdx.x] = (uint16_t)size;
            size += count;
        }
        sizes[threadIdx.x] = ends[threadIdx.x] = size;
    }
    __syncthreads();
    sum_before(ends, op.n_block);
    below = 0;
    for (uint32_t w = 0; w < n_warps; w++)
        below += lower[w];
    for (uint32_t i = begin; i < end; i += WARP) {
        const uint32_t id = i + lane < end ? op.ids[i + lane] - op.first : UINT32_MAX;

        each_id(id >= from && id < op.n_table && id - from < op.n_block, id - from, [&](unsigned lanes, uint32_t one) {
            uint32_t nth = 0;
            if (lane == 0) {
                nth = mine[one];
                mine[one] = (uint16_t)(nth + (uint32_t)__popc(lanes));
            }
            nth = __shfl_sync(WHOLE_WARP, nth, 0) + (uint32_t)__popc(lanes & ((1u << lane) - 1));
            if (lanes >> lane & 1) {
                const uint32_t size = sizes[one], left = nth % RUN == 0 ? size - nth : 0;
                const struct place place = {i + lane, nth == 0 ? left | FIRST_RUN : left};
                to.places[below + ends[one] - size + nth] = place;
            }
        });
    }
    if (blockIdx.x == gridDim.x - 1 && threadIdx.x == 0)
        *to.n_places = below + ends[op.n_block - 1];
}

/* A gradient's rows of n values, to be multiplied by a number. */
template <typename T> struct scaled_rows {
    const T *dy;
    size_t n;
    float scale;
};

/* One run after another: dy's rows in order, added to the table's row or to 0. */
template <typename T, int V>
static __global__ void __launch_bounds__(RUN_THREADS, 1)
    add_runs(float *table, struct sorted from, const uint32_t *ids, struct scaled_rows<T> rows, uint32_t first)
{
    const uint32_t n_places = *from.n_places;
    const size_t n = rows.n;

    for (uint32_t at = blockIdx.x; at < n_places; at += gridDim.x) {
        const struct place *run = from.places + at;
        const bool is_first = run->left & FIRST_RUN;
        const uint32_t left = run->left & ~FIRST_RUN, length = left < RUN ? left : (uint32_t)RUN;

        if (length == 0)
            continue;
        float *to = is_first ? table + (size_t)(ids[run->row] - first) * n : from.lines + at / RUN * n;

        for (size_t column = (size_t)threadIdx.x * V; column < n; column += (size_t)blockDim.x * V) {
            float sum[V] = {};

            if (is_first)
                load_wide(sum, to + column);
            for (uint32_t i = 0; i < length; i += AHEAD) {
                pack<T, V> held[AHEAD];

#pragma unroll
                for (uint32_t k = 0; k < AHEAD; k++)
                    if (i + k < length)
                        held[k] = load<V>(rows.dy + run[i + k].row * n + column);
#pragma unroll
                for (uint32_t k = 0; k < AHEAD; k++)
#pragma unroll
                    for (int v = 0; v < V; v++)
                        if (i + k < length)
                            sum[v] += held[k][v] * rows.scale;
            }
            store_wide(to + column, sum);
        }
    }
}

/* Adds the lines of later runs to the table, in order. */
static __global__ void add_lines(float *table, struct sorted from, const uint32_t *ids, uint32_t first, size_t n)
{
    const uint32_t n_places = *from.n_places;

    for (uint32_t at = blockIdx.x; at < n_places; at += gridDim.x) {
        const uint32_t left = from.places[at].left, size = left & ~FIRST_RUN;

        if (!(left & FIRST_RUN) || size <= RUN)
            continue;
        float *to = table + (size_t)(ids[from.places[at].row] - first) * n;
        for (size_t column = threadIdx.x; column < n; column += blockDim.x) {
            float sum = to[column];
#pragma unroll 8
            for (uint32_t i = RUN; i < size; i += RUN)
                sum += from.lines[(at + i) / RUN * n + column];
            to[column] = sum;
        }
    }
}

static cudaError_t sort(const struct cuda_queue *q, const struct sorted &to, struct ids op)
{
    const uint32_t n_block = smaller(pieces(op.n_table, q->n_processors), SORT_IDS);
    const uint32_t blocks = (uint32_t)pieces(op.n_table, n_block);
    const unsigned threads = whole_warps(smaller(op.m > n_block ? op.m : n_block, SORT_THREADS));

    op.n_block = n_block;
    return launch(sort_ids, dim3(blocks), threads,
                  (WARP + 2 * n_block) * sizeof(uint32_t) + threads / WARP * n_block * sizeof(uint16_t), q->stream, to,
                  op);
}

/* Adds dy's rows of these ids: at most SORT_ROWS, and at most as many as there are lines for */
template <typename T>
static cudaError_t add_some(const struct cuda_queue *q, float *table, const struct sorted &sorted, const struct ids &op,
                            const struct scaled_rows<T> &rows)
{
    const size_t n = rows.n;
    const bool in_packs = is_whole(rows.dy, n) && is_whole(table, n);
    const unsigned threads = whole_warps(smaller(pieces(n, in_packs ? (int)whole<T>::V : 1), RUN_THREADS));
    const dim3 grid(smaller(op.m, (size_t)q->n_processors * BLOCKS | 1)); /* odd: an id's runs meet all blocks */
    cudaError_t rc = sort(q, sorted, op);

    if (rc == cudaSuccess)
        rc = launch(in_packs ? add_runs<T, whole<T>::V> : add_runs<T, 1>, grid, threads, 0, q->stream, table, sorted,
                    op.ids, rows, op.first);
    if (rc == cudaSuccess && op.m > RUN)
        rc = launch(add_lines, grid, whole_warps(smaller(n, ROW_THREADS)), 0, q->stream, table, sorted, op.ids,
                    op.first, n);
    return rc;
}

template <typename T> static cudaError_t embed_backward(const struct cuda_queue *q, const struct device_embed *op)
{
    const size_t n = op->n;
    char *scratch = (char *)q->scratch;
    const size_t before = PACK_BYTES + SORT_ROWS * sizeof(struct place);
    const size_t lines = (PLAN_CUDA_SCRATCH_BYTES - before) / (n * sizeof(float));
    const size_t most = smaller(lines * RUN, SORT_ROWS);
    const struct sorted sorted = {(uint32_t *)scratch, (struct place *)(scratch + PACK_BYTES),
                                  (float *)(scratch + before)};
    struct ids some = {op->ids, 0, op->first, op->n_table, 0};
    struct scaled_rows<T> rows = {
        (const T *)op->y_gradient, n, device_embed_scale(op)
    };
    cudaError_t rc = cudaSuccess;

    assert(most > 0);
    for (size_t i = 0; i < op->m && rc == cudaSuccess; i += most) {
        some.m = smaller(most, op->m - i);
        rc = add_some(q, op->table_gradient, sorted, some, rows);
        some.ids += some.m;
        rows.dy += some.m * n;
    }
    return rc;
}

cudaError_t cuda_embed_backward(const struct cuda_queue *q, const struct device_embed *op)
{
    if (op->n == 0 || op->n_table == 0)
        return cudaSuccess;
    return TYPED(q, embed_backward)(q, op);
}
