/* Models that are asked while others train them, and evaluations that say how far they are. Where there is no live model:
 * test_await. */
#include "client/ask/forward.h"
#include "tests/kit/command.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

SUITE_FIXTURE_ONCE(setup, processes_remove)

static double evaluate(const char *model, uint64_t *tokens)
{
    const struct eps_eval_options options = {
        .model = model, .data = files, .n_data = 1, .programs = BIN_DIR, .device_mem = 128 << 20};
    struct eps_error error;
    double loss;

    ck_assert_msg(eps_eval(&loss, tokens, &options, NULL, NULL, &error) == 0, "%s", error.text);
    return loss;
}

static void on_token(void *user, uint32_t id, const char *text_, size_t n)
{
    uint32_t **next = user;

    (void)text_;
    (void)n;
    *(*next)++ = id;
}

static void generate(uint32_t ids[N_TOKENS], const char *model)
{
    static const struct eps_generate_events events = {.on_token = on_token};
    struct eps_generate_options options = {.model = model, .programs = BIN_DIR, .prompt = "The", .prompt_bytes = 3};
    struct eps_generated out;
    struct eps_error error;

    options.n_tokens = N_TOKENS, options.temperature = options.top_p = NAN, options.device_mem = 128 << 20;
    ck_assert_msg(eps_generate(&out, &options, &events, &ids, &error) == 0, "%s", error.text);
    ck_assert_uint_eq(out.n_tokens, N_TOKENS);
}

static uint64_t save(void)
{
    struct eps_error error;
    uint64_t step;

    ck_assert_msg(eps_save(NULL, &step, &error) == 0, "%s", error.text);
    return step;
}

static bool is_training(void *context)
{
    (void)context;
    return processes_count("watched/metrics.jsonl", "\n") >= 3;
}

/* Looks at a run as it goes, and again with its client stopped, so that the model stands still: then what is live is
 * what a checkpoint of the same moment holds. The run ends as one that nobody looked at. */
TEST(a_live_model_is_asked_and_its_training_goes_on_untouched)
{
    uint32_t live_ids[N_TOKENS], saved_ids[N_TOKENS];
    uint64_t before, after, n_live, n_saved;
    double live, saved;
    const char *const arguments[] = {"-c", "exec " BIN_DIR "/eps " TRAIN("watched") " >/dev/null", NULL};
    const pid_t pid = processes_start("/bin/sh", arguments, NULL);

    ck_assert(processes_until(is_training, NULL));
    ck_assert_int_eq(kill(pid, SIGSTOP), 0); /* it would be through before the others have begun */
    do {                                     /* until no step that was open ends between the two */
        before = save();
        live = evaluate(NULL, &n_live);
        generate(live_ids, NULL);
        after = save();
    } while (before != after);
    ck_assert_uint_lt(after, N_STEPS);
    saved = evaluate(print("watched/step-%d", (int)after), &n_saved);
    generate(saved_ids, print("watched/step-%d", (int)after));
    ck_assert_int_eq(kill(pid, SIGCONT), 0);
    ck_assert_int_eq(processes_wait(pid), 0);

    ck_assert_double_eq(live, saved);
    ck_assert_uint_eq(n_live, 7999); /* the rest beyond the last whole window too */
    ck_assert_uint_eq(n_saved, n_live);
    ck_assert_mem_eq(live_ids, saved_ids, sizeof live_ids);
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
    double loss;

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
