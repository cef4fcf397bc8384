/* Workers that attach and leave while a run goes on, more and fewer than it began with: the run ends with the bits of
 * one worker's run. Real processes and signals. */
#include "proto/plan/search.h"
#include "tests/kit/command.h"
#include "tests/kit/driver.h"
#include "tests/kit/outputs.h"
#include "tests/kit/processes.h"
#include "tests/kit/puppet.h"
#include "tests/kit/test.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

SUITE_LABELS(slow)

static const char *const files[] = {"text.txt"};

static void setup(void)
{
    processes_setup();
    processes_config_with("model.json", 2, 4, 64, 32, "\"attn_pdrop\": 0.1, \"resid_pdrop\": 0.1");
    processes_text("text.txt", 10000);
}

enum {
    STEPS = 24,
    BEFORE = 3,
    PARTS = 3,
    MAX_WORKERS = 4,
    PATIENCE = 80 /* of 10 ms: who is awaited may join at the next step */
};

static struct eps_train_options run_of(const char *out)
{
    struct eps_train_options options = processes_options("model.json", files, out);

    options.steps = STEPS, options.batch = 12, options.seq = 32, options.parts = PARTS, options.microbatch = 1;
    options.deterministic = true;
    return options;
}

/* The run that one worker makes undisturbed, once for all tests, in a directory of its own. */
static char reference[96], alone[128];

static void make_reference(void)
{
    setup();
    snprintf(reference, sizeof reference, "%s", processes_directory());
    snprintf(alone, sizeof alone, "%s/alone", reference);
    const struct eps_train_options options = run_of(alone);
    processes_train(&options);
}

static void remove_reference(void)
{
    ck_assert_int_eq(chdir("/") | system(print("rm -r %s", reference)), 0);
}

SUITE_TIMEOUT(120)
SUITE_FIXTURE(setup, processes_remove)
SUITE_FIXTURE_ONCE(make_reference, remove_reference)

/* A daemon "lab" whose log is the file "log", its workers, and what is done to them from step BEFORE on, on a
 * thread. */
struct lab {
    pid_t daemon, workers[MAX_WORKERS];
    unsigned n_workers;
    void (*act)(struct lab *lab);
    pthread_t thread;
    bool acting;
    atomic_bool acted;
    char notes[2000];
    unsigned n_at_work; /* workers that had pulled weights before the last step */
};

static pid_t attach_with(struct lab *lab, const char *device_mem)
{
    return lab->workers[lab->n_workers++] = processes_worker("lab", device_mem, NULL);
}

static pid_t attach(struct lab *lab)
{
    return attach_with(lab, "256MiB");
}

static void begin(struct lab *lab, unsigned n_workers)
{
    static const char *const daemon[] = {"--listen", "lab", NULL};

    processes_await_free("lab");
    lab->daemon = processes_start("epsd", daemon, "log");
    processes_await_workers("lab", 0);
    for (unsigned i = 0; i < n_workers; i++) {
        attach(lab);
        processes_await_workers("lab", i + 1); /* in this order */
    }
}

struct search {
    pid_t pid;
    uint32_t id;
};

static void compare_pid(void *user, const struct eps_worker *worker)
{
    struct search *search = user;

    if ((pid_t)worker->pid == search->pid)
        search->id = worker->id;
}

/* The daemon's number of a worker. */
static uint32_t id_of(const struct lab *lab, unsigned i)
{
    struct search search = {.pid = lab->workers[i]};
    struct eps_error error;
    struct eps_observer *look;

    ck_assert_int_eq(eps_observer_open(&look, "lab", NULL, NULL, &error), 0);
    ck_assert_int_eq(eps_observer_workers(look, compare_pid, &search, &error), 0);
    eps_observer_close(look);
    ck_assert_uint_gt(search.id, 0);
    return search.id;
}

static void await_joins(unsigned n)
{
    processes_await_count("log", " joins after ", n);
}

