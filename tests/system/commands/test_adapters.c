/* eps train --lora as a user has it, and adapters that PEFT wrote: evaluated, exported, refused. That no way to run
 * it changes a bit: tests/system/invariants. */
#include "proto/model/file/safetensors.h"
#include "tests/kit/command.h"
#include "tests/kit/outputs.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define FIXTURES TESTS_DIR "/fixtures/"
#define TRAIN    "eps train --data data.txt --batch 4 --seq 16 --device cpu "

/* Two bases of one kind, trained for a step, and one of another shape. */
static void setup(void)
{
    processes_setup();
    processes_text("data.txt", 20000);
    processes_config_with("config.json", 3, 4, 32, 32, "\"tie_word_embeddings\": false, \"resid_pdrop\": 0.1");
    processes_config("small.json", 1, 2, 16, 32);
    expect(TRAIN "--model config.json --steps 1 --lr 0.01 --out first && eps export --model first/latest --out base",
           0);
    expect(TRAIN "--model config.json --steps 1 --lr 0.01 --seed 1 --out second && "
                 "eps export --model second/latest --out other",
           0);
    expect(TRAIN "--model small.json --steps 1 --out third && eps export --model third/latest --out small", 0);
}

SUITE_TIMEOUT(180)
SUITE_FIXTURE_ONCE(setup, processes_remove)

/* Of weights that bf16 holds exactly, those of positions among them, in rows whose documents have their own. */
TEST(a_base_in_bf16_changes_no_bit_of_packed_rows_either)
{
    expect("for i in $(seq 40); do printf '{\"prompt\": \"%s+1=\", \"completion\": \"%s\"}\\n' $i $((i + 1)); done "
           ">sums.jsonl; eps export --model base --dtype bf16 --out half; for form in full bf16; do eps train --model "
           "half "
           "--lora rank=2 --base $form --data sums.jsonl --pack --seq 32 --batch 4 --steps 3 --device cpu --out "
           "packed-$form "
           "|| exit 1; done",
           0);
    outputs_check_same_latest("packed-full", "packed-bf16");
}

/* By hand, of rank 4 on c_attn in 3 blocks: A (4, 32) and B (96, 4), 512 of each block, in whole lines of 32 elements.
 * What is frozen takes its 4 bytes, in bf16 2, once, also with replay; the optimizer knows the adapters alone. */
TEST_EACH(frozen_weights_take_their_own_bytes_and_no_others, 2)
{
    const double value = _i ? 2 : 4, trained = 3 * 512;
    json_t *plan =
        expect_json(print("eps plan --model base --lora rank=4,targets=c_attn --batch 4 --seq 16 --device cpu "
                          "--device-mem 64MiB --precision %s --json",
                          _i ? "bf16" : "fp32"),
                    0);

    ck_assert_double_eq(json_number_at(plan, "trained"), trained);
    ck_assert_double_eq(json_number_at(plan, "host.categories.weights.peak"), value * (55584 + trained));
    ck_assert_double_eq(json_number_at(plan, "host.categories.replay.peak"), value * trained);
    ck_assert_double_eq(json_number_at(plan, "host.categories.first_moment.peak"), 4 * trained);
    ck_assert_double_eq(json_number_at(plan, "host.categories.second_moment.peak"), 4 * trained);
    expect(print(TRAIN "--model base --lora rank=4,targets=c_attn --steps 2 --precision %s --out bytes-%d",
                 _i ? "bf16" : "fp32", _i),
           0, "at most (as planned)", "B (as planned)");
    json_t *step = expect_json(print("tail -n 1 bytes-%d/metrics.jsonl", _i), 0);
    ck_assert_double_eq(json_number_at(step, "host_bytes"), json_number_at(plan, "host.peak"));
    json_decref(step), json_decref(plan);
}

/* A loss that eps eval prints, to compare with others. */
static double loss_of(const char *command)
{
    json_t *json = expect_json(command, 0);
    const double loss = json_number_at(json, "loss");

    json_decref(json);
    return loss;
}

