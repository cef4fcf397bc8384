/* transformers saves an inner config as its difference from its class's defaults, but an outer one in full. So what is
 * required of a config of its own may be missing here, and the defaults of the family are those of the class. The inner
 * config is right in all but the keys of take_outer, which transformers reads from the outer one. A config that is of a
 * family itself is none of these, whatever it contains. */
#include "proto/model/wrapper.h"

#include "proto/base/text.h"
#include "proto/model/family.h"
#include "proto/model/config/model_config_print.h"

#include <jansson.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TIED "tie_word_embeddings"

static const char *const outer_keys[] = {TIED, "dtype", "torch_dtype", QUANTIZED_KEY, NULL};

#define QWEN2_VL                                                                                                       \
    "{\"hidden_size\": 8192, \"intermediate_size\": 29568, \"max_window_layers\": 80, \"num_attention_heads\": 64, "   \
    "\"num_hidden_layers\": 80, \"num_key_value_heads\": 8, \"rms_norm_eps\": 1e-05, \"rope_theta\": 1000000.0, "      \
    "\"vocab_size\": 152064}"

/* Text models with a class of their own in transformers, that compute what those of a family do: rotary positions in
 * three dimensions (mrope) are equal in all three where there is text alone. */
static const struct alias {
    const char *type, *outer, *family;
    const char *defaults; /* of its class, where the family's are others */
} aliases[] = {
    {"qwen2_vl_text", "qwen2_vl", "qwen2", QWEN2_VL},
    {"qwen2_5_vl_text", "qwen2_5_vl", "qwen2", QWEN2_VL},
    {"qwen3_vl_text", "qwen3_vl", "qwen3", "{\"max_position_embeddings\": 128000, \"rope_theta\": 500000.0}"},
};

static bool has_word(const json_t *object, const char *key, const char *word)
{
    const char *value = json_string_value(json_object_get(object, key));

    return value && strcmp(value, word) == 0;
}

static int put_default_rope(json_t *text, const char *object)
{
    static const char *const types[] = {"type", "rope_type"};
    json_t *rope = json_object_get(text, object);
    int rc = 0;

    json_object_del(rope, "mrope_section");
    json_object_del(rope, "mrope_interleaved");
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (has_word(rope, types[i], "mrope"))
            rc |= json_object_set_new(rope, types[i], json_string("default"));
    return rc;
}

/* Gives a text_config of such a class the form of its family's. */
static int resolve_alias(json_t *text)
{
    for (const struct alias *a = aliases; a < aliases + sizeof aliases / sizeof *aliases; a++) {
        if (!has_word(text, "model_type", a->type))
            continue;
        json_t *defaults = json_loads(a->defaults, 0, NULL);
        int rc = defaults ? json_object_update_missing(text, defaults) : -1;
        rc |= json_object_set_new(text, "model_type", json_string(a->family));
        rc |= put_default_rope(text, "rope_parameters") | put_default_rope(text, "rope_scaling");
        json_object_del(text, "architectures");
        json_decref(defaults);
        return rc;
    }
    return 0;
}

/* Keys that transformers leaves in the wrapper where it finds the text model's beside them. */
static bool is_outer(const char *key)
{
    static const char *const kept[] = {
        "architectures", "model_type", "transformers_version", "_name_or_path", "image_token_id", "video_token_id",
        "vision_*",      NULL};

    return family_lists(outer_keys, key) || family_lists(kept, key) || text_ends_with(key, "_config");
}

/* Files of such wrappers before transformers 4.52 have the text model's keys beside their own. */
static int nest(json_t *wrapper)
{
    const struct alias *a = aliases, *end = aliases + sizeof aliases / sizeof *aliases;
    const char *key;
    json_t *value;
    void *next;

    while (a < end && !has_word(wrapper, "model_type", a->outer))
        a++;
    if (a == end || json_object_get(wrapper, "text_config"))
        return 0;
    json_t *text = json_pack("{s:s}", "model_type", a->type);
    int rc = text ? 0 : -1;
    json_object_foreach_safe(wrapper, next, key, value)
    {
        if (is_outer(key))
            continue;
        rc |= json_object_set(text, key, value);
        json_object_del(wrapper, key);
    }
    return rc | json_object_set_new(wrapper, "text_config", text);
}

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
    int rc = 0;

    for (size_t i = 0; !rc && outer_keys[i]; i++) {
        json_t *value = json_object_get(wrapper, outer_keys[i]);
        if (value && !json_is_null(value))
            rc = json_object_set(text, outer_keys[i], value);
    }
    return rc;
}

/* "vision": of each other config within this one. */
static void write_note(char note[WRAPPER_NOTE_BYTES], const json_t *wrapper)
{
    static const char end[] = "_config", other[] = QUANTIZED_KEY;
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
    json_t *wrapper = json_loadb(text, n, JSON_REJECT_DUPLICATES, NULL);
    const bool formed = nest(wrapper) == 0 && resolve_alias(json_object_get(wrapper, "text_config")) == 0;
    json_t *inner = json_object_get(wrapper, "text_config");
    const struct family *family = formed ? family_find(inner) : NULL;
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

/* Keys of a config that wrapper_text_config has made, and none of the text_config itself. */
static bool is_made(const char *key)
{
    return family_lists(outer_keys, key) || strcmp(key, "architectures") == 0;
}

/* Changes text_config in the keys in which `now` differs from `before`. *changed: in any. */
static int put_differences(json_t *text, const json_t *before, const json_t *now, bool *changed)
{
    const char *key;
    json_t *value;
    int rc = 0;

    json_object_foreach((json_t *)(uintptr_t)now, key, value)
    {
        if (rc || is_made(key) || json_equal(value, json_object_get(before, key)))
            continue;
        rc = json_object_set(text, key, value);
        *changed = true;
    }
    json_object_foreach((json_t *)(uintptr_t)before, key, value)
    {
        if (!is_made(key) && !json_object_get(now, key))
            *changed |= json_object_del(text, key) == 0;
    }
    return rc;
}

/* The wrapper's word counts, and the text_config's, if it has one, agrees. */
static int put_tied(json_t *wrapper, const json_t *before, const json_t *now, bool *changed)
{
    json_t *value = json_object_get(now, TIED), *text = json_object_get(wrapper, "text_config");

    if (!value || json_equal(value, json_object_get(before, TIED)))
        return 0;
    *changed = true;
    return json_object_set(wrapper, TIED, value) || (json_object_get(text, TIED) && json_object_set(text, TIED, value));
}

char *wrapper_print(const char *outer, size_t n_outer, const char *inner, size_t n_inner, enum safetensors_type type)
{
    char note[WRAPPER_NOTE_BYTES], *made = wrapper_text_config(note, outer, n_outer), *whole = NULL, *out = NULL;
    json_t *wrapper = json_loadb(outer, n_outer, 0, NULL), *now = json_loadb(inner, n_inner, 0, NULL);
    json_t *before = made ? json_loads(made, 0, NULL) : NULL;
    const bool nested = nest(wrapper) == 0;
    json_t *text = json_object_get(wrapper, "text_config");
    bool changed = false;

    if (nested && before && now && model_config_name_type(&changed, text, type) == 0 &&
        put_differences(text, before, now, &changed) == 0 && put_tied(wrapper, before, now, &changed) == 0) {
        whole = changed ? model_config_text(wrapper) : strndup(outer, n_outer);
        out = whole ? model_config_print(whole, strlen(whole), type) : NULL;
    }
    json_decref(wrapper), json_decref(now), json_decref(before);
    free(made), free(whole);
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
