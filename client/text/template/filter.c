/* Filters and tests that a template can name, as Jinja and transformers have them. */
#include "client/text/template/template_internal.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* ---- Filters ---- */

static json_t *length(struct template_run *r, const struct template_call *c)
{
    if (!template_charge(r, json_string_length(c->value)))
        return NULL;
    if (json_is_string(c->value))
        return json_integer((json_int_t)client_utf8_count(json_string_value(c->value), json_string_length(c->value)));
    if (!json_is_array(c->value) && !json_is_object(c->value))
        return template_refuse(r, c);
    return json_integer((json_int_t)(json_is_array(c->value) ? json_array_size(c->value) : json_object_size(c->value)));
}

/* As Python's json.dumps, which writes escapes in lower case. */
static json_t *tojson(struct template_run *r, const struct template_call *c)
{
    const json_int_t indent = template_integer_of(r, c, 1, "indent", 0);
    const json_t *ascii = template_argument(c->arguments, TEMPLATE_MAX_ARGUMENTS, "ensure_ascii");
    const bool indents = template_argument(c->arguments, 1, "indent") != NULL;

    if (c->arguments->n > (indents ? 1u : 0u) + (json_is_false(ascii) ? 1u : 0u) || indent < 0 || indent > 31 ||
        template_is_undefined(r, c->value) || r->rc)
        return template_refuse(r, c);
    const uint64_t before = r->work; /* a dump has up to 6 bytes for one, and the indent */
    if (!template_check_member(r, c->at, c->value) || !template_charge(r, (r->work - before) * (6 + (uint64_t)indent)))
        return NULL;
    char *text = json_dumps(c->value, JSON_ENCODE_ANY | (indent > 0 ? JSON_INDENT((size_t)indent) : 0));
    if (!text)
        return template_no_memory(r);
    for (char *at = text; (at = strchr(at, '\\')) != NULL; at += 2)
        for (int i = 2; at[1] == 'u' && i < 6; i++)
            at[i] = (char)tolower((unsigned char)at[i]);
    json_t *out = template_string(r, text, strlen(text));
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

static json_t *to_integer(struct template_run *r, const struct template_call *c)
{
    const char *text = json_string_value(c->value);
    char *end;

    if (template_is_integer(c->value))
        return json_integer(template_integer(c->value));
    const long long number = text && *text ? strtoll(text, &end, 10) : 0;
    return text && *text && !*end && strlen(text) < 18 ? json_integer(number) : template_refuse(r, c);
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

static json_t *itself(struct template_run *r, const struct template_call *c)
{
    return c->arguments->n > 0 ? template_refuse(r, c) : json_incref(c->value);
}

static json_t *run_filter(struct template_run *r, const struct template_call *c);
static json_t *run_test(struct template_run *r, const struct template_call *c);

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
static json_t *choose(struct template_run *r, const struct template_call *c)
{
    const bool rejects = c->name->text[0] == 'r', member = c->name->n > 6;
    json_t *items = template_list(r, c->at, c->value), *out = json_array(), *item;
    size_t i;

    if (member && (c->arguments->n == 0 || !json_is_string(c->arguments->values[0]) || c->arguments->names[0]))
        template_refuse(r, c);
    json_array_foreach(items, i, item)
    {
        json_t *value = r->rc    ? NULL
                        : member ? template_member(r, c->at, item, c->arguments->values[0])
                                 : json_incref(item);
        json_t *test = value && c->arguments->n > member ? apply(r, c, member, value, run_test) : json_incref(value);
        if (test && template_truth(r, test) != rejects)
            template_append(r, out, json_incref(item));
        json_decref(test);
        json_decref(value);
    }
    json_decref(items);
    return out;
}

/* map(attribute="role"), map("trim"). */
static json_t *map(struct template_run *r, const struct template_call *c)
{
    const json_t *attribute = template_argument(c->arguments, TEMPLATE_MAX_ARGUMENTS, "attribute");
    json_t *items = template_list(r, c->at, c->value), *out = json_array(), *item;
    size_t i;

    json_array_foreach(items, i, item)
    {
        if (!r->rc)
            template_append(r, out,
                            attribute && c->arguments->n == 1 ? template_member(r, c->at, item, attribute)
                                                              : apply(r, c, 0, item, run_filter));
    }
    json_decref(items);
    return out;
}

static json_t *run_filter(struct template_run *r, const struct template_call *c)
{
    static const struct template_entry filters[] = {{"trim", template_strip},
                                                    {"length", length},
                                                    {"count", length},
                                                    {"tojson", tojson},
                                                    {"list", to_list},
                                                    {"join", join_filter},
                                                    {"default", or_default},
                                                    {"d", or_default},
                                                    {"string", to_string},
                                                    {"int", to_integer},
                                                    {"first", end_item},
                                                    {"last", end_item},
                                                    {"reverse", reverse},
                                                    {"safe", itself},
                                                    {"items", template_list_items},
                                                    {"replace", template_replace},
                                                    {"upper", template_change_case},
                                                    {"lower", template_change_case},
                                                    {"capitalize", template_change_case},
                                                    {"select", choose},
                                                    {"reject", choose},
                                                    {"selectattr", choose},
                                                    {"rejectattr", choose},
                                                    {"map", map}};

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

/* ---- Tests ---- */

static json_t *is_equal(struct template_run *r, const struct template_call *c)
{
    const char kind = c->name->text[0];

    if (c->arguments->n != 1)
        return template_refuse(r, c);
    return json_boolean(template_equal(r, c->value, c->arguments->values[0]) == (kind != 'n'));
}

static json_t *is_in(struct template_run *r, const struct template_call *c)
{
    json_t *box = template_argument(c->arguments, 0, NULL), *item;
    size_t i;

    if (!json_is_array(box))
        return template_refuse(r, c);
    json_array_foreach(box, i, item)
    {
        if (template_equal(r, c->value, item))
            return json_true();
    }
    return json_false();
}

/* Tests of a value's type. */
static json_t *is_type(struct template_run *r, const struct template_call *c)
{
    const json_t *v = c->value;
    const bool undefined = template_is_undefined(r, v), space = template_is_namespace(r, v);
    const struct {
        const char *name;
        bool is;
    } types[] = {{"defined", !undefined},
                 {"undefined", undefined},
                 {"none", json_is_null(v)},
                 {"string", json_is_string(v)},
                 {"mapping", json_is_object(v) && !space},
                 {"iterable", json_is_string(v) || json_is_array(v) || (json_is_object(v) && !space)},
                 {"sequence", json_is_string(v) || json_is_array(v) || (json_is_object(v) && !space)},
                 {"number", template_is_integer(v) || json_is_real(v)},
                 {"integer", json_is_integer(v)},
                 {"boolean", json_is_boolean(v)},
                 {"true", json_is_true(v)},
                 {"false", json_is_false(v)}};

    for (size_t i = 0; c->arguments->n == 0 && i < sizeof types / sizeof *types; i++)
        if (template_is(c->name, TEMPLATE_NAME, types[i].name))
            return json_boolean(types[i].is);
    return template_refuse(r, c);
}

/* odd, even. */
static json_t *is_odd(struct template_run *r, const struct template_call *c)
{
    if (!template_is_integer(c->value))
        return template_refuse(r, c);
    return json_boolean((template_integer(c->value) % 2 != 0) == (c->name->text[0] == 'o'));
}

static json_t *run_test(struct template_run *r, const struct template_call *c)
{
    static const struct template_entry tests[] = {{"defined", is_type},  {"undefined", is_type}, {"none", is_type},
                                                  {"string", is_type},   {"mapping", is_type},   {"iterable", is_type},
                                                  {"sequence", is_type}, {"number", is_type},    {"integer", is_type},
                                                  {"boolean", is_type},  {"true", is_type},      {"false", is_type},
                                                  {"equalto", is_equal}, {"eq", is_equal},       {"ne", is_equal},
                                                  {"in", is_in},         {"odd", is_odd},        {"even", is_odd}};

    return TEMPLATE_RUN(tests, "test", r, c);
}

json_t *template_test(struct template_run *r, json_t *value, const struct template_token *name,
                      const struct template_arguments *arguments)
{
    const struct template_call c = {name, name, value, arguments};

    return run_test(r, &c);
}
