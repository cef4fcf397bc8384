/* bench_generate: how near generation comes to what memory allows. Each token reads every weight once, so tokens a
 * second times bytes of weights is a bandwidth; beside it stands what all cores reach who do nothing but read as many
 * bytes. Client, daemon and worker are processes, as for eps generate; the same worker called as a function shows what
 * the messages cost. Rounds take turns, medians are printed.
 *
 *   bench_generate [LAYERS WIDTH HEADS VOCABULARY [DEVICE_MEM]]      default 12 768 12 50257 4GiB: GPT-2 124M */
#include "client/spawn.h"
#include "device/generate.h"
#include "proto/process.h"
#include "proto/segment.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { ROUNDS = 15, TOKENS = 24, PROMPT = 128, SEQ = PROMPT + ROUNDS * TOKENS };

struct samples {
    double ms[ROUNDS * TOKENS];
    size_t n;
};

struct bench {
    struct model model;
    uint64_t device_mem;
    float *weights; /* (segment_n): what is read, and what the worker in this process pulls */
    struct device_worker worker;
    struct ledger ledger;
    struct client_link link;
    struct client_spawn spawn;
    struct segment data; /* ids and logits, of the processes */
    uint32_t ids[SEQ];   /* and of the worker in this process */
    float *logits;
    uint32_t pulled[PLAN_MAX_WEIGHT_BUFFERS], n_pulls, n_waits;
    uint64_t resident_bytes;
    struct samples read, direct, processes;
    double prompt_ms;
};

static double now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median(struct samples *s)
{
    qsort(s->ms, s->n, sizeof *s->ms, compare);
    return s->ms[s->n / 2];
}

static void check(int rc, const char *what, const struct error *err)
{
    if (rc == 0)
        return;
    fprintf(stderr, "bench_generate: %s: %s\n", what, err->text);
    exit(1);
}

enum { PIECE = 1 << 12, LINES = 8 };
typedef uint64_t line __attribute__((vector_size(64)));

/* Sums of whole cache lines, eight at a time, so that nothing but memory is waited for. */
__attribute__((target_clones("avx512f", "avx2", "default"))) static uint64_t read_piece(const line *from)
{
    line sum[LINES] = {{0}};

    for (size_t j = 0; j < PIECE; j += LINES)
        for (size_t k = 0; k < LINES; k++)
            sum[k] += from[j + k];
    for (size_t k = 1; k < LINES; k++)
        sum[0] += sum[k];
    return sum[0][0] ^ sum[0][7];
}

static void read_all(const struct bench *b, struct samples *out)
{
    const size_t n = b->model.segment_n / 16 / PIECE * PIECE;
    const line *from = (const line *)b->weights;
    const double start = now_ms();
    uint64_t total = 0;

#pragma omp parallel for schedule(dynamic) reduction(+ : total)
    for (size_t i = 0; i < n; i += PIECE)
        total += read_piece(from + i);
    __asm__ volatile("" ::"r"(total));
    out->ms[out->n++] = (now_ms() - start) * (double)b->model.segment_n / (double)(n * 16);
}

static uint32_t likeliest(const struct bench *b, const float *logits)
{
    uint32_t best = 0;

    for (uint32_t i = 1; i < b->model.config.vocabulary; i++)
        if (logits[i] > logits[best])
            best = i;
    return best;
}

static int pull(void *context, uint64_t version, uint32_t unit)
{
    struct bench *b = context;

    (void)version;
    b->pulled[b->n_pulls++ % PLAN_MAX_WEIGHT_BUFFERS] = unit;
    return 0;
}

static int wait_weights(void *context, const float **weights)
{
    struct bench *b = context;

    *weights = b->weights + b->model.units[b->pulled[b->n_waits++ % PLAN_MAX_WEIGHT_BUFFERS]].offset;
    return 0;
}

static int ended(void *context)
{
    (void)context;
    return 0;
}

static void run_direct(struct bench *b, uint32_t first, uint32_t n)
{
    static const struct device_link link = {.pull = pull, .wait_weights = wait_weights, .ended = ended};
    const struct device_run run = {.ids = b->ids, .first = first, .n = n, .logits = b->logits};
    struct error err = {""};

    check(device_worker_generate(&b->worker, &run, &link, b, &err), "worker", &err);
    if (first + n < SEQ)
        b->ids[first + n] = likeliest(b, b->logits);
}

static void run_processes(struct bench *b, uint32_t first, uint32_t n)
{
    struct message m = {.kind = MESSAGE_GENERATE, .generate = {first, n}};
    const float *logits = (const float *)((const char *)b->data.base + message_generate_logits(SEQ));
    struct error err = {""};

    client_link_send(&b->link, &m);
    check(client_link_expect(&b->link, MESSAGE_GENERATED, &m, NULL, &err), "daemon", &err);
    if (first + n < SEQ)
        ((uint32_t *)b->data.base)[first + n] = likeliest(b, logits);
}

static void time_tokens(struct bench *b, struct samples *out, void (*run)(struct bench *, uint32_t, uint32_t),
                        uint32_t first)
{
    for (uint32_t i = 0; i < TOKENS; i++) {
        const double start = now_ms();
        run(b, first + i, 1);
        out->ms[out->n++] = now_ms() - start;
    }
}

