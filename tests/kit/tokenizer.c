#include "tests/kit/tokenizer.h"

#include "tests/kit/command.h"
#include "tests/kit/processes.h"

#include <check.h>
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
