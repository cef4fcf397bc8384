/* Training without a master, and with sums in bf16, in real programs: both round stochastically, and yet neither
 * memory, workers, a killed one nor an interruption changes a byte. */
#include "tests/kit/command.h"
#include "tests/kit/outputs.h"
#include "tests/kit/processes.h"
#include "tests/kit/runs.h"
#include "tests/kit/test.h"

SUITE_LABELS(long)
SUITE_TIMEOUT(240)

static void setup(void)
{
    processes_setup();
    processes_config("small.json", 2, 4, 32, 64);
    processes_text("text.txt", 6000);
}

SUITE_FIXTURE(setup, processes_remove)

TEST(no_budget_changes_a_bit_and_a_run_goes_on_at_another)
{
    expect("head -c 1000 text.txt >held.txt", 0);
    runs_check_budgets(
        "--model small.json --batch 6 --seq 24 --microbatch 3 --parts 2 --optimizer adamw --moments bf16 "
        "--clip-norm 0.5 --precision fp16 --grad-dtype bf16 --master none --sums bf16",
        "--data text.txt --eval-data held.txt --save-every 2 --keep 0 ", "");
}

/* Eager, with replay; fenced. */
TEST_EACH(workers_of_which_one_is_killed_make_the_bits_of_one, 2)
{
    static const char *const files[] = {"text.txt"};
    struct eps_train_options options = processes_options("small.json", files, "alone");

    options.steps = 5, options.batch = 12, options.parts = 4, options.microbatch = 2, options.seq = 16;
    options.deterministic = true, options.optimizer = EPS_ADAMW, options.master = EPS_MASTER_NONE;
    options.precision = _i ? EPS_FP16 : EPS_BF16;
    options.sums = _i ? EPS_BF16 : EPS_NUMBER_DEFAULT;
    runs_check_killed(&options);
}

/* Held out, at the end that `key` names. */
static double held_out(const char *run, const char *end, const char *key)
{
    json_t *line = expect_json(print("%s -n 1 %s/metrics.jsonl", end, run), 0);
    const double loss = json_number_at(line, key);

    json_decref(line);
    return loss;
}

/* At a rate at which most steps of AdamW are below bf16's spacing: to nearest, hardly a weight would move. */
TEST(it_learns_as_with_a_master)
{
    expect("eps train --model small.json --data text.txt --batch 8 --seq 32 --steps 120 --lr 2e-4 --schedule constant "
           "--precision bf16 --device cpu --eval-tokens 512 --eval-every 120 --out with",
           0);
    expect("eps train --model small.json --data text.txt --batch 8 --seq 32 --steps 120 --lr 2e-4 --schedule constant "
           "--precision bf16 --device cpu --eval-tokens 512 --eval-every 120 --master none --commit fenced --sums bf16 "
           "--out without",
           0);
    const double first = held_out("with", "head", "eval_loss_before"), with = held_out("with", "tail", "eval_loss");
    ck_assert_double_gt(first - with, 0.5);
    ck_assert_double_eq_tol(held_out("without", "tail", "eval_loss"), with, 0.05 * (first - with));
}

static const struct {
    const char *options, *says;
} refused[] = {
    {"--master none --precision fp32", "--master none is for weights in 16 bits: choose --precision bf16 or fp16"},
    {"--master none", "weights in fp32 are their own master: choose --precision bf16 for --master none"},
    {"--sums bf16", "--sums bf16 is for --commit fenced, which holds the sums"},
    {"--sums fp16", "--sums 'fp16': fp32|bf16 is needed"},
};

TEST_EACH(what_does_not_go_together_is_refused, COUNT(refused))
{
    expect(print("eps train --model small.json --data text.txt --device cpu --out r %s", refused[_i].options),
           _i == 1 ? 1 : 2, refused[_i].says);
    expect("test ! -e r", 0);
}
