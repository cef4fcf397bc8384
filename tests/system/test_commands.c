/* The eps command at work: real runs with real processes, and what they leave, print and answer. */
#include "tests/kit/command.h"
#include "tests/kit/outputs.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

SUITE_LABELS(long, slow)

static void setup(void)
{
    processes_setup();
    processes_config("tiny.json", 1, 2, 16, 32);
    processes_text("tiny.txt", 8000);
}

SUITE_FIXTURE_ONCE(setup, processes_remove)

/* A run of the tiny model that has to succeed. */
static void train(const char *out, const char *more)
{
    expect(
        print("eps train --model tiny.json --data tiny.txt --eval-data tiny.txt --out %s --batch 4 --device-mem 256MiB "
              "%s",
              out, more),
        0);
    ck_assert_str_eq(command_err(), "");
}

static double number_at(json_t *object, const char *key)
{
    ck_assert_msg(json_is_number(json_object_get(object, key)), "no number %s", key);
    return json_number_value(json_object_get(object, key));
}

TEST(a_run_in_a_pipe_prints_lines_and_leaves_its_files)
{
    train("piped", "--steps 5 --eval-every 2");
    expect_absent("out", "\r", "\033");
    ck_assert_uint_eq(processes_count("out", "\nstep 1/5  loss "), 1);
    ck_assert_uint_eq(processes_count("out", "\nstep 5/5  loss "), 1);
    ck_assert_uint_eq(processes_count("out", "held-out loss after "), 4); /* 0, 2, 4 and 5 steps */
    expect_file("out", "\nloss         ", " at step 5; held out ", " tokens/s over 5 steps\n",
                " of 256.0 MiB at most (as planned)\n             host ", "weights in piped/step-5,",
                "eps generate --model piped/latest");
    ck_assert_uint_eq(processes_count("piped/metrics.jsonl", "\n"), 5);
    ck_assert_uint_eq(processes_count("piped/metrics.jsonl", "\"eval_loss\""), 3);
    ck_assert_uint_eq(processes_count("piped/metrics.jsonl", "\"eval_loss_before\""), 1);
    ck_assert_uint_eq(processes_count("out", "the lowest held-out loss: weights in piped/best"), 1);
    ck_assert_int_eq(access("piped/latest/model.safetensors", R_OK), 0);
    ck_assert_int_eq(access("piped/step-5/config.json", R_OK), 0);
}

/* The last line of metrics.jsonl; to be released. */
static json_t *last_step(const char *path)
{
    char *metrics = processes_read(path);

    metrics[strlen(metrics) - 1] = 0;
    const char *line = strrchr(metrics, '\n');
    json_t *step = json_loads(line ? line + 1 : metrics, 0, NULL);
    ck_assert_ptr_nonnull(step);
    free(metrics);
    return step;
}

static bool somebody_works(void *context)
{
    (void)context;
    return processes_find("eps-worker");
}

/* A text that takes long, for it is read a row at a time. */
TEST(an_interrupted_eval_leaves_nothing)
{
    static const char *const arguments[] = {"eval", "--model", "evaluated", "--data", "long.txt", "--batch", "1", NULL};

    processes_text("long.txt", 2000000);
    train("evaluated", "--steps 1");
    unlink("err");
    pid_t pid = processes_start("eps", arguments, "err");
    ck_assert(processes_until(somebody_works, NULL));
    ck_assert_int_eq(kill(pid, SIGINT), 0);
    ck_assert_int_eq(processes_wait(pid), 130);
    ck_assert(processes_nobody()); /* at once: they were waited for */
    outputs_check_file("err", "eps eval: interrupted\n");
    ck_assert_int_eq(system("rm -r evaluated"), 0);
}

