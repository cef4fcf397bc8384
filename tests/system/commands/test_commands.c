/* The eps command at work: real runs with real processes, and what they leave, print and answer. */
#include "tests/kit/command.h"
#include "tests/kit/outputs.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

SUITE_LABELS(long, slow)

#define TRAIN "eps train --model tiny.json --data tiny.txt --eval-data tiny.txt --batch 4 --device-mem 256MiB "
#define EVAL  "eps eval --json --device-mem 256MiB --model piped "

static void setup(void)
{
    processes_setup();
    processes_config("tiny.json", 1, 2, 16, 32);
    char *text = processes_read(processes_text("tiny.txt", 8000));
    processes_write("whole.txt", text, 7969); /* of windows of 32 tokens, and what is left */
    processes_write("rest.txt", text + 7968, 32);
    free(text);
    expect(TRAIN "--out piped --steps 5 --lr 0.01 --eval-every 2", 0);
}

SUITE_FIXTURE_ONCE(setup, processes_remove)

TEST(a_run_in_a_pipe_prints_lines_and_leaves_its_files)
{
    static const struct {
        const char *file, *text;
        unsigned n;
    } counts[] = {
        {"out", "held-out loss after ", 4}, /* 0, 2, 4 and 5 steps */
        {"out", "\nbest         ", 1},
        {"out", " after 5 steps, weights in piped/best\n", 1},
        {"piped/metrics.jsonl", "\n", 5},
        {"piped/metrics.jsonl", "\"eval_loss\"", 3},
        {"piped/metrics.jsonl", "\"eval_loss_before\"", 1},
    };

    ck_assert_str_eq(command_err(), "");
    expect_absent("out", "\r", "\033");
    for (int i = 0; i < COUNT(counts); i++)
        ck_assert_msg(processes_count(counts[i].file, counts[i].text) == counts[i].n, "%s", counts[i].text);
    expect_file("out", "\nstep 1/5  loss ", "\nstep 5/5  loss ", "\nloss         ", " at step 5\nheld out     ",
                " after 5 steps, ", " before the first\n", "(perplexity ", "parameters: 5 steps, ",
                " tokens/s over 5 steps\n", " of 256.0 MiB at most (as planned)\n             host ",
                "weights in piped/step-5,", "eps generate --model piped/latest");
    ck_assert_int_eq(access("piped/latest/model.safetensors", R_OK), 0);
    /* What transformers needs beside the weights, which came with nothing. */
    expect_file("piped/latest/tokenizer.json", "ByteLevel");
    expect_file("piped/step-5/config.json", "\"eos_token_id\": null", "\"bos_token_id\": null");
}

/* Among them the plan's; as many lines as settings with --verbose, also behind a list of files. */
TEST(six_lines_say_what_a_run_is_or_all_of_them)
{
    static const char run[] = "eps train --model tiny.json --steps 2 --device-mem 256MiB --batch 4 --seq 32 ";
    const char *const labels[] = {"model ", "data ", "steps ", "saves ", "plan ", "memory ", "held-out ", "step 1/2 "};

    expect(print("%s --data tiny.txt --out brief", run), 0);
    const char *line = command_out();
    for (int i = 0; i < COUNT(labels); i++, line += strcspn(line, "\n") + 1)
        ck_assert_msg(strncmp(line, labels[i], strlen(labels[i])) == 0, "%s", command_out());
    expect(print("%s --out whole --data tiny.txt -v", run), 0, "optimizer    adamw, ", "commit       eager\n",
           "numbers      fp32, ", "checkpoints  ", "plan         micro-batches of ", "planned      device ");
    ck_assert_ptr_null(strstr(command_out(), "saves "));
}

/* The last held-out loss of a run, and the lowest and its step. */
struct losses {
    double last, least;
    json_int_t step;
};

static struct losses losses_of(const char *run)
{
    char *metrics = processes_read(print("%s/metrics.jsonl", run));
    struct losses out = {.least = INFINITY};

    for (char *line = strtok(metrics, "\n"); line; line = strtok(NULL, "\n")) {
        json_t *object = json_loads(line, 0, NULL);
        json_int_t step = 0;
        if (json_unpack(object, "{s:I, s:F}", "step", &step, "eval_loss", &out.last) == 0 && out.last < out.least)
            out.least = out.last, out.step = step;
        json_decref(object);
    }
    free(metrics);
    return out;
}

static double evaluate(const char *arguments, json_int_t n_tokens)
{
    json_t *result = expect_json(print(EVAL "%s", arguments), 0);
    json_int_t tokens;
    double loss;

    ck_assert_int_eq(json_unpack(result, "{s:F, s:I}", "loss", &loss, "tokens", &tokens), 0);
    ck_assert_int_eq(tokens, n_tokens);
    json_decref(result);
    return loss;
}

