/* Token streams, from files written here byte by byte: what data comes in (ids, text, compressed, as JSON lines, as
 * directories, through a pipe) and what is refused by its name. Compressed bytes are written by hand, after RFC 1952
 * and RFC 8878, or by the gzip program. Windows: test_windows; a text's tokens: test_tokenised. */
#include "tests/kit/command.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include "client/data/data.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

SUITE_TIMEOUT(100)
SUITE_FIXTURE_ONCE(processes_setup, processes_remove)

/* A literal and its length. */
#define BYTES(literal) literal, sizeof(literal) - 1
/* A header of 65 bytes in front of so many integers, a digit. */
#define NPY(descr, count) "\x93NUMPY\x01\0\x37\0{'descr': '" descr "', 'fortran_order': False, 'shape': (" count ",)}"
/* A member of gzip that stores "hello" as it is; its CRC-32 is 0x3610a686. */
#define HELLO_GZ "\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\x01\x05\x00\xfa\xffhello\x86\xa6\x10\x36\x05\x00\x00\x00"
/* A frame of one raw block, with its size in a byte. */
#define HELLO_ZST "\x28\xb5\x2f\xfd\x20\x05\x29\x00\x00hello"

static const struct client_data_rules of_bytes = {.vocabulary = 256};

static int open_checked(struct client_data *data, const char *const *paths, size_t n,
                        const struct client_data_rules *rules, struct error *err)
{
    int rc = client_data_open(data, paths, n, err);

    return rc ? rc : client_data_check(data, rules, err);
}

/* A file that has to be refused, with these words in the sentence. */
static void refused(const char *path, uint32_t vocabulary, int code, const char *first, const char *second)
{
    const struct client_data_rules rules = {.vocabulary = vocabulary};
    struct client_data data;
    struct error err = {""};

    ck_assert_msg(open_checked(&data, &path, 1, &rules, &err) == code, "%s: %s", path, err.text);
    ck_assert_holds(err.text, path, first, second);
    client_data_free(&data);
}

/* The stream is this text, byte by byte. */
static void is_text(const char *path, const char *text, size_t n)
{
    struct client_data data;
    struct error err = {""};

    ck_assert_msg(open_checked(&data, &path, 1, &of_bytes, &err) == 0, "%s", err.text);
    ck_assert_uint_eq(data.n, n);
    uint32_t *ids = malloc((n + 1) * sizeof *ids);
    ck_assert_int_eq(client_data_read(&data, ids, 0, n, &err), 0);
    for (size_t i = 0; i < n; i++)
        if (ids[i] != (uint8_t)text[i]) /* an assertion each would take seconds */
            ck_abort_msg("token %zu of %s is %u", i, path, ids[i]);
    client_data_free(&data);
    free(ids);
}

static const struct {
    const char *name, *bytes;
    size_t n;
    uint32_t vocabulary;
    const char *ids; /* in decimal */
} numbers[] = {
    {"a.bin", BYTES("\x01\x00\x02\x01\xFF\xFF\x00\x00"), 65536, "1 258 65535 0"},
    {"a.bin", BYTES("\x01\x00\x02\x01\xFF\xFF\x00\x00"), 1 << 25, "16908289 65535"},
    {"u2.npy", BYTES(NPY("<u2", "3") "\7\0\0\0\x9\0"), 10, "7 0 9"},
    {"i4.npy", BYTES(NPY("<i4", "3") "\7\0\0\0\0\0\0\0\x9\0\0\0"), 10, "7 0 9"},
    {"i8.npy", BYTES(NPY("<i8", "2") "\7\0\0\0\0\0\0\0\x9\0\0\0\0\0\0\0"), 10, "7 9"},
    /* The CRC-32 by Python's zlib.crc32. */
    {"ids.bin.gz", BYTES("\x1f\x8b\x08\0\0\0\0\0\0\x03\x01\x04\0\xfb\xff\7\0\x9\0\xec\x5c\x51\x6d\x04\0\0\0"), 256,
     "7 9"},
};

