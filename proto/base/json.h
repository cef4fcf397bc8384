/* proto/base/json.h - JSON that is whole, or NULL.
 *
 * jansson reports with each key whether there was memory for it. Here the value that is built becomes NULL instead, and
 * stays so: whoever builds it checks it once, at the end. */
#ifndef PROTO_BASE_JSON_H
#define PROTO_BASE_JSON_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

static inline void json_keep(json_t **value, int rc)
{
    if (rc == 0)
        return;
    json_decref(*value);
    *value = NULL;
}

/* Sets a key of the caller's own object, or appends to its own array. Both take the value. A NULL value, which there
 * was no memory for, or no memory now: *object is freed, and NULL. A NULL *object stays NULL. */
static inline void json_put(json_t **object, const char *key, json_t *value)
{
    json_keep(object, json_object_set_new(*object, key, value));
}

static inline void json_append(json_t **array, json_t *value)
{
    json_keep(array, json_array_append_new(*array, value));
}

/* As json_copy, which silently leaves out what it has no memory for. NULL: no memory, or value is NULL. */
static inline json_t *json_copy_whole(const json_t *value)
{
    json_t *copy = json_copy((json_t *)(uintptr_t)value);
    const bool lacks =
        json_object_size(copy) != json_object_size(value) || json_array_size(copy) != json_array_size(value);

    json_keep(&copy, lacks ? -1 : 0);
    return copy;
}

#endif
