/* A header's entries have memory as if each had LEAST_MEMBER_BYTES of it (safetensors.c). Real ones are longer, so
 * memory is left over, and forms of tensors lie there. A file whose names are too short for that is refused.
 *
 * Four forms are read: 4 bits with a table (bitsandbytes' nf4 and fp4), rows of int8 (bitsandbytes), MXFP4, and fp8. In
 * each, an element is a code times the scale of its block. What belongs to one tensor lies in several entries of the
 * file, which are found here by their names, and marked as taken. Blocks are runs of elements; those of fp8 are
 * rectangles, so that neighbours in a column of elements share a scale, and neighbours in a row need not. */
#include "proto/model/coded.h"

#include "proto/base/form.h"
#include "proto/base/size.h"
#include "proto/base/text.h"
#include "proto/model/weights.h"

#include <assert.h>
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MOST_STATE_BYTES = 4096,
    NAME_BYTES = 256,
    OUTER_TABLE = 256,
    MX_BLOCK = 32,
    LEAST_BLOCK = 32,
    CODED_WINDOW = 1 << 20 /* elements */
};

static const char state_mark[] = ".quant_state.bitsandbytes__", scale_mark[] = "_scale_inv",
                  activation_mark[] = ".activation_scale";

/* ---- finding ---------------------------------------------------------------------------------------------------- */

struct finding {
    struct safetensors *files;
    unsigned n_files;
    const struct quantized *quantized;
};

static struct safetensors_entry *find(const struct finding *f, const char *stem, size_t n, const char *end)
{
    struct safetensors_entry *entry = NULL;
    char name[NAME_BYTES];

    if ((size_t)snprintf(name, sizeof name, "%.*s%s", (int)n, stem, end) >= sizeof name)
        return NULL;
    for (unsigned i = 0; !entry && i < f->n_files; i++)
        entry = safetensors_find(&f->files[i], name);
    return entry;
}

/* Finds a companion with n elements of a type, and marks it. */
static int coded_take(const struct safetensors_entry **out, const struct finding *f, const char *stem, size_t n_stem,
                      const char *end, const char *dtype, uint64_t n, struct error *err)
{
    struct safetensors_entry *entry = find(f, stem, n_stem, end);

    if (!entry)
        return error_set(err, -EINVAL, "%.*s%s is missing: are all files of these weights there?", (int)n_stem, stem,
                         end);
    if (strcmp(entry->dtype, dtype) != 0 || entry->n != n)
        return error_set(err, -EINVAL, "%.100s has %ju elements of %s, not %ju of %s", entry->name, (uintmax_t)entry->n,
                         entry->dtype, (uintmax_t)n, dtype);
    entry->taken = true;
    *out = entry;
    return 0;
}

/* Memory for the form of a tensor: its kind and its codes are set. The codes' own entry is copied, as the original
 * is then changed to look like the tensor that it stands for. */
static int coded_begin(struct coded **out, const struct finding *f, enum coded_kind kind,
                       struct safetensors_entry *codes, struct error *err)
{
    struct coded *coded = NULL;

    if (codes->coded || codes->taken) /* or it scales another one */
        return error_set(err, -EINVAL, "%.100s is quantised in two ways", codes->name);
    for (unsigned i = 0; !coded && i < f->n_files; i++)
        coded = reserve_take(&f->files[i].spare, sizeof *coded);
    if (!coded)
        return error_set(err, -ENOMEM, "no memory for the form of %.100s: names in its header are too short",
                         codes->name);
    coded->kind = kind;
    coded->codes = *codes;
    *out = coded;
    return 0;
}

/* What a quantisation state says: {"shape": [128, 64], "blocksize": 64, "dtype": "bfloat16", "nested_blocksize":
 * ...} Sizes are a stranger's: all are checked against the bytes that are there. */
