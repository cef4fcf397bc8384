/* Tokens into text: tokenizer.json's decoder, one token at a time, and what tokenizer_config.json takes from the
 * text. */
#include "client/text/tokenizer/tokenizer_internal.h"

#include "client/text/utf8.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct client_decoder {
    const struct client_tokenizer *tokenizer;
    size_t *n_seen;              /* (n_decoding) tokens that came to each step */
    size_t left;                 /* characters that a Strip after a Fuse may still take from the beginning */
    struct client_text *texts;   /* (n_decoding + 1) a token after each step; the last: what is given out */
    struct client_text held;     /* bytes of tokens such as <0xE2> */
    struct client_stream stream; /* byte-level tokens: characters from bytes */
    struct tokenizer_tidy tidy;
};

int client_decoder_open(struct client_decoder **out, const struct client_tokenizer *t, struct error *err)
{
    struct client_decoder *d = calloc(1, sizeof *d);

    *out = d;
    if (d) {
        d->tokenizer = t;
        d->n_seen = calloc(t->n_decoding + 1, sizeof *d->n_seen);
        d->texts = calloc(t->n_decoding + 1, sizeof *d->texts);
    }
    if (d && d->n_seen && d->texts)
        return 0;
    client_decoder_close(d);
    *out = NULL;
    return error_memory(err);
}

void client_decoder_close(struct client_decoder *d)
{
    if (!d)
        return;
    for (size_t i = 0; d->texts && i <= d->tokenizer->n_decoding; i++)
        free(d->texts[i].bytes);
    free(d->texts);
    free(d->n_seen);
    free(d->held.bytes);
    client_stream_free(&d->stream);
    free(d->tidy.out.bytes);
    free(d);
}

static int decode_from(struct client_decoder *d, size_t step, const char *text, size_t n, struct error *err);

/* The byte that <0xE2> stands for, or -1. */
static int byte_of(const char *text, size_t n)
{
    int byte = 0;

    if (n != 6 || memcmp(text, "<0x", 3) != 0 || text[5] != '>')
        return -1;
    for (int i = 3; i < 5; i++) {
        const char c = text[i];
        const int digit = c >= '0' && c <= '9'   ? c - '0'
                          : c >= 'A' && c <= 'F' ? c - 'A' + 10
                          : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                                 : -1;
        if (digit < 0)
            return -1;
        byte = 16 * byte + digit;
    }
    return byte;
}

/* A run of bytes that is not UTF-8 becomes one U+FFFD for each byte, as in Hugging Face's tokenizers. So it is given
 * out when it ends. */
static int decode_flush(struct client_decoder *d, size_t step, struct error *err)
{
    const char *held = d->held.bytes;
    const size_t n = d->held.n;
    int rc = 0;

    d->held.n = 0;
    if (n == 0)
        return 0;
    if (client_utf8_whole((const uint8_t *)held, n) == n)
        return decode_from(d, step + 1, held, n, err);
    for (size_t i = 0; !rc && i < n; i++)
        rc = decode_from(d, step + 1, "\xEF\xBF\xBD", 3, err);
    return rc;
}

static int decode_replace(struct client_text *out, const char *from, const char *to, const char *text, size_t n,
                          struct error *err)
{
    enum { MOST = 1 << 20 };
    const size_t n_from = strlen(from), n_to = strlen(to);
    int rc = 0;

    for (const char *end = text + n; !rc && text < end;) {
        const char *found = memmem(text, (size_t)(end - text), from, n_from);
        rc = client_text_add(out, text, (size_t)((found ? found : end) - text), err);
        if (!rc && found)
            rc = out->n + n_to > n + MOST
                     ? error_set(err, -EINVAL,
                                 "tokenizer.json: its decoder Replace makes more than %d bytes of a token", MOST)
                     : client_text_add(out, to, n_to, err);
        text = found ? found + n_from : end;
    }
    return rc;
}

/* Takes up to `most` times `what` from the beginning of text; returns how often. */
static size_t strip_start(const char **text, size_t *n, const char *what, size_t most)
{
    const size_t length = strlen(what);
    size_t times = 0;

    while (times < most && *n >= length && memcmp(*text, what, length) == 0) {
        *text += length, *n -= length;
        times++;
    }
    return times;
}

