/* Presets against the published figures, the choice among them, and sentences that lead to published models. */
#include "proto/model/gpt2.h"
#include "tests/kit/command.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include "client/model/classifier.h"
#include "client/model/preset.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

SUITE_FIXTURE_ONCE(processes_setup, processes_remove)

/* GPT-2's as in transformers' GPT2LMHeadModel, tied tensors once; the number in the table is what the model described
 * by its config really has. */
TEST(every_preset_opens_as_the_model_that_it_names_and_gpt2_has_its_published_sizes)
{
    static const char *const published[] = {"gpt2 12 12 768 124439808", "gpt2-medium 24 16 1024 354823168",
                                            "gpt2-large 36 20 1280 774030080", "gpt2-xl 48 25 1600 1557611200"};
    size_t n = 0;

    for (const struct eps_preset *preset; (preset = eps_preset(n)) != NULL; n++) {
        struct client_model opened;
        struct model model;
        ck_assert_int_eq(client_preset_open(&opened, preset, preset->vocabulary, NULL), 0);
        ck_assert_str_eq(opened.name, preset->name);
        ck_assert_uint_eq(opened.n_weights, 0);
        ck_assert_int_eq(lseek(opened.config_fd, 0, SEEK_CUR), 0); /* the daemon shares the position */
        ck_assert_int_eq(model_init(&model, &opened.config, NULL), 0);
        ck_assert_msg(model.n_parameters == preset->n_parameters, "%s", preset->name);
        ck_assert_ptr_eq(client_preset_find(preset->name), preset);
        model_free(&model);
        client_model_close(&opened);
    }
    ck_assert_uint_eq(n, 10);
    for (int i = 0; i < 4; i++) {
        const struct eps_preset *p = eps_preset(6 + (size_t)i);
        ck_assert_str_eq(print("%s %u %u %u %ju", p->name, p->n_layers, p->n_heads, p->width,
                               (uintmax_t)p->n_parameters),
                         published[i]);
        ck_assert(p->n_positions == 1024 && p->vocabulary == 50257);
    }
}

/* A preset for text has no tokenizer yet, but its end token's id is known. */
TEST(presets_have_no_dropout_but_gpt2_keeps_its_own)
{
    const struct model_config expected = {.family = &family_gpt2,
                                          .n_layers = 4,
                                          .n_heads = 4,
                                          .width = 128,
                                          .inner_width = 512,
                                          .n_positions = 128,
                                          .vocabulary = 256,
                                          .activation = MODEL_GELU_NEW,
                                          .tied = true,
                                          GPT2_ON(scale_attention),
                                          .norm_epsilon = 1e-5f,
                                          .initializer_range = 0.049f};
    struct client_model model;
    char config[800] = "";

    ck_assert_int_eq(client_preset_open(&model, client_preset_find("byte-small"), 256, NULL), 0);
    ck_assert_mem_eq(&model.config, &expected, sizeof expected);
    client_model_close(&model);
    ck_assert_int_eq(client_preset_open(&model, client_preset_find("gpt2"), 256, NULL), 0);
    ck_assert_uint_eq(model.config.vocabulary, 256);
    ck_assert_float_eq(gpt2_of(&model.config)->dropout_attention, 0.1f);
    ck_assert_float_eq(gpt2_of(&model.config)->dropout_embedding, 0.1f);
    ck_assert_float_eq(gpt2_of(&model.config)->dropout_residual, 0.1f);
    client_model_close(&model);
    ck_assert_int_eq(client_preset_open(&model, client_preset_find("text-small"), 2048, NULL), 0);
    ck_assert_int_gt(pread(model.config_fd, config, sizeof config - 1, 0), 0);
    ck_assert_holds(config, "\"bos_token_id\": 256,", "\"eos_token_id\": 256,");
    ck_assert_float_eq(gpt2_of(&model.config)->dropout_residual, 0.0f);
    ck_assert_float_eq(model.config.initializer_range, 0.049f);
    client_model_close(&model);
}

