/* Token streams and windows, from files written here byte by byte. */
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include "client/data/data.h"
#include "client/text/side.h"
#include "client/text/tokenizer.h"
#include "proto/base/random.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

/* Opens files and checks them. */
static int open_checked(struct client_data *data, const char *const *paths, size_t n, uint32_t vocabulary,
                        struct error *err)
{
    int rc = client_data_open(data, paths, n, err);

    return rc ? rc : client_data_check(data, &(struct client_data_rules){.vocabulary = vocabulary}, err);
}

/* Opens one file that has to be refused, with these words in the sentence. */
static void refused(const char *path, uint32_t vocabulary, int code, const char *first, const char *second)
{
    const char *paths[] = {path};
    struct client_data data;
    struct error err = {0};

    ck_assert_int_eq(open_checked(&data, paths, 1, vocabulary, &err), code);
    ck_assert_holds(err.text, path, first, second);
    client_data_free(&data);
}

SUITE_FIXTURE_ONCE(processes_setup, processes_remove)

TEST(text_is_one_token_a_byte_and_files_are_one_stream)
{
    const char *paths[] = {processes_write("a.txt", "ab\xC3\xA9", 4), processes_write("empty.txt", "", 0),
                           processes_write("b.txt", "xyz", 3)};
    static const uint32_t expected[] = {'a', 'b', 0xC3, 0xA9, 'x', 'y', 'z'};
    struct client_data data;
    uint32_t tokens[7];

    ck_assert_int_eq(open_checked(&data, paths, 3, 256, NULL), 0);
    ck_assert_uint_eq(data.n, 7);
    for (uint64_t first = 0; first < 7; first++) { /* every run, across the seams */
        for (uint64_t n = 0; first + n <= 7; n++) {
            ck_assert_int_eq(client_data_read(&data, tokens, first, n, NULL), 0);
            ck_assert_mem_eq(tokens, expected + first, n * sizeof *tokens);
        }
    }
    client_data_free(&data);
}

TEST(bin_has_two_bytes_a_token_and_four_for_large_vocabularies)
{
    const char *path = processes_write("a.bin", "\x01\x00\x02\x01\xFF\xFF\x00\x00", 8);
    const char *paths[] = {path};
    struct client_data data;
    uint32_t tokens[4];

    ck_assert_int_eq(open_checked(&data, paths, 1, 65536, NULL), 0);
    ck_assert_uint_eq(data.n, 4);
    ck_assert_int_eq(client_data_read(&data, tokens, 0, 4, NULL), 0);
    ck_assert_mem_eq(tokens, ((uint32_t[]){1, 0x102, 0xFFFF, 0}), sizeof tokens);
    client_data_free(&data);
    ck_assert_int_eq(open_checked(&data, paths, 1, 1 << 25, NULL), 0);
    ck_assert_uint_eq(data.n, 2);
    ck_assert_int_eq(client_data_read(&data, tokens, 0, 2, NULL), 0);
    ck_assert_mem_eq(tokens, ((uint32_t[]){0x1020001, 0xFFFF}), 2 * sizeof *tokens);
    client_data_free(&data);
}

/* A header of 64 bytes in front of n bytes. */
static const char *put_npy(const char *name, const char *descr, unsigned count, const void *bytes, size_t n)
{
    char file[256];

    snprintf(file, sizeof file, "\x93NUMPY\x01%c%c%c{'descr': '%s', 'fortran_order': False, 'shape': (%u,)}", 0, 64, 0,
             descr, count);
    /* snprintf has put the zero bytes, but strlen would stop at them: the dictionary starts at 10. */
    size_t used = 10 + strlen(file + 10);
    memset(file + used, ' ', 74 - used);
    memcpy(file + 74, bytes, n);
    return processes_write(name, file, 74 + n);
}

