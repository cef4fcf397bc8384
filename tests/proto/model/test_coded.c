/* Weights that files hold as codes: what is read, and what is refused. All numbers are exact in fp32. */
#include "tests/kit/test.h"

#include "proto/base/size.h"
#include "proto/model/coded.h"
#include "proto/model/weights.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
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

/* Opens a file of these tensors and finds those that are coded, under a config that says this of fp8. */
static int open_quantized(struct safetensors *out, const struct part *parts, size_t n, struct quantized quantized,
                          struct error *err)
{
    const int fd = make_file(parts, n);

    ck_assert_msg(safetensors_open(out, fd, err) == 0, "%s", err->text);
    return coded_find(out, 1, &quantized, err);
}

static int open_parts(struct safetensors *out, const struct part *parts, size_t n, struct error *err)
{
    return open_quantized(out, parts, n, (struct quantized){0}, err);
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

/* ---- fp8 ---- */

/* A descriptor as another process would serve it. */
struct served {
    struct file_server server;
    int fd;
    void *bytes; /* (FILE_WINDOW) */
};

static int served_window(struct file_server *server, const void **out, uint32_t index, uint64_t offset, size_t n,
                         size_t ahead, struct error *err)
{
    struct served *const s = (struct served *)server;

    (void)index, (void)ahead, (void)err;
    ck_assert_uint_le(n, FILE_WINDOW);
    ck_assert_int_eq(pread(s->fd, s->bytes, n, (off_t)offset), (ssize_t)n);
    *out = s->bytes;
    return 0;
}

static int served_act(struct file_server *server, enum file_act act, uint32_t index, uint64_t offset, const void *bytes,
                      size_t n, uint64_t *size, struct error *err)
{
    (void)index, (void)offset, (void)bytes, (void)n, (void)err;
    ck_assert_int_eq(act, FILE_SIZE);
    *size = (uint64_t)lseek(((struct served *)server)->fd, 0, SEEK_END);
    return 0;
}

static void served_open(struct served *out, int fd)
{
    *out = (struct served){{served_window, served_act}, fd, malloc(FILE_WINDOW)};
}

static void served_close(struct served *served)
{
    free(served->bytes);
    close(served->fd);
}

/* NaNs are equal whatever their bits. */
static void check_values(const float *got, const float *want, uint64_t n, const char *name)
{
    for (uint64_t i = 0; i < n; i++)
        ck_assert_msg(memcmp(&got[i], &want[i], sizeof *got) == 0 || (isnan(got[i]) && isnan(want[i])),
                      "%s: value %ju is %a, not %a", name, (uintmax_t)i, (double)got[i], (double)want[i]);
}

/* Elements first .. first+n-1, of which the second half is converted apart, as two threads would. */
static void check_window(const struct safetensors_entry *entry, const float *want, uint64_t first, uint64_t n)
{
    static float room[SAFETENSORS_SCALES];
    struct safetensors_window window = {.scales = room};
    float *const got = malloc(n * sizeof *got);

    ck_assert_int_eq(safetensors_window(&window, entry, first, n, 0, NULL), 0);
    safetensors_convert(got, entry, &window, first, n / 2);
    safetensors_convert(got + n / 2, entry, &window, first + n / 2, n - n / 2);
    check_values(got, want + first, n, entry->name);
    free(got);
}

/* All ranges of a tensor that is small. */
static void check_ranges(const struct safetensors_entry *entry, const float *want)
{
    static float got[512];

    ck_assert(entry->n <= 512 && entry->coded && entry->type == SAFETENSORS_BF16);
    for (uint64_t first = 0; first < entry->n; first++)
        for (uint64_t n = 1; n <= entry->n - first; n += n < 4 ? 1 : 29) {
            if (entry->file.server) {
                check_window(entry, want, first, n);
                continue;
            }
            ck_assert_int_eq(safetensors_read(got, entry, first, n, NULL), 0);
            check_values(got, want + first, n, entry->name);
        }
}

static const struct {
    const char *name;
    struct quantized quantized;
    unsigned n; /* tensors in fp8 */
} vectors[] = {{"fp8_blocks", {true, 2, 32}, 4}, {"fp8_scalar", {true, 0, 0}, 2}};

static const char *vectors_path(const char *name)
{
    static char path[256];

    snprintf(path, sizeof path, TESTS_DIR "/fixtures/vectors/%s.safetensors", name);
    return path;
}

/* As tests/oracle/make_fp8.py writes them: beside each tensor what torch makes of it. Odd: the file is served. */
TEST_EACH(fp8_is_read_as_torch_reads_it, 2 * COUNT(vectors))
{
    const int v = _i / 2, fd = open(vectors_path(vectors[v].name), O_RDONLY | O_CLOEXEC);
    struct reserve reserve = {malloc(1 << 20), 1 << 20, 0};
    struct served served;
    struct safetensors file;
    struct error err;
    unsigned n = 0;

    served_open(&served, fd);
    const struct file from = _i % 2 ? file_served(&served.server, 0) : file_own(fd);
    ck_assert_msg(safetensors_open_within(&file, &from, &reserve, &err) == 0, "%s", err.text);
    ck_assert_msg(coded_find(&file, 1, &vectors[v].quantized, &err) == 0, "%s", err.text);
    for (size_t i = 0; i < file.n_entries; i++) {
        const struct safetensors_entry *entry = &file.entries[i];
        static float want[512];
        char name[80];
        snprintf(name, sizeof name, "want.%s", entry->name);
        const struct safetensors_entry *exact = safetensors_find(&file, name);
        if (!exact) {
            ck_assert(entry->taken || strncmp(entry->name, "want.", 5) == 0);
            continue;
        }
        ck_assert_int_eq(safetensors_read(want, exact, 0, exact->n, NULL), 0);
        check_ranges(entry, want);
        ck_assert_int_eq(coded_form(entry->coded), FORM_VALUES);
        n++;
    }
    ck_assert_uint_eq(n, vectors[v].n);
    free(reserve.memory);
    served_close(&served);
}

/* By the definition: a sign, 4 bits of exponent with a bias of 7, 3 more bits. */
static float e4m3(uint8_t code)
{
    const int raised = code >> 3 & 15, fraction = code & 7;
    const float magnitude = raised ? ldexpf((float)(8 + fraction), raised - 10) : ldexpf((float)fraction, -9);

    return (code & 127) == 127 ? NAN : code & 128 ? -magnitude : magnitude;
}

/* Rows longer than what is read at a time; and so long that a window is bounded by its scales. */
static const struct {
    uint64_t rows, columns;
    struct quantized quantized;
} wides[] = {{5, 9000, {true, 2, 32}}, {3, 32 * 16384, {true, 1, 32}}, {1 << 12, 40, {true, 1, 32}}};

TEST_EACH(fp8_of_long_rows_is_read_in_parts, COUNT(wides))
{
    const uint64_t columns = wides[_i].columns, n = wides[_i].rows * columns, block = 32,
                   grid[2] = {size_pieces(wides[_i].rows, wides[_i].quantized.block_rows), size_pieces(columns, block)};
    uint8_t *const fp8 = malloc(n);
    float *const factors = malloc(grid[0] * grid[1] * sizeof *factors), *const want = malloc(n * sizeof *want);
    char shape[2][40];
    struct safetensors file;
    struct error err;

    for (uint64_t i = 0; i < grid[0] * grid[1]; i++)
        factors[i] = (float)(i % 1009 + 1) / 256;
    for (uint64_t i = 0; i < n; i++) {
        fp8[i] = (uint8_t)(i * 2654435761u >> 13);
        want[i] = e4m3(fp8[i]) * factors[i / columns / wides[_i].quantized.block_rows * grid[1] + i % columns / block];
    }
    snprintf(shape[0], sizeof *shape, "%ju,%ju", (uintmax_t)wides[_i].rows, (uintmax_t)columns);
    snprintf(shape[1], sizeof *shape, "%ju,%ju", (uintmax_t)grid[0], (uintmax_t)grid[1]);
    const struct part parts[] = {{"layers.0.attention.output.weight", "F8_E4M3", shape[0], fp8, n},
                                 {"layers.0.attention.output.weight_scale_inv", "F32", shape[1], factors,
                                  grid[0] * grid[1] * sizeof *factors}};
    ck_assert_msg(open_quantized(&file, parts, 2, wides[_i].quantized, &err) == 0, "%s", err.text);
    struct safetensors_entry *entry = safetensors_find(&file, parts[0].name);
    float *const got = malloc(n * sizeof *got);
    for (uint64_t first = 0; first < n; first += n / 3 + 7) {
        ck_assert_int_eq(safetensors_read(got, entry, first, n - first, NULL), 0);
        check_values(got, want + first, n - first, entry->name);
    }
    struct served served;
    served_open(&served, dup(entry->file.fd));
    struct coded coded = *entry->coded;
    coded.codes.file = entry->file = file_served(&served.server, 0), entry->coded = &coded;
    struct safetensors_entry from = *coded.scales;
    from.file = entry->file, coded.scales = &from;
    for (uint64_t first = columns - 1, most = safetensors_most(entry), now; first < n; first += now) {
        now = n - first < most ? n - first : most;
        check_window(entry, want, first, now);
    }
    served_close(&served);
    safetensors_close(&file);
    free(fp8), free(factors), free(want), free(got);
}

/* Two tensors and what belongs to them, of which a case has one otherwise. */
static uint8_t zeros[1 << 20];
static const struct part fp8_whole[] = {
    {"layers.0.attention.output.weight", "F8_E4M3", "3,40", zeros, 120},
    {"layers.0.attention.output.weight_scale_inv", "BF16", "2,2", zeros, 8},
    {"layers.0.attention.output.activation_scale", "BF16", "", zeros, 2},
    {"layers.0.feed_forward.output.weight", "BF16", "1", zeros, 2},
};
enum { FP8_PARTS = sizeof fp8_whole / sizeof *fp8_whole };

static const struct quantized by_2 = {true, 2, 32}, by_tensor = {true, 0, 0};

static const struct {
    const struct quantized *quantized;
    size_t at;
    struct part instead; /* no name: left out */
    const char *words;
} fp8_faults[] = {
    {&by_2,
     1,
     {"layers.0.attention.output.weight_scale_inv", "BF16", "3,1", zeros, 6},
     "weight_scale_inv is 3 x 1; for a tensor that is 3 x 40, weight_block_size in config.json makes it 2 x 2"},
    {&by_2, 1, {"layers.0.attention.output.weight_scale_inv", "BF16", "4", zeros, 8}, "weight_scale_inv is 4; for"},
    {&by_2, 1, {"layers.0.attention.output.weight_scale_inv", "F32", "", zeros, 4}, "is a single number; for"},
    {&by_tensor,
     3,
     {0},
     "weight_scale_inv is 2 x 2; for a tensor that is 3 x 40, weight_block_size in config.json makes "
     "it a single number"},
    {&by_2,
     1,
     {"layers.0.attention.output.weight_scale_inv", "U8", "2,2", zeros, 4},
     "is of type U8, not F32, F16, BF16 or F8_E8M0"},
    {&by_2,
     3,
     {"layers.0.feed_forward.output_scale_inv", "F32", "", zeros, 4},
     "output_scale_inv scales a tensor of type F8_E4M3, and layers.0.feed_forward.output is missing"},
    {&by_2, 0, {"layers.0.attention.output.weight", "F8_E5M2", "3,40", zeros, 120}, "output.weight is F8_E5M2"},
    {&by_2, 0, {"layers.0.attention.output.weight", "BF16", "3,20", zeros, 120}, "output.weight is BF16"},
    {&by_2,
     0,
     {"layers.0.attention.output.weight", "F8_E4M3", "3,4,10", zeros, 120},
     "no matrix, as weight_block_size"},
    {&by_2, 0, {"layers.0.attention.output.weight", "F8_E4M3", "0,40", zeros, 0}, "and has no elements"},
    {&by_2,
     0,
     {"layers.0.attention.output.weight", "F8_E4M3", "1,524800", zeros, 524800},
     "has 16400 scales in a row, where 16384 are the most"},
};

TEST_EACH(fp8_that_cannot_be_read_is_refused, COUNT(fp8_faults))
{
    struct part parts[FP8_PARTS];
    struct safetensors file;
    struct error err;
    size_t n = 0;

    for (size_t i = 0; i < FP8_PARTS; i++)
        if (i != fp8_faults[_i].at || fp8_faults[_i].instead.name)
            parts[n++] = i == fp8_faults[_i].at ? fp8_faults[_i].instead : fp8_whole[i];
    ck_assert_int_eq(open_quantized(&file, parts, n, *fp8_faults[_i].quantized, &err), -EINVAL);
    ck_assert_holds(err.text, fp8_faults[_i].words);
    safetensors_close(&file);
}

/* It may be outside of the model: who knows the model's tensors refuses it there (weights_open). */
TEST(a_tensor_in_fp8_without_a_scale_stays_as_it_is)
{
    struct safetensors file;
    struct error err;

    ck_assert_msg(open_quantized(&file, fp8_whole, 1, by_2, &err) == 0, "%s", err.text);
    const struct safetensors_entry *entry = safetensors_find(&file, fp8_whole[0].name);
    ck_assert(!entry->coded && !safetensors_is_real(entry) && entry->n == 120);
    safetensors_close(&file);
}

/* A scale that quantises a run's activations belongs to a tensor in fp8; that of any other one is a stranger. */
TEST(scales_of_activations_are_passed_over)
{
    struct part parts[FP8_PARTS];
    struct safetensors file;
    struct error err;

    memcpy(parts, fp8_whole, sizeof parts);
    ck_assert_msg(open_quantized(&file, parts, FP8_PARTS, by_2, &err) == 0, "%s", err.text);
    ck_assert(safetensors_find(&file, parts[2].name)->taken);
    safetensors_close(&file);
    parts[2].name = "layers.0.feed_forward.output.activation_scale";
    ck_assert_msg(open_quantized(&file, parts, FP8_PARTS, by_2, &err) == 0, "%s", err.text);
    ck_assert(!safetensors_find(&file, parts[2].name)->taken);
    safetensors_close(&file);
}

/* A tensor that is the scale of one and the codes of another. */
TEST(a_scale_that_is_quantised_itself_is_refused)
{
    static const char state[] = "{\"shape\": [8], \"blocksize\": 32}";
    const struct part parts[] = {
        {"layers.0.output.weight", "F8_E4M3", "3,40", zeros, 120},
        {"layers.0.output.weight_scale_inv", "F32", "", zeros, 4},
        {"layers.0.output.weight_scale_inv.absmax", "F32", "1", zeros, 4},
        {"layers.0.output.weight_scale_inv.quant_map", "F32", "16", zeros, 64},
        {"layers.0.output.weight_scale_inv.quant_state.bitsandbytes__nf4", "U8", "31", state, sizeof state - 1},
    };
    struct safetensors file;
    struct error err;

    ck_assert_int_eq(open_quantized(&file, parts, COUNT(parts), by_tensor, &err), -EINVAL);
    ck_assert_holds(err.text, "weight_scale_inv is quantised in two ways");
    safetensors_close(&file);
}
