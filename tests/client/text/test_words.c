/* A model with a tokenizer of its own, from text to text: trained, measured, asked, and exported by the eps command. */
#include "tests/kit/command.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define TOKENIZER TESTS_DIR "/fixtures/bpe/tokenizer.json"

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
    expect("cp " TOKENIZER " model", 0);
}

SUITE_FIXTURE(setup, processes_remove)

/* How many tokens eps eval --json counts in the text by this model. */
static double tokens_of(const char *model)
{
    json_t *answer =
        expect_json(print("eps eval --model %s --data text.txt --seq 16 --json --device-mem 256MiB", model), 0);
    const double n = json_number_value(json_object_get(answer, "tokens"));

    json_decref(answer);
    return n;
}

/* The text has about 4 bytes a token in the fixture's vocabulary: by hand, and far from its bytes. The same words, by
 * their ids and as a text, go on alike; what goes on is a text. */
TEST(a_tokenizer_goes_with_the_model_wherever_that_goes)
{
    struct stat st;

    expect("eps train --model model/config.json --data text.txt --out run --steps 3 --batch 4 --save-every 0 "
           "--device-mem 256MiB && cmp " TOKENIZER " run/step-3/tokenizer.json",
           0);
    ck_assert_int_eq(stat("text.txt", &st), 0);
    const double n = tokens_of("run");
    ck_assert(n > (double)st.st_size / 8 && n < (double)st.st_size / 2);
    expect("eps export --model run --out exported && cmp " TOKENIZER " exported/tokenizer.json", 0);
    ck_assert_double_eq(tokens_of("exported"), n);
    expect("eps generate --model run --ids 40,69,76,76,79,276,368,76,68 --tokens 12 --temperature 0", 0);
    char *by_ids = strdup(command_out());
    ck_assert_uint_gt(strlen(by_ids), 1);
    expect("eps generate --model run --prompt 'Hello world' --tokens 12 --temperature 0", 0, by_ids);
    free(by_ids);
    expect("eps train --resume run --steps 5 && cmp " TOKENIZER " run/step-5/tokenizer.json", 0);
}

/* Llama 2's pipeline: <s> before the prompt, and a blank where a token begins a word, though not in front of a text. */
TEST(generation_begins_and_decodes_as_the_tokenizer_says)
{
    processes_config_with("model/config.json", 1, 2, 16, 64, "\"vocab_size\": 700");
    expect("cp " TESTS_DIR "/fixtures/tokenizers/llama2.json model/tokenizer.json", 0);
    expect("eps train --model model/config.json --data text.txt --out run --steps 2 --batch 4 --save-every 0 "
           "--device-mem 256MiB",
           0);
    json_t *object = expect_json("eps generate --model run --tokens 6 --temperature 0 --json", 0);
    ck_assert_double_eq(json_number_at(object, "prompt_tokens"), 1);
    json_decref(object);
    object = expect_json("eps generate --model run --prompt 'Hello world' --tokens 6 --temperature 0 --json", 0);
    json_t *expected = json_load_file(TESTS_DIR "/fixtures/tokenizers/llama2.expected.json", 0, NULL);
    const size_t n = json_array_size(json_object_get(expected, "whole"));
    ck_assert_double_eq(json_number_at(object, "prompt_tokens"), (double)n);
    json_decref(expected);
    json_decref(object);
}

TEST(a_tokenizer_that_cannot_be_read_is_in_the_way_of_texts_alone)
{
    static const unsigned short ids[400] = {1, 2, 3};

    processes_put_text("model/tokenizer.json", "{\"model\": {\"type\": \"WordLevel\"}}");
    processes_write("ids.bin", ids, sizeof ids);
    expect("eps train --model model/config.json --data text.txt --out none --steps 1", 1, "WordLevel",
           "tokenizer.json");
    expect("eps train --model model/config.json --data ids.bin --out ids --steps 1 --batch 2 --save-every 0", 0);
    expect("eps generate --model ids --ids 1,2 --tokens 3", 0);
    expect("eps generate --model ids --prompt Hello --tokens 3", 1, "WordLevel");
}
