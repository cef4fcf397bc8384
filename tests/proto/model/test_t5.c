/* T5: the numbers of its configurations, the buckets of its distances, and how rows are divided into source and target,
 * as in transformers 5.23. */
#include "tests/kit/command.h"
#include "tests/kit/test.h"

#include "proto/model/family.h"
#include "proto/model/t5.h"

#include <errno.h>
#include <string.h>

#define T5                                                                                                             \
    "{'model_type': 't5', 'd_model': 96, 'd_kv': 20, 'd_ff': 150, 'num_layers': 3, 'num_heads': 4, 'vocab_size': 211"

static int parse(struct model_config *out, const char *text, struct error *err)
{
    const char *json = quoted(text);

    return model_config_parse(out, json, strlen(json), err);
}

/* As published: t5-small; flan-t5-small, which is of version 1.1; and what transformers 5 writes of a model of 1.1. */
static const struct {
    const char *text;
    uint32_t n_decoder, start;
    bool tied, scales;
    float dropout;
} configs[] = {
    {T5 "}", 3, 0, true, true, 0.1f},
    {T5 ", 'decoder_start_token_id': 5, 'dropout_rate': 0, 'feed_forward_proj': 'relu', 'n_positions': 512, "
        "'is_encoder_decoder': true, 'num_decoder_layers': null, 'pad_token_id': 0, 'initializer_factor': 1.0, "
        "'relative_attention_num_buckets': 32, 'output_past': true}",
     3, 5, true, true, 0},
    {T5 ", 'num_decoder_layers': 2, 'feed_forward_proj': 'gated-gelu', 'tie_word_embeddings': false, "
        "'relative_attention_max_distance': 128, 'dense_act_fn': 'gelu_new', 'is_gated_act': true}",
     2, 0, false, false, 0.1f},
    {T5 ", 'scale_decoder_outputs': false, 'tie_word_embeddings': true, 'classifier_dropout': 0.0}", 3, 0, true, false,
     0.1f},
};

TEST_EACH(numbers_are_those_of_transformers, COUNT(configs))
{
    struct model_config c;
    struct error err = {""};

    ck_assert_msg(parse(&c, configs[_i].text, &err) == 0, "%s", err.text);
    ck_assert(c.width == 96 && c.inner_width == 150 && c.n_heads == 4 && t5_of(&c)->head_width == 20);
    ck_assert(t5_of(&c)->n_encoder == 3 && t5_of(&c)->n_decoder == configs[_i].n_decoder);
    ck_assert_uint_eq(c.n_layers, 3 + configs[_i].n_decoder);
    ck_assert_uint_eq(c.start, configs[_i].start);
    ck_assert(c.tied == configs[_i].tied && t5_of(&c)->scales == configs[_i].scales && !c.has_padding);
    ck_assert_float_eq(t5_of(&c)->dropout, configs[_i].dropout);
    ck_assert_float_eq(c.norm_epsilon, 1e-6f);
}

static const char *const refused[][2] = {
    {T5 ", 'is_encoder_decoder': false}", "is_encoder_decoder is false"},
    {T5 ", 'relative_attention_num_buckets': 30}", "relative_attention_num_buckets is 30: it must be a multiple of 4"},
    {T5 ", 'relative_attention_num_buckets': 128}", "relative_attention_num_buckets is 128: it must be from 1 to 64"},
    {T5 ", 'relative_attention_max_distance': 16}", "relative_attention_max_distance is 16: it must be more than half"},
    {T5 ", 'decoder_start_token_id': 211}", "decoder_start_token_id is 211: it must be less than vocab_size"},
    {T5 ", 'feed_forward_proj': 'gated-tanh'}", "feed_forward_proj is \"gated-tanh\": it must be relu, gated-gelu"},
    {T5 ", 'tie_encoder_decoder': true}", "tie_encoder_decoder is true: this is not supported"},
};

TEST_EACH(what_t5_cannot_be_is_refused, COUNT(refused))
{
    struct model_config c;
    struct error err = {""};

    ck_assert_int_eq(parse(&c, refused[_i][0], &err), -EINVAL);
    ck_assert_msg(strstr(err.text, refused[_i][1]), "%s", err.text);
}

/* Where T5Attention._relative_position_bucket changes from one bucket to the next, in distances from 0 up. */
static const struct {
    const char *text;
    bool both;
    uint32_t n, starts[DEVICE_BUCKETS];
} buckets[] = {
    {T5 "}", true, 16, {0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23, 32, 46, 64, 91}},
    {T5 "}", false, 32, {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15,
                         16, 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113}},
    {T5 ", 'relative_attention_num_buckets': 48}", true, 24, {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11,
                                                              12, 15, 18, 22, 27, 33, 40, 48, 59, 71, 87, 106}},
    {T5 ", 'relative_attention_num_buckets': 16, 'relative_attention_max_distance': 65536}",
     false,
     16,
     {0, 1, 2, 3, 4, 5, 6, 7, 8, 25, 77, 235, 725, 2234, 6889, 21248}},
    {T5 ", 'relative_attention_num_buckets': 32, 'relative_attention_max_distance': 17}",
     false,
     32,
     {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15,
      16, 17, 17, 17, 17, 17, 17, 17, 17, 17, 17, 17, 17, 17, 17, 17}},
    {T5 ", 'relative_attention_num_buckets': 4, 'relative_attention_max_distance': 3}", true, 2, {0, 1}},
};

