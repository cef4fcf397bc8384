/* device/cuda/kernels/norm.cu - layer and root-mean-square normalisation, row by row: 2 values per element.
 *
 * A team of threads has a row at a time, in registers (HELD). A short row's team, as of heads, is a group of lanes, so that
 * a warp has several rows and meets at no barrier; a longer one's is a block. Rows too long for that are read again,
 * usually from the second-level cache. Weight and bias stay in the first-level cache. */

#include "device/cuda/kernels/sum_rows.cuh"

#include <assert.h>

enum {
    NORM_THREADS = 512,
    LEAST_LANES = 4, /* of a group: they read 64 bytes side by side, as much as the second-level cache gives at once */
};

template <typename T> struct norm_arrays {
    T *y;
    float *statistics;
    const T *x, *weight, *bias;
    unsigned m, n_heads; /* m: heads of all rows */
    size_t n, stride;
    float epsilon;
    bool centred;   /* about the mean; RMS norm is about 0 */
    bool offset;    /* the factor is 1 + weight */
    unsigned lanes; /* of a group */
};

/* Head i of all rows' heads, from the first value of an array. */
template <typename OP> static __device__ inline size_t head_at(const OP &op, unsigned i)
{
    return op.n_heads == 1 ? i * op.stride : i / op.n_heads * op.stride + i % op.n_heads * op.n;
}

static __device__ inline float factor(float weight, bool offset)
{
    return offset ? 1 + weight : weight;
}

/* ---- teams ---- */

/* Lanes of a warp: a power of two. */
struct group {
    unsigned lanes;

    __device__ explicit group(unsigned lanes_) : lanes(lanes_)
    {
    }

    __device__ unsigned n_threads() const
    {
        return lanes;
    }

    __device__ unsigned thread() const
    {
        return threadIdx.x % lanes;
    }

    /* Teams that go through their rows together; which of them this is; the first row of theirs; teams of the grid. */
    __device__ unsigned together() const
    {
        return WARP / lanes;
    }

    __device__ unsigned own() const
    {
        return threadIdx.x % WARP / lanes;
    }

    __device__ unsigned first() const
    {
        return (blockIdx.x * blockDim.x + threadIdx.x) / WARP * together();
    }

    __device__ unsigned all() const
    {
        return gridDim.x * blockDim.x / lanes;
    }

    /* Each thread's x become the team's sums, the same bits in all. */
    template <int N> __device__ void sum(float (&x)[N])
    {
        for (unsigned far = lanes / 2; far > 0; far /= 2)
#pragma unroll
            for (int i = 0; i < N; i++)
                x[i] += __shfl_xor_sync(WHOLE_WARP, x[i], (int)far);
    }
};

struct whole_block {
    unsigned turn;

    __device__ explicit whole_block(unsigned) : turn(0)
    {
    }

    __device__ unsigned n_threads() const
    {
        return blockDim.x;
    }

    __device__ unsigned thread() const
    {
        return threadIdx.x;
    }

    __device__ unsigned own() const
    {
        return 0;
    }

    __device__ unsigned first() const
    {
        return blockIdx.x;
    }

    __device__ unsigned all() const
    {
        return gridDim.x;
    }

    static __device__ struct block_sums *shared()
    {
        __shared__ struct block_sums sums;

        return &sums;
    }

    template <int N> __device__ void sum(float (&x)[N])
    {
        block_sum(shared(), turn++, x);
    }
};

/* Who has a row. */
struct teams {
    unsigned lanes;   /* of a group; 0: a team is a block */
    unsigned threads; /* of a block */
    bool held;

    unsigned blocks(unsigned m, size_t most) const
    {
        return smaller(pieces(m, lanes > 0 ? threads / lanes : 1), most);
    }
};

/* Of a row of so many packs, of which a thread holds up to `held`; of_groups: threads of a block of groups. */
static struct teams teams_of(size_t packs, size_t held, unsigned of_groups)
{
    const unsigned across = whole_warps(smaller(pieces(packs, held), NORM_THREADS));
    unsigned lanes = LEAST_LANES;

    while (lanes <= WARP && lanes * held < packs)
        lanes *= 2;
    if (lanes <= WARP)
        return {lanes, of_groups, true};
    return {0, across, packs <= across * held};
}

