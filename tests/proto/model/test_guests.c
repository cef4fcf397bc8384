/* Blocks that another config writes (proto/model/guests.h): their tensors, programs and names; what is refused; how a
 * config.json gets them. */
#include "proto/model/family.h"
#include "proto/model/guests.h"
#include "tests/kit/test.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

static char text[4096];

/* A config with a list of guests, with ' for ". Borrowed until the next one. */
static const char *config_of(const char *host, const char *guests)
{
    snprintf(text, sizeof text, host, guests);
    for (char *c = text; *c; c++)
        *c = *c == '\'' ? '"' : *c;
    return text;
}

#define GPT2 "'n_layer': 4, 'n_embd': 8, 'n_head': 2, 'n_positions': 16, 'vocab_size': 17, 'eps_blocks': %s}"
static const char gpt2[] = "{'model_type': 'eps_gpt2', " GPT2, plain[] = "{'model_type': 'gpt2', " GPT2,
                  bert[] = "{'model_type': 'eps_bert', 'num_hidden_layers': 4, 'hidden_size': 8, 'vocab_size': 17, "
                           "'num_attention_heads': 2, 'intermediate_size': 6, 'eps_blocks': %s}",
                  t5[] = "{'model_type': 'eps_t5', 'd_model': 8, 'd_kv': 4, 'num_heads': 2, 'num_layers': 2, "
                         "'vocab_size': 17, 'd_ff': 6, 'eps_blocks': %s}";

#define LLAMA(more) "{'model_type': 'llama', 'num_attention_heads': 4, 'intermediate_size': 10" more "}"
#define MISTRAL                                                                                                        \
    "{'model_type': 'mistral', 'num_attention_heads': 2, 'num_key_value_heads': 1, 'intermediate_size': 6, "           \
    "'sliding_window': 3}"

static void open_model(struct model *m, const char *config)
{
    struct model_config parsed;
    struct error err = {""};

    ck_assert_msg(model_config_parse(&parsed, config, strlen(config), &err) == 0, "%s", err.text);
    ck_assert_msg(model_init(m, &parsed, &err) == 0, "%s", err.text);
}

static void check_tensor(const struct model *m, const char *name, uint64_t rows, uint64_t columns)
{
    const struct model_tensor *tensor = model_find(m, name);

    ck_assert_msg(tensor != NULL, "%s", name);
    ck_assert_uint_eq(tensor->shape[0], rows);
    ck_assert_uint_eq(tensor->shape[1], columns);
}

/* Blocks 1 and 3 share a program, 0 and 2 have each their own. Names are found with and without each family's
 * prefix. */
TEST(a_guest_is_what_its_config_has_at_its_place)
{
    struct model m;

    open_model(&m, config_of(gpt2, "[{'blocks': [3, 1], 'config': " LLAMA(
                                       ", 'num_key_value_heads': 2") "}, "
                                                                     "{'config': " MISTRAL ", 'blocks': [2]}]"));
    check_tensor(&m, "h.0.mlp.c_fc.weight", 8, 32);
    check_tensor(&m, "model.layers.1.mlp.up_proj.weight", 10, 8);
    check_tensor(&m, "layers.3.self_attn.k_proj.weight", 4, 8);
    check_tensor(&m, "layers.2.mlp.down_proj.weight", 8, 6);
    ck_assert(!model_find(&m, "h.1.mlp.c_fc.weight") && !model_find(&m, "layers.0.mlp.up_proj.weight"));
    ck_assert_uint_eq(m.n_block_programs, 3);
    ck_assert_uint_eq(m.n_classes, 3);
    const struct model_layer *block = &m.layers[m.first_block];
    ck_assert_ptr_eq(block[1].program, block[3].program);
    char name[MODEL_NAME_BYTES];
    ck_assert_str_eq(model_unit_name(name, &m, m.visits[block[2].first_visit]), "layers.2");
    ck_assert_str_eq(model_unit_name(name, &m, m.visits[block[0].first_visit]), "h.0");
    ck_assert_int_eq(model_freeze(&m, "layers.[13].*", (struct model_base){FORM_VALUES, FORM_VALUES}, NULL), 0);
    for (uint32_t i = 0; i < 4; i++)
        ck_assert_int_eq(m.units[m.visits[block[i].first_visit]].n_trained == 0, i % 2);
    model_free(&m);
}