TEST(npy_holds_integers_of_any_width)
{
    static const int32_t i32[] = {7, 0, 9};
    static const int64_t i64[] = {7, 0, 9};
    static const uint16_t u16[] = {7, 0, 9};
    const char *paths[] = {put_npy("i4.npy", "<i4", 3, i32, sizeof i32), put_npy("i8.npy", "<i8", 3, i64, sizeof i64),
                           put_npy("u2.npy", "<u2", 3, u16, sizeof u16)};
    struct client_data data;
    uint32_t tokens[9];

    ck_assert_int_eq(open_checked(&data, paths, 3, 10, NULL), 0);
    ck_assert_int_eq(client_data_read(&data, tokens, 0, 9, NULL), 0);
    ck_assert_mem_eq(tokens, ((uint32_t[]){7, 0, 9, 7, 0, 9, 7, 0, 9}), sizeof tokens);
    client_data_free(&data);
}

TEST(a_token_outside_the_vocabulary_is_refused_with_its_place_and_value)
{
    static const int64_t negative[] = {7, -3};
    static const int64_t huge[] = {7, 1, (int64_t)1 << 40};
    static uint16_t late[20000];

    refused(put_npy("n.npy", "<i8", 2, negative, sizeof negative), 10, -EINVAL, "token 1 is -3", "vocabulary of 10");
    refused(put_npy("h.npy", "<i8", 3, huge, sizeof huge), 10, -EINVAL, "token 2 is 1099511627776", "vocabulary");
    refused(put_npy("i.npy", "<i4", 1, &(int32_t){-3}, 4), 10, -EINVAL, "token 0 is -3", "vocabulary of 10");
    late[19999] = 10; /* beyond the first chunk that is read */
    refused(processes_write("late.bin", late, sizeof late), 10, -EINVAL, "token 19999 is 10", "vocabulary of 10");
}

TEST(files_that_are_not_tokens_are_refused_with_a_sentence)
{
    refused(processes_write("t.txt", "text", 4), 50257, -EINVAL, "vocabulary of 256", "50257");
    refused(processes_write("odd.bin", "abc", 3), 1000, -EINVAL, "3 bytes", "2 bytes");
    refused(processes_write("odd4.bin", "abcdef", 6), 70000, -EINVAL, "6 bytes", "4 bytes");
    refused(put_npy("short.npy", "<u2", 3, "abcd", 4), 65536, -EINVAL, "promises 3", "2");
    refused(put_npy("long.npy", "<u2", 1, "abcd", 4), 65536, -EINVAL, "promises 1", "2");
    refused(processes_write("not.npy", "abcdefghijkl", 12), 256, -EINVAL, "not a NumPy file", "");
    refused("./missing", 256, -ENOENT, "No such file", "");
    ck_assert_int_eq(mkfifo("fifo", 0600), 0);
    refused("./fifo", 256, -EINVAL, "not a regular file", "");
}

TEST(text_is_utf_8_but_may_be_cut_at_both_ends)
{
    static const struct {
        const char *bytes;
        bool accepted;
    } texts[] = {
        {"gr\xC3\xBC\xC3\x9F", true},   {"\xE2\x82\xAC \xF0\x9F\x98\x80 \xEF\xBF\xBF", true},
        {"\x82\xAC euro", true}, /* begins and ends inside a character */
        {"euro \xE2\x82", true},        {"\x80\x80\x80\x80", false},
        {"gr\xFC\xDF", false},                                      /* Latin-1 */
        {"ab \xC0\xAF", false},                                     /* overlong */
        {"ab \xE0\x80\xAF", false},     {"ab \xED\xA0\x80", false}, /* surrogate */
        {"ab \xF4\x90\x80\x80", false},                             /* above U+10FFFF */
        {"ab \xE2\x82x", false},        {"ab \xFF", false},
    };

    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        const char *path = processes_write("utf8.txt", texts[i].bytes, strlen(texts[i].bytes));
        const char *paths[] = {path};
        struct client_data data;
        if (texts[i].accepted) {
            ck_assert_msg(open_checked(&data, paths, 1, 256, NULL) == 0, "text %zu", i);
            client_data_free(&data);
        } else {
            refused(path, 256, -EINVAL, "UTF-8", "iconv");
        }
    }
}

