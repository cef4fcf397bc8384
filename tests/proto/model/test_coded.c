/* Weights that files hold as codes: what is read, and what is refused. All numbers are exact in fp32. */
#include "tests/kit/test.h"

#include "proto/model/coded.h"
#include "proto/model/weights.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define STATE                                                                                                          \
    "{\"shape\": [2, 64], \"blocksize\": 64, \"dtype\": \"bfloat16\", \"nested_blocksize\": 256, \"nested_offset\": "  \
    "0.25}"

/* A tensor of a file that is being made. */
struct part {
    const char *name, *dtype, *shape;
    const void *bytes;
    size_t n;
};

static int make_file(const struct part *parts, size_t n)
{
    const int fd = memfd_create("coded", MFD_CLOEXEC);
    char header[4096] = "{";
    uint64_t length = 1, at = 0;

    for (size_t i = 0; i < n; i++, at += parts[i - 1].n)
        length += (uint64_t)snprintf(header + length, sizeof header - length,
                                     "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%ju,%ju]}",
                                     i ? "," : "", parts[i].name, parts[i].dtype, parts[i].shape, (uintmax_t)at,
                                     (uintmax_t)(at + parts[i].n));
    header[length++] = '}';
    ck_assert_int_eq(write(fd, &length, sizeof length), sizeof length);
    ck_assert_int_eq(write(fd, header, length), (ssize_t)length);
    for (size_t i = 0; i < n; i++)
        ck_assert_int_eq(write(fd, parts[i].bytes, parts[i].n), (ssize_t)parts[i].n);
    return fd;
}

/* Opens a file of these tensors and finds those that are coded. */
static int open_parts(struct safetensors *out, const struct part *parts, size_t n, struct error *err)
{
    const int fd = make_file(parts, n);

    ck_assert_msg(safetensors_open(out, fd, err) == 0, "%s", err->text);
    return coded_find(out, 1, err);
}

static void expect(const struct safetensors *file, const char *name, const float *want, uint64_t rows, uint64_t columns)
{
    const struct safetensors_entry *entry = safetensors_find(file, name);
    float got[128];

    ck_assert(entry && entry->n == rows * columns && entry->n_dims == 2 && entry->shape[0] == rows);
    for (uint64_t first = 0; first < 3; first++) /* also from the middle of a byte */
        for (uint64_t n = 1; n <= entry->n - first; n++) {
            ck_assert_int_eq(safetensors_read(got, entry, first, n, NULL), 0);
            ck_assert_mem_eq(got, want + first, n * sizeof *got);
        }
}

static float table[16], outer_table[256], outer_scale = 2, row_scales[2] = {127, 254};
static uint8_t codes[64], scales[2] = {8, 3}, mx[16], exponent = 128;
static int8_t rows[4] = {127, -1, 64, 0};

static const struct part whole[] = {
    {"layers.0.four.weight", "U8", "64,1", codes, sizeof codes},
    {"layers.0.four.weight.absmax", "U8", "2", scales, sizeof scales},
    {"layers.0.four.weight.nested_absmax", "F32", "1", &outer_scale, sizeof outer_scale},
    {"layers.0.four.weight.nested_quant_map", "F32", "256", outer_table, sizeof outer_table},
    {"layers.0.four.weight.quant_map", "F32", "16", table, sizeof table},
    {"layers.0.four.weight.quant_state.bitsandbytes__nf4", "U8", "104", STATE, sizeof STATE - 1},
    {"layers.0.eight.weight", "I8", "2,2", rows, sizeof rows},
    {"layers.0.eight.SCB", "F32", "2", row_scales, sizeof row_scales},
    {"layers.0.mx_blocks", "U8", "1,1,16", mx, sizeof mx},
    {"layers.0.mx_scales", "U8", "1,1", &exponent, 1},
};
enum { N = sizeof whole / sizeof *whole };

