/* The numbers of the other families' configurations, as transformers fills them in. */
#include "tests/kit/command.h"
#include "tests/kit/test.h"
#include "tests/proto/model/config_texts.h"

#include "proto/model/decoder.h"
#include "proto/model/encoder.h"
#include "proto/model/family.h"
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

/* As the classes of transformers 5.24 fill them in; then in the words of published files. */
static const struct {
    const char *text;
    uint32_t n_positions;
    bool tied;
    float epsilon;
    struct decoder_config decoder;
} rotated[] = {
    {COHERE "}", 8192, true, 1e-5f, {4, 24, .interleaved = true, .logit_scale = 0.0625f, .rope = {500000}}},
    {COHERE2 "}",
     8192,
     true,
     1e-5f,
     {4, 24, 4096, .sliding.set = {7}, .interleaved = true, .logit_scale = 0.0625f, .rope = {10000}}},
    {COHERE2 ", 'layer_types': ['full_attention', 'sliding_attention', 'full_attention'], 'layer_switch': 4, "
             "'rotary_pct': 1.0, 'rope_scaling': null}",
     8192,
     true,
     1e-5f,
     {4, 24, 4096, .sliding.set = {2}, .unrotated.set = {5}, .interleaved = true, .logit_scale = 0.0625f,
      .rope = {10000}}},
    {GLM "}", 131072, false, 1.5625e-7f, {2, 128, 0, true, .interleaved = true, .rope = {10000, .share = 0.5f}}},
    {GLM4 ", 'partial_rotary_factor': 0.25}",
     131072,
     false,
     1.5625e-7f,
     {2, 128, 0, true, .interleaved = true, .rope = {10000, .share = 0.25f}}},
    {ERNIE "}", 131072, true, 1e-5f, {2, 128, .interleaved = true, .rope = {500000}}},
    {ERNIE ", 'use_bias': true, 'attention_dropout': 0.5}",
     131072,
     true,
     1e-5f,
     {2, 128, 0, true, true, true, .interleaved = true, .rope = {500000}}},
    {MINISTRAL "}",
     262144,
     false,
     1e-5f,
     {2, 128, .query_growth = 0.1f,
      .rope = {1000000, DECODER_YARN, 16, .n_trained = 16384, .mscale = 1, .mscale_all = 1}}},
    /* What the object lacks is not that object's. */
    {MINISTRAL ", 'rope_parameters': {'type': 'yarn', 'factor': 4, 'original_max_position_embeddings': 32, "
               "'max_position_embeddings': 64, 'llama_4_scaling_beta': 0.5}}",
     262144,
     false,
     1e-5f,
     {2, 128, .query_growth = 0.5f, .rope = {10000, DECODER_YARN, 4, .n_trained = 32}}},
    {MINISTRAL ", 'rope_parameters': {'rope_type': 'default', 'rope_theta': 10000.0, "
               "'original_max_position_embeddings': 8, 'llama_4_scaling_beta': 0}}",
     262144,
     false,
     1e-5f,
     {2, 128, .rope = {10000, .n_trained = 8}}},
    {HUNYUAN "}", 2048, false, 1e-5f, {4, 24, .rope = {10000}}},
    {HUNYUAN ", 'rope_scaling': {'alpha': 1000.0, 'beta_fast': 32, 'beta_slow': 1, 'factor': 1.0, 'mscale': 1.0, "
             "'mscale_all_dim': 0.0, 'type': 'dynamic'}, 'eod_token_id': 3, 'attention_bias': true}",
     2048,
     false,
     1e-5f,
     {4, 24, 0, true, true, .rope = {10000, DECODER_DYNAMIC, 1, .mscale = 1, .alpha = 1000}}},
    {PHI3 ", 'max_position_embeddings': 131072, 'original_max_position_embeddings': 64, 'rope_scaling': {'type': 'su', "
          "'short_factor': [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12], 'long_factor': [2, 2, 3, 4, 5, 6, 7, 8, 9, 10, "
          "11, 12]}}",
     131072,
     false,
     1e-5f,
     {4, 24, .rope = {10000, DECODER_LONGROPE, 2048, .n_trained = 64}}},
};

TEST_EACH(numbers_of_rotation_are_those_of_transformers, COUNT(rotated))
{
    const struct decoder_config *want = &rotated[_i].decoder;
    const struct decoder_rope *rope = &want->rope;
    struct model_config c;
    struct error err;

    ck_assert_msg(parse(&c, rotated[_i].text, &err) == 0, "%s", err.text);
    const struct decoder_config *d = decoder_of(&c);
    const uint32_t counts[][2] = {{c.n_positions, rotated[_i].n_positions},
                                  {c.tied, rotated[_i].tied},
                                  {c.activation, MODEL_SILU},
                                  {d->n_kv_heads, want->n_kv_heads},
                                  {d->head_width, want->head_width},
                                  {d->window, want->window},
                                  {(uint32_t)d->sliding.set[0], (uint32_t)want->sliding.set[0]},
                                  {(uint32_t)d->unrotated.set[0], (uint32_t)want->unrotated.set[0]},
                                  {d->qkv_bias, want->qkv_bias},
                                  {d->output_bias, want->output_bias},
                                  {d->mlp_bias, want->mlp_bias},
                                  {d->interleaved, want->interleaved},
                                  {d->rope.scaling, rope->scaling},
                                  {d->rope.n_trained, rope->n_trained > 0 ? rope->n_trained : rotated[_i].n_positions}};
    const float reals[][2] = {{c.norm_epsilon, rotated[_i].epsilon},
                              {c.initializer_range, 0.02f},
                              {d->dropout_attention, 0},
                              {d->logit_scale, want->logit_scale},
                              {d->query_growth, want->query_growth},
                              {d->rope.base, rope->base},
                              {d->rope.factor, rope->factor},
                              {d->rope.share, rope->share > 0 ? rope->share : 1},
                              {d->rope.mscale, rope->mscale},
                              {d->rope.mscale_all, rope->mscale_all},
                              {d->rope.alpha, rope->alpha}};
    for (int i = 0; i < COUNT(counts); i++)
        ck_assert_msg(counts[i][0] == counts[i][1], "%d: %u, not %u", i, counts[i][0], counts[i][1]);
    for (int i = 0; i < COUNT(reals); i++)
        ck_assert_float_eq(reals[i][0], reals[i][1]);
}

