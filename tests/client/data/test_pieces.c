/* Text in pieces on several threads gives the ids of the text as a whole: for tokenizers with the pipelines of all
 * families (tests/fixtures/tokenizers, made by tests/oracle/tokens.py), hostile texts, pieces of a few bytes. */
#include "tests/kit/command.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"
#include "tests/kit/fixtures/tokenizer.h"

#include "client/data/pieces.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define FIXTURES TESTS_DIR "/fixtures/tokenizers/"

static const char *const names[] = {"llama3",  "qwen",   "deepseek", "roberta",    "gpt2_prefix", "llama2",
                                    "mistral", "gemma",  "bert",     "bert_cased", "llama2_old",  "parts0",
                                    "parts1",  "parts2", "parts3",   "parts4",     "parts11"};

enum { END = 400 };

static int take(void *data, uint32_t *ids, size_t n, struct error *err)
{
    int rc = client_tokens_add(data, ids, n, err);

    for (size_t i = 0; i < n; i++)
        ids[i] = UINT32_MAX;
    return rc;
}

/* Gives the text in blocks, each `block` bytes longer than what the last one left, twice that if it used nothing.
 * Returns the error. */
static int in_blocks(struct client_tokens *out, const struct client_pieces_options *options, const char *text, size_t n,
                     size_t block, uint64_t *n_alone, struct error *err)
{
    struct client_pieces *p;
    size_t at = 0, end = 0, used = 1;

    ck_assert_int_eq(client_pieces_open(&p, options, NULL), 0);
    int rc = client_pieces_begin(p, text, 0, take, out, err);
    for (size_t more = block; !rc && end < n; at += used) {
        more = used > 0 ? block : 2 * more;
        end = n - end < more ? n : end + more;
        rc = client_pieces_encode(p, &used, text + at, end - at, at, end == n, take, out, err);
        ck_assert(rc || (at + used <= end && (end < n || at + used == n)));
    }
    if (!rc)
        rc = client_pieces_end(p, false, take, out, err);
    *n_alone = client_pieces_alone(p);
    client_pieces_close(p);
    return rc;
}

static void is_same(const struct client_tokens *got, const struct client_tokens *expected, const char *what)
{
    size_t i = 0;

    while (i < got->n && i < expected->n && got->ids[i] == expected->ids[i])
        i++;
    ck_assert_msg(i == got->n && i == expected->n, "%s: token %zu of %zu and %zu", what, i, got->n, expected->n);
}

/* The fixture's texts one after the other, with a mark between two if marked, and the tokens of it all. */
struct sample {
    char *text;
    size_t n;
    struct client_tokens tokens;
};

static void add_ends(struct client_tokens *out, const struct client_tokenizer *t, bool begins)
{
    size_t n;
    const uint32_t *ids = begins ? client_tokenizer_begins(t, &n) : client_tokenizer_ends(t, &n);

    ck_assert_int_eq(client_tokens_add(out, ids, n, NULL), 0);
}

/* A text that spells the token that the tokenizer puts behind it has it once. */
static void end_text(struct client_tokens *out, const struct client_tokenizer *t)
{
    size_t n;
    const uint32_t *ids = client_tokenizer_ends(t, &n);

    if (n != 1 || out->ids[out->n - 1] != ids[0])
        add_ends(out, t, false);
}

/* A text that spells what the tokenizer puts before it has it once. */
static bool begins_itself(const struct client_tokenizer *t, const json_t *ids)
{
    size_t n;
    const uint32_t *begins = client_tokenizer_begins(t, &n);
    bool same = json_array_size(ids) >= n;

    for (size_t i = 0; same && i < n; i++)
        same = json_integer_value(json_array_get(ids, i)) == begins[i];
    return same;
}

/* The tokens of documents are those of Hugging Face's tokenizers; those of the one long text without marks, ours of the
 * whole, which other tests hold to them. */
static struct sample sample_of(struct client_tokenizer *t, const char *name, bool marked)
{
    json_t *json = json_load_file(print(FIXTURES "%s.expected.json", name), 0, NULL), *text, *id;
    struct sample s = {.text = malloc(1 << 20)};
    size_t i, k, used;

    json_array_foreach(json_object_get(json, "texts"), i, text)
    {
        const uint32_t end = END;
        if (marked && i > 0) {
            s.text[s.n++] = (char)CLIENT_DATA_MARK;
            end_text(&s.tokens, t);
            client_tokens_add(&s.tokens, &end, 1, NULL);
        }
        memcpy(s.text + s.n, json_string_value(text), json_string_length(text));
        s.n += json_string_length(text);
        if (!marked)
            continue;
        const json_t *ids = json_array_get(json_object_get(json, "ids"), i);
        if (!begins_itself(t, ids))
            add_ends(&s.tokens, t, true);
        json_array_foreach(ids, k, id)
        {
            const uint32_t value = (uint32_t)json_integer_value(id);
            client_tokens_add(&s.tokens, &value, 1, NULL);
        }
    }
    if (!marked) {
        add_ends(&s.tokens, t, true);
        ck_assert_int_eq(client_tokenizer_encode(&s.tokens, &used, t, s.text, s.n, true, NULL), 0);
    }
    end_text(&s.tokens, t);
    json_decref(json);
    return s;
}

