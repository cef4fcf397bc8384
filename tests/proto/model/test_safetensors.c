#include "tests/kit/test.h"

#include "proto/model/file/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static int make_file(const void *bytes, size_t n)
{
    int fd = memfd_create("safetensors", MFD_CLOEXEC);

    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(pwrite(fd, bytes, n, 0), (ssize_t)n);
    return fd;
}

/* A file of this header, with ' for ", and data_bytes of zeros. */
static int make_from_header(const char *header, size_t data_bytes)
{
    char bytes[4096] = {0};
    const size_t n = strlen(header);

    ck_assert_uint_le(8 + n + data_bytes, sizeof bytes);
    bytes[0] = (char)n;
    bytes[1] = (char)(n >> 8);
    memcpy(bytes + 8, header, n);
    for (size_t i = 8; i < 8 + n; i++)
        bytes[i] = bytes[i] == '\'' ? '"' : bytes[i];
    return make_file(bytes, 8 + n + data_bytes);
}

/* The package's file, as tests/oracle/make_safetensors_fixture.py writes it. */
static size_t load(uint8_t out[1024])
{
    const int fd = open(TESTS_DIR "/fixtures/vectors/package.safetensors", O_RDONLY | O_CLOEXEC);
    const ssize_t n = read(fd, out, 1024);

    close(fd);
    ck_assert(n > 0 && n < 1024);
    return (size_t)n;
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
        ck_assert_int_eq(fstat(entry->file.fd, &st), 0);
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

/* Of the package's file; values as in tests/oracle/make_safetensors_fixture.py. */
static const struct {
    const char *name;
    enum safetensors_type type;
    uint32_t n_dims;
    uint64_t n;
    float values[6]; /* of floats, those that there are */
} entries[] = {
    {"wte.weight", SAFETENSORS_F32, 2, 6, {-0.5f, -0.25f, 0, 0.25f, 0.5f, 0.75f}},
    {"half", SAFETENSORS_F16, 1, 6, {1, -2, 0.5f, 65504, 0x1p-24f, INFINITY}},
    {"brain", SAFETENSORS_BF16, 1, 4, {1, -2, 3.140625f, 0x1p-133f}},
    {"scalar", SAFETENSORS_F32, 0, 1, {2.5f}},
    {"empty", SAFETENSORS_F32, 2, 0, {0}},
    {"counts", SAFETENSORS_I64, 1, 2, {0}},
    {"h.0.attn.bias", SAFETENSORS_OTHER, 4, 9, {0}},
};

TEST(a_file_of_the_python_package_is_read)
{
    uint8_t bytes[1024];
    int fd = make_file(bytes, load(bytes));
    struct safetensors file;
    struct error err;
    float values[6];

    ck_assert_msg(safetensors_open(&file, fd, &err) == 0, "%s", err.text);
    ck_assert_uint_eq(file.n_entries, COUNT(entries));
    ck_assert_ptr_null(safetensors_find(&file, "__metadata__"));
    ck_assert_ptr_null(safetensors_find(&file, ""));
    ck_assert_ptr_null(safetensors_find(&file, "z"));
    for (int i = 0; i < COUNT(entries); i++) {
        const struct safetensors_entry *entry = find(&file, entries[i].name);
        ck_assert_int_eq(entry->type, entries[i].type);
        ck_assert_uint_eq(entry->n_dims, entries[i].n_dims);
        ck_assert_uint_eq(entry->n, entries[i].n);
        if (entry->type > SAFETENSORS_BF16)
            continue;
        read_floats(values, entry, 0, entry->n);
        ck_assert(memcmp(values, entries[i].values, entry->n * sizeof *values) == 0);
    }
    ck_assert(find(&file, "wte.weight")->shape[0] == 2 && find(&file, "wte.weight")->shape[1] == 3);
    read_floats(values, find(&file, "wte.weight"), 4, 2);
    ck_assert_float_eq(values[1], 0.75f);
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
    const struct safetensors_entry entry = {.type = SAFETENSORS_F16, .n = 65536, .file = {.fd = fd}};
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
    "'" name "':{'dtype':'" type "','shape':" shape ",'data_offsets':[" #begin "," #end "]}"

#define ONE(type, shape, begin, end) "{" TENSOR("a", type, shape, begin, end) "}"

static const struct {
    const char *header;
    size_t data_bytes;
    const char *why;
} refusals[] = {
    {ONE("F32", "[2]", 0, 8), 7, "tensor a: its data ends at 8, but the file holds 7 bytes"},
    {ONE("F32", "[2]", 0, 8), 9, "the last tensor ends at 8, but the file holds 9 bytes"},
    {"{" TENSOR("a", "F32", "[2]", 0, 8) "," TENSOR("b", "F32", "[2]", 4, 12) "}", 12,
     "tensor b: its data begins at 4 and overlaps the one that ends at 8"},
    {"{" TENSOR("b", "F32", "[2]", 12, 20) "," TENSOR("a", "F32", "[2]", 0, 8) "}", 20,
     "tensor b: its data begins at 12 and leaves a gap from 8"},
    {ONE("F32", "[2]", 4, 12), 12, "tensor a: its data begins at 4 and leaves a gap from 0"},
    {"{" TENSOR("a", "F32", "[2]", 0, 8) "," TENSOR("a", "F32", "[2]", 8, 16) "}", 16,
     "tensor a: its name is there twice"},
    {ONE("F32", "[2]", 8, 0), 8, "tensor a: its data_offsets"},
    {ONE("F32", "[2]", -8, 0), 8, "tensor a: its data_offsets"},
    {"{'a':{'dtype':'F32','shape':[2],'data_offsets':[0]}}", 8, "tensor a: its data_offsets"},
    {"{'a':{'dtype':'F32','shape':[2]}}", 8, "tensor a: its data_offsets"},
    {ONE("F32", "[3]", 0, 8), 8, "tensor a: 3 elements of F32 do not fill its 8 bytes"},
    {ONE("F64", "[2]", 0, 8), 8, "tensor a: 2 elements of F64 do not fill its 8 bytes"},
    {ONE("F32", "[4611686018427387904]", 0, 0), 0, /* times 4 is 2^64: 0 if it wrapped */
     "tensor a: 4611686018427387904 elements of F32 do not fill its 0 bytes"},
    {ONE("F32", "[4294967296,4294967296]", 0, 0), 0, "tensor a: its shape has too many elements"},
    {ONE("F32", "[-1]", 0, 8), 8, "tensor a: size 0 of its shape"},
    {ONE("F32", "[1,2.0]", 0, 8), 8, "tensor a: size 1 of its shape"},
    {ONE("F32", "[1,1,1,1,1,1,1,1,2]", 0, 8), 8, "tensor a: its shape is not a list"},
    {ONE("F32", "2", 0, 8), 8, "tensor a: its shape is not a list"},
    {ONE("F 31", "[2]", 0, 8), 8, "tensor a: its type is unknown (dtype F 31)"},
    {ONE("", "[2]", 0, 8), 8, "tensor a: its type is unknown (dtype )"},
    {ONE("F31", "[2]", 0, 9), 8, "tensor a: its data ends at 9"},
    {"{'a':[]}", 8, "tensor a: its type is unknown (dtype missing)"},
    {"{'a\\nb':1}", 8, "tensor a?b: its type is unknown (dtype missing)"},
    {"{'__metadata__':[]}", 0, "__metadata__ is not an object"},
    {"{'__metadata__':{},'__metadata__':{}}", 0, "__metadata__ is there twice"},
    {"{'__metadata__':{'a':'b\nc'}}", 0, "its header is not JSON at byte 23"},
    {"{} {}", 0, "its header is not JSON at byte 3"},
    {"{'__metadata__':{'format':1}}", 0, "__metadata__: format is not a text"},
    {"[]", 0, "not a safetensors file"},
    {"", 0, "not a safetensors file"},
    {"{'a", 0, "its header is not JSON at byte 3"},
};

TEST_EACH(a_header_that_lies_is_refused, COUNT(refusals))
{
    int fd = make_from_header(refusals[_i].header, refusals[_i].data_bytes);
    struct safetensors file, zero = {0};
    struct error err;

    ck_assert_int_eq(safetensors_open(&file, fd, &err), -EINVAL);
    ck_assert_holds(err.text, refusals[_i].why);
    ck_assert_mem_eq(&file, &zero, sizeof file);
    ck_assert_int_eq(safetensors_open(&file, fd, NULL), -EINVAL);
    close(fd);
}

TEST(tensors_may_be_listed_in_any_order)
{
#define LISTED                                                                                                         \
    TENSOR("d", "F16", "[2]", 8, 12)                                                                                   \
    "," TENSOR("b", "F32", "[2]", 0, 8) "," TENSOR("c", "F32", "[0]", 8, 8) "," TENSOR("a", "F32", "[0,9]", 0, 0)
    int fd = make_from_header("{" LISTED "}   ", 12);
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
    for (int i = 0; i < COUNT(names); i++) {
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

/* As a file of these bytes, or of another kind. */
static void check_refused(int fd, int code, const char *why)
{
    struct safetensors file;
    struct error err;

    ck_assert_int_eq(safetensors_open(&file, fd, &err), code);
    ck_assert_holds(err.text, why);
    close(fd);
}

TEST(a_header_length_that_lies_is_refused)
{
    static const struct {
        char bytes[10];
        const char *why;
    } rows[] = {
        {"version ht", "Git LFS's pointer to it: run git lfs pull"},
        {"\3\0\0\0\0\0\0\0{}", "truncated: a header of 3 bytes in a file of 10"},
        {"\0\xE1\xF5\5\0\0\0\0{}", "truncated: a header of 100000000 bytes in a file of 10"},
        {"\1\xE1\xF5\5\0\0\0\0{}", "a header of 100000001 bytes, where 100000000"},
        {"\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF{}", "a header of 18446744073709551615 bytes"},
    };

    for (int i = 0; i < COUNT(rows); i++)
        check_refused(make_file(rows[i].bytes, sizeof rows[i].bytes), -EINVAL, rows[i].why);
    check_refused(open("/dev/zero", O_RDONLY | O_CLOEXEC), -EINVAL, "not a regular file");
    check_refused(-1, -EBADF, "cannot be looked at");
}

/* Half of the bytes are brackets: the parser must stop at its depth, not at the end of the stack. And one value must
 * not take many times the header's bytes. */
TEST(a_deeply_nested_header_is_refused)
{
    const size_t n = 1 << 20;
    char *bytes = malloc(n);

    memset(bytes, '[', n);
    memcpy(bytes, "\xF8\xFF\x0F\0\0\0\0\0{\"a\":", 13); /* 2^20 - 8 */
    check_refused(make_file(bytes, n), -EINVAL, "maximum parsing depth");
    for (size_t i = 13; i + 3 < n; i += 3)
        memcpy(bytes + i, i == 13 ? "[[]" : ",[]", 3);
    check_refused(make_file(bytes, n), -EINVAL, "byte 5 of its header");
    free(bytes);
}

/* There is memory for them, though for no entry more. */
TEST(the_shortest_members_that_there_are_find_room)
{
    static const char member[] = TENSOR("", "U8", "[]", 0, 1) ",";
    char header[80 * (sizeof member - 1) + 2] = "{";

    ck_assert_uint_eq(sizeof member, 51);
    for (int i = 0; i < 80; i++)
        memcpy(header + 1 + i * 50, member, 50);
    memcpy(header + 80 * 50, "}", 2);
    check_refused(make_from_header(header, 1), -EINVAL,
                  "tensor : its data begins at 0 and overlaps the one that ends at 1");
}

TEST(every_truncation_is_refused)
{
    uint8_t bytes[1024];

    for (size_t length = load(bytes); length-- > 0;)
        check_refused(make_file(bytes, length), -EINVAL, "");
}

/* Each bit, and all at once. Some changes are harmless (a name, a blank); none may lead out of the file. */
TEST(every_change_of_a_byte_of_the_header_is_survived)
{
    uint8_t bytes[1024];
    const size_t n = load(bytes), header = 8 + bytes[0] + 256u * bytes[1];
    int fd = make_file(bytes, n);
    struct safetensors file;
    size_t refused = 0;

    ck_assert_uint_eq(header, n - 73);
    for (size_t at = 0; at < header; at++) {
        for (int bit = 0; bit <= 8; bit++) {
            const uint8_t value = (uint8_t)(bytes[at] ^ (bit < 8 ? 1 << bit : 255));
            ck_assert_int_eq(pwrite(fd, &value, 1, (off_t)at), 1);
            int rc = safetensors_open(&file, fd, NULL);
            ck_assert(rc == 0 || rc == -EINVAL);
            refused += rc != 0;
            touch(&file);
            safetensors_close(&file);
        }
        ck_assert_int_eq(pwrite(fd, &bytes[at], 1, (off_t)at), 1);
    }
    ck_assert_uint_gt(refused, 9 * 8); /* among them all those of the length */
    close(fd);
}