static int read_state(struct safetensors_entry *codes, struct coded *coded, const json_t *state, struct error *err)
{
    const json_t *shape = json_object_get(state, "shape");
    const json_int_t block = json_integer_value(json_object_get(state, "blocksize"));
    const char *type = json_string_value(json_object_get(state, "dtype"));
    const json_t *nested = json_object_get(state, "nested_blocksize");
    const json_int_t outer = json_integer_value(nested);
    uint64_t n = 1;

    codes->type = type && strcmp(type, "bfloat16") == 0  ? SAFETENSORS_BF16
                  : type && strcmp(type, "float16") == 0 ? SAFETENSORS_F16
                                                         : SAFETENSORS_F32;
    coded->block = (uint64_t)block;
    coded->outer_block = (uint64_t)outer;
    coded->outer_offset = (float)json_number_value(json_object_get(state, "nested_offset"));
    if (json_array_size(shape) < 1 || json_array_size(shape) > 2 || block < LEAST_BLOCK || block % 2 ||
        (nested && outer < LEAST_BLOCK))
        return error_set(err, -EINVAL,
                         "%.100s: its quant_state must have a shape of one or two sizes, and even block sizes of %d "
                         "or more",
                         codes->name, LEAST_BLOCK);
    codes->n_dims = (uint32_t)json_array_size(shape);
    for (uint32_t i = 0; i < codes->n_dims; i++) {
        const json_int_t size = json_integer_value(json_array_get(shape, i));
        if (size < 1 || __builtin_mul_overflow(n, (uint64_t)size, &n))
            return error_set(err, -EINVAL, "%.100s: size %u in its quant_state is not one of a tensor", codes->name, i);
        codes->shape[i] = (uint64_t)size;
    }
    if (safetensors_entry_bytes(&coded->codes) != size_pieces(n, 2))
        return error_set(err, -EINVAL, "%.100s: its quant_state has %ju elements of 4 bits, its codes are %ju bytes",
                         codes->name, (uintmax_t)n, (uintmax_t)safetensors_entry_bytes(&coded->codes));
    codes->n = n;
    return 0;
}

/* Scales may be coded themselves (double quantisation): then outer ones scale them. */
static int coded_take_tables(const struct finding *f, struct coded *coded, const char *stem, size_t n_stem, uint64_t n,
                             struct error *err)
{
    const uint64_t n_scales = size_pieces(n, coded->block);
    int rc = coded_take(&coded->table, f, stem, n_stem, ".quant_map", "F32", 16, err);

    if (rc == 0)
        rc = coded_take(&coded->scales, f, stem, n_stem, ".absmax", coded->outer_block ? "U8" : "F32", n_scales, err);
    if (rc != 0 || !coded->outer_block)
        return rc;
    rc = coded_take(&coded->outer_table, f, stem, n_stem, ".nested_quant_map", "F32", OUTER_TABLE, err);
    return rc != 0 ? rc
                   : coded_take(&coded->outer_scales, f, stem, n_stem, ".nested_absmax", "F32",
                                size_pieces(n_scales, coded->outer_block), err);
}

static int find_table(const struct finding *f, struct safetensors_entry *state, struct error *err)
{
    const size_t n_stem = (size_t)(strstr(state->name, state_mark) - state->name);
    struct safetensors_entry *codes = find(f, state->name, n_stem, "");
    char text[MOST_STATE_BYTES];
    const uint64_t n = safetensors_entry_bytes(state);
    struct coded *coded = NULL;

    state->taken = true;
    if (!codes || n > sizeof text)
        return error_set(err, -EINVAL, codes ? "%.100s is longer than 4096 bytes" : "%.100s: its tensor is missing",
                         state->name);
    int rc = coded_begin(&coded, f, CODED_TABLE, codes, err);
    if (rc == 0)
        rc = file_read(&state->file, text, n, state->offset, err);
    if (rc != 0)
        return rc;
    json_t *object = json_loadb(text, n, JSON_REJECT_DUPLICATES, NULL);
    rc = json_is_object(object) ? read_state(codes, coded, object, err)
                                : error_set(err, -EINVAL, "%.100s is not a JSON object", state->name);
    json_decref(object);
    if (rc == 0)
        rc = coded_take_tables(f, coded, state->name, n_stem, codes->n, err);
    codes->coded = coded;
    return rc;
}

static int coded_find_rows(const struct finding *f, struct safetensors_entry *scales, struct error *err)
{
    const size_t n_stem = strlen(scales->name) - strlen(".SCB");
    struct safetensors_entry *codes = find(f, scales->name, n_stem, ".weight"),
                             *layout = find(f, scales->name, n_stem, ".weight_format");
    struct coded *coded = NULL;
    uint8_t format = 0;
    int rc = 0;

    if (!codes || strcmp(codes->dtype, "I8") != 0 || codes->n_dims != 2 || codes->shape[1] == 0)
        return error_set(err, -EINVAL, "%.100s: there is no weight of type I8 that it scales", scales->name);
    if (layout) {
        layout->taken = true;
        if (safetensors_entry_bytes(layout) != 1)
            return error_set(err, -EINVAL, "%.100s is not one byte", layout->name);
        rc = file_read(&layout->file, &format, 1, layout->offset, err);
    }
    if (rc == 0 && format != 0)
        rc = error_set(err, -EINVAL, "%.100s is %u: only 0, rows in order, is read", layout->name, format);
    if (rc == 0)
        rc = coded_begin(&coded, f, CODED_ROWS, codes, err);
    if (rc != 0)
        return rc;
    coded->block = codes->shape[1];
    codes->type = SAFETENSORS_F32;
    codes->coded = coded;
    return coded_take(&coded->scales, f, scales->name, n_stem, ".SCB", "F32", codes->shape[0], err);
}