/* The same weights over the same text, in other batches: the order of double sums differs, fp32 rows do not. The loss
 * over a text is that of its whole windows, and that of the rest as a text of its own. */
TEST(eval_finds_the_loss_that_the_run_ended_with)
{
    const double all = evaluate("--data tiny.txt --batch 7", 7999);
    const double whole = evaluate("--data whole.txt", 7968), rest = evaluate("--data rest.txt --seq 31", 31);

    ck_assert_double_eq_tol(all, losses_of("piped").last, 1e-6);
    ck_assert_double_eq_tol(all * 7999 - whole * 7968, rest * 31, 1e-2);
    evaluate("--data tiny.txt --eval-tokens 100", 96);
}

/* The shape of gpt2 is too large for a test; that the first line says it is enough, as memory is refused after it. */
TEST(fresh_weights_of_gpt2_are_the_first_thing_said)
{
    expect_sentence("eps train --model gpt2 --data tiny.txt --out fresh --steps 1 --device-mem 1KiB", 1,
                    "--device-mem");
    ck_assert_int_eq(strncmp(command_out(), "note         gpt2 begins with fresh random weights; ", 51), 0);
    ck_assert_int_ne(access("fresh", F_OK), 0);
}

TEST(training_goes_on_from_saved_weights)
{
    expect("eps train --model piped/latest --data tiny.txt --eval-data tiny.txt --out on --batch 4 --steps 1 "
           "--eval-every 1",
           0, print("held-out loss after 0 steps: %.4f", losses_of("piped").last),
           "; rate 2e-05 to 2e-06; " /* the default for weights that come from a file */);
}

/* A rate of 1 makes of fresh weights something worse than they were, at once. */
TEST(patience_ends_a_run_that_gets_no_better)
{
    expect(TRAIN "--out patient --steps 9 --lr 1 --warmup 0 --eval-every 1 --patience 2", 0,
           "stopped early after step 2 of 9: none of the last 2 evaluations", "eps generate --model patient/latest");
    ck_assert_uint_eq(processes_count("patient/metrics.jsonl", "\n"), 2);
    ck_assert_int_eq(access("patient/step-2/training.json", R_OK), 0);
    ck_assert_int_ne(access("patient/best", F_OK), 0); /* the best were the weights that it began with */
}

static void best_is_lowest(const char *run, bool is_last)
{
    const struct losses losses = losses_of(run);
    char target[64] = "";

    ck_assert(readlink(print("%s/best", run), target, sizeof target - 1) > 0);
    ck_assert_str_eq(target, print("step-%lld", (long long)losses.step));
    ck_assert_int_eq(access(print("%s/best/model.safetensors", run), R_OK), 0);
    ck_assert(is_last == (losses.last <= losses.least));
}

/* Down at first, then with a rate that ruins it: the best is neither the newest nor kept by number. */
TEST(the_best_checkpoint_is_marked_and_kept)
{
    expect(TRAIN "--out good --steps 4 --lr 0.01 --warmup 0 --eval-every 2 --save-every 6 --keep 1", 0);
    best_is_lowest("good", true);
    expect("eps train --resume good --steps 8 --change lr,min-lr --lr 1 --min-lr 1", 0);
    best_is_lowest("good", false);
}

/* As an interrupt during the last evaluation leaves it. */
TEST(a_run_that_lacks_its_last_evaluation_alone_makes_it_up)
{
    expect(TRAIN "--out short --steps 2 && cp short/metrics.jsonl . && sed -i '$s/, .eval_loss.: [0-9.]*//' "
                 "short/metrics.jsonl && ! cmp -s metrics.jsonl short/metrics.jsonl",
           0);
    expect("eps train --resume short", 0, "held-out loss after 2 steps: ", "\nheld out     ",
           "eps generate --model short/latest");
    expect_absent("out", "speed  ", "at step", "report.svg");
    expect("cmp metrics.jsonl short/metrics.jsonl", 0);
    expect("eps train --resume short", 1, "the run is complete");
}

TEST(data_that_was_piped_in_is_asked_for_again)
{
    expect("eps train --model tiny.json --data - --out piped_in --batch 4 --steps 2 --device-mem 256MiB <tiny.txt", 0);
    expect_sentence("eps train --resume piped_in --steps 3 </dev/null", 2, "standard input", "--data -");
    expect_sentence("eps train --resume piped_in --steps 3 --data - </dev/null", 1, "--data -",
                    "not what the run was trained on");
    expect("eps train --resume piped_in --steps 3 --data tiny.txt", 0); /* the same content */
}

/* Of a run two steps are done; or there is a worker. */
static bool works(void *metrics)
{
    return metrics ? processes_count(metrics, "\n") >= 2 : processes_find("eps-worker") != 0;
}

