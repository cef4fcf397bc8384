/* A model with a tokenizer of its own, from text to text: trained, measured, asked, and exported by the eps command. */
#include "tests/kit/command.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define FIXTURES TESTS_DIR "/fixtures/bpe/"

static char *said; /* stdout of the last command */

/* Runs eps, which must end with this status; *said is its stdout, or what it wrote on stderr if it failed. */
static void __attribute__((format(printf, 2, 3))) eps(int status, const char *format, ...)
{
    char arguments[1024];
    va_list args;

    va_start(args, format);
    vsnprintf(arguments, sizeof arguments, format, args);
    va_end(args);
    const int ended = processes_eps("%s", arguments);
    char *complaint = processes_read(processes_path("err"));
    ck_assert_msg(ended == status, "eps %s: %s", arguments, complaint);
    free(said);
    said = status ? complaint : processes_read(processes_path("out"));
    if (!status)
        free(complaint);
}

static void copy(const char *name, const char *to)
{
    char path[300];

    snprintf(path, sizeof path, FIXTURES "%s", name);
    char *text = processes_read(path);
    FILE *file = fopen(to, "w");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_ge(fputs(text, file), 0);
    fclose(file);
    free(text);
}

static void same(const char *path, const char *fixture)
{
    char original[300];

    snprintf(original, sizeof original, FIXTURES "%s", fixture);
    char *a = processes_read(path), *b = processes_read(original);
    ck_assert_msg(strcmp(a, b) == 0, "%s", path);
    free(a);
    free(b);
}

static void setup(void)
{
    processes_setup();
    FILE *file = fopen("text.txt", "w");
    ck_assert_ptr_nonnull(file);
    for (int i = 0; i < 300; i++)
        fprintf(file, "The quick brown fox jumps over %d lazy dogs. It's what they'd do \xE2\x80\x94 na\xC3\xAFve.\n",
                i);
    fclose(file);
    ck_assert_int_eq(mkdir("model", 0700), 0);
    processes_config_with("model/config.json", 1, 2, 16, 64, "\"vocab_size\": 600");
    copy("tokenizer.json", "model/tokenizer.json");
}

static void teardown(void)
{
    free(said);
    processes_remove();
}

SUITE_FIXTURE_ONCE(setup, teardown)

/* How many tokens eps eval --json counts in the text by this model. */
static long tokens_of(const char *model, const char *data)
{
    eps(0, "eval --model %s --data %s --seq 16 --json --device-mem 256MiB", model, data);
    const char *at = strstr(said, "\"tokens\": ");
    ck_assert_msg(at != NULL, "%s", said);
    return strtol(at + 10, NULL, 10);
}

/* The text has about 4 bytes a token in the fixture's vocabulary: by hand, and far from its bytes. */
TEST(a_tokenizer_goes_with_the_model_wherever_that_goes)
{
    eps(0, "train --model model/config.json --data text.txt --out run --steps 3 --batch 4 --save-every 0 --device-mem "
           "256MiB");
    same("run/step-3/tokenizer.json", "tokenizer.json");
    struct stat st;
    ck_assert_int_eq(stat("text.txt", &st), 0);
    const long n = tokens_of("run", "text.txt");
    ck_assert_int_gt(n, st.st_size / 8);
    ck_assert_int_lt(n, st.st_size / 2);
    eps(0, "export --model run --out exported");
    same("exported/tokenizer.json", "tokenizer.json");
    ck_assert_int_eq(tokens_of("exported", "text.txt"), n);
    eps(0, "train --resume run --steps 5 --device-mem 256MiB");
    same("run/step-5/tokenizer.json", "tokenizer.json");
}

/* The same words, by their ids and as a text, go on alike; what goes on is a text. */
TEST(a_prompt_of_words_is_the_prompt_of_their_ids)
{
    eps(0, "train --model model/config.json --data text.txt --out talk --steps 3 --batch 4 --save-every 0 --device-mem "
           "256MiB");
    eps(0, "generate --model talk --prompt 'Hello world' --tokens 12 --temperature 0 --device-mem 256MiB");
    char *by_text = strdup(said);
    eps(0, "generate --model talk --ids 40,69,76,76,79,276,368,76,68 --tokens 12 --temperature 0 --device-mem 256MiB");
    ck_assert_msg(strstr(by_text, said) != NULL, "'%s' and '%s'", by_text, said);
    ck_assert_uint_gt(strlen(said), 1);
    free(by_text);
}

TEST(a_tokenizer_that_cannot_be_read_is_in_the_way_of_texts_alone)
{
    static const char unigram[] = "{\"model\": {\"type\": \"Unigram\"}}";
    static const unsigned short ids[400] = {1, 2, 3};

    processes_write("model/tokenizer.json", unigram, sizeof unigram - 1);
    processes_write("ids.bin", ids, sizeof ids);
    eps(1, "train --model model/config.json --data text.txt --out none --steps 1");
    ck_assert_msg(strstr(said, "Unigram") && strstr(said, "tokenizer.json"), "%s", said);
    eps(0, "train --model model/config.json --data ids.bin --out ids --steps 1 --batch 2 --save-every 0 --device-mem "
           "256MiB");
    eps(0, "generate --model ids --ids 1,2 --tokens 3 --device-mem 256MiB");
    eps(1, "generate --model ids --prompt Hello --tokens 3 --device-mem 256MiB");
    ck_assert_msg(strstr(said, "Unigram") != NULL, "%s", said);
    copy("tokenizer.json", "model/tokenizer.json");
}

TEST(a_text_alone_is_trained_on_and_says_with_what)
{
    eps(0, "train --data text.txt --out alone --steps 1 --batch 2 --save-every 0 --device-mem 512MiB");
    ck_assert_msg(strstr(said, "byte-small, chosen for ") != NULL, "%s", said);
    expect_file("alone/step-1/config.json", "\"n_embd\": 128");
}