static int find_mxfp4(const struct finding *f, struct safetensors_entry *codes, struct error *err)
{
    const size_t n_stem = strlen(codes->name) - strlen("_blocks");
    struct coded *coded = NULL;

    if (strcmp(codes->dtype, "U8") != 0 || codes->n_dims != 3 || codes->shape[2] != MX_BLOCK / 2)
        return error_set(err, -EINVAL, "%.100s is not (rows, blocks, %d) of U8, as MXFP4's blocks are", codes->name,
                         MX_BLOCK / 2);
    const int rc = coded_begin(&coded, f, CODED_MXFP4, codes, err);
    if (rc != 0)
        return rc;
    coded->block = MX_BLOCK;
    codes->type = SAFETENSORS_F32;
    codes->n_dims = 2;
    codes->shape[1] *= MX_BLOCK;
    codes->n *= 2; /* fits: the codes do */
    codes->coded = coded;
    return coded_take(&coded->scales, f, codes->name, n_stem, "_scales", "U8", coded->codes.n / (MX_BLOCK / 2), err);
}

static bool is_fp8(const struct safetensors_entry *entry)
{
    return entry && strcmp(entry->dtype, "F8_E4M3") == 0;
}

/* Sizes of blocks and of the grid of scales, `shape`, that they give. A tensor with one scale is one block. */
static int fp8_lay_out(struct coded *coded, uint64_t shape[2], const struct quantized *quantized, struct error *err)
{
    const struct safetensors_entry *codes = &coded->codes;
    const bool has_blocks = quantized->block_rows > 0;

    if (codes->n == 0 || (has_blocks && codes->n_dims != 2))
        return error_set(err, -EINVAL, "%.100s is of type F8_E4M3, and %s", codes->name,
                         codes->n == 0 ? "has no elements" : "no matrix, as weight_block_size is for");
    coded->columns = codes->n_dims > 0 ? codes->shape[codes->n_dims - 1] : 1;
    coded->block_rows = has_blocks ? quantized->block_rows : codes->n / coded->columns;
    coded->block = has_blocks ? quantized->block_columns : coded->columns;
    coded->scale_columns = size_pieces(coded->columns, coded->block);
    shape[0] = size_pieces(codes->n / coded->columns, coded->block_rows);
    shape[1] = coded->scale_columns;
    if (shape[1] > SAFETENSORS_SCALES / 2)
        return error_set(err, -EINVAL, "%.100s has %ju scales in a row, where %d are the most", codes->name,
                         (uintmax_t)shape[1], SAFETENSORS_SCALES / 2);
    return 0;
}

static int fp8_check_scales(const struct safetensors_entry *scales, const struct coded *coded, const uint64_t shape[2],
                            struct error *err)
{
    static const char *const types[] = {"F32", "F16", "BF16", "F8_E8M0"};
    const bool is_grid = scales->n_dims == 2 && scales->shape[0] == shape[0] && scales->shape[1] == shape[1];
    char got[WEIGHTS_SHAPE_BYTES], want[WEIGHTS_SHAPE_BYTES], whole[WEIGHTS_SHAPE_BYTES];
    bool is_read = false;

    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        is_read = is_read || strcmp(scales->dtype, types[i]) == 0;
    if (scales->coded)
        return error_set(err, -EINVAL, "%.100s is quantised itself", scales->name);
    if (!is_read)
        return error_set(err, -EINVAL, "%.100s is of type %s, not F32, F16, BF16 or F8_E8M0", scales->name,
                         scales->dtype);
    if (is_grid || (scales->n == 1 && shape[0] * shape[1] == 1))
        return 0;
    weights_shape(want, shape, shape[0] * shape[1] == 1 ? 0 : 2);
    return error_set(err, -EINVAL,
                     "%.100s is %s; for a tensor that is %s, weight_block_size in config.json makes it %s",
                     scales->name, weights_shape(got, scales->shape, scales->n_dims),
                     weights_shape(whole, coded->codes.shape, coded->codes.n_dims), want);
}

