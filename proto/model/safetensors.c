#include "proto/model/safetensors.h"

#include <assert.h>
#include <errno.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { LENGTH_BYTES = 8, MAX_HEADER_BYTES = 100000000, MAX_DIMS = 8 };

/* The range of an entry, while the header is read. */
struct range {
    uint64_t begin, end; /* bytes, from the data's start */
    size_t entry;
};

static const struct type {
    const char *name;
    enum safetensors_type type;
    unsigned bytes;
} types[] = {
    {"F32", SAFETENSORS_F32, 4},       {"F16", SAFETENSORS_F16, 2},       {"BF16", SAFETENSORS_BF16, 2},
    {"F64", SAFETENSORS_OTHER, 8},     {"I64", SAFETENSORS_I64, 8},       {"U64", SAFETENSORS_OTHER, 8},
    {"C64", SAFETENSORS_OTHER, 8},     {"I32", SAFETENSORS_OTHER, 4},     {"U32", SAFETENSORS_OTHER, 4},
    {"I16", SAFETENSORS_OTHER, 2},     {"U16", SAFETENSORS_OTHER, 2},     {"I8", SAFETENSORS_OTHER, 1},
    {"U8", SAFETENSORS_OTHER, 1},      {"BOOL", SAFETENSORS_OTHER, 1},    {"F8_E4M3", SAFETENSORS_OTHER, 1},
    {"F8_E5M2", SAFETENSORS_OTHER, 1}, {"F8_E8M0", SAFETENSORS_OTHER, 1},
};

const char *safetensors_type_name(enum safetensors_type type)
{
    static const char *const names[] = {
        [SAFETENSORS_F32] = "fp32", [SAFETENSORS_F16] = "fp16", [SAFETENSORS_BF16] = "bf16"};

    assert(type <= SAFETENSORS_BF16);
    return names[type];
}

static const struct type *find_type(const char *name)
{
    for (size_t i = 0; name && i < sizeof types / sizeof types[0]; i++)
        if (strcmp(types[i].name, name) == 0)
            return &types[i];
    return NULL;
}

static bool read_size(uint64_t *out, const json_t *value)
{
    if (!json_is_integer(value) || json_integer_value(value) < 0)
        return false;
    *out = (uint64_t)json_integer_value(value);
    return true;
}

static int read_shape(struct safetensors_entry *entry, const json_t *shape, struct error *err)
{
    if (!json_is_array(shape) || json_array_size(shape) > MAX_DIMS)
        return error_set(err, -EINVAL, "tensor %.64s: its shape is not a list of at most %d sizes", entry->name,
                         MAX_DIMS);
    entry->n_dims = (uint32_t)json_array_size(shape);
    entry->n = 1;
    for (uint32_t i = 0; i < entry->n_dims; i++) {
        if (!read_size(&entry->shape[i], json_array_get(shape, i)))
            return error_set(err, -EINVAL, "tensor %.64s: size %u of its shape is not a whole number", entry->name, i);
        if (__builtin_mul_overflow(entry->n, entry->shape[i], &entry->n))
            return error_set(err, -EINVAL, "tensor %.64s: its shape has too many elements", entry->name);
    }
    return 0;
}

/* data_bytes: of the whole file. */
static int read_range(struct range *out, const struct safetensors_entry *entry, const json_t *offsets,
                      const struct type *type, uint64_t data_bytes, struct error *err)
{
    uint64_t bytes;

    if (!json_is_array(offsets) || json_array_size(offsets) != 2 ||
        !read_size(&out->begin, json_array_get(offsets, 0)) || !read_size(&out->end, json_array_get(offsets, 1)) ||
        out->begin > out->end)
        return error_set(err, -EINVAL, "tensor %.64s: its data_offsets are not a begin and an end", entry->name);
    if (out->end > data_bytes)
        return error_set(
            err, -EINVAL,
            "tensor %.64s: its data ends at %ju, but the file holds %ju bytes of data: truncated or damaged",
            entry->name, (uintmax_t)out->end, (uintmax_t)data_bytes);
    if (__builtin_mul_overflow(entry->n, type->bytes, &bytes) || bytes != out->end - out->begin)
        return error_set(err, -EINVAL, "tensor %.64s: %ju elements of %s do not fill its %ju bytes", entry->name,
                         (uintmax_t)entry->n, type->name, (uintmax_t)(out->end - out->begin));
    return 0;
}

