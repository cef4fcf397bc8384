/* Methods of texts that a template can call, as Python's str has them. */
#include "client/text/template/template_internal.h"

#include <stdlib.h>
#include <string.h>

/* A character of text is in the set; without a set, white space is. Returns its length, or 0. */
static size_t stripped(struct template_run *r, const char *text, size_t n, const char *set, size_t n_set)
{
    if (!set)
        return template_blank(text);
    if (!template_charge(r, n_set))
        return 0;
    const size_t length = (size_t)client_utf8_character((const uint8_t *)text, n);
    return memmem(set, n_set, text, length) ? length : 0;
}

/* template_strip, lstrip, rstrip and the filter trim. */
json_t *template_strip(struct template_run *r, const struct template_call *c)
{
    const char *const all = json_string_value(c->value), *text = all;
    size_t n = json_string_length(c->value), n_set, length;
    const char *set = template_text_of(r, c, 0, "chars", &n_set), kind = c->name->text[0];

    if (!text)
        return template_is_undefined(r, c->value) && c->name->n == 4 ? template_string(r, "", 0)
                                                                     : template_refuse(r, c);
    template_charge(r, n);
    while (kind != 'r' && n > 0 && (length = stripped(r, text, n, set, n_set)) > 0)
        text += length, n -= length;
    while (kind != 'l' && n > 0) {
        const size_t from = client_utf8_before(text, 0, n);
        if (stripped(r, text + from, n - from, set, n_set) == 0)
            break;
        n = from;
    }
    return r->rc ? NULL : template_part(r, c->value, (size_t)(text - all), n);
}

/* The next separator of text, of *length bytes: `by`, or a blank if that is NULL. NULL: there is none. */
static const char *next_separator(size_t *length, const char *text, size_t n, const char *by, size_t n_by)
{
    *length = n_by;
    if (by)
        return memmem(text, n, by, n_by);
    for (size_t i = 0; i < n; i += (size_t)client_utf8_character((const uint8_t *)text + i, n - i))
        if ((*length = template_blank(text + i)) > 0)
            return text + i;
    return NULL;
}

/* split(separator, limit), rsplit without a limit is the same; without a separator, at white space. */
static json_t *text_split(struct template_run *r, const struct template_call *c)
{
    const char *const all = json_string_value(c->value), *text = all;
    size_t n = json_string_length(c->value), n_by = 0;
    const json_t *given = template_argument(c->arguments, 0, "sep");
    const char *by = json_is_null(given) ? NULL : template_text_of(r, c, 0, "sep", &n_by);
    json_int_t left = template_integer_of(r, c, 1, "maxsplit", -1);

    if (by && n_by == 0)
        return template_refuse(r, c);
    json_t *out = json_array();
    template_charge(r, n);
    if (!by)
        template_strip_start(&text, &n);
    while (!r->rc && (by || n > 0)) {
        size_t length;
        const char *at = left != 0 ? next_separator(&length, text, n, by, n_by) : NULL;
        if (!at) {
            if (!by && left != 0)
                template_strip_end(text, &n);
            template_append(r, out, template_part(r, c->value, (size_t)(text - all), n));
            break;
        }
        template_append(r, out, template_part(r, c->value, (size_t)(text - all), (size_t)(at - text)));
        n -= (size_t)(at + length - text), text = at + length;
        left -= left > 0;
        if (!by)
            template_strip_start(&text, &n);
    }
    if (!r->rc)
        return out;
    json_decref(out);
    return NULL;
}

json_t *template_replace(struct template_run *r, const struct template_call *c)
{
    struct template_text text = {0};
    const char *const all = json_is_string(c->value) ? json_string_value(c->value) : "",
                      *at = all, *const end = all + json_string_length(c->value);
    size_t n_from, n_to;
    const char *from = template_text_of(r, c, 0, "old", &n_from), *to = template_text_of(r, c, 1, "new", &n_to);
    json_int_t left = template_integer_of(r, c, 2, "count", -1);

    if (!json_is_string(c->value) || !from || !to || n_from == 0)
        return template_refuse(r, c);
    template_charge(r, (size_t)(end - at));
    while (!r->rc && at < end) {
        const char *found = left != 0 ? memmem(at, (size_t)(end - at), from, n_from) : NULL;
        template_add_part(r, &text, c->value, (size_t)(at - all), (size_t)((found ? found : end) - at));
        if (found)
            template_add_part(r, &text, template_argument(c->arguments, 1, "new"), 0, n_to);
        at = found ? found + n_from : end;
        left -= left > 0;
    }
    return template_take(r, &text);
}

