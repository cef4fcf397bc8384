/* Presets against the published figures, and the choice among them. */
#include "tests/kit/test.h"

#include "client/model/preset.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

/* Parameters of the four sizes as in transformers' GPT2LMHeadModel, tied ones once. */
TEST(gpt2_has_its_published_sizes)
{
    static const struct {
        const char *name;
        uint32_t n_layers, n_heads, width;
        uint64_t n_parameters;
    } published[] = {{"gpt2", 12, 12, 768, 124439808},
                     {"gpt2-medium", 24, 16, 1024, 354823168},
                     {"gpt2-large", 36, 20, 1280, 774030080},
                     {"gpt2-xl", 48, 25, 1600, 1557611200}};

    for (size_t i = 0; i < sizeof published / sizeof *published; i++) {
        const struct eps_preset *preset = client_preset_find(published[i].name);
        ck_assert_ptr_nonnull(preset);
        ck_assert_uint_eq(preset->n_layers, published[i].n_layers);
        ck_assert_uint_eq(preset->n_heads, published[i].n_heads);
        ck_assert_uint_eq(preset->width, published[i].width);
        ck_assert_uint_eq(preset->n_positions, 1024);
        ck_assert_uint_eq(preset->vocabulary, 50257);
        ck_assert_uint_eq(preset->n_parameters, published[i].n_parameters);
    }
}

/* The number in the table is what the model described by its config really has. */
TEST(every_preset_opens_as_the_model_that_it_names)
{
    size_t n = 0;

    for (const struct eps_preset *preset; (preset = eps_preset(n)) != NULL; n++) {
        struct client_model opened;
        struct model model;
        ck_assert_int_eq(client_preset_open(&opened, preset, preset->vocabulary, NULL), 0);
        ck_assert_str_eq(opened.name, preset->name);
        ck_assert_uint_eq(opened.n_weights, 0);
        ck_assert_int_eq(lseek(opened.config_fd, 0, SEEK_CUR), 0); /* the daemon shares the position */
        ck_assert_int_eq(model_init(&model, &opened.config, NULL), 0);
        ck_assert_msg(model.n_parameters == preset->n_parameters, "%s", preset->name);
        ck_assert_ptr_eq(client_preset_find(preset->name), preset);
        model_free(&model);
        client_model_close(&opened);
    }
    ck_assert_uint_eq(n, 10);
}

TEST(bytes_have_no_dropout_and_gpt2_keeps_its_own)
{
    struct client_model model;

    ck_assert_int_eq(client_preset_open(&model, client_preset_find("byte-small"), 256, NULL), 0);
    const struct model_config expected = {.family = &family_gpt2,
                                          .n_layers = 4,
                                          .n_heads = 4,
                                          .width = 128,
                                          .inner_width = 512,
                                          .n_positions = 128,
                                          .vocabulary = 256,
                                          .activation = MODEL_GELU_NEW,
                                          .tied = true,
                                          .gpt2.scale_attention = true,
                                          .norm_epsilon = 1e-5f,
                                          .initializer_range = 0.049f};
    ck_assert_mem_eq(&model.config, &expected, sizeof expected);
    client_model_close(&model);
    ck_assert_int_eq(client_preset_open(&model, client_preset_find("gpt2"), 256, NULL), 0);
    ck_assert_uint_eq(model.config.vocabulary, 256);
    ck_assert_float_eq(model.config.gpt2.dropout_attention, 0.1f);
    ck_assert_float_eq(model.config.gpt2.dropout_embedding, 0.1f);
    ck_assert_float_eq(model.config.gpt2.dropout_residual, 0.1f);
    client_model_close(&model);
}

/* Its tokenizer is not there yet, but the end token's id is known. */
TEST(a_text_preset_names_its_end_token)
{
    struct client_model model;
    char config[800] = "";

    ck_assert_int_eq(client_preset_open(&model, client_preset_find("text-small"), 2048, NULL), 0);
    ck_assert_int_gt(pread(model.config_fd, config, sizeof config - 1, 0), 0);
    ck_assert_ptr_nonnull(strstr(config, "\"bos_token_id\": 256,"));
    ck_assert_ptr_nonnull(strstr(config, "\"eos_token_id\": 256,"));
    ck_assert_float_eq(model.config.gpt2.dropout_residual, 0.0f);
    ck_assert_float_eq(model.config.initializer_range, 0.049f);
    client_model_close(&model);
}

