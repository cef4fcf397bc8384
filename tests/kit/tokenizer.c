#include "tests/kit/tokenizer.h"

#include "tests/kit/command.h"
#include "tests/kit/processes.h"

#include <check.h>
#include <errno.h>
#include <jansson.h>
#include <stdlib.h>

struct client_tokenizer *tokenizer_open_fixture(const char *name, const char *settings)
{
    char *text = processes_read(print(TESTS_DIR "/fixtures/tokenizers/%s.json", name));
    json_t *side = json_pack("{s:s, s:s*}", "tokenizer.json", text, "tokenizer_config.json", settings);
    struct client_tokenizer *t;
    struct error err = {""};

    ck_assert_msg(client_tokenizer_open(&t, side, 4096, &err) == 0, "%s: %s", name, err.text);
    ck_assert_ptr_nonnull(t);
    json_decref(side);
    free(text);
    return t;
}

struct client_tokenizer *tokenizer_open_with(const char *part, const char *json, struct error *err)
{
    json_t *root = json_load_file(TESTS_DIR "/fixtures/tokenizers/parts3.json", 0, NULL),
           *value = json_loads(json, 0, NULL);
    struct client_tokenizer *t = NULL;

    ck_assert_ptr_nonnull(value);
    json_object_set_new(root, part, value);
    char *file = json_dumps(root, 0);
    json_t *side = json_pack("{ss}", "tokenizer.json", file);
    ck_assert_int_eq(client_tokenizer_open(&t, side, 4096, err) ? -EINVAL : 0, *err->text ? -EINVAL : 0);
    free(file);
    json_decref(side);
    json_decref(root);
    return t;
}
