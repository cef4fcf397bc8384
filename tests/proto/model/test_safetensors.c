#include "tests/kit/test.h"

#include "proto/model/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

SUITE_LABELS(long)

static int make_file(const void *bytes, size_t n)
{
    int fd = memfd_create("safetensors", MFD_CLOEXEC);

    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(pwrite(fd, bytes, n, 0), (ssize_t)n);
    return fd;
}

/* A file of this header and data_bytes of zeros. */
static int make_from_header(const char *header, size_t data_bytes)
{
    uint8_t bytes[4096] = {0};
    const size_t n = strlen(header);

    ck_assert_uint_le(8 + n + data_bytes, sizeof bytes);
    bytes[0] = (uint8_t)n;
    bytes[1] = (uint8_t)(n >> 8);
    memcpy(bytes + 8, header, n);
    return make_file(bytes, 8 + n + data_bytes);
}

static size_t load(uint8_t *out, size_t cap, const char *name)
{
    char path[4096];

    snprintf(path, sizeof path, "%s/fixtures/vectors/%s", TESTS_DIR, name);
    FILE *file = fopen(path, "rb");
    ck_assert_msg(file != NULL, "%s: %s", path, strerror(errno));
    size_t n = fread(out, 1, cap, file);
    fclose(file);
    ck_assert_uint_lt(n, cap);
    return n;
}

static const struct safetensors_entry *find(const struct safetensors *file, const char *name)
{
    const struct safetensors_entry *entry = safetensors_find(file, name);

    ck_assert_msg(entry != NULL, "%s", name);
    return entry;
}

/* Reads all that may be read; a range past the end would fail. */
static void touch(const struct safetensors *file)
{
    struct stat st;
    float values[16];
    int64_t counts[16];

    for (size_t i = 0; i < file->n_entries; i++) {
        const struct safetensors_entry *entry = &file->entries[i];
        ck_assert_int_eq(fstat(entry->fd, &st), 0);
        ck_assert_uint_le(entry->offset, (uint64_t)st.st_size);
        ck_assert_ptr_eq(safetensors_find(file, entry->name), entry);
        for (uint64_t at = 0; entry->type != SAFETENSORS_OTHER && at < entry->n; at += 16) {
            const uint64_t n = entry->n - at < 16 ? entry->n - at : 16;
            ck_assert_int_eq(entry->type == SAFETENSORS_I64 ? safetensors_read_counts(counts, entry, at, n, NULL)
                                                            : safetensors_read(values, entry, at, n, NULL),
                             0);
        }
    }
}

static void read_floats(float *out, const struct safetensors_entry *entry, uint64_t first, uint64_t n)
{
    struct error err = {""};

    ck_assert_msg(safetensors_read(out, entry, first, n, &err) == 0, "%s", err.text);
}

SUITE_TIMEOUT(120)

/* Values as in tests/oracle/make_safetensors_fixture.py. */
TEST(a_file_of_the_python_package_is_read)
{
    uint8_t bytes[1024];
    const size_t n = load(bytes, sizeof bytes, "package.safetensors");
    int fd = make_file(bytes, n);
    struct safetensors file;
    struct error err;
    float values[6];

    ck_assert_msg(safetensors_open(&file, fd, &err) == 0, "%s", err.text);
    ck_assert_uint_eq(file.n_entries, 7);
    ck_assert_ptr_null(safetensors_find(&file, "__metadata__"));
    ck_assert_ptr_null(safetensors_find(&file, ""));
    ck_assert_ptr_null(safetensors_find(&file, "z"));

    const struct safetensors_entry *wte = find(&file, "wte.weight");
    ck_assert_int_eq(wte->type, SAFETENSORS_F32);
    ck_assert_uint_eq(wte->n_dims, 2);
    ck_assert_uint_eq(wte->shape[0], 2);
    ck_assert_uint_eq(wte->shape[1], 3);
    ck_assert_uint_eq(wte->n, 6);
    read_floats(values, wte, 0, 6);
    for (int i = 0; i < 6; i++)
        ck_assert_float_eq(values[i], (float)i / 4 - 0.5f);
    read_floats(values, wte, 4, 2);
    ck_assert_float_eq(values[1], 0.75f);

    ck_assert_int_eq(find(&file, "half")->type, SAFETENSORS_F16);
    read_floats(values, find(&file, "half"), 0, 6);
    const float half[] = {1, -2, 0.5f, 65504, 0x1p-24f, INFINITY};
    ck_assert_mem_eq(values, half, sizeof half);

    ck_assert_int_eq(find(&file, "brain")->type, SAFETENSORS_BF16);
    read_floats(values, find(&file, "brain"), 0, 4);
    const float brain[] = {1, -2, 3.140625f, 0x1p-133f};
    ck_assert_mem_eq(values, brain, sizeof brain);

    ck_assert_int_eq(find(&file, "counts")->type, SAFETENSORS_I64);
    ck_assert_uint_eq(find(&file, "h.0.attn.bias")->n_dims, 4);
    ck_assert_uint_eq(find(&file, "h.0.attn.bias")->n, 9);
    ck_assert_uint_eq(find(&file, "empty")->n, 0);
    ck_assert_uint_eq(find(&file, "empty")->shape[1], 4);
    ck_assert_uint_eq(find(&file, "scalar")->n_dims, 0);
    read_floats(values, find(&file, "scalar"), 0, 1);
    ck_assert_float_eq(values[0], 2.5f);
    touch(&file);
    safetensors_close(&file);
    safetensors_close(&file);
    close(fd);
}

