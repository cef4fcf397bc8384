/* tools/bench/bench_operations.c - the speed of each CPU operation, compared with the machine's limits.
 *
 *     bench_operations [threads]
 *
 * Runs at the sizes of three models, and convolutions at those of three more (tools/bench/peer_conv2d.py has
 * PyTorch's). Products, attention and convolutions are in GFLOP/s, other operations in GB/s of the bytes that they must
 * read and write. The first lines measure the limits in the same run: multiplication without any stall, of which
 * products and attention give their share, and a copy. Each figure is the best of the repeats that fit into a fifth of
 * a second, at least five: other load only makes it slower. A single thread is timed by its own clock, so a busy
 * machine can be measured, too. */
#include "device/cpu/cpu.h"
#include "device/find.h"

#include <immintrin.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct size {
    size_t n_rows, n_tokens, n_heads, width, vocabulary;
};

struct bench {
    struct device *dev;
    struct size size;
    size_t m;             /* tokens in all rows */
    float *x, *y, *z, *w; /* (m, 4 width), and w (4 width, width) or a table */
    float *small;         /* (4 width) and statistics */
    uint32_t *ids;        /* (m) */
    uint32_t *positions;  /* (m) of documents of equal length */
    double *losses;
    void *scratch;
};

struct work {
    const char *name;
    void (*run)(struct bench *b);
    double (*flops)(const struct bench *b); /* or: */
    double floats;                          /* read and written, in units of m * width */
};