/* What the config classes of transformers 5.24 make of a file with the required keys alone; and of GPT-NeoX's as
 * published, whose rotary positions have names of their own. */
static const struct {
    const char *text;
    uint32_t n_positions;
    enum model_activation activation;
    bool biased, parallel; /* maps of attention and of the MLP; side by side */
    float epsilon, base, share;
} side_by_sides[] = {
    {DECODER("phi") "}", 2048, MODEL_GELU_NEW, true, false, 1e-5f, 10000, 0.5f},
    {DECODER("olmo") "}", 2048, MODEL_SILU, false, false, 1e-5f, 10000, 1},
    {DECODER("nanochat") "}", 2048, MODEL_RELU2, false, false, 1e-6f, 10000, 1},
    {DECODER("arcee") "}", 4096, MODEL_RELU2, false, false, 1e-5f, 10000, 1},
    {DECODER("gpt_neox") "}", 2048, MODEL_GELU, true, true, 1e-5f, 10000, 0.25f},
    {DECODER("gpt_neox") ", 'rotary_pct': 0.5, 'rotary_emb_base': 300, 'hidden_act': 'gelu_fast', "
                         "'classifier_dropout': 0.1, 'use_parallel_residual': false, 'layer_norm_eps': 1e-3}",
     2048, MODEL_GELU_NEW, true, false, 1e-3f, 300, 0.5f},
    {DECODER("gpt_neox") ", 'rotary_pct': 0.5, 'rotary_emb_base': 300, 'rope_parameters': {'rope_type': 'default', "
                         "'rope_theta': 500, 'partial_rotary_factor': 1.0}}",
     2048, MODEL_GELU, true, true, 1e-5f, 500, 1},
};

TEST_EACH(other_decoders_numbers_are_those_of_transformers, COUNT(side_by_sides))
{
    struct model_config c;
    struct error err;

    ck_assert_msg(parse(&c, side_by_sides[_i].text, &err) == 0, "%s", err.text);
    const struct decoder_config *d = decoder_of(&c);
    ck_assert(!c.tied && c.n_positions == side_by_sides[_i].n_positions);
    ck_assert_int_eq(c.activation, side_by_sides[_i].activation);
    ck_assert(d->n_kv_heads == 4 && d->head_width == 24 && d->parallel == side_by_sides[_i].parallel);
    ck_assert(d->qkv_bias == side_by_sides[_i].biased && d->output_bias == d->qkv_bias && d->mlp_bias == d->qkv_bias);
    ck_assert_float_eq(c.norm_epsilon, side_by_sides[_i].epsilon);
    ck_assert_float_eq(c.initializer_range, 0.02f);
    ck_assert_float_eq(d->rope.base, side_by_sides[_i].base);
    ck_assert_float_eq(d->rope.share, side_by_sides[_i].share);
}

#define OPT                                                                                                            \
    "{'model_type': 'opt', 'hidden_size': 96, 'num_attention_heads': 4, 'num_hidden_layers': 3, 'ffn_dim': 150, "      \
    "'vocab_size': 211"

/* As OPTConfig of transformers 5.24 fills it in. */
TEST(opt_s_numbers_are_those_of_transformers)
{
    struct model_config c;
    struct error err;

    ck_assert_msg(parse(&c, quoted(OPT ", 'layerdrop': 0.0, 'word_embed_proj_dim': 96}"), &err) == 0, "%s", err.text);
    ck_assert(c.n_positions == 2048 && c.tied && c.activation == MODEL_RELU && c.has_padding && c.padding == 1);
    ck_assert_float_eq(c.norm_epsilon, 1e-5f);
    ck_assert_float_eq(c.initializer_range, 0.02f);
}

/* As NanoChatConfig and CohereConfig of transformers 5.24 fill it in: a cap unless the file says null, and norms of
 * heads if it says so. */
TEST(caps_and_norms_of_heads_are_as_the_file_says)
{
    struct model_config c;
    struct error err;

    ck_assert_msg(parse(&c, quoted(DECODER("nanochat") "}"), &err) == 0, "%s", err.text);
    ck_assert(decoder_of(&c)->backwards && decoder_of(&c)->logit_cap == 15);
    ck_assert_int_eq(parse(&c, quoted(DECODER("nanochat") ", 'final_logit_softcapping': null}"), &err), 0);
    ck_assert(decoder_of(&c)->logit_cap == 0);
    ck_assert_int_eq(parse(&c, quoted(COHERE "}"), &err), 0);
    ck_assert(!decoder_of(&c)->norms_heads);
    ck_assert_int_eq(parse(&c, quoted(COHERE ", 'use_qk_norm': true}"), &err), 0);
    ck_assert(decoder_of(&c)->norms_heads);
}