/* And the base's name, if it is another. */
static const char *const adapters[][2] = {{"tied", "tied"},           {"qwen3", "qwen3"},
                                          {"llama3", "llama3"},       {"gemma3", "gemma3"},
                                          {"mistral", "mistral"},     {"table", "gemma3_tied"},
                                          {"head", "llama_linear"},   {"both", "tied"},
                                          {"ranks", "untied"},        {"layers", "qwen3"},
                                          {"qwen3_moe", "qwen3_moe"}, {"mixtral", "mixtral"},
                                          {"olmoe", "olmoe"},         {"qwen2_moe", "qwen2_moe"}};

/* fp32 against float64: 1e-6 of it. Merged, each weight is rounded once more. */
TEST_EACH(an_adapter_of_peft_has_pefts_loss_also_merged_and_the_base_its_own, COUNT(adapters))
{
    const char *const name = adapters[_i][0], *const base_name = adapters[_i][1];
    json_t *reference = json_load_file(print(FIXTURES "adapter_%s/reference.json", name), 0, NULL);
    const double loss = json_number_at(reference, "loss"), base = json_number_at(reference, "base");
    const json_t *ids = json_at(reference, "ids");
    char eval[100], file[40];

    strcpy(file, print("%s.bin", name));
    FILE *out = fopen(file, "wb");
    ck_assert_ptr_nonnull(out);
    for (size_t i = 0; i < json_array_size(ids); i++) {
        const uint16_t id = (uint16_t)json_integer_value(json_array_get(ids, i));
        ck_assert_uint_eq(fwrite(&id, sizeof id, 1, out), 1);
    }
    fclose(out);
    strcpy(eval, print("eps eval --json --data %s --seq %.0f --model", file, json_number_at(reference, "seq")));
    json_decref(reference);
    ck_assert_double_gt(fabs(loss - base), 1e-2);
    ck_assert_double_eq_tol(loss_of(print("%s " FIXTURES "adapter_%s", eval, name)), loss, 1e-6 * loss);
    ck_assert_double_eq_tol(loss_of(print("%s " FIXTURES "%s", eval, base_name)), base, 1e-6 * base);
    expect(print("eps export --model " FIXTURES "adapter_%s --merge --out merged-%s", name, name), 0,
           "holds the model");
    ck_assert_double_eq_tol(loss_of(print("%s merged-%s", eval, name)), loss, 2e-6 * loss);
    expect_absent(print("merged-%s/config.json", name), "adapter");
    /* And goes on being trained, from where it was. */
    expect(print("rm -rf %s && cp -r " FIXTURES "%s " FIXTURES
                 "adapter_%s . && eps train --model adapter_%s --data %s --seq 12 --batch 2 "
                 "--steps 1 --lr 1e-12 --out more-%s",
                 base_name, base_name, name, name, file, name),
           0);
    ck_assert_double_eq_tol(loss_of(print("%s more-%s", eval, name)), loss, 1e-6 * loss);
}

/* Ranks and alphas by name, in the order in which the file has them, and blocks that are left out; as PEFT saved
 * them. */
static const char *const patterned[] = {"ranks", "layers"};

/* Files may have their tensors in any order. */
static void check_same_tensors(const char *directory, const char *other)
{
    struct outputs_tensors a, b;
    float values[2][1024];

    outputs_open_tensors(&a, directory, "adapter_model.safetensors");
    outputs_open_tensors(&b, other, "adapter_model.safetensors");
    ck_assert_uint_eq(a.file.n_entries, b.file.n_entries);
    for (size_t i = 0; i < a.file.n_entries; i++) {
        const struct safetensors_entry *x = &a.file.entries[i], *y = safetensors_find(&b.file, x->name);
        ck_assert_msg(y && y->n == x->n && y->n <= COUNT(values[0]) && memcmp(x->shape, y->shape, sizeof x->shape) == 0,
                      "%s", x->name);
        ck_assert_int_eq(safetensors_read(values[0], x, 0, x->n, NULL), 0);
        ck_assert_int_eq(safetensors_read(values[1], y, 0, y->n, NULL), 0);
        ck_assert_msg(memcmp(values[0], values[1], x->n * sizeof(float)) == 0, "%s", x->name);
    }
    outputs_close_tensors(&a);
    outputs_close_tensors(&b);
}

