/* A product's tile on every instruction set: its scratch, and the rounding of what it stores. */
#include "device/cpu/cpu.h"
#include "tests/kit/device/operation.h"
#include "tests/kit/test.h"
#include "device/find.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

SUITE_LABELS(single)

static struct device *open_isa(enum number_type type, unsigned n_threads, enum cpu_isa isa)
{
    struct device *dev;

    ck_assert_int_eq(device_cpu.open(&dev, 0, type, 4096, n_threads, NULL), 0);
    cpu_isa_use(dev, isa);
    return dev;
}

SUITE_FIXTURE(mirror_forget, NULL)

/* The largest tile, over several steps of k. */
TEST_EACH(a_tile_stays_within_its_scratch, 2 * CPU_ISAS)
{
    const enum cpu_isa isa = (enum cpu_isa)(_i % CPU_ISAS);
    const enum number_type type = _i / CPU_ISAS ? NUMBER_BF16 : NUMBER_FP32;
    enum { M = PLAN_CPU_PRODUCT_HEIGHT, N = PLAN_CPU_PRODUCT_WIDTH, K = 3 * PLAN_CPU_PRODUCT_DEPTH - 1, CANARY = 4096 };
    const struct cpu_tile tile = {0, 0, M, N};
    unsigned char *room = aligned_alloc(4096, PLAN_CPU_PRODUCT_SCRATCH + 2 * CANARY);
    void *a = operation_values(type, M * K, 1), *b = operation_values(type, N * K, 2);

    if (cpu_isa_runs(isa)) {
        struct device *dev = open_isa(type, 1, isa);
        memset(room, 0x5a, PLAN_CPU_PRODUCT_SCRATCH + 2 * CANARY);
        for (int transposed = 0; transposed < 2; transposed++)
            dev->kernels->tile(&(struct device_matmul){.transpose_a = transposed,
                                                       .transpose_b = transposed,
                                                       .m = M,
                                                       .n = N,
                                                       .k = K,
                                                       .a = a,
                                                       .a_stride = transposed ? M : K,
                                                       .b = b,
                                                       .b_stride = transposed ? K : N},
                               &tile, (float *)(void *)(room + CANARY));
        for (size_t i = 0; i < CANARY; i++)
            ck_assert(room[i] == 0x5a && room[CANARY + PLAN_CPU_PRODUCT_SCRATCH + i] == 0x5a);
        device_cpu.close(dev);
    }
    free(room);
}

/* Numbers in steps of 2^-7 and half a step more, which the product adds: all but the largest are ties, also after a
 * bias of a step. rint, of the sum in steps, is the processor's own rounding. The product of one row has a kernel of
 * its own. */
TEST_EACH(ties_go_to_even_in_what_is_stored, 2 * CPU_ISAS)
{
    enum { M = 5, N = 127 };
    const enum cpu_isa isa = (enum cpu_isa)(_i / 2);
    const size_t m = _i % 2 ? M : 1;
    uint16_t a[2 * M], b[2 * N], bias[N], c[M * N], pre[M * N];

    if (!cpu_isa_runs(isa))
        TEST_SKIP("this processor lacks the instructions");
    struct device *dev = open_isa(NUMBER_BF16, 1, isa);
    for (size_t i = 0; i < m; i++)
        a[2 * i] = a[2 * i + 1] = number_to_bf16(i % 2 ? -1.0f : 1.0f);
    for (size_t j = 0; j < N; j++) {
        b[j] = number_to_bf16(1 + (float)j / 128);
        b[N + j] = number_to_bf16(0x1p-8f), bias[j] = number_to_bf16(j % 3 ? 0 : 0x1p-7f);
    }
    device_cpu.matmul(dev, &(struct device_matmul){.m = m,
                                                   .n = N,
                                                   .k = 2,
                                                   .a = a,
                                                   .a_stride = 2,
                                                   .b = b,
                                                   .b_stride = N,
                                                   .c = c,
                                                   .c_stride = N,
                                                   .epilogue = DEVICE_BIAS_ACTIVATION,
                                                   .activation = MODEL_RELU,
                                                   .bias = bias,
                                                   .pre = pre});
    for (size_t i = 0; i < m; i++)
        for (size_t j = 0; j < N; j++) {
            const double size = 1 + (double)j / 128 + 0x1p-8, sum = (i % 2 ? -size : size) + (j % 3 ? 0 : 0x1p-7);
            const double step = ldexp(0x1p-7, ilogb(sum)), want = rint(sum / step) * step;
            ck_assert_double_eq((double)number_from_bf16(pre[i * N + j]), want);
            ck_assert_double_eq((double)number_from_bf16(c[i * N + j]), want > 0 ? want : 0);
        }
    device_cpu.close(dev);
}