#define MUSE(layers)                                                                                                   \
    "{'model_type': 'muse_glimmer_text', 'hidden_size': 96, 'num_attention_heads': 4, 'intermediate_size': 150, "      \
    "'vocab_size': 211, 'num_hidden_layers': " layers

/* As MuseGlimmerTextConfig of transformers 5.24 fills it in: every fourth block, counted from the last, attends to all
 * and is not rotated; of a list of bases it reads which are 0. */
TEST(a_muse_glimmer_counts_its_blocks_backwards)
{
    struct model_config c;
    struct error err;

    ck_assert_msg(parse(&c, quoted(MUSE("6") "}"), &err) == 0, "%s", err.text);
    const struct decoder_config *d = decoder_of(&c);
    ck_assert(!c.tied && c.n_positions == 131072 && c.activation == MODEL_SILU && d->n_kv_heads == 2);
    ck_assert(d->head_width == 128 && d->window == 2048 && d->logit_cap == 20 &&
              d->logit_scale == 0.19611613513818404f);
    ck_assert_float_eq_tol(d->score_scale, 3.87f / sqrtf(128), 1e-7f);
    for (uint32_t i = 0; i < 6; i++) {
        ck_assert(config_layers_has(&d->sliding, i) == (i != 1 && i != 5));
        ck_assert(config_layers_has(&d->unrotated, i) == (i == 1 || i == 5));
    }
    ck_assert_int_eq(parse(&c,
                           quoted(MUSE("3") ", 'layer_rope_theta': [0.0, 1e4, 0], 'layer_types': ['full_attention', "
                                            "'full_attention', 'sliding_attention']}"),
                           &err),
                     0);
    for (uint32_t i = 0; i < 3; i++) {
        ck_assert(config_layers_has(&decoder_of(&c)->unrotated, i) == (i != 1));
        ck_assert(config_layers_has(&decoder_of(&c)->sliding, i) == (i == 2));
    }
    ck_assert_int_eq(parse(&c, quoted(MUSE("3") ", 'qk_scale_factor': 0}"), &err), -EINVAL);
    ck_assert_ptr_nonnull(strstr(err.text, "qk_scale_factor is 0"));
}

/* As BloomConfig of transformers 5.24 fills it in, which has no required key; and of the files as published, where the
 * width and the number of heads have other names. */
static const struct {
    const char *text;
    uint32_t width, n_layers, n_heads, vocabulary;
    float epsilon, dropout;
} blooms[] = {
    {"{'model_type': 'bloom'}", 64, 2, 8, 250880, 1e-5f, 0},
    {"{'model_type': 'bloom', 'n_embed': 96, 'n_layer': 3, 'num_attention_heads': 6, 'vocab_size': 211, 'n_inner': "
     "null, "
     "'seq_length': 2048, 'offset_alibi': 100, 'skip_bias_add_qkv': false, 'layer_norm_epsilon': 1e-3, "
     "'hidden_dropout': 0.1, 'masked_softmax_fusion': true}",
     96, 3, 6, 211, 1e-3f, 0.1f},
};

TEST_EACH(bloom_s_numbers_are_those_of_transformers, COUNT(blooms))
{
    struct model_config c;
    struct error err;

    ck_assert_msg(parse(&c, quoted(blooms[_i].text), &err) == 0, "%s", err.text);
    ck_assert(c.width == blooms[_i].width && c.n_layers == blooms[_i].n_layers && c.n_heads == blooms[_i].n_heads);
    ck_assert(c.vocabulary == blooms[_i].vocabulary && c.inner_width == 4 * c.width && c.tied);
    ck_assert(c.activation == MODEL_GELU_NEW && decoder_of(&c)->alibi);
    ck_assert_float_eq(c.norm_epsilon, blooms[_i].epsilon);
    ck_assert_float_eq(decoder_of(&c)->dropout_residual, blooms[_i].dropout);
}

/* As ApertusConfig of transformers 5.24 fills it in: a file without an object of rotary positions has Llama 3's. */
static const struct {
    const char *text;
    enum decoder_scaling scaling;
    float base, factor;
    uint32_t n_trained;
} apertuses[] = {
    {DECODER("apertus") "}", DECODER_LLAMA3, 12e6f, 8, 8192},
    {DECODER("apertus") ", 'rope_parameters': {'rope_type': 'default', 'rope_theta': 500.0}}", DECODER_NOT_SCALED, 500,
     0, 65536},
    {DECODER(
         "apertus") ", 'rope_theta': 4e6, 'rope_scaling': {'rope_type': 'llama3', 'factor': 2.0, 'low_freq_factor': "
                    "1.0, 'high_freq_factor': 4.0, 'original_max_position_embeddings': 32}}",
     DECODER_LLAMA3, 4e6f, 2, 32},
};

TEST_EACH(apertus_s_numbers_are_those_of_transformers, COUNT(apertuses))
{
    struct model_config c;
    struct error err;

    ck_assert_msg(parse(&c, quoted(apertuses[_i].text), &err) == 0, "%s", err.text);
    const struct decoder_rope *rope = &decoder_of(&c)->rope;
    ck_assert(c.n_positions == 65536 && !c.tied && c.padding == 3 && rope->scaling == apertuses[_i].scaling);
    ck_assert_float_eq(c.norm_epsilon, 1e-5f);
    ck_assert_float_eq(rope->base, apertuses[_i].base);
    ck_assert_float_eq(rope->factor, apertuses[_i].factor);
    ck_assert_uint_eq(rope->n_trained, apertuses[_i].n_trained);
}

