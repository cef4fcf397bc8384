/* The numbers of the other families' configurations, as transformers fills them in. */
#include "tests/kit/command.h"
#include "tests/kit/test.h"
#include "tests/proto/model/config_texts.h"

#include "proto/model/decoder.h"
#include "proto/model/encoder.h"
#include "proto/model/weights.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int parse(struct model_config *out, const char *text, struct error *err)
{
    const char *json = quoted(text);

    return model_config_parse(out, json, strlen(json), err);
}

/* A decoder's numbers, as LlamaConfig, MistralConfig, Qwen2Config and Qwen3Config of transformers 5.23 fill them in. */
static const struct {
    const char *text;
    uint32_t n_positions;
    bool tied;
    struct decoder_config decoder;
} decoders[] = {
    {LLAMA "}", 2048, false, {4, 24, .rope = {10000, DECODER_NOT_SCALED, .n_trained = 2048}}},
    {LLAMA
     ", 'num_key_value_heads': null, 'head_dim': null, 'rope_scaling': null, 'tie_word_embeddings': true, "
     "'rope_theta': 5e5, 'pretraining_tp': 1, 'attention_bias': true, 'mlp_bias': true, 'attention_dropout': 0.5}",
     2048,
     true,
     {4, 24, 0, true, true, true, .dropout_attention = 0.5f, .rope = {500000, DECODER_NOT_SCALED, .n_trained = 2048}}},
    {LLAMA ", 'num_key_value_heads': 2, 'head_dim': 40, 'max_position_embeddings': 512, 'rope_parameters': "
           "{'rope_type': 'llama3', 'rope_theta': 500000.0, 'factor': 8.0, 'low_freq_factor': 1.0, "
           "'high_freq_factor': 4.0, 'original_max_position_embeddings': 64}}",
     512,
     false,
     {2, 40, .rope = {500000, DECODER_LLAMA3, 8, 1, 4, 64}}},
    {LLAMA ", 'rope_scaling': {'type': 'linear', 'factor': 4.0}}",
     2048,
     false,
     {4, 24, .rope = {10000, DECODER_LINEAR, 4, .n_trained = 2048}}},
    /* An object's base and rope_type are stronger than the keys they replaced, in any order. */
    {LLAMA ", 'rope_parameters': {'rope_type': 'linear', 'type': 'default', 'rope_theta': 300, 'factor': 4}, "
           "'rope_theta': 500}",
     2048,
     false,
     {4, 24, .rope = {300, DECODER_LINEAR, 4, .n_trained = 2048}}},
    /* As published: SmolLM2, and DeepSeek-R1-Distill-Qwen. */
    {LLAMA ", 'is_llama_config': true, 'rope_interleaved': false, 'rope_scaling': null, 'rope_theta': 100000, "
           "'transformers.js_config': {'kv_cache_dtype': {'q4f16': 'float16'}}}",
     2048,
     false,
     {4, 24, .rope = {100000, DECODER_NOT_SCALED, .n_trained = 2048}}},
    {QWEN2 ", 'use_mrope': false, 'use_sliding_window': false, 'sliding_window': 4096, 'max_window_layers': 21, "
           "'unsloth_fixed': true}",
     32768,
     false,
     {4, 24, 0, true, .rope = {10000, DECODER_NOT_SCALED, .n_trained = 32768}}},
    {MISTRAL ", 'max_position_embeddings': 8192}",
     8192,
     false,
     {1, 24, 4096, .rope = {10000, DECODER_NOT_SCALED, .n_trained = 8192}, .sliding.set = {7}}},
    {MISTRAL ", 'sliding_window': null}",
     131072,
     false,
     {1, 24, .rope = {10000, DECODER_NOT_SCALED, .n_trained = 131072}}},
    {QWEN2 ", 'use_sliding_window': false, 'sliding_window': 4096, 'max_window_layers': 28, "
           "'layer_types': ['full_attention', 'full_attention', 'full_attention']}",
     32768,
     false,
     {4, 24, 0, true, .rope = {10000, DECODER_NOT_SCALED, .n_trained = 32768}}},
    {QWEN2 ", 'use_sliding_window': true, 'sliding_window': 64, 'max_window_layers': 2, 'layer_types': null}",
     32768,
     false,
     {4, 24, 64, true, .rope = {10000, DECODER_NOT_SCALED, .n_trained = 32768}, .sliding.set = {4}}},
    {QWEN2 ", 'use_sliding_window': true, 'sliding_window': 64, 'max_window_layers': 2, 'layer_types': "
           "['sliding_attention', 'full_attention', 'full_attention']}",
     32768,
     false,
     {4, 24, 64, true, .rope = {10000, DECODER_NOT_SCALED, .n_trained = 32768}, .sliding.set = {1}}},
    {QWEN3 ", 'num_key_value_heads': 2, 'attention_bias': true, 'rope_theta': 1000000, 'rope_scaling': null}",
     32768,
     false,
     {2, 128, 0, true, true, false, true, .rope = {1000000, DECODER_NOT_SCALED, .n_trained = 32768}}},
};