TEST_EACH(an_adapter_is_exported_with_pefts_tensors_and_settings, COUNT(patterned))
{
    const char *const name = patterned[_i];
    char again[32];

    strcpy(again, print("again-%s", name));
    expect(print("cp -r " FIXTURES "adapter_%s given-%s && eps export --model " FIXTURES "adapter_%s --out %s && "
                 "for where in given-%s %s; do sed '/base_model_name_or_path/d' $where/adapter_config.json "
                 ">$where.txt; done && cmp given-%s.txt %s.txt",
                 name, name, name, again, name, again, name, again),
           0);
    check_same_tensors(again, print("given-%s", name));
}

/* PEFT takes the first key that matches, so that sorted keys would be another adapter. */
TEST(an_export_keeps_the_order_of_patterns)
{
    expect("cp -r " FIXTURES "untied . && cp -r " FIXTURES "adapter_ranks order && sed -i 's/\"attn.c_proj\": 7/"
           "\"attn.c_proj\": 7, \".*c_proj\": 9/' order/adapter_config.json && "
           "eps export --model order --base-model untied --out ordered",
           0);
    expect_file("ordered/adapter_config.json", "\"attn.c_proj\": 7,\n    \".*c_proj\": 9");
}

/* By the config of the adapter: 2 of most maps, 5, 1 and 3 of others; 3 of most, 1 of a few. */
TEST_EACH(ranks_that_differ_are_told_by_the_smallest_and_the_largest, COUNT(patterned))
{
    const char *const name = patterned[_i], *const ranks = _i ? "adapters of rank 1 to 3" : "adapters of rank 1 to 5";

    expect(print("mkdir told-%s && cd told-%s && cp -r " FIXTURES "%s " FIXTURES "adapter_%s . && "
                 "head -c 400 /dev/zero >ids.bin && eps plan --model adapter_%s --seq 8 --batch 1 --device cpu",
                 name, name, _i ? "qwen3" : "untied", name, name),
           0, ranks);
    expect(print("cd told-%s && eps train --model adapter_%s --data ids.bin --seq 8 --batch 1 --steps 1 --device cpu "
                 "--out out",
                 name, name),
           0, ranks);
    expect("eps plan --model base --lora rank=4 --seq 8 --batch 1 --device cpu", 0, "adapters of rank 4, the others");
}

/* Names of the tensors in a file of weights. */
static void check_tensors(const char *path, unsigned n, const char *one, unsigned other)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct safetensors file;

    ck_assert_int_eq(safetensors_open(&file, fd, NULL), 0);
    ck_assert_uint_eq(file.n_entries, n);
    const struct safetensors_entry *entry = safetensors_find(&file, one);
    ck_assert_msg(entry != NULL, "%s", one);
    ck_assert_uint_eq(entry->shape[1], other);
    safetensors_close(&file);
    close(fd);
}

/* By hand, of c_attn, (32, 96), in 3 blocks: A (5, 32) and B (96, 5), 1,920 of 55,584 + 1,920. */
TEST(checkpoints_and_exports_hold_the_adapters_alone)
{
    expect(TRAIN "--model base --lora rank=5,targets=c_attn --steps 2 --out held", 0, "adapters",
           "1.9 k of 57.5 k parameters are trained");
    check_tensors("held/latest/adapter_model.safetensors", 6,
                  "base_model.model.transformer.h.2.attn.c_attn.lora_A.weight", 32);
    check_tensors("held/latest/optimizer.safetensors", 13, "m.transformer.h.0.attn.c_attn.lora_B.weight", 5);
    ck_assert_int_ne(access("held/latest/model.safetensors", F_OK), 0);
    expect_file("held/latest/adapter_config.json", "\"target_modules\": [\n    \"c_attn\"\n  ]", "\"r\": 5",
                "\"lora_alpha\": 10", "\"fan_in_fan_out\": true", "\"task_type\": \"CAUSAL_LM\"", "/base\"");
    expect("eps verify held", 0, "step-2  whole");
    expect("eps export --model held/latest --out alone", 0, "adapters in fp32", "peft.AutoPeftModelForCausalLM");
    check_tensors("alone/adapter_model.safetensors", 6, "base_model.model.transformer.h.2.attn.c_attn.lora_A.weight",
                  32);
    expect("cmp held/latest/adapter_config.json alone/adapter_config.json", 0);
    expect("eps generate --model held/latest --tokens 20 --temperature 0 >with && "
           "eps export --model held/latest --merge --out whole && "
           "eps generate --model whole --tokens 20 --temperature 0 >merged && cmp with merged",
           0);
    check_tensors("whole/model.safetensors", 41, "transformer.h.0.attn.c_attn.weight", 96);
    expect(
        "eps export --model held --average 1 --merge --out mean && cmp whole/model.safetensors mean/model.safetensors",
        0);
    expect_refusal(&(struct refusal){"eps export --model held --average 1 --out mean-of-factors", 2,
                                     "--average of adapters needs --merge", NULL});
}