TEST_EACH(text_in_pieces_has_the_tokens_of_the_whole_text, 2 * COUNT(names))
{
    static const struct {
        unsigned n_threads;
        size_t piece, overlap, block;
    } cuts[] = {{1, 64, 8, 300}, {2, 9, 1, 100},      {3, 5, 0, 50},         {3, 20, 4, 1000},    {4, 40, 16, 1000},
                {3, 37, 9, 77},  {2, 200, 100, 3000}, {4, 100, 50, 1 << 20}, {3, 700, 300, 5000}, {2, 3000, 500, 9000}};
    const char *name = names[_i / 2];
    struct client_tokenizer *t = tokenizer_open_fixture(name, NULL);
    const struct client_data_file file = {.path = (char[]){"text"}, .marked = _i % 2};
    struct sample s = sample_of(t, name, file.marked);
    struct client_tokens got = {0};
    uint64_t n_alone;

    for (int i = 0; i < COUNT(cuts); i++) {
        const struct client_pieces_options options = {.tokenizer = t,
                                                      .file = &file,
                                                      .end = END,
                                                      .n_threads = cuts[i].n_threads,
                                                      .piece_bytes = cuts[i].piece,
                                                      .overlap_bytes = cuts[i].overlap};
        got.n = 0;
        ck_assert_int_eq(in_blocks(&got, &options, s.text, s.n, cuts[i].block, &n_alone, NULL), 0);
        is_same(&got, &s.tokens, print("%s, %s, cut %d", name, file.marked ? "documents" : "one text", i));
    }
    free(got.ids), free(s.tokens.ids), free(s.text);
    client_tokenizer_close(t);
}

/* Otherwise threads would be of no use. parts1 and parts4 need all of a text at once (Replace of an expression, of two
 * characters), and a word of parts3 ends with a hyphen. */
#define E    "<|endoftext|>"
#define MARK "\xFF" /* CLIENT_DATA_MARK */

/* A document that ends with the token that would follow it, however the text comes. */
TEST(an_end_token_that_a_document_has_is_not_made_twice)
{
    struct client_tokenizer *t = tokenizer_open_fixture("qwen", NULL);
    const uint32_t end = client_tokenizer_end(t);
    const struct client_data_file file = {.path = (char[]){"text"}, .marked = true};
    const struct client_pieces_options options = {
        .tokenizer = t, .file = &file, .end = end, .n_threads = 3, .piece_bytes = 9, .overlap_bytes = 4};
    static const char text[] = "fox" E MARK "fox" E "\xC3" MARK E MARK "fox" E E MARK "fox" E " ";
    struct client_tokens got = {0}, fox = {0}, part = {0}, blank = {0}, want = {0};
    uint64_t n_alone;
    size_t used;

    ck_assert_int_eq(client_tokenizer_encode(&fox, &used, t, "fox", 3, true, NULL), 0);
    ck_assert_int_eq(client_tokenizer_encode(&blank, &used, t, " ", 1, true, NULL), 0);
    ck_assert_int_eq(client_tokenizer_encode_word(&part, t, "\xC3", 1, NULL), 0);
    for (int i = 0; i < 5; i++) {
        if (i != 2)
            client_tokens_add(&want, fox.ids, fox.n, NULL);
        client_tokens_add(&want, &end, 1, NULL);
        if (i == 1) /* a character cut off is the last token */
            client_tokens_add(&want, part.ids, part.n, NULL);
        if (i == 1)
            client_tokens_add(&want, &end, 1, NULL);
        if (i == 3) /* the writer's own second one */
            client_tokens_add(&want, &end, 1, NULL);
        if (i == 4)
            client_tokens_add(&want, blank.ids, blank.n, NULL);
    }
    for (size_t block = 1; block < 80; block++) {
        got.n = 0;
        ck_assert_int_eq(in_blocks(&got, &options, text, sizeof text - 1, block, &n_alone, NULL), 0);
        is_same(&got, &want, print("blocks of %zu", block));
    }
    free(got.ids);
    free(fox.ids);
    free(part.ids);
    free(blank.ids);
    free(want.ids);
    client_tokenizer_close(t);
}

