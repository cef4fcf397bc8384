/* Tokenizers with the pipelines of Llama 2 and 3, Mistral, Qwen, DeepSeek, Gemma, BERT, RoBERTa, GPT-NeoX, Cohere, Bloom
 * and XLM-RoBERTa, and with parts in other combinations, against what Hugging Face's tokenizers make of hostile texts
 * (tests/fixtures/tokenizers, made by tests/oracle/tokens.py, the last four by family_tokens.py). What is refused:
 * test_tokenizer_refusals. */
#include "tests/kit/command.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"
#include "tests/kit/fixtures/tokenizer.h"

#include "client/text/tokenizer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

SUITE_LABELS(single)

#define FIXTURES TESTS_DIR "/fixtures/tokenizers/"

static const char *const names[] = {"llama3",      "qwen",   "deepseek", "roberta",    "gpt2_prefix", "llama2",
                                    "mistral",     "gemma",  "bert",     "bert_cased", "llama2_old",  "parts0",
                                    "parts1",      "parts2", "parts3",   "parts4",     "parts11",     "scripts",
                                    "over_blanks", "eaten0", "eaten1",   "eaten2",     "t5",          "albert",
                                    "gpt_neox",    "cohere", "bloom",    "xlm_roberta"};

static json_t *read_expected(const char *name)
{
    json_t *json = json_load_file(print(FIXTURES "%s.expected.json", name), 0, NULL);

    ck_assert_msg(json != NULL, "%s", name);
    ck_assert_uint_ge(json_array_size(json_object_get(json, "texts")), 60);
    return json;
}

static bool same_ids(const uint32_t *ids, size_t n, const json_t *expected)
{
    bool same = n == json_array_size(expected);

    for (size_t i = 0; same && i < n; i++)
        same = json_integer_value(json_array_get(expected, i)) == ids[i];
    return same;
}

/* In pieces that end after `first` bytes, and then every `step`. */
static void check_ids(struct client_tokenizer *t, const json_t *string, const json_t *ids, size_t first, size_t step)
{
    const char *text = json_string_value(string);
    const size_t n = json_string_length(string);
    struct client_tokens tokens = {0};
    struct error err = {0};
    size_t at = 0, used, end = first < n ? first : n;

    for (;; end = n - end < step ? n : end + step) {
        const bool last = end == n;
        ck_assert_msg(client_tokenizer_encode(&tokens, &used, t, text + at, end - at, last, &err) == 0, "%s: %s", text,
                      err.text);
        at += used;
        ck_assert(at <= end && (!last || at == n));
        if (last)
            break;
    }
    ck_assert_msg(same_ids(tokens.ids, tokens.n, ids), "other tokens, in pieces of %zu and %zu: %s", first, step, text);
    free(tokens.ids);
}

TEST_EACH(tokens_are_those_of_hugging_face_s_tokenizers_whole_and_in_pieces, COUNT(names))
{
    struct client_tokenizer *t = tokenizer_open_fixture(names[_i], NULL);
    json_t *expected = read_expected(names[_i]), *text;
    size_t i;

    json_array_foreach(json_object_get(expected, "texts"), i, text)
    {
        const json_t *ids = json_array_get(json_object_get(expected, "ids"), i);
        const size_t n = json_string_length(text);
        check_ids(t, text, ids, n, 1);
        for (size_t first = 0; first <= n && first < 40; first++) /* in two parts */
            check_ids(t, text, ids, first, n);
        check_ids(t, text, ids, 1, 1);
        check_ids(t, text, ids, 5, 7);
    }
    json_decref(expected);
    client_tokenizer_close(t);
}

/* Pushes ids in groups of `group` into a new decoder, and compares all that it gives. */
static void check_text(const struct client_tokenizer *t, const json_t *ids, const json_t *string, size_t group)
{
    const size_t n = json_array_size(ids), length = json_string_length(string);
    uint32_t *list = calloc(n + 1, sizeof *list);
    struct client_decoder *d;
    const char *bytes;
    size_t got, at = 0;

    for (size_t i = 0; i < n; i++)
        list[i] = (uint32_t)json_integer_value(json_array_get(ids, i));
    ck_assert_int_eq(client_decoder_open(&d, t, NULL), 0);
    for (size_t i = 0; i <= n; i += group) {
        const bool last = i + group > n;
        ck_assert_int_eq(client_decoder_push(d, &bytes, &got, list + i, last ? n - i : group, true, last, NULL), 0);
        ck_assert_msg(got <= length - at && memcmp(bytes, json_string_value(string) + at, got) == 0,
                      "other text in groups of %zu, after byte %zu of: %s", group, at, json_string_value(string));
        at += got;
    }
    ck_assert_msg(at == length, "ends after %zu bytes: %s", at, json_string_value(string));
    client_decoder_close(d);
    free(list);
}

