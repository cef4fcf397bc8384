/* The eps command with real arguments and files, all of them wrong: one sentence on stderr that names what is at fault,
 * the right exit status, nothing on stdout, and nothing left behind. None of this reaches a worker. */
#include "tests/kit/command.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <pty.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static void put(const char *name, const void *bytes, size_t n)
{
    FILE *file = fopen(name, "w");

    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(bytes, 1, n, file), n);
    ck_assert_int_eq(fclose(file), 0);
}

/* A socket that nobody listens at, as a killed daemon leaves it. */
static void put_stale_door(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);

    ck_assert_int_eq(mkdir("run/eps", 0700), 0);
    ck_assert_int_eq(mkdir("run/eps/stale", 0700), 0);
    snprintf(address.sun_path, sizeof address.sun_path, "run/eps/stale/door");
    ck_assert_int_eq(bind(fd, (const struct sockaddr *)&address, sizeof address), 0);
    close(fd);
}

static void setup(void)
{
    static char text[2000];
    uint16_t ids[100] = {0};

    processes_setup();
    memset(text, 'a', sizeof text);
    put("text.txt", text, sizeof text);
    put("short.txt", text, 20);
    put("scrap.txt", text, 3);
    put("latin1.txt", "gr\xFC\xDF", 4);
    ids[77] = 300;
    put("ids.bin", ids, sizeof ids);
    put("odd.bin", ids, 33);
    processes_config("good.json", 1, 2, 8, 16);
    processes_config_with("words.json", 1, 2, 8, 16, "\"vocab_size\": 50257");
    processes_config_with("heads.json", 1, 2, 8, 16, "\"n_inner\": 0");
    static const char missing[] =
        "{\"model_type\": \"gpt2\", \"n_layer\": 1, \"n_head\": 2, \"n_embd\": 8, \"n_positions\": 16}";
    put("missing.json", missing, sizeof missing - 1);
    processes_config_with("unknown.json", 1, 2, 8, 16, "\"cross_attention_of_mine\": true");
    processes_config_with("dropout.json", 1, 2, 8, 16, "\"summary_first_dropout\": 0.1, \"initializer_range\": -1");
    ck_assert_int_eq(mkdir("bare", 0700), 0);
    processes_config("bare/config.json", 1, 2, 8, 16);
    ck_assert_int_eq(mkdir("indexed", 0700), 0);
    processes_config("indexed/config.json", 1, 2, 8, 16);
    static const char index[] = "{\"weight_map\": {\"wte.weight\": \"../secret\"}}";
    put("indexed/model.safetensors.index.json", index, sizeof index - 1);
    ck_assert_int_eq(mkdir("used", 0700), 0);
    put("used/metrics.jsonl", "", 0);
    put_stale_door();
}

#define GOOD "eps train --model good.json --data text.txt --out new "

