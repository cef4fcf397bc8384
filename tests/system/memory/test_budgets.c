/* Real runs with much device memory and with the least: the files at the end are the same, byte for byte. */
#include "tests/kit/command.h"
#include "tests/kit/outputs.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <stdlib.h>

SUITE_LABELS(release)

/* Of four blocks, whose masks are drawn on the host and whose dropout on the device. */
static const char bert[] = "{\"model_type\": \"bert\", \"vocab_size\": 330, \"hidden_size\": 48, "
                           "\"num_hidden_layers\": 4, \"num_attention_heads\": 3, \"intermediate_size\": 96, "
                           "\"max_position_embeddings\": 32, \"hidden_dropout_prob\": 0.1, "
                           "\"attention_probs_dropout_prob\": 0.1}";

/* With a relu, whose result forward samples, and dropout behind it. */
static const char t5[] = "{\"model_type\": \"t5\", \"d_model\": 48, \"d_kv\": 16, \"d_ff\": 96, \"num_layers\": 2, "
                         "\"num_decoder_layers\": 2, \"num_heads\": 3, \"vocab_size\": 256, \"dropout_rate\": 0.1, "
                         "\"relative_attention_num_buckets\": 8, \"relative_attention_max_distance\": 20, "
                         "\"is_encoder_decoder\": true, \"decoder_start_token_id\": 0, \"eos_token_id\": 1, "
                         "\"feed_forward_proj\": \"relu\"}";

static void put_ids(const char *name, size_t n)
{
    uint16_t ids[8000];

    for (size_t i = 0; i < n; i++)
        ids[i] = (uint16_t)processes_token(i);
    processes_write(name, ids, n * sizeof *ids);
}

static void setup(void)
{
    processes_setup();
    processes_config_with("middle.json", 4, 3, 48, 32,
                          "\"attn_pdrop\": 0.1, \"embd_pdrop\": 0.1, \"resid_pdrop\": 0.1");
    processes_config("shallow.json", 12, 1, 8, 32);
    processes_config("deep.json", 384, 1, 8, 32);
    expect("mkdir bert && cp " TESTS_DIR "/fixtures/tokenizers/bert.json bert/tokenizer.json", 0);
    processes_put_text("bert/config.json", bert);
    put_ids("ids.bin", 8000);
    put_ids("held.bin", 30);
    processes_text("text.txt", 8000);
    processes_text("held.txt", 21); /* evaluated at the end of each run */
}

SUITE_TIMEOUT(240)
SUITE_FIXTURE(setup, processes_remove)

#define DEEP  "--seq 8 --batch 2 --microbatch 1 --parts 1 "
#define SAVES "--save-every 2 --keep 0 "
#define DATA  "--data text.txt --eval-data held.txt " SAVES

static unsigned long long least_of(const char *run)
{
    expect(print("eps plan %s --minimum", run), 0);
    return strtoull(command_out(), NULL, 10);
}

static const char room[] = "activations kept: 4 of 4 blocks\n             activation checkpoints: on the device\n",
                  none[] = "activations kept: 0 of 4 blocks\n             activation checkpoints: on the host\n",
                  grouped[] = "row groups of 1 part\n             activations kept: 0 of 4 blocks\n             "
                              "activation checkpoints: on the host\n";

/* At the least memory the stash is on the host and one unit there at a time, fenced or folded also one part; with room,
 * all stays and is kept. From either a run goes on with the other, the rows at a time as stored; with a byte less than
 * the least it is refused. */
TEST_EACH(no_budget_changes_a_bit_and_a_run_goes_on_at_another, 5)
{
    static const struct {
        const char *form, *data, *least;
    } forms[] = {{"--model middle.json", DATA, none},
                 {"--model middle.json --approximate wta=0.3,attention=0.3,rule=variance,coded=4", DATA, none},
                 {"--model middle.json --precision bf16 --moments bf16 --grad-dtype bf16 --clip-norm 0.5", DATA,
                  grouped},
                 {"--model middle.json --optimizer adama --commit folded", DATA, grouped},
                 {"--model bert/config.json", "--data ids.bin --eval-data held.bin --mask-fraction 0.3 " SAVES, none}};
    const char *run = print("--batch 12 --seq 20 --microbatch 3 --parts 2 %s", forms[_i].form), *data = forms[_i].data;
    const unsigned long long least = least_of(run);

    expect(print("eps train %s %s --steps 4 --out roomy --device-mem 1GiB -v", run, data), 0, room,
           "at most (as planned)");
    expect(print("eps train %s %s --steps 4 --out least --device-mem %llu -v", run, data, least), 0, forms[_i].least,
           "at most (as planned)");
    expect(print("eps train --resume roomy/step-2 --out on --device-mem %llu -v", least), 0, forms[_i].least);
    expect("eps train --resume least/step-2 --out back --device-mem 1GiB -v", 0, room);
    expect(print("eps train %s %s --steps 4 --out two --workers 2 --deterministic --device-mem %llu", run, data,
                 least * 5 / 4),
           0);
    expect(print("eps train --resume least/step-2 --out refused --device-mem %llu", least - 1), 1, "of device memory",
           print("(%llu bytes)", least));
    for (int i = 0; i < 4; i++)
        outputs_check_same_latest("roomy", (const char *[]){"least", "on", "back", "two"}[i]);
}

