/* A version of the model on its way to disk while the next step runs: folds into what is not written yet wait, so the
 * files hold exactly that version. In one process, where the writer can be as slow as it likes. */
#include "tests/kit/command.h"
#include "tests/kit/inprocess/inprocess.h"
#include "tests/kit/inprocess/model.h"
#include "tests/kit/outputs.h"
#include "tests/kit/processes.h"
#include "tests/kit/inprocess/store_fixture.h"
#include "tests/kit/test.h"

#include "eps/save/capture.h"
#include "proto/model/output.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const struct loss_scale no_scale = {0};

enum { BATCH = 4, SEQ = 12, READER = 3, MAX_UNITS = 16, CUT = 3, END = 6 };

static const char config[] = "{}"; /* what stands in config.json is nobody's business here */

/* How a run is made: both optimizers, one part and several, one worker and two. */
static const struct {
    bool adamw;
    uint32_t n_parts, n_workers;
} ways[] = {{false, 1, 1}, {false, 4, 1}, {true, 1, 1}, {true, 4, 1}, {false, 4, 2}, {true, 4, 2}};

struct run {
    struct inprocess *ip;
    uint32_t captured[MAX_UNITS], n_captured; /* under ip's lock */
    uint64_t version;
};

static void on_capture(void *data, uint32_t reader, uint32_t unit, uint64_t step)
{
    struct run *run = data;

    ck_assert_uint_eq(reader, READER);
    ck_assert_uint_lt(run->n_captured, MAX_UNITS);
    run->captured[run->n_captured++] = unit;
    run->version = step;
}

static void begin(struct run *run, int way, uint64_t first_step)
{
    struct inprocess_options options = {.config = GPT2_CONFIG(3, 2, 16, 64, 16, 64, .tied = true),
                                        .batch = BATCH,
                                        .seq = SEQ,
                                        .n_parts = ways[way].n_parts,
                                        .microbatch = 1,
                                        .n_workers = ways[way].n_workers,
                                        .adamw = ways[way].adamw,
                                        .deterministic = true,
                                        .seed = 9,
                                        .first_step = first_step};
    struct error err = {""};

    *gpt2_edit(&options.config) = (struct gpt2_config){.scale_attention = true,
                                                       .dropout_attention = 0.1f,
                                                       .dropout_embedding = 0.1f,
                                                       .dropout_residual = 0.1f};
    *run = (struct run){0};
    ck_assert_msg(inprocess_open(&run->ip, &options, &err) == 0, "%s", err.text);
    ck_assert_uint_le(run->ip->model.n_units, MAX_UNITS);
    run->ip->on_capture = on_capture;
    run->ip->capture_data = run;
}

static void *take_step(void *data)
{
    struct inprocess *ip = ((struct run *)data)->ip;
    const struct hyper hyper = {.lr = 0.01, .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8, .weight_decay = 0.01};
    uint32_t ids[BATCH * SEQ], labels[BATCH * SEQ];
    struct error err = {""};
    double loss;

    for (uint32_t i = 0; i < BATCH * SEQ; i++) {
        ids[i] = processes_token(ip->n_opened * BATCH * SEQ + i) % 64;
        labels[i] = processes_token(ip->n_opened * BATCH * SEQ + i + 1) % 64;
    }
    ck_assert_msg(inprocess_step(ip, ids, labels, BATCH * SEQ, &hyper, &loss, &err) == 0, "%s", err.text);
    return NULL;
}

static void train(struct run *run, uint64_t n_steps)
{
    while (run->ip->n_done < n_steps)
        take_step(run);
}

static struct capture_options capture_options(const struct run *run, int output, uint64_t step)
{
    return (struct capture_options){.store = &run->ip->store,
                                    .step = step,
                                    .config = config,
                                    .config_bytes = sizeof config - 1,
                                    .checkpoint = true,
                                    .output = output};
}

static int open_output(const char *name)
{
    if (access(name, F_OK) != 0)
        outputs_make(name);
    int fd = open(name, O_RDONLY | O_DIRECTORY);
    ck_assert_int_ge(fd, 0);
    return fd;
}

/* All units of a run that stands still. */
static int write_whole(struct capture *capture, const struct run *run, const struct capture_options *options,
                       struct error *err)
{
    ck_assert_msg(capture_open(capture, options, err) == 0, "%s", err->text);
    for (uint32_t u = 0; u < run->ip->model.n_units; u++)
        ck_assert_msg(capture_write(capture, u, err) == 0, "%s", err->text);
    return capture_finish(capture, &no_scale, err);
}

static void save(const struct run *run, const char *out)
{
    const int output = open_output(out);
    const struct capture_options options = capture_options(run, output, run->ip->n_done);
    struct capture capture;
    struct error err = {""};

    ck_assert_msg(write_whole(&capture, run, &options, &err) == 0, "%s", err.text);
    close(output);
}

static bool workers_wait(void *data)
{
    struct run *run = data;
    bool wait = true;

    pthread_mutex_lock(&run->ip->mutex);
    for (uint32_t i = 0; i < run->ip->options.n_workers; i++) {
        uint32_t n_used = 0;
        for (uint32_t k = 1; k <= run->ip->n_slots; k++)
            n_used += run->ip->workers[i].slot_used[k];
        wait = wait && n_used == run->ip->n_slots;
    }
    pthread_mutex_unlock(&run->ip->mutex);
    return wait;
}

SUITE_TIMEOUT(60)
SUITE_FIXTURE(processes_setup, processes_remove)

static int open_file(const char *path)
{
    int fd = open(path, O_RDONLY);

    ck_assert_msg(fd >= 0, "%s: %s", path, strerror(errno));
    return fd;
}

