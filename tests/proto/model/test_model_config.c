#include "tests/kit/command.h"
#include "tests/kit/test.h"
#include "tests/proto/model/config_texts.h"

#include "proto/model/gpt2.h"
#include "proto/model/config/model_config_print.h"
#include "proto/model/weights.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What GPT2Config() of transformers 5 writes, under the keys that every GPT2Config has. */
static const char full[] =
    "{'transformers_version': '5.0.0', 'architectures': ['GPT2LMHeadModel'], 'output_hidden_states': false,"
    " 'return_dict': true, 'dtype': 'float32', 'chunk_size_feed_forward': 0, 'is_encoder_decoder': false,"
    " 'id2label': {'0': 'LABEL_0'}, 'label2id': {'LABEL_0': 0}, 'problem_type': null, 'vocab_size': 50257,"
    " 'n_positions': 1024, 'n_ctx': 1024, 'n_embd': 768, 'n_layer': 12, 'n_head': 12, 'n_inner': 1000,"
    " 'activation_function': 'relu', 'resid_pdrop': 0.25, 'embd_pdrop': 0, 'attn_pdrop': 0.5,"
    " 'layer_norm_epsilon': 1e-06, 'initializer_range': 0.01, 'summary_type': 'cls_index', 'summary_use_proj': true,"
    " 'summary_activation': null, 'summary_proj_to_labels': true, 'summary_first_dropout': 0.1,"
    " 'scale_attn_weights': false, 'use_cache': true, 'bos_token_id': 50256, 'eos_token_id': 50256,"
    " 'pad_token_id': null, 'scale_attn_by_inverse_layer_idx': true, 'reorder_and_upcast_attn': true,"
    " 'add_cross_attention': false, 'tie_word_embeddings': false, '_name_or_path': '', 'model_type': 'gpt2',"
    " 'output_attentions': false, 'pruned_heads': {}, 'task_specific_params': {'text-generation':"
    " {'do_sample': true}}, 'torch_dtype': 'float32'}";

/* Of keys that change nothing, or that are off. */
#define PASSED_OVER                                                                                                    \
    SMALLEST ", 'n_inner': null, 'rope_scaling': null, 'quantization_config': null, 'use_bfloat16': false,"            \
             " 'auto_map': {}, 'sliding_window': null, 'summary_of_another_version': [1, 2]"

static int parse(struct model_config *out, const char *text, struct error *err)
{
    const char *json = quoted(text);

    return model_config_parse(out, json, strlen(json), err);
}

static const struct model_config defaults = {.n_layers = 2,
                                             .n_heads = 3,
                                             .width = 48,
                                             .inner_width = 4 * 48,
                                             .n_positions = 64,
                                             .vocabulary = 96,
                                             .tied = true,
                                             .norm_epsilon = 1e-5f,
                                             .initializer_range = 0.02f};
static const struct gpt2_config own_defaults = {true, false, 0.1f, 0.1f, 0.1f};

static void check_numbers(const char *text, const struct model_config *want, const struct gpt2_config *own)
{
    struct model_config c;
    struct error err;

    ck_assert_msg(parse(&c, text, &err) == 0, "%s", err.text);
    ck_assert_ptr_eq(c.family, &family_gpt2);
    const uint32_t counts[][2] = {
        {c.n_layers, want->n_layers},       {c.n_heads, want->n_heads},         {c.width, want->width},
        {c.inner_width, want->inner_width}, {c.n_positions, want->n_positions}, {c.vocabulary, want->vocabulary},
        {c.activation, want->activation}};
    const float reals[][2] = {{c.norm_epsilon, want->norm_epsilon},
                              {c.initializer_range, want->initializer_range},
                              {gpt2_of(&c)->dropout_residual, own->dropout_residual},
                              {gpt2_of(&c)->dropout_embedding, own->dropout_embedding},
                              {gpt2_of(&c)->dropout_attention, own->dropout_attention}};
    for (int i = 0; i < COUNT(counts); i++)
        ck_assert_msg(counts[i][0] == counts[i][1], "%d: %u, not %u", i, counts[i][0], counts[i][1]);
    for (int i = 0; i < COUNT(reals); i++)
        ck_assert_float_eq(reals[i][0], reals[i][1]);
    ck_assert(c.tied == want->tied && gpt2_of(&c)->scale_attention == own->scale_attention &&
              gpt2_of(&c)->scale_by_layer == own->scale_by_layer);
}

