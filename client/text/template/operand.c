/* Operands of a template's expressions, with what follows them: members, calls, filters and tests. */
#include "client/text/template/template_internal.h"

#include <string.h>

static bool is_operator(const struct template_run *r, const char *text)
{
    return template_is(r->at, TEMPLATE_OPERATOR, text);
}

static bool operand_is_name(const struct template_run *r, const char *text)
{
    return template_is(r->at, TEMPLATE_NAME, text);
}

/* ---- What follows a value ---- */

/* The arguments of a call, after its bracket. On failure they are freed. */
static bool read_arguments(struct template_run *r, struct template_arguments *out)
{
    *out = (struct template_arguments){.n = 0};
    while (!r->rc && !template_accept(r, TEMPLATE_OPERATOR, ")")) {
        if (out->n > 0 && !template_expect(r, TEMPLATE_OPERATOR, ","))
            break;
        if (template_accept(r, TEMPLATE_OPERATOR, ")"))
            break;
        if (out->n == TEMPLATE_MAX_ARGUMENTS) {
            template_fail(r, r->at, "more than %d arguments", TEMPLATE_MAX_ARGUMENTS);
            break;
        }
        const struct template_token *name = r->at;
        if (name->kind == TEMPLATE_NAME && template_is(name + 1, TEMPLATE_OPERATOR, "=")) {
            template_advance(r);
            template_advance(r);
            out->names[out->n] = name;
        }
        out->values[out->n] = template_expression(r);
        out->n += out->values[out->n] != NULL;
    }
    if (r->rc)
        template_arguments_free(out);
    return r->rc == 0;
}

typedef json_t *(*called)(struct template_run *r, json_t *value, const struct template_token *name,
                          const struct template_arguments *arguments);

/* Calls a method, a filter or a test of this name with the arguments that follow, if any. Takes the value. */
static json_t *call(struct template_run *r, json_t *value, const struct template_token *name, called function)
{
    struct template_arguments arguments = {.n = 0};
    json_t *out = NULL;

    if (!template_accept(r, TEMPLATE_OPERATOR, "(") || read_arguments(r, &arguments))
        out = r->rc ? NULL : r->live ? function(r, value, name, &arguments) : json_null();
    template_arguments_free(&arguments);
    json_decref(value);
    return out;
}

/* A macro hides a function of the same name. */
static json_t *function(struct template_run *r, json_t *value, const struct template_token *name,
                        const struct template_arguments *arguments)
{
    bool found;

    (void)value;
    if (template_is(name, TEMPLATE_NAME, "caller") && r->caller)
        return template_call_caller(r, arguments);
    json_t *text = template_call_macro(r, name, arguments, &found);
    return found ? text : template_function(r, name, arguments);
}

/* value[...]: a member, or a slice with up to three numbers. Takes the value; *at is after the bracket. */
static json_t *subscript(struct template_run *r, json_t *value)
{
    const struct template_token *at = r->at;
    json_t *parts[3] = {NULL, NULL, NULL}, *out = NULL;
    unsigned n = 0;

    for (;; n++) {
        if (!is_operator(r, ":") && !is_operator(r, "]"))
            parts[n] = template_expression(r);
        if (r->rc || n == 2 || !template_accept(r, TEMPLATE_OPERATOR, ":"))
            break;
    }
    if (n == 0 && !parts[0])
        template_fail(r, at, "these brackets are empty");
    if (template_expect(r, TEMPLATE_OPERATOR, "]"))
        out = !r->live ? json_null()
              : n == 0 ? template_member(r, at, value, parts[0])
                       : template_slice(r, at, value, parts[0], parts[1], parts[2]);
    for (unsigned i = 0; i < 3; i++)
        json_decref(parts[i]);
    json_decref(value);
    return out;
}

/* value.name, or a method's call. Takes the value. */
static json_t *member(struct template_run *r, json_t *value)
{
    const struct template_token *name = r->at;

    if (name->kind == TEMPLATE_LITERAL && json_is_integer(name->value))
        template_advance(r);
    else if (!template_expect(r, TEMPLATE_NAME, NULL)) {
        json_decref(value);
        return NULL;
    }
    if (name->kind == TEMPLATE_NAME && is_operator(r, "("))
        return call(r, value, name, template_method);
    if (r->live && template_is_object(value) && template_is_method(value, name) && !template_is_namespace(r, value)) {
        json_decref(value);
        return template_fail(r, name, "the method %.*s is not called", (int)name->n, name->text);
    }
    json_t *key = name->kind == TEMPLATE_NAME ? template_string(r, name->text, name->n) : json_incref(name->value);
    json_t *out = !key ? NULL : r->live ? template_member(r, name, value, key) : json_null();
    json_decref(key);
    json_decref(value);
    return out;
}

