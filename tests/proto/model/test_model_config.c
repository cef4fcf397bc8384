#include "tests/kit/test.h"

#include "proto/model/model.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SMALLEST                                                                                                       \
    "\"model_type\": \"gpt2\", \"n_layer\": 2, \"n_head\": 3, \"n_embd\": 48, \"n_positions\": 64, \"vocab_size\": 96"

#define GPT2 "\"model_type\": \"gpt2\", "

/* What GPT2Config() of transformers 5 writes, under the keys that every GPT2Config has. */
static const char full[] =
    "{\"transformers_version\": \"5.0.0\", \"architectures\": [\"GPT2LMHeadModel\"], \"output_hidden_states\": false,"
    " \"return_dict\": true, \"dtype\": \"float32\", \"chunk_size_feed_forward\": 0, \"is_encoder_decoder\": false,"
    " \"id2label\": {\"0\": \"LABEL_0\"}, \"label2id\": {\"LABEL_0\": 0}, \"problem_type\": null,"
    " \"vocab_size\": 50257, \"n_positions\": 1024, \"n_ctx\": 1024, \"n_embd\": 768, \"n_layer\": 12, \"n_head\": 12,"
    " \"n_inner\": 1000, \"activation_function\": \"relu\", \"resid_pdrop\": 0.25, \"embd_pdrop\": 0,"
    " \"attn_pdrop\": 0.5, \"layer_norm_epsilon\": 1e-06, \"initializer_range\": 0.01, \"summary_type\": \"cls_index\","
    " \"summary_use_proj\": true, \"summary_activation\": null, \"summary_proj_to_labels\": true,"
    " \"summary_first_dropout\": 0.1, \"scale_attn_weights\": false, \"use_cache\": true, \"bos_token_id\": 50256,"
    " \"eos_token_id\": 50256, \"pad_token_id\": null, \"scale_attn_by_inverse_layer_idx\": true,"
    " \"reorder_and_upcast_attn\": true, \"add_cross_attention\": false, \"tie_word_embeddings\": false,"
    " \"_name_or_path\": \"\", \"model_type\": \"gpt2\", \"output_attentions\": false, \"pruned_heads\": {},"
    " \"task_specific_params\": {\"text-generation\": {\"do_sample\": true}}, \"torch_dtype\": \"float32\"}";

static const struct model_config valid = {.family = &family_gpt2,
                                          .n_layers = 1,
                                          .n_heads = 1,
                                          .width = 1,
                                          .inner_width = 1,
                                          .n_positions = 1,
                                          .vocabulary = 1,
                                          .norm_epsilon = 1e-5f};

static void check_numbers(const char *text, const struct model_config *want)
{
    struct model_config c;
    struct error err;

    ck_assert_msg(model_config_parse(&c, text, strlen(text), &err) == 0, "%s", err.text);
    ck_assert_ptr_eq(c.family, &family_gpt2);
    const uint32_t counts[][2] = {
        {c.n_layers, want->n_layers},       {c.n_heads, want->n_heads},         {c.width, want->width},
        {c.inner_width, want->inner_width}, {c.n_positions, want->n_positions}, {c.vocabulary, want->vocabulary},
        {c.activation, want->activation}};
    const float reals[][2] = {{c.norm_epsilon, want->norm_epsilon},
                              {c.initializer_range, want->initializer_range},
                              {c.gpt2.dropout_residual, want->gpt2.dropout_residual},
                              {c.gpt2.dropout_embedding, want->gpt2.dropout_embedding},
                              {c.gpt2.dropout_attention, want->gpt2.dropout_attention}};
    for (int i = 0; i < COUNT(counts); i++)
        ck_assert_msg(counts[i][0] == counts[i][1], "%d: %u, not %u", i, counts[i][0], counts[i][1]);
    for (int i = 0; i < COUNT(reals); i++)
        ck_assert_float_eq(reals[i][0], reals[i][1]);
    ck_assert(c.tied == want->tied && c.gpt2.scale_attention == want->gpt2.scale_attention &&
              c.gpt2.scale_by_layer == want->gpt2.scale_by_layer);
}

TEST(every_key_of_a_full_file_arrives)
{
    check_numbers(full, &(struct model_config){.n_layers = 12,
                                               .n_heads = 12,
                                               .width = 768,
                                               .inner_width = 1000,
                                               .n_positions = 1024,
                                               .vocabulary = 50257,
                                               .activation = MODEL_RELU,
                                               .norm_epsilon = 1e-6f,
                                               .initializer_range = 0.01f,
                                               .gpt2 = {false, true, 0.5f, 0, 0.25f}});
}