static void end(struct lab *lab)
{
    expect_stop(lab->daemon);
    processes_await_nobody();
}

static void count_at_work(void *user, const struct eps_worker *worker)
{
    *(unsigned *)user += worker->down_bytes > 0;
}

static void *act(void *user)
{
    struct lab *lab = user;

    lab->act(lab);
    atomic_store(&lab->acted, true);
    return NULL;
}

/* Steps go on slowly until it is done. */
static void await_act(struct lab *lab, const struct eps_step *step)
{
    if (step->step == BEFORE && lab->act) {
        ck_assert_int_eq(pthread_create(&lab->thread, NULL, act, lab), 0);
        lab->acting = true;
    }
    for (int i = 0; lab->acting && !atomic_load(&lab->acted) && (i < PATIENCE || step->step == STEPS - 2); i++)
        poll(NULL, 0, 10);
    if (lab->acting && atomic_load(&lab->acted)) {
        pthread_join(lab->thread, NULL);
        lab->acting = false;
    }
}

static void on_step(void *user, const struct eps_step *step)
{
    struct lab *lab = user;

    await_act(lab, step);
    if (step->step == STEPS - 1) {
        struct eps_error error;
        struct eps_observer *look;
        ck_assert_int_eq(eps_observer_open(&look, "lab", NULL, NULL, &error), 0);
        ck_assert_int_eq(eps_observer_workers(look, count_at_work, &lab->n_at_work, &error), 0);
        eps_observer_close(look);
    }
}

static void on_note(void *user, const char *sentence)
{
    struct lab *lab = user;
    const size_t n = strlen(lab->notes);

    snprintf(lab->notes + n, sizeof lab->notes - n, "%s\n", sentence);
}

static void train(struct lab *lab)
{
    const struct eps_train_events events = {.on_step = on_step, .on_note = on_note};
    struct eps_train_options options = run_of("tried");
    struct eps_error error = {""};

    options.connect = "lab", options.device_mem = 0;
    ck_assert_msg(eps_train(&options, &events, lab, &error) == 0, "%s", error.text);
}

static void same_run(void)
{
    outputs_check_same_metrics(alone, "tried", STEPS);
    outputs_check_same_latest(alone, "tried");
}

static void attach_three(struct lab *lab)
{
    for (unsigned i = 0; i < 3; i++)
        attach(lab);
    await_joins(2);
    expect("eps status lab", 0, ", 4 workers (1 idle), pid ");
    json_t *status = expect_json("eps status lab --json", 0);
    ck_assert_double_eq(json_number_at(status, "idle_workers"), 1);
    json_decref(status);
}

/* Of one worker's run with three parts, two of three that attach get one; the third stays idle. */
TEST(workers_that_attach_join_up_to_the_number_of_parts)
{
    struct lab lab = {.act = attach_three};

    begin(&lab, 1);
    train(&lab);
    ck_assert_uint_eq(processes_count("log", " joins after "), 2);
    ck_assert_uint_eq(lab.n_at_work, 3);
    ck_assert_ptr_null(strstr(lab.notes, " lost "));
    end(&lab);
    same_run();
}

static void kill_first(struct lab *lab)
{
    kill(lab->workers[0], SIGKILL);
    await_joins(1);
}

/* Each had memory for its own parts alone. */
TEST(a_survivor_is_planned_anew_for_the_parts_of_a_lost_worker)
{
    struct lab lab = {.act = kill_first};

    begin(&lab, 2);
    const uint32_t survivor = id_of(&lab, 1);
    train(&lab);
    ck_assert_holds(lab.notes, " (cpu) was lost after ", "; the others redo its parts of the step");
    ck_assert_uint_eq(processes_count("log", print("worker %u is planned anew, for 3 parts", survivor)), 1);
    end(&lab);
    same_run();
}

enum { MANY_PARTS = 12 };