TEST_EACH(tokens_decode_to_the_text_of_hugging_face_s_tokenizers_one_at_a_time_too, COUNT(names))
{
    struct client_tokenizer *t = tokenizer_open_fixture(names[_i], NULL);
    json_t *expected = read_expected(names[_i]), *ids;
    size_t i;

    json_array_foreach(json_object_get(expected, "ids"), i, ids)
    {
        const json_t *text = json_array_get(json_object_get(expected, "again"), i);
        check_text(t, ids, text, json_array_size(ids) + 1);
        check_text(t, ids, text, 1);
        check_text(t, ids, text, 3);
    }
    json_decref(expected);
    client_tokenizer_close(t);
}

/* "Hello world" as tokenizers' encode gives it: with what the post-processor adds. */
TEST_EACH(a_text_begins_and_ends_as_the_post_processor_says, COUNT(names))
{
    struct client_tokenizer *t = tokenizer_open_fixture(names[_i], NULL);
    json_t *expected = read_expected(names[_i]);
    const char *text = json_string_value(json_array_get(json_object_get(expected, "texts"), 3));
    struct client_tokens tokens = {0};
    size_t n, used;
    const uint32_t *ids = client_tokenizer_begins(t, &n);

    ck_assert_str_eq(text, "Hello world");
    ck_assert_int_eq(client_tokens_add(&tokens, ids, n, NULL), 0);
    ck_assert_int_eq(client_tokenizer_encode(&tokens, &used, t, text, strlen(text), true, NULL), 0);
    ids = client_tokenizer_ends(t, &n);
    ck_assert_int_eq(client_tokens_add(&tokens, ids, n, NULL), 0);
    ck_assert(same_ids(tokens.ids, tokens.n, json_object_get(expected, "whole")));
    free(tokens.ids);
    json_decref(expected);
    client_tokenizer_close(t);
}

/* Llama 2 takes a text for one word; without cuts this one would be over the limit. */
TEST(a_text_without_words_has_no_limit)
{
    enum { N = CLIENT_TOKENIZER_MAX_WORD + (1 << 20) };
    struct client_tokenizer *t = tokenizer_open_fixture("llama2", NULL), *other;
    struct client_tokens tokens = {0}, again = {0};
    char *text = malloc(N);
    size_t used, at = 0;

    for (size_t i = 0; i < N; i++)
        text[i] = "the quick brown fox "[i % 20];
    ck_assert_int_eq(client_tokenizer_encode(&tokens, &used, t, text, N, true, NULL), 0);
    ck_assert_uint_eq(used, N);
    ck_assert_int_eq(client_tokenizer_share(&other, t, NULL), 0);
    for (size_t end = 1 << 20; at < N; end += 1 << 20) {
        ck_assert_int_eq(client_tokenizer_encode(&again, &used, other, text + at, end - at, end == N, NULL), 0);
        at += used;
    }
    ck_assert_uint_eq(again.n, tokens.n);
    ck_assert_mem_eq(again.ids, tokens.ids, tokens.n * sizeof *tokens.ids);
    client_tokenizer_close(other);
    client_tokenizer_close(t);
    free(text);
    free(tokens.ids);
    free(again.ids);
}

/* Blanks are looked for in stretches. The ids are those of the package: ▁, 4,200 times x, ▁, the. */
TEST(a_blank_behind_a_long_run_is_replaced)
{
    enum { N = 4200 };
    struct client_tokenizer *t = tokenizer_open_fixture("llama2", NULL);
    struct client_tokens tokens = {0};
    char text[N + 5];
    size_t used;

    memset(text, 'x', N);
    memcpy(text + N, " the", 5);
    ck_assert_int_eq(client_tokenizer_encode(&tokens, &used, t, text, N + 4, true, NULL), 0);
    ck_assert_uint_eq(tokens.n, 4202);
    ck_assert_uint_eq(tokens.ids[4200], 305);
    ck_assert_uint_eq(tokens.ids[4201], 393);
    free(tokens.ids);
    client_tokenizer_close(t);
}

/* Of a run that is not UTF-8 as a whole, no byte is taken for a character: so says the package of <0x41> <0xFF>. */
TEST(bytes_of_a_bad_run_are_replaced_one_by_one)
{
    static const uint32_t ids[] = {68, 258};
    struct client_tokenizer *t = tokenizer_open_fixture("llama2", NULL);
    struct client_decoder *d;
    const char *text;
    size_t n;

    ck_assert_int_eq(client_decoder_open(&d, t, NULL), 0);
    ck_assert_int_eq(client_decoder_push(d, &text, &n, ids, 2, true, true, NULL), 0);
    ck_assert_str_eq(print("%.*s", (int)n, text), "\xEF\xBF\xBD\xEF\xBF\xBD");
    client_decoder_close(d);
    client_tokenizer_close(t);
}

