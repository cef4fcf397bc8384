/* device/cpu/kernels/compress.kernel.c - values in 8 or 4 bits, stochastically rounded; or in one, their signs.
 *
 * Two blocks at a time are as many as the widest vectors draw words for at once. A number is x / s * L * 2^16, rounded
 * to a whole one; then random bits below 2^16 are added, and those below 2^16 are dropped. Nothing here depends on the
 * width of vectors, so neither do results. */
#include "device/cpu/cpu.h"
#include "device/cpu/kernels/dropout.h"
#include "device/cpu/kernels/value.h"

enum { BLOCK = COMPRESS_BLOCK, PAIR = 2 * BLOCK, HALF = BLOCK / 2 };

/* A pair of blocks of a row, of which n values are there; the others are 0. */
struct pair {
    float x[PAIR];
    int32_t q[PAIR];
    uint16_t scales[2];
};

static void load(struct pair *p, const value *x, size_t n)
{
    size_t j = 0;

    for (; j < n; j += VECTOR)
        vec_store(p->x + j, value_load_n(x + j, n - j));
    for (; j < PAIR; j += VECTOR)
        vec_store(p->x + j, vec_all(0));
}

static void store(const struct pair *p, value *x, size_t n)
{
    for (size_t j = 0; j < n; j += VECTOR)
        value_store_n(x + j, vec_load(p->x + j), n - j);
}

/* From the largest magnitude. */
static uint16_t scale_of(const float *x)
{
    vec_uint largest = {0};
    uint32_t lanes[VECTOR], most = 0;

    for (size_t j = 0; j < BLOCK; j += VECTOR) {
        const vec_uint size = (vec_uint)vec_load(x + j) & 0x7fffffffu;
        const vec_uint more = (vec_uint)(size > largest);
        largest = (size & more) | (largest & ~more);
    }
    memcpy(lanes, &largest, sizeof lanes);
    for (size_t i = 0; i < VECTOR; i++)
        most = lanes[i] > most ? lanes[i] : most;
    return COMPRESS_SCALE(most);
}

/* Random words of a pair: HALF of each block. */
static void draw(uint32_t words[2 * HALF], struct random_key key, uint64_t row, uint64_t first_block)
{
    for (uint64_t i = 0; i < 2 * HALF; i += DROPOUT_BLOCK) {
        vec_uint drawn[4];
        vec lanes[4];

        dropout_words(drawn, key, row, first_block * (HALF / 4) + i / 4);
        memcpy(lanes, drawn, sizeof lanes);
        vec_transpose(lanes);
        memcpy(words + i, lanes, sizeof lanes);
    }
}

VECTOR_INLINE vec_int clamp(vec_int x, int32_t most)
{
    const vec_int above = x > most, below = x < -most;
    const vec_int upper = most - (vec_int){0};

    return (upper & above) | (-upper & below) | (x & ~above & ~below);
}

static void round_block(struct pair *p, size_t block, const uint32_t words[HALF], unsigned bits)
{
    const int32_t most = compress_most(bits) << 16;
    const float scale = number_from_bf16(p->scales[block]), factor = scale > 0 ? (float)most / scale : 0;

    for (size_t j = 0; j < BLOCK; j += VECTOR) {
        const vec scaled = vec_load(p->x + block * BLOCK + j) * factor;
        vec_uint drawn;

        memcpy(&drawn, words + j % HALF, sizeof drawn);
        const vec_int bits_below = (vec_int)(j < HALF ? drawn & 0xffff : drawn >> 16);
        const vec_int q = clamp((vec_int)VECTOR_CALL(cvtps_epi32)(scaled), most) + bits_below;
        const vec_int whole = q >> 16;
        memcpy(p->q + block * BLOCK + j, &whole, sizeof whole);
    }
}

static void compress(struct pair *p, const value *x, size_t n, unsigned bits, struct random_key key, uint64_t row,
                     size_t first_block)
{
    uint32_t words[2 * HALF];

    load(p, x, n);
    draw(words, key, row, first_block);
    for (size_t block = 0; block < 2; block++) {
        p->scales[block] = scale_of(p->x + block * BLOCK);
        round_block(p, block, words + block * HALF, bits);
    }
}

static void expand(struct pair *p, unsigned bits)
{
    for (size_t block = 0; block < 2; block++) {
        const float step = number_from_bf16(p->scales[block]) / (float)compress_most(bits);

        for (size_t j = block * BLOCK; j < (block + 1) * BLOCK; j++)
            p->x[j] = (float)p->q[j] * step;
    }
}

/* The codes of blocks of a row. */
static void write_codes(const struct pair *p, uint8_t *row, size_t block, size_t n_blocks, unsigned bits)
{
    uint8_t *const scales = row + n_blocks * compress_block_bytes(bits);

    for (size_t k = 0; k < 2 && block + k < n_blocks; k++) {
        uint8_t *const codes = row + (block + k) * compress_block_bytes(bits);
        const int32_t *const q = p->q + k * BLOCK;

        for (size_t j = 0; bits == 8 && j < BLOCK; j++)
            codes[j] = (uint8_t)q[j];
        for (size_t j = 0; bits == 4 && j < HALF; j++)
            codes[j] = (uint8_t)(((unsigned)q[j] & 15) | (unsigned)q[j + HALF] << 4);
        memcpy(scales + (block + k) * sizeof *p->scales, &p->scales[k], sizeof *p->scales);
    }
}

