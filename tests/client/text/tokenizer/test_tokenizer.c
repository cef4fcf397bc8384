/* Tokens against those of Hugging Face's tokenizers, in tests/fixtures/bpe, and files that nobody's tokenizer wrote. */
#include "tests/kit/command.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include "client/text/tokenizer.h"
#include "proto/model/file/model_files.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

SUITE_LABELS(single)

#define FIXTURES TESTS_DIR "/fixtures/bpe/"

static json_t *read_json(const char *name)
{
    json_t *json = json_load_file(print(FIXTURES "%s", name), 0, NULL);

    ck_assert_msg(json != NULL, "%s", name);
    return json;
}

/* Side files with this one in it. */
static json_t *add_file(json_t *side, const char *name, const char *fixture)
{
    char *text = processes_read(print(FIXTURES "%s", fixture));

    ck_assert_int_eq(json_object_set_new(side, name, json_string(text)), 0);
    free(text);
    return side;
}

static json_t *tokenizer_json(void)
{
    return add_file(json_object(), "tokenizer.json", "tokenizer.json");
}

/* Opens and gives side up. */
static struct client_tokenizer *open_side(json_t *side, uint32_t vocabulary)
{
    struct client_tokenizer *t;
    struct error err = {0};

    ck_assert_msg(client_tokenizer_open(&t, side, NULL, vocabulary, &err) == 0, "%s", err.text);
    json_decref(side);
    return t;
}

/* Encodes in pieces that end after `first` bytes and then every `step`; checks against ids, and, where no token takes
 * blanks away, back against text. */
static void check_tokens(struct client_tokenizer *t, const char *text, size_t n, const json_t *ids, size_t first,
                         size_t step, bool whole)
{
    struct client_tokens tokens = {0};
    struct error err = {0};
    size_t at = 0, used, end = first < n ? first : n, length, decoded = 0;

    for (;; end = n - end < step ? n : end + step) {
        ck_assert_msg(client_tokenizer_encode(&tokens, &used, t, text + at, end - at, end == n, &err) == 0, "%s: %s",
                      text, err.text);
        ck_assert(used <= end - at && (end < n || at + used == n));
        at += used;
        if (end == n)
            break;
    }
    bool same = tokens.n == json_array_size(ids);
    for (size_t i = 0; same && i < tokens.n; i++)
        same = json_integer_value(json_array_get(ids, i)) == tokens.ids[i];
    ck_assert_msg(same, "other tokens, in pieces of %zu and %zu: %s", first, step, text);
    for (size_t i = 0; whole && i < tokens.n; i++) {
        const char *bytes = client_tokenizer_decode(t, tokens.ids[i], &length);
        if (decoded + length > n || memcmp(text + decoded, bytes, length) != 0)
            ck_abort_msg("not the text again: %s", text);
        decoded += length;
    }
    ck_assert(!whole || decoded == n);
    free(tokens.ids);
}

static void check_all(struct client_tokenizer *t, const char *name)
{
    const bool whole = strcmp(name, "added") != 0;
    json_t *all = read_json("expected.json"), *answer;
    size_t i;

    ck_assert_uint_ge(json_array_size(json_object_get(all, name)), 80);
    json_array_foreach(json_object_get(all, name), i, answer)
    {
        const json_t *text = json_array_get(answer, 0), *ids = json_array_get(answer, 1);
        const size_t n = json_string_length(text);
        check_tokens(t, json_string_value(text), n, ids, n, 1, whole);
        for (size_t first = 0; first <= n && first < 48; first++) /* cut in two anywhere, inside characters too */
            check_tokens(t, json_string_value(text), n, ids, first, n, whole);
        check_tokens(t, json_string_value(text), n, ids, 1, 1, whole);
    }
    json_decref(all);
    client_tokenizer_close(t);
}

/* Of tokenizer.json, of vocab.json with merges.txt; with a pattern of its own, where words are taken whole; with added
 * tokens, which are matched before the split and take blanks along, or are runs of blanks. */
