/* A row is what config.json of huggingface.co/NAME says, as far as it shapes the model; keys that change neither memory
 * nor time (ids of tokens, the type of the files) are left out. `date` is when those numbers were published: a model
 * under a new name is a new row. `n_parameters` is the published count, as transformers counts it: a tied table once,
 * of BERT and RoBERTa with the head that restores masked tokens. It is no input of a plan: a test compares it with what
 * is counted from the config, so that a wrong number here is found.
 *
 * Rows ascend by n_parameters. The models are those that people tune, of the families that are trained here. */
#include "client/model/published.h"

#include <string.h>
#include <unistd.h>

/* Llama and those after it. tied: TIED or UNTIED, as `true` is a macro itself; more: further members, each behind a
 * comma, or "". */
#define DECODER(class, type, width, inner, layers, heads, kv_heads, head, vocabulary, positions, epsilon, base, tied,  \
                more)                                                                                                  \
    "{\"architectures\": [\"" class "\"], \"model_type\": \"" type "\", \"hidden_size\": " #width                      \
                                    ", \"intermediate_size\": " #inner ", \"num_hidden_layers\": " #layers             \
                                    ", \"num_attention_heads\": " #heads ", \"num_key_value_heads\": " #kv_heads       \
                                    ", \"head_dim\": " #head ", \"vocab_size\": " #vocabulary                          \
                                    ", \"max_position_embeddings\": " #positions ", \"rms_norm_eps\": " #epsilon       \
                                    ", \"rope_theta\": " #base ", \"tie_word_embeddings\": " tied more "}\n"
#define TIED   "true"
#define UNTIED "false"
#define SILU   ", \"hidden_act\": \"silu\""

#define LLAMA(width, inner, layers, heads, kv_heads, head, vocabulary, positions, base, tied, more)                    \
    DECODER("LlamaForCausalLM", "llama", width, inner, layers, heads, kv_heads, head, vocabulary, positions, 1e-05,    \
            base, tied, SILU more)
#define LLAMA_3(factor)                                                                                                \
    ", \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": " #factor                                             \
    ", \"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0, \"original_max_position_embeddings\": 8192}"
#define MISTRAL(width, inner, layers, vocabulary, positions, base)                                                     \
    DECODER("MistralForCausalLM", "mistral", width, inner, layers, 32, 8, 128, vocabulary, positions, 1e-05, base,     \
            UNTIED, SILU ", \"sliding_window\": null")
#define QWEN2(width, inner, layers, heads, kv_heads, head, vocabulary, tied)                                           \
    DECODER("Qwen2ForCausalLM", "qwen2", width, inner, layers, heads, kv_heads, head, vocabulary, 32768, 1e-06,        \
            1000000.0, tied, SILU ", \"use_sliding_window\": false")
#define QWEN3(width, inner, layers, heads, tied)                                                                       \
    DECODER("Qwen3ForCausalLM", "qwen3", width, inner, layers, heads, 8, 128, 151936, 40960, 1e-06, 1000000, tied,     \
            SILU ", \"attention_bias\": false, \"use_sliding_window\": false")
#define GEMMA(width, inner, layers, heads, kv_heads)                                                                   \
    DECODER("GemmaForCausalLM", "gemma", width, inner, layers, heads, kv_heads, 256, 256000, 8192, 1e-06, 10000.0,     \
            TIED, ", \"hidden_act\": \"gelu_pytorch_tanh\", \"pad_token_id\": 0")
#define GEMMA_3(width, inner, layers)                                                                                  \
    DECODER("Gemma3ForCausalLM", "gemma3_text", width, inner, layers, 4, 1, 256, 262144, 32768, 1e-06, 1000000, TIED,  \
            ", \"hidden_activation\": \"gelu_pytorch_tanh\", \"pad_token_id\": 0, \"query_pre_attn_scalar\": 256, "    \
            "\"rope_local_base_freq\": 10000, \"sliding_window\": 512, \"sliding_window_pattern\": 6")

