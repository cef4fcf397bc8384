/* eps train --freeze as a user has it: saved, exported, planned, refused. That no way to run it changes a bit:
 * tests/system/invariants. */
#include "tests/kit/command.h"
#include "tests/kit/outputs.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <string.h>

#define TIED "eps train --model tied.json --data data.txt --batch 4 --seq 16 --device cpu "

static void setup(void)
{
    processes_setup();
    processes_text("data.txt", 20000);
    processes_config("tied.json", 3, 4, 32, 32);
    processes_config_with("untied.json", 3, 4, 32, 32, "\"tie_word_embeddings\": false, \"resid_pdrop\": 0.1");
}

SUITE_TIMEOUT(180)
SUITE_FIXTURE_ONCE(setup, processes_remove)

/* The tensors of both are the same, or of run 0 those that it freezes alone. */
static void check_tensors(const char *directory, const char *other, bool all)
{
    const char *const directories[] = {directory, other};
    struct outputs_tensors files[2];
    uint64_t n, n_other;

    for (int i = 0; i < 2; i++)
        outputs_open_tensors(&files[i], directories[i], "model.safetensors");
    ck_assert_uint_gt(files[0].file.n_entries, 20);
    for (size_t i = 0; i < files[0].file.n_entries; i++) {
        const char *name = files[0].file.entries[i].name;
        const float *a = outputs_tensor(&files[0], name, &n), *b = outputs_tensor(&files[1], name, &n_other);
        const bool same = n == n_other && memcmp(a, b, n * sizeof *a) == 0;
        ck_assert_msg(same == (all || strstr(name, "wte.weight") || strstr(name, ".mlp.")), "%s", name);
    }
    for (int i = 0; i < 2; i++)
        outputs_close_tensors(&files[i]);
}

/* From weights in bf16, which are those that training begins with. */
TEST(frozen_tensors_stay_as_they_were_and_are_exported)
{
    expect(TIED "--out begun --steps 1 && eps export --model begun/latest --out given --dtype bf16", 0);
    expect("eps train --model given --data data.txt --out tuned --steps 4 --batch 4 --seq 16 --lr 1e-2 --device cpu "
           "--precision bf16 --freeze wte.weight 'h.*.mlp.*'",
           0, "parameters; frozen wte.weight,h.*.mlp.*");
    check_tensors("given", "tuned/latest", false);
    expect("eps export --model tuned/latest --out exported --dtype fp32", 0);
    check_tensors("tuned/latest", "exported", true);
    expect_file("tuned/latest/training.json", "\"freeze\":\"wte.weight,h.*.mlp.*\"");
    expect_absent("begun/latest/training.json", "freeze");
}

/* lm_head (256, 32); two blocks of 12 * 32^2 + 13 * 32. Both moments of each, and less room for the moments'
 * checksums. */
TEST(the_plan_says_what_it_saves)
{
    const char *line = "eps plan --model untied.json --batch 4 --seq 16 --device cpu --device-mem 64MiB --json %s";
    json_t *all = expect_json(print(line, ""), 0);
    json_t *some = expect_json(print(line, "--freeze 'lm_head.*' 'h.[01].*'"), 0);
    const double parameters = 256 * 32 + 2 * (12 * 32 * 32 + 13 * 32), host = json_number_at(some, "frozen.host");

    ck_assert_double_eq(json_number_at(some, "frozen.parameters"), parameters);
    ck_assert_double_eq(json_number_at(all, "host.current") - json_number_at(some, "host.current"), host);
    ck_assert_double_ge(host, 8 * parameters);
    ck_assert_double_ge(json_number_at(some, "frozen.device"), 0);
    ck_assert_ptr_null(json_object_get(all, "frozen"));
    json_decref(all), json_decref(some);
}

/* Three blocks of four matrices, (32, 96), (32, 32), (32, 128) and (128, 32): 36,864 weights in 672 rows, 576 blocks of
 * 64. At this budget all units are resident, so a step pulls what is trained alone, whatever the form. Replay has a
 * second buffer of that alone, too. */
