/* Statements of a template, as they are run. */
#include "client/text/template/template_internal.h"

#include "proto/base/json.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The first fault counts. A sentence may end in a piece of the template, so it is cut at a character. */
json_t *template_fail(struct template_run *r, const struct template_token *at, const char *format, ...)
{
    const char *line = r->template->source;
    unsigned n_lines = 1;
    char sentence[400];
    va_list args;

    if (r->rc)
        return NULL;
    for (const char *c = line; c < at->text; c++)
        if (*c == '\n')
            n_lines++, line = c + 1;
    va_start(args, format);
    vsnprintf(sentence, sizeof sentence, format, args);
    va_end(args);
    sentence[client_utf8_whole((const uint8_t *)sentence, strlen(sentence))] = 0;
    r->rc = error_set(r->err, -EINVAL, "line %u, column %td: %s", n_lines, at->text - line + 1, sentence);
    return NULL;
}

json_t *template_no_memory(struct template_run *r)
{
    if (!r->rc)
        r->rc = error_set(r->err, -ENOMEM, "out of memory for a chat template");
    return NULL;
}

/* All that a template can repeat is charged for, so that no template runs for ever, or fills the memory. */
bool template_charge(struct template_run *r, uint64_t bytes)
{
    if (!r->rc && (r->work > TEMPLATE_MAX_WORK || bytes > TEMPLATE_MAX_WORK - r->work))
        r->rc = error_set(r->err, -E2BIG, "makes more than %d MiB of this conversation", TEMPLATE_MAX_WORK >> 20);
    r->work += r->rc ? 0 : bytes;
    return r->rc == 0;
}

void template_advance(struct template_run *r)
{
    if (r->at->kind != TEMPLATE_END)
        r->at++;
    template_charge(r, TEMPLATE_TOKEN_WORK);
}

bool template_is(const struct template_token *token, enum template_kind kind, const char *text)
{
    return token->kind == kind && (!text || (token->n == strlen(text) && memcmp(token->text, text, token->n) == 0));
}

bool template_accept(struct template_run *r, enum template_kind kind, const char *text)
{
    if (r->rc || !template_is(r->at, kind, text))
        return false;
    template_advance(r);
    return true;
}

json_t *template_expected(struct template_run *r, const char *what)
{
    const int n = r->at->n < 40 ? (int)r->at->n : 40;

    return template_fail(r, r->at, "%.*s stands where %s is expected", n > 0 ? n : 7, n > 0 ? r->at->text : "the end",
                         what);
}

bool template_expect(struct template_run *r, enum template_kind kind, const char *text)
{
    static const char *const names[] = {
        [TEMPLATE_PRINT_END] = "}}", [TEMPLATE_TAG_END] = "%}", [TEMPLATE_NAME] = "a name"};

    return template_accept(r, kind, text) || template_expected(r, text ? text : names[kind]);
}

bool template_deepen(struct template_run *r)
{
    if (++r->depth > TEMPLATE_MAX_DEPTH)
        template_fail(r, r->at, "more than %d statements and expressions in one another", TEMPLATE_MAX_DEPTH);
    return r->rc == 0;
}

/* ---- Variables ---- */

static bool run_is_named(const struct template_variable *v, const struct template_token *name)
{
    return v->n == name->n && memcmp(v->name, name->text, name->n) == 0;
}

/* Ranges are nested: each call statement adds one. */
static bool is_hidden(const struct template_run *r, size_t i)
{
    const struct template_hidden *h = r->hidden;

    while (h && (i < h->from || i >= h->to))
        h = h->outer;
    return h != NULL;
}

/* Inside a macro its own variables are seen, and then those of the outermost scope. */
json_t *template_find(struct template_run *r, const struct template_token *name)
{
    template_charge(r, r->n_variables);
    for (size_t i = r->n_variables; i-- > r->base;)
        if (run_is_named(&r->variables[i], name) && !is_hidden(r, i))
            return r->variables[i].value;
    for (size_t i = r->base > 0 ? r->n_global : 0; i-- > 0;)
        if (run_is_named(&r->variables[i], name))
            return r->variables[i].value;
    return NULL;
}

/* Sets a variable of the innermost scope and takes the value. */
bool template_set(struct template_run *r, const struct template_token *name, json_t *value)
{
    if (!value)
        return false;
    template_charge(r, r->n_variables);
    for (size_t i = r->scope; i < r->n_variables; i++) {
        if (run_is_named(&r->variables[i], name)) {
            json_decref(r->variables[i].value);
            r->variables[i].value = value;
            return true;
        }
    }
    if (r->n_variables == r->cap) {
        const size_t cap = 2 * r->cap + 32;
        struct template_variable *larger = realloc(r->variables, cap * sizeof *larger);
        if (!larger) {
            json_decref(value);
            return template_no_memory(r);
        }
        r->variables = larger, r->cap = cap;
    }
    r->variables[r->n_variables++] = (struct template_variable){name->text, name->n, value};
    return true;
}

