/* client/text/template/template_internal.h - how a template is run.
 *
 * The template becomes a list of tokens, once. Running it reads the tokens by recursive descent and computes at the
 * same time. What must not be computed, such as a branch not taken, is read with `live` false; then every value is
 * null. So the grammar is written once, and opening a template is a run of it that is not live.
 *
 * Values are json_t, immutable except for namespaces. A function that returns json_t * returns a new reference, or NULL
 * after template_fail. */
#ifndef CLIENT_TEXT_TEMPLATE_INTERNAL_H
#define CLIENT_TEXT_TEMPLATE_INTERNAL_H

#include "client/text/template.h"
#include "client/text/tokenizer/characters/unicode.h"
#include "client/text/utf8.h"

#include <limits.h>

enum template_kind {
    TEMPLATE_TEXT,
    TEMPLATE_PRINT,     /* {{ */
    TEMPLATE_PRINT_END, /* }} */
    TEMPLATE_TAG,       /* {% */
    TEMPLATE_TAG_END,   /* %} */
    TEMPLATE_NAME,
    TEMPLATE_LITERAL, /* string or integer */
    TEMPLATE_OPERATOR,
    TEMPLATE_END
};

struct template_token {
    enum template_kind kind;
    const char *text; /* (n) in the source */
    size_t n;
    json_t *value; /* a literal's value, owned */
};

struct client_template {
    char *source; /* (n_source), owned: newlines are \n */
    size_t n_source;
    struct template_token *tokens; /* (n), owned; the last is TEMPLATE_END */
    size_t n, cap;
};

/* A growing text; with a label for each byte if the run is labelled (client/text/template.h). */
struct template_text {
    struct client_text bytes; /* owned */
    uint16_t *labels;         /* (cap), owned */
    size_t cap;
};

/* Values that have labels, by their address: all that come from a conversation, and strings that were made of them. */
struct template_labelled {
    json_t *value;    /* NULL: a free place */
    uint16_t *labels; /* (bytes of the string), owned; NULL: all of the value is untrusted */
    uint16_t message; /* 1 + its index among the messages, if it is one */
};

struct template_labels {
    struct template_labelled *places; /* (mask + 1), owned; NULL: the run is not labelled */
    size_t mask, n;
};

struct template_variable {
    const char *name; /* (n), borrowed */
    size_t n;
    json_t *value; /* owned */
};

enum {
    TEMPLATE_MAX_DEPTH = 64,       /* nesting of statements and expressions, macros included */
    TEMPLATE_MAX_VALUE_DEPTH = 64, /* nesting of lists and objects */
    TEMPLATE_MAX_ARGUMENTS = 16,
    TEMPLATE_MAX_MACROS = 256,
    TEMPLATE_MAX_NAMESPACES = 256,
    TEMPLATE_TOKEN_WORK = 16,     /* work of a token, in bytes */
    TEMPLATE_ELEMENT_WORK = 64,   /* work of a list's element, in bytes */
    TEMPLATE_MAX_WORK = 128 << 20 /* bytes made or searched in a rendering: so many bytes of values at most */
};

/* Variables that a call statement's body does not see: those of the macro that runs it. */
struct template_hidden {
    size_t from, to;
    const struct template_hidden *outer;
};

struct template_caller; /* the body of a call statement: macro.c */

struct template_run {
    const struct client_template *template;
    const struct template_token *at;
    bool live;
    unsigned depth, n_loops; /* open statements and expressions; open loops */
    uint64_t work;
    struct template_variable *variables; /* (n_variables of cap), owned, inner scopes last */
    size_t n_variables, cap;
    size_t scope; /* first variable of the innermost scope */
    size_t base;  /* first variable of the running macro, 0 outside: between the global ones and it nothing is seen */
    size_t n_global; /* variables of the outermost scope, while another one is open */
    const struct template_token *macros[TEMPLATE_MAX_MACROS]; /* names, which the parameters follow */
    size_t n_macros;
    const struct template_hidden *hidden; /* NULL: nothing */
    const struct template_caller *caller, /* what caller() runs here; NULL: the macro was called without */
        *called_with;                     /* for the macro that is called at called_at */
    const struct template_token *called_at;
    json_t *undefined;  /* the undefined value, an empty list of its own */
    json_t *namespaces; /* list of all, which have no other mark */
    struct template_text out;
    struct template_labels labels;
    uint16_t message; /* label of what is printed now; 0 outside loops over messages */
    uint16_t *empty;  /* (n_empty of cap_empty), owned: messages that a mark had nothing of */
    size_t n_empty, cap_empty;
    enum { TEMPLATE_NO_JUMP, TEMPLATE_BREAK, TEMPLATE_CONTINUE } jump;
    time_t now;
    struct error *err;
    int rc;
};