TEST(every_key_arrives_and_missing_ones_take_the_defaults_of_GPT2Config)
{
    static const struct {
        const char *name;
        enum model_activation activation;
    } activations[] = {{"gelu_new", MODEL_GELU_NEW},
                       {"gelu_pytorch_tanh", MODEL_GELU_NEW},
                       {"gelu_python_tanh", MODEL_GELU_NEW},
                       {"gelu_fast", MODEL_GELU_NEW},
                       {"gelu_accurate", MODEL_GELU_NEW},
                       {"gelu", MODEL_GELU},
                       {"gelu_python", MODEL_GELU},
                       {"quick_gelu", MODEL_GELU_QUICK},
                       {"relu", MODEL_RELU},
                       {"relu2", MODEL_RELU2},
                       {"silu", MODEL_SILU},
                       {"swish", MODEL_SILU},
                       {"tanh", MODEL_TANH},
                       {"sigmoid", MODEL_SIGMOID}};

    check_numbers(full,
                  &(struct model_config){.n_layers = 12,
                                         .n_heads = 12,
                                         .width = 768,
                                         .inner_width = 1000,
                                         .n_positions = 1024,
                                         .vocabulary = 50257,
                                         .activation = MODEL_RELU,
                                         .norm_epsilon = 1e-6f,
                                         .initializer_range = 0.01f},
                  &(struct gpt2_config){false, true, 0.5f, 0, 0.25f});
    check_numbers(PASSED_OVER "}", &defaults, &own_defaults);
    for (int i = 0; i < COUNT(activations); i++) {
        struct model_config want = defaults;
        char text[512];
        want.activation = activations[i].activation;
        snprintf(text, sizeof text, SMALLEST ", 'activation_function': '%s'}", activations[i].name);
        check_numbers(text, &want, &own_defaults);
    }
}

/* It begins with the first, and has the other, which may be NULL. */
static void check_said(const char *said, const char *first, const char *other)
{
    const char *text = quoted(said), *begin = quoted(first);

    ck_assert_msg(strncmp(text, begin, strlen(begin)) == 0, "'%s', not '%s...'", text, begin);
    ck_assert_msg(!other || strstr(text, quoted(other)), "no '%s' in: %s", other, text);
}