/* startswith and endswith, of a text or any of a list. */
static json_t *has_end(struct template_run *r, const struct template_call *c)
{
    json_t *wanted = template_argument(c->arguments, 0, NULL);
    const json_t *end = wanted;
    const size_t n = json_string_length(c->value);
    bool any = false;

    if (c->arguments->n != 1 || (!json_is_string(end) && !json_is_array(end)))
        return template_refuse(r, c);
    for (size_t i = 0; !any && i < (json_is_array(wanted) ? json_array_size(wanted) : 1); i++) {
        end = json_is_array(wanted) ? json_array_get(wanted, i) : wanted;
        const size_t length = json_string_length(end);
        if (!json_is_string(end))
            return template_refuse(r, c);
        template_charge(r, length);
        any = length <= n && memcmp(json_string_value(c->value) + (c->name->text[0] == 's' ? 0 : n - length),
                                    json_string_value(end), length) == 0;
    }
    return json_boolean(any);
}

static json_t *text_find(struct template_run *r, const struct template_call *c)
{
    const char *text = json_string_value(c->value);
    size_t n;
    const char *wanted = template_text_of(r, c, 0, NULL, &n);

    if (!wanted || c->arguments->n != 1)
        return template_refuse(r, c);
    template_charge(r, json_string_length(c->value));
    const char *found = memmem(text, json_string_length(c->value), wanted, n);
    return json_integer(found ? (json_int_t)client_utf8_count(text, (size_t)(found - text)) : -1);
}

json_t *template_join_all(struct template_run *r, const struct template_call *c, json_t *items, const json_t *between)
{
    struct template_text text = {0};
    json_t *list = template_list(r, c->at, items), *item;
    size_t i;

    json_array_foreach(list, i, item)
    {
        if (i > 0 && between)
            template_add_part(r, &text, between, 0, json_string_length(between));
        template_print(r, c->at, &text, item);
    }
    json_decref(list);
    return template_take(r, &text);
}

static json_t *join_method(struct template_run *r, const struct template_call *c)
{
    if (c->arguments->n != 1)
        return template_refuse(r, c);
    return template_join_all(r, c, c->arguments->values[0], c->value);
}

/* Bytes of the line end at text (n >= 1): 0, none. */
static size_t line_end(const char *text, size_t n)
{
    unsigned length;
    const uint32_t c = tokenizer_character(text, &length);

    if (c == '\r' && n > 1 && text[1] == '\n')
        return 2;
    return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029 ? length : 0;
}

/* Where the line that begins at `from` ends, and in *length the bytes of its end: 0, the text's. */
static size_t find_line_end(size_t *length, const char *text, size_t from, size_t n)
{
    *length = 0;
    while (from < n && (*length = line_end(text + from, n - from)) == 0)
        from += (size_t)client_utf8_character((const uint8_t *)text + from, n - from);
    return from;
}

/* splitlines(keepends=false) */
static json_t *splitlines(struct template_run *r, const struct template_call *c)
{
    const json_t *keep = template_argument(c->arguments, 0, "keepends");
    const char *text = json_string_value(c->value);
    const size_t n = json_string_length(c->value);
    json_t *out = json_array();

    if (c->arguments->n > (keep ? 1u : 0u))
        template_refuse(r, c);
    template_charge(r, n);
    for (size_t from = 0, length; !r->rc && from < n; from += length) {
        const size_t end = find_line_end(&length, text, from, n), kept = keep && template_truth(r, keep) ? length : 0;
        template_append(r, out, template_part(r, c->value, from, end + kept - from));
        from = end;
    }
    if (!r->rc)
        return out;
    json_decref(out);
    return NULL;
}