/* A thread's share of N arrays' rows: their packs from `column` on, `step` apart. rows[i] NULL: no such array. */
template <typename T, int V, int K, int N, bool HELD> struct share {
    unsigned column, step, n; /* n: 0 if the team has no row */
    const T *rows[N];
    pack<T, V> held[HELD ? K : 1][N];

    template <typename TEAM> __device__ explicit share(const TEAM &team)
    {
        column = team.thread() * V, step = team.n_threads() * V;
    }

    __device__ void read_at(pack<T, V> (&at)[N], unsigned place) const
    {
#pragma unroll
        for (int i = 0; i < N; i++)
            if (rows[i])
                at[i] = load<V>(rows[i] + place);
    }

    __device__ void read()
    {
        if constexpr (HELD) {
#pragma unroll
            for (int k = 0; k < K; k++)
                if (column + k * step < n)
                    read_at(held[k], column + k * step);
        }
    }

    /* f(packs of the rows, their column, which of the thread's) */
    template <typename F> __device__ void each(F f)
    {
        if constexpr (HELD) {
#pragma unroll
            for (int k = 0; k < K; k++)
                if (column + k * step < n)
                    f(held[k], column + k * step, k);
        } else {
            for (unsigned place = column; place < n; place += step) {
                read_at(held[0], place);
                f(held[0], place, 0);
            }
        }
    }
};

struct row_statistics {
    float mean, inverse; /* 1 / deviation */
};

/* The sum of differences from the mean corrects the mean's rounding, so that a mean far from 0 costs no digits. */
template <typename T, int V, bool HELD, typename TEAM>
static __device__ inline struct row_statistics statistics_of(share<T, V, PACKS, 1, HELD> *row, TEAM *team,
                                                             const struct norm_arrays<T> &op)
{
    const float n = (float)op.n;
    float sum[1] = {0}, difference[2] = {0, 0};

    if (op.centred) {
        row->each([&](const pack<T, V>(&x)[1], unsigned, int) {
#pragma unroll
            for (int v = 0; v < V; v++)
                sum[0] += x[0][v];
        });
        team->sum(sum);
    }
    const float near = sum[0] / n;
    row->each([&](const pack<T, V>(&x)[1], unsigned, int) {
#pragma unroll
        for (int v = 0; v < V; v++) {
            const float d = x[0][v] - near;
            difference[0] += d;
            difference[1] += d * d;
        }
    });
    team->sum(difference);
    const float off = op.centred ? difference[0] / n : 0;
    return {near + off, 1 / sqrtf(fmaxf(difference[1] / n - off * off, 0) + op.epsilon)};
}

template <typename T, int V, typename TEAM, bool HELD>
static __global__ void __launch_bounds__(NORM_THREADS) norm_rows(struct norm_arrays<T> op)
{
    TEAM team(op.lanes);
    share<T, V, PACKS, 1, HELD> row(team);

    for (unsigned first = team.first(); first < op.m; first += team.all()) {
        const unsigned i = first + team.own();
        const size_t at = head_at(op, i);

        row.n = i < op.m ? (unsigned)op.n : 0;
        row.rows[0] = op.x + at;
        row.read();
        const struct row_statistics of = statistics_of(&row, &team, op);
        if (team.thread() == 0 && i < op.m)
            store_wide(op.statistics + 2 * (size_t)i, {of.mean, of.inverse});
        row.each([&](const pack<T, V>(&x)[1], unsigned column, int) {
            const pack<T, V> weight = load<V>(op.weight + column);
            pack<T, V> bias = {};
            float y[V];

            if (op.bias)
                bias = load<V>(op.bias + column);
#pragma unroll
            for (int v = 0; v < V; v++)
                y[v] = (x[0][v] - of.mean) * of.inverse * factor(weight[v], op.offset) + bias[v];
            store(op.y + at + column, y);
        });
    }
}

/* All rows' heads. No device has room for 2^31 rows. */
static unsigned heads_of(const struct device_norm *op)
{
    assert(op->m * device_norm_heads(op) < 1u << 31);
    return (unsigned)(op->m * device_norm_heads(op));
}

template <int V, typename T> static cudaError_t run_norm(const struct cuda_queue *q, struct norm_arrays<T> op)
{
    const struct teams teams = teams_of(pieces(op.n, V), PACKS, ROW_THREADS);
    const dim3 grid(teams.blocks(op.m, (size_t)q->n_processors * BLOCKS));
    const auto kernel = teams.lanes > 0 ? norm_rows<T, V, group, true>
                        : teams.held    ? norm_rows<T, V, whole_block, true>
                                        : norm_rows<T, V, whole_block, false>;

    op.lanes = teams.lanes;
    return launch(kernel, grid, teams.threads, 0, q->stream, op);
}

template <typename T> static cudaError_t norm(const struct cuda_queue *q, const struct device_norm *op)
{
    const struct norm_arrays<T> arrays = {
        (T *)op->y, op->statistics, (const T *)op->x, (const T *)op->weight, (const T *)op->bias, heads_of(op),
            (unsigned)device_norm_heads(op), op->n,
            device_norm_stride(op), op->epsilon, op->kind == DEVICE_LAYER_NORM, op->offset, 0
    };
    const bool are_whole = is_whole(arrays.y, arrays.stride) && is_whole(arrays.x, arrays.stride) &&
                           is_whole(arrays.weight, op->n) && is_whole(arrays.bias, op->n);

    return are_whole ? run_norm<whole<T>::V>(q, arrays) : run_norm<1>(q, arrays);
}

