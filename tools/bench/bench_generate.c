/* bench_generate: how close generation comes to the memory bandwidth. Each token reads every weight that it visits
 * once, so tokens per second times those bytes is a bandwidth. For comparison, all cores read a buffer as large as the
 * weights. eps_generate runs greedily, with a private daemon and worker, on random weights. The same worker called as a
 * function shows the cost of processes, messages and sampling. The three alternate between tokens; medians are printed.
 *
 *   bench_generate [LAYERS WIDTH HEADS VOCABULARY [DEVICE_MEM]]      default 12 768 12 50257 4GiB: GPT-2 124M */
#include "client/eps.h"
#include "proto/model/gpt2.h"
#include "proto/step/generate.h"
#include "eps/store/store_files.h"
#include "proto/base/process.h"
#include "proto/plan/search.h"
#include "tools/bench/samples.h"
#include "device/find.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { ROUNDS = 15, TOKENS = 24, PROMPT = 128, SEQ = PROMPT + ROUNDS * TOKENS };

struct bench {
    struct model model;
    uint64_t device_mem;
    char directory[64]; /* holds the model's files */
    struct store store; /* weights for the worker in this process */
    void *buffer;       /* for the plain reads: as large as the weights, in huge pages like a worker's arena */
    struct ledger host, device;
    struct device_worker worker;
    uint32_t ids[SEQ]; /* tokens of the worker in this process */
    float *logits;
    uint32_t pulled[PLAN_MAX_WEIGHT_BUFFERS], n_pulls, n_waits;
    struct samples read, direct, processes;
    struct eps_generated generated;
    uint32_t n_tokens; /* from eps_generate */
    double since_ms;   /* time of the last one */
};

static void bench_generate_check(int rc, const char *what, const struct error *err)
{
    if (rc == 0)
        return;
    fprintf(stderr, "bench_generate: %s: %s\n", what, err->text);
    exit(1);
}

enum { PIECE = 1 << 12, LINES = 8 };
typedef uint64_t line __attribute__((vector_size(64)));

/* Sums whole cache lines, eight at a time, so that memory is the only bottleneck. */
__attribute__((target_clones("avx512f", "avx2", "default"))) static uint64_t bench_generate_read_piece(const line *from)
{
    line sum[LINES] = {{0}};

    for (size_t j = 0; j < PIECE; j += LINES)
        for (size_t k = 0; k < LINES; k++)
            sum[k] += from[j + k];
    for (size_t k = 1; k < LINES; k++)
        sum[0] += sum[k];
    return sum[0][0] ^ sum[0][7];
}

static void bench_generate_read_all(const struct bench *b, struct samples *out)
{
    const size_t n = b->model.segment_n / 16 / PIECE * PIECE;
    const line *from = (const line *)b->buffer;
    const double start = samples_now_ms();
    uint64_t total = 0;

#pragma omp parallel for schedule(dynamic) reduction(+ : total)
    for (size_t i = 0; i < n; i += PIECE)
        total += bench_generate_read_piece(from + i);
    __asm__ volatile("" ::"r"(total));
    out->ms[out->n++] = (samples_now_ms() - start) * (double)b->model.segment_n / (double)(n * 16);
}

static uint32_t likeliest(const struct bench *b, const float *logits)
{
    uint32_t best = 0;

    for (uint32_t i = 1; i < b->model.config.vocabulary; i++)
        if (logits[i] > logits[best])
            best = i;
    return best;
}

static int bench_generate_pull(void *context, uint64_t version, uint32_t unit)
{
    struct bench *b = context;

    (void)version;
    b->pulled[b->n_pulls++ % PLAN_MAX_WEIGHT_BUFFERS] = unit;
    return 0;
}

static int bench_generate_wait_weights(void *context, struct device_link_weights *weights)
{
    struct bench *b = context;
    const float *const at =
        (const float *)b->store.weights.base + b->model.units[b->pulled[b->n_waits++ % PLAN_MAX_WEIGHT_BUFFERS]].offset;

    *weights = (struct device_link_weights){.trained = at, .frozen = at};
    return 0;
}

static int bench_generate_ended(void *context)
{
    (void)context;
    return 0;
}

