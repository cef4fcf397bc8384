/* In a member that null may set, 0 means null. So such a key refuses a written 0, which transformers would take at its
 * word. Doubles are narrowed to fp32 and may become infinite: the checks of ranges come once derived numbers are
 * complete, and see what the model would compute with. */
#include "proto/model/config/config_values.h"

#include "proto/model/config/config_lists.h"
#include "proto/model/model_internal.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

/* As in ACT2FN of transformers, where several names have one function up to rounding. */
static int read_activation(enum model_activation *out, const char *key, const json_t *value, struct error *err)
{
    static const struct {
        const char *name;
        enum model_activation activation;
    } known[] = {{"gelu_new", MODEL_GELU_NEW},
                 {"gelu_pytorch_tanh", MODEL_GELU_NEW},
                 {"gelu_python_tanh", MODEL_GELU_NEW},
                 {"gelu_fast", MODEL_GELU_NEW},
                 {"gelu_accurate", MODEL_GELU_NEW},
                 {"gelu", MODEL_GELU},
                 {"gelu_python", MODEL_GELU},
                 {"quick_gelu", MODEL_GELU_QUICK},
                 {"relu", MODEL_RELU},
                 {"relu2", MODEL_RELU2},
                 {"silu", MODEL_SILU},
                 {"swish", MODEL_SILU},
                 {"tanh", MODEL_TANH},
                 {"sigmoid", MODEL_SIGMOID}};
    const char *name = json_string_value(value);

    for (size_t i = 0; name && i < sizeof known / sizeof known[0]; i++) {
        if (strcmp(name, known[i].name) == 0) {
            *out = known[i].activation;
            return 0;
        }
    }
    return model_config_refuse(
        err, key, value,
        "it must be gelu_new, gelu, quick_gelu, relu, relu2, silu, tanh, sigmoid, or another name of one of these");
}

int config_read_count(uint32_t *out, const char *key, const json_t *value, struct error *err)
{
    if (!json_is_integer(value) || json_integer_value(value) < 0 || json_integer_value(value) > UINT32_MAX)
        return model_config_refuse(err, key, value, "it must be a positive whole number");
    *out = (uint32_t)json_integer_value(value);
    return 0;
}

static int read_widths(struct model_config *out, const char *key, const json_t *value, struct error *err)
{
    out->widths = (struct model_widths){0};
    return json_is_array(value) ? model_widths_read(&out->widths, &out->inner_width, key, value, err)
                                : config_read_count(&out->inner_width, key, value, err);
}

static int config_values_read_real(float *out, const char *key, const json_t *value, struct error *err)
{
    if (!json_is_number(value))
        return model_config_refuse(err, key, value, "it must be a number");
    *out = (float)json_number_value(value);
    return 0;
}

/* Blocks that slide, L, up to one that does not, G. */
static int read_period(uint32_t *out, const char *key, const json_t *value, struct error *err)
{
    const char *word = json_string_value(value);
    const size_t n = word ? strspn(word, "L") + 1 : 0;

    *out = (uint32_t)n;
    if (json_is_null(value) || (json_is_integer(value) && json_integer_value(value) == 0) ||
        (word && strcmp(word + n - 1, "G") == 0))
        return 0;
    return word ? model_config_refuse(err, key, value, "it must be a whole number, or letters L that end in one G")
                : config_read_count(out, key, value, err);
}

void config_add_choice(char *text, size_t size, int i, int n, const char *name)
{
    const size_t at = strlen(text);

    snprintf(text + at, size - at, "%s%s", i == 0 ? "" : i + 1 < n ? ", " : " or ", name);
}

static int config_values_read_word(int *out, const struct family_key *key, const json_t *value, struct error *err)
{
    const char *word = json_string_value(value);
    char accepted[120] = "it must be ";
    int n = 0;

    for (; key->words[n]; n++)
        if (word && strcmp(word, key->words[n]) == 0) {
            *out = n;
            return 0;
        }
    for (int i = 0; i < n; i++)
        config_add_choice(accepted, sizeof accepted, i, n, key->words[i]);
    return model_config_refuse(err, key->name, value, accepted);
}

/* Of a block's entry, whether the block counts. */
static int read_layer(bool *out, const struct family_key *key, const json_t *item, struct error *err)
{
    int word = 0;

    if (key->type == FAMILY_LAYERS) {
        const int rc = config_values_read_word(&word, key, item, err);
        *out = word == (int)(key->counted > 0 ? key->counted : 1);
        return rc;
    }
    if (!json_is_boolean(item) && !json_is_number(item))
        return model_config_refuse(err, key->name, item, "each entry must be a number, 0 or another, or a switch");
    *out = json_is_false(item) || (json_is_number(item) && json_number_value(item) == 0);
    return 0;
}