/* An evaluation takes long where the text is read a row at a time. All are waited for. */
TEST_EACH(an_interrupt_takes_everything_down_in_order, 3)
{
    static const char *const eval[] = {"eval", "--model", "piped", "--data", "long.txt", "--batch", "1", NULL};
    static const char *const train[] = {"train",   "--model", "tiny.json", "--data", "tiny.txt",     "--out",  "begin",
                                        "--steps", "1000000", "--batch",   "4",      "--device-mem", "256MiB", NULL};
    const int number = _i == 2 ? SIGTERM : SIGINT;

    processes_text("long.txt", 2000000);
    unlink("err");
    const pid_t pid = processes_start("eps", _i ? train : eval, "err");
    ck_assert(processes_until(works, _i ? "begin/metrics.jsonl" : NULL));
    ck_assert_int_eq(kill(pid, number), 0);
    ck_assert_int_eq(processes_wait(pid), 128 + number);
    ck_assert(processes_nobody()); /* at once */
    expect_file("err", _i ? "eps train: interrupted after " : "eps eval: interrupted\n");
    expect("ls $XDG_RUNTIME_DIR/eps | grep .; rm -rf begin", 0);
    ck_assert_str_eq(command_out(), "");
}

static void check_sizes(const json_t *side)
{
    const json_t *category;
    const char *name;
    double current = 0, total, peak, most;

    json_object_foreach(json_object_get(side, "categories"), name, category)
    {
        ck_assert_int_eq(json_unpack((json_t *)(uintptr_t)category, "{s:F, s:F}", "current", &total, "peak", &peak), 0);
        ck_assert_double_ge(peak, total);
        current += total;
    }
    ck_assert_int_eq(json_unpack((json_t *)(uintptr_t)side, "{s:F, s:F}", "current", &total, "peak", &most), 0);
    ck_assert_double_eq(current, total);
    ck_assert_double_ge(most, current);
}

/* The shapes that programs rely on, from a daemon with a job under way; and what does not go with its workers. */
TEST(a_live_daemon_answers_in_stable_json)
{
    static const char *const arguments[] = {"train",   "--model", "tiny.json", "--data", "tiny.txt", "--out", "live",
                                            "--steps", "100000",  "--connect", "lab",    "--batch",  "4",     NULL};
    const pid_t daemon = processes_daemon("lab", 2, NULL), client = processes_start("eps", arguments, "live.err");
    json_t *memory, *worker;
    const char *state, *name;
    int step, parameters, workers;
    size_t i;

    ck_assert(processes_until(works, "live/metrics.jsonl"));
    json_t *status = expect_json("eps status --json", 0);
    ck_assert_int_eq(json_unpack(status, "{s:s, s:s, s:i, s:i, s:i}", "state", &state, "model", &name, "step", &step,
                                 "parameters", &parameters, "workers", &workers),
                     0);
    ck_assert_str_eq(state, "training");
    ck_assert(step >= 2 && workers == 2);
    /* wte 256x16, wpe 32x16, a block of 12*16*16 + 13*16, a norm of 2*16 */
    ck_assert_int_eq(parameters, 256 * 16 + 32 * 16 + 12 * 256 + 13 * 16 + 32);
    json_decref(status);

    memory = expect_json("eps mem lab --json", 0);
    check_sizes(json_object_get(memory, "host"));
    ck_assert_uint_eq(json_array_size(json_object_get(memory, "workers")), 2);
    json_array_foreach(json_object_get(memory, "workers"), i, worker)
    {
        int id, budget, peak;
        check_sizes(worker);
        ck_assert_int_eq(json_unpack(worker, "{s:i, s:i, s:i, s:s}", "id", &id, "budget", &budget, "peak", &peak,
                                     "device", &name),
                         0);
        ck_assert(id >= 1 && budget == 256 << 20 && peak <= budget);
        ck_assert_str_eq(name, "cpu");
    }
    json_decref(memory);

    expect_sentence("eps eval --model piped --data tiny.txt --connect lab --device-mem 1GiB", 2, "--device-mem",
                    "--connect");
    expect_sentence("eps train --model tiny.json --data tiny.txt --out no --connect lab --workers 2", 2, "--workers 2",
                    "--connect");
    expect_sentence("eps train --model tiny.json --data tiny.txt --out no --connect lab --device-mem 1GiB", 2,
                    "--device-mem", "--connect");
    ck_assert_int_ne(access("no", F_OK), 0);
    expect("eps stop lab", 0);
    ck_assert_int_eq(processes_wait(client), 1);
    ck_assert_int_eq(processes_wait(daemon), 0);
    expect_file("live.err", "eps train: the daemon was stopped: the run ended after ", "; saved in live/step-",
                "; resume with: eps train --resume live\n");
    processes_await_nobody();
}