/* What does not begin with a bracket is a key behind SMALLEST. */
static const struct {
    const char *text, *why, *other;
} refusals[] = {
    /* Missing. */
    {"{}", "model_type is missing", NULL},
    {"{'model_type': 'gpt2'}", "n_layer is missing", NULL},
    {GPT2 "'n_layer': 2, 'n_head': 3, 'n_embd': 48, 'vocab_size': 96}", "n_positions is missing", NULL},
    {GPT2 "'n_layer': 2, 'n_head': 3, 'n_embd': 48, 'n_positions': 96}", "vocab_size is missing", NULL},
    /* Absurd. */
    {GPT2 "'n_layer': 0, 'n_head': 3, 'n_embd': 48, 'n_positions': 64, 'vocab_size': 9}", "n_layer is 0", NULL},
    {GPT2 "'n_layer': -1}", "n_layer is -1", NULL},
    {GPT2 "'n_layer': 4294967296}", "n_layer is 4294967296", NULL},
    {GPT2 "'n_layer': 2.0}", "n_layer is 2.0", NULL},
    {GPT2 "'n_layer': '2'}", "n_layer is '2'", NULL},
    {GPT2 "'n_layer': null}", "n_layer is null", NULL},
    {GPT2 "'n_layer': 99999999999999999999}", "not JSON at line 1, column 54", "99999999999999999999"},
    {"'n_inner': 0", "n_inner is 0", NULL},
    {"'n_inner': 1048577", "n_inner is 1048577", NULL},
    {"'attn_pdrop': 1", "attn_pdrop is 1", NULL},
    {"'embd_pdrop': -0.1", "embd_pdrop is -0.1", NULL},
    {"'resid_pdrop': 1e300", "resid_pdrop is inf", NULL},
    {"'resid_pdrop': 'a'", "resid_pdrop is 'a'", NULL},
    {"'layer_norm_epsilon': 0", "layer_norm_epsilon is 0", NULL},
    {"'layer_norm_epsilon': 1e-300", "layer_norm_epsilon is 0", NULL},
    {"'initializer_range': 2", "initializer_range is 2", NULL},
    {"'tie_word_embeddings': 1", "tie_word_embeddings is 1", NULL},
    {"'activation_function': 'mish'", "activation_function is 'mish'", NULL},
    {"'activation_function': null", "activation_function is null", NULL},
    /* Contradictory. */
    {"'n_ctx': 65", "n_ctx is 65", "n_positions"},
    {"'n_layer': 2", "not JSON at line 1, column 110", "n_layer"},
    {GPT2 "'n_layer': 2, 'n_head': 5, 'n_embd': 48, 'n_positions': 6, 'vocab_size': 6}", "n_embd is 48",
     "n_head, which is 5"},
    /* Another model. */
    {"{'n_layer': -1, 'rope_theta': 10000.0, 'model_type': 'gpt3'}", "model_type is 'gpt3': it must be ", NULL},
    {"{'model_type': 2}", "model_type is 2: it must be ", NULL},
    {"{'model_type': 'qwen3_next'}",
     "model_type is 'qwen3_next': it must be one that eps models lists; the nearest name is qwen3_5_moe_text", NULL},
    {GPT2 "'architectures': ['GPT2ForSequenceClassification']}", "architectures is ['GPT2ForSequenceClassification']",
     "GPT2LMHeadModel"},
    {GPT2 "'architectures': 'GPT2LMHeadModel'}", "architectures is 'GPT2LMHeadModel'", NULL},
    /* Other mathematics. */
    {"'add_cross_attention': true", "add_cross_attention is true", "not supported"},
    {"'pruned_heads': {'0': [1]}", "pruned_heads is {'0':[1]}", "not supported"},
    {"'rope_theta': 10000.0", "rope_theta is 10000.0", "not supported"},
    {"'quantization_config': {'bits': 4}", "quantization_config is {'bits':4}", "quantised"},
    {"'quantization_config': {'quant_method': 'gptq'}", "quantization_config is {'quant_method':'gptq'}",
     "bitsandbytes, mxfp4 and fp8"},
    {"'quantization_config': {'quant_method': 'fp8', 'fmt': 'e5m2'}", "quantization_config.fmt is 'e5m2'", "e4m3"},
    {"'quantization_config': {'quant_method': 'fp8', 'weight_block_size': 128}",
     "quantization_config.weight_block_size is 128", "[rows, columns]"},
    {"'quantization_config': {'quant_method': 'fp8', 'weight_block_size': [128]}",
     "quantization_config.weight_block_size is [128]", NULL},
    {"'quantization_config': {'quant_method': 'fp8', 'weight_block_size': [0, 128]}",
     "quantization_config.weight_block_size is [0,128]", NULL},
    {"'quantization_config': {'quant_method': 'fp8', 'weight_block_size': [128, 31]}",
     "quantization_config.weight_block_size is [128,31]", "32 columns or more"},
    {"'quantization_config': {'quant_method': 'fp8', 'weight_block_size': [128, 4294967424]}",
     "quantization_config.weight_block_size is [128,4294967424]", NULL},
    {"'use_bfloat16': true", "use_bfloat16 is true", "not supported"},
    {"'n_experts': 8", "n_experts is 8", "unknown"},
    {"'N_layer': null", "N_layer is null", "unknown"},
    /* A decoder's. */
    {LLAMA ", 'num_key_value_heads': 3}", "num_attention_heads is 4", "num_key_value_heads, which is 3"},
    {LLAMA ", 'head_dim': 23}", "a head has 23 columns", NULL},
    {LLAMA ", 'rope_theta': 1}", "rope_theta is 1", NULL},
    {LLAMA ", 'rope_scaling': {'rope_type': 'su', 'factor': 2.0}}", "rope_scaling.rope_type is 'su'", NULL},
    {LLAMA ", 'rope_scaling': {'rope_type': 'yarn', 'factor': 0.5}}", "the factor of rotary positions is 0.5", NULL},
    {LLAMA ", 'rope_scaling': {'rope_type': 'yarn', 'factor': 2, 'beta_fast': -1}}", "beta_fast is -1", NULL},
    {LLAMA ", 'rope_scaling': {'rope_type': 'yarn', 'factor': 2, 'truncate': 0}}", "rope_scaling.truncate is 0", NULL},
    {LLAMA ", 'rope_scaling': {'rope_type': 'longrope', 'short_factor': [1, 2], 'long_factor': [1, 2]}}",
     "short_factor has 2 numbers", "12"},
    {LLAMA ", 'rope_scaling': {'rope_type': 'longrope', 'short_factor': 2}}", "rope_scaling.short_factor is 2", NULL},
    {LLAMA ", 'head_dim': 4, 'rope_scaling': {'rope_type': 'longrope', 'short_factor': [1, 2], 'long_factor': [0, 1]}}",
     "long_factor has 0", NULL},
    {LLAMA ", 'rope_scaling': {'rope_type': 'linear'}}", "the factor of rotary positions is 0", NULL},
    {LLAMA ", 'rope_scaling': {'rope_type': 'llama3', 'factor': 8.0, 'low_freq_factor': 4, 'high_freq_factor': 4}}",
     "low_freq_factor is 4 and high_freq_factor is 4", NULL},
    {LLAMA ", 'rope_scaling': {'alpha': 1000.0}}", "rope_scaling.alpha is 1000.0", "unknown"},
    {COHERE ", 'logit_scale': 0}", "logit_scale is 0", NULL},
    {HUNYUAN ", 'head_dim': 2, 'rope_scaling': {'type': 'dynamic', 'alpha': 2.0}}", "alpha is 2", NULL},
    {LLAMA ", 'rope_scaling': 2}", "rope_scaling is 2", NULL},
    {LLAMA ", 'attention_dropout': 1.0}", "attention_dropout is 1", NULL},
    {LLAMA ", 'rms_norm_eps': 0.0}", "rms_norm_eps is 0", NULL},
    {LLAMA ", 'num_hidden_layers': 5}", "not JSON at line 1, column 157", "num_hidden_layers"},
    {LLAMA ", 'head_dim': 2000}", "head_dim is 2000", NULL},
    {QWEN2 ", 'layer_types': ['full_attention', 'sliding_attention']}", "layer_types has 2 entries",
     "num_hidden_layers is 3"},
    {QWEN2 ", 'layer_types': ['full_attention', 'full_attention', 'chunked_attention']}",
     "layer_types is 'chunked_attention'", NULL},
    {QWEN2 ", 'layer_types': 3}", "layer_types is 3", NULL},
    {GEMMA3 ", 'final_logit_softcapping': -1}", "final_logit_softcapping is -1", NULL},
    {GEMMA3 ", 'final_logit_softcapping': 0.0}", "final_logit_softcapping is 0.0", NULL},
    {GEMMA3 ", 'final_logit_softcapping': 1e300}", "final_logit_softcapping is inf", NULL},
    {GEMMA3 ", 'rope_parameters': {'rope_type': 'default', 'rope_theta': 1e6}}",
     "rope_parameters.rope_type is 'default'", "unknown"},
    {GEMMA3 ", 'sliding_window': null}", "layer_types has sliding_attention", "sliding_window"},
    {QWEN2 ", 'layer_types': ['full_attention', 'full_attention', 'sliding_attention']}",
     "layer_types has sliding_attention", "sliding_window"},
    {QWEN2 ", 'use_mrope': true}", "use_mrope is true", "not supported"},
    {LLAMA ", 'rope_parameters': {'rope_theta': 1e4, 'partial_rotary_factor': 0.5}}",
     "rope_parameters.partial_rotary_factor is 0.5", "unknown"},
    {LLAMA ", 'rope_scaling': {'type': 'linear', 'factor': 4.0}, 'rope_parameters': {'rope_theta': 300.0}}",
     "rope_scaling is {'type':'linear','factor':4.0}", "rope_parameters"},
    {GEMMA3 ", 'attn_logit_softcapping': 50.0}", "attn_logit_softcapping is 50.0", "not supported"},
    {GEMMA3 ", 'rope_parameters': {'full_attention': {'rope_theta': 1e6}, 'sliding_attention': {'rope_theta': 0.5}}}",
     "rope_theta is 0.5", NULL},
    {GEMMA ", 'use_bidirectional_attention': true}", "use_bidirectional_attention is true", "not supported"},
    {GEMMA ", 'final_logit_softcapping': 30.0}", "final_logit_softcapping is 30.0", "unknown"},
    /* An encoder's. */
    {"{'model_type': 'bert', 'hidden_size': 96, 'num_attention_heads': 5, 'num_hidden_layers': 3, "
     "'intermediate_size': 150, 'vocab_size': 211}",
     "hidden_size is 96", "num_attention_heads, which is 5"},
    {BERT ", 'position_embedding_type': 'relative_key'}", "position_embedding_type is 'relative_key'", NULL},
    {BERT ", 'is_decoder': true}", "is_decoder is true", "not supported"},
    {BERT ", 'add_cross_attention': true}", "add_cross_attention is true", "not supported"},
    {BERT ", 'tie_word_embeddings': false}", "tie_word_embeddings is false", "not supported for bert"},
    {BERT ", 'hidden_dropout_prob': 1}", "hidden_dropout_prob is 1", NULL},
    {BERT ", 'attention_probs_dropout_prob': -1}", "attention_probs_dropout_prob is -1", NULL},
    {BERT ", 'layer_norm_eps': 0}", "layer_norm_eps is 0", NULL},
    {BERT ", 'type_vocab_size': 0}", "type_vocab_size is 0", NULL},
    {BERT ", 'architectures': ['BertModel']}", "architectures is ['BertModel']",
     "BertForMaskedLM or BertForSequenceClassification"},
    {BERT ", 'architectures': ['BertForMaskedLM', 'BertForSequenceClassification']}",
     "architectures is ['BertForMaskedLM','BertForSequenceClassification']", NULL},
    {CLASSIFIER ", 'problem_type': 'multi_label_classification'}", "problem_type is 'multi_label_classification'",
     "single_label_classification"},
    {CLASSIFIER ", 'problem_type': 'regression'}", "problem_type is 'regression'", "single_label_classification"},
    {CLASSIFIER ", 'num_labels': 1, 'problem_type': 'single_label_classification'}",
     "problem_type is 'single_label_classification'", "regression"},
    {CLASSIFIER ", 'problem_type': 7}", "problem_type is 7", "single_label_classification"},
    {CLASSIFIER ", 'id2label': {}}", "the model has 0 labels", "id2label"},
    {CLASSIFIER ", 'num_labels': 65537}", "the model has 65537 labels", "num_labels"},
    {CLASSIFIER ", 'label2id': {'a': 0, 'b': 1, 'c': 2}}", "label2id has 3 labels", "add id2label"},
    {CLASSIFIER ", 'num_labels': -1}", "num_labels is -1", NULL},
    {CLASSIFIER ", 'id2label': ['a', 'b']}", "id2label is ['a','b']", NULL},
    {CLASSIFIER ", 'classifier_dropout': 1.0}", "classifier_dropout is 1", NULL},
    {ROBERTA ", 'max_position_embeddings': 2}", "max_position_embeddings is 2", "at least 3"},
    {ROBERTA ", 'max_position_embeddings': 16, 'pad_token_id': 4294967295}", "max_position_embeddings is 16",
     "at least 4294967295"},
    {ROBERTA ", 'pad_token_id': null}", "pad_token_id is null", NULL},
    {LLAMA ", 'pad_token_id': 211}", "pad_token_id is 211", "vocab_size, which is 211"},
    {LLAMA ", 'pad_token_id': -212}", "pad_token_id is -212", "vocab_size, which is 211"},
    {QWEN2 ", 'pad_token_id': 'end'}", "pad_token_id is \"end\"", NULL},
    /* An adapter's. */
    {"'adapter': 5", "adapter: its value is 5: it must be an object", NULL},
    {"'adapter': null", "adapter: its value is null: it must be an object", NULL},
    {"'adapter': {'modules': ['attn.c_attn']}", "adapter: peft is missing", NULL},
    {"'adapter': {'peft': 8, 'modules': ['attn.c_attn']}", "adapter: peft is 8", NULL},
    {"'adapter': {'peft': {'r': 8}}", "adapter: modules is missing", "a list of names"},
    {"'adapter': {'peft': {'r': 8}, 'modules': []}", "adapter: modules is []", "a list of names"},
    {"'adapter': {'peft': {'r': '8'}, 'modules': ['attn.c_attn']}", "adapter: r is '8'", NULL},
    /* Not a configuration. */
    {"[]", "not a JSON object", NULL},
    {"{", "not JSON at line 1, column 1", NULL},
    {SMALLEST "} x", "not JSON at line 1, column 102", NULL},
};