static int find_fp8(const struct finding *f, struct safetensors_entry *codes, struct error *err)
{
    struct safetensors_entry *scales = find(f, codes->name, strlen(codes->name), scale_mark);
    struct coded *coded = NULL;
    uint64_t shape[2];

    if (!scales) /* the model's own are refused where its tensors are known: weights.c */
        return 0;
    int rc = coded_begin(&coded, f, CODED_FP8, codes, err);
    if (rc == 0)
        rc = fp8_lay_out(coded, shape, f->quantized, err);
    if (rc == 0)
        rc = fp8_check_scales(scales, coded, shape, err);
    if (rc != 0)
        return rc;
    coded->scales = scales;
    scales->taken = true;
    codes->type = SAFETENSORS_BF16;
    codes->coded = coded;
    return 0;
}

/* A scale whose tensor is there in another type would be left out silently. */
static int fp8_check_scaled(const struct finding *f, const struct safetensors_entry *scales, struct error *err)
{
    const size_t n_stem = strlen(scales->name) - strlen(scale_mark);
    const struct safetensors_entry *codes = find(f, scales->name, n_stem, "");

    if (is_fp8(codes))
        return 0;
    return error_set(err, -EINVAL, "%.100s scales a tensor of type F8_E4M3, and %.*s is %s", scales->name, (int)n_stem,
                     scales->name, codes ? codes->dtype : "missing");
}

static void fp8_pass_activation(const struct finding *f, struct safetensors_entry *scale)
{
    if (is_fp8(find(f, scale->name, strlen(scale->name) - strlen(activation_mark), ".weight")))
        scale->taken = true;
}

static int coded_find_entry(const struct finding *f, struct safetensors_entry *entry, struct error *err)
{
    if (strstr(entry->name, state_mark))
        return find_table(f, entry, err);
    if (text_ends_with(entry->name, ".SCB"))
        return coded_find_rows(f, entry, err);
    if (text_ends_with(entry->name, "_blocks"))
        return find_mxfp4(f, entry, err);
    if (!f->quantized->fp8)
        return 0;
    if (text_ends_with(entry->name, scale_mark))
        return fp8_check_scaled(f, entry, err);
    if (text_ends_with(entry->name, activation_mark))
        fp8_pass_activation(f, entry);
    return is_fp8(entry) ? find_fp8(f, entry, err) : 0;
}

int coded_find(struct safetensors *files, unsigned n_files, const struct quantized *quantized, struct error *err)
{
    const struct finding f = {files, n_files, quantized};
    int rc = 0;

    for (unsigned i = 0; i < n_files; i++)
        for (size_t k = 0; rc == 0 && k < files[i].n_entries; k++)
            rc = coded_find_entry(&f, &files[i].entries[k], err);
    return rc;
}

/* ---- reading ---------------------------------------------------------------------------------------------------- */

static int coded_read_numbers(float *out, const struct safetensors_entry *entry, uint64_t first, uint64_t n,
                              struct error *err)
{
    return file_read(&entry->file, out, n * sizeof *out, entry->offset + first * sizeof *out, err);
}

/* Scales that are codes: table[code] * outer scale, rounded, then the offset. Rounded in between, as bitsandbytes
 * does. */
static int read_nested(float *out, const struct coded *coded, uint64_t first, uint64_t n, struct error *err)
{
    enum { PART = 4096 };
    float table[OUTER_TABLE], outer[PART / LEAST_BLOCK + 1];
    uint8_t codes[PART];
    int rc = coded_read_numbers(table, coded->outer_table, 0, OUTER_TABLE, err);

    for (uint64_t done = 0, now; rc == 0 && done < n; done += now) {
        const uint64_t at = first + done, begin = at / coded->outer_block;
        now = n - done < PART ? n - done : PART;
        rc = file_read(&coded->scales->file, codes, now, coded->scales->offset + at, err);
        if (rc == 0)
            rc = coded_read_numbers(outer, coded->outer_scales, begin, (at + now - 1) / coded->outer_block - begin + 1,
                                    err);
        for (uint64_t i = 0; rc == 0 && i < now; i++)
            out[done + i] = table[codes[i]] * outer[(at + i) / coded->outer_block - begin];
    }
    for (uint64_t i = 0; rc == 0 && i < n; i++)
        out[i] += coded->outer_offset;
    return rc;
}

