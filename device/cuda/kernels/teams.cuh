/* device/cuda/kernels/teams.cuh - the threads that have a row of a norm at a time, and what each holds of it.
 *
 * A short row's team, as of heads, is a group of lanes, so that a warp has several rows and meets at no barrier; a longer
 * one's is a block. Both hold the row in registers (HELD). Rows too long for that are read again, usually from the
 * second-level cache. */
#ifndef DEVICE_CUDA_KERNELS_TEAMS_CUH
#define DEVICE_CUDA_KERNELS_TEAMS_CUH

#include "device/cuda/kernels/pack.cuh"

enum {
    NORM_THREADS = 512,
    LEAST_LANES = 4, /* of a group: they read 64 bytes side by side, as much as the second-level cache gives at once */
};

/* Lanes of a warp: a power of two. */
struct group {
    enum { IS_BLOCK = false };
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
    enum { IS_BLOCK = true };
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

#endif