/* A base that moved is named; another one, or one of another shape, is refused. */
TEST(a_base_is_the_one_that_the_adapter_was_trained_on)
{
    expect(TRAIN "--model base --lora rank=2 --steps 1 --out based && cp -r base moved && cp -r based away && "
                 "sed -i 's#/base\"#/gone\"#' away/latest/adapter_config.json",
           0);
    expect_refusal(&(struct refusal){"eps eval --model based --base-model other --data data.txt", 1,
                                     "the adapter was trained on another model", "--base-model"});
    expect_refusal(&(struct refusal){"eps eval --model based --base-model small --data data.txt", 1,
                                     "the adapter was trained on another model", "--base-model"});
    expect("eps eval --model based --base-model moved --data data.txt", 0);
    expect("eps export --model away/latest --base-model moved --merge --out from-away", 1, "adapter_config.json");
    expect("rm away/latest/training.json && eps export --model away/latest --base-model moved --merge --out from-away",
           0);
    expect_refusal(&(struct refusal){"eps export --model away/latest --merge --out no", 1, "there is no such directory",
                                     "--base-model"});
    expect_refusal(
        &(struct refusal){"eps data data.txt --model away/latest", 1, "there is no such directory", "--base-model"});
    expect("eps data data.txt --model away/latest --base-model moved --seq 16", 0, "row 1: 17 tokens, 16 trained");
    expect("eps train --resume based --base-model moved --steps 2", 0);
    expect_file("based/latest/adapter_config.json", "/moved\"");
}

static bool is_training(void *context)
{
    (void)context;
    return processes_eps("export --out seen") == 0;
}

/* A live run may outlast its base's directory. What it trains is copied, and its base is where the command says. */
TEST(the_base_of_a_live_run_may_have_moved)
{
    static const char *const adapted[] = {"train", "--model", "own",     "--data",  "data.txt", "--batch",
                                          "1",     "--seq",   "4",       "--lora",  "rank=2",   "--device",
                                          "cpu",   "--out",   "adapted", "--steps", "1000000",  NULL};
    static const char *const whole[] = {"train", "--model", "base",    "--data",   "data.txt", "--batch",
                                        "1",     "--seq",   "4",       "--device", "cpu",      "--out",
                                        "full",  "--steps", "1000000", NULL};

    expect("cp -r base own", 0);
    pid_t run = processes_start("eps", adapted, NULL);
    ck_assert(processes_until(is_training, NULL));
    expect("mv own moved-on", 0);
    expect_refusal(&(struct refusal){"eps export --out no", 1, "own, and there is no such directory", "--base-model"});
    expect_refusal(&(struct refusal){"eps eval --data data.txt --eval-tokens 8", 1,
                                     "own, and there is no such directory", "--base-model"});
    expect_refusal(&(struct refusal){"eps export --base-model other --out no", 1,
                                     "the adapter was trained on another model than that in", "--base-model"});
    expect("eps export --base-model moved-on --merge --out live && eps eval --model live --data data.txt "
           "--eval-tokens 8",
           0);
    expect("eps eval --base-model moved-on --data data.txt --eval-tokens 8", 0, "loss ");
    expect("eps generate --base-model moved-on --prompt a --tokens 2", 0);
    ck_assert_int_eq(kill(run, SIGKILL), 0);
    ck_assert_int_eq(processes_wait(run), 128 + SIGKILL);
    processes_await_nobody();
    run = processes_start("eps", whole, NULL);
    expect("rm -r seen", 0);
    ck_assert(processes_until(is_training, NULL));
    expect_refusal(&(struct refusal){"eps export --base-model base --out no", 2, "--base-model base is for an adapter",
                                     "leave it out"});
    expect_refusal(&(struct refusal){"eps generate --base-model base --tokens 2", 2,
                                     "--base-model base is for an adapter", "leave it out"});
    ck_assert_int_eq(kill(run, SIGKILL), 0);
    ck_assert_int_eq(processes_wait(run), 128 + SIGKILL);
    processes_await_nobody();
}

