/* Tensors of files, held against a model's. The files are headers with a hole behind them. */
#include "tests/kit/command.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include "proto/model/file/checkpoint_layout.h"
#include "proto/model/weights.h"
#include "proto/plan/memory/files.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MOST = 50000 };

static const char small[] =
    "{\"model_type\": \"gpt2\", \"n_layer\": 2, \"n_head\": 2, \"n_embd\": 8, \"n_positions\": 5, \"vocab_size\": 17}";
static const char decoder[] =
    "{\"model_type\": \"llama\", \"num_hidden_layers\": 1, \"num_attention_heads\": 2, \"hidden_size\": 8, "
    "\"intermediate_size\": 12, \"vocab_size\": 17, \"tie_word_embeddings\": false}";

static void make_model(struct model *out, const char *text)
{
    struct model_config config;
    struct error err;

    ck_assert_msg(model_config_parse(&config, text, strlen(text), &err) == 0, "%s", err.text);
    ck_assert_int_eq(model_init(out, &config, NULL), 0);
}

static int make_file(const struct safetensors_plan *plan, size_t n)
{
    const int fd = memfd_create("weights", MFD_CLOEXEC);
    struct safetensors_layout layout;

    ck_assert_int_eq(safetensors_layout_init(&layout, plan, n, NULL), 0);
    ck_assert_int_eq(write(fd, layout.header, layout.header_bytes), (ssize_t)layout.header_bytes);
    ck_assert_int_eq(ftruncate(fd, (off_t)layout.file_bytes), 0);
    safetensors_layout_free(&layout);
    return fd;
}

static struct safetensors_plan plan_of(const struct model_tensor *tensor, enum safetensors_type type)
{
    return (struct safetensors_plan){tensor->name, tensor->n_dims, {tensor->shape[0], tensor->shape[1]}, type};
}

/* All tensors of the model but those left out (names without the prefix), and these more. */
static int make_file_of(const struct model *model, const char *const *left_out, const struct safetensors_plan *more)
{
    static struct safetensors_plan plan[MOST];
    size_t n = 0;

    for (uint32_t t = 0; t < model->n_tensors; t++) {
        bool is_left = false;
        for (int i = 0; left_out[i]; i++)
            is_left = is_left || model_find(model, left_out[i]) == &model->tensors[t];
        if (!is_left)
            plan[n++] = plan_of(&model->tensors[t], SAFETENSORS_F32);
    }
    for (; more->name; more++)
        plan[n++] = *more;
    return make_file(plan, n);
}

#define F32     SAFETENSORS_F32
#define CONFIG  ": check that config.json belongs to these weights"
#define MISSING ": check that all files of these weights are there"

