/* Added tokens outside the model's table, such as [PAD] = 32000 of a vocabulary of 32000: a text that has one is
 * refused, and every other text is encoded. And begin and end tokens that a text has already. */
#include "tests/kit/fixtures/tokenizer.h"
#include "tests/kit/test.h"

#include "client/text/tokenizer.h"
#include "proto/model/file/model_files.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

SUITE_LABELS(single)

/* qwen.json has 400 tokens of BPE, and behind them <|endoftext|>, <|im_start|>, <|im_end|>, <think>, </think> and
 * <tool_call>: the last three are outside a table of 403. */
enum { TABLE = 403, THINK = 403 };

static int open_with_table(struct client_tokenizer **out, const char *settings, uint32_t table, struct error *err)
{
    json_t *root = json_load_file(TESTS_DIR "/fixtures/tokenizers/qwen.json", 0, NULL);
    char *text = json_dumps(root, 0);
    json_t *side = json_pack("{s:s, s:s*}", "tokenizer.json", text, "tokenizer_config.json", settings);
    const int rc = client_tokenizer_open(out, side, NULL, table, err);

    json_decref(side);
    json_decref(root);
    free(text);
    return rc;
}

static int encode(struct client_tokens *out, size_t *used, struct client_tokenizer *t, const char *text,
                  struct error *err)
{
    out->n = 0;
    return client_tokenizer_encode(out, used, t, text, strlen(text), true, err);
}

TEST(a_token_outside_the_table_is_refused_where_a_text_has_it)
{
    struct client_tokens tokens = {0};
    struct client_tokenizer *t;
    struct error err = {""};
    size_t used;

    ck_assert_msg(open_with_table(&t, NULL, TABLE, &err) == 0, "%s", err.text);
    ck_assert_int_eq(encode(&tokens, &used, t, "The <|im_end|> quick <thinks>", &err), 0);
    ck_assert_uint_gt(tokens.n, 0);
    ck_assert_uint_eq(client_tokenizer_n_ids(t), TABLE);
    ck_assert_int_eq(encode(&tokens, &used, t, "The quick <think> fox", &err), -EINVAL);
    ck_assert_str_eq(err.text, "the token <think> has the id 403, outside the model's table of 403 tokens: leave it "
                               "out, or give a model whose table has it");
    ck_assert_uint_eq(used, 10);                                       /* where it begins */
    ck_assert_int_eq(encode(&tokens, &used, t, "The quick", &err), 0); /* a new text */
    client_tokenizer_close(t);
    ck_assert_int_eq(open_with_table(&t, NULL, TABLE + 1, &err), 0);
    ck_assert_int_eq(encode(&tokens, &used, t, "<think>", &err), 0);
    ck_assert_uint_eq(tokens.n, 1);
    ck_assert_uint_eq(tokens.ids[0], THINK);
    client_tokenizer_close(t);
    free(tokens.ids);
}

TEST(an_end_token_outside_the_table_is_named_before_it_is_added)
{
    struct client_tokenizer *t;
    struct error err = {""};

    ck_assert_int_eq(open_with_table(&t, "{\"eos_token\": \"<think>\"}", TABLE, &err), 0);
    ck_assert_uint_eq(client_tokenizer_end(t), THINK);
    ck_assert_int_eq(client_tokenizer_check(t, client_tokenizer_end(t), &err), -EINVAL);
    ck_assert_holds(err.text, "<think>", "403");
    ck_assert_int_eq(client_tokenizer_check(t, THINK - 1, &err), 0);
    client_tokenizer_close(t);
}

TEST(a_post_processor_that_adds_one_to_each_text_is_refused)
{
    struct error err = {""};
    json_t *root = json_load_file(TESTS_DIR "/fixtures/tokenizers/llama3.json", 0, NULL);
    char *text = json_dumps(root, 0);
    json_t *side = json_pack("{ss}", "tokenizer.json", text);
    struct client_tokenizer *t;

    ck_assert_int_eq(client_tokenizer_open(&t, side, NULL, 400, &err), -EINVAL); /* <|begin_of_text|> is 400 */
    ck_assert_holds(err.text, "tokenizer.json: a token is added to each text", "<|begin_of_text|>");
    ck_assert_ptr_null(t);
    free(text);
    json_decref(side);
    json_decref(root);
}

/* ---- Begin tokens ---- */

