/* A header has at most one entry for each LEAST_MEMBER_BYTES of it, so its memory is known before it is read: names
 * stay in its text, and nothing is allocated besides but the JSON of one member at a time. */
#include "proto/model/file/safetensors.h"

#include <assert.h>
#include <errno.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum {
    LENGTH_BYTES = 8,
    MAX_HEADER_BYTES = 100000000,
    MAX_DIMS = 8,
    MAX_MEMBER_BYTES = 4096, /* of a name, and of what it names; real ones have some 100 */
};

/* A header's shortest member, with its comma: "":{"dtype":"U8","shape":[],"data_offsets":[0,1]}, */
enum { LEAST_MEMBER_BYTES = 50 };

static const struct type {
    const char *name;
    enum safetensors_type type;
    unsigned bytes;
} types[] = {
    {"F32", SAFETENSORS_F32, 4},       {"F16", SAFETENSORS_F16, 2},       {"BF16", SAFETENSORS_BF16, 2},
    {"F64", SAFETENSORS_OTHER, 8},     {"I64", SAFETENSORS_I64, 8},       {"U64", SAFETENSORS_OTHER, 8},
    {"C64", SAFETENSORS_OTHER, 8},     {"I32", SAFETENSORS_OTHER, 4},     {"U32", SAFETENSORS_U32, 4},
    {"I16", SAFETENSORS_OTHER, 2},     {"U16", SAFETENSORS_U16, 2},       {"I8", SAFETENSORS_I8, 1},
    {"U8", SAFETENSORS_U8, 1},         {"BOOL", SAFETENSORS_OTHER, 1},    {"F8_E4M3", SAFETENSORS_OTHER, 1},
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

/* data_bytes: of the whole file. type NULL: one that is not known. */
static int safetensors_read_range(struct safetensors_entry *entry, const json_t *offsets, const struct type *type,
                                  uint64_t data_bytes, struct error *err)
{
    uint64_t begin, end, bytes;

    if (!json_is_array(offsets) || json_array_size(offsets) != 2 || !read_size(&begin, json_array_get(offsets, 0)) ||
        !read_size(&end, json_array_get(offsets, 1)) || begin > end)
        return error_set(err, -EINVAL, "tensor %.64s: its data_offsets are not a begin and an end", entry->name);
    if (end > data_bytes)
        return error_set(
            err, -EINVAL,
            "tensor %.64s: its data ends at %ju, but the file holds %ju bytes of data: truncated or damaged",
            entry->name, (uintmax_t)end, (uintmax_t)data_bytes);
    entry->offset = begin;
    if (!type) { /* its elements are known to nobody here */
        entry->n = end - begin;
        return 0;
    }
    if (__builtin_mul_overflow(entry->n, type->bytes, &bytes) || bytes != end - begin)
        return error_set(err, -EINVAL, "tensor %.64s: %ju elements of %s do not fill its %ju bytes", entry->name,
                         (uintmax_t)entry->n, type->name, (uintmax_t)(end - begin));
    return 0;
}

/* A type that later versions of the format may have: tensors of it can be copied. */
static bool is_type_name(const char *name)
{
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_";
    const size_t n = name ? strlen(name) : 0;

    return n > 0 && n < 24 && strspn(name, letters) == n;
}

/* The offset is one within the data. place: the member's value in the header, which has been read; a type's name that
 * is not static takes its place. */
static int safetensors_read_entry(struct safetensors_entry *entry, const char *name, char *place, const json_t *value,
                                  uint64_t data_bytes, struct error *err)
{
    const char *type_name = json_string_value(json_object_get(value, "dtype"));
    const struct type *type = find_type(type_name);

    *entry = (struct safetensors_entry){.name = name, .type = SAFETENSORS_OTHER};
    if (!type && !is_type_name(type_name))
        return error_set(err, -EINVAL, "tensor %.64s: its type is unknown (dtype %.32s)", name,
                         type_name ? type_name : "missing");
    entry->type = type ? type->type : SAFETENSORS_OTHER;
    entry->dtype = type ? type->name : memcpy(place, type_name, strlen(type_name) + 1); /* shorter, by the object */
    int rc = read_shape(entry, json_object_get(value, "shape"), err);
    if (rc == 0)
        rc = safetensors_read_range(entry, json_object_get(value, "data_offsets"), type, data_bytes, err);
    return rc;
}

/* The header's JSON as it is read: member by member, since a tree of all would take many times its bytes. */
struct text {
    char *bytes; /* (n), and one to spare */
    size_t n, at;
};

static int not_json(const struct text *text, const char *why, struct error *err)
{
    return error_set(err, -EINVAL, "its header is not JSON at byte %zu: %s", text->at, why);
}

/* The next character that is no blank, not passed; 0 at the end. */
static char peek(struct text *text)
{
    while (text->at < text->n && memchr(" \t\r\n", text->bytes[text->at], 4))
        text->at++;
    return text->at < text->n ? text->bytes[text->at] : 0;
}

/* Passes `wanted`, or else says what it expected. */
static int safetensors_pass(struct text *text, char wanted, struct error *err)
{
    char why[] = "',' expected";

    if (peek(text) == wanted) {
        text->at++;
        return 0;
    }
    why[1] = wanted;
    return not_json(text, text->at < text->n ? why : "premature end of input", err);
}

/* Passes one value of at most MAX_MEMBER_BYTES. */
static int safetensors_read_value(json_t **out, struct text *text, struct error *err)
{
    const size_t left = text->n - text->at, most = left < MAX_MEMBER_BYTES ? left : MAX_MEMBER_BYTES;
    json_error_t why;

    *out = json_loadb(text->bytes + text->at, most, JSON_DECODE_ANY | JSON_DISABLE_EOF_CHECK | JSON_REJECT_DUPLICATES,
                      &why);
    if (*out) {
        text->at += (size_t)why.position;
        return 0;
    }
    if (most < left && why.position >= MAX_MEMBER_BYTES - 8) /* it is cut, maybe within a word or a character */
        return error_set(err, -EINVAL, "byte %zu of its header begins a value of more than %d bytes", text->at,
                         MAX_MEMBER_BYTES);
    text->at += (size_t)why.position;
    return not_json(text, why.text, err);
}

/* Passes a member's name, which takes the place of its JSON. */
static int read_name(const char **out, struct text *text, struct error *err)
{
    json_t *name = NULL;
    char *place;
    int rc = 0;

    if (peek(text) != '"')
        return not_json(text, text->at < text->n ? "string expected" : "premature end of input", err);
    place = text->bytes + text->at;
    rc = safetensors_read_value(&name, text, err);
    if (rc == 0)
        rc = safetensors_pass(text, ':', err);
    if (rc == 0 && peek(text) == 0)
        rc = not_json(text, "premature end of input", err);
    if (rc == 0)
        *out = memcpy(place, json_string_value(name), json_string_length(name) + 1); /* shorter, by the quotes */
    json_decref(name);
    return rc;
}

/* Passes an object, whose first character is next: read passes the value of each member. */
static int read_members(struct text *text,
                        int (*read)(void *context, const char *name, struct text *text, struct error *err),
                        void *context, struct error *err)
{
    const char *name = NULL;
    int rc = safetensors_pass(text, '{', err);
    bool more = rc == 0 && peek(text) != '}';

    if (rc == 0 && !more)
        return safetensors_pass(text, '}', err);
    while (rc == 0 && more) {
        rc = read_name(&name, text, err);
        if (rc == 0)
            rc = read(context, name, text, err);
        more = peek(text) == ',';
        if (rc == 0)
            rc = safetensors_pass(text, more ? ',' : '}', err);
    }
    return rc;
}

/* Nobody reads the text; it may be long. */
static int skip_text(void *context, const char *name, struct text *text, struct error *err)
{
    (void)context;
    if (peek(text) != '"')
        return error_set(err, -EINVAL, "__metadata__: %.64s is not a text", name);
    for (text->at++; text->at < text->n && text->bytes[text->at] != '"'; text->at++) {
        if ((unsigned char)text->bytes[text->at] < ' ')
            return not_json(text, "control character", err);
        text->at += text->bytes[text->at] == '\\';
    }
    return safetensors_pass(text, '"', err);
}

struct header {
    struct safetensors *file;
    uint64_t data_bytes;
    size_t most_entries; /* for which there is memory */
    bool has_metadata;
};

static int safetensors_read_member(void *context, const char *name, struct text *text, struct error *err)
{
    struct header *header = context;
    struct safetensors_entry entry;
    json_t *value = NULL;
    char *place;

    if (strcmp(name, "__metadata__") == 0 && header->has_metadata)
        return error_set(err, -EINVAL, "__metadata__ is there twice");
    header->has_metadata = header->has_metadata || strcmp(name, "__metadata__") == 0;
    if (strcmp(name, "__metadata__") == 0)
        return peek(text) == '{' ? read_members(text, skip_text, NULL, err)
                                 : error_set(err, -EINVAL, "__metadata__ is not an object");
    peek(text);
    place = text->bytes + text->at;
    int rc = safetensors_read_value(&value, text, err);
    if (rc == 0)
        rc = safetensors_read_entry(&entry, name, place, value, header->data_bytes, err);
    assert(rc != 0 || header->file->n_entries < header->most_entries);
    if (rc == 0)
        header->file->entries[header->file->n_entries++] = entry;
    json_decref(value);
    return rc;
}

uint64_t safetensors_entry_bytes(const struct safetensors_entry *entry)
{
    const struct type *type = find_type(entry->dtype);

    return entry->n * (type ? type->bytes : 1);
}

static uint64_t entry_end(const struct safetensors_entry *entry)
{
    return entry->offset + safetensors_entry_bytes(entry);
}

/* True if a must come before b. */
typedef bool (*before_fn)(const struct safetensors_entry *a, const struct safetensors_entry *b);

static bool safetensors_by_offset(const struct safetensors_entry *a, const struct safetensors_entry *b)
{
    return a->offset < b->offset || (a->offset == b->offset && a->n == 0 && b->n > 0); /* an empty range comes first */
}

static bool safetensors_by_name(const struct safetensors_entry *a, const struct safetensors_entry *b)
{
    return strcmp(a->name, b->name) < 0;
}

static void sink(struct safetensors_entry *entries, size_t at, size_t n, before_fn before)
{
    const struct safetensors_entry entry = entries[at];

    for (size_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && before(&entries[child], &entries[child + 1]))
            child++;
        if (!before(&entry, &entries[child]))
            break;
        entries[at] = entries[child];
    }
    entries[at] = entry;
}