static const struct {
    const char *left_out[4];
    struct safetensors_plan more[4], other[2]; /* in the same file, and in another */
    const char *why;
} faults[] = {
    {{"ln_f.bias"}, {{0}}, {{0}}, "transformer.ln_f.bias is missing" MISSING},
    {{"ln_f.bias", "wpe.weight"}, {{0}}, {{0}}, "transformer.wpe.weight is missing (1 other is missing)" MISSING},
    {{"ln_f.bias", "wpe.weight", "h.1.ln_2.bias"},
     {{0}},
     {{0}},
     "transformer.wpe.weight is missing (2 others are missing)" MISSING},
    {{NULL}, {{"ln_f.b", 1, {8, 1}, F32}}, {{0}}, "ln_f.b is not a tensor of this model" CONFIG},
    {{NULL}, {{"h.1.ln_3.bias", 1, {8, 1}, F32}}, {{0}}, "h.1.ln_3.bias is not a tensor of this model" CONFIG},
    {{NULL}, {{0}}, {{"lm_head.bias", 1, {8, 1}, F32}}, "lm_head.bias is not a tensor of this model" CONFIG},
    {{NULL},
     {{0}},
     {{"transformer.attn.bias", 1, {8, 1}, F32}},
     "transformer.attn.bias is not a tensor of this model" CONFIG},
    {{"wpe.weight"}, {{"wpe.weight", 2, {4, 8}, F32}}, {{0}}, "wpe.weight is 4 x 8, the model's is 5 x 8" CONFIG},
    {{"ln_f.bias"}, {{0}}, {{"ln_f.bias", 2, {8, 1}, F32}}, "ln_f.bias is 8 x 1, the model's is 8" CONFIG},
    {{"ln_f.bias"}, {{"ln_f.bias", 0, {0, 0}, F32}}, {{0}}, "ln_f.bias is a single number, the model's is 8" CONFIG},
    {{"ln_f.bias"},
     {{"ln_f.bias", 1, {8, 1}, SAFETENSORS_I64}},
     {{0}},
     "ln_f.bias is of type I64, not F32, F16 or BF16: save it in one of these"},
    {{NULL}, {{"ln_f.bias", 1, {8, 1}, F32}}, {{0}}, "transformer.ln_f.bias is there twice: remove one of the two"},
    {{NULL},
     {{0}},
     {{"transformer.ln_f.bias", 1, {8, 1}, F32}},
     "transformer.ln_f.bias is there twice: remove one of the two"},
    {{NULL},
     {{"lm_head.weight", 2, {17, 8}, F32}},
     {{"lm_head.weight", 2, {17, 8}, F32}},
     "lm_head.weight is there twice: remove one of the two"},
    {{NULL}, {{"lm_head.weight", 2, {16, 8}, F32}}, {{0}}, "lm_head.weight is 16 x 8, the model's is 17 x 8" CONFIG},
    {{"wte.weight"},
     {{"lm_head.weight", 2, {16, 8}, F32}},
     {{0}},
     "lm_head.weight is 16 x 8, the model's is 17 x 8" CONFIG},
    {{"ln_f.bias", "ln_f.weight", "h.0.ln_1.bias", "h.1.ln_1.bias"},
     {{"a", 1, {8, 1}, F32}, {"b", 1, {8, 1}, F32}, {"h.1.ln_1.bias", 1, {9, 1}, F32}},
     {{"h.0.ln_1.weight", 1, {8, 1}, F32}},
     "h.1.ln_1.bias is 9, the model's is 8; a is not a tensor of this model (1 other is unexpected); "
     "transformer.h.0.ln_1.bias is missing (2 others are missing); "
     "transformer.h.0.ln_1.weight is there twice" CONFIG},
};

TEST_EACH(every_tensor_is_accounted_for_in_one_sentence, COUNT(faults))
{
    const char *left_out[5] = {0};
    struct weights weights, zero = {0};
    struct safetensors_plan more[5] = {{0}};
    struct model model;
    struct error err = {""};
    size_t n = 0;

    memcpy(left_out, faults[_i].left_out, sizeof faults[_i].left_out);
    memcpy(more, faults[_i].more, sizeof faults[_i].more);
    while (faults[_i].other[n].name)
        n++;
    make_model(&model, small);
    const int fds[] = {make_file_of(&model, left_out, more), make_file(faults[_i].other, n)};
    ck_assert_int_eq(weights_open(&weights, &model, (struct file[]){{.fd = fds[0]}, {.fd = fds[1]}}, 2, NULL, &err),
                     -EINVAL);
    ck_assert_str_eq(err.text, faults[_i].why);
    ck_assert_mem_eq(&weights, &zero, sizeof weights);
    close(fds[0]), close(fds[1]);
    model_free(&model);
}

/* What other tensors take is bounded by the model, for all files together, before any of it is read. */
/* ---- experts that files have joined ---- */

static const char mixture[] =
    "{\"model_type\": \"qwen3_5_moe_text\", \"num_hidden_layers\": 1, \"num_attention_heads\": 2, \"hidden_size\": 8, "
    "\"moe_intermediate_size\": 3, \"num_experts\": 4, \"num_experts_per_tok\": 2, \"head_dim\": 4, \"vocab_size\": "
    "17, "
    "\"num_key_value_heads\": 1, \"full_attention_interval\": 1, \"shared_expert_intermediate_size\": 5}";

#define JOINED(name) "model.layers.0.mlp.experts." name

/* All tensors but each expert's own, and these more. */
static int make_joined(const struct model *model, const struct safetensors_plan *more)
{
    struct safetensors_plan plan[64];
    size_t n = 0;

    for (uint32_t t = 0; t < model->n_tensors; t++)
        if (!strstr(model->tensors[t].name, ".experts."))
            plan[n++] = plan_of(&model->tensors[t], SAFETENSORS_BF16);
    for (; more->name; more++)
        plan[n++] = *more;
    ck_assert_uint_le(n, COUNT(plan));
    return make_file(plan, n);
}