static void fill(void)
{
    for (int i = 0; i < 16; i++)
        table[i] = (float)i / 2, mx[i] = (uint8_t)(i | (15 - i) << 4);
    for (int i = 0; i < 256; i++)
        outer_table[i] = (float)i / 4;
    for (int i = 0; i < 64; i++)
        codes[i] = (uint8_t)(i * 5);
}

TEST(codes_are_read_as_the_values_they_stand_for)
{
    static const float e2m1[] = {0, .5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -.5f, -1, -1.5f, -2, -3, -4, -6};
    const float unit = 7.874015718698502e-3f, eight[] = {127 * 127.0f * unit, -127 * unit, 64 * 254.0f * unit, 0};
    float four[128], mxfp4[32];
    struct safetensors file;
    struct error err;

    fill();
    for (int i = 0; i < 128; i++)
        four[i] =
            table[i % 2 ? codes[i / 2] & 15 : codes[i / 2] >> 4] * (i < 64 ? 8 / 4.0f * 2 + .25f : 3 / 4.0f * 2 + .25f);
    for (int i = 0; i < 16; i++)
        mxfp4[2 * i] = 2 * e2m1[i], mxfp4[2 * i + 1] = 2 * e2m1[15 - i];
    ck_assert_msg(open_parts(&file, whole, N, &err) == 0, "%s", err.text);
    expect(&file, "layers.0.four.weight", four, 2, 64);
    expect(&file, "layers.0.eight.weight", eight, 2, 2);
    expect(&file, "layers.0.mx_blocks", mxfp4, 1, 32);
    ck_assert_int_eq(safetensors_find(&file, "layers.0.four.weight")->type, SAFETENSORS_BF16);
    for (size_t i = 0; i < file.n_entries; i++)
        ck_assert(file.entries[i].coded || file.entries[i].taken);
    safetensors_close(&file);
}

TEST(a_companion_that_is_missing_or_misshapen_is_refused)
{
    static const struct {
        size_t at;
        struct part instead; /* no name: left out */
        const char *words;
    } cases[] = {
        {1, {0}, "four.weight.absmax is missing"},
        {4, {0}, "four.weight.quant_map is missing"},
        {2, {"layers.0.four.weight.nested_absmax", "F32", "2", outer_table, 8}, "has 2 elements of F32, not 1 of F32"},
        {0, {"layers.0.four.weight", "U8", "63,1", codes, 63}, "has 128 elements of 4 bits, its codes are 63 bytes"},
        {5, {"layers.0.four.weight.quant_state.bitsandbytes__nf4", "U8", "2", "{}", 2}, "must have a shape"},
        {5, {"layers.0.four.weight.quant_state.bitsandbytes__nf4", "U8", "1", "x", 1}, "is not a JSON object"},
        {6, {0}, "there is no weight of type I8"},
        {7, {"layers.0.eight.SCB", "F32", "1", row_scales, 4}, "has 1 elements of F32, not 2"},
        {8, {"layers.0.mx_blocks", "U8", "16", mx, 16}, "as MXFP4's blocks are"},
        {9, {0}, "layers.0.mx_scales is missing"},
    };

    fill();
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        struct part parts[N];
        struct safetensors file;
        struct error err;
        size_t n = 0;
        for (size_t i = 0; i < N; i++)
            if (i != cases[c].at || cases[c].instead.name)
                parts[n++] = i == cases[c].at ? cases[c].instead : whole[i];
        ck_assert_int_eq(open_parts(&file, parts, n, &err), -EINVAL);
        ck_assert_holds(err.text, cases[c].words);
        safetensors_close(&file);
    }
}

static enum form form_of(const struct part *parts, const char *name)
{
    struct safetensors file;
    struct error err;

    ck_assert_msg(open_parts(&file, parts, N, &err) == 0, "%s", err.text);
    const enum form form = coded_form(safetensors_find(&file, name)->coded);
    safetensors_close(&file);
    return form;
}