/* What the filter indent puts before a line: a text, or so many blanks; a new reference. */
static json_t *read_width(struct template_run *r, const struct template_call *c)
{
    enum { MOST = 1024 };
    static const char *const names[] = {"width", "first", "blank"};
    json_t *width = template_argument(c->arguments, 0, names[0]);
    const json_int_t n = !width ? 4 : template_is_integer(width) ? template_integer(width) : 0;
    char blanks[MOST];
    unsigned known = 0;

    for (unsigned i = 0; i < 3; i++)
        known += template_argument(c->arguments, i, names[i]) != NULL;
    if (json_is_string(width) && known == c->arguments->n)
        return json_incref(width);
    if (known < c->arguments->n || n > MOST || (width && !template_is_integer(width)))
        return template_refuse(r, c);
    memset(blanks, ' ', sizeof blanks);
    return template_string(r, blanks, n > 0 ? (size_t)n : 0);
}

/* The filter indent(width=4, first=false, blank=false). As Jinja's it makes each line end \n, and has an empty line
 * behind a last one, unless that is a lone \r. */
json_t *template_indent(struct template_run *r, const struct template_call *c)
{
    const json_t *first = template_argument(c->arguments, 1, "first"),
                 *blank = template_argument(c->arguments, 2, "blank");
    const char *text = json_string_value(c->value);
    const size_t n = json_string_length(c->value);
    struct template_text out = {0};
    json_t *before = text ? read_width(r, c) : template_refuse(r, c);

    template_charge(r, n);
    for (size_t from = 0, length = 1, n_lines = 0; !r->rc && length > 0; n_lines++) {
        const size_t end = find_line_end(&length, text, from, n);
        if (n_lines > 0)
            template_add(r, &out, "\n", 1);
        if (n_lines == 0 ? first && template_truth(r, first) : end > from || (blank && template_truth(r, blank)))
            template_add_part(r, &out, before, 0, json_string_length(before));
        template_add_part(r, &out, c->value, from, end - from);
        from = end + length;
        if (from == n && length == 1 && text[end] == '\r')
            break;
    }
    json_decref(before);
    return template_take(r, &out);
}

/* removeprefix and removesuffix. */
static json_t *remove_end(struct template_run *r, const struct template_call *c)
{
    const size_t n = json_string_length(c->value);
    const bool front = c->name->text[6] == 'p';
    const char *text = json_string_value(c->value);
    size_t length;
    const char *end = template_text_of(r, c, 0, NULL, &length);

    if (!end || c->arguments->n != 1)
        return template_refuse(r, c);
    template_charge(r, length);
    if (length > n || memcmp(text + (front ? 0 : n - length), end, length) != 0)
        length = 0;
    return template_part(r, c->value, front ? length : 0, n - length);
}

/* count(text): how often, without overlaps. */
static json_t *count(struct template_run *r, const struct template_call *c)
{
    const char *at = json_string_value(c->value), *end = at + json_string_length(c->value), *found;
    size_t n;
    const char *wanted = template_text_of(r, c, 0, NULL, &n);
    json_int_t times = 0;

    if (!wanted || n == 0 || c->arguments->n != 1)
        return template_refuse(r, c);
    template_charge(r, (size_t)(end - at));
    for (; (found = memmem(at, (size_t)(end - at), wanted, n)) != NULL; at = found + n)
        times++;
    return json_integer(times);
}

static const struct template_entry text_methods[] = {{"strip", template_strip},
                                                     {"lstrip", template_strip},
                                                     {"rstrip", template_strip},
                                                     {"split", text_split},
                                                     {"replace", template_replace},
                                                     {"startswith", has_end},
                                                     {"endswith", has_end},
                                                     {"upper", template_change_case},
                                                     {"lower", template_change_case},
                                                     {"title", template_change_case},
                                                     {"capitalize", template_change_case},
                                                     {"find", text_find},
                                                     {"join", join_method},
                                                     {"splitlines", splitlines},
                                                     {"removeprefix", remove_end},
                                                     {"removesuffix", remove_end},
                                                     {"count", count}};
json_t *template_text_method(struct template_run *r, const struct template_call *c)
{
    return TEMPLATE_RUN(text_methods, "method", r, c);
}