TEST_EACH(ids_have_two_bytes_or_four_or_the_width_that_numpy_says, COUNT(numbers))
{
    const char *path = processes_write(numbers[_i].name, numbers[_i].bytes, numbers[_i].n);
    const struct client_data_rules rules = {.vocabulary = numbers[_i].vocabulary};
    struct client_data data;
    struct error err = {""};
    uint32_t ids[4];
    char said[80] = "";

    ck_assert_msg(open_checked(&data, &path, 1, &rules, &err) == 0, "%s", err.text);
    ck_assert(data.n <= 4 && !data.has_text);
    ck_assert_int_eq(client_data_read(&data, ids, 0, data.n, NULL), 0);
    for (size_t i = 0; i < data.n; i++)
        sprintf(said + strlen(said), "%s%u", i ? " " : "", ids[i]);
    ck_assert_str_eq(said, numbers[_i].ids);
    client_data_free(&data);
}

#define JSONL_GZ "\x1f\x8b\x08\0\0\0\0\0\0\x03\x01\x0e\0\xf1\xff{\"text\": \"hi\"}\x12\x5a\xaf\xd2\x0e\0\0\0"
static const struct {
    const char *name, *bytes;
    size_t n;
    const char *text; /* NULL: the bytes themselves */
} texts[] = {
    {"a.txt.gz", BYTES(HELLO_GZ), "hello"},
    {"b.gz", BYTES(HELLO_GZ HELLO_GZ), "hellohello"}, /* two members */
    {"behind.gz", BYTES(HELLO_GZ "\0\0\0"), "hello"}, /* padding */
    {"behind2.gz", BYTES(HELLO_GZ HELLO_GZ "more"), "hellohello"},
    {"behind3.gz", BYTES(HELLO_GZ "\x1f"), "hello"},
    {"c.txt.zst", BYTES(HELLO_ZST), "hello"},
    {"skip.zst", BYTES("\x50\x2a\x4d\x18\3\0\0\0abc" HELLO_ZST), "hello"},
    {"skip", BYTES("\x5f\x2a\x4d\x18\0\0\0\0" HELLO_ZST "\x53\x2a\x4d\x18\1\0\0\0a"), "hello"},
    {"d.zst", BYTES(HELLO_ZST HELLO_ZST), "hellohello"},
    {"e.txt", BYTES(HELLO_GZ), "hello"}, /* whatever its name */
    {"text.jsonl", BYTES("{\"text\": \"one\\u00e9\", \"id\": 7}\n\n{\"text\": \"two\\n\"}\n{\"text\": \"\"}"),
     "one\xC3\xA9\ntwo\n"},
    {"wide.jsonl", BYTES("{\"text\": \"one\", \"id\": 99999999999999999999, \"x\": [NaN, -Infinity, 1e999]}\n"),
     "one\n"},
    {"pairs.jsonl", BYTES("{\"prompt\": \"2+2=\", \"completion\": \"4\"}\r\n"), "2+2=4\n"},
    {"packed.jsonl.gz", BYTES(JSONL_GZ), "hi\n"},
    /* Texts that look a little like other formats. */
    {"braces.c", BYTES("{ int a[] = {1}; }\n"), NULL},
    {"note.txt", BYTES("[1] A footnote\n"), NULL},
    {"list.txt", BYTES("[\"Ah\", he said, \"no\n"), NULL},
    {"page.html", BYTES("<html><p>"), NULL},
    {"as_it_is.txt", BYTES("id,text\n1,a\n2,b\n"), NULL}, /* verses may have as many commas in each line */
    {"prose.csv", BYTES("Well, yes\nno\n"), NULL},
    {"one.csv", BYTES("id,text\n"), NULL},
    {"column.csv", BYTES("text\na\nb\n"), NULL},
    {"tabs.csv", BYTES("a,b\tc\nd,e\tf\n"), NULL},
    {"open.csv", BYTES("a,b\n1,\"2\n3,4\n"), NULL},
    {"column.tsv", BYTES("text\na, b\nc, d\n"), NULL},
    {"prose.tsv", BYTES("Well,\tyes\nno\n"), NULL},
    {"quote.txt", BYTES("{\"Really\"} he said\n"), NULL},
    {"empty.txt", BYTES(""), NULL},
    /* UTF-8, which may be cut at both ends. */
    {"2.txt", BYTES("gr\xC3\xBC\xC3\x9F"), NULL},
    {"3.txt", BYTES("\xE2\x82\xAC \xF0\x9F\x98\x80 \xEF\xBF\xBF"), NULL},
    {"4.txt", BYTES("\x82\xAC euro"), NULL},
    {"5.txt", BYTES("euro \xE2\x82"), NULL},
};