TEST(a_file_that_becomes_shorter_is_noticed)
{
    const char *path = processes_write("shrinks.txt", "abcdef", 6);
    const char *paths[] = {path};
    struct client_data data;
    struct error err = {0};
    uint32_t tokens[6];

    ck_assert_int_eq(open_checked(&data, paths, 1, 256, NULL), 0);
    ck_assert_int_eq(truncate(path, 3), 0);
    ck_assert_int_eq(client_data_read(&data, tokens, 0, 6, &err), -EIO);
    ck_assert_holds(err.text, "shorter");
    client_data_free(&data);
}

/* By hand: 10 tokens and windows of 3: (10-1)/3 = 3 of them; 9 tokens give 2, as the last has no successor. */
TEST(windows_predict_each_successor)
{
    const char *path = processes_write("w.txt", "0123456789", 10);
    const char *paths[] = {path};
    struct client_data data;
    uint32_t ids[3], labels[3];

    ck_assert_int_eq(open_checked(&data, paths, 1, 256, NULL), 0);
    ck_assert_uint_eq(client_windows_of(&data, 0, 9, 3).n, 2);
    ck_assert_uint_eq(client_windows_of(&data, 0, 3, 3).n, 0);
    ck_assert_uint_eq(client_windows_of(&data, 0, 0, 3).n, 0);
    struct client_windows windows = client_windows_of(&data, 0, 10, 3);
    ck_assert_uint_eq(windows.n, 3);
    ck_assert_int_eq(client_windows_read(&windows, ids, labels, 2, NULL), 0);
    ck_assert_mem_eq(ids, ((uint32_t[]){'6', '7', '8'}), sizeof ids);
    ck_assert_mem_eq(labels, ((uint32_t[]){'7', '8', '9'}), sizeof labels);
    windows = client_windows_of(&data, 6, 4, 3); /* the held-out end */
    ck_assert_uint_eq(windows.n, 1);
    ck_assert_int_eq(client_windows_read(&windows, ids, labels, 0, NULL), 0);
    ck_assert_mem_eq(ids, ((uint32_t[]){'6', '7', '8'}), sizeof ids);
    client_data_free(&data);
}

/* By hand: of ten tokens, nine successors are predicted, in windows of four, four and one. */
TEST(held_out_windows_take_the_rest_and_are_spread)
{
    const char *path = processes_write("h.txt", "0123456789", 10);
    const char *paths[] = {path};
    struct client_data data;
    uint32_t ids[4], labels[4];

    ck_assert_int_eq(open_checked(&data, paths, 1, 256, NULL), 0);
    ck_assert_uint_eq(client_windows_held_out(&data, 0, 4, 4, 0).n, 0);
    struct client_windows windows = client_windows_held_out(&data, 0, 10, 4, 0);
    ck_assert_uint_eq(windows.n, 3);
    ck_assert_uint_eq(client_windows_tokens(&windows, 0, 3), 9);
    ck_assert_uint_eq(client_windows_tokens(&windows, 0, 2), 8);
    ck_assert_uint_eq(client_windows_tokens(&windows, 2, 1), 1);
    ck_assert_int_eq(client_windows_read(&windows, ids, labels, 2, NULL), 0);
    ck_assert_mem_eq(ids, ((uint32_t[]){'8', 0, 0, 0}), sizeof ids);
    ck_assert_mem_eq(labels, ((uint32_t[]){'9', UINT32_MAX, UINT32_MAX, UINT32_MAX}), sizeof labels);
    windows = client_windows_held_out(&data, 0, 10, 2, 7); /* three of five, 0, 1 and 3 */
    ck_assert_uint_eq(windows.n, 3);
    ck_assert_uint_eq(client_windows_tokens(&windows, 0, 3), 6);
    ck_assert_int_eq(client_windows_read(&windows, ids, labels, 2, NULL), 0);
    ck_assert_mem_eq(ids, ((uint32_t[]){'6', '7'}), 2 * sizeof *ids);
    windows = client_windows_held_out(&data, 0, 10, 4, 1); /* one at least */
    ck_assert_uint_eq(client_windows_tokens(&windows, 0, windows.n), 4);
    windows = client_windows_held_out(&data, 0, 9, 4, 0); /* no rest */
    ck_assert_uint_eq(client_windows_tokens(&windows, 0, windows.n), 8);
    client_data_free(&data);
}

