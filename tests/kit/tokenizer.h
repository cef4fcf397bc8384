/* tests/kit/tokenizer.h - the tokenizers in tests/fixtures/tokenizers, by name. */
#ifndef TESTS_KIT_TOKENIZER_H
#define TESTS_KIT_TOKENIZER_H

#include "client/text/tokenizer.h"

/* settings: its tokenizer_config.json; NULL: it has none. Undo: client_tokenizer_close. Asserts. */
struct client_tokenizer *tokenizer_open_fixture(const char *name, const char *settings);

#endif
