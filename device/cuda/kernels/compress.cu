/* device/cuda/kernels/compress.cu - values in 8 or 4 bits, stochastically rounded; or in one, their signs.
 *
 * A warp has a block of 64 values, each lane two of them, half a block apart, which share a random word. */
#include "device/cuda/kernels/pack.cuh"

enum { HALF = COMPRESS_BLOCK / 2, COMPRESS_THREADS = 256, COMPRESS_WARPS = COMPRESS_THREADS / WARP };
static_assert((int)HALF == (int)WARP, "a lane has two values of a block");

/* A lane's two values of a block, and the block's scale. */
struct two {
    int q[2];
    uint16_t scale;
};

static __device__ inline int most_of(unsigned bits)
{
    return bits == 8 ? 127 : 7;
}

static __device__ inline float scale_of(uint16_t bits)
{
    return __uint_as_float((uint32_t)bits << 16);
}

static __device__ inline uint32_t size_of(float x)
{
    return __float_as_uint(x) & 0x7fffffffu;
}

static __device__ inline int round_to(float x, float factor, int most, uint32_t bits_below)
{
    int q = (int)rintf(x * factor);

    q = q > most ? most : q < -most ? -most : q;
    return (q + (int)bits_below) >> 16;
}

/* x: the lane's two values; 0 beyond the row's end. */
static __device__ inline struct two round_block(const float x[2], unsigned bits, struct random_key key, uint64_t row,
                                                uint64_t block)
{
    const unsigned lane = threadIdx.x % WARP;
    const int most = most_of(bits) << 16;
    uint32_t largest = size_of(x[0]), words[4];
    struct two y;

    largest = largest < size_of(x[1]) ? size_of(x[1]) : largest;
    for (int far = WARP / 2; far > 0; far /= 2) {
        const uint32_t other = __float_as_uint(__shfl_xor_sync(WHOLE_WARP, __uint_as_float(largest), far));
        largest = largest < other ? other : largest;
    }
    y.scale = COMPRESS_SCALE(largest);
    device_random_quad(words, key, row, block * (HALF / 4) + lane / 4);
    const uint32_t drawn = lane % 4 == 0 ? words[0] : lane % 4 == 1 ? words[1] : lane % 4 == 2 ? words[2] : words[3];
    const float factor = scale_of(y.scale) > 0 ? (float)most / scale_of(y.scale) : 0;
    y.q[0] = round_to(x[0], factor, most, drawn & 0xffff);
    y.q[1] = round_to(x[1], factor, most, drawn >> 16);
    return y;
}

/* Where a warp's block lies: of row `row`, its values from `first` on. */
struct place {
    size_t row, block, first, left;
};

static __device__ inline struct place place_of(size_t at, size_t n_blocks, size_t n)
{
    const struct place p = {at / n_blocks, at % n_blocks, at / n_blocks * n + at % n_blocks * COMPRESS_BLOCK,
                            n - at % n_blocks * COMPRESS_BLOCK};

    return p;
}

template <typename T> static __device__ inline void load_two(float x[2], const T *from, const struct place &p)
{
    const unsigned lane = threadIdx.x % WARP;

    for (int i = 0; i < 2; i++)
        x[i] = lane + i * HALF < p.left ? to_float(from[p.first + lane + i * HALF]) : 0;
}

template <typename T>
static __device__ inline void store_two(T *to, const struct place &p, const struct two &y, unsigned bits)
{
    const unsigned lane = threadIdx.x % WARP;
    const float step = scale_of(y.scale) / (float)most_of(bits);

    for (int i = 0; i < 2; i++)
        if (lane + i * HALF < p.left)
            set(&to[p.first + lane + i * HALF], (float)y.q[i] * step);
}

/* A block's bits, from each lane's two values. */
static __device__ inline void write_signs(uint8_t *codes, const float x[2])
{
    const unsigned lane = threadIdx.x % WARP;

    for (int i = 0; i < 2; i++) {
        const unsigned above = __ballot_sync(WHOLE_WARP, x[i] > 0);
        if (lane < HALF / 8)
            codes[i * (HALF / 8) + lane] = (uint8_t)(above >> 8 * lane);
    }
}

template <typename T> static __device__ inline void read_signs(T *to, const uint8_t *codes, const struct place &p)
{
    const unsigned lane = threadIdx.x % WARP;

    for (int i = 0; i < 2; i++)
        if (lane + i * HALF < p.left)
            set(&to[p.first + lane + i * HALF], (float)(codes[i * (HALF / 8) + lane / 8] >> lane % 8 & 1));
}

static __device__ inline size_t first_warp()
{
    return (size_t)blockIdx.x * COMPRESS_WARPS + threadIdx.x / WARP;
}

