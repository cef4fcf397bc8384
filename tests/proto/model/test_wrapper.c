/* Text models within others, by config.json and names of tensors as they are published. Weights: test_exact_logits and
 * test_export_sources. */
#include "tests/kit/command.h"
#include "tests/kit/test.h"

#include "proto/model/model.h"
#include "proto/model/wrapper.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Sizes that a text_config leaves out are those that its class assumes in transformers 5.23. */
static const struct {
    const char *text, *note, *title, *type;
    uint32_t n_heads, inner_width, vocabulary, n_positions;
    bool tied;
} wrappers[] = {
    /* google/gemma-3-4b-it */
    {"{'architectures': ['Gemma3ForConditionalGeneration'], 'model_type': 'gemma3', 'eos_token_id': [1, 106], "
     "'image_token_index': 262144, 'initializer_range': 0.02, 'mm_tokens_per_image': 256, 'torch_dtype': 'bfloat16', "
     "'text_config': {'hidden_size': 2560, 'intermediate_size': 10240, 'model_type': 'gemma3_text', "
     "'num_hidden_layers': 34, 'rope_scaling': {'factor': 8.0, 'rope_type': 'linear'}, 'sliding_window': 1024}, "
     "'vision_config': {'hidden_size': 1152, 'model_type': 'siglip_vision_model'}}",
     "text model of Gemma3ForConditionalGeneration (without vision)", "gemma3_text 34x2560", "bfloat16", 8, 10240,
     262208, 131072, true},
    /* llava-hf/llava-1.5-7b-hf */
    {"{'architectures': ['LlavaForConditionalGeneration'], 'model_type': 'llava', 'text_config': {'architectures': "
     "['LlamaForCausalLM'], '_name_or_path': 'lmsys/vicuna-7b-v1.5', 'max_position_embeddings': 4096, 'model_type': "
     "'llama', 'rms_norm_eps': 1e-05, 'torch_dtype': 'float16', 'vocab_size': 32064}, 'vision_config': {}}",
     "text model of LlavaForConditionalGeneration (without vision)", "llama 32x4096", "float16", 32, 11008, 32064, 4096,
     false},
    {"{'model_type': 'voice', 'tie_word_embeddings': true, 'dtype': 'float32', 'text_config': {'model_type': "
     "'mistral', "
     "'num_hidden_layers': 2, 'tie_word_embeddings': false, 'dtype': 'float16'}, 'audio_config': {'a': 1}, "
     "'vision_config': {'b': 1}}",
     "text model of voice (without audio and vision)", "mistral 2x4096", "float32", 32, 14336, 32000, 131072, true},
    /* Qwen/Qwen3-VL-4B-Instruct */
    {"{'architectures': ['Qwen3VLForConditionalGeneration'], 'image_token_id': 151655, 'model_type': 'qwen3_vl', "
     "'text_config': {'attention_bias': false, 'bos_token_id': 151643, 'dtype': 'bfloat16', 'head_dim': 128, "
     "'hidden_size': 2560, 'intermediate_size': 9728, 'max_position_embeddings': 262144, 'model_type': "
     "'qwen3_vl_text', 'num_hidden_layers': 36, 'num_key_value_heads': 8, 'rope_scaling': {'mrope_interleaved': true, "
     "'mrope_section': [24, 20, 20], 'rope_type': 'default'}, 'rope_theta': 5000000, 'tie_word_embeddings': true}, "
     "'tie_word_embeddings': true, 'vision_config': {'depth': 24}}",
     "text model of Qwen3VLForConditionalGeneration (without vision)", "qwen3 36x2560", "bfloat16", 32, 9728, 151936,
     262144, true},
    /* Qwen/Qwen2.5-VL-3B-Instruct, before text_config */
    {"{'architectures': ['Qwen2_5_VLForConditionalGeneration'], 'eos_token_id': 151645, 'vision_start_token_id': "
     "151652, 'image_token_id': 151655, 'hidden_size': 2048, 'intermediate_size': 11008, 'max_position_embeddings': "
     "128000, 'max_window_layers': 70, 'model_type': 'qwen2_5_vl', 'num_attention_heads': 16, 'num_hidden_layers': 36, "
     "'num_key_value_heads': 2, 'rms_norm_eps': 1e-06, 'rope_theta': 1000000.0, 'sliding_window': 32768, "
     "'tie_word_embeddings': true, 'torch_dtype': 'bfloat16', 'use_sliding_window': false, 'vision_config': {'depth': "
     "32}, 'rope_scaling': {'type': 'mrope', 'mrope_section': [16, 24, 24]}, 'vocab_size': 151936}",
     "text model of Qwen2_5_VLForConditionalGeneration (without vision)", "qwen2 36x2048", "bfloat16", 16, 11008,
     151936, 128000, true},
    {"{'model_type': 'qwen2_vl', 'text_config': {'model_type': 'qwen2_vl_text', 'num_hidden_layers': 2}}",
     "text model of qwen2_vl", "qwen2 2x8192", NULL, 64, 29568, 152064, 32768, false},
    {"{'model_type': 'other', 'text_config': {'model_type': 'gemma'}}", "text model of other", "gemma 28x3072", NULL,
     16, 24576, 256000, 8192, true},
    {"{'model_type': 'other', 'text_config': {'model_type': 'qwen2', 'vocab_size': 7}}", "text model of other",
     "qwen2 32x4096", NULL, 32, 22016, 7, 32768, false},
    {"{'model_type': 'other', 'text_config': {'model_type': 'qwen3'}}", "text model of other", "qwen3 32x4096", NULL,
     32, 22016, 151936, 32768, false},
};

