/* device/cuda/kernels/attention_bias.cuh - a bias by distance, and its gradient, for attention on tensor cores.
 *
 * From ATTENTION_NEAR places on all distances of a direction are in its last bucket. So a block keeps a short table of the
 * bias by distance, made once: a tile of scores that lies farther out reads the table's end. Scores begin as their bias,
 * and products are added to it.
 *
 * The bias's gradient is the sum of the scores' gradients of each bucket. Each warp sums those of a tile by diagonals,
 * which are the distances, in order, into a table of its own; at the block's end warps are added in order, and distances
 * of a bucket. Nothing is added atomically. */
#ifndef DEVICE_CUDA_KERNELS_ATTENTION_BIAS_CUH
#define DEVICE_CUDA_KERNELS_ATTENTION_BIAS_CUH

#include "device/cuda/kernels/attention.cuh"

/* Numbers by distance, of which a warp reads or sums those of a tile of ROWS x COLUMNS scores at a time: SPAN neighbours.
 * Distance 0 is number ORIGIN; a positive one is of a key after its query. */
template <int ROWS, int COLUMNS> struct distances {
    enum { SPAN = ROWS + COLUMNS - 1, ORIGIN = ATTENTION_NEAR + SPAN - 1, N = 2 * ORIGIN + 1 };

    /* Where the numbers of a tile begin whose least distance is given: it, or as good as it. */
    static __device__ inline int place(int least)
    {
        return min(max(least, -ORIGIN), (int)ATTENTION_NEAR) + ORIGIN;
    }
};

/* The bias of one head by distance, to be added to scores before they are scaled. */
template <int ROWS, int COLUMNS> struct bias_table {
    typedef ::distances<ROWS, COLUMNS> distances;
    float at[distances::N];

    /* By all threads of a block; others may read after a barrier. */
    template <int THREADS> __device__ inline void fill(const attention &a, unsigned head)
    {
        for (int i = (int)threadIdx.x; i < distances::N; i += THREADS)
            at[i] = bias_of(a, head, i - distances::ORIGIN);
    }

    /* Scores of a warp's tile before the products: the bias, or -infinity where a query does not see the key. Rows are
     * queries from `query` on, columns keys from `key` on; with OF_KEYS, the other way round. */
    template <bool OF_KEYS>
    __device__ inline void begin(const attention &a, float (*scores)[COLUMNS / 8][4], int query, int key,
                                 int n_keys) const
    {
        const int lane = lane_index(), row = lane / 4, column = lane % 4 * 2;
        const int least = key - query - (OF_KEYS ? COLUMNS : ROWS) + 1;
        const float *const mine =
            at + distances::place(least) + (OF_KEYS ? COLUMNS - 1 + row - column : ROWS - 1 - row + column);

#pragma unroll
        for (int i = 0; i < ROWS * COLUMNS / WARP; i++) {
            const int m = i / (COLUMNS / 2), n = i / 4 % (COLUMNS / 8), place = i % 4;
            const int ahead = n * 8 + place % 2 - m * 16 - place / 2 * 8;
            scores[m][n][place] = mine[OF_KEYS ? -ahead : ahead];
        }
        if (a.op.full ? key + (OF_KEYS ? ROWS : COLUMNS) <= n_keys : key + (OF_KEYS ? ROWS : COLUMNS) - 1 <= query)
            return; /* all are seen */
#pragma unroll
        for (int i = 0; i < ROWS * COLUMNS / WARP; i++) {
            const int m = i / (COLUMNS / 2), n = i / 4 % (COLUMNS / 8), place = i % 4;
            const int of_row = row + m * 16 + place / 2 * 8, of_column = column + n * 8 + place % 2;
            const int k = key + (OF_KEYS ? of_row : of_column), q = query + (OF_KEYS ? of_column : of_row);
            if (k >= (a.op.full ? n_keys : q + 1))
                scores[m][n][place] = -INFINITY;
        }
    }
};

/* Sums of scores' gradients by distance, of one warp that has 16 queries, tile by tile of COLUMNS keys. */
template <int COLUMNS> struct bias_sums {
    typedef ::distances<16, COLUMNS> distances;
    enum { ROW = COLUMNS + 24 };
    /* A tile's rows i and i + 8 as one, at the places of their distances: those of row i + 8 are 8 less. Zeros on both
     * sides, so that each diagonal is a walk through all rows. */
    float tile[8][ROW];
    float by_distance[distances::N];

    /* By all lanes of the warp. */
    __device__ inline void clear()
    {
        for (int i = lane_index(); i < 8 * ROW; i += WARP)
            tile[i / ROW][i % ROW] = 0;
        for (int i = lane_index(); i < distances::N; i += WARP)
            by_distance[i] = 0;
    }

    /* A tile's gradients, as sums (fragment.cuh); the first key is `ahead` of the first query. Between two calls the block
     * has a barrier. */
    __device__ inline void add(const float (*g)[4], int ahead)
    {
        const int row = lane_index() / 4, column = lane_index() % 4 * 2, place = distances::place(ahead - 15);

#pragma unroll
        for (int n = -1; n < COLUMNS / 8; n++) {
            float two[2];
#pragma unroll
            for (int i = 0; i < 2; i++)
                two[i] = n < 0 ? g[0][2 + i] : n + 1 < COLUMNS / 8 ? g[n][i] + g[n + 1][2 + i] : g[n][i];
            *(float2 *)&tile[row][16 + n * 8 + column] = make_float2(two[0], two[1]);
        }
        __syncwarp();
        for (int i = lane_index(); i < distances::SPAN; i += WARP) {
            float sum = 0;
#pragma unroll
            for (int r = 0; r < 8; r++)
                sum += tile[r][1 + i + r];
            by_distance[place + i] += sum;
        }
    }
};

/* Sums of a block's warps by bucket (buckets.n), in global memory. room (distances::N): shared memory that nobody else uses
 * from the next barrier on. By all threads of the block. */
template <int COLUMNS, int WARPS>
__device__ inline void store_bias_sums(const attention &a, const bias_sums<COLUMNS> *of, float *room, float *sums)
{
    typedef ::distances<16, COLUMNS> distances;
    const struct device_buckets &buckets = a.op.buckets;
    const int bucket = (int)threadIdx.x, n = (int)(buckets.both ? buckets.n / 2 : buckets.n);

    __syncthreads();
    for (int i = (int)threadIdx.x; i < distances::N; i += WARPS * WARP) {
        float sum = 0;
        for (int warp = 0; warp < WARPS; warp++)
            sum += of[warp].by_distance[i];
        room[i] = sum;
    }
    __syncthreads();
    if (bucket >= (int)buckets.n)
        return;
    /* its distances, `from` to `to` - 1 places away, are ahead of their queries or behind */
    const bool upper = bucket >= n;
    const int which = upper ? bucket - n : bucket, far = distances::ORIGIN + 1;
    const int from = (int)buckets.starts[which], to = which + 1 < n ? (int)buckets.starts[which + 1] : far;
    const int first = upper ? max(from, 1) : 1 - to, end = upper ? to : which == 0 && !buckets.both ? far : 1 - from;
    float sum = 0;

    for (int i = first; i < end; i++)
        sum += room[distances::ORIGIN + i];
    sums[bucket] = sum;
}

#endif
