/* Clients of a shared daemon that die, at any moment of a run, and those who take their jobs over: the run ends with
 * the bits of one that was left alone. Real processes. */
#include "tests/kit/command.h"
#include "tests/kit/outputs.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

SUITE_LABELS(slow)

static const char *const files[] = {"text.txt"}, *const conversations[] = {"sums.jsonl"},
                         *const preferences[] = {"pairs.jsonl"};

static void setup(void)
{
    processes_setup();
    processes_config_with("model.json", 1, 2, 16, 32, "\"attn_pdrop\": 0.1, \"resid_pdrop\": 0.1");
    processes_config_with("relu.json", 2, 2, 16, 32, "\"activation_function\": \"relu\", \"resid_pdrop\": 0.1");
    processes_text("text.txt", 3400);
    processes_text("other.txt", 3300);
    expect("for i in $(seq 80); do printf '{\"prompt\": \"%s+%s=\", \"completion\": \"%s\"}\\n' $i $i $((2 * i)); done "
           ">sums.jsonl; for i in $(seq 60); do printf '{\"prompt\": \"%s+1=\", \"chosen\": \"%s\", \"rejected\": "
           "\"%s\"}\\n' "
           "$i $((i + 1)) $((i - 1)); done >pairs.jsonl",
           0);
}

SUITE_TIMEOUT(180)
SUITE_FIXTURE(setup, processes_remove)

enum { STEPS = 12, EVERY = 4, SAVED = 3 };

/* When a client kills itself. */
enum moment { NEVER, AT_STEP, WITH_WORKER, BEFORE_EVALUATION, IN_EVALUATION, AFTER_EVALUATION, AT_SAVED };

struct fate {
    enum moment moment;
    uint64_t step; /* at this one, or the first after it */
    uint64_t done;
    pid_t worker; /* WITH_WORKER: this one dies at the step, and the client waits for another */
};

static void die_at(const struct fate *fate, enum moment moment, uint64_t step)
{
    if (fate->moment == moment && step >= fate->step)
        kill(getpid(), SIGKILL);
}

static void on_step(void *user, const struct eps_step *step)
{
    struct fate *fate = user;

    fate->done = step->step;
    die_at(fate, AT_STEP, step->step);
    if (fate->moment == WITH_WORKER && step->step == fate->step)
        kill(fate->worker, SIGKILL);
}

static void on_evaluating(void *user, uint64_t n_tokens, uint64_t n_all)
{
    const struct fate *fate = user;

    (void)n_all;
    die_at(fate, n_tokens == 0 ? BEFORE_EVALUATION : IN_EVALUATION, fate->done + 1); /* its step is not reported yet */
}

static void on_evaluated(void *user, uint64_t step, double loss, uint64_t tokens)
{
    (void)loss, (void)tokens;
    die_at(user, AFTER_EVALUATION, step);
}

static void on_saved(void *user, uint64_t step, const char *path)
{
    (void)path;
    die_at(user, AT_SAVED, step);
}

static const struct kind {
    const char *name, *const *data;
    uint32_t workers, parts;
    enum eps_commit commit;
    enum eps_number number;
    bool packs;
    uint64_t freeze_until; /* 0: nothing is frozen */
    bool remembers;        /* gradients are sampled, by norms from the second epoch, step 11, on */
} kinds[] = {
    {"one part", files, 1, 1, EPS_EAGER, EPS_FP32, false, 0, false},
    {"fenced and clipped, two workers in 16 bits", files, 2, 4, EPS_FENCED, EPS_BF16, false, 0, false},
    {"packed conversations", conversations, 1, 1, EPS_EAGER, EPS_FP32, true, 0, false},
    {"preferences", preferences, 2, 2, EPS_EAGER, EPS_FP32, false, 0, false},
    {"frozen until step 5", files, 2, 2, EPS_EAGER, EPS_FP32, false, 5, false},
    {"preferences, frozen until step 5", preferences, 1, 1, EPS_FENCED, EPS_FP32, false, 5, false},
    {"norms of gradients", conversations, 2, 2, EPS_EAGER, EPS_FP32, false, 0, true},
};

static struct eps_train_options run_of(const struct kind *kind, const char *out)
{
    struct eps_train_options options = processes_options(kind->remembers ? "relu.json" : "model.json", kind->data, out);

