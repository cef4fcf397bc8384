/* Added tokens outside the model's table, such as [PAD] = 32000 of a vocabulary of 32000: a text that has one is refused,
 * and every other text is encoded. */
#include "tests/kit/fixtures/tokenizer.h"
#include "tests/kit/test.h"

#include "client/text/tokenizer.h"
#include "proto/model/model_files.h"

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
    const int rc = client_tokenizer_open(out, side, table, err);

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

    ck_assert_int_eq(client_tokenizer_open(&t, side, 400, &err), -EINVAL); /* <|begin_of_text|> is 400 */
    ck_assert_holds(err.text, "tokenizer.json: a token is added to each text", "<|begin_of_text|>");
    ck_assert_ptr_null(t);
    free(text);
    json_decref(side);
    json_decref(root);
}