/* llama3.json puts <|begin_of_text|> before each text, which is 400; bert.json [CLS], which is 2. */
static const struct {
    const char *tokenizer, *text, *alone; /* alone: what is left to encode behind the begin token */
} led[] = {
    {"llama3", "The quick", "The quick"},
    {"llama3", "<|begin_of_text|>The quick", "The quick"},
    {"llama3", "<|begin_of_text|><|begin_of_text|>The", "<|begin_of_text|>The"}, /* the writer's own second one */
    {"llama3", " <|begin_of_text|>The", " <|begin_of_text|>The"},
    {"llama3", "<|begin_of_text|>", ""},
    {"llama3", "<|begin_of_text", "<|begin_of_text"},
    {"llama3", "", ""},
    {"bert", "[CLS]the fox [CLS] over", "the fox [CLS] over"},
    {"mistral", "<s>the fox", NULL},
    {"mistral", "<s> the fox", NULL},                 /* no mark before the blank, as behind any token */
    {"qwen", "<|im_start|>user", "<|im_start|>user"}, /* begins with nothing */
};

/* In pieces of `step` bytes. */
static struct client_tokens encode_led(struct client_tokenizer *t, const char *text, size_t step, bool leads)
{
    struct client_tokens tokens = {0};
    const size_t n = strlen(text);
    size_t at = 0, end = step < n ? step : n, used;

    if (leads)
        ck_assert_int_eq(client_tokenizer_lead(&tokens, t, NULL), 0);
    for (;; end = n - end < step ? n : end + step) {
        ck_assert_int_eq(client_tokenizer_encode(&tokens, &used, t, text + at, end - at, end == n, NULL), 0);
        at += used;
        if (end == n)
            return tokens;
    }
}

TEST_EACH(a_begin_token_that_the_text_has_is_not_made_twice, COUNT(led))
{
    struct client_tokenizer *t = tokenizer_open_fixture(led[_i].tokenizer, NULL);
    const char *alone = led[_i].alone;
    size_t n;
    const uint32_t *begins = client_tokenizer_begins(t, &n);
    struct client_tokens want = {0}, rest = encode_led(t, alone ? alone : led[_i].text, SIZE_MAX, false);

    if (alone) /* else the text as it is has the begin token once */
        ck_assert_int_eq(client_tokens_add(&want, begins, n, NULL), 0);
    ck_assert_int_eq(client_tokens_add(&want, rest.ids, rest.n, NULL), 0);
    for (size_t step = 1; step < 60; step += step < 20 ? 1 : 13) {
        struct client_tokens got = encode_led(t, led[_i].text, step, true);
        ck_assert_uint_eq(got.n, want.n);
        ck_assert(want.n == 0 || memcmp(got.ids, want.ids, want.n * sizeof *want.ids) == 0);
        free(got.ids);
    }
    free(want.ids);
    free(rest.ids);
    client_tokenizer_close(t);
}

/* ---- End tokens ---- */

/* bert.json puts [SEP] behind each text, t5.json </s>; qwen.json nothing, and <|endoftext|> ends a text. */
static const struct {
    const char *tokenizer, *text, *alone; /* alone: what comes before the one end token */
} trailed[] = {
    {"bert", "the fox", "the fox"},
    {"bert", "the fox[SEP]", "the fox"},
    {"bert", "the [SEP] fox", "the [SEP] fox"},
    {"bert", "[SEP][SEP]", "[SEP]"}, /* the writer's own second one */
    {"bert", "", ""},
    {"t5", "the fox</s>", "the fox"},
    {"qwen", "fox<|endoftext|>", "fox"},
    {"qwen", "<|endoftext|>", ""},
    {"qwen", "fox<|endoftext|> ", "fox<|endoftext|> "},
    {"qwen", "fox<|im_end|>", "fox<|im_end|>"},
    {"qwen", "fox<|endoftext", "fox<|endoftext"},
};

/* As TRL, which appends eos_token to a text that does not end with it. */
TEST_EACH(an_end_token_that_the_text_has_is_not_made_twice, COUNT(trailed))
{
    struct client_tokenizer *t = tokenizer_open_fixture(trailed[_i].tokenizer, NULL);
    size_t n;
    const uint32_t *ends = client_tokenizer_ends(t, &n), end = n > 0 ? ends[n - 1] : client_tokenizer_end(t);
    struct client_tokens before = encode_led(t, "x</s><|endoftext|>[SEP]", SIZE_MAX, true), /* not this text's */
        want = encode_led(t, trailed[_i].alone, SIZE_MAX, true);

    ck_assert_int_eq(client_tokens_add(&want, &end, 1, NULL), 0);
    for (size_t step = 1; step < 60; step += step < 20 ? 1 : 13) {
        struct client_tokens got = encode_led(t, trailed[_i].text, step, true);
        ck_assert_int_eq(client_tokenizer_trail(&got, t, end, NULL), 0);
        ck_assert_uint_eq(got.n, want.n);
        ck_assert_int_eq(memcmp(got.ids, want.ids, want.n * sizeof *want.ids), 0);
        free(got.ids);
    }
    free(before.ids);
    free(want.ids);
    client_tokenizer_close(t);
}
