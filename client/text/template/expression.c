/* Expressions of a template, with Jinja's precedence: or, and, not, comparisons, sums, ~, products, signs, and what
 * follows a value. */
#include "client/text/template/template_internal.h"

#include <stdlib.h>
#include <string.h>

static json_t *disjunction(struct template_run *r);

static bool is_operator(const struct template_run *r, const char *text)
{
    return template_is(r->at, TEMPLATE_OPERATOR, text);
}

static bool is_name(const struct template_run *r, const char *text)
{
    return template_is(r->at, TEMPLATE_NAME, text);
}

static bool deepen(struct template_run *r)
{
    if (++r->depth > TEMPLATE_MAX_DEPTH)
        template_fail(r, r->at, "more than %d statements and expressions in one another", TEMPLATE_MAX_DEPTH);
    return r->rc == 0;
}

/* Only after x if y else z was read is it known whether x counts. So x is passed first, and read again if it does. */
static json_t *choice(struct template_run *r)
{
    const struct template_token *begin = r->at;
    const bool live = r->live;

    r->live = false;
    json_t *value = disjunction(r), *other = NULL;
    r->live = live;
    const bool conditional = value && is_name(r, "if");
    if (!value || (!live && !conditional))
        return value;
    json_decref(value);
    if (!conditional) {
        r->at = begin;
        return disjunction(r);
    }
    template_advance(r);
    json_t *condition = disjunction(r);
    if (!condition)
        return NULL;
    const bool first = live && template_truth(r, condition);
    json_decref(condition);
    r->live = live && !first;
    other = template_accept(r, TEMPLATE_NAME, "else") ? template_expression(r) : json_incref(r->undefined);
    r->live = live;
    if (!first || !other)
        return other;
    json_decref(other);
    const struct template_token *end = r->at;
    r->at = begin;
    value = disjunction(r);
    r->at = end;
    return value;
}

json_t *template_expression(struct template_run *r)
{
    json_t *value = deepen(r) ? choice(r) : NULL;

    r->depth--;
    return value;
}

json_t *template_plain_expression(struct template_run *r)
{
    json_t *value = deepen(r) ? disjunction(r) : NULL;

    r->depth--;
    return value;
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

static json_t *function(struct template_run *r, json_t *value, const struct template_token *name,
                        const struct template_arguments *arguments)
{
    bool found;
    json_t *text = template_call_macro(r, name, arguments, &found);

    (void)value;
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
    if (r->live && json_is_object(value) && template_is_method(value, name) && !template_is_namespace(r, value)) {
        json_decref(value);
        return template_fail(r, name, "the method %.*s is not called", (int)name->n, name->text);
    }
    json_t *key = name->kind == TEMPLATE_NAME ? template_string(r, name->text, name->n) : json_incref(name->value);
    json_t *out = !key ? NULL : r->live ? template_member(r, name, value, key) : json_null();
    json_decref(key);
    json_decref(value);
    return out;
}

static json_t *postfix(struct template_run *r, json_t *value)
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

/* ---- Values ---- */

/* The rest of a list, whose first element may have been read; takes it. */
static json_t *list(struct template_run *r, const char *end, json_t *first)
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
        return list(r, ")", NULL);
    json_t *value = template_expression(r);
    if (!value || template_accept(r, TEMPLATE_OPERATOR, ")"))
        return value;
    if (template_check_member(r, begin, value))
        return list(r, ")", value);
    json_decref(value);
    return NULL;
}

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
        struct client_text text = {0};
        template_print(r, r->at, &text, value);
        template_print(r, r->at, &text, r->at->value);
        json_decref(value);
        value = template_take(r, &text);
        template_advance(r);
    }
    return value;
}

static json_t *name(struct template_run *r)
{
    static const struct {
        const char *name;
        int value;
    } constants[] = {{"true", 1}, {"True", 1}, {"false", 0}, {"False", 0}, {"none", -1}, {"None", -1}};
    const struct template_token *at = r->at;

    template_advance(r);
    for (size_t i = 0; i < sizeof constants / sizeof *constants; i++)
        if (template_is(at, TEMPLATE_NAME, constants[i].name))
            return constants[i].value < 0 ? json_null() : json_boolean(constants[i].value);
    if (is_operator(r, "("))
        return call(r, json_null(), at, function);
    json_t *value = r->live ? template_find(r, at) : json_null();
    if (!value && template_is_function(at)) /* as in strftime_now is defined */
        return is_name(r, "is") ? json_true()
                                : template_fail(r, at, "the function %.*s is not called", (int)at->n, at->text);
    return json_incref(value ? value : r->undefined);
}

