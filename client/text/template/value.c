/* Values of a template: Python's truth, equality, members, slices and str(). */
#include "client/text/template/template_internal.h"

#include "proto/base/dump.h"
#include "proto/base/wide.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool template_is_undefined(const struct template_run *r, const json_t *value)
{
    return value == r->undefined;
}

bool template_truth(const struct template_run *r, const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_OBJECT: /* a wide number is not 0 */
        return json_object_size(value) > 0 || template_is_namespace(r, value);
    case JSON_ARRAY:
        return json_array_size(value) > 0;
    case JSON_STRING:
        return json_string_length(value) > 0;
    case JSON_INTEGER:
        return json_integer_value(value) != 0;
    case JSON_REAL:
        return json_real_value(value) != 0;
    case JSON_TRUE:
        return true;
    case JSON_FALSE:
    case JSON_NULL:
        return false;
    }
    return false;
}

bool template_is_object(const json_t *value)
{
    return json_is_object(value) && !wide_spelling(value);
}

const char *template_type(const struct template_run *r, const json_t *value)
{
    static const char *const names[] = {
        [JSON_OBJECT] = "an object",   [JSON_ARRAY] = "a list", [JSON_STRING] = "a text", [JSON_INTEGER] = "a number",
        [JSON_REAL] = "a real number", [JSON_TRUE] = "true",    [JSON_FALSE] = "false",   [JSON_NULL] = "none"};

    return template_is_undefined(r, value)   ? "an undefined value"
           : template_is_wide_integer(value) ? "a number"
           : wide_spelling(value)            ? "a real number"
           : template_is_loop(value)         ? "a loop"
                                             : names[json_typeof(value)];
}

/* Charged before it is added, so that a text grows no further than the work that is left. */
bool template_add(struct template_run *r, struct template_text *text, const char *bytes, size_t n)
{
    return template_charge(r, n) && (client_text_add(&text->bytes, bytes, n, NULL) == 0 || template_no_memory(r)) &&
           template_labels_reserve(r, text);
}

bool template_add_part(struct template_run *r, struct template_text *text, const json_t *string, size_t from, size_t n)
{
    const struct template_labelled *known = template_labels_of(r, string);
    const size_t at = text->bytes.n;

    if (!template_add(r, text, json_string_value(string) + from, n))
        return false;
    for (size_t i = 0; known && i < n; i++)
        text->labels[at + i] = known->labels ? known->labels[from + i] : CLIENT_LABEL_UNTRUSTED;
    return true;
}

void template_text_free(struct template_text *text)
{
    free(text->bytes.bytes);
    free(text->labels);
    *text = (struct template_text){0};
}

bool template_print(struct template_run *r, const struct template_token *at, struct template_text *text,
                    const json_t *value)
{
    const char *wide = wide_spelling(value);
    char number[DUMP_REAL_BYTES];

    if (template_is_undefined(r, value))
        return r->rc == 0;
    if (json_is_real(value))
        return template_add(r, text, number, dump_real(number, json_real_value(value)));
    if (wide) {
        wide = *wide == 'N' ? "nan" : *wide == 'I' ? "inf" : wide[1] == 'I' ? "-inf" : wide;
        return template_add(r, text, wide, strlen(wide));
    }
    if (json_is_string(value))
        return template_add_part(r, text, value, 0, json_string_length(value));
    if (json_is_integer(value))
        return template_add(r, text, number,
                            (size_t)snprintf(number, sizeof number, "%" JSON_INTEGER_FORMAT,
                                             json_integer_value(value)));
    if (json_is_boolean(value))
        return template_add(r, text, json_is_true(value) ? "True" : "False", json_is_true(value) ? 4 : 5);
    if (json_is_null(value))
        return template_add(r, text, "None", 4);
    template_fail(r, at, "%s cannot be printed%s", template_type(r, value),
                  template_is_loop(value) ? "" : " except by the filter tojson");
    return false;
}

json_t *template_string(struct template_run *r, const char *bytes, size_t n)
{
    if (!template_charge(r, n + TEMPLATE_TOKEN_WORK))
        return NULL;
    json_t *out = json_stringn(n > 0 ? bytes : "", n);
    return out ? out : template_no_memory(r);
}