/* An expert's gates, its ups, the next expert's gates. */
TEST(experts_are_read_where_files_have_them_joined)
{
    static const struct safetensors_plan more[] = {{JOINED("gate_up_proj"), 3, {4, 6, 8}, SAFETENSORS_BF16},
                                                   {JOINED("down_proj"), 3, {4, 8, 3}, SAFETENSORS_BF16},
                                                   {0}};
    struct weights weights;
    struct model model;
    struct error err;

    make_model(&model, mixture);
    const int fd = make_joined(&model, more);
    ck_assert_msg(weights_open(&weights, &model, &(struct file){.fd = fd}, 1, NULL, &err) == 0, "%s", err.text);
    ck_assert_uint_eq(weights.n_parts, 3 * 4);
    const uint64_t both = safetensors_find(weights.files, JOINED("gate_up_proj"))->offset,
                   downs = safetensors_find(weights.files, JOINED("down_proj"))->offset;
    for (unsigned i = 0; i < 4; i++) {
        const char *const names[] = {"gate", "up", "down"};
        const uint64_t offsets[] = {both + 2 * 24 * (2 * i), both + 2 * 24 * (2 * i + 1), downs + 2 * 24 * i};
        for (int k = 0; k < 3; k++) {
            const struct model_tensor *t = model_find(&model, print(JOINED("%u.%s_proj.weight"), i, names[k]));
            const struct safetensors_entry *entry = weights.entries[t - model.tensors];
            ck_assert(entry->n == 24 && entry->offset == offsets[k] && weights_has_shape(entry, t));
        }
    }
    weights_close(&weights);
    close(fd);
    model_free(&model);
}

static const struct {
    struct safetensors_plan more[4];
    const char *why;
} misjoined[] = {
    {{{JOINED("gate_up_proj"), 3, {4, 8, 6}, F32}, {JOINED("down_proj"), 3, {4, 8, 3}, F32}},
     "model.layers.0.mlp.experts.gate_up_proj is 4 x 8 x 6, the model's is 4 x 6 x 8"},
    {{{JOINED("gate_up_proj"), 3, {3, 6, 8}, F32}, {JOINED("down_proj"), 3, {4, 8, 3}, F32}},
     "model.layers.0.mlp.experts.gate_up_proj is 3 x 6 x 8, the model's is 4 x 6 x 8"},
    {{{JOINED("gate_up_proj"), 3, {4, 6, 8}, F32}, {JOINED("down_proj"), 2, {32, 3}, F32}},
     "model.layers.0.mlp.experts.down_proj is 32 x 3, the model's is 4 x 8 x 3"},
    {{{JOINED("gate_up_proj"), 3, {4, 6, 8}, F32}},
     "model.layers.0.mlp.experts.0.down_proj.weight is missing (3 others"},
    {{{JOINED("gate_up_proj"), 3, {4, 6, 8}, SAFETENSORS_I64}, {JOINED("down_proj"), 3, {4, 8, 3}, F32}},
     "model.layers.0.mlp.experts.gate_up_proj is of type I64"},
};

TEST_EACH(joined_experts_of_another_shape_are_refused, COUNT(misjoined))
{
    struct weights weights;
    struct model model;
    struct error err = {""};

    make_model(&model, mixture);
    const int fd = make_joined(&model, misjoined[_i].more);
    ck_assert_int_eq(weights_open(&weights, &model, &(struct file){.fd = fd}, 1, NULL, &err), -EINVAL);
    ck_assert_msg(strncmp(err.text, misjoined[_i].why, strlen(misjoined[_i].why)) == 0, "%s", err.text);
    close(fd);
    model_free(&model);
}

/* ---- headers ---- */

TEST(a_header_far_beyond_the_model_is_refused)
{
    static const char *const none[] = {NULL};
    static const struct safetensors_plan nothing[] = {{0}};
    static struct safetensors_plan plan[12000];
    static char names[COUNT(plan)][48];
    struct weights weights;
    struct model model;
    struct error err = {""};

    make_model(&model, small);
    ck_assert_uint_eq(weights_header_bytes(&model) >> 20, 2);
    for (unsigned i = 0; i < COUNT(plan); i++) {
        snprintf(names[i], sizeof names[i], "transformer.h.%05u.attn.bias.of.another", i);
        plan[i] = (struct safetensors_plan){names[i], 1, {1, 1}, F32};
    }
    const int fds[] = {make_file_of(&model, none, nothing), make_file(plan, COUNT(plan)), make_file(plan, COUNT(plan))};
    ck_assert_int_eq(weights_open(&weights, &model, (struct file[]){{.fd = fds[0]}, {.fd = fds[1]}}, 2, NULL, &err),
                     -EINVAL); /* read, and then accounted for */
    ck_assert_holds(err.text, "is not a tensor of this model");
    ck_assert_int_eq(weights_open(&weights, &model, (struct file[]){{.fd = fds[0]}, {.fd = fds[1]}, {.fd = fds[2]}}, 3,
                                  NULL, &err),
                     -EINVAL);
    ck_assert_holds(err.text, "a header of 1", " bytes, where ", " are left for this model");
    for (int i = 0; i < COUNT(fds); i++)
        close(fds[i]);
    model_free(&model);
}