/* The same weights over the same text, in other batches: the order of double sums differs, fp32 rows do not. */
TEST(eval_finds_the_loss_that_the_run_ended_with)
{
    train("evaluated", "--steps 3");
    json_t *step = last_step("evaluated/metrics.jsonl");

    json_t *result =
        expect_json("eps eval --model evaluated/latest --data tiny.txt --json --batch 7 --device-mem 256MiB", 0);
    ck_assert_double_eq_tol(number_at(result, "loss"), number_at(step, "eval_loss"), 1e-6);
    ck_assert_double_eq(number_at(result, "tokens"), 7999); /* the 31 beyond the last whole window too */
    json_decref(result);
    expect("eps eval --model evaluated/latest --data tiny.txt --connect nobody", 1);
    json_decref(step);
}

/* The shape of gpt2 is too large for a test; that the first line says it is enough, as memory is refused after it. */
TEST(fresh_weights_of_gpt2_are_the_first_thing_said)
{
    expect_sentence("eps train --model gpt2 --data tiny.txt --out fresh --steps 1 --device-mem 1KiB", 1,
                    "--device-mem");
    ck_assert_msg(strncmp(command_out(), "note         gpt2 begins with fresh random weights; ", 51) == 0, "%s",
                  command_out());
    ck_assert_ptr_nonnull(strstr(command_out(), "hf download openai-community/gpt2"));
    ck_assert_int_ne(access("fresh", F_OK), 0);
}

TEST(training_goes_on_from_saved_weights)
{
    train("begun", "--steps 20 --lr 0.01");
    json_t *step = last_step("begun/metrics.jsonl");
    expect("eps train --model begun/latest --data tiny.txt --eval-data tiny.txt --out on --batch 4 --steps 1 "
           "--eval-every 1",
           0, print("held-out loss after 0 steps: %.4f", number_at(step, "eval_loss")),
           "rate         2e-05" /* the default for weights that come from a file */);
    json_decref(step);
}

/* The loss over a text is that of its whole windows, and that of the rest as a text of its own. */
TEST(eval_counts_the_rest_of_a_window)
{
    char *content = processes_read("tiny.txt");
    double loss[3], tokens[3];
    json_t *result;

    train("rested", "--steps 1");
    processes_write("whole.txt", content, 7969);
    processes_write("rest.txt", content + 7968, 32);
    static const char *const arguments[] = {"tiny.txt", "whole.txt", "rest.txt --seq 31"};
    for (int i = 0; i < 3; i++) {
        result = expect_json(print("eps eval --model rested --data %s --json --device-mem 256MiB", arguments[i]), 0);
        loss[i] = number_at(result, "loss"), tokens[i] = number_at(result, "tokens");
        json_decref(result);
    }
    ck_assert_double_eq(tokens[1], 7968);
    ck_assert_double_eq(tokens[2], 31);
    ck_assert_double_eq_tol(loss[0] * tokens[0], loss[1] * tokens[1] + loss[2] * tokens[2], 1e-4 * tokens[0]);
    ck_assert_double_eq_tol(loss[0] * tokens[0] - loss[1] * tokens[1], loss[2] * tokens[2], 1e-2);
    result = expect_json("eps eval --model rested --data tiny.txt --json --eval-tokens 100", 0);
    ck_assert_double_eq(number_at(result, "tokens"), 96);
    json_decref(result);
    free(content);
}

/* A rate of 1 makes of fresh weights something worse than they were, at once. */
TEST(patience_ends_a_run_that_gets_no_better)
{
    train("patient", "--steps 9 --lr 1 --warmup 0 --eval-every 1 --patience 2");
    ck_assert_uint_eq(processes_count("patient/metrics.jsonl", "\n"), 2);
    expect_file("out", "stopped early after step 2 of 9: none of the last 2 evaluations",
                "eps generate --model patient/latest");
    ck_assert_int_eq(access("patient/step-2/training.json", R_OK), 0);
    ck_assert_int_ne(access("patient/best", F_OK), 0); /* the best were the weights that it began with */
}