/* Where the host has no room for activation checkpoints, and the device for some alone. One with room for all goes on
 * with the same bits, and so do two workers. */
TEST(checkpoints_of_some_layers_change_no_bit)
{
    static const char run[] = "--model middle.json --batch 12 --seq 20 --microbatch 3 --parts 2 --clip-norm 0.5",
                      some[] = "activation checkpoints: 4 of 6 layers, on the device\n";
    unsigned long long host;

    expect(print("eps plan %s --json --device-mem 1GiB", run), 0);
    ck_assert_int_eq(sscanf(command_out(), "{\"host\": {\"current\": %llu", &host), 1);
    host += 65536; /* a resumed run's tables; all layers' inputs take 322,560 */
    const unsigned long long least = least_of(print("%s --host-mem %llu", run, host));
    expect(print("eps train %s %s --steps 4 --out roomy --device-mem 1GiB -v", run, DATA), 0, room);
    expect(print("eps train %s %s --steps 4 --out least --device-mem %llu --host-mem %llu -v", run, DATA, least, host),
           0, some, "at most (as planned)");
    expect(print("eps train --resume roomy/step-2 --out on --device-mem %llu --host-mem %llu -v", least, host), 0,
           some);
    expect("eps train --resume least/step-2 --out back --device-mem 1GiB --host-mem 1GiB -v", 0, room);
    expect(print("eps train %s %s --steps 4 --out two --workers 2 --deterministic --device-mem %llu", run, DATA, least),
           0);
    for (int i = 0; i < 4; i++)
        outputs_check_same_latest("roomy", (const char *[]){"least", "on", "back", "two"}[i]);
}

/* What forward samples, and codes, is what backward chooses again where nothing is kept, and what two workers choose;
 * in the second epoch, which the third step begins, by the norms that the first one left. */
TEST_EACH(no_budget_changes_what_forward_samples, 2)
{
    static const char run[] = "--model t5.json --seq 64 --source-seq 24 --batch 12 --microbatch 3 --parts 2 "
                              "--approximate ",
                      data[] = "--data sums.jsonl --steps 4 --save-every 2 --keep 0 ";
    const char *form = _i ? "wta=0.3,attention=0.3,coded=8" : "wta=0.3";

    processes_put_text("t5.json", t5);
    const unsigned long long least = least_of(print("%s%s", run, form));
    expect("for i in $(seq 24); do printf '{\"source\": \"%s and one\", \"target\": \"is %s\"}\\n' $i $((i + 1)); done "
           ">sums.jsonl",
           0);
    expect(print("eps train %s%s %s --out roomy --device-mem 1GiB -v", run, form, data), 0,
           "2 of 2 like decoder.block.0\n", "at most (as planned)");
    expect(print("eps train %s%s %s --out least --device-mem %llu -v", run, form, data, least), 0,
           "0 of 2 like decoder.block.0\n", "at most (as planned)");
    expect(print("eps train %s%s %s --out two --workers 2 --deterministic --device-mem %llu", run, form, data,
                 least * 5 / 4),
           0);
    expect(print("eps train --resume roomy/step-2 --out on --device-mem %llu", least), 0);
    for (int i = 0; i < 3; i++)
        outputs_check_same_latest("roomy", (const char *[]){"least", "two", "on"}[i]);
}

/* Norms of gradients serve a run that reads a row again: a text, rows as they come, packed rows. The last step of an
 * epoch may have fewer rows than the others. */
TEST(norms_are_remembered_from_the_second_epoch_on)
{
    static const char *const data[] = {"few.txt", "texts.jsonl", "texts.jsonl --pack"};

    processes_config_with("relu.json", 2, 4, 32, 64, "\"activation_function\": \"relu\"");
    processes_text("few.txt", 700);
    expect("for i in $(seq 10); do printf '{\"prompt\": \"%s and \", \"completion\": \"one is %s\"}\\n' $i $((i + 1)); "
           "done "
           ">texts.jsonl",
           0);
    for (int i = 0; i < COUNT(data); i++)
        for (int epochs = 1; epochs <= 2; epochs++)
            expect(print("eps train --device cpu --device-mem 32MiB --model relu.json --data %s --seq 60 --batch 4 "
                         "--approximate wta=0.3 --epochs %d --out once-%d-%d >said && "
                         "{ grep -c 'are remembered' said || true; }",
                         data[i], epochs, i, epochs),
                   0, epochs == 1 ? "0\n" : "1\n");
}