/* The most layers that there can be: their names alone take twice what others may. */
TEST(a_header_may_be_as_long_as_the_model)
{
    static const char *const none[] = {NULL};
    static const struct safetensors_plan nothing[] = {{0}};
    static const char text[] = "{\"model_type\": \"gpt2\", \"n_layer\": 4096, \"n_head\": 1, \"n_embd\": 2, "
                               "\"n_positions\": 5, \"vocab_size\": 17}";
    struct weights weights;
    struct model model;
    struct error err = {""};
    uint64_t n = 0;

    make_model(&model, text);
    const int fd = make_file_of(&model, none, nothing);
    ck_assert_int_eq(pread(fd, &n, sizeof n, 0), sizeof n);
    ck_assert_uint_gt(n, 4 << 20);
    ck_assert_msg(weights_open(&weights, &model, (struct file[]){file_own(fd)}, 1, NULL, &err) == 0, "%s", err.text);
    weights_close(&weights);
    close(fd);
    model_free(&model);
}

/* Names without the prefix, buffers, and a head beside the table that it is tied to. */
TEST(what_transformers_loads_is_accepted)
{
    static const char *const none[] = {NULL}, *const two[] = {"wpe.weight", "ln_f.bias", NULL};
    static const struct safetensors_plan more[] = {{"wpe.weight", 2, {5, 8}, SAFETENSORS_F16},
                                                   {"ln_f.bias", 1, {8, 1}, SAFETENSORS_BF16},
                                                   {"h.0.attn.bias", 2, {5, 5}, SAFETENSORS_I64},
                                                   {"transformer.h.1.attn.masked_bias", 0, {0, 0}, SAFETENSORS_F16},
                                                   {"lm_head.weight", 2, {17, 8}, F32},
                                                   {0}},
                                         buffers[] = {{"model.layers.0.self_attn.rotary_emb.inv_freq", 1, {2, 1}, F32},
                                                      {0}};
    struct weights weights;
    struct model model;
    struct error err = {""};

    make_model(&model, small);
    int fd = make_file_of(&model, two, more);
    ck_assert_msg(weights_open(&weights, &model, (struct file[]){file_own(fd)}, 1, NULL, &err) == 0, "%s", err.text);
    for (uint32_t t = 0; t < model.n_tensors; t++)
        ck_assert_ptr_eq(model_find(&model, weights.entries[t]->name), &model.tensors[t]);
    ck_assert_str_eq(weights.copies[WEIGHTS_HEAD]->name, "lm_head.weight");
    ck_assert_int_eq(weights_type(&weights, &model), F32);
    weights_close(&weights);
    weights_close(&weights);
    close(fd);
    model_free(&model);

    make_model(&model, decoder);
    fd = make_file_of(&model, none, buffers);
    ck_assert_msg(weights_open(&weights, &model, (struct file[]){file_own(fd)}, 1, NULL, &err) == 0, "%s", err.text);
    ck_assert_ptr_null(weights.copies[WEIGHTS_HEAD]);
    weights_close(&weights);
    close(fd);
    model_free(&model);
}

static void write_number(int fd, const char *name, const void *bytes, size_t n)
{
    struct safetensors file;

    ck_assert_int_eq(safetensors_open(&file, fd, NULL), 0);
    ck_assert_int_eq(pwrite(fd, bytes, n, (off_t)safetensors_find(&file, name)->offset), (ssize_t)n);
    safetensors_close(&file);
}

static float number_in(const struct safetensors *file, const char *name)
{
    float number;

    ck_assert_int_eq(safetensors_read(&number, safetensors_find(file, name), 0, 1, NULL), 0);
    return number;
}

