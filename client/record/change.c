/* Only the batch's changes are counted with; the others are there to be told. A list that was altered by hand would
 * move a run to other rows without a word, so it is checked before it is counted with, and everything after relies on
 * that: steps do not fall, and each batch follows from the one before. */
#include "client/record/change.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

bool client_change_next(char *name, size_t cap, const char **rest)
{
    if (!*rest)
        return false;
    const size_t n = strcspn(*rest, ",");
    snprintf(name, cap, "%.*s", (int)(n < cap ? n : cap - 1), *rest);
    *rest = (*rest)[n] ? *rest + n + 1 : NULL;
    return true;
}

bool client_change_names(const char *list, const char *name)
{
    char one[40];

    while (client_change_next(one, sizeof one, &list))
        if (strcmp(one, name) == 0)
            return true;
    return false;
}

static json_int_t change_step_of(const json_t *change)
{
    return json_integer_value(json_object_get(change, "step"));
}

static bool is_batch(const json_t *change)
{
    return strcmp(json_string_value(json_object_get(change, "option")), "batch") == 0;
}

static uint32_t change_batch_of(const json_t *change, const char *key)
{
    const json_int_t n = json_integer_value(json_object_get(change, key));

    return n > 0 && n <= UINT32_MAX ? (uint32_t)n : 0;
}

/* Each batch must follow from the one before, so that rows can be counted. */
bool client_change_check(const json_t *changes, uint32_t batch)
{
    json_int_t step = 0;
    const json_t *change;
    uint32_t last = 0;
    size_t i;

    if (changes && !json_is_array(changes))
        return false;
    json_array_foreach(changes, i, change)
    {
        const json_t *from = json_object_get(change, "from"), *to = json_object_get(change, "to");
        if (!json_is_integer(json_object_get(change, "step")) || change_step_of(change) < step ||
            change_step_of(change) > (json_int_t)1 << 40 || !json_is_string(json_object_get(change, "option")) ||
            !from || !to)
            return false;
        step = change_step_of(change);
        if (!is_batch(change))
            continue;
        const uint32_t before = change_batch_of(change, "from"), after = change_batch_of(change, "to");
        if (!before || !after || (last && before != last))
            return false;
        last = after;
    }
    return !last || last == batch;
}

uint64_t client_change_rows(const json_t *changes, uint32_t batch, uint64_t step)
{
    uint64_t rows = 0, at = 0;
    const json_t *change;
    size_t i;

    json_array_foreach(changes, i, change)
    {
        const uint64_t end = (uint64_t)change_step_of(change);
        if (!is_batch(change))
            continue;
        if (step < end)
            return rows + (step - at) * change_batch_of(change, "from");
        rows += (end - at) * change_batch_of(change, "from");
        at = end;
    }
    return rows + (step - at) * batch;
}

uint64_t client_change_batch_step(const json_t *changes)
{
    const json_t *change;
    uint64_t step = 0;
    size_t i;

    json_array_foreach(changes, i, change) if (is_batch(change)) step = (uint64_t)change_step_of(change);
    return step;
}

static void say_value(char out[40], const json_t *value)
{
    if (json_is_string(value))
        snprintf(out, 40, "%s", json_string_value(value));
    else if (json_is_integer(value))
        snprintf(out, 40, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
    else if (json_is_real(value))
        snprintf(out, 40, "%g", json_real_value(value));
    else
        snprintf(out, 40, "none");
}

bool client_change_say(struct error *sentence, uint64_t *step, const json_t *changes, size_t nth)
{
    json_int_t last = -1;
    bool any = false;
    const json_t *change;
    char from[40], to[40];
    size_t i;

    json_array_foreach(changes, i, change)
    {
        if (any && change_step_of(change) != last)
            break;
        if (change_step_of(change) != last && nth-- == 0) {
            error_set(sentence, 0, "after step %" JSON_INTEGER_FORMAT ":", change_step_of(change));
            *step = (uint64_t)change_step_of(change);
            any = true;
        }
        last = change_step_of(change);
        if (!any)
            continue;
        say_value(from, json_object_get(change, "from"));
        say_value(to, json_object_get(change, "to"));
        const bool first = sentence->text[strlen(sentence->text) - 1] == ':';
        error_append(sentence, "%s %s %s to %s", first ? "" : ",", json_string_value(json_object_get(change, "option")),
                     from, to);
    }
    return any;
}