static int read_entry(struct safetensors_entry *entry, struct range *range, const char *name, const json_t *value,
                      uint64_t data_bytes, struct error *err)
{
    const char *type_name = json_string_value(json_object_get(value, "dtype"));
    const struct type *type = find_type(type_name);

    entry->name = strdup(name);
    if (!entry->name)
        return error_set(err, -ENOMEM, "no memory for the names of the tensors");
    if (!type)
        return error_set(err, -EINVAL, "tensor %.64s: its type is unknown (dtype %.32s)", name,
                         type_name ? type_name : "missing");
    entry->type = type->type;
    entry->dtype = type->name;
    int rc = read_shape(entry, json_object_get(value, "shape"), err);
    if (rc == 0)
        rc = read_range(range, entry, json_object_get(value, "data_offsets"), type, data_bytes, err);
    return rc;
}

static int check_metadata(json_t *metadata, struct error *err)
{
    const char *key;
    json_t *value;

    if (!json_is_object(metadata))
        return error_set(err, -EINVAL, "__metadata__ is not an object");
    json_object_foreach(metadata, key,
                        value) if (!json_is_string(value)) return error_set(err, -EINVAL,
                                                                            "__metadata__: %.64s is not a text", key);
    return 0;
}

static int by_begin(const void *a, const void *b)
{
    const struct range *left = a, *right = b;

    if (left->begin != right->begin)
        return left->begin < right->begin ? -1 : 1;
    return (left->end > right->end) - (left->end < right->end); /* an empty range precedes its neighbour */
}

/* Sorts the ranges and checks that they cover the data without gap or overlap. */
static int check_ranges(const struct safetensors *file, struct range *ranges, uint64_t data_bytes, struct error *err)
{
    uint64_t end = 0;

    qsort(ranges, file->n_entries, sizeof *ranges, by_begin);
    for (size_t i = 0; i < file->n_entries; i++) {
        if (ranges[i].begin != end)
            return error_set(err, -EINVAL, "tensor %.64s: its data begins at %ju and %s %ju",
                             file->entries[ranges[i].entry].name, (uintmax_t)ranges[i].begin,
                             ranges[i].begin < end ? "overlaps the one that ends at" : "leaves a gap from",
                             (uintmax_t)end);
        end = ranges[i].end;
    }
    if (end != data_bytes)
        return error_set(err, -EINVAL, "the last tensor ends at %ju, but the file holds %ju bytes of data",
                         (uintmax_t)end, (uintmax_t)data_bytes);
    return 0;
}

static int by_name(const void *a, const void *b)
{
    const struct safetensors_entry *left = a, *right = b;

    return strcmp(left->name, right->name);
}

/* The data follows at data_offset. */
static int read_header(struct safetensors *file, const struct file *from, json_t *header, uint64_t data_offset,
                       uint64_t data_bytes, struct error *err)
{
    const size_t n = json_object_size(header);
    struct range *ranges = calloc(n + 1, sizeof *ranges);
    const char *name;
    json_t *value;
    int rc = 0;

    file->entries = calloc(n + 1, sizeof *file->entries);
    if (!ranges || !file->entries)
        rc = error_set(err, -ENOMEM, "no memory for a list of %zu tensors", n);
    json_object_foreach(header, name, value)
    {
        if (rc != 0)
            break;
        if (strcmp(name, "__metadata__") == 0) {
            rc = check_metadata(value, err);
            continue;
        }
        const size_t i = file->n_entries++;
        ranges[i].entry = i;
        rc = read_entry(&file->entries[i], &ranges[i], name, value, data_bytes, err);
        file->entries[i].offset = data_offset + ranges[i].begin;
        file->entries[i].file = *from;
    }
    if (rc == 0)
        rc = check_ranges(file, ranges, data_bytes, err);
    if (rc == 0)
        qsort(file->entries, file->n_entries, sizeof *file->entries, by_name);
    free(ranges);
    return rc;
}