TEST_EACH(tokens_are_those_that_hugging_face_s_gives, 5)
{
    static const struct {
        const char *file, *name;
        uint32_t vocabulary;
    } cases[] = {{"tokenizer.json", "tokenizer", 600},
                 {NULL, "tokenizer", 600},
                 {"split.json", "split", 500},
                 {"added.json", "added", 700},
                 {"blanks.json", "blanks", 700}};
    json_t *side = json_object();

    if (cases[_i].file)
        add_file(side, "tokenizer.json", cases[_i].file);
    else
        json_object_set_new(add_file(add_file(side, "vocab.json", "vocab.json"), "merges.txt", "merges.txt"),
                            "tokenizer_config.json",
                            json_string("{\"model_max_length\": 1000000000000000019884624838656}"));
    check_all(open_side(side, cases[_i].vocabulary), cases[_i].name);
}

/* Every byte is its own token, and there is no end. */
static void check_bytes(struct client_tokenizer *t)
{
    json_t *ids = json_array();
    char text[256];
    size_t n;

    for (int i = 0; i < 256; i++) {
        text[i] = (char)i;
        json_array_append_new(ids, json_integer(i));
    }
    check_tokens(t, text, 256, ids, 100, 7, true);
    ck_assert_uint_eq(client_tokenizer_end(t), CLIENT_NO_TOKEN);
    ck_assert_ptr_null(client_tokenizer_decode(t, 256, &n));
    client_tokenizer_close(t);
    json_decref(ids);
}

/* The files of a model of bytes say what tokenizers itself would write, and are known again as what they are. */
TEST(a_vocabulary_of_256_is_one_of_bytes_without_files_or_with_those_that_hugging_face_s_would_write)
{
    json_t *side = json_object(), *wanted = json_load_file(TESTS_DIR "/fixtures/bytes/tokenizer.json", 0, NULL);
    struct client_tokenizer *t;

    check_bytes(open_side(json_pack("{ss}", "generation_config.json", "{\"eos_token_id\": 0}"), 256));
    ck_assert_int_eq(client_tokenizer_open(&t, NULL, NULL, 257, NULL), 0);
    ck_assert_ptr_null(t);
    ck_assert_int_eq(client_tokenizer_open(&t, NULL, NULL, 256, NULL), 0);
    check_bytes(t);
    ck_assert_int_eq(client_tokenizer_add_bytes(side, 128, NULL), 0);
    json_t *written = json_loads(json_string_value(json_object_get(side, "tokenizer.json")), 0, NULL);
    ck_assert(wanted && json_equal(written, wanted));
    json_decref(written), json_decref(wanted);
    written = json_loads(json_string_value(json_object_get(side, "tokenizer_config.json")), 0, NULL);
    ck_assert_int_eq(json_integer_value(json_object_get(written, "model_max_length")), 128);
    json_decref(written);
    t = open_side(side, 256);
    ck_assert(client_tokenizer_is_bytes(t));
    check_bytes(t);
}

/* Room is doubled: from 1,024 to 32,768. */
TEST(many_small_texts_take_room_a_few_times)
{
    struct client_tokens tokens = {0};
    struct client_tokenizer *t;
    size_t used;
    unsigned n = 0;

    ck_assert_int_eq(client_tokenizer_open(&t, NULL, NULL, 256, NULL), 0);
    for (int i = 0; i < 20000; i++) {
        const size_t before = tokens.cap;
        ck_assert_int_eq(client_tokenizer_encode(&tokens, &used, t, "a", 1, true, NULL), 0);
        n += tokens.cap != before;
    }
    ck_assert_uint_eq(tokens.n, 20000);
    ck_assert_uint_eq(n, 6);
    free(tokens.ids);
    client_tokenizer_close(t);
}

TEST(what_is_not_utf_8_is_refused_at_its_place)
{
    static const char *const wrongs[] = {"abc\xFF", "abc\xE2\x82", "abc\xED\xA0\x80"};
    struct client_tokenizer *t = open_side(tokenizer_json(), 600);
    struct client_tokens tokens = {0};
    struct error err;
    size_t used;

    for (int i = 0; i < COUNT(wrongs); i++) {
        ck_assert_int_eq(client_tokenizer_encode(&tokens, &used, t, wrongs[i], strlen(wrongs[i]), true, &err), -EINVAL);
        ck_assert_holds(err.text, "at byte 3");
    }
    ck_assert_int_eq(client_tokenizer_encode_word(&tokens, t, "\xE2\x82", 2, NULL),
                     0); /* half a character has tokens */
    ck_assert_uint_ge(tokens.n, 1);
    free(tokens.ids);
    client_tokenizer_close(t);
}