/* E8M0: a power of two; 255 is its NaN. */
static int read_exponents(float *out, const struct coded *coded, uint64_t first, uint64_t n, struct error *err)
{
    uint8_t *const bytes = (uint8_t *)out + 3 * n; /* the last quarter of out: read before it is written */
    const int rc = file_read(&coded->scales->file, bytes, n, coded->scales->offset + first, err);

    for (uint64_t i = 0; rc == 0 && i < n; i++) {
        const uint8_t exponent = bytes[i];
        out[i] = exponent == 255 ? NAN : ldexpf(1, exponent - 127);
    }
    return rc;
}

/* Index of the scale of an element of fp8. */
static uint64_t fp8_scale_of(const struct coded *coded, uint64_t at)
{
    return at / coded->columns / coded->block_rows * coded->scale_columns + at % coded->columns / coded->block;
}

/* The scales of elements first .. first+n-1 are consecutive ones, from *begin on: of fp8 whole rows of blocks, unless
 * all elements are in one row. Returns how many. */
static uint64_t coded_scales_of(uint64_t *begin, const struct coded *coded, uint64_t first, uint64_t n)
{
    const uint64_t last = first + n - 1;

    if (coded->kind != CODED_FP8) {
        *begin = first / coded->block;
        return last / coded->block - *begin + 1;
    }
    const bool one_row = first / coded->columns == last / coded->columns;
    *begin = fp8_scale_of(coded, one_row ? first : first / coded->columns * coded->columns);
    return fp8_scale_of(coded, one_row ? last : last / coded->columns * coded->columns + coded->columns - 1) - *begin +
           1;
}

static int read_scales(struct safetensors_window *out, const struct coded *coded, uint64_t first, uint64_t n,
                       struct error *err)
{
    static const float e2m1[16] = {0, .5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -.5f, -1, -1.5f, -2, -3, -4, -6};
    uint64_t begin;
    const uint64_t n_scales = coded_scales_of(&begin, coded, first, n);

    assert(n > 0 && n_scales <= SAFETENSORS_SCALES);
    out->first_scale = begin;
    if (coded->kind == CODED_MXFP4)
        memcpy(out->table, e2m1, sizeof e2m1);
    if (coded->kind == CODED_MXFP4 || strcmp(coded->scales->dtype, "F8_E8M0") == 0)
        return read_exponents(out->scales, coded, begin, n_scales, err);
    if (coded->kind == CODED_FP8)
        return safetensors_read(out->scales, coded->scales, begin, n_scales, err);
    const int rc = coded->table ? coded_read_numbers(out->table, coded->table, 0, 16, err) : 0;
    if (rc != 0)
        return rc;
    return coded->outer_scales ? read_nested(out->scales, coded, begin, n_scales, err)
                               : coded_read_numbers(out->scales, coded->scales, begin, n_scales, err);
}

/* Codes are bytes, or else halves of them. */
static bool has_bytes(const struct coded *coded)
{
    return coded->kind == CODED_ROWS || coded->kind == CODED_FP8;
}

/* Position in the file of an element's code, and bytes of the codes from there to that of element first + n - 1. */
static uint64_t codes_at(const struct coded *coded, uint64_t first)
{
    return coded->codes.offset + (has_bytes(coded) ? first : first / 2);
}

static uint64_t coded_codes_bytes(const struct coded *coded, uint64_t first, uint64_t n)
{
    return has_bytes(coded) ? n : (first + n + 1) / 2 - first / 2;
}

/* The form in which the device can take the codes as they are. A table must be nf4's, to the bit. */
enum form coded_form(const struct coded *coded)
{
    float table[16];

    if (coded->kind == CODED_ROWS)
        return FORM_INT8;
    if (coded->kind == CODED_MXFP4)
        return FORM_BF16;
    if (coded->kind == CODED_FP8 || coded->block != FORM_BLOCK ||
        safetensors_read(table, coded->table, 0, 16, NULL) != 0)
        return FORM_VALUES;
    return memcmp(table, form_nf4, sizeof table) == 0 ? FORM_NF4 : FORM_VALUES;
}

/* n elements touch at most (n - 2) / columns + 2 rows, and r rows at most (r - 2) / block rows + 2 rows of blocks. */
static uint64_t fp8_most(const struct coded *coded)
{
    const uint64_t rows = CODED_WINDOW / coded->columns, most = SAFETENSORS_SCALES / coded->scale_columns;

    return rows / coded->block_rows <= most - 2 ? CODED_WINDOW : (most - 1) * coded->block_rows * coded->columns + 1;
}