/* Half a million marks of falling classes behind one letter: sorted in O(n). By hand: one letter, no blank, so the text
 * is one word of characters without a token. */
TEST(a_run_of_marks_takes_no_more_than_o_n)
{
    enum { PAIRS = 1 << 18 };
    struct client_tokenizer *t = tokenizer_open_fixture("bert", NULL);
    struct client_tokens tokens = {0};
    char *text = malloc(1 + 4 * (size_t)PAIRS);
    size_t used;

    text[0] = 'a';
    for (size_t i = 0; i < PAIRS; i++)
        memcpy(text + 1 + 4 * i, i % 2 ? "\xCC\x81\xCC\xA3" : "\xCC\x87\xCC\xA7", 4); /* 230 220 230 202 */
    ck_assert_int_eq(client_tokenizer_encode(&tokens, &used, t, text, 1 + 4 * (size_t)PAIRS, true, NULL), 0);
    ck_assert_uint_eq(tokens.n, 1); /* BERT strips the marks: the letter remains */
    ck_assert_str_eq(print("%.*s", 1, client_tokenizer_decode(t, tokens.ids[0], &used)), "a");
    free(text);
    free(tokens.ids);
    client_tokenizer_close(t);
}

/* Wherever the text to replace lies, and whatever looks at it a stretch at a time. By hand: a token of its own stands
 * for what replaces it. */
TEST(a_text_is_replaced_wherever_it_is)
{
    json_t *root = json_load_file(FIXTURES "llama2.json", 0, NULL);
    struct client_tokens tokens = {0};
    struct client_tokenizer *t;
    char text[5000];
    size_t used;

    json_object_set_new(root, "normalizer",
                        json_loads("{\"type\": \"Replace\", \"pattern\": {\"String\": \"qqq\"}, \"content\": \"a\"}", 0,
                                   NULL));
    char *file = json_dumps(root, 0);
    json_t *side = json_pack("{ss}", "tokenizer.json", file);
    ck_assert_int_eq(client_tokenizer_open(&t, side, NULL, 4096, NULL), 0);
    for (size_t at = 4080; at < 4110; at++) {
        memset(text, 'a', sizeof text);
        memcpy(text + at, "qqq", 3);
        ck_assert_int_eq(client_tokenizer_encode(&tokens, &used, t, text, sizeof text, true, NULL), 0);
        size_t n = 0, n_q = 0, length;
        for (size_t i = 0; i < tokens.n; i++) {
            const char *piece = client_tokenizer_decode(t, tokens.ids[i], &length);
            for (size_t k = 0; k < length; k++)
                n_q += piece[k] == 'q';
            n += length;
        }
        ck_assert_uint_eq(n, sizeof text - 2);
        ck_assert_uint_eq(n_q, 0);
        tokens.n = 0;
    }
    client_tokenizer_close(t);
    free(tokens.ids);
    free(file);
    json_decref(side);
    json_decref(root);
}

/* After an error, and after the end of a text, nothing of it is left. */
TEST(a_text_does_not_depend_on_the_one_before)
{
    struct client_tokenizer *t = tokenizer_open_fixture("llama2", NULL);
    struct client_tokens tokens = {0};
    struct error err;
    size_t used;

    ck_assert_int_eq(client_tokenizer_encode(&tokens, &used, t, "Hello wor", 9, false, NULL), 0);
    ck_assert_int_eq(client_tokenizer_encode(&tokens, &used, t, "ld\xFF", 3, true, &err), -EINVAL);
    tokens.n = 0;
    ck_assert_int_eq(client_tokenizer_encode(&tokens, &used, t, "Hello world", 11, true, NULL), 0);
    json_t *expected = read_expected("llama2");
    ck_assert(same_ids(tokens.ids, tokens.n, json_array_get(json_object_get(expected, "ids"), 3)));
    json_decref(expected);
    free(tokens.ids);
    client_tokenizer_close(t);
}

TEST(special_tokens_can_be_left_out_of_the_text)
{
    struct client_tokenizer *t = tokenizer_open_fixture("llama3", NULL);
    struct client_tokens tokens = {0};
    struct client_decoder *d;
    const char *text;
    size_t used, n;

    ck_assert_int_eq(client_tokenizer_encode(&tokens, &used, t, "<|begin_of_text|>the<|eot_id|>", 30, true, NULL), 0);
    ck_assert_int_eq(client_decoder_open(&d, t, NULL), 0);
    ck_assert_int_eq(client_decoder_push(d, &text, &n, tokens.ids, tokens.n, false, true, NULL), 0);
    ck_assert_str_eq(print("%.*s", (int)n, text), "the");
    client_decoder_close(d);
    free(tokens.ids);
    client_tokenizer_close(t);
}