/* By hand: the merges of a row of one letter go on as the heap finds them, left to right. */
TEST(a_long_word_takes_no_more_than_n_log_n)
{
    enum { N = 4 << 20 };
    struct client_tokenizer *t = open_side(tokenizer_json(), 600);
    struct client_tokens tokens = {0};
    char *text = malloc(N);
    size_t used, length, decoded = 0;

    memset(text, 'o', N);
    ck_assert_int_eq(client_tokenizer_encode(&tokens, &used, t, text, N, true, NULL), 0);
    for (size_t i = 0; i < tokens.n; i++) {
        client_tokenizer_decode(t, tokens.ids[i], &length);
        decoded += length;
    }
    ck_assert_uint_eq(decoded, N);
    free(text);
    free(tokens.ids);
    client_tokenizer_close(t);
}

TEST(the_end_is_what_the_files_name)
{
    static const struct {
        const char *file, *text;
        uint32_t end;
    } said[] = {
        {"merges.txt", "", 0}, /* <|endoftext|> of the fixture's vocabulary */
        {"generation_config.json", "{\"eos_token_id\": 7}", 7},
        {"generation_config.json", "{\"eos_token_id\": [8, 9]}", 8},
        {"generation_config.json", "{\"eos_token_id\": 50256}", 0}, /* what transformers writes for any GPT-2 */
        {"generation_config.json", "{", 0},
        {"tokenizer_config.json", "{\"eos_token\": \"!\"}", 1},
        {"tokenizer_config.json", "{\"eos_token\": {\"content\": \"!\"}}", 1},
        {"special_tokens_map.json", "{\"eos_token\": \"!\"}", 1},
        {"special_tokens_map.json", "{\"eos_token\": \"no such token\"}",
         600}, /* the next number: outside the model's table */
    };

    for (size_t i = 0; i < sizeof said / sizeof *said; i++) {
        json_t *side = tokenizer_json();
        json_object_set_new(side, said[i].file, json_string(said[i].text));
        struct client_tokenizer *t = open_side(side, 600);
        ck_assert_msg(client_tokenizer_end(t) == said[i].end, "%zu: %u", i, client_tokenizer_end(t));
        client_tokenizer_close(t);
    }
}

/* tokenizer.json of the fixture with the value at a path, "model.merges.0", replaced by JSON text; a path that ends
 * with '+' appends. */
static json_t *changed(const char *path, const char *value)
{
    const char *dot = strrchr(path, '.'), *key = dot ? dot + 1 : path;
    json_t *root = read_json("tokenizer.json"), *new = json_loads(value, JSON_DECODE_ANY, NULL);
    json_t *at = dot ? json_at(root, print("%.*s", (int)(dot - path), path)) : root;

    if (*key == '+')
        json_array_append_new(at, new);
    else if (json_is_array(at))
        json_array_set_new(at, (size_t)atoi(key), new);
    else
        json_object_set_new(at, key, new);
    return root;
}

static json_t *side_of(json_t *root)
{
    char *text = json_dumps(root, 0);
    json_t *side = json_pack("{ss}", "tokenizer.json", text);

    free(text);
    json_decref(root);
    return side;
}

static void refused(json_t *side, uint32_t vocabulary, const char *word)
{
    struct client_tokenizer *t;
    struct error err = {0};

    ck_assert_int_eq(client_tokenizer_open(&t, side, NULL, vocabulary, &err), -EINVAL);
    ck_assert_holds(err.text, word);
    ck_assert_ptr_null(t);
    json_decref(side);
}

#define SPLIT(regex)                                                                                                   \
    "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Split\", \"pattern\": {\"Regex\": \"" regex             \
    "\"}, \"behavior\": \"Isolated\", \"invert\": false}, {\"type\": \"ByteLevel\", \"add_prefix_space\": false, "     \
    "\"use_regex\": false}]}"

