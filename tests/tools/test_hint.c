/* What is said of an option that a command does not have. The names of other programs' options are true ones, from
 * tests/fixtures/foreign.txt. */
#include "tests/kit/command.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include "tools/arguments.h"
#include "tools/table_options.h"
#include "tools/usual.h"

#include <stdlib.h>
#include <string.h>

static const char *const names[EPS_COMMANDS] = {"train", "plan", "data", "eval", "generate", "chat", "export"};

/* Everything that a command's struct takes. */
static union {
    struct eps_train_options train;
    struct eps_eval_options eval;
    struct eps_data_options data;
    struct eps_generate_options generate;
    struct eps_chat_options chat;
    struct eps_export_options export;
} asked;

/* The options of a command. */
static const struct table_options *options_of(unsigned command)
{
    static struct table_options options[EPS_COMMANDS];
    static struct usual usual;
    static const struct argument prompts[] = {{"--prompt", "TEXT", ARGUMENT_TEXT, NULL, ""},
                                              {"--prompt-file", "FILE|-", ARGUMENT_TEXT, NULL, ""}};
    struct table_options *o = &options[command];

    if (o->n > 0)
        return o;
    o->options = &asked;
    table_options_take(o, (enum eps_command)command);
    if (command == EPS_COMMAND_GENERATE)
        table_options_add(o, prompts, COUNT(prompts));
    if (command != EPS_COMMAND_PLAN && command != EPS_COMMAND_EXPORT)
        usual_add(o, &usual, "");
    return o;
}

/* What is said of an option that the command does not have. */
static const char *hint_of(unsigned command, const char *option)
{
    const struct table_options *o = options_of(command);
    static char sentence[600];

    hint_option(sentence, sizeof sentence, &(struct command){names[command], "", o->arguments, o->n}, option);
    return sentence;
}

/* The same of a name without its dashes; "" if the command has an option of that name, with - for _. */
static const char *hint_of_name(unsigned command, const char *name)
{
    const struct table_options *o = options_of(command);
    char spelt[100];

    snprintf(spelt, sizeof spelt, "--%s", name);
    for (char *c = spelt; *c; c++)
        *c = *c == '_' ? '-' : *c;
    bool has = strcmp(spelt, "--help") == 0;
    for (size_t i = 0; i < o->n; i++)
        has = has || strcmp(o->arguments[i].name, spelt) == 0;
    return has ? "" : hint_of(command, spelt);
}

