/* tests/fuzz/fuzz_tokenizer.c - a model's tokenizer, and a text for it: the text in pieces gives the tokens of the
 * whole, and tokens give valid UTF-8.
 *
 * Parts of an input: the text, then the files in the order of `names`; an empty part is an absent file. */
#include "client/text/tokenizer.h"
#include "client/text/utf8.h"
#include "proto/model/file/model_files.h"
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

static const char *const names[] = {
    "tokenizer.json",         "tokenizer_config.json",  "vocab.json", "merges.txt", "added_tokens.json",
    "generation_config.json", "special_tokens_map.json"};
enum { NAMES = sizeof names / sizeof *names, VOCABULARY = 2000 };

/* In pieces of `step` bytes. False if the tokenizer refuses the text. */
static bool encode(struct client_tokens *out, struct client_tokenizer *tokenizer, const char *text, size_t n,
                   size_t step, struct error *err)
{
    size_t at = 0, end = step < n ? step : n, used;

    *out = (struct client_tokens){0};
    for (;;) {
        const bool last = end == n;
        if (!fuzz_took(client_tokenizer_encode(out, &used, tokenizer, text + at, end - at, last, err), err))
            return false;
        fuzz_demand(used <= end - at && (!last || used == end - at));
        if (last)
            return true;
        at += used;
        end = n - end < step ? n : end + step;
    }
}

static void decode(const struct client_tokenizer *tokenizer, const struct client_tokens *tokens)
{
    struct client_decoder *decoder;
    struct error err = {""};
    const char *text;
    size_t n;

    fuzz_demand(client_decoder_open(&decoder, tokenizer, &err) == 0);
    for (size_t i = 0; i < tokens->n; i++) {
        fuzz_demand(tokens->ids[i] < client_tokenizer_n_ids(tokenizer));
        if (client_decoder_push(decoder, &text, &n, &tokens->ids[i], 1, true, i + 1 == tokens->n, &err)) {
            fuzz_demand(strstr(err.text, "its decoder Replace makes more than") != NULL);
            break;
        }
        fuzz_demand(client_utf8_whole((const uint8_t *)text, n) == n);
    }
    client_decoder_close(decoder);
}

static void use(struct client_tokenizer *tokenizer, const char *text, size_t n)
{
    struct client_tokens whole, pieces;
    struct error err = {""};

    if (encode(&whole, tokenizer, text, n, n, &err)) {
        decode(tokenizer, &whole);
        if (encode(&pieces, tokenizer, text, n, 5, &err))
            fuzz_demand(whole.n == pieces.n &&
                        (whole.n == 0 || memcmp(whole.ids, pieces.ids, whole.n * sizeof *whole.ids) == 0));
        else /* a pattern may backtrack more where the text goes on, and each piece may grow by as much as it is long */
            fuzz_demand(strstr(err.text, "tokenizer.json: ") != NULL);
        free(pieces.ids);
    }
    free(whole.ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    struct client_tokenizer *tokenizer;
    struct error err = {""};
    char *text, *part;
    size_t n_text, n_part;

    if (!fuzz_part(&text, &n_text, &bytes, &n))
        return 0;
    json_t *side = json_object();
    for (unsigned i = 0; i < NAMES && fuzz_part(&part, &n_part, &bytes, &n); i++) {
        if (n_part > 0) /* nothing is stored of what is no UTF-8 */
            json_object_set_new(side, names[i], json_stringn(part, n_part));
        free(part);
    }
    if (fuzz_took(client_tokenizer_open(&tokenizer, side, NULL, VOCABULARY, &err), &err) && tokenizer) {
        use(tokenizer, text, n_text);
        client_tokenizer_close(tokenizer);
    }
    json_decref(side);
    free(text);
    return 0;
}