static void run_direct(struct bench *b, uint32_t first, uint32_t n)
{
    static const struct device_link link = {.pull = bench_generate_pull,
                                            .wait_weights = bench_generate_wait_weights,
                                            .ended = bench_generate_ended};
    const struct plan_tokens row = {.first = first, .n = n};
    const struct device_run run = {.ids = b->ids, .rows = &row, .n_rows = 1, .logits = b->logits};
    struct error err = {""};

    bench_generate_check(device_worker_generate(&b->worker, &run, &link, b, &err), "worker", &err);
    if (first + n < SEQ)
        b->ids[first + n] = likeliest(b, b->logits);
}

static void time_direct(struct bench *b, uint32_t first)
{
    for (uint32_t i = 0; i < TOKENS; i++) {
        const double start = samples_now_ms();
        run_direct(b, first + i, 1);
        samples_add(&b->direct, start);
    }
}

/* The first token belongs to the prompt; after each later one, the other two run. */
static void bench_generate_on_token(void *user, uint32_t id, const char *text, size_t n)
{
    struct bench *b = user;

    (void)id, (void)text, (void)n;
    if (b->n_tokens++ > 0)
        samples_add(&b->processes, b->since_ms);
    if (b->n_tokens % TOKENS == 1 && b->n_tokens < SEQ - PROMPT) {
        bench_generate_read_all(b, &b->read);
        time_direct(b, PROMPT + b->n_tokens - 1);
        bench_generate_read_all(b, &b->read);
    }
    b->since_ms = samples_now_ms();
}

static FILE *bench_generate_create(const struct bench *b, const char *name)
{
    char path[96];

    snprintf(path, sizeof path, "%s/%s", b->directory, name);
    FILE *file = fopen(path, "w");
    struct error err;
    bench_generate_check(file ? 0 : error_set(&err, -errno, "it cannot be written"), path, &err);
    return file;
}

/* Writes config.json and random weights; the store keeps them. */
static void make_model(struct bench *b)
{
    const struct model_config *c = &b->model.config;
    struct error err = {""};

    snprintf(b->directory, sizeof b->directory, "/tmp/bench_generate.XXXXXX");
    bench_generate_check(mkdtemp(b->directory) ? 0 : error_set(&err, -errno, "it cannot be made"), b->directory, &err);
    FILE *config = bench_generate_create(b, "config.json"), *weights = bench_generate_create(b, "model.safetensors");
    fprintf(config,
            "{\"model_type\": \"gpt2\", \"n_layer\": %u, \"n_head\": %u, \"n_embd\": %u, \"n_positions\": %u, "
            "\"vocab_size\": %u}",
            c->n_layers, c->n_heads, c->width, c->n_positions, c->vocabulary);
    fclose(config);
    bench_generate_check(store_init(&b->store, &b->model, &(struct store_options){.train = false}, &b->host, &err),
                         "store", &err);
    store_draw(&b->store, 1);
    struct store_files files;
    bench_generate_check(store_files_init(&files, &b->store, &err), "files", &err);
    bench_generate_check(store_files_begin(&files, file_own(fileno(weights)), file_own(-1), NULL, &err), "files", &err);
    for (uint32_t unit = 0; unit < b->model.n_units; unit++)
        bench_generate_check(store_files_write(&files, unit, &err), "files", &err);
    bench_generate_check(store_files_end(&files, &err), "files", &err);
    store_files_free(&files);
    fclose(weights);
}

static void open_direct(struct bench *b)
{
    struct device_worker_options options = {.config = b->model.config,
                                            .ops = &device_cpu,
                                            .setting = {.backend = &plan_cpu,
                                                        .goal = {.purpose = PLAN_GENERATE, .seq = SEQ, .batch = 1},
                                                        .share_rows = 1,
                                                        .part_rows = 1,
                                                        .n_threads = (uint32_t)sysconf(_SC_NPROCESSORS_ONLN)}};
    const struct plan_wish wish = {0};
    struct plan plan;
    struct error err = {""};

    b->logits = calloc(b->model.config.vocabulary, sizeof *b->logits);
    bench_generate_check(b->logits ? 0 : error_memory(&err), "logits", &err);
    bench_generate_check(plan_search(&plan, &b->model, &options.setting, &wish, profile_default("cpu"), b->device_mem,
                                     &err),
                         "plan", &err);
    options.choice = plan.choice;
    bench_generate_check(device_worker_init(&b->worker, &options, &b->device, &err), "worker", &err);
}