/* They lie before the tensors, at the end of what is written first. */
TEST(a_checkpoint_has_the_family_s_constants)
{
    static const char apertus[] =
        "{\"model_type\": \"apertus\", \"num_hidden_layers\": 2, \"num_attention_heads\": 2, \"hidden_size\": 8, "
        "\"intermediate_size\": 12, \"vocab_size\": 17}";
    const int fd = memfd_create("weights", MFD_CLOEXEC);
    struct safetensors_layout layout;
    struct safetensors file;
    struct plan_host_files planned;
    struct model model;

    make_model(&model, apertus);
    plan_host_files(&planned, &model, 2, NUMBER_FP32);
    ck_assert_int_eq(checkpoint_lay_out_weights(&layout, &model, NULL), 0);
    ck_assert_uint_le(layout.header_bytes, planned.weights_header);
    ck_assert_int_eq(write(fd, layout.header, layout.header_bytes), (ssize_t)layout.header_bytes);
    ck_assert_int_eq(ftruncate(fd, (off_t)layout.file_bytes), 0);
    for (uint32_t t = 0; t < model.n_tensors; t++) {
        const float number = 100.f + (float)t;
        ck_assert_int_eq(pwrite(fd, &number, sizeof number, (off_t)layout.offsets[model.tensors[t].place]),
                         sizeof number);
    }
    ck_assert_int_eq(safetensors_open(&file, fd, NULL), 0);
    ck_assert_uint_eq(file.n_entries, model.n_tensors + 4);
    ck_assert_float_eq(number_in(&file, "model.layers.1.mlp.act_fn.beta"), 0.5f);
    ck_assert_float_eq(number_in(&file, "model.layers.0.mlp.act_fn.eps"), -1e-6f);
    for (uint32_t t = 0; t < model.n_tensors; t++)
        ck_assert_float_eq(number_in(&file, model.tensors[t].name), 100.f + (float)t);
    safetensors_close(&file);
    safetensors_layout_free(&layout);
    close(fd);
    model_free(&model);
}

/* Apertus's: beta of bf16, and what is at most in the exponential, of fp32 as bf16 rounds it or not. Others are
 * refused, and so are those of another size. */
TEST(a_file_s_constants_are_those_that_are_computed_with)
{
#define BETA  "model.layers.0.mlp.act_fn.beta"
#define BOUND "model.layers.0.mlp.act_fn.eps"
    static const char *const none[] = {NULL};
    static const char apertus[] =
        "{\"model_type\": \"apertus\", \"num_hidden_layers\": 1, \"num_attention_heads\": 2, \"hidden_size\": 8, "
        "\"intermediate_size\": 12, \"vocab_size\": 17}";
    static const struct safetensors_plan numbers[] = {{BETA, 0, {0, 0}, SAFETENSORS_BF16},
                                                      {BOUND, 0, {0, 0}, F32},
                                                      {0}},
                                         two[] = {{BETA, 1, {2, 1}, F32}, {0}};
    static const struct {
        uint16_t beta;
        float bound;
        const char *why; /* NULL: accepted */
    } held[] = {{0x3f00, -1e-6f, NULL},
                {0x3f00, -0x1.0cp-20f, NULL},
                {0x3f00, -2e-6f, BOUND " is -2e-06: this is not supported, it must be -1e-06"},
                {0x3f00, 0, BOUND " is 0: this is not supported, it must be -1e-06"},
                {0x3e80, -1e-6f, BETA " is 0.25: this is not supported, it must be 0.5"},
                {0x7fc0, -1e-6f, BETA " is nan: this is not supported, it must be 0.5"}};
    struct weights weights;
    struct model model;
    struct error err = {""};

    make_model(&model, apertus);
    int fd = make_file_of(&model, none, numbers);
    for (size_t i = 0; i < COUNT(held); i++) {
        write_number(fd, BETA, &held[i].beta, sizeof held[i].beta);
        write_number(fd, BOUND, &held[i].bound, sizeof held[i].bound);
        const int rc = weights_open(&weights, &model, (struct file[]){file_own(fd)}, 1, NULL, &err);
        ck_assert_int_eq(rc, held[i].why ? -EINVAL : 0);
        ck_assert_str_eq(held[i].why ? err.text : "", held[i].why ? held[i].why : "");
        weights_close(&weights);
    }
    close(fd);
    fd = make_file_of(&model, none, two);
    ck_assert_int_eq(weights_open(&weights, &model, (struct file[]){file_own(fd)}, 1, NULL, &err), -EINVAL);
    close(fd);
    model_free(&model);
#undef BETA
#undef BOUND
}

