/* Tokens and scores against sacrebleu's (tests/fixtures/bleu.json, made by tests/oracle/make_bleu.py), and counts by
 * hand. */
#include "tests/kit/test.h"

#include "client/text/bleu.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static json_t *fixture;

static void setup(void)
{
    fixture = json_load_file(TESTS_DIR "/fixtures/bleu.json", JSON_ALLOW_NUL, NULL);
    ck_assert_ptr_nonnull(fixture);
}

static void teardown(void)
{
    json_decref(fixture);
}

SUITE_FIXTURE(setup, teardown)

static const json_t *member(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);

    ck_assert_ptr_nonnull(value);
    return value;
}

static int add(struct client_bleu *bleu, const char *hypothesis, const char *reference, struct error *err)
{
    return client_bleu_add(bleu, hypothesis, strlen(hypothesis), reference, strlen(reference), err);
}

static struct client_bleu_score score_of(const struct client_bleu *bleu)
{
    struct client_bleu_score score;

    client_bleu_score(&score, bleu);
    return score;
}

TEST(the_signature_is_sacrebleus_without_its_version)
{
    ck_assert_str_eq(CLIENT_BLEU_SIGNATURE, json_string_value(member(fixture, "signature")));
}

TEST(tokens_are_those_of_sacrebleu)
{
    const json_t *texts = member(fixture, "texts");
    struct client_text got = {0};

    ck_assert_uint_gt(json_array_size(texts), 400);
    for (size_t i = 0; i < json_array_size(texts); i++) {
        const json_t *each = json_array_get(texts, i), *text = member(each, "text"), *tokens = member(each, "tokens");
        ck_assert_int_eq(client_bleu_tokens(&got, json_string_value(text), json_string_length(text), NULL), 0);
        ck_assert_msg(got.n == json_string_length(tokens) && memcmp(got.bytes, json_string_value(tokens), got.n) == 0,
                      "text %zu, of %s: \"%s\" became \"%.*s\", not \"%s\"", i, json_string_value(member(each, "step")),
                      json_string_value(text), (int)got.n, got.bytes, json_string_value(tokens));
    }
    free(got.bytes);
}

static void add_segments(struct client_bleu *bleu, const json_t *segments)
{
    for (size_t i = 0; i < json_array_size(segments); i++) {
        const json_t *hypothesis = json_array_get(json_array_get(segments, i), 0),
                     *reference = json_array_get(json_array_get(segments, i), 1);
        ck_assert_int_eq(client_bleu_add(bleu, json_string_value(hypothesis), json_string_length(hypothesis),
                                         json_string_value(reference), json_string_length(reference), NULL),
                         0);
    }
}

/* Both sides compute in double: they differ by the rounding of a few operations, so 1e-12 would do as well. */
static void check_number(const char *corpus, const char *key, double got, double wanted)
{
    ck_assert_msg(fabs(got - wanted) <= 1e-9 * fabs(wanted), "%s, %s: %.17g, not %.17g", corpus, key, got, wanted);
}

static void check_corpus(const json_t *wanted)
{
    const char *const name = json_string_value(member(wanted, "name"));
    struct client_bleu bleu = {0};

    add_segments(&bleu, member(wanted, "segments"));
    const struct client_bleu_score got = score_of(&bleu);
    for (size_t i = 0; i < CLIENT_BLEU_ORDERS; i++) {
        check_number(name, "n-grams", (double)bleu.n_grams[i],
                     json_number_value(json_array_get(member(wanted, "n_grams"), i)));
        check_number(name, "matches", (double)bleu.n_matches[i],
                     json_number_value(json_array_get(member(wanted, "matches"), i)));
        check_number(name, "precision", got.precisions[i],
                     json_number_value(json_array_get(member(wanted, "precisions"), i)));
    }
    check_number(name, "hypothesis tokens", (double)got.n_hypothesis_tokens,
                 json_number_value(member(wanted, "hypothesis_tokens")));
    check_number(name, "reference tokens", (double)got.n_reference_tokens,
                 json_number_value(member(wanted, "reference_tokens")));
    check_number(name, "brevity penalty", got.brevity_penalty, json_number_value(member(wanted, "brevity_penalty")));
    check_number(name, "score", got.score, json_number_value(member(wanted, "score")));
}

TEST(scores_are_those_of_sacrebleu)
{
    const json_t *corpora = member(fixture, "corpora");

    ck_assert_uint_gt(json_array_size(corpora), 20);
    for (size_t i = 0; i < json_array_size(corpora); i++)
        check_corpus(json_array_get(corpora, i));
}

/* By hand: sacrebleu refuses a corpus of no segment. */
TEST(the_score_of_no_segment_is_zero)
{
    const struct client_bleu_score score = score_of(&(struct client_bleu){0});

    ck_assert_double_eq(score.score, 0);
    ck_assert_double_eq(score.brevity_penalty, 1);
    ck_assert_double_eq(score.precisions[0], 0);
}

static void put_words(struct client_text *text, const char *word, size_t n)
{
    for (size_t i = 0; i < n; i++)
        ck_assert_int_eq(client_text_add(text, word, strlen(word), NULL), 0);
}

