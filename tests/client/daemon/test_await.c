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

static int train(const char *directory, struct lab *lab, struct eps_error *error)
{
    static const struct eps_train_events events = {.on_note = on_note};
    struct eps_train_options options = processes_options(model, (const char *const[]){text}, directory);

    options.connect = "lab", options.device_mem = 0, options.steps = 1;
    return eps_train(&options, &events, lab, error);
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

/* A run; a directory's model on the daemon's workers; the model that a daemon trains, which may not have begun. */
TEST_EACH(whoever_names_a_daemon_waits_for_it_and_for_what_it_needs, 5)
{
    static const struct {
        int (*act)(const char *directory, struct lab *lab, struct eps_error *error);
        const char *directory, *waited;
    } cases[] = {
        {train, "waited", "dw"},
        {evaluate, "source/latest", "dw"},
        {generate, "source/latest", "dw"},
        {evaluate, NULL, "dr"},
        {generate, NULL, "dr"},
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
        expect("rm -r trained", 0);
    }
    end(&lab);
}

/* All wait at the same time. */
TEST(the_wait_ends_with_what_is_missing_and_how_to_get_it)
{
    struct lab lab = {.waited = ""};

    start_daemon(&lab);
    expect("for name in nobody lab; do eps train --model tiny.json --data tiny.txt --connect $name 2>$name.err & "
           "eps eval --data tiny.txt --connect $name 2>eval-$name.err & eps generate --connect $name 2>gen-$name.err & "
           "done; wait",
           0);
    for (int i = 0; i < 3; i++)
        expect_file(print("%snobody.err", ((const char *const[]){"", "eval-", "gen-"})[i]),
                    "no daemon nobody after 10 s: start one with epsd --listen nobody, or check the address");
    expect_file("lab.err", "the daemon lab has no worker after 10 s: attach one with eps-worker --connect lab");
    expect_file("eval-lab.err", "trains nothing", "--model");
    expect_file("gen-lab.err", "trains nothing", "--model");
    expect("eps eval --data tiny.txt", 2, "--model is needed", "live"); /* one that trains nothing is none */
    expect("eps generate --ids 1", 2, "--model is needed", "live");
    kill(lab.daemon, SIGTERM);
    ck_assert_int_eq(processes_wait(lab.daemon), 0);
}