json_t *template_part(struct template_run *r, const json_t *string, size_t from, size_t n)
{
    const struct template_labelled *known = template_labels_of(r, string);
    json_t *out = template_string(r, json_string_value(string) + from, n);

    return out && known ? template_labels_set(r, out, known->labels ? known->labels + from : NULL) : out;
}

json_t *template_take(struct template_run *r, struct template_text *text)
{
    json_t *out = r->rc ? NULL : template_string(r, text->bytes.bytes, text->bytes.n);

    for (size_t i = 0; out && text->labels && i < text->bytes.n; i++) {
        if (text->labels[i]) {
            out = template_labels_set(r, out, text->labels);
            break;
        }
    }
    template_text_free(text);
    return out;
}

bool template_append(struct template_run *r, json_t *list, json_t *value)
{
    if (!value || !template_charge(r, TEMPLATE_ELEMENT_WORK)) {
        json_decref(value);
        return false;
    }
    return json_array_append_new(list, value) == 0 || template_no_memory(r);
}

/* False: value holds more than `left` lists and objects in one another. Counts its bytes as work. */
static bool is_shallow(struct template_run *r, const json_t *value, unsigned left)
{
    const char *key;
    json_t *item;
    size_t i;

    if (!template_charge(r, TEMPLATE_TOKEN_WORK + json_string_length(value)) || left == 0)
        return false;
    json_array_foreach(value, i, item)
    {
        if (!is_shallow(r, item, left - 1))
            return false;
    }
    json_object_foreach((json_t *)value, key, item)
    {
        template_charge(r, strlen(key));
        if (!is_shallow(r, item, left - 1))
            return false;
    }
    return true;
}

static bool lists_equal(struct template_run *r, const json_t *a, const json_t *b)
{
    bool equal = json_array_size(a) == json_array_size(b);

    for (size_t i = 0; equal && i < json_array_size(a); i++)
        equal = template_equal(r, json_array_get(a, i), json_array_get(b, i));
    return equal;
}

static bool objects_equal(struct template_run *r, const json_t *a, const json_t *b)
{
    const char *key;
    json_t *value;

    if (template_is_namespace(r, a) || template_is_namespace(r, b))
        return a == b;
    if (json_object_size(a) != json_object_size(b))
        return false;
    json_object_foreach((json_t *)(uintptr_t)a, key, value)
    {
        const json_t *other = json_object_get(b, key);
        if (!other || !template_equal(r, value, other))
            return false;
    }
    return true;
}

/* 1 and 1.0 are equal, as in Python. Depth is checked before recursion, which the values of a conversation could make
 * too deep. */
bool template_equal(struct template_run *r, const json_t *a, const json_t *b)
{
    if (template_is_undefined(r, a) || template_is_undefined(r, b))
        return a == b;
    if (template_is_number(a) || template_is_number(b))
        return template_is_number(a) && template_is_number(b) && template_compare_numbers(a, b) == 0;
    if (json_typeof(a) != json_typeof(b) || !is_shallow(r, a, TEMPLATE_MAX_VALUE_DEPTH + 8))
        return false;
    return json_is_array(a) ? lists_equal(r, a, b) : json_is_object(a) ? objects_equal(r, a, b) : json_equal(a, b);
}

/* A namespace in itself would have no end; so no namespace is in anything. */
bool template_check_member(struct template_run *r, const struct template_token *at, const json_t *value)
{
    if (template_is_namespace(r, value))
        template_fail(r, at, "a namespace cannot be a member of another value");
    else if (!is_shallow(r, value, TEMPLATE_MAX_VALUE_DEPTH))
        template_fail(r, at, "more than %d lists and objects in one another", TEMPLATE_MAX_VALUE_DEPTH);
    return r->rc == 0;
}