/* What PEFT's all-linear adapts, by family (tests/oracle/check_adapters.py loads it there); and what --lora alone names:
 * tensors as target_parameters has them, one of which takes the name that it has without the other. */
static const struct {
    const char *base, *lora;
    const char *told, *targets, *tensor; /* of the run's head; of adapter_config.json; of the weights, in block 0 */
    unsigned n, columns;
} adapted[] = {
    {"qwen3_moe", "rank=2", "not adapted: mlp.gate_proj, mlp.up_proj, mlp.down_proj; experts: 16 in each of 2 blocks",
     "\"target_parameters\": [\n    \"gate.weight\",\n    \"gate_up_proj\",\n    \"down_proj\"\n  ]",
     "mlp.experts.base_layer.lora_B", 36, 64},
    {"mixtral", "rank=3", "not adapted: none; experts: 5 in each of 2 blocks", "\".*\\\\.gate_up_proj\": 6",
     "mlp.gate.lora_A", 28, 24},
    {"qwen2_moe", "rank=2", "not adapted: mlp.gate, mlp.experts.gate_up_proj, mlp.experts.down_proj", "\"v_proj\"",
     "mlp.shared_expert.up_proj.lora_A", 46, 24},
    {"olmoe", "targets=experts,rank=2", "adapted: mlp.experts.gate_up_proj, mlp.experts.down_proj; not",
     "\"target_modules\": []", "mlp.experts.lora_A", 8, 28},
    {"qwen2_moe", "targets=mlp.experts.gate_up_proj,rank=2", "adapted: mlp.experts.gate_up_proj; not",
     "\"target_parameters\": [\n    \"mlp.experts.gate_up_proj\"\n  ]", "mlp.experts.lora_A", 4, 24},
};

static void check_tensors(const char *path, unsigned n, const char *one, unsigned other);

TEST_EACH(a_mixture_is_adapted_as_by_peft, COUNT(adapted))
{
    const char *const out = print("mixture-%d", _i);
    char name[32], tensor[120];

    snprintf(name, sizeof name, "%s", out);
    snprintf(tensor, sizeof tensor, "base_model.model.model.layers.0.%s.weight", adapted[_i].tensor);
    expect("head -c 800 /dev/zero >zeros.bin", 0);
    expect(print("eps train --model " FIXTURES "%s --lora %s --data zeros.bin --seq 8 --batch 2 --steps 2 --device cpu "
                 "--out %s",
                 adapted[_i].base, adapted[_i].lora, name),
           0, adapted[_i].told, "B (as planned)");
    expect_file(print("%s/latest/adapter_config.json", name), adapted[_i].targets);
    check_tensors(print("%s/latest/adapter_model.safetensors", name), adapted[_i].n, tensor, adapted[_i].columns);
    expect(print("eps train --resume %s --steps 3", name), 0);
}

TEST(a_run_whose_base_is_gone_says_so_and_not_that_data_are)
{
    expect("cp -r base lent && cp data.txt kept.txt && " TRAIN "--model lent --lora rank=2 --steps 1 --out lost", 0);
    expect("mv lent returned", 0);
    expect_refusal(&(struct refusal){"eps train --resume lost --steps 2", 1, "lent, and there is no such directory",
                                     "--base-model"});
    ck_assert_ptr_null(strstr(command_err(), "--data"));
    expect("mv data.txt hidden.txt", 0);
    expect_refusal(&(struct refusal){"eps train --resume lost --base-model returned --steps 2", 1, "data.txt",
                                     "say where it is now with --data"});
    expect("mv hidden.txt data.txt && eps train --resume lost --base-model returned --steps 2", 0);
}

/* An adapter of PEFT, one of whose settings is another. */
#define ODD(edit)                                                                                                      \
    "rm -rf odd; cp -r " FIXTURES "adapter_tied odd; " edit "; "                                                       \
    "eps eval --model odd --base-model " FIXTURES "tied --data ids.bin"
#define CONFIG(edit) ODD("sed -i '" edit "' odd/adapter_config.json")