TEST_EACH(a_decoder_s_numbers_are_those_of_transformers, COUNT(decoders))
{
    const struct decoder_config *want = &decoders[_i].decoder;
    struct model_config c;
    struct error err;

    ck_assert_msg(parse(&c, decoders[_i].text, &err) == 0, "%s", err.text);
    const uint32_t counts[][2] = {{c.n_layers, 3},
                                  {c.n_heads, 4},
                                  {c.width, 96},
                                  {c.inner_width, 150},
                                  {c.vocabulary, 211},
                                  {c.n_positions, decoders[_i].n_positions},
                                  {c.tied, decoders[_i].tied},
                                  {c.activation, MODEL_SILU},
                                  {decoder_of(&c)->n_kv_heads, want->n_kv_heads},
                                  {decoder_of(&c)->head_width, want->head_width},
                                  {decoder_of(&c)->window, want->window},
                                  {(uint32_t)decoder_of(&c)->sliding.set[0], (uint32_t)want->sliding.set[0]},
                                  {decoder_of(&c)->qkv_bias, want->qkv_bias},
                                  {decoder_of(&c)->output_bias, want->output_bias},
                                  {decoder_of(&c)->mlp_bias, want->mlp_bias},
                                  {decoder_of(&c)->rope.scaling, want->rope.scaling},
                                  {decoder_of(&c)->rope.n_trained, want->rope.n_trained}};
    const float reals[][2] = {{c.norm_epsilon, 1e-6f},
                              {c.initializer_range, 0.02f},
                              {decoder_of(&c)->dropout_attention, want->dropout_attention},
                              {decoder_of(&c)->rope.base, want->rope.base},
                              {decoder_of(&c)->rope.factor, want->rope.factor},
                              {decoder_of(&c)->rope.low, want->rope.low},
                              {decoder_of(&c)->rope.high, want->rope.high}};
    for (int i = 0; i < COUNT(counts); i++)
        ck_assert_msg(counts[i][0] == counts[i][1], "%d: %u, not %u", i, counts[i][0], counts[i][1]);
    for (int i = 0; i < COUNT(reals); i++)
        ck_assert_float_eq(reals[i][0], reals[i][1]);
}

/* As Gemma3TextConfig of transformers 5.23 fills it in, which has no hidden_act; the third file is as those of 2025
 * were. */
static const struct {
    const char *text;
    uint64_t sliding;
    float factor, cap;
    uint32_t window, score_width;
} gemma3s[] = {
    {GEMMA3 "}", 0x1F, 0, 0, 4096, 256},
    {GEMMA3 ", 'hidden_act': 'relu'}", 0x1F, 0, 0, 4096, 256},
    {GEMMA3
     ", 'rope_theta': 1000000, 'rope_local_base_freq': 10000, 'rope_scaling': {'rope_type': 'linear', 'factor': 8.0}, "
     "'sliding_window': 512, 'sliding_window_pattern': 2, 'query_pre_attn_scalar': 168, 'cache_implementation': "
     "'hybrid', 'final_logit_softcapping': null}",
     0x15, 8, 0, 512, 168},
    {GEMMA3
     ", 'layer_types': ['full_attention', 'sliding_attention', 'full_attention', 'full_attention', "
     "'full_attention', 'full_attention'], 'final_logit_softcapping': 30.0, 'rope_parameters': {'full_attention': "
     "{'rope_type': 'linear', 'rope_theta': 1e6, 'factor': 4}, 'sliding_attention': {'rope_type': 'default', "
     "'rope_theta': 1e4}}}",
     2, 4, 30, 4096, 256},
    {GEMMA3 ", '_sliding_window_pattern': 2}", 0x1F, 0, 0, 4096, 256},
    {GEMMA3 ", 'sliding_window_pattern': 2, '_sliding_window_pattern': 3}", 0x15, 0, 0, 4096, 256},
};

/* Beside a rope_scaling, the rope_type of transformers 5.23 is "default" unless that object has one itself: a type, its
 * old name, counts for nothing. */
static const struct {
    const char *text;
    int scaling;
} gemma3_ropes[] = {
    {GEMMA3 ", 'rope_scaling': {'rope_type': 'linear', 'factor': 8}}", DECODER_LINEAR},
    {GEMMA3 ", 'rope_scaling': {'type': 'default', 'rope_type': 'linear', 'factor': 8}}", DECODER_LINEAR},
    {GEMMA3 ", 'rope_scaling': {'type': 'linear', 'factor': 8}}", DECODER_NOT_SCALED},
    {GEMMA3 ", 'rope_parameters': {'full_attention': {'type': 'linear', 'factor': 8}}}", DECODER_LINEAR},
};

