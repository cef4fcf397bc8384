/* Tokens that are learned from a text, against those that Hugging Face's tokenizers learn: tests/fixtures/learned. */
#include "client/corpus/learn.h"
#include "client/text/tokenizer.h"
#include "tests/kit/command.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FIXTURES TESTS_DIR "/fixtures/learned/"

static int learn(json_t *side, const char *const *names, size_t n_names, uint32_t vocabulary,
                 const struct client_data_rules *rules, struct error *err)
{
    struct client_data data;

    ck_assert_int_eq(client_data_open(&data, names, n_names, NULL), 0);
    const int rc = client_learn(side, &data, vocabulary, 128, rules, err);
    client_data_free(&data);
    return rc;
}

/* The learned tokenizer.json. */
static json_t *learned(const char *const *names, size_t n_names, uint32_t vocabulary, enum eps_separator separator)
{
    const struct client_data_rules rules = {.separator = separator};
    struct error err = {0};
    json_t *side = json_object();

    ck_assert_msg(learn(side, names, n_names, vocabulary, &rules, &err) == 0, "%s", err.text);
    json_t *root = json_loads(json_string_value(json_object_get(side, "tokenizer.json")), 0, NULL);
    ck_assert_ptr_nonnull(root);
    json_decref(side);
    return root;
}

static json_t *merges_of(json_t *root)
{
    return json_at(root, "model.merges");
}

SUITE_FIXTURE_ONCE(processes_setup, processes_remove)

/* Down to the last pair that occurs twice; and with a vocabulary that ends before that, the same ones up to there. */
TEST(tokens_are_those_that_tokenizers_learns)
{
    const char *const text = FIXTURES "text.txt";
    json_t *expected = json_load_file(FIXTURES "model.json", 0, NULL);
    json_t *all = learned(&text, 1, 100000, EPS_SEPARATOR_DEFAULT);
    json_t *some = learned(&text, 1, 357, EPS_SEPARATOR_DEFAULT);

    ck_assert_uint_gt(json_array_size(json_object_get(expected, "merges")), 200);
    ck_assert(json_equal(merges_of(all), json_object_get(expected, "merges")));
    ck_assert(json_equal(json_at(all, "model.vocab"), json_at(expected, "vocab")));
    ck_assert_uint_eq(json_array_size(merges_of(some)), 100);
    ck_assert_uint_eq(json_object_size(json_at(some, "model.vocab")), 357);
    for (size_t i = 0; i < 100; i++)
        ck_assert(json_equal(json_array_get(merges_of(some), i), json_array_get(merges_of(all), i)));
    json_decref(expected);
    json_decref(all);
    json_decref(some);
}

TEST(what_was_learned_is_read_again_and_gives_every_text_back)
{
    static const char text[] = "it's größe 人工智能 \xf0\x9f\x91\x8d\n\n    learned<|endoftext|>x";
    const char *const name = FIXTURES "text.txt";
    const struct client_data_rules rules = {.separator = EPS_SEPARATOR_DEFAULT};
    struct client_tokenizer *tokenizer;
    struct client_tokens tokens = {0};
    json_t *side = json_object();
    size_t used, n, at = 0;

    ck_assert_int_eq(learn(side, &name, 1, 400, &rules, NULL), 0);
    ck_assert_int_eq(client_tokenizer_open(&tokenizer, side, NULL, 400, NULL), 0);
    ck_assert_uint_eq(client_tokenizer_end(tokenizer), CLIENT_TOKENIZER_END);
    ck_assert_int_eq(client_tokenizer_encode(&tokens, &used, tokenizer, text, sizeof text - 1, true, NULL), 0);
    ck_assert_uint_lt(tokens.n, sizeof text / 2);
    ck_assert_uint_eq(tokens.ids[tokens.n - 2], CLIENT_TOKENIZER_END);
    for (size_t i = 0; i < tokens.n; i++) {
        const char *bytes = client_tokenizer_decode(tokenizer, tokens.ids[i], &n);
        ck_assert_uint_le(at + n, sizeof text - 1);
        ck_assert_mem_eq(text + at, bytes, n);
        at += n;
    }
    ck_assert_uint_eq(at, sizeof text - 1);
    free(tokens.ids);
    client_tokenizer_close(tokenizer);
    json_decref(side);
}

