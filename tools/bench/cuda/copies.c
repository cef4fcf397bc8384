/* Uploads and downloads of single units: ours from a sealed segment lent for reading, and into one lent for writing, as
 * the daemon provides them; for comparison cudaMemcpyAsync with memory from cudaMallocHost. Then both directions at
 * once, contributions rounded to bf16 before, and the host's own memory bandwidth. */
#include "tools/bench/cuda/bench.h"

#include "tools/bench/samples.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

static const size_t megabyte = 1000 * 1000;

struct copies {
    size_t bytes, up_bytes;
    char *down_host, *up_host, *pinned; /* each as large as the largest unit */
    char *device, *other;
};

static void down(struct bench *b, void *context)
{
    const struct copies *c = context;

    b->ops->upload(b->dev, c->device, c->down_host, c->bytes);
}

static void up(struct bench *b, void *context)
{
    const struct copies *c = context;

    b->ops->download(b->dev, c->up_host, c->other, c->bytes);
}

static void both(struct bench *b, void *context)
{
    down(b, context);
    up(b, context);
}

static void up_bf16(struct bench *b, void *context)
{
    const struct copies *c = context;

    b->ops->round_half(b->dev, &(struct device_round_half){(uint16_t *)c->device, (const float *)c->other,
                                                           c->bytes / sizeof(float), NUMBER_BF16});
    b->ops->follow(b->dev, DEVICE_PUSH, DEVICE_COMPUTE, b->ops->mark(b->dev, DEVICE_COMPUTE));
    b->ops->download(b->dev, c->up_host, c->device, c->bytes / 2);
}

static void bare_down(struct bench *b, void *context)
{
    const struct copies *c = context;

    must(cudaMemcpyAsync(c->device, c->pinned, c->bytes, cudaMemcpyHostToDevice, b->stream));
}

static void bare_up(struct bench *b, void *context)
{
    const struct copies *c = context;

    must(cudaMemcpyAsync(c->pinned, c->other, c->bytes, cudaMemcpyDeviceToHost, b->stream));
}

static void copies_die(const char *what)
{
    perror(what);
    exit(1);
}

/* Fills memory with numbers without a pattern. */
static void copies_fill(char *memory, size_t bytes)
{
    for (size_t i = 0; i < bytes / sizeof(uint64_t); i++)
        ((uint64_t *)memory)[i] = (i + 1) * 0x9e3779b97f4a7c15u;
}

/* A filled shared segment; mapped as its reader sees it if not `writable`. */
static char *segment(struct bench *b, size_t bytes, bool writable)
{
    struct error err = {{0}};
    const int fd = memfd_create("bench", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    char *memory;

    if (fd < 0 || ftruncate(fd, (off_t)bytes))
        copies_die("bench_cuda: memfd_create");
    memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED)
        copies_die("bench_cuda: mmap");
    copies_fill(memory, bytes);
    if (!writable) {
        munmap(memory, bytes);
        if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE))
            copies_die("bench_cuda: sealing");
        memory = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
        if (memory == MAP_FAILED)
            copies_die("bench_cuda: mmap");
    }
    close(fd);
    if (b->ops->lend(b->dev, memory, bytes, writable, &err))
        printf("other-lend|0|%s\n", err.text);
    return memory;
}

static void copies_tell(const char *what, size_t bytes, const double ms[2])
{
    printf("%s-%zu|%.3f|%.1f GB/s, cudaMemcpyAsync %.1f GB/s\n", what, bytes / megabyte, ms[1] / ms[0],
           (double)bytes / ms[0] * 1e-6, (double)bytes / ms[1] * 1e-6);
    fflush(stdout);
}

static void tell_other(const char *what, double bytes, double ms, const char *text)
{
    printf("other-%s|%.1f|GB/s, %s\n", what, bytes / ms * 1e-6, text);
    fflush(stdout);
}

/* a = b + x * c over three arrays far larger than any cache, on all processors: GB/s read and written. */
static void tell_triad(bool small)
{
    const size_t n = small ? 1000 : (size_t)1 << 28;
    float *a = malloc(n * sizeof *a), *b = malloc(n * sizeof *b), *c = malloc(n * sizeof *c);
    struct samples times = {.n = 0};

    if (!a || !b || !c)
        copies_die("bench_cuda: triad");
#pragma omp parallel for
    for (size_t i = 0; i < n; i++)
        a[i] = 0, b[i] = 1, c[i] = 2;
    for (int round = 0; round < 5; round++) {
        const double began = samples_now_ms();
#pragma omp parallel for
        for (size_t i = 0; i < n; i++)
            a[i] = b[i] + 3 * c[i];
        samples_add(&times, began);
    }
    tell_other("triad", 12.0 * (double)n, samples_median(&times), a[n / 2] == 7 ? "host memory" : "wrong");
    free(a), free(b), free(c);
}

/* Weights whose mapping the device cannot register: how fast they come, and how long the thread that asks is held. */
static void tell_not_lent(struct bench *b, struct copies *c)
{
    struct samples held = {.n = 0}, times = {.n = 0};
    char text[64];

    for (int round = 0; round < 5; round++) {
        const double began = samples_now_ms();
        b->ops->upload(b->dev, c->device, c->down_host, c->bytes);
        samples_add(&held, began);
        if (b->ops->sync(b->dev))
            copies_die("bench_cuda: copies");
        samples_add(&times, began);
    }
    snprintf(text, sizeof text, "memory that is not lent; the caller is held for %.2f of it",
             samples_median(&held) / samples_median(&times));
    tell_other("pull-not-lent", (double)c->bytes, samples_median(&times), text);
}

void bench_copies(struct bench *b)
{
    static const size_t units[] = {100, 200, 400, 800};
    const size_t n = b->small ? 1 : sizeof units / sizeof *units;
    const size_t most = b->small ? 40000 : 800 * megabyte;
    struct copies c = {.down_host = segment(b, most, false), .up_host = segment(b, most, true)};
    double ms[2];

    c.device = bench_take(b, most), c.other = (char *)bench_floats(b, most / sizeof(float));
    must(cudaMallocHost((void **)&c.pinned, most));
    copies_fill(c.pinned, most);
    for (size_t i = 0; i < n; i++) {
        c.bytes = b->small ? most : units[i] * megabyte;
        bench_times(b, ms, (bench_run *const[]){down, bare_down}, &c, 2);
        copies_tell("pull", c.bytes, ms);
        bench_times(b, ms, (bench_run *const[]){up, bare_up}, &c, 2);
        copies_tell("push", c.bytes, ms);
    }
    bench_times(b, ms, (bench_run *const[]){both, up_bf16}, &c, 2);
    tell_other("both-ways", 2.0 * (double)c.bytes, ms[0], "pull and push at once, added up");
    tell_other("push-bf16", (double)c.bytes / 2, ms[1], "contributions that are rounded before, as they arrive");
    tell_triad(b->small);
    b->ops->unlend(b->dev, c.down_host);
    tell_not_lent(b, &c);
    b->ops->unlend(b->dev, c.up_host);
    must(cudaFreeHost(c.pinned));
}