TEST(an_unknown_name_is_answered_with_the_list)
{
    struct error err;

    ck_assert_ptr_null(client_preset_find("gpt3"));
    ck_assert_int_eq(client_preset_unknown("gpt3", &err), -ENOENT);
    ck_assert_str_eq(err.text, "--model gpt3: No such file or directory, and none of the presets: text-small, "
                               "text-medium, text-large, byte-small, byte-medium, byte-large, gpt2, gpt2-medium, "
                               "gpt2-large, gpt2-xl, wrn-28-2, resnet-18, resnet-50; did you mean gpt2?");
    client_preset_unknown("bert-base-uncased", &err);
    ck_assert_holds(err.text, "gpt2-xl", "hf download");
    client_preset_unknown("gpt2_larg", &err);
    ck_assert_holds(err.text, "; did you mean gpt2-large?");
    client_preset_unknown("llama", &err);
    ck_assert_ptr_null(strstr(err.text, "did you mean"));
}

TEST(the_data_decide_which_preset_is_trained)
{
    enum { OWN = -1 }; /* the daemon's own workers */
    static const struct {
        bool text;
        uint64_t n_tokens;
        uint32_t vocabulary;
        uint64_t free_mib;
        int device_mib;
        const char *name;
    } cases[] = {
        {false, 1000, 256, 1 << 20, 0, "byte-small"},
        {false, (8 << 20) - 1, 256, 1 << 20, 0, "byte-small"},
        {false, 8 << 20, 256, 1 << 20, 0, "byte-medium"},
        {false, (128 << 20) - 1, 256, 1 << 20, 0, "byte-medium"},
        {false, 128 << 20, 256, 1 << 20, 0, "byte-large"},
        {false, 1000, 257, 1 << 20, 0, "gpt2"},
        {false, (uint64_t)1 << 40, 50257, 1 << 20, 0, "gpt2"},
        {true, (256 << 10) - 1, 0, 1 << 20, 0, "byte-small"},
        {true, 256 << 10, 0, 1 << 20, 0, "text-small"},
        {true, 8 << 20, 0, 1 << 20, 0, "text-medium"},
        {true, 128 << 20, 0, 1 << 20, 0, "text-large"},
        {true, 128 << 20, 0, 1 << 20, 500, "text-medium"},
        {true, 128 << 20, 0, 10, 1, "text-small"},
        /* byte-large takes 985 MiB of weights and moments; a worker needs 880 MiB for it, and 277 MiB for byte-medium,
         * as its plan says; with batches of 6.6 Ki 149 MiB. */
        {false, 200 << 20, 256, 2500, 0, "byte-large"},
        {false, 200 << 20, 256, 1900, 0, "byte-medium"},
        {false, 200 << 20, 256, 1 << 20, 1000, "byte-large"},
        {false, 200 << 20, 256, 1 << 20, 879, "byte-medium"},
        {false, 200 << 20, 256, 1 << 20, 276, "byte-small"},
        {false, 10319298, 256, 1 << 20, 162, "byte-medium"},
        {false, 10319298, 256, 1 << 20, 148, "byte-small"},
        {false, 200 << 20, 256, 10, 1, "byte-small"}, /* there is none smaller */
        {false, 200 << 20, 256, 1900, OWN, "byte-medium"},
        {false, 200 << 20, 256, 3800, OWN, "byte-large"},
    };

    for (int i = 0; i < COUNT(cases); i++) {
        const struct client_preset_facts facts = {.text = cases[i].text,
                                                  .n_tokens = cases[i].n_tokens,
                                                  .vocabulary = cases[i].vocabulary,
                                                  .free_bytes = cases[i].free_mib << 20,
                                                  .n_workers = 1,
                                                  .device_mem = cases[i].device_mib == OWN
                                                                    ? UINT64_MAX
                                                                    : (uint64_t)cases[i].device_mib << 20};
        const struct eps_preset *preset = client_preset_choose(&facts);
        ck_assert_msg(strcmp(preset->name, cases[i].name) == 0, "case %d: %s", i, preset->name);
        if (cases[i].device_mib == OWN)
            ck_assert_int_eq(client_preset_is_smaller(preset, &facts), cases[i].free_mib == 1900);
    }
}

#define BERT                                                                                                           \
    "\"model_type\": \"bert\", \"num_hidden_layers\": 1, \"num_attention_heads\": 2, \"hidden_size\": 8, "             \
    "\"intermediate_size\": 12, \"vocab_size\": 17"