/* The maps' widths are those of Lfm2MLP of transformers 5.24, blocks those of Lfm2Config: layer_types before
 * full_attn_idxs, which may name blocks that there are not; without either all attend. As a float 1.3 is less than the
 * file's, and 130 would become 129. */
static const struct {
    const char *more;
    uint32_t inner, convolving; /* bit i: block i */
    bool tied;
} lfm2s[] = {
    {"", 256, 0, true},
    {", 'block_ff_dim': 12288, 'tie_embedding': false, 'full_attn_idxs': [1]}", 8192, 5, false},
    {", 'block_multiple_of': 1}", 100, 0, true},
    {", 'block_multiple_of': 1, 'block_ffn_dim_multiplier': 1.3}", 130, 0, true},
    {", 'block_multiple_of': 16, 'block_ffn_dim_multiplier': 2}", 208, 0, true},
    {", 'block_auto_adjust_ff_dim': false, 'full_attn_idxs': []}", 150, 7, true},
    {", 'full_attn_idxs': [0, 7], 'layer_types': null}", 256, 6, true},
    {", 'full_attn_idxs': [0], 'layer_types': ['conv', 'full_attention', 'conv']}", 256, 5, true},
};

TEST_EACH(lfm2_s_blocks_are_those_of_transformers, COUNT(lfm2s))
{
    struct model_config c;
    struct model model;
    struct error err;
    const char *more = lfm2s[_i].more;

    ck_assert_msg(parse(&c, quoted(print(LFM2 "%s", *more ? more : "}")), &err) == 0, "%s", err.text);
    ck_assert(c.tied == lfm2s[_i].tied && c.n_positions == 128000);
    ck_assert_msg(model_init(&model, &c, &err) == 0, "%s", err.text);
    for (uint32_t i = 0; i < 3; i++) {
        const struct model_tensor *w1 = model_find(&model, print("model.layers.%u.feed_forward.w1.weight", i)),
                                  *conv = model_find(&model, print("model.layers.%u.conv.conv.weight", i));
        uint64_t shape[4] = {0};
        ck_assert_uint_eq(w1->shape[0], lfm2s[_i].inner);
        ck_assert_int_eq(conv != NULL, lfm2s[_i].convolving >> i & 1);
        ck_assert(!conv || (model_file_shape(shape, conv) == 3 && shape[0] == 96 && shape[1] == 1 && shape[2] == 3));
    }
    model_free(&model);
}

/* As Lfm3Config of transformers 5.24 fills it in: an object of rope_parameters stands for all of the default one. */
static const struct {
    const char *more;
    uint64_t convolving, sliding; /* bit i: block i */
    enum decoder_scaling scaling, sliding_scaling;
    float base, share, sliding_base;
    uint32_t window;
} lfm3s[] = {
    {"", 3, 0, DECODER_PROPORTIONAL, DECODER_NOT_SCALED, 1e6f, 0.5f, 1e4f, 256},
    {", 'layer_types': null", 3, 0, DECODER_PROPORTIONAL, DECODER_NOT_SCALED, 1e6f, 0.5f, 1e4f, 256},
    {", 'layer_types': ['sliding_attention', 'conv', 'full_attention'], 'sliding_window': 9, 'rope_parameters': "
     "{'full_attention': {'rope_type': 'proportional'}, 'sliding_attention': {'rope_theta': 77}}",
     2, 1, DECODER_PROPORTIONAL, DECODER_NOT_SCALED, 1e6f, 1, 77, 9},
    {", 'rope_parameters': {'full_attention': {'rope_type': 'default', 'partial_rotary_factor': 0.5}, "
     "'sliding_attention': {'rope_type': 'proportional', 'rope_theta': 500, 'partial_rotary_factor': 0.25}}",
     3, 0, DECODER_NOT_SCALED, DECODER_PROPORTIONAL, 1e6f, 1, 500, 256},
};

TEST_EACH(lfm3_s_blocks_are_those_of_transformers, COUNT(lfm3s))
{
    struct model_config c;
    struct error err;

    ck_assert_msg(parse(&c, quoted(print(LFM3 "%s}", lfm3s[_i].more)), &err) == 0, "%s", err.text);
    const struct decoder_config *d = decoder_of(&c);
    ck_assert(c.tied && c.n_positions == 128000 && d->head_width == 128 && d->n_kv_heads == 4 && c.inner_width == 150);
    for (uint32_t i = 0; i < c.n_layers; i++)
        ck_assert_uint_eq(c.family->kind_of_block(&c, i),
                          lfm3s[_i].convolving >> i & 1 ? 2 : lfm3s[_i].sliding >> i & 1);
    ck_assert(d->rope.scaling == lfm3s[_i].scaling && d->sliding_rope.scaling == lfm3s[_i].sliding_scaling);
    ck_assert_uint_eq(d->window, lfm3s[_i].window);
    ck_assert_float_eq(d->rope.base, lfm3s[_i].base);
    ck_assert_float_eq(d->rope.share, lfm3s[_i].share);
    ck_assert_float_eq(d->sliding_rope.base, lfm3s[_i].sliding_base);
}

/* As Qwen3_5TextConfig of transformers 5.24 fills it in: layer_types before full_attention_interval, and a share of a
 * quarter where the file has none. The file of the last is as published. */
