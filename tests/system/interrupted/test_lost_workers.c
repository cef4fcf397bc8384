/* Workers of a private run that are killed or stopped: it starts others, and ends with the bits of one that was left
 * alone. Real processes and signals. Those of a shared daemon: tests/system/interrupted/test_elastic.c. */
#include "tests/kit/command.h"
#include "tests/kit/outputs.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

SUITE_LABELS(slow)

static const char *const files[] = {"text.txt"}, *const few[] = {"few.txt"}, *const preferences[] = {"pairs.jsonl"};

static void setup(void)
{
    processes_setup();
    processes_config_with("model.json", 4, 4, 64, 64, "\"attn_pdrop\": 0.1, \"resid_pdrop\": 0.1");
    processes_config_with("relu.json", 4, 4, 64, 64, "\"activation_function\": \"relu\", \"resid_pdrop\": 0.1");
    processes_text("text.txt", 4000);
    processes_text("few.txt", 1600); /* of which the fifth step sees rows again */
    expect("for i in $(seq 90); do printf '{\"prompt\": \"%s+1=\", \"chosen\": \"%s\", \"rejected\": \"%s\"}\\n' $i "
           "$((i + 1)) $((i - 1)); done >pairs.jsonl; eps train --model model.json --data text.txt --steps 1 --batch 2 "
           "--device cpu --out first && eps export --model first/latest --out base",
           0);
}

SUITE_TIMEOUT(180)
SUITE_FIXTURE(setup, processes_remove)

enum { STEPS = 10, EVERY = 6 };

/* A signal, some time into a step: this decides which of its moments is tried, and nothing else. */
struct strike {
    pthread_t thread;
    int signal, after_ms;
};

/* What becomes of a worker, and at which steps (a bit each). */
struct fate {
    int signal;
    unsigned steps;
    bool in_evaluation; /* the first one, too */
    unsigned n_notes, n_strikes;
    struct strike strikes[STEPS + 1];
    double losses[STEPS + 1][2]; /* of the steps; held out, before the first and after them */
    uint32_t group_parts;        /* as planned */
    char note[300];
};

static void strike(int signal)
{
    const pid_t worker = processes_find("eps-worker"); /* any of them */

    if (worker > 0)
        kill(worker, signal);
}

static void *strike_later(void *user)
{
    const struct strike *s = user;

    poll(NULL, 0, s->after_ms);
    strike(s->signal);
    return NULL;
}

static void strike_soon(struct fate *fate, double step_ms)
{
    struct strike *s = &fate->strikes[fate->n_strikes];

    s->signal = fate->signal;
    s->after_ms = (int)(step_ms * 0.37 * fate->n_strikes++) % ((int)step_ms + 1);
    ck_assert_int_eq(pthread_create(&s->thread, NULL, strike_later, s), 0);
}

static void on_step(void *user, const struct eps_step *step)
{
    struct fate *fate = user;

    fate->losses[step->step][0] = step->loss;
    fate->losses[step->step][1] = isnan(step->eval_loss) ? 0 : step->eval_loss;
    if (fate->steps >> step->step & 1)
        strike_soon(fate, step->step_ms);
}

static void on_plan(void *user, const struct eps_choice *choice, const struct eps_memory *host,
                    const struct eps_memory *device)
{
    struct fate *fate = user;

    (void)host, (void)device;
    fate->group_parts = choice->group_parts;
}

static void on_evaluating(void *user, uint64_t n_tokens, uint64_t n_all)
{
    struct fate *fate = user;

    (void)n_all;
    if (fate->in_evaluation && n_tokens > 0)
        strike(fate->signal);
    fate->in_evaluation &= n_tokens == 0;
}

/* False: the note is of something else. */
static bool is_loss(struct fate *fate, const char *sentence)
{
    if (!strstr(sentence, " was lost after "))
        return false;
    fate->n_notes++;
    snprintf(fate->note, sizeof fate->note, "%s", sentence);
    return true;
}

static void on_note(void *user, const char *sentence)
{
    is_loss(user, sentence);
}

static struct eps_train_options short_run(const char *out)
{
    struct eps_train_options options = processes_options("model.json", files, out);

    options.steps = STEPS, options.batch = 12, options.seq = 32, options.eval_every = EVERY;
    options.device_mem = 32 << 20;
    options.deterministic = true;
    return options;
}

static void join(struct fate *fate)
{
    while (fate->n_strikes > 0)
        pthread_join(fate->strikes[--fate->n_strikes].thread, NULL);
}

static void train(const struct eps_train_options *options, struct fate *fate)
{
    const struct eps_train_events events = {.on_plan = on_plan,
                                            .on_step = on_step,
                                            .on_evaluating = on_evaluating,
                                            .on_note = on_note};
    struct eps_error error = {""};

    const int rc = eps_train(options, &events, fate, &error);

    join(fate);
    ck_assert_msg(rc == 0, "%s", error.text);
}

/* Weights, moments and losses, the held-out ones too. */
static void same_run(const struct fate *a, const struct fate *b)
{
    ck_assert_mem_eq(a->losses, b->losses, sizeof a->losses);
    outputs_check_same_latest("whole", "struck");
}

