/* What data comes in: compressed, as JSON lines, as directories, through a pipe; and what is refused by its name.
 * Compressed bytes are written by hand here, after RFC 1952 and RFC 8878, or by the gzip program. */
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include "client/data/data.h"
#include "client/text/side.h"
#include "client/text/tokenizer.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *put_text(const char *name, const char *text)
{
    return processes_write(name, text, strlen(text));
}

static int check(struct client_data *data, const char *path, const struct client_data_rules *rules, struct error *err)
{
    int rc = client_data_open(data, &path, 1, err);
    return rc ? rc : client_data_check(data, rules, err);
}

static const struct client_data_rules bytes = {.vocabulary = 256};

/* The stream of a path is this text, byte by byte. */
static void is_text(const char *path, const char *text, size_t n)
{
    struct client_data data;
    struct error err = {""};
    uint32_t *tokens = malloc((n + 1) * sizeof *tokens);

    ck_assert_msg(check(&data, path, &bytes, &err) == 0, "%s", err.text);
    ck_assert_uint_eq(data.n, n);
    ck_assert_int_eq(client_data_read(&data, tokens, 0, n, &err), 0);
    for (size_t i = 0; i < n; i++) {
        if (tokens[i] != (uint8_t)text[i]) /* an assertion each would take seconds */
            ck_abort_msg("token %zu of %s is %u", i, path, tokens[i]);
    }
    client_data_free(&data);
    free(tokens);
}

static void holds(const char *path, const char *text)
{
    is_text(path, text, strlen(text));
}

static void refused(const char *path, int code, const char *first, const char *second)
{
    struct client_data data;
    struct error err = {""};

    ck_assert_int_eq(check(&data, path, &bytes, &err), code);
    ck_assert_holds(err.text, path, first, second);
    client_data_free(&data);
}

/* A member of gzip that stores "hello" as it is; its CRC-32 is 0x3610a686. */
#define HELLO_GZ "\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\x01\x05\x00\xfa\xffhello\x86\xa6\x10\x36\x05\x00\x00\x00"
/* A frame of one raw block, with its size in a byte. */
#define HELLO_ZST "\x28\xb5\x2f\xfd\x20\x05\x29\x00\x00hello"

SUITE_TIMEOUT(300)
SUITE_FIXTURE_ONCE(processes_setup, processes_remove)

TEST(a_compressed_text_is_the_text)
{
    holds(processes_write("a.txt.gz", HELLO_GZ, sizeof HELLO_GZ - 1), "hello");
    holds(processes_write("b.gz", HELLO_GZ HELLO_GZ, 2 * (sizeof HELLO_GZ - 1)), "hellohello"); /* two members */
    holds(processes_write("c.txt.zst", HELLO_ZST, sizeof HELLO_ZST - 1), "hello");
    holds(processes_write("d.zst", HELLO_ZST HELLO_ZST, 2 * (sizeof HELLO_ZST - 1)), "hellohello");
    holds(processes_write("e.txt", HELLO_GZ, sizeof HELLO_GZ - 1), "hello"); /* whatever its name */
}

TEST(ids_may_be_compressed_too)
{
    /* The same member with four other bytes, "\x07\x00\x09\x00"; their CRC-32 by Python's zlib.crc32. */
    static const char ids[] = "\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\x01\x04\x00\xfb\xff\x07\x00\x09\x00"
                              "\xec\x5c\x51\x6d"
                              "\x04\x00\x00\x00";
    struct client_data data;
    struct error err = {""};
    uint32_t tokens[2];

    const char *path = processes_write("ids.bin.gz", ids, sizeof ids - 1);
    ck_assert_msg(check(&data, path, &bytes, &err) == 0, "%s", err.text);
    ck_assert_uint_eq(data.n, 2);
    ck_assert_int_eq(client_data_read(&data, tokens, 0, 2, &err), 0);
    ck_assert(tokens[0] == 7 && tokens[1] == 9 && !data.has_text);
    client_data_free(&data);
}

TEST(a_long_text_comes_out_of_gzip_as_it_went_in)
{
    enum { N = 3 << 20 };
    char *text = malloc(N);

    for (size_t i = 0; i < N; i++)
        text[i] = (char)(i % 61 == 60 ? '\n' : 'a' + (int)(i * i / 7 % 26));
    processes_write("long.txt", text, N);
    ck_assert_int_eq(system("gzip -k long.txt"), 0);
    is_text("./long.txt.gz", text, N);
    free(text);
}