TEST_EACH(a_text_is_its_bytes_unpacked_and_out_of_json_lines, COUNT(texts))
{
    const char *text = texts[_i].text;

    is_text(processes_write(texts[_i].name, texts[_i].bytes, texts[_i].n), text ? text : texts[_i].bytes,
            text ? strlen(text) : texts[_i].n);
}

static const struct {
    const char *name, *bytes;
    size_t n;
    const char *first, *second;
} wrongs[] = {
    {"not.npy", BYTES("abcdefghijkl"), "not a NumPy file", ""},
    {"8.txt", BYTES("\x80\x80\x80\x80"), "UTF-8", "iconv"},
    {"8.txt", BYTES("gr\xFC\xDF"), "UTF-8", "iconv"},  /* Latin-1 */
    {"8.txt", BYTES("ab \xC0\xAF"), "UTF-8", "iconv"}, /* overlong; what else is none: test_utf8 */
    {"8.txt", BYTES("ab \xE2\x82x"), "UTF-8", "iconv"},
    {"bad.gz", BYTES("\x1f\x8b\x08\0\0\0\0\0\0\x03\x01\x05\0\xfa\xffheklo\x86\xa6\x10\x36\x05\0\0\0"),
     "gzip data is damaged", "check"},
    {"bad.zst", BYTES(HELLO_ZST "more"), "zstd data is damaged", ""},
    {"no.gz", BYTES("hello"), "not compressed, though its name says so", ""},
    {"empty.gz", BYTES(""), "empty", ""},
    {"wide.zst", BYTES("\x28\xb5\x2f\xfd\x00\xa8\x29\x00\x00hello"), "128 MiB",
     "--long"}, /* a window of 2 GiB, as --long=31 makes */
    {"a.jsonl", BYTES("{\"text\": \"one\"}\n{\"content\": \"two\"}\n"), "line 2", "\"text\""},
    {"b.jsonl", BYTES("{\"text\": \"one\"}\n\nnot json\n"), "line 3", "not JSON"},
    {"c.jsonl", BYTES("{\"text\": 7}\n"), "line 1", "\"text\""},
    {"d.jsonl", BYTES("[\"text\"]\n"), "line 1", "no object"},
    {"e.jsonl", BYTES("{\"text\": \"a\"}\n{\"messages\": []}\n"), "line 2: a conversation", "--model DIR"},
    {"f.jsonl", BYTES("{\"instruction\": \"Hi\"}\n"), "line 1: a conversation", "first line"},
    {"g.jsonl", BYTES("{\"prompt\": \"a\"}\n"), "line 1", "completion"},
    /* Other formats, by their names. */
    {"o.txt", BYTES("PK\x03\x04\x14\0\0\0"), "zip", "unzip"},
    {"weights.bin", BYTES("PK\x03\x04\x14\0\0\0"), "zip", "unzip"},
    {"o.txt", BYTES("\xFD\67zXZ\0\0\4"), "xz", "--data -"},
    {"o.txt", BYTES("BZh91AY&SY"), "bzip2", "--data -"},
    {"o.txt", BYTES("PAR1\x15\x04"), "parquet", ".jsonl"},
    {"o.txt", BYTES("%PDF-1.7\n"), "PDF", "pdftotext"},
    {"o.txt", BYTES("\x89PNG\r\n\x1a\n"), "PNG", "text"},
    {"o.txt", BYTES("\xFF\xD8\xFF\xE0"), "JPEG", "text"},
    {"o.txt", BYTES("\177ELF\2\1\1"), "ELF", "text"},
    {"o.txt", BYTES("\x40\0\0\0\0\0\0\0{\"__metadata__\""), "safetensors", "--model"},
    {"o.txt", BYTES("\x93NUMPY\1\0"), "NumPy", ".npy"},
    {"o.txt", BYTES("{\"a\": 1, \"b\": [2]}"), "JSON", ".jsonl"},
    {"o.txt", BYTES("{\"text\": \"a\"}\n{\"text\": \"b\"}\n"), "JSON lines", "name it .jsonl"},
    {"o.txt", BYTES("{\"x\": NaN, \"text\": \"a\"}\n{\"text\": \"b\"}\n"), "JSON lines", "name it .jsonl"},
    {"o.txt", BYTES("[\n  {\"text\": \"a\"},\n  {\"text\": \"b\"}\n]\n"), "JSON", ".jsonl"},
    {"o.txt", BYTES(" <!doctype HTML><p>"), "HTML", ".html"},
    {"o.txt", BYTES("<html><p>"), "HTML", ".html"},
    {"o.csv", BYTES("id,text\r\n1,\"a, \"\"b\"\"\nc\"\r\n2,d\r\n"), "o.csv: this is CSV", "name it .txt"},
    {"o.CSV", BYTES("id,text\n\n1,a"), "this is CSV", "--task classify takes TSV"},
    {"o.tsv", BYTES("text\tlabel\na \"b\t1\nc\"\t0\n"), "o.tsv: this is TSV", "--task classify trains on its rows"},
    {"o.TSV", BYTES("a\t1\r\n\r\nb\t0"), "this is TSV", "name it .txt"},
};

