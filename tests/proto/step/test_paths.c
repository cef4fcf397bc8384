/* Which paths a model's attention takes, by what a device told of such calls
 * (tests/proto/operation/test_attention_path.c): here of whole models, in both passes and all blocks. */
#include "tests/kit/command.h"
#include "tests/kit/test.h"

#include "proto/operation/attention_path.h"
#include "proto/step/paths.h"

#include <string.h>

#define SIZES(width, heads)                                                                                            \
    "'hidden_size': " #width ", 'num_attention_heads': " #heads ", 'num_hidden_layers': 2, 'intermediate_size': 64, "  \
    "'vocab_size': 60, 'pad_token_id': null, 'max_position_embeddings': 512"
#define T5                                                                                                             \
    "{'model_type': 't5', 'd_model': 128, 'd_kv': 64, 'd_ff': 256, 'num_layers': 2, 'num_heads': 2, 'vocab_size': "    \
    "64, "                                                                                                             \
    "'dropout_rate': "

enum {
    PLAIN = 1 << ATTENTION_PLAIN,
    TENSOR = 1 << ATTENTION_TENSOR,
    DRAWING = 1 << ATTENTION_DRAWING,
};

static const struct {
    const char *text;
    uint32_t n_tokens;
    unsigned paths;
} models[] = {
    {"{'model_type': 'llama', " SIZES(128, 2) "}", 256, TENSOR},
    {"{'model_type': 'llama', " SIZES(128, 2) ", 'attention_dropout': 0.1}", 256, DRAWING},
    {"{'model_type': 'llama', " SIZES(48, 2) "}", 256, PLAIN}, /* heads of 24 */
    {"{'model_type': 'gemma2', 'head_dim': 64, " SIZES(128, 2) ", 'num_key_value_heads': 2, 'attn_logit_softcapping': "
                                                               "null}",
     256, TENSOR},
    {"{'model_type': 'gemma2', 'head_dim': 64, " SIZES(128, 2) ", 'num_key_value_heads': 2}", 256, PLAIN},
    /* Keys that heads share in full rows: their gradient alone is plain. */
    {"{'model_type': 'eurobert', " SIZES(256, 4) ", 'num_key_value_heads': 2}", 256, TENSOR | PLAIN},
    {"{'model_type': 'eurobert', " SIZES(256, 4) ", 'num_key_value_heads': 4}", 256, TENSOR},
    /* Block 1 sees 64 tokens to each side, which is all of a short row. */
    {"{'model_type': 'modernbert', " SIZES(128, 2) "}", 256, TENSOR | PLAIN},
    {"{'model_type': 'modernbert', " SIZES(128, 2) "}", 64, TENSOR},
    /* An encoder, a decoder, and its attention to the encoder, with and without dropout. */
    {T5 "0.0}", 256, TENSOR},
    {T5 "0.1}", 256, DRAWING},
    {"{'model_type': 'wide_resnet', 'depth': 10, 'widen_factor': 1, 'image_size': 8, 'num_labels': 5}", 64, 0},
};

static unsigned paths_of(const char *text, enum number_type type, uint32_t n_tokens)
{
    const char *json = quoted(text);
    struct model_config config;
    struct model model;
    struct error err;

    ck_assert_msg(model_config_parse(&config, json, strlen(json), &err) == 0, "%s", err.text);
    ck_assert_msg(model_init(&model, &config, &err) == 0, "%s", err.text);
    const unsigned paths = step_attention_paths(&model, type, n_tokens);
    model_free(&model);
    return paths;
}

TEST_EACH(a_model_s_attention_takes_the_paths_of_its_calls, COUNT(models))
{
    ck_assert_uint_eq(paths_of(models[_i].text, NUMBER_BF16, models[_i].n_tokens), models[_i].paths);
    ck_assert_uint_eq(paths_of(models[_i].text, NUMBER_FP32, models[_i].n_tokens), models[_i].paths ? PLAIN : 0);
}