static int look_at(uint64_t *file_bytes, const struct file *file, struct error *err)
{
    const int rc = file_size(file_bytes, file, err);

    if (rc == 0 && *file_bytes < LENGTH_BYTES)
        return error_set(err, -EINVAL, "truncated: %ju bytes are too few for a safetensors file",
                         (uintmax_t)*file_bytes);
    return rc;
}

/* The JSON's length. */
static int read_length(uint64_t *out, const struct file *file, uint64_t file_bytes, struct error *err)
{
    uint8_t bytes[LENGTH_BYTES];
    uint64_t length = 0;
    int rc = file_read(file, bytes, LENGTH_BYTES, 0, err);

    if (rc != 0)
        return rc;
    if (memcmp(bytes, "version ", LENGTH_BYTES) == 0)
        return error_set(err, -EINVAL, "not a safetensors file but Git LFS's pointer to it: run git lfs pull");
    for (int i = LENGTH_BYTES - 1; i >= 0; i--)
        length = length << 8 | bytes[i];
    if (length > MAX_HEADER_BYTES)
        return error_set(err, -EINVAL, "not a safetensors file: a header of %ju bytes, where %d are the most",
                         (uintmax_t)length, MAX_HEADER_BYTES);
    if (length > file_bytes - LENGTH_BYTES)
        return error_set(err, -EINVAL, "truncated: a header of %ju bytes in a file of %ju", (uintmax_t)length,
                         (uintmax_t)file_bytes);
    *out = length;
    return 0;
}

/* The header as JSON; *header is the caller's. */
static int parse_header(json_t **header, const struct file *file, uint64_t length, struct error *err)
{
    json_error_t why;
    char *text = malloc(length + 1);
    int rc =
        text ? file_read(file, text, length, LENGTH_BYTES, err) : error_set(err, -ENOMEM, "no memory for its header");

    if (rc == 0 && (length == 0 || text[0] != '{'))
        rc = error_set(err, -EINVAL, "not a safetensors file: its header does not begin with '{'");
    if (rc == 0 && !(*header = json_loadb(text, length, JSON_REJECT_DUPLICATES, &why)))
        rc = error_set(err, -EINVAL, "its header is not JSON at byte %d: %s", why.position, why.text);
    free(text);
    return rc;
}

int safetensors_open(struct safetensors *out, int fd, struct error *err)
{
    const struct file file = file_own(fd);
    uint64_t left = MAX_HEADER_BYTES;

    return safetensors_open_within(out, &file, &left, err);
}

int safetensors_open_within(struct safetensors *out, const struct file *file, uint64_t *left, struct error *err)
{
    uint64_t file_bytes = 0, length = 0;
    json_t *header = NULL;

    *out = (struct safetensors){0};
    int rc = look_at(&file_bytes, file, err);
    if (rc == 0)
        rc = read_length(&length, file, file_bytes, err);
    if (rc == 0 && length > *left)
        rc = error_set(err, -EINVAL,
                       "a header of %ju bytes, where %ju are left for this model: does the file have other tensors, or "
                       "large metadata?",
                       (uintmax_t)length, (uintmax_t)*left);
    if (rc == 0)
        *left -= length;
    if (rc == 0)
        rc = parse_header(&header, file, length, err);
    if (rc == 0)
        rc = read_header(out, file, header, LENGTH_BYTES + length, file_bytes - LENGTH_BYTES - length, err);
    json_decref(header);
    if (rc != 0)
        safetensors_close(out);
    return rc;
}