static const struct refusal wrongs[] = {
    {"eps frobnicate", 2, "'frobnicate'", "--help"},
    {"eps tain", 2, "'tain'", "did you mean train?"},
    {"eps evaluate", 2, "'evaluate'", "did you mean eval?"},
    {"eps verison", 2, "'verison'", "did you mean version?"},
    {"eps help frobnicate", 2, "'frobnicate'", "--help"},
    {"eps help gnerate", 2, "'gnerate'", "did you mean generate?"},
    {GOOD "--devce-mem 3", 2, "--devce-mem is not an option", "did you mean --device-mem?"},
    {GOOD "--device_mem=3", 2, "--device_mem is not an option", "did you mean --device-mem?"},
    {GOOD "-lr 1", 2, "-lr is not an option", "did you mean --lr?"},
    {GOOD "--batch-size 4", 2, "--batch-size is not an option", "it is called --batch here"},
    {GOOD "--batch_size=4", 2, "--batch_size is not an option", "it is called --batch here"},
    {GOOD "--learning-rate 1e-3", 2, "--learning-rate", "it is called --lr here"},
    {GOOD "--num-train-epochs 3", 2, "--num-train-epochs", "it is called --epochs here"},
    {GOOD "--max-steps 3", 2, "--max-steps", "it is called --steps here"},
    {GOOD "--seq-len 3", 2, "--seq-len", "it is called --seq here"},
    {GOOD "--max-seq-length 3", 2, "--max-seq-length", "it is called --seq here"},
    {GOOD "--block-size 3", 2, "--block-size", "it is called --seq here"},
    {GOOD "--output-dir x", 2, "--output-dir", "it is called --out here"},
    {GOOD "--bf16", 2, "--bf16", "it is called --precision bf16 here"},
    {GOOD "--per-device-train-batch-size 4", 2, "--batch is the whole batch", "--microbatch"},
    {GOOD "--gradient-accumulation-steps 4", 2, "gradients are accumulated", "--microbatch"},
    {GOOD "--gradient-checkpointing", 2, "activation checkpointing", "--device-mem"},
    {"eps generate --max-new-tokens 4", 2, "--max-new-tokens", "it is called --tokens here"},
    {"eps generate --max-length 4", 2, "--max-length", "it is called --tokens here"},
    {GOOD "--max-length 4", 2, "--max-length", "it is called --seq here"},
    {"eps eval --learning-rate 4", 2, "--learning-rate is not an option of eps eval", "eps eval --help"},
    {"eps train --model gpt3 --data text.txt", 1, "gpt3", "gpt2-xl"},
    {"eps train --data none.txt", 1, "none.txt", "No such file"},
    {"eps train --data none-*.txt", 1, "none-*.txt", "no file matches"},
    {"eps train --data scrap.txt", 1, "scrap.txt", "3 tokens"},
    {"eps train --model gpt2 --data latin1.txt", 1, "latin1.txt", "UTF-8"},
    {"eps train --model good.json", 2, "--data", "needed"},
    {GOOD "--frobnicate 3", 2, "--frobnicate", "--help"},
    {GOOD "-x", 2, "-x", "--help"},
    {GOOD "--out=", 2, "--out", "empty"},
    {"eps train word --model good.json", 2, "'word'", "--help"},
    {"eps status one two", 2, "'two'", "--help"},
    {GOOD "--seq", 2, "--seq", "value"},
    {GOOD "--seq --batch 3", 2, "--seq", "value"},
    {GOOD "--deterministic=yes", 2, "--deterministic", "no value"},
    {GOOD "--schedule sideways", 2, "'sideways'", "cosine|linear|constant"},
    {GOOD "--schedule cos", 2, "'cos'", "cosine|linear|constant"},
    {GOOD "--optimizer sgd", 2, "'sgd'", "adama|adamw"},
    {GOOD "--device gpu", 2, "--device gpu", "cuda:N"},
    {GOOD "--betas 0.9", 2, "--betas", "0.9,0.999"},
    {GOOD "--betas 0.9,1.0", 2, "--betas 0.9,1", "less than 1"},
    {GOOD "--lr 0", 2, "--lr 0", "within"},
    {GOOD "--lr nan", 2, "--lr 'nan'", "number"},
    {GOOD "--lr 1e999", 2, "--lr inf", "within"},
    {GOOD "--lr 1e-3x", 2, "--lr '1e-3x'", "number"},
    {GOOD "--epochs 0", 2, "--epochs 0", NULL},
    {GOOD "--epochs 1 --steps 1", 2, "--steps", "--epochs"},
    {GOOD "--seq 17", 2, "--seq 17", "16 positions"},
    {GOOD "--batch 3 --parts 2", 2, "--batch 3", "--parts 2"},
    {GOOD "--batch 4 --microbatch 5", 2, "--microbatch 5", "4 rows"},
    {GOOD "--parts 65", 2, "--parts 65", "64"},
    {GOOD "--steps 2 --warmup 3", 2, "--warmup 3", "2 steps"},
    {GOOD "--device-mem 12parsecs", 2, "--device-mem", "12parsecs"},
    {GOOD "--workers 2 --connect somewhere", 2, "--workers 2", "--connect"},
    {"eps train --model none.json --data text.txt", 1, "none.json", "No such file"},
    {"eps train --model bare/ --data text.txt", 1, "no *.safetensors", "bare//config.json"},
    {"eps train --model indexed --data text.txt", 1, "indexed", "wte.weight"},
    {"eps train --model text.txt --data text.txt", 1, "text.txt", "JSON"},
    {"eps train --model heads.json --data text.txt", 1, "heads.json", "n_inner"},
    {"eps train --model missing.json --data text.txt", 1, "missing.json", "vocab_size"},
    {"eps train --model unknown.json --data text.txt", 1, "unknown.json", "cross_attention_of_mine"},
    {"eps train --model dropout.json --data text.txt", 1, "dropout.json", "initializer_range"},
    {"eps train --model words.json --data text.txt", 1, "text.txt", "50257"},
    {"eps train --model good.json --data none.txt", 1, "none.txt", "No such file"},
    {"eps train --model good.json --data text.txt none.bin", 1, "none.bin", "No such file"},
    {"eps train --model good.json --data bare", 1, "no file in it", "--data"},
    {"eps train --model good.json --data short.txt", 1, "short.txt", "20 tokens"},
    {"eps train --model good.json --data latin1.txt", 1, "latin1.txt", "UTF-8"},
    {"eps train --model good.json --data ids.bin", 1, "ids.bin", "token 77 is 300"},
    {"eps train --model good.json --data odd.bin", 1, "odd.bin", "33 bytes"},
    {"eps train --model good.json --data text.txt --eval-data short.txt --seq 16 --eval-data none", 1, "--eval-data",
     "none"},
    {"eps train --model good.json --data text.txt --out used", 1, "--out used", "metrics.jsonl"},
    {"eps train --model good.json --data text.txt --out text.txt", 1, "--out text.txt", "directory"},
    {"eps train --model good.json --data text.txt --out text.txt/below", 1, "--out text.txt/below", "directory"},
    {GOOD "--connect tcp://host:1", 1, "tcp://host:1", NULL},
    {"eps eval --data text.txt", 2, "--model", "needed"},
    {"eps eval --model good.json --data text.txt", 1, "no weights", "good.json"},
    {"eps status nobody", 1, "nobody", "no daemon"},
    {"eps mem stale", 1, "stale", "nobody listens"},
    {"eps stop nobody", 1, "nobody", "no daemon"},
    {"eps status", 1, "no daemon", NULL},
};

