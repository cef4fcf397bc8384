/* device/cuda/kernels/fragment.cuh - tensor cores and asynchronous copies, as the threads of a warp see them.
 *
 * All of it exists from compute capability 8.0 on. A warp holds an 8 x 8 matrix of bf16 or fp16 as one pair per lane: row
 * lane/4, columns 2*(lane%4) and the next. The left factor of a product, 16 x 16, is four of these: rows 0-7 and 8-15
 * of its left half, then of its right half; the right factor, 16 x 8, is two, one below the other, each transposed. The
 * sums, 16 x 8 of fp32, have the layout of the left factor's left half. So sums, rounded to pairs, are the left factor
 * of the next product without an exchange between lanes.
 *
 * Source: PTX ISA, "Matrix fragments for mma.m16n8k16", ldmatrix, cp.async. All threads of a warp must call the
 * functions on matrices. */
#ifndef DEVICE_CUDA_KERNELS_FRAGMENT_CUH
#define DEVICE_CUDA_KERNELS_FRAGMENT_CUH

#include "device/cuda/kernels/kernel.cuh"

#include <type_traits>

#ifdef CUDASIM
typedef uintptr_t shared_address;
#else
typedef uint32_t shared_address; /* bytes into the block's shared memory */
#endif

/* Four 8 x 8 matrices. */
struct matrices {
    uint32_t pair[4];
};

__device__ inline int lane_index()
{
    return (int)(threadIdx.x % WARP);
}

/* x, opaque to the compiler: expressions of it are computed in place, not hoisted out of loops into registers. */
__device__ inline unsigned afresh(unsigned x)
{
#ifndef CUDASIM
    asm volatile("" : "+r"(x));
#endif
    return x;
}

__device__ inline shared_address shared_at(const void *p)
{
#ifdef CUDASIM
    return (shared_address)p;
#else
    return (shared_address)__cvta_generic_to_shared(p);
#endif
}

/* Lanes 8*i .. 8*i+7 give the addresses of the 8 rows of matrix i, 16 bytes each. */
__device__ inline matrices load_matrices(shared_address row)
{
    matrices m;
#ifdef CUDASIM
    cudasim_load_matrices(m.pair, row, false);
#else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(m.pair[0]), "=r"(m.pair[1]), "=r"(m.pair[2]), "=r"(m.pair[3])
                 : "r"(row)
                 : "memory");
#endif
    return m;
}

/* load_matrices, each matrix transposed. */
__device__ inline matrices load_transposed(shared_address row)
{
    matrices m;
#ifdef CUDASIM
    cudasim_load_matrices(m.pair, row, true);
#else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(m.pair[0]), "=r"(m.pair[1]), "=r"(m.pair[2]), "=r"(m.pair[3])
                 : "r"(row)
                 : "memory");
#endif
    return m;
}

#ifdef CUDASIM
/* What a lane has of a product. */
struct cudasim_product {
    matrices left;
    uint32_t right[2];
    float sums[4];
};

/* Number i (of two) of a pair. */
template <typename T> static inline float cudasim_number(uint32_t pair, int i)
{
    return to_float(T{(uint16_t)(pair >> 16 * i)});
}

/* The product of a warp's 32, each sum from its first term to its last. */
template <typename T> static void cudasim_multiply_all(void *all)
{
    struct cudasim_product *const lanes = (struct cudasim_product *)all;
    float left[16][16], right[16][8], sums[16][8];

    for (int lane = 0; lane < WARP; lane++)
        for (int i = 0; i < 8; i++) {
            const int row = lane / 4, column = lane % 4 * 2 + i % 2, part = i / 2; /* of this 8 x 8 matrix */
            left[row + part % 2 * 8][column + part / 2 * 8] = cudasim_number<T>(lanes[lane].left.pair[part], i % 2);
            if (part < 2) {
                right[column + part * 8][row] = cudasim_number<T>(lanes[lane].right[part], i % 2);
                sums[row + part * 8][column] = lanes[lane].sums[i];
            }
        }
    for (int row = 0; row < 16; row++)
        for (int k = 0; k < 16; k++)
            for (int column = 0; column < 8; column++)
                sums[row][column] += left[row][k] * right[k][column];
    for (int lane = 0; lane < WARP; lane++)
        for (int i = 0; i < 4; i++)
            lanes[lane].sums[i] = sums[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2];
}
#endif

/* sums (16, 8) += left (16, 16) right (16, 8). */
template <typename T>
__device__ inline void multiply_add(float sums[4], const matrices &left, uint32_t upper, uint32_t lower)
{
#ifdef CUDASIM
    cudasim_product mine = {left, {upper, lower}, {sums[0], sums[1], sums[2], sums[3]}};

    cudasim_multiply(&mine, sizeof mine, cudasim_multiply_all<T>);
    for (int j = 0; j < 4; j++)
        sums[j] = mine.sums[j];
#else
#define MULTIPLY_ADD(type)                                                                                             \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type                                                \
                 ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                                \
                 : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])                                          \
                 : "r"(left.pair[0]), "r"(left.pair[1]), "r"(left.pair[2]), "r"(left.pair[3]), "r"(upper), "r"(lower))
    if constexpr (std::is_same_v<T, fp16>)
        MULTIPLY_ADD("f16");
    else
        MULTIPLY_ADD("bf16");
#undef MULTIPLY_ADD
#endif
}

/* Two adjacent tiles of sums, rounded, as a left factor. */
template <typename T> __device__ inline matrices left_of(const float sums[2][4])
{
    return {{pair_of<T>(sums[0][0], sums[0][1]), pair_of<T>(sums[0][2], sums[0][3]), pair_of<T>(sums[1][0], sums[1][1]),
             pair_of<T>(sums[1][2], sums[1][3])}};
}

/* 2^x within 2 units of fp32's last place; results below 2^-126 become 0. */
__device__ inline float power_of_2(float x)
{
#ifdef CUDASIM
    return exp2f(x);
#else
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#endif
}

/* Copies BYTES (4, 8, 16) to shared memory; zeros unless `there` (`from` is then not read). Pending until copy_wait. */
template <int BYTES> __device__ inline void copy_async(shared_address to, const void *from, bool there)
{
#ifdef CUDASIM
    cudasim_copy((void *)to, from, BYTES, there ? BYTES : 0);
#else
    const int given = there ? BYTES : 0;

    if constexpr (BYTES == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(given) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %3, %2;" ::"r"(to), "l"(from), "r"(given), "n"(BYTES)
                     : "memory");
#endif
}

/* The copies since the last commit become a group. */
__device__ inline void copy_commit()
{
#ifdef CUDASIM
    cudasim_copy_commit();
#else
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

/* Waits until at most LEFT of this thread's latest groups are pending; other threads see the copies after a barrier. */
template <int LEFT> __device__ inline void copy_wait()
{
#ifdef CUDASIM
    cudasim_copy_wait(LEFT);
#else
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
#endif
}

#endif