/* What concerns the whole model is the model's, whatever the guest's config says. */
TEST(a_guest_takes_width_blocks_and_vocabulary_of_the_model)
{
    struct model m;

    open_model(&m, config_of(gpt2, "[{'blocks': [0], 'config': " LLAMA(", 'vocab_size': 32000, 'hidden_size': 8, "
                                                                       "'num_hidden_layers': 99, "
                                                                       "'tie_word_embeddings': false") "}]"));
    ck_assert_uint_eq(m.config.n_layers, 4);
    ck_assert_uint_eq(m.config.vocabulary, 17);
    ck_assert(m.config.tied);
    model_free(&m);
}

static const struct {
    const char *host, *guests, *words;
} refused[] = {
    {plain, "[{'blocks': [1], 'config': " LLAMA() "}]", "with eps_blocks it must begin with eps_"},
    {gpt2, "[]", "eps_blocks: it must be a list of 1 to 8 objects"},
    {gpt2, "{}", "eps_blocks: it must be a list of 1 to 8 objects"},
    {gpt2, "[{'blocks': [1]}]", "eps_blocks, entry 0: a config must be an object"},
    {gpt2, "[{'config': " LLAMA() "}]", "entry 0: it has no list of numbers named blocks"},
    {gpt2, "[{'blocks': [], 'config': " LLAMA() "}]", "entry 0: it has no list of numbers named blocks"},
    {gpt2, "[{'blocks': [1], 'config': " LLAMA() ", 'x': 1}]", "entry 0: it has keys besides blocks and config"},
    {gpt2, "[{'blocks': [4], 'config': " LLAMA() "}]", "a block is 4: it must be the number of one of the model's"},
    {gpt2, "[{'blocks': [-1], 'config': " LLAMA() "}]", "a block is -1: it must be the number"},
    {gpt2, "[{'blocks': [1], 'config': " LLAMA() "}, {'blocks': [0, 1], 'config': " MISTRAL "}]",
     "entry 1: a block is 1: it is named twice"},
    {gpt2, "[{'blocks': [1], 'config': {'model_type': 'llama', 'num_attention_heads': 4}}]",
     "entry 0: intermediate_size is missing"},
    {gpt2, "[{'blocks': [1], 'config': " LLAMA(", 'hidden_size': 16") "}]",
     "its blocks have 16 columns, and the model's have 8"},
    {gpt2, "[{'blocks': [1], 'config': " LLAMA(", 'num_key_value_heads': 3") "}]", "num_attention_heads is 4"},
    {gpt2, "[{'blocks': [1], 'config': " LLAMA(", 'twist': 3") "}]", "twist is 3: this key is unknown"},
    {gpt2, "[{'blocks': [1], 'config': " LLAMA(", 'eps_blocks': []") "}]", "which only a model has"},
    {gpt2,
     "[{'blocks': [1], 'config': {'model_type': 'llama', 'num_attention_heads': 4, 'intermediate_size': [6, 7, 6, "
     "6]}}]",
     "intermediate_size is a list: these blocks have one width"},
    {gpt2, "[{'blocks': [1], 'config': {'model_type': 'bert', 'num_attention_heads': 2, 'intermediate_size': 6}}]",
     "a bert block cannot stand in a gpt2 model: one sees later tokens"},
    {bert, "[{'blocks': [1], 'config': " LLAMA() "}]", "a llama block cannot stand in a bert model"},
    {t5, "[{'blocks': [1], 'config': " LLAMA() "}]", "a block of a t5 model cannot be another model's"},
    {gpt2, "[{'blocks': [1], 'config': {'model_type': 'eps_llama', 'num_attention_heads': 4, 'intermediate_size': 6}}]",
     "model_type is \"eps_llama\": it must be"},
};