json_t *template_postfix(struct template_run *r, json_t *value)
{
    while (value && r->at->kind == TEMPLATE_OPERATOR) {
        if (template_accept(r, TEMPLATE_OPERATOR, "."))
            value = member(r, value);
        else if (template_accept(r, TEMPLATE_OPERATOR, "["))
            value = subscript(r, value);
        else if (is_operator(r, "(")) {
            json_decref(value);
            return template_fail(r, r->at, "this value cannot be called");
        } else
            break;
    }
    return value;
}

/* x is [not] test, where a test may have one argument without brackets. Takes the value. */
static json_t *test(struct template_run *r, json_t *value)
{
    const bool negated = template_accept(r, TEMPLATE_NAME, "not");
    const struct template_token *name = r->at;
    struct template_arguments arguments = {.n = 0};
    json_t *out = NULL;

    if (!template_expect(r, TEMPLATE_NAME, NULL)) {
        json_decref(value);
        return NULL;
    }
    const bool bare = (r->at->kind == TEMPLATE_NAME || r->at->kind == TEMPLATE_LITERAL || is_operator(r, "[") ||
                       is_operator(r, "{")) &&
                      !operand_is_name(r, "else") && !operand_is_name(r, "or") && !operand_is_name(r, "and") &&
                      !operand_is_name(r, "if") && !operand_is_name(r, "is") && !operand_is_name(r, "in") &&
                      !operand_is_name(r, "not");
    if (bare) {
        arguments.values[0] = template_postfix(r, template_operand(r));
        arguments.n = arguments.values[0] != NULL;
        out = r->rc ? NULL : r->live ? template_test(r, value, name, &arguments) : json_null();
        template_arguments_free(&arguments);
        json_decref(value);
    } else {
        out = call(r, value, name, template_test);
    }
    return out && r->live && negated ? json_boolean(!json_is_true(out)) : out;
}

json_t *template_filtered(struct template_run *r, json_t *value)
{
    while (value) {
        if (template_accept(r, TEMPLATE_OPERATOR, "|")) {
            const struct template_token *at = r->at;
            if (!template_expect(r, TEMPLATE_NAME, NULL)) {
                json_decref(value);
                return NULL;
            }
            value = call(r, value, at, template_filter);
        } else if (template_accept(r, TEMPLATE_NAME, "is")) {
            value = test(r, value);
        } else {
            break;
        }
    }
    return value;
}

json_t *template_filter_chain(struct template_run *r, json_t *value)
{
    bool next = template_is(r->at, TEMPLATE_NAME, NULL) || template_accept(r, TEMPLATE_OPERATOR, "|");

    while (value && next) {
        const struct template_token *at = r->at;
        if (!template_expect(r, TEMPLATE_NAME, NULL)) {
            json_decref(value);
            return NULL;
        }
        value = call(r, value, at, template_filter);
        next = template_accept(r, TEMPLATE_OPERATOR, "|");
    }
    return value;
}

/* ---- Values ---- */

/* The rest of a list, whose first element may have been read; takes it. Without `live` its elements are null, and
 * nobody looks at them. */
static json_t *operand_list(struct template_run *r, const char *end, json_t *first)
{
    json_t *out = json_array();

    if (first)
        template_append(r, out, first);
    while (!r->rc && !template_accept(r, TEMPLATE_OPERATOR, end)) {
        const struct template_token *at = r->at;
        if (json_array_size(out) > 0 && !template_expect(r, TEMPLATE_OPERATOR, ","))
            break;
        if (template_accept(r, TEMPLATE_OPERATOR, end))
            break;
        json_t *value = template_expression(r);
        if (value && template_check_member(r, at, value))
            template_append(r, out, value);
        else
            json_decref(value);
    }
    if (!r->rc)
        return out;
    json_decref(out);
    return NULL;
}

