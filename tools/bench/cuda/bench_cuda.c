/* Operations of the CUDA device, each compared with its limit in the same run.
 *
 *     bench_cuda [--module FILE] [--device N] [--small] products|rows|copies|attention|families|qwen3|convolutions
 *
 * FILE is the backend, by default eps-cuda.so beside this program. Times are medians of several rounds that alternate
 * between ours and the limit; inputs are random. tools/gpu_check.sh runs all parts and keeps the output. */
#include "tools/bench/cuda/bench.h"

#include "device/find.h"
#include "tools/bench/samples.h"

#include <getopt.h>
#include <math.h>
#include <string.h>

enum { ROUNDS = 7, PATTERN = 1 << 20 };

void *bench_take(struct bench *b, size_t bytes)
{
    void *taken = b->next;

    bytes = (bytes + 255) / 256 * 256;
    if (bytes > b->left) {
        fprintf(stderr, "bench_cuda: the device has too little memory: %zu more bytes are needed\n", bytes - b->left);
        exit(1);
    }
    b->next += bytes;
    b->left -= bytes;
    return taken;
}

void bench_release(struct bench *b, char *mark)
{
    b->left += (size_t)(b->next - mark);
    b->next = mark;
}

static void bench_cuda_fill(struct bench *b, void *to, enum number_type type, size_t n)
{
    const size_t bytes = number_bytes(type), pattern = n < PATTERN ? n : PATTERN;
    float *numbers = malloc(pattern * sizeof *numbers);
    void *values = malloc(pattern * bytes);

    if (!numbers || !values) {
        fprintf(stderr, "bench_cuda: out of memory\n");
        exit(1);
    }
    random_normal(numbers, (struct random_key){{7, 11}}, 0, 0, pattern);
    for (size_t i = 0; i < pattern; i++)
        if (type == NUMBER_BF16)
            ((uint16_t *)values)[i] = number_to_bf16(numbers[i]);
        else
            ((float *)values)[i] = numbers[i];
    for (size_t i = 0; i < n; i += pattern)
        b->ops->upload(b->dev, (char *)to + i * bytes, values, (n - i < pattern ? n - i : pattern) * bytes);
    b->ops->sync(b->dev);
    free(numbers);
    free(values);
}

void *bench_values(struct bench *b, size_t n)
{
    void *values = bench_take(b, n * number_bytes(NUMBER_BF16));

    bench_cuda_fill(b, values, NUMBER_BF16, n);
    return values;
}

float *bench_floats(struct bench *b, size_t n)
{
    float *values = bench_take(b, n * sizeof *values);

    bench_cuda_fill(b, values, NUMBER_FP32, n);
    return values;
}

void *bench_read_back(struct bench *b, const void *values, size_t bytes)
{
    void *host = malloc(bytes);

    if (!host) {
        fprintf(stderr, "bench_cuda: out of memory\n");
        exit(1);
    }
    b->ops->sync(b->dev);
    b->ops->download(b->dev, host, values, bytes);
    b->ops->sync(b->dev);
    return host;
}

static double bench_cuda_number_at(enum number_type type, const void *values, size_t i)
{
    return type == NUMBER_BF16 ? (double)number_from_bf16(((const uint16_t *)values)[i])
                               : (double)((const float *)values)[i];
}

double bench_apart(enum number_type type, const void *x, const void *y, size_t n)
{
    double difference = 0, all = 0;

    for (size_t i = 0; i < n; i++) {
        const double a = bench_cuda_number_at(type, x, i), of = bench_cuda_number_at(type, y, i);
        difference += (a - of) * (a - of), all += of * of;
    }
    return sqrt(difference / all);
}

size_t bench_count_other(const void *x, const void *y, size_t n, size_t bytes)
{
    size_t other = 0;

    for (size_t i = 0; i < n; i++)
        other += memcmp((const char *)x + i * bytes, (const char *)y + i * bytes, bytes) != 0;
    return other;
}

