/* Daemon and workers as processes of their own against the same code in one process (tests/kit/inprocess/inprocess.h),
 * and several workers against one: DESIGN's exactness table, the rows that need no outside reference. The model has
 * dropout, so masks must agree too. */
#include "client/eps.h"
#include "proto/model/file/safetensors.h"
#include "tests/kit/command.h"
#include "tests/kit/inprocess/inprocess.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

SUITE_LABELS(slow)

enum { BATCH = 12, SEQ = 19, STEPS = 4 };

static const char config_text[] = "{\"model_type\": \"gpt2\", \"n_layer\": 3, \"n_head\": 3, \"n_embd\": 48, "
                                  "\"n_positions\": 32, \"vocab_size\": 256,"
                                  " \"attn_pdrop\": 0.1, \"embd_pdrop\": 0.1, \"resid_pdrop\": 0.1}";

/* How a run is cut up; none of it may change a bit of the result, but parts and the optimizer. */
struct cut {
    uint32_t n_parts, n_workers, microbatch;
    bool adamw, fenced;
    double clip_norm; /* 0: not */
    bool narrow;      /* bf16 and 16-bit moments */
    bool sgd, nesterov;
    double momentum;
};

static void setup(void)
{
    processes_setup();
    processes_write("config.json", config_text, strlen(config_text));
    processes_text("data.txt", BATCH * SEQ * (STEPS + 1));
}

SUITE_TIMEOUT(120)
SUITE_FIXTURE_ONCE(setup, processes_remove)

/* Trains in this process, by one worker; returns the harness, whose store holds the result. */
static struct inprocess *train_here(const struct cut *cut)
{
    const struct hyper hyper = {
        .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8, .weight_decay = 0.01, .grad_scale = 1};
    struct inprocess_options options = {.batch = BATCH,
                                        .seq = SEQ,
                                        .n_parts = cut->n_parts,
                                        .microbatch = cut->microbatch,
                                        .precision = cut->narrow ? NUMBER_BF16 : NUMBER_FP32,
                                        .moments = cut->narrow ? NUMBER_BF16 : NUMBER_FP32,
                                        .adamw = cut->adamw,
                                        .sgd = cut->sgd,
                                        .nesterov = cut->nesterov,
                                        .momentum = cut->momentum,
                                        .fenced = cut->fenced,
                                        .clip_norm = cut->clip_norm,
                                        .seed = 5};
    uint32_t ids[BATCH * SEQ], labels[BATCH * SEQ];
    struct inprocess *ip;
    struct error err = {""};
    double loss;

    ck_assert_int_eq(model_config_parse(&options.config, config_text, strlen(config_text), &err), 0);
    ck_assert_msg(inprocess_open(&ip, &options, &err) == 0, "%s", err.text);
    for (size_t step = 0; step < STEPS; step++) {
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
    static const char *const files[] = {"data.txt"};
    struct eps_train_options options = processes_options("config.json", files, name);
    struct eps_error error = {""};

    options.steps = STEPS, options.batch = BATCH, options.seq = SEQ, options.microbatch = cut->microbatch;
    options.parts = cut->n_parts, options.workers = cut->n_workers, options.deterministic = cut->n_workers > 1;
    options.lr = options.min_lr = 1e-3, options.schedule = EPS_SCHEDULE_CONSTANT, options.warmup = 0;
    options.optimizer = cut->sgd ? EPS_SGD : cut->adamw ? EPS_ADAMW : EPS_ADAMA;
    options.nesterov = cut->nesterov, options.momentum = cut->sgd ? cut->momentum : NAN, options.weight_decay = 0.01;
    options.precision = cut->narrow ? EPS_BF16 : EPS_FP32;
    options.moments = cut->narrow ? EPS_MOMENTS_BF16 : EPS_MOMENTS_FP32;
    options.grad_dtype = EPS_FP32; /* as in this process */
    options.commit = cut->fenced ? EPS_FENCED : EPS_EAGER;
    options.clip_norm = cut->clip_norm > 0 ? cut->clip_norm : NAN;
    ck_assert_msg(eps_train(&options, NULL, NULL, &error) == 0, "%s", error.text);
}

/* The tensors of its checkpoint are the harness's. */
static void check_same(const char *name, const struct inprocess *ip)
{
    struct safetensors file;
    struct error err = {""};
    const int fd = open(print("%s/latest/model.safetensors", name), O_RDONLY);

    ck_assert_msg(safetensors_open(&file, fd, &err) == 0, "%s", err.text);
    ck_assert_uint_eq(file.n_entries, ip->model.n_tensors);
    float *masters = calloc(ip->model.segment_n, sizeof *masters);
    inprocess_masters(ip, masters);
    for (uint32_t t = 0; t < ip->model.n_tensors; t++) {
        const struct safetensors_entry *entry = safetensors_find(&file, ip->model.tensors[t].name);
        const uint64_t n = ip->model.tensors[t].n;
        float *a = malloc(n * sizeof *a), *b = malloc(n * sizeof *b);
        ck_assert_ptr_nonnull(entry);
        ck_assert_int_eq(safetensors_read(a, entry, 0, n, NULL), 0);
        inprocess_get(ip, b, masters, t);
        ck_assert_msg(memcmp(a, b, n * sizeof *a) == 0, "%s", ip->model.tensors[t].name);
        free(a), free(b);
    }
    free(masters);
    safetensors_close(&file);
    close(fd);
}

static const struct cut cuts[] = {
    {.n_parts = 1, .n_workers = 1, .microbatch = 4},
    {.n_parts = 4, .n_workers = 1, .microbatch = 2},
    {.n_parts = 4, .n_workers = 1, .microbatch = 3, .adamw = true},
    {.n_parts = 4, .n_workers = 1, .microbatch = 2, .narrow = true},
    {.n_parts = 4, .n_workers = 2, .microbatch = 3, .adamw = true, .fenced = true, .clip_norm = 0.05},
    {.n_parts = 6, .n_workers = 3, .microbatch = 1},
    {.n_parts = 6, .n_workers = 2, .microbatch = 1, .adamw = true},
    {.n_parts = 4, .n_workers = 1, .microbatch = 2, .sgd = true, .momentum = 0.9, .narrow = true},
    {.n_parts = 4, .n_workers = 2, .microbatch = 3, .sgd = true, .momentum = 0.8, .nesterov = true},
    {.n_parts = 6, .n_workers = 2, .microbatch = 1, .sgd = true},
};

/* Several workers with --deterministic. */
TEST_EACH(processes_equal_one_process_bit_for_bit, COUNT(cuts))
{
    struct inprocess *here = train_here(&cuts[_i]);

    ck_assert(cuts[_i].clip_norm == 0 || here->norm > 2 * cuts[_i].clip_norm); /* it does clip */
    train_there(print("run-%d", _i), &cuts[_i]);
    check_same(print("run-%d", _i), here);
    inprocess_close(here);
}