TEST(truncated_and_damaged_archives_are_told_in_a_sentence)
{
    char damaged[] = HELLO_GZ;

    damaged[17] ^= 1;
    for (size_t n = 2; n < sizeof HELLO_GZ - 1; n++)
        refused(processes_write("cut.gz", HELLO_GZ, n), -EINVAL, "gzip data ends too early", "truncated");
    for (size_t n = 4; n < sizeof HELLO_ZST - 1; n++)
        refused(processes_write("cut.zst", HELLO_ZST, n), -EINVAL, "zstd data ends too early", "truncated");
    refused(processes_write("bad.gz", damaged, sizeof damaged - 1), -EINVAL, "gzip data is damaged", "check");
    refused(processes_write("bad.zst", HELLO_ZST "more", sizeof HELLO_ZST + 3), -EINVAL, "zstd data is damaged", "");
    refused(processes_write("no.gz", "hello", 5), -EINVAL, "not compressed, though its name says so", "");
    refused(processes_write("empty.gz", "", 0), -EINVAL, "empty", "");
    /* A window of 2 GiB, which --long=31 makes. */
    refused(processes_write("wide.zst", "\x28\xb5\x2f\xfd\x00\xa8\x29\x00\x00hello", 14), -EINVAL, "128 MiB", "--long");
}

TEST(what_expands_without_end_is_cut_short)
{
    enum { BLOCKS = 1024 }; /* 128 KiB each of one byte, written as four */
    char bomb[6 + 4 * BLOCKS] = "\x28\xb5\x2f\xfd\x00\x38";

    for (size_t i = 0; i < BLOCKS; i++) {
        const uint32_t head = (uint32_t)(128 << 10) << 3 | 1 << 1 | (i + 1 == BLOCKS);
        memcpy(bomb + 6 + 4 * i, &head, 3);
        bomb[6 + 4 * i + 3] = 'a';
    }
    refused(processes_write("bomb.zst", bomb, sizeof bomb), -EINVAL, "more than 250 times", "unpack it yourself");
}

TEST(json_lines_are_read_by_their_text)
{
    holds(put_text("text.jsonl", "{\"text\": \"one\\u00e9\", \"id\": 7}\n\n{\"text\": \"two\\n\"}\n{\"text\": \"\"}"),
          "one\xC3\xA9\ntwo\n");
    holds(put_text("pairs.jsonl", "{\"prompt\": \"2+2=\", \"completion\": \"4\"}\r\n"), "2+2=4\n");
    holds(put_text("talk.jsonl", "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}, "
                                 "{\"role\": \"assistant\", \"content\": \"Hello\"}]}"),
          "user: Hi\nassistant: Hello\n");
    holds(processes_write("packed.jsonl.gz",
                          "\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\x01\x0e\x00\xf1\xff{\"text\": \"hi\"}"
                          "\x12\x5a\xaf\xd2"
                          "\x0e\x00\x00\x00",
                          15 + 14 + 8),
          "hi\n");
}

TEST(a_line_that_is_not_as_expected_is_told_by_its_number)
{
    refused(put_text("a.jsonl", "{\"text\": \"one\"}\n{\"content\": \"two\"}\n"), -EINVAL, "line 2", "\"text\"");
    refused(put_text("b.jsonl", "{\"text\": \"one\"}\n\nnot json\n"), -EINVAL, "line 3", "not JSON");
    refused(put_text("c.jsonl", "{\"text\": 7}\n"), -EINVAL, "line 1", "\"text\"");
    refused(put_text("d.jsonl", "[\"text\"]\n"), -EINVAL, "line 1", "no object");
    refused(put_text("e.jsonl", "{\"messages\": [{\"role\": \"user\"}]}\n"), -EINVAL, "line 1", "content");
    refused(put_text("f.jsonl", "{\"messages\": []}\n"), -EINVAL, "line 1", "messages");
    refused(put_text("g.jsonl", "{\"prompt\": \"a\"}\n"), -EINVAL, "line 1", "completion");
}