/* Milliseconds of n calls. */
static double time_calls(struct bench *b, bench_run *run, void *context, unsigned n)
{
    const double began = samples_now_ms();

    for (unsigned i = 0; i < n; i++)
        run(b, context);
    if (b->ops->sync(b->dev) != 0) {
        fprintf(stderr, "bench_cuda: the device has failed: %s\n", cudaGetErrorString(cudaGetLastError()));
        exit(1);
    }
    must(cudaStreamSynchronize(b->stream));
    return samples_now_ms() - began;
}

void bench_times(struct bench *b, double ms[], bench_run *const run[], void *context, unsigned n)
{
    const double enough = b->small ? 0 : b->round_ms;
    struct samples samples[BENCH_MOST] = {{.n = 0}};
    unsigned calls[BENCH_MOST];

    for (unsigned i = 0; i < n; i++) {
        time_calls(b, run[i], context, 1); /* loads it */
        const double once = time_calls(b, run[i], context, 1);
        calls[i] = 1 + (unsigned)fmin(1000, enough / fmax(once, 0.01));
    }
    for (int round = 0; round < (b->small ? 1 : ROUNDS); round++)
        for (unsigned i = 0; i < n; i++)
            samples[i].ms[samples[i].n++] = time_calls(b, run[i], context, calls[i]) / calls[i];
    for (unsigned i = 0; i < n; i++)
        ms[i] = samples_median(&samples[i]);
}

static const struct {
    const char *name;
    void (*run)(struct bench *b);
} parts[] = {{"products", bench_products},        {"rows", bench_rows},         {"copies", bench_copies},
             {"attention", bench_attention},      {"families", bench_families}, {"qwen3", bench_qwen3},
             {"convolutions", bench_convolutions}};

static int bench_cuda_misuse(void)
{
    fprintf(stderr, "usage: bench_cuda [--module FILE] [--device N] [--small] "
                    "products|rows|copies|attention|families|qwen3|convolutions\n");
    return 2;
}

static int run_part(struct bench *b, const char *name, unsigned index)
{
    struct error err = {{0}};
    struct device_facts facts;

    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (strcmp(parts[i].name, name) != 0)
            continue;
        if (b->ops->probe(index, &facts, &err))
            goto fail;
        const uint64_t room = facts.available_bytes - facts.library_bytes;
        b->left = b->small ? 40 << 20 : (size_t)fmin((double)room * 0.9, 24.0 * (1 << 30));
        if (b->ops->open(&b->dev, index, NUMBER_BF16, b->left, 1, &err))
            goto fail;
        b->next = b->ops->arena(b->dev);
        b->attention = facts.attention, b->convolution = facts.convolution;
        b->round_ms = 40;
        must(cudaSetDevice((int)index));
        must(cudaStreamCreateWithFlags(&b->stream, cudaStreamNonBlocking));
        parts[i].run(b);
        must(cudaStreamDestroy(b->stream));
        b->ops->close(b->dev);
        return 0;
    }
    return bench_cuda_misuse();
fail:
    fprintf(stderr, "bench_cuda: %s\n", err.text);
    return 1;
}

#ifdef BENCH_SIMULATED
extern const struct module device_module;
/* Linked into the program: a module would bring a second simulated device. */
static const struct device_ops *find(const char *module, struct error *err)
{
    (void)module, (void)err;
    return device_module.ops;
}
#else
static const struct device_ops *find(const char *module, struct error *err)
{
    return module ? device_load(module, err) : device_find("cuda", err);
}
#endif

int main(int argc, char **argv)
{
    static const struct option options[] = {{"module", required_argument, NULL, 'm'},
                                            {"device", required_argument, NULL, 'd'},
                                            {"small", no_argument, NULL, 's'},
                                            {NULL, 0, NULL, 0}};
    struct bench b = {.ops = NULL};
    struct error err = {{0}};
    const char *module = NULL;
    unsigned index = 0;
    int option;

    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
        if (option == 'm')
            module = optarg;
        else if (option == 'd')
            index = (unsigned)atoi(optarg);
        else if (option == 's')
            b.small = true;
        else
            return bench_cuda_misuse();
    }
    if (optind != argc - 1)
        return bench_cuda_misuse();
    b.ops = find(module, &err);
    if (!b.ops) {
        fprintf(stderr, "bench_cuda: %s\n", err.text);
        return 1;
    }
    return run_part(&b, argv[optind], index);
}