static const struct {
    const char *more;
    uint32_t linear; /* bit i: block i */
    float base, share;
} qwen3_5s[] = {
    {"", 7, 10000, 0.25f},
    {", 'full_attention_interval': 2, 'rope_parameters': {'rope_type': 'default', 'rope_theta': 500}", 5, 500, 0.25f},
    {", 'full_attention_interval': 2, 'layer_types': ['full_attention', 'linear_attention', 'full_attention'], "
     "'partial_rotary_factor': 0.5",
     2, 10000, 0.5f},
    {", 'attn_output_gate': true, 'mamba_ssm_dtype': 'float32', 'mlp_only_layers': [], 'mtp_num_hidden_layers': 1, "
     "'mtp_use_dedicated_embeddings': false, 'full_attention_interval': 3, 'rope_parameters': {'mrope_interleaved': "
     "true, "
     "'mrope_section': [11, 11, 10], 'rope_type': 'default', 'rope_theta': 10000000, 'partial_rotary_factor': 0.125}",
     3, 1e7f, 0.125f},
};

TEST_EACH(qwen3_5_s_blocks_are_those_of_transformers, COUNT(qwen3_5s))
{
    struct model_config c;
    struct model model;
    struct error err;

    ck_assert_msg(parse(&c, quoted(print(QWEN3_5 "%s}", qwen3_5s[_i].more)), &err) == 0, "%s", err.text);
    const struct decoder_config *d = decoder_of(&c);
    ck_assert(!c.tied && c.n_positions == 32768 && d->head_width == 256 && d->n_kv_heads == 4 && d->norm_offset);
    ck_assert_float_eq(d->rope.base, qwen3_5s[_i].base);
    ck_assert_float_eq(d->rope.share, qwen3_5s[_i].share);
    ck_assert_msg(model_init(&model, &c, &err) == 0, "%s", err.text);
    for (uint32_t i = 0; i < 3; i++) {
        const struct model_tensor *conv = model_find(&model, print("model.layers.%u.linear_attn.conv1d.weight", i)),
                                  *a_log = model_find(&model, print("model.layers.%u.linear_attn.A_log", i)),
                                  *query = model_find(&model, print("model.layers.%u.self_attn.q_proj.weight", i));
        uint64_t shape[4] = {0};
        ck_assert_int_eq(conv != NULL, qwen3_5s[_i].linear >> i & 1);
        ck_assert(!conv || (model_file_shape(shape, conv) == 3 && shape[0] == 8192 && shape[2] == 4 && conv->decays));
        ck_assert(!a_log || (a_log->n == 32 && !a_log->decays));
        ck_assert(!query == !!conv && (!query || query->shape[0] == 2 * 4 * 256));
    }
    model_free(&model);
}

/* As OlmoHybridConfig of transformers 5.24 fills it in: no positions are rotated where rope_theta is null, the last block
 * of three or fewer attends, and the rule's heads and widths follow from those of attention. */
static const struct {
    const char *more;
    uint32_t linear; /* bit i: block i */
    bool rotated, doubled;
    uint32_t n_key_heads, n_heads, key_width, value_width;
} olmo_hybrids[] = {
    {"", 3, true, true, 4, 4, 18, 36},
    {", 'rope_theta': null", 3, false, true, 4, 4, 18, 36},
    {", 'rope_parameters': {'rope_type': 'default', 'rope_theta': null}, 'linear_num_key_heads': 2", 3, false, true, 2,
     4, 36, 72},
    {", 'linear_num_value_heads': 8, 'linear_value_head_dim': 5, 'linear_num_key_heads': null, "
     "'linear_allow_neg_eigval': false, 'layer_types': ['full_attention', 'linear_attention', 'full_attention']",
     2, true, false, 4, 8, 18, 5},
};

TEST_EACH(olmo_hybrid_s_blocks_are_those_of_transformers, COUNT(olmo_hybrids))
{
    static const char *const parts[] = {"q", "k", "v"};
    const uint32_t of_keys = olmo_hybrids[_i].n_key_heads * olmo_hybrids[_i].key_width,
                   columns[] = {of_keys, of_keys, olmo_hybrids[_i].n_heads * olmo_hybrids[_i].value_width};
    struct model_config c;
    struct model model;
    struct error err;

    ck_assert_msg(parse(&c, quoted(print(HYBRID "%s}", olmo_hybrids[_i].more)), &err) == 0, "%s", err.text);
    ck_assert_msg(model_init(&model, &c, &err) == 0, "%s", err.text);
    for (uint32_t i = 0; i < 3; i++) {
        const struct program *p = &model.programs[model.units[1 + i].program].program;
        const struct program_operation *delta = program_find(p, &operation_gated_delta);
        ck_assert_int_eq(delta != NULL, olmo_hybrids[_i].linear >> i & 1);
        ck_assert_int_eq(program_find(p, &operation_rope) != NULL, !delta && olmo_hybrids[_i].rotated);
        ck_assert(!delta || delta->gated_delta.doubled == olmo_hybrids[_i].doubled);
        for (int k = 0; delta && k < 3; k++) {
            const struct model_tensor *conv =
                model_find(&model, print("model.layers.%u.linear_attn.%s_conv1d.weight", i, parts[k]));
            uint64_t shape[4] = {0};
            ck_assert(conv && model_file_shape(shape, conv) == 3 && shape[0] == columns[k] && shape[2] == 4);
        }
    }
    model_free(&model);
}

/* As GraniteSWAConfig of transformers 5.24 fills it in: every fourth block sees all keys, and a list of bases is
 * stronger than the base. */