TEST(sequential_order_wraps_around)
{
    const struct client_windows windows = {.n = 5};

    for (uint64_t row = 0; row < 23; row++)
        ck_assert_uint_eq(client_windows_pick(&windows, EPS_SEQUENTIAL, 9, row), row % 5);
}

TEST(each_shuffled_epoch_is_a_permutation_of_its_own)
{
    enum { N = 1000, EPOCHS = 3 };
    const struct client_windows windows = {.n = N};
    static uint8_t seen[EPOCHS][N];
    unsigned same_as_before = 0, same_for_other_seed = 0;

    for (uint64_t row = 0; row < N * EPOCHS; row++) {
        const uint64_t k = client_windows_pick(&windows, EPS_SHUFFLED, 1, row);
        ck_assert_uint_lt(k, N);
        ck_assert_uint_eq(seen[row / N][k]++, 0);
        same_as_before += row >= N && k == client_windows_pick(&windows, EPS_SHUFFLED, 1, row - N);
        same_for_other_seed += k == client_windows_pick(&windows, EPS_SHUFFLED, 2, row);
        ck_assert_uint_eq(k, random_permute(random_site_key(1, row / N, 0, RANDOM_ORDER), row % N, N));
    }
    /* Two independent permutations agree in 1 place on average (Poisson): 20 has a chance below 1e-18. */
    ck_assert_uint_lt(same_as_before, 20 * (EPOCHS - 1));
    ck_assert_uint_lt(same_for_other_seed, 20 * EPOCHS);
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
                           processes_write("h.txt", "abcdef", 6), put_npy("h.npy", "<u2", 3, "a\0b\0c\0", 6),
                           processes_write("h.bin", "a\0b\0c\0", 6)};
    struct client_data data;
    uint64_t hashes[3];

    ck_assert_int_eq(open_checked(&data, paths, 2, 256, NULL), 0);
    ck_assert_uint_eq(data.hash, XXH3_64bits("abcdef", 6));
    ck_assert(data.has_text);
    client_data_free(&data);
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(open_checked(&data, paths + 2 + i, 1, 256, NULL), 0);
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

static int stop_at_once(void *asked, struct error *err)
{
    ++*(int *)asked;
    return error_set(err, -EINTR, "interrupted");
}

TEST(a_long_check_can_be_interrupted)
{
    enum { N = 16 << 20 };
    char *text = malloc(N);
    struct client_data data;
    int asked = 0;

    memset(text, 'a', N);
    const char *path = processes_write("long.txt", text, N);
    const struct client_watch watch = {stop_at_once, &asked};
    const struct client_data_rules rules = {.vocabulary = 256, .watch = &watch};
    ck_assert_int_eq(client_data_open(&data, (const char *const[]){path}, 1, NULL), 0);
    ck_assert_int_eq(client_data_check(&data, &rules, NULL), -EINTR);
    ck_assert_int_eq(asked, 1);
    client_data_free(&data);
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
        const char *path = processes_write("right.txt", text, N);
        struct client_data data;
        ck_assert_int_eq(open_checked(&data, (const char *const[]){path}, 1, 256, NULL), 0);
        ck_assert_uint_eq(data.n, N);
        client_data_free(&data);
    }
    free(text);
}

/* The fixture's tokenizer of 600 tokens. */
static struct client_tokenizer *open_tokenizer(void)
{
    json_t *side;
    struct client_tokenizer *t;

    ck_assert_int_eq(client_side_read(&side, TESTS_DIR "/fixtures/bpe", NULL), 0);
    ck_assert_int_eq(client_tokenizer_open(&t, side, 600, NULL), 0);
    json_decref(side);
    return t;
}

