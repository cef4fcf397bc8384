/* --label-smoothing: a step's loss is that of smoothed labels, a held-out one is not. What it is of one token:
 * test_softmax. */
#include "tests/kit/command.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <math.h>

static void setup(void)
{
    processes_setup_tiny();
}

SUITE_FIXTURE_ONCE(setup, processes_remove)

/* The first step's loss, and the held-out one before it. */
static void measure(double *loss, double *held_out, const char *smoothing)
{
    expect(print("eps train --model model.json --data text.txt --eval-data text.txt --steps 1 --eval-every 1 --seq 16 "
                 "--batch 4 --device cpu %s --out run",
                 smoothing),
           0);
    json_t *step = expect_json("cat run/metrics.jsonl", 0);
    *held_out = json_number_at(step, "eval_loss_before");
    *loss = json_number_at(step, "loss");
    json_decref(step);
    expect("rm -r run", 0);
}

/* (1-s) of the label's -log p and s of the mean of all: linear in s. */
TEST(a_step_has_smoothed_labels_and_an_evaluation_does_not)
{
    double loss[3], held_out[3];

    measure(&loss[0], &held_out[0], "");
    measure(&loss[1], &held_out[1], "--label-smoothing 0.25");
    measure(&loss[2], &held_out[2], "--label-smoothing 0.5");
    ck_assert_double_eq(held_out[1], held_out[0]);
    ck_assert_double_eq(held_out[2], held_out[0]);
    ck_assert_double_gt(fabs(loss[2] - loss[0]), 1e-4);
    ck_assert_double_eq_tol(loss[2] - loss[0], 2 * (loss[1] - loss[0]), 1e-6);
}