static const struct {
    const char *text;
    uint64_t sliding, unrotated;
    float base, sliding_base;
} granite_swas[] = {
    {GRANITE_SWA "}", 6, 0, 10000, 10000},
    {GRANITE_SWA ", 'layer_rope_theta': null, 'layer_types': null, 'rope_theta': 500}", 6, 0, 500, 500},
    {GRANITE_SWA ", 'layer_rope_theta': [0, 300, 300.0]}", 6, 1, 10000, 300},
    {GRANITE_SWA ", 'layer_rope_theta': [300, 0, 50], 'layer_types': ['full_attention', 'full_attention', "
                 "'sliding_attention'], 'sliding_window': 16}",
     4, 2, 300, 50},
    {GRANITE_SWA ", 'layer_rope_theta': [0, 0, 0]}", 6, 7, 10000, 10000},
};

TEST_EACH(granite_swa_s_numbers_are_those_of_transformers, COUNT(granite_swas))
{
    struct model_config c;
    struct error err;

    ck_assert_msg(parse(&c, quoted(granite_swas[_i].text), &err) == 0, "%s", err.text);
    const struct decoder_config *d = decoder_of(&c);
    ck_assert(c.n_positions == 8192 && c.tied && !c.has_padding && d->n_kv_heads == 4 && d->head_width == 24);
    ck_assert_uint_eq(d->window, strstr(granite_swas[_i].text, "'sliding_window'") ? 16 : 128);
    ck_assert_uint_eq(d->sliding.set[0], granite_swas[_i].sliding);
    ck_assert_uint_eq(d->unrotated.set[0], granite_swas[_i].unrotated);
    const float reals[][2] = {{c.norm_epsilon, 1e-5f},
                              {d->rope.base, granite_swas[_i].base},
                              {d->sliding_rope.base, granite_swas[_i].sliding_base},
                              {d->embedding_scale, 1},
                              {d->score_scale, 1},
                              {d->branch_scale, 1},
                              {d->logit_divisor, 1}};
    for (int i = 0; i < COUNT(reals); i++)
        ck_assert_float_eq(reals[i][0], reals[i][1]);
}

/* What would be computed otherwise is refused by its key. */
static const struct {
    const char *text, *why;
} refused[] = {
    {OPT ", 'word_embed_proj_dim': 64}", "word_embed_proj_dim is 64"},
    {OPT ", 'do_layer_norm_before': false}", "do_layer_norm_before is false"},
    {OPT ", '_remove_final_layer_norm': true}", "_remove_final_layer_norm is true"},
    {OPT ", 'layerdrop': 0.5}", "layerdrop is 0.5"},
    {DECODER("olmo") ", 'clip_qkv': 8.0}", "clip_qkv is 8.0"},
    {DECODER("gpt_neox") ", 'rope_theta': 500}", "rope_theta is 500"},
    {LFM2 ", 'conv_L_cache': 9}", "conv_L_cache is 9"},
    {LFM2 ", 'layer_types': ['conv', 'full_attention']}", "layer_types has 2 entries"},
    {LFM2 ", 'layer_types': ['conv', 'conv', 'sliding_attention']}", "layer_types is "},
    {LFM2 ", 'full_attn_idxs': [-1]}", "full_attn_idxs is -1"},
    {LFM2 ", 'full_attn_idxs': 1}", "full_attn_idxs is 1"},
    {LFM2 ", 'block_ffn_dim_multiplier': 0}", "block_ffn_dim_multiplier is 0"},
    {LFM2 ", 'block_ff_dim': 1}", "intermediate_size is 1, from which follows a width of 0"},
    {LFM2 ", 'hidden_act': 'gelu'}", "hidden_act is 'gelu'"},
    {LFM3 ", 'layer_types': ['conv', 'full_attention']}", "layer_types has 2 entries"},
    {LFM3 ", 'layer_types': ['conv', 'conv', 'chunked_attention']}", "layer_types is "},
    {LFM3 ", 'layer_types': ['conv', 'conv', 'sliding_attention'], 'sliding_window': null}", "layer_types has sliding"},
    {LFM3 ", 'rope_theta': 500}", "rope_theta is 500"},
    {LFM3
     ", 'rope_parameters': {'full_attention': {'rope_type': 'linear', 'factor': 2, 'partial_rotary_factor': 0.5}}}",
     "partial_rotary_factor is 0.5: with rope_type linear it must be 1"},
    {QWEN3_5 ", 'hidden_act': 'gelu'}", "hidden_act is 'gelu': it must be silu"},
    {QWEN3_5 ", 'linear_num_key_heads': 3}", "linear_num_value_heads is 32: it must be a multiple"},
    {QWEN3_5 ", 'linear_conv_kernel_dim': 9}", "linear_conv_kernel_dim is 9"},
    {QWEN3_5 ", 'linear_key_head_dim': 512}", "linear_key_head_dim is 512"},
    {QWEN3_5 ", 'layer_types': ['linear_attention', 'full_attention']}", "layer_types has 2 entries"},
    {QWEN3_5 ", 'sliding_window': 4}", "sliding_window is 4"},
    {HYBRID ", 'layer_types': ['linear_attention', 'linear_attention', 'linear_attention']}",
     "layer_types must have both"},
    {HYBRID ", 'layer_types': ['full_attention', 'full_attention', 'full_attention']}", "layer_types must have both"},
    {HYBRID ", 'linear_a_log_min': 17}", "linear_a_log_min is 17"},
    {HYBRID ", 'linear_dt_min': 0.2}", "linear_dt_min is 0.2"},
    {HYBRID ", 'linear_dt_init_floor': 0.01}", "linear_dt_init_floor is 0.01"},
    {HYBRID ", 'linear_num_value_heads': 6}", "linear_num_value_heads is 6"},
    {HYBRID ", 'rope_theta': 1}", "rope_theta is 1"},
    {DECODER("arcee") ", 'hidden_act': 'mish'}", "hidden_act is 'mish'"},
    {DECODER("apertus") ", 'hidden_act': 'silu'}", "hidden_act is 'silu': it must be xielu"},
    {DECODER("apertus") ", 'rope_theta': 500}", "the factor of rotary positions is 0"},
    {GRANITE_SWA ", 'layer_rope_theta': [100, 200]}", "layer_rope_theta has 2 entries"},
    {GRANITE_SWA ", 'layer_rope_theta': [100, 200, 300]}", "layer_rope_theta has 200 and 300"},
    {GRANITE_SWA ", 'sliding_window': null}", "layer_types has sliding_attention"},
    {GRANITE_SWA ", 'attention_multiplier': 0}", "attention_multiplier is 0"},
    {"{'model_type': 'bloom', 'hidden_size': 20}", "hidden_size is 20"},
    {"{'model_type': 'bloom', 'hidden_act': 'relu'}", "hidden_act is 'relu'"},
    {"{'model_type': 'stablelm', 'hidden_size': 128, 'num_attention_heads': 32, 'num_hidden_layers': 3, "
     "'intermediate_size': 150, 'vocab_size': 211, 'partial_rotary_factor': 0.5, 'qk_layernorm': true}",
     "qk_layernorm is true"},
};