TEST_EACH(what_is_no_tokens_is_refused_with_its_place_value_or_format, COUNT(wrongs))
{
    refused(processes_write(wrongs[_i].name, wrongs[_i].bytes, wrongs[_i].n), 256, -EINVAL, wrongs[_i].first,
            wrongs[_i].second);
}

/* First and last of two, larger than 32 bits, negative in each width; texts and files of no whole number of tokens. */
TEST(ids_outside_the_vocabulary_or_of_another_width_are_refused)
{
    refused(processes_write("n.npy", BYTES(NPY("<i8", "2") "\7\0\0\0\0\0\0\0\xFD\xFF\xFF\xFF\xFF\xFF\xFF\xFF")), 10,
            -EINVAL, "token 1 is -3", "vocabulary of 10");
    refused(processes_write("h.npy", BYTES(NPY("<i8", "1") "\0\0\0\0\0\1\0\0")), 10, -EINVAL,
            "token 0 is 1099511627776", "vocabulary of 10");
    refused(processes_write("i.npy", BYTES(NPY("<i4", "1") "\xFD\xFF\xFF\xFF")), 10, -EINVAL, "token 0 is -3",
            "vocabulary of 10");
    refused(processes_write("t.txt", BYTES("text")), 50257, -EINVAL, "vocabulary of 256", "50257");
    refused(processes_write("odd.bin", BYTES("abc")), 1000, -EINVAL, "3 bytes", "2 bytes");
    refused(processes_write("odd4.bin", BYTES("abcdef")), 70000, -EINVAL, "6 bytes", "4 bytes");
    refused(processes_write("short.npy", BYTES(NPY("<u2", "3") "abcd")), 65536, -EINVAL, "promises 3", "2");
    refused(processes_write("long.npy", BYTES(NPY("<u2", "1") "abcd")), 65536, -EINVAL, "promises 1", "2");
}

