/* A template's tokens, and the white space between its tags, as Jinja's lexer has them. */
#include "client/text/template/template_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

size_t template_blank(const char *text)
{
    unsigned length;
    const uint32_t c = tokenizer_character(text, &length);

    return tokenizer_is_blank(c) || (c >= 28 && c <= 31) ? length : 0;
}

void template_strip_start(const char **text, size_t *n)
{
    for (size_t length; *n > 0 && (length = template_blank(*text)) > 0;)
        *text += length, *n -= length;
}

void template_strip_end(const char *text, size_t *n)
{
    while (*n > 0) {
        const size_t from = client_utf8_before(text, 0, *n);
        if (template_blank(text + from) == 0)
            return;
        *n = from;
    }
}

static int fail(const struct client_template *t, const char *at, const char *sentence, struct error *err)
{
    struct template_run r = {.template = t, .err = err};
    const struct template_token token = {.text = at};

    template_fail(&r, &token, "%s", sentence);
    return r.rc;
}

static int add(struct client_template *t, enum template_kind kind, const char *text, size_t n, json_t *value,
               struct error *err)
{
    if (t->n == t->cap) {
        const size_t cap = 2 * t->cap + 64;
        struct template_token *larger = realloc(t->tokens, cap * sizeof *larger);
        if (!larger) {
            json_decref(value);
            return error_set(err, -ENOMEM, "out of memory");
        }
        t->tokens = larger, t->cap = cap;
    }
    t->tokens[t->n++] = (struct template_token){kind, text, n, value};
    return 0;
}

/* What \x41, \u0041 or \U00000041 stands for; at is after the letter. False: no such character. */
static bool read_code(uint32_t *out, const char **at, const char *end, char letter)
{
    static const char hex[] = "0123456789abcdefABCDEF";
    const int digits = letter == 'x' ? 2 : letter == 'u' ? 4 : 8;
    uint32_t c = 0;

    for (int i = 0; i < digits; i++, ++*at) {
        const char *found = *at < end ? memchr(hex, **at, sizeof hex - 1) : NULL;
        if (!found || c > 0x10FFFF)
            return false;
        c = 16 * c + (uint32_t)(found - hex) - (found - hex > 15 ? 6 : 0);
    }
    *out = c;
    return c <= 0x10FFFF && (c < 0xD800 || c > 0xDFFF);
}

/* Reads a string in quotes, with Python's escapes. *at is at the quote. */
static int read_string(struct client_template *t, const char **at, const char *end, struct error *err)
{
    static const char letters[] = "abfnrtv\\'\"", values[] = "\a\b\f\n\r\t\v\\'\"";
    const char *begin = *at, quote = *begin;
    char *text = malloc((size_t)(end - begin) + 4);
    size_t n = 0;

    if (!text)
        return error_set(err, -ENOMEM, "out of memory");
    for (++*at; *at < end && **at != quote;) {
        const char c = *(*at)++, *letter;
        uint32_t code;
        if (c != '\\' || *at == end) {
            text[n++] = c;
            continue;
        }
        const char escaped = *(*at)++;
        if (escaped == 'x' || escaped == 'u' || escaped == 'U') {
            if (!read_code(&code, at, end, escaped)) {
                free(text);
                return fail(t, begin, "an escape in this text is not a character", err);
            }
            n += tokenizer_put_character(text + n, code);
        } else if ((letter = memchr(letters, escaped, sizeof letters - 1)) != NULL) {
            text[n++] = values[letter - letters];
        } else if (escaped >= '0' && escaped <= '7') {
            free(text);
            return fail(t, begin, "octal escapes in a text are not supported", err);
        } else if (escaped != '\n') { /* a backslash at a line's end continues it; others stand for themselves */
            text[n++] = '\\', text[n++] = escaped;
        }
    }
    if (*at == end) {
        free(text);
        return fail(t, begin, "this text has no end", err);
    }
    ++*at;
    json_t *value = json_stringn(text, n);
    free(text);
    return value ? add(t, TEMPLATE_LITERAL, begin, (size_t)(*at - begin), value, err)
                 : error_set(err, -ENOMEM, "out of memory");
}

static bool is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static int read_number(struct client_template *t, const char **at, const char *end, struct error *err)
{
    const char *begin = *at;
    json_int_t value = 0;

    for (; *at < end && (is_digit(**at) || **at == '_'); ++*at) {
        if (**at != '_' &&
            (__builtin_mul_overflow(value, 10, &value) || __builtin_add_overflow(value, **at - '0', &value)))
            return fail(t, begin, "this number is too large", err);
    }
    if ((*at < end && is_letter(**at)) || (*at + 1 < end && **at == '.' && is_digit((*at)[1])))
        return fail(t, begin, "only decimal integers are supported", err);
    json_t *number = json_integer(value);
    return number ? add(t, TEMPLATE_LITERAL, begin, (size_t)(*at - begin), number, err)
                  : error_set(err, -ENOMEM, "out of memory");
}

