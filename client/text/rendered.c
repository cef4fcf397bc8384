/* A rendering's labels say which bytes are messages'. The tokenizer gets the runs of them, in which it takes no special
 * token, and counts those that it passed over; to parse them as well, it is called without the runs. */
#include "client/text/rendered.h"

#include <stdlib.h>

/* Where plain text begins and ends: what messages and tools say. */
static int find_plain(size_t **out, size_t *n, const struct client_rendering *text, struct error *err)
{
    size_t cap = 0;

    *out = NULL, *n = 0;
    for (size_t i = 0; i < text->n; i++) {
        const bool is = text->labels[i] & CLIENT_LABEL_UNTRUSTED;
        const bool was = i > 0 && text->labels[i - 1] & CLIENT_LABEL_UNTRUSTED;
        if (*n + 2 > cap) {
            size_t *larger = realloc(*out, (cap = 2 * cap + 16) * sizeof *larger);
            if (!larger)
                return error_memory(err);
            *out = larger;
        }
        if (is != was)
            (*out)[(*n)++] = i;
    }
    if (*n % 2 == 1)
        (*out)[(*n)++] = text->n;
    return 0;
}

int client_rendered_encode(struct client_tokens *out, size_t *tokens, uint64_t *n_spelled, struct client_tokenizer *t,
                           const struct client_rendering *text, const struct client_place *places, size_t n_places,
                           bool parse, struct error *err)
{
    struct client_marked marked = {.text = text->text, .n = text->n, .places = places, .n_places = n_places};
    size_t *plain = NULL;
    int rc = parse ? 0 : find_plain(&plain, &marked.n_plain, text, err);

    marked.plain = plain;
    if (!rc)
        rc = client_tokenizer_encode_marked(out, tokens, t, &marked, err);
    if (!rc)
        *n_spelled += client_tokenizer_n_spelled(t);
    free(plain);
    return rc;
}
