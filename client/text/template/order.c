/* Filters that compare the elements of a list: sort, unique, min, max, dictsort; and sum.
 *
 * Elements are compared as Python compares them: numbers with numbers, texts by their characters, lists item by item;
 * anything else is refused. Texts are compared in lower case unless case_sensitive is given. */
#include "client/text/template/template_internal.h"

#include <stdlib.h>
#include <string.h>

int template_compare(struct template_run *r, const struct template_token *at, const json_t *a, const json_t *b)
{
    if (template_is_number(a) && template_is_number(b))
        return template_compare_numbers(a, b);
    if (json_is_string(a) && json_is_string(b)) {
        const size_t n_a = json_string_length(a), n_b = json_string_length(b);
        template_charge(r, n_a < n_b ? n_a : n_b);
        const int order = memcmp(json_string_value(a), json_string_value(b), n_a < n_b ? n_a : n_b);
        return order < 0 ? -1 : order > 0 ? 1 : n_a < n_b ? -1 : n_a > n_b;
    }
    if (json_is_array(a) && json_is_array(b) && !template_is_undefined(r, a) && !template_is_undefined(r, b)) {
        const size_t n_a = json_array_size(a), n_b = json_array_size(b);
        for (size_t i = 0; !r->rc && i < n_a && i < n_b; i++)
            if (!template_equal(r, json_array_get(a, i), json_array_get(b, i)))
                return template_compare(r, at, json_array_get(a, i), json_array_get(b, i));
        return n_a < n_b ? -1 : n_a > n_b;
    }
    template_fail(r, at, "%s and %s have no order", template_type(r, a), template_type(r, b));
    return 0;
}

/* value.a.b, of the path "a.b"; digits are an index. */
static json_t *follow_path(struct template_run *r, const struct template_token *at, json_t *value, const char *path,
                           size_t n)
{
    json_t *found = json_incref(value);

    for (size_t from = 0, to; found && from <= n; from = to + 1) {
        for (to = from; to < n && path[to] != '.';)
            to++;
        const size_t digits = strspn(path + from, "0123456789");
        const bool is_index = digits > 0 && digits < 10 && from + digits == to;
        json_t *key = is_index ? json_integer(atoi(path + from)) : template_string(r, path + from, to - from);
        json_t *inner = key ? template_member(r, at, found, key) : NULL;
        json_decref(key);
        json_decref(found);
        found = inner;
    }
    return found;
}

json_t *template_attribute(struct template_run *r, const struct template_token *at, json_t *value,
                           const json_t *attribute)
{
    if (template_is_integer(attribute))
        return template_member(r, at, value, attribute);
    if (!json_is_string(attribute))
        return template_fail(r, at, "an attribute is %s, not a text", template_type(r, attribute));
    return follow_path(r, at, value, json_string_value(attribute), json_string_length(attribute));
}

/* The key of an element: itself, or its attribute; with `several`, a list of all in "a,b". */
struct keys {
    const struct template_token *at;
    const json_t *attribute; /* NULL: none */
    bool several, sensitive;
};

static json_t *order_folded(struct template_run *r, const struct keys *keys, json_t *key)
{
    if (!key || keys->sensitive || !json_is_string(key))
        return key;
    json_t *lower = template_lower(r, key);
    json_decref(key);
    return lower;
}

static json_t *order_key_of(struct template_run *r, const struct keys *keys, json_t *item)
{
    const char *path = json_string_value(keys->attribute);
    const size_t n = json_string_length(keys->attribute);

    if (!keys->attribute)
        return order_folded(r, keys, json_incref(item));
    if (!keys->several || !path || !memchr(path, ',', n))
        return order_folded(r, keys, template_attribute(r, keys->at, item, keys->attribute));
    json_t *out = json_array();
    for (size_t from = 0, to; !r->rc && from <= n; from = to + 1) {
        for (to = from; to < n && path[to] != ',';)
            to++;
        template_append(r, out, order_folded(r, keys, follow_path(r, keys->at, item, path + from, to - from)));
    }
    return out;
}

