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

static double distance_here(const struct inprocess *a, const struct inprocess *b)
{
    const float *x = a->store.weights.base, *y = b->store.weights.base;
    double worst = 0;

    for (uint32_t u = 0; u < a->model.n_units; u++) {
        double difference = 0, norm = 0;
        for (uint64_t i = a->model.units[u].offset; i < a->model.units[u].offset + a->model.units[u].n; i++) {
            difference += ((double)x[i] - y[i]) * ((double)x[i] - y[i]);
            norm += (double)y[i] * y[i];
        }
        worst = fmax(worst, sqrt(difference / norm));
    }
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

/* The optimizer differs between one part and four, and between AdamA and AdamW of four: otherwise the test above could
 * not fail. */
TEST(parts_change_the_result_of_adama_alone)
{
    const struct cut one = {.n_parts = 1, .n_workers = 1, .microbatch = 3},
                     four = {.n_parts = 4, .n_workers = 1, .microbatch = 3},
                     adamw = {.n_parts = 4, .n_workers = 1, .microbatch = 3, .adamw = true};
    struct inprocess *a = train_here(&one), *b = train_here(&four), *c = train_here(&adamw);

    ck_assert_double_gt(distance_here(b, a), 1e-4);
    ck_assert_double_lt(distance_here(c, a),
                        1e-4); /* other sums' order, the same mathematics; Adam's first steps amplify rounding */
    inprocess_close(a);
    inprocess_close(b);
    inprocess_close(c);
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

/* Without --deterministic, parts are folded as they come: sums in another order, so 1e-6 after a step. */
TEST_RANGE(plain_workers_stay_near_one, 2, 4)
{
    const struct cut one = {.n_parts = 6, .n_workers = 1, .microbatch = 1, .n_steps = 1};
    struct cut several = one;
    char name[32];

    several.n_workers = (uint32_t)_i;
    struct inprocess *here = train_here(&one);
    snprintf(name, sizeof name, "plain-%d", _i);
    train_there(name, &several);
    ck_assert_double_lt(distance_to_file(name, here), 1e-6);
    inprocess_close(here);
}

TEST(weight_buffers_and_budget_change_no_bit)
{
    const struct cut roomy = {.n_parts = 2, .n_workers = 1, .microbatch = 2, .n_weight_buffers = 2};
    struct inprocess *reference = train_here(&roomy);
    struct cut other = roomy;

    for (uint32_t n = 1; n <= 3; n += 2) {
        other.n_weight_buffers = n;
        struct inprocess *ip = train_here(&other);
        ck_assert(equal_bits(ip, reference));
        inprocess_close(ip);
    }
    other = roomy;
    other.budget = reference->workers[0].ledger.total.peak; /* as little as there can be: the plan is exact */
    struct inprocess *tight = train_here(&other);
    ck_assert(equal_bits(tight, reference));
    inprocess_close(tight);
    inprocess_close(reference);
}
