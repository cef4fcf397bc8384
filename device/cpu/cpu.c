/* device/cpu/cpu.c - the CPU as a device: its own arena, its own copies, kernels for the machine it runs on. */
#include "device/cpu/cpu.h"

#include "device/find.h"
#include "proto/base/process.h"

#include <assert.h>
#include <cpuid.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { HUGE_PAGE = 2 << 20 };

#define KERNELS(name, suffix, products)                                                                                \
    {                                                                                                                  \
        name, &cpu_operations_##suffix, cpu_finish_##suffix, cpu_tile_##products, cpu_single_##products,               \
            cpu_conv_tile_##products, cpu_conv_weights_##products                                                      \
    }
static const struct cpu_kernels kernels[NUMBER_TYPES][CPU_ISAS] = {
    [NUMBER_FP32] = {KERNELS("x86-64-v2", fp32_v2, fp32_v2), KERNELS("x86-64-v3", fp32_v3, fp32_v3),
                     KERNELS("x86-64-v4", fp32_v4, fp32_v4), KERNELS("x86-64-v4", fp32_v4, fp32_v4)},
    [NUMBER_BF16] = {KERNELS("x86-64-v2", bf16_v2, bf16_v2), KERNELS("x86-64-v3", bf16_v3, bf16_v3),
                     KERNELS("x86-64-v4", bf16_v4, bf16_v4),
                     KERNELS("x86-64-v4 and AVX512_BF16", bf16_v4, bf16_v4_pairs)},
    [NUMBER_FP16] =
        {[CPU_V3] = KERNELS("x86-64-v3", fp16_v3, fp16_v3), [CPU_V4] = KERNELS("x86-64-v4", fp16_v3, fp16_v4)},
};
#undef KERNELS

static bool converts_halves(void)
{
#ifdef __clang__ /* whose __builtin_cpu_supports knows no f16c; cpuid itself leaves a virtual machine each time */
    unsigned a, b, c, d;

    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
#else
    return __builtin_cpu_supports("f16c");
#endif
}

bool cpu_isa_runs(enum cpu_isa isa)
{
    const bool v2 =
        __builtin_cpu_supports("ssse3") && __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("popcnt");
    const bool v3 = v2 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") && converts_halves();
    const bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                    __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                    __builtin_cpu_supports("avx512vl");

    switch (isa) {
    case CPU_V2:
        return v2;
    case CPU_V3:
        return v3;
    case CPU_V4:
        return v4;
    case CPU_V4_PAIRS:
        return v4 && __builtin_cpu_supports("avx512bf16");
    case CPU_ISAS:
        break;
    }
    return false;
}

bool cpu_isa_has(enum cpu_isa isa, enum number_type type)
{
    return cpu_isa_runs(isa) && kernels[type][isa].operations;
}

void cpu_isa_use(struct device *dev, enum cpu_isa isa)
{
    assert(cpu_isa_has(isa, dev->type));
    dev->kernels = &kernels[dev->type][isa];
}

/* Intel's processors take twice as long for a multiplication of pairs as for the two that it replaces; AMD's half. */
void cpu_isa_use_best(struct device *dev)
{
    for (int isa = CPU_V2; isa < CPU_ISAS; isa++)
        if (cpu_isa_has((enum cpu_isa)isa, dev->type) && (isa != CPU_V4_PAIRS || !__builtin_cpu_is("intel")))
            cpu_isa_use(dev, (enum cpu_isa)isa);
}

/* Maps exactly the pages of `bytes`, from a 2 MiB boundary, so that the system can back them with huge pages. */
static void *map_arena(size_t bytes)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), size = (bytes + page - 1) / page * page;
    char *base = mmap(NULL, size + HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    size_t before;

    if (base == MAP_FAILED)
        return NULL;
    before = (HUGE_PAGE - (uintptr_t)base % HUGE_PAGE) % HUGE_PAGE;
    if (before > 0)
        munmap(base, before);
    munmap(base + before + size, HUGE_PAGE - before);
    madvise(base + before, size, MADV_HUGEPAGE); /* a system without them runs as well, more slowly */
    return base + before;
}

static void cpu_close_device(struct device *dev)
{
    if (dev && dev->arena)
        munmap(dev->arena, dev->arena_bytes);
    if (dev && dev->products)
        munmap(dev->products, plan_cpu.library_bytes(dev->n_threads));
    free(dev);
}

/* No id means the CPU: proto/operation/device_name.c. */
static int cpu_find(unsigned *index, const char *id, struct error *err)
{
    (void)index;
    return error_set(err, -ENODEV, "there is no CPU device %s: all cores together are device 0", id);
}

static int cpu_probe(unsigned index, struct device_facts *facts, struct error *err)
{
    if (index != 0)
        return error_set(err, -ENODEV, "there is no CPU device %u: all cores together are device 0", index);
    if (!cpu_isa_runs(CPU_V2))
        return error_set(err, -ENODEV, "this processor lacks SSE4.2, which the CPU device needs");
    *facts = (struct device_facts){.available_bytes = process_available_bytes()};
    return 0;
}