SUITE_FIXTURE_ONCE(setup, processes_remove)

TEST_EACH(a_mistake_is_one_sentence_and_the_right_status, COUNT(wrongs))
{
    expect_refusal(&wrongs[_i]);
    ck_assert_msg(access("new", F_OK) != 0, "%s: left a run directory", wrongs[_i].command);
    ck_assert_msg(access("runs", F_OK) != 0, "%s: left runs/", wrongs[_i].command);
}

/* Zero, negative, huge, fractional, empty or a word: no count takes them, and the sentence says which it was. */
TEST_EACH(counts_take_whole_numbers_in_range_only, 8)
{
    static const char *const options[] = {"--steps", "--batch",   "--seq",        "--microbatch",
                                          "--parts", "--workers", "--eval-every", "--device-mem"};
    static const char *const values[] = {"0", "-1", "99999999999999999999999", "1.5x", "many", "0x10", "+1"};
    const char *option = options[_i];

    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        if (strcmp(option, "--device-mem") == 0 && i >= 5) /* a size may be hexadecimal, why not */
            continue;
        expect_refusal(&(struct refusal){print(GOOD "%s %s", option, values[i]), 2, option, print("'%s'", values[i])});
        ck_assert_int_ne(access("new", F_OK), 0);
    }
}

TEST(help_names_every_option_and_succeeds)
{
    static const struct {
        const char *command;
        const char *words[32];
    } helps[] = {
        {"", {"train", "eval", "status", "mem", "stop"}},
        {"train",
         {"--model",   "--data",         "--eval-data", "--out",       "--steps",         "--epochs",     "--batch",
          "--seq",     "--microbatch",   "--parts",     "--lr",        "--min-lr",        "--schedule",   "--warmup",
          "--betas",   "--weight-decay", "--epsilon",   "--order",     "--seed",          "--eval-every", "--device",
          "--workers", "--device-mem",   "--connect",   "--optimizer", "--deterministic", "130"}},
        {"eval", {"--model", "--data", "--batch", "--seq", "--device-mem", "--connect", "--json"}},
        {"status", {"ADDRESS", "--json"}},
        {"mem", {"ADDRESS", "--json"}},
        {"stop", {"ADDRESS"}},
    };

    for (size_t i = 0; i < sizeof helps / sizeof *helps; i++) {
        expect_texts(print("eps %s --help", helps[i].command), 0, helps[i].words);
        ck_assert_str_eq(command_err(), "");
    }
    expect("eps", 2, "train"); /* the same words, as a mistake */
}

