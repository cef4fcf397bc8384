/* Training without a master, and with sums in bf16, in real programs: both round stochastically, and yet they
 * learn. That no way to run it changes a bit: tests/system/invariants. */
#include "tests/kit/command.h"
#include "tests/kit/processes.h"
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
