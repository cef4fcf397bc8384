/* Daemon and workers as processes of their own against the same code in one process (tests/kit/inprocess.h), and several
 * workers against one: DESIGN's exactness table, the rows that need no outside reference. The model has dropout, so
 * masks must agree too. */
#include "client/eps.h"
#include "proto/model/safetensors.h"
#include "tests/kit/inprocess.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

SUITE_LABELS(slow)

enum { BATCH = 12, SEQ = 19, STEPS = 4 };

#define CLIP_NORM 0.05

static const char config_text[] = "{\"model_type\": \"gpt2\", \"n_layer\": 3, \"n_head\": 3, \"n_embd\": 48, "
                                  "\"n_positions\": 32, \"vocab_size\": 256,"
                                  " \"attn_pdrop\": 0.1, \"embd_pdrop\": 0.1, \"resid_pdrop\": 0.1}";

/* How a run is cut up; none of it may change a bit of the result, but parts and the optimizer. */
struct cut {
    uint32_t n_parts, n_workers, microbatch, n_weight_buffers;
    bool adamw, deterministic, fenced;
    double clip_norm; /* 0: not */
    bool narrow;      /* bf16 and 16-bit moments */
    uint64_t budget;
    uint32_t n_steps; /* 0: STEPS */
};

static void setup(void)
{
    processes_setup();
    processes_write("config.json", config_text, strlen(config_text));
    processes_text("data.txt", BATCH * SEQ * (STEPS + 1));
}

SUITE_TIMEOUT(120)
SUITE_FIXTURE_ONCE(setup, processes_remove)

/* Trains in this process; returns the harness, whose store holds the result. */
static struct inprocess *train_here(const struct cut *cut)
{
    const struct hyper hyper = {
        .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8, .weight_decay = 0.01, .grad_scale = 1};
    struct inprocess_options options = {.batch = BATCH,
                                        .seq = SEQ,
                                        .n_parts = cut->n_parts,
                                        .microbatch = cut->microbatch,
                                        .n_workers = cut->n_workers,
                                        .n_weight_buffers = cut->n_weight_buffers,
                                        .budget = cut->budget,
                                        .precision = cut->narrow ? NUMBER_BF16 : NUMBER_FP32,
                                        .moments = cut->narrow ? NUMBER_BF16 : NUMBER_FP32,
                                        .adamw = cut->adamw,
                                        .deterministic = cut->deterministic,
                                        .fenced = cut->fenced,
                                        .clip_norm = cut->clip_norm,
                                        .seed = 5};
    uint32_t ids[BATCH * SEQ], labels[BATCH * SEQ];
    struct inprocess *ip;
    struct error err = {""};

    ck_assert_int_eq(model_config_parse(&options.config, config_text, strlen(config_text), &err), 0);
    ck_assert_msg(inprocess_open(&ip, &options, &err) == 0, "%s", err.text);
    for (size_t step = 0; step < (cut->n_steps ? cut->n_steps : STEPS); step++) {
        double loss;
        for (size_t i = 0; i < BATCH * SEQ; i++) {
            ids[i] = processes_token(step * BATCH * SEQ + i);
            labels[i] = processes_token(step * BATCH * SEQ + i + 1);
        }
        ck_assert_msg(inprocess_step(ip, ids, labels, BATCH * SEQ, &hyper, &loss, &err) == 0, "%s", err.text);
        ck_assert(isfinite(loss));
    }
    return ip;
}

/* Trains with processes; the run directory is `name`. */
static void train_there(const char *name, const struct cut *cut)
{
    const char *files[] = {processes_path("data.txt")};
    struct eps_train_options options = processes_options(processes_path("config.json"), files, processes_path(name));
    struct eps_error error = {""};

    options.steps = cut->n_steps ? cut->n_steps : STEPS;
    options.batch = BATCH;
    options.seq = SEQ;
    options.microbatch = cut->microbatch;
    options.parts = cut->n_parts;
    options.workers = cut->n_workers;
    options.lr = options.min_lr = 1e-3;
    options.schedule = EPS_SCHEDULE_CONSTANT;
    options.warmup = 0;
    options.optimizer = cut->adamw ? EPS_ADAMW : EPS_ADAMA;
    options.deterministic = cut->deterministic;
    options.precision = options.moments = cut->narrow ? EPS_BF16 : EPS_FP32;
    options.commit = cut->fenced ? EPS_FENCED : EPS_EAGER;
    options.clip_norm = cut->clip_norm > 0 ? cut->clip_norm : NAN;
    options.device_mem = cut->budget;
    ck_assert_msg(eps_train(&options, NULL, NULL, &error) == 0, "%s", error.text);
}