static const struct kind {
    const char *name;
    uint32_t workers, parts;
    enum eps_optimizer_kind optimizer;
    enum eps_number number;
    const char *freeze, *lora;
    enum eps_base base;
    const char *approximate;
    double drop_layers;
    const char *model; /* NULL: model.json */
    bool least;        /* fenced, of AdamA folded, in the least memory: a worker takes its parts one after another */
} kinds[] = {
    {"one part", 1, 1, EPS_ADAMW, EPS_FP32, NULL, NULL, EPS_BASE_DEFAULT, NULL, NAN, NULL, false},
    {"AdamA in 16 bits", 2, 4, EPS_ADAMA, EPS_BF16, NULL, NULL, EPS_BASE_DEFAULT, NULL, NAN, NULL, false},
    {"a base in NF4", 2, 2, EPS_ADAMW, EPS_FP32, "wpe.*,h.*.c_*.weight", NULL, EPS_BASE_NF4, NULL, NAN, NULL, false},
    {"a sample of the tokens", 2, 2, EPS_ADAMW, EPS_FP32, NULL, NULL, EPS_BASE_DEFAULT, "wta=0.3,attention=0.3,coded=8",
     NAN, NULL, false},
    {"adapters by preferences", 2, 2, EPS_ADAMW, EPS_FP32, NULL, "rank=4,dropout=0.1", EPS_BASE_INT8, "wta=0.3", NAN,
     NULL, false},
    {"dropped blocks", 2, 4, EPS_ADAMW, EPS_FP32, NULL, NULL, EPS_BASE_DEFAULT, NULL, 0.5, NULL, false},
    {"norms of gradients", 2, 4, EPS_ADAMW, EPS_FP32, NULL, NULL, EPS_BASE_DEFAULT, "wta=0.3", NAN, "relu.json", false},
    {"SGD in 16 bits", 2, 4, EPS_SGD, EPS_BF16, NULL, NULL, EPS_BASE_DEFAULT, NULL, NAN, NULL, false},
    {"norms in 16 bits", 2, 2, EPS_ADAMA, EPS_BF16, NULL, NULL, EPS_BASE_DEFAULT, "wta=0.3", 0.3, "relu.json", false},
    {"row groups", 2, 4, EPS_ADAMW, EPS_FP32, NULL, NULL, EPS_BASE_DEFAULT, NULL, NAN, NULL, true},
    {"folded row groups", 2, 4, EPS_ADAMA, EPS_BF16, NULL, NULL, EPS_BASE_DEFAULT, NULL, NAN, NULL, true},
};

TEST_EACH(a_private_run_replaces_killed_workers_and_ends_with_the_same_bits, COUNT(kinds))
{
    const struct kind *kind = &kinds[_i];
    struct fate none = {0},
                killed = {.signal = SIGKILL, .steps = 1 << 2 | 1 << 4 | 1 << 5 | 1 << 8, .in_evaluation = true};
    struct eps_train_options options = short_run("whole");
    struct eps_error error = {""};

    options.workers = kind->workers, options.parts = kind->parts, options.optimizer = kind->optimizer;
    options.precision = options.grad_dtype = kind->number;
    options.moments = kind->number == EPS_BF16 ? EPS_MOMENTS_BF16 : EPS_MOMENTS_FP32;
    options.freeze = kind->freeze, options.base = kind->base, options.lora = kind->lora;
    options.approximate = kind->approximate, options.drop_layers = kind->drop_layers;
    options.model = kind->model ? kind->model : options.model;
    options.data = kind->model ? few : files;
    if (kind->lora)
        options.model = processes_path("base"), options.data = preferences, options.eval_data = *preferences;
    if (kind->least) {
        if (kind->optimizer == EPS_ADAMA)
            options.commit = EPS_FOLDED;
        else
            options.clip_norm = 0.5;
        ck_assert_msg(eps_plan_minimum(&options.device_mem, &options, &error) == 0, "%s", error.text);
    }
    train(&options, &none);
    ck_assert_uint_eq(none.group_parts, kind->least);
    options.out = "struck";
    train(&options, &killed);
    same_run(&none, &killed);
    ck_assert_uint_ge(killed.n_notes, 2); /* the others died while no step or evaluation was under way, or at the end */
    ck_assert_holds(killed.note, "(cpu) was lost after ", " steps: killed",
                    " its parts of the step"); /* by whom depends on when */
    processes_await_nobody();
}

/* It is given up after 15 s, and killed: so it cannot wake. */
TEST(a_private_run_replaces_a_stopped_worker)
{
    struct fate none = {0}, stopped = {.signal = SIGSTOP, .steps = 1 << 3};
    struct eps_train_options options = short_run("whole");

    options.workers = options.parts = 2;
    train(&options, &none);
    options.out = "struck";
    train(&options, &stopped);
    same_run(&none, &stopped);
    ck_assert_uint_eq(stopped.n_notes, 1);
    processes_await_nobody();
}

/* A step that costs every worker its life ends the run. */
static void on_note_strike(void *user, const char *sentence)
{
    struct fate *fate = user;

    if (is_loss(fate, sentence))
        fate->steps = ~0u;
}

static int strike_again(void *user)
{
    struct fate *fate = user;

    if (fate->steps == ~0u)
        strike(fate->signal);
    return 0;
}

TEST(a_private_run_ends_when_every_replacement_dies_too)
{
    const struct eps_train_events events = {.on_step = on_step, .on_note = on_note_strike, .should_stop = strike_again};
    struct fate killed = {.signal = SIGKILL, .steps = 1 << 2};
    struct eps_train_options options = short_run("struck");
    struct eps_error error = {""};

    processes_config_with("large.json", 4, 4, 384, 64, "\"attn_pdrop\": 0.1");
    options.model = "large.json", options.device_mem = 128 << 20;
    options.steps = 1000; /* none is over before the next strike */
    const int rc = eps_train(&options, &events, &killed, &error);
    join(&killed);
    ck_assert_int_eq(rc, -EIO);
    /* The system tells of its end, or the daemon: whoever is first. */
    ck_assert_msg(strstr(error.text, "the worker (eps-worker) was killed by signal 9") ||
                      strstr(error.text, "the worker (eps-worker) was lost: killed"),
                  "%s", error.text);
    processes_await_nobody();
}