static const struct {
    const char *base;
    double bytes;
} forms[] = {{"full", 4 * 36864}, {"bf16", 2 * 36864}, {"int8", 36864 + 4 * 672}, {"nf4", 18432 + 4 * 576}};

TEST(a_frozen_weight_takes_the_bytes_of_its_form)
{
    const char *line = "eps plan --model untied.json --batch 4 --seq 16 --device cpu --device-mem 64MiB --json "
                       "--freeze 'h.*.c_*.weight' --base %s";
    json_t *full = expect_json(print(line, "full"), 0);

    for (int i = 1; i < COUNT(forms); i++) {
        static const char weights[] = "host.categories.weights.current", down[] = "bytes_per_step.down",
                          replay[] = "host.categories.replay.current";
        json_t *some = expect_json(print(line, forms[i].base), 0);
        ck_assert_double_eq(json_number_at(full, weights) - json_number_at(some, weights),
                            forms[0].bytes - forms[i].bytes);
        ck_assert_double_eq(json_number_at(some, down), json_number_at(full, down));
        ck_assert_double_eq(json_number_at(some, replay), json_number_at(full, replay));
        ck_assert_double_eq(json_number_at(some, replay), json_number_at(some, "host.categories.first_moment.current"));
        json_decref(some);
    }
    json_decref(full);
}

/* 124 M weights, all but biases and norms frozen: 475 MiB in fp32, 237 in bf16, 162 and 126 with int8 and nf4. */
TEST(the_plan_names_a_base_that_fits)
{
    const char *line = "eps plan --model gpt2 --freeze 'w*' 'h.*.c_*.weight' --batch 1 --seq 64 --device cpu "
                       "--device-mem 256MiB --host-mem %s";

    expect(print(line, "200MiB"), 1, "; --base int8 would take ");
    expect(print(line, "140MiB"), 1, "; --base nf4 would take ");
    expect(print(line, "400MiB --base bf16"), 0, "yes");
}

#define STARS64 "****************************************************************"

static const struct refusal refusals[] = {
    {TIED "--out no --freeze wpe.weight nothing", 2, "--freeze nothing", "matches no tensor"},
    {TIED "--out no --freeze '*'", 2, "--freeze *", "leave one to train"},
    {"eps plan --model tied.json --freeze lm_head.weight", 2, "--freeze lm_head.weight", "matches no tensor"},
    {"eps plan --model tied.json --freeze 'h.*' --find-depth", 2, "--find-depth", "--freeze"},
    {"eps plan --model tied.json --freeze '" STARS64 STARS64 STARS64 STARS64 "'", 2, "--freeze", "256 characters"},
    /* A resumed run keeps its frozen tensors. */
    {TIED "--out kept --steps 1 --freeze wte.weight >/dev/null && eps train --resume kept --steps 2 --freeze 'wpe.*'",
     2, "--freeze wpe.*", "the run's wte.weight"},
    {"eps train --resume kept --steps 2 --freeze 'wpe.*' --change freeze", 2, "--change freeze", NULL},
    {"eps train --resume kept --steps 2 --base int8", 2, "--base int8", "the run's full"},
    {TIED "--out no --base nf4", 2, "--base nf4", "none are frozen"},
    {"eps plan --model tied.json --base int8", 2, "--base int8", "none are frozen"},
    {"eps plan --model tied.json --freeze 'h.*' --base fp4", 2, "--base", "full|bf16|int8|nf4"},
};

TEST(what_cannot_be_frozen_is_refused)
{
    for (int i = 0; i < COUNT(refusals); i++)
        expect_refusal(&refusals[i]);
    expect("eps train --resume kept --steps 2 --freeze wte.weight", 0, "parameters; frozen wte.weight\n");
    expect("eps train --resume kept --steps 3", 0, "parameters; frozen wte.weight\n");
}
