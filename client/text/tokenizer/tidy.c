/* clean_up_tokenization_spaces of tokenizer_config.json: the last step of a text's way out, as in transformers 5, which
 * leaves BPE out. There it is a chain of replacements, each over the whole text. Here each is a stage that holds what
 * may be the beginning of what it looks for, and passes everything else on, so that a text may come in pieces. As a
 * blank is where all of these begin and nowhere in their middle, what turns out not to be it is passed on whole. */
#include "client/text/tokenizer/tokenizer_internal.h"

#include <string.h>

static const char *const spaced[TOKENIZER_TIDY_STAGES][2] = {
    {" .", "."},     {" ?", "?"},   {" !", "!"},   {" ,", ","},     {" ' ", "'"},
    {" n't", "n't"}, {" 'm", "'m"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"},
};

static int tidy_pass(struct tokenizer_tidy *tidy, size_t stage, const char *bytes, size_t n, struct error *err)
{
    int rc = 0;

    if (stage == TOKENIZER_TIDY_STAGES)
        return client_text_add(&tidy->out, bytes, n, err);
    const char *const wanted = spaced[stage][0], *const instead = spaced[stage][1];
    uint8_t *const held = &tidy->n_held[stage];
    for (size_t i = 0; !rc && i < n; i++) {
        if (bytes[i] != wanted[*held] && *held > 0) {
            rc = tidy_pass(tidy, stage + 1, wanted, *held, err);
            *held = 0;
        }
        if (!rc && bytes[i] != wanted[*held])
            rc = tidy_pass(tidy, stage + 1, bytes + i, 1, err);
        else if (!rc && wanted[++*held] == 0) {
            *held = 0;
            rc = tidy_pass(tidy, stage + 1, instead, strlen(instead), err);
        }
    }
    return rc;
}

int tokenizer_tidy_push(struct tokenizer_tidy *tidy, const char **text, size_t *n, const char *bytes, size_t n_bytes,
                        bool last, struct error *err)
{
    tidy->out.n = 0;
    int rc = tidy_pass(tidy, 0, bytes, n_bytes, err);

    for (size_t stage = 0; !rc && last && stage < TOKENIZER_TIDY_STAGES; stage++) {
        rc = tidy_pass(tidy, stage + 1, spaced[stage][0], tidy->n_held[stage], err);
        tidy->n_held[stage] = 0;
    }
    *text = tidy->out.bytes ? tidy->out.bytes : "", *n = tidy->out.n;
    return rc;
}

bool tokenizer_tidy_is_asked(const json_t *config, bool bpe)
{
    return json_is_true(json_object_get(config, "clean_up_tokenization_spaces")) &&
           (!bpe ||
            json_is_true(
                json_object_get(config, "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output")));
}