static const struct refusal refusals[] = {
    {TRAIN "--model base --out no --lora targets=q_proj,c_attn", 2, "the target q_proj matches no linear map",
     "attn.c_attn, attn.c_proj, mlp.c_fc and mlp.c_proj"},
    {TRAIN "--model base --out no --lora targets=lm_head", 2, "the target lm_head matches no linear map", "all-linear"},
    {TRAIN "--model " FIXTURES "qwen3_moe --out no --lora dropout=0.1", 2,
     "its dropout is 0.1, and its targets include gate.weight", "targets=q_proj,k_proj,v_proj,o_proj"},
    {TRAIN "--model " FIXTURES "qwen3_moe --out no --lora targets=q_proj,up_proj", 2,
     "its targets include up_proj and not gate_proj, which are one tensor, gate_up_proj", "name both, or neither"},
    {TRAIN "--model " FIXTURES "mixtral --out no --lora targets=gate_proj", 2,
     "the target gate_proj matches no linear map", "mlp.experts.gate_up_proj"},
    {TRAIN "--model " FIXTURES "qwen2_moe --out no --lora targets=gate", 2, "the target gate matches no linear map",
     "mlp.shared_expert_gate"},
    {TRAIN "--model base --out no --lora ranks=4", 2, "--lora ranks=4", "rank=N"},
    {TRAIN "--model base --out no --lora targets=,rank=4", 2, "--lora targets= names nothing", "targets=q_proj,v_proj"},
    {TRAIN "--model base --out no --lora rank=4,targets=", 2, "--lora targets= names nothing", "all-linear"},
    {TRAIN "--model base --out no --lora targets=c_attn,,c_fc", 2, "nothing stands before one of its commas", NULL},
    {TRAIN "--model base --out no --lora ,rank=4", 2, "nothing stands before one of its commas", "leave"},
    {"eps plan --model byte-small --base-model base", 2, "--base-model base is for an adapter", "is a preset"},
    {"eps train --attach lab --base-model base", 2, "--base-model does not go with --attach", NULL},
    {TRAIN "--model base --out no --lora rank=0", 2, "--lora rank=0", "from 1 to 4096"},
    {TRAIN "--model base --out no --lora rank=4,rank=5", 2, "--lora has rank twice", "leave one out"},
    {TRAIN "--model base --out no --lora rank=1.5", 2, "--lora rank=1.5", "whole number"},
    {TRAIN "--model base --out no --lora dropout=1", 2, "--lora dropout=1", "from 0 to"},
    {TRAIN "--model config.json --out no --lora rank=4", 2, "--lora", "has weights"},
    {TRAIN "--model byte-small --out no --lora rank=4", 2, "--lora", "byte-small is a preset"},
    {TRAIN "--model base --out no --base-model other", 2, "--base-model other is for an adapter", "leave it out"},
    {"eps plan --model base --lora targets=nothing", 2, "the target nothing", "attn.c_attn"},
    {"eps export --model base --merge --out no", 2, "--merge is for models with adapters", "leave it out"},
    {"eps train --resume once --lora rank=8 --steps 2", 2, "--lora rank=8", "the run's rank=4"},
    {TRAIN "--model once/latest --lora rank=4 --out no", 2, "is an adapter already", "leave --lora out"},
    {CONFIG("s/\"use_dora\": false/\"use_dora\": true/"), 1, "use_dora is set", "not supported"},
    {CONFIG("s/\"bias\": \"none\"/\"bias\": \"all\"/"), 1, "bias is all", "none"},
    {CONFIG("s/LORA/IA3/"), 1, "peft_type is IA3", "only LORA"},
    {CONFIG("s/\"init_lora_weights\": true/\"init_lora_weights\": \"pissa_niter_4\"/"), 1, "pissa_niter_4",
     "the base as well"},
    {CONFIG("s/\"r\": 2/\"r\": 3/"), 1, "lora_A.weight is 2 x 24, the model's is 3 x 24", NULL},
    {CONFIG("s/\"transformer.h.0.attn.c_proj\",//"), 1, "h.0.attn.c_proj.lora_A.weight is not a tensor of this model",
     NULL},
    {CONFIG("s/\"rank_pattern\": {}/\"rank_pattern\": {\"c_attn\": 3}/"), 1,
     "c_attn.lora_A.weight is 2 x 24, the model's is 3 x 24", NULL},
    {CONFIG("s/\"rank_pattern\": {}/\"rank_pattern\": {\"c_attn\": 0}/"), 1,
     "rank_pattern has no whole number from 1 to 4096 for c_attn", NULL},
    {CONFIG("s/\"rank_pattern\": {}/\"rank_pattern\": [3]/"), 1, "rank_pattern must be an object", NULL},
    {CONFIG("s/\"rank_pattern\": {}/\"rank_pattern\": {\"(c_attn\": 3}/"), 1,
     "rank_pattern has (c_attn, which is not a pattern", NULL},
    {CONFIG("s/\"alpha_pattern\": {}/\"alpha_pattern\": {\"c_attn\": -1}/"), 1,
     "alpha_pattern has no number above 0, and at most 1e6, for c_attn", NULL},
    {CONFIG("s/\"alpha_pattern\": {}/\"alpha_pattern\": {\"([a-z.0-9]*)*([a-z_.0-9]*)*1attn\": 1}/"), 1,
     "alpha_pattern has a pattern that takes too long to match", "a simpler way"},
    {CONFIG("s/\"layers_to_transform\": null/\"layers_to_transform\": [\"1\"]/"), 1,
     "layers_to_transform must be a block's number, or a list of them", NULL},
    {CONFIG("s/\"layers_to_transform\": null/\"layers_to_transform\": 1/; "
            "s/\"target_modules\": \\[/\"target_modules\": \".*\", \"others\": [/"),
     1, "layers_to_transform is for target_modules that are a list of names", NULL},
    {CONFIG("/mlp.c_fc/d"), 1, "mlp.c_fc.lora_A.weight is not a tensor of this model", NULL},
    {"rm -rf odd; cp -r " FIXTURES "adapter_table odd; sed -i 's/\"embed_tokens\"//' odd/adapter_config.json; "
     "eps eval --model odd --base-model " FIXTURES "gemma3_tied --data ids.bin",
     1, "embed_tokens.weight replaces the base's, which is read of modules_to_save alone", NULL},
    {"rm -rf odd; cp -r " FIXTURES "adapter_flan odd; sed -i 's/\"modules_to_save\": null/\"modules_to_save\": "
     "[\"shared\"]/' odd/adapter_config.json; eps eval --model odd --base-model " FIXTURES "saved_t5 --data ids.bin",
     1, "modules_to_save has shared, a table that other modules of this t5 model share", NULL},
    {ODD("echo [] >odd/adapter_config.json"), 1, "not a JSON object", "odd/adapter_config.json"},
    {ODD("rm odd/adapter_model.safetensors"), 1, "odd/adapter_model.safetensors", "No such file"},
    {"rm -rf odd; cp -r " FIXTURES "adapter_tied odd; sed -i 's#\\.\\./tied#someone/tied#' odd/adapter_config.json; "
     "eps eval --model odd --data ids.bin",
     1, "the adapter's base is someone/tied", "hf download"},
    {"eps eval --model " FIXTURES "adapter_tied --base-model " FIXTURES "adapter_qwen3 --data ids.bin", 1,
     "the base of an adapter cannot be an adapter", "--merge"},
};

TEST_EACH(what_cannot_be_is_refused, COUNT(refusals))
{
    expect("head -c 400 /dev/zero >ids.bin", 0);
    if (strstr(refusals[_i].command, "once"))
        expect("rm -rf once; " TRAIN "--model base --lora rank=4 --steps 1 --out once", 0);
    expect_refusal(&refusals[_i]);
}

/* Its blocks are those of both stacks. PEFT's file has 1,172 numbers of rank 2, of which 176 are q's: of rank 3
 * those are 88 more. */
TEST(blocks_of_an_encoder_decoder_may_have_ranks_of_their_own)
{
    expect(print("cp -r " FIXTURES "adapter_flan ranks; sed -i 's/\"rank_pattern\": {}/\"rank_pattern\": {\"q\": 3}/' "
                 "ranks/adapter_config.json; eps plan --model ranks --base-model " FIXTURES
                 "saved_flan --seq 16 --batch 2 | grep -o '[0-9]* of them trained .*,'"),
           0, "1260 of them trained in adapters of rank 2 to 3,\n");
}