/* By the definition of the format (IEEE 754, binary16), for all of its values. */
TEST(every_f16_widens_exactly)
{
    static uint16_t halves[65536];
    static float values[65536];

    for (unsigned i = 0; i < 65536; i++)
        halves[i] = (uint16_t)i;
    int fd = make_file(halves, sizeof halves);
    const struct safetensors_entry entry = {.type = SAFETENSORS_F16, .n = 65536, .fd = fd};
    read_floats(values, &entry, 0, 65536);
    for (unsigned i = 0; i < 65536; i++) {
        const int exponent = i >> 10 & 31, mantissa = i & 1023;
        double expected = exponent == 0 ? ldexp(mantissa, -24) : ldexp(1024 + mantissa, exponent - 25);
        if (exponent == 31 && mantissa == 0)
            expected = (double)INFINITY;
        if (exponent == 31 && mantissa != 0)
            ck_assert(isnan(values[i]));
        else
            ck_assert_msg((double)values[i] == (i >> 15 ? -expected : expected), "%04x is %a", i, (double)values[i]);
        ck_assert_int_eq(!!signbit(values[i]), (int)(i >> 15));
    }
    close(fd);
}

#define TENSOR(name, type, shape, begin, end)                                                                          \
    "\"" name "\":{\"dtype\":\"" type "\",\"shape\":" shape ",\"data_offsets\":[" #begin "," #end "]}"