/* The fewest bytes with which a worker of two can do n of the parts, of a row each. */
static uint64_t bytes_of(uint32_t n)
{
    const long n_cores = sysconf(_SC_NPROCESSORS_ONLN);
    const struct plan_setting setting = {.backend = plan_backend_find("cpu"),
                                         .share_rows = n,
                                         .part_rows = 1,
                                         .goal.seq = 32,
                                         .n_threads = n_cores > 2 ? (uint32_t)n_cores / 2 : 1};
    const struct plan_wish wish = {.microbatch = 1};
    struct model_config config;
    struct model model;
    struct plan plan;
    struct error err = {""};
    char *text = processes_read(processes_path("model.json"));

    ck_assert_int_eq(model_config_parse(&config, text, strlen(text), &err), 0);
    ck_assert_int_eq(model_init(&model, &config, &err), 0);
    plan_smallest(&plan, &model, &setting, &wish);
    model_free(&model);
    free(text);
    return plan_total(&plan);
}

/* Bytes for n parts and no more. */
static const char *memory_for(uint32_t n)
{
    return print("%" PRIu64, (bytes_of(n) + bytes_of(n + 1)) / 2);
}

/* Nor does one that has memory for its share and not for all parts: it has its share. */
TEST(a_worker_that_is_too_small_keeps_no_other_from_a_job)
{
    static const char command[] = "eps train --connect lab --model model.json --data text.txt --batch 12 --seq 32 "
                                  "--parts 12 --microbatch 1 --steps 2";
    struct lab lab = {0};

    begin(&lab, 1);
    attach_with(&lab, memory_for(7));
    processes_await_workers("lab", 2);
    attach_with(&lab, "64KiB");
    processes_await_workers("lab", 3);
    expect(command, 0);
    ck_assert_uint_eq(processes_count("log", " is left out of the job: "), 1);
    expect_file("log", print("worker %u (cpu) is left out of the job: ", id_of(&lab, 2)), "--device-mem is 0.1 MiB",
                print("worker %u: arena of ", id_of(&lab, 1)));
    for (unsigned i = 0; i < 2; i++) {
        ck_assert_int_eq(kill(lab.workers[i], SIGTERM), 0);
        ck_assert_int_eq(processes_wait(lab.workers[i]), 0);
    }
    processes_await_workers("lab", 1);
    expect(command, 1, "--device-mem is 0.1 MiB");
    end(&lab);
}

/* Each was to have 6 of the parts; the one that can work has memory for 7. */
TEST(a_run_that_has_no_memory_for_all_parts_does_not_begin)
{
    struct lab lab = {0};
    const char *line = print("exec %s/eps train --connect lab --model model.json --data text.txt --batch 12 --seq 32 "
                             "--parts 12 --microbatch 1 --steps 2 --out run >said",
                             BIN_DIR);

    begin(&lab, 0);
    puppet_start("lab", PUPPET_REFUSES);
    puppet_await("lab");
    attach_with(&lab, memory_for(7));
    processes_await_workers("lab", 2);
    const pid_t client = processes_start("/bin/sh", (const char *const[]){"-c", line, NULL}, "err");
    processes_await_text("said", "the workers that are left have memory for 6 of 12 parts of a step: worker ");
    expect_file("said", " (cpu on stage) is left out: no arena; waiting for another worker to attach");
    attach_with(&lab, memory_for(7));
    ck_assert_int_eq(processes_wait(client), 0);
    end(&lab);
}

static bool is_one(void *user)
{
    (void)user;
    return processes_workers("lab") == 1;
}

/* One by the daemon's word, one by a signal of its own. */
static void dismiss_two(struct lab *lab)
{
    const uint32_t id = id_of(lab, 0);

    expect(print("eps drain %u lab", id), 0, print("worker %u has left\n", id));
    ck_assert_int_eq(processes_wait(lab->workers[0]), 0);
    kill(lab->workers[1], SIGTERM);
    ck_assert(processes_until(is_one, NULL));
    ck_assert_int_eq(processes_wait(lab->workers[1]), 0);
}

