/* Which bytes of the output come from a conversation, and of which message they are (client/text/template.h).
 *
 * A string has no room for labels, so they lie in a table by its address. A string that has been entered is kept until
 * the run ends: its address means nothing else. */
#include "client/text/template/template_internal.h"

#include <stdlib.h>
#include <string.h>

enum { LEAST_PLACES = 256 };

static size_t labels_place_of(const struct template_labels *labels, const json_t *value)
{
    const uint64_t x = (uint64_t)(uintptr_t)value * 0x9E3779B97F4A7C15;
    size_t i = (size_t)(x >> 20) & labels->mask;

    while (labels->places[i].value && labels->places[i].value != value)
        i = (i + 1) & labels->mask;
    return i;
}

static bool labels_make_room(struct template_run *r)
{
    struct template_labels *labels = &r->labels, larger = {.n = labels->n};
    const size_t n_places = labels->places ? 2 * (labels->mask + 1) : LEAST_PLACES;

    if (labels->places && 2 * labels->n <= labels->mask)
        return true;
    larger.places = calloc(n_places, sizeof *larger.places);
    if (!larger.places)
        return template_no_memory(r);
    larger.mask = n_places - 1;
    for (size_t i = 0; labels->places && i <= labels->mask; i++)
        if (labels->places[i].value)
            larger.places[labels_place_of(&larger, labels->places[i].value)] = labels->places[i];
    free(labels->places);
    *labels = larger;
    return true;
}

/* Enters a value, of which it takes a reference, and labels. */
static bool labels_enter(struct template_run *r, json_t *value, uint16_t *own, uint16_t message)
{
    if (!labels_make_room(r)) {
        free(own);
        return false;
    }
    struct template_labelled *place = &r->labels.places[labels_place_of(&r->labels, value)];
    if (place->value) { /* the caller has one value in two places */
        free(own);
        return true;
    }
    *place = (struct template_labelled){json_incref(value), own, message};
    r->labels.n++;
    return template_charge(r, TEMPLATE_ELEMENT_WORK);
}

static bool enter_all(struct template_run *r, json_t *value, unsigned left)
{
    const char *key;
    json_t *item;
    size_t i;

    if (left == 0 || (!json_is_string(value) && !json_is_array(value) && !json_is_object(value)))
        return r->rc == 0;
    if (!labels_enter(r, value, NULL, 0))
        return false;
    json_array_foreach(value, i, item)
    {
        if (!enter_all(r, item, left - 1))
            return false;
    }
    json_object_foreach(value, key, item)
    {
        if (!enter_all(r, item, left - 1))
            return false;
    }
    return true;
}

/* A message's role selects a part of the template and is checked by the caller, so it is not the conversation's
 * text. */
static bool enter_message(struct template_run *r, json_t *message, size_t index)
{
    const char *key;
    json_t *item;

    if (!json_is_object(message))
        return enter_all(r, message, TEMPLATE_MAX_VALUE_DEPTH);
    if (!labels_enter(r, message, NULL, index < CLIENT_LABEL_MESSAGE ? (uint16_t)(index + 1) : 0))
        return false;
    json_object_foreach(message, key, item)
    {
        if (strcmp(key, "role") != 0 && !enter_all(r, item, TEMPLATE_MAX_VALUE_DEPTH))
            return false;
    }
    return true;
}

bool template_labels_open(struct template_run *r, const json_t *variables)
{
    json_t *messages = json_object_get(variables, "messages"), *message;
    size_t i;

    if (!labels_make_room(r))
        return false;
    json_array_foreach(messages, i, message)
    {
        if (!enter_message(r, message, i))
            return false;
    }
    return enter_all(r, json_object_get(variables, "tools"), TEMPLATE_MAX_VALUE_DEPTH) &&
           enter_all(r, json_object_get(variables, "documents"), TEMPLATE_MAX_VALUE_DEPTH);
}

void template_labels_close(struct template_run *r)
{
    for (size_t i = 0; r->labels.places && i <= r->labels.mask; i++) {
        json_decref(r->labels.places[i].value);
        free(r->labels.places[i].labels);
    }
    free(r->labels.places);
    r->labels = (struct template_labels){0};
}

const struct template_labelled *template_labels_of(const struct template_run *r, const json_t *value)
{
    if (!r->labels.places || !value)
        return NULL;
    const struct template_labelled *place = &r->labels.places[labels_place_of(&r->labels, value)];
    return place->value ? place : NULL;
}

bool template_labels_any(const struct template_run *r, const json_t *value)
{
    const char *key;
    json_t *item;
    size_t i;

    if (!r->labels.places || template_labels_of(r, value))
        return r->labels.places != NULL;
    json_array_foreach(value, i, item)
    {
        if (template_labels_any(r, item))
            return true;
    }
    json_object_foreach((json_t *)value, key, item)
    {
        if (template_labels_any(r, item))
            return true;
    }
    return false;
}

json_t *template_labels_set(struct template_run *r, json_t *string, const uint16_t *labels)
{
    const size_t n = json_string_length(string);
    uint16_t *own = NULL;

    if (!r->labels.places || n == 0)
        return string;
    if (labels && template_charge(r, n * sizeof *own)) {
        own = malloc(n * sizeof *own);
        if (own)
            memcpy(own, labels, n * sizeof *own);
        else
            template_no_memory(r);
    }
    if (!r->rc && labels_enter(r, string, own, 0))
        return string;
    json_decref(string);
    return NULL;
}

/* Labels of bytes that have just been added are 0: the template's own. */
bool template_labels_reserve(struct template_run *r, struct template_text *text)
{
    const size_t cap = text->bytes.cap;

    if (!r->labels.places || cap <= text->cap)
        return true;
    uint16_t *larger = realloc(text->labels, cap * sizeof *larger);
    if (!larger)
        return template_no_memory(r);
    memset(larger + text->cap, 0, (cap - text->cap) * sizeof *larger);
    text->labels = larger, text->cap = cap;
    return template_charge(r, 0);
}

void template_labels_add(struct template_run *r, size_t from, uint16_t label)
{
    for (size_t i = from; r->out.labels && i < r->out.bytes.n; i++)
        r->out.labels[i] |= label;
}

void template_labels_printed(struct template_run *r, size_t from)
{
    for (size_t i = from; r->message && r->out.labels && i < r->out.bytes.n; i++)
        r->out.labels[i] = (uint16_t)((r->out.labels[i] & ~CLIENT_LABEL_MESSAGE) | r->message);
}

void template_labels_empty(struct template_run *r)
{
    if (!r->labels.places)
        return;
    if (r->n_empty == r->cap_empty) {
        const size_t cap = 2 * r->cap_empty + 16;
        uint16_t *larger = realloc(r->empty, cap * sizeof *larger);
        if (!larger) {
            template_no_memory(r);
            return;
        }
        r->empty = larger, r->cap_empty = cap;
    }
    r->empty[r->n_empty++] = r->message;
    template_charge(r, sizeof *r->empty);
}

bool template_labels_append_empty(struct template_run *r)
{
    const size_t n = r->out.bytes.n - 1; /* without the zero byte */
    uint16_t *larger = r->n_empty > 0 ? realloc(r->out.labels, (n + r->n_empty) * sizeof *larger) : NULL;

    if (r->n_empty == 0)
        return true;
    if (!larger)
        return template_no_memory(r);
    memcpy(larger + n, r->empty, r->n_empty * sizeof *larger);
    r->out.labels = larger, r->out.cap = n + r->n_empty;
    return true;
}