/* Heapsort (Williams, 1964): qsort would take memory that nobody counts. */
static void safetensors_sort(struct safetensors_entry *entries, size_t n, before_fn before)
{
    for (size_t i = n / 2; i-- > 0;)
        sink(entries, i, n, before);
    for (size_t end = n; end-- > 1;) {
        const struct safetensors_entry last = entries[end];
        entries[end] = entries[0];
        entries[0] = last;
        sink(entries, 0, end, before);
    }
}

/* Sorts the entries and checks that they cover the data without gap or overlap. */
static int check_ranges(struct safetensors *file, uint64_t data_bytes, struct error *err)
{
    uint64_t end = 0;

    safetensors_sort(file->entries, file->n_entries, safetensors_by_offset);
    for (size_t i = 0; i < file->n_entries; i++) {
        const struct safetensors_entry *entry = &file->entries[i];
        if (entry->offset != end)
            return error_set(err, -EINVAL, "tensor %.64s: its data begins at %ju and %s %ju", entry->name,
                             (uintmax_t)entry->offset,
                             entry->offset < end ? "overlaps the one that ends at" : "leaves a gap from",
                             (uintmax_t)end);
        end = entry_end(entry);
    }
    if (end != data_bytes)
        return error_set(err, -EINVAL, "the last tensor ends at %ju, but the file holds %ju bytes of data",
                         (uintmax_t)end, (uintmax_t)data_bytes);
    return 0;
}