static void check_tokenised(const char *text, size_t n, uint32_t vocabulary)
{
    struct client_tokenizer *t = open_tokenizer();
    struct client_tokens expected = {0};
    struct client_data data;
    size_t used, cut = 0;
    const char *paths[] = {processes_write("a.bin", "\x05\0\x07\0\x05\0\x07\0", 8),
                           processes_write("tokens.txt", text, n)};

    while (cut < n && ((uint8_t)text[cut] & 0xC0) == 0x80)
        cut++;
    ck_assert_int_eq(client_tokenizer_encode_word(&expected, t, text, cut, NULL), 0);
    ck_assert_int_eq(client_tokenizer_encode(&expected, &used, t, text + cut, n - cut, false, NULL), 0);
    const size_t sure = expected.n; /* the last words could go on */
    ck_assert_int_eq(client_data_open(&data, paths, 2, NULL), 0);
    const struct client_data_rules rules = {.vocabulary = vocabulary, .tokenizer = t};
    ck_assert_int_eq(client_data_check(&data, &rules, NULL), 0);
    const uint64_t before = vocabulary > 65536 ? 2 : 4;
    ck_assert_uint_eq(data.files[1].first, before);
    ck_assert_uint_ge(data.n, before + sure);
    uint32_t *tokens = calloc(data.n, sizeof *tokens);
    ck_assert_int_eq(client_data_read(&data, tokens, 0, data.n, NULL), 0);
    ck_assert(sure == 0 || memcmp(tokens + before, expected.ids, sure * sizeof *tokens) == 0);
    size_t at = 0, length;
    for (uint64_t i = before; i < data.n; i++, at += length) { /* they are the text's bytes again */
        const char *bytes = client_tokenizer_decode(t, tokens[i], &length);
        if (at + length > n || memcmp(bytes, text + at, length) != 0)
            ck_abort_msg("token %llu", (unsigned long long)i);
    }
    ck_assert_uint_eq(at, n);
    free(tokens);
    free(expected.ids);
    client_data_free(&data);
    client_tokenizer_close(t);
}

TEST(text_is_tokenised_by_the_model_s_own_tokenizer)
{
    check_tokenised("The quick brown fox, it's 42 \xF0\x9F\x98\x80", 33, 600);
    check_tokenised("The quick brown fox, it's 42 \xF0\x9F\x98\x80", 33, 1 << 25);
    check_tokenised("\x82\xAC cut at both ends \xE2\x82", 22, 600);
    check_tokenised("", 0, 600);
}

/* In $TMPDIR where that takes such files, as the device of `run` tells; else wherever one can be. */
TEST(a_nameless_file_lies_where_tmpdir_says_or_where_it_can)
{
    const char *const places[] = {processes_path("run"), "/nonexistent", "", "/proc"};
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

/* Words and characters lie across the pieces that a file is read in; one word is longer than a piece. */
TEST(a_long_text_has_the_tokens_that_it_has_in_one_piece)
{
    enum { N = 8 << 20, LONG = 5 << 18 };
    char *text = malloc(N + 128 + LONG);
    size_t n = 0;

    for (unsigned i = 0; n < N; i++) {
        if (i == 1000) {
            memset(text + n, 'o', LONG);
            n += LONG;
        }
        n += (size_t)sprintf(text + n, "The quick brown fox jumps over the lazy dog %u na\xC3\xAFve times\n",
                             i * 7919 % 10007);
    }
    check_tokenised(text, n, 600);
    size_t bad = n - 5000;
    while (text[bad] != '\n')
        bad++;
    text[bad] = (char)0xFF;
    const char *path = processes_write("bad.txt", text, n);
    char place[80];
    snprintf(place, sizeof place, "bad.txt: not UTF-8 text at byte %zu (0xFF)", bad);
    struct client_tokenizer *t = open_tokenizer();
    const struct client_data_rules rules = {.vocabulary = 600, .tokenizer = t};
    struct client_data data;
    struct error err;
    ck_assert_int_eq(client_data_open(&data, (const char *const[]){path}, 1, NULL), 0);
    ck_assert_int_eq(client_data_check(&data, &rules, &err), -EINVAL);
    ck_assert_msg(strstr(err.text, place) != NULL, "%s", err.text);
    client_data_free(&data);
    client_tokenizer_close(t);
    free(text);
}