    options.connect = "lab", options.device_mem = 0, options.workers = 0;
    options.steps = STEPS, options.batch = 8, options.seq = 32, options.eval_every = EVERY, options.save_every = SAVED;
    options.deterministic = true;
    options.pack = kind->packs;
    options.freeze = kind->freeze_until ? "h.*.mlp.*,wpe.weight" : NULL;
    options.freeze_until = kind->freeze_until;
    options.approximate = kind->remembers ? "wta=0.3" : NULL;
    options.keep = 0;
    options.parts = kind->parts, options.optimizer = EPS_ADAMW, options.commit = kind->commit;
    options.precision = options.grad_dtype = kind->number;
    options.moments = kind->number == EPS_BF16 ? EPS_MOMENTS_BF16 : EPS_MOMENTS_FP32;
    if (kind->commit == EPS_FENCED)
        options.clip_norm = 0.5;
    return options;
}

/* A client in a process of its own. */
static pid_t start(const struct eps_train_options *options, struct fate fate)
{
    const struct eps_train_events events = {.on_step = on_step,
                                            .on_evaluating = on_evaluating,
                                            .on_evaluated = on_evaluated,
                                            .on_saved = on_saved};
    struct eps_error error = {""};
    const pid_t pid = fork();

    ck_assert_int_ge(pid, 0);
    if (pid > 0)
        return pid;
    const int rc = eps_train(options, &events, &fate, &error);
    if (rc)
        fprintf(stderr, "%s\n", error.text);
    _exit(rc ? 1 : 0);
}

/* True if it dies, false if the run is complete. */
static bool dies(const struct eps_train_options *options, struct fate fate)
{
    const pid_t pid = start(options, fate);
    int status;

    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_msg(WIFSIGNALED(status) || WEXITSTATUS(status) == 0, "a client failed");
    return WIFSIGNALED(status);
}

/* Weights and moments of each checkpoint, the best one, and every line. */
static void same_run(const char *a, const char *b)
{
    outputs_check_same_metrics(a, b, STEPS);
    expect(print("ls %s | grep -v report.svg >a; ls %s | grep -v report.svg >b; cmp a b", a, b), 0);
    expect(print("for i in %s/step-*; do for f in model optimizer; do cmp $i/$f.safetensors %s/${i##*/}/$f.safetensors "
                 "|| exit 1; done; done",
                 a, b),
           0);
    expect(print("test $(readlink %s/best) = $(readlink %s/best)", a, b), 0);
    expect(print("test $(readlink %s/latest) = $(readlink %s/latest)", a, b), 0);
}

/* Moments in order: of a client, and of those who take its run over. */
static const struct {
    int kind;
    struct fate fates[6];
} lives[] = {
    {0,
     {{.moment = AT_STEP, .step = 1},
      {.moment = BEFORE_EVALUATION, .step = 4},
      {.moment = IN_EVALUATION, .step = 8},
      {.moment = BEFORE_EVALUATION, .step = STEPS},
      {.moment = AFTER_EVALUATION, .step = STEPS}}},
    {1, {{.moment = AT_STEP, .step = 5}, {.moment = AT_SAVED, .step = 6}, {.moment = AFTER_EVALUATION, .step = STEPS}}},
    {2, {{.moment = AT_STEP, .step = 5}, {.moment = IN_EVALUATION, .step = 8}}},
    /* While references are measured, and just after; the last one of these begins to measure them again. */
    {3,
     {{.moment = IN_EVALUATION, .step = 1},
      {.moment = IN_EVALUATION, .step = 1},
      {.moment = BEFORE_EVALUATION, .step = 1},
      {.moment = AT_STEP, .step = 5},
      {.moment = IN_EVALUATION, .step = 8}}},
    /* While tensors are frozen; before, and after, the last checkpoint of the job in which they are; and in the next
     * one. */
    {4,
     {{.moment = AT_STEP, .step = 4},
      {.moment = AT_STEP, .step = 5},
      {.moment = AT_SAVED, .step = 5},
      {.moment = AT_STEP, .step = 7}}},
    {5, {{.moment = AT_STEP, .step = 5}, {.moment = AT_STEP, .step = 6}}},
    {6, {{.moment = AT_STEP, .step = 4}, {.moment = AT_SAVED, .step = 6}, {.moment = AT_STEP, .step = 10}}},
};