cudaError_t cuda_norm(const struct cuda_queue *q, const struct device_norm *op)
{
    if (op->m == 0 || op->n == 0)
        return cudaSuccess;
    return TYPED(q, norm)(q, op);
}

/* ---- norm's gradients: 3 values per element, 4 if accumulating ----
 *
 * With z = (x - mean) * inverse and g = dy * factor: dx = inverse * (g - mean(g) - z * mean(g z)); without mean(g) if
 * not centred. A team has many rows in turn and sums their dy z and dy for the gradients of weight and bias: in registers
 * if HELD, else in the block's line of the scratch. If HELD in 16 bits, the next row is loaded during this one, as a
 * processor has few other teams to run meanwhile; and weights are held, as loading them would wait for that row. Two rows
 * of fp32 do not fit the registers. */

template <typename T> struct gradient_arrays {
    T *dx;
    bool accumulate;
    const T *dy, *x;
    const float *statistics;
    const T *weight;
    unsigned m, n_heads; /* as above */
    size_t n, stride;
    float *lines; /* (blocks, 2n): of weight, of bias */
    bool centred, offset;
    unsigned lanes;
};

enum { DY, X, DX, GRADIENT_ROWS };

/* Packs of a thread in each row, if HELD: the sums, two per value, fill the registers. */
template <int V> struct gradient_share {
    enum { K = V == 1 ? 4 : 16 / V, COLUMNS = WARP * K * V /* of a group, at most */ };
};

template <typename T, int V, bool HELD> struct gradient_row : share<T, V, gradient_share<V>::K, GRADIENT_ROWS, HELD> {
    struct row_statistics of;
    size_t at; /* from the first value of an array */

    using share<T, V, gradient_share<V>::K, GRADIENT_ROWS, HELD>::share;

    /* Row i, if there is one. */
    __device__ void begin(const struct gradient_arrays<T> &op, unsigned i)
    {
        float statistics[2] = {0, 0};

        this->n = i < op.m ? (unsigned)op.n : 0;
        if (i >= op.m)
            return;
        at = head_at(op, i);
        this->rows[DY] = op.dy + at, this->rows[X] = op.x + at;
        this->rows[DX] = op.accumulate ? op.dx + at : NULL;
        load_wide(statistics, op.statistics + 2 * (size_t)i);
        of = {statistics[0], statistics[1]};
        this->read();
    }
};

/* The line becomes the sum of x, a thread's sums of its columns, over the block's groups: first those of a warp, then warp
 * after warp. All threads call it, and meet. */
template <int V, int K, typename ROW>
static __device__ inline void put_sums(float *line, const struct group &team, ROW *row, unsigned n, float (&x)[K][V])
{
    __shared__ float sums[gradient_share<V>::COLUMNS];
    const unsigned warp = threadIdx.x / WARP, n_warps = blockDim.x / WARP;

#pragma unroll
    for (int k = 0; k < K; k++)
#pragma unroll
        for (int v = 0; v < V; v++)
            for (unsigned far = team.lanes; far < WARP; far *= 2)
                x[k][v] += __shfl_xor_sync(WHOLE_WARP, x[k][v], (int)far);
    row->n = team.own() == 0 ? n : 0;
    for (unsigned turn = 0; turn < n_warps; turn++) {
        row->each([&](const auto &, unsigned column, int k) {
            if (turn != warp)
                return;
#pragma unroll
            for (int v = 0; v < V; v++)
                sums[column + v] = x[k][v] += turn == 0 ? 0 : sums[column + v];
            if (turn == n_warps - 1)
                store_wide(line + column, x[k]);
        });
        __syncthreads();
    }
}

template <int V, int K, typename ROW>
static __device__ inline void put_sums(float *line, const struct whole_block &, ROW *row, unsigned n, float (&x)[K][V])
{
    row->n = n;
    row->each([&](const auto &, unsigned column, int k) { store_wide(line + column, x[k]); });
}

