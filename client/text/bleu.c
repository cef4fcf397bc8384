/* The chain is written as sacrebleu's expressions are, one pass each, not as one clever pass: what a later one finds
 * depends on the blanks that an earlier one put there. Bytes suffice, as no expression has a character beyond ASCII,
 * and a byte of one is "not a digit" wherever the character is. n-grams are numbered by the order before: (n-1)-gram
 * and last token, so each comparison takes two numbers, however long the n-gram. */
#include "client/text/bleu.h"

#include "client/text/tokenizer/characters/unicode.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- Tokenizer 13a: a chain of substitutions in sacrebleu's order; each reads what the one before has written ---- */

/* Python's str.isspace, which also ends tokens in str.split: White_Space and the four separators of ASCII. */
static bool is_space(uint32_t c)
{
    return tokenizer_is_blank(c) || (c >= 0x1C && c <= 0x1F);
}

static size_t bleu_strip_end(const char *text, size_t n)
{
    while (n > 0) {
        const size_t last = client_utf8_before(text, 0, n);
        unsigned length;
        if (!is_space(tokenizer_character(text + last, &length)))
            break;
        n = last;
    }
    return n;
}

/* Replaces old by new, which is not longer, from left to right. What a replacement forms is not replaced again. */
static void bleu_replace(struct client_text *text, const char *old, const char *new)
{
    const size_t n_old = strlen(old), n_new = strlen(new);
    size_t n = 0;

    for (size_t i = 0; i < text->n;) {
        if (text->n - i >= n_old && memcmp(text->bytes + i, old, n_old) == 0) {
            memcpy(text->bytes + n, new, n_new);
            n += n_new, i += n_old;
        } else {
            text->bytes[n++] = text->bytes[i++];
        }
    }
    text->n = n;
}

static void bleu_put(struct client_text *text, char c)
{
    text->bytes[text->n++] = c;
}

static bool bleu_is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool is_not_digit(char c)
{
    return !bleu_is_digit(c);
}

static bool is_point(char c)
{
    return c == '.' || c == ',';
}

static bool is_hyphen(char c)
{
    return c == '-';
}

/* ASCII's punctuation without ' , - and the period. sacrebleu's expression also has the blank, to no effect. */
static bool is_symbol(char c)
{
    return (c >= '!' && c <= '&') || (c >= '(' && c <= '+') || c == '/' || (c >= ':' && c <= '@') ||
           (c >= '[' && c <= '`') || (c >= '{' && c <= '~');
}

static int separate_symbols(struct client_text *out, const struct client_text *text, struct error *err)
{
    out->n = 0;
    const int rc = client_text_reserve(out, 3 * text->n, err);

    for (size_t i = 0; !rc && i < text->n; i++) {
        const bool symbol = is_symbol(text->bytes[i]);
        if (symbol)
            bleu_put(out, ' ');
        bleu_put(out, text->bytes[i]);
        if (symbol)
            bleu_put(out, ' ');
    }
    return rc;
}

/* Two neighbours, one of which becomes a token of its own. Bytes of characters beyond ASCII are not digits. */
struct pair {
    bool (*left)(char), (*right)(char);
    bool isolates_right; /* else left */
};

static const struct pair pairs[] = {
    {is_not_digit, is_point, true},   /* ([^0-9])([\.,]) becomes "\1 \2 " */
    {is_point, is_not_digit, false},  /* ([\.,])([^0-9]) becomes " \1 \2" */
    {bleu_is_digit, is_hyphen, true}, /* ([0-9])(-) becomes "\1 \2 " */
};

/* As of a regular expression, matches do not overlap: the right character of one is not the left one of the next. */
static int separate_pairs(struct client_text *out, const struct client_text *text, const struct pair *pair,
                          struct error *err)
{
    out->n = 0;
    const int rc = client_text_reserve(out, 2 * text->n, err);

    for (size_t i = 0; !rc && i < text->n; i++) {
        if (i + 1 == text->n || !pair->left(text->bytes[i]) || !pair->right(text->bytes[i + 1])) {
            bleu_put(out, text->bytes[i]);
            continue;
        }
        if (!pair->isolates_right)
            bleu_put(out, ' ');
        bleu_put(out, text->bytes[i++]);
        bleu_put(out, ' ');
        bleu_put(out, text->bytes[i]);
        if (pair->isolates_right)
            bleu_put(out, ' ');
    }
    return rc;
}

/* Leaves one blank between tokens, and none around them. */
static void bleu_join(struct client_text *text)
{
    size_t n = 0;
    unsigned length;

    for (size_t i = 0; i < text->n; i += length) {
        if (!is_space(tokenizer_character(text->bytes + i, &length))) {
            memmove(text->bytes + n, text->bytes + i, length);
            n += length;
        } else if (n > 0 && text->bytes[n - 1] != ' ') {
            text->bytes[n++] = ' ';
        }
    }
    text->n = n > 0 && text->bytes[n - 1] == ' ' ? n - 1 : n;
}