static const struct {
    const char *header;
    size_t data_bytes;
    const char *why;
} refusals[] = {
    {"{" TENSOR("a", "F32", "[2]", 0, 8) "}", 7,
     "tensor a: its data ends at 8, but the file holds 7 bytes of data: truncated or damaged"},
    {"{" TENSOR("a", "F32", "[2]", 0, 8) "}", 9, "the last tensor ends at 8, but the file holds 9 bytes of data"},
    {"{}", 1, "the last tensor ends at 0, but the file holds 1 bytes of data"},
    {"{" TENSOR("a", "F32", "[2]", 0, 8) "," TENSOR("b", "F32", "[2]", 4, 12) "}", 12,
     "tensor b: its data begins at 4 and overlaps the one that ends at 8"},
    {"{" TENSOR("a", "F32", "[2]", 0, 8) "," TENSOR("b", "F32", "[2]", 0, 8) "}", 8,
     "tensor b: its data begins at 0 and overlaps the one that ends at 8"},
    {"{" TENSOR("b", "F32", "[2]", 12, 20) "," TENSOR("a", "F32", "[2]", 0, 8) "}", 20,
     "tensor b: its data begins at 12 and leaves a gap from 8"},
    {"{" TENSOR("a", "F32", "[2]", 4, 12) "}", 12, "tensor a: its data begins at 4 and leaves a gap from 0"},
    {"{" TENSOR("a", "F32", "[2]", 0, 8) "," TENSOR("a", "F32", "[2]", 8, 16) "}", 16,
     "its header is not JSON at byte 57: duplicate object key near '\"a\"'"},
    {"{" TENSOR("a", "F32", "[2]", 8, 0) "}", 8, "tensor a: its data_offsets are not a begin and an end"},
    {"{" TENSOR("a", "F32", "[2]", -8, 0) "}", 8, "tensor a: its data_offsets are not a begin and an end"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0]}}", 8,
     "tensor a: its data_offsets are not a begin and an end"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2]}}", 8, "tensor a: its data_offsets are not a begin and an end"},
    {"{" TENSOR("a", "F32", "[3]", 0, 8) "}", 8, "tensor a: 3 elements of F32 do not fill its 8 bytes"},
    {"{" TENSOR("a", "F64", "[2]", 0, 8) "}", 8, "tensor a: 2 elements of F64 do not fill its 8 bytes"},
    {"{" TENSOR("a", "F32", "[4611686018427387904]", 0, 0) "}", 0, /* times 4 is 2^64: 0 if it wrapped */
     "tensor a: 4611686018427387904 elements of F32 do not fill its 0 bytes"},
    {"{" TENSOR("a", "F32", "[4294967296,4294967296]", 0, 0) "}", 0, "tensor a: its shape has too many elements"},
    {"{" TENSOR("a", "F32", "[-1]", 0, 8) "}", 8, "tensor a: size 0 of its shape is not a whole number"},
    {"{" TENSOR("a", "F32", "[1,2.0]", 0, 8) "}", 8, "tensor a: size 1 of its shape is not a whole number"},
    {"{" TENSOR("a", "F32", "[1,1,1,1,1,1,1,1,2]", 0, 8) "}", 8,
     "tensor a: its shape is not a list of at most 8 sizes"},
    {"{" TENSOR("a", "F32", "2", 0, 8) "}", 8, "tensor a: its shape is not a list of at most 8 sizes"},
    {"{" TENSOR("a", "F31", "[2]", 0, 8) "}", 8, "tensor a: its type is unknown (dtype F31)"},
    {"{\"a\":[]}", 8, "tensor a: its type is unknown (dtype missing)"},
    {"{\"a\\nb\":1}", 8, "tensor a?b: its type is unknown (dtype missing)"},
    {"{\"__metadata__\":[]}", 0, "__metadata__ is not an object"},
    {"{\"__metadata__\":{\"format\":1}}", 0, "__metadata__: format is not a text"},
    {"[]", 0, "not a safetensors file: its header does not begin with '{'"},
    {" {}", 0, "not a safetensors file: its header does not begin with '{'"},
    {"", 0, "not a safetensors file: its header does not begin with '{'"},
    {"{\"a", 0, "its header is not JSON at byte 3: premature end of input near '\"a'"},
};

TEST_EACH(a_header_that_lies_is_refused, sizeof refusals / sizeof refusals[0])
{
    int fd = make_from_header(refusals[_i].header, refusals[_i].data_bytes);
    struct safetensors file, zero = {0};
    struct error err;

    ck_assert_int_eq(safetensors_open(&file, fd, &err), -EINVAL);
    ck_assert_str_eq(err.text, refusals[_i].why);
    ck_assert_mem_eq(&file, &zero, sizeof file);
    ck_assert_int_eq(safetensors_open(&file, fd, NULL), -EINVAL);
    close(fd);
}

TEST(tensors_may_be_listed_in_any_order)
{
    int fd = make_from_header("{" TENSOR("d", "F16", "[2]", 8, 12) "," TENSOR("b", "F32", "[2]", 0, 8) "," TENSOR(
                                  "c", "F32", "[0]", 8, 8) "," TENSOR("a", "F32", "[0,9]", 0, 0) "}   ",
                              12);
    struct safetensors file;
    struct error err;

    ck_assert_msg(safetensors_open(&file, fd, &err) == 0, "%s", err.text);
    touch(&file);
    ck_assert_uint_eq(find(&file, "d")->offset, find(&file, "a")->offset + 8);
    safetensors_close(&file);
    close(fd);
}

/* By another program, when all has been checked: an error, and no signal. */
TEST(a_file_cut_short_meanwhile_is_an_error)
{
    static const char *const names[] = {"h", "f", "c"};
    int fd =
        make_from_header("{" TENSOR("c", "I64", "[1]", 0, 8) "," TENSOR("f", "F32", "[2]", 8,
                                                                        16) "," TENSOR("h", "F16", "[2]", 16, 20) "}",
                         20);
    struct safetensors file;
    struct error err;
    float values[2];
    int64_t count;

    ck_assert_msg(safetensors_open(&file, fd, &err) == 0, "%s", err.text);
    touch(&file);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const struct safetensors_entry *entry = find(&file, names[i]);
        ck_assert_int_eq(ftruncate(fd, (off_t)entry->offset + 3), 0);
        err.text[0] = 0;
        ck_assert_int_eq(entry->type == SAFETENSORS_I64 ? safetensors_read_counts(&count, entry, 0, 1, &err)
                                                        : safetensors_read(values, entry, 0, 2, &err),
                         -EIO);
        ck_assert_str_eq(err.text, "became shorter while it was read");
    }
    safetensors_close(&file);
    close(fd);
}