TEST(what_is_not_there_or_no_file_or_wrong_far_inside_is_refused)
{
    static uint16_t late[20000];
    char text[20000] = "{\n";

    refused("./missing", 256, -ENOENT, "No such file", "");
    ck_assert_int_eq(mkfifo("fifo", 0600), 0);
    refused("./fifo", 256, -EINVAL, "not a regular file", "");
    late[19999] = 10; /* beyond the first chunk that is read */
    refused(processes_write("late.bin", late, sizeof late), 10, -EINVAL, "token 19999 is 10", "vocabulary of 10");
    for (size_t n = 2; n < sizeof HELLO_GZ - 1; n++)
        refused(processes_write("cut.gz", HELLO_GZ, n), 256, -EINVAL, "gzip data ends too early", "truncated");
    for (size_t n = 4; n < sizeof HELLO_ZST - 1; n++)
        refused(processes_write("cut.zst", HELLO_ZST, n), 256, -EINVAL, "zstd data ends too early", "truncated");
    for (int i = 0; i < 500; i++) /* JSON is known by its beginning */
        sprintf(text + strlen(text), "  \"key%d\": \"gr\xC3\xB6\xC3\x9F\",\n", i);
    refused(processes_put_text("settings.txt", text), 256, -EINVAL, "this is JSON", ".jsonl");
}

TEST(files_are_one_stream)
{
    const char *paths[] = {processes_write("a.txt", "ab\xC3\xA9", 4), processes_write("empty.txt", "", 0),
                           processes_write("b.txt", "xyz", 3)};
    static const uint32_t expected[] = {'a', 'b', 0xC3, 0xA9, 'x', 'y', 'z'};
    struct client_data data;
    struct error err = {""};
    uint32_t ids[7];

    ck_assert_int_eq(open_checked(&data, paths, 3, &of_bytes, NULL), 0);
    ck_assert_uint_eq(data.n, 7);
    for (uint64_t first = 0; first < 7; first++) { /* every run, across the seams */
        for (uint64_t n = 0; first + n <= 7; n++) {
            ck_assert_int_eq(client_data_read(&data, ids, first, n, NULL), 0);
            ck_assert_mem_eq(ids, expected + first, n * sizeof *ids);
        }
    }
    ck_assert_int_eq(truncate(paths[2], 1), 0); /* one that becomes shorter is noticed */
    ck_assert_int_eq(client_data_read(&data, ids, 0, 7, &err), -EIO);
    ck_assert_holds(err.text, "shorter");
    client_data_free(&data);
}

TEST(a_pattern_stands_for_its_files_in_order)
{
    static const char *const names[] = {"g-*.txt", "g-[b].txt", "g-?.txt"};
    static const char *const nothing[] = {"g-a.txt", "h-*.txt"};
    static const char *const literal[] = {"z[ab].txt", "z*"};
    struct client_data data;
    struct error err = {0};

    processes_write("g-b.txt", "b", 1);
    processes_write("g-a.txt", "a", 1);
    processes_write("g-c.txt", "c", 1);
    ck_assert_int_eq(client_data_open(&data, names, 3, NULL), 0);
    ck_assert_uint_eq(data.n_files, 7);
    for (size_t i = 0; i < 7; i++)
        ck_assert_int_eq(data.files[i].path[2], "abcbabc"[i]);
    client_data_free(&data);
    ck_assert_int_eq(client_data_open(&data, nothing, 2, &err), -ENOENT);
    ck_assert_holds(err.text, "h-*.txt: ");
    ck_assert_ptr_null(data.files);
    /* A file that is called like a pattern is itself. */
    processes_write("z[ab].txt", "x", 1);
    processes_write("za.txt", "x", 1);
    ck_assert_int_eq(client_data_open(&data, literal, 1, NULL), 0);
    ck_assert_uint_eq(data.n_files, 1);
    ck_assert_str_eq(data.files[0].path, "z[ab].txt");
    client_data_free(&data);
    ck_assert_int_eq(client_data_open(&data, literal, 2, NULL), 0);
    ck_assert_uint_eq(data.n_files, 3);
    client_data_free(&data);
}