TEST(a_tied_table_may_have_the_head_s_name_alone)
{
    static const char *const table[] = {"wte.weight", NULL};
    static const struct safetensors_plan head[] = {{"lm_head.weight", 2, {17, 8}, F32}, {0}};
    struct weights weights;
    struct model model;
    struct error err = {""};

    make_model(&model, small);
    const int fd = make_file_of(&model, table, head);
    ck_assert_msg(weights_open(&weights, &model, (struct file[]){file_own(fd)}, 1, NULL, &err) == 0, "%s", err.text);
    ck_assert_ptr_null(weights.copies[WEIGHTS_HEAD]);
    ck_assert_str_eq(weights.entries[model.embedding.tables[0].tensor]->name, "lm_head.weight");
    weights_close(&weights);
    close(fd);
    model_free(&model);
}

/* As in transformers: the decoder's bias counts where it is there, beside the other or alone. */
TEST(a_bias_of_logits_may_have_the_head_s_name_too)
{
    static const char bert[] =
        "{\"model_type\": \"bert\", \"num_hidden_layers\": 1, \"num_attention_heads\": 2, \"hidden_size\": 8, "
        "\"intermediate_size\": 12, \"vocab_size\": 17}";
    static const char *const none[] = {NULL}, *const own[] = {"cls.predictions.bias", NULL};
    static const struct safetensors_plan decoder_bias[] = {{"cls.predictions.decoder.bias", 1, {17, 1}, F32}, {0}},
                                         short_one[] = {{"cls.predictions.decoder.bias", 1, {16, 1}, F32}, {0}};
    struct weights weights;
    struct model model;
    struct error err;

    make_model(&model, bert);
    const uint32_t bias = (uint32_t)(model.logit_bias - model.tensors);
    for (int alone = 0; alone < 2; alone++) {
        const int fd = make_file_of(&model, alone ? own : none, decoder_bias);
        ck_assert_msg(weights_open(&weights, &model, (struct file[]){file_own(fd)}, 1, NULL, &err) == 0, "%s",
                      err.text);
        ck_assert_str_eq(weights.entries[bias]->name, "cls.predictions.decoder.bias");
        weights_close(&weights);
        close(fd);
    }
    const int fd = make_file_of(&model, none, short_one);
    ck_assert_int_eq(weights_open(&weights, &model, (struct file[]){file_own(fd)}, 1, NULL, &err), -EINVAL);
    ck_assert_str_eq(err.text, "cls.predictions.decoder.bias is 16, the model's is 17" CONFIG);
    close(fd);
    model_free(&model);
}

/* What is missing is named, in the model's order. Nothing below the head may be, nor anything where training goes
 * on. */