void safetensors_close(struct safetensors *file)
{
    for (size_t i = 0; i < file->n_entries; i++)
        free(file->entries[i].name);
    free(file->entries);
    *file = (struct safetensors){0};
}

const struct safetensors_entry *safetensors_find(const struct safetensors *file, const char *name)
{
    for (size_t low = 0, high = file->n_entries; low < high;) {
        const size_t middle = low + (high - low) / 2;
        const int order = strcmp(name, file->entries[middle].name);
        if (order == 0)
            return &file->entries[middle];
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return NULL;
}

static float from_bits(uint32_t bits)
{
    float value;

    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Shifted into place, an f16 is too small by 2^112 as fp32, subnormal or not. Infinity and NaN are handled apart. */
static float from_f16(uint16_t half)
{
    const uint32_t sign = (uint32_t)(half & 0x8000) << 16, rest = (uint32_t)(half & 0x7FFF) << 13;

    if (rest >= 0x0F800000)
        return from_bits(sign | 0x7F800000 | rest);
    return from_bits(sign | rest) * 0x1p112f;
}

static void widen(float *out, const struct safetensors_entry *entry, const uint16_t *bits, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        out[i] = entry->type == SAFETENSORS_F16 ? from_f16(bits[i]) : from_bits((uint32_t)bits[i] << 16);
}

static bool is_real(const struct safetensors_entry *entry)
{
    return entry->type == SAFETENSORS_F32 || entry->type == SAFETENSORS_F16 || entry->type == SAFETENSORS_BF16;
}

unsigned safetensors_bytes(const struct safetensors_entry *entry)
{
    assert(is_real(entry));
    return entry->type == SAFETENSORS_F32 ? sizeof(float) : sizeof(uint16_t);
}

void safetensors_convert(float *out, const struct safetensors_entry *entry, const void *bytes, uint64_t n)
{
    assert(is_real(entry));
    if (entry->type == SAFETENSORS_F32)
        memcpy(out, bytes, n * sizeof *out);
    else
        widen(out, entry, bytes, n);
}

enum { HALVES = 16384 }; /* read at a time, on the stack */

static int read_halves(float *out, const struct safetensors_entry *entry, uint64_t first, uint64_t n, struct error *err)
{
    uint16_t bits[HALVES];
    int rc = 0;

    for (uint64_t done = 0; rc == 0 && done < n; done += HALVES) {
        const uint64_t now = n - done < HALVES ? n - done : HALVES;
        rc = file_read(&entry->file, bits, now * sizeof *bits, entry->offset + (first + done) * sizeof *bits, err);
        if (rc == 0)
            widen(out + done, entry, bits, now);
    }
    return rc;
}

int safetensors_read(float *out, const struct safetensors_entry *entry, uint64_t first, uint64_t n, struct error *err)
{
    assert(is_real(entry) && first <= entry->n && n <= entry->n - first);
    return entry->type == SAFETENSORS_F32
               ? file_read(&entry->file, out, n * sizeof *out, entry->offset + first * sizeof *out, err)
               : read_halves(out, entry, first, n, err);
}

int safetensors_window(const void **out, const struct safetensors_entry *entry, uint64_t first, uint64_t n,
                       uint64_t ahead, struct error *err)
{
    const unsigned bytes = safetensors_bytes(entry);
    const struct file *file = &entry->file;

    assert(file->server && first <= entry->n && n + ahead <= entry->n - first);
    return file->server->window(file->server, out, file->index, entry->offset + first * bytes, n * bytes, ahead * bytes,
                                err);
}

int safetensors_read_counts(int64_t *out, const struct safetensors_entry *entry, uint64_t first, uint64_t n,
                            struct error *err)
{
    assert(entry->type == SAFETENSORS_I64 && first <= entry->n && n <= entry->n - first);
    return file_read(&entry->file, out, n * sizeof *out, entry->offset + first * sizeof *out, err);
}
