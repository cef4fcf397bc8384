/* Token streams of texts, with a model's tokenizer: which tokens a text becomes, however it is cut into pieces, and
 * what stands between two texts. */
#include "tests/kit/command.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"
#include "tests/kit/fixtures/tokenizer.h"

#include "client/data/data.h"
#include "client/text/tokenizer.h"
#include "proto/model/file/model_files.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

SUITE_TIMEOUT(100)
SUITE_FIXTURE_ONCE(processes_setup, processes_remove)

static int open_checked(struct client_data *data, const char *const *paths, size_t n,
                        const struct client_data_rules *rules, struct error *err)
{
    int rc = client_data_open(data, paths, n, err);

    return rc ? rc : client_data_check(data, rules, err);
}

/* The stream is this text: its tokens put together, of which '|' is the end. */
static void is_stream(const char *const *paths, size_t n_paths, const struct client_data_rules *rules, const char *text,
                      size_t n)
{
    struct client_data data;
    struct error err = {""};
    size_t at = 0, length = 1;

    ck_assert_msg(open_checked(&data, paths, n_paths, rules, &err) == 0, "%s", err.text);
    uint32_t *ids = malloc((data.n + 1) * sizeof *ids);
    ck_assert_int_eq(client_data_read(&data, ids, 0, data.n, &err), 0);
    for (size_t i = 0; i < data.n; i++, at += length) {
        const char *bytes = client_tokenizer_decode(rules->tokenizer, ids[i], &length);
        if (ids[i] == client_tokenizer_end(rules->tokenizer))
            bytes = "|", length = 1;
        if (at + length > n || memcmp(bytes, text + at, length) != 0) /* an assertion each would take seconds */
            ck_abort_msg("token %zu of %s is %u", i, paths[0], ids[i]);
    }
    ck_assert_uint_eq(at, n);
    client_data_free(&data);
    free(ids);
}

/* The fixture's tokenizer of 600 tokens. */
static struct client_tokenizer *open_tokenizer(void)
{
    json_t *side;
    struct client_tokenizer *t;

    ck_assert_int_eq(model_files_read(&side, TESTS_DIR "/fixtures/bpe", NULL), 0);
    ck_assert_int_eq(client_tokenizer_open(&t, side, NULL, 600, NULL), 0);
    json_decref(side);
    return t;
}

/* Behind a file of ids. */
static void check_tokenised(const char *text, size_t n, uint32_t vocabulary)
{
    struct client_tokenizer *t = open_tokenizer();
    const struct client_data_rules rules = {.vocabulary = vocabulary, .tokenizer = t};
    const char *paths[] = {processes_write("a.bin", "\x05\0\x07\0\x05\0\x07\0", 8),
                           processes_write("tokens.txt", text, n)};
    struct client_tokens expected = {0};
    struct client_data data;
    size_t used, cut = 0;

    is_stream(paths + 1, 1, &rules, text, n);
    while (cut < n && ((uint8_t)text[cut] & 0xC0) == 0x80)
        cut++;
    ck_assert_int_eq(client_tokenizer_encode_word(&expected, t, text, cut, NULL), 0);
    ck_assert_int_eq(client_tokenizer_encode(&expected, &used, t, text + cut, n - cut, false, NULL), 0);
    const size_t sure = expected.n; /* the last words could go on */
    ck_assert_int_eq(open_checked(&data, paths, 2, &rules, NULL), 0);
    const uint64_t before = vocabulary > 65536 ? 2 : 4;
    ck_assert_uint_eq(data.files[1].first, before);
    ck_assert_uint_ge(data.n, before + sure);
    uint32_t *tokens = calloc(data.n, sizeof *tokens);
    ck_assert_int_eq(client_data_read(&data, tokens, 0, data.n, NULL), 0);
    ck_assert(sure == 0 || memcmp(tokens + before, expected.ids, sure * sizeof *tokens) == 0);
    free(tokens), free(expected.ids);
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
    ck_assert_int_eq(open_checked(&data, &path, 1, &rules, &err), -EINVAL);
    ck_assert_holds(err.text, place);
    client_data_free(&data);
    client_tokenizer_close(t);
    free(text);
}

/* As plain text and as JSON lines of many lengths, behind each other. */
TEST(tokens_do_not_depend_on_the_number_of_threads)
{
    enum { N = 3 << 20 };
    static const char *const threads[] = {"1", "2", "5"};
    const char *paths[] = {processes_path("threads.txt"), processes_path("threads.jsonl")};
    struct client_tokenizer *t = open_tokenizer();
    const struct client_data_rules rules = {.vocabulary = 600, .tokenizer = t};
    uint64_t n[COUNT(threads)], hash[COUNT(threads)];
    FILE *text = fopen(paths[0], "w"), *lines = fopen(paths[1], "w");
    struct client_data data;

    ck_assert(text && lines);
    for (unsigned i = 0; ftell(text) < N; i++) {
        const unsigned value = i * 7919 % 10007;
        fprintf(text, "The quick brown fox jumps over %u dogs, na\xC3\xAFve%*s", value, (int)(value % 40), "\n");
        fprintf(lines, "%s%u foxes%s", i % 100 == 0 ? "{\"text\": \"" : "", value, i % 100 == 99 ? "\"}\n" : ", or ");
    }
    fprintf(lines, "\"}\n");
    ck_assert(fclose(text) == 0 && fclose(lines) == 0);
    for (int i = 0; i < COUNT(threads); i++) {
        setenv("OMP_NUM_THREADS", threads[i], 1);
        ck_assert_int_eq(open_checked(&data, paths, 2, &rules, NULL), 0);
        n[i] = data.n, hash[i] = data.hash;
        client_data_free(&data);
        ck_assert(n[i] > N / 4 && n[i] == n[0] && hash[i] == hash[0]);
    }
    client_tokenizer_close(t);
}