/* Models that are not here, or in no form that is read: the sentence names the command that helps. */
TEST(what_is_no_model_here_gets_the_command_that_downloads_or_converts_it)
{
    static const struct {
        const char *command, *path; /* command: of the shell, before */
        int code;
        const char *first, *second;
    } wrongs[] = {
        {"true", "openai-community/gpt2", -ENOENT,
         "--model openai-community/gpt2: no such directory; if it is on the Hugging Face hub, download it: hf download "
         "openai-community/gpt2 --local-dir gpt2, then --model ./gpt2",
         ""},
        {"true", "me/my.model_2", -ENOENT, "hf download me/my.model_2 --local-dir my.model_2, then", ""},
        {"true", "gpt2-xl", -ENOENT, "hf download openai-community/gpt2-xl --local-dir gpt2-xl, then --model ./gpt2-xl",
         ""},
        {"mkdir 'my old'; mv config.json 'my old'", "my old", -ENOENT, "my old/config.json to begin with fresh weights",
         ""},
        {"touch 'my old/pytorch_model-00001-of-00002.bin'", "my old", -ENOENT,
         "my old holds pytorch_model.bin and no *.safetensors; convert it: python3 -c 'import sys; from transformers "
         "import AutoModelForCausalLM as M; ",
         " 'my old'"},
        {"mkdir bert; touch bert/pytorch_model.bin; echo '{" BERT "}' >bert/config.json", "bert", -ENOENT,
         "import AutoModelForMaskedLM as M; ", ""},
        {"echo '{" BERT ", \"architectures\": [\"BertForSequenceClassification\"]}' >bert/config.json", "bert", -ENOENT,
         "import AutoModelForSequenceClassification as M; ", ""},
        {"true", "my old/pytorch_model-00001-of-00002.bin", -EINVAL, "name the directory that holds it", ""},
        {"mkdir lora; touch lora/adapter_config.json lora/adapter_model.safetensors", "lora", -EINVAL,
         "lora/adapter_config.json: not a JSON object", "adapter_config.json must be"},
        {"mkdir gguf; touch gguf/small.gguf", "gguf", -EINVAL,
         "--model gguf holds weights as GGUF, which is not read here", "config.json and *.safetensors"},
        {"cp bert/config.json gguf", "gguf", -EINVAL, "--model gguf holds weights as GGUF", ""},
        {"true", "gguf/small.gguf", -EINVAL, "--model gguf/small.gguf holds weights as GGUF", ""},
    };
    static const char *const paths[] = {"./openai/gpt2", "/openai/gpt2", "a/b/c", "a/",  "/",        "../gpt2",
                                        "here/gone",     "a/b c",        "a/.b",  "a//", "none.json"};
    struct client_model model;
    struct error err;

    processes_config("config.json", 1, 2, 8, 16);
    for (int i = 0; i < COUNT(wrongs); i++) {
        expect(wrongs[i].command, 0);
        ck_assert_int_eq(client_model_open(&model, &(struct client_model_name){.path = wrongs[i].path}, &err),
                         wrongs[i].code);
        ck_assert_holds(err.text, wrongs[i].first, wrongs[i].second);
    }
    expect("echo '{" BERT "}' >bert/config.json; mkdir here", 0);
    ck_assert_int_eq(client_classifier_open(&model, &(struct client_model_name){.path = "bert"}, EPS_CLASSIFY, &err),
                     -ENOENT);
    ck_assert_holds(err.text, "import AutoModelForMaskedLM as M; "); /* what the files hold, not what they begin */
    for (int i = 0; i < COUNT(paths); i++) {
        client_preset_missing(paths[i], -ENOENT, &err);
        ck_assert_holds(err.text, "No such file or directory");
        ck_assert_msg(!strstr(err.text, "hf download"), "%s: %s", paths[i], err.text);
    }
    client_preset_missing("byte-small", -ENOENT, &err); /* nobody published that */
    ck_assert_str_eq(err.text, "--model byte-small: No such file or directory");
    client_preset_missing("gpt2", -EACCES, &err);
    ck_assert_str_eq(err.text, "--model gpt2: Permission denied");
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