/* Keys of all elements, in their order; NULL: a failure. */
static json_t *keys_of(struct template_run *r, const struct keys *keys, json_t *items)
{
    json_t *out = json_array();

    for (size_t i = 0; !r->rc && i < json_array_size(items); i++)
        template_append(r, out, order_key_of(r, keys, json_array_get(items, i)));
    if (!r->rc)
        return out;
    json_decref(out);
    return NULL;
}

static bool is_true_argument(const struct template_run *r, const struct template_call *c, unsigned position,
                             const char *name)
{
    const json_t *value = template_argument(c->arguments, position, name);

    return value && template_truth(r, value);
}

static json_t *attribute_argument(const struct template_call *c, unsigned position)
{
    json_t *attribute = template_argument(c->arguments, position, "attribute");

    return json_is_null(attribute) ? NULL : attribute;
}

/* Fails where a call has an argument of another name, or too many. */
static bool has_only(struct template_run *r, const struct template_call *c, const char *const *names)
{
    for (unsigned i = 0; i < c->arguments->n; i++) {
        const struct template_token *name = c->arguments->names[i];
        bool known = false;
        for (unsigned k = 0; names[k]; k++)
            known = known || (name ? template_is(name, TEMPLATE_NAME, names[k]) : k == i);
        if (!known)
            template_refuse(r, c);
    }
    return r->rc == 0;
}

/* Sorts indices (n) by their keys, stably, by merging; spare: room for n. */
static void sort_indices(struct template_run *r, const struct keys *keys, const json_t *list, bool down, size_t *at,
                         size_t *spare, size_t n)
{
    if (n < 2 || r->rc)
        return;
    const size_t half = n / 2;
    size_t a = 0, b = half;
    sort_indices(r, keys, list, down, at, spare, half);
    sort_indices(r, keys, list, down, at + half, spare, n - half);
    for (size_t i = 0; i < n && !r->rc; i++) {
        int order = 0;
        if (a < half && b < n)
            order = template_compare(r, keys->at, json_array_get(list, at[b]), json_array_get(list, at[a]));
        template_charge(r, TEMPLATE_TOKEN_WORK);
        const bool second = a == half || (b < n && (down ? order > 0 && order != TEMPLATE_UNORDERED : order < 0));
        spare[i] = second ? at[b++] : at[a++];
    }
    memcpy(at, spare, n * sizeof *at);
}

/* The elements in the order of their keys. */
static json_t *sorted(struct template_run *r, const struct keys *keys, json_t *items, bool down)
{
    const size_t n = json_array_size(items);
    size_t *at = calloc(2 * n + 1, sizeof *at);
    json_t *list = at ? keys_of(r, keys, items) : template_no_memory(r), *out = json_array();

    for (size_t i = 0; list && i < n; i++)
        at[i] = i;
    if (list)
        sort_indices(r, keys, list, down, at, at + n, n);
    for (size_t i = 0; list && !r->rc && i < n; i++)
        template_append(r, out, json_incref(json_array_get(items, at[i])));
    json_decref(list);
    free(at);
    if (!r->rc)
        return out;
    json_decref(out);
    return NULL;
}

/* sort(reverse=false, case_sensitive=false, attribute=none) */
json_t *template_sort(struct template_run *r, const struct template_call *c)
{
    static const char *const names[] = {"reverse", "case_sensitive", "attribute", NULL};
    const struct keys keys = {c->at, attribute_argument(c, 2), true, is_true_argument(r, c, 1, "case_sensitive")};
    json_t *items = has_only(r, c, names) ? template_list(r, c->at, c->value) : NULL,
           *out = items ? sorted(r, &keys, items, is_true_argument(r, c, 0, "reverse")) : NULL;

    json_decref(items);
    return out;
}

