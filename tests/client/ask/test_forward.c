/* Models that are asked while others train them; and whoever names a daemon that is started a moment later, and workers
 * a moment after that, is told and waits: here the note itself is what starts them. */
#include "client/daemon/observer.h"
#include "tests/kit/command.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <string.h>

SUITE_LABELS(slow)

enum { N_STEPS = 60, N_TOKENS = 20 };

static const char *const files[] = {"tiny.txt"};

#define TRAIN(out)                                                                                                     \
    "train --model tiny.json --data tiny.txt --eval-data tiny.txt --out " out " --seed 9 --batch 8 --steps 60 "        \
    "--optimizer adamw --device-mem 256MiB"

/* alone: a run that nobody looks at. */
static void setup(void)
{
    processes_setup();
    processes_config("tiny.json", 2, 2, 32, 64);
    processes_text("tiny.txt", 8000);
    expect("eps " TRAIN("alone"), 0);
}

SUITE_TIMEOUT(120)
SUITE_FIXTURE_ONCE(setup, processes_remove)

/* What there is by now, and what was waited for, one letter each: d a daemon, w a worker, r a run. */
struct lab {
    pid_t daemon, worker, trainer;
    char waited[8];
};

static void start_daemon(struct lab *lab)
{
    lab->daemon = processes_start("epsd", (const char *const[]){"--listen", "lab", NULL}, NULL);
}

static void start_worker(struct lab *lab)
{
    lab->worker = processes_worker("lab", "64MiB", NULL);
}

static void start_trainer(struct lab *lab)
{
    const char *const trainer[] = {"train", "--connect", "lab",     "--model", "tiny.json", "--data", "tiny.txt",
                                   "--out", "trained",   "--steps", "100000",  "--batch",   "4",      NULL};

    lab->trainer = processes_start("eps", trainer, NULL);
}

static void on_note(void *user, const char *sentence)
{
    struct lab *lab = user;

    if (strcmp(sentence, "waiting for the daemon lab") == 0) {
        strcat(lab->waited, "d");
        start_daemon(lab);
    } else if (strcmp(sentence, "waiting for a worker to attach to the daemon lab") == 0) {
        strcat(lab->waited, "w");
        start_worker(lab);
    } else {
        ck_assert_str_eq(sentence, "waiting for a run of the daemon lab to begin");
        strcat(lab->waited, "r");
        start_worker(lab);
        start_trainer(lab);
    }
}

static void end(const struct lab *lab)
{
    kill(lab->daemon, SIGTERM);
    ck_assert_int_eq(processes_wait(lab->daemon), 0);
    ck_assert_int_eq(processes_wait(lab->worker), 0);
    processes_await_free("lab");
}

static int train(const char *directory, struct lab *lab, struct eps_error *error)
{
    static const struct eps_train_events events = {.on_note = on_note};
    struct eps_train_options options = processes_options("tiny.json", files, directory);

    options.connect = "lab", options.device_mem = 0, options.steps = 1;
    options.eval_data = NULL; /* of data that are trained on, too, there is a note */
    return eps_train(&options, &events, lab, error);
}

/* On the lab's daemon, or without a lab on processes of its own. */
static double loss;
static uint64_t n_evaluated;

static int evaluate(const char *model, struct lab *lab, struct eps_error *error)
{
    static const struct eps_eval_events events = {.on_note = on_note};
    struct eps_eval_options options = eps_eval_defaults();

    options.model = model, options.data = files, options.n_data = 1, options.programs = BIN_DIR;
    options.connect = lab ? "lab" : NULL, options.device_mem = lab ? 0 : 128 << 20;
    return eps_eval(&loss, &n_evaluated, &options, lab ? &events : NULL, lab, error);
}

static uint32_t ids[N_TOKENS], n_ids;

static void on_token(void *user, uint32_t id, const char *text, size_t n)
{
    (void)user;
    (void)text;
    (void)n;
    ids[n_ids++ % N_TOKENS] = id;
}

static int generate(const char *model, struct lab *lab, struct eps_error *error)
{
    static const struct eps_generate_events alone = {.on_token = on_token}, noted = {.on_note = on_note};
    const struct eps_prompt prompt = {.text = "The", .n_bytes = 3};
    struct eps_generate_options options = eps_generate_defaults();
    struct eps_generated out;

    options.connect = lab ? "lab" : NULL, options.device_mem = lab ? 0 : 128 << 20;
    options.model = model, options.programs = BIN_DIR;
    options.prompts = &prompt, options.n_prompts = 1;
    options.n_tokens = N_TOKENS;
    return eps_generate(&out, &options, lab ? &noted : &alone, lab, error);
}

