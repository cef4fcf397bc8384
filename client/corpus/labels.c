/* Names are a list, for the way from a number to its name, and a JSON object, for the way back without a search: a name
 * is in both or in none, with one number. Rows are labelled while names still arrive, so numbers change once, when all
 * are there and sorted, and never again: a model's weights mean them. A class may be given by its number only if no
 * name looks like a number; else "1" could be either. */
#include "client/corpus/labels.h"

#include "client/text/utf8.h"
#include "proto/base/number.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DIGITS = 18 }; /* fit a long long, whatever they are */

int client_labels_init(struct client_labels *out, bool numbers, struct error *err)
{
    *out = (struct client_labels){.index = json_object(), .numbers = numbers};
    return out->index ? 0 : error_memory(err);
}

void client_labels_free(struct client_labels *labels)
{
    for (uint32_t i = 0; i < labels->n; i++)
        free(labels->names[i]);
    free(labels->names);
    json_decref(labels->index);
    *labels = (struct client_labels){0};
}

static int labels_add(struct client_labels *labels, const char *name, struct error *err)
{
    const uint32_t cap = labels->cap ? 2 * labels->cap : 16;

    if (labels->n == labels->cap) {
        char **larger = realloc(labels->names, cap * sizeof *larger);
        if (!larger)
            return error_memory(err);
        labels->names = larger, labels->cap = cap;
    }
    char *copy = strdup(name);
    if (!copy || json_object_set_new(labels->index, name, json_integer(labels->n))) {
        free(copy);
        return error_memory(err);
    }
    labels->names[labels->n++] = copy;
    return 0;
}

/* A whole number, as "12" or "-3", and nothing else. */
static bool labels_is_whole(long long *out, const char *name)
{
    const char *digits = name + (*name == '-');
    const size_t n = strspn(digits, "0123456789");

    *out = n > 0 && n <= DIGITS && !digits[n] ? strtoll(name, NULL, 10) : 0;
    return n > 0 && n <= DIGITS && !digits[n];
}

static int check_name(char out[CLIENT_LABELS_NAME_BYTES], const char *name, size_t bytes, struct error *err)
{
    if (bytes == 0)
        return error_set(err, -EINVAL, "its label is empty");
    if (client_utf8_whole((const uint8_t *)name, bytes) < bytes)
        return error_set(err, -EINVAL, "its label is not UTF-8 text");
    if (bytes >= CLIENT_LABELS_NAME_BYTES)
        return error_set(err, -EINVAL, "its label '%.40s...' has %zu bytes, more than %d: is it another column?", name,
                         bytes, CLIENT_LABELS_NAME_BYTES - 1);
    for (size_t i = 0; i < bytes; i++)
        if ((unsigned char)name[i] < ' ')
            return error_set(err, -EINVAL, "its label '%.*s' has a control character in it", (int)bytes, name);
    memcpy(out, name, bytes);
    out[bytes] = 0;
    return 0;
}

/* No class of a fixed list has this name. */
static int labels_refuse_unknown(const struct client_labels *labels, const char *name, long long number, bool whole,
                                 struct error *err)
{
    char known[200];

    if (whole && labels->by_index)
        return error_set(err, -EINVAL, "its label %lld is out of range: the classes are 0 to %u", number,
                         labels->n - 1);
    client_labels_say(known, sizeof known, labels);
    return error_set(err, -EINVAL, "its label '%s' is no class of the model, which has %s", name, known);
}

int client_labels_find(uint32_t *out, struct client_labels *labels, const char *name, size_t bytes, struct error *err)
{
    char text[CLIENT_LABELS_NAME_BYTES];
    long long number;
    int rc = check_name(text, name, bytes, err);

    if (rc)
        return rc;
    const json_t *known = json_object_get(labels->index, text);
    const bool whole = labels_is_whole(&number, text);
    if (known) {
        *out = (uint32_t)json_integer_value(known);
        return 0;
    }
    if (labels->by_index && whole && number >= 0 && number < labels->n) {
        *out = (uint32_t)number;
        return 0;
    }
    if (labels->fixed)
        return labels_refuse_unknown(labels, text, number, whole, err);
    if (labels->n == CLIENT_LABELS_MOST)
        return error_set(err, -E2BIG, "its label is the %u-th that differs, and there can be %d: is it another column?",
                         labels->n + 1, CLIENT_LABELS_MOST);
    *out = labels->n;
    return labels_add(labels, text, err);
}