static int safetensors_check_names(struct safetensors *file, struct error *err)
{
    safetensors_sort(file->entries, file->n_entries, safetensors_by_name);
    for (size_t i = 1; i < file->n_entries; i++)
        if (strcmp(file->entries[i - 1].name, file->entries[i].name) == 0)
            return error_set(err, -EINVAL, "tensor %.64s: its name is there twice", file->entries[i].name);
    return 0;
}

static int read_header(struct safetensors *file, const struct file *from, struct text *text, uint64_t data_bytes,
                       struct error *err)
{
    struct header header = {file, data_bytes, text->n / LEAST_MEMBER_BYTES, false};
    int rc = 0;

    if (text->n == 0 || text->bytes[0] != '{')
        return error_set(err, -EINVAL, "not a safetensors file: its header does not begin with '{'");
    rc = read_members(text, safetensors_read_member, &header, err);
    peek(text);
    if (rc == 0 && text->at < text->n)
        rc = not_json(text, "end of file expected", err);
    if (rc == 0)
        rc = check_ranges(file, data_bytes, err);
    if (rc == 0)
        rc = safetensors_check_names(file, err);
    for (size_t i = 0; rc == 0 && i < file->n_entries; i++) {
        file->entries[i].offset += LENGTH_BYTES + text->n;
        file->entries[i].file = *from;
    }
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

uint64_t safetensors_memory(uint64_t header_bytes)
{
    return reserve_rounded(header_bytes + header_bytes / LEAST_MEMBER_BYTES * sizeof(struct safetensors_entry));
}

static int look_at(uint64_t *length, uint64_t *file_bytes, const struct file *file, struct error *err)
{
    const int rc = file_size(file_bytes, file, err);

    if (rc == 0 && *file_bytes < LENGTH_BYTES)
        return error_set(err, -EINVAL, "truncated: %ju bytes are too few for a safetensors file",
                         (uintmax_t)*file_bytes);
    return rc ? rc : read_length(length, file, *file_bytes, err);
}

int safetensors_header_bytes(uint64_t *out, const struct file *file, struct error *err)
{
    uint64_t file_bytes, length = 0;
    const int rc = look_at(&length, &file_bytes, file, err);

    *out = LENGTH_BYTES + length;
    return rc;
}

/* Takes the memory of a header of `length` bytes: its text, whose names the entries borrow, and the most entries that
 * it can have. */
static int safetensors_take_memory(struct safetensors *out, struct text *text, struct reserve *reserve, uint64_t length,
                                   struct error *err)
{
    const uint64_t n_entries = length / LEAST_MEMBER_BYTES, left = reserve_left(reserve);

