/* Functions, and methods of objects, that a template can call, as Jinja, Python and transformers have them. */
#include "client/text/template/template_internal.h"

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

/* ---- Objects ---- */

/* items, keys, values. */
json_t *template_list_items(struct template_run *r, const struct template_call *c)
{
    const char kind = c->name->text[0], *key;
    const bool labelled = template_labels_of(r, c->value) != NULL;
    json_t *out = json_array(), *value;

    if ((!template_is_object(c->value) || template_is_loop(c->value)) && !template_is_undefined(r, c->value)) {
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

/* loop.cycle("a", "b") */
static json_t *cycle(struct template_run *r, const struct template_call *c)
{
    const unsigned n = c->arguments->n;
    const json_int_t at = json_integer_value(json_object_get(c->value, "index0"));

    for (unsigned i = 0; i < n; i++)
        if (c->arguments->names[i])
            return template_refuse(r, c);
    return n > 0 ? json_incref(c->arguments->values[(json_int_t)(at % n)]) : template_refuse(r, c);
}

static const struct template_entry object_methods[] = {{"items", template_list_items},
                                                       {"keys", template_list_items},
                                                       {"values", template_list_items},
                                                       {"get", get}};

static const struct template_entry loop_methods[] = {{"cycle", cycle}};

bool template_is_method(const json_t *value, const struct template_token *name)
{
    for (size_t i = 0; template_is_object(value) && i < sizeof object_methods / sizeof *object_methods; i++)
        if (template_is(name, TEMPLATE_NAME, object_methods[i].name))
            return true;
    return false;
}

json_t *template_method(struct template_run *r, json_t *value, const struct template_token *name,
                        const struct template_arguments *arguments)
{
    const struct template_call c = {name, name, value, arguments};

    if (json_is_string(value))
        return template_text_method(r, &c);
    if (template_is_loop(value))
        return TEMPLATE_RUN(loop_methods, "method", r, &c);
    if (template_is_object(value))
        return TEMPLATE_RUN(object_methods, "method", r, &c);
    return template_run_entry(r, NULL, 0, "method", &c);
}
