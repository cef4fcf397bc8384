/* Expressions of a template, with Jinja's precedence: or, and, not, comparisons, sums, ~, products, powers and signs.
 * Their operands are in operand.c. */
#include "client/text/template/template_internal.h"

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
    json_t *out = value && r->live ? template_negative(r, at, value) : json_incref(value);

    json_decref(value);
    return out;
}

/* A sign binds closer than a filter: -x|abs is (-x)|abs, so only the outermost sign applies filters. */
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

json_t *template_operate(struct template_run *r, const struct template_token *at, const struct template_token *sign,
                         json_t *a, json_t *b)
{
    const char op = sign->text[0];
    const bool undefined = template_is_undefined(r, a) || template_is_undefined(r, b);

    if (op == '~' || (op == '+' && json_is_string(a) && json_is_string(b)))
        return join_texts(r, at, a, b);
    if (op == '+' && json_is_array(a) && json_is_array(b) && !undefined)
        return join_lists(r, a, b);
    return template_calculate(r, at, sign, a, b);
}

/* Operators of one level, from the left: sums, then ~, then products, then powers. */
static json_t *operation(struct template_run *r, unsigned level)
{
    static const char *const operators[][5] = {{"+", "-"}, {"~"}, {"*", "/", "//", "%"}, {"**"}};
    json_t *value = level < 3 ? operation(r, level + 1) : sign(r, true);

    while (value) {
        const struct template_token *at = r->at;
        bool found = false;
        for (unsigned i = 0; !found && operators[level][i]; i++)
            found = template_accept(r, TEMPLATE_OPERATOR, operators[level][i]);
        if (!found)
            break;
        json_t *right = level < 3 ? operation(r, level + 1) : sign(r, true);
        json_t *out = !right ? NULL : r->live ? template_operate(r, at, at, value, right) : json_null();
        json_decref(value);
        json_decref(right);
        value = out;
    }
    return value;
}

/* Nothing is in an undefined value, which is an empty array. */
static bool expression_contains(struct template_run *r, const struct template_token *at, json_t *box,
                                const json_t *value)
{
    size_t i;
    json_t *item;

    if (json_is_string(box) && json_is_string(value)) {
        template_charge(r, json_string_length(box));
        return memmem(json_string_value(box), json_string_length(box), json_string_value(value),
                      json_string_length(value)) != NULL;
    }
    if (template_is_object(box))
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

static bool expression_compare(struct template_run *r, const struct template_token *at, int which, json_t *a, json_t *b)
{
    switch (which) {
    case 0:
    case 1:
        return template_equal(r, a, b) == (which == 0);
    case 2:
    case 3:
    case 4:
    case 5: {
        const int order = template_compare(r, at, a, b);
        if (order == TEMPLATE_UNORDERED)
            return false;
        return which == 2 ? order < 0 : which == 3 ? order > 0 : which == 4 ? order <= 0 : order >= 0;
    }
    default:
        return expression_contains(r, at, b, a) == (which == 6);
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
        all = right && r->live && all && expression_compare(r, at, which, left, right);
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

/* Counted, not nested: however many there are, they take no depth. */
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