/* Largest over all tensors of |a - b| / |b|, in norms; b is the harness's store. */
static double distance_to_file(const char *name, const struct inprocess *ip)
{
    char path[340];
    struct safetensors file;
    struct error err = {""};
    double worst = 0;

    snprintf(path, sizeof path, "%s/latest/model.safetensors", processes_path(name));
    int fd = open(path, O_RDONLY);
    ck_assert_msg(fd >= 0, "%s is missing", path);
    ck_assert_msg(safetensors_open(&file, fd, &err) == 0, "%s", err.text);
    ck_assert_uint_eq(file.n_entries, ip->model.n_tensors);
    float *masters = calloc(ip->model.segment_n, sizeof *masters);
    inprocess_masters(ip, masters);
    for (uint32_t t = 0; t < ip->model.n_tensors; t++) {
        const struct safetensors_entry *entry = safetensors_find(&file, ip->model.tensors[t].name);
        const uint64_t n = ip->model.tensors[t].n;
        float *a = malloc(n * sizeof *a), *b = malloc(n * sizeof *b);
        double difference = 0, norm = 0;
        ck_assert_ptr_nonnull(entry);
        ck_assert_int_eq(safetensors_read(a, entry, 0, n, NULL), 0);
        inprocess_get(ip, b, masters, t);
        for (uint64_t i = 0; i < n; i++) {
            difference += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
            norm += (double)b[i] * b[i];
        }
        worst = fmax(worst, sqrt(difference / norm));
        free(a);
        free(b);
    }
    free(masters);
    safetensors_close(&file);
    close(fd);
    return worst;
}

static bool equal_bits(const struct inprocess *a, const struct inprocess *b)
{
    const size_t bytes = a->model.segment_n * sizeof(float);

    return memcmp(a->store.weights.base, b->store.weights.base, bytes) == 0 &&
           memcmp(a->store.m, b->store.m, bytes) == 0 && memcmp(a->store.v, b->store.v, bytes) == 0;
}

TEST_EACH(processes_equal_one_process_bit_for_bit, 8)
{
    static const struct cut cuts[] = {
        {.n_parts = 1, .n_workers = 1, .microbatch = 4},
        {.n_parts = 4, .n_workers = 1, .microbatch = 2},
        {.n_parts = 4, .n_workers = 1, .microbatch = 3, .adamw = true},
        {.n_parts = 1, .n_workers = 1, .microbatch = 4, .fenced = true},
        {.n_parts = 1, .n_workers = 1, .microbatch = 4, .fenced = true, .clip_norm = CLIP_NORM},
        {.n_parts = 4,
         .n_workers = 2,
         .microbatch = 3,
         .adamw = true,
         .deterministic = true,
         .fenced = true,
         .clip_norm = CLIP_NORM},
        {.n_parts = 1, .n_workers = 1, .microbatch = 4, .narrow = true},
        {.n_parts = 4, .n_workers = 1, .microbatch = 2, .narrow = true},
    };
    struct inprocess *here = train_here(&cuts[_i]);
    char name[32];

    ck_assert(cuts[_i].clip_norm == 0 || here->norm > 2 * CLIP_NORM); /* it does clip */
    snprintf(name, sizeof name, "one-%d", _i);
    train_there(name, &cuts[_i]);
    ck_assert_double_eq(distance_to_file(name, here), 0);
    inprocess_close(here);
}

TEST_EACH(deterministic_workers_equal_one_bit_for_bit, 4)
{
    static const uint32_t n_workers[] = {2, 3};
    const bool adamw = _i % 2;
    const struct cut one = {.n_parts = 6, .n_workers = 1, .microbatch = 1, .adamw = adamw, .deterministic = true};
    struct cut several = one;
    char name[32];

    several.n_workers = n_workers[_i / 2];
    struct inprocess *here = train_here(&one), *threads = train_here(&several);
    ck_assert(equal_bits(threads, here));
    snprintf(name, sizeof name, "deterministic-%d", _i);
    train_there(name, &several);
    ck_assert_double_eq(distance_to_file(name, here), 0);
    inprocess_close(here);
    inprocess_close(threads);
}