/* The next step runs while units are written: first until it can go no further, for the unit that backward begins with
 * is the last to be released; then unit by unit. */
static void write_while_it_steps(struct run *run, const char *out)
{
    struct capture capture;
    struct error err = {""};
    pthread_t stepping;
    int output = open_output(out);

    inprocess_read(run->ip, READER);
    ck_assert_uint_eq(run->n_captured, run->ip->model.n_units); /* it rests: all are there */
    ck_assert_uint_eq(run->version, CUT);
    ck_assert_int_eq(pthread_create(&stepping, NULL, take_step, run), 0);
    ck_assert(processes_until(workers_wait, run)); /* the inbox is full of what must not be folded */
    const struct capture_options options = capture_options(run, output, CUT);
    ck_assert_msg(capture_open(&capture, &options, &err) == 0, "%s", err.text);
    for (uint32_t u = run->ip->model.n_units; u-- > 0;) { /* the tied unit, 0, is wanted first */
        ck_assert_msg(capture_write(&capture, u, &err) == 0, "%s", err.text);
        pthread_mutex_lock(&run->ip->mutex);
        ck_assert_uint_eq(run->ip->n_done, CUT);
        pthread_mutex_unlock(&run->ip->mutex);
        inprocess_release(run->ip, READER, u);
    }
    pthread_join(stepping, NULL);
    ck_assert_msg(capture_finish(&capture, &no_scale, &err) == 0, "%s", err.text);
    close(output);
}

/* A run of two workers goes on with one: contributions are folded in one order. */
TEST_EACH(a_version_written_during_a_step_is_what_a_still_run_saves_and_resumes_bit_for_bit, COUNT(ways))
{
    const int other = ways[_i].n_workers == 2 ? _i - (ways[_i].adamw ? 2 : 3) : _i;
    struct run run;
    struct error err = {""};

    begin(&run, _i, 0);
    train(&run, CUT);
    write_while_it_steps(&run, "moving");
    train(&run, END);
    save(&run, "moving");
    inprocess_close(run.ip);
    outputs_check_whole("moving", END);

    begin(&run, _i, 0);
    train(&run, CUT);
    save(&run, "still");
    train(&run, END);
    save(&run, "still");
    inprocess_close(run.ip);
    outputs_check_same_state("moving/step-3", "still/step-3");
    outputs_check_same_state("moving/step-6", "still/step-6"); /* being read changes nothing */

    begin(&run, other, CUT);
    int weights = open_file("moving/step-3/model.safetensors"),
        moments = open_file("moving/step-3/optimizer.safetensors");
    ck_assert_msg(store_fixture_load(&run.ip->store, &(struct file){.fd = weights}, 1, &err) == 0, "%s", err.text);
    ck_assert_msg(store_fixture_load_moments(&run.ip->store, &(struct file){.fd = moments}, &err) == 0, "%s", err.text);
    close(weights), close(moments);
    train(&run, END);
    save(&run, "resumed");
    inprocess_close(run.ip);
    outputs_check_same_state("moving/step-6", "resumed/step-6");
}

/* Whole, as if it had been written there, once its files lie in a directory. With one too few it is none. */
TEST(files_that_came_open_hold_what_a_directory_would)
{
    static const char *const names[] = {CHECKPOINT_WEIGHTS, CHECKPOINT_MOMENTS, CHECKPOINT_CONFIG, "a.txt",
                                        "tokenizer.model",  CHECKPOINT_TRAINING};
    static const char side[] =
        "{\"options\": {\"x\": 1}, \"files\": {\"a.txt\": \"words\", \"tokenizer.model\": \"AP8K\"}}";
    struct run run;
    struct capture capture;
    struct error err = {""};
    int output = open_output("there");

    begin(&run, 0, 0);
    train(&run, CUT);
    struct capture_options options = capture_options(&run, output, CUT);
    options.side = side;
    options.side_bytes = sizeof side - 1;
    options.microbatch = 2;
    outputs_make("here");
    outputs_make("here/step-3");
    ck_assert_msg(write_whole(&capture, &run, &options, &err) == 0, "%s", err.text);
    options.output = -1;
    for (unsigned i = 0; i < COUNT(names); i++) {
        char path[100];
        snprintf(path, sizeof path, "here/step-3/%s", names[i]);
        options.files[options.n_files++] = file_own(open(path, O_RDWR | O_CREAT | O_EXCL, 0666));
        ck_assert_int_eq(pwrite(options.files[i].fd, "more", 4, 1 << 20), 4); /* than there will be */
    }
    ck_assert_msg(write_whole(&capture, &run, &options, &err) == 0, "%s", err.text);
    ck_assert_int_eq(symlink("step-3", "here/latest"), 0);
    outputs_check_whole("here", CUT);
    for (unsigned i = 0; i < COUNT(names); i++)
        outputs_check_same("here/step-3", "there/step-3", names[i]);
    outputs_check_file("here/step-3/a.txt", "words");
    expect("printf '\\0\\377\\n' | cmp - here/step-3/tokenizer.model", 0);
    options.n_files--;
    ck_assert_int_eq(write_whole(&capture, &run, &options, &err), -EINVAL);
    ck_assert_str_eq(err.text, "training.json: no open file came for it");
    capture_discard(&capture);
    ck_assert_int_eq(fcntl(options.files[0].fd, F_GETFD), 0); /* they are whoever's they were */
    for (unsigned i = 0; i < COUNT(names); i++)
        close(options.files[i].fd);
    close(output);
    inprocess_close(run.ip);
}