static int read_layers(struct config_layers *out, const struct family_key *key, const json_t *value, struct error *err)
{
    size_t i;
    json_t *item;

    *out = (struct config_layers){0};
    if (json_is_null(value))
        return 0;
    if (!json_is_array(value) || json_array_size(value) > CONFIG_LAYERS)
        return model_config_refuse(err, key->name, value, "it must be a list with an entry for each block");
    out->n = (uint32_t)json_array_size(value);
    json_array_foreach(value, i, item)
    {
        bool counts = false;
        const int rc = read_layer(&counts, key, item, err);
        if (rc)
            return rc;
        if (counts)
            config_layers_add(out, i);
    }
    return 0;
}

static int read_indices(struct config_layers *out, const char *key, const json_t *value, struct error *err)
{
    size_t i;
    json_t *item;

    *out = (struct config_layers){0};
    if (json_is_null(value))
        return 0;
    if (!json_is_array(value))
        return model_config_refuse(err, key, value, "it must be a list of blocks' numbers");
    out->n = CONFIG_LAYERS;
    json_array_foreach(value, i, item)
    {
        if (!json_is_integer(item) || json_integer_value(item) < 0)
            return model_config_refuse(err, key, item, "each entry must be the number of a block, from 0 on");
        if (json_integer_value(item) < CONFIG_LAYERS)
            config_layers_add(out, (size_t)json_integer_value(item));
    }
    return 0;
}

void config_repeat_layers(struct config_layers *layers, uint32_t n)
{
    const struct config_layers listed = *layers;

    if (listed.n == 0)
        return;
    *layers = (struct config_layers){.n = n};
    for (uint32_t i = 0; i < n && i < CONFIG_LAYERS; i++)
        if (listed.set[i % listed.n / 64] >> i % listed.n % 64 & 1)
            config_layers_add(layers, i);
}

int config_read_key(struct model_config *out, const struct family_key *key, const json_t *value, struct error *err)
{
    void *field = (char *)out + key->offset;

    switch (key->type) {
    case FAMILY_COUNT:
        return config_read_count(field, key->name, value, err);
    case FAMILY_WIDTHS:
        return read_widths(out, key->name, value, err);
    case FAMILY_COUNT_OR_NULL:
    case FAMILY_WIDTHS_OR_NULL:
        if (json_is_null(value)) {
            *(uint32_t *)field = 0;
            return 0;
        }
        if (json_is_integer(value) && json_integer_value(value) == 0)
            return model_config_refuse(err, key->name, value, "it must be null or a positive whole number");
        return key->type == FAMILY_WIDTHS_OR_NULL ? read_widths(out, key->name, value, err)
                                                  : config_read_count(field, key->name, value, err);
    case FAMILY_COUNT_OR_NONE:
        *(uint32_t *)field = 0;
        return json_is_null(value) ? 0 : config_read_count(field, key->name, value, err);
    case FAMILY_PERIOD:
        return read_period(field, key->name, value, err);
    case FAMILY_REAL:
        return config_values_read_real(field, key->name, value, err);
    case FAMILY_REAL_OR_NULL:
        if (json_is_null(value)) {
            *(float *)field = 0;
            return 0;
        }
        if (json_is_number(value) && !(json_number_value(value) > 0))
            return model_config_refuse(err, key->name, value, "it must be null or greater than 0");
        return config_values_read_real(field, key->name, value, err);
    case FAMILY_REAL_OR_DEFAULT:
        return json_is_null(value) ? 0 : config_values_read_real(field, key->name, value, err);
    case FAMILY_SWITCH:
        if (!json_is_boolean(value))
            return model_config_refuse(err, key->name, value, "it must be true or false");
        *(bool *)field = json_is_true(value);
        return 0;
    case FAMILY_SWITCHED_OFF:
        if (!json_is_boolean(value))
            return model_config_refuse(err, key->name, value, "it must be true or false");
        *(bool *)field = json_is_false(value);
        return 0;
    case FAMILY_ACTIVATION:
        return read_activation(field, key->name, value, err);
    case FAMILY_WORD:
        return config_values_read_word(field, key, value, err);
    case FAMILY_LAYERS:
    case FAMILY_SWITCHES:
        return read_layers(field, key, value, err);
    case FAMILY_INDICES:
        return read_indices(field, key->name, value, err);
    case FAMILY_KERNELS:
        return config_read_kernels(field, key->name, value, err);
    case FAMILY_REALS:
        return config_read_reals(field, key->name, value, err);
    case FAMILY_DEPTHS:
        return config_read_depths(field, key->name, value, err);
    case FAMILY_CHANNELS:
        return config_read_channels(field, key->name, value, err);
    case FAMILY_SAME:
        return 0;
    }
    return -EINVAL;
}