#define METASPACE(more) "{\"type\": \"Metaspace\", \"replacement\": \"_\", " more "}"

static const struct {
    const char *path, *value, *word;
} others[] = {
    /* Another kind of tokenizer. */
    {"model.type", "\"WordLevel\"", "model is WordLevel"},
    {"normalizer", "{\"type\": \"Nmt\"}", "normalizer is Nmt"},
    {"pre_tokenizer", "null", "its pre-tokenizer is not"},
    {"pre_tokenizer", "{\"type\": \"Metaspace\"}", "Metaspace"},
    {"model.byte_fallback", "true", "byte_fallback"},
    {"model.end_of_word_suffix", "\"</w>\"", "end_of_word_suffix"},
    {"model.dropout", "0.1", "dropout"},
    /* Patterns that mean something else here. */
    {"pre_tokenizer", SPLIT("\\\\w+"), "\\w"},
    {"pre_tokenizer", SPLIT("[a[b[c]]]"), "brackets in brackets"},
    {"pre_tokenizer", SPLIT("[a[^b]]"), "brackets in brackets"},
    {"pre_tokenizer", SPLIT("[a-[b]]"), "brackets in brackets"},
    {"pre_tokenizer", SPLIT("[a[-b]]"), "brackets in brackets"},
    {"pre_tokenizer", SPLIT("[[a-]b]"), "brackets in brackets"},
    {"pre_tokenizer", SPLIT("[[a]-b]"), "brackets in brackets"},
    {"pre_tokenizer", SPLIT("[[:alpha:]]"), "brackets in brackets"},
    {"pre_tokenizer", SPLIT("[a&&b]"), "an intersection"},
    {"pre_tokenizer", SPLIT("[^\\\\S]"), "\\S"},
    {"pre_tokenizer", SPLIT("("), "compiled"},
    {"pre_tokenizer", SPLIT("a{99999}"), "compiled"},
    {"pre_tokenizer", SPLIT("[]a]"), "closes at once"},
    {"pre_tokenizer", SPLIT("a\\\\"), "\\ "},
    /* A vocabulary that does not hold together. */
    {"model.vocab", "[]", "no vocabulary"},
    {"model.vocab.a", "66", "two tokens have the id 66"},
    {"model.vocab.a", "600", "token a has the id 600"},
    {"model.vocab.a", "-1", "token a has the id -1"},
    {"model.vocab.a", "1e300", "token a has the id"},
    {"model.vocab.a", "null", "token a has the id"},
    {"model.vocab", "{\"a\": 5}", "no token for the byte 0x00"},
    {"model.merges", "{}", "no vocabulary and merges"},
    {"model.merges.3", "\"ab\"", "merge 3 is not two tokens"},
    {"model.merges.3", "\"a b c\"", "merge 3 is not two tokens"},
    {"model.merges.3", "[\"a\"]", "merge 3 is not two tokens"},
    {"model.merges.3", "[\"\", \"a\"]", "merge 3 is not two tokens"},
    {"model.merges.3", "[1, 2]", "merge 3 is not two tokens"},
    {"model.merges.3", "\"q zzz\"", "merge 3 (q and zzz)"},
    {"added_tokens", "{}", "added_tokens"},
    {"added_tokens.+", "{\"id\": 3}", "added token 1"},
    {"added_tokens.+", "{\"id\": 3, \"content\": \"<|endoftext|>\"}", "added token 1"},
    {"added_tokens.+", "{\"content\": \"x\"}", "added token 1"},
    {"added_tokens.+", "{\"id\": -1, \"content\": \"x\"}", "added token 1 has no id"},
    /* What Hugging Face's tokenizers refuse. */
    {"pre_tokenizer", METASPACE("\"prepend_scheme\": null"), "Metaspace has the prepend_scheme"},
    {"pre_tokenizer", METASPACE("\"add_prefix_space\": false"), "prepend_scheme never"},
    {"pre_tokenizer", "{\"type\": \"Metaspace\", \"replacement\": \"__\"}", "replacement of one character"},
    {"decoder", METASPACE("\"prepend_scheme\": \"first\", \"add_prefix_space\": false"), "prepend_scheme never"},
    {"decoder", "{\"type\": \"Strip\", \"content\": \" \", \"start\": 1}", "decoder Strip"},
    {"decoder", "{\"type\": \"Strip\", \"content\": \" \", \"stop\": 1}", "decoder Strip"},
    {"decoder", "{\"type\": \"Strip\", \"content\": \"ab\", \"start\": 1, \"stop\": 0}", "decoder Strip"},
    {"decoder", "{\"type\": \"Strip\", \"content\": \" \", \"start\": 1.0, \"stop\": 0}", "decoder Strip"},
};