struct template_arguments {
    json_t *values[TEMPLATE_MAX_ARGUMENTS];                     /* (n), owned */
    const struct template_token *names[TEMPLATE_MAX_ARGUMENTS]; /* NULL: by position */
    unsigned n;
};

/* What a function, method, filter or test is called with. */
struct template_call {
    const struct template_token *name;
    const struct template_token *at; /* where the call is in the template: name may come from a text */
    json_t *value;                   /* the value whose method it is; NULL for a function */
    const struct template_arguments *arguments;
};

/* ---- read.c ---- */

int template_read(struct client_template *t, struct error *err);

/* Length of the white space character, as Python's, at the start of text (n >= 1); 0: none. */
size_t template_blank(const char *text);
/* The text without white space at its begin; at its end. */
void template_strip_start(const char **text, size_t *n);
void template_strip_end(const char *text, size_t *n);

/* ---- run.c ---- */

/* Fails at a token, once, with line and column; returns NULL. */
json_t *template_fail(struct template_run *r, const struct template_token *at, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
json_t *template_no_memory(struct template_run *r);

/* Counts work; false after the bound. */
bool template_charge(struct template_run *r, uint64_t bytes);
/* Goes to the next token. */
void template_advance(struct template_run *r);

bool template_is(const struct template_token *token, enum template_kind kind, const char *text);
/* Passes a token if it is next. */
bool template_accept(struct template_run *r, enum template_kind kind, const char *text);
bool template_expect(struct template_run *r, enum template_kind kind, const char *text);
/* Fails, as the next token stands where `what` is expected; returns NULL. */
json_t *template_expected(struct template_run *r, const char *what);

/* Enters a statement or an expression; r->depth-- leaves it. False: too deep. */
bool template_deepen(struct template_run *r);

/* Borrowed; NULL: unknown. */
json_t *template_find(struct template_run *r, const struct template_token *name);
/* Sets a variable of the innermost scope and takes the value; NULL is a failure. */
bool template_set(struct template_run *r, const struct template_token *name, json_t *value);
bool template_is_namespace(const struct template_run *r, const json_t *value);

/* A scope that is open; template_close_scope ends it. */
struct template_scope {
    size_t scope, base, n_variables, n_global;
};

struct template_scope template_open_scope(struct template_run *r);
void template_close_scope(struct template_run *r, const struct template_scope *outer);

/* Runs up to a statement of one of these names (NULL: the template's end), or to a jump out of a loop. */
bool template_run_to(struct template_run *r, const char *const *ends);
/* Runs a body into a text of its own. */
json_t *template_capture(struct template_run *r, const char *const *ends);

/* ---- macro.c ---- */

bool template_run_macro(struct template_run *r);
bool template_run_call(struct template_run *r);
bool template_run_filter(struct template_run *r);
bool template_run_with(struct template_run *r);

/* Reads filters, the first with or without its |, and the body after the tag; returns what the filters make of the
 * body. The end of the closing tag is next. */
json_t *template_filtered_body(struct template_run *r, const struct template_token *filters, const char *const *ends);

/* Runs the body of the call statement that called this macro. */
json_t *template_call_caller(struct template_run *r, const struct template_arguments *arguments);

/* The text that a macro makes. */
json_t *template_call_macro(struct template_run *r, const struct template_token *name,
                            const struct template_arguments *arguments, bool *found);

/* ---- expression.c: operators ---- */

json_t *template_expression(struct template_run *r);
/* a + b, a ~ b and so on, of any values: sign is the operator's token; a failure is at `at`. */
json_t *template_operate(struct template_run *r, const struct template_token *at, const struct template_token *sign,
                         json_t *a, json_t *b);
/* Without x if y else z, for the list of a loop. */
json_t *template_plain_expression(struct template_run *r);

/* ---- operand.c ---- */

/* A name, a literal, a list, an object, or an expression in brackets. */
json_t *template_operand(struct template_run *r);
/* Applies to a value, which it takes, the members, slices and calls that follow; the filters and tests. NULL stays. */
json_t *template_postfix(struct template_run *r, json_t *value);
json_t *template_filtered(struct template_run *r, json_t *value);
/* f | g(1): filters alone, the first with or without its |. Takes the value. */
json_t *template_filter_chain(struct template_run *r, json_t *value);

/* ---- value.c: what values are and how they print, as in Python ---- */

bool template_truth(const struct template_run *r, const json_t *value);
bool template_equal(struct template_run *r, const json_t *a, const json_t *b);
const char *template_type(const struct template_run *r, const json_t *value); /* "a list" */
bool template_is_undefined(const struct template_run *r, const json_t *value);
bool template_is_object(const json_t *value); /* no wide number */
bool template_is_loop(const json_t *value);   /* the variable loop */

/* Appends text of the template's own. */
bool template_add(struct template_run *r, struct template_text *text, const char *bytes, size_t n);
/* Appends n bytes of a string, with their labels. */
bool template_add_part(struct template_run *r, struct template_text *text, const json_t *string, size_t from, size_t n);
/* Appends str(value). */
bool template_print(struct template_run *r, const struct template_token *at, struct template_text *text,
                    const json_t *value);
json_t *template_string(struct template_run *r, const char *bytes, size_t n);
/* n bytes of a string as a string, with their labels. */
json_t *template_part(struct template_run *r, const json_t *string, size_t from, size_t n);
/* A string of the text, which is freed. */
json_t *template_take(struct template_run *r, struct template_text *text);
void template_text_free(struct template_text *text);

/* Appends to a list and takes the reference; NULL is a failure. */
bool template_append(struct template_run *r, json_t *list, json_t *value);
/* Refuses members that are namespaces, or lists in lists without end. */
bool template_check_member(struct template_run *r, const struct template_token *at, const json_t *value);
/* What a loop goes through: a list's elements, an object's keys, a string's characters. */
json_t *template_list(struct template_run *r, const struct template_token *at, json_t *value);
/* value[from:to:step]; NULLs are left out. */
json_t *template_slice(struct template_run *r, const struct template_token *at, json_t *value, const json_t *from,
                       const json_t *to, const json_t *step);
/* value.key or value[key]; undefined if it has none. */
json_t *template_member(struct template_run *r, const struct template_token *at, json_t *value, const json_t *key);

/* ---- number.c: Python's numbers. Reals that jansson has not, and longer integers, are wide (proto/base/wide.h) --- */

enum { TEMPLATE_UNORDERED = INT_MIN }; /* a comparison with NaN */

bool template_is_integer(const json_t *value); /* of 64 bits; a boolean is one */
json_int_t template_integer(const json_t *value);
bool template_is_wide_integer(const json_t *value);
bool template_is_real(const json_t *value); /* NaN and infinities are */
bool template_is_number(const json_t *value);
/* -1, 0, 1 or TEMPLATE_UNORDERED. */
int template_compare_numbers(const json_t *a, const json_t *b);
json_t *template_real(struct template_run *r, double x);
/* a + b and so on: sign is the operator's token; a failure is at `at`. */
json_t *template_calculate(struct template_run *r, const struct template_token *at, const struct template_token *sign,
                           const json_t *a, const json_t *b);
json_t *template_negative(struct template_run *r, const struct template_token *at, const json_t *value);

json_t *template_abs(struct template_run *r, const struct template_call *c);
json_t *template_round(struct template_run *r, const struct template_call *c);
json_t *template_to_real(struct template_run *r, const struct template_call *c);
json_t *template_to_integer(struct template_run *r, const struct template_call *c);

/* ---- order.c ---- */

/* As template_compare_numbers, of numbers, texts and lists. Others are a failure. */
int template_compare(struct template_run *r, const struct template_token *at, const json_t *a, const json_t *b);
/* value.a.b of the attribute "a.b", or an index. */
json_t *template_attribute(struct template_run *r, const struct template_token *at, json_t *value,
                           const json_t *attribute);

json_t *template_sort(struct template_run *r, const struct template_call *c);
json_t *template_sort_object(struct template_run *r, const struct template_call *c);
json_t *template_unique(struct template_run *r, const struct template_call *c);
json_t *template_extreme(struct template_run *r, const struct template_call *c);
json_t *template_sum(struct template_run *r, const struct template_call *c);

/* ---- case.c ---- */

json_t *template_lower(struct template_run *r, const json_t *string);
/* True or false: has letters of this case, and none of another. */
json_t *template_is_case(struct template_run *r, const json_t *string, bool upper);
json_t *template_change_case(struct template_run *r, const struct template_call *c); /* methods of texts */
json_t *template_filter_case(struct template_run *r, const struct template_call *c); /* filters of any value */

/* ---- labels.c: which bytes are a conversation's. Without labels each of these does nothing ---- */

/* Begins labels for a conversation's variables. */
bool template_labels_open(struct template_run *r, const json_t *variables);
void template_labels_close(struct template_run *r);
/* Makes room for the labels of a text's bytes. */
bool template_labels_reserve(struct template_run *r, struct template_text *text);
/* Gives a new string the labels (its bytes); NULL: all of it is untrusted. Takes the reference; NULL is a failure. */
json_t *template_labels_set(struct template_run *r, json_t *string, const uint16_t *labels);
/* The place of a value, or NULL. Borrowed until the next value is labelled. */
const struct template_labelled *template_labels_of(const struct template_run *r, const json_t *value);
/* True if the value is labelled, or one within it. */
bool template_labels_any(const struct template_run *r, const json_t *value);
/* Adds a label to the bytes of the output from `from` on. */
void template_labels_add(struct template_run *r, size_t from, uint16_t label);
/* Notes that a mark has nothing of the current message. */
void template_labels_empty(struct template_run *r);
/* Appends the messages of which a mark had nothing to the labels of the output, which is whole and ends with a zero
 * byte. */
bool template_labels_append_empty(struct template_run *r);
/* Notes that the bytes of the output from `from` on are printed now. */
void template_labels_printed(struct template_run *r, size_t from);

/* ---- call.c, text.c, filter.c and test.c ---- */

typedef json_t *(*template_called)(struct template_run *r, const struct template_call *c);

struct template_entry {
    const char *name;
    template_called run;
};

json_t *template_run_entry(struct template_run *r, const struct template_entry *entries, size_t n, const char *kind,
                           const struct template_call *c);
#define TEMPLATE_RUN(entries, kind, r, c) template_run_entry(r, entries, sizeof entries / sizeof *entries, kind, c)

/* Fails: the value or the arguments are not supported. */
json_t *template_refuse(struct template_run *r, const struct template_call *c);

/* An argument that is a string; NULL: absent, or the call is refused. */
const char *template_text_of(struct template_run *r, const struct template_call *c, unsigned position, const char *name,
                             size_t *n);
json_int_t template_integer_of(struct template_run *r, const struct template_call *c, unsigned position,
                               const char *name, json_int_t other);

/* Methods that are filters, too. */
json_t *template_strip(struct template_run *r, const struct template_call *c);
json_t *template_replace(struct template_run *r, const struct template_call *c);
json_t *template_indent(struct template_run *r, const struct template_call *c);
json_t *template_list_items(struct template_run *r, const struct template_call *c);
/* items joined by the string between; NULL: by nothing. */
json_t *template_join_all(struct template_run *r, const struct template_call *c, json_t *items, const json_t *between);

json_t *template_text_method(struct template_run *r, const struct template_call *c);
json_t *template_run_test(struct template_run *r, const struct template_call *c);

/* NULL: there is none. Borrowed. */
json_t *template_argument(const struct template_arguments *arguments, unsigned position, const char *name);
void template_arguments_free(struct template_arguments *arguments);

bool template_is_function(const struct template_token *name);
json_t *template_function(struct template_run *r, const struct template_token *name,
                          const struct template_arguments *arguments);
json_t *template_method(struct template_run *r, json_t *value, const struct template_token *name,
                        const struct template_arguments *arguments);
bool template_is_method(const json_t *value, const struct template_token *name); /* of values of this type */
json_t *template_filter(struct template_run *r, json_t *value, const struct template_token *name,
                        const struct template_arguments *arguments);
json_t *template_test(struct template_run *r, json_t *value, const struct template_token *name,
                      const struct template_arguments *arguments);

#endif