/* dictsort(case_sensitive=false, by="key", reverse=false): [key, value] of each member. */
json_t *template_sort_object(struct template_run *r, const struct template_call *c)
{
    static const char *const names[] = {"case_sensitive", "by", "reverse", NULL};
    size_t n;
    const char *by = template_text_of(r, c, 1, "by", &n);
    const bool values = by && strcmp(by, "value") == 0;
    json_t *index = json_integer(values);
    const struct keys keys = {c->at, index, false, is_true_argument(r, c, 0, "case_sensitive")};
    const struct template_token name = {.kind = TEMPLATE_NAME, .text = "items", .n = 5};
    const struct template_arguments none = {.n = 0};
    const struct template_call items_of = {&name, c->at, c->value, &none};
    json_t *items = NULL, *out = NULL;

    if (!r->rc && (!by || values || strcmp(by, "key") == 0) && has_only(r, c, names) && json_is_object(c->value))
        items = template_list_items(r, &items_of);
    else
        template_refuse(r, c);
    if (items)
        out = sorted(r, &keys, items, is_true_argument(r, c, 2, "reverse"));
    json_decref(items);
    json_decref(index);
    return out;
}

/* unique(case_sensitive=false, attribute=none): the first of each key. */
json_t *template_unique(struct template_run *r, const struct template_call *c)
{
    static const char *const names[] = {"case_sensitive", "attribute", NULL};
    const struct keys keys = {c->at, attribute_argument(c, 1), false, is_true_argument(r, c, 0, "case_sensitive")};
    json_t *items = has_only(r, c, names) ? template_list(r, c->at, c->value) : NULL,
           *list = items ? keys_of(r, &keys, items) : NULL, *seen = json_array(), *out = json_array();

    for (size_t i = 0; list && !r->rc && i < json_array_size(items); i++) {
        json_t *key = json_array_get(list, i);
        bool found = false;
        for (size_t k = 0; !found && !r->rc && k < json_array_size(seen); k++) {
            template_charge(r, TEMPLATE_TOKEN_WORK);
            found = template_equal(r, json_array_get(seen, k), key);
        }
        if (!found) {
            template_append(r, seen, json_incref(key));
            template_append(r, out, json_incref(json_array_get(items, i)));
        }
    }
    json_decref(seen);
    json_decref(list);
    json_decref(items);
    if (!r->rc)
        return out;
    json_decref(out);
    return NULL;
}

/* min and max (case_sensitive=false, attribute=none): the first of those that are equal; of none, undefined. */
json_t *template_extreme(struct template_run *r, const struct template_call *c)
{
    static const char *const names[] = {"case_sensitive", "attribute", NULL};
    const struct keys keys = {c->at, attribute_argument(c, 1), false, is_true_argument(r, c, 0, "case_sensitive")};
    const bool most = c->name->text[1] == 'a';
    json_t *items = has_only(r, c, names) ? template_list(r, c->at, c->value) : NULL,
           *list = items ? keys_of(r, &keys, items) : NULL, *out = NULL;
    size_t best = 0;

    for (size_t i = 1; list && !r->rc && i < json_array_size(list); i++) {
        const int order = template_compare(r, c->at, json_array_get(list, i), json_array_get(list, best));
        if (order != TEMPLATE_UNORDERED && (most ? order > 0 : order < 0))
            best = i;
    }
    if (list && !r->rc)
        out = json_incref(json_array_size(items) > 0 ? json_array_get(items, best) : r->undefined);
    json_decref(list);
    json_decref(items);
    return out;
}

/* sum(attribute=none, start=0) */
json_t *template_sum(struct template_run *r, const struct template_call *c)
{
    static const char *const names[] = {"attribute", "start", NULL};
    static const struct template_token plus = {TEMPLATE_OPERATOR, "+", 1, NULL};
    const json_t *attribute = attribute_argument(c, 0);
    json_t *start = template_argument(c->arguments, 1, "start"), *items = NULL,
           *sum = start ? json_incref(start) : json_integer(0);

    if (has_only(r, c, names))
        items = template_list(r, c->at, c->value);
    for (size_t i = 0; !r->rc && i < json_array_size(items); i++) {
        json_t *item = json_array_get(items, i),
               *value = attribute ? template_attribute(r, c->at, item, attribute) : json_incref(item);
        json_t *next = value ? template_operate(r, c->at, &plus, sum, value) : NULL;
        json_decref(value);
        json_decref(sum);
        sum = next;
    }
    json_decref(items);
    if (!r->rc)
        return sum;
    json_decref(sum);
    return NULL;
}