/* The first scope that opens settles which variables are global. */
struct template_scope template_open_scope(struct template_run *r)
{
    const struct template_scope outer = {r->scope, r->base, r->n_variables, r->n_global};

    if (r->scope == 0 && r->base == 0 && r->n_global == 0)
        r->n_global = r->n_variables;
    r->scope = r->n_variables;
    return outer;
}

void template_close_scope(struct template_run *r, const struct template_scope *outer)
{
    while (r->n_variables > outer->n_variables)
        json_decref(r->variables[--r->n_variables].value);
    r->scope = outer->scope, r->base = outer->base, r->n_global = outer->n_global;
}

bool template_is_namespace(const struct template_run *r, const json_t *value)
{
    for (size_t i = 0; i < json_array_size(r->namespaces); i++)
        if (json_array_get(r->namespaces, i) == value)
            return true;
    return false;
}

/* ---- Statements ---- */

/* Runs a body into a text of its own. */
json_t *template_capture(struct template_run *r, const char *const *ends)
{
    struct template_text outer = r->out;
    const unsigned n_loops = r->n_loops;

    r->out = (struct template_text){0}, r->n_loops = 0;
    const bool ok = template_run_to(r, ends);
    struct template_text text = r->out;
    r->out = outer, r->n_loops = n_loops;
    if (ok && r->live)
        return template_take(r, &text);
    template_text_free(&text);
    return ok ? json_null() : NULL;
}

/* x, or x, y, ...: what set and for give values to. */
struct names {
    const struct template_token *list[TEMPLATE_MAX_ARGUMENTS];
    size_t n;
};

static bool run_read_names(struct template_run *r, struct names *names)
{
    names->n = 0;
    do {
        names->list[names->n++] = r->at;
        if (!template_expect(r, TEMPLATE_NAME, NULL))
            return false;
    } while (names->n < TEMPLATE_MAX_ARGUMENTS && template_accept(r, TEMPLATE_OPERATOR, ","));
    return true;
}

/* Sets a name to the value, or several to its elements. */
static bool bind(struct template_run *r, const struct names *names, json_t *value)
{
    if (names->n == 1)
        return template_set(r, names->list[0], json_incref(value));
    if (!json_is_array(value) || json_array_size(value) != names->n) {
        template_fail(r, names->list[0], "%s is not a list of %zu", template_type(r, value), names->n);
        return false;
    }
    for (size_t i = 0; i < names->n; i++)
        if (!template_set(r, names->list[i], json_incref(json_array_get(value, i))))
            return false;
    return true;
}

/* The one place where a value is changed: namespaces alone. */
static bool set_member(struct template_run *r, const struct template_token *name, const struct template_token *member,
                       json_t *value)
{
    json_t *space = template_find(r, name);

    if (!space || !template_is_namespace(r, space))
        template_fail(r, name, "%.*s is not a namespace, so its members cannot be set", (int)name->n, name->text);
    else if (template_check_member(r, member, value) && json_object_setn(space, member->text, member->n, value))
        template_no_memory(r);
    return r->rc == 0;
}

/* set x = ..., set x.y = ..., set x, y = ..., or set x and a body. */
static bool run_set(struct template_run *r)
{
    static const char *const ends[] = {"endset", NULL};
    const struct template_token *member = NULL;
    struct names names;
    json_t *value;

    if (!run_read_names(r, &names))
        return false;
    if (names.n == 1 && template_accept(r, TEMPLATE_OPERATOR, ".")) {
        member = r->at;
        if (!template_expect(r, TEMPLATE_NAME, NULL))
            return false;
    }
    if (template_accept(r, TEMPLATE_OPERATOR, "="))
        value = template_expression(r);
    else if (names.n == 1 && (template_is(r->at, TEMPLATE_TAG_END, NULL) || template_is(r->at, TEMPLATE_OPERATOR, "|")))
        value = template_filtered_body(r, r->at, ends);
    else
        return template_expect(r, TEMPLATE_OPERATOR, "=");
    if (value && template_expect(r, TEMPLATE_TAG_END, NULL) && r->live) {
        if (member)
            set_member(r, names.list[0], member, value);
        else
            bind(r, &names, value);
    }
    json_decref(value);
    return r->rc == 0;
}

