/* Tests that a template can name, x is TEST, as Jinja has them. */
#include "client/text/template/template_internal.h"

static json_t *is_equal(struct template_run *r, const struct template_call *c)
{
    const char kind = c->name->text[0];

    if (c->arguments->n != 1)
        return template_refuse(r, c);
    return json_boolean(template_equal(r, c->value, c->arguments->values[0]) == (kind != 'n' && kind != '!'));
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
    const bool undefined = template_is_undefined(r, v),
               object = template_is_object(v) && !template_is_namespace(r, v) && !template_is_loop(v);
    const struct {
        const char *name;
        bool is;
    } types[] = {{"defined", !undefined},
                 {"undefined", undefined},
                 {"none", json_is_null(v)},
                 {"string", json_is_string(v)},
                 {"mapping", object},
                 {"iterable", json_is_string(v) || json_is_array(v) || object},
                 {"sequence", json_is_string(v) || json_is_array(v) || object},
                 {"number", template_is_number(v)},
                 {"integer", json_is_integer(v) || template_is_wide_integer(v)},
                 {"float", template_is_real(v)},
                 {"boolean", json_is_boolean(v)},
                 {"true", json_is_true(v)},
                 {"false", json_is_false(v)}};

    for (size_t i = 0; c->arguments->n == 0 && i < sizeof types / sizeof *types; i++)
        if (template_is(c->name, TEMPLATE_NAME, types[i].name))
            return json_boolean(types[i].is);
    return template_refuse(r, c);
}

/* lt, le, gt, ge, by all of their names. */
static json_t *test_is_ordered(struct template_run *r, const struct template_call *c)
{
    const char *name = c->name->text;
    const bool less = name[0] == 'l' || name[0] == '<', equal = c->name->n == 2 && (name[1] == 'e' || name[1] == '=');

    if (c->arguments->n != 1)
        return template_refuse(r, c);
    const int order = template_compare(r, c->at, c->value, c->arguments->values[0]);
    if (order == TEMPLATE_UNORDERED)
        return json_false();
    return json_boolean((equal && order == 0) || (less ? order < 0 : order > 0));
}

/* Of true, false and none alone: what else is the same object is Python's own matter. */
static json_t *test_is_same(struct template_run *r, const struct template_call *c)
{
    const json_t *other = template_argument(c->arguments, 0, "other");

    if (c->arguments->n != 1 || !(json_is_boolean(other) || json_is_null(other)))
        return template_refuse(r, c);
    return json_boolean(json_typeof(c->value) == json_typeof(other));
}

static json_t *is_divisible(struct template_run *r, const struct template_call *c)
{
    static const struct template_token sign = {TEMPLATE_OPERATOR, "%", 1, NULL};
    const json_t *by = template_argument(c->arguments, 0, "num");
    json_t *left =
        by && c->arguments->n == 1 ? template_calculate(r, c->at, &sign, c->value, by) : template_refuse(r, c);
    const bool none = left && template_is_number(left) && !template_truth(r, left);

    json_decref(left);
    return json_boolean(none);
}

/* lower, upper: a letter with a case is in the text, and none of the other case. */
static json_t *is_case(struct template_run *r, const struct template_call *c)
{
    if (!json_is_string(c->value) || c->arguments->n > 0)
        return template_refuse(r, c);
    return template_is_case(r, c->value, c->name->text[0] == 'u');
}

/* odd, even. */
static json_t *is_odd(struct template_run *r, const struct template_call *c)
{
    if (!template_is_integer(c->value))
        return template_refuse(r, c);
    return json_boolean((template_integer(c->value) % 2 != 0) == (c->name->text[0] == 'o'));
}

json_t *template_run_test(struct template_run *r, const struct template_call *c)
{
    static const struct template_entry tests[] = {{"defined", is_type},
                                                  {"undefined", is_type},
                                                  {"none", is_type},
                                                  {"string", is_type},
                                                  {"mapping", is_type},
                                                  {"iterable", is_type},
                                                  {"sequence", is_type},
                                                  {"number", is_type},
                                                  {"integer", is_type},
                                                  {"float", is_type},
                                                  {"boolean", is_type},
                                                  {"true", is_type},
                                                  {"false", is_type},
                                                  {"equalto", is_equal},
                                                  {"eq", is_equal},
                                                  {"==", is_equal},
                                                  {"ne", is_equal},
                                                  {"!=", is_equal},
                                                  {"sameas", test_is_same},
                                                  {"lt", test_is_ordered},
                                                  {"lessthan", test_is_ordered},
                                                  {"<", test_is_ordered},
                                                  {"le", test_is_ordered},
                                                  {"<=", test_is_ordered},
                                                  {"gt", test_is_ordered},
                                                  {"greaterthan", test_is_ordered},
                                                  {">", test_is_ordered},
                                                  {"ge", test_is_ordered},
                                                  {">=", test_is_ordered},
                                                  {"divisibleby", is_divisible},
                                                  {"lower", is_case},
                                                  {"upper", is_case},
                                                  {"in", is_in},
                                                  {"odd", is_odd},
                                                  {"even", is_odd}};

    return TEMPLATE_RUN(tests, "test", r, c);
}

json_t *template_test(struct template_run *r, json_t *value, const struct template_token *name,
                      const struct template_arguments *arguments)
{
    const struct template_call c = {name, name, value, arguments};

    return template_run_test(r, &c);
}
