/* Tokens and switches that only a tokenizer's other files have: ids are those of transformers, or there is a sentence.
 *
 * test_side encode FILE is for tests/oracle/side_tokens.py: FILE holds [{"side": {"tokenizer.json": "...", ...},
 * "model_type": "...", "vocabulary": N, "texts": ["...", ...]}, ...]; it prints for each {"ids": [[...], ...], "end":
 * id or null}, a list of a text that is refused being the sentence; or, of a tokenizer that is refused, the
 * sentence. */
#include "tests/kit/command.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include "client/text/tokenizer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* What precedes a text, the text and what follows it as ids; or a sentence. */
static json_t *encode(struct client_tokenizer *t, const char *text)
{
    struct client_tokens tokens = {0};
    json_t *out = json_array();
    struct error err = {""};
    size_t used, n;
    const uint32_t *ids = client_tokenizer_begins(t, &n);
    int rc = client_tokens_add(&tokens, ids, n, &err);

    if (!rc)
        rc = client_tokenizer_encode(&tokens, &used, t, text, strlen(text), true, &err);
    ids = client_tokenizer_ends(t, &n);
    if (!rc)
        rc = client_tokens_add(&tokens, ids, n, &err);
    for (size_t i = 0; i < tokens.n; i++)
        json_array_append_new(out, json_integer(tokens.ids[i]));
    free(tokens.ids);
    if (!rc)
        return out;
    json_decref(out);
    return json_string(err.text);
}

static int open_case(struct client_tokenizer **out, const json_t *one, uint32_t vocabulary, struct error *err)
{
    return client_tokenizer_open(out, json_object_get(one, "side"),
                                 json_string_value(json_object_get(one, "model_type")), vocabulary, err);
}

static json_t *encode_all(const json_t *one)
{
    const uint32_t vocabulary = (uint32_t)json_integer_value(json_object_get(one, "vocabulary"));
    struct client_tokenizer *t;
    struct error err = {""};
    json_t *out = json_object(), *lists = json_array(), *text;
    size_t i;

    if (open_case(&t, one, vocabulary, &err)) {
        json_decref(lists);
        json_decref(out);
        return json_string(err.text);
    }
    json_array_foreach(json_object_get(one, "texts"), i, text)
    {
        json_array_append_new(lists, encode(t, json_string_value(text)));
    }
    const uint32_t end = client_tokenizer_end(t);
    json_object_set_new(out, "ids", lists);
    json_object_set_new(out, "end", end == CLIENT_NO_TOKEN ? json_null() : json_integer(end));
    client_tokenizer_close(t);
    return out;
}

/* Files of tests/fixtures that a case's own files go with. */
static void add_base(json_t *side, const char *base)
{
    static const char *const names[] = {"tokenizer.json", "vocab.json", "merges.txt"};
    const bool gpt2 = strncmp(base, "gpt2", 4) == 0, files = strcmp(base, "gpt2_files") == 0;

    for (int i = files; i < (files ? 3 : 1); i++) {
        char *text = processes_read(gpt2 ? print(TESTS_DIR "/fixtures/bpe/%s", names[i])
                                         : print(TESTS_DIR "/fixtures/tokenizers/%s.json", base));
        json_object_set_new(side, names[i], json_string(text));
        free(text);
    }
}

/* Drawn by tests/oracle/side_tokens.py; the ids are those of transformers 5.24. */
TEST(tokens_of_other_files_are_those_of_transformers_or_refused)
{
    json_t *all = json_load_file(TESTS_DIR "/fixtures/tokenizers/side.expected.json", 0, NULL), *one, *list;
    size_t i, k, n_equal = 0, n_refused = 0;

    json_array_foreach(all, i, one)
    {
        add_base(json_object_get(one, "side"), json_string_value(json_object_get(one, "base")));
        json_object_set_new(one, "vocabulary", json_integer(1 << 20));
        json_t *answer = encode_all(one), *lists = json_object_get(answer, "ids");
        n_refused += json_is_string(answer);
        json_array_foreach(lists, k, list)
        {
            const bool equal = json_equal(list, json_array_get(json_object_get(one, "ids"), k));
            ck_assert_msg(equal || json_is_string(list), "case %zu, text %zu", i, k);
            n_equal += equal, n_refused += !equal;
        }
        json_decref(answer);
    }
    ck_assert_uint_ge(n_equal, 310); /* of 370 texts */
    ck_assert_uint_gt(n_refused, 0);
    json_decref(all);
}

