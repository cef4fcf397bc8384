/* A template's tokens, and the white space between its tags, as Jinja's lexer has them. */
#include "client/text/template/template_internal.h"

#include "proto/base/wide.h"

#include <errno.h>
#include <math.h>
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

/* As a run fails, so that places are told in the same way. */
static int read_fail(const struct client_template *t, const char *at, const char *sentence, struct error *err)
{
    struct template_run r = {.template = t, .err = err};
    const struct template_token token = {.text = at};

    template_fail(&r, &token, "%s", sentence);
    return r.rc;
}

static int read_add(struct client_template *t, enum template_kind kind, const char *text, size_t n, json_t *value,
                    struct error *err)
{
    if (t->n == t->cap) {
        const size_t cap = 2 * t->cap + 64;
        struct template_token *larger = realloc(t->tokens, cap * sizeof *larger);
        if (!larger) {
            json_decref(value);
            return error_memory(err);
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
static int template_read_string(struct client_template *t, const char **at, const char *end, struct error *err)
{
    static const char letters[] = "abfnrtv\\'\"", values[] = "\a\b\f\n\r\t\v\\'\"";
    const char *begin = *at, quote = *begin;
    char *text = malloc((size_t)(end - begin) + 4);
    size_t n = 0;

    if (!text)
        return error_memory(err);
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
                return read_fail(t, begin, "an escape in this text is not a character", err);
            }
            n += tokenizer_put_character(text + n, code);
        } else if ((letter = memchr(letters, escaped, sizeof letters - 1)) != NULL) {
            text[n++] = values[letter - letters];
        } else if (escaped >= '0' && escaped <= '7') {
            free(text);
            return read_fail(t, begin, "octal escapes in a text are not supported", err);
        } else if (escaped != '\n') { /* a backslash at a line's end continues it; others stand for themselves */
            text[n++] = '\\', text[n++] = escaped;
        }
    }
    if (*at == end) {
        free(text);
        return read_fail(t, begin, "this text has no end", err);
    }
    ++*at;
    json_t *value = json_stringn(text, n);
    free(text);
    return value ? read_add(t, TEMPLATE_LITERAL, begin, (size_t)(*at - begin), value, err) : error_memory(err);
}

static bool is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

static bool read_is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Copies digits, which _ may separate, to out (*n of NUMBER_BYTES); returns how many bytes they take. */
enum { NUMBER_BYTES = 400 };

static size_t copy_digits(char out[NUMBER_BYTES], size_t *n, const char *at, const char *end)
{
    const char *begin = at;

    while (at < end && (read_is_digit(*at) || (*at == '_' && at > begin && at + 1 < end && read_is_digit(at[1])))) {
        if (*at != '_' && *n + 1 < NUMBER_BYTES)
            out[(*n)++] = *at;
        at++;
    }
    out[*n] = 0;
    return (size_t)(at - begin);
}

/* Passes a fraction and an exponent, if they are there; after a point, as in x.1, none is. */
static bool copy_fraction(char out[NUMBER_BYTES], size_t *n, const char **at, const char *end, bool after_point)
{
    const char *begin = *at;

    if (!after_point && *at + 1 < end && **at == '.' && read_is_digit((*at)[1])) {
        out[(*n)++] = '.';
        *at += 1 + copy_digits(out, n, *at + 1, end);
    }
    const bool sign = *at + 1 < end && ((*at)[1] == '+' || (*at)[1] == '-');
    if (!after_point && *at + 1 + sign < end && (**at == 'e' || **at == 'E') && read_is_digit((*at)[1 + sign])) {
        out[(*n)++] = 'e';
        if (sign)
            out[(*n)++] = (*at)[1];
        *at += 1 + sign + copy_digits(out, n, *at + 1 + sign, end);
    }
    out[*n] = 0;
    return *at > begin;
}

/* The limits on digits keep the copy in its room; an integer beyond 64 bits keeps its digits (proto/base/wide.h). */
static int template_read_number(struct client_template *t, const char **at, const char *end, struct error *err)
{
    const char *begin = *at;
    char text[NUMBER_BYTES + 32];
    size_t n = 0;

    *at += copy_digits(text, &n, *at, end);
    if (n > NUMBER_BYTES / 2)
        return read_fail(t, begin, "this number is too long", err);
    const bool real = copy_fraction(text, &n, at, end, begin > t->source && begin[-1] == '.');
    if (n + 1 >= NUMBER_BYTES)
        return read_fail(t, begin, "this number is too long", err);
    if (*at < end && (is_letter(**at) || **at == '_'))
        return read_fail(t, begin, "only decimal numbers are supported", err);
    if (!real && n > 1 && *text == '0' && strspn(text, "0") < n)
        return read_fail(t, begin, "an integer does not begin with 0", err);
    json_t *number = real ? NULL : json_integer(strtoll(text, NULL, 10));
    errno = 0;
    if (real && isfinite(strtod(text, NULL)))
        number = json_real(strtod(text, NULL));
    else if (real)
        number = wide_new("Infinity", 8);
    else if (strtoll(text, NULL, 10) == INT64_MAX && errno == ERANGE) {
        json_decref(number);
        number = wide_new(text, n);
    }
    return number ? read_add(t, TEMPLATE_LITERAL, begin, (size_t)(*at - begin), number, err) : error_memory(err);
}

