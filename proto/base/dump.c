/* A value is written in one pass into a growing text; a failed allocation is remembered in it and said once, at the
 * end. */
#include "proto/base/dump.h"

#include "proto/base/wide.h"

#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

const struct dump_form dump_compact = {.separator = ",", .colon = ":"}, dump_line = {NULL, NULL, NULL, false, false},
                       dump_indented = {.indent = "  "};

/* ---- Reals ---- */

enum { MOST_DIGITS = 17 };

/* One more in the last of a number's digits, "d.ddde-05". False: a carry out of the first. */
static bool dump_add_one(char *text, int digits)
{
    for (int i = digits; i >= 0; i -= i == 2 ? 2 : 1) { /* the point is at 1 */
        if (text[i] < '9') {
            text[i]++;
            return true;
        }
        text[i] = '0';
    }
    return false;
}

/* x > 0 as "d.ddde-05" with the fewest digits that read back. A text of up to 15 digits comes back from every normal
 * double as itself, so none is shorter than 15 digits without their zeros; subnormal ones have fewer. printf rounds to
 * nearest. Below a power of two numbers are twice as dense: there the nearest may fail, and the next above read
 * back. */
static int find_digits(char text[DUMP_REAL_BYTES], double x)
{
    int digits = x < DBL_MIN ? 1 : 15, exponent;
    const bool power = frexp(x, &exponent) == 0.5;

    for (;; digits++) {
        snprintf(text, DUMP_REAL_BYTES, "%.*e", digits - 1, x);
        if (digits == MOST_DIGITS || strtod(text, NULL) == x)
            return digits;
        if (power && digits > 1 && dump_add_one(text, digits) && strtod(text, NULL) == x)
            return digits;
    }
}

size_t dump_real(char out[DUMP_REAL_BYTES], double x)
{
    char text[DUMP_REAL_BYTES], digits[MOST_DIGITS + 1];
    const char *sign = signbit(x) ? "-" : "";

    if (x == 0)
        return (size_t)snprintf(out, DUMP_REAL_BYTES, "%s0.0", sign);
    int n = find_digits(text, fabs(x)), point = atoi(strchr(text, 'e') + 1) + 1; /* digits before the point */
    digits[0] = text[0];
    memcpy(digits + 1, text + 2, (size_t)n - 1);
    while (n > 1 && digits[n - 1] == '0')
        n--;
    if (point > 16 || point < -3)
        return (size_t)snprintf(out, DUMP_REAL_BYTES, "%s%c%s%.*se%+03d", sign, digits[0], n > 1 ? "." : "", n - 1,
                                digits + 1, point - 1);
    if (point <= 0)
        return (size_t)snprintf(out, DUMP_REAL_BYTES, "%s0.%.*s%.*s", sign, -point, "000", n, digits);
    if (point >= n)
        return (size_t)snprintf(out, DUMP_REAL_BYTES, "%s%.*s%.*s.0", sign, n, digits, point - n, "0000000000000000");
    return (size_t)snprintf(out, DUMP_REAL_BYTES, "%s%.*s.%.*s", sign, point, digits, n - point, digits + point);
}

/* ---- Values ---- */

struct dump {
    const struct dump_form *form;
    char *text; /* owned */
    size_t n, cap;
    bool failed;
};

static void dump_add(struct dump *d, const char *text, size_t n)
{
    if (!d->failed && n >= d->cap - d->n) {
        const size_t cap = 2 * (d->cap + n) + 64;
        char *larger = realloc(d->text, cap);
        d->failed = !larger;
        if (larger)
            d->text = larger, d->cap = cap;
    }
    if (d->failed)
        return;
    memcpy(d->text + d->n, text, n);
    d->text[d->n += n] = 0;
}

static void dump_add_text(struct dump *d, const char *text)
{
    dump_add(d, text, strlen(text));
}

/* The character at the start of valid UTF-8. */
static unsigned read_character(uint32_t *out, const char *text)
{
    const uint8_t *at = (const uint8_t *)text;
    const unsigned n = *at < 0x80 ? 1 : *at < 0xE0 ? 2 : *at < 0xF0 ? 3 : 4;

    *out = n == 1 ? *at : *at & (0xFFu >> (n + 1));
    for (unsigned i = 1; i < n; i++)
        *out = *out << 6 | (at[i] & 0x3F);
    return n;
}

static void add_escape(struct dump *d, uint32_t c)
{
    static const char letters[] = "\"\\\b\f\n\r\t", names[] = "\"\\bfnrt";
    const char *letter = c && c < 0x80 ? strchr(letters, (int)c) : NULL;
    char text[16];

    if (letter)
        snprintf(text, sizeof text, "\\%c", names[letter - letters]);
    else if (c > 0xFFFF)
        snprintf(text, sizeof text, "\\u%04x\\u%04x", 0xD7C0 + (c >> 10), 0xDC00 + (c & 0x3FF));
    else
        snprintf(text, sizeof text, "\\u%04x", c);
    dump_add_text(d, text);
}