static void swap(struct client_text *a, struct client_text *b)
{
    const struct client_text held = *a;

    *a = *b;
    *b = held;
}

int client_bleu_tokens(struct client_text *out, const char *text, size_t n, struct error *err)
{
    const size_t whole = client_utf8_whole((const uint8_t *)text, n);
    struct client_text before = {0};
    int rc;

    if (whole < n)
        return error_set(err, -EINVAL, "not UTF-8 text at byte %zu (0x%02X)", whole, (uint8_t)text[whole]);
    out->n = 0;
    if ((rc = client_text_add(out, " ", 1, err)) || (rc = client_text_add(out, text, bleu_strip_end(text, n), err)) ||
        (rc = client_text_add(out, " ", 1, err)))
        return rc;
    bleu_replace(out, "<skipped>", "");
    bleu_replace(out, "-\n", ""); /* sacrebleu now turns "\n" into a blank; no later step tells them apart */
    bleu_replace(out, "&quot;", "\"");
    bleu_replace(out, "&amp;", "&");
    bleu_replace(out, "&lt;", "<");
    bleu_replace(out, "&gt;", ">");
    swap(out, &before);
    rc = separate_symbols(out, &before, err);
    for (size_t i = 0; !rc && i < sizeof pairs / sizeof *pairs; i++) {
        swap(out, &before);
        rc = separate_pairs(out, &before, &pairs[i], err);
    }
    if (!rc)
        bleu_join(out);
    free(before.bytes);
    return rc;
}

/* ---- Counts ---- */

struct token {
    const char *bytes; /* (n) */
    size_t n, at;      /* at: its position in the segment */
};

/* An n-gram, by the numbers of its first n-1 tokens and of its last one. */
struct gram {
    size_t head, last;
    size_t at; /* position of its first token */
};

/* A hypothesis and its reference: their tokens have positions 0 .. n_hypothesis-1 and n_hypothesis .. n-1. Equal tokens
 * have equal numbers, and so do equal n-grams. */
struct segment {
    struct client_text hypothesis, reference; /* tokens with a blank between neighbours */
    size_t n_hypothesis, n;
    struct token *tokens; /* (n) */
    struct gram *grams;   /* (n) room for the n-grams of one order */
    size_t *numbers;      /* (n) of the token at each position */
    size_t *heads;        /* (n) of the n-gram of the order before that begins at each position; at first all 0 */
};

static size_t count_tokens(const struct client_text *text)
{
    size_t n = text->n > 0;

    for (size_t i = 0; i < text->n; i++)
        n += text->bytes[i] == ' ';
    return n;
}

static size_t bleu_cut(struct token *tokens, size_t at, const struct client_text *text)
{
    for (size_t i = 0, end; i < text->n; i = end + 1) {
        for (end = i; end < text->n && text->bytes[end] != ' ';)
            end++;
        tokens[at] = (struct token){.bytes = text->bytes + i, .n = end - i, .at = at};
        at++;
    }
    return at;
}

/* Any order will do that brings equal ones together. */
static int compare_tokens(const void *a, const void *b)
{
    const struct token *x = a, *y = b;

    if (x->n != y->n)
        return x->n < y->n ? -1 : 1;
    return memcmp(x->bytes, y->bytes, x->n);
}

static int compare_grams(const void *a, const void *b)
{
    const struct gram *x = a, *y = b;

    if (x->head != y->head)
        return x->head < y->head ? -1 : 1;
    return x->last < y->last ? -1 : x->last > y->last;
}

/* A token's number is the place of the first equal one in their order. */
static void bleu_number_tokens(struct segment *s)
{
    bleu_cut(s->tokens, bleu_cut(s->tokens, 0, &s->hypothesis), &s->reference);
    qsort(s->tokens, s->n, sizeof *s->tokens, compare_tokens);
    for (size_t i = 0, first = 0; i < s->n; i++) {
        if (compare_tokens(&s->tokens[first], &s->tokens[i]) != 0)
            first = i;
        s->numbers[s->tokens[i].at] = first;
    }
}

/* Collects the n-grams of n tokens; none reaches from the hypothesis into the reference. */
static size_t collect_grams(struct segment *s, size_t n)
{
    size_t n_grams = 0;

    for (size_t at = 0; at < s->n; at++) {
        const size_t end = at < s->n_hypothesis ? s->n_hypothesis : s->n;
        if (end - at >= n)
            s->grams[n_grams++] = (struct gram){.head = s->heads[at], .last = s->numbers[at + n - 1], .at = at};
    }
    return n_grams;
}