/* A name, a literal or an operator. *open counts brackets. */
static int read_token(struct client_template *t, const char **at, const char *end, unsigned *open, struct error *err)
{
    static const char *const pairs[] = {"==", "!=", "<=", ">=", "//", "**"};
    const char *begin = *at;
    size_t n = 1;

    if (*begin == '\'' || *begin == '"')
        return read_string(t, at, end, err);
    if (is_digit(*begin))
        return read_number(t, at, end, err);
    if (is_letter(*begin)) {
        while (begin + n < end && (is_letter(begin[n]) || is_digit(begin[n])))
            n++;
        *at += n;
        return add(t, TEMPLATE_NAME, begin, n, NULL, err);
    }
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs && begin + 1 < end; i++)
        n = memcmp(begin, pairs[i], 2) == 0 ? 2 : n;
    if (n == 1 && !memchr("+-*/%~|.,:()[]{}<>=", *begin, 19))
        return fail(t, begin, "this character has no place in a tag", err);
    *open += *begin == '(' || *begin == '[' || *begin == '{';
    *open -= *open > 0 && (*begin == ')' || *begin == ']' || *begin == '}');
    *at += n;
    return add(t, TEMPLATE_OPERATOR, begin, n, NULL, err);
}

/* Passes the end of a tag, which is at `at`: its sign, itself, and the white space that it takes along. */
static const char *pass_end(const char *at, const char *end, bool print)
{
    const char sign = *at;
    size_t n;

    at += sign == '-' || sign == '+' ? 3 : 2;
    n = (size_t)(end - at);
    if (sign == '-')
        template_strip_start(&at, &n);
    else if (sign != '+' && !print && n > 0 && *at == '\n')
        at++;
    return at;
}

/* True at the end of a tag, such as -%}. */
static bool is_end(const char *at, const char *end, const char *closing, bool print)
{
    const size_t sign = *at == '-' || (*at == '+' && !print) ? 1 : 0;

    return (size_t)(end - at) >= sign + 2 && memcmp(at + sign, closing, 2) == 0;
}

/* Reads the inside of a tag up to its end. */
static int read_tag(struct client_template *t, const char **at, const char *end, bool print, struct error *err)
{
    const char *begin = *at, *closing = print ? "}}" : "%}";
    unsigned open = 0;
    int rc = 0;

    while (!rc) {
        size_t left = (size_t)(end - *at);
        template_strip_start(at, &left);
        if (left == 0)
            return fail(t, begin, print ? "this {{ has no }}" : "this {% has no %}", err);
        if (open == 0 && is_end(*at, end, closing, print)) {
            rc = add(t, print ? TEMPLATE_PRINT_END : TEMPLATE_TAG_END, *at, 2, NULL, err);
            *at = pass_end(*at, end, print);
            return rc;
        }
        rc = read_token(t, at, end, &open, err);
    }
    return rc;
}

/* Passes a comment; *at is after its {#. */
static int pass_comment(const struct client_template *t, const char **at, const char *end, struct error *err)
{
    const char *close = memmem(*at, (size_t)(end - *at), "#}", 2);

    if (!close)
        return fail(t, *at, "this {# has no #}", err);
    *at = pass_end(close > *at && (close[-1] == '-' || close[-1] == '+') ? close - 1 : close, end, false);
    return 0;
}

/* Reads a text and the tag after it. *starts: a line starts at `at`. */
static int read_next(struct client_template *t, const char **at, const char *end, bool *starts, struct error *err)
{
    const char *text = *at, *tag = text;
    size_t n;

    while (tag < end && !(tag[0] == '{' && tag + 1 < end && memchr("{%#", tag[1], 3)))
        tag++;
    n = (size_t)(tag - text);
    const bool print = tag < end && tag[1] == '{';
    const char sign = tag + 2 < end ? tag[2] : 0;
    if (tag < end && sign == '-') {
        template_strip_end(text, &n);
    } else if (tag < end && sign != '+' && !print) { /* lstrip_blocks: blanks before a tag that begins a line */
        const char *newline = memrchr(text, '\n', n), *line = newline ? newline + 1 : text, *blank = line;
        size_t left = (size_t)(tag - line);
        template_strip_start(&blank, &left);
        if (left == 0 && (line > text || *starts))
            n = (size_t)(line - text);
    }
    int rc = n > 0 ? add(t, TEMPLATE_TEXT, text, n, NULL, err) : 0;
    *at = tag;
    if (rc || tag == end)
        return rc;
    *at += sign == '-' || sign == '+' ? 3 : 2;
    if (tag[1] == '#') {
        rc = pass_comment(t, at, end, err);
    } else {
        rc = add(t, print ? TEMPLATE_PRINT : TEMPLATE_TAG, tag, 2, NULL, err);
        rc = rc ? rc : read_tag(t, at, end, print, err);
    }
    if (!rc && t->n >= 3 && template_is(&t->tokens[t->n - 2], TEMPLATE_NAME, "raw") &&
        t->tokens[t->n - 3].kind == TEMPLATE_TAG)
        return fail(t, tag, "the statement raw is not supported", err);
    *starts = !rc && (*at)[-1] == '\n';
    return rc;
}

int template_read(struct client_template *t, struct error *err)
{
    const char *at = t->source, *end = t->source + t->n_source;
    bool starts = true;
    int rc = 0;

    while (!rc && at < end)
        rc = read_next(t, &at, end, &starts, err);
    return rc ? rc : add(t, TEMPLATE_END, end, 0, NULL, err);
}