TEST(a_header_length_that_lies_is_refused)
{
    static const struct {
        uint8_t length[8];
        const char *why;
    } rows[] = {
        {{3}, "truncated: a header of 3 bytes in a file of 10"},
        {{0, 0xE1, 0xF5, 5}, "truncated: a header of 100000000 bytes in a file of 10"},
        {{1, 0xE1, 0xF5, 5}, "not a safetensors file: a header of 100000001 bytes, where 100000000 are the most"},
        {{255, 255, 255, 255, 255, 255, 255, 255},
         "not a safetensors file: a header of 18446744073709551615 bytes, where 100000000 are the most"},
    };
    struct safetensors file;
    struct error err;
    uint8_t bytes[10] = {0, 0, 0, 0, 0, 0, 0, 0, '{', '}'};

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        memcpy(bytes, rows[i].length, 8);
        int fd = make_file(bytes, sizeof bytes);
        ck_assert_int_eq(safetensors_open(&file, fd, &err), -EINVAL);
        ck_assert_str_eq(err.text, rows[i].why);
        close(fd);
    }
}

/* Half of the bytes are brackets: the parser must stop at its depth, not at the end of the stack. */
TEST(a_deeply_nested_header_is_refused)
{
    const size_t n = 1 << 20;
    uint8_t *bytes = malloc(n);
    struct safetensors file;
    struct error err;

    memset(bytes, '[', n);
    memcpy(bytes, "\xF8\xFF\x0F\0\0\0\0\0{\"a\":", 13); /* 2^20 - 8 */
    int fd = make_file(bytes, n);
    ck_assert_int_eq(safetensors_open(&file, fd, &err), -EINVAL);
    ck_assert_ptr_nonnull(strstr(err.text, "maximum parsing depth"));
    close(fd);
    free(bytes);
}

TEST(what_is_not_a_regular_file_is_refused)
{
    struct safetensors file;
    struct error err;
    int fd = open("/dev/zero", O_RDONLY | O_CLOEXEC);

    ck_assert_int_eq(safetensors_open(&file, fd, &err), -EINVAL);
    ck_assert_str_eq(err.text, "not a regular file");
    close(fd);
    ck_assert_int_eq(safetensors_open(&file, -1, &err), -EBADF);
}

TEST(every_truncation_is_refused)
{
    uint8_t bytes[1024];
    const size_t n = load(bytes, sizeof bytes, "package.safetensors");
    struct safetensors file;
    struct error err;

    for (size_t length = 0; length < n; length++) {
        int fd = make_file(bytes, length);
        ck_assert_int_eq(safetensors_open(&file, fd, &err), -EINVAL);
        ck_assert_uint_gt(strlen(err.text), 0);
        close(fd);
    }
}

/* Some changes are harmless (a name, a blank); none may lead out of the file. */
TEST(every_change_of_a_byte_of_the_header_is_survived)
{
    uint8_t bytes[1024];
    const size_t n = load(bytes, sizeof bytes, "package.safetensors");
    const size_t header = 8 + bytes[0] + 256u * bytes[1];
    int fd = make_file(bytes, n);
    struct safetensors file;
    size_t refused = 0;

    ck_assert_uint_eq(header, n - 73);
    for (size_t at = 0; at < header; at++) {
        for (unsigned change = 1; change < 256; change++) {
            const uint8_t value = (uint8_t)(bytes[at] ^ change);
            ck_assert_int_eq(pwrite(fd, &value, 1, (off_t)at), 1);
            int rc = safetensors_open(&file, fd, NULL);
            ck_assert(rc == 0 || rc == -EINVAL);
            refused += rc != 0;
            touch(&file);
            safetensors_close(&file);
        }
        ck_assert_int_eq(pwrite(fd, &bytes[at], 1, (off_t)at), 1);
    }
    ck_assert_uint_gt(refused, 255 * 8); /* among them all those of the length */
    close(fd);
}