TEST_EACH(a_run_that_is_taken_over_ends_with_the_same_bits, COUNT(lives))
{
    const struct kind *kind = &kinds[lives[_i].kind];
    const struct fate *fate = lives[_i].fates;
    const pid_t daemon = processes_daemon("lab", kind->workers, NULL);
    struct eps_train_options options = run_of(kind, "whole"), attach = eps_train_defaults();

    ck_assert(!dies(&options, (struct fate){.moment = NEVER}));
    options.out = "taken";
    attach.attach = "lab";
    for (int i = 0; fate[i].moment; i++) {
        ck_assert_msg(dies(i ? &attach : &options, fate[i]), "%s: client %d did not live to see its end", kind->name,
                      i);
        processes_await_state("lab", "detached");
    }
    ck_assert(!dies(&attach, (struct fate){.moment = NEVER}));
    same_run("whole", "taken");
    expect_stop(daemon);
}

/* A client dies, and all its lines are lost: the next one writes those of the steps that the run has done. So does a
 * run that goes on in place. */
TEST_EACH(a_run_that_began_from_another_s_checkpoint_has_no_lines_of_steps_before, 2)
{
    const pid_t daemon = processes_daemon("lab", 1, NULL);
    struct eps_train_options options = run_of(&kinds[0], "whole"), next = eps_train_defaults();

    ck_assert(!dies(&options, (struct fate){.moment = NEVER}));
    options = eps_train_defaults();
    options.resume = "whole/step-3", options.out = "taken", options.connect = "lab";
    ck_assert(dies(&options, (struct fate){.moment = _i == 0 ? AT_STEP : AT_SAVED, .step = _i == 0 ? 4 : 6}));
    processes_await_state("lab", "detached");
    expect(": >taken/metrics.jsonl", 0);
    if (_i == 1)
        expect_stop(daemon);
    next.attach = _i == 0 ? "lab" : NULL, next.resume = _i == 0 ? NULL : "taken", next.programs = BIN_DIR;
    ck_assert(!dies(&next, (struct fate){.moment = NEVER}));
    expect(print("sed -n 's/.*\"step\": \\([0-9]*\\),.*/\\1/p' taken/metrics.jsonl >steps; seq 4 %d | diff - steps",
                 STEPS),
           0);
    outputs_check_same_latest("whole", "taken");
    if (_i == 0)
        expect_stop(daemon);
}

/* What the others may do meanwhile, and who is refused. */
TEST(a_detached_job_is_observed_saved_and_used)
{
    const pid_t daemon = processes_daemon("lab", 1, NULL);
    struct eps_train_options options = run_of(&kinds[0], "run");

    expect_refusal(&(struct refusal){"eps train --attach", 1, "no daemon of yours has a detached job", "--resume DIR"});
    expect_refusal(&(struct refusal){"eps train --attach lab", 1, "the daemon has no detached job", "--resume DIR"});
    ck_assert(dies(&options, (struct fate){.moment = AT_STEP, .step = 3}));
    processes_await_state("lab", "detached");
    expect("eps status lab", 0, "state        detached, ",
           "job          1: its client is gone; take it over with eps train --attach lab\n");
    expect("eps save lab", 0, "/run/step-");
    expect("eps eval --connect lab --data text.txt", 0, "loss ");
    expect("eps generate --connect lab --prompt a --tokens 3", 0);
    expect_refusal(&(struct refusal){"eps train --attach lab --steps 30", 2, "--steps 30 differs from the job's 12",
                                     "keeps its options"});
    expect_refusal(
        &(struct refusal){"eps train --attach lab --resume run", 2, "--resume does not go with --attach", NULL});
    expect_refusal(&(struct refusal){"eps train --attach lab --out other", 2, "--out does not go with --attach", NULL});
    expect_refusal(&(struct refusal){"eps train --resume run --connect lab", 1, "run is in use by another run", NULL});
    expect_refusal(
        &(struct refusal){"eps train --attach lab --data other.txt", 1, "is not what the run was trained on", NULL});
    expect("mv run/metrics.jsonl kept; mkfifo run/metrics.jsonl", 0);
    expect_refusal(
        &(struct refusal){"eps train --attach lab", 1, "metrics.jsonl: not a regular file: move it away", NULL});
    expect("mv kept run/metrics.jsonl", 0);
    expect("eps status lab", 0, "state        detached, "); /* nobody has taken it */

    /* It is stopped as any job is: it saves first. */
    expect("eps stop lab 1", 0);
    expect("eps status lab", 0, "state        idle, ");
    expect("eps train --resume run --connect lab", 0);
    options.out = "whole";
    ck_assert(!dies(&options, (struct fate){.moment = NEVER}));
    expect("cmp run/latest/model.safetensors whole/latest/model.safetensors", 0);
    expect_stop(daemon);
}