    text->n = length;
    text->bytes = reserve_take(reserve, length + 1);
    out->entries = reserve_take(reserve, n_entries * sizeof(struct safetensors_entry));
    if (!text->bytes || !out->entries)
        return error_set(err, -EINVAL,
                         "a header of %ju bytes, where %ju are left for this model: does the file have other tensors, "
                         "or large metadata?",
                         (uintmax_t)length,
                         (uintmax_t)(left / (LEAST_MEMBER_BYTES + sizeof(struct safetensors_entry)) *
                                     LEAST_MEMBER_BYTES));
    return 0;
}

/* Memory of entries that the header did not need. */
static struct reserve spare_of(const struct safetensors *file, uint64_t length)
{
    return (struct reserve){(char *)(file->entries + file->n_entries),
                            (length / LEAST_MEMBER_BYTES - file->n_entries) * sizeof *file->entries, 0};
}

int safetensors_open_within(struct safetensors *out, const struct file *file, struct reserve *reserve,
                            struct error *err)
{
    uint64_t file_bytes = 0, length = 0;
    struct text text = {0};

    *out = (struct safetensors){0};
    int rc = look_at(&length, &file_bytes, file, err);
    if (rc == 0)
        rc = safetensors_take_memory(out, &text, reserve, length, err);
    if (rc == 0)
        rc = file_read(file, text.bytes, length, LENGTH_BYTES, err);
    if (rc == 0)
        rc = read_header(out, file, &text, file_bytes - LENGTH_BYTES - length, err);
    if (rc != 0)
        *out = (struct safetensors){0};
    else
        out->spare = spare_of(out, length);
    return rc;
}

int safetensors_open_most(struct safetensors *out, int fd, uint64_t most, struct error *err)
{
    const struct file file = file_own(fd);
    struct reserve reserve = {0};
    uint64_t header_bytes;

    *out = (struct safetensors){0};
    int rc = safetensors_header_bytes(&header_bytes, &file, err);
    if (rc != 0)
        return rc;
    reserve.bytes = safetensors_memory(header_bytes < most ? header_bytes : most);
    reserve.memory = malloc(reserve.bytes);
    if (!reserve.memory)
        return error_set(err, -ENOMEM, "no memory for its header");
    rc = safetensors_open_within(out, &file, &reserve, err);
    if (rc == 0)
        out->memory = reserve.memory;
    else
        free(reserve.memory);
    return rc;
}

int safetensors_open(struct safetensors *out, int fd, struct error *err)
{
    return safetensors_open_most(out, fd, UINT64_MAX, err);
}

void safetensors_close(struct safetensors *file)
{
    free(file->memory);
    *file = (struct safetensors){0};
}

struct safetensors_entry *safetensors_find(const struct safetensors *file, const char *name)
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