static double seconds(const struct bench *b)
{
    struct timespec t;

    clock_gettime(b->dev->n_threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double best_time(struct bench *b, void (*run)(struct bench *b))
{
    double best = INFINITY;
    const double start = seconds(b);

    run(b);
    for (int i = 0; i < 5 || seconds(b) - start < 0.2; i++) {
        const double before = seconds(b);
        run(b);
        best = fmin(best, seconds(b) - before);
    }
    return best;
}

static double product_flops(const struct bench *b)
{
    return 8.0 * (double)b->m * (double)b->size.width * (double)b->size.width;
}

/* Counts whole tiles of 64 x 64 that the triangle, or a band of it, touches: two products forward, five backward. */
static double tile_flops(const struct bench *b, int products, size_t window)
{
    size_t tiles = 0;

    for (size_t query = 0; query < b->size.n_tokens; query += PLAN_CPU_TILE)
        tiles += query / PLAN_CPU_TILE + 1 - (query + 1 > window ? (query + 1 - window) / PLAN_CPU_TILE : 0);
    return products * 2.0 * PLAN_CPU_TILE * PLAN_CPU_TILE * (double)(tiles * b->size.n_rows * b->size.width);
}

/* A sixteenth of the row: 256 of 4,096 tokens. */
static size_t window_of(const struct bench *b)
{
    return b->size.n_tokens / 16;
}

/* Tokens of a packed row's document: a sixteenth of the row too, but a tile at least. */
static size_t document_of(const struct bench *b)
{
    const size_t n = b->size.n_tokens / 16;

    return n > PLAN_CPU_TILE ? n : PLAN_CPU_TILE;
}

/* As many tiles as rows of that length would have, of which each is one document. */
static double document_flops(const struct bench *b, int products)
{
    struct bench apart = *b;

    apart.size.n_tokens = document_of(b), apart.size.n_rows = b->m / document_of(b);
    return tile_flops(&apart, products, apart.size.n_tokens);
}

static double packed_flops(const struct bench *b)
{
    return document_flops(b, 2);
}

static double packed_backward_flops(const struct bench *b)
{
    return document_flops(b, 5);
}

static double forward_flops(const struct bench *b)
{
    return tile_flops(b, 2, b->size.n_tokens);
}

static double window_flops(const struct bench *b)
{
    return tile_flops(b, 2, window_of(b));
}

static double window_backward_flops(const struct bench *b)
{
    return tile_flops(b, 5, window_of(b));
}

static double backward_flops(const struct bench *b)
{
    return tile_flops(b, 5, b->size.n_tokens);
}

enum { CHAINS = 12, TURNS = 100000 }; /* independent sums: 2 units of 4 or 5 cycles need 10 */

/* Multiplies in registers only; returns the result, so that the compiler keeps all of it. */
#define MULTIPLY(name, instructions, vector, step)                                                                     \
    __attribute__((target(instructions))) static float name(void)                                                      \
    {                                                                                                                  \
        vector x = {0.999f}, y = {0.001f}, sum[CHAINS];                                                                \
        for (int j = 0; j < CHAINS; j++)                                                                               \
            sum[j] = (vector){(float)j};                                                                               \
        for (int i = 0; i < TURNS; i++)                                                                                \
            _Pragma("GCC unroll 12") for (int j = 0; j < CHAINS; j++) sum[j] = step;                                   \
        for (int j = 1; j < CHAINS; j++)                                                                               \
            sum[0] += sum[j];                                                                                          \
        return sum[0][0];                                                                                              \
    }
MULTIPLY(multiply_v2, "sse4.2", __m128, sum[j] * x + y)
MULTIPLY(multiply_v3, "avx2,fma", __m256, _mm256_fmadd_ps(sum[j], x, y))
MULTIPLY(multiply_v4, "avx512f", __m512, _mm512_fmadd_ps(sum[j], x, y))
#undef MULTIPLY

static enum cpu_isa best_isa(void)
{
    return cpu_isa_runs(CPU_V4) ? CPU_V4 : cpu_isa_runs(CPU_V3) ? CPU_V3 : CPU_V2;
}

static double multiply_flops(const struct bench *b)
{
    return b->dev->n_threads * 2.0 * CHAINS * TURNS * (4 << best_isa());
}

static void multiply(struct bench *b)
{
    float sum = 0;

#pragma omp parallel for num_threads(b->dev->n_threads) reduction(+ : sum)
    for (unsigned i = 0; i < b->dev->n_threads; i++)
        sum += best_isa() == CPU_V4 ? multiply_v4() : best_isa() == CPU_V3 ? multiply_v3() : multiply_v2();
    b->small[0] = sum;
}

static void copy(struct bench *b)
{
    device_cpu.upload(b->dev, b->y, b->x, 4 * b->m * b->size.width * sizeof(float));
}

static void product(struct bench *b, enum device_epilogue epilogue)
{
    const size_t d = b->size.width;

    device_cpu.matmul(b->dev, &(struct device_matmul){.m = b->m,
                                                      .n = 4 * d,
                                                      .k = d,
                                                      .a = b->x,
                                                      .a_stride = d,
                                                      .b = b->w,
                                                      .b_stride = 4 * d,
                                                      .c = b->y,
                                                      .c_stride = 4 * d,
                                                      .epilogue = epilogue,
                                                      .bias = b->small,
                                                      .pre = b->z});
}

static void matmul(struct bench *b)
{
    product(b, DEVICE_NO_EPILOGUE);
}

static void matmul_gelu(struct bench *b)
{
    product(b, DEVICE_BIAS_ACTIVATION);
}

static void matmul_gelu_gradient(struct bench *b)
{
    product(b, DEVICE_ACTIVATION_GRADIENT);
}

static void matmul_input_gradient(struct bench *b)
{
    const size_t d = b->size.width;

    device_cpu.matmul(b->dev, &(struct device_matmul){.transpose_b = true,
                                                      .m = b->m,
                                                      .n = d,
                                                      .k = 4 * d,
                                                      .a = b->x,
                                                      .a_stride = 4 * d,
                                                      .b = b->w,
                                                      .b_stride = 4 * d,
                                                      .c = b->y,
                                                      .c_stride = d});
}

static void matmul_weight_gradient(struct bench *b)
{
    const size_t d = b->size.width;

    device_cpu.matmul(b->dev, &(struct device_matmul){.transpose_a = true,
                                                      .m = d,
                                                      .n = 4 * d,
                                                      .k = b->m,
                                                      .a = b->x,
                                                      .a_stride = d,
                                                      .b = b->y,
                                                      .b_stride = 4 * d,
                                                      .c = b->w,
                                                      .c_stride = 4 * d,
                                                      .beta = 1});
}

static struct device_attention attention_of(struct bench *b)
{
    const struct size *s = &b->size;

    return (struct device_attention){.n_rows = s->n_rows,
                                     .n_tokens = s->n_tokens,
                                     .n_heads = s->n_heads,
                                     .width = s->width,
                                     .scale = 0.125f,
                                     .qkv = b->x,
                                     .out = b->z,
                                     .log_sum_exp = b->small,
                                     .out_gradient = b->x,
                                     .qkv_gradient = b->y,
                                     .scratch = b->scratch};
}

static void attention(struct bench *b)
{
    const struct device_attention op = attention_of(b);
    device_cpu.attention(b->dev, &op);
}

static void attention_backward(struct bench *b)
{
    const struct device_attention op = attention_of(b);
    device_cpu.attention_backward(b->dev, &op);
}

static void attention_dropout(struct bench *b)
{
    struct device_attention op = attention_of(b);
    op.dropout.p = 0.1f;
    device_cpu.attention(b->dev, &op);
}

static void attention_window(struct bench *b)
{
    struct device_attention op = attention_of(b);
    op.window = window_of(b);
    device_cpu.attention(b->dev, &op);
}

static void attention_window_backward(struct bench *b)
{
    struct device_attention op = attention_of(b);
    op.window = window_of(b);
    device_cpu.attention_backward(b->dev, &op);
}

static struct device_attention packed_of(struct bench *b)
{
    struct device_attention op = attention_of(b);

    op.positions = b->positions;
    return op;
}

static void attention_packed(struct bench *b)
{
    const struct device_attention op = packed_of(b);
    device_cpu.attention(b->dev, &op);
}

static void attention_packed_backward(struct bench *b)
{
    const struct device_attention op = packed_of(b);
    device_cpu.attention_backward(b->dev, &op);
}

static struct device_norm norm_of(const struct bench *b)
{
    return (struct device_norm){.m = b->m,
                                .n = b->size.width,
                                .epsilon = 1e-5f,
                                .x = b->x,
                                .weight = b->w,
                                .bias = b->w,
                                .y = b->y,
                                .statistics = b->small,
                                .y_gradient = b->x,
                                .x_gradient = b->y,
                                .accumulate = true,
                                .weight_gradient = b->z,
                                .bias_gradient = b->z + b->size.width};
}

static void norm(struct bench *b)
{
    const struct device_norm op = norm_of(b);
    device_cpu.norm(b->dev, &op);
}

static void norm_backward(struct bench *b)
{
    const struct device_norm op = norm_of(b);
    device_cpu.norm_backward(b->dev, &op);
}

static void reduce_rows(struct bench *b)
{
    device_cpu.reduce_rows(b->dev,
                           &(struct device_reduce_rows){b->z, b->x, b->m, 4 * b->size.width, 4 * b->size.width});
}

static void dropout_add(struct bench *b, float p)
{
    const struct device_dropout_add op = {.n_rows = b->size.n_rows,
                                          .n_tokens = b->size.n_tokens,
                                          .n = b->size.width,
                                          .x = b->x,
                                          .h = b->z,
                                          .y = b->y,
                                          .dropout = {.p = p}};

    device_cpu.dropout_add(b->dev, &op);
}

static void add(struct bench *b)
{
    dropout_add(b, 0);
}

static void add_dropped(struct bench *b)
{
    dropout_add(b, 0.1f);
}

static void embed(struct bench *b)
{
    const struct device_embed op = {
        .m = b->m, .n = b->size.width, .n_table = 256, .ids = b->ids, .table = b->w, .y = b->y};

    device_cpu.embed(b->dev, &op);
}

static void embed_backward(struct bench *b)
{
    const struct device_embed op = {
        .m = b->m, .n = b->size.width, .n_table = 256, .ids = b->ids, .y_gradient = b->x, .table_gradient = b->w};

    device_cpu.embed_backward(b->dev, &op);
}

static struct device_cross_entropy cross_entropy_of(const struct bench *b, float *logits)
{
    return (struct device_cross_entropy){.m = b->m,
                                         .n = 4 * b->size.width,
                                         .logits_stride = 4 * b->size.width,
                                         .start = true,
                                         .logits = logits,
                                         .labels = b->ids,
                                         .running = b->small,
                                         .scale = 1e-3f};
}

static void log_sum_exp(struct bench *b)
{
    const struct device_cross_entropy op = cross_entropy_of(b, b->x);

    device_cpu.log_sum_exp(b->dev, &op);
}

static void cross_entropy_gradient(struct bench *b)
{
    const struct device_cross_entropy op = cross_entropy_of(b, b->y);

    memcpy(b->y, b->x, 4 * sizeof(float)); /* keeps the logits from decaying to 0; only the speed matters */
    device_cpu.cross_entropy_gradient(b->dev, &op);
}

static const struct work works[] = {
    {"multipliers", multiply, multiply_flops, 0},
    {"copy", copy, NULL, 8},
    {"matmul", matmul, product_flops, 0},
    {"matmul + bias + gelu", matmul_gelu, product_flops, 0},
    {"matmul * gelu gradient", matmul_gelu_gradient, product_flops, 0},
    {"matmul, b transposed", matmul_input_gradient, product_flops, 0},
    {"matmul, a transposed, added", matmul_weight_gradient, product_flops, 0},
    {"attention", attention, forward_flops, 0},
    {"attention, dropout", attention_dropout, forward_flops, 0},
    {"attention backward", attention_backward, backward_flops, 0},
    {"attention, window", attention_window, window_flops, 0},
    {"attention backward, window", attention_window_backward, window_backward_flops, 0},
    {"attention, packed", attention_packed, packed_flops, 0},
    {"attention backward, packed", attention_packed_backward, packed_backward_flops, 0},
    {"norm", norm, NULL, 2},
    {"norm backward", norm_backward, NULL, 4},
    {"reduce_rows", reduce_rows, NULL, 4},
    {"add", add, NULL, 3},
    {"add, dropout", add_dropped, NULL, 3},
    {"embed", embed, NULL, 2},
    {"embed backward", embed_backward, NULL, 3},
    {"log_sum_exp", log_sum_exp, NULL, 4},
    {"cross entropy gradient", cross_entropy_gradient, NULL, 8},
};

static void *allocate(size_t bytes)
{
    void *memory = aligned_alloc(64, (bytes + 63) / 64 * 64);

    if (!memory) {
        fprintf(stderr, "bench_operations: out of memory\n");
        exit(1);
    }
    memset(memory, 0, bytes);
    return memory;
}

static float *allocate_floats(size_t n)
{
    float *x = allocate(n * sizeof *x);

    random_normal(x, (struct random_key){{1, 2}}, 0, 0, n);
    return x;
}

static void measure(struct bench *b, const char *isa)
{
    const struct size *s = &b->size;
    const double unit = (double)(b->m * s->width * sizeof(float));
    double peak = 0;

    printf("%zu x %zu tokens, width %zu, %zu heads, %u threads, %s\n", s->n_rows, s->n_tokens, s->width, s->n_heads,
           b->dev->n_threads, isa);
    for (size_t i = 0; i < sizeof works / sizeof *works; i++) {
        const struct work *work = &works[i];
        const double time = best_time(b, work->run);
        const double rate = (work->flops ? work->flops(b) : work->floats * unit) / time * 1e-9;
        if (work->run == multiply)
            peak = rate;
        printf("  %-28s %8.3f ms %8.1f ", work->name, time * 1e3, rate);
        if (work->flops)
            printf("GFLOP/s %4.0f %%\n", 100 * rate / peak);
        else
            printf("GB/s\n");
    }
}

static void run(struct device *dev, const struct size *s)
{
    const size_t m = s->n_rows * s->n_tokens;
    const struct plan_attention_sizes sizes = {.n_rows = s->n_rows,
                                               .n_tokens = s->n_tokens,
                                               .n_heads = s->n_heads,
                                               .n_kv_heads = s->n_heads,
                                               .width = s->width};
    struct bench b = {.dev = dev, .size = *s, .m = m};

    b.x = allocate_floats(4 * m * s->width), b.y = allocate_floats(4 * m * s->width);
    b.z = allocate_floats(4 * m * s->width), b.w = allocate_floats(4 * s->width * s->width);
    b.small = allocate_floats(4 * s->width + 3 * m + m * s->n_heads);
    b.ids = allocate(m * sizeof *b.ids), b.positions = allocate(m * sizeof *b.positions),
    b.losses = allocate(m * sizeof *b.losses);
    b.scratch = allocate(plan_cpu.scratch_bytes(&sizes, dev->n_threads));
    for (size_t i = 0; i < m; i++)
        b.ids[i] = (uint32_t)(i * 37 % 256), b.positions[i] = (uint32_t)(i % document_of(&b));
    measure(&b, dev->kernels->name);
    free(b.x), free(b.y), free(b.z), free(b.w), free(b.small), free(b.ids), free(b.positions), free(b.losses),
        free(b.scratch);
}

/* ---- convolutions ---- */

static const struct layer {
    const char *name;
    size_t size, n_in, n_out;
    uint32_t window, stride;
} layers[] = {
    {"ResNet-18, CIFAR: first", 32, 3, 64, 3, 1},   {"ResNet-18: stage 1", 32, 64, 64, 3, 1},
    {"ResNet-18: into stage 2", 32, 64, 128, 3, 2}, {"ResNet-18: beside it", 32, 64, 128, 1, 2},
    {"ResNet-18: stage 2", 16, 128, 128, 3, 1},     {"ResNet-18: stage 3", 8, 256, 256, 3, 1},
    {"ResNet-18: stage 4", 4, 512, 512, 3, 1},      {"WRN-28-2: into stage 1", 32, 16, 32, 3, 1},
    {"WRN-28-2: stage 1", 32, 32, 32, 3, 1},        {"WRN-28-2: into stage 2", 32, 32, 64, 3, 2},
    {"WRN-28-2: stage 2", 16, 64, 64, 3, 1},        {"WRN-28-2: stage 3", 8, 128, 128, 3, 1},
    {"ResNet-50: 1 x 1", 14, 1024, 256, 1, 1},      {"ResNet-50: stage 4", 7, 512, 512, 3, 1},
};

/* What is timed, and the layer's call. */
static void (*running)(struct device *, const struct device_conv2d *);
static struct device_conv2d conv;

static void convolve(struct bench *b)
{
    running(b->dev, &conv);
}

/* n of the device's type, random. */
static void *allocate_values(struct device *dev, size_t n)
{
    float *const x = allocate_floats(n);

    if (dev->type != NUMBER_FP32)
        device_cpu.round_half(dev, &(struct device_round_half){(uint16_t *)x, x, n, dev->type});
    return x;
}

/* Forward, and the gradients of the input and of the weights. */
static void run_layer(struct device *dev, const struct layer *layer)
{
    void (*const runs[])(struct device *, const struct device_conv2d *) = {device_cpu.conv2d,
                                                                           device_cpu.conv2d_input_gradient,
                                                                           device_cpu.conv2d_weight_gradient};
    struct bench b = {.dev = dev};

    conv = (struct device_conv2d){.n_rows = 32,
                                  .height = layer->size,
                                  .width = layer->size,
                                  .n_in = layer->n_in,
                                  .n_out = layer->n_out,
                                  .n_groups = 1,
                                  .window = {layer->window, layer->window, layer->stride, layer->window / 2}};
    const size_t pixels = device_conv2d_pixels(&conv), taps = device_conv2d_taps(&conv);
    void *const x = allocate_values(dev, conv.n_rows * conv.height * conv.width * conv.n_in),
                *const y = allocate_values(dev, pixels * conv.n_out),
                *const w = allocate_values(dev, conv.n_out * taps);
    conv.x = conv.x_gradient = x, conv.y = y, conv.y_gradient = y, conv.weight = conv.weight_gradient = w;
    printf("  %-28s", layer->name);
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        running = runs[i];
        const double time = best_time(&b, convolve);
        printf(" %8.3f ms %6.1f", time * 1e3, 2e-9 * (double)pixels * (double)(conv.n_out * taps) / time);
    }
    printf("\n");
    free(x), free(y), free(w);
}

static void run_layers(struct device *dev)
{
    printf("convolutions of 32 images in %s, GFLOP/s: forward, of the input, of weights, %u threads, %s\n",
           number_name(dev->type), dev->n_threads, dev->kernels->name);
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++)
        run_layer(dev, &layers[i]);
}

int main(int argc, char **argv)
{
    static const struct size sizes[] = {{8, 256, 6, 384, 256}, {2, 1024, 12, 768, 256}, {1, 4096, 12, 768, 256}};
    const int n_threads = argc > 1 ? atoi(argv[1]) : 2;
    struct error err = {{0}};
    struct device *dev;

    if (n_threads < 1 || device_cpu.open(&dev, 0, NUMBER_FP32, 4096, (unsigned)n_threads, &err) != 0) {
        fprintf(stderr, "bench_operations: %s\n", n_threads < 1 ? "threads is a number from 1 on" : err.text);
        return 2;
    }
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        run(dev, &sizes[i]);
    device_cpu.close(dev);
    for (enum number_type type = NUMBER_FP32; type < NUMBER_TYPES; type++)
        if (device_cpu.open(&dev, 0, type, 4096, (unsigned)n_threads, &err) == 0) {
            run_layers(dev);
            device_cpu.close(dev);
        }
    return 0;
}