TEST_EACH(what_cannot_be_trained_is_refused_with_its_key_and_value, COUNT(refusals))
{
    struct model_config c, before;
    struct error err;
    char text[512];

    snprintf(text, sizeof text, strchr("{[", refusals[_i].text[0]) ? "%s" : SMALLEST ", %s}", refusals[_i].text);
    memset(&c, 0x5A, sizeof c);
    before = c;
    ck_assert_int_eq(parse(&c, text, &err), -EINVAL);
    check_said(err.text, refusals[_i].why, refusals[_i].other);
    ck_assert_mem_eq(&c, &before, sizeof c); /* untouched */
    ck_assert_int_eq(parse(&c, text, NULL), -EINVAL);
}

/* As published, and by transformers' default. */
TEST(blocks_of_fp8_are_those_that_the_config_names)
{
    static const struct {
        const char *text;
        struct quantized quantized;
    } cases[] = {
        {SMALLEST
         ", 'quantization_config': {'quant_method': 'fp8', 'activation_scheme': 'static', 'dequantize': false, "
         "'weight_block_size': null, 'modules_to_not_convert': ['lm_head']}}",
         {true, 0, 0}},
        {SMALLEST ", 'quantization_config': {'quant_method': 'fp8', 'activation_scheme': 'dynamic', 'fmt': 'e4m3', "
                  "'weight_block_size': [64, 256]}}",
         {true, 64, 256}},
        {SMALLEST ", 'quantization_config': {'quant_method': 'fp8', 'fmt': null}}", {true, 128, 128}},
        {SMALLEST ", 'quantization_config': {'quant_method': 'mxfp4', 'weight_block_size': [64, 256]}}", {false, 0, 0}},
        {SMALLEST "}", {false, 0, 0}},
    };
    struct model_config c;
    struct error err;

    for (int i = 0; i < COUNT(cases); i++) {
        ck_assert_msg(parse(&c, cases[i].text, &err) == 0, "%s", err.text);
        ck_assert(c.quantized.fp8 == cases[i].quantized.fp8);
        ck_assert_uint_eq(c.quantized.block_rows, cases[i].quantized.block_rows);
        ck_assert_uint_eq(c.quantized.block_columns, cases[i].quantized.block_columns);
    }
}

