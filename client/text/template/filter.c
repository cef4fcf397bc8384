/* Filters that a template can name, as Jinja and transformers have them. */
#include "client/text/template/template_internal.h"

#include "proto/base/dump.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Filters ---- */

static json_t *filter_length(struct template_run *r, const struct template_call *c)
{
    if (!template_charge(r, json_string_length(c->value)))
        return NULL;
    if (json_is_string(c->value))
        return json_integer((json_int_t)client_utf8_count(json_string_value(c->value), json_string_length(c->value)));
    if (!json_is_array(c->value) && (!template_is_object(c->value) || template_is_loop(c->value)))
        return template_refuse(r, c);
    return json_integer((json_int_t)(json_is_array(c->value) ? json_array_size(c->value) : json_object_size(c->value)));
}

/* An indent: of blanks, by a number, or a text. NULL: none is given, or it is refused. text: of 32 bytes. */
static const char *read_indent(struct template_run *r, const struct template_call *c, char text[32])
{
    const json_t *given = template_argument(c->arguments, 1, "indent");
    const json_int_t n = template_is_integer(given) ? template_integer(given) : 0;

    if (!given || json_is_null(given))
        return NULL;
    if (n > 31 || (!template_is_integer(given) && (!json_is_string(given) || json_string_length(given) > 31))) {
        template_refuse(r, c);
        return NULL;
    }
    snprintf(text, 32, "%*s", n > 0 ? (int)n : 0, "");
    return json_is_string(given) ? json_string_value(given) : text;
}

/* separators=(",", ":"); false: refused. */
static bool read_separators(struct dump_form *form, const struct template_call *c)
{
    const json_t *given = template_argument(c->arguments, 2, "separators");

    if (!given || json_is_null(given))
        return true;
    form->separator = json_string_value(json_array_get(given, 0));
    form->colon = json_string_value(json_array_get(given, 1));
    return json_array_size(given) == 2 && form->separator && form->colon &&
           json_string_length(json_array_get(given, 0)) + json_string_length(json_array_get(given, 1)) < 32;
}

/* No loop, nor an undefined value, is in it. */
static bool filter_is_plain(const struct template_run *r, const json_t *value)
{
    const char *key;
    json_t *item;
    size_t i;

    if (template_is_loop(value) || template_is_undefined(r, value))
        return false;
    json_array_foreach(value, i, item)
    {
        if (!filter_is_plain(r, item))
            return false;
    }
    json_object_foreach((json_t *)(uintptr_t)value, key, item)
    {
        if (!filter_is_plain(r, item))
            return false;
    }
    return true;
}

/* tojson(ensure_ascii=false, indent=none, separators=none, sort_keys=false), as Python's json.dumps. */
static json_t *tojson(struct template_run *r, const struct template_call *c)
{
    const json_t *ascii = template_argument(c->arguments, 0, "ensure_ascii"),
                 *sorted = template_argument(c->arguments, 3, "sort_keys");
    const char *const names[] = {"ensure_ascii", "indent", "separators", "sort_keys"};
    char indent[32];
    struct dump_form form = {.indent = read_indent(r, c, indent),
                             .ascii = ascii && template_truth(r, ascii),
                             .sorted = sorted && template_truth(r, sorted)};
    unsigned known = 0;
    size_t n;

    for (unsigned i = 0; i < 4; i++)
        known += template_argument(c->arguments, i, names[i]) != NULL;
    if (known < c->arguments->n || !read_separators(&form, c) || r->rc)
        return template_refuse(r, c);
    const uint64_t before = r->work; /* a dump has up to 6 bytes for one, and the indent */
    if (!template_check_member(r, c->at, c->value) || !template_charge(r, (r->work - before) * (6 + 32)))
        return NULL;
    if (!filter_is_plain(r, c->value))
        return template_refuse(r, c);
    char *text = dump_json(&n, c->value, &form);
    if (!text)
        return template_no_memory(r);
    json_t *out = template_string(r, text, n);
    free(text);
    return out && template_labels_any(r, c->value) ? template_labels_set(r, out, NULL) : out;
}

static json_t *to_list(struct template_run *r, const struct template_call *c)
{
    return template_list(r, c->at, c->value);
}

static json_t *join_filter(struct template_run *r, const struct template_call *c)
{
    size_t n;
    const char *between = template_text_of(r, c, 0, "d", &n);

    return c->arguments->n > 1 || r->rc
               ? template_refuse(r, c)
               : template_join_all(r, c, c->value, between ? template_argument(c->arguments, 0, "d") : NULL);
}

static json_t *or_default(struct template_run *r, const struct template_call *c)
{
    const json_t *boolean = template_argument(c->arguments, 1, "boolean");
    json_t *other = template_argument(c->arguments, 0, "default_value");

    if (!template_is_undefined(r, c->value) && (!boolean || !template_truth(r, boolean) || template_truth(r, c->value)))
        return json_incref(c->value);
    return other ? json_incref(other) : template_string(r, "", 0);
}

static json_t *to_string(struct template_run *r, const struct template_call *c)
{
    struct template_text text = {0};

    template_print(r, c->at, &text, c->value);
    return template_take(r, &text);
}

/* first and last. */
static json_t *end_item(struct template_run *r, const struct template_call *c)
{
    json_t *items = template_list(r, c->at, c->value);
    const size_t n = json_array_size(items);
    json_t *item = n > 0 ? json_array_get(items, c->name->text[0] == 'f' ? 0 : n - 1) : r->undefined;

    json_incref(item);
    json_decref(items);
    if (!r->rc)
        return item;
    json_decref(item);
    return NULL;
}

