/* The eps command with real arguments and files: what each subcommand refuses, in one table; help; what a terminal
 * gets. A mistake is one sentence on stderr that names what is at fault, the right exit status, nothing on stdout, and
 * nothing left behind. None of this reaches a worker. Limits of options: test_options; models: test_client_model; data:
 * test_data. */
#include "tests/kit/command.h"
#include "tests/kit/fixtures/fixture.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

/* A socket that nobody listens at, as a killed daemon leaves it. */
static void put_stale_connection(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = PROCESSES_RUNTIME "/eps/stale/listener"};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);

    ck_assert_int_eq(mkdir(PROCESSES_RUNTIME "/eps", 0700) | mkdir(PROCESSES_RUNTIME "/eps/stale", 0700), 0);
    ck_assert_int_eq(bind(fd, (const struct sockaddr *)&address, sizeof address), 0);
    close(fd);
}

static void setup(void)
{
    struct fixture fixture;

    processes_setup();
    processes_text("text.txt", 2000);
    processes_put_text("scrap.txt", "aaa");
    processes_config("good.json", 1, 2, 8, 16);
    processes_config("large.json", 4097, 2, 64, 64);
    ck_assert_int_eq(mkdir("used", 0700) | mkdir("bare", 0700) | mkdir("model", 0700), 0);
    processes_put_text("used/metrics.jsonl", "");
    fixture_open_model(&fixture, "generate");
    fixture_write_model(&fixture, "model");
    fixture_close(&fixture);
    put_stale_connection();
}

SUITE_FIXTURE_ONCE(setup, processes_remove)

#define GOOD     "eps train --model good.json --data text.txt --out new "
#define PLAN     "eps plan --model gpt2 "
#define NET      "eps plan --model resnet-18 --image 32x32 --labels 10 --batch 8 "
#define GENERATE "eps generate --model model "
#define TIED     TESTS_DIR "/fixtures/tied"