static void read_codes(struct pair *p, const uint8_t *row, size_t block, size_t n_blocks, unsigned bits)
{
    const uint8_t *const scales = row + n_blocks * compress_block_bytes(bits);

    for (size_t k = 0; k < 2 && block + k < n_blocks; k++) {
        const uint8_t *const codes = row + (block + k) * compress_block_bytes(bits);
        int32_t *const q = p->q + k * BLOCK;

        for (size_t j = 0; bits == 8 && j < BLOCK; j++)
            q[j] = (int8_t)codes[j];
        for (size_t j = 0; bits == 4 && j < HALF; j++) {
            q[j] = (int8_t)(codes[j] << 4) >> 4;
            q[j + HALF] = (int8_t)codes[j] >> 4;
        }
        memcpy(&p->scales[k], scales + (block + k) * sizeof *p->scales, sizeof *p->scales);
    }
}

/* ---- signs ---- */

/* A block's bits. Of eight flags in a word, one a byte, the product's upper byte has them side by side. */
static void write_signs(const struct pair *p, uint8_t *row, size_t block, size_t n_blocks)
{
    for (size_t k = 0; k < 2 && block + k < n_blocks; k++)
        for (size_t byte = 0; byte < BLOCK / 8; byte++) {
            uint8_t flags[8];
            uint64_t word;

            for (size_t j = 0; j < 8; j++)
                flags[j] = p->x[k * BLOCK + byte * 8 + j] > 0;
            memcpy(&word, flags, sizeof word);
            row[(block + k) * (BLOCK / 8) + byte] = (uint8_t)(word * UINT64_C(0x0102040810204080) >> 56);
        }
}

static void read_signs(struct pair *p, const uint8_t *row, size_t block, size_t n_blocks)
{
    const size_t n = size_smaller(n_blocks - block, 2) * BLOCK;

    for (size_t j = 0; j < n; j++)
        p->x[j] = (float)(row[block * (BLOCK / 8) + j / 8] >> j % 8 & 1);
}

/* ---- */

void KERNEL_NAME(cpu_compress)(struct device *dev, const struct device_compress *op)
{
    const size_t n_blocks = compress_blocks(op->n), row_bytes = compress_row_bytes(op->n, op->bits);

#pragma omp parallel for num_threads(cpu_threads(dev, op->n_rows * op->n)) schedule(static) collapse(2)
    for (size_t row = 0; row < op->n_rows; row++)
        for (size_t block = 0; block < n_blocks; block += 2) {
            const value *const x = (const value *)op->x + row * op->n + block * BLOCK;
            const size_t n = size_smaller(op->n - block * BLOCK, PAIR);
            uint8_t *const codes = op->codes + row * row_bytes;
            struct pair p;

            if (op->bits == 1) {
                load(&p, x, n);
                write_signs(&p, codes, block, n_blocks);
            } else {
                compress(&p, x, n, op->bits, op->key, op->first_row + row, block);
                write_codes(&p, codes, block, n_blocks, op->bits);
            }
            if (block + 2 >= n_blocks) /* the row's padding, so that no byte depends on what was there */
                memset(codes + compress_used_bytes(op->n, op->bits), 0,
                       row_bytes - compress_used_bytes(op->n, op->bits));
        }
}

void KERNEL_NAME(cpu_expand)(struct device *dev, const struct device_expand *op)
{
    const size_t n_blocks = compress_blocks(op->n), row_bytes = compress_row_bytes(op->n, op->bits);

#pragma omp parallel for num_threads(cpu_threads(dev, op->n_rows * op->n)) schedule(static) collapse(2)
    for (size_t row = 0; row < op->n_rows; row++)
        for (size_t block = 0; block < n_blocks; block += 2) {
            const uint8_t *const codes = op->codes + row * row_bytes;
            struct pair p = {.scales = {0}};

            if (op->bits == 1) {
                read_signs(&p, codes, block, n_blocks);
            } else {
                read_codes(&p, codes, block, n_blocks, op->bits);
                expand(&p, op->bits);
            }
            store(&p, (value *)op->y + row * op->n + block * BLOCK, size_smaller(op->n - block * BLOCK, PAIR));
        }
}

void KERNEL_NAME(cpu_round_values)(struct device *dev, const struct device_round_values *op)
{
    const size_t n_blocks = compress_blocks(op->n);

#pragma omp parallel for num_threads(cpu_threads(dev, op->n_rows * op->n)) schedule(static) collapse(2)
    for (size_t row = 0; row < op->n_rows; row++)
        for (size_t block = 0; block < n_blocks; block += 2) {
            value *const x = (value *)op->x + row * op->n + block * BLOCK;
            const size_t n = size_smaller(op->n - block * BLOCK, PAIR);
            struct pair p;

            compress(&p, x, n, op->bits, op->key, op->first_row + row, block);
            expand(&p, op->bits);
            store(&p, x, n);
        }
}
