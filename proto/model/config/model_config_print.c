/* jansson would set a text anew that it only reads and writes. So a text in which nothing changes is copied, and the
 * files of a model that went through eps can be compared with its own. An id beyond the vocabulary becomes null even
 * where the file has none: transformers would assume the family's id, which this vocabulary need not have. */
#include "proto/model/config/model_config_print.h"

#include "proto/base/dump.h"
#include "proto/base/json.h"
#include "proto/model/family.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

char *model_config_text(const struct json_t *config)
{
    return dump_json(NULL, config, &dump_indented);
}

/* An id beyond the vocabulary names a token that does not exist; for a missing id, transformers assumes the family's.
 * Returns true if something was changed. */
static bool drop_foreign_ids(json_t **config)
{
    static const char *const ids[] = {"bos_token_id", "eos_token_id"};
    const struct family *family = family_find(*config);
    bool changed = false;

    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
        const json_t *id = json_object_get(*config, ids[i]), *size = json_object_get(*config, "vocab_size");
        const json_int_t implied = family ? family->end_token : 0, value = id ? json_integer_value(id) : implied;
        if (json_is_integer(size) && (id ? json_is_integer(id) : implied != FAMILY_NO_TOKEN) &&
            value >= json_integer_value(size)) {
            json_put(config, ids[i], json_null());
            changed = true;
        }
    }
    return changed;
}

int model_config_name_type(bool *changed, json_t *config, enum safetensors_type type)
{
    static const char *const keys[] = {"torch_dtype", "dtype"};
    static const char *const names[] = {
        [SAFETENSORS_F32] = "float32", [SAFETENSORS_F16] = "float16", [SAFETENSORS_BF16] = "bfloat16"};
    int rc = 0;

    for (int i = 0; !rc && i < 2; i++) {
        const json_t *said = json_object_get(config, keys[i]);
        if (!said || (json_is_string(said) && strcmp(json_string_value(said), names[type]) == 0))
            continue;
        rc = json_object_set_new(config, keys[i], json_string(names[type]));
        *changed = true;
    }
    return rc;
}

/* Names the type of the weights in a config that need not do so. Returns true if something was changed. */
static bool name_type(json_t **config, enum safetensors_type type)
{
    bool changed = false;

    if (!json_object_get(*config, "torch_dtype") && !json_object_get(*config, "dtype"))
        json_put(config, "torch_dtype", json_null());
    if (model_config_name_type(&changed, *config, type)) {
        json_decref(*config);
        *config = NULL;
    }
    return changed;
}

/* What is saved is not quantised; but the base of a model with adapters is not saved, and read again as it was. Returns
 * true if something was changed. */
static bool drop_quantized(json_t **config)
{
    return !json_object_get(*config, ADAPTER_KEY) && json_object_del(*config, QUANTIZED_KEY) == 0;
}

char *model_config_print(const char *text, size_t n, enum safetensors_type type)
{
    json_t *config = json_loadb(text, n, 0, NULL);
    char *out = NULL;

    if (json_is_object(config)) {
        const bool foreign = drop_foreign_ids(&config), typed = name_type(&config, type);
        const bool coded = drop_quantized(&config);
        if (config)
            out = foreign || typed || coded ? model_config_text(config) : strndup(text, n);
    }
    json_decref(config);
    return out;
}