static const struct refusal wrongs[] = {
    {"eps frobnicate", 2, "'frobnicate'", "--help"},
    {"eps tain", 2, "'tain'", "did you mean train?"},
    {"eps help frobnicate", 2, "'frobnicate'", "--help"},
    {"eps help gnerate", 2, "'gnerate'", "did you mean generate?"},
    {GOOD "--devce-mem 3", 2, "--devce-mem is not an option", "did you mean --device-mem?"},
    {GOOD "--audi 3", 2, "--audi is not an option", "did you mean --audit?"}, /* among the last ones */
    {GOOD "--out -v", 2, "--out needs a value: --out DIR", NULL},
    {"eps plan -v", 2, "-v is not an option", NULL},
    {GOOD "-lr 1", 2, "-lr is not an option", "did you mean --lr?"},
    {GOOD "--batch_size=4", 2, "--batch_size is not an option", "it is called --batch here"},
    {GOOD "--bf16", 2, "--bf16", "it is called --precision bf16 here"},
    {GOOD "--per-device-train-batch-size 4", 2, "--batch is the whole batch", "--microbatch"},
    {GOOD "--gradient-checkpointing", 2, "activation checkpointing", "--device-mem"},
    {GOOD "--torch_dtype bfloat16", 2, "--torch_dtype", "it is called --precision here"},
    {GOOD "--load_in_4bit", 2, "--base nf4 keeps frozen weights", "--freeze"},
    {GOOD "--eval_strategy steps", 2, "--eval_strategy", "--eval-every N evaluates"},
    {GOOD "--overwrite_output_dir", 2, "no run is overwritten", "--resume"},
    {GOOD "--packing", 2, "--packing is not an option: --pack puts several conversations", "always joined"},
    {GOOD "--logging_steps 1", 2, "--logging_steps", "metrics.jsonl"},
    {"eps generate --max-tokens 4", 2, "--max-tokens", "it is called --tokens here"},
    {"eps generate --do_sample", 2, "--do_sample", "unless --temperature is 0"},
    {"eps generate --max-length 4", 2, "--max-length", "it is called --tokens here"},
    {GOOD "--max-length 4", 2, "--max-length", "it is called --seq here"},
    {GOOD "--lora-rank 8", 2, "--lora-rank is not an option: all of an adapter is one option", "--lora rank=16"},
    {GOOD "--use_peft", 2, "--use_peft", "--lora rank=16"},
    {"eps generate --lora a", 2, "--model takes an adapter's directory", "finds its base"},
    {GOOD "--wandb", 2, "--tensorboard writes event files", "wandb=\"PROJECT\""},
    {GOOD "--report-to wandb", 2, "Python package", "metrics.jsonl"},
    {GOOD "--tensorboard-dir x", 2, "--tensorboard-dir", "--tensorboard"},
    {GOOD "--config good.json", 2, "--config good.json is a model's config.json", "that is for --model"},
    {"eps train --model org/name --data text.txt --out new", 1, "hf download org/name", "--model ./name"},
    {"cp -r " TIED " spm; touch spm/tokenizer.model; eps train --model spm --data text.txt --out new", 1,
     "tokenizer is a tokenizer.model, which is not read here: make a tokenizer.json of it", "AutoTokenizer"},
    {"eps generate --model spm --prompt a", 1, "tokenizer is a tokenizer.model", "AutoTokenizer"},
    {"eps chat --model spm", 1, "tokenizer is a tokenizer.model", "AutoTokenizer"},
    {"eps eval --learning-rate 4", 2, "--learning-rate is not an option of eps eval", "eps eval --help"},
    {GOOD "--frobnicate 3", 2, "--frobnicate", "--help"},
    {GOOD "-x", 2, "-x", "--help"},
    {GOOD "--out=", 2, "--out", "empty"},
    {"eps train word --model good.json", 2, "'word'", "--help"},
    {"eps status one two", 2, "'two'", "--help"},
    {GOOD "--seq", 2, "--seq", "value"},
    {GOOD "--seq --batch 3", 2, "--seq", "value"},
    {GOOD "--deterministic=yes", 2, "--deterministic", "no value"},
    {GOOD "--schedule cos", 2, "'cos'", "cosine|linear|constant|inverse-sqrt|step"},
    {GOOD "--device gpu", 2, "--device gpu", "cuda:N"},
    {GOOD "--approximate wta=0", 2, "--approximate wta=0: it must be a share of the tokens, from 0.01 to 1", NULL},
    {GOOD "--approximate attention=2", 2, "--approximate attention=2: it must be a share of the queries", "to 1"},
    {GOOD "--approximate attention=0.3,attention=0.3", 2, "--approximate attention=0.3: it takes wta=X", "each once"},
    {GOOD "--approximate wta=0.3x", 2, "--approximate wta=0.3x", "a share of the tokens"},
    {GOOD "--approximate wta=0.3,wta=0.4", 2, "--approximate wta=0.4: it takes wta=X", "each once"},
    {GOOD "--approximate coded=8,coded=8", 2, "--approximate coded=8: it takes wta=X", "each once"},
    {GOOD "--approximate coded=16", 2, "--approximate coded=16: it takes wta=X", "coded=8 or coded=4"},
    {GOOD "--approximate wta=0.3,", 2, "--approximate: nothing stands before or behind one of its commas", NULL},
    {GOOD "--approximate wta=0.3,rule=paper,rule=variance", 2, "--approximate rule=variance: it takes", "each once"},
    {GOOD "--approximate pool=3", 2, "--approximate pool=3: it takes wta=X", "pool=2, pool=4 or pool=8"},
    {NET "--approximate wta=0.3", 2, "--approximate wta=0.3", "no block of this model has a linear map"},
    {NET "--approximate attention=0.3", 2, "--approximate attention=0.3", "no block of this model has attention"},
    {NET "--approximate coded=4", 2, "--approximate coded=4", "no block of this model keeps"},
    {GOOD "--approximate pool=2", 2, "--approximate pool=2 is for nets of images", "no convolution"},
    {GOOD "--approximate any,coded=8", 2, "--approximate any: it takes wta=X", "any alone"},
    {PLAN "--approximate any --minimum", 2, "--approximate any compares whole plans", NULL},
    {GOOD "--approximate rule=variance", 2, "--approximate has a rule, but samples nothing", "wta=0.3"},
    {GOOD "--approximate wta=0.3,rule=some", 2, "--approximate rule=some: it takes", "none or all"},
    {GOOD "--approximate wta=0.3,draw=1.5", 2, "--approximate draw=1.5: it takes", "draw=N"},
    {GOOD "--approximate wta=0.3,draw=4294967296", 2, "--approximate draw=4294967296: it takes", "draw=N"},
    {GOOD "--approximate pool=2,draw=1", 2, "--approximate has a draw, but draws nothing", "draw=1"},
    {PLAN "--approximate wta=nan", 2, "--approximate wta=nan", NULL},
    {GOOD "--betas 0.9", 2, "--betas", "0.9,0.999"},
    {GOOD "--lr 0", 2, "--lr 0", "within"},
    {GOOD "--lr nan", 2, "--lr 'nan'", "number"},
    {GOOD "--lr 1e999", 2, "--lr inf", "within"},
    {GOOD "--lr 1e-3x", 2, "--lr '1e-3x'", "number"},
    {GOOD "--keep 4294967295", 2, "--keep '4294967295'", "from 0 to 4294967294"},
    {GOOD "--seed 18446744073709551615", 2, "--seed '18446744073709551615'", "from 0 to 18446744073709551614"},
    {GOOD "--batch 4294967295", 2, "--batch 4294967295", "at most"}, /* the largest that is a count */
    {GOOD "--device-mem 12parsecs", 2, "--device-mem", "12parsecs"},
    {GOOD "--device-mem 8", 2, "--device-mem: '8' is 8 bytes: did you mean 8GiB?", NULL},
    {GOOD "--connect 127.0.0.1:7070", 1, "127.0.0.1:7070 has a port", "(tcp://127.0.0.1:7070)"},
    {"eps train --model good.json", 2, "--data", "needed"},
    {"eps train --model gpt3 --data text.txt", 1, "gpt3", "gpt2-xl"},
    {"eps train --model bare --data text.txt", 1, "bare", "config.json"},
    {"eps train --data none-*.txt", 1, "none-*.txt", "no file matches"},
    {"eps train --data scrap.txt", 1, "scrap.txt", "3 tokens"},
    {GOOD "--eval-data none", 1, "--eval-data", "none"},
    {"eps train --model good.json --data text.txt --out used", 1, "--out used", "metrics.jsonl"},
    {"eps train --model good.json --data text.txt --out text.txt", 1, "--out text.txt", "directory"},
    {"eps train --model good.json --data text.txt --out text.txt/below", 1, "--out text.txt/below", "directory"},
    {GOOD "--wait 5", 2, "--wait goes with --connect", NULL},
    {"eps train --attach x --wait 5", 2, "--wait does not go with --attach", NULL},
    {"eps train --attach x --sample-prompt a", 2, "--sample-prompt does not go with --attach", NULL},
    {GOOD "--connect x --wait -1", 2, "--wait -1 is not within 0 and 1000000 seconds", NULL},
    {GOOD "--connect tcp://host:1", 1, "tcp://host:1", NULL},
    {GOOD "--change lr --lr 1", 2, "--change lr is for a resumed run", "give --resume"},
    {"eps eval --data text.txt", 2, "--model", "needed"},
    {"eps eval --model good.json --data text.txt", 1, "no weights", "good.json"},
    {"eps status nobody", 1, "nobody", "no daemon"},
    {"eps mem stale", 1, "stale", "nobody listens"},
    {"eps mem --json --prometheus", 2, "--json or --prometheus", "not both"},
    {"eps status --watch 0", 2, "--watch '0'", "0.1 to 86400"},
    {"eps status --watch=soon", 2, "--watch 'soon'", "seconds"},
    {"eps verify", 2, "DIR is needed: a step-N, or the directory of a run", NULL},
    {"eps export --model model", 2, "--out is needed: a new directory", NULL},
    {"eps export --model model --out new.gguf", 2, "--out new.gguf: a directory is written, for transformers",
     "convert_hf_to_gguf.py DIR --outfile new.gguf makes that file"},
    {"eps export --model model --out new --dtype fp8", 2, "--dtype 'fp8'", "fp32|fp16|bf16"},
    {"eps export --out new", 1, "no daemon", NULL},
    {"eps report", 2, "RUN is needed", NULL},
    {"eps bench --device gpu", 2, "--device gpu", NULL},
    {"eps bench --profile /proc/eps/p.json", 1, "/proc/eps/p.json", NULL},
    {"eps bench --profile .", 1, "no profile was made: .: not a regular file", NULL},
    {"eps plan --minimum", 2, "--model is missing", NULL},
    {"eps plan --timeline", 2, "--model is missing", NULL},
    {"eps plan --lora rank=4", 2, "--lora is for one model: name it with --model", NULL},
    {"eps plan --base nf4", 2, "--base is for one model: name it with --model", NULL},
    {"eps plan --freeze 'h.*'", 2, "--freeze is for one model: name it with --model", NULL},
    {"eps plan --base-model a", 2, "--base-model is for one model: name it with --model", NULL},
    {"eps plan --batch 7 --parts 2", 2, "--batch 7 is not a multiple of --parts 2: choose 6", NULL},
    {PLAN "--device-mem 0", 2, "--device-mem: '0' is less than a byte", NULL},
    {PLAN "--device-mem 9223372036854775809", 2, "'9223372036854775809' is more than any machine has", NULL},
    {PLAN "--host-mem -1", 2, "--host-mem: '-1' is less than a byte", NULL},
    {PLAN "--batch 7 --parts 2", 2, "--batch 7 is not a multiple of --parts 2: choose 6", NULL},
    {PLAN "--batch 7 --workers 2", 2, "--parts 2 (by default one for each worker): choose 6", NULL},
    {PLAN "--batch 2 --microbatch 3", 2, "--microbatch 3 is more than the 2 rows", NULL},
    {PLAN "--seq 2000", 2, "--seq 2000 is more than the model's 1024 positions", NULL},
    {PLAN "--minimum --find-depth", 2, "give only one of --minimum", NULL},
    {PLAN "--batch 4 --find-batch", 2, "--find-batch finds what --batch would say", NULL},
    {PLAN "--parts 2 --batch 2 --clip-norm 1 --optimizer adama", 2, "--clip-norm with", NULL},
    {"eps plan --model large.json", 1, "n_layer is 4097: it must be from 1 to 4096", NULL},
    {GENERATE "--ids 1,2x", 2, "--ids '1,2x'", "464,2068"},
    {GENERATE "--ids ,", 2, "--ids ','", "commas"},
    {GENERATE "--ids -1", 2, "--ids '-1'", "commas"},
    {GENERATE "--ids 4294967296", 2, "--ids '4294967296'", "commas"},
    {GENERATE "--ids 1 --prompt a", 2, "--ids", "give one"},
    {GENERATE "--prompt a --prompt-file b", 2, "--prompt-file", "give one"},
    {GENERATE "--prompt-file absent", 1, "--prompt-file absent", "No such file"},
    {GENERATE "--prompt-file /", 1, "--prompt-file /", "directory"},
    {GENERATE "--prompt-file /dev/null", 1, "--prompt-file /dev/null", "empty"},
    {GENERATE "--prompt-file /dev/zero", 1, "--prompt-file /dev/zero", "64 MiB"},
    {GENERATE "--prompt \"$(printf 'caf\\303 noir')\"", 1, "not UTF-8", "byte 3 is 0xC3"},
    {GENERATE "--prompt \"$(printf 'cut \\342\\202')\"", 1, "not UTF-8", "byte 4 is 0xE2"},
    {GENERATE "--ids 5,256", 2, "--ids: 256 is not a token", "255"},
    {GENERATE "--prompt x --temperature -1", 2, "--temperature -1", "at least 0"},
    {GENERATE "--prompt x --top-p 1.5", 2, "--top-p 1.5", "at most 1"},
    {GENERATE "--prompt x --min-p 1.5", 2, "--min-p 1.5", "from 0 to 1"},
    {GENERATE "--prompt x --repetition-penalty 0", 2, "--repetition-penalty 0", "above 0"},
    {GENERATE "--prompt x y", 2, "'y' is not expected", NULL},
    {"eps generate --num-return-sequences 4", 2, "--num-return-sequences", "it is called --samples here"},
    {GENERATE "--prompt x --connect lab --device-mem 1MiB", 2, "--device-mem", "--connect"},
    {"eps generate --prompt x --model absent/model", 1, "absent/model", NULL},
    {"eps generate --prompt x --model byte-small", 1, "--model byte-small is a preset", "directory"},
    {"eps generate --prompt x --model bare", 1, "holds no config.json", "latest"},
    {"eps generate --prompt x --model model/config.json", 1, "config.json has no weights", "directory"},
    {"eps generate --prompt x --model " TIED, 1, "has no tokenizer", "--ids"},
    {"eps generate --model " TIED, 2, "--ids is needed", "tokenizer"},
};