TEST(missing_keys_take_the_defaults_of_GPT2Config)
{
    check_numbers("{" SMALLEST ", \"n_inner\": null}", &(struct model_config){.n_layers = 2,
                                                                              .n_heads = 3,
                                                                              .width = 48,
                                                                              .inner_width = 4 * 48,
                                                                              .n_positions = 64,
                                                                              .vocabulary = 96,
                                                                              .tied = true,
                                                                              .norm_epsilon = 1e-5f,
                                                                              .initializer_range = 0.02f,
                                                                              .gpt2 = {true, false, 0.1f, 0.1f, 0.1f}});
}

TEST(each_name_of_an_activation_is_known)
{
    static const struct {
        const char *name;
        enum model_activation activation;
    } rows[] = {{"gelu_new", MODEL_GELU_NEW},
                {"gelu_pytorch_tanh", MODEL_GELU_NEW},
                {"gelu", MODEL_GELU},
                {"relu", MODEL_RELU}};

    for (int i = 0; i < COUNT(rows); i++) {
        struct model_config c;
        char text[512];
        const int n = snprintf(text, sizeof text, "{" SMALLEST ", \"activation_function\": \"%s\"}", rows[i].name);
        ck_assert_int_eq(model_config_parse(&c, text, (size_t)n, NULL), 0);
        ck_assert_int_eq(c.activation, rows[i].activation);
    }
}

static const struct refusal {
    const char *text, *why;
} refusals[] = {
    /* Missing. */
    {"{}", "model_type is missing: it must be gpt2"},
    {"{\"model_type\": \"gpt2\"}", "n_layer is missing"},
    {"{\"model_type\": \"gpt2\", \"n_layer\": 2, \"n_head\": 3, \"n_embd\": 48, \"vocab_size\": 96}",
     "n_positions is missing"},
    {"{\"model_type\": \"gpt2\", \"n_layer\": 2, \"n_head\": 3, \"n_embd\": 48, \"n_positions\": 96}",
     "vocab_size is missing"},
    /* Absurd. */
    {"{\"n_layer\": 0, \"model_type\": \"gpt2\", \"n_head\": 3, \"n_embd\": 48, \"n_positions\": 64, \"vocab_size\": "
     "9}",
     "n_layer is 0: it must be from 1 to 4096"},
    {"{" GPT2 "\"n_layer\": -1}", "n_layer is -1: it must be a positive whole number"},
    {"{" GPT2 "\"n_layer\": 4294967296}", "n_layer is 4294967296: it must be a positive whole number"},
    {"{" GPT2 "\"n_layer\": 2.0}", "n_layer is 2.0: it must be a positive whole number"},
    {"{" GPT2 "\"n_layer\": \"2\"}", "n_layer is \"2\": it must be a positive whole number"},
    {"{" GPT2 "\"n_layer\": null}", "n_layer is null: it must be a positive whole number"},
    {"{" GPT2 "\"n_layer\": 99999999999999999999}",
     "not JSON at line 1, column 54: too big integer near '99999999999999999999'"},
    {"{" SMALLEST ", \"n_inner\": 0}", "n_inner is 0: it must be null or a positive whole number"},
    {"{" SMALLEST ", \"n_inner\": 1048577}", "n_inner is 1048577: it must be from 1 to 1048576"},
    {"{" SMALLEST ", \"attn_pdrop\": 1}", "attn_pdrop is 1: it must be at least 0 and less than 1"},
    {"{" SMALLEST ", \"embd_pdrop\": -0.1}", "embd_pdrop is -0.1: it must be at least 0 and less than 1"},
    {"{" SMALLEST ", \"resid_pdrop\": 1e300}", "resid_pdrop is inf: it must be at least 0 and less than 1"},
    {"{" SMALLEST ", \"resid_pdrop\": \"a\"}", "resid_pdrop is \"a\": it must be a number"},
    {"{" SMALLEST ", \"layer_norm_epsilon\": 0}", "layer_norm_epsilon is 0: it must be greater than 0 and at most 1"},
    {"{" SMALLEST ", \"layer_norm_epsilon\": 1e-300}",
     "layer_norm_epsilon is 0: it must be greater than 0 and at most 1"},
    {"{" SMALLEST ", \"initializer_range\": 2}", "initializer_range is 2: it must be from 0 to 1"},
    {"{" SMALLEST ", \"tie_word_embeddings\": 1}", "tie_word_embeddings is 1: it must be true or false"},
    {"{" SMALLEST ", \"activation_function\": \"swish\"}",
     "activation_function is \"swish\": it must be gelu_new, gelu_pytorch_tanh, gelu or relu"},
    {"{" SMALLEST ", \"activation_function\": null}",
     "activation_function is null: it must be gelu_new, gelu_pytorch_tanh, gelu or relu"},
    /* Contradictory. */
    {"{" SMALLEST ", \"n_ctx\": 65}", "n_ctx is 65: it must be the same as n_positions"},
    {"{" SMALLEST ", \"n_layer\": 2}", "not JSON at line 1, column 110: duplicate object key near '\"n_layer\"'"},
    {"{\"model_type\": \"gpt2\", \"n_layer\": 2, \"n_head\": 5, \"n_embd\": 48, \"n_positions\": 6, \"vocab_size\": 6}",
     "n_embd is 48: it must be a multiple of n_head, which is 5"},
    /* Another model. */
    {"{\"model_type\": \"llama\"}", "model_type is \"llama\": it must be gpt2"},
    {"{\"architectures\": [\"BertForMaskedLM\"], \"hidden_size\": 768, \"model_type\": \"bert\"}",
     "model_type is \"bert\": it must be gpt2"},
    {"{\"n_layer\": -1, \"rope_theta\": 10000.0, \"model_type\": \"qwen2\"}",
     "model_type is \"qwen2\": it must be gpt2"},
    {"{\"model_type\": 2}", "model_type is 2: it must be gpt2"},
    {"{" GPT2 "\"architectures\": [\"GPT2ForSequenceClassification\"]}",
     "architectures is [\"GPT2ForSequenceClassification\"]: only GPT2LMHeadModel can be trained"},
    {"{" GPT2 "\"architectures\": \"GPT2LMHeadModel\"}",
     "architectures is \"GPT2LMHeadModel\": it must be a list of names"},
    /* Other mathematics. */
    {"{" SMALLEST ", \"add_cross_attention\": true}",
     "add_cross_attention is true: this is not supported, it must be off (null or false)"},
    {"{" SMALLEST ", \"is_encoder_decoder\": true}",
     "is_encoder_decoder is true: this is not supported, it must be off (null or false)"},
    {"{" SMALLEST ", \"pruned_heads\": {\"0\": [1]}}",
     "pruned_heads is {\"0\":[1]}: this is not supported, it must be off (null or false)"},
    {"{" SMALLEST ", \"quantization_config\": {\"bits\": 4}}",
     "quantization_config is {\"bits\":4}: this is not supported, it must be off (null or false)"},
    {"{" SMALLEST ", \"rope_theta\": 10000.0}",
     "rope_theta is 10000.0: this is not supported, it must be off (null or false)"},
    {"{" SMALLEST ", \"sliding_window\": 4096}",
     "sliding_window is 4096: this is not supported, it must be off (null or false)"},
    {"{" SMALLEST ", \"use_bfloat16\": true}",
     "use_bfloat16 is true: this is not supported, it must be off (null or false)"},
    {"{" SMALLEST ", \"n_experts\": 8}", "n_experts is 8: this key is unknown, and it may change the mathematics"},
    {"{" SMALLEST ", \"N_layer\": null}", "N_layer is null: this key is unknown, and it may change the mathematics"},
    /* Not a configuration. */
    {"[]", "not a JSON object, as a config.json must be"},
    {"", "not JSON at line 1, column 0: '[' or '{' expected near end of file"},
    {"{" SMALLEST "} x", "not JSON at line 1, column 102: end of file expected near 'x'"},
};