template <typename T, int V, typename TEAM, bool HELD>
static __global__ void __launch_bounds__(NORM_THREADS) norm_gradient_rows(struct gradient_arrays<T> op)
{
    enum { K = HELD ? (int)gradient_share<V>::K : 1 };
    constexpr bool AHEAD = HELD && sizeof(T) == sizeof(bf16) && V > 1;
    const float n = (float)op.n;
    TEAM team(op.lanes);
    float *line = op.lines + blockIdx.x * 2 * op.n;
    float of_weight[K][V] = {}, of_bias[K][V] = {};
    gradient_row<T, V, HELD> row(team), next(team);
    pack<T, V> weights[K];
    bool is_first = true;

    if constexpr (AHEAD) {
        row.n = (unsigned)op.n;
        row.each([&](const auto &, unsigned column, int k) { weights[k] = load<V>(op.weight + column); });
        next.begin(op, team.first() + team.own());
    }
    for (unsigned first = team.first(); first < op.m; first += team.all()) {
        float sum[2] = {0, 0};

        if constexpr (AHEAD) {
            row = next;
            next.begin(op, first + team.all() + team.own());
        } else {
            row.begin(op, first + team.own());
        }
        row.each([&](const pack<T, V>(&at)[GRADIENT_ROWS], unsigned column, int k) {
            const pack<T, V> weight = AHEAD ? unread(weights[k]) : load<V>(op.weight + column);

            if (!HELD && !is_first) {
                load_wide(of_weight[0], line + column);
                load_wide(of_bias[0], line + op.n + column);
            }
#pragma unroll
            for (int v = 0; v < V; v++) {
                const float dy = at[DY][v], z = (at[X][v] - row.of.mean) * row.of.inverse;
                const float g = dy * factor(weight[v], op.offset);
                sum[0] += g;
                sum[1] += g * z;
                of_weight[k][v] = (HELD || !is_first ? of_weight[k][v] : 0) + dy * z;
                of_bias[k][v] = (HELD || !is_first ? of_bias[k][v] : 0) + dy;
            }
            if (!HELD) {
                store_wide(line + column, of_weight[0]);
                store_wide(line + op.n + column, of_bias[0]);
            }
        });
        team.sum(sum);
        const float mean_g = op.centred ? sum[0] / n : 0, mean_gz = sum[1] / n;
        row.each([&](const pack<T, V>(&at)[GRADIENT_ROWS], unsigned column, int k) {
            const pack<T, V> weight = AHEAD ? unread(weights[k]) : load<V>(op.weight + column);
            float dx[V];

#pragma unroll
            for (int v = 0; v < V; v++) {
                const float z = (at[X][v] - row.of.mean) * row.of.inverse;
                const float g = at[DY][v] * factor(weight[v], op.offset);
                const float gradient = row.of.inverse * (g - mean_g - z * mean_gz);
                dx[v] = op.accumulate ? at[DX][v] + gradient : gradient;
            }
            store(op.dx + row.at + column, dx);
        });
        is_first = false;
    }
    if constexpr (HELD) {
        put_sums(line, team, &row, (unsigned)op.n, of_weight);
        put_sums(line + op.n, team, &row, (unsigned)op.n, of_bias);
    }
}

template <int V, typename T>
static cudaError_t run_norm_gradient(const struct cuda_queue *q, struct gradient_arrays<T> op, struct onto_sums to)
{
    const struct teams teams = teams_of(pieces(op.n, V), gradient_share<V>::K, NORM_THREADS);
    const size_t room = PLAN_CUDA_SCRATCH_BYTES / (2 * op.n * sizeof *op.lines);
    const size_t at_once = (size_t)q->n_processors * (NORM_THREADS / teams.threads);
    const unsigned blocks = teams.blocks(op.m, smaller(room, at_once));
    const auto kernel = teams.lanes > 0                 ? norm_gradient_rows<T, V, group, true>
                        : teams.held && op.n_heads == 1 ? norm_gradient_rows<T, V, whole_block, true>
                                                        : norm_gradient_rows<T, V, whole_block, false>;
    cudaError_t rc;

    op.lanes = teams.lanes;
    rc = launch(kernel, dim3(blocks), teams.threads, 0, q->stream, op);
    if (rc != cudaSuccess || (!to.sums && !to.others))
        return rc;
    return add_lines<float, 1>(q, to, blocks, 2 * op.n);
}

template <typename T> static cudaError_t norm_gradient(const struct cuda_queue *q, const struct device_norm *op)
{
    const struct gradient_arrays<T> arrays = {
        (T *)op->x_gradient, op->accumulate, (const T *)op->y_gradient, (const T *)op->x, op->statistics,
            (const T *)op->weight, heads_of(op), (unsigned)device_norm_heads(op), op->n, device_norm_stride(op),
            (float *)q->scratch, op->kind == DEVICE_LAYER_NORM, op->offset, 0
    };
    const struct onto_sums to = {op->weight_gradient, op->bias_gradient, op->n};
    const bool are_whole = is_whole(arrays.dx, arrays.stride) && is_whole(arrays.dy, arrays.stride) &&
                           is_whole(arrays.x, arrays.stride) && is_whole(arrays.weight, op->n);

    return are_whole ? run_norm_gradient<whole<T>::V>(q, arrays, to) : run_norm_gradient<1>(q, arrays, to);
}

cudaError_t cuda_norm_backward(const struct cuda_queue *q, const struct device_norm *op)
{
    if (op->m == 0 || op->n == 0)
        return cudaSuccess;
    return TYPED(q, norm_gradient)(q, op);
}
