#include "proto/model/model_config_print.h"

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

/* Names the type of the weights under each key that the config has for it. Returns true if something was changed. */
static bool name_type(json_t **config, enum safetensors_type type)
{
    static const char *const keys[] = {"torch_dtype", "dtype"};
    static const char *const names[] = {
        [SAFETENSORS_F32] = "float32", [SAFETENSORS_F16] = "float16", [SAFETENSORS_BF16] = "bfloat16"};
    const bool none = !json_object_get(*config, keys[0]) && !json_object_get(*config, keys[1]);
    bool changed = false;

    for (int i = 0; i < 2; i++) {
        const json_t *said = json_object_get(*config, keys[i]);
        if (said ? !json_is_string(said) || strcmp(json_string_value(said), names[type]) != 0 : none && i == 0) {
            json_put(config, keys[i], json_string(names[type]));
            changed = true;
        }
    }
    return changed;
}

char *model_config_print(const char *text, size_t n, enum safetensors_type type)
{
    json_t *config = json_loadb(text, n, 0, NULL);
    char *out = NULL;

    if (json_is_object(config)) {
        const bool foreign = drop_foreign_ids(&config), typed = name_type(&config, type);
        const bool coded = json_object_del(config, "quantization_config") == 0; /* what is saved is not */
        if (config)
            out = foreign || typed || coded ? model_config_text(config) : strndup(text, n);
    }
    json_decref(config);
    return out;
}