/* Bounded by the scales of a window, which have fixed room, and by its bytes. */
uint64_t coded_most(const struct coded *coded)
{
    enum { ENOUGH = SAFETENSORS_SCALES - 1 }; /* one fewer, as the window may begin within a block */

    if (coded->kind == CODED_FP8)
        return fp8_most(coded);
    return coded->block < CODED_WINDOW / ENOUGH ? ENOUGH * coded->block : CODED_WINDOW;
}

int coded_window(struct safetensors_window *out, const struct coded *coded, uint64_t first, uint64_t n,
                 struct error *err)
{
    const struct file *file = &coded->codes.file;

    assert(file->server && n <= coded_most(coded));
    const int rc = read_scales(out, coded, first, n, err);
    out->first = has_bytes(coded) ? first : first / 2 * 2;
    return rc != 0 ? rc
                   : file->server->window(file->server, &out->bytes, file->index, codes_at(coded, first),
                                          coded_codes_bytes(coded, first, n), 0, err);
}

/* E4M3 has a sign, 4 bits of exponent with a bias of 7, and 3 more; all ones are its NaN. Shifted into place, it is
 * too small by 2^120 as fp32, subnormal or not. No table: this way compilers make vectors of it. */
static float fp8_value(uint8_t code)
{
    const uint32_t rest = code & 0x7fu, bits = (code & 0x80u) << 24 | (rest == 0x7f ? 0x7fc00000 : rest << 20);
    float value;

    memcpy(&value, &bits, sizeof value);
    return value * 0x1p120f;
}

/* Run by run of a row that is in one block. */
static void fp8_convert(float *out, const struct coded *coded, const struct safetensors_window *window, uint64_t first,
                        uint64_t n)
{
    const uint8_t *const codes = (const uint8_t *)window->bytes + (first - window->first);

    for (uint64_t i = 0, end; i < n; i = end) {
        const uint64_t column = (first + i) % coded->columns, block_end = (column / coded->block + 1) * coded->block;
        const uint64_t left = (block_end < coded->columns ? block_end : coded->columns) - column;
        const float scale = window->scales[fp8_scale_of(coded, first + i) - window->first_scale];
        end = left < n - i ? i + left : n;
        for (uint64_t k = i; k < end; k++)
            out[k] = fp8_value(codes[k]) * scale;
    }
}

/* Block by block, as each has one scale. */
void coded_convert(float *out, const struct coded *coded, const struct safetensors_window *window, uint64_t first,
                   uint64_t n)
{
    const uint8_t *const codes = window->bytes;

    if (coded->kind == CODED_FP8) {
        fp8_convert(out, coded, window, first, n);
        return;
    }
    for (uint64_t i = 0, end; i < n; i = end) {
        const uint64_t at = first + i, left = coded->block - at % coded->block;
        const float scale = window->scales[at / coded->block - window->first_scale];
        end = left < n - i ? i + left : n;
        for (uint64_t k = i, c = at - window->first; k < end; k++, c++) {
            if (coded->kind == CODED_ROWS)
                out[k] = form_value_int8(((const int8_t *)codes)[c], scale);
            else if (coded->kind == CODED_TABLE)
                out[k] = window->table[form_code_nf4(codes, c)] * scale;
            else
                out[k] = window->table[codes[c / 2] >> c % 2 * 4 & 15] * scale;
        }
    }
}

int coded_read(float *out, const struct coded *coded, uint64_t first, uint64_t n, struct error *err)
{
    enum { PART = 8192 };
    float scales[PART + 1];
    uint8_t codes[PART + 1];
    struct safetensors_window window = {.bytes = codes, .scales = scales};
    int rc = 0;

    for (uint64_t done = 0, now; rc == 0 && done < n; done += now) {
        const uint64_t at = first + done;
        now = n - done < PART ? n - done : PART;
        if (coded->kind == CODED_FP8 && coded->columns > PART) /* of two rows there may be too many scales */
            now = size_smaller(now, coded->columns - at % coded->columns);
        window.first = has_bytes(coded) ? at : at / 2 * 2;
        rc = read_scales(&window, coded, at, now, err);
        if (rc == 0)
            rc = file_read(&coded->codes.file, codes, coded_codes_bytes(coded, at, now), codes_at(coded, at), err);
        if (rc == 0)
            coded_convert(out + done, coded, &window, at, now);
    }
    return rc;
}
