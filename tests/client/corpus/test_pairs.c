/* Rows of one text or two, against Hugging Face's tokenizers with truncation (tests/fixtures/pairs.json, made by
 * tests/oracle/make_pairs.py). */
#include "tests/kit/command.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include "client/corpus/pairs.h"

#include <jansson.h>
#include <stdlib.h>

enum { MOST = 256 };

static json_t *cases;

static void setup(void)
{
    cases = json_load_file(TESTS_DIR "/fixtures/pairs.json", 0, NULL);
    ck_assert_uint_eq(json_array_size(cases), 4);
}

static void teardown(void)
{
    json_decref(cases);
}

SUITE_FIXTURE_ONCE(setup, teardown)

/* A fixture's tokenizer, maybe with another post-processor. */
static struct client_tokenizer *open_tokenizer(const char *name, json_t *post_processor)
{
    json_t *made = json_load_file(print(TESTS_DIR "/fixtures/tokenizers/%s.json", name), 0, NULL);
    struct client_tokenizer *t;
    struct error err = {""};

    if (post_processor)
        json_object_set(made, "post_processor", post_processor);
    char *text = json_dumps(made, 0);
    json_t *side = json_pack("{s:s}", "tokenizer.json", text);
    ck_assert_msg(client_tokenizer_open(&t, side, NULL, 4096, &err) == 0, "%s", err.text);
    json_decref(side);
    json_decref(made);
    free(text);
    return t;
}

static void check_row(struct client_tokenizer *t, const struct client_pairs *pairs, const json_t *row)
{
    const json_t *texts = json_object_get(row, "texts"), *ids = json_object_get(row, "ids");
    const uint32_t seq = (uint32_t)json_integer_value(json_object_get(row, "seq"));
    struct client_tokens tokens[2] = {{0}};
    struct client_texts n = {.paired = json_array_size(texts) == 2};
    uint32_t out[MOST], second;
    size_t used;

    for (size_t i = 0; i < json_array_size(texts); i++) {
        const json_t *text = json_array_get(texts, i);
        ck_assert_int_eq(client_tokenizer_encode(&tokens[i], &used, t, json_string_value(text),
                                                 json_string_length(text), true, NULL),
                         0);
        n.n[i] = (uint32_t)tokens[i].n;
    }
    const uint32_t length =
        client_pairs_write(out, &second, pairs, n, (const uint32_t *const[2]){tokens[0].ids, tokens[1].ids}, seq);
    ck_assert_uint_eq(length, json_array_size(ids));
    for (uint32_t i = 0; i < length; i++)
        ck_assert_int_eq(out[i], json_integer_value(json_array_get(ids, i)));
    ck_assert_int_eq(second, json_integer_value(json_object_get(row, "second")));
    free(tokens[0].ids);
    free(tokens[1].ids);
}

TEST_EACH(a_row_is_that_of_hugging_face_s_tokenizers, 4)
{
    const json_t *of = json_array_get(cases, (size_t)_i), *row;
    json_t *processor = json_object_get(of, "post_processor");
    struct client_tokenizer *t =
        open_tokenizer(json_string_value(json_object_get(of, "tokenizer")), json_is_null(processor) ? NULL : processor);
    struct client_pairs pairs;
    size_t i;

    ck_assert_int_eq(client_pairs_init(&pairs, t, NULL), 0);
    ck_assert(pairs.has_pair);
    ck_assert_uint_ge(json_array_size(json_object_get(of, "rows")), 150);
    json_array_foreach(json_object_get(of, "rows"), i, row) check_row(t, &pairs, row);
    client_tokenizer_close(t);
}

/* One whose segments a row cannot have: the second text before the first, segments that fall, or rise inside a text's
 * own tokens, and two texts that are not both there. */
#define TEXT(name, segment)  "{\"Sequence\": {\"id\": \"" name "\", \"type_id\": " #segment "}}"
#define TOKEN(name, segment) "{\"SpecialToken\": {\"id\": \"" name "\", \"type_id\": " #segment "}}"

static const char *const odd[] = {
    ("[" TEXT("B", 0) ", " TEXT("A", 1) "]"),
    ("[" TEXT("A", 1) ", " TEXT("B", 0) "]"),
    ("[" TEXT("A", 0) ", " TEXT("B", 2) "]"),
    ("[" TEXT("A", 0) ", " TEXT("B", 0) ", " TOKEN("[SEP]", 1) "]"),
    ("[" TEXT("A", 0) "]"),
    "[]",
};

TEST_EACH(a_template_that_no_row_can_have_leaves_single_texts_alone, COUNT(odd))
{
    json_t *processor = json_pack(
        "{s:s, s:o, s:o, s:o}", "type", "TemplateProcessing", "single",
        json_loads("[" TOKEN("[CLS]", 0) ", " TEXT("A", 0) "]", 0, NULL), "pair", json_loads(odd[_i], 0, NULL),
        "special_tokens",
        json_loads("{\"[CLS]\": {\"id\": \"[CLS]\", \"ids\": [2]}, \"[SEP]\": {\"id\": \"[SEP]\", \"ids\": [3]}}", 0,
                   NULL));
    struct client_tokenizer *t = open_tokenizer("bert", processor);
    struct client_pairs pairs;

    ck_assert_int_eq(client_pairs_init(&pairs, t, NULL), 0);
    ck_assert(!pairs.has_pair);
    ck_assert_uint_eq(client_pairs_added(&pairs, false), 1);
    client_tokenizer_close(t);
    json_decref(processor);
}
