/* transformers saves an inner config as its difference from its class's defaults, but an outer one in full. So what is
 * required of a config of its own may be missing here, and the defaults of the family are those of the class. The inner
 * config is right in all but the keys of take_outer, which transformers reads from the outer one. A config that is of a
 * family itself is none of these, whatever it contains. */
#include "proto/model/wrapper.h"

#include "proto/model/family.h"
#include "proto/model/model_config_print.h"

#include <jansson.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A config within another one may leave out what its class in transformers assumes. */
static int fill_sizes(json_t *text, const struct family *family)
{
    struct model_config defaults;
    int rc = 0;

    family_set_defaults(&defaults, family);
    for (const struct family_key *key = family->keys; !rc && key->name; key++) {
        const bool is_size = key->type == FAMILY_COUNT || key->type == FAMILY_WIDTHS;
        if (!key->required || !is_size || json_object_get(text, key->name))
            continue;
        const uint32_t size = *(const uint32_t *)((const char *)&defaults + key->offset);
        if (size > 0)
            rc = json_object_set_new(text, key->name, json_integer(size));
    }
    return rc;
}

/* Whether the head is tied, the type of the weights, and how they are quantised: the wrapper's word counts. */
static int take_outer(json_t *text, const json_t *wrapper)
{
    static const char *const keys[] = {"tie_word_embeddings", "dtype", "torch_dtype", "quantization_config"};
    int rc = 0;

    for (size_t i = 0; !rc && i < sizeof keys / sizeof *keys; i++) {
        json_t *value = json_object_get(wrapper, keys[i]);
        if (value && !json_is_null(value))
            rc = json_object_set(text, keys[i], value);
    }
    return rc;
}

/* "vision": of each other config within this one. */
static void write_note(char note[WRAPPER_NOTE_BYTES], const json_t *wrapper)
{
    static const char end[] = "_config", other[] = "quantization_config";
    const char *class = json_string_value(json_array_get(json_object_get(wrapper, "architectures"), 0)), *name;
    int n = snprintf(note, WRAPPER_NOTE_BYTES, "text model of %.40s",
                     class ? class : json_string_value(json_object_get(wrapper, "model_type")));
    bool any = false;
    json_t *value;

    json_object_foreach((json_t *)(uintptr_t)wrapper, name, value)
    {
        const size_t length = strlen(name), stem = length - (sizeof end - 1);
        if (!json_is_object(value) || length < sizeof end || strcmp(name + stem, end) != 0 ||
            strcmp(name, "text_config") == 0 || strcmp(name, other) == 0)
            continue;
        if (n < WRAPPER_NOTE_BYTES)
            n += snprintf(note + n, (size_t)(WRAPPER_NOTE_BYTES - n), "%s%.*s", any ? " and " : " (without ", (int)stem,
                          name);
        any = true;
    }
    if (any && n < WRAPPER_NOTE_BYTES)
        snprintf(note + n, (size_t)(WRAPPER_NOTE_BYTES - n), ")");
}

char *wrapper_text_config(char note[WRAPPER_NOTE_BYTES], const char *text, size_t n)
{
    json_t *wrapper = json_loadb(text, n, JSON_REJECT_DUPLICATES, NULL),
           *inner = json_object_get(wrapper, "text_config");
    const struct family *family = family_find(inner);
    char *out = NULL;

    if (family && !family->masked && !family->has_source && !family->sees_images && !family_find(wrapper) &&
        json_is_string(json_object_get(wrapper, "model_type")) && fill_sizes(inner, family) == 0 &&
        take_outer(inner, wrapper) == 0 &&
        json_object_set_new(inner, "architectures", json_pack("[s]", family->architectures[0])) == 0) {
        write_note(note, wrapper);
        out = model_config_text(inner);
    }
    json_decref(wrapper);
    return out;
}

const char *wrapper_prefix(const char *tensor)
{
    static const char *const prefixes[] = {"language_model.", "model.language_model.", "model.text_model."};

    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++)
        if (strncmp(tensor, prefixes[i], strlen(prefixes[i])) == 0)
            return prefixes[i];
    return NULL;
}
