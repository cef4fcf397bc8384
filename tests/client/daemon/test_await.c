/* Whoever names a daemon that is started a moment later, and workers a moment after that, is told and waits. Here the
 * note itself is what starts them. */
#include "tests/kit/command.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <math.h>
#include <signal.h>
#include <string.h>

static const char model[] = "tiny.json", text[] = "tiny.txt";

static void setup(void)
{
    processes_setup();
    processes_config(model, 1, 2, 16, 32);
    processes_text(text, 4000);
    expect("eps train --model tiny.json --data tiny.txt --out source --steps 1 --batch 4", 0);
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
    lab->worker =
        processes_start("eps-worker", (const char *const[]){"--connect", "lab", "--device-mem", "64MiB", NULL}, NULL);
}

static void start_trainer(struct lab *lab)
{
    lab->trainer = processes_start("eps",
                                   (const char *const[]){"train", "--connect", "lab", "--model", model, "--data", text,
                                                         "--out", "trained", "--steps", "100000", "--batch", "4", NULL},
                                   NULL);
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

TEST(a_run_waits_for_its_daemon_and_then_for_a_worker)
{
    static const struct eps_train_events events = {.on_note = on_note};
    struct lab lab = {.waited = ""};
    struct eps_train_options options = processes_options(model, (const char *const[]){text}, "waited");
    struct eps_error error;

    options.connect = "lab", options.device_mem = 0, options.steps = 1;
    const int rc = eps_train(&options, &events, &lab, &error);
    ck_assert_msg(rc == 0, "%s", error.text);
    ck_assert_str_eq(lab.waited, "dw");
    lab.waited[0] = 0; /* who need not wait hears nothing */
    options.out = processes_path("again");
    ck_assert_int_eq(eps_train(&options, &events, &lab, &error), 0);
    ck_assert_str_eq(lab.waited, "");
    end(&lab);
}

static int evaluate(const char *directory, struct lab *lab, struct eps_error *error)
{
    static const struct eps_eval_events events = {.on_note = on_note};
    const char *const files[] = {text};
    const struct eps_eval_options options = {.model = directory, .connect = "lab", .data = files, .n_data = 1};
    uint64_t tokens;
    double loss;

    return eps_eval(&loss, &tokens, &options, &events, lab, error);
}

static int generate(const char *directory, struct lab *lab, struct eps_error *error)
{
    static const struct eps_generate_events events = {.on_note = on_note};
    const struct eps_generate_options options = {
        .model = directory, .connect = "lab", .n_tokens = 2, .temperature = NAN, .top_p = NAN};
    struct eps_generated out;

    return eps_generate(&out, &options, &events, lab, error);
}

/* Of a directory's model, on the daemon's workers. */
TEST_EACH(an_evaluation_and_a_text_wait_for_both_too, 2)
{
    struct lab lab = {.waited = ""};
    struct eps_error error;

    const int rc = _i ? generate("source/latest", &lab, &error) : evaluate("source/latest", &lab, &error);
    ck_assert_msg(rc == 0, "%s", error.text);
    ck_assert_str_eq(lab.waited, "dw");
    end(&lab);
}

/* Of the model that a daemon trains, which may not have begun. */
TEST_EACH(a_live_model_is_waited_for, 2)
{
    struct lab lab = {.waited = ""};
    struct eps_error error;
    const int rc = _i ? generate(NULL, &lab, &error) : evaluate(NULL, &lab, &error);

    ck_assert_msg(rc == 0, "%s", error.text);
    ck_assert_str_eq(lab.waited, "dr");
    kill(lab.trainer, SIGKILL);
    ck_assert_int_eq(processes_wait(lab.trainer), 128 + SIGKILL);
    end(&lab);
    expect("rm -r trained", 0);
}

/* Both wait at the same time. */
TEST(the_wait_ends_with_what_is_missing_and_how_to_get_it)
{
    struct lab lab = {.waited = ""};

    start_daemon(&lab);
    expect("for name in nobody lab; do eps train --model tiny.json --data tiny.txt --connect $name 2>$name.err & done; "
           "wait",
           0);
    expect_file("nobody.err", "no daemon nobody after 10 s: start one with epsd --listen nobody, or check the address");
    expect_file("lab.err", "the daemon lab has no worker after 10 s: attach one with eps-worker --connect lab");
    kill(lab.daemon, SIGTERM);
    ck_assert_int_eq(processes_wait(lab.daemon), 0);
}
