/* tests/proto/model/config_texts.h - beginnings of a config.json of each family. JSON is written with ' for "
 * (quoted). */
#ifndef TESTS_PROTO_MODEL_CONFIG_TEXTS_H
#define TESTS_PROTO_MODEL_CONFIG_TEXTS_H

#define GPT2     "{'model_type': 'gpt2', "
#define SMALLEST GPT2 "'n_layer': 2, 'n_head': 3, 'n_embd': 48, 'n_positions': 64, 'vocab_size': 96"

#define DECODER(type)                                                                                                  \
    "{'model_type': '" type "', 'hidden_size': 96, 'num_attention_heads': 4, 'num_hidden_layers': 3, "                 \
    "'intermediate_size': 150, 'vocab_size': 211"
#define BERT       DECODER("bert")
#define ROBERTA    DECODER("roberta")
#define CLASSIFIER BERT ", 'architectures': ['BertForSequenceClassification']"
#define LLAMA      DECODER("llama")
#define QWEN2      DECODER("qwen2")
#define QWEN3      DECODER("qwen3")
#define COHERE     DECODER("cohere")
#define COHERE2    DECODER("cohere2")
#define GLM        DECODER("glm") ", 'pad_token_id': null"
#define GLM4       DECODER("glm4") ", 'pad_token_id': null"
#define ERNIE      DECODER("ernie4_5")
#define MINISTRAL  DECODER("ministral3") ", 'num_key_value_heads': 2"
#define EXAONE4    DECODER("exaone4") ", 'num_key_value_heads': 2"
#define HUNYUAN    DECODER("hunyuan_v1_dense")
#define PHI3       DECODER("phi3") ", 'pad_token_id': null"
#define LFM2       DECODER("lfm2") ", 'num_key_value_heads': 2"
#define LFM3       DECODER("lfm3") ", 'pad_token_id': null"
#define HYBRID     DECODER("olmo_hybrid") ", 'pad_token_id': null"
#define QWEN3_5    DECODER("qwen3_5_text")
#define GEMMA3                                                                                                         \
    "{'model_type': 'gemma3_text', 'hidden_size': 96, 'num_attention_heads': 8, 'num_hidden_layers': 6, "              \
    "'intermediate_size': 150, 'vocab_size': 211"
#define MISTRAL     DECODER("mistral") ", 'num_key_value_heads': 1"
#define XLM_ROBERTA DECODER("xlm-roberta")
#define ELECTRA     DECODER("electra")
#define EUROBERT    DECODER("eurobert")
#define MODERNBERT  DECODER("modernbert")
#define GRANITE_SWA DECODER("granite_swa")
#define GEMMA2      DECODER("gemma2")
#define DISTILBERT                                                                                                     \
    "{'model_type': 'distilbert', 'dim': 96, 'n_heads': 4, 'n_layers': 3, 'hidden_dim': 150, 'vocab_size': 211"
#define GEMMA DECODER("gemma") ", 'num_key_value_heads': 1"

#endif