template <typename T>
static __global__ void __launch_bounds__(COMPRESS_THREADS)
    compress_blocks_of(struct device_compress op, size_t n_blocks, size_t block_bytes, size_t used, size_t row_bytes)
{
    const unsigned lane = threadIdx.x % WARP;

    for (size_t at = first_warp(); at < op.n_rows * n_blocks; at += (size_t)gridDim.x * COMPRESS_WARPS) {
        const struct place p = place_of(at, n_blocks, op.n);
        uint8_t *const row = op.codes + p.row * row_bytes, *const codes = row + p.block * block_bytes;
        float x[2];

        load_two(x, (const T *)op.x, p);
        if (p.block == 0 && lane < row_bytes - used) /* the row's padding */
            row[used + lane] = 0;
        if (op.bits == 1) {
            write_signs(codes, x);
            continue;
        }
        const struct two y = round_block(x, op.bits, op.key, op.first_row + p.row, p.block);
        if (op.bits == 8) {
            codes[lane] = (uint8_t)y.q[0];
            codes[lane + HALF] = (uint8_t)y.q[1];
        } else {
            codes[lane] = (uint8_t)(((unsigned)y.q[0] & 15) | (unsigned)y.q[1] << 4);
        }
        if (lane == 0)
            ((uint16_t *)(row + n_blocks * block_bytes))[p.block] = y.scale;
    }
}

template <typename T>
static __global__ void __launch_bounds__(COMPRESS_THREADS)
    expand_blocks_of(struct device_expand op, size_t n_blocks, size_t block_bytes, size_t row_bytes)
{
    const unsigned lane = threadIdx.x % WARP;

    for (size_t at = first_warp(); at < op.n_rows * n_blocks; at += (size_t)gridDim.x * COMPRESS_WARPS) {
        const struct place p = place_of(at, n_blocks, op.n);
        const uint8_t *const row = op.codes + p.row * row_bytes, *const codes = row + p.block * block_bytes;
        if (op.bits == 1) {
            read_signs((T *)op.y, codes, p);
            continue;
        }
        const int byte = (int8_t)codes[lane];
        struct two y;

        y.scale = ((const uint16_t *)(row + n_blocks * block_bytes))[p.block];
        y.q[0] = op.bits == 8 ? byte : (int8_t)(codes[lane] << 4) >> 4;
        y.q[1] = op.bits == 8 ? (int8_t)codes[lane + HALF] : byte >> 4;
        store_two((T *)op.y, p, y, op.bits);
    }
}

template <typename T>
static __global__ void __launch_bounds__(COMPRESS_THREADS)
    round_blocks_of(struct device_round_values op, size_t n_blocks)
{
    for (size_t at = first_warp(); at < op.n_rows * n_blocks; at += (size_t)gridDim.x * COMPRESS_WARPS) {
        const struct place p = place_of(at, n_blocks, op.n);
        float x[2];

        load_two(x, (const T *)op.x, p);
        store_two((T *)op.x, p, round_block(x, op.bits, op.key, op.first_row + p.row, p.block), op.bits);
    }
}

static dim3 warps_over(const struct cuda_queue *q, size_t n_rows, size_t n)
{
    return dim3(smaller(pieces(n_rows * compress_blocks(n), COMPRESS_WARPS), (size_t)q->n_processors * BLOCKS));
}

cudaError_t cuda_compress(const struct cuda_queue *q, const struct device_compress *op)
{
    if (op->n_rows * op->n == 0)
        return cudaSuccess;
    return launch(TYPED(q, compress_blocks_of), warps_over(q, op->n_rows, op->n), COMPRESS_THREADS, 0, q->stream, *op,
                  compress_blocks(op->n), compress_block_bytes(op->bits), compress_used_bytes(op->n, op->bits),
                  compress_row_bytes(op->n, op->bits));
}

cudaError_t cuda_expand(const struct cuda_queue *q, const struct device_expand *op)
{
    if (op->n_rows * op->n == 0)
        return cudaSuccess;
    return launch(TYPED(q, expand_blocks_of), warps_over(q, op->n_rows, op->n), COMPRESS_THREADS, 0, q->stream, *op,
                  compress_blocks(op->n), compress_block_bytes(op->bits), compress_row_bytes(op->n, op->bits));
}

cudaError_t cuda_round_values(const struct cuda_queue *q, const struct device_round_values *op)
{
    if (op->n_rows * op->n == 0)
        return cudaSuccess;
    return launch(TYPED(q, round_blocks_of), warps_over(q, op->n_rows, op->n), COMPRESS_THREADS, 0, q->stream, *op,
                  compress_blocks(op->n));
}