/* Counts the n-grams of n tokens that match, and numbers them for the next order. Call it for n = 1, 2, ... */
static size_t match_grams(struct segment *s, size_t n)
{
    const size_t n_grams = collect_grams(s, n);
    size_t n_matches = 0;

    qsort(s->grams, n_grams, sizeof *s->grams, compare_grams);
    for (size_t first = 0, end; first < n_grams; first = end) {
        size_t n_hypothesis = 0;
        for (end = first; end < n_grams && compare_grams(&s->grams[first], &s->grams[end]) == 0; end++) {
            n_hypothesis += s->grams[end].at < s->n_hypothesis;
            s->heads[s->grams[end].at] = first;
        }
        const size_t n_reference = end - first - n_hypothesis;
        n_matches += n_hypothesis < n_reference ? n_hypothesis : n_reference;
    }
    return n_matches;
}

static int segment_init(struct segment *s, const char *hypothesis, size_t hypothesis_bytes, const char *reference,
                        size_t reference_bytes, struct error *err)
{
    *s = (struct segment){0};
    int rc = client_bleu_tokens(&s->hypothesis, hypothesis, hypothesis_bytes, err);
    if (rc) {
        error_prefix(err, "the hypothesis");
        return rc;
    }
    rc = client_bleu_tokens(&s->reference, reference, reference_bytes, err);
    if (rc) {
        error_prefix(err, "the reference");
        return rc;
    }
    s->n_hypothesis = count_tokens(&s->hypothesis);
    s->n = s->n_hypothesis + count_tokens(&s->reference);
    s->tokens = calloc(s->n + 1, sizeof *s->tokens); /* + 1: calloc may give NULL for nothing */
    s->grams = calloc(s->n + 1, sizeof *s->grams);
    s->numbers = calloc(s->n + 1, sizeof *s->numbers);
    s->heads = calloc(s->n + 1, sizeof *s->heads);
    if (!s->tokens || !s->grams || !s->numbers || !s->heads)
        return error_set(err, -ENOMEM, "no memory for a segment of %zu tokens", s->n);
    return 0;
}

static void segment_free(struct segment *s)
{
    free(s->hypothesis.bytes);
    free(s->reference.bytes);
    free(s->tokens);
    free(s->grams);
    free(s->numbers);
    free(s->heads);
}

int client_bleu_add(struct client_bleu *bleu, const char *hypothesis, size_t hypothesis_bytes, const char *reference,
                    size_t reference_bytes, struct error *err)
{
    struct segment s;
    const int rc = segment_init(&s, hypothesis, hypothesis_bytes, reference, reference_bytes, err);

    if (!rc) {
        bleu_number_tokens(&s);
        for (size_t n = 1; n <= CLIENT_BLEU_ORDERS; n++) {
            bleu->n_grams[n - 1] += s.n_hypothesis >= n ? s.n_hypothesis - n + 1 : 0;
            bleu->n_matches[n - 1] += match_grams(&s, n);
        }
        bleu->n_reference_tokens += s.n - s.n_hypothesis;
    }
    segment_free(&s);
    return rc;
}

/* ---- The score ---- */

/* Papineni et al., ACL 2002, section 2.2.2: a hypothesis that is shorter than its reference could be precise for
 * nothing. */
static double brevity_penalty(double n_hypothesis, double n_reference)
{
    if (n_hypothesis >= n_reference)
        return 1;
    return n_hypothesis > 0 ? exp(1 - n_reference / n_hypothesis) : 0;
}

/* Smoothing is sacrebleu's "exp": each order without a match counts half as much as the one before. Orders that no
 * hypothesis is long enough for give 0. */
void client_bleu_score(struct client_bleu_score *out, const struct client_bleu *bleu)
{
    double smoothing = 1, logs = 0;

    *out = (struct client_bleu_score){.n_hypothesis_tokens = bleu->n_grams[0],
                                      .n_reference_tokens = bleu->n_reference_tokens};
    out->brevity_penalty = brevity_penalty((double)bleu->n_grams[0], (double)bleu->n_reference_tokens);
    if (bleu->n_matches[0] == 0) /* then no longer n-gram matches either */
        return;
    for (size_t i = 0; i < CLIENT_BLEU_ORDERS && bleu->n_grams[i] > 0; i++) {
        if (bleu->n_matches[i] == 0)
            smoothing *= 2;
        out->precisions[i] =
            100 * (bleu->n_matches[i] > 0 ? (double)bleu->n_matches[i] : 1 / smoothing) / (double)bleu->n_grams[i];
        logs += log(out->precisions[i]);
    }
    if (bleu->n_grams[CLIENT_BLEU_ORDERS - 1] > 0)
        out->score = out->brevity_penalty * exp(logs / CLIENT_BLEU_ORDERS);
}