static void fix(struct client_labels *labels)
{
    char *end;

    labels->fixed = labels->by_index = true;
    for (uint32_t i = 0; i < labels->n; i++) {
        strtod(labels->names[i], &end);
        labels->by_index = labels->by_index && *end;
    }
}

struct sorted {
    char *name;
    long long number; /* 0 unless all are numbers */
    uint32_t from;
};

static int labels_by_name(const void *a, const void *b)
{
    const struct sorted *x = a, *y = b;

    if (x->number != y->number)
        return x->number < y->number ? -1 : 1;
    return strcmp(x->name, y->name);
}

int client_labels_sort(struct client_labels *labels, uint32_t *to, struct error *err)
{
    struct sorted *list = calloc(labels->n + 1, sizeof *list);
    bool whole = true;

    if (!list)
        return error_memory(err);
    for (uint32_t i = 0; i < labels->n; i++) {
        list[i] = (struct sorted){labels->names[i], 0, i};
        whole = labels_is_whole(&list[i].number, list[i].name) && whole;
    }
    for (uint32_t i = 0; i < labels->n && !whole; i++)
        list[i].number = 0;
    qsort(list, labels->n, sizeof *list, labels_by_name);
    for (uint32_t i = 0; i < labels->n; i++) {
        labels->names[i] = list[i].name;
        to[list[i].from] = i;
        json_integer_set(json_object_get(labels->index, list[i].name), i);
    }
    fix(labels);
    free(list);
    return 0;
}

int client_labels_check(const struct client_labels *labels, const char *every, struct error *err)
{
    if (labels->numbers || labels->n >= 2)
        return 0;
    return error_set(err, -EINVAL, "%s '%s': a classifier needs two classes", every, labels->n ? labels->names[0] : "");
}

int client_labels_number(uint32_t *out, const char *text, size_t bytes, struct error *err)
{
    char copy[64], *end = copy;
    const size_t n = bytes < sizeof copy ? bytes : 0;

    memcpy(copy, text, n);
    copy[n] = 0;
    const float number = strtof(copy, &end);
    if (n == 0 || end != copy + n || !isfinite(number))
        return error_set(err, -EINVAL, "its label '%.*s' is not a number, which --task regress needs",
                         (int)(bytes < 40 ? bytes : 40), text);
    *out = number_pattern(number);
    return 0;
}

/* Takes id2label; its keys are "0" to "n - 1". */
static int labels_take_names(struct client_labels *labels, const json_t *names, uint32_t n, struct error *err)
{
    char key[32], made[CLIENT_LABELS_NAME_BYTES];
    uint32_t at;
    int rc = 0;

    for (uint32_t i = 0; !rc && i < n; i++) {
        snprintf(key, sizeof key, "%u", i);
        snprintf(made, sizeof made, "LABEL_%u", i);
        const json_t *name = json_object_get(names, key);
        if (names && !json_is_string(name))
            return error_set(err, -EINVAL, "id2label has no name for %u: it must have one for each of %u labels", i, n);
        if (json_object_get(labels->index, names ? json_string_value(name) : made))
            return error_set(err, -EINVAL, "id2label has the name '%.60s' twice", json_string_value(name));
        rc = client_labels_find(&at, labels, names ? json_string_value(name) : made,
                                names ? json_string_length(name) : strlen(made), err);
        if (rc)
            error_prefix(err, "id2label");
    }
    return rc;
}

int client_labels_take(struct client_labels *labels, const char *config, size_t bytes, uint32_t n, struct error *err)
{
    json_t *root = json_loadb(config, bytes, 0, NULL);
    const json_t *names = json_object_get(root, "id2label");
    const int rc = labels_take_names(labels, json_is_object(names) ? names : NULL, n, err);

    json_decref(root);
    fix(labels);
    return rc;
}

void client_labels_say(char *out, size_t cap, const struct client_labels *labels)
{
    size_t used = (size_t)snprintf(out, cap, "%u classes:", labels->n);

    for (uint32_t i = 0; i < labels->n; i++) {
        const size_t n = strlen(labels->names[i]);
        if (used + n + 8 > cap) {
            snprintf(out + used, cap - used, "%s ...", i ? "," : "");
            return;
        }
        used += (size_t)snprintf(out + used, cap - used, "%s %s", i ? "," : "", labels->names[i]);
    }
}