/* Byte 0 is a letter too: U+0100. */
TEST(any_byte_can_be_merged)
{
    static const char text[] = "\0!\n\0!\n\0?\n\0?";
    const char *const name = "zeros.txt";

    processes_write(name, text, sizeof text - 1);
    json_t *root = learned(&name, 1, 1000, EPS_SEPARATOR_DEFAULT), *vocabulary = json_at(root, "model.vocab");
    ck_assert_ptr_nonnull(json_object_get(vocabulary, "\xc4\x80!"));
    ck_assert_ptr_nonnull(json_object_get(vocabulary, "\xc4\x80?"));
    json_decref(root);
}

static bool merges_a_new_line(json_t *root)
{
    char *text = json_dumps(merges_of(root), 0);
    const bool yes = strstr(text, "\xc4\x8a") != NULL; /* its letter */

    free(text);
    json_decref(root);
    return yes;
}

/* The blanks between two documents are one word where no end token tells them apart. */
TEST(documents_are_texts_of_their_own)
{
    static const char line[] = "{\"text\": \"  ab  \"}\n";
    const char *const name = "four.jsonl";
    char lines[4 * sizeof line];

    snprintf(lines, sizeof lines, "%s%s%s%s", line, line, line, line);
    processes_write(name, lines, strlen(lines));
    ck_assert(!merges_a_new_line(learned(&name, 1, 1000, EPS_SEPARATOR_EOS)));
    ck_assert(merges_a_new_line(learned(&name, 1, 1000, EPS_SEPARATOR_NONE)));
}

/* Of a long text each file gives a share from its beginning: here the first 8 of 10 MiB, twice. Of one without a pair
 * the bytes are the tokens. */
TEST(a_long_text_is_learned_from_in_part_and_a_short_one_has_its_bytes)
{
    const size_t mi = 1 << 20, n = 10 * mi;
    const char *const names[] = {"long.txt", "long.txt", "short.txt"};
    char *text = malloc(n);

    for (size_t i = 0; i < n; i++)
        text[i] = i % 1024 == 1023 ? ' ' : i < 8 * mi ? 'a' : 'b';
    processes_write("long.txt", text, n);
    free(text);
    json_t *root = learned(names, 2, 300, EPS_SEPARATOR_DEFAULT);
    ck_assert_uint_gt(json_array_size(merges_of(root)), 8);
    for (size_t i = 0; i < json_array_size(merges_of(root)); i++)
        ck_assert_ptr_null(strchr(json_string_value(json_array_get(merges_of(root), i)), 'b'));
    json_decref(root);
    processes_put_text("short.txt", "abc");
    root = learned(names + 2, 1, 1000, EPS_SEPARATOR_DEFAULT);
    ck_assert_uint_eq(json_array_size(merges_of(root)), 0);
    ck_assert_uint_eq(json_object_size(json_at(root, "model.vocab")), 257);
    json_decref(root);
}

static int stop(void *data, struct error *err)
{
    return --*(int *)data < 0 ? error_set(err, -EINTR, "stopped") : 0;
}

TEST(it_can_be_stopped_and_bad_text_is_refused)
{
    const char *const name = FIXTURES "text.txt", *const bad = "bad.txt";
    int left = 3;
    const struct client_watch watch = {stop, &left};
    const struct client_data_rules watched = {.watch = &watch}, plain = {.watch = NULL};
    json_t *side = json_object();
    struct error err = {0};

    ck_assert_int_eq(learn(side, &name, 1, 1000, &watched, &err), -EINTR);
    ck_assert_str_eq(err.text, "stopped");
    processes_write(bad, "good \xc3( bad", 11);
    ck_assert_int_eq(learn(side, &bad, 1, 1000, &plain, &err), -EINVAL);
    ck_assert_msg(strstr(err.text, "bad.txt: not UTF-8 text at byte 5 (0xC3)"), "%s", err.text);
    ck_assert_uint_eq(json_object_size(side), 0);
    json_decref(side);
}