static const struct {
    enum eps_command command;
    const char *option, *says;
} hints[] = {
    /* TRL and transformers */
    {EPS_COMMAND_TRAIN, "--per_device_train_batch_size=4", "--batch is the whole batch of a step"},
    {EPS_COMMAND_TRAIN, "--gradient_accumulation_steps", "--microbatch sets it"},
    {EPS_COMMAND_TRAIN, "--learning_rate", "it is called --lr here"},
    {EPS_COMMAND_TRAIN, "--num_train_epochs", "it is called --epochs here"},
    {EPS_COMMAND_TRAIN, "--max_length", "it is called --seq here"},
    {EPS_COMMAND_TRAIN, "--output_dir", "it is called --out here"},
    {EPS_COMMAND_TRAIN, "--run_name", "it is called --name here"},
    {EPS_COMMAND_TRAIN, "--model_revision", "--model takes a directory, which hf download fetches"},
    {EPS_COMMAND_TRAIN, "--dataset_name", "--data takes files"},
    {EPS_COMMAND_TRAIN, "--dataloader_num_workers", "there is no data loader to set up"},
    {EPS_COMMAND_TRAIN, "--eval_on_start", "--eval-every N measures before the first step"},
    {EPS_COMMAND_TRAIN, "--load_best_model_at_end", "the checkpoint of the lowest held-out loss is DIR/best"},
    {EPS_COMMAND_TRAIN, "--group_by_length", "--order is shuffled or sequential"},
    {EPS_COMMAND_TRAIN, "--label_smoothing_factor", "it is called --label-smoothing here"},
    {EPS_COMMAND_TRAIN, "--loss_type", "of preferences that of DPO (--dpo-beta, --dpo-smoothing)"},
    {EPS_COMMAND_TRAIN, "--precompute_ref_log_probs", "the reference is the model before the run"},
    {EPS_COMMAND_TRAIN, "--deepspeed", "--workers N takes N devices"},
    {EPS_COMMAND_TRAIN, "--push_to_hub", "which hf upload takes"},
    {EPS_COMMAND_TRAIN, "--trust_remote_code", "no code of a model's directory is run"},
    {EPS_COMMAND_TRAIN, "--use_liger_kernel", "there are no kernels to switch on"},
    {EPS_COMMAND_TRAIN, "--torch_compile", "kernels are compiled already"},
    {EPS_COMMAND_TRAIN, "--attn_implementation", "--attention says how it is computed"},
    {EPS_COMMAND_TRAIN, "--disable_tqdm", "it is called --quiet here"},
    {EPS_COMMAND_TRAIN, "--full_determinism", "it is called --deterministic here"},
    /* axolotl */
    {EPS_COMMAND_TRAIN, "--sequence_len", "it is called --seq here"},
    {EPS_COMMAND_TRAIN, "--sample_packing", "--pack fills rows of --seq with several conversations"},
    {EPS_COMMAND_TRAIN, "--val_set_size", "--eval-data names a file"},
    {EPS_COMMAND_TRAIN, "--roles_to_train", "it is called --train-on here"},
    {EPS_COMMAND_TRAIN, "--early_stopping_patience", "it is called --patience here"},
    {EPS_COMMAND_TRAIN, "--adapter", "--lora rank=16 trains adapters"},
    {EPS_COMMAND_TRAIN, "--gpu_memory_limit", "it is called --device-mem here"},
    /* LLaMA-Factory */
    {EPS_COMMAND_TRAIN, "--cutoff_len", "it is called --seq here"},
    {EPS_COMMAND_TRAIN, "--pref_beta", "it is called --dpo-beta here"},
    {EPS_COMMAND_TRAIN, "--finetuning_type", "--lora rank=16"},
    {EPS_COMMAND_TRAIN, "--quantization_bit", "--base nf4 or int8"},
    {EPS_COMMAND_TRAIN, "--pure_bf16", "--precision bf16 --master none"},
    {EPS_COMMAND_TRAIN, "--preprocessing_num_workers", "it is called --threads here"},
    {EPS_COMMAND_TRAIN, "--interleave_probs", "--data FILE=2"},
    {EPS_COMMAND_CHAT, "--default_system", "it is called --system here"},
    {EPS_COMMAND_EXPORT, "--export_dir", "it is called --out here"},
    /* Unsloth */
    {EPS_COMMAND_TRAIN, "--random_state", "--seed is that of fresh weights"},
    {EPS_COMMAND_TRAIN, "--use_gradient_checkpointing", "--device-mem"},
    {EPS_COMMAND_EXPORT, "--save_gguf", "convert_hf_to_gguf.py makes a GGUF file"},
    {EPS_COMMAND_EXPORT, "--save_method", "it is called --merge here"},
    /* llama.cpp */
    {EPS_COMMAND_GENERATE, "--n-gpu-layers", "what fits --device-mem stays on the device"},
    {EPS_COMMAND_TRAIN, "--n-gpu-layers", "what fits --device-mem stays on the device"},
    {EPS_COMMAND_GENERATE, "-ngl", "what fits --device-mem stays on the device"},
    {EPS_COMMAND_GENERATE, "--n-predict", "it is called --tokens here"},
    {EPS_COMMAND_GENERATE, "--temp", "it is called --temperature here"},
    {EPS_COMMAND_GENERATE, "-f", "it is called --prompt-file here"},
    {EPS_COMMAND_GENERATE, "-t", "it is called --threads here"},
    {EPS_COMMAND_GENERATE, "-c", "the context is the model's positions"},
    {EPS_COMMAND_GENERATE, "--mirostat", "--repetition-penalty alone"},
    {EPS_COMMAND_GENERATE, "-cnv", "eps chat is a conversation"},
    {EPS_COMMAND_GENERATE, "-s", "--seed"},
    {EPS_COMMAND_CHAT, "-c", "it is called --context here"},
    {EPS_COMMAND_CHAT, "-sys", "it is called --system here"},
    {EPS_COMMAND_CHAT, "-p", "--system is the system message"},
    {EPS_COMMAND_CHAT, "--reverse-prompt", "it is called --stop here"},
    {EPS_COMMAND_EVAL, "--ppl-stride", "it is called --stride here"},
    {EPS_COMMAND_EVAL, "-f", "it is called --data here"},
    {EPS_COMMAND_EXPORT, "--outtype", "it is called --dtype here"},
    {EPS_COMMAND_EXPORT, "--outfile", "it is called --out here"},
    /* A slip of the fingers, and what is not known. */
    {EPS_COMMAND_TRAIN, "--devce-mem", "did you mean --device-mem?"},
    {EPS_COMMAND_TRAIN, "--Batch", "did you mean --batch?"},
    {EPS_COMMAND_TRAIN, "--eval_every", "did you mean --eval-every?"},
    {EPS_COMMAND_TRAIN, "--frobnicate", "see train --help"},
};