/* The step of the lowest eval_loss in a run's metrics.jsonl. */
static json_int_t lowest(const char *path)
{
    char *metrics = processes_read(path);
    double least = INFINITY;
    json_int_t step = 0;

    for (char *line = strtok(metrics, "\n"); line; line = strtok(NULL, "\n")) {
        json_t *object = json_loads(line, 0, NULL);
        const json_t *loss = json_object_get(object, "eval_loss");
        if (loss && json_number_value(loss) < least) {
            least = json_number_value(loss);
            step = json_integer_value(json_object_get(object, "step"));
        }
        json_decref(object);
    }
    free(metrics);
    return step;
}

static void names_lowest(const char *run)
{
    char path[64], target[64] = "", wanted[64];

    snprintf(path, sizeof path, "%s/metrics.jsonl", run);
    snprintf(wanted, sizeof wanted, "step-%lld", (long long)lowest(path));
    snprintf(path, sizeof path, "%s/best", run);
    ck_assert_int_gt(readlink(path, target, sizeof target - 1), 0);
    ck_assert_str_eq(target, wanted);
    snprintf(path, sizeof path, "%s/best/model.safetensors", run);
    ck_assert_int_eq(access(path, R_OK), 0);
}

/* Down at first, then with a rate that ruins it: the best is neither the newest nor kept by number. */
TEST(the_best_checkpoint_is_marked_and_kept)
{
    train("good", "--steps 6 --lr 0.01 --warmup 0 --eval-every 2 --save-every 6 --keep 1");
    names_lowest("good");
    json_t *before = last_step("good/metrics.jsonl");
    expect("eps train --model good/best --data tiny.txt --eval-data tiny.txt --out worse --batch 4 --steps 5 --lr 1e-9 "
           "--eval-every 1 --keep 1 --device-mem 256MiB",
           0);
    names_lowest("worse");
    expect("eps train --resume worse --steps 7", 0); /* goes on counting from there */
    names_lowest("worse");
    json_decref(before);
}

/* What transformers needs beside the weights, which came with nothing. */
TEST(what_was_trained_on_bytes_says_so_to_others)
{
    train("bytes", "--steps 1");
    expect_file("bytes/latest/tokenizer.json", "ByteLevel");
    expect_file("bytes/latest/config.json", "\"eos_token_id\": null", "\"bos_token_id\": null");
}

TEST(data_that_was_piped_in_is_asked_for_again)
{
    expect("eps train --model tiny.json --data - --out piped_in --batch 4 --steps 2 --device-mem 256MiB <tiny.txt", 0);
    expect_sentence("eps train --resume piped_in --steps 3 </dev/null", 2, "standard input", "--data -");
    expect_sentence("eps train --resume piped_in --steps 3 --data - </dev/null", 1, "--data -",
                    "not what the run was trained on");
    expect("eps train --resume piped_in --steps 3 --data tiny.txt", 0); /* the same content */
}

static bool has_steps(void *metrics)
{
    return processes_count(metrics, "\n") >= 2;
}

TEST_EACH(an_interrupt_takes_everything_down_in_order, 2)
{
    const int number = _i ? SIGTERM : SIGINT;
    static const char *const arguments[] = {"train", "--model",      "tiny.json", "--data",  "tiny.txt",
                                            "--out", "begin",        "--steps",   "1000000", "--batch",
                                            "4",     "--device-mem", "256MiB",    NULL};

    unlink("err");
    pid_t pid = processes_start("eps", arguments, "err");
    ck_assert(processes_until(has_steps, "begin/metrics.jsonl"));
    ck_assert_int_eq(kill(pid, number), 0);
    ck_assert_int_eq(processes_wait(pid), 128 + number);
    ck_assert(processes_nobody()); /* at once: they were waited for */
    expect_file("err", "eps train: interrupted after ");
    ck_assert_int_ne(system("ls run/eps | grep ."), 0);
    ck_assert_int_eq(system("rm -r begin"), 0);
}