static void dump_add_string(struct dump *d, const char *text, size_t n)
{
    size_t from = 0, at = 0;

    dump_add(d, "\"", 1);
    while (at < n) {
        uint32_t c;
        const unsigned length = read_character(&c, text + at);
        if (c < 0x20 || c == '"' || c == '\\' || (d->form->ascii && c > 0x7E)) {
            dump_add(d, text + from, at - from);
            add_escape(d, c);
            from = at + length;
        }
        at += length;
    }
    dump_add(d, text + from, n - from);
    dump_add(d, "\"", 1);
}

static void add_line(struct dump *d, unsigned depth)
{
    if (!d->form->indent)
        return;
    dump_add(d, "\n", 1);
    for (unsigned i = 0; i < depth; i++)
        dump_add_text(d, d->form->indent);
}

/* What stands before an item. */
static void add_between(struct dump *d, bool first, unsigned depth)
{
    if (!first)
        dump_add_text(d, d->form->separator ? d->form->separator : d->form->indent ? "," : ", ");
    add_line(d, depth);
}

static void dump_add_value(struct dump *d, const json_t *value, unsigned depth);

/* A key may have NULs within: of strings in templates. */
struct dump_member {
    const char *key;
    size_t length;
    const json_t *value;
};

static void add_member(struct dump *d, const struct dump_member *member, bool first, unsigned depth)
{
    add_between(d, first, depth + 1);
    dump_add_string(d, member->key, member->length);
    dump_add_text(d, d->form->colon ? d->form->colon : ": ");
    dump_add_value(d, member->value, depth + 1);
}

static int compare_members(const void *a, const void *b)
{
    const struct dump_member *const left = a, *const right = b;
    const size_t shorter = left->length < right->length ? left->length : right->length;
    const int order = memcmp(left->key, right->key, shorter);

    return order != 0 ? order : (left->length > right->length) - (left->length < right->length);
}

static void dump_add_object(struct dump *d, const json_t *object, unsigned depth)
{
    const size_t n = json_object_size(object);
    struct dump_member *members = calloc(n + 1, sizeof *members);
    json_t *const all = (json_t *)(uintptr_t)object;
    size_t i = 0;

    d->failed = d->failed || !members;
    for (void *at = json_object_iter(all); members && at; at = json_object_iter_next(all, at))
        members[i++] =
            (struct dump_member){json_object_iter_key(at), json_object_iter_key_len(at), json_object_iter_value(at)};
    if (members && d->form->sorted)
        qsort(members, n, sizeof *members, compare_members);
    dump_add(d, "{", 1);
    for (i = 0; i < n && !d->failed; i++)
        add_member(d, &members[i], i == 0, depth);
    if (n > 0)
        add_line(d, depth);
    dump_add(d, "}", 1);
    free(members);
}

static void add_list(struct dump *d, const json_t *list, unsigned depth)
{
    const size_t n = json_array_size(list);

    dump_add(d, "[", 1);
    for (size_t i = 0; i < n && !d->failed; i++) {
        add_between(d, i == 0, depth + 1);
        dump_add_value(d, json_array_get(list, i), depth + 1);
    }
    if (n > 0)
        add_line(d, depth);
    dump_add(d, "]", 1);
}

static void dump_add_value(struct dump *d, const json_t *value, unsigned depth)
{
    char number[DUMP_REAL_BYTES];
    const char *wide = wide_spelling(value);

    if (wide) {
        dump_add_text(d, wide);
        return;
    }
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        dump_add_object(d, value, depth);
        break;
    case JSON_ARRAY:
        add_list(d, value, depth);
        break;
    case JSON_STRING:
        dump_add_string(d, json_string_value(value), json_string_length(value));
        break;
    case JSON_INTEGER:
        dump_add(d, number,
                 (size_t)snprintf(number, sizeof number, "%" JSON_INTEGER_FORMAT, json_integer_value(value)));
        break;
    case JSON_REAL:
        dump_add(d, number, dump_real(number, json_real_value(value)));
        break;
    case JSON_TRUE:
        dump_add_text(d, "true");
        break;
    case JSON_FALSE:
        dump_add_text(d, "false");
        break;
    case JSON_NULL:
        dump_add_text(d, "null");
        break;
    }
}

char *dump_json(size_t *n, const json_t *value, const struct dump_form *form)
{
    struct dump d = {.form = form};

    if (value)
        dump_add_value(&d, value, 0);
    if (d.failed || !value) {
        free(d.text);
        return NULL;
    }
    if (n)
        *n = d.n;
    return d.text;
}

int dump_json_file(FILE *out, const json_t *value, const struct dump_form *form)
{
    size_t n;
    char *text = dump_json(&n, value, form);
    const int rc = !text ? -ENOMEM : fwrite(text, 1, n, out) < n ? -EIO : 0;

    free(text);
    return rc;
}