/* parts3.json with this decoder makes this text of the tokens. */
static void check_decoded(const char *decoder, const uint32_t *ids, size_t n_ids, const char *want)
{
    struct error err = {""};
    struct client_tokenizer *t = tokenizer_open_with("decoder", decoder, &err);
    struct client_decoder *d;
    const char *text;
    size_t n;

    ck_assert_msg(t != NULL, "%s", err.text);
    ck_assert_int_eq(client_decoder_open(&d, t, NULL), 0);
    ck_assert_int_eq(client_decoder_push(d, &text, &n, ids, n_ids, true, true, NULL), 0);
    ck_assert_str_eq(print("%.*s", (int)n, text), want);
    client_decoder_close(d);
    client_tokenizer_close(t);
}

/* By hand. Strip takes `content` from either end of each token, at most so often; behind Fuse, from the beginning of
 * the whole text. The tokens are "++", "▁i++", "+=", "++" and "a". */
TEST_EACH(a_decoder_strips_as_often_as_it_says, 4)
{
#define STRIP(start, stop) "{\"type\": \"Strip\", \"content\": \"+\", \"start\": " #start ", \"stop\": " #stop "}"
    static const char *const decoders[][2] = {
        {STRIP(1, 0), "+▁i++=+a"},
        {STRIP(0, 2), "▁i+=a"},
        {STRIP(1, 1), "▁i+=a"},
        {"{\"type\": \"Sequence\", \"decoders\": [{\"type\": \"Fuse\"}, " STRIP(1, 0) "]}", "+▁i+++=++a"},
    };
    static const uint32_t ids[] = {109, 178, 110, 109, 18};

    check_decoded(decoders[_i][0], ids, COUNT(ids), decoders[_i][1]);
}

/* What the first tokens do not use up of it is taken from the next ones: three of "++", "++" and "a". */
TEST(a_strip_behind_a_fuse_goes_on_in_the_next_token)
{
    static const uint32_t ids[] = {109, 109, 18};

    check_decoded("{\"type\": \"Sequence\", \"decoders\": [{\"type\": \"Fuse\"}, " STRIP(3, 0) "]}", ids, COUNT(ids),
                  "+a");
}

/* An old file has no prepend_scheme: a blank leads each piece of the text, also that behind an added token. */
TEST(an_old_metaspace_leads_each_piece)
{
    static const uint32_t want[] = {63, 240, 63}; /* "▁t", "é!", "▁t" */
    struct error err = {""};
    struct client_tokenizer *t =
        tokenizer_open_with("pre_tokenizer",
                            "{\"type\": \"Metaspace\", \"replacement\": \"▁\", \"add_prefix_space\": true}", &err);
    struct client_tokens tokens = {0};
    size_t used;

    ck_assert_msg(t != NULL, "%s", err.text);
    ck_assert_int_eq(client_tokenizer_encode(&tokens, &used, t, "té!t", 5, true, &err), 0);
    ck_assert_uint_eq(tokens.n, COUNT(want));
    ck_assert_mem_eq(tokens.ids, want, sizeof want);
    free(tokens.ids);
    client_tokenizer_close(t);
}

/* Whatever opens must encode and decode. */
static void try_file(const char *file)
{
    static const char sample[] = "the quick 123 \xF0\x9F\x98\x80 it's e\xCC\x81 \xE4\xBA\xBA  \n<s>";
    json_t *side = json_pack("{ss}", "tokenizer.json", file);
    struct client_tokens tokens = {0};
    struct client_tokenizer *t;
    struct client_decoder *d;
    const char *text;
    size_t used, n;

    if (side && client_tokenizer_open(&t, side, NULL, 4096, NULL) == 0) {
        client_tokenizer_encode(&tokens, &used, t, sample, sizeof sample - 1, true, NULL);
        ck_assert_int_eq(client_decoder_open(&d, t, NULL), 0);
        client_decoder_push(d, &text, &n, tokens.ids, tokens.n, true, true, NULL);
        client_decoder_close(d);
        client_tokenizer_close(t);
    }
    free(tokens.ids);
    json_decref(side);
}

TEST_EACH(damaged_files_never_do_harm, COUNT(names))
{
    char *text = processes_read(print(FIXTURES "%s.json", names[_i]));
    const size_t n = strlen(text);

    for (size_t i = 0, at = 0; i < 300; i++, at = (at + 7919) % (i % 3 ? n : 900 < n ? 900 : n)) {
        const char kept = text[at];
        text[at] = "\"{}[],:0a\\1"[i % 11];
        try_file(text);
        text[at] = kept;
    }
    free(text);
}
