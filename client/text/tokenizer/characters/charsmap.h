/* client/text/tokenizer/characters/charsmap.h - SentencePiece's own normal form: a table of texts and what replaces them.
 *
 * The table is a trie in a double array (Aoe 1989; as darts-clone lays it out), and behind it the replacements. In a
 * file it is base64: the trie's bytes (u32, little endian), the trie, the replacements, each ended by a zero. */
#ifndef CLIENT_TEXT_TOKENIZER_CHARACTERS_CHARSMAP_H
#define CLIENT_TEXT_TOKENIZER_CHARACTERS_CHARSMAP_H

#include "client/text/utf8.h"

#include <stddef.h>
#include <stdint.h>

struct tokenizer_charsmap;

/* Owned: tokenizer_charsmap_close. -EINVAL with a sentence; -ENOMEM. */
int tokenizer_charsmap_open(struct tokenizer_charsmap **out, const char *base64, struct error *err);
void tokenizer_charsmap_close(struct tokenizer_charsmap *map); /* NULL is safe */

/* Appends text (n bytes of valid UTF-8) with its replacements. As the package tokenizers does it, a whole grapheme of
 * fewer than six bytes is replaced where any text of the table begins it, and else each of its characters. Stops with
 * -E2BIG if that adds more than *grows bytes, which it counts down. -ENOMEM. */
int tokenizer_charsmap_apply(struct client_text *out, const struct tokenizer_charsmap *map, uint64_t *grows,
                             const char *text, size_t n, struct error *err);

#endif
