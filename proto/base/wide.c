/* jansson reads nearly all texts, and reads them first. Only what it refuses is read again here, by a parser that
 * leaves each string and each number to jansson: so both read the same texts alike, but for the wide numbers. */
#include "proto/base/wide.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static const char key[] = "\xff"; /* no UTF-8, so no text has it */

enum { MOST_DEPTH = 1024 };

struct reading {
    const char *text;
    size_t at, n, flags;
    unsigned depth;
    bool ended; /* the text ends where more is needed */
};

json_t *wide_new(const char *spelling, size_t n)
{
    json_t *number = json_object();

    if (number && json_object_setn_new_nocheck(number, key, 1, json_stringn(spelling, n)) == 0)
        return number;
    json_decref(number);
    return NULL;
}

const char *wide_spelling(const json_t *value)
{
    return json_string_value(json_object_getn(value, key, 1));
}

static json_t *wide_read_value(struct reading *r);

/* The next byte after white space; 0: none. */
static char wide_next(struct reading *r)
{
    while (r->at < r->n && memchr(" \t\n\r", r->text[r->at], 4))
        r->at++;
    r->ended = r->ended || r->at == r->n;
    return r->at < r->n ? r->text[r->at] : 0;
}

static json_t *wide_read_string(struct reading *r)
{
    const size_t from = r->at++;

    while (r->at < r->n && r->text[r->at] != '"')
        r->at += r->text[r->at] == '\\' ? 2 : 1;
    if (r->at >= r->n) {
        r->ended = true;
        return NULL;
    }
    r->at++;
    return json_loadb(r->text + from, r->at - from, JSON_DECODE_ANY | (r->flags & JSON_ALLOW_NUL), NULL);
}

static size_t count_digits(const char *text, size_t n)
{
    size_t digits = 0;

    while (digits < n && text[digits] >= '0' && text[digits] <= '9')
        digits++;
    return digits;
}

/* A number that jansson refuses: text is as JSON has it, or one of the three names. */
static json_t *wide_number(const char *text, size_t n)
{
    static const char *const names[] = {"NaN", "Infinity", "-Infinity"};
    const size_t sign = *text == '-', whole = count_digits(text + sign, n - sign);
    size_t at = sign + whole, digits;

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (n == strlen(names[i]) && memcmp(text, names[i], n) == 0)
            return wide_new(text, n);
    if (whole == 0 || whole > WIDE_MAX_DIGITS || (whole > 1 && text[sign] == '0'))
        return NULL;
    if (at == n)
        return wide_new(text, n);
    if (text[at] == '.') {
        digits = count_digits(text + at + 1, n - at - 1);
        if (digits == 0)
            return NULL;
        at += 1 + digits;
    }
    if (at < n && (text[at] == 'e' || text[at] == 'E')) {
        at += at + 1 < n && (text[at + 1] == '+' || text[at + 1] == '-') ? 2 : 1;
        digits = count_digits(text + at, n - at);
        at = digits == 0 ? 0 : at + digits;
    }
    return at == n ? wide_new(names[1 + sign], strlen(names[1 + sign])) : NULL;
}

/* A number, a name of one, or true, false or null. */
static json_t *wide_read_word(struct reading *r)
{
    const char *from = r->text + r->at;
    size_t n = 0;

    while (r->at + n < r->n && !memchr(" \t\n\r,:]}[{\"", from[n], 11))
        n++;
    r->at += n;
    r->ended = r->ended || r->at == r->n;
    json_t *value = json_loadb(from, n, JSON_DECODE_ANY, NULL);
    return value || n == 0 ? value : wide_number(from, n);
}

/* Reads a member of an object, or an element of a list, into it. */
static bool wide_read_member(struct reading *r, json_t *box)
{
    if (json_is_array(box))
        return json_array_append_new(box, wide_read_value(r)) == 0;
    json_t *name = wide_next(r) == '"' ? wide_read_string(r) : NULL;
    const char *text = json_string_value(name);
    bool ok = text && strlen(text) == json_string_length(name) && wide_next(r) == ':';
    if (ok && r->flags & JSON_REJECT_DUPLICATES && json_object_get(box, text))
        ok = false;
    r->at += ok;
    ok = ok && json_object_set_new(box, text, wide_read_value(r)) == 0;
    json_decref(name);
    return ok;
}

static json_t *read_box(struct reading *r, json_t *box, char end)
{
    bool ok = box && r->depth++ < MOST_DEPTH;

    r->at++;
    if (ok && wide_next(r) == end) {
        r->at++, r->depth--;
        return box;
    }
    while (ok) {
        ok = wide_read_member(r, box);
        const char after = ok ? wide_next(r) : 0;
        r->at += ok;
        if (after == end) {
            r->depth--;
            return box;
        }
        ok = after == ',';
    }
    json_decref(box);
    return NULL;
}

static json_t *wide_read_value(struct reading *r)
{
    const char first = wide_next(r);

    return first == '{'   ? read_box(r, json_object(), '}')
           : first == '[' ? read_box(r, json_array(), ']')
           : first == '"' ? wide_read_string(r)
                          : wide_read_word(r);
}

/* Says where the text ended, as jansson does. */
static void say_end(json_error_t *why, size_t at)
{
    snprintf(why->text, sizeof why->text, "premature end");
    why->text[sizeof why->text - 1] = json_error_premature_end_of_input;
    why->position = (int)at;
}

json_t *wide_read(const char *text, size_t n, size_t flags, json_error_t *why)
{
    struct reading r = {.text = text, .n = n, .flags = flags};
    json_error_t first;
    json_t *value = json_loadb(text, n, flags, why ? why : &first);

    if (value || n == 0)
        return value;
    const char begin = wide_next(&r);
    value = begin == '{' || begin == '[' || flags & JSON_DECODE_ANY ? wide_read_value(&r) : NULL;
    if (value && !(flags & JSON_DISABLE_EOF_CHECK) && wide_next(&r) != 0) {
        json_decref(value);
        value = NULL;
    } else if (value && why) {
        why->position = (int)r.at;
    } else if (!value && why && r.ended) {
        say_end(why, n);
    }
    return value;
}
