/* device/cpu/cpu.h - the CPU device's state, and its kernels, which are compiled per instruction set.
 *
 * kernels/X.kernel.c is compiled once for each x86-64 level and each number type, into tables X_fp32_v2 to X_bf16_v4. A
 * device uses those of its number type and of the best level that the machine supports. Work is divided by shapes
 * alone, and one thread computes each piece in a fixed order, so results do not depend on the number of threads. */
#ifndef DEVICE_CPU_CPU_H
#define DEVICE_CPU_CPU_H

#include "proto/operation/device.h"
#include "proto/base/size.h"
#include "proto/operation/backend.h"

#ifdef _OPENMP
#include <omp.h>
#else /* the pragmas that read dev->n_threads have no effect */
#pragma GCC diagnostic ignored "-Wunused-parameter"
#endif

/* CPU_V4_PAIRS: bf16 products use AVX512_BF16; everything else is v4's. */
enum cpu_isa { CPU_V2, CPU_V3, CPU_V4, CPU_V4_PAIRS, CPU_ISAS };

/* A part of a product's result, in elements of c. */
struct cpu_tile {
    size_t row, column, m, n;
};

struct cpu_row_kernels {
    void (*zero)(struct device *dev, const struct device_zero *op);
    void (*activate)(struct device *dev, const struct device_activate *op);
    void (*activate_backward)(struct device *dev, const struct device_activate *op);
    void (*add)(struct device *dev, const struct device_add *op);
    void (*reduce_rows)(struct device *dev, const struct device_reduce_rows *op);
    void (*embed)(struct device *dev, const struct device_embed *op);
    void (*embed_backward)(struct device *dev, const struct device_embed *op);
    void (*position)(struct device *dev, const struct device_position *op);
    void (*position_backward)(struct device *dev, const struct device_position *op);
    /* Stores a tile of op's c from its sums, whose rows are `stride` apart: applies beta and the epilogue. */
    void (*finish)(const struct device_matmul *op, const struct cpu_tile *tile, const float *sums, size_t stride);
};

struct cpu_norm_kernels {
    void (*forward)(struct device *dev, const struct device_norm *op);
    void (*backward)(struct device *dev, const struct device_norm *op);
};

struct cpu_element_kernels {
    void (*glu)(struct device *dev, const struct device_glu *op);
    void (*glu_backward)(struct device *dev, const struct device_glu *op);
    void (*rope)(struct device *dev, const struct device_rope *op);
    void (*dropout_add)(struct device *dev, const struct device_dropout_add *op);
};

struct cpu_attention_kernels {
    void (*forward)(struct device *dev, const struct device_attention *op);
    void (*backward)(struct device *dev, const struct device_attention *op);
};

struct cpu_attention_cached_kernels {
    void (*forward)(struct device *dev, const struct device_attention_cached *op);
};

struct cpu_tile_kernels {
    /* Computes the sums of a tile of at most PLAN_CPU_PRODUCT_HEIGHT x WIDTH into the start of scratch, rows WIDTH
     * apart. */
    void (*multiply)(const struct device_matmul *op, const struct cpu_tile *tile, float *scratch);
};

struct cpu_single_kernels {
    /* A product with m 1, a not transposed and beta 0. */
    void (*multiply)(struct device *dev, const struct device_matmul *op);
};

struct cpu_softmax_kernels {
    void (*soft_cap)(struct device *dev, const struct device_soft_cap *op);
    void (*log_sum_exp)(struct device *dev, const struct device_cross_entropy *op);
    void (*loss)(struct device *dev, const struct device_loss *op);
    void (*gradient)(struct device *dev, const struct device_cross_entropy *op);
    void (*squared_error)(const struct device_squared_error *op);
    void (*squared_error_gradient)(const struct device_squared_error *op);
};

struct cpu_kernels {
    const char *name;
    const struct cpu_row_kernels *rows;
    const struct cpu_norm_kernels *norm;
    const struct cpu_element_kernels *elements;
    const struct cpu_attention_kernels *attention;
    const struct cpu_attention_cached_kernels *attention_cached;
    const struct cpu_tile_kernels *tile;
    const struct cpu_single_kernels *single;
    const struct cpu_softmax_kernels *softmax;
};

struct device {
    enum number_type type; /* of values */
    unsigned n_threads;
    const struct cpu_kernels *kernels;
    void *arena;
    size_t arena_bytes;
    uint64_t *done, uncounted; /* operation counter: uncounted until count() is called */
    void *products;            /* scratch of the products, PLAN_CPU_PRODUCT_SCRATCH a thread */
};

/* A name for this compilation: KERNEL_NAME(cpu_rows) is cpu_rows_bf16_v4. */
#define KERNEL_JOIN_(name, type, isa) name##_##type##_##isa
#define KERNEL_JOIN(name, type, isa)  KERNEL_JOIN_(name, type, isa)
#define KERNEL_NAME(name)             KERNEL_JOIN(name, KERNEL_TYPE, KERNEL_ISA)

#define CPU_TABLES(suffix)                                                                                             \
    extern const struct cpu_row_kernels cpu_rows_##suffix;                                                             \
    extern const struct cpu_norm_kernels cpu_norm_##suffix;                                                            \
    extern const struct cpu_element_kernels cpu_elements_##suffix;                                                     \
    extern const struct cpu_attention_kernels cpu_attention_##suffix;                                                  \
    extern const struct cpu_attention_cached_kernels cpu_attention_cached_##suffix;                                    \
    extern const struct cpu_tile_kernels cpu_tile_##suffix;                                                            \
    extern const struct cpu_single_kernels cpu_single_##suffix;                                                        \
    extern const struct cpu_softmax_kernels cpu_softmax_##suffix
CPU_TABLES(fp32_v2);
CPU_TABLES(fp32_v3);
CPU_TABLES(fp32_v4);
CPU_TABLES(bf16_v2);
CPU_TABLES(bf16_v3);
CPU_TABLES(bf16_v4);
#undef CPU_TABLES
extern const struct cpu_tile_kernels cpu_tile_bf16_v4_pairs;
extern const struct cpu_single_kernels cpu_single_bf16_v4_pairs;

/* For tests: whether this machine supports an instruction set, and switching a device to it. */
bool cpu_isa_runs(enum cpu_isa isa);
void cpu_isa_use(struct device *dev, enum cpu_isa isa);

/* Number of terms of k that are summed before their sum is added to the total: equal steps of at most
 * PLAN_CPU_PRODUCT_DEPTH elements (PANEL_TERMS each) of a panel. */
static inline size_t cpu_product_step(size_t k, size_t terms)
{
    const size_t n = (k + terms * PLAN_CPU_PRODUCT_DEPTH - 1) / (terms * PLAN_CPU_PRODUCT_DEPTH);

    return ((k + n - 1) / n + 7) / 8 * 8;
}

/* matmul.c: the product in tiles, each by one thread. */
void cpu_matmul(struct device *dev, const struct device_matmul *op);

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
