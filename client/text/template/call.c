/* Functions and methods that a template can call, as Jinja, Python and transformers have them. */
#include "client/text/template/template_internal.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

json_t *template_argument(const struct template_arguments *arguments, unsigned position, const char *name)
{
    for (unsigned i = 0; i < arguments->n; i++)
        if (arguments->names[i] ? name && template_is(arguments->names[i], TEMPLATE_NAME, name) : i == position)
            return arguments->values[i];
    return NULL;
}

void template_arguments_free(struct template_arguments *arguments)
{
    for (unsigned i = 0; i < arguments->n; i++)
        json_decref(arguments->values[i]);
    arguments->n = 0;
}

json_t *template_refuse(struct template_run *r, const struct template_call *c)
{
    return template_fail(r, c->at, "%.*s is not supported for %s with these arguments",
                         (int)(c->name->n < 40 ? c->name->n : 40), c->name->text,
                         c->value ? template_type(r, c->value) : "a call");
}

json_t *template_run_entry(struct template_run *r, const struct template_entry *entries, size_t n, const char *kind,
                           const struct template_call *c)
{
    for (size_t i = 0; i < n; i++)
        if (template_is(c->name, TEMPLATE_NAME, entries[i].name))
            return r->rc ? NULL : entries[i].run(r, c);
    return template_fail(r, c->at, "the %s %.*s is not supported%s%s", kind, (int)(c->name->n < 40 ? c->name->n : 40),
                         c->name->text, c->value ? " for " : "", c->value ? template_type(r, c->value) : "");
}

/* An argument that is a string; NULL: absent, or the call is refused. */
const char *template_text_of(struct template_run *r, const struct template_call *c, unsigned position, const char *name,
                             size_t *n)
{
    const json_t *value = template_argument(c->arguments, position, name);

    *n = json_string_length(value);
    if (value && !json_is_string(value))
        template_refuse(r, c);
    return json_string_value(value);
}

json_int_t template_integer_of(struct template_run *r, const struct template_call *c, unsigned position,
                               const char *name, json_int_t other)
{
    const json_t *value = template_argument(c->arguments, position, name);

    if (value && !template_is_integer(value))
        template_refuse(r, c);
    return value && template_is_integer(value) ? template_integer(value) : other;
}

/* ---- Functions ---- */

static json_t *raise_exception(struct template_run *r, const struct template_call *c)
{
    size_t n;
    const char *text = template_text_of(r, c, 0, "message", &n);

    return text ? template_fail(r, c->at, "the template refuses this conversation: %.200s", text)
                : template_refuse(r, c);
}

static json_t *strftime_now(struct template_run *r, const struct template_call *c)
{
    char text[256];
    struct tm now;
    size_t n;
    const char *format = template_text_of(r, c, 0, "format", &n);

    if (!format || n > 64 || !localtime_r(&r->now, &now))
        return template_refuse(r, c);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    n = strftime(text, sizeof text, format, &now);
#pragma GCC diagnostic pop
    return template_string(r, text, n);
}

/* namespace(...) and dict(...). */
static json_t *make_object(struct template_run *r, const struct template_call *c)
{
    json_t *out = json_object();

    for (unsigned i = 0; out && !r->rc && i < c->arguments->n; i++) {
        const struct template_token *name = c->arguments->names[i];
        json_t *value = c->arguments->values[i];
        if (!name && (i > 0 || !json_is_object(value) || json_object_update(out, value)))
            template_refuse(r, c);
        else if (name && template_check_member(r, name, value) && json_object_setn(out, name->text, name->n, value))
            template_no_memory(r);
    }
    if (c->name->n == 9 && json_array_size(r->namespaces) == TEMPLATE_MAX_NAMESPACES)
        template_fail(r, c->at, "more than %d namespaces", TEMPLATE_MAX_NAMESPACES);
    if (out && !r->rc && c->name->n == 9)
        template_append(r, r->namespaces, json_incref(out));
    if (out && !r->rc)
        return out;
    json_decref(out);
    return template_no_memory(r);
}

static bool is_near(json_int_t n)
{
    return n >= -(1 << 30) && n <= 1 << 30;
}

static json_t *range(struct template_run *r, const struct template_call *c)
{
    const unsigned n = c->arguments->n;
    const json_int_t from = n > 1 ? template_integer_of(r, c, 0, NULL, 0) : 0,
                     to = template_integer_of(r, c, n > 1, NULL, 0), step = template_integer_of(r, c, 2, NULL, 1);

    if (n < 1 || n > 3 || step == 0 || !is_near(from) || !is_near(to) || !is_near(step))
        return template_refuse(r, c);
    json_t *out = json_array();
    for (json_int_t i = from; !r->rc && (step > 0 ? i < to : i > to); i += step)
        template_append(r, out, json_integer(i));
    return out;
}

