/* Checkpoints in fp8 as a user has them: each command does with one what it does with the values in fp32. The models
 * are those of tests/oracle/make_fp8.py: one scale a tensor, and blocks of which the last are smaller. */
#include "proto/model/file/safetensors.h"
#include "tests/kit/command.h"
#include "tests/kit/outputs.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

SUITE_LABELS(long)

#define FIXTURES TESTS_DIR "/fixtures/"
#define TRAIN    "eps train --data text.txt --batch 4 --seq 16 --device cpu --lr 0.01 "

static const char *const names[] = {"fp8", "fp8_blocks"};

/* Of each model a copy, and a directory with its values in fp32. */
static void setup(void)
{
    processes_setup();
    processes_text("text.txt", 8000);
    for (int i = 0; i < COUNT(names); i++)
        expect(print("cp -r " FIXTURES "%s %s && eps export --model %s --dtype fp32 --out %s-plain", names[i], names[i],
                     names[i], names[i]),
               0);
}

SUITE_TIMEOUT(180)
SUITE_FIXTURE_ONCE(setup, processes_remove)

TEST_EACH(an_export_is_bf16_and_says_nothing_of_fp8, COUNT(names))
{
    const char *name = names[_i];

    expect(print("eps export --model %s --out %s-half && eps export --model %s-plain --dtype bf16 --out %s-rounded",
                 name, name, name, name),
           0);
    outputs_check_same(print("%s-half", name), print("%s-rounded", name), "model.safetensors");
    expect_file(print("%s-half/config.json", name), "\"bfloat16\"");
    expect_absent(print("%s-half/config.json", name), "quantization_config", "weight_block_size");
    expect_absent(print("%s-half/model.safetensors", name), "scale", "F8_");
}

static const char *const forms[] = {"",
                                    "--lora rank=2",
                                    "--lora rank=2 --base bf16",
                                    "--lora rank=2 --base int8",
                                    "--lora rank=2 --base nf4",
                                    "--precision bf16"};

/* The second half of each run is resumed; of adapters it reads the base again. */
TEST_EACH(a_run_is_that_of_the_values, COUNT(names) * COUNT(forms))
{
    const char *name = names[_i % COUNT(names)], *form = forms[_i / COUNT(names)];
    const bool adapts = strstr(form, "--lora");

    expect(print("rm -rf a b a-merged b-merged; " TRAIN
                 "--model %s %s --steps 4 --save-every 2 --out a && rm -r a/step-4 && "
                 "ln -sfn step-2 a/latest && eps train --resume a && eps verify a && "
                 "rm -rf values; cp -r %s-plain values && " TRAIN "--model values %s --steps 4 --save-every 2 --out b",
                 name, form, name, form),
           0, "step 4/4");
    outputs_check_same("a/latest", "b/latest", adapts ? "adapter_model.safetensors" : "model.safetensors");
    outputs_check_same_metrics("a", "b", 4);
    if (!adapts)
        return;
    expect("for run in a b; do eps export --model $run/latest --merge --dtype fp32 --out $run-merged || exit 1; done",
           0);
    outputs_check_same("a-merged", "b-merged", "model.safetensors");
    expect_absent("a-merged/config.json", "quantization_config");
}

TEST_EACH(other_commands_do_what_they_do_with_the_values, COUNT(names))
{
    static const char *const commands[] = {"eps eval --data text.txt --seq 16 --device cpu --model",
                                           "eps generate --tokens 12 --temperature 0 --prompt text --model"};

    for (int i = 0; i < COUNT(commands); i++)
        expect(
            print("for of in %s %s-plain; do rm -rf model && cp -r $of model && %s model | grep -v second >of-$of || "
                  "exit 1; done; test -s of-%s && cmp of-%s of-%s-plain",
                  names[_i], names[_i], commands[i], names[_i], names[_i], names[_i]),
            0);
}

/* The header, and what is found of each tensor in fp8, lie in memory that is planned. */
TEST_EACH(a_run_takes_the_bytes_that_are_planned, COUNT(names))
{
    json_t *plan =
        expect_json(print("eps plan --model %s --batch 4 --seq 16 --device cpu --device-mem 64MiB --json", names[_i]),
                    0);

    expect(print("rm -rf bytes; " TRAIN "--device-mem 64MiB --model %s --steps 2 --out bytes", names[_i]), 0);
    json_t *step = expect_json("tail -n 1 bytes/metrics.jsonl", 0);
    ck_assert_double_eq(json_number_at(step, "host_bytes"), json_number_at(plan, "host.peak"));
    json_decref(step), json_decref(plan);
}

/* Writes bytes over a tensor's first ones. */
static void overwrite(const char *directory, const char *tensor, const void *bytes, size_t n)
{
    struct outputs_tensors tensors;

    outputs_open_tensors(&tensors, directory, "model.safetensors");
    const uint64_t offset = safetensors_find(&tensors.file, tensor)->offset;
    outputs_close_tensors(&tensors);
    FILE *file = fopen(print("%s/model.safetensors", directory), "r+");
    ck_assert(file && fseek(file, (long)offset, SEEK_SET) == 0 && fwrite(bytes, 1, n, file) == n);
    ck_assert_int_eq(fclose(file), 0);
}

#define NAME "model.layers.1.mlp.up_proj.weight"

/* A scale of infinity or NaN, the code of NaN, and a config that lacks the word. */
TEST(what_is_no_number_or_not_declared_is_one_sentence)
{
    static const uint16_t infinity = 0x7f80, nan = 0x7fc0;
    static const uint8_t code = 0xff;
    static const struct {
        const char *tensor;
        const void *bytes;
        size_t n;
    } wrongs[] = {{NAME "_scale_inv", &infinity, 2}, {NAME "_scale_inv", &nan, 2}, {NAME, &code, 1}};
    static const char *const commands[] = {TRAIN "--steps 1 --out none --model wrong",
                                           TRAIN "--lora rank=2 --base nf4 --steps 1 --out none --model wrong",
                                           "eps eval --data text.txt --seq 16 --device cpu --model wrong"};

    for (int i = 0; i < COUNT(wrongs); i++)
        for (int k = 0; k < COUNT(commands); k++) {
            expect("rm -rf wrong none && cp -r fp8 wrong", 0);
            overwrite("wrong", wrongs[i].tensor, wrongs[i].bytes, wrongs[i].n);
            expect_sentence(commands[k], 1, NAME " has a value that is not finite");
        }
    expect("rm -rf wrong && cp -r fp8 wrong && sed -i 's/" NAME "_scale_inv/" NAME "_elacs_vni/' "
           "wrong/model.safetensors",
           0);
    for (int k = 0; k < COUNT(commands); k++)
        expect_sentence(commands[k], 1, NAME "_scale_inv is missing");
    expect("rm -rf wrong && cp -r fp8 wrong && sed -i 's/\"quant_method\": \"fp8\"/\"quant_method\": \"mxfp4\"/' "
           "wrong/config.json",
           0);
    for (int k = 0; k < COUNT(commands); k++)
        expect_sentence(commands[k], 1, "is of type F8_E4M3, and config.json has no quantization_config");
    expect_sentence("eps export --model wrong --out none", 1,
                    "is of type F8_E4M3, and config.json has no quantization");
}