/* Conditions are computed up to the first that holds; all others are read only. */
static bool run_if(struct template_run *r)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    const bool live = r->live;
    bool taken = false, conditional = true;

    for (;;) {
        bool now = live && !taken;
        if (conditional) {
            r->live = now;
            json_t *value = template_expression(r);
            now = value && now && template_truth(r, value);
            json_decref(value);
        }
        r->live = now;
        const bool ok = template_expect(r, TEMPLATE_TAG_END, NULL) && template_run_to(r, ends);
        r->live = live;
        if (!ok || r->jump)
            return ok;
        taken = taken || now;
        if (template_accept(r, TEMPLATE_NAME, "endif"))
            return template_expect(r, TEMPLATE_TAG_END, NULL);
        if (!conditional) {
            template_fail(r, r->at, "a branch follows else");
            return false;
        }
        conditional = template_is(r->at, TEMPLATE_NAME, "elif");
        template_advance(r);
    }
}

struct loop {
    struct names names;
    const struct template_token *condition, *body; /* condition: NULL, none */
};

/* Keeps the elements for which the loop's condition holds. */
static json_t *run_choose(struct template_run *r, const struct loop *loop, json_t *items)
{
    json_t *chosen = json_array();

    for (size_t i = 0; !r->rc && i < json_array_size(items); i++) {
        const struct template_scope outer = template_open_scope(r);
        json_t *value = NULL;
        if (bind(r, &loop->names, json_array_get(items, i))) {
            r->at = loop->condition;
            value = template_expression(r);
        }
        if (value && template_truth(r, value))
            template_append(r, chosen, json_incref(json_array_get(items, i)));
        json_decref(value);
        template_close_scope(r, &outer);
    }
    json_decref(items);
    return chosen;
}

static const char loop_key[] = "\xfe"; /* no UTF-8, so no other object has it */

bool template_is_loop(const json_t *value)
{
    return json_object_getn(value, loop_key, 1) != NULL;
}

/* The variable `loop`. */
static json_t *run_describe(struct template_run *r, const json_t *items, size_t i)
{
    const json_int_t n = (json_int_t)json_array_size(items), at = (json_int_t)i;
    json_t *loop = json_pack("{s:I,s:I,s:I,s:I,s:I,s:b,s:b,s:i,s:i}", "index0", at, "index", at + 1, "revindex0",
                             n - 1 - at, "revindex", n - at, "length", n, "first", at == 0, "last", at == n - 1,
                             "depth", 1, "depth0", 0); /* of recursive loops, which there are none of */

    json_keep(&loop, json_object_setn_new_nocheck(loop, loop_key, 1, json_null()));
    if (i > 0)
        json_put(&loop, "previtem", json_incref(json_array_get(items, i - 1)));
    if (at < n - 1)
        json_put(&loop, "nextitem", json_incref(json_array_get(items, i + 1)));
    template_charge(r, 10 * TEMPLATE_TOKEN_WORK);
    return loop ? loop : template_no_memory(r);
}

static const char *const loop_ends[] = {"else", "endfor", NULL};

/* Each element's labels say which message its text is of, as deep as the loop's body goes. */
static void run_items(struct template_run *r, const struct loop *loop, const json_t *items)
{
    static const struct template_token name = {.text = "loop", .n = 4};
    const uint16_t message = r->message;

    for (size_t i = 0; !r->rc && i < json_array_size(items) && r->jump != TEMPLATE_BREAK; i++) {
        const struct template_scope outer = template_open_scope(r);
        const struct template_labelled *labelled = template_labels_of(r, json_array_get(items, i));
        r->message = labelled && labelled->message ? labelled->message : message;
        r->jump = TEMPLATE_NO_JUMP;
        if (bind(r, &loop->names, json_array_get(items, i)) && template_set(r, &name, run_describe(r, items, i))) {
            r->at = loop->body;
            template_run_to(r, loop_ends);
        }
        template_close_scope(r, &outer);
    }
    r->message = message;
    r->jump = TEMPLATE_NO_JUMP;
}

/* for x in ...: a last pass over the body that is not live finds its end. */
static bool run_for(struct template_run *r)
{
    const bool live = r->live;
    struct loop loop = {.condition = NULL};

    if (!run_read_names(r, &loop.names))
        return false;
    const struct template_token *in = r->at;
    if (!template_expect(r, TEMPLATE_NAME, "in"))
        return false;
    json_t *value = template_plain_expression(r), *items = value && live ? template_list(r, in, value) : NULL;
    json_decref(value);
    if (template_accept(r, TEMPLATE_NAME, "if")) {
        loop.condition = r->at;
        r->live = false;
        json_decref(template_expression(r));
        r->live = live;
    }
    if (template_is(r->at, TEMPLATE_NAME, "recursive"))
        template_fail(r, r->at, "recursive loops are not supported");
    template_expect(r, TEMPLATE_TAG_END, NULL);
    loop.body = r->at;
    if (!r->rc && items && loop.condition)
        items = run_choose(r, &loop, items);
    const bool any = json_array_size(items) > 0;
    r->n_loops++;
    if (!r->rc && items)
        run_items(r, &loop, items);
    json_decref(items);
    r->live = false, r->at = loop.body;
    bool ok = !r->rc && template_run_to(r, loop_ends);
    r->n_loops--;
    r->live = live && !any;
    if (ok && template_accept(r, TEMPLATE_NAME, "else"))
        ok = template_expect(r, TEMPLATE_TAG_END, NULL) && template_run_to(r, loop_ends);
    r->live = live;
    return ok &&
           (r->jump || (template_expect(r, TEMPLATE_NAME, "endfor") && template_expect(r, TEMPLATE_TAG_END, NULL)));
}

