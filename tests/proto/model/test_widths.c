/* Lists of widths in config.json: which layers share a program, what tensors blocks have, what is refused. */
#include "proto/model/family.h"
#include "tests/kit/test.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char text[1 << 16];

/* A config, with ' for ". Borrowed until the next one. */
static const char *config_of(const char *model, const char *widths)
{
    snprintf(text, sizeof text, model, widths);
    for (char *c = text; *c; c++)
        *c = *c == '\'' ? '"' : *c;
    return text;
}

static const char
    llama[] = "{'model_type': 'llama', 'num_hidden_layers': 4, 'hidden_size': 8, 'num_attention_heads': 2, "
              "'vocab_size': 17, 'intermediate_size': %s}",
    gpt2[] = "{'model_type': 'gpt2', 'n_layer': 4, 'n_embd': 8, 'n_head': 2, 'n_positions': 16, "
             "'vocab_size': 17, 'n_inner': %s}",
    bert[] = "{'model_type': 'bert', 'num_hidden_layers': 4, 'hidden_size': 8, 'num_attention_heads': 2, "
             "'vocab_size': 17, 'intermediate_size': %s}",
    t5[] = "{'model_type': 't5', 'd_model': 8, 'd_kv': 4, 'num_heads': 2, 'num_layers': 2, 'vocab_size': 17, "
           "'d_ff': %s}",
    conv[] = "{'model_type': 'dynamic_conv', 'd_model': 8, 'num_heads': 2, 'encoder_layers': 2, "
             "'decoder_layers': 2, 'encoder_kernel_sizes': [3, 3], 'decoder_kernel_sizes': [3, 5], "
             "'vocab_size': 17, 'ffn_dim': %s}";

/* The tensor whose rows or columns are the units, and which of the two, of block 0 and of the others by their names. */
static const struct {
    const char *model, *names[4];
    uint32_t dimension, n_programs; /* programs of blocks whose widths are 6, 10, 6, 12 */
} cases[] = {
    {llama,
     {"layers.0.mlp.up_proj.weight", "layers.1.mlp.up_proj.weight", "layers.2.mlp.up_proj.weight",
      "layers.3.mlp.up_proj.weight"},
     0,
     3},
    {gpt2, {"h.0.mlp.c_fc.weight", "h.1.mlp.c_fc.weight", "h.2.mlp.c_fc.weight", "h.3.mlp.c_fc.weight"}, 1, 3},
    {bert,
     {"encoder.layer.0.intermediate.dense.weight", "encoder.layer.1.intermediate.dense.weight",
      "encoder.layer.2.intermediate.dense.weight", "encoder.layer.3.intermediate.dense.weight"},
     0,
     3},
    {t5,
     {"encoder.block.0.layer.1.DenseReluDense.wi.weight", "encoder.block.1.layer.1.DenseReluDense.wi.weight",
      "decoder.block.0.layer.2.DenseReluDense.wi.weight", "decoder.block.1.layer.2.DenseReluDense.wi.weight"},
     0,
     5},
    {conv,
     {"encoder.layers.0.fc1.weight", "encoder.layers.1.fc1.weight", "decoder.layers.0.fc1.weight",
      "decoder.layers.1.fc1.weight"},
     0,
     4},
};

/* A list has the encoder's blocks, then the decoder's. */
TEST_EACH(each_block_has_the_width_of_the_list, COUNT(cases))
{
    static const uint32_t widths[] = {6, 10, 6, 12};
    const char *config = config_of(cases[_i].model, "[6, 10, 6, 12]");
    struct model_config parsed;
    struct error err = {""};
    struct model m;

    ck_assert_msg(model_config_parse(&parsed, config, strlen(config), &err) == 0, "%s", err.text);
    ck_assert_uint_eq(parsed.inner_width, 12);
    if (model_has_source(&parsed))
        ck_assert_int_eq(model_divide_rows(&parsed, 4, 8, &err), 0);
    ck_assert_msg(model_init(&m, &parsed, &err) == 0, "%s", err.text);
    for (int b = 0; b < 4; b++) {
        const struct model_tensor *tensor = model_find(&m, cases[_i].names[b]);
        ck_assert_msg(tensor != NULL, "%s", cases[_i].names[b]);
        ck_assert_uint_eq(tensor->shape[cases[_i].dimension], widths[b]);
    }
    ck_assert_uint_eq(m.n_block_programs, cases[_i].n_programs);
    model_free(&m);
}