TEST_EACH(what_cannot_be_a_guest_is_refused, COUNT(refused))
{
    const char *config = config_of(refused[_i].host, refused[_i].guests);
    struct model_config parsed;
    struct error err = {""};

    ck_assert_int_eq(model_config_parse(&parsed, config, strlen(config), &err), -EINVAL);
    ck_assert_holds(err.text, refused[_i].words);
}

static void check_list(const json_t *config, const char *want)
{
    char *got = json_dumps(json_object_get(config, MODEL_GUESTS_KEY), JSON_COMPACT | JSON_SORT_KEYS);

    ck_assert_str_eq(got, want);
    free(got);
}

#define A          "\"config\":{\"model_type\":\"llama\",\"num_attention_heads\":1}"
#define B(more)    "\"config\":{\"layer_types\":[\"p\",\"q\",\"r\",\"s\"" more "],\"model_type\":\"gemma3_text\"}"
#define OF(blocks) "{\"blocks\":[" blocks "],"

/* Configs that say the same of their blocks share an entry; one that no block has any more is left out; grown blocks
 * are what they copy, in lists of kinds, too. */
TEST(a_config_gets_guests_block_by_block)
{
    json_t *config = json_pack("{s:s}", "model_type", "gpt2"),
           *a = json_pack("{s:s, s:i, s:i, s:[s]}", "model_type", "llama", "num_attention_heads", 1, "vocab_size", 5,
                          "architectures", "LlamaModel"),
           *like_a = json_pack("{s:i, s:s}", "num_attention_heads", 1, "model_type", "llama"),
           *b = json_pack("{s:s, s:[s,s,s,s]}", "model_type", "gemma3_text", "layer_types", "p", "q", "r", "s");

    ck_assert_int_eq(model_guests_set(config, 1, a), 0);
    ck_assert_int_eq(model_guests_set(config, 3, like_a), 0);
    ck_assert_int_eq(model_guests_set(config, 2, b), 0);
    check_list(config, "[" OF("1,3") A "}," OF("2") B("") "}]");
    ck_assert_str_eq(json_string_value(json_object_get(config, "model_type")), "eps_gpt2");
    ck_assert_int_eq(model_guests_grow(config, 4, 2), 0);
    check_list(config, "[" OF("1,3,5") A "}," OF("2,4") B(",\"r\",\"s\"") "}]");
    ck_assert_int_eq(model_guests_set(config, 2, a), 0);
    ck_assert_int_eq(model_guests_set(config, 4, a), 0);
    check_list(config, "[" OF("1,3,5,2,4") A "}]");
    ck_assert_str_eq(json_string_value(json_object_get(config, "model_type")), "eps_gpt2");
    for (int i = 0; i < MODEL_GUESTS; i++) {
        json_object_set_new(like_a, "num_attention_heads", json_integer(2 + i));
        ck_assert_int_eq(model_guests_set(config, 7 + (uint32_t)i, like_a), i + 2 > MODEL_GUESTS ? -E2BIG : 0);
    }
    json_decref(config);
    json_decref(a);
    json_decref(like_a);
    json_decref(b);
}

/* A list of kinds recurs, or is cut: blocks 1 and 3 slide by each of these. */
TEST_EACH(a_list_of_kinds_is_as_long_as_the_model, 2)
{
    static const char *const lists[] = {"'full_attention', 'sliding_attention'",
                                        "'full_attention', 'sliding_attention', 'full_attention', 'sliding_attention', "
                                        "'full_attention', 'sliding_attention'"};
    char guests[600];
    struct model m;

    snprintf(
        guests, sizeof guests,
        "[{'blocks': [0, 1, 2, 3], 'config': {'model_type': 'gemma3_text', 'num_attention_heads': 2, "
        "'num_key_value_heads': 1, 'head_dim': 4, 'intermediate_size': 6, 'sliding_window': 3, 'num_hidden_layers': 2, "
        "'layer_types': [%s]}}]",
        lists[_i]);
    open_model(&m, config_of(gpt2, guests));
    const struct model_layer *block = &m.layers[m.first_block];
    ck_assert(block[0].program == block[2].program && block[1].program == block[3].program &&
              block[0].program != block[1].program);
    ck_assert_uint_eq(block[1].program->kind, 1);
    model_free(&m);
}
