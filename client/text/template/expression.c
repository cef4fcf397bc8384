/* Expressions of a template, with Jinja's precedence: or, and, not, comparisons, sums, ~, products and signs. Their
 * operands are in operand.c. */
#include "client/text/template/template_internal.h"

#include <stdlib.h>
#include <string.h>

static json_t *disjunction(struct template_run *r);

/* Only after x if y else z was read is it known whether x counts. So x is passed first, and read again if it does. */
static json_t *choice(struct template_run *r)
{
    const struct template_token *begin = r->at;
    const bool live = r->live;

    r->live = false;
    json_t *value = disjunction(r), *other = NULL;
    r->live = live;
    const bool conditional = value && template_is(r->at, TEMPLATE_NAME, "if");
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
    json_t *value = template_deepen(r) ? choice(r) : NULL;

    r->depth--;
    return value;
}

json_t *template_plain_expression(struct template_run *r)
{
    json_t *value = template_deepen(r) ? disjunction(r) : NULL;

    r->depth--;
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

    if (template_deepen(r)) {
        if (template_accept(r, TEMPLATE_OPERATOR, "-"))
            value = negative(r, at, sign(r, false));
        else if (template_accept(r, TEMPLATE_OPERATOR, "+"))
            value = sign(r, false);
        else
            value = template_operand(r);
        value = template_postfix(r, value);
        value = filters ? template_filtered(r, value) : value;
    }
    r->depth--;
    return value;
}

static json_t *join_texts(struct template_run *r, const struct template_token *at, const json_t *a, const json_t *b)
{
    struct template_text text = {0};

    if (template_print(r, at, &text, a) && template_print(r, at, &text, b))
        return template_take(r, &text);
    template_text_free(&text);
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
    if (!template_is(r->at, TEMPLATE_NAME, "not") || !template_is(r->at + 1, TEMPLATE_NAME, "in"))
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