TEST_EACH(a_mistake_is_one_sentence_and_the_right_status, COUNT(wrongs))
{
    expect_refusal(&wrongs[_i]);
    ck_assert_msg(access("new", F_OK) && access("runs", F_OK), "%s: left a run directory", wrongs[_i].command);
}

/* Zero, negative, huge, fractional, empty or a word: no count takes them, and the sentence says which it was. One
 * option of each kind. */
/* Where a user's directories are missing, nothing makes them. */
TEST(no_program_makes_a_directory_that_the_environment_only_names)
{
    static const struct refusal missing[] = {
        {"XDG_RUNTIME_DIR=$PWD/absent eps status", 1, "/absent, which does not exist", "unset the variable"},
        {"XDG_RUNTIME_DIR=$PWD/absent " GOOD "--steps 1", 1, "/absent, which does not exist", NULL},
        {"XDG_RUNTIME_DIR=$PWD/absent epsd --listen lab", 1, "/absent, which does not exist", NULL},
        {"XDG_RUNTIME_DIR=$PWD/absent eps-worker --connect lab --device-mem 64MiB", 1, "/absent, which does not exist",
         NULL},
        {"env -u XDG_CACHE_HOME HOME=$PWD/absent eps bench", 1, "the one in HOME does not exist", NULL},
    };

    for (int i = 0; i < COUNT(missing); i++) {
        expect_refusal(&missing[i]);
        ck_assert_int_ne(access("absent", F_OK), 0);
    }
}