static void put_number(struct client_text *text, int number)
{
    char word[16];

    snprintf(word, sizeof word, "%d ", number);
    put_words(text, word, 1);
}

/* By hand: numbers in reverse order match one by one, never in pairs; n equal words in a row are n - k + 1 k-grams. A
 * quadratic count would take minutes. */
TEST(long_segments_are_counted_exactly)
{
    enum { NUMBERS = 100000, LONG = 100000, SHORT = 60000 };
    struct client_text hypothesis = {0}, reference = {0};
    struct client_bleu bleu = {0};

    for (int i = 0; i < NUMBERS; i++) {
        put_number(&hypothesis, i);
        put_number(&reference, NUMBERS - 1 - i);
    }
    put_words(&hypothesis, "so ", LONG);
    put_words(&reference, "so ", SHORT);
    ck_assert_int_eq(client_bleu_add(&bleu, hypothesis.bytes, hypothesis.n, reference.bytes, reference.n, NULL), 0);
    for (uint64_t k = 1; k <= CLIENT_BLEU_ORDERS; k++) {
        const uint64_t n_single = k == 1 ? NUMBERS : 0;
        ck_assert_uint_eq(bleu.n_grams[k - 1], NUMBERS + LONG - k + 1);
        ck_assert_uint_eq(bleu.n_matches[k - 1], n_single + SHORT - k + 1);
    }
    ck_assert_uint_eq(bleu.n_reference_tokens, NUMBERS + SHORT);
    free(hypothesis.bytes);
    free(reference.bytes);
}

TEST(counts_of_parts_add_up_to_those_of_the_corpus)
{
    const json_t *corpora = member(fixture, "corpora");
    struct client_bleu whole = {0}, sum = {0};

    for (size_t i = 0; i < json_array_size(corpora); i++) {
        struct client_bleu part = {0};
        add_segments(&whole, member(json_array_get(corpora, i), "segments"));
        add_segments(&part, member(json_array_get(corpora, i), "segments"));
        for (size_t n = 0; n < CLIENT_BLEU_ORDERS; n++) {
            sum.n_grams[n] += part.n_grams[n];
            sum.n_matches[n] += part.n_matches[n];
        }
        sum.n_reference_tokens += part.n_reference_tokens;
    }
    ck_assert_mem_eq(&sum, &whole, sizeof sum);
}

TEST(text_that_is_not_utf8_is_refused_and_nothing_counted)
{
    struct client_bleu bleu = {0};
    struct error err;

    ck_assert_int_eq(add(&bleu, "one two", "one two", NULL), 0);
    const struct client_bleu before = bleu;
    ck_assert_int_eq(add(&bleu, "ab \xC3", "ab", &err), -EINVAL);
    ck_assert_str_eq(err.text, "the hypothesis: not UTF-8 text at byte 3 (0xC3)");
    ck_assert_int_eq(add(&bleu, "ab", "\xED\xA0\x80", &err), -EINVAL);
    ck_assert_str_eq(err.text, "the reference: not UTF-8 text at byte 0 (0xED)");
    ck_assert_mem_eq(&bleu, &before, sizeof bleu);
}

/* Limits this process to `more` bytes beyond the address space that it has. */
static void limit_memory(size_t more)
{
    FILE *file = fopen("/proc/self/statm", "r");
    unsigned long pages;

    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(fscanf(file, "%lu", &pages), 1);
    fclose(file);
    const size_t most = pages * (size_t)sysconf(_SC_PAGESIZE) + more;
    const struct rlimit limit = {.rlim_cur = most, .rlim_max = most};
    ck_assert_int_eq(setrlimit(RLIMIT_AS, &limit), 0);
}

/* The tokens of n symbols are a text of more than 6 n bytes on the way; n letters take as much, and then 32 n to be
 * counted. A sanitizer takes address space of its own, and under CK_FORK=no the limit would stay. */
TEST_IF(a_segment_without_memory_for_it_is_not_counted, !SANITIZED && test_forks())
{
    enum { SYMBOLS = 16 << 20, LETTERS = 4 << 20, MORE = 64 << 20 };
    struct client_bleu bleu = {0}, none = {0};
    struct error err;
    char *text = malloc(SYMBOLS);

    ck_assert_ptr_nonnull(text);
    memset(text, '!', SYMBOLS);
    limit_memory(MORE);
    ck_assert_int_eq(client_bleu_add(&bleu, text, SYMBOLS, "a", 1, &err), -ENOMEM);
    ck_assert_holds(err.text, "the hypothesis: no memory for a text of ");
    ck_assert_int_eq(client_bleu_add(&bleu, "a", 1, text, SYMBOLS, &err), -ENOMEM);
    ck_assert_holds(err.text, "the reference: no memory for a text of ");
    for (size_t i = 0; i < LETTERS; i++)
        text[i] = i % 2 ? ' ' : 'a';
    ck_assert_int_eq(client_bleu_add(&bleu, text, LETTERS, "a", 1, &err), -ENOMEM);
    ck_assert_str_eq(err.text, "no memory for a segment of 2097153 tokens");
    ck_assert_mem_eq(&bleu, &none, sizeof bleu);
    free(text);
}
