/* A program is made for each different width, not for each block, hence the bound on how many there are. A family
 * checks and writes with one inner_width, which is set for it in a copy of the config; in the config itself that is the
 * widest, and every size that must suffice for all blocks may use it. Equal widths are written as one number, as most
 * classes of transformers take no list. */
#include "proto/model/widths.h"

#include "proto/model/family.h"
#include "proto/model/model_internal.h"

#include <errno.h>
#include <jansson.h>

/* The index of a width among the different ones; MODEL_WIDTHS: they are too many. */
static uint32_t add_width(struct model_widths *widths, uint32_t width)
{
    uint32_t i = 0;

    while (i < widths->n_different && widths->different[i] != width)
        i++;
    if (i == widths->n_different && i < MODEL_WIDTHS)
        widths->different[widths->n_different++] = width;
    return i;
}

int model_widths_read(struct model_widths *out, uint32_t *widest, const char *key, const json_t *list,
                      struct error *err)
{
    size_t i;
    json_t *item;

    *out = (struct model_widths){0};
    *widest = 0;
    if (!json_is_array(list) || json_array_size(list) == 0 || json_array_size(list) > MODEL_WIDTHS_BLOCKS)
        return model_config_refuse(err, key, list,
                                   "it must be a positive whole number, or a list of one for each block");
    json_array_foreach(list, i, item)
    {
        const json_int_t width = json_is_integer(item) ? json_integer_value(item) : 0;
        if (width < 1 || width > MODEL_WIDEST)
            return error_set(err, -EINVAL, "%s has no whole number from 1 to %d for block %zu", key, MODEL_WIDEST, i);
        const uint32_t at = add_width(out, (uint32_t)width);
        if (at == MODEL_WIDTHS)
            return error_set(err, -EINVAL, "%s has more than %d different widths: use fewer", key, MODEL_WIDTHS);
        out->of[out->n++] = (uint8_t)at;
        *widest = *widest < width ? (uint32_t)width : *widest;
    }
    return 0;
}

uint32_t model_width_of(const struct model_config *config, uint32_t block)
{
    return config->widths.n ? config->widths.different[config->widths.of[block]] : config->inner_width;
}

uint32_t model_count_widths(const struct model_config *config)
{
    return config->widths.n ? config->widths.n_different : 1;
}

uint32_t model_width_at(const struct model_config *config, uint32_t i)
{
    return config->widths.n ? config->widths.different[i] : config->inner_width;
}

const char *model_widths_key(const struct family *family)
{
    for (const struct family_key *key = family->keys; key->name; key++)
        if (key->type == FAMILY_WIDTHS || key->type == FAMILY_WIDTHS_OR_NULL)
            return key->name;
    return NULL;
}

int model_widths_check(const struct model_config *config, struct error *err)
{
    struct model_config of_block = *config;
    int rc = 0;

    if (config->widths.n > 0 && config->widths.n != config->n_layers)
        return error_set(err, -EINVAL, "%s has %u widths: it must have one for each of the %u blocks",
                         model_widths_key(config->family), config->widths.n, config->n_layers);
    for (uint32_t i = 0; !rc && i < model_count_widths(config); i++) {
        of_block.inner_width = model_width_at(config, i);
        rc = config->family->check(&of_block, err);
    }
    return rc;
}

int model_widths_set(json_t *config, const uint32_t *widths, uint32_t n)
{
    const struct family *family = family_find(config);
    const char *key = family ? model_widths_key(family) : NULL;
    json_t *list = json_array();
    bool equal = true;
    int rc = list ? 0 : -ENOMEM;

    for (uint32_t i = 0; rc == 0 && i < n; i++) {
        equal = equal && widths[i] == widths[0];
        rc = json_array_append_new(list, json_integer(widths[i])) ? -ENOMEM : 0;
    }
    if (rc == 0 && !key)
        rc = -EINVAL;
    if (rc == 0)
        rc = json_object_set(config, key, equal ? json_array_get(list, 0) : list) ? -ENOMEM : 0;
    json_decref(list);
    return rc;
}
