/* What a tokenizer.json may not say, and what would take all time or memory. */
#include "tests/kit/command.h"
#include "tests/kit/test.h"
#include "tests/kit/fixtures/tokenizer.h"

#include "client/text/tokenizer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

SUITE_LABELS(single)

#define FIXTURES TESTS_DIR "/fixtures/tokenizers/"

/* ---- What is refused ---- */

/* tokenizer.json of a fixture with the value at a path replaced by JSON text. */
static void check_refused(const char *name, const char *path, const char *value, const char *word)
{
    json_t *root = json_load_file(print(FIXTURES "%s.json", name), 0, NULL), *at = root;
    json_t *new = json_loads(value, JSON_DECODE_ANY, NULL);
    const char *dot;
    struct client_tokenizer *t;
    struct error err = {0};

    ck_assert(root && new);
    for (; (dot = strchr(path, '.')); path = dot + 1)
        at = json_object_get(at, print("%.*s", (int)(dot - path), path));
    ck_assert_int_eq(json_object_set_new(at, path, new), 0);
    char *text = json_dumps(root, 0);
    json_t *side = json_pack("{ss}", "tokenizer.json", text);
    ck_assert_msg(client_tokenizer_open(&t, side, NULL, 4096, &err) == -EINVAL, "taken: %s", value);
    ck_assert_holds(err.text, "tokenizer.json", word);
    ck_assert_ptr_null(t);
    free(text);
    json_decref(side);
    json_decref(root);
}

static const struct {
    const char *name, *path, *value, *word;
} others[] = {
    {"llama2", "normalizer", "{\"type\": \"Precompiled\"}", "Precompiled has no precompiled_charsmap"},
    {"t5", "normalizer.precompiled_charsmap", "\"AB-D\"", "no base64"},
    {"t5", "normalizer.precompiled_charsmap", "\"\"", "no table of characters"},
    {"t5", "normalizer.precompiled_charsmap", "\"CAAAAAAAAAAAAAAA\"", "no table of characters"}, /* no texts */
    {"t5", "model.unk_id", "null", "unk_id is no token"},
    {"t5", "model.unk_id", "4096", "unk_id is no token"},
    {"t5", "model.byte_fallback", "true", "byte_fallback"},
    {"t5", "model.vocab", "[[\"a\", -1], [\"b\"], [\"c\", -2]]", "token 1 of its vocabulary is no [text, score]"},
    {"t5", "model.vocab", "[[\"a\", -1], [\"b\", -2]]", "unk_id is no token"},
    {"t5", "pre_tokenizer", "{\"type\": \"ByteLevel\"}", "its model is Unigram, with the pre-tokenizer ByteLevel"},
    {"llama2", "normalizer", "{\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"Nmt\"}]}", "normalizer is Nmt"},
    {"llama2", "normalizer", "{\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"Sequence\"}]}",
     "Sequence in a Sequence"},
    {"llama2", "normalizer", "{\"type\": \"Replace\", \"pattern\": {\"String\": \" \"}}", "Replace has no content"},
    {"llama2", "normalizer", "{\"type\": \"Replace\", \"pattern\": {\"String\": \"\"}, \"content\": \"\"}",
     "neither a text nor"},
    {"llama2", "normalizer", "{\"type\": \"Replace\", \"pattern\": {\"Regex\": \"^a\"}, \"content\": \"\"}",
     "an anchor"},
    {"llama2", "normalizer", "{\"type\": \"Prepend\"}", "Prepend has no text"},
    {"mistral", "pre_tokenizer.prepend_scheme", "\"last\"", "prepend_scheme last"},
    {"mistral", "pre_tokenizer.replacement", "\"\"", "no replacement"},
    {"mistral", "pre_tokenizer", "{\"type\": \"UnicodeScripts\"}", "pre-tokenizer is UnicodeScripts"},
    {"mistral", "pre_tokenizer",
     "{\"type\": \"Split\", \"pattern\": {\"String\": \"-\"}, \"behavior\": \"Merged\", \"invert\": false}",
     "behavior Merged"},
    {"qwen", "pre_tokenizer",
     "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"ByteLevel\"}, {\"type\": \"Digits\"}]}",
     "Digits after ByteLevel"},
    {"qwen", "model.byte_fallback", "true", "byte_fallback"},
    {"qwen", "decoder", "{\"type\": \"Fuse\"}", "decoder is not ByteLevel"},
    {"llama2", "decoder", "{\"type\": \"ByteLevel\"}", "decoder is ByteLevel"},
    {"llama2", "decoder", "{\"type\": \"CTC\"}", "decoder is CTC"},
    {"llama2", "decoder",
     "{\"type\": \"Sequence\", \"decoders\": [{\"type\": \"Fuse\"}, {\"type\": \"Strip\", \"content\": \" \", "
     "\"start\": 0, \"stop\": 1}]}",
     "Strip after Fuse"},
    {"llama2", "decoder",
     "{\"type\": \"Sequence\", \"decoders\": [{\"type\": \"ByteFallback\"}, {\"type\": \"ByteFallback\"}]}",
     "ByteFallback twice"},
    {"llama2", "model.unk_token", "\"<what>\"", "unk_token <what>"},
    {"llama2", "model.type", "\"WordLevel\"", "model is WordLevel"},
    {"llama2", "model.end_of_word_suffix", "\"</w>\"", "end_of_word_suffix"},
    {"bert", "model.unk_token", "null", "unk_token"},
    {"bert", "model.max_input_chars_per_word", "100000", "max_input_chars_per_word"},
    {"bert", "model.vocab.a", "4096", "outside the model's vocabulary of 4096"},
    {"bert", "post_processor", "{\"type\": \"Other\"}", "post-processor is Other"},
    {"bert", "post_processor.special_tokens", "{}", "names the token [CLS]"},
    {"bert", "post_processor.single", "[]", "does not hold the text once"},
    {"bert", "post_processor", "{\"type\": \"BertProcessing\", \"sep\": [\"x\", 3], \"cls\": [\"y\", 4000]}",
     "the token 4000"},
    {"bert", "post_processor.special_tokens.[SEP].ids",
     "[3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, "
     "3, "
     "3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3]",
     "adds more than 64 tokens after a text"},
    {"llama3", "post_processor.processors",
     "[{\"type\": \"BertProcessing\", \"sep\": [\"x\", 3], \"cls\": [\"y\", 4]}, {\"type\": \"BertProcessing\"}]",
     "behind another"},
};