/* However the stream is cut into files; ids of two bytes are other bytes than a text's. */
TEST(the_hash_is_of_the_stream_alone)
{
    const char *paths[] = {processes_write("h1.txt", "abc", 3), processes_write("h2.txt", "def", 3),
                           processes_write("h.txt", "abcdef", 6),
                           processes_write("h.npy", BYTES(NPY("<u2", "3") "a\0b\0c\0")),
                           processes_write("h.bin", "a\0b\0c\0", 6)};
    struct client_data data;
    uint64_t hashes[3];

    ck_assert_int_eq(open_checked(&data, paths, 2, &of_bytes, NULL), 0);
    ck_assert_uint_eq(data.hash, XXH3_64bits("abcdef", 6));
    ck_assert(data.has_text);
    client_data_free(&data);
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(open_checked(&data, paths + 2 + i, 1, &of_bytes, NULL), 0);
        hashes[i] = data.hash;
        if (i > 0)
            ck_assert_uint_eq(data.largest, 'c');
        ck_assert(data.has_text == (i == 0));
        client_data_free(&data);
    }
    ck_assert_uint_eq(hashes[0], XXH3_64bits("abcdef", 6));
    ck_assert_uint_eq(hashes[1], hashes[2]);
    ck_assert_uint_ne(hashes[0], hashes[1]);
}

TEST(a_directory_stands_for_its_files_that_are_recognised)
{
    const char *const path = "./corpus";
    struct client_data data;
    struct error err = {""};

    ck_assert_int_eq(mkdir(path, 0777), 0);
    refused(path, 256, -ENOENT, "no file in it", ".jsonl");
    processes_put_text("corpus/b.txt", "bb");
    processes_put_text("corpus/B.md", "B"); /* before small letters, in every locale */
    processes_put_text("corpus/c.jsonl", "{\"text\": \"cc\"}");
    processes_write("corpus/a.txt.gz", HELLO_GZ, sizeof HELLO_GZ - 1);
    processes_put_text("corpus/.hidden.txt", "no");
    processes_put_text("corpus/notes.pdf", "no");
    processes_put_text("corpus/table.tsv", "no");
    is_text(path, "Bhellobbcc\n", 11);
    ck_assert_int_eq(client_data_open(&data, &path, 1, &err), 0);
    ck_assert_uint_eq(data.n_files, 4);
    ck_assert_uint_eq(data.n_passed, 2);
    ck_assert(data.n_folders == 0 && !data.folder);
    client_data_free(&data);
    ck_assert_int_eq(mkdir("corpus/de", 0777), 0);
    ck_assert_int_eq(mkdir("corpus/deep", 0777), 0);
    ck_assert_int_eq(mkdir("corpus/.git", 0777), 0);
    processes_put_text("corpus/de/d.txt", "not read");
    is_text(path, "Bhellobbcc\n", 11);
    ck_assert_int_eq(client_data_open(&data, &path, 1, &err), 0);
    ck_assert_uint_eq(data.n_folders, 2);
    ck_assert_str_eq(data.folder, "./corpus/de");
    client_data_free(&data);
}

TEST(a_directory_of_folders_alone_says_so)
{
    ck_assert_int_eq(mkdir("outer", 0777), 0);
    ck_assert_int_eq(mkdir("outer/inner", 0777), 0);
    processes_put_text("outer/inner/a.txt", "a");
    refused("outer", 256, -ENOENT, "no file in it ends in .txt",
            "folders in it are not searched, as outer/inner: name files");
}

TEST(a_directory_of_labelled_rows_stands_for_its_tables)
{
    const char *const path = "./tables";
    struct client_data data;
    struct error err = {""};

    ck_assert_int_eq(mkdir(path, 0777), 0);
    processes_put_text("tables/LICENSE.txt", "no");
    ck_assert_int_eq(client_data_open_rows(&data, &path, 1, &err), -ENOENT);
    ck_assert_holds(err.text, "no file in it ends in .tsv or .jsonl");
    processes_put_text("tables/b.tsv", "b");
    processes_put_text("tables/a.tsv.gz", "a");
    processes_put_text("tables/c.jsonl", "c");
    ck_assert_int_eq(client_data_open_rows(&data, &path, 1, &err), 0);
    ck_assert_uint_eq(data.n_files, 3);
    ck_assert_uint_eq(data.n_passed, 1);
    ck_assert_str_eq(data.files[1].path, "./tables/b.tsv");
    client_data_free(&data);
}