/* Two arenas: the plan's, and scratch for products, which the plan counts as the library's. */
static int cpu_open_device(struct device **out, unsigned index, enum number_type type, size_t arena_bytes,
                           unsigned n_threads, struct error *err)
{
    struct device_facts facts;
    struct device *dev;

    *out = NULL;
    assert(type < NUMBER_TYPES && arena_bytes > 0 && n_threads > 0);
    int rc = cpu_probe(index, &facts, err);
    if (rc)
        return rc;
    dev = calloc(1, sizeof *dev);
    if (dev) {
        dev->done = &dev->uncounted;
        dev->type = type;
        dev->n_threads = n_threads;
        dev->alone = CPU_ALONE;
        dev->arena_bytes = arena_bytes;
        dev->arena = map_arena(arena_bytes);
        dev->products = map_arena(plan_cpu.library_bytes(n_threads));
    }
    if (!dev || !dev->arena || !dev->products) {
        cpu_close_device(dev);
        return error_set(err, -ENOMEM,
                         "the CPU device's memory, %zu bytes, cannot be had: lower --device-mem, or raise the limit of "
                         "addresses (ulimit -v)",
                         arena_bytes + plan_cpu.library_bytes(n_threads));
    }
    cpu_isa_use_best(dev);
    if (!dev->kernels) {
        cpu_close_device(dev);
        return error_set(err, -ENOTSUP, "this processor does not convert %s (AVX2 and F16C): choose --precision fp32",
                         number_name(type));
    }
    /* touches every page, so that the system allocates it */
    dev->kernels->operations->zero(dev, &(struct device_zero){dev->arena, arena_bytes});
    dev->kernels->operations->zero(dev, &(struct device_zero){dev->products, plan_cpu.library_bytes(n_threads)});
    *out = dev;
    return 0;
}

static void cpu_count(struct device *dev, uint64_t *done)
{
    dev->done = done;
}

static void *cpu_arena(struct device *dev)
{
    return dev->arena;
}

/* Pieces are large enough that each thread streams; a small copy takes this thread alone. */
static void cpu_copy(struct device *dev, void *to, const void *from, size_t bytes)
{
    enum { PIECE = 1 << 20 };

    device_count(dev->done);
#pragma omp parallel for num_threads(dev->n_threads) if (bytes > PIECE)
    for (size_t i = 0; i < bytes; i += PIECE)
        memcpy((char *)to + i, (const char *)from + i, bytes - i < PIECE ? bytes - i : PIECE);
}

static void cpu_upload(struct device *dev, void *dst, const void *host, size_t bytes)
{
    cpu_copy(dev, dst, host, bytes);
}

static void cpu_download(struct device *dev, void *host, const void *src, size_t bytes)
{
    cpu_copy(dev, host, src, bytes);
}

static int cpu_lend(struct device *dev, const void *host, size_t bytes, bool writable, struct error *err)
{
    (void)dev, (void)host, (void)bytes, (void)writable, (void)err; /* host memory is device memory */
    return 0;
}

static void cpu_unlend(struct device *dev, const void *host)
{
    (void)dev, (void)host;
}

/* Nothing is ever queued, so every mark is reached. */
static uint64_t cpu_mark(struct device *dev, enum device_queue queue)
{
    (void)dev, (void)queue;
    return 1;
}

static void cpu_follow(struct device *dev, enum device_queue queue, enum device_queue other, uint64_t wanted)
{
    (void)dev, (void)queue, (void)other, (void)wanted;
}

static int finish(struct device *dev, enum device_queue queue, uint64_t wanted)
{
    (void)dev, (void)queue, (void)wanted;
    return 0;
}

static int sync_device(struct device *dev)
{
    (void)dev; /* nothing is ever queued */
    return 0;
}

static int cpu_fault(struct device *dev, struct error *err)
{
    (void)dev; /* there are no faults */
    return error_set(err, -EIO, "the device is lost");
}

static void cpu_prepare_attention(struct device *dev, const struct device_attention *ops,
                                  const enum plan_attention *ways, size_t n, char told[DEVICE_TOLD])
{
    (void)dev, (void)ops, (void)ways, (void)n;
    *told = '\0';
}

static void cpu_prepare_conv2d(struct device *dev, const struct device_conv2d *ops, size_t n, uint32_t convolution,
                               char told[DEVICE_TOLD])
{
    (void)dev, (void)ops, (void)n, (void)convolution;
    told[0] = 0;
}

static void cpu_propose(struct device *dev, const struct device_matmul *op, struct products_candidates *out)
{
    (void)dev, (void)op; /* there is one algorithm, our own */
    *out = (struct products_candidates){0};
}

static int cpu_choose(struct device *dev, const struct products *products, struct error *err)
{
    (void)dev, (void)products, (void)err;
    return 0;
}

/* Operations. */
#define CALL(name, type)                                                                                               \
    static void name(struct device *dev, const struct type *op)                                                        \
    {                                                                                                                  \
        device_count(dev->done);                                                                                       \
        dev->kernels->operations->name(dev, op);                                                                       \
    }
DEVICE_CALLS(CALL)

#define ROW(name, type) .name = name,
const struct device_ops device_cpu = {.name = "cpu",
                                      .find = cpu_find,
                                      .probe = cpu_probe,
                                      .open = cpu_open_device,
                                      .close = cpu_close_device,
                                      .count = cpu_count,
                                      .arena = cpu_arena,
                                      .lend = cpu_lend,
                                      .unlend = cpu_unlend,
                                      .upload = cpu_upload,
                                      .download = cpu_download,
                                      .mark = cpu_mark,
                                      .follow = cpu_follow,
                                      .finish = finish,
                                      .sync = sync_device,
                                      .fault = cpu_fault,
                                      .propose = cpu_propose,
                                      .choose = cpu_choose,
                                      .prepare_attention = cpu_prepare_attention,
                                      .prepare_conv2d = cpu_prepare_conv2d,
                                      DEVICE_CALLS(ROW)};