static void open_direct(struct bench *b)
{
    const struct device_worker_options options = {.config = b->model.config,
                                                  .plan = {.ops = &device_cpu,
                                                           .budget = b->device_mem,
                                                           .share_rows = 1,
                                                           .part_rows = 1,
                                                           .seq = SEQ,
                                                           .n_weight_buffers = 2,
                                                           .n_threads = (uint32_t)sysconf(_SC_NPROCESSORS_ONLN),
                                                           .generate = true},
                                                  .batch = 1};
    const size_t bytes = b->model.segment_n * sizeof(float);
    struct error err = {""};
    uint64_t state = 1;

    b->weights = aligned_alloc(2 << 20, (bytes + (2 << 20) - 1) >> 21 << 21);
    b->logits = calloc(b->model.config.vocabulary, sizeof *b->logits);
    check(b->weights && b->logits ? 0 : error_set(&err, -ENOMEM, "out of memory"), "weights", &err);
    madvise(b->weights, bytes, MADV_HUGEPAGE);
    for (uint64_t i = 0; i < b->model.segment_n; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        b->weights[i] = (float)(int32_t)(state >> 32) * 0x1p-36f;
    }
    check(device_worker_init(&b->worker, &options, &b->ledger, &err), "worker", &err);
}

static void open_processes(struct bench *b)
{
    const struct model_config *c = &b->model.config;
    const struct client_spawn_options how = {.programs = NULL,
                                             .n_workers = 1,
                                             .device_mem = b->device_mem,
                                             .log_fd = 2};
    struct message m = {.kind = MESSAGE_JOB};
    struct error err = {""};
    char text[400];
    int data, fd = memfd_create("config.json", MFD_CLOEXEC);
    const int n = snprintf(text, sizeof text,
                           "{\"model_type\": \"gpt2\", \"n_layer\": %u, \"n_head\": %u, \"n_embd\": %u, "
                           "\"n_positions\": %u, \"vocab_size\": %u}",
                           c->n_layers, c->n_heads, c->width, c->n_positions, c->vocabulary);

    check(fd < 0 || write(fd, text, (size_t)n) != n ? error_set(&err, -EIO, "no memfd") : 0, "config", &err);
    check(client_link_init(&b->link, &err), "client", &err);
    check(client_spawn_start(&b->spawn, &b->link, &how, &err), "processes", &err);
    m.job.generate = m.job.fresh = true;
    m.job.seed = 1;
    m.job.batch = m.job.n_parts = 1;
    m.job.seq = SEQ;
    client_link_send_fds(&b->link, &m, &fd, 1);
    check(client_link_expect(&b->link, MESSAGE_JOB_OPENED, &m, &data, &err), "job", &err);
    check(segment_attach(&b->data, data, m.job_opened.data_bytes, SEGMENT_READ_WRITE, &err), "job", &err);
    b->resident_bytes = m.job_opened.resident_bytes;
    close(fd);
}

static void print(struct bench *b)
{
    const double bytes = 4 * (double)b->model.n_parameters, read = median(&b->read);
    const double direct = median(&b->direct), processes = median(&b->processes);
    const struct model_config *c = &b->model.config;

    printf("gpt2 %ux%u, vocabulary %u: %.1f MB of weights, %.1f MB of them on the device; tokens %d to %d\n",
           c->n_layers, c->width, c->vocabulary, bytes * 1e-6, (double)b->resident_bytes * 1e-6, PROMPT, SEQ);
    printf("reading             %7.2f ms  %6.1f GB/s\n", read, bytes / read * 1e-6);
    printf("one process         %7.2f ms  %6.1f GB/s  %.2f of reading\n", direct, bytes / direct * 1e-6, read / direct);
    printf("daemon and worker   %7.2f ms  %6.1f GB/s  %.2f of reading  %.1f tokens/s\n", processes,
           bytes / processes * 1e-6, read / processes, 1e3 / processes);
    printf("prompt of %d tokens %7.2f ms  %.0f tokens/s\n", PROMPT, b->prompt_ms, 1e3 * PROMPT / b->prompt_ms);
}

int main(int argc, char **argv)
{
    static struct bench b = {.device_mem = (uint64_t)4 << 30};
    struct model_config config = {.n_layers = 12,
                                  .n_heads = 12,
                                  .width = 768,
                                  .n_positions = 1024,
                                  .vocabulary = 50257,
                                  .activation = MODEL_GELU_NEW,
                                  .tied = true,
                                  .scale_attention = true,
                                  .norm_epsilon = 1e-5f,
                                  .initializer_range = 0.02f};
    struct error err = {""};

    process_bound_spinning(argv);
    log_name("bench_generate");
    if (argc > 4) {
        config.n_layers = (uint32_t)atoi(argv[1]), config.width = (uint32_t)atoi(argv[2]);
        config.n_heads = (uint32_t)atoi(argv[3]), config.vocabulary = (uint32_t)atoi(argv[4]);
    }
    if (argc > 5)
        check(process_parse_bytes(&b.device_mem, "DEVICE_MEM", argv[5], &err), argv[5], &err);
    config.inner_width = 4 * config.width;
    check(model_init(&b.model, &config, &err), "model", &err);
    open_direct(&b);
    open_processes(&b);
    run_direct(&b, 0, PROMPT);
    run_processes(&b, 0, 1); /* which pulls what stays */
    const double start = now_ms();
    run_processes(&b, 1, PROMPT - 1);
    b.prompt_ms = now_ms() - start;
    for (uint32_t round = 0; round < ROUNDS; round++) {
        read_all(&b, &b.read);
        time_tokens(&b, &b.direct, run_direct, PROMPT + round * TOKENS);
        read_all(&b, &b.read);
        time_tokens(&b, &b.processes, run_processes, PROMPT + round * TOKENS);
    }
    print(&b);
    segment_close(&b.data);
    client_spawn_stop(&b.spawn);
    client_link_free(&b.link);
    device_worker_free(&b.worker);
    free(b.weights);
    return 0;
}