TEST(a_line_may_be_longer_than_a_piece_that_is_read)
{
    enum { N = 5 << 20 };
    char *line = malloc(N + 32), *text = malloc(N + 2);
    const int before = sprintf(line, "{\"text\": \"");

    memset(line + before, 'x', N);
    memset(text, 'x', N);
    memcpy(text + N, "\n", 2);
    strcpy(line + before + N, "\"}\n");
    holds(put_text("wide.jsonl", line), text);
    free(line);
    free(text);
}

TEST(other_formats_are_refused_by_their_names)
{
    static const struct {
        const char *bytes;
        size_t n;
        const char *name, *remedy;
    } formats[] = {
        {"PK\x03\x04\x14\0\0\0", 8, "zip", "unzip"},
        {"\xFD"
         "7zXZ\0\0\4",
         8, "xz", "--data -"},
        {"BZh91AY&SY", 10, "bzip2", "--data -"},
        {"PAR1\x15\x04", 6, "parquet", ".jsonl"},
        {"%PDF-1.7\n", 9, "PDF", "pdftotext"},
        {"\x89PNG\r\n\x1a\n", 8, "PNG", "text"},
        {"\xFF\xD8\xFF\xE0", 4, "JPEG", "text"},
        {"\x7F"
         "ELF\2\1\1",
         7, "ELF", "text"},
        {"\x40\0\0\0\0\0\0\0{\"__metadata__\"", 23, "safetensors", "--model"},
        {"\x93NUMPY\1\0", 8, "NumPy", ".npy"},
        {"{\"a\": 1, \"b\": [2]}", 0, "JSON", ".jsonl"},
        {"{\"text\": \"a\"}\n{\"text\": \"b\"}\n", 0, "JSON lines", "name it .jsonl"},
        {"[\n  {\"text\": \"a\"},\n  {\"text\": \"b\"}\n]\n", 0, "JSON", ".jsonl"},
        {" <!doctype HTML><p>", 0, "HTML", ".html"},
        {"<html><p>", 0, "HTML", ".html"},
    };

    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        refused(processes_write("named.txt", formats[i].bytes, formats[i].n ? formats[i].n : strlen(formats[i].bytes)),
                -EINVAL, formats[i].name, formats[i].remedy);
    refused(processes_write("weights.bin", "PK\x03\x04\x14\0\0\0", 8), -EINVAL, "zip", "unzip");
}

TEST(large_json_is_known_by_its_beginning)
{
    char *text = calloc(1, 20000);

    strcpy(text, "{\n");
    for (int i = 0; i < 500; i++)
        sprintf(text + strlen(text),
                "  \"key%d\": \"gr\xC3\xB6\xC3\x9F"
                "er\",\n",
                i);
    refused(put_text("settings.txt", text), -EINVAL, "this is JSON", ".jsonl");
    free(text);
}

TEST(texts_that_look_a_little_like_others_are_texts)
{
    holds(put_text("braces.c", "{ int a[] = {1}; }\n"), "{ int a[] = {1}; }\n");
    holds(put_text("note.txt", "[1] A footnote\n"), "[1] A footnote\n");
    holds(put_text("list.txt", "[\"Ah\", he said, \"no\n"), "[\"Ah\", he said, \"no\n");
    holds(put_text("page.html", "<html><p>"), "<html><p>");
    holds(put_text("quote.txt", "{\"Really\"} he said\n"), "{\"Really\"} he said\n");
    holds(put_text("empty.txt", ""), "");
}