TEST_EACH(what_is_no_tokenizer_of_this_kind_is_refused_by_what_is_wrong, COUNT(others))
{
    refused(side_of(changed(others[_i].path, others[_i].value)), 600, others[_i].word);
}

TEST(files_that_do_not_go_together_are_refused)
{
    json_t *side = add_file(json_object(), "vocab.json", "vocab.json");

    json_object_set_new(side, "tokenizer_config.json", json_string("{\"tokenizer_class\": \"CLIPTokenizer\"}"));
    refused(add_file(side, "merges.txt", "merges.txt"), 600, "CLIPTokenizer");
    refused(add_file(json_object(), "vocab.json", "vocab.json"), 600, "merges.txt");
    refused(add_file(json_object(), "merges.txt", "merges.txt"), 600, "vocab.json");
    refused(tokenizer_json(), 599, "outside the model's vocabulary of 599");
    refused(json_pack("{ss}", "tokenizer.json", "{\"model\": {\"type\": \"BPE\", \"type\": \"BPE\"}}"), 600, "line 1");
}

/* A vocabulary may have holes, be smaller than the model's, and hold a token that its letters do not spell. */
TEST(holes_and_strange_tokens_are_lived_with)
{
    json_t *root = changed("model.vocab.two words", "900");
    struct client_tokenizer *t = open_side(side_of(root), 1000);
    size_t n;

    ck_assert_ptr_null(client_tokenizer_decode(t, 700, &n));
    ck_assert_ptr_null(client_tokenizer_decode(t, 999, &n));
    ck_assert_ptr_null(client_tokenizer_decode(t, UINT32_MAX, &n));
    ck_assert_mem_eq(client_tokenizer_decode(t, 900, &n), "two words", 9);
    ck_assert_uint_eq(n, 9);
    client_tokenizer_close(t);
}

/* "aaaaa" has ways whose sums are equal but for rounding, by which the ids differ that tokenizers 0.23.3 gives for this file
 * and for the same vocabulary as Python reads it. */
TEST(scores_are_rounded_as_their_reader_rounds_them)
{
    static const char *const configs[] = {"{}", "{\"tokenizer_class\": \"T5Tokenizer\"}"};
    static const uint32_t wanted[][3] = {{2, 2, 1}, {1, 2, 2}};
    struct error err = {0};

    for (int i = 0; i < COUNT(configs); i++) {
        json_t *side = json_pack("{ss, ss}", "tokenizer.json",
                                 "{\"model\": {\"type\": \"Unigram\", \"unk_id\": 0, \"vocab\": [[\"<unk>\", 0.0], "
                                 "[\"a\", -9.594388378770715], [\"aa\", -1.39126159021471]]}}",
                                 "tokenizer_config.json", configs[i]);
        struct client_tokenizer *t = open_side(side, 3);
        struct client_tokens tokens = {0};
        size_t used;
        ck_assert_int_eq(client_tokenizer_encode(&tokens, &used, t, "aaaaa", 5, true, &err), 0);
        ck_assert_uint_eq(tokens.n, 3);
        ck_assert_mem_eq(tokens.ids, wanted[i], sizeof wanted[i]);
        free(tokens.ids);
        client_tokenizer_close(t);
    }
}

