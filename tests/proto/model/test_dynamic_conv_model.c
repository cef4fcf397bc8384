/* Encoder-decoders with dynamic convolutions: the numbers of their configurations, their kinds of blocks, what is
 * refused, and the published model's size. */
#include "tests/kit/command.h"
#include "tests/kit/test.h"

#include "proto/model/dynamic_conv.h"
#include "proto/model/family.h"

#include <errno.h>
#include <string.h>

#define NUMBERS                                                                                                        \
    "{'model_type': 'dynamic_conv', 'd_model': 96, 'num_heads': 4, 'ffn_dim': 150, 'encoder_layers': 3, "              \
    "'decoder_layers': 2, 'vocab_size': 211"
#define KERNELS ", 'encoder_kernel_sizes': [3, 7, 3], 'decoder_kernel_sizes': [4, 31]"
#define SMALL   NUMBERS KERNELS

static int parse(struct model_config *out, const char *text, struct error *err)
{
    const char *json = quoted(text);

    return model_config_parse(out, json, strlen(json), err);
}

static void describe(struct model *m, const char *text)
{
    struct model_config c;
    struct error err = {""};

    ck_assert_msg(parse(&c, text, &err) == 0, "%s", err.text);
    ck_assert_msg(model_init(m, &c, &err) == 0, "%s", err.text);
}

TEST(numbers_are_those_of_the_file)
{
    struct model_config c;
    struct error err = {""};

    ck_assert_msg(parse(&c,
                        SMALL ", 'glu': true, 'dropout': 0.3, 'attention_dropout': 0.2, 'activation_dropout': 0.05, "
                              "'weight_dropout': 0, 'layer_norm_eps': 1e-6, 'tie_word_embeddings': false, "
                              "'source_vocab_size': 300, 'decoder_start_token_id': 7, 'pad_token_id': 1}",
                        &err) == 0,
                  "%s", err.text);
    const struct dynamic_conv_config *d = dynamic_conv_of(&c);
    ck_assert(c.width == 96 && c.n_heads == 4 && c.inner_width == 150 && c.n_layers == 5 && !c.tied && c.start == 7);
    ck_assert(c.vocabulary == 211 && c.source_vocabulary == 300 && c.has_padding && c.padding == 1 && d->gated);
    ck_assert(d->encoder.n == 3 && d->encoder.taps[1] == 7 && d->decoder.n == 2 && d->decoder.taps[1] == 31);
    ck_assert_float_eq(d->dropout, 0.3f);
    ck_assert_float_eq(d->attention_dropout, 0.2f);
    ck_assert_float_eq(d->activation_dropout, 0.05f);
    ck_assert_float_eq(d->weight_dropout, 0);
    ck_assert_float_eq(c.norm_epsilon, 1e-6f);
}

static const char *const refused[][2] = {
    {NUMBERS ", 'encoder_kernel_sizes': [3, 7, 3]}", "decoder_kernel_sizes is missing"},
    {NUMBERS ", 'encoder_kernel_sizes': [3, 7], 'decoder_kernel_sizes': [3, 7]}",
     "encoder_kernel_sizes has 2 entries: it must have one for each of 3 encoder_layers"},
    {NUMBERS ", 'encoder_kernel_sizes': [3, 4, 3], 'decoder_kernel_sizes': [3, 7]}",
     "encoder_kernel_sizes has 4: it must be odd"},
    {NUMBERS ", 'encoder_kernel_sizes': 3, 'decoder_kernel_sizes': [3, 7]}",
     "encoder_kernel_sizes is 3: it must be a list"},
    {NUMBERS ", 'encoder_kernel_sizes': [3, 7, 0], 'decoder_kernel_sizes': [3, 7]}", "must be a whole number from 1"},
    {NUMBERS ", 'encoder_kernel_sizes': [3, 7, 129], 'decoder_kernel_sizes': [3, 7]}",
     "encoder_kernel_sizes is 129: each kernel must be a whole number from 1 to 128"},
    {"{'model_type': 'dynamic_conv', 'd_model': 96, 'num_heads': 4, 'ffn_dim': 150, 'encoder_layers': 5, "
     "'decoder_layers': 1, 'vocab_size': 211, 'encoder_kernel_sizes': [3, 5, 7, 9, 11], 'decoder_kernel_sizes': [3]}",
     "encoder_kernel_sizes has more than 4 different sizes"},
    {SMALL ", 'num_heads': 5}", "not JSON"}, /* twice */
    {"{'model_type': 'dynamic_conv', 'd_model': 96, 'num_heads': 5, 'ffn_dim': 150, 'encoder_layers': 3, "
     "'decoder_layers': 2, 'vocab_size': 211" KERNELS "}",
     "d_model is 96: it must be a multiple of num_heads, which is 5"},
    {"{'model_type': 'dynamic_conv', 'd_model': 95, 'num_heads': 5, 'ffn_dim': 150, 'encoder_layers': 3, "
     "'decoder_layers': 2, 'vocab_size': 211" KERNELS "}",
     "d_model is 95: it must be even"},
    {SMALL ", 'decoder_start_token_id': 211}", "decoder_start_token_id is 211: it must be less than vocab_size"},
    {SMALL ", 'is_encoder_decoder': false}", "is_encoder_decoder is false"},
    {SMALL ", 'weight_dropout': 1}", "weight_dropout is 1: it must be at least 0 and less than 1"},
    {SMALL ", 'source_vocab_size': 0}", "source_vocab_size is 0: it must be null or a positive whole number"},
    {SMALL ", 'source_vocab_size': 20000000}", "source_vocab_size is 20000000: it must be from 1 to 16777216"},
    {SMALL ", 'encoder_normalize_before': true}", "encoder_normalize_before is true: this key is unknown"},
};