/* The next job does not wait for a client that may never come. What makes room can be resumed. */
TEST(a_detached_job_is_saved_when_another_needs_the_room)
{
    const pid_t daemon = processes_daemon("lab", 1, NULL);
    struct eps_train_options options = run_of(&kinds[0], "run"), next = run_of(&kinds[0], "whole");

    options.save_every = STEPS; /* nothing is saved before */
    ck_assert(dies(&options, (struct fate){.moment = AT_STEP, .step = 5}));
    ck_assert(!dies(&next, (struct fate){.moment = NEVER}));
    expect_refusal(&(struct refusal){"eps train --attach lab", 1, "the daemon has no detached job", NULL});
    expect("eps train --resume run --connect lab", 0, "continuing from run/step-");
    expect("cmp run/latest/model.safetensors whole/latest/model.safetensors", 0);
    expect_stop(daemon);
}

/* Nothing can be saved there any more, and nobody is to wait for it. */
TEST(a_detached_job_whose_output_was_removed_makes_room)
{
    const pid_t daemon = processes_daemon("lab", 1, NULL);
    struct eps_train_options options = run_of(&kinds[0], "gone");

    options.save_every = STEPS; /* nothing is saved before */
    ck_assert(dies(&options, (struct fate){.moment = AT_STEP, .step = 3}));
    processes_await_state("lab", "detached");
    expect("rm -r gone; eps train --connect lab --model model.json --data text.txt --batch 4 --steps 1 --out next", 0);
    expect("eps status lab", 0, "state        idle, ");
    expect_stop(daemon);
}

/* Nothing of it can be kept: it may be taken over, but nobody waits for it. */
TEST(a_detached_job_that_saves_nothing_makes_room)
{
    const pid_t daemon = processes_daemon("lab", 1, NULL);
    struct eps_train_options options = run_of(&kinds[0], "whole");

    ck_assert(!dies(&options, (struct fate){.moment = NEVER}));
    options.out = "taken", options.no_save = true, options.save_every = UINT64_MAX, options.keep = UINT32_MAX;
    ck_assert(dies(&options, (struct fate){.moment = AT_STEP, .step = 3}));
    processes_await_state("lab", "detached");
    expect_refusal(&(struct refusal){"eps save lab", 1, "the job saves no checkpoints", "--no-save"});
    expect_refusal(
        &(struct refusal){"eps train --attach lab --save-every 2 --no-save", 2, "--save-every", "--no-save"});
    expect("eps train --attach lab -v", 0, "checkpoints  none: --no-save");
    outputs_check_same_metrics("whole", "taken", STEPS);
    expect("ls taken | grep -v report.svg", 0, "metrics.jsonl\n");

    options.out = "gone";
    ck_assert(dies(&options, (struct fate){.moment = AT_STEP, .step = 3}));
    processes_await_state("lab", "detached");
    expect("eps train --connect lab --model model.json --data text.txt --batch 4 --steps 1 --out next", 0);
    expect("ls gone", 0, "metrics.jsonl\n");

    options.out = "stopped";
    ck_assert(dies(&options, (struct fate){.moment = AT_STEP, .step = 3}));
    processes_await_state("lab", "detached");
    expect("eps stop lab 5", 0);
    expect_stop(daemon);
}

/* A worker dies, and then the client that waits for another one. */
TEST(a_job_that_waits_for_a_worker_is_taken_over_too)
{
    pid_t worker, daemon = processes_daemon("lab", 1, &worker);
    struct eps_train_options options = run_of(&kinds[0], "whole");

    ck_assert(!dies(&options, (struct fate){.moment = NEVER}));
    options.out = "taken";
    const pid_t client = start(&options, (struct fate){.moment = WITH_WORKER, .step = 3, .worker = worker});
    processes_await_state("lab", "waiting for a worker");
    ck_assert_int_eq(kill(client, SIGKILL), 0);
    ck_assert_int_eq(waitpid(client, NULL, 0), client);
    processes_await_state("lab", "detached");
    const char *attach = print("exec %s/eps train --attach >attach.said 2>&1", BIN_DIR);
    const pid_t heir = processes_start("/bin/sh", (const char *const[]){"-c", attach, NULL}, NULL);
    processes_await_text("attach.said", "the next one waits for another worker to attach");
    processes_worker("lab", "256MiB", NULL);
    ck_assert_int_eq(processes_wait(heir), 0);
    same_run("whole", "taken");
    expect_stop(daemon);
}
