/* Which model is trained on which tokens, when one of them leaves it open. */
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include "client/run/run.h"
#include "client/text/tokenizer.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Opens and resolves; the run is the caller's to close. */
static int chosen(struct client_run *run, const char *model, const char *data, const char *eval_data, struct error *err)
{
    struct eps_train_options in = eps_train_defaults();

    in.model = model, in.data = &data, in.n_data = 1, in.eval_data = eval_data;
    int rc = client_run_new(run, &in, &in, NULL, err);
    return rc ? rc : client_run_resolve(run, 0, err);
}

static void expect(const char *model, const char *data, const char *name, const char *note, uint32_t vocabulary)
{
    struct client_run run;
    struct error err = {0};

    ck_assert_msg(chosen(&run, model, data, NULL, &err) == 0, "%s", err.text);
    ck_assert_str_eq(run.options.model, name);
    ck_assert_str_eq(run.options.model_note, note);
    ck_assert_uint_eq(run.model.config.vocabulary, vocabulary);
    ck_assert_uint_eq(run.data.vocabulary, vocabulary);
    ck_assert_uint_gt(client_source_n_rows(run.source, CLIENT_TRAIN), 0);
    client_run_close(&run);
}

TEST(a_short_text_trains_a_model_of_bytes_and_larger_ids_gpt2)
{
    expect(NULL, "text.txt", "byte-small", "chosen for 5.0 k bytes of text", 256);
    expect(NULL, "text.bin", "byte-small", "chosen for 2.5 k tokens", 256); /* small ids */
    expect(NULL, "words.bin", "gpt2", "chosen for 2.5 k tokens", 50257);
    expect("gpt2", "words.bin", "gpt2", "", 50257);
    expect("gpt2", "text.txt", "gpt2", "vocabulary 256, as the data is text", 256);
    expect("byte-small", "text.txt", "byte-small", "", 256);
}

static uint32_t end_token(const struct client_run *run)
{
    struct client_tokenizer *tokenizer;

    ck_assert_int_eq(client_tokenizer_open(&tokenizer, run->model.side, NULL, run->model.config.vocabulary, NULL), 0);
    const uint32_t end = client_tokenizer_end(tokenizer);
    client_tokenizer_close(tokenizer);
    return end;
}

/* 8 words of 5 bytes and a blank, 300 kB: they are 8 tokens soon, and the last one of a document is 256. */
TEST(a_longer_text_trains_a_model_of_tokens_that_it_learns)
{
    static const char *const models[] = {NULL, "text-small"};
    static const char *const datas[] = {"long.txt", "long.jsonl"};
    struct client_run run;
    struct error err = {0};

    for (size_t i = 0; i < 4; i++) {
        const char *model = models[i / 2], *data = datas[i % 2];
        ck_assert_msg(chosen(&run, model, data, NULL, &err) == 0, "%s", err.text);
        ck_assert_str_eq(run.options.model, "text-small");
        const char *said = model ? "tokens learned" : "chosen for 3";
        ck_assert_int_eq(strncmp(run.options.model_note, said, strlen(said)), 0);
        ck_assert_uint_eq(run.model.config.vocabulary, 2048);
        ck_assert_uint_eq(end_token(&run), 256);
        ck_assert_uint_gt(run.data.n, 49000);
        ck_assert_uint_lt(run.data.n, 51000);
        ck_assert_int_eq(run.data.separated, true);
        client_run_close(&run);
    }
    ck_assert_msg(chosen(&run, NULL, "long.txt", "text.txt", &err) == 0, "%s", err.text); /* the same tokens */
    ck_assert_uint_eq(run.eval_data.vocabulary, 2048);
    client_run_close(&run);
}

TEST(a_preset_has_one_recipe_named_or_chosen)
{
    struct client_run by_name, by_choice;

    ck_assert_int_eq(chosen(&by_name, "byte-small", "text.txt", NULL, NULL), 0);
    ck_assert_int_eq(chosen(&by_choice, NULL, "text.txt", NULL, NULL), 0);
    const struct eps_train_options *a = &by_name.options, *b = &by_choice.options;
    ck_assert(a->lr == 2e-3 && a->lr == b->lr && a->beta2 == b->beta2 && a->warmup == b->warmup);
    ck_assert(a->seq == b->seq && a->batch == b->batch && a->steps == b->steps);
    client_run_close(&by_name);
    client_run_close(&by_choice);
}