static json_t *primary(struct template_run *r)
{
    if (r->at->kind == TEMPLATE_NAME)
        return name(r);
    if (r->at->kind == TEMPLATE_LITERAL)
        return literal(r);
    if (template_accept(r, TEMPLATE_OPERATOR, "("))
        return group(r);
    if (template_accept(r, TEMPLATE_OPERATOR, "["))
        return list(r, "]", NULL);
    if (template_accept(r, TEMPLATE_OPERATOR, "{"))
        return object(r);
    const int n = r->at->n < 40 ? (int)r->at->n : 40;
    return template_fail(r, r->at, "%.*s stands where a value is expected", n > 0 ? n : 7,
                         n > 0 ? r->at->text : "the end");
}

/* ---- Operators ---- */

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
                      !is_name(r, "else") && !is_name(r, "or") && !is_name(r, "and") && !is_name(r, "if") &&
                      !is_name(r, "is") && !is_name(r, "in") && !is_name(r, "not");
    if (bare) {
        arguments.values[0] = postfix(r, primary(r));
        arguments.n = arguments.values[0] != NULL;
        out = r->rc ? NULL : r->live ? template_test(r, value, name, &arguments) : json_null();
        template_arguments_free(&arguments);
        json_decref(value);
    } else {
        out = call(r, value, name, template_test);
    }
    return out && r->live && negated ? json_boolean(!json_is_true(out)) : out;
}

static json_t *filtered(struct template_run *r, json_t *value)
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

static json_t *negative(struct template_run *r, const struct template_token *at, json_t *value)
{
    json_int_t number = 0;

    if (!value || !r->live)
        return value;
    const bool ok = template_is_integer(value) && !__builtin_sub_overflow(0, template_integer(value), &number);
    if (!ok)
        template_fail(r, at, "%s has no negative", template_type(r, value));
    json_decref(value);
    return ok ? json_integer(number) : NULL;
}

static json_t *sign(struct template_run *r, bool filters)
{
    const struct template_token *at = r->at;
    json_t *value = NULL;

    if (deepen(r)) {
        if (template_accept(r, TEMPLATE_OPERATOR, "-"))
            value = negative(r, at, sign(r, false));
        else if (template_accept(r, TEMPLATE_OPERATOR, "+"))
            value = sign(r, false);
        else
            value = primary(r);
        value = postfix(r, value);
        value = filters ? filtered(r, value) : value;
    }
    r->depth--;
    return value;
}

static json_t *join_texts(struct template_run *r, const struct template_token *at, const json_t *a, const json_t *b)
{
    struct client_text text = {0};

    if (template_print(r, at, &text, a) && template_print(r, at, &text, b))
        return template_take(r, &text);
    free(text.bytes);
    return NULL;
}

static json_t *join_lists(struct template_run *r, json_t *a, json_t *b)
{
    json_t *out = json_array(), *value;
    size_t i;

    json_array_foreach(a, i, value) template_append(r, out, json_incref(value));
    json_array_foreach(b, i, value) template_append(r, out, json_incref(value));
    return out;
}

static json_t *calculate(struct template_run *r, const struct template_token *at, json_t *a, json_t *b)
{
    const char op = at->text[0];
    const bool undefined = template_is_undefined(r, a) || template_is_undefined(r, b);

    if (op == '~')
        return join_texts(r, at, a, b);
    if (op == '+' && json_is_string(a) && json_is_string(b))
        return join_texts(r, at, a, b);
    if (op == '+' && json_is_array(a) && json_is_array(b) && !undefined)
        return join_lists(r, a, b);
    if (!template_is_integer(a) || !template_is_integer(b) || (op == '/' && at->n == 1))
        return template_fail(r, at, "%s %.*s %s is not supported", template_type(r, a), (int)at->n, at->text,
                             template_type(r, b));
    const json_int_t x = template_integer(a), y = template_integer(b);
    json_int_t z = 0;
    bool over = false;
    if (op == '+')
        over = __builtin_add_overflow(x, y, &z);
    else if (op == '-')
        over = __builtin_sub_overflow(x, y, &z);
    else if (op == '*')
        over = __builtin_mul_overflow(x, y, &z);
    else if (y == 0)
        return template_fail(r, at, "division by zero");
    else if (y == -1)
        over = op == '/' && __builtin_sub_overflow(0, x, &z);
    else { /* C rounds to 0, Python down */
        const bool down = x % y != 0 && (x < 0) != (y < 0);
        z = op == '/' ? x / y - down : x % y + (down ? y : 0);
    }
    return over ? template_fail(r, at, "a number is too large") : json_integer(z);
}