TEST_EACH(a_foreign_option_is_told_what_it_is_here, COUNT(hints))
{
    const char *said = hint_of(hints[_i].command, hints[_i].option);

    ck_assert_msg(strstr(said, hints[_i].says), "%s %s: %s", names[hints[_i].command], hints[_i].option, said);
}

/* Calls look for each name in the list; *section counts from 1. */
static void each_name(void (*look)(const char *name, unsigned section))
{
    char *text = processes_read(TESTS_DIR "/fixtures/foreign.txt"), *rest = text, *line;
    unsigned section = 0;
    bool head = true;

    while ((line = strsep(&rest, "\n"))) {
        const bool begins = *line == '#';
        section += begins && head;
        head = !*line;
        for (char *name = begins ? NULL : strtok(line, " "); name; name = strtok(NULL, " "))
            look(name, section);
    }
    free(text);
}

static unsigned n_fields, n_told;

static void count_field(const char *name, unsigned section)
{
    enum { TRL = 2 }; /* behind the list's own head */
    const char *said = hint_of_name(EPS_COMMAND_TRAIN, name);

    if (section != TRL)
        return;
    n_fields++;
    n_told += !*said || (!strstr(said, "did you mean") && !strstr(said, "see train --help"));
}

/* But for `debug`, which there is nothing like. */
TEST(each_field_of_trls_configs_is_an_option_or_has_a_hint)
{
    n_fields = n_told = 0;
    each_name(count_field);
    ck_assert_uint_eq(n_fields, 174);
    ck_assert_uint_eq(n_told, 173);
}

/* What is near one of our names by chance, and may be a slip. */
static bool is_a_slip(const char *name)
{
    static const char *const slips[] = {"Cr",   "Crd", "audio", "check", "host", "lang",      "length", "lm",  "lv",
                                        "mode", "nr",  "opt",   "ot",    "save", "sequences", "split",  "type"};

    for (size_t i = 0; i < COUNT(slips); i++)
        if (strcmp(slips[i], name) == 0)
            return true;
    return false;
}

static void check_letters(const char *name, unsigned section)
{
    (void)section;
    for (unsigned i = 0; i < EPS_COMMANDS; i++) {
        const char *said = hint_of_name(i, name);
        ck_assert_msg(is_a_slip(name) || !strstr(said, "did you mean"), "%s: %s", names[i], said);
    }
}

TEST(no_foreign_option_is_taken_for_another_by_its_letters)
{
    each_name(check_letters);
}
