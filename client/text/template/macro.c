/* Macros, and statements that give a body to something: call, filter, with.
 *
 * A macro sees its own variables and the global ones. The body of a call statement is run by the macro that it calls,
 * as caller(), and sees what was seen where it is written: so the variables of the macro are hidden from it. */
#include "client/text/template/template_internal.h"

#include <stdio.h>
#include <string.h>

static const char *const macro_ends[] = {"endmacro", NULL};

/* Reads the parameters in brackets and, if live, sets them to the arguments or to their defaults. A call statement may
 * have none. */
static bool bind_parameters(struct template_run *r, const struct template_arguments *arguments, bool optional)
{
    const bool none = optional && !template_is(r->at, TEMPLATE_OPERATOR, "(");
    unsigned position = 0, used = 0;

    if (!none && !template_expect(r, TEMPLATE_OPERATOR, "("))
        return false;
    while (!none && !r->rc && !template_accept(r, TEMPLATE_OPERATOR, ")")) {
        char text[64];
        if (position > 0 && !template_expect(r, TEMPLATE_OPERATOR, ","))
            return false;
        const struct template_token *name = r->at;
        if (!template_expect(r, TEMPLATE_NAME, NULL))
            return false;
        snprintf(text, sizeof text, "%.*s", (int)(name->n < 63 ? name->n : 63), name->text);
        json_t *given = arguments ? json_incref(template_argument(arguments, position, text)) : NULL, *other = NULL;
        position++, used += given != NULL;
        if (template_accept(r, TEMPLATE_OPERATOR, "=")) {
            const bool live = r->live;
            r->live = live && !given;
            other = template_expression(r);
            r->live = live;
        }
        if (given)
            json_decref(other);
        if (r->live && !r->rc)
            template_set(r, name, given ? given : other ? other : json_incref(r->undefined));
        else
            json_decref(given ? given : other);
    }
    if (!r->rc && arguments && used < arguments->n)
        template_fail(r, r->at, "this macro is called with an argument that it does not have");
    return r->rc == 0;
}

bool template_run_macro(struct template_run *r)
{
    const struct template_token *name = r->at;
    const bool live = r->live;
    const unsigned n_loops = r->n_loops;

    if (!template_expect(r, TEMPLATE_NAME, NULL))
        return false;
    if (live && r->n_macros == TEMPLATE_MAX_MACROS) {
        template_fail(r, name, "more than %d macros", TEMPLATE_MAX_MACROS);
        return false;
    }
    if (live)
        r->macros[r->n_macros++] = name;
    r->live = false, r->n_loops = 0;
    const bool ok =
        bind_parameters(r, NULL, false) && template_expect(r, TEMPLATE_TAG_END, NULL) && template_run_to(r, macro_ends);
    r->live = live, r->n_loops = n_loops;
    template_advance(r);
    return ok && template_expect(r, TEMPLATE_TAG_END, NULL);
}

json_t *template_call_macro(struct template_run *r, const struct template_token *name,
                            const struct template_arguments *arguments, bool *found)
{
    const struct template_token *at = r->at, *macro = NULL;

    for (size_t i = 0; i < r->n_macros; i++) /* the last of this name */
        if (r->macros[i]->n == name->n && memcmp(r->macros[i]->text, name->text, name->n) == 0)
            macro = r->macros[i];
    *found = macro != NULL;
    if (!macro)
        return NULL;
    const struct template_scope outer = template_open_scope(r);
    const struct template_caller *caller = r->caller;
    json_t *text = NULL;
    r->base = r->n_variables;
    r->caller = r->called_at == name ? r->called_with : NULL;
    r->at = macro + 1;
    if (bind_parameters(r, arguments, false) && template_expect(r, TEMPLATE_TAG_END, NULL))
        text = template_capture(r, macro_ends);
    template_close_scope(r, &outer);
    r->at = at, r->caller = caller;
    return text;
}

/* ---- {% call(x) m() %} ---- */

/* The body of a call statement, and what it sees. */
struct template_caller {
    const struct template_token *parameters; /* or the end of the tag */
    size_t base, n_variables, n_global;
    const struct template_hidden *hidden;
    const struct template_caller *caller; /* of where the statement is written */
};

static const char *const call_ends[] = {"endcall", NULL};

/* Passes the call in the tag. */
static bool pass_call(struct template_run *r)
{
    const bool live = r->live;

    r->live = false;
    json_decref(template_expression(r));
    r->live = live;
    return r->rc == 0;
}