/* Blocks of another size, and another table, have other scales and codes. */
TEST(the_form_is_the_one_that_codes_the_same_values_again)
{
    static const char by_128[] =
        "{\"shape\": [2, 64], \"blocksize\": 128, \"dtype\": \"bfloat16\", \"nested_blocksize\": "
        "256, \"nested_offset\": 0.25}";
    struct part parts[N];

    fill();
    memcpy(parts, whole, sizeof parts);
    ck_assert_int_eq(form_of(parts, "layers.0.eight.weight"), FORM_INT8);
    ck_assert_int_eq(form_of(parts, "layers.0.mx_blocks"), FORM_BF16);
    ck_assert_int_eq(form_of(parts, "layers.0.four.weight"), FORM_VALUES);
    memcpy(table, form_nf4, sizeof table);
    ck_assert_int_eq(form_of(parts, "layers.0.four.weight"), FORM_NF4);
    parts[1].shape = "1", parts[1].n = 1;
    parts[5].shape = "105", parts[5].bytes = by_128, parts[5].n = sizeof by_128 - 1;
    ck_assert_int_eq(form_of(parts, "layers.0.four.weight"), FORM_VALUES);
}

/* A Llama of one layer: matrices of layers in 8 bits, all else in bf16; but the tensor `other`, which is F32. */
static enum form form_of_model(const char *other)
{
    static const char config[] = "{\"model_type\": \"llama\", \"num_hidden_layers\": 1, \"num_attention_heads\": 2, "
                                 "\"hidden_size\": 8, \"intermediate_size\": 12, \"vocab_size\": 17}";
    static const char zeros[17 * 8 * 4];
    static char names[40][80], shapes[40][24];
    struct model_config c;
    struct model model;
    struct part parts[40];
    struct weights weights;
    struct error err;
    size_t n = 0;

    ck_assert_msg(model_config_parse(&c, config, strlen(config), &err) == 0, "%s", err.text);
    ck_assert_int_eq(model_init(&model, &c, NULL), 0);
    for (uint32_t t = 0; t < model.n_tensors; t++) {
        const struct model_tensor *tensor = &model.tensors[t];
        const bool plain = other && strcmp(other, tensor->name) == 0;
        const bool coded = !plain && tensor->n_dims == 2 && strstr(tensor->name, "proj");
        snprintf(shapes[n], sizeof *shapes, tensor->n_dims == 2 ? "%u,%u" : "%u", (unsigned)tensor->shape[0],
                 (unsigned)tensor->shape[1]);
        parts[n] = (struct part){tensor->name,
                                 plain   ? "F32"
                                 : coded ? "I8"
                                         : "BF16",
                                 shapes[n], zeros,
                                 tensor->n * (plain   ? 4
                                              : coded ? 1
                                                      : 2)};
        n++;
        if (!coded)
            continue;
        snprintf(names[n], sizeof *names, "%.*s.SCB", (int)(strlen(tensor->name) - strlen(".weight")), tensor->name);
        snprintf(shapes[n], sizeof *shapes, "%u", (unsigned)tensor->shape[0]);
        parts[n] = (struct part){names[n], "F32", shapes[n], zeros, 4 * tensor->shape[0]};
        n++;
    }
    const struct file file = {.fd = make_file(parts, n)};
    ck_assert_msg(weights_open(&weights, &model, &file, 1, NULL, &err) == 0, "%s", err.text);
    const enum form form = weights_form(&weights, &model);
    weights_close(&weights);
    model_free(&model);
    close(file.fd);
    return form;
}

TEST(a_model_has_a_form_if_all_its_tensors_keep_their_values_in_it)
{
    ck_assert_int_eq(form_of_model(NULL), FORM_INT8);
    ck_assert_int_eq(form_of_model("model.layers.0.mlp.up_proj.weight"), FORM_VALUES);
    ck_assert_int_eq(form_of_model("model.norm.weight"), FORM_VALUES);
    ck_assert_int_eq(form_of_model("model.embed_tokens.weight"), FORM_VALUES);
}