/* Llama 2 begins each text with <s>, id 1, and ends none: </s>, id 2, stands between two. BERT's [CLS] and [SEP], 2 and
 * 3, enclose each; where [SEP] is the end token, or there is none, it is not repeated; [PAD], 0, would follow it. */
TEST(each_document_begins_and_ends_as_the_tokenizer_says)
{
    static const struct {
        const char *name, *config;
        uint32_t begin, n_between, between[2], n_last, last; /* between: after one document, before another's begin */
    } cases[] = {
        {"llama2", "{\"eos_token\": \"</s>\"}", 1, 1, {2}, 0, 0},
        {"bert", "{\"eos_token\": \"[SEP]\"}", 2, 1, {3}, 1, 3},
        {"bert", "{}", 2, 1, {3}, 1, 3},
        {"bert", "{\"eos_token\": \"[PAD]\"}", 2, 2, {3, 0}, 1, 3},
    };
    const char *paths[] = {processes_put_text("1.jsonl", "{\"text\": \"a\"}\n{\"text\": \"a\"}\n"),
                           processes_put_text("2.txt", "a")};

    for (int i = 0; i < COUNT(cases); i++) {
        struct client_tokenizer *t = tokenizer_open_fixture(cases[i].name, cases[i].config);
        const struct client_data_rules rules = {.vocabulary = 1024, .tokenizer = t};
        struct client_tokens expected = {0};
        struct client_data data;
        uint32_t ids[32] = {0};
        size_t used;
        for (int document = 0; document < 3; document++) {
            client_tokens_add(&expected, cases[i].between, document ? cases[i].n_between : 0, NULL);
            client_tokens_add(&expected, &cases[i].begin, 1, NULL);
            ck_assert_int_eq(client_tokenizer_encode(&expected, &used, t, "a", 1, true, NULL), 0);
        }
        client_tokens_add(&expected, &cases[i].last, cases[i].n_last, NULL);
        ck_assert_int_eq(open_checked(&data, paths, 2, &rules, NULL), 0);
        ck_assert_uint_eq(data.n, expected.n);
        ck_assert_int_eq(client_data_read(&data, ids, 0, data.n, NULL), 0);
        ck_assert_mem_eq(ids, expected.ids, expected.n * sizeof *ids);
        client_data_free(&data);
        free(expected.ids);
        client_tokenizer_close(t);
    }
}

/* The end token stands between texts, not behind the last. */
TEST(texts_are_separated_by_the_end_token_unless_none_is_wished)
{
    const char *paths[] = {processes_put_text("1.txt", "Q"),
                           processes_put_text("2.jsonl", "{\"text\": \"X\"}\n{\"text\": \"Y\"}\n"),
                           processes_put_text("3.txt", "Z")};
    const struct {
        enum eps_separator separator;
        size_t first, n;
        const char *text;
    } cases[] = {
        {EPS_SEPARATOR_DEFAULT, 0, 3, "Q|X|Y|Z"}, {EPS_SEPARATOR_EOS, 0, 3, "Q|X|Y|Z"},
        {EPS_SEPARATOR_NONE, 0, 3, "QX\nY\nZ"},   {EPS_SEPARATOR_DEFAULT, 0, 1, "Q"},
        {EPS_SEPARATOR_DEFAULT, 1, 1, "X|Y"},
    };
    struct client_tokenizer *t = open_tokenizer();
    struct client_data data;
    struct error err = {""};

    for (int i = 0; i < COUNT(cases); i++) {
        const struct client_data_rules rules = {.vocabulary = 600, .tokenizer = t, .separator = cases[i].separator};
        is_stream(paths + cases[i].first, cases[i].n, &rules, cases[i].text, strlen(cases[i].text));
    }
    client_tokenizer_close(t);
    /* One that is not there cannot separate. */
    ck_assert_int_eq(client_tokenizer_open(&t, NULL, NULL, 256, &err), 0);
    const struct client_data_rules rules = {.vocabulary = 256, .tokenizer = t, .separator = EPS_SEPARATOR_EOS};
    ck_assert_int_eq(open_checked(&data, paths, 1, &rules, &err), -EDOM);
    ck_assert_holds(err.text, "--separator eos");
    client_data_free(&data);
    client_tokenizer_close(t);
}