TEST_EACH(what_cannot_be_trained_is_refused_with_its_key_and_value, sizeof refusals / sizeof refusals[0])
{
    struct model_config c, before;
    struct error err;

    memset(&c, 0x5A, sizeof c);
    before = c;
    ck_assert_int_eq(model_config_parse(&c, refusals[_i].text, strlen(refusals[_i].text), &err), -EINVAL);
    ck_assert_str_eq(err.text, refusals[_i].why);
    ck_assert_mem_eq(&c, &before, sizeof c); /* untouched */
    ck_assert_int_eq(model_config_parse(&c, refusals[_i].text, strlen(refusals[_i].text), NULL), -EINVAL);
}

TEST(unsupported_keys_that_are_off_are_passed_over)
{
    static const char text[] =
        "{" SMALLEST
        ", \"rope_scaling\": null, \"quantization_config\": null, \"use_bfloat16\": false, \"auto_map\": {},"
        " \"sliding_window\": null, \"summary_of_another_version\": [1, 2]}";
    struct model_config c;

    ck_assert_int_eq(model_config_parse(&c, text, sizeof text - 1, NULL), 0);
}

TEST(every_truncation_of_a_file_is_refused)
{
    for (size_t n = 0; n < sizeof full - 1; n++) {
        char *exact = malloc(n + 1); /* so that a sanitizer sees a read past the end */
        struct model_config c;
        memcpy(exact, full, n);
        ck_assert_int_eq(model_config_parse(&c, exact, n, NULL), -EINVAL);
        free(exact);
    }
}

TEST(a_file_past_16_MiB_is_refused_unread)
{
    struct model_config c;
    struct error err;

    ck_assert_int_eq(model_config_parse(&c, full, (16 << 20) + 1, &err), -EINVAL);
    ck_assert_str_eq(err.text, "16777217 bytes are too many for a config.json (at most 16 MiB)");
}

