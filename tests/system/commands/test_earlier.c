/* A checkpoint that version 0.3.0 wrote goes on: fixtures/earlier has what a run of four steps left behind its second one,
 * and its text. It is never written again, so a change of the format that forgets older checkpoints is seen here. It was
 * made in a folder with text.txt and a GPT-2 of one layer of 16 in model.json, by
 *
 *   eps train --model model.json --data text.txt --steps 4 --batch 4 --seq 32 --save-every 2 --keep 0 --device cpu --out run */
#include "tests/kit/command.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <stdio.h>
#include <stdlib.h>

#define EARLIER TESTS_DIR "/fixtures/earlier"

SUITE_FIXTURE(processes_setup, processes_remove)

/* The losses that the other two steps had then; other processors sum in another order. */
static const double losses[] = {5.54311373371, 5.54118913906};

TEST(a_checkpoint_of_version_0_3_0_is_whole_and_its_run_goes_on)
{
    expect("eps verify " EARLIER "/step-2", 0, "whole");
    expect("eps train --resume " EARLIER "/step-2 --data " EARLIER "/text.txt --device cpu --out run", 0, "of 4");
    json_t *steps = expect_json("sed 's/^/,/; 1s/,/[/; $s/$/]/' run/metrics.jsonl", 0);
    ck_assert_uint_eq(json_array_size(steps), 2);
    for (int i = 0; i < 2; i++) {
        ck_assert_double_eq(json_number_at(steps, print("%d.step", i)), 3 + i);
        ck_assert_double_eq_tol(json_number_at(steps, print("%d.loss", i)), losses[i], 1e-5);
    }
    json_decref(steps);
}

TEST(its_weights_are_evaluated_and_exported)
{
    expect("eps eval --model " EARLIER "/step-2 --data " EARLIER "/text.txt --device cpu", 0, "loss");
    expect("eps export --model " EARLIER "/step-2 --out exported", 0, "exported holds the model");
}
