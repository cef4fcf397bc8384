/* device/cuda/kernels/tile.cuh - tiles of 16-bit values in shared memory, rows of HEAD of them, as factors of products on
 * tensor cores (fragment.cuh). */
#ifndef DEVICE_CUDA_KERNELS_TILE_CUH
#define DEVICE_CUDA_KERNELS_TILE_CUH

#include "device/cuda/kernels/fragment.cuh"

/* Byte offset of 8 values of a row. Places in a row are permuted, so that a matrix's 8 rows cover all 32 banks. */
template <int HEAD> __device__ inline unsigned tile_at(int row, int eight)
{
    static_assert(HEAD % 32 == 0, "rows of whole or half turns through the banks");
    const int turn = HEAD % 64 == 0 ? row % 8 : row / 2 % 4;

    return (unsigned)(row * HEAD + (eight ^ turn) * 8) * 2;
}

/* tile_at for row (a multiple of 16) + lane_row, column 16*step + 8*half. The part that depends on the lane is computed
 * once for all rows and steps. */
template <int HEAD> __device__ inline unsigned tile_lane_at(int row, int lane_row, int step, int half)
{
    static_assert((HEAD & (HEAD - 1)) == 0, "else the steps' bits are not those of their columns alone");
    return (unsigned)(row * HEAD * 2) + (tile_at<HEAD>(lane_row, half) ^ (unsigned)(step * 32));
}

/* Left factor: 16 rows from `row` on, columns 16*step on. */
template <int HEAD> __device__ inline matrices tile_left(shared_address tile, int row, int step)
{
    return load_matrices(tile + tile_lane_at<HEAD>(row, lane_index() % 16, step, lane_index() / 16));
}

/* Left factor, of the tile's transpose: its rows are the 16 columns 16*step on, its columns 16 rows from `row` on. */
template <int HEAD> __device__ inline matrices tile_left_transposed(shared_address tile, int row, int step)
{
    const int lane = lane_index();

    return load_transposed(tile + tile_lane_at<HEAD>(row, lane / 16 * 8 + lane % 8, step, lane / 8 % 2));
}

/* Two adjacent right factors of a product with the tile's transpose: their columns are its 16 rows from `row` on. */
template <int HEAD> __device__ inline matrices tile_right_transposed(shared_address tile, int row, int step)
{
    const int lane = lane_index();

    return load_matrices(tile + tile_lane_at<HEAD>(row, lane / 16 * 8 + lane % 8, step, lane / 8 % 2));
}

/* Two adjacent right factors: 16 rows from `row` on, columns 16*step on. */
template <int HEAD> __device__ inline matrices tile_right(shared_address tile, int row, int step)
{
    return load_transposed(tile + tile_lane_at<HEAD>(row, lane_index() % 16, step, lane_index() / 16));
}

#endif
