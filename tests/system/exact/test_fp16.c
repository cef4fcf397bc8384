/* Training in fp16 in real programs: the loss's scale, and what is refused. That no way to run it changes a bit:
 * tests/system/invariants. */
#include "tests/kit/command.h"
#include "tests/kit/outputs.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <stdio.h>

SUITE_LABELS(long)
SUITE_TIMEOUT(240)

enum { N_BYTES = 6000 };

/* With weights so large that gradients overflow at first. */
static void setup(void)
{
    processes_setup();
    processes_put_text("big.json", "{\"model_type\": \"gpt2\", \"n_layer\": 2, \"n_head\": 4, \"n_embd\": 32, "
                                   "\"n_positions\": 64, \"vocab_size\": 256, \"initializer_range\": 1.0}");
    processes_config("small.json", 2, 4, 32, 64);
    processes_text("text.txt", N_BYTES);
}

SUITE_FIXTURE(setup, processes_remove)

#define NARROW " --precision fp16 --grad-dtype fp16 --device cpu "

static json_t *line_of(const char *run, unsigned step)
{
    return expect_json(print("sed -n %up %s/metrics.jsonl", step, run), 0);
}

/* Each step that overflows is skipped, leaves no trace, and halves the scale for the next one; the others leave it. A
 * run that goes on elsewhere begins with the scale of its checkpoint. */
TEST(what_overflows_is_skipped_and_halves_the_scale)
{
    double scale = 65536;
    unsigned n_skipped = 0;

    expect("eps train --model big.json --data text.txt --batch 2 --seq 16 --steps 8 --save-every 1 --keep 0" NARROW
           "--out run",
           0);
    for (unsigned step = 1; step <= 8; step++) {
        json_t *line = line_of("run", step);
        const bool skipped = json_is_true(json_object_get(line, "skipped"));
        ck_assert_double_eq(json_number_value(json_object_get(line, "loss_scale")), scale);
        ck_assert(skipped == (json_object_get(line, "grad_norm") == NULL));
        ck_assert(skipped == !json_is_number(json_object_get(line, "loss"))); /* though the one worker knows it */
        if (skipped && step > 1)
            outputs_check_same(print("run/step-%u", step - 1), print("run/step-%u", step), "model.safetensors");
        scale /= skipped ? 2 : 1;
        n_skipped += skipped;
        json_decref(line);
    }
    ck_assert(n_skipped >= 2 && n_skipped <= 6);
    expect("eps train --resume run/step-1 --steps 8 --device-mem 4MiB --out again", 0);
    outputs_check_same_latest("run", "again");
    for (unsigned step = 2; step <= 8; step++) {
        json_t *line = line_of("again", step - 1), *first = line_of("run", step);
        ck_assert(json_equal(json_object_get(line, "loss_scale"), json_object_get(first, "loss_scale")) &&
                  json_equal(json_object_get(line, "loss"), json_object_get(first, "loss")));
        json_decref(line), json_decref(first);
    }
}

static const struct {
    const char *command;
    int status;
    const char *says;
} refused[] = {
    {"eps train --model small.json --data text.txt --out r --commit eager" NARROW, 2,
     "--precision fp16 does not go with --commit eager"},
    {"eps train --model small.json --data text.txt --out r --grad-dtype fp16", 2,
     "--grad-dtype fp16 needs --precision fp16"},
    {"eps train --model small.json --data text.txt --out r --parts 2 --optimizer adama" NARROW, 2,
     "--precision fp16 with --parts 2 needs --optimizer adamw"},
    {"eps train --model small.json --data text.txt --out r --approximate wta=0.3" NARROW, 1, "are not for fp16"},
};

TEST_EACH(what_does_not_go_together_is_refused, COUNT(refused))
{
    expect(refused[_i].command, refused[_i].status, refused[_i].says);
}

/* The first number is 70000. */
TEST(weights_beyond_fp16_are_refused)
{
    expect("eps train --model small.json --data text.txt --steps 1 --batch 2 --seq 16 --device cpu --out run", 0);
    expect("mkdir far && cp run/latest/config.json run/latest/model.safetensors far && "
           "n=$(od -An -t u8 -N 8 far/model.safetensors) && printf '\\000\\270\\210\\107' | "
           "dd of=far/model.safetensors bs=1 seek=$((8 + n)) conv=notrunc status=none",
           0);
    expect("eps train --model far --data text.txt --steps 1 --batch 2 --seq 16 --device cpu --out fine", 0);
    expect("eps train --model far --data text.txt --steps 1 --batch 2 --seq 16 --out r" NARROW, 1,
           "has a value beyond 65504, where fp16 ends: choose --precision bf16");
}