/* The client is told of no part that is redone. */
TEST(a_worker_that_is_told_to_leave_finishes_its_share)
{
    struct lab lab = {.act = dismiss_two};

    begin(&lab, 3);
    train(&lab);
    ck_assert_holds(lab.notes, " (cpu) left after ", ": it was told to leave; the others go on without it");
    ck_assert_uint_eq(processes_count("log", " was lost after "), 0);
    ck_assert_uint_eq(processes_workers("lab"), 1);
    end(&lab);
    same_run();
}

/* By a worker that fits: another one is not taken, nor does it end the job. */
static void replace_last(struct lab *lab)
{
    expect(print("eps drain %u lab", id_of(lab, 0)), 0);
    attach_with(lab, "100KiB");
    processes_await_workers("lab", 1);
    expect("eps status lab >status", 0);
    attach(lab);
}

TEST(a_job_whose_last_worker_leaves_waits_for_another_that_fits)
{
    struct lab lab = {.act = replace_last};

    begin(&lab, 1);
    train(&lab);
    ck_assert_holds(lab.notes, " (cpu) left after ", "the step waits for another worker to attach");
    expect_file("status", "waiting for a worker");
    end(&lab);
    same_run();
}

enum { CYCLES = 4 };

struct fds {
    pid_t daemon;
    unsigned least;
};

/* The daemon may still close those of a session that has ended. */
static bool has_no_more(void *context)
{
    struct fds *fds = context;
    const unsigned n = processes_count_fds(fds->daemon);
    const bool has = n > fds->least;

    fds->least = has ? fds->least : n;
    return !has;
}

/* One worker comes and goes, again and again; each time it takes the seat of the one before. */
static void come_and_go(struct lab *lab)
{
    struct fds fds = {lab->daemon, UINT_MAX};
    uint64_t bytes[CYCLES];

    for (unsigned i = 0; i < CYCLES; i++) {
        lab->n_workers = 1;
        attach(lab);
        await_joins(i + 1);
        expect(print("eps drain %u lab", id_of(lab, 1)), 0);
        ck_assert_int_eq(processes_wait(lab->workers[1]), 0);
        json_t *mem = expect_json("eps mem lab --json", 0);
        bytes[i] = (uint64_t)json_number_at(mem, "host.current");
        json_decref(mem);
        ck_assert_uint_eq(bytes[i], bytes[0]);
        ck_assert(processes_until(has_no_more, &fds));
    }
}

TEST(workers_that_come_and_go_leave_no_byte_and_no_descriptor)
{
    struct lab lab = {.act = come_and_go};

    begin(&lab, 1);
    train(&lab);
    ck_assert_uint_eq(processes_count("log", " joins after "), CYCLES);
    end(&lab);
    same_run();
}

TEST(a_worker_that_does_not_exist_cannot_be_drained)
{
    struct lab lab = {0};

    begin(&lab, 1);
    expect_sentence("eps drain 777 lab", 1, "there is no worker 777", "eps top");
    expect_sentence("eps drain lab", 2, "WORKER lab: a worker's number is needed");
    ck_assert_uint_eq(processes_workers("lab"), 1);
    expect(print("eps drain %u lab", id_of(&lab, 0)), 0); /* idle: it ends at once */
    ck_assert_int_eq(processes_wait(lab.workers[0]), 0);
    end(&lab);
}

/* ---- without training -------------------------------------------------------------------------------------------- */

/* A worker that is killed at the n-th call. */
struct victim {
    struct lab *lab;
    unsigned worker, n_calls, at;
    char text[4000];
};

/* Whichever of the two has the job: the other takes over. */
static void strike(struct victim *victim)
{
    if (++victim->n_calls == victim->at)
        kill(victim->lab->workers[victim->worker], SIGKILL);
}