/* Of a text its characters, of an object its keys. What is made of an untrusted value is untrusted. */
json_t *template_list(struct template_run *r, const struct template_token *at, json_t *value)
{
    const char *key, *text = json_string_value(value);
    const size_t n_all = json_string_length(value);
    const bool labelled = template_labels_of(r, value) != NULL;
    json_t *out, *item;

    if (json_is_array(value))
        return json_incref(value);
    if ((!template_is_object(value) || template_is_loop(value)) && !text)
        return template_fail(r, at, "%s has no elements", template_type(r, value));
    out = json_array();
    json_object_foreach(value, key, item)
    {
        json_t *name = template_string(r, key, strlen(key));
        template_append(r, out, name && labelled ? template_labels_set(r, name, NULL) : name);
    }
    for (size_t from = 0, n; !r->rc && from < n_all; from += n) {
        n = (size_t)client_utf8_character((const uint8_t *)text + from, n_all - from);
        template_append(r, out, template_part(r, value, from, n));
    }
    return out;
}

/* A bound of a slice as Python has it: from the end if negative, at most n, or n - 1 downwards. */
static bool read_bound(json_int_t *out, const json_t *value, json_int_t n, bool down)
{
    if (!value || json_is_null(value))
        return true;
    if (!template_is_integer(value))
        return false;
    const json_int_t at = template_integer(value), least = down ? -1 : 0, most = down ? n - 1 : n;
    *out = at < 0 ? at < -n ? least : at + n : at;
    *out = *out > most ? most : *out < least ? least : *out;
    return true;
}

json_t *template_slice(struct template_run *r, const struct template_token *at, json_t *value, const json_t *from,
                       const json_t *to, const json_t *step)
{
    if ((!json_is_array(value) && !json_is_string(value)) || template_is_undefined(r, value))
        return template_fail(r, at, "%s has no slices", template_type(r, value));
    json_t *items = template_list(r, at, value), *out = json_array();
    const json_int_t n = (json_int_t)json_array_size(items);
    const bool is_step = step && !json_is_null(step);
    json_int_t stride = is_step && template_is_integer(step) ? template_integer(step) : is_step ? 0 : 1;
    const bool down = stride < 0;
    json_int_t begin = down ? n - 1 : 0, end = down ? -1 : n;
    struct template_text text = {0};

    if (stride == 0 || !read_bound(&begin, from, n, down) || !read_bound(&end, to, n, down))
        template_fail(r, at, "a slice needs numbers, and a step that is not 0");
    stride = stride > n ? n + 1 : stride < -n ? -n - 1 : stride; /* no further than out */
    for (json_int_t i = begin; !r->rc && (down ? i > end : i < end); i += stride) {
        json_t *item = json_array_get(items, (size_t)i);
        if (json_is_string(value))
            template_add_part(r, &text, item, 0, json_string_length(item));
        else
            template_append(r, out, json_incref(item));
    }
    json_decref(items);
    if (json_is_string(value) || r->rc) {
        json_decref(out);
        return template_take(r, &text);
    }
    return out;
}

/* What is not there is undefined; only an undefined value itself has no members at all. */
json_t *template_member(struct template_run *r, const struct template_token *at, json_t *value, const json_t *key)
{
    json_t *found = NULL;

    if (template_is_undefined(r, value)) {
        if (json_is_string(key))
            return template_fail(r, at, "an undefined value has no member %.60s", json_string_value(key));
        return template_fail(r, at, "an undefined value has no members");
    }
    if (template_is_object(value) && json_is_string(key)) {
        found = json_object_getn(value, json_string_value(key), json_string_length(key));
    } else if (template_is_integer(key) && (json_is_array(value) || json_is_string(value))) {
        json_t *items = template_list(r, at, value);
        const json_int_t n = (json_int_t)json_array_size(items), i = template_integer(key);
        if (i >= -n && i < n)
            found = json_array_get(items, (size_t)(i < 0 ? i + n : i));
        found = json_incref(found ? found : r->undefined);
        json_decref(items);
        if (!r->rc)
            return found;
        json_decref(found);
        return NULL;
    }
    if (!found && template_is_loop(value) && json_is_string(key) && strcmp(json_string_value(key), "previtem") != 0 &&
        strcmp(json_string_value(key), "nextitem") != 0)
        return template_fail(r, at, "the attribute %.40s of loop is not supported", json_string_value(key));
    return json_incref(found ? found : r->undefined);
}