/* What "-" is where standard input is a file, or a pipe that ends. */
static void from_input(const char *content, size_t n, bool through_a_pipe, const char *text)
{
    int ends[2];

    ck_assert_int_eq(pipe(ends), 0);
    ck_assert_int_eq(write(ends[1], content, n), (ssize_t)n);
    close(ends[1]);
    processes_write("input", content, n);
    ck_assert_int_eq(dup2(through_a_pipe ? ends[0] : open("input", O_RDONLY), STDIN_FILENO), STDIN_FILENO);
    is_text("-", text, strlen(text));
}

TEST_EACH(standard_input_is_text_or_lines_compressed_or_not, 2)
{
    from_input("plain\n", 6, _i, "plain\n");
    from_input(HELLO_GZ, sizeof HELLO_GZ - 1, _i, "hello");
    from_input("{\"text\": \"a\"}\n{\"text\": \"b\"}\n", 28, _i, "a\nb\n");
}

static int stop_at_once(void *asked, struct error *err)
{
    ++*(int *)asked;
    return error_set(err, -EINTR, "interrupted");
}

/* Standard input is a pipe that nobody writes to and that does not end. */
TEST(a_long_check_and_a_wait_for_standard_input_can_be_stopped)
{
    enum { N = 16 << 20 };
    char *text = memset(malloc(N), 'a', N);
    const char *paths[] = {processes_write("long.txt", text, N), "-", "-"};
    struct client_data data;
    struct error err = {""};
    int ends[2];

    ck_assert_int_eq(pipe(ends), 0);
    ck_assert_int_eq(dup2(ends[0], STDIN_FILENO), STDIN_FILENO);
    for (int i = 0; i < 2; i++) {
        int asked = 0;
        const struct client_watch watch = {stop_at_once, &asked};
        const struct client_data_rules rules = {.vocabulary = 256, .watch = &watch};
        ck_assert_int_eq(open_checked(&data, paths + i, 1, &rules, &err), -EINTR);
        ck_assert_int_eq(asked, 1);
        client_data_free(&data);
    }
    ck_assert_int_eq(client_data_open(&data, paths + 1, 2, &err), -EINVAL);
    ck_assert_holds(err.text, "once");
    free(text);
}

/* A character across every place where a block could end, and a wrong byte after it, found where it is. */
TEST(a_wrong_byte_is_found_at_its_place_however_long_the_text)
{
    enum { N = 600000 };
    char *text = malloc(N + 1), place[40];

    for (int shift = 0; shift < 5; shift++) {
        memset(text, 'x', N);
        for (int i = shift; i + 4 < N - 10; i += 4)
            memcpy(text + i, "\xF0\x9F\x98\x80", 4);
        text[N - 3] = (char)0xFF;
        snprintf(place, sizeof place, "at byte %d (0xFF)", N - 3);
        refused(processes_write("wrong.txt", text, N), 256, -EINVAL, place, "UTF-8");
        text[N - 3] = 'y';
        is_text(processes_write("right.txt", text, N), text, N);
    }
    free(text);
}

/* Lines longer than a piece that is read; a long text comes out of gzip as it went in; and what expands without end is
 * cut short. */