/* One figure behind the point, and never 1000.0 of anything. */
TEST(a_count_of_tokens_is_said_in_few_figures)
{
    static const struct {
        size_t n;
        const char *note;
    } counts[] = {{999, "chosen for 999 bytes of text"},
                  {1000, "chosen for 1.0 k bytes of text"},
                  {999949, "chosen for 999.9 k bytes of text, tokens learned from the text"},
                  {999951, "chosen for 1.0 M bytes of text, tokens learned from the text"}};
    static char text[1 << 20];

    for (size_t i = 0; i < sizeof text; i++)
        text[i] = i % 2 ? ' ' : 'b';
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        processes_write("counted.txt", text, counts[i].n);
        expect(NULL, "counted.txt", counts[i].n < 256 << 10 ? "byte-small" : "text-small", counts[i].note,
               counts[i].n < 256 << 10 ? 256 : 2048);
    }
}

TEST(a_file_of_a_preset_s_name_comes_first)
{
    struct client_run run;

    processes_config("byte-large", 1, 2, 8, 16);
    ck_assert_int_eq(chosen(&run, "byte-large", "text.txt", NULL, NULL), 0);
    ck_assert_uint_eq(run.model.config.width, 8);
    client_run_close(&run);
    ck_assert_int_eq(unlink("byte-large"), 0);
}

TEST(what_does_not_go_together_is_refused)
{
    static const struct {
        const char *model, *data, *eval_data;
        int code;
        const char *first, *second;
    } wrongs[] = {
        {"byte-small", "words.bin", NULL, -EINVAL, "--data", "vocabulary of 256"},
        {NULL, "text.txt", "words.bin", -EINVAL, "--eval-data", "vocabulary of 256"},
        {NULL, "huge.bin", NULL, -EINVAL, "--data", "vocabulary of 50257"},
        {"gpt2", "words.bin", "text.txt", -EINVAL, "--eval-data", "tokenizer"},
        {"gpt-2", "text.txt", NULL, -ENOENT, "--model gpt-2", "byte-small, "},
        {"./gpt2", "text.txt", NULL, -ENOENT, "--model ./gpt2", "No such file"},
    };

    for (size_t i = 0; i < sizeof wrongs / sizeof *wrongs; i++) {
        struct client_run run;
        struct error err = {0};
        ck_assert_msg(chosen(&run, wrongs[i].model, wrongs[i].data, wrongs[i].eval_data, &err) == wrongs[i].code,
                      "%zu: %s", i, err.text);
        ck_assert_holds(err.text, wrongs[i].first, wrongs[i].second);
        client_run_close(&run);
    }
}

static void put_words(void)
{
    static const char *const words[] = {"alpha", "gamma", "delta", "kappa", "sigma", "omega", "theta", "betas"};
    static char text[400000], lines[400000];
    size_t n = 0, m = 0;

    for (size_t i = 0; i < 50000; i++) {
        const char *word = words[i * i / 3 % 8];
        n += (size_t)sprintf(text + n, " %s", word);
        m += (size_t)sprintf(lines + m, "%s %s%s", i % 500 ? "" : "{\"text\": \"", word, (i + 1) % 500 ? "" : "\"}\n");
    }
    processes_write("long.txt", text, n);
    processes_write("long.jsonl", lines, m);
}

static void setup(void)
{
    static uint16_t ids[2500];
    static char text[5000];

    processes_setup();
    for (size_t i = 0; i < 2500; i++)
        ids[i] = 'a';
    processes_write("text.bin", ids, sizeof ids);
    processes_write("text.txt", memset(text, 'a', sizeof text), sizeof text);
    ids[2000] = 50256;
    processes_write("words.bin", ids, sizeof ids);
    ids[2000] = 50257;
    processes_write("huge.bin", ids, sizeof ids);
    put_words();
}

SUITE_FIXTURE_ONCE(setup, processes_remove)