static json_t *reverse(struct template_run *r, const struct template_call *c)
{
    json_t *step = json_integer(-1), *out = template_slice(r, c->at, c->value, NULL, NULL, step);

    json_decref(step);
    return out;
}

/* Of any value's text. */
static json_t *filter_trim(struct template_run *r, const struct template_call *c)
{
    struct template_call text = *c;

    if (json_is_string(c->value))
        return template_strip(r, c);
    text.value = to_string(r, c);
    json_t *out = text.value ? template_strip(r, &text) : NULL;
    json_decref(text.value);
    return out;
}

static json_t *itself(struct template_run *r, const struct template_call *c)
{
    return c->arguments->n > 0 ? template_refuse(r, c) : json_incref(c->value);
}

static json_t *run_filter(struct template_run *r, const struct template_call *c);

/* A filter or test named by argument `first`, with the arguments after it, of a value. */
static json_t *apply(struct template_run *r, const struct template_call *c, unsigned first, json_t *value,
                     template_called run)
{
    const json_t *text = c->arguments->n > first ? c->arguments->values[first] : NULL;
    struct template_arguments rest = {.n = 0};
    const struct template_token name = {TEMPLATE_NAME, json_string_value(text), json_string_length(text), NULL};

    if (!text || !name.text || c->arguments->names[first])
        return template_refuse(r, c);
    for (unsigned i = first + 1; i < c->arguments->n; i++) {
        rest.values[rest.n] = c->arguments->values[i];
        rest.names[rest.n++] = c->arguments->names[i];
    }
    const struct template_call inner = {&name, c->at, value, &rest};
    return run(r, &inner);
}

/* selectattr("role", "equalto", "user"), rejectattr, select, reject. */
static json_t *filter_choose(struct template_run *r, const struct template_call *c)
{
    const bool rejects = c->name->text[0] == 'r', member = c->name->n > 6;
    json_t *items = template_list(r, c->at, c->value), *out = json_array(), *item;
    size_t i;

    if (member && (c->arguments->n == 0 || c->arguments->names[0]))
        template_refuse(r, c);
    json_array_foreach(items, i, item)
    {
        json_t *value = r->rc    ? NULL
                        : member ? template_attribute(r, c->at, item, c->arguments->values[0])
                                 : json_incref(item);
        json_t *test =
            value && c->arguments->n > member ? apply(r, c, member, value, template_run_test) : json_incref(value);
        if (test && template_truth(r, test) != rejects)
            template_append(r, out, json_incref(item));
        json_decref(test);
        json_decref(value);
    }
    json_decref(items);
    return out;
}

/* map(attribute="role", default=""), map("trim"). */
static json_t *filter_map(struct template_run *r, const struct template_call *c)
{
    const json_t *attribute = template_argument(c->arguments, TEMPLATE_MAX_ARGUMENTS, "attribute");
    json_t *other = template_argument(c->arguments, TEMPLATE_MAX_ARGUMENTS, "default");
    json_t *items = template_list(r, c->at, c->value), *out = json_array(), *item;
    const bool by_attribute = attribute && c->arguments->n == (other ? 2 : 1);
    size_t i;

    json_array_foreach(items, i, item)
    {
        if (r->rc)
            break;
        json_t *value = by_attribute ? template_attribute(r, c->at, item, attribute) : apply(r, c, 0, item, run_filter);
        if (value && by_attribute && other && template_is_undefined(r, value)) {
            json_decref(value);
            value = json_incref(other);
        }
        template_append(r, out, value);
    }
    json_decref(items);
    return out;
}

static json_t *run_filter(struct template_run *r, const struct template_call *c)
{
    static const struct template_entry filters[] = {{"trim", filter_trim},
                                                    {"length", filter_length},
                                                    {"count", filter_length},
                                                    {"tojson", tojson},
                                                    {"list", to_list},
                                                    {"join", join_filter},
                                                    {"default", or_default},
                                                    {"d", or_default},
                                                    {"string", to_string},
                                                    {"int", template_to_integer},
                                                    {"float", template_to_real},
                                                    {"abs", template_abs},
                                                    {"round", template_round},
                                                    {"sort", template_sort},
                                                    {"dictsort", template_sort_object},
                                                    {"unique", template_unique},
                                                    {"min", template_extreme},
                                                    {"max", template_extreme},
                                                    {"sum", template_sum},
                                                    {"first", end_item},
                                                    {"last", end_item},
                                                    {"reverse", reverse},
                                                    {"safe", itself},
                                                    {"items", template_list_items},
                                                    {"replace", template_replace},
                                                    {"indent", template_indent},
                                                    {"upper", template_filter_case},
                                                    {"lower", template_filter_case},
                                                    {"capitalize", template_filter_case},
                                                    {"title", template_filter_case},
                                                    {"select", filter_choose},
                                                    {"reject", filter_choose},
                                                    {"selectattr", filter_choose},
                                                    {"rejectattr", filter_choose},
                                                    {"map", filter_map}};

    return TEMPLATE_RUN(filters, "filter", r, c);
}

json_t *template_filter(struct template_run *r, json_t *value, const struct template_token *name,
                        const struct template_arguments *arguments)
{
    const struct template_call c = {name, name, value, arguments};
    json_t *out = run_filter(r, &c);

    if (!r->rc)
        return out;
    json_decref(out);
    return NULL;
}