/* Operators of one level, from the left: sums, then ~, then products. */
static json_t *operation(struct template_run *r, unsigned level)
{
    static const char *const operators[][5] = {{"+", "-"}, {"~"}, {"*", "/", "//", "%"}};
    json_t *value = level < 2 ? operation(r, level + 1) : sign(r, true);

    while (value) {
        const struct template_token *at = r->at;
        bool found = false;
        for (unsigned i = 0; !found && operators[level][i]; i++)
            found = template_accept(r, TEMPLATE_OPERATOR, operators[level][i]);
        if (!found)
            break;
        json_t *right = level < 2 ? operation(r, level + 1) : sign(r, true);
        json_t *out = !right ? NULL : r->live ? calculate(r, at, value, right) : json_null();
        json_decref(value);
        json_decref(right);
        value = out;
    }
    return value;
}

static bool contains(struct template_run *r, const struct template_token *at, json_t *box, const json_t *value)
{
    size_t i;
    json_t *item;

    if (json_is_string(box) && json_is_string(value)) {
        template_charge(r, json_string_length(box));
        return memmem(json_string_value(box), json_string_length(box), json_string_value(value),
                      json_string_length(value)) != NULL;
    }
    if (json_is_object(box))
        return json_is_string(value) && json_object_getn(box, json_string_value(value), json_string_length(value));
    if (!json_is_array(box))
        template_fail(r, at, "%s in %s is not supported", template_type(r, value), template_type(r, box));
    json_array_foreach(box, i, item)
    {
        if (!template_charge(r, TEMPLATE_TOKEN_WORK) || template_equal(r, item, value))
            return true;
    }
    return false;
}

/* a < b, for numbers and for texts. */
static bool is_less(struct template_run *r, const struct template_token *at, const json_t *a, const json_t *b)
{
    if (template_is_integer(a) && template_is_integer(b))
        return template_integer(a) < template_integer(b);
    if (!json_is_string(a) || !json_is_string(b)) {
        template_fail(r, at, "%s and %s have no order", template_type(r, a), template_type(r, b));
        return false;
    }
    const size_t n_a = json_string_length(a), n_b = json_string_length(b);
    const int order = memcmp(json_string_value(a), json_string_value(b), n_a < n_b ? n_a : n_b);
    return order < 0 || (order == 0 && n_a < n_b);
}

static const char *const comparisons[] = {"==", "!=", "<", ">", "<=", ">="};

/* Which comparison is next: 0 to 5, 6 for in, 7 for not in, -1 for none; passes it. */
static int comparison(struct template_run *r)
{
    for (int i = 0; i < 6; i++)
        if (template_accept(r, TEMPLATE_OPERATOR, comparisons[i]))
            return i;
    if (template_accept(r, TEMPLATE_NAME, "in"))
        return 6;
    if (!is_name(r, "not") || !template_is(r->at + 1, TEMPLATE_NAME, "in"))
        return -1;
    template_advance(r);
    template_advance(r);
    return 7;
}

static bool compare(struct template_run *r, const struct template_token *at, int which, json_t *a, json_t *b)
{
    switch (which) {
    case 0:
    case 1:
        return template_equal(r, a, b) == (which == 0);
    case 2:
    case 5:
        return is_less(r, at, a, b) == (which == 2);
    case 3:
    case 4:
        return is_less(r, at, b, a) == (which == 3);
    default:
        return contains(r, at, b, a) == (which == 6);
    }
}

/* Comparisons can be chained, as in 0 < x < 9. */
static json_t *compared(struct template_run *r)
{
    json_t *left = operation(r, 0);
    bool any = false, all = true;

    while (left) {
        const struct template_token *at = r->at;
        const int which = comparison(r);
        if (which < 0)
            break;
        json_t *right = operation(r, 0);
        any = true;
        all = right && r->live && all && compare(r, at, which, left, right);
        json_decref(left);
        left = right;
    }
    if (!left || !any || !r->live || r->rc) {
        if (left && r->rc)
            json_decref(left);
        return r->rc ? NULL : left;
    }
    json_decref(left);
    return json_boolean(all);
}

static json_t *negated(struct template_run *r)
{
    unsigned n = 0;

    while (template_accept(r, TEMPLATE_NAME, "not"))
        n++;
    json_t *value = compared(r);
    if (!value || !r->live || n == 0)
        return value;
    const bool truth = template_truth(r, value);
    json_decref(value);
    return json_boolean(n % 2 == 0 ? truth : !truth);
}

/* and (level 1) and or (level 0); the right side is computed only if it counts. */
static json_t *logical(struct template_run *r, unsigned level)
{
    json_t *value = level == 0 ? logical(r, 1) : negated(r);

    while (value && template_accept(r, TEMPLATE_NAME, level == 0 ? "or" : "and")) {
        const bool live = r->live, decided = live && template_truth(r, value) == (level == 0);
        r->live = live && !decided;
        json_t *right = level == 0 ? logical(r, 1) : negated(r);
        r->live = live;
        if (!right || !decided) {
            json_decref(value);
            value = right;
        } else {
            json_decref(right);
        }
    }
    return value;
}

static json_t *disjunction(struct template_run *r)
{
    return logical(r, 0);
}