TEST(help_and_version_are_commands_too)
{
    static const char *const same[][2] = {
        {"eps train --help", "eps help train"},
        {"eps --help", "eps help"},
        {"eps --version", "eps version"},
        {"eps --version", "eps -V"},
    };

    for (int i = 0; i < COUNT(same); i++) {
        expect(same[i][0], 0);
        char *said = strdup(command_out());
        expect(same[i][1], 0);
        ck_assert_str_eq(command_out(), said);
        free(said);
    }
    ck_assert(strncmp(command_out(), "eps ", 4) == 0);
    expect("eps help train eval", 2);
}

/* In a pipe a page of 80 columns, in which a long name may stand alone. */
TEST_EACH(no_line_of_help_is_wider_than_a_page, 14)
{
    static const char *const commands[] = {"",       "train", "plan",   "eval", "generate", "report", "export",
                                           "verify", "bench", "status", "mem",  "top",      "save",   "stop"};
    const char *line;

    expect(print("eps %s --help", commands[_i]), 0);
    for (line = command_out(); *line; line += strcspn(line, "\n") + 1)
        ck_assert_msg(strcspn(line, "\n") <= 90, "eps %s --help: %.*s", commands[_i], (int)strcspn(line, "\n"), line);
}

/* A misuse on a terminal of 40 columns: the sentence is broken at its spaces, and the command's name is red. */
TEST(an_error_is_broken_to_the_width_of_a_terminal)
{
    const char *const arguments[] = {BIN_DIR "/eps", "train", "--grad-accum", NULL};
    char said[4096];
    size_t n = 0;
    ssize_t got;
    int fd;
    const pid_t pid = forkpty(&fd, NULL, NULL, &(struct winsize){.ws_row = 24, .ws_col = 40});

    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        setenv("TERM", "xterm", 1);
        unsetenv("NO_COLOR");
        execv(arguments[0], (char *const *)arguments);
        _exit(127);
    }
    while (n < sizeof said - 1 && (got = read(fd, said + n, sizeof said - 1 - n)) > 0)
        n += (size_t)got;
    said[n] = 0;
    close(fd);
    ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
    ck_assert_msg(strncmp(said, "\033[31meps train:\033[0m ", 20) == 0, "%s", said);
    for (const char *line = strchr(said, ' '); *line; line += strcspn(line, "\r\n") + 2)
        ck_assert_msg(strcspn(line, "\r\n") < 40, "%s", said);
    ck_assert_ptr_nonnull(strstr(said, "\r\n           "));
}

TEST(a_full_disk_under_stdout_is_a_failure)
{
    expect("eps --help >/dev/full", 1, "standard output");
}