TEST(an_unknown_name_is_answered_with_the_list)
{
    struct error err;

    ck_assert_ptr_null(client_preset_find("gpt3"));
    ck_assert_int_eq(client_preset_unknown("gpt3", &err), -ENOENT);
    ck_assert_str_eq(err.text, "--model gpt3: No such file or directory, and none of the presets: text-small, "
                               "text-medium, text-large, byte-small, byte-medium, byte-large, gpt2, gpt2-medium, "
                               "gpt2-large, gpt2-xl; did you mean gpt2?");
    client_preset_unknown("gpt2_larg", &err);
    ck_assert_ptr_nonnull(strstr(err.text, "; did you mean gpt2-large?"));
    client_preset_unknown("llama", &err);
    ck_assert_ptr_null(strstr(err.text, "did you mean"));
}

static const char *chosen_for(bool text, uint64_t n_tokens, uint32_t vocabulary, uint64_t free_mib, uint64_t device_mib)
{
    const struct client_preset_facts facts = {.text = text,
                                              .n_tokens = n_tokens,
                                              .vocabulary = vocabulary,
                                              .free_bytes = free_mib << 20,
                                              .n_workers = 1,
                                              .device_mem = device_mib << 20};
    return client_preset_choose(&facts)->name;
}

static const char *chosen(uint64_t n_tokens, uint32_t vocabulary, uint64_t free_mib, uint64_t device_mib)
{
    return chosen_for(false, n_tokens, vocabulary, free_mib, device_mib);
}

TEST(the_data_decide_which_preset_is_trained)
{
    ck_assert_str_eq(chosen(1000, 256, 1 << 20, 0), "byte-small");
    ck_assert_str_eq(chosen((8 << 20) - 1, 256, 1 << 20, 0), "byte-small");
    ck_assert_str_eq(chosen(8 << 20, 256, 1 << 20, 0), "byte-medium");
    ck_assert_str_eq(chosen((128 << 20) - 1, 256, 1 << 20, 0), "byte-medium");
    ck_assert_str_eq(chosen(128 << 20, 256, 1 << 20, 0), "byte-large");
    ck_assert_str_eq(chosen(1000, 257, 1 << 20, 0), "gpt2");
    ck_assert_str_eq(chosen((uint64_t)1 << 40, 50257, 1 << 20, 0), "gpt2");
    ck_assert_str_eq(chosen_for(true, (256 << 10) - 1, 0, 1 << 20, 0), "byte-small");
    ck_assert_str_eq(chosen_for(true, 256 << 10, 0, 1 << 20, 0), "text-small");
    ck_assert_str_eq(chosen_for(true, 8 << 20, 0, 1 << 20, 0), "text-medium");
    ck_assert_str_eq(chosen_for(true, 128 << 20, 0, 1 << 20, 0), "text-large");
    ck_assert_str_eq(chosen_for(true, 128 << 20, 0, 1 << 20, 500), "text-medium");
    ck_assert_str_eq(chosen_for(true, 128 << 20, 0, 10, 1), "text-small");
}

/* byte-large takes 985 MiB of weights and moments; a worker needs 880 MiB for it, and 277 MiB for byte-medium, as its
 * plan says. */
TEST(memory_makes_it_smaller)
{
    struct client_preset_facts facts = {.n_tokens = 200 << 20, .vocabulary = 256, .n_workers = 1};

    ck_assert_str_eq(chosen(200 << 20, 256, 2500, 0), "byte-large");
    ck_assert_str_eq(chosen(200 << 20, 256, 1900, 0), "byte-medium");
    ck_assert_str_eq(chosen(200 << 20, 256, 1 << 20, 1000), "byte-large");
    ck_assert_str_eq(chosen(200 << 20, 256, 1 << 20, 879), "byte-medium");
    ck_assert_str_eq(chosen(200 << 20, 256, 1 << 20, 276), "byte-small");
    ck_assert_str_eq(chosen(10319298, 256, 1 << 20, 162), "byte-medium"); /* batches of 6.6 Ki: 149 MiB, it says */
    ck_assert_str_eq(chosen(10319298, 256, 1 << 20, 148), "byte-small");
    ck_assert_str_eq(chosen(200 << 20, 256, 10, 1), "byte-small");          /* there is none smaller */
    facts.free_bytes = (uint64_t)1900 << 20, facts.device_mem = UINT64_MAX; /* the daemon's own workers' */
    ck_assert_str_eq(client_preset_choose(&facts)->name, "byte-medium");
    ck_assert(client_preset_is_smaller(client_preset_choose(&facts), &facts));
    facts.free_bytes <<= 1;
    ck_assert_str_eq(client_preset_choose(&facts)->name, "byte-large");
    ck_assert(!client_preset_is_smaller(client_preset_choose(&facts), &facts));
}
