/* WordPiece: a word is the longest token that it begins with, then the longest that continues it, and so on; a word for
 * which that fails is unknown as a whole.
 *
 * Source: Schuster and Nakajima 2012; the greedy form is BERT's, arXiv:1810.04805. */
#include "client/text/tokenizer/tokenizer_internal.h"

#include "client/text/utf8.h"

#include <errno.h>
#include <string.h>

/* Length of the longest token at `at` of the word; 0: there is none. buffer holds what continuing tokens begin with,
 * and then the word from `at` on. */
static size_t longest(uint32_t *id, const struct client_tokenizer *t, const struct client_text *buffer, size_t prefix,
                      size_t at)
{
    const char *text = at > 0 ? buffer->bytes : buffer->bytes + prefix;
    const size_t before = at > 0 ? prefix : 0;

    for (size_t n = buffer->n - prefix; n > 0; n--) {
        if (n < buffer->n - prefix && ((uint8_t)buffer->bytes[prefix + n] & 0xC0) == 0x80)
            continue; /* inside a character */
        *id = tokenizer_find_id(t, text, before + n);
        if (*id != CLIENT_NO_TOKEN)
            return n;
    }
    return 0;
}

int tokenizer_word_piece(size_t *n_ids, struct client_tokenizer *t, const char *word, size_t n, struct error *err)
{
    struct client_text *buffer = &t->work.between[0];
    const size_t prefix = strlen(t->continuing);
    uint32_t *ids, id;
    int rc = tokenizer_work_reserve(&t->work, n, err);

    ids = t->work.ids;
    *n_ids = 0;
    bool known = client_utf8_count(word, n) <= t->most_characters;
    for (size_t at = 0, length; !rc && known && at < n; at += length) {
        buffer->n = 0;
        rc = tokenizer_matcher_spend(&t->work.matcher, tokenizer_lookups(n - at), "long words", err);
        if (!rc)
            rc = client_text_add(buffer, t->continuing, prefix, err);
        if (!rc)
            rc = client_text_add(buffer, word + at, n - at, err);
        length = rc ? 0 : longest(&id, t, buffer, prefix, at);
        known = length > 0;
        if (known)
            ids[(*n_ids)++] = id;
    }
    if (!rc && !known) {
        ids[0] = t->unknown;
        *n_ids = 1;
    }
    return rc;
}
