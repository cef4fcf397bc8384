/* T5 as transformers saves it, and an adapter as PEFT does (tests/oracle/make_saved.py): in and out of the commands.
 * What transformers makes of what is trained here: tests/oracle/check_saved.py and check_adapters.py. */
#include "tests/kit/command.h"
#include "tests/kit/outputs.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define FIXTURES TESTS_DIR "/fixtures/"

static const char *const saved[] = {"saved_t5", "saved_flan", "adapter_flan"};

/* The models, with a tokenizer, and the pairs of which the oracle has told losses. */
static void setup(void)
{
    json_t *pair;
    size_t i;

    processes_setup();
    for (int k = 0; k < COUNT(saved); k++)
        expect(print("cp -r " FIXTURES "%s . && cp " FIXTURES "tokenizers/t5.json %s/tokenizer.json", saved[k],
                     saved[k]),
               0);
    json_t *reference = json_load_file("saved_t5/reference.json", 0, NULL);
    FILE *rows = fopen("rows.jsonl", "w");
    ck_assert_ptr_nonnull(rows);
    json_array_foreach(json_at(reference, "pairs"), i, pair)
    {
        ck_assert_int_eq(json_dumpf(pair, rows, 0), 0);
        fputc('\n', rows);
    }
    fclose(rows);
    json_decref(reference);
}

SUITE_FIXTURE_ONCE(setup, processes_remove)

static double eval(const char *model)
{
    json_t *json = expect_json(print("eps eval --json --data rows.jsonl --device cpu --model %s", model), 0);
    const double loss = json_number_at(json, "loss");

    json_decref(json);
    return loss;
}

static double told(const char *name)
{
    json_t *reference = json_load_file(print(FIXTURES "%s/reference.json", name), 0, NULL);
    const double loss = json_number_at(reference, "loss");

    json_decref(reference);
    return loss;
}

/* fp32 against float64. */
TEST_EACH(what_others_saved_has_their_loss, COUNT(saved))
{
    ck_assert_double_eq_tol(eval(saved[_i]), told(saved[_i]), 1e-6 * told(saved[_i]));
}

TEST(an_adapter_is_merged_and_goes_on)
{
    const double loss = told("adapter_flan");

    ck_assert_double_gt(fabs(loss - told("saved_flan")), 1e-2);
    expect("eps export --model adapter_flan --merge --dtype fp32 --out merged", 0, "AutoModelForSeq2SeqLM");
    ck_assert_double_eq_tol(eval("merged"), loss, 2e-6 * loss);
    expect("eps train --model adapter_flan --data rows.jsonl --batch 2 --steps 1 --lr 1e-12 --device cpu --out more",
           0);
    ck_assert_double_eq_tol(eval("more"), loss, 1e-6 * loss);
}

/* Names, shapes and types; the file of PEFT has those of all linear maps at rank 2. */
static void check_same_kind(const char *directory, const char *other, const char *name)
{
    struct outputs_tensors ours, theirs;

    outputs_open_tensors(&ours, directory, name);
    outputs_open_tensors(&theirs, other, name);
    ck_assert_uint_eq(ours.file.n_entries, theirs.file.n_entries);
    for (size_t i = 0; i < theirs.file.n_entries; i++) {
        const struct safetensors_entry *want = &theirs.file.entries[i], *got = safetensors_find(&ours.file, want->name);
        ck_assert_msg(got && got->type == want->type && got->n_dims == want->n_dims, "%s", want->name);
        ck_assert_mem_eq(got->shape, want->shape, want->n_dims * sizeof *want->shape);
    }
    outputs_close_tensors(&ours), outputs_close_tensors(&theirs);
}

TEST_EACH(what_is_trained_goes_back_as_it_came, 2)
{
    const char *const name = saved[_i];

    expect(print("rm -rf run back && eps train --model %s --data rows.jsonl --batch 3 --steps 3 --lr 0.01 --device cpu "
                 "--out run "
                 "&& eps export --model run --out back",
                 name),
           0, "AutoModelForSeq2SeqLM");
    check_same_kind("back", name, "model.safetensors");
    if (strcmp(name, "saved_flan") == 0) /* transformers 5 calls it tied, and it is not */
        outputs_check_untied("back", name);
    else
        outputs_check_same("back", name, "config.json");
    expect(print("cmp back/generation_config.json %s/generation_config.json", name), 0);
    expect("eps export --model run --dtype fp32 --out back-fp32", 0);
    ck_assert_double_eq(eval("back-fp32"), eval("run"));
    ck_assert_double_lt(eval("run"), told(name) - 0.01); /* it learned */
    expect("rm -r back-fp32", 0);
    outputs_check_python("back");
}

TEST(adapters_are_those_that_peft_has_of_a_t5)
{
    expect("eps train --model saved_flan --lora rank=2 --data rows.jsonl --batch 3 --steps 3 --lr 0.01 --device cpu "
           "--out tuned "
           "&& eps export --model tuned --out alone",
           0, "peft.AutoPeftModelForSeq2SeqLM");
    check_same_kind("alone", "adapter_flan", "adapter_model.safetensors");
    expect_file("alone/adapter_config.json", "\"task_type\": \"SEQ_2_SEQ_LM\"");
    ck_assert_double_eq(eval("alone"), eval("tuned"));
}