TEST_EACH(a_text_model_within_another_is_read_as_a_model_of_its_own, COUNT(wrappers))
{
    char note[WRAPPER_NOTE_BYTES], title[MODEL_TITLE_BYTES];
    struct model_config c;
    struct error err;
    const char *text = quoted(wrappers[_i].text);
    char *inner = wrapper_text_config(note, text, strlen(text));

    ck_assert_ptr_nonnull(inner);
    ck_assert_str_eq(note, wrappers[_i].note);
    ck_assert_msg(wrappers[_i].type ? strstr(inner, print("dtype\": \"%s\"", wrappers[_i].type)) != NULL
                                    : !strstr(inner, "dtype"),
                  "%s", inner);
    ck_assert_msg(model_config_parse(&c, inner, strlen(inner), &err) == 0, "%s", err.text);
    ck_assert_str_eq(model_title(title, &c), wrappers[_i].title);
    const uint32_t sizes[][2] = {{c.n_heads, wrappers[_i].n_heads},
                                 {c.inner_width, wrappers[_i].inner_width},
                                 {c.vocabulary, wrappers[_i].vocabulary},
                                 {c.n_positions, wrappers[_i].n_positions}};
    for (int i = 0; i < COUNT(sizes); i++)
        ck_assert_uint_eq(sizes[i][0], sizes[i][1]);
    ck_assert(c.tied == wrappers[_i].tied);
    free(inner);
}

TEST(quantised_weights_of_a_text_model_are_refused_there_too)
{
    const char *text =
        quoted("{'model_type': 'gemma3', 'quantization_config': {'bits': 4}, 'text_config': {'model_type': "
               "'gemma3_text'}}");
    char note[WRAPPER_NOTE_BYTES], *inner = wrapper_text_config(note, text, strlen(text));
    struct model_config c;
    struct error err;

    ck_assert_str_eq(note, "text model of gemma3"); /* which has it */
    ck_assert_int_eq(model_config_parse(&c, inner, strlen(inner), &err), -EINVAL);
    ck_assert_holds(err.text, "quantization_config is ", "begin from those that they were made from");
    free(inner);
}

TEST(what_holds_no_decoder_that_is_known_stays_as_it_is)
{
    static const char *const others[] = {
        "{'model_type': 'qwen2', 'hidden_size': 8}",
        "{'model_type': 'qwen2', 'text_config': {'model_type': 'qwen2'}}",
        "{'model_type': 'clip', 'text_config': {'model_type': 'clip_text_model'}}",
        "{'model_type': 'seer', 'text_config': {'model_type': 'bert'}}",
        "{'model_type': 'seer', 'text_config': {'model_type': 't5'}}",
        "{'model_type': 'seer', 'text_config': {'model_type': 'dynamic_conv'}}",
        "{'model_type': 'seer', 'text_config': {'model_type': 'torchvision_resnet'}}",
        "{'model_type': 'seer', 'text_config': 3}",
        "{'text_config': {'model_type': 'qwen2'}}",
        "[{'text_config': {'model_type': 'qwen2'}}]",
        "{",
    };
    char note[WRAPPER_NOTE_BYTES];

    for (int i = 0; i < COUNT(others); i++) {
        const char *text = quoted(others[i]);
        ck_assert_msg(!wrapper_text_config(note, text, strlen(text)), "%s", others[i]);
    }
}

TEST(a_text_model_s_tensors_are_known_by_their_prefix)
{
    static const char *const names[][2] = {
        {"language_model.model.layers.0.mlp.up_proj.weight", "language_model."},
        {"model.language_model.embed_tokens.weight", "model.language_model."},
        {"model.text_model.norm.weight", "model.text_model."},
        {"model.layers.0.mlp.up_proj.weight", NULL},
        {"vision_tower.vision_model.language_model.weight", NULL},
        {"lm_head.weight", NULL},
    };

    for (int i = 0; i < COUNT(names); i++) {
        const char *prefix = wrapper_prefix(names[i][0]);
        ck_assert_msg(names[i][1] ? prefix && strcmp(prefix, names[i][1]) == 0 : !prefix, "%s", names[i][0]);
    }
}