TEST_EACH(counts_take_whole_numbers_in_range_only, 4)
{
    static const char *const options[] = {"--steps", "--batch", "--microbatch", "--device-mem"};
    static const char *const values[] = {"0", "-1", "99999999999999999999999", "1.5x", "many", "0x10", "+1"};
    const char *option = options[_i];
    const int n = _i == 3 ? 5 : COUNT(values); /* a size may be hexadecimal, why not */

    for (int i = 0; i < n; i++)
        expect_refusal(&(struct refusal){print(GOOD "%s %s", option, values[i]), 2, option, print("'%s'", values[i])});
}

/* In a pipe a page of 80 columns, in which a long name may stand alone. What it names: test_documentation. */
TEST(help_is_a_page_and_it_and_version_are_commands_too)
{
    static const char *const commands[] = {"",     "train",  "plan",    "eval",   "generate", "report", "export",
                                           "chat", "verify", "reshape", "models", "pull",     "bench",  "status",
                                           "mem",  "top",    "save",    "drain",  "stop"};
    static const char *const same[][2] = {{"eps train --help", "eps help train"},
                                          {"eps train --help all", "eps help train all"},
                                          {"eps plan --help all", "eps plan --help"},
                                          {"eps --help", "eps help"},
                                          {"eps --version", "eps version"},
                                          {"eps --version", "eps -V"}};

    for (int i = 0; i < COUNT(commands); i++) {
        expect(print("eps %s --help all", commands[i]), 0, "eps ", commands[i]);
        ck_assert_str_eq(command_err(), "");
        for (const char *line = command_out(); *line; line += strcspn(line, "\n") + 1)
            ck_assert_msg(strcspn(line, "\n") <= 90, "eps %s: %.*s", commands[i], (int)strcspn(line, "\n"), line);
    }
    for (int i = 0; i < COUNT(same); i++)
        expect(print("a=$(%s) && b=$(%s) && test \"$a\" = \"$b\" && echo \"$a\"", same[i][0], same[i][1]), 0, "eps");
    expect("eps train --help", 0, "130"); /* how it ends */
    expect("eps help train eval", 2);
    expect("eps help train all more", 2);
    expect("eps", 2, "train"); /* the words of --help, as a mistake */
}