#define ENCODER(class, type, width, inner, layers, heads, vocabulary, positions, segments, epsilon, padding)           \
    "{\"architectures\": [\"" class "\"], \"model_type\": \"" type "\", \"hidden_size\": " #width                      \
                                    ", \"intermediate_size\": " #inner ", \"num_hidden_layers\": " #layers             \
                                    ", \"num_attention_heads\": " #heads ", \"vocab_size\": " #vocabulary              \
                                    ", \"max_position_embeddings\": " #positions ", \"type_vocab_size\": " #segments   \
                                    ", \"layer_norm_eps\": " #epsilon ", \"pad_token_id\": " #padding                  \
                                    ", \"hidden_act\": \"gelu\", \"hidden_dropout_prob\": 0.1, "                       \
                                    "\"attention_probs_dropout_prob\": 0.1}\n"
#define BERT(width, inner, layers, heads)                                                                              \
    ENCODER("BertForMaskedLM", "bert", width, inner, layers, heads, 30522, 512, 2, 1e-12, 0)
#define ROBERTA(width, inner, layers, heads)                                                                           \
    ENCODER("RobertaForMaskedLM", "roberta", width, inner, layers, heads, 50265, 514, 1, 1e-05, 1)

#define GPT2_CONFIG(width, layers, heads)                                                                              \
    "{\"architectures\": [\"GPT2LMHeadModel\"], \"model_type\": \"gpt2\", \"n_embd\": " #width                         \
    ", \"n_layer\": " #layers ", \"n_head\": " #heads ", \"n_positions\": 1024, \"vocab_size\": 50257, "               \
    "\"activation_function\": \"gelu_new\", \"layer_norm_epsilon\": 1e-05, \"attn_pdrop\": 0.1, "                      \
    "\"embd_pdrop\": 0.1, \"resid_pdrop\": 0.1}\n"

#define FLAN_T5(width, inner, layers, heads)                                                                           \
    "{\"architectures\": [\"T5ForConditionalGeneration\"], \"model_type\": \"t5\", \"d_model\": " #width               \
    ", \"d_kv\": 64, \"d_ff\": " #inner ", \"num_layers\": " #layers ", \"num_decoder_layers\": " #layers              \
    ", \"num_heads\": " #heads ", \"vocab_size\": 32128, \"feed_forward_proj\": \"gated-gelu\", "                      \
    "\"dropout_rate\": 0.1, \"layer_norm_epsilon\": 1e-06, \"relative_attention_num_buckets\": 32, "                   \
    "\"relative_attention_max_distance\": 128, \"tie_word_embeddings\": false, \"is_encoder_decoder\": true, "         \
    "\"decoder_start_token_id\": 0, \"pad_token_id\": 0}\n"