static const struct template_entry functions[] = {{"raise_exception", raise_exception},
                                                  {"strftime_now", strftime_now},
                                                  {"namespace", make_object},
                                                  {"dict", make_object},
                                                  {"range", range}};

bool template_is_function(const struct template_token *name)
{
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
        if (template_is(name, TEMPLATE_NAME, functions[i].name))
            return true;
    return false;
}

json_t *template_function(struct template_run *r, const struct template_token *name,
                          const struct template_arguments *arguments)
{
    const struct template_call c = {name, name, NULL, arguments};

    return TEMPLATE_RUN(functions, "function", r, &c);
}

/* ---- Texts ---- */

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

/* upper, lower, capitalize, title: of ASCII. */
json_t *template_change_case(struct template_run *r, const struct template_call *c)
{
    struct template_text text = {0};
    const char kind = c->name->text[0];
    bool first = true;

    if (!json_is_string(c->value) || !template_print(r, c->at, &text, c->value)) {
        template_text_free(&text);
        return template_refuse(r, c);
    }
    for (size_t i = 0; i < text.bytes.n; i++) {
        const int letter = (unsigned char)text.bytes.bytes[i];
        if (letter > 127)
            template_fail(r, c->at, "%.*s is supported for ASCII alone", (int)c->name->n, c->name->text);
        text.bytes.bytes[i] = (char)(kind == 'u' || (kind != 'l' && first) ? toupper(letter) : tolower(letter));
        first = kind == 't' && !isalpha(letter);
    }
    return template_take(r, &text);
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
static json_t *split(struct template_run *r, const struct template_call *c)
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

static json_t *find(struct template_run *r, const struct template_call *c)
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

/* ---- Objects ---- */

/* items, keys, values. */
json_t *template_list_items(struct template_run *r, const struct template_call *c)
{
    const char kind = c->name->text[0], *key;
    const bool labelled = template_labels_of(r, c->value) != NULL;
    json_t *out = json_array(), *value;

    if (!json_is_object(c->value) && !template_is_undefined(r, c->value)) {
        json_decref(out);
        return template_refuse(r, c);
    }
    json_object_foreach(c->value, key, value)
    {
        json_t *name = kind == 'v' ? NULL : template_string(r, key, strlen(key));
        if (name && labelled)
            name = template_labels_set(r, name, NULL);
        template_append(r, out,
                        kind == 'k'   ? name
                        : kind == 'v' ? json_incref(value)
                                      : json_pack("[o,O]", name, value));
    }
    return out;
}

static json_t *get(struct template_run *r, const struct template_call *c)
{
    size_t n;
    const char *key = template_text_of(r, c, 0, NULL, &n);
    json_t *value = key ? json_object_getn(c->value, key, n) : NULL, *other = template_argument(c->arguments, 1, NULL);

    if (!key)
        return template_refuse(r, c);
    return value ? json_incref(value) : other ? json_incref(other) : json_null();
}

static const struct template_entry text_methods[] = {{"strip", template_strip},
                                                     {"lstrip", template_strip},
                                                     {"rstrip", template_strip},
                                                     {"split", split},
                                                     {"replace", template_replace},
                                                     {"startswith", has_end},
                                                     {"endswith", has_end},
                                                     {"upper", template_change_case},
                                                     {"lower", template_change_case},
                                                     {"title", template_change_case},
                                                     {"capitalize", template_change_case},
                                                     {"find", find},
                                                     {"join", join_method}};
static const struct template_entry object_methods[] = {{"items", template_list_items},
                                                       {"keys", template_list_items},
                                                       {"values", template_list_items},
                                                       {"get", get}};

bool template_is_method(const json_t *value, const struct template_token *name)
{
    for (size_t i = 0; json_is_object(value) && i < sizeof object_methods / sizeof *object_methods; i++)
        if (template_is(name, TEMPLATE_NAME, object_methods[i].name))
            return true;
    return false;
}

json_t *template_method(struct template_run *r, json_t *value, const struct template_token *name,
                        const struct template_arguments *arguments)
{
    const struct template_call c = {name, name, value, arguments};

    if (json_is_string(value))
        return TEMPLATE_RUN(text_methods, "method", r, &c);
    if (json_is_object(value))
        return TEMPLATE_RUN(object_methods, "method", r, &c);
    return template_run_entry(r, NULL, 0, "method", &c);
}