/* A run; a directory's model on the daemon's workers; the model that a daemon trains, which may not have begun. */
TEST_EACH(whoever_names_a_daemon_waits_for_it_and_for_what_it_needs, 5)
{
    static const struct {
        int (*act)(const char *directory, struct lab *lab, struct eps_error *error);
        const char *directory, *waited;
    } cases[] = {
        {train, "waited", "dw"}, {evaluate, "alone/latest", "dw"}, {generate, "alone/latest", "dw"},
        {evaluate, NULL, "dr"},  {generate, NULL, "dr"},
    };
    struct lab lab = {.waited = ""};
    struct eps_error error;

    for (int again = 0; again < 2; again++) { /* who need not wait hears nothing */
        lab.waited[0] = 0;
        const int rc = cases[_i].act(_i == 0 && again ? "again" : cases[_i].directory, &lab, &error);
        ck_assert_msg(rc == 0, "%s", error.text);
        ck_assert_str_eq(lab.waited, again ? "" : cases[_i].waited);
    }
    if (lab.trainer) {
        kill(lab.trainer, SIGKILL);
        ck_assert_int_eq(processes_wait(lab.trainer), 128 + SIGKILL);
    }
    end(&lab); /* which saves what the killed run had done */
    expect("rm -rf trained", 0);
}

TEST(a_daemon_is_waited_for_a_minute_unless_another_time_is_asked_for)
{
    struct client_await await = {0};
    struct error err;

    ck_assert_int_eq(client_await_init(&await, NAN, "lab", &err), 0);
    ck_assert_uint_eq(await.ms, 60000);
    ck_assert_int_eq(client_await_init(&await, NAN, NULL, &err), 0);
    ck_assert_int_eq(client_await_init(&await, 0.25, "lab", &err), 0);
    ck_assert_uint_eq(await.ms, 250);
}

/* All wait at the same time, as long as they say, which may be not at all. */
TEST_EACH(the_wait_ends_with_what_is_missing_and_how_to_get_it, 2)
{
    static const char *const whats[] = {"train", "with", "eval", "live"};
    const char *after = _i ? "" : " after 0.3 s";
    struct lab lab = {.waited = ""};

    start_daemon(&lab);
    processes_await_workers("lab", 0);
    expect(
        print(
            "for name in nobody lab; do to() { eps \"$@\" --connect $name --wait %s >$what-$name.out 2>$what-$name.err "
            "& }; "
            "what=train; to train --model tiny.json --data tiny.txt; what=with; to generate --model alone --prompt x; "
            "what=eval; to eval --data tiny.txt; what=live; to generate; done; wait",
            _i ? "0" : "0.3"),
        0);
    for (int i = 0; i < COUNT(whats); i++) {
        expect_file(print("%s-nobody.err", whats[i]),
                    print("no daemon nobody%s: start one with epsd --listen nobody, or check the address", after));
        expect_file(print("%s-lab.err", whats[i]),
                    i < 2 ? print("the daemon lab has no worker%s: attach one with eps-worker --connect lab", after)
                          : "trains nothing");
        if (_i)
            expect(print("! grep waiting %s-lab.* %s-nobody.*", whats[i], whats[i]), 0);
    }
    expect_file("eval-lab.err", "--model");
    expect("eps eval --data tiny.txt", 2, "--model is needed", "live"); /* one that trains nothing is none */
    expect("eps generate --ids 1", 2, "--model is needed", "live");
    kill(lab.daemon, SIGTERM);
    ck_assert_int_eq(processes_wait(lab.daemon), 0);
}

static uint64_t save(void)
{
    struct eps_error error;
    uint64_t step;

    ck_assert_msg(eps_save(NULL, &step, &error) == 0, "%s", error.text);
    return step;
}

/* Its loss and its text; the rest beyond the last whole window counts too. */
static void ask(const char *model)
{
    struct eps_error error;

    ck_assert_msg(evaluate(model, NULL, &error) == 0, "%s", error.text);
    ck_assert_uint_eq(n_evaluated, 7999);
    n_ids = 0;
    ck_assert_msg(generate(model, NULL, &error) == 0, "%s", error.text);
    ck_assert_uint_eq(n_ids, N_TOKENS);
}

/* Looks at a run as it goes, and again with its client stopped, so that the model stands still: then what is live is
 * what a checkpoint of the same moment holds. The run ends as one that nobody looked at. */