/* jansson alone takes this one, while its text ends at the zero for whoever prints it. */
TEST(a_zero_byte_is_refused_where_it_stands)
{
    struct model_config c;
    struct error err;
    char text[] = "{\"a\":1 ,\"b\":2}";

    text[6] = 0;
    ck_assert_int_eq(model_config_parse(&c, text, sizeof text - 1, &err), -EINVAL);
    check_said(err.text, "not JSON: byte 6 is zero", NULL);
}

TEST(every_truncation_of_a_file_is_refused_and_so_is_one_past_4_MiB_unread)
{
    const char *text = quoted(full);
    struct model_config c;
    struct error err;

    for (size_t n = 0; n < strlen(text); n++) {
        char *exact = malloc(n + 1); /* so that a sanitizer sees a read past the end */
        memcpy(exact, text, n);
        ck_assert_int_eq(model_config_parse(&c, exact, n, NULL), -EINVAL);
        free(exact);
    }
    ck_assert_int_eq(model_config_parse(&c, text, (4 << 20) + 1, &err), -EINVAL);
    check_said(err.text, "4194305 bytes", "4 MiB");
}

TEST(a_value_too_long_for_a_sentence_is_shortened)
{
    char text[4096];
    struct model_config c;
    struct error err;

    snprintf(text, sizeof text, "{'model_type': '%03000d'}", 7);
    ck_assert_int_eq(parse(&c, text, &err), -EINVAL);
    ck_assert_uint_lt(strlen(err.text), 300);
    snprintf(text, sizeof text, "{'n%03000d': 1}", 7);
    ck_assert_int_eq(parse(&c, text, &err), -EINVAL);
    ck_assert_uint_lt(strlen(err.text), 300);
}