/* Texts of transformers 5.24, whose tokenizer_config.json has clean_up_tokenization_spaces; one token at a time. */
TEST(blanks_before_punctuation_go_where_transformers_takes_them)
{
    json_t *all = json_load_file(TESTS_DIR "/fixtures/tokenizers/tidy.expected.json", 0, NULL), *one, *list, *id;
    size_t i, k, j, n_tidied = 0;

    json_array_foreach(all, i, one)
    {
        struct client_tokenizer *t;
        add_base(json_object_get(one, "side"), json_string_value(json_object_get(one, "base")));
        ck_assert_int_eq(open_case(&t, one, 1 << 20, NULL), 0);
        json_array_foreach(json_object_get(one, "ids"), k, list)
        {
            const json_t *want = json_array_get(json_object_get(one, "texts"), k);
            char got[1024] = "";
            const char *text;
            size_t n, at = 0;
            struct client_decoder *d;
            ck_assert_int_eq(client_decoder_open(&d, t, NULL), 0);
            json_array_foreach(list, j, id)
            {
                const uint32_t now = (uint32_t)json_integer_value(id);
                ck_assert_int_eq(client_decoder_push(d, &text, &n, &now, 1, true, j + 1 == json_array_size(list), NULL),
                                 0);
                ck_assert_uint_lt(at + n, sizeof got);
                memcpy(got + at, text, n), at += n, got[at] = 0;
            }
            client_decoder_close(d);
            ck_assert_msg(strcmp(got, json_string_value(want)) == 0, "case %zu: %s, not %s", i, got,
                          json_string_value(want));
            n_tidied += json_is_true(json_array_get(json_object_get(one, "tidied"), k));
        }
        client_tokenizer_close(t);
    }
    ck_assert_uint_gt(n_tidied, 20);
    json_decref(all);
}

/* As special_tokens_map of the same tokenizers; null: not compared. */
TEST(names_of_tokens_are_those_that_templates_of_transformers_see)
{
    json_t *all = json_load_file(TESTS_DIR "/fixtures/tokenizers/side.expected.json", 0, NULL), *one;
    size_t i, n_equal = 0;

    json_array_foreach(all, i, one)
    {
        const json_t *want = json_object_get(one, "names"), *side = json_object_get(one, "side");
        struct client_tokenizer *t;
        json_t *got = json_object();
        add_base(json_object_get(one, "side"), json_string_value(json_object_get(one, "base")));
        if (open_case(&t, one, 1 << 20, NULL) == 0 && !json_is_null(want)) {
            ck_assert_int_eq(client_tokenizer_names(got, t, side, NULL), 0);
            ck_assert_msg(json_equal(got, want), "case %zu: %s", i, json_dumps(got, 0));
            n_equal++;
        }
        client_tokenizer_close(t);
        json_decref(got);
    }
    ck_assert_uint_ge(n_equal, 30);
    json_decref(all);
}

static int open_qwen(struct client_tokenizer **out, const char *name, const char *text, struct error *err)
{
    json_t *side = json_pack("{ss}", name, text);
    int rc;

    add_base(side, "qwen");
    rc = client_tokenizer_open(out, side, NULL, 1000, err);
    json_decref(side);
    return rc;
}

/* A class that is made from the vocabulary does not see tokenizer.json's list, where added_tokens_decoder has
 * another. */
TEST(a_token_that_transformers_would_split_is_refused_in_a_text)
{
    struct client_tokenizer *t;
    struct client_tokens tokens = {0};
    struct error err = {""};
    size_t used;

    ck_assert_int_eq(open_qwen(&t, "tokenizer_config.json",
                               "{\"tokenizer_class\": \"Qwen2TokenizerFast\", \"added_tokens_decoder\": {\"400\": "
                               "{\"content\": \"<|endoftext|>\", \"special\": true}}}",
                               &err),
                     0);
    ck_assert_int_eq(client_tokenizer_encode(&tokens, &used, t, "a <|endoftext|>", 15, true, &err), 0);
    ck_assert_int_eq(client_tokenizer_encode(&tokens, &used, t, "a <|im_end|> b", 14, true, &err), -EINVAL);
    ck_assert_holds(err.text, "<|im_end|>", "added_tokens_decoder of tokenizer_config.json");
    client_tokenizer_close(t);
    free(tokens.ids);
}