TEST(a_live_model_is_asked_and_its_training_goes_on_untouched)
{
    uint64_t before, after;
    uint32_t live_ids[N_TOKENS];
    double live;
    const char *const arguments[] = {"-c", "exec " BIN_DIR "/eps " TRAIN("watched") " >/dev/null", NULL};
    const pid_t pid = processes_start("/bin/sh", arguments, NULL);

    processes_await_count("watched/metrics.jsonl", "\n", 3);
    ck_assert_int_eq(kill(pid, SIGSTOP), 0); /* it would be through before the others have begun */
    do {                                     /* until no step that was open ends between the two */
        before = save();
        ask(NULL);
        after = save();
    } while (before != after);
    ck_assert_uint_lt(after, N_STEPS);
    live = loss;
    memcpy(live_ids, ids, sizeof ids);
    ask(print("watched/step-%d", (int)after));
    ck_assert_int_eq(kill(pid, SIGCONT), 0);
    ck_assert_int_eq(processes_wait(pid), 0);
    ck_assert_double_eq(live, loss);
    ck_assert_mem_eq(live_ids, ids, sizeof ids);
    expect("test $(wc -l <watched/metrics.jsonl) = 60 && cmp alone/latest/model.safetensors "
           "watched/latest/model.safetensors && cmp alone/latest/optimizer.safetensors "
           "watched/latest/optimizer.safetensors",
           0);
}

struct hearing {
    uint64_t n_tokens, n_all, stop_at; /* tokens */
    unsigned n_told;
};

static void on_evaluating(void *user, uint64_t n_tokens, uint64_t n_all)
{
    struct hearing *h = user;

    /* A row of the model's positions at a time, and the rest. */
    ck_assert_uint_eq(n_tokens, h->n_told * 64 < 7999 ? h->n_told * 64 : 7999);
    h->n_tokens = n_tokens, h->n_all = n_all;
    h->n_told++;
}

static int should_stop(void *user)
{
    const struct hearing *h = user;
    return h->n_tokens >= h->stop_at;
}

/* 8000 bytes are 124 windows of 64, and 63 tokens more that have a successor. */
TEST(an_evaluation_says_how_far_it_is_and_can_be_stopped)
{
    static const struct eps_eval_events events = {.on_evaluating = on_evaluating, .should_stop = should_stop};
    struct eps_eval_options options = {.model = "alone", .data = files, .n_data = 1, .programs = BIN_DIR, .batch = 1};
    struct hearing whole = {.stop_at = UINT64_MAX}, part = {.stop_at = 640}, none = {.stop_at = 0};
    struct eps_error error;
    uint64_t n;

    ck_assert_msg(eps_eval(&loss, &n, &options, &events, &whole, &error) == 0, "%s", error.text);
    ck_assert_uint_eq(n, 124 * 64 + 63);
    ck_assert_uint_eq(whole.n_all, n);
    ck_assert_uint_eq(whole.n_tokens, n);
    ck_assert_int_eq(eps_eval(&loss, &n, &options, &events, &part, &error), -EINTR);
    ck_assert_str_eq(error.text, "interrupted");
    ck_assert_uint_ge(part.n_tokens, 640);
    ck_assert_uint_lt(part.n_tokens, whole.n_tokens);
    ck_assert_int_eq(eps_eval(&loss, &n, &options, &events, &none, &error), -EINTR);
    ck_assert_uint_eq(none.n_told, 0);
    ck_assert(!processes_find("epsd") && !processes_find("eps-worker"));
}

/* A minute in which the process is stopped, or the machine sleeps, is none of its waiting. */
TEST_IF(time_that_nobody_was_awake_in_is_not_waited, !SANITIZED) /* which wants to be preloaded first */
{
    struct lab lab = {.waited = ""};

    start_daemon(&lab);
    processes_await_workers("lab", 0);
    setenv("JUMP_CLOCK", processes_path("jump"), 1);
    const pid_t run =
        processes_start("/bin/sh",
                        (const char *const[]){"-c",
                                              "LD_PRELOAD=" BIN_DIR "/libjump_clock.so exec " BIN_DIR
                                              "/eps train --model tiny.json --data tiny.txt --steps 1 --batch 4 "
                                              "--connect lab --out jumped >jump.said 2>jump.err",
                                              NULL},
                        NULL);
    processes_await_text("jump.said", "waiting for a worker to attach to the daemon lab");
    processes_put_text("jump", "");
    start_worker(&lab);
    const int status = processes_wait(run);
    ck_assert_msg(status == 0, "%d: %s", status, processes_read("jump.err"));
    end(&lab);
}