/* Values that a message could carry though no JSON can. */
TEST(the_check_alone_refuses_hostile_numbers)
{
    struct model_config valid = defaults, c;
    float *const reals[] = {&c.norm_epsilon, &gpt2_edit(&c)->dropout_attention, &gpt2_edit(&c)->dropout_embedding,
                            &gpt2_edit(&c)->dropout_residual, &c.initializer_range};
    uint32_t *const counts[] = {&c.n_layers, &c.n_heads, &c.width, &c.inner_width, &c.n_positions, &c.vocabulary};
    const float bad[] = {NAN, -NAN, INFINITY, -INFINITY, -1e-38f, 1.5f};

    valid.family = &family_gpt2;
    *gpt2_edit(&valid) = own_defaults;
    ck_assert_int_eq(model_config_check(&valid, NULL), 0);
    for (int i = 0; i < COUNT(reals); i++)
        for (int k = 0; k < COUNT(bad); k++) {
            c = valid;
            memcpy(reals[i], &bad[k], sizeof bad[k]); /* some are of `own`: bytes */
            ck_assert_int_eq(model_config_check(&c, NULL), -EINVAL);
        }
    for (int i = 0; i < COUNT(counts); i++) {
        c = valid;
        *counts[i] = 0;
        ck_assert_int_eq(model_config_check(&c, NULL), -EINVAL);
        *counts[i] = UINT32_MAX;
        ck_assert_int_eq(model_config_check(&c, NULL), -EINVAL);
    }
}