static void make_buffer(struct bench *b)
{
    const size_t huge = 2 << 20, bytes = (b->model.segment_n * sizeof(float) + huge - 1) / huge * huge;
    struct error err = {""};

    b->buffer = aligned_alloc(huge, bytes);
    bench_generate_check(b->buffer ? 0 : error_memory(&err), "buffer", &err);
    madvise(b->buffer, bytes, MADV_HUGEPAGE);
    memset(b->buffer, 1, bytes);
}

static void bench_generate_generate(struct bench *b)
{
    const struct eps_prompt prompt = {.ids = b->ids, .n_ids = PROMPT};
    struct eps_generate_options options = eps_generate_defaults();
    const struct eps_generate_events events = {.on_token = bench_generate_on_token};
    struct eps_error error = {""};

    options.model = b->directory, options.device_mem = b->device_mem;
    options.prompts = &prompt, options.n_prompts = 1;
    options.n_tokens = SEQ - PROMPT;
    options.sampling.temperature = 0;
    if (eps_generate(&b->generated, &options, &events, b, &error)) {
        fprintf(stderr, "bench_generate: %s\n", error.text);
        exit(1);
    }
}

static void bench_generate_print(struct bench *b)
{
    const double all = (double)b->model.segment_n * 4, bytes = (double)b->generated.token_bytes;
    const double read = all / samples_median(&b->read), direct = bytes / samples_median(&b->direct);
    const double processes = bytes / samples_median(&b->processes); /* bytes per ms */
    const struct model_config *c = &b->model.config;

    printf("gpt2 %ux%u, vocabulary %u: a token visits %.1f MB of weights, %.1f MB of all %.1f on the device\n",
           c->n_layers, c->width, c->vocabulary, bytes * 1e-6, (double)b->generated.resident_bytes * 1e-6, all * 1e-6);
    printf("reading            %6.1f GB/s\n", read * 1e-6);
    printf("one process        %6.1f GB/s  %.2f of reading  %8.3f ms a token\n", direct * 1e-6, direct / read,
           bytes / direct);
    printf("eps_generate       %6.1f GB/s  %.2f of reading  %8.3f ms a token, %.1f tokens/s, positions %d to %d\n",
           processes * 1e-6, processes / read, bytes / processes, 1e3 * processes / bytes, PROMPT, SEQ);
    printf("a prompt of %d tokens, weights not on the device yet: %.0f ms\n", PROMPT, b->generated.prompt_ms);
}

int main(int argc, char **argv)
{
    static struct bench b = {.device_mem = (uint64_t)4 << 30};
    struct model_config config = {.family = &family_gpt2,
                                  .n_layers = 12,
                                  .n_heads = 12,
                                  .width = 768,
                                  .n_positions = 1024,
                                  .vocabulary = 50257,
                                  .activation = MODEL_GELU_NEW,
                                  .tied = true,
                                  GPT2_ON(scale_attention),
                                  .norm_epsilon = 1e-5f,
                                  .initializer_range = 0.02f};
    struct error err = {""};
    char command[96];

    process_bound_spinning(argv);
    log_name("bench_generate");
    if (argc > 4) {
        config.n_layers = (uint32_t)atoi(argv[1]), config.width = (uint32_t)atoi(argv[2]);
        config.n_heads = (uint32_t)atoi(argv[3]), config.vocabulary = (uint32_t)atoi(argv[4]);
    }
    if (argc > 5)
        bench_generate_check(process_parse_bytes(&b.device_mem, "DEVICE_MEM", argv[5], &err), argv[5], &err);
    config.inner_width = 4 * config.width;
    bench_generate_check(model_init(&b.model, &config, &err), "model", &err);
    make_model(&b);
    open_direct(&b);
    make_buffer(&b);
    for (uint32_t i = 0; i < PROMPT; i++)
        b.ids[i] = i % config.vocabulary;
    run_direct(&b, 0, PROMPT);
    bench_generate_generate(&b);
    bench_generate_print(&b);
    device_worker_free(&b.worker);
    store_free(&b.store);
    free(b.buffer);
    free(b.logits);
    model_free(&b.model);
    snprintf(command, sizeof command, "rm -rf %s", b.directory);
    return system(command) != 0;
}