static void decode_strip_end(const char *text, size_t *n, const char *what, size_t most)
{
    const size_t length = strlen(what);

    while (most-- > 0 && *n >= length && memcmp(text + *n - length, what, length) == 0)
        *n -= length;
}

/* Undoes the blanks that WordPiece puts before punctuation and contractions. */
static int clean(struct client_text *text, struct error *err)
{
    static const char *const pairs[][2] = {
        {" .", "."},   {" ?", "?"},           {" !", "!"},   {" ,", ","},     {" ' ", "'"},    {" n't", "n't"},
        {" 'm", "'m"}, {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"},
    };
    int rc = 0;

    for (size_t i = 0; !rc && i < sizeof pairs / sizeof *pairs; i++) {
        struct client_text next = {0};
        if (!memmem(text->bytes, text->n, pairs[i][0], strlen(pairs[i][0])))
            continue;
        rc = decode_replace(&next, pairs[i][0], pairs[i][1], text->bytes, text->n, err);
        free(text->bytes);
        *text = next;
    }
    return rc;
}

/* JOIN is the same without a prefix. */
static int decode_word_piece(struct client_text *out, const struct tokenizer_decode *step, const char *text, size_t n,
                             bool first, struct error *err)
{
    const size_t prefix = step->from ? strlen(step->from) : 0;
    const bool continues = step->from && n >= prefix && memcmp(text, step->from, prefix) == 0;
    int rc = client_text_add(out, " ", !first && !continues, err);

    if (!rc && !first && continues)
        text += prefix, n -= prefix;
    if (!rc)
        rc = client_text_add(out, text, n, err);
    return rc || !step->cleans ? rc : clean(out, err);
}

/* Passes a token through the steps from `step` on. */
static int decode_from(struct client_decoder *d, size_t step, const char *text, size_t n, struct error *err)
{
    const struct client_tokenizer *t = d->tokenizer;
    struct client_text *out = &d->texts[step];
    int rc = 0;

    if (step == t->n_decoding)
        return client_text_add(out, text, n, err);
    const struct tokenizer_decode *now = &t->decoding[step];
    const bool first = d->n_seen[step]++ == 0;
    out->n = 0;
    switch (now->kind) {
    case TOKENIZER_DECODE_REPLACE:
        rc = decode_replace(out, now->from, now->to, text, n, err);
        break;
    case TOKENIZER_DECODE_FALLBACK: {
        const int byte = byte_of(text, n);
        if (byte >= 0)
            return client_text_add(&d->held, (const char[]){(char)byte}, 1, err);
        rc = decode_flush(d, step, err);
        return rc ? rc : decode_from(d, step + 1, text, n, err);
    }
    case TOKENIZER_DECODE_FUSE: /* a Strip behind it takes from the beginning of all text alone */
        if (first)
            d->left = step + 1 < t->n_decoding ? t->decoding[step + 1].start : 0;
        if (n > 0 && d->left > 0) {
            const size_t taken = strip_start(&text, &n, t->decoding[step + 1].from, d->left);
            d->left = n > 0 ? 0 : d->left - taken;
        }
        return client_text_add(&d->texts[t->n_decoding], text, n, err);
    case TOKENIZER_DECODE_STRIP:
        strip_start(&text, &n, now->from, now->start);
        decode_strip_end(text, &n, now->from, now->stop);
        return decode_from(d, step + 1, text, n, err);
    case TOKENIZER_DECODE_METASPACE:
        rc = decode_replace(out, now->from, first && now->drops ? "" : " ", text, n, err);
        break;
    case TOKENIZER_DECODE_WORDPIECE:
    case TOKENIZER_DECODE_JOIN:
        rc = decode_word_piece(out, now, text, n, first, err);
        break;
    }
    return rc ? rc : decode_from(d, step + 1, out->bytes, out->n, err);
}

/* Only bytes are held back; all other steps have given out what they got. */
static int end_steps(struct client_decoder *d, struct error *err)
{
    int rc = 0;

    for (size_t i = 0; !rc && i < d->tokenizer->n_decoding; i++) {
        if (d->tokenizer->decoding[i].kind == TOKENIZER_DECODE_FALLBACK)
            rc = decode_flush(d, i, err);
    }
    return rc;
}

/* Ids outside the vocabulary, which a model's table may have, give no text. */
static int decode_decode(struct client_decoder *d, const char **text, size_t *n, const uint32_t *ids, size_t n_ids,
                         bool special, bool last, struct error *err)
{
    const struct client_tokenizer *t = d->tokenizer;
    struct client_text *out = &d->texts[t->n_decoding];
    int rc = 0;

    out->n = 0;
    for (size_t i = 0; !rc && i < n_ids; i++) {
        const struct tokenizer_token *token = ids[i] < t->n_tokens ? &t->tokens[ids[i]] : NULL;
        if (token && token->text && (special || !token->special))
            rc = decode_from(d, 0, token->shown ? token->shown : token->text, token->shown ? token->n_shown : token->n,
                             err);
    }
    if (!rc && last)
        rc = end_steps(d, err);
    *text = out->bytes ? out->bytes : "", *n = out->n;
    if (rc || !t->byte_level)
        return rc;
    return client_stream_push(&d->stream, text, n, out->bytes, out->n, last, err);
}

int client_decoder_push(struct client_decoder *d, const char **text, size_t *n, const uint32_t *ids, size_t n_ids,
                        bool special, bool last, struct error *err)
{
    const int rc = decode_decode(d, text, n, ids, n_ids, special, last, err);

    return rc || !d->tokenizer->tidies ? rc : tokenizer_tidy_push(&d->tidy, text, n, *text, *n, last, err);
}

int client_decoder_skip(struct client_decoder *d, const uint32_t *ids, size_t n_ids, struct error *err)
{
    const char *text;
    size_t n;

    return decode_decode(d, &text, &n, ids, n_ids, false, false, err);
}

const char *client_tokenizer_decode(const struct client_tokenizer *t, uint32_t id, size_t *n)
{
    if (id >= t->n_tokens)
        return NULL;
    *n = t->tokens[id].n;
    return t->tokens[id].text;
}

void tokenizer_decoding_free(struct client_tokenizer *t)
{
    for (size_t i = 0; i < t->n_decoding; i++) {
        free(t->decoding[i].from);
        free(t->decoding[i].to);
    }
    free(t->decoding);
}

/* ---- tokenizer.json's decoder ---- */

enum { MAX_DECODING = 16 };

/* The step is counted before its texts are copied, so that tokenizer_decoding_free frees what there is. */
static int decode_add_step(struct client_tokenizer *t, struct tokenizer_decode step, const char *from, const char *to,
                           struct error *err)
{
    struct tokenizer_decode *larger = realloc(t->decoding, (t->n_decoding + 1) * sizeof *larger);

    if (!larger)
        return error_memory(err);
    t->decoding = larger;
    step.from = from ? strdup(from) : NULL;
    step.to = to ? strdup(to) : NULL;
    t->decoding[t->n_decoding++] = step;
    return (from && !step.from) || (to && !step.to) ? error_memory(err) : 0;
}

static const char *decode_text_of(const json_t *step, const char *key)
{
    const char *text = json_string_value(json_object_get(step, key));
    return text && *text ? text : NULL;
}

static int decode_read_replace(struct client_tokenizer *t, const json_t *step, struct error *err)
{
    const char *from = decode_text_of(json_object_get(step, "pattern"), "String");
    const char *to = json_string_value(json_object_get(step, "content"));

    if (!from || !to)
        return error_set(err, -EINVAL, "tokenizer.json: its decoder Replace does not replace one text by another");
    return decode_add_step(t, (struct tokenizer_decode){.kind = TOKENIZER_DECODE_REPLACE}, from, to, err);
}

static int read_strip(struct client_tokenizer *t, const json_t *step, struct error *err)
{
    const char *content = decode_text_of(step, "content");
    const json_t *start = json_object_get(step, "start"), *stop = json_object_get(step, "stop");

    if (!tokenizer_is_character(content) || !json_is_integer(start) || json_integer_value(start) < 0 ||
        !json_is_integer(stop) || json_integer_value(stop) < 0)
        return error_set(err, -EINVAL,
                         "tokenizer.json: its decoder Strip must have a content of one character, and a start and a "
                         "stop of 0 or more");
    return decode_add_step(t,
                           (struct tokenizer_decode){.kind = TOKENIZER_DECODE_STRIP,
                                                     .start = (size_t)json_integer_value(start),
                                                     .stop = (size_t)json_integer_value(stop)},
                           content, NULL, err);
}

static int decode_read_metaspace(struct client_tokenizer *t, const json_t *step, struct error *err)
{
    struct tokenizer_metaspace metaspace;
    const int rc = tokenizer_read_metaspace(&metaspace, step, "decoder", err);

    return rc ? rc
              : decode_add_step(t,
                                (struct tokenizer_decode){.kind = TOKENIZER_DECODE_METASPACE,
                                                          .drops = !metaspace.never},
                                metaspace.mark, NULL, err);
}

/* Fuse must come last but for Strip: each token is given out as it comes, so a step that needs all text at once has no
 * place behind it. */
static int decode_read_step(struct client_tokenizer *t, const json_t *step, struct error *err)
{
    const char *type = tokenizer_type(step);
    const enum tokenizer_decode_kind last =
        t->n_decoding > 0 ? t->decoding[t->n_decoding - 1].kind : TOKENIZER_DECODE_JOIN;
    const bool strip = strcmp(type, "Strip") == 0;

    if (strcmp(type, "ByteLevel") == 0) {
        t->decodes_bytes = true;
        return 0;
    }
    for (size_t i = 0; i < t->n_decoding; i++) {
        const bool fused = t->decoding[i].kind == TOKENIZER_DECODE_FUSE;
        if (fused && !(strip && last == TOKENIZER_DECODE_FUSE && tokenizer_is_nothing(json_object_get(step, "stop"))))
            return error_set(err, -EINVAL, "tokenizer.json: its decoder has %.40s after Fuse, which is not supported",
                             type);
        if (t->decoding[i].kind == TOKENIZER_DECODE_FALLBACK && strcmp(type, "ByteFallback") == 0)
            return error_set(err, -EINVAL,
                             "tokenizer.json: its decoder has ByteFallback twice, which is not supported");
    }
    if (t->n_decoding == MAX_DECODING)
        return error_set(err, -EINVAL, "tokenizer.json: its decoder has more than %d steps", MAX_DECODING);
    if (strip)
        return read_strip(t, step, err);
    if (strcmp(type, "Replace") == 0)
        return decode_read_replace(t, step, err);
    if (strcmp(type, "ByteFallback") == 0)
        return decode_add_step(t, (struct tokenizer_decode){.kind = TOKENIZER_DECODE_FALLBACK}, NULL, NULL, err);
    if (strcmp(type, "Fuse") == 0)
        return decode_add_step(t, (struct tokenizer_decode){.kind = TOKENIZER_DECODE_FUSE}, NULL, NULL, err);
    if (strcmp(type, "Metaspace") == 0)
        return decode_read_metaspace(t, step, err);
    if (strcmp(type, "WordPiece") == 0)
        return decode_add_step(t,
                               (struct tokenizer_decode){.kind = TOKENIZER_DECODE_WORDPIECE,
                                                         .cleans = json_is_true(json_object_get(step, "cleanup"))},
                               decode_text_of(step, "prefix"), NULL, err);
    return tokenizer_refuse(err, "decoder", type);
}

/* Byte-level tokens are decoded as bytes; a decoder that says something else would take their letters for text. */
int tokenizer_read_decoder(struct client_tokenizer *t, const json_t *decoder, struct error *err)
{
    int rc = tokenizer_read_part(t, decoder, "decoder", "decoders", decode_read_step, err);
    const bool bytes = t->decodes_bytes;

    if (!rc && (!decoder || json_is_null(decoder)) && !t->byte_level)
        rc = decode_add_step(t, (struct tokenizer_decode){.kind = TOKENIZER_DECODE_JOIN}, NULL, NULL, err);
    if (rc)
        return rc;
    if (bytes != t->byte_level && (bytes || t->n_decoding > 0))
        return error_set(err, -EINVAL, "tokenizer.json: its decoder is %sByteLevel, and its pre-tokenizer is%s",
                         bytes ? "" : "not ", bytes ? " not" : "");
    if (bytes && t->n_decoding > 0)
        return error_set(err, -EINVAL, "tokenizer.json: its decoder has more than ByteLevel, which is not supported");
    return 0;
}