TEST_EACH(what_is_not_supported_is_refused_by_name, COUNT(others))
{
    check_refused(others[_i].name, others[_i].path, others[_i].value, others[_i].word);
}

#define SPLIT(regex) "{\"type\": \"Split\", \"pattern\": {\"Regex\": \"" regex "\"}, \"behavior\": \"Isolated\"}"

static const struct {
    const char *regex, *word;
} patterns[] = {
    {SPLIT("(?<=a)b"), "a look behind"},
    {SPLIT("(?<!a)b"), "a look behind"},
    {SPLIT("a$"), "an anchor"},
    {SPLIT("a{1,3}+"), "a possessive interval"},
    {SPLIT("(*ACCEPT)"), "a verb"},
    {SPLIT("a\\\\b"), "\\b"},
    {SPLIT("a\\\\K"), "\\K"},
};

TEST_EACH(a_pattern_that_would_mean_something_else_is_refused, COUNT(patterns))
{
    check_refused("parts3", "pre_tokenizer", patterns[_i].regex, patterns[_i].word);
}

/* ---- A table of characters that points anywhere ---- */

static uint32_t next_of(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

/* Some bytes of the table replaced by others: it is refused, or any text becomes another one within the bounds that a
 * sanitizer watches. */
TEST_RANGE(a_broken_table_of_characters_stays_within_its_bounds, 1, 300)
{
    json_t *root = json_load_file(FIXTURES "t5.json", 0, NULL), *normalizer = json_object_get(root, "normalizer");
    char *map = strdup(json_string_value(json_object_get(normalizer, "precompiled_charsmap")));
    uint64_t state = (uint64_t)_i;
    struct client_tokens tokens = {0};
    struct client_tokenizer *t;
    struct error err = {0};
    size_t used;

    for (int i = 0; i < 40; i++)
        map[8 + next_of(&state) % (strlen(map) - 16)] = "ABCDwxyz0189+/"[next_of(&state) % 14];
    ck_assert_int_eq(json_object_set_new(normalizer, "precompiled_charsmap", json_string(map)), 0);
    char *text = json_dumps(root, 0);
    json_t *side = json_pack("{ss}", "tokenizer.json", text);
    if (client_tokenizer_open(&t, side, NULL, 4096, &err) == 0)
        client_tokenizer_encode(&tokens, &used, t, "A\uff21 e\u0301 \u2026 \ufdfa \u1112\u1161\u11ab \u00a0\t~", 31,
                                true, &err);
    client_tokenizer_close(t);
    free(tokens.ids);
    free(text);
    free(map);
    json_decref(side);
    json_decref(root);
}

/* ---- Files that would take all time or memory ---- */

static char *repeated(const char *what, size_t n)
{
    static char text[100000];

    *text = 0;
    for (size_t i = 0, length = strlen(what); i < n; i++)
        memcpy(text + i * length, what, length + 1);
    return text;
}

static int encode_all(struct client_tokenizer *t, const char *text, struct error *err)
{
    struct client_tokens tokens = {0};
    size_t used;
    const int rc = client_tokenizer_encode(&tokens, &used, t, text, strlen(text), true, err);

    free(tokens.ids);
    return rc;
}

#define REPLACE(from, to) "{\"type\":\"Replace\",\"pattern\":{" from "},\"content\":\"" to "\"}"

/* Each takes more than it may, in steps or bytes, of a short text. The second steps seldom, by PCRE2's count, but
 * far. */
static const struct {
    const char *part, *json, *text, *says;
    size_t n; /* times the text */
} bombs[] = {
    {"pre_tokenizer", SPLIT("(?:a|a|aa)+b"), "aaaaaaaaaaaaaaaacb", "pre-tokenizer takes more than 512 ", 4},
    {"pre_tokenizer", SPLIT("\\\\p{L}+\\\\p{L}+\\\\p{L}+\\\\d"), "a", "pre-tokenizer takes more than 512 ", 2000},
    {"normalizer", REPLACE("\"Regex\":\"(?:a|a|aa)+b\"", "c"), "aaaaaaaaaaaaaaaacb", "normalizer Replace takes", 4},
};

TEST_EACH(a_pattern_that_takes_too_many_steps_is_named, COUNT(bombs))
{
    struct error err = {0};
    struct client_tokenizer *t = tokenizer_open_with(bombs[_i].part, bombs[_i].json, &err);

    ck_assert_msg(t != NULL, "%s", err.text);
    ck_assert_int_eq(encode_all(t, repeated(bombs[_i].text, bombs[_i].n), &err), -EINVAL);
    ck_assert_holds(err.text, "tokenizer.json: ", bombs[_i].says);
    err = (struct error){0};
    ck_assert_msg(encode_all(t, "the quick 123", &err) == 0, "%s", err.text); /* the next text has steps of its own */
    client_tokenizer_close(t);
}

/* n times the same step in a Sequence: Replace of "a" by a hundred. */
static const char *hundreds(const char *list, int n)
{
    static char json[10000];
    int at = snprintf(json, sizeof json, "{\"type\":\"Sequence\",\"%s\":[", list);

    for (int i = 0; i < n; i++)
        at += snprintf(json + at, sizeof json - (size_t)at, REPLACE("\"String\":\"a\"", "%s") ",", repeated("a", 100));
    snprintf(json + at - 1, sizeof json - (size_t)at, "]}");
    return json;
}

/* 64 bytes, of which 16 steps make 10^34. */
TEST(a_normalizer_that_multiplies_text_is_named)
{
    struct error err = {0};
    struct client_tokenizer *t = tokenizer_open_with("normalizer", hundreds("normalizers", 16), &err);
    static char prepend[80000];

    ck_assert_msg(t != NULL, "%s", err.text);
    ck_assert_int_eq(encode_all(t, repeated("a", 64), &err), -EINVAL);
    ck_assert_holds(err.text, "tokenizer.json: ", "normalizer Replace", "64 bytes");
    client_tokenizer_close(t);

    err = (struct error){0};
    snprintf(prepend, sizeof prepend, "{\"type\":\"Prepend\",\"prepend\":\"%s\"}", repeated("a", 70000));
    ck_assert_ptr_null(tokenizer_open_with("normalizer", prepend, &err)); /* an added token is a text */
    ck_assert_holds(err.text, "tokenizer.json: ", "normalizer Prepend");
}

TEST(a_part_has_no_more_than_64_steps)
{
    char list[4000] = "{\"type\":\"Lowercase\"}";
    struct error err = {0};

    for (int i = 1; i < 65; i++)
        strcat(list, ",{\"type\":\"Lowercase\"}");
    ck_assert_ptr_null(
        tokenizer_open_with("normalizer", print("{\"type\":\"Sequence\",\"normalizers\":[%s]}", list), &err));
    ck_assert_holds(err.text, "normalizer", "64 steps");
}

TEST(a_decoder_that_multiplies_text_is_named)
{
    struct error err = {0};
    struct client_tokenizer *t = tokenizer_open_with("decoder", hundreds("decoders", 8), &err);
    struct client_decoder *d;
    const char *text;
    size_t n;
    int rc = 0;

    ck_assert_msg(t != NULL, "%s", err.text);
    ck_assert_int_eq(client_decoder_open(&d, t, NULL), 0);
    for (uint32_t id = 0; !rc && id < client_tokenizer_n_ids(t); id++)
        rc = client_decoder_push(d, &text, &n, &id, 1, true, false, &err);
    ck_assert_int_eq(rc, -EINVAL);
    ck_assert_holds(err.text, "tokenizer.json: ", "decoder Replace", "1048576 bytes");
    client_decoder_close(d);
    client_tokenizer_close(t);
}

/* ---- Lookups that multiply ---- */

/* Tokens of each length from 2 to n: b's and a c, so that a text of b's fails at each of them. */
static json_t *tokens_of_all_lengths(int n)
{
    json_t *list = json_array();

    for (int i = 1; i < n; i++)
        json_array_append_new(list, json_pack("{s:i, s:o, s:b}", "id", 2000 + i, "content",
                                              json_string(print("%sc", repeated("b", (size_t)i))), "special", 1));
    return list;
}

/* Opens a fixture with another value at a key of its file, or of its model; takes ownership. */
static struct client_tokenizer *open_changed(const char *name, const char *key, json_t *value)
{
    json_t *root = json_load_file(print(FIXTURES "%s.json", name), 0, NULL), *model = json_object_get(root, "model");
    struct client_tokenizer *t;
    struct error err = {""};

    if (strcmp(key, "longest") == 0) {
        json_array_append_new(json_object_get(model, "vocab"), json_pack("[o, f]", value, -20.0));
    } else {
        json_object_set_new(strcmp(key, "added_tokens") == 0 ? root : model, key, value);
    }
    char *text = json_dumps(root, 0);
    json_t *side = json_pack("{ss}", "tokenizer.json", text);
    ck_assert_msg(client_tokenizer_open(&t, side, NULL, 1 << 20, &err) == 0, "%s", err.text);
    json_decref(side);
    json_decref(root);
    free(text);
    return t;
}

/* A text of n b's takes n x 2,000 lookups of 1,000 bytes, n x 20,000 x 10,000, or n x 1,000 x 500. */
TEST_EACH(lookups_that_take_too_long_are_named, 3)
{
    static const char *const says[] = {"added_tokens take more than 512", "long tokens take more than 512",
                                       "long words take more than 512"};
    struct client_tokenizer *t = _i == 0   ? open_changed("llama3", "added_tokens", tokens_of_all_lengths(2000))
                                 : _i == 1 ? open_changed("t5", "longest", json_string(repeated("b", 20000)))
                                           : open_changed("bert", "max_input_chars_per_word", json_integer(1000));
    struct error err = {""};
    char *text = strdup(_i < 2 ? repeated("b", 30000) : repeated(print("%s ", repeated("b", 1000)), 40));

    ck_assert_int_eq(encode_all(t, text, &err), -EINVAL);
    ck_assert_holds(err.text, "tokenizer.json: its ", says[_i]);
    err = (struct error){""};
    ck_assert_msg(encode_all(t, "the quick brown fox", &err) == 0, "%s", err.text);
    free(text);
    client_tokenizer_close(t);
}