TEST(a_directory_stands_for_its_files_that_are_recognised)
{
    const char *const path = "./corpus";
    struct client_data data;
    struct error err = {""};

    ck_assert_int_eq(mkdir(path, 0777), 0);
    refused(path, -ENOENT, "no file in it", ".jsonl");
    put_text("corpus/b.txt", "bb");
    put_text("corpus/B.md", "B"); /* before small letters, in every locale */
    put_text("corpus/c.jsonl", "{\"text\": \"cc\"}");
    processes_write("corpus/a.txt.gz", HELLO_GZ, sizeof HELLO_GZ - 1);
    put_text("corpus/.hidden.txt", "no");
    put_text("corpus/notes.pdf", "no");
    is_text(path, "Bhellobbcc\n", 11);
    ck_assert_int_eq(client_data_open(&data, &path, 1, &err), 0);
    ck_assert_uint_eq(data.n_files, 4);
    ck_assert_uint_eq(data.n_passed, 1);
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

static int stop(void *data, struct error *err)
{
    (void)data;
    return error_set(err, -EINTR, "interrupted");
}

TEST(who_waits_for_standard_input_can_be_stopped)
{
    const struct client_watch watch = {.ask = stop};
    struct client_data data;
    struct error err = {""};
    int ends[2];

    ck_assert_int_eq(pipe(ends), 0); /* nobody writes, and it does not end */
    ck_assert_int_eq(dup2(ends[0], STDIN_FILENO), STDIN_FILENO);
    ck_assert_int_eq(check(&data, "-", &(struct client_data_rules){.vocabulary = 256, .watch = &watch}, &err), -EINTR);
    client_data_free(&data);
}

TEST(standard_input_is_read_once)
{
    struct client_data data;
    struct error err = {""};

    ck_assert_int_eq(dup2(open("/dev/null", O_RDONLY), STDIN_FILENO), STDIN_FILENO);
    ck_assert_int_eq(client_data_open(&data, (const char *const[]){"-", "-"}, 2, &err), -EINVAL);
    ck_assert_holds(err.text, "once");
}

/* GPT-2's kind of tokenizer, of tests/fixtures/bpe: <|endoftext|> is 0. */
static struct client_tokenizer *open_tokenizer(void)
{
    struct client_tokenizer *t;
    json_t *side;

    ck_assert_int_eq(client_side_read(&side, TESTS_DIR "/fixtures/bpe", NULL), 0);
    ck_assert_int_eq(client_tokenizer_open(&t, side, 600, NULL), 0);
    json_decref(side);
    return t;
}

/* ids (n) of several files are the bytes' tokens, letter by letter; '|' is the end token. */
static void has_tokens(struct client_tokenizer *t, enum eps_separator separator, const char *const *paths, size_t n,
                       const char *letters)
{
    const struct client_data_rules rules = {.vocabulary = 600, .tokenizer = t, .separator = separator};
    struct client_data data;
    struct error err = {""};
    uint32_t tokens[64];
    size_t length;

    ck_assert_int_eq(client_data_open(&data, paths, n, &err), 0);
    ck_assert_msg(client_data_check(&data, &rules, &err) == 0, "%s", err.text);
    ck_assert_uint_eq(data.n, strlen(letters));
    ck_assert_int_eq(client_data_read(&data, tokens, 0, data.n, &err), 0);
    for (size_t i = 0; i < data.n; i++) {
        const char *token = client_tokenizer_decode(t, tokens[i], &length);
        if (letters[i] == '|')
            ck_assert_uint_eq(tokens[i], client_tokenizer_end(t));
        else
            ck_assert_msg(length == 1 && *token == letters[i], "token %zu is %.*s", i, (int)length, token);
    }
    client_data_free(&data);
}

TEST(texts_are_separated_by_the_end_token_unless_none_is_wished)
{
    struct client_tokenizer *t = open_tokenizer();
    const char *paths[] = {put_text("1.txt", "Q"), put_text("2.jsonl", "{\"text\": \"X\"}\n{\"text\": \"Y\"}\n"),
                           put_text("3.txt", "Z"), processes_write("4.bin", "\x07\x00", 2)};
    const char *const *names = paths;

    has_tokens(t, EPS_SEPARATOR_DEFAULT, names, 3, "Q|X|Y|Z");
    has_tokens(t, EPS_SEPARATOR_EOS, names, 3, "Q|X|Y|Z");
    has_tokens(t, EPS_SEPARATOR_NONE, names, 3, "QX\nY\nZ");
    has_tokens(t, EPS_SEPARATOR_DEFAULT, names, 1, "Q"); /* between texts, not behind the last */
    has_tokens(t, EPS_SEPARATOR_DEFAULT, names + 1, 1, "X|Y");
    client_tokenizer_close(t);
}

TEST(an_end_token_that_is_not_there_cannot_separate)
{
    const char *path = put_text("alone.txt", "a");
    struct client_data data;
    struct error err = {""};
    struct client_tokenizer *t;

    ck_assert_int_eq(client_tokenizer_open(&t, NULL, 256, &err), 0);
    const struct client_data_rules rules = {.vocabulary = 256, .tokenizer = t, .separator = EPS_SEPARATOR_EOS};
    ck_assert_int_eq(check(&data, path, &rules, &err), -EDOM);
    ck_assert_msg(strstr(err.text, "--separator eos"), "%s", err.text);
    client_data_free(&data);
    client_tokenizer_close(t);
}
