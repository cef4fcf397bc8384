/* What device/cuda/kernels/fragment.cuh does in the simulator's place of an instruction is what the instruction does. Expected
 * are the tables of the PTX ISA, element by element: "Matrix Fragments for mma.m16n8k16 with floating point type", and
 * those of ldmatrix for m8n8 and cvt to bf16x2 or f16x2. */
#include "device/cuda/kernels/fragment.cuh"
#include "tests/kit/test.h"
#include "tests/sim/cudasim.h"

#include <stdlib.h>

SUITE_LABELS(cuda)

#define OK(call) ck_assert_int_eq(call, cudaSuccess)

/* A product of 16 x 16 and 16 x 8, and eight of 32 rows of 8, one of them a lane's. */
struct matrix_test {
    uint16_t a[16][16], b[16][8], rows[WARP][8];
    float c[16][8];
    uint32_t straight[WARP][4], transposed[WARP][4], pair;
};

/* Small whole numbers, which both types hold: no sum is rounded. */
static uint16_t whole_number(enum number_type type, int i)
{
    return number_to_half(type, (float)(i % 13 - 6));
}

/* groupID and threadID_in_group are the manual's names. */
template <typename T> static __global__ void multiply(struct matrix_test *test)
{
    const int lane = (int)threadIdx.x, group = lane >> 2, in_group = lane % 4;
    uint32_t right[2] = {};
    matrices left = {};
    float c[4];

    for (int i = 0; i < 8; i++) {
        const int row = i < 2 || (i >= 4 && i < 6) ? group : group + 8;
        const int column = in_group * 2 + (i & 1) + (i >= 4 ? 8 : 0);
        left.pair[i / 2] |= (uint32_t)test->a[row][column] << 16 * (i & 1);
    }
    for (int i = 0; i < 4; i++)
        right[i / 2] |= (uint32_t)test->b[in_group * 2 + (i & 1) + (i >= 2 ? 8 : 0)][group] << 16 * (i & 1);
    for (int i = 0; i < 4; i++)
        c[i] = test->c[i < 2 ? group : group + 8][in_group * 2 + (i & 1)];
    multiply_add<T>(c, left, right[0], right[1]);
    for (int i = 0; i < 4; i++)
        test->c[i < 2 ? group : group + 8][in_group * 2 + (i & 1)] = c[i];
}

/* Lane i's row lies where bits of i say, so that none is next to the one before. */
template <typename T> static __global__ void load_both(struct matrix_test *test)
{
    uint16_t(*rows)[8] = shared_memory<uint16_t[8]>();
    const int lane = (int)threadIdx.x, at = lane ^ lane >> 1;

    for (int i = 0; i < 8; i++)
        rows[at][i] = test->rows[lane][i];
    __syncwarp();
    const matrices straight = load_matrices(shared_at(rows[at])), transposed = load_transposed(shared_at(rows[at]));
    for (int i = 0; i < 4; i++) {
        test->straight[lane][i] = straight.pair[i];
        test->transposed[lane][i] = transposed.pair[i];
    }
    if (lane == 0)
        test->pair = pair_of<T>(1, -2);
}

static struct matrix_test computed(void (*kernel)(struct matrix_test *), enum number_type type)
{
    struct matrix_test host = {}, *on_device;
    cudaStream_t stream;

    for (int i = 0; i < 16 * 16; i++)
        host.a[i / 16][i % 16] = whole_number(type, i * 5 + i / 16);
    for (int i = 0; i < 16 * 8; i++) {
        host.b[i / 8][i % 8] = whole_number(type, i * 7 + i / 8);
        host.c[i / 8][i % 8] = (float)(i * i % 11);
    }
    for (int i = 0; i < WARP * 8; i++)
        host.rows[i / 8][i % 8] = (uint16_t)(i + 1000);
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    OK(cudaMalloc((void **)&on_device, sizeof host));
    OK(cudaMemcpyAsync(on_device, &host, sizeof host, cudaMemcpyHostToDevice, stream));
    OK(launch(kernel, 1, WARP, sizeof host.rows, stream, on_device));
    OK(cudaMemcpyAsync(&host, on_device, sizeof host, cudaMemcpyDeviceToHost, stream));
    OK(cudaStreamSynchronize(stream));
    OK(cudaFree(on_device));
    OK(cudaStreamDestroy(stream));
    return host;
}

TEST_RANGE(a_product_has_the_manuals_fragments, NUMBER_BF16, NUMBER_FP16 + 1)
{
    const enum number_type type = (enum number_type)_i;
    const struct matrix_test test = computed(type == NUMBER_BF16 ? multiply<bf16> : multiply<fp16>, type);

    for (int i = 0; i < 16 * 8; i++) {
        float expected = (float)(i * i % 11);
        for (int k = 0; k < 16; k++)
            expected += number_from_half(type, test.a[i / 8][k]) * number_from_half(type, test.b[k][i % 8]);
        ck_assert_float_eq(test.c[i / 8][i % 8], expected);
    }
}

/* Of matrix i, whose rows lanes 8i .. 8i+7 point to, a lane has row lane/4, columns 2 * (lane % 4) and the next; if it is
 * transposed, the elements whose row and column are exchanged. */
TEST(a_load_has_the_manuals_fragments)
{
    const struct matrix_test test = computed(load_both<bf16>, NUMBER_BF16);

    for (int lane = 0; lane < WARP; lane++)
        for (int i = 0; i < 4; i++) {
            const int row = lane / 4, column = 2 * (lane % 4);
            ck_assert_uint_eq(test.straight[lane][i] & 0xffff, test.rows[8 * i + row][column]);
            ck_assert_uint_eq(test.straight[lane][i] >> 16, test.rows[8 * i + row][column + 1]);
            ck_assert_uint_eq(test.transposed[lane][i] & 0xffff, test.rows[8 * i + column][row]);
            ck_assert_uint_eq(test.transposed[lane][i] >> 16, test.rows[8 * i + column + 1][row]);
        }
}

/* 1 and -2 are 0x3f80 and 0xc000, in fp16 0x3c00 and 0xc000. */
TEST(the_first_of_a_pair_is_its_lower_half)
{
    ck_assert_uint_eq(computed(load_both<bf16>, NUMBER_BF16).pair, 0xc0003f80u);
    ck_assert_uint_eq(computed(load_both<fp16>, NUMBER_FP16).pair, 0xc0003c00u);
}