TEST_EACH(what_it_cannot_be_is_refused, COUNT(refused))
{
    struct model_config c;
    struct error err = {""};

    ck_assert_int_eq(parse(&c, refused[_i][0], &err), -EINVAL);
    ck_assert_msg(strstr(err.text, refused[_i][1]), "%s", err.text);
}

TEST(padding_is_of_both_vocabularies)
{
    struct model_config c;
    struct model m;
    struct error err = {""};

    ck_assert_int_eq(parse(&c, SMALL ", 'source_vocab_size': 50, 'pad_token_id': 50}", &err), 0);
    ck_assert_int_eq(model_init(&m, &c, &err), -EINVAL);
    ck_assert_str_eq(err.text, "pad_token_id is 50: it must be less than source_vocab_size, which is 50");
}

/* Taps and reach of each block's convolution. */
TEST(each_block_has_its_kernel)
{
    static const uint32_t taps[] = {3, 7, 3, 4, 31};
    struct model m;

    describe(&m, SMALL "}");
    for (uint32_t i = 0; i < COUNT(taps); i++) {
        const struct model_layer *block = &m.layers[m.first_block + i];
        const struct program_operation *op = program_find(&block->program->program, &operation_dynamic_conv);
        ck_assert_uint_eq(op->dynamic_conv.n_taps, taps[i]);
        ck_assert_uint_eq(op->dynamic_conv.causal, i >= 3);
        ck_assert_uint_eq(block->index, i);
    }
    ck_assert_uint_eq(m.n_classes, 4);
    model_free(&m);
}

TEST(tensors_have_their_names)
{
    static const char *const names[] = {
        "embed_tokens.weight",
        "encoder.layers.0.linear1.weight",
        "encoder.layers.2.conv.weight",
        "encoder.layers.1.conv_layer_norm.bias",
        "decoder.layers.0.encoder_attn.k_proj.bias",
        "decoder.layers.1.encoder_attn_layer_norm.weight",
        "decoder.layers.1.final_layer_norm.bias",
    };
    char name[MODEL_NAME_BYTES];
    struct model m;

    describe(&m, SMALL "}");
    for (size_t i = 0; i < COUNT(names); i++)
        ck_assert_msg(model_find(&m, names[i]), "%s", names[i]);
    ck_assert_uint_eq(m.n_tensors, 1 + 3 * 13 + 2 * 23);
    ck_assert_uint_eq(model_find(&m, "decoder.layers.1.conv.weight")->shape[0], 4 * 31);
    ck_assert_str_eq(model_unit_name(name, &m, m.n_units - 1), "decoder.layers.1");
    ck_assert(!model_find(&m, "source_embed_tokens.weight") && !model_find(&m, "output_projection.weight"));
    model_free(&m);
}

TEST(a_gate_is_as_wide_again)
{
    struct model m;

    describe(&m, SMALL ", 'glu': true, 'source_vocab_size': 50, 'tie_word_embeddings': false}");
    ck_assert_uint_eq(model_find(&m, "encoder.layers.0.linear1.weight")->shape[0], 2 * 96);
    ck_assert_uint_eq(model_find(&m, "source_embed_tokens.weight")->shape[0], 50);
    ck_assert_uint_eq(model_find(&m, "embed_tokens.weight")->shape[0], 211);
    ck_assert_uint_eq(model_find(&m, "output_projection.weight")->shape[0], 211);
    model_free(&m);
}

/* lightconv_iwslt_de_en of fairseq, with dynamic convolutions. By hand: an encoder's block has linear1 and linear2 of
 * 512 * 513, maps of 512 * 1025 + 1024 * 513 - 512 in all, and two norms of 1,024; a decoder's block besides four maps
 * of 512 * 513 and a norm; a kernel 2,048 a tap. */
TEST(the_published_model_has_its_size)
{
    const uint64_t map = 512 * 513, maps = 1024 * 513 + 512 * 1025, encoder = 2 * map + maps + 2 * 1024,
                   decoder = encoder + 4 * map + 1024, taps = (3 + 7 + 15 + 4 * 31) + (3 + 7 + 15 + 3 * 31);
    struct model m;

    describe(&m, "{'model_type': 'dynamic_conv', 'd_model': 512, 'num_heads': 4, 'ffn_dim': 1024, 'encoder_layers': 7, "
                 "'decoder_layers': 6, 'encoder_kernel_sizes': [3, 7, 15, 31, 31, 31, 31], "
                 "'decoder_kernel_sizes': [3, 7, 15, 31, 31, 31], 'vocab_size': 6632, 'source_vocab_size': 8848, "
                 "'tie_word_embeddings': false, 'dropout': 0.3, 'attention_dropout': 0.1}");
    ck_assert_uint_eq(m.n_parameters, 7 * encoder + 6 * decoder + 2048 * taps + (8848 + 2 * 6632) * UINT64_C(512));
    ck_assert_uint_eq(m.n_parameters, 38685184);
    model_free(&m);
}