/* (x), or a tuple, which is a list here. */
static json_t *group(struct template_run *r)
{
    const struct template_token *begin = r->at;

    if (is_operator(r, ")"))
        return operand_list(r, ")", NULL);
    json_t *value = template_expression(r);
    if (!value || template_accept(r, TEMPLATE_OPERATOR, ")"))
        return value;
    if (template_check_member(r, begin, value))
        return operand_list(r, ")", value);
    json_decref(value);
    return NULL;
}

/* Keys in the order in which they stand, as in Python; a later one replaces an earlier one in its place. */
static json_t *object(struct template_run *r)
{
    json_t *out = json_object();

    for (size_t n = 0; !r->rc && !template_accept(r, TEMPLATE_OPERATOR, "}"); n++) {
        if (n > 0 && !template_expect(r, TEMPLATE_OPERATOR, ","))
            break;
        if (template_accept(r, TEMPLATE_OPERATOR, "}"))
            break;
        const struct template_token *at = r->at;
        json_t *key = template_expression(r);
        json_t *value = key && template_expect(r, TEMPLATE_OPERATOR, ":") ? template_expression(r) : NULL;
        if (value && r->live && !json_is_string(key))
            template_fail(r, at, "an object's key is %s, not a text", template_type(r, key));
        else if (value && r->live && template_check_member(r, at, value) &&
                 json_object_setn(out, json_string_value(key), json_string_length(key), value))
            template_no_memory(r);
        json_decref(key);
        json_decref(value);
        template_charge(r, TEMPLATE_TOKEN_WORK);
    }
    if (!r->rc)
        return out;
    json_decref(out);
    return NULL;
}

/* Strings beside one another are one. */
static json_t *literal(struct template_run *r)
{
    json_t *value = json_incref(r->at->value);

    template_advance(r);
    while (json_is_string(value) && r->at->kind == TEMPLATE_LITERAL && json_is_string(r->at->value)) {
        struct template_text text = {0};
        template_print(r, r->at, &text, value);
        template_print(r, r->at, &text, r->at->value);
        json_decref(value);
        value = template_take(r, &text);
        template_advance(r);
    }
    return value;
}

static json_t *operand_name(struct template_run *r)
{
    static const struct {
        const char *name;
        int value;
    } constants[] = {{"true", 1}, {"True", 1}, {"false", 0}, {"False", 0}, {"none", -1}, {"None", -1}};
    static const char *const unknown[] = {"varargs", "kwargs", "self", "lipsum", "cycler", "joiner"}; /* 2: in macros */
    const struct template_token *at = r->at;

    template_advance(r);
    for (size_t i = 0; i < sizeof constants / sizeof *constants; i++)
        if (template_is(at, TEMPLATE_NAME, constants[i].name))
            return constants[i].value < 0 ? json_null() : json_boolean(constants[i].value);
    if (is_operator(r, "("))
        return call(r, json_null(), at, function);
    json_t *value = r->live ? template_find(r, at) : NULL;
    if (!r->live)
        return json_null();
    if (!value && template_is_function(at)) /* as in strftime_now is defined */
        return operand_is_name(r, "is") ? json_true()
                                        : template_fail(r, at, "the function %.*s is not called", (int)at->n, at->text);
    if (!value && template_is(at, TEMPLATE_NAME, "caller") && r->caller) /* as in if caller */
        return r->at->kind != TEMPLATE_PRINT_END ? json_true() : template_fail(r, at, "caller is not called");
    for (size_t i = r->base > 0 ? 0 : 2; !value && i < sizeof unknown / sizeof *unknown; i++)
        if (template_is(at, TEMPLATE_NAME, unknown[i]))
            return template_fail(r, at, "Jinja's variable %s is not supported", unknown[i]);
    return json_incref(value ? value : r->undefined);
}

json_t *template_operand(struct template_run *r)
{
    if (r->at->kind == TEMPLATE_NAME)
        return operand_name(r);
    if (r->at->kind == TEMPLATE_LITERAL)
        return literal(r);
    if (template_accept(r, TEMPLATE_OPERATOR, "("))
        return group(r);
    if (template_accept(r, TEMPLATE_OPERATOR, "["))
        return operand_list(r, "]", NULL);
    if (template_accept(r, TEMPLATE_OPERATOR, "{"))
        return object(r);
    return template_expected(r, "a value");
}