TEST(long_lines_and_archives_are_read_and_bombs_are_not)
{
    enum { N = 5 << 20, BLOCKS = 1024 }; /* of 128 KiB of one byte, each written as four */
    char *line = malloc(N + 32), *text = malloc(N + 2), bomb[6 + 4 * BLOCKS] = "\x28\xb5\x2f\xfd\x00\x38";
    const int before = sprintf(line, "{\"text\": \"");

    memset(line + before, 'x', N);
    memset(text, 'x', N);
    memcpy(text + N, "\n", 2);
    strcpy(line + before + N, "\"}\n");
    is_text(processes_put_text("wide.jsonl", line), text, N + 1);
    for (size_t i = 0; i < N; i++)
        text[i] = (char)(i % 61 == 60 ? '\n' : 'a' + (int)(i * i / 7 % 26));
    processes_write("packed.txt", text, N);
    expect("gzip packed.txt", 0);
    is_text("packed.txt.gz", text, N);
    for (size_t i = 0; i < BLOCKS; i++) {
        const uint32_t head = (uint32_t)(128 << 10) << 3 | 1 << 1 | (i + 1 == BLOCKS);
        memcpy(bomb + 6 + 4 * i, &head, 3);
        bomb[6 + 4 * i + 3] = 'a';
    }
    refused(processes_write("bomb.zst", bomb, sizeof bomb), 256, -EINVAL, "more than 250 times", "unpack it yourself");
    free(line), free(text);
}

/* In $TMPDIR where that takes such files, as the device of the test's directory tells; else wherever one can be. */
TEST(a_nameless_file_lies_where_tmpdir_says_or_where_it_can)
{
    const char *const places[] = {processes_directory(), processes_path("absent"), "", "/proc"};
    const int any = open(places[0], O_TMPFILE | O_RDWR, 0600);
    struct stat st, there;

    ck_assert_int_eq(stat(places[0], &there), 0);
    for (int i = 0; i < COUNT(places); i++) {
        char back[3] = "";
        setenv("TMPDIR", places[i], 1);
        const int fd = client_data_nameless("a test", NULL);
        ck_assert(fd >= 0 && fstat(fd, &st) == 0 && st.st_nlink == 0);
        ck_assert(i > 0 || any < 0 || st.st_dev == there.st_dev);
        ck_assert_int_eq(pwrite(fd, "ab", 2, 1 << 20), 2);
        ck_assert_int_eq(pread(fd, back, 2, 1 << 20), 2);
        ck_assert_str_eq(back, "ab");
        close(fd);
    }
    if (any >= 0)
        close(any);
}

/* A name ends in a weight only if no file has that name. */
TEST(a_name_may_end_in_a_weight)
{
    static const struct {
        const char *name;
        double weight; /* 0: there is no such file */
    } names[] = {{"w.jsonl", 1},       {"w.jsonl=2", 2},    {"w.jsonl=0.5", 0.5}, {"w.jsonl=1.", 1}, {"x=3", 1},
                 {"x=3=4", 4},         {"w.jsonl=0", 0},    {"w.jsonl=", 0},      {"w.jsonl=-1", 0}, {"w.jsonl=1e3", 0},
                 {"w.jsonl=1.2.3", 0}, {"w.jsonl=1001", 0}, {"w*.jsonl=3", 3}};
    const struct client_data_rules rules = {.vocabulary = 256};

    processes_put_text("w.jsonl", "{\"text\": \"a\"}\n");
    processes_put_text("x=3", "text");
    for (int i = 0; i < COUNT(names); i++) {
        const char *name = print("%s/%s", processes_directory(), names[i].name);
        struct client_data data;
        struct error err = {""};
        const int rc = client_data_open(&data, &name, 1, &err);
        if (names[i].weight == 0) {
            ck_assert_msg(rc == -ENOENT, "%s: %d", name, rc);
            continue;
        }
        ck_assert_msg(rc == 0, "%s", err.text);
        ck_assert_double_eq(data.files[0].weight, names[i].weight);
        char *again = client_data_name(&data.files[0]);
        ck_assert_int_eq(strchr(again, '=') != NULL, names[i].weight != 1 || names[i].name[0] == 'x');
        if (names[i].weight != 1) {
            ck_assert_int_eq(client_data_check(&data, &rules, &err), -EINVAL);
            ck_assert_holds(err.text, "has the weight", "conversations");
        }
        free(again);
        client_data_free(&data);
    }
}