/* So a token wins that has the character and a low score. As in tokenizers 0.23.3, whose ids these are. */
TEST(an_unknown_character_is_ten_below_the_least_score)
{
    static const struct {
        const char *text;
        uint32_t n, ids[3];
    } texts[] = {{"a\xc3\xa9", 1, {5}},
                 {"a\xc3\xa9"
                  "b",
                  2,
                  {5, 2}},
                 {"\xc3\xa9"
                  "a",
                  2,
                  {0, 1}},
                 {"ab\xc3\xa9", 3, {1, 2, 0}}};
    json_t *side = json_pack("{ss}", "tokenizer.json",
                             "{\"model\": {\"type\": \"Unigram\", \"unk_id\": 0, \"vocab\": [[\"<unk>\", 0.0], "
                             "[\"a\", -1.0], [\"b\", -2.0], [\"ab\", -30.0], [\"c\", -3.0], "
                             "[\"a\\u00e9\", -40.5], [\"bb\", -8.0]]}}");
    struct client_tokenizer *t = open_side(side, 7);
    struct error err = {0};

    for (int i = 0; i < COUNT(texts); i++) {
        struct client_tokens tokens = {0};
        size_t used;
        ck_assert_int_eq(client_tokenizer_encode(&tokens, &used, t, texts[i].text, strlen(texts[i].text), true, &err),
                         0);
        ck_assert_uint_eq(tokens.n, texts[i].n);
        ck_assert_mem_eq(tokens.ids, texts[i].ids, tokens.n * sizeof *tokens.ids);
        free(tokens.ids);
    }
    client_tokenizer_close(t);
}

/* Hugging Face's tokenizers 0.23.3 give an added token the id of its text in the vocabulary, else the next one, and not
 * that of the file. */
TEST(an_added_token_has_the_id_of_its_text_in_the_vocabulary_or_the_next_one)
{
    static const struct {
        const char *added, *text;
        uint32_t id;
    } rows[] = {
        {"{\"id\": 900, \"content\": \"two words\"}", "two words", 600},
        {"{\"id\": 3, \"content\": \"two words\"}", "two words", 600},
        {"{\"id\": 900, \"content\": \"return\"}", "return", 0},
        {"{\"id\": 0, \"content\": \"return\", \"special\": true}", "return", 0},
    };
    json_t *root = read_json("tokenizer.json");
    const json_t *vocabulary = json_at(root, "model.vocab");

    for (int i = 0; i < COUNT(rows); i++) {
        struct client_tokenizer *t = open_side(side_of(changed("added_tokens.+", rows[i].added)), 1000);
        const uint32_t want =
            rows[i].id ? rows[i].id : (uint32_t)json_integer_value(json_object_get(vocabulary, rows[i].text));
        struct client_tokens tokens = {0};
        size_t used;
        ck_assert_int_eq(client_tokenizer_encode(&tokens, &used, t, rows[i].text, strlen(rows[i].text), true, NULL), 0);
        ck_assert(tokens.n == 1 && want > 0);
        ck_assert_uint_eq(tokens.ids[0], want);
        free(tokens.ids);
        client_tokenizer_close(t);
    }
    json_decref(root);
}

/* Whatever opens must encode. */
static void try_text(const char *text)
{
    static const char sample[] = "the quick 123 \xF0\x9F\x98\x80 it's  \n";
    json_t *side = json_pack("{ss}", "tokenizer.json", text);
    struct client_tokenizer *t;
    struct client_tokens tokens = {0};
    size_t used;

    if (side && client_tokenizer_open(&t, side, NULL, 600, NULL) == 0) {
        client_tokenizer_encode(&tokens, &used, t, sample, sizeof sample - 1, true, NULL);
        client_tokenizer_close(t);
    }
    free(tokens.ids);
    json_decref(side);
}

TEST(damaged_files_never_do_harm)
{
    json_t *side = tokenizer_json();
    char *text = strdup(json_string_value(json_object_get(side, "tokenizer.json")));
    const size_t n = strlen(text);

    for (size_t cut = 0; cut < n; cut += 37) {
        const char kept = text[cut];
        text[cut] = 0;
        try_text(text);
        text[cut] = kept;
    }
    for (size_t i = 0, at = 0; i < 400; i++, at = (at + 7919) % n) {
        const char kept = text[at];
        text[at] = "\"{}[],:0a\\"[i % 10];
        try_text(text);
        text[at] = kept;
    }
    free(text);
    json_decref(side);
}