/* ---- Bodies ---- */

static bool run_print(struct template_run *r)
{
    const struct template_token *at = r->at;
    const size_t from = r->out.bytes.n;
    json_t *value = template_expression(r);

    if (value && r->live && template_print(r, at, &r->out, value))
        template_labels_printed(r, from);
    json_decref(value);
    return template_expect(r, TEMPLATE_PRINT_END, NULL);
}

/* What {% generation %} marks is printed as if it was not marked, and labelled. */
static bool run_generation(struct template_run *r)
{
    static const char *const ends[] = {"endgeneration", NULL};
    const struct template_scope outer = template_open_scope(r);
    const size_t from = r->out.bytes.n;
    const bool ok = template_expect(r, TEMPLATE_TAG_END, NULL) && template_run_to(r, ends);

    template_labels_add(r, from, CLIENT_LABEL_GENERATED);
    if (ok && r->live && r->message && r->out.bytes.n == from)
        template_labels_empty(r);
    template_close_scope(r, &outer);
    if (!ok || r->jump)
        return ok;
    template_advance(r);
    return template_expect(r, TEMPLATE_TAG_END, NULL);
}

/* Statements that end a body are met by template_run_to, so one that is met here ends nothing. */
static bool run_statement(struct template_run *r)
{
    const struct template_token *name = r->at;

    if (template_accept(r, TEMPLATE_NAME, "if"))
        return run_if(r);
    if (template_accept(r, TEMPLATE_NAME, "for"))
        return run_for(r);
    if (template_accept(r, TEMPLATE_NAME, "set"))
        return run_set(r);
    if (template_accept(r, TEMPLATE_NAME, "macro"))
        return template_run_macro(r);
    if (template_accept(r, TEMPLATE_NAME, "generation"))
        return run_generation(r);
    if (template_accept(r, TEMPLATE_NAME, "call"))
        return template_run_call(r);
    if (template_accept(r, TEMPLATE_NAME, "filter"))
        return template_run_filter(r);
    if (template_accept(r, TEMPLATE_NAME, "with"))
        return template_run_with(r);
    if (template_is(name, TEMPLATE_NAME, "break") || template_is(name, TEMPLATE_NAME, "continue")) {
        template_advance(r);
        if (r->n_loops == 0)
            template_fail(r, name, "this %.*s is in no loop", (int)name->n, name->text);
        if (r->live)
            r->jump = name->n == 5 ? TEMPLATE_BREAK : TEMPLATE_CONTINUE;
        return template_expect(r, TEMPLATE_TAG_END, NULL);
    }
    if (name->kind == TEMPLATE_NAME && name->n > 3 && memcmp(name->text, "end", 3) == 0)
        template_fail(r, name, "%.*s ends nothing", (int)(name->n < 40 ? name->n : 40), name->text);
    else
        template_fail(r, name, "the statement %.*s is not supported", (int)(name->n < 40 ? name->n : 40), name->text);
    return false;
}

static bool run_is_one(const struct template_token *token, const char *const *names)
{
    for (; names && *names; names++)
        if (template_is(token, TEMPLATE_NAME, *names))
            return true;
    return false;
}

/* Without an end, the error stands where the body begins: its end is missing anywhere behind that. */
bool template_run_to(struct template_run *r, const char *const *ends)
{
    const struct template_token *begin = r->at;

    template_deepen(r);
    while (!r->rc && !r->jump) {
        const struct template_token *at = r->at;
        if (at->kind == TEMPLATE_END) {
            while (ends && ends[1])
                ends++;
            if (ends)
                template_fail(r, begin > r->template->tokens ? begin - 1 : begin, "there is no %s", ends[0]);
            break;
        }
        template_advance(r);
        if (at->kind == TEMPLATE_TEXT) {
            const size_t from = r->out.bytes.n;
            if (r->live && template_add(r, &r->out, at->text, at->n))
                template_labels_printed(r, from);
        } else if (at->kind == TEMPLATE_PRINT) {
            run_print(r);
        } else if (run_is_one(r->at, ends)) {
            break;
        } else {
            run_statement(r);
        }
    }
    r->depth--;
    return r->rc == 0;
}