static const struct {
    const char *base, *name, *text, *word;
} refused[] = {
    {"qwen", "tokenizer_config.json", "{\"added_tokens_decoder\": []}",
     "tokenizer_config.json: its added_tokens_decoder"},
    {"qwen", "tokenizer_config.json", "{\"added_tokens_decoder\": {\"x\": {\"content\": \"a\"}}}",
     "added_tokens_decoder"},
    {"qwen", "tokenizer_config.json", "{\"extra_special_tokens\": [3]}",
     "tokenizer_config.json: its extra_special_tokens"},
    {"qwen", "tokenizer_config.json", "{\"eos_token\": 3}", "tokenizer_config.json: its eos_token"},
    {"qwen", "special_tokens_map.json", "{\"eos_token\": [3]}", "special_tokens_map.json: its eos_token"},
    {"qwen", "added_tokens.json", "{\"<pad>\": \"3\"}", "added_tokens.json: its token <pad>"},
    {"qwen", "tokenizer_config.json", "{\"tokenizer_class\": \"Qwen2Tokenizer\", \"add_prefix_space\": true}",
     "tokenizer_config.json: add_prefix_space is true, and tokenizer.json's ByteLevel has it false"},
    {"bert_cased", "tokenizer_config.json", "{\"tokenizer_class\": \"BertTokenizer\"}",
     "tokenizer_config.json: do_lower_case is true unless it is given"},
    {"bert", "tokenizer_config.json", "{\"tokenizer_class\": \"BertTokenizer\", \"sep_token\": \"[MASK]\"}",
     "its post-processor does not put the sep_token [MASK] after a text"},
    {"bert", "special_tokens_map.json", "{\"unk_token\": \"[MASK]\"}", NULL}, /* a class that takes tokenizer.json */
    {"bert", "tokenizer_config.json", "{\"tokenizer_class\": \"BertTokenizer\", \"unk_token\": \"[MASK]\"}",
     "its unk_token is [UNK], and [MASK] by the other files"},
    {"mistral", "tokenizer_config.json", "{\"tokenizer_class\": \"LlamaTokenizer\", \"add_prefix_space\": false}",
     "tokenizer.json's Metaspace has first"},
};

TEST_EACH(what_would_make_another_tokenizer_is_refused_by_name, COUNT(refused))
{
    json_t *side = json_pack("{ss}", refused[_i].name, refused[_i].text);
    struct client_tokenizer *t;
    struct error err = {""};

    add_base(side, refused[_i].base);
    const int rc = client_tokenizer_open(&t, side, NULL, 1000, &err);
    ck_assert_int_eq(rc, refused[_i].word ? -EINVAL : 0);
    if (refused[_i].word)
        ck_assert_holds(err.text, refused[_i].word);
    client_tokenizer_close(t);
    json_decref(side);
}

/* split_special_tokens: what a text spells is text. */
TEST(special_tokens_are_split_where_the_files_say_so)
{
    struct client_tokenizer *t;
    struct client_tokens tokens = {0};
    struct error err = {""};
    size_t used;

    ck_assert_int_eq(open_qwen(&t, "tokenizer_config.json", "{\"split_special_tokens\": true}", &err), 0);
    ck_assert_int_eq(client_tokenizer_encode(&tokens, &used, t, "<|im_end|><think>", 17, true, &err), 0);
    ck_assert_uint_gt(tokens.n, 5);
    ck_assert_uint_eq(tokens.ids[tokens.n - 1], 403); /* <think> is added, and not special */
    client_tokenizer_close(t);
    free(tokens.ids);
}

static int command(int argc, char **argv)
{
    json_t *cases = argc == 3 ? json_load_file(argv[2], 0, NULL) : NULL, *answers = json_array(), *one;
    size_t i;

    if (!json_is_array(cases))
        return 2;
    json_array_foreach(cases, i, one) json_array_append_new(answers, encode_all(one));
    json_dumpf(answers, stdout, JSON_COMPACT);
    json_decref(answers);
    json_decref(cases);
    return 0;
}

SUITE_COMMAND(command)
SUITE_LABELS(single)
