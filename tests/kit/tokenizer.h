/* tests/kit/tokenizer.h - the tokenizers in tests/fixtures/tokenizers, by name. */
#ifndef TESTS_KIT_TOKENIZER_H
#define TESTS_KIT_TOKENIZER_H

#include "client/text/tokenizer.h"

/* settings: its tokenizer_config.json; NULL: it has none. Undo: client_tokenizer_close. Asserts. */
struct client_tokenizer *tokenizer_open_fixture(const char *name, const char *settings);
/* parts3.json with this JSON text as the part of that name; NULL: it is refused, and *err, empty before, says why. Undo and
 * asserts as above. */
struct client_tokenizer *tokenizer_open_with(const char *part, const char *json, struct error *err);

#endif