static void on_evaluating(void *user, uint64_t n_tokens, uint64_t n_all)
{
    (void)n_tokens, (void)n_all;
    strike(user);
}

static void on_token(void *user, uint32_t id, const char *text, size_t n)
{
    struct victim *victim = user;
    const size_t at = strlen(victim->text);

    (void)text, (void)n;
    snprintf(victim->text + at, sizeof victim->text - at, " %u", id);
    strike(victim);
}

/* A command that computes nothing new is given again sooner than its client waits for a worker that may never come. */
TEST(an_evaluation_survives_its_worker_but_not_its_last)
{
    const struct eps_eval_events events = {.on_evaluating = on_evaluating};
    struct lab lab = {0};
    struct victim victims[3] = {{.lab = &lab}, {.lab = &lab, .at = 3}, {.lab = &lab, .worker = 1, .at = 3}};
    struct eps_error error = {""};
    double loss[3];
    uint64_t tokens[3];

    begin(&lab, 2);
    for (int i = 0; i < COUNT(victims); i++) {
        const struct eps_eval_options options = {
            .model = print("%s/latest", alone), .connect = "lab", .data = files, .n_data = 1, .batch = 4};
        const int rc = eps_eval(&loss[i], &tokens[i], &options, &events, &victims[i], &error);
        ck_assert_msg(rc == (i < 2 ? 0 : -EIO), "%s", error.text);
    }
    ck_assert_mem_eq(&loss[0], &loss[1], sizeof *loss);
    ck_assert_uint_gt(victims[1].n_calls, 3);
    ck_assert_uint_eq(processes_count("log", " joins after "), 1);
    ck_assert_holds(error.text, "last worker was lost or left", "eps-worker --connect NAME");
    ck_assert_uint_eq(victims[2].n_calls, 3);
    end(&lab);
}

TEST(a_job_without_training_goes_on_with_any_worker_that_is_left)
{
    struct lab lab = {0};
    struct driver driver;

    begin(&lab, 2);
    driver_open(&driver, "lab", &(struct driver_options){.only_looks = true, .n_parts = 2});
    ck_assert_uint_eq(driver.opened_with.job_opened.n_workers, 2);
    kill(lab.workers[0], SIGKILL);
    processes_await_text(processes_path("log"), " was lost after ");
    ck_assert_uint_eq(processes_count("log", "; the others go on without it"), 1);
    driver_close(&driver);
    end(&lab);
}

/* Killed in the prompt's wake, and another one in the middle: all tokens are run again, cut into the same pieces. Of
 * one text, and of four that advance together: two samples of each prompt, the second after the first's keys and
 * values. */
TEST_EACH(a_generation_survives_its_worker, 2)
{
    static const struct eps_prompt prompts[] = {{.text = "the quick brown", .n_bytes = 15},
                                                {.text = "a", .n_bytes = 1}};
    const struct eps_generate_events events = {.on_token = on_token};
    struct lab lab = {0};
    struct victim victims[3] = {{.lab = &lab}, {.lab = &lab, .at = 1}, {.lab = &lab, .worker = 1, .at = 20}};
    struct eps_error error = {""};

    begin(&lab, 2);
    for (int i = 0; i < COUNT(victims); i++) {
        struct eps_generate_options options = eps_generate_defaults();
        struct eps_generated out;
        options.model = print("%s/latest", alone), options.connect = "lab";
        options.prompts = prompts, options.n_prompts = _i ? 2 : 1;
        options.n_tokens = 40, options.n_samples = _i ? 2 : 1, options.sampling.seed = 5;
        processes_await_workers("lab", 2);
        ck_assert_msg(eps_generate(&out, &options, &events, &victims[i], &error) == 0, "%s", error.text);
        ck_assert_str_eq(victims[i].text, victims[0].text);
        if (i == 1)
            attach(&lab);
    }
    ck_assert_uint_eq(processes_count("log", " joins after "), 2);
    end(&lab);
}