TEST(a_value_too_long_for_a_sentence_is_shortened)
{
    char text[4096];
    struct model_config c;
    struct error err;

    int n = snprintf(text, sizeof text, "{\"model_type\": \"%03000d\"}", 7);
    ck_assert_int_eq(model_config_parse(&c, text, (size_t)n, &err), -EINVAL);
    ck_assert_uint_lt(strlen(err.text), 200);
    n = snprintf(text, sizeof text, "{\"n%03000d\": 1}", 7);
    ck_assert_int_eq(model_config_parse(&c, text, (size_t)n, &err), -EINVAL);
    ck_assert_uint_lt(strlen(err.text), 200);
}

/* Values that a message could carry though no JSON can. */
TEST(the_check_alone_refuses_hostile_numbers)
{
    struct model_config c = valid;
    float *const reals[] = {&c.norm_epsilon, &c.gpt2.dropout_attention, &c.gpt2.dropout_embedding,
                            &c.gpt2.dropout_residual, &c.initializer_range};
    uint32_t *const counts[] = {&c.n_layers, &c.n_heads, &c.width, &c.inner_width, &c.n_positions, &c.vocabulary};
    const float bad[] = {NAN, -NAN, INFINITY, -INFINITY, -1e-38f, 1.5f};

    ck_assert_int_eq(model_config_check(&c, NULL), 0);
    for (size_t i = 0; i < 5; i++) {
        for (size_t k = 0; k < sizeof bad / sizeof bad[0]; k++) {
            c = valid;
            *reals[i] = bad[k];
            ck_assert_int_eq(model_config_check(&c, NULL), -EINVAL);
        }
    }
    for (size_t i = 0; i < 6; i++) {
        c = valid;
        *counts[i] = 0;
        ck_assert_int_eq(model_config_check(&c, NULL), -EINVAL);
        *counts[i] = UINT32_MAX;
        ck_assert_int_eq(model_config_check(&c, NULL), -EINVAL);
    }
    c = valid;
    c.activation = (enum model_activation)3;
    ck_assert_int_eq(model_config_check(&c, NULL), -EINVAL);
}

/* transformers reads torch_dtype in all versions; dtype since 4.56, and rather than the other. */
TEST(a_config_says_the_type_of_the_weights_beside_it_once)
{
    static const struct {
        const char *came, *typed;
        enum number_type type;
    } cases[] = {
        {"{\"n_layer\": 2}", "{\n  \"n_layer\": 2,\n  \"torch_dtype\": \"float32\"\n}", NUMBER_FP32},
        {"{\"torch_dtype\": \"float16\", \"n_layer\": 2}", "{\n  \"torch_dtype\": \"float32\",\n  \"n_layer\": 2\n}",
         NUMBER_FP32},
        {"{\"dtype\": \"bfloat16\", \"eps\": 0.1}", "{\n  \"eps\": 0.1,\n  \"torch_dtype\": \"float32\"\n}",
         NUMBER_FP32},
        {"{\"dtype\": \"float32\", \"torch_dtype\": \"float32\"}", "{\n  \"torch_dtype\": \"float32\"\n}", NUMBER_FP32},
        {"{\"torch_dtype\": \"float32\"}", "{\n  \"torch_dtype\": \"bfloat16\"\n}", NUMBER_BF16},
        {"{\"eps\":   0.1, \"torch_dtype\": \"bfloat16\"}", "{\"eps\":   0.1, \"torch_dtype\": \"bfloat16\"}",
         NUMBER_BF16},
        {"{\"torch_dtype\": \"float32\", \"vocab_size\": 50257}",
         "{\"torch_dtype\": \"float32\", \"vocab_size\": 50257}", NUMBER_FP32},
        {"{\"torch_dtype\": \"float32\", \"vocab_size\": 9, \"bos_token_id\": 8, \"eos_token_id\": null}",
         "{\"torch_dtype\": \"float32\", \"vocab_size\": 9, \"bos_token_id\": 8, \"eos_token_id\": null}", NUMBER_FP32},
        {"{" GPT2 "\"torch_dtype\": \"float32\", \"vocab_size\": 256, \"eos_token_id\": 50256}",
         "{\n  \"model_type\": \"gpt2\",\n  \"torch_dtype\": \"float32\",\n  \"vocab_size\": 256,\n  \"eos_token_id\": "
         "null,\n  \"bos_token_id\": "
         "null\n}",
         NUMBER_FP32},
        {"[1]", NULL, NUMBER_FP32},
        {"{", NULL, NUMBER_FP32},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *typed = model_config_print(cases[i].came, strlen(cases[i].came), cases[i].type);
        ck_assert_pstr_eq(typed, cases[i].typed);
        free(typed);
    }
}