TEST_EACH(gemma_3_s_rope_scaling_counts_by_its_rope_type_alone, COUNT(gemma3_ropes))
{
    struct model_config c;
    struct error err;

    ck_assert_msg(parse(&c, gemma3_ropes[_i].text, &err) == 0, "%s", err.text);
    ck_assert_int_eq(decoder_of(&c)->rope.scaling, gemma3_ropes[_i].scaling);
}

/* The padding_idx of nn.Embedding in transformers 5.23, of which GPT-2's has none. -1: none. */
static const struct {
    const char *text;
    int64_t padding;
} paddings[] = {
    {SMALLEST ", 'pad_token_id': 3}", -1},
    {BERT "}", 0},
    {BERT ", 'pad_token_id': null}", -1},
    {BERT ", 'pad_token_id': 7}", 7},
    {ROBERTA "}", 1},
    {ROBERTA ", 'pad_token_id': 3}", 3},
    {GEMMA "}", 0},
    {GEMMA3 "}", 0},
    {GEMMA3 ", 'pad_token_id': null}", -1},
    {LLAMA "}", -1},
    {LLAMA ", 'pad_token_id': -1}", 210},
    {LLAMA ", 'pad_token_id': -211}", 0},
    {MISTRAL "}", -1},
    {MISTRAL ", 'pad_token_id': 210}", 210},
    {QWEN2 "}", -1},
    {QWEN2 ", 'pad_token_id': 5}", 5},
    {QWEN3 ", 'num_key_value_heads': 1}", -1},
    {QWEN3 ", 'num_key_value_heads': 1, 'pad_token_id': 5}", 5},
};

TEST_EACH(the_row_of_padding_is_that_of_transformers, COUNT(paddings))
{
    struct model_config c;
    struct error err;

    ck_assert_msg(parse(&c, paddings[_i].text, &err) == 0, "%s", err.text);
    ck_assert_int_eq(c.has_padding ? (int64_t)c.padding : -1, paddings[_i].padding);
}

TEST_EACH(gemma_3_s_numbers_are_those_of_transformers, COUNT(gemma3s))
{
    struct model_config c;
    struct error err;

    ck_assert_msg(parse(&c, gemma3s[_i].text, &err) == 0, "%s", err.text);
    const struct decoder_config *d = decoder_of(&c);
    ck_assert(c.tied && c.activation == MODEL_GELU_NEW && d->head_norm && d->norm_offset && d->norms_after);
    ck_assert_uint_eq(d->n_kv_heads, 4);
    ck_assert_uint_eq(d->head_width, 256);
    ck_assert_uint_eq(d->sliding.set[0], gemma3s[_i].sliding);
    ck_assert_uint_eq(d->window, gemma3s[_i].window);
    ck_assert_uint_eq(d->score_width, gemma3s[_i].score_width);
    ck_assert_float_eq(d->rope.base, 1e6f);
    ck_assert_float_eq(d->rope.factor, gemma3s[_i].factor);
    ck_assert_float_eq(d->sliding_rope.base, 1e4f);
    ck_assert_uint_eq(d->sliding_rope.scaling, DECODER_NOT_SCALED);
    ck_assert_float_eq(d->logit_cap, gemma3s[_i].cap);
}

/* As GemmaConfig of transformers 5.23 fills it in, which takes gelu for its tanh form; hidden_activation is of older
 * files. */
static const char *const gemmas[] = {
    GEMMA "}",
    GEMMA ", 'hidden_act': 'gelu', 'use_bidirectional_attention': null, 'hidden_activation': null, 'head_dim': 256}",
    GEMMA ", 'hidden_act': 'gelu', 'hidden_activation': 'relu'}",
    GEMMA ", 'hidden_activation': 'gelu_pytorch_tanh', 'rms_norm_eps': 1e-6, 'attention_bias': false}",
    GEMMA ", 'hidden_act': 'gelu_pytorch_tanh', 'rope_parameters': {'rope_type': 'default', 'rope_theta': 1e4}}",
};

TEST_EACH(gemma_s_numbers_are_those_of_transformers, COUNT(gemmas))
{
    struct model_config c;
    struct error err;

    ck_assert_msg(parse(&c, gemmas[_i], &err) == 0, "%s", err.text);
    ck_assert(c.activation == MODEL_GELU_NEW && c.tied && c.n_positions == 8192);
    ck_assert(decoder_of(&c)->head_width == 256 && decoder_of(&c)->n_kv_heads == 1 && decoder_of(&c)->norm_offset);
    ck_assert(!decoder_of(&c)->qkv_bias && !decoder_of(&c)->output_bias && decoder_of(&c)->rope.base == 10000);
    ck_assert_float_eq(c.norm_epsilon, 1e-6f);
}