/* A name, a literal or an operator. *open counts brackets. */
static int read_token(struct client_template *t, const char **at, const char *end, unsigned *open, struct error *err)
{
    static const char *const pairs[] = {"==", "!=", "<=", ">=", "//", "**"};
    const char *begin = *at;
    size_t n = 1;

    if (*begin == '\'' || *begin == '"')
        return template_read_string(t, at, end, err);
    if (read_is_digit(*begin))
        return template_read_number(t, at, end, err);
    if (is_letter(*begin)) {
        while (begin + n < end && (is_letter(begin[n]) || read_is_digit(begin[n])))
            n++;
        *at += n;
        return read_add(t, TEMPLATE_NAME, begin, n, NULL, err);
    }
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs && begin + 1 < end; i++)
        n = memcmp(begin, pairs[i], 2) == 0 ? 2 : n;
    if (n == 1 && !memchr("+-*/%~|.,:()[]{}<>=", *begin, 19))
        return read_fail(t, begin, "this character has no place in a tag", err);
    *open += *begin == '(' || *begin == '[' || *begin == '{';
    *open -= *open > 0 && (*begin == ')' || *begin == ']' || *begin == '}');
    *at += n;
    return read_add(t, TEMPLATE_OPERATOR, begin, n, NULL, err);
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
static bool read_is_end(const char *at, const char *end, const char *closing, bool print)
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
            return read_fail(t, begin, print ? "this {{ has no }}" : "this {% has no %}", err);
        if (open == 0 && read_is_end(*at, end, closing, print)) {
            rc = read_add(t, print ? TEMPLATE_PRINT_END : TEMPLATE_TAG_END, *at, 2, NULL, err);
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
        return read_fail(t, *at, "this {# has no #}", err);
    *at = pass_end(close > *at && (close[-1] == '-' || close[-1] == '+') ? close - 1 : close, end, false);
    return 0;
}

/* Length of the text before a tag, by the tag's sign: '-' takes white space; without a sign, a statement or a comment
 * takes blanks that begin its line (lstrip_blocks). starts: a line starts at text. */
static size_t trim_before(const char *text, const char *tag, char sign, bool print, bool starts)
{
    size_t n = (size_t)(tag - text);

    if (sign == '-') {
        template_strip_end(text, &n);
    } else if (sign != '+' && !print) {
        const char *newline = memrchr(text, '\n', n), *line = newline ? newline + 1 : text, *blank = line;
        size_t left = (size_t)(tag - line);
        template_strip_start(&blank, &left);
        if (left == 0 && (line > text || starts))
            n = (size_t)(line - text);
    }
    return n;
}

/* Passes {% NAME %} at `at`, whose sign at its end is *sign. NULL: it is another tag. */
static const char *pass_word(const char *at, const char *end, const char *name, char *sign)
{
    size_t left;

    if (end - at < 2 || memcmp(at, "{%", 2) != 0)
        return NULL;
    at += at + 2 < end && (at[2] == '-' || at[2] == '+') ? 3 : 2;
    left = (size_t)(end - at);
    template_strip_start(&at, &left);
    if (left < strlen(name) || memcmp(at, name, strlen(name)) != 0)
        return NULL;
    at += strlen(name), left -= strlen(name);
    template_strip_start(&at, &left);
    *sign = left > 0 ? *at : 0;
    if (left > 0 && (*sign == '-' || *sign == '+'))
        at++, left--;
    return left >= 2 && memcmp(at, "%}", 2) == 0 ? at + 2 : NULL;
}

/* Reads the text of {% raw %}, whose end is at *at, up to its {% endraw %}. */
static int read_raw(struct client_template *t, const char *tag, const char **at, const char *end, char sign,
                    bool *starts, struct error *err)
{
    const char *text = *at, *close, *after = NULL;
    size_t n = (size_t)(end - text);

    if (sign == '-')
        template_strip_start(&text, &n);
    for (close = text; close < end && !(after = pass_word(close, end, "endraw", &sign));)
        close++;
    if (!after)
        return read_fail(t, tag, "there is no endraw", err);
    n = trim_before(text, close, close[2], false, (*at)[-1] == '\n' || (text > *at && text[-1] == '\n'));
    const int rc = n > 0 ? read_add(t, TEMPLATE_TEXT, text, n, NULL, err) : 0;
    *at = pass_end(sign == '-' || sign == '+' ? after - 3 : after - 2, end, false);
    *starts = (*at)[-1] == '\n';
    return rc;
}

/* Reads a text and the tag after it. *starts: a line starts at `at`. raw is looked for before any other tag: what is
 * in it is no template. */
static int read_next(struct client_template *t, const char **at, const char *end, bool *starts, struct error *err)
{
    const char *text = *at, *tag = text;
    char raw_sign;
    size_t n;

    while (tag < end && !(tag[0] == '{' && tag + 1 < end && memchr("{%#", tag[1], 3)))
        tag++;
    const bool print = tag < end && tag[1] == '{';
    const char sign = tag + 2 < end ? tag[2] : 0;
    n = tag < end ? trim_before(text, tag, sign, print, *starts) : (size_t)(tag - text);
    int rc = n > 0 ? read_add(t, TEMPLATE_TEXT, text, n, NULL, err) : 0;
    *at = tag;
    if (rc || tag == end)
        return rc;
    const char *raw = pass_word(tag, end, "raw", &raw_sign);
    if (raw) {
        *at = raw;
        return raw_sign == '+' ? read_fail(t, tag, "this tag has no end", err)
                               : read_raw(t, tag, at, end, raw_sign, starts, err);
    }
    *at += sign == '-' || sign == '+' ? 3 : 2;
    if (tag[1] == '#') {
        rc = pass_comment(t, at, end, err);
    } else {
        rc = read_add(t, print ? TEMPLATE_PRINT : TEMPLATE_TAG, tag, 2, NULL, err);
        rc = rc ? rc : read_tag(t, at, end, print, err);
    }
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
    return rc ? rc : read_add(t, TEMPLATE_END, end, 0, NULL, err);
}