static void check_sizes(json_t *side)
{
    const char *name;
    json_t *category;
    double current = 0;

    json_object_foreach(json_object_get(side, "categories"), name, category)
    {
        current += number_at(category, "current");
        ck_assert_double_ge(number_at(category, "peak"), number_at(category, "current"));
    }
    ck_assert_double_eq(current, number_at(side, "current"));
    ck_assert_double_ge(number_at(side, "peak"), current);
}

/* The shapes that programs rely on, from a daemon with a job under way. */
TEST(a_live_daemon_answers_in_stable_json)
{
    static const char *const arguments[] = {"train",   "--model", "tiny.json", "--data", "tiny.txt", "--out", "live",
                                            "--steps", "100000",  "--connect", "lab",    "--batch",  "4",     NULL};
    pid_t daemon = processes_daemon("lab", 2, NULL);
    pid_t client = processes_start("eps", arguments, "live.err");

    ck_assert(processes_until(has_steps, "live/metrics.jsonl"));
    json_t *status = expect_json("eps status --json", 0);
    ck_assert_str_eq(json_string_value(json_object_get(status, "state")), "training");
    ck_assert_double_ge(number_at(status, "step"), 2);
    ck_assert_ptr_nonnull(json_string_value(json_object_get(status, "model")));
    /* wte 256x16, wpe 32x16, a block of 12*16*16 + 13*16, a norm of 2*16 */
    ck_assert_double_eq(number_at(status, "parameters"), 256 * 16 + 32 * 16 + 12 * 256 + 13 * 16 + 32);
    ck_assert_double_eq(number_at(status, "workers"), 2);
    json_decref(status);

    json_t *memory = expect_json("eps mem lab --json", 0), *worker;
    size_t i;
    check_sizes(json_object_get(memory, "host"));
    ck_assert_uint_eq(json_array_size(json_object_get(memory, "workers")), 2);
    json_array_foreach(json_object_get(memory, "workers"), i, worker)
    {
        check_sizes(worker);
        ck_assert_double_ge(number_at(worker, "id"), 1);
        ck_assert_double_eq(number_at(worker, "budget"), 256 << 20);
        ck_assert_double_le(number_at(worker, "peak"), 256 << 20);
        ck_assert_str_eq(json_string_value(json_object_get(worker, "device")), "cpu");
    }
    json_decref(memory);

    expect("eps stop lab", 0);
    ck_assert_int_eq(processes_wait(client), 1);
    ck_assert_int_eq(processes_wait(daemon), 0);
    expect_file("live.err", "eps train: the daemon was stopped: the run ended after ", "; saved in live/step-",
                "; resume with: eps train --resume live\n");
    processes_await_nobody();
}

TEST(options_of_private_workers_do_not_go_with_a_daemon)
{
    pid_t daemon = processes_daemon("lab", 0, NULL);

    expect_sentence("eps train --model tiny.json --data tiny.txt --out no --connect lab", 1, "no worker", "eps-worker");
    expect_sentence("eps eval --model whole/latest --data tiny.txt --connect lab --device-mem 1GiB", 2, "--device-mem",
                    "--connect");
    ck_assert_int_eq(kill(daemon, SIGTERM), 0);
    ck_assert_int_eq(processes_wait(daemon), 0);
    daemon = processes_daemon("lab", 1, NULL);
    expect_sentence("eps train --model tiny.json --data tiny.txt --out no --connect lab --workers 2", 2, "--workers 2",
                    "--connect");
    expect_sentence("eps train --model tiny.json --data tiny.txt --out no --connect lab --device-mem 1GiB", 2,
                    "--device-mem", "--connect");
    ck_assert_int_ne(access("no", F_OK), 0);
    expect("eps stop", 0);
    ck_assert_int_eq(processes_wait(daemon), 0);
}