TEST_EACH(pieces_of_ordinary_text_join, COUNT(names))
{
    enum { N = 64 << 10 };
    struct client_tokenizer *t = tokenizer_open_fixture(names[_i], NULL);
    const struct client_data_file file = {.path = (char[]){"text"}};
    const struct client_pieces_options options = {
        .tokenizer = t, .file = &file, .end = END, .n_threads = 2, .piece_bytes = 1000, .overlap_bytes = 200};
    struct client_tokens got = {0};
    char *text = malloc(N + 100);
    uint64_t n_alone;
    size_t n = 0;

    for (unsigned i = 0; n < N; i++)
        n +=
            (size_t)sprintf(text + n, "The quick brown fox jumps over %u dogs, it's na\xC3\xAFve.\n", i * 7919 % 10007);
    ck_assert_int_eq(in_blocks(&got, &options, text, n, 8000, &n_alone, NULL), 0);
    const bool whole =
        strcmp(names[_i], "parts1") == 0 || strcmp(names[_i], "parts3") == 0 || strcmp(names[_i], "parts4") == 0;
    ck_assert_msg((n_alone > 0) == whole, "%s: %d of %zu bytes alone", names[_i], (int)n_alone, n);
    free(got.ids), free(text);
    client_tokenizer_close(t);
}

/* A run that no piece ends in: words do not join until it is over. */
TEST_EACH(pieces_within_a_long_word_have_its_tokens, COUNT(names))
{
    enum { N = 5000 };
    struct client_tokenizer *t = tokenizer_open_fixture(names[_i], NULL);
    const struct client_data_file file = {.path = (char[]){"text"}};
    const struct client_pieces_options options = {
        .tokenizer = t, .file = &file, .end = END, .n_threads = 3, .piece_bytes = 100, .overlap_bytes = 30};
    char *text = malloc(N);

    for (const char *c = " xo\n7-"; *c; c++) {
        struct client_tokens got = {0}, expected = {0};
        uint64_t n_alone;
        size_t used;
        memset(text, *c, N);
        memcpy(text, "begin it", 8);
        memcpy(text + N - 10, "end of it.", 10);
        add_ends(&expected, t, true);
        ck_assert_int_eq(client_tokenizer_encode(&expected, &used, t, text, N, true, NULL), 0);
        add_ends(&expected, t, false);
        ck_assert_int_eq(in_blocks(&got, &options, text, N, 1200, &n_alone, NULL), 0);
        is_same(&got, &expected, print("%s, '%c'", names[_i], *c));
        free(got.ids), free(expected.ids);
    }
    free(text);
    client_tokenizer_close(t);
}

/* Two bytes of every text that are no UTF-8: the first is named, though another thread meets the second one sooner. */
TEST(the_first_fault_of_a_text_is_the_one_that_is_told)
{
    enum { N = 10000 };
    struct client_tokenizer *t = tokenizer_open_fixture("llama3", NULL);
    const struct client_data_file file = {.path = (char[]){"a.txt"}};
    const struct client_pieces_options options = {
        .tokenizer = t, .file = &file, .end = END, .n_threads = 4, .piece_bytes = 300, .overlap_bytes = 100};
    char text[N];

    for (size_t bad = 0; bad < N; bad += 777) {
        struct client_tokens got = {0};
        struct error err = {0};
        uint64_t n_alone;
        for (size_t i = 0; i < N; i++)
            text[i] = "the fox "[i % 8];
        text[bad] = (char)0xFE;
        text[N - 1] = text[bad / 2 + N / 2] = (char)0xC0;
        ck_assert_int_eq(in_blocks(&got, &options, text, N, 4000, &n_alone, &err), -EINVAL);
        ck_assert_holds(err.text, print("a.txt: not UTF-8 text at byte %zu (0xFE)", bad));
        free(got.ids);
    }
    client_tokenizer_close(t);
}

/* A piece that begins within a character's bytes, or a text that ends there. */
TEST(a_text_may_end_within_a_character)
{
    struct client_tokenizer *t = tokenizer_open_fixture("llama3", NULL);
    const struct client_data_file file = {.path = (char[]){"a.txt"}};
    const struct client_pieces_options options = {
        .tokenizer = t, .file = &file, .end = END, .n_threads = 2, .piece_bytes = 5, .overlap_bytes = 1};
    struct client_tokens got = {0}, expected = {0};
    uint64_t n_alone;
    size_t used;
    char text[4 * 30];

    for (size_t i = 0; i < sizeof text; i += 4)
        memcpy(text + i, i % 3 ? "\xF0\x9F\x98\x80" : "na\xC3\xAF", 4);
    memcpy(text + sizeof text - 4, "\xF0\x9F\x98\x80", 4);
    add_ends(&expected, t, true);
    ck_assert_int_eq(client_tokenizer_encode(&expected, &used, t, text, sizeof text - 4, true, NULL), 0);
    ck_assert_int_eq(client_tokenizer_encode_word(&expected, t, text + sizeof text - 4, 3, NULL), 0);
    add_ends(&expected, t, false);
    ck_assert_int_eq(in_blocks(&got, &options, text, sizeof text - 1, 17, &n_alone, NULL), 0);
    is_same(&got, &expected, "cut");
    free(got.ids), free(expected.ids);
    client_tokenizer_close(t);
}