/* Three examples and fifteen options on one screen of 40 lines; each option is one of the command's, as the whole list
 * has it, and the memory that a run may use is among the first three. */
TEST(the_short_help_of_training_fits_a_screen)
{
    char whole[100 << 10];
    int n_lines = 0, n_options = 0, n_examples = 0, place = 0;

    expect("eps train --help all", 0);
    snprintf(whole, sizeof whole, "%s", command_out());
    expect("eps train --help", 0);
    for (const char *line = command_out(); *line; line += strcspn(line, "\n") + 1) {
        n_lines++;
        n_examples += strncmp(line, "  eps train ", 12) == 0;
        if (strncmp(line, "  --", 4) != 0 || strncmp(line, "  --help", 8) == 0)
            continue;
        n_options++;
        if (strncmp(line, "  --device-mem BYTES ", 21) == 0)
            place = n_options;
        const char *name = print("\n%.*s", (int)(2 + strcspn(line + 2, " \n")), line);
        ck_assert_msg(strstr(whole, name), "eps train --help all has no%s", name);
    }
    ck_assert_int_le(n_lines, 40);
    ck_assert_int_eq(n_examples, 3);
    ck_assert_int_eq(n_options, 15);
    ck_assert_int_ge(place, 1);
    ck_assert_int_le(place, 3);
}

/* A misuse on a terminal of 40 columns: the sentence is broken at its spaces, and the command's name is red. */
TEST(an_error_is_broken_to_the_width_of_a_terminal)
{
    const char *said = expect_on_terminal("eps train --grad-accum", 2, 40);

    ck_assert_msg(strncmp(said, "\033[31meps train:\033[0m ", 20) == 0, "%s", said);
    for (const char *line = strchr(said, ' '); *line; line += strcspn(line, "\r\n") + 2)
        ck_assert_msg(strcspn(line, "\r\n") < 40, "%s", said);
    ck_assert_holds(said, "\r\n           ");
    expect("eps --help >/dev/full", 1, "standard output"); /* a full disk under stdout is a failure */
}