TEST_EACH(what_is_not_computed_is_refused_by_its_key, COUNT(refused))
{
    struct model_config c;
    struct error err;

    ck_assert_int_eq(parse(&c, refused[_i].text, &err), -EINVAL);
    ck_assert_msg(strncmp(err.text, quoted(refused[_i].why), strlen(quoted(refused[_i].why))) == 0, "%s", err.text);
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
    {XLM_ROBERTA "}", 1},
    {DISTILBERT "}", 0},
    {ELECTRA "}", 0},
    {GEMMA2 "}", 0},
    {MODERNBERT ", 'pad_token_id': 3}", 3},
    {EUROBERT ", 'pad_token_id': null}", -1},
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
    ck_assert(c.tied && c.activation == MODEL_GELU_NEW && d->norm_offset);
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

/* As BertConfig, RobertaConfig and, of 5.24, XLMRobertaConfig, DistilBertConfig and ElectraConfig of transformers fill
 * them in; and with keys of other heads and old files. */
static const struct {
    const char *text;
    uint32_t n_positions;
    struct encoder_config encoder;
} encoders[] = {
    {BERT "}", 512, {2, 512, 0, .pad = 1, .dropout_attention = 0.1f, .dropout_hidden = 0.1f}},
    {BERT ", 'max_position_embeddings': 40, 'type_vocab_size': 1, 'hidden_dropout_prob': 0, 'pad_token_id': 7, "
          "'attention_probs_dropout_prob': 0.25, 'position_embedding_type': 'absolute', 'is_decoder': false, "
          "'classifier_dropout': null, 'pooler_fc_size': 768, 'directionality': 'bidi', 'use_cache': true, "
          "'chunk_size_feed_forward': 0, 'gradient_checkpointing': false, 'architectures': ['BertForMaskedLM']}",
     40,
     {1, 40, 0, .pad = 1, .dropout_attention = 0.25f}},
    {ROBERTA ", 'max_position_embeddings': 514, 'type_vocab_size': 1, 'bos_token_id': 0, 'eos_token_id': 2}",
     512,
     {1, 514, 2, .pad = 1, .dropout_attention = 0.1f, .dropout_hidden = 0.1f}},
    {ROBERTA ", 'max_position_embeddings': 16, 'pad_token_id': 3}",
     12,
     {2, 16, 4, .pad = 3, .dropout_attention = 0.1f, .dropout_hidden = 0.1f}},
    {XLM_ROBERTA "}", 510, {2, 512, 2, .pad = 1, .dropout_attention = 0.1f, .dropout_hidden = 0.1f}},
    {DISTILBERT "}", 512, {0, 512, 0, .dropout_attention = 0.1f, .dropout_hidden = 0.1f}},
    {DISTILBERT ", 'sinusoidal_pos_embds': true, 'qa_dropout': 0.1, 'dropout': 0.3, 'attention_dropout': 0.2}",
     512,
     {0, 512, 0, .dropout_attention = 0.2f, .dropout_hidden = 0.3f}},
    {ELECTRA "}", 512, {2, 512, 0, .inner = 96, .dropout_attention = 0.1f, .dropout_hidden = 0.1f}},
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
    ck_assert(encoder_of(&c)->inner == want->inner && encoder_width(&c) == 96);
    ck_assert_float_eq(encoder_of(&c)->dropout_attention, want->dropout_attention);
    ck_assert_float_eq(encoder_of(&c)->dropout_hidden, want->dropout_hidden);
    ck_assert_float_eq(c.norm_epsilon, 1e-12f);
    ck_assert_float_eq(c.initializer_range, 0.02f);
}

/* ELECTRA's hidden_size is that of its blocks; to us a model's width is that of its tables. */
TEST(electra_s_tables_are_128_wide_unless_the_file_says_so)
{
    struct model_config c;
    struct error err;

    ck_assert_msg(parse(&c, ELECTRA "}", &err) == 0, "%s", err.text);
    ck_assert_uint_eq(c.width, 128);
    ck_assert_msg(parse(&c, ELECTRA ", 'embedding_size': 40}", &err) == 0, "%s", err.text);
    ck_assert(c.width == 40 && encoder_width(&c) == 96);
    ck_assert_int_eq(parse(&c, ELECTRA ", 'architectures': ['ElectraForSequenceClassification']}", &err), -EINVAL);
    ck_assert_ptr_nonnull(strstr(err.text, "embedding_size is 128"));
}

/* As Gemma2Config of transformers 5.24 fills it in: block 0 slides, and every second one from there. */
static const struct {
    const char *text;
    uint64_t sliding;
    float logit_cap, score_cap;
    uint32_t window, score_width;
} gemma2s[] = {
    {GEMMA2 "}", 5, 30, 50, 4096, 256},
    {GEMMA2 ", 'attn_logit_softcapping': null, 'query_pre_attn_scalar': 144, 'sliding_window': 20, "
            "'use_bidirectional_attention': null, 'cache_implementation': 'hybrid'}",
     5, 30, 0, 20, 144},
    {GEMMA2 ", 'final_logit_softcapping': null, 'attn_logit_softcapping': 0.5, 'layer_types': "
            "['full_attention', 'sliding_attention', 'full_attention']}",
     2, 0, 0.5f, 4096, 256},
};

TEST_EACH(gemma_2_s_numbers_are_those_of_transformers, COUNT(gemma2s))
{
    struct model_config c;
    struct error err;

    ck_assert_msg(parse(&c, gemma2s[_i].text, &err) == 0, "%s", err.text);
    const struct decoder_config *d = decoder_of(&c);
    ck_assert(c.tied && c.activation == MODEL_GELU_NEW && d->norm_offset && c.n_positions == 8192);
    ck_assert(d->n_kv_heads == 4 && d->head_width == 256 && d->rope.base == 10000 && d->sliding_rope.base == 10000);
    ck_assert_uint_eq(d->sliding.set[0], gemma2s[_i].sliding);
    ck_assert(d->window == gemma2s[_i].window && d->score_width == gemma2s[_i].score_width);
    ck_assert(d->logit_cap == gemma2s[_i].logit_cap && d->score_cap == gemma2s[_i].score_cap);
}

/* As ModernBertConfig of transformers 5.24 fills it in, the third as files of 2024 have it: every third block, from the
 * first, sees all; the others see local_attention // 2 keys to each side, their own not counted. */
static const struct {
    const char *text;
    uint64_t sliding;
    uint32_t window;
    float full_base, local_base;
} modernberts[] = {
    {MODERNBERT ", 'pad_token_id': 3}", 6, 65, 160000, 10000},
    {MODERNBERT ", 'pad_token_id': 3, 'local_attention': 7, 'rope_parameters': {'full_attention': {'rope_type': "
                "'default', 'rope_theta': 300}, 'sliding_attention': {'rope_type': 'default', 'rope_theta': 20}}}",
     6, 4, 300, 20},
    {MODERNBERT ", 'pad_token_id': 3, 'global_attn_every_n_layers': 2, 'global_rope_theta': 500, 'local_rope_theta': "
                "30, 'sparse_prediction': false, 'position_embedding_type': 'absolute', 'layer_norm_eps': 1e-5}",
     2, 65, 500, 30},
};

TEST_EACH(modernbert_s_numbers_are_those_of_transformers, COUNT(modernberts))
{
    struct model_config c;
    struct error err;

    ck_assert_msg(parse(&c, modernberts[_i].text, &err) == 0, "%s", err.text);
    const struct decoder_config *d = decoder_of(&c);
    ck_assert(c.tied && c.activation == MODEL_GELU && c.n_positions == 8192 && d->n_kv_heads == 4);
    ck_assert(!d->qkv_bias && !d->output_bias && !d->mlp_bias && d->head_width == 24);
    ck_assert_uint_eq(d->sliding.set[0], modernberts[_i].sliding);
    ck_assert_uint_eq(d->window, modernberts[_i].window);
    ck_assert(d->rope.base == modernberts[_i].full_base && d->sliding_rope.base == modernberts[_i].local_base);
    ck_assert_float_eq(c.norm_epsilon, 1e-5f);
}

TEST(eurobert_s_numbers_are_those_of_transformers)
{
    struct model_config c;
    struct error err;

    ck_assert_msg(parse(&c, EUROBERT ", 'pad_token_id': null, 'mask_token_id': 4, 'classifier_pooling': 'late'}",
                        &err) == 0,
                  "%s", err.text);
    ck_assert(!c.tied && c.activation == MODEL_SILU && c.n_positions == 8192 && model_restores_tokens(&c));
    ck_assert(decoder_of(&c)->n_kv_heads == 4 && decoder_of(&c)->head_width == 24);
    ck_assert(decoder_of(&c)->rope.base == 10000 && !decoder_of(&c)->qkv_bias && !decoder_of(&c)->mlp_bias);
    ck_assert_float_eq(c.norm_epsilon, 1e-5f);
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
    {XLM_ROBERTA ", 'architectures': ['XLMRobertaForSequenceClassification'], 'num_labels': 3}", 3, 0.1f},
    {DISTILBERT ", 'architectures': ['DistilBertForSequenceClassification'], 'num_labels': 3}", 3, 0.2f},
    {ELECTRA ", 'embedding_size': 96, 'architectures': ['ElectraForSequenceClassification'], 'num_labels': 3}", 3,
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