/* As BertConfig and RobertaConfig of transformers 5.23 fill them in; and with keys of other heads and old files. */
static const struct {
    const char *text;
    uint32_t n_positions;
    struct encoder_config encoder;
} encoders[] = {
    {BERT "}", 512, {2, 512, 0, 1, .dropout_attention = 0.1f, .dropout_hidden = 0.1f}},
    {BERT ", 'max_position_embeddings': 40, 'type_vocab_size': 1, 'hidden_dropout_prob': 0, 'pad_token_id': 7, "
          "'attention_probs_dropout_prob': 0.25, 'position_embedding_type': 'absolute', 'is_decoder': false, "
          "'classifier_dropout': null, 'pooler_fc_size': 768, 'directionality': 'bidi', 'use_cache': true, "
          "'chunk_size_feed_forward': 0, 'gradient_checkpointing': false, 'architectures': ['BertForMaskedLM']}",
     40,
     {1, 40, 0, 1, .dropout_attention = 0.25f}},
    {ROBERTA ", 'max_position_embeddings': 514, 'type_vocab_size': 1, 'bos_token_id': 0, 'eos_token_id': 2}",
     512,
     {1, 514, 2, 1, .dropout_attention = 0.1f, .dropout_hidden = 0.1f}},
    {ROBERTA ", 'max_position_embeddings': 16, 'pad_token_id': 3}",
     12,
     {2, 16, 4, 3, .dropout_attention = 0.1f, .dropout_hidden = 0.1f}},
};

TEST_EACH(an_encoder_s_numbers_are_those_of_transformers, COUNT(encoders))
{
    const struct encoder_config *want = &encoders[_i].encoder;
    struct model_config c;
    struct error err;

    ck_assert_msg(parse(&c, encoders[_i].text, &err) == 0, "%s", err.text);
    ck_assert(c.activation == MODEL_GELU && c.tied && c.n_positions == encoders[_i].n_positions);
    ck_assert(encoder_of(&c)->n_segments == want->n_segments && encoder_of(&c)->n_rows == want->n_rows);
    ck_assert(encoder_of(&c)->first_row == want->first_row && encoder_of(&c)->pad == want->pad);
    ck_assert_float_eq(encoder_of(&c)->dropout_attention, want->dropout_attention);
    ck_assert_float_eq(encoder_of(&c)->dropout_hidden, want->dropout_hidden);
    ck_assert_float_eq(c.norm_epsilon, 1e-12f);
    ck_assert_float_eq(c.initializer_range, 0.02f);
}

/* id2label counts rather than num_labels; without both, transformers assumes two. */
static const struct {
    const char *text;
    uint32_t n_labels;
    float dropout; /* of the classifier */
} classifiers[] = {
    {BERT "}", 0, 0.1f},
    {BERT ", 'architectures': ['BertForMaskedLM'], 'id2label': {'0': 'a'}, 'problem_type': 'regression'}", 0, 0.1f},
    {CLASSIFIER "}", 2, 0.1f},
    {CLASSIFIER ", 'num_labels': 5, 'id2label': null, 'problem_type': null}", 5, 0.1f},
    {CLASSIFIER
     ", 'num_labels': 5, 'id2label': {'0': 'a', '1': 'b', '2': 'c'}, 'label2id': {'a': 0}, "
     "'problem_type': 'single_label_classification', 'hidden_dropout_prob': 0.3, 'tie_word_embeddings': false}",
     3, 0.3f},
    {CLASSIFIER ", 'id2label': {'0': 'score'}, 'problem_type': 'regression', 'classifier_dropout': 0}", 1, 0},
    {ROBERTA ", 'architectures': ['RobertaForSequenceClassification'], 'num_labels': 1, 'classifier_dropout': null}", 1,
     0.1f},
};

TEST_EACH(a_classifier_s_labels_are_those_of_transformers, COUNT(classifiers))
{
    struct model_config c;
    struct error err;

    ck_assert_msg(parse(&c, classifiers[_i].text, &err) == 0, "%s", err.text);
    ck_assert_uint_eq(c.n_labels, classifiers[_i].n_labels);
    ck_assert(c.regression == (c.n_labels == 1) && c.tied == (c.n_labels == 0));
    ck_assert_uint_eq(model_outputs(&c), c.n_labels ? c.n_labels : c.vocabulary);
    ck_assert_float_eq(encoder_of(&c)->dropout_classifier, classifiers[_i].dropout);
}
