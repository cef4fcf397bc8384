/* Models that are not here, or not in a form that is read: the sentence names the command that helps. */
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include "client/model/preset.h"
#include "client/model/model.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static void put(const char *path, const char *content)
{
    FILE *file = fopen(path, "w");

    ck_assert_ptr_nonnull(file);
    ck_assert_int_ge(fputs(content, file), 0);
    fclose(file);
}

static const char *refused(const char *path, int code)
{
    static struct error err;
    struct client_model model;

    ck_assert_msg(client_model_open(&model, path, &err) == code, "%s: %s", path, err.text);
    return err.text;
}

SUITE_FIXTURE_ONCE(processes_setup, processes_remove)

TEST(a_name_of_the_hub_gets_the_command_that_downloads_it)
{
    static const char *const names[] = {"openai-community/gpt2", "me/my.model_2"};
    static const char *const paths[] = {"./openai/gpt2", "/openai/gpt2", "a/b/c", "a/",  "/",        "../gpt2",
                                        "here/gone",     "a/b c",        "a/.b",  "a//", "none.json"};

    ck_assert_str_eq(refused(names[0], -ENOENT),
                     "--model openai-community/gpt2: no such directory; if it is on the Hugging Face hub, download it: "
                     "hf download openai-community/gpt2 --local-dir gpt2, then --model ./gpt2");
    ck_assert_ptr_nonnull(strstr(refused(names[1], -ENOENT), "hf download me/my.model_2 --local-dir my.model_2, then"));
    ck_assert_int_eq(mkdir("here", 0700), 0);
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        struct error err;
        client_preset_missing(paths[i], -ENOENT, &err);
        ck_assert_msg(!strstr(err.text, "hf download") && strstr(err.text, "No such file or directory"), "%s: %s",
                      paths[i], err.text);
    }
}

TEST(a_preset_s_name_is_no_directory_of_weights)
{
    struct error err;

    ck_assert_ptr_nonnull(strstr(refused("gpt2-xl", -ENOENT),
                                 "hf download openai-community/gpt2-xl --local-dir gpt2-xl, then --model ./gpt2-xl"));
    client_preset_missing("byte-small", -ENOENT, &err); /* nobody published that */
    ck_assert_str_eq(err.text, "--model byte-small: No such file or directory");
    client_preset_missing("gpt2", -EACCES, &err);
    ck_assert_str_eq(err.text, "--model gpt2: Permission denied");
}

TEST(weights_of_pytorch_get_the_command_that_converts_them)
{
    static const char config[] = "{\"model_type\": \"gpt2\", \"n_layer\": 1, \"n_head\": 2, \"n_embd\": 8, "
                                 "\"n_positions\": 16, \"vocab_size\": 256}";
    const char *said;

    ck_assert_int_eq(mkdir("my old", 0700), 0);
    put("my old/config.json", config);
    ck_assert_ptr_nonnull(strstr(refused("my old", -ENOENT), "my old/config.json to begin with fresh weights"));
    put("my old/pytorch_model-00001-of-00002.bin", "");
    said = refused("my old", -ENOENT);
    ck_assert_ptr_nonnull(strstr(said, "my old holds pytorch_model.bin and no *.safetensors; convert it: python3 -c "));
    ck_assert_str_eq(said + strlen(said) - strlen(" 'my old'"), " 'my old'");
    ck_assert_ptr_nonnull(
        strstr(refused("my old/pytorch_model-00001-of-00002.bin", -EINVAL), "name the directory that holds it"));
}

TEST(fresh_weights_of_a_published_name_are_said_to_be_fresh)
{
    struct eps_train_options options = eps_train_defaults();
    struct error sentence;

    ck_assert(!client_preset_say_fresh(&sentence, &options)); /* chosen by the data */
    options.model = "gpt2";
    ck_assert(client_preset_say_fresh(&sentence, &options));
    ck_assert_str_eq(sentence.text, "gpt2 begins with fresh random weights; to begin with the published ones: hf "
                                    "download openai-community/gpt2 --local-dir gpt2, then --model ./gpt2");
    options.resume = "runs/first";
    ck_assert(!client_preset_say_fresh(&sentence, &options));
    options.resume = NULL;
    options.model = "byte-small";
    ck_assert(!client_preset_say_fresh(&sentence, &options));
    options.model = "gpt2-large";
    ck_assert_int_eq(mkdir("gpt2-large", 0700), 0); /* it was downloaded */
    ck_assert(!client_preset_say_fresh(&sentence, &options));
}

/* What a shell makes of a quoted word is the word. */
TEST(a_quoted_word_is_read_back_by_a_shell)
{
    static const char *const words[] = {"plain/path-1.0_a:b@c%d+e=f,g",
                                        "two words",
                                        "it's",
                                        "''",
                                        "$HOME `id` \"x\" \\",
                                        "",
                                        "~/run",
                                        "a*b?[c]",
                                        "new\nline",
                                        "gr\xC3\xBC\xC3\x9F\x65"};
    char quoted[100], command[200], read_back[100];

    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        const char *as = eps_quote(quoted, sizeof quoted, words[i]);
        ck_assert_int_eq(as == words[i], i == 0);
        snprintf(command, sizeof command, "printf %%s %s", as);
        FILE *pipe = popen(command, "r");
        const size_t n = fread(read_back, 1, sizeof read_back - 1, pipe);
        read_back[n] = 0;
        ck_assert_int_eq(pclose(pipe), 0);
        ck_assert_str_eq(read_back, words[i]);
    }
    ck_assert_str_eq(eps_quote(quoted, 8, "it's"), "it's"); /* 'it'\''s' and its end take 10 */
    ck_assert_str_eq(eps_quote(quoted, 10, "it's"), "'it'\\''s'");
}