/* transformers reads torch_dtype in all versions; dtype since 4.56, and rather than the other. The key stays the one
 * that came; what says the right thing already stays as it is, blanks and all. */
TEST(a_config_says_the_type_of_the_weights_beside_it)
{
#define SAME  "{'torch_dtype': 'float32', 'vocab_size': 50257}"
#define KNOWN "{'torch_dtype': 'float32', 'vocab_size': 9, 'bos_token_id': 8, 'eos_token_id': null}"
    static const struct {
        const char *came, *typed;
        enum safetensors_type type;
    } cases[] = {
        {"{'n_layer': 2}", "{\n  'n_layer': 2,\n  'torch_dtype': 'float32'\n}", SAFETENSORS_F32},
        {"{'torch_dtype': 'float16', 'eps': 1e-6, 'base': 1E16, 'odd': 0.30000000000000004, 'scale': 19.99}",
         "{\n  'torch_dtype': 'float32',\n  'eps': 1e-06,\n  'base': 1e+16,\n  'odd': 0.30000000000000004,\n  'scale': "
         "19.99\n}",
         SAFETENSORS_F32},
        {"{'torch_dtype': 'float16', 'eps': 0.1}", "{\n  'torch_dtype': 'float32',\n  'eps': 0.1\n}", SAFETENSORS_F32},
        {"{'dtype': null, 'n_layer': 2}", "{\n  'dtype': 'float16',\n  'n_layer': 2\n}", SAFETENSORS_F16},
        {"{'dtype': 'bfloat16', 'torch_dtype':  'bfloat16'}", "{'dtype': 'bfloat16', 'torch_dtype':  'bfloat16'}",
         SAFETENSORS_BF16},
        {"{'dtype': 'float32', 'torch_dtype': 'float16'}", "{\n  'dtype': 'float16',\n  'torch_dtype': 'float16'\n}",
         SAFETENSORS_F16},
        {"{'torch_dtype': 'float32'}", "{\n  'torch_dtype': 'bfloat16'\n}", SAFETENSORS_BF16},
        {"{'eps':   0.1, 'torch_dtype': 'bfloat16'}", "{'eps':   0.1, 'torch_dtype': 'bfloat16'}", SAFETENSORS_BF16},
        {SAME, SAME, SAFETENSORS_F32},
        {KNOWN, KNOWN, SAFETENSORS_F32},
        {GPT2 "'torch_dtype': 'float32', 'vocab_size': 256, 'eos_token_id': 256}",
         "{\n  'model_type': 'gpt2',\n  'torch_dtype': 'float32',\n  'vocab_size': 256,\n  'eos_token_id': null,\n"
         "  'bos_token_id': null\n}",
         SAFETENSORS_F32},
        /* What is saved is not quantised; the base of an adapter is. */
        {"{'dtype': 'bfloat16', 'quantization_config': {'quant_method': 'fp8'}}", "{\n  'dtype': 'bfloat16'\n}",
         SAFETENSORS_BF16},
        {"{'dtype': 'bfloat16', 'quantization_config': {'quant_method': 'fp8'}, 'adapter': {}}",
         "{'dtype': 'bfloat16', 'quantization_config': {'quant_method': 'fp8'}, 'adapter': {}}", SAFETENSORS_BF16},
        {"[1]", NULL, SAFETENSORS_F32},
        {"{", NULL, SAFETENSORS_F32},
    };

    for (int i = 0; i < COUNT(cases); i++) {
        const char *came = quoted(cases[i].came);
        char *typed = model_config_print(came, strlen(came), cases[i].type);
        ck_assert_pstr_eq(typed, cases[i].typed ? quoted(cases[i].typed) : NULL);
        free(typed);
    }
}