TEST(a_classifier_may_begin_without_its_head)
{
    static const struct {
        const char *config, *left_out[5], *missing;
    } rows[] = {
        {"bert', 'architectures': ['BertForSequenceClassification']", {NULL}, ""},
        {"bert', 'architectures': ['BertForSequenceClassification']",
         {"classifier.weight", "classifier.bias"},
         "classifier.bias, classifier.weight"},
        {"bert', 'architectures': ['BertForSequenceClassification']",
         {"pooler.dense.weight", "pooler.dense.bias", "classifier.weight", "classifier.bias"},
         "bert.pooler.dense.weight, bert.pooler.dense.bias, classifier.bias, classifier.weight"},
        {"roberta', 'architectures': ['RobertaForSequenceClassification']",
         {"classifier.dense.weight", "classifier.dense.bias", "classifier.out_proj.weight", "classifier.out_proj.bias"},
         "classifier.dense.weight, classifier.dense.bias, classifier.out_proj.bias, classifier.out_proj.weight"},
        {"bert', 'architectures': ['BertForSequenceClassification']", {"encoder.layer.0.output.dense.bias"}, NULL},
        {"bert'", {"cls.predictions.bias"}, NULL},
    };

    for (int i = 0; i < COUNT(rows); i++) {
        const bool roberta = rows[i].config[0] == 'r';
        const struct safetensors_plan others[] = {
            {roberta ? "lm_head.layer_norm.weight" : "cls.predictions.transform.LayerNorm.gamma", 1, {8, 1}, F32},
            {roberta ? "roberta.pooler.dense.bias" : "cls.seq_relationship.bias", 1, {8, 1}, F32},
            {0}};
        static const struct safetensors_plan nothing[] = {{0}};
        char text[400], missing[WEIGHTS_MISSING_BYTES];
        struct weights weights;
        struct model model;
        struct error err = {""};
        snprintf(text, sizeof text,
                 "{'model_type': '%s, 'num_hidden_layers': 1, 'num_attention_heads': 2, 'hidden_size': 8, "
                 "'intermediate_size': 12, 'vocab_size': 17}",
                 rows[i].config);
        for (char *c = text; *c; c++)
            *c = *c == '\'' ? '"' : *c;
        make_model(&model, text);
        const int fd = make_file_of(&model, rows[i].left_out, model.config.n_labels ? others : nothing);
        const int rc = weights_open_base(&weights, &model, (struct file[]){file_own(fd)}, 1, NULL, &err);
        ck_assert_msg(rc == (rows[i].missing ? 0 : -EINVAL), "%s", err.text);
        if (rows[i].missing) {
            const uint32_t n = weights_missing(missing, &weights, &model);
            ck_assert_str_eq(missing, rows[i].missing);
            for (uint32_t k = 0; k < n; k++)
                ck_assert_ptr_nonnull(rows[i].left_out[k]);
            ck_assert_int_eq(weights_type(&weights, &model), F32);
            weights_close(&weights);
        }
        ck_assert_int_eq(weights_open(&weights, &model, (struct file[]){file_own(fd)}, 1, NULL, &err),
                         *rows[i].left_out ? -EINVAL : 0);
        weights_close(&weights);
        close(fd);
        model_free(&model);
    }
}

/* A buffer of another type, such as old checkpoints in fp16 have, is not counted. */
TEST(weights_have_the_type_that_all_of_them_have)
{
    static const enum safetensors_type types[][2] = {{F32, F32},
                                                     {SAFETENSORS_F16, SAFETENSORS_F16},
                                                     {SAFETENSORS_BF16, SAFETENSORS_BF16},
                                                     {SAFETENSORS_BF16, SAFETENSORS_F16},
                                                     {SAFETENSORS_F16, F32}};
    static const struct safetensors_plan buffer = {"rotary_emb.inv_freq", 1, {2, 1}, F32};

    for (int i = 0; i < COUNT(types); i++) {
        static struct safetensors_plan plan[MOST];
        struct weights weights;
        struct model model;
        struct error err = {""};
        make_model(&model, decoder);
        for (uint32_t t = 0; t < model.n_tensors; t++)
            plan[t] = plan_of(&model.tensors[t], types[i][t + 1 == model.n_tensors]);
        plan[model.n_tensors] = buffer;
        const int fd = make_file(plan, model.n_tensors + 1);
        ck_assert_msg(weights_open(&weights, &model, (struct file[]){file_own(fd)}, 1, NULL, &err) == 0, "%s",
                      err.text);
        ck_assert_int_eq(weights_type(&weights, &model), types[i][0] == types[i][1] ? types[i][0] : F32);
        weights_close(&weights);
        close(fd);
        model_free(&model);
    }
}

/* Llama 3 70B in fp32: 723 tensors, 282 GB. */
TEST(of_large_files_only_headers_are_read)
{
    static const char *const none[] = {NULL};
    static const char large[] =
        "{\"model_type\": \"llama\", \"num_hidden_layers\": 80, \"num_attention_heads\": 64, \"hidden_size\": 8192, "
        "\"num_key_value_heads\": 8, \"intermediate_size\": 28672, \"vocab_size\": 128256, "
        "\"tie_word_embeddings\": false}";
    struct weights weights;
    struct model model;
    struct error err = {""};

    make_model(&model, large);
    ck_assert_uint_eq(model.n_tensors, 723);
    const int fd = make_file_of(&model, none, (const struct safetensors_plan[]){{0}});
    ck_assert_int_gt(lseek(fd, 0, SEEK_END), (off_t)280 * 1000 * 1000 * 1000);
    const uint64_t before = processes_bytes_read();
    ck_assert_msg(weights_open(&weights, &model, (struct file[]){file_own(fd)}, 1, NULL, &err) == 0, "%s", err.text);
    ck_assert_uint_lt(processes_bytes_read() - before, 1 << 20);
    weights_close(&weights);
    close(fd);
    model_free(&model);
}
