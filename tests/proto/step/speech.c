#include "tests/proto/step/speech.h"

#include "proto/model/family.h"
#include "proto/model/gpt2.h"
#include "proto/plan/memory/units.h"
#include "tests/kit/test.h"

#include <stdlib.h>
#include <string.h>

/* More positions than two tiles, and tables of several units: 30,000 rows of width 300 come in five. */
const struct model_config speech_tall = {
    &family_gpt2,           2, 3, 12, 20, 150, 17, MODEL_GELU_NEW, true, 1e-5f, 0, GPT2_ON(scale_attention),
    GPT2_ON(scale_by_layer)};
const struct model_config speech_wide = {&family_gpt2, 1,          2,    300,   40, 9,
                                         30000,        MODEL_GELU, true, 1e-5f, 0,  GPT2_ON(scale_attention)};

/* A window of attention longer than a tile, and half as long as the row. */
static const char windowed[] =
    "{\"model_type\": \"mistral\", \"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, "
    "\"hidden_size\": 16, \"intermediate_size\": 20, \"max_position_embeddings\": 150, \"vocab_size\": 17, "
    "\"sliding_window\": 70}";

/* Blocks whose caches differ, of which two have none. */
static const char alternating[] =
    "{\"model_type\": \"alternating\", \"num_hidden_layers\": 5, \"num_attention_heads\": 4, "
    "\"num_key_value_heads\": 2, \"head_dim\": 4, \"hidden_size\": 16, \"intermediate_size\": 20, "
    "\"wide_intermediate_size\": 28, \"sliding_window\": 70, \"window_key_value_heads\": 1, \"window_head_dim\": 6, "
    "\"max_position_embeddings\": 150, \"vocab_size\": 17}";

/* Blocks of several layers, of which one has a cache, and values that pass by others. */
static const char chunked[] =
    "{\"model_type\": \"chunked\", \"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, "
    "\"head_dim\": 4, \"hidden_size\": 16, \"intermediate_size\": 28, \"max_position_embeddings\": 150, "
    "\"vocab_size\": 17}";
static const char experts[] =
    "{\"model_type\": \"experts\", \"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, "
    "\"head_dim\": 4, \"hidden_size\": 16, \"intermediate_size\": 6, \"max_position_embeddings\": 150, "
    "\"vocab_size\": 17}";

/* Rows that are longer than those that were trained, and so have other frequencies, also in a run of few tokens; and
 * queries that grow with their position. */
static const char stretched[] =
    "{\"model_type\": \"glm4\", \"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, "
    "\"head_dim\": 8, \"hidden_size\": 16, \"intermediate_size\": 20, \"max_position_embeddings\": 150, "
    "\"vocab_size\": 17, \"pad_token_id\": null, \"rope_parameters\": {\"rope_type\": \"longrope\", "
    "\"rope_theta\": 10000, \"original_max_position_embeddings\": 120, \"short_factor\": [1, 2], "
    "\"long_factor\": [3, 9]}}";
static const char growing[] =
    "{\"model_type\": \"ministral3\", \"num_hidden_layers\": 2, \"num_attention_heads\": 4, "
    "\"num_key_value_heads\": 2, \"head_dim\": 4, \"hidden_size\": 16, \"intermediate_size\": 20, "
    "\"max_position_embeddings\": 150, \"vocab_size\": 17, \"rope_parameters\": {\"rope_type\": \"yarn\", "
    "\"rope_theta\": 100, \"factor\": 4, \"original_max_position_embeddings\": 30, \"llama_4_scaling_beta\": 0.5}}";

/* Blocks that keep the last tokens alone, and so run a text again that does not go on where it stands; among them one
 * that attends. */
static const char convolving[] =
    "{\"model_type\": \"lfm2\", \"num_hidden_layers\": 3, \"num_attention_heads\": 4, "
    "\"num_key_value_heads\": 2, \"hidden_size\": 16, \"intermediate_size\": 20, \"block_multiple_of\": 2, "
    "\"max_position_embeddings\": 150, \"vocab_size\": 17, \"conv_L_cache\": 4, \"conv_bias\": true, "
    "\"layer_types\": [\"conv\", \"full_attention\", \"conv\"]}";

struct model_config speech_long_config(int which)
{
    static const char *const texts[] = {NULL, windowed, alternating, chunked, experts, stretched, growing, convolving};
    const char *text = texts[which];
    struct model_config config = speech_tall;
    struct error err;

    if (which != TALL)
        ck_assert_msg(model_config_parse(&config, text, strlen(text), &err) == 0, "%s", err.text);
    return config;
}

void speech_set_up_rows(struct speech *t, const struct model_config *config, uint32_t rows, uint32_t seq)
{
    *t = (struct speech){0};
    setting_open(&t->s, config, rows, seq);
    t->options = setting_options(&t->s, rows, 0);
    t->options.setting.goal.purpose = PLAN_GENERATE;
    t->options.choice.n_resident = plan_count_uploaded(&t->s.model);
    t->logits = calloc((size_t)rows * config->vocabulary, sizeof *t->logits);
    ck_assert_ptr_nonnull(t->logits);
}

void speech_set_up(struct speech *t, const struct model_config *config, uint32_t seq)
{
    speech_set_up_rows(t, config, 1, seq);
}

void speech_open_worker(struct speech *t)
{
    int rc = device_worker_init(&t->worker, &t->options, &t->ledger, &t->err);

    ck_assert_msg(rc == 0, "%s", t->err.text);
    array_link_init(&t->link, &t->s.model, t->s.weights);
    t->link.n_buffers = t->options.choice.n_weight_buffers;
    t->link.precision = t->options.setting.goal.precision;
}

void speech_close_worker(struct speech *t)
{
    array_link_free(&t->link);
    device_worker_free(&t->worker);
    for (int c = 0; c < LEDGER_CATEGORIES; c++)
        ck_assert_uint_eq(t->ledger.rows[c].current, 0);
}

void speech_tear_down(struct speech *t)
{
    setting_close(&t->s);
    free(t->logits);
}
