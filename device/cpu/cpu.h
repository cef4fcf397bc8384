/* device/cpu/cpu.h - the CPU device's state, and its kernels, which are compiled per instruction set.
 *
 * kernels/X.kernel.c is compiled once for each x86-64 level and each number type: an operation `norm` has the kernels
 * cpu_norm_fp32_v2 to cpu_norm_bf16_v4. A device uses those of its number type and of the fastest level that the
 * machine supports. Work is divided by shapes alone, and one thread computes each piece in a fixed order, so results do
 * not depend on the number of threads. */
#ifndef DEVICE_CPU_CPU_H
#define DEVICE_CPU_CPU_H

#include "proto/operation/device.h"
#include "proto/base/size.h"
#include "proto/operation/backend.h"

#ifdef _OPENMP
#include <omp.h>
#else /* the pragmas that ask cpu_threads have no effect */
#pragma GCC diagnostic ignored "-Wunused-parameter"
#pragma GCC diagnostic ignored "-Wunused-function"
#endif

/* CPU_V4_PAIRS: bf16 products use AVX512_BF16; everything else is v4's. Of fp16, which v2 does not convert, products
 * alone are v4's, and everything else v3's. */
enum cpu_isa { CPU_V2, CPU_V3, CPU_V4, CPU_V4_PAIRS, CPU_ISAS };

/* A part of a product's result, in elements of c. */
struct cpu_tile {
    size_t row, column, m, n;
};

/* A kernel for each operation of proto/operation/calls.h. */
struct cpu_operations {
#define CPU_MEMBER(name, type) void (*name)(struct device *, const struct type *);
    DEVICE_CALLS(CPU_MEMBER)
#undef CPU_MEMBER
};

struct cpu_conv; /* device/cpu/kernels/conv2d.h */

struct cpu_kernels {
    const char *name;
    const struct cpu_operations *operations;
    /* The parts of a product (matmul.kernel.c). */
    /* Stores a tile of op's c from its sums, whose rows are `stride` apart: applies factor, beta and the epilogue. */
    void (*finish)(const struct device_matmul *op, const struct cpu_tile *tile, const float *sums, size_t stride);
    /* Computes the sums of a tile of at most PLAN_CPU_PRODUCT_HEIGHT x WIDTH into the start of scratch, rows WIDTH
     * apart. */
    void (*tile)(const struct device_matmul *op, const struct cpu_tile *tile, float *scratch);
    /* The whole product, with m 1, a not transposed and beta 0. */
    void (*single)(struct device *dev, const struct device_matmul *op);
    /* The parts of a convolution (conv2d.kernel.c), which leave their sums as `tile` does: pixels by columns of one
     * group; and of the gradient of its weights, output channels by weights of each, from what is there. */
    void (*conv)(const struct cpu_conv *conv, size_t group, const struct cpu_tile *tile, float *scratch);
    void (*conv_weights)(const struct cpu_conv *conv, const void *gradient, size_t group, const struct cpu_tile *tile,
                         float *scratch);
};

struct device {
    enum number_type type; /* type of values */
    unsigned n_threads;
    size_t alone; /* work below which one does all: CPU_ALONE, but in tests */
    const struct cpu_kernels *kernels;
    void *arena;
    size_t arena_bytes;
    uint64_t *done, uncounted; /* operation counter: uncounted until count() is called */
    void *products; /* scratch of products and of batch_norm_backward's sums, PLAN_CPU_PRODUCT_SCRATCH a thread */
};

/* A name for this compilation: KERNEL_NAME(cpu_norm) is cpu_norm_bf16_v4. */
#define KERNEL_JOIN_(name, type, isa) name##_##type##_##isa
#define KERNEL_JOIN(name, type, isa)  KERNEL_JOIN_(name, type, isa)
#define KERNEL_NAME(name)             KERNEL_JOIN(name, KERNEL_TYPE, KERNEL_ISA)

#define CPU_DECLARE(suffix)                                                                                            \
    extern const struct cpu_operations cpu_operations_##suffix;                                                        \
    void cpu_finish_##suffix(const struct device_matmul *op, const struct cpu_tile *tile, const float *sums,           \
                             size_t stride);                                                                           \
    void cpu_tile_##suffix(const struct device_matmul *op, const struct cpu_tile *tile, float *scratch);               \
    void cpu_single_##suffix(struct device *dev, const struct device_matmul *op);                                      \
    void cpu_conv_tile_##suffix(const struct cpu_conv *conv, size_t group, const struct cpu_tile *tile,                \
                                float *scratch);                                                                       \
    void cpu_conv_weights_##suffix(const struct cpu_conv *conv, const void *gradient, size_t group,                    \
                                   const struct cpu_tile *tile, float *scratch);
CPU_DECLARE(fp32_v2)
CPU_DECLARE(fp32_v3)
CPU_DECLARE(fp32_v4)
CPU_DECLARE(bf16_v2)
CPU_DECLARE(bf16_v3)
CPU_DECLARE(bf16_v4)
CPU_DECLARE(bf16_v4_pairs) /* products alone */
CPU_DECLARE(fp16_v3)
CPU_DECLARE(fp16_v4) /* products alone */
#undef CPU_DECLARE

#ifdef KERNEL_TYPE
#define CPU_DECLARE(name, type) void KERNEL_NAME(cpu_##name)(struct device *, const struct type *);
DEVICE_CALLS(CPU_DECLARE)
#undef CPU_DECLARE
#endif

/* Switches a device to the fastest that this machine supports, if it has any for the device's type. */
void cpu_isa_use_best(struct device *dev);
/* For tests: whether this machine supports an instruction set, whether it has kernels of a type besides, and switching
 * a device to it. */
bool cpu_isa_runs(enum cpu_isa isa);
bool cpu_isa_has(enum cpu_isa isa, enum number_type type);
void cpu_isa_use(struct device *dev, enum cpu_isa isa);

/* Number of terms of k that are summed before their sum is added to the total: equal steps of at most
 * PLAN_CPU_PRODUCT_DEPTH elements (PANEL_TERMS each) of a panel. */
static inline size_t cpu_product_step(size_t k, size_t terms)
{
    const size_t n = (k + terms * PLAN_CPU_PRODUCT_DEPTH - 1) / (terms * PLAN_CPU_PRODUCT_DEPTH);

    return ((k + n - 1) / n + 7) / 8 * 8;
}

/* Work, in elements or CPU_TERMS terms of a product each, that takes one thread some 10 us: less is done before another
 * has woken up. */
enum { CPU_ALONE = 1 << 14, CPU_TERMS = 16 };

/* How many threads share this much work. */
static inline unsigned cpu_threads(const struct device *dev, size_t work)
{
    return work < dev->alone ? 1 : dev->n_threads;
}

/* The calling thread's number in its parallel loop. */
static inline unsigned cpu_thread(void)
{
#ifdef _OPENMP
    return (unsigned)omp_get_thread_num();
#else
    return 0;
#endif
}

#endif