TEST_EACH(buckets_are_those_of_transformers, COUNT(buckets))
{
    struct model_config c;
    struct model m;
    struct error err = {""};
    const struct device_buckets *found = NULL;

    ck_assert_int_eq(parse(&c, buckets[_i].text, &err), 0);
    ck_assert_int_eq(model_init(&m, &c, &err), 0);
    for (uint32_t p = 0; p < m.n_programs; p++) {
        const struct program_operation *op = program_find(&m.programs[p].program, &operation_attention);
        if (op && op->attention.full == buckets[_i].both)
            found = &op->attention.buckets;
    }
    ck_assert_ptr_nonnull(found);
    ck_assert_uint_eq(device_buckets_of_direction(found), buckets[_i].n);
    ck_assert_mem_eq(found->starts, buckets[_i].starts, buckets[_i].n * sizeof *found->starts);
    model_free(&m);
}

/* Of rows of 24 tokens with a source of 10, tokens of source and target in shorter ones. */
static const uint32_t divided[][3] = {{24, 10, 14}, {12, 5, 7}, {23, 9, 14}, {3, 1, 2}, {2, 0, 2}};

TEST_EACH(a_row_is_divided_in_proportion, COUNT(divided))
{
    struct model_config c;
    struct model m;
    struct error err = {""};

    ck_assert_int_eq(parse(&c, T5 "}", &err), 0);
    ck_assert_int_eq(model_divide_rows(&c, 10, 24, &err), 0);
    ck_assert_int_eq(model_init(&m, &c, &err), 0);
    ck_assert_uint_eq(model_first_predicted(&m, divided[_i][0]), divided[_i][1]);
    ck_assert_uint_eq(model_predicted(&m, divided[_i][0]), divided[_i][2]);
    ck_assert_uint_eq(m.least_tokens, 3);
    model_free(&m);
}

TEST(a_row_has_both_a_source_and_a_target)
{
    struct model_config c;
    struct error err = {""};

    ck_assert_int_eq(parse(&c, T5 "}", &err), 0);
    ck_assert_int_eq(model_divide_rows(&c, 24, 24, &err), -EINVAL);
    ck_assert_int_eq(model_divide_rows(&c, 0, 24, &err), 0);
    ck_assert(c.source == 1 && c.row == 2); /* as they were */
    ck_assert_int_eq(parse(&c,
                           "{'model_type': 'gpt2', 'n_layer': 2, 'n_head': 3, 'n_embd': 48, 'n_positions': 64, "
                           "'vocab_size': 96}",
                           &err),
                     0);
    ck_assert_int_eq(model_divide_rows(&c, 0, 24, &err), 0);
    ck_assert_int_eq(model_divide_rows(&c, 4, 24, &err), -EINVAL);
    ck_assert_str_eq(err.text, "a gpt2 model has no encoder that reads a source");
}

/* Blocks of both stacks count from 0; the norm between the stacks belongs to the encoder's last block. */
TEST(tensors_have_the_names_of_transformers)
{
    static const char *const names[] = {
        "shared.weight",
        "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
        "encoder.block.2.layer.1.DenseReluDense.wi.weight",
        "encoder.final_layer_norm.weight",
        "decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
        "decoder.block.2.layer.1.EncDecAttention.k.weight",
        "decoder.block.2.layer.2.layer_norm.weight",
        "decoder.final_layer_norm.weight",
    };
    char name[MODEL_NAME_BYTES];
    struct model_config c;
    struct model m;
    struct error err = {""};

    ck_assert_int_eq(parse(&c, T5 "}", &err), 0);
    ck_assert_int_eq(model_init(&m, &c, &err), 0);
    for (size_t i = 0; i < COUNT(names); i++)
        ck_assert_msg(model_find(&m, names[i]), "%s", names[i]);
    ck_assert_uint_eq(m.n_tensors, 1 + 2 + 3 * 8 + 1 + 3 * 13 + 1);
    ck_assert_str_eq(model_unit_name(name, &m, m.n_units - 2), "decoder.block.2");
    ck_assert(model_is_mask(&m, "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"));
    ck_assert(!model_is_mask(&m, "encoder.embed_tokens.weight") && model_is_tied_copy(&m, "lm_head.weight"));
    model_free(&m);
}