/* Two widths that take turns in 4,096 blocks: two programs, and a description that recurs with a period of 3. */
TEST(blocks_of_equal_width_share_one_layout)
{
    static char list[1 << 15];
    struct model_config parsed;
    struct model m;
    int n = 0;

    for (int b = 0; b < 4096; b++)
        n += snprintf(list + n, sizeof list - (size_t)n, "%s%d", b ? ", " : "[", b % 3 ? 6 : 10);
    snprintf(list + n, sizeof list - (size_t)n, "]");
    const char *config =
        config_of("{'model_type': 'gpt2', 'n_layer': 4096, 'n_embd': 8, 'n_head': 2, 'n_positions': 16, "
                  "'vocab_size': 17, 'n_inner': %s}",
                  list);
    ck_assert_int_eq(model_config_parse(&parsed, config, strlen(config), NULL), 0);
    ck_assert_int_eq(model_init(&m, &parsed, NULL), 0);
    ck_assert_uint_eq(m.n_block_programs, 2);
    ck_assert_uint_eq(m.n_classes, 2);
    ck_assert_uint_eq(m.period, 3);
    ck_assert_uint_eq(m.classes[0].n_blocks, 1366);
    const struct model_unit *unit = &m.units[m.visits[m.layers[m.first_block].first_visit]];
    ck_assert_uint_eq(unit->alike.end - unit->alike.first, 4096);
    model_free(&m);
}

TEST(widths_are_set_as_a_list_or_as_one_number)
{
    static const uint32_t several[] = {6, 10, 6, 12}, equal[] = {9, 9, 9, 9};
    json_t *config = json_loads(config_of(gpt2, "null"), 0, NULL), *bare = json_pack("{s:s}", "model_type", "none");

    ck_assert_int_eq(model_widths_set(config, several, 4), 0);
    const json_t *list = json_object_get(config, "n_inner");
    ck_assert_uint_eq(json_array_size(list), 4);
    for (size_t i = 0; i < 4; i++)
        ck_assert_int_eq(json_integer_value(json_array_get(list, i)), several[i]);
    ck_assert_int_eq(model_widths_set(config, equal, 4), 0);
    ck_assert_int_eq(json_integer_value(json_object_get(config, "n_inner")), 9);
    ck_assert_int_eq(model_widths_set(bare, equal, 4), -EINVAL);
    json_decref(config);
    json_decref(bare);
}

static const struct {
    const char *model, *widths, *words;
} refused[] = {
    {llama, "[6, 10, 6]", "intermediate_size has 3 widths: it must have one for each of the 4 blocks"},
    {gpt2, "[6, 10, 6, 6, 6]", "n_inner has 5 widths: it must have one for each of the 4 blocks"},
    {t5, "[6, 10]", "d_ff has 2 widths: it must have one for each of the 4 blocks"},
    {llama, "[6, 0, 6, 6]", "intermediate_size has no whole number from 1 to 1048576 for block 1"},
    {llama, "[6, 6, 6, 1048577]", "intermediate_size has no whole number from 1 to 1048576 for block 3"},
    {llama, "[6, 6, 2.5, 6]", "for block 2"},
    {llama, "[]", "it must be a positive whole number, or a list of one for each block"},
    {llama, "[1, 2, 3, 4, 5, 6, 7, 8, 9]", "intermediate_size has more than 8 different widths: use fewer"},
};

TEST_EACH(what_is_no_list_of_widths_is_refused, COUNT(refused))
{
    const char *config = config_of(refused[_i].model, refused[_i].widths);
    struct model_config parsed;
    struct error err = {""};

    ck_assert_int_eq(model_config_parse(&parsed, config, strlen(config), &err), -EINVAL);
    ck_assert_holds(err.text, refused[_i].words);
}

/* The planner tells apart at most 32 kinds: here an encoder and a decoder of 24 blocks each, with kernels of three
 * sizes and feed-forward layers of eight widths. */
TEST(blocks_of_too_many_shapes_are_refused)
{
    static const char kernels[] = "[3, 5, 7, 3, 5, 7, 3, 5, 7, 3, 5, 7, 3, 5, 7, 3, 5, 7, 3, 5, 7, 3, 5, 7]";
    char model[1024], widths[512] = "[";
    struct model_config parsed;
    struct error err = {""};
    struct model m;

    snprintf(model, sizeof model,
             "{'model_type': 'dynamic_conv', 'd_model': 8, 'num_heads': 2, 'encoder_layers': 24, 'decoder_layers': 24, "
             "'encoder_kernel_sizes': %s, 'decoder_kernel_sizes': %s, 'vocab_size': 17, 'ffn_dim': %%s}",
             kernels, kernels);
    for (int i = 0; i < 48; i++)
        snprintf(widths + strlen(widths), sizeof widths - strlen(widths), "%d%s", 1 + i / 3 % 8, i < 47 ? ", " : "]");
    const char *config = config_of(model, widths);
    ck_assert_int_eq(model_config_parse(&parsed, config, strlen(config), &err), 0);
    ck_assert_int_eq(model_divide_rows(&parsed, 4, 8, &err), 0);
    ck_assert_int_eq(model_init(&m, &parsed, &err), -EINVAL);
    ck_assert_holds(err.text, "blocks of more than 32 shapes: use fewer different widths");
}
