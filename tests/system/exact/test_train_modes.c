/* Every combination of the options that change numbers, as somebody would try them: it trains in both numbers of parts
 * and workers, and stopping and going on changes no bit. */
#include "tests/kit/command.h"
#include "tests/kit/outputs.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

SUITE_LABELS(release)

static void setup(void)
{
    processes_setup();
    processes_config("tiny.json", 1, 2, 16, 16);
    processes_text("tiny.txt", 4000);
}

SUITE_TIMEOUT(60)
SUITE_FIXTURE(setup, processes_remove)

enum { MODES = 16 };

/* By SGD: every way to fold, and to save. */
static const char *const sgd[] = {
    "--optimizer sgd --weight-decay 0.1 --precision bf16 --moments bf16 --parts 2 --workers 2",
    "--optimizer sgd --momentum 0.5 --parts 1 --workers 1",
    "--optimizer sgd --nesterov --grad-dtype bf16 --parts 2 --workers 2",
    "--optimizer sgd --momentum 0 --precision bf16 --parts 2 --workers 2",
    "--optimizer sgd --clip-norm 0.5 --moments bf16 --parts 2 --workers 2",
};

/* Precision, moments, gradients and commit by bits; each pair of them with both optimizers and, but for adama fenced,
 * which cannot, with one part and with two. */
static const char *mode(int i)
{
    if (i >= MODES)
        return sgd[i - MODES];
    const bool fenced = i & 8, adamw = (i ^ (i >> 1) ^ (i >> 2) ^ (i >> 3)) & 1, several = (i ^ (i >> 1)) & 1;
    const unsigned parts = several && (adamw || !fenced) ? 2 : 1;

    return print("--precision %s --moments %s --grad-dtype %s --commit %s --optimizer %s --parts %u --workers %u",
                 i & 1 ? "bf16" : "fp32", i & 2 ? "bf16" : "fp32", i & 4 ? "bf16" : "fp32",
                 fenced  ? "fenced --clip-norm 0.5"
                 : i & 1 ? "eager --clip-update 1"
                         : "eager",
                 adamw ? "adamw" : "adama", parts, parts);
}

TEST_EACH(each_combination_trains_and_goes_on_bit_for_bit, MODES + COUNT(sgd))
{
    const char *train = print("eps train --model tiny.json --data tiny.txt --batch 4 --seed 3 --deterministic "
                              "--save-every 2 --lr 1e-3 --min-lr 1e-3 --warmup 0 --keep 0 --device-mem 8MiB %s",
                              mode(_i));

    expect(print("%s --steps 4 --out whole", train), 0);
    expect("eps train --resume whole/step-2 --out on --device-mem 7MiB", 0);
    outputs_check_same_latest("whole", "on");
}

/* Gradients of a new run travel in bf16 with weights in bf16. One that is older than the option: test_record. */
TEST(a_run_begun_with_gradients_in_fp32_goes_on_with_them)
{
    const char *train = "eps train --model tiny.json --data tiny.txt --batch 4 --seed 3 --device cpu --save-every 2 "
                        "--lr 1e-3 --keep 0 --device-mem 8MiB --precision bf16 --steps 4";

    expect(print("%s --out narrow", train), 0);
    expect(print("%s --out wide --grad-dtype fp32", train), 0);
    expect("grep -q '\"grad_dtype\": *\"bf16\"' narrow/step-4/training.json", 0);
    expect("cmp -s narrow/step-4/model.safetensors wide/step-4/model.safetensors", 1);
    expect("eps train --resume wide/step-2 --out on", 0);
    outputs_check_same_latest("wide", "on");
    expect("grep -q '\"grad_dtype\": *\"fp32\"' on/step-4/training.json", 0);
}