json_t *template_call_caller(struct template_run *r, const struct template_arguments *arguments)
{
    const struct template_caller *caller = r->caller;
    const struct template_token *at = r->at;
    const struct template_scope outer = template_open_scope(r);
    const struct template_hidden hides = {caller->n_variables, r->n_variables, caller->hidden}, *hidden = r->hidden;
    json_t *text = NULL;

    r->base = caller->base, r->n_global = caller->n_global, r->hidden = &hides, r->caller = caller->caller;
    r->at = caller->parameters;
    if (bind_parameters(r, arguments, true) && pass_call(r) && template_expect(r, TEMPLATE_TAG_END, NULL))
        text = template_capture(r, call_ends);
    template_close_scope(r, &outer);
    r->at = at, r->caller = caller, r->hidden = hidden;
    return text;
}

bool template_run_call(struct template_run *r)
{
    const struct template_caller caller = {r->at, r->base, r->n_variables, r->n_global, r->hidden, r->caller};
    const bool live = r->live;
    const unsigned n_loops = r->n_loops;
    const size_t from = r->out.bytes.n;

    r->live = false;
    bool ok = bind_parameters(r, NULL, true);
    r->live = live;
    const struct template_token *macro = r->at;
    if (!ok || !template_is(macro, TEMPLATE_NAME, NULL) || !template_is(macro + 1, TEMPLATE_OPERATOR, "(")) {
        template_expected(r, "a macro's call");
        return false;
    }
    const struct template_caller *called_with = r->called_with;
    const struct template_token *called_at = r->called_at;
    r->called_with = &caller, r->called_at = macro;
    json_t *text = template_expression(r);
    r->called_with = called_with, r->called_at = called_at;
    ok = text && template_expect(r, TEMPLATE_TAG_END, NULL);
    r->live = false, r->n_loops = 0;
    ok = ok && template_run_to(r, call_ends);
    r->live = live, r->n_loops = n_loops;
    if (ok && live && template_print(r, macro, &r->out, text))
        template_labels_printed(r, from);
    json_decref(text);
    template_advance(r);
    return ok && template_expect(r, TEMPLATE_TAG_END, NULL);
}

/* ---- {% filter f %}, {% set x | f %} ---- */

json_t *template_filtered_body(struct template_run *r, const struct template_token *filters, const char *const *ends)
{
    const bool live = r->live;

    r->live = false, r->at = filters;
    json_decref(template_filter_chain(r, json_null()));
    r->live = live;
    if (!template_expect(r, TEMPLATE_TAG_END, NULL))
        return NULL;
    const struct template_scope outer = template_open_scope(r);
    json_t *value = template_capture(r, ends);
    template_close_scope(r, &outer);
    template_advance(r);
    const struct template_token *end = r->at;
    r->at = filters;
    value = value && !r->rc ? template_filter_chain(r, value) : value;
    r->at = end;
    return value;
}

bool template_run_filter(struct template_run *r)
{
    static const char *const ends[] = {"endfilter", NULL};
    const struct template_token *at = r->at;
    const size_t from = r->out.bytes.n;

    if (!template_is(at, TEMPLATE_NAME, NULL)) {
        template_expected(r, "a filter");
        return false;
    }
    json_t *value = template_filtered_body(r, at, ends);
    if (value && r->live && template_print(r, at, &r->out, value))
        template_labels_printed(r, from);
    json_decref(value);
    return !r->rc && template_expect(r, TEMPLATE_TAG_END, NULL);
}

/* ---- {% with x = 1, y = 2 %} ---- */

/* The values see what was seen before the statement, not one another. */
bool template_run_with(struct template_run *r)
{
    static const char *const ends[] = {"endwith", NULL};
    const struct template_token *names[TEMPLATE_MAX_ARGUMENTS];
    json_t *values[TEMPLATE_MAX_ARGUMENTS];
    unsigned n = 0;

    while (!r->rc && !template_is(r->at, TEMPLATE_TAG_END, NULL)) {
        if (n > 0 && !template_expect(r, TEMPLATE_OPERATOR, ","))
            break;
        if (n == TEMPLATE_MAX_ARGUMENTS) {
            template_fail(r, r->at, "more than %d variables", TEMPLATE_MAX_ARGUMENTS);
            break;
        }
        names[n] = r->at;
        if (!template_expect(r, TEMPLATE_NAME, NULL) || !template_expect(r, TEMPLATE_OPERATOR, "="))
            break;
        values[n] = template_expression(r);
        n += values[n] != NULL;
    }
    const struct template_scope outer = template_open_scope(r);
    for (unsigned i = 0; i < n; i++) {
        if (r->live && !r->rc)
            template_set(r, names[i], values[i]);
        else
            json_decref(values[i]);
    }
    const bool ok = !r->rc && template_expect(r, TEMPLATE_TAG_END, NULL) && template_run_to(r, ends);
    template_close_scope(r, &outer);
    if (!ok || r->jump)
        return ok;
    template_advance(r);
    return template_expect(r, TEMPLATE_TAG_END, NULL);
}