static const struct eps_published models[] = {
    {"google-bert/bert-base-uncased", "2018-10", 109514298, EPS_CLASSIFY, BERT(768, 3072, 12, 12)},
    {"openai-community/gpt2", "2019-02", 124439808, 0, GPT2_CONFIG(768, 12, 12)},
    {"FacebookAI/roberta-base", "2019-07", 124697433, EPS_CLASSIFY, ROBERTA(768, 3072, 12, 12)},
    {"HuggingFaceTB/SmolLM2-135M-Instruct", "2024-11", 134515008, 0,
     LLAMA(576, 1536, 30, 9, 3, 64, 49152, 8192, 100000, TIED, "")},
    {"google/flan-t5-base", "2022-10", 247577856, 0, FLAN_T5(768, 2048, 12, 12)},
    {"google/gemma-3-270m-it", "2025-08", 268098176, 0, GEMMA_3(640, 2048, 18)},
    {"google-bert/bert-large-uncased", "2018-10", 335174458, EPS_CLASSIFY, BERT(1024, 4096, 24, 16)},
    {"HuggingFaceTB/SmolLM2-360M-Instruct", "2024-11", 361821120, 0,
     LLAMA(960, 2560, 32, 15, 5, 64, 49152, 8192, 100000, TIED, "")},
    {"Qwen/Qwen2.5-0.5B-Instruct", "2024-09", 494032768, 0, QWEN2(896, 4864, 24, 14, 2, 64, 151936, TIED)},
    {"Qwen/Qwen3-0.6B", "2025-04", 596049920, 0, QWEN3(1024, 3072, 28, 16, TIED)},
    {"google/flan-t5-large", "2022-10", 783150080, 0, FLAN_T5(1024, 2816, 24, 16)},
    {"google/gemma-3-1b-it", "2025-03", 999885952, 0, GEMMA_3(1152, 6912, 26)},
    {"TinyLlama/TinyLlama-1.1B-Chat-v1.0", "2023-12", 1100048384, 0,
     LLAMA(2048, 5632, 22, 32, 4, 64, 32000, 2048, 10000.0, UNTIED, "")},
    {"meta-llama/Llama-3.2-1B-Instruct", "2024-09", 1235814400, 0,
     LLAMA(2048, 8192, 16, 32, 8, 64, 128256, 131072, 500000.0, TIED, LLAMA_3(32.0))},
    {"openai-community/gpt2-xl", "2019-11", 1557611200, 0, GPT2_CONFIG(1600, 48, 25)},
    {"HuggingFaceTB/SmolLM2-1.7B-Instruct", "2024-11", 1711376384, 0,
     LLAMA(2048, 8192, 24, 32, 32, 64, 49152, 8192, 130000, TIED, "")},
    {"Qwen/Qwen3-1.7B", "2025-04", 1720574976, 0, QWEN3(2048, 6144, 28, 16, TIED)},
    {"google/gemma-2b-it", "2024-02", 2506172416, 0, GEMMA(2048, 16384, 18, 8, 1)},
    {"google/flan-t5-xl", "2022-10", 2849757184, 0, FLAN_T5(2048, 5120, 24, 32)},
    {"meta-llama/Llama-3.2-3B-Instruct", "2024-09", 3212749824, 0,
     LLAMA(3072, 8192, 28, 24, 8, 128, 128256, 131072, 500000.0, TIED, LLAMA_3(32.0))},
    {"Qwen/Qwen3-4B", "2025-04", 4022468096, 0, QWEN3(2560, 9728, 36, 32, TIED)},
    {"mistralai/Mistral-7B-Instruct-v0.3", "2024-05", 7248023552, 0, MISTRAL(4096, 14336, 32, 32768, 32768, 1000000.0)},
    {"Qwen/Qwen2.5-7B-Instruct", "2024-09", 7615616512, 0, QWEN2(3584, 18944, 28, 28, 4, 128, 152064, UNTIED)},
    {"meta-llama/Llama-3.1-8B-Instruct", "2024-07", 8030261248, 0,
     LLAMA(4096, 14336, 32, 32, 8, 128, 128256, 131072, 500000.0, UNTIED, LLAMA_3(8.0))},
    {"Qwen/Qwen3-8B", "2025-04", 8190735360, 0, QWEN3(4096, 12288, 36, 32, UNTIED)},
    {"google/gemma-7b-it", "2024-02", 8537680896, 0, GEMMA(3072, 24576, 28, 16, 16)},
    {"mistralai/Mistral-Nemo-Instruct-2407", "2024-07", 12247782400, 0,
     MISTRAL(5120, 14336, 40, 131072, 131072, 1000000.0)},
    {"Qwen/Qwen3-14B", "2025-04", 14768307200, 0, QWEN3(5120, 17408, 40, 40, UNTIED)},
    {"mistralai/Mistral-Small-24B-Instruct-2501", "2025-01", 23572403200, 0,
     MISTRAL(5120, 32768, 40, 131072, 32768, 100000000.0)},
    {"Qwen/Qwen3-32B", "2025-04", 32762123264, 0, QWEN3(5120, 25600, 64, 64, UNTIED)},
    {"meta-llama/Llama-3.3-70B-Instruct", "2024-12", 70553706496, 0,
     LLAMA(8192, 28672, 80, 64, 8, 128, 128256, 131072, 500000.0, UNTIED, LLAMA_3(8.0))},
    {"Qwen/Qwen2.5-72B-Instruct", "2024-09", 72706203648, 0, QWEN2(8192, 29568, 80, 64, 8, 128, 152064, UNTIED)},
};

const struct eps_published *eps_published(size_t index)
{
    return index < sizeof models / sizeof *models ? &models[index] : NULL;
}

const struct eps_published *client_published_find(const char *name)
{
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        if (strcmp(models[i].name, name) == 0)
            return access(name, F_OK) == 0 ? NULL : &models[i];
    return NULL;
}
