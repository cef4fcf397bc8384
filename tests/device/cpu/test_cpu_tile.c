/* Products of every odd size, on every instruction set, in both types of values: right, in their place, and the same
 * bits however they are cut. */
#include "device/cpu/cpu.h"
#include "tests/kit/device/operation.h"
#include "tests/kit/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

SUITE_LABELS(single)

enum { GAP = 3, N_SHAPES = 60 };

/* One product and its operands; c (m, n) at a stride of n + GAP, of fp32 where it is wide. */
struct trial {
    struct device_matmul op;
    enum number_type type, c_type;
    size_t c_bytes;
    void *c, *held; /* held: what c and its gaps hold before */
};

/* Around the edges of blocks, panels and steps: 1 to 70, and now and then past a step of k in either type, or of more rows
 * than a tile. */
static size_t draw(uint32_t *state, size_t most)
{
    *state = *state * 1664525 + 1013904223;
    return 1 + (*state >> 8) % most;
}

static void make(struct trial *trial, enum number_type type, int i, uint32_t *state)
{
    const bool ta = i & 1, tb = i & 2, wide = i & 4, long_k = i % 5 == 4;
    const size_t m = i % 8 == 0 ? 1 : draw(state, 70) + (i % 10 == 3 ? 400 : 0), n = draw(state, 70),
                 k = draw(state, 70) + (long_k ? 500 : 0);
    const size_t c_stride = n + GAP;

    *trial = (struct trial){.type = type, .c_type = wide ? NUMBER_FP32 : type};
    trial->op = (struct device_matmul){.transpose_a = ta,
                                       .transpose_b = tb,
                                       .m = m,
                                       .n = n,
                                       .k = k,
                                       .a_stride = (ta ? m : k) + 2,
                                       .b_stride = (tb ? k : n) + 1,
                                       .c_stride = c_stride,
                                       .wide = wide,
                                       .beta = wide && i % 3 == 0};
    trial->op.a = operation_values(type, (ta ? k : m) * trial->op.a_stride, (uint32_t)i);
    trial->op.b = operation_values(type, (tb ? n : k) * trial->op.b_stride, (uint32_t)i + 1000);
    trial->c_bytes = m * c_stride * number_bytes(trial->c_type);
    trial->held = operation_values(trial->c_type, m * c_stride, (uint32_t)i + 2000);
    trial->c = malloc(trial->c_bytes);
    if (!wide && i % 3 == 1) {
        trial->op.epilogue = DEVICE_BIAS;
        trial->op.bias = operation_values(type, n, (uint32_t)i + 3000);
    }
}

static double at(const struct trial *trial, const void *x, size_t i)
{
    return (double)operation_get(trial->type, x, i);
}

/* k products, each rounded once, and their sums: k 2^-24 of the sum of their sizes at most, 3 more for what is added
 * and stored; a c in bf16 is rounded to 8 bits. */
static void check_element(const struct trial *trial, size_t row, size_t column)
{
    const struct device_matmul *op = &trial->op;
    const size_t i = row * op->c_stride + column;
    double sum = 0, size = 0;

    for (size_t p = 0; p < op->k; p++) {
        const double term = at(trial, op->a, op->transpose_a ? p * op->a_stride + row : row * op->a_stride + p) *
                            at(trial, op->b, op->transpose_b ? column * op->b_stride + p : p * op->b_stride + column);
        sum += term, size += fabs(term);
    }
    if (op->beta != 0)
        sum += (double)operation_get(trial->c_type, trial->held, i);
    if (op->epilogue == DEVICE_BIAS)
        sum += at(trial, op->bias, column);
    const double bound =
        (double)(op->k + 3) * 0x1p-24 * (size + fabs(sum)) + (trial->c_type == NUMBER_BF16 ? 0x1.02p-8 * fabs(sum) : 0);
    ck_assert_double_le(fabs((double)operation_get(trial->c_type, trial->c, i) - sum), bound);
}

static void check_all(const struct trial *trial)
{
    const struct device_matmul *op = &trial->op;
    const size_t bytes = number_bytes(trial->c_type);

    for (size_t row = 0; row < op->m; row++) {
        const size_t gap = (row * op->c_stride + op->n) * bytes;
        for (size_t column = 0; column < op->n; column++)
            check_element(trial, row, column);
        ck_assert_mem_eq((char *)trial->c + gap, (char *)trial->held + gap, GAP * bytes);
    }
}

/* Rows first .. first+m-1 alone. */
static void multiply_rows(struct device *dev, const struct trial *trial, size_t first, size_t m)
{
    struct device_matmul op = trial->op;

    if (m == 0)
        return;
    op.m = m;
    op.a = (const char *)op.a + first * (op.transpose_a ? 1 : op.a_stride) * number_bytes(trial->type);
    op.c = (char *)trial->c + first * op.c_stride * number_bytes(trial->c_type);
    device_cpu.matmul(dev, &op);
}

static void check_cuts(struct trial *trial, struct device *const devices[3])
{
    void *whole = malloc(trial->c_bytes);

    memcpy(whole, trial->c, trial->c_bytes);
    for (unsigned i = 0; i < 3; i++) {
        const size_t cuts[] = {trial->op.m, 1, trial->op.m / 2};
        memcpy(trial->c, trial->held, trial->c_bytes);
        multiply_rows(devices[i], trial, 0, cuts[i]);
        multiply_rows(devices[i], trial, cuts[i], trial->op.m - cuts[i]);
        ck_assert_mem_eq(trial->c, whole, trial->c_bytes);
    }
    free(whole);
}

static struct device *open_isa(enum number_type type, unsigned n_threads, enum cpu_isa isa)
{
    struct device *dev;

    ck_assert_int_eq(device_cpu.open(&dev, 0, type, 4096, n_threads, NULL), 0);
    cpu_isa_use(dev, isa);
    return dev;
}

SUITE_FIXTURE(mirror_forget, NULL)

TEST_EACH(odd_products_are_right_and_their_bits_depend_on_no_cut, 2 * CPU_ISAS)
{
    const enum cpu_isa isa = (enum cpu_isa)(_i % CPU_ISAS);
    const enum number_type type = _i / CPU_ISAS ? NUMBER_BF16 : NUMBER_FP32;
    struct device *devices[3];
    uint32_t state = 1;

    if (!cpu_isa_runs(isa))
        return;
    for (unsigned i = 0; i < 3; i++) {
        devices[i] = open_isa(type, i + 1, isa);
    }
    for (int i = 0; i < N_SHAPES; i++) {
        struct trial trial;
        make(&trial, type, i, &state);
        memcpy(trial.c, trial.held, trial.c_bytes);
        multiply_rows(devices[0], &trial, 0, trial.op.m);
        check_all(&trial);
        check_cuts(&trial, devices);
        free(trial.c);
        mirror_forget();
    }
    for (unsigned i = 0; i < 3; i++)
        device_cpu.close(devices[i]);
}

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
            dev->kernels->tile->multiply(&(struct device_matmul){.transpose_a = transposed,
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

/* Numbers in steps of 2^-7 and half a step more, which the product adds: all but the largest are ties, also after a bias
 * of a step. rint, of the sum in steps, is the processor's own rounding. The product of one row has a kernel of its own. */
TEST_EACH(ties_go_to_even_in_what_is_stored, 2 * CPU_ISAS)
{
    enum { M = 5, N = 127 };
    const enum cpu_isa isa = (enum cpu_isa)(_i / 2);
    const size_t m = _i % 2 ? M : 1;
    uint16_t a[2 * M], b[2 * N], bias[N], c[M * N], pre[M * N];

    if (!cpu_isa_runs(isa))
        return;
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