/* Constant memory: 384 layers in the bytes of 12, and the weights of a device with room for all of them. */
TEST(three_hundred_and_eighty_four_layers_train_in_the_memory_of_twelve)
{
    const unsigned long long least = least_of("--model shallow.json " DEEP);

    expect(print("eps train --model deep.json " DEEP DATA "--steps 1 --out deep --device-mem %llu -v", least), 0,
           "activation checkpoints: on the host\n", "at most (as planned)");
    expect("eps train --model deep.json " DEEP DATA "--steps 1 --out roomy --device-mem 1GiB -v", 0,
           "activation checkpoints: on the device\n");
    outputs_check_same_latest("deep", "roomy");
}

/* Each of them changes the weights, and coded activations take less: what eps plan says of it is what a run takes, by
 * the largest of the numbers that its steps tell. */
TEST(what_is_approximate_is_another_run)
{
    static const char run[] = "--model middle.json --batch 12 --seq 20 --microbatch 3 --device-mem 1GiB ";
    static const char *const forms[] = {"wta=1,attention=1", "wta=0.3", "attention=0.3", "coded=8", "coded=4"};

    for (int i = 0; i < COUNT(forms); i++) {
        expect(
            print(
                "eps plan --json %s --host-mem 1GiB --approximate %s | grep -o '\"kept\": {[^}]*' | grep -o '[0-9]*$' "
                ">planned-%d",
                run, forms[i], i),
            0);
        expect(print("eps train %s --approximate %s " DATA "--steps 4 --out form-%d", run, forms[i], i), 0,
               "at most (as planned)");
        expect(print("grep -o '\"kept\": [0-9]*' form-%d/metrics.jsonl | grep -o '[0-9]*$' | sort -n | tail -n 1 | "
                     "cmp - planned-%d",
                     i, i),
               0);
        for (int k = 0; k < i; k++)
            expect(print("cmp -s form-%d/latest/model.safetensors form-%d/latest/model.safetensors", i, k), 1);
    }
    expect(
        "cmp planned-0 planned-1 && cmp planned-0 planned-2 && test $(cat planned-3) -lt $(($(cat planned-0) / 3)) && "
        "test $(cat planned-4) -lt $(cat planned-3)",
        0);
    expect(print("eps train %s " DATA "--steps 4 --out exact", run), 0);
    outputs_check_same_latest("exact", "form-0");
}

/* A run of --approximate any is that of the form which eps plan marks, and stores it; resumed, it keeps it, whatever a
 * plan within the memory of then would choose. Fresh weights are trained exactly. */
TEST_EACH(what_the_planner_chooses_is_kept_by_the_run, 3)
{
    static const struct {
        const char *run, *form, *said;
    } runs[] = {
        {"--model made/latest --batch 8 --seq 128 --microbatch 2", "wta=0.1", "any chose wta=0.1: "},
        {"--model made/latest --batch 1 --seq 4 --microbatch 1", NULL,
         "no form is predicted by assumed rates to take 5 % less time"},
        {"--model byte-small --batch 8 --seq 128 --microbatch 2", NULL,
         "any chose exact gradients: inexact ones train fresh weights worse"},
    };
    const char *form = runs[_i].form, *run = runs[_i].run;

    expect(print("eps train --model %s --data text.txt --batch 1 --seq 16 --steps 1 --out made",
                 _i == 1 ? "middle.json" : "byte-small"),
           0);
    expect(print("eps plan %s --device-mem 1GiB --approximate any", run), 0,
           print("chooses %s", form ? form : "exact gradients"));
    expect(print("eps train %s --device-mem 1GiB --data text.txt " SAVES "--steps 4 --approximate any --out any", run),
           0, runs[_i].said);
    expect(print("eps train %s --device-mem 1GiB --data text.txt " SAVES "--steps 4 --out named %s%s", run,
                 form ? "--approximate " : "", form ? form : ""),
           0);
    expect("eps train --resume any/step-2 --approximate any --device-mem 6MiB --out resumed", 0, "continuing from");
    for (int i = 0; i < 2; i++)
        outputs_check_same_latest("any", (const char *[]){"named", "resumed"}[i]);
    expect(print("grep -l '\"approximate\": *\"%s' any/step-4/training.json resumed/step-4/training.json | wc -l",
                 form ? form : ""),
           0, form ? "2" : "0");
}