static int refuse(void *data, uint32_t *ids, size_t n, struct error *err)
{
    (void)data, (void)ids, (void)n;
    return error_set(err, -ENOSPC, "full");
}

TEST(a_caller_s_error_ends_the_text)
{
    struct client_tokenizer *t = tokenizer_open_fixture("llama3", NULL);
    const struct client_data_file file = {.path = (char[]){"a.txt"}};
    const struct client_pieces_options options = {
        .tokenizer = t, .file = &file, .end = END, .n_threads = 2, .piece_bytes = 9, .overlap_bytes = 4};
    struct client_tokens tokens = {0};
    struct client_pieces *p;
    size_t used;

    ck_assert_int_eq(client_pieces_open(&p, &options, NULL), 0);
    ck_assert_int_eq(client_pieces_begin(p, "", 0, take, &tokens, NULL), 0);
    ck_assert_int_eq(client_pieces_encode(p, &used, "the fox, the dog", 16, 0, true, refuse, NULL, NULL), -ENOSPC);
    client_pieces_close(p);
    free(tokens.ids);
    client_tokenizer_close(t);
}

static int ask(void *data, struct error *err)
{
    unsigned *n_asked = data;

    return ++*n_asked < 3 ? 0 : error_set(err, -EINTR, "interrupted");
}

/* parts3 with a pattern that looks ahead from each a, as far as 512 steps for each byte allow: many seconds for a
 * mebibyte of it. */
static struct client_tokenizer *open_slow(void)
{
    json_t *root = json_load_file(FIXTURES "parts3.json", 0, NULL);
    struct client_tokenizer *t;

    json_object_set_new(root, "pre_tokenizer",
                        json_pack("{s:s, s:{s:s}, s:s, s:b}", "type", "Split", "pattern", "Regex", "a(?=(?:.){470}Q)|.",
                                  "behavior", "Isolated", "invert", 0));
    char *file = json_dumps(root, 0);
    json_t *side = json_pack("{s:s}", "tokenizer.json", file);
    ck_assert_int_eq(client_tokenizer_open(&t, side, NULL, 4096, NULL), 0);
    json_decref(root), json_decref(side);
    free(file);
    return t;
}

/* On the caller's thread alone; on two; where only one of them has much to do, which may be the other one. */
TEST_EACH(a_watch_ends_a_long_match, 3)
{
    const struct client_data_file file = {.path = (char[]){"a.txt"}};
    struct client_tokenizer *t = open_slow();
    unsigned n_asked = 0;
    const struct client_watch watch = {ask, &n_asked};
    const struct client_pieces_options options = {.tokenizer = t,
                                                  .file = &file,
                                                  .end = END,
                                                  .n_threads = _i == 0 ? 1 : 2,
                                                  .watch = &watch,
                                                  .piece_bytes = 1 << 18,
                                                  .overlap_bytes = 4};
    static char text[1 << 20];
    struct client_tokens tokens = {0};
    struct error err = {""};
    struct client_pieces *p;
    size_t used;

    memset(text, 'a', sizeof text);
    memset(text, 'b', _i == 2 ? sizeof text * 3 / 4 : 0);
    ck_assert_int_eq(client_pieces_open(&p, &options, NULL), 0);
    ck_assert_int_eq(client_pieces_begin(p, "", 0, take, &tokens, NULL), 0);
    ck_assert_int_eq(client_pieces_encode(p, &used, text, sizeof text, 0, true, take, &tokens, &err), -EINTR);
    ck_assert_str_eq(err.text, "interrupted");
    ck_assert_uint_eq(n_asked, 3);
    ck_assert_uint_eq(tokens.n, 0);
    client_pieces_close(p);
    free(tokens.ids);
    client_tokenizer_close(t);
}

TEST(omp_num_threads_counts_here_too)
{
    setenv("OMP_NUM_THREADS", "3", 1);
    ck_assert_uint_eq(client_pieces_threads(), 3);
    setenv("OMP_NUM_THREADS", "1000", 1);
    ck_assert_uint_eq(client_pieces_threads(), CLIENT_PIECES_MOST_THREADS);
    unsetenv("OMP_NUM_THREADS");
    ck_assert_uint_ge(client_pieces_threads(), 1);
}
